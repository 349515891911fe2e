//! Work that overlaps computation, and the waits of the GPU.

use super::Class;
use llmprof_event::kernels::{
    Overlaps,
    work::{DeviceActivity, WorkKind},
};

/// Kernels below this duration are small.
pub const SMALL_NS: u64 = 5_000;

/// The overlaps of works in the order of their starts, each with its class.
pub(super) fn overlaps(works: &[DeviceActivity], classes: &[Class]) -> Overlaps {
    let mut sums = Overlaps::default();
    // Times in which a kernel computes, merged.
    let mut computing: Vec<(u64, u64)> = Vec::new();
    for (work, class) in works.iter().zip(classes) {
        if !work.is_timed() {
            continue;
        }
        let ns = work.end_ns - work.start_ns;
        match work.kind {
            WorkKind::Sync => {
                sums.waits += 1;
                sums.wait_ns += ns;
            }
            WorkKind::Kernel { .. } => {
                sums.kernels += 1;
                sums.kernel_ns += ns;
                if ns < SMALL_NS {
                    sums.small_kernels += 1;
                    sums.small_ns += ns;
                }
                if !class.is_communication() {
                    match computing.last_mut() {
                        Some(last) if work.start_ns <= last.1 => last.1 = last.1.max(work.end_ns),
                        _ => computing.push((work.start_ns, work.end_ns)),
                    }
                }
            }
            _ => {}
        }
    }
    for (work, class) in works.iter().zip(classes).filter(|(work, _)| work.is_timed()) {
        use llmprof_event::kernels::work::Direction;
        let (sum, bytes) = match work.kind {
            WorkKind::Copy { direction: Direction::HostToDevice, bytes } => (&mut sums.to_device, bytes),
            WorkKind::Copy { direction: Direction::DeviceToHost, bytes } => (&mut sums.to_host, bytes),
            WorkKind::Kernel { .. } if class.is_communication() => (&mut sums.communication, 0),
            _ => continue,
        };
        let ns = work.end_ns - work.start_ns;
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.total_ns += ns;
        sum.exposed_ns += ns - covered(&computing, work.start_ns, work.end_ns);
    }
    sums
}

/// How much of `from..to` the merged times cover.
fn covered(times: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let first = times.partition_point(|(_, end)| *end <= from);
    let within = times[first..].iter().take_while(|(start, _)| *start < to);
    within.map(|(start, end)| (*end).min(to) - (*start).max(from)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::{
        Exposed,
        work::{Direction, KernelLaunch, NameId},
    };

    fn work(start_ns: u64, end_ns: u64, kind: WorkKind) -> DeviceActivity {
        DeviceActivity { start_ns, end_ns, stream: 7, device: 0, correlation: 0, graph: None, kind }
    }

    #[test]
    fn only_what_computation_does_not_hide_is_exposed() {
        let launch = KernelLaunch { grid: [1; 3], block: [1; 3], registers: 0, shared_bytes: 0 };
        let kernel = WorkKind::Kernel { name: NameId(1), launch };
        let copy = WorkKind::Copy { direction: Direction::DeviceToHost, bytes: 8 };
        let all = [
            (work(1_000, 11_000, kernel), Class::Product),
            (work(9_000, 21_000, kernel), Class::Collective(super::super::Collective::AllReduce)),
            (work(13_000, 16_000, kernel), Class::Norm),
            (work(15_000, 18_000, copy), Class::Copy),
            (work(18_000, 30_000, WorkKind::Sync), Class::Other),
            (work(0, 30_000, copy), Class::Copy),
        ];
        let (works, classes): (Vec<DeviceActivity>, Vec<Class>) = all.into_iter().unzip();
        let sums = overlaps(&works, &classes);
        assert_eq!(
            sums.communication,
            Exposed { count: 1, bytes: 0, total_ns: 12_000, exposed_ns: 12_000 - 2_000 - 3_000 }
        );
        assert_eq!(sums.to_host, Exposed { count: 1, bytes: 8, total_ns: 3_000, exposed_ns: 2_000 });
        assert_eq!((sums.waits, sums.wait_ns), (1, 12_000));
        assert_eq!((sums.kernels, sums.small_kernels, sums.small_ns), (3, 1, 3_000));
        let mut twice = sums;
        twice.plus(&sums);
        assert_eq!((twice.kernel_ns, twice.to_host.bytes), (50_000, 16));
    }
}
