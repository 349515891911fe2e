//! What limits a program that was recorded from outside, in sentences with numbers.

use std::{collections::BTreeMap, fmt};

use super::{
    launches::{BOUND_SHARE, LaunchMeter, SMALL_SHARE, SOME_GRAPHS},
    steps::Class,
};
use llmprof_base::units::{bytes, grouped, millis, percent, percent_change};
use llmprof_event::{
    KernelWindow, Phase,
    kernels::{Exposed, KernelRow, Overlaps, work::MEMSET},
};

/// The number of steps that a trend needs.
const MIN_TREND: usize = 16;
/// A smaller growth of attention is not reported.
const MIN_GROWTH: f64 = 0.1;
/// From this share of the kernels' time on, small kernels are reported.
const MANY_SMALL: f64 = 0.3;
/// Maximum number of reported changes.
const CHANGES: usize = 3;

/// A finding about the steps of a phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Remark {
    /// The GPU waits for launches.
    LaunchBound {
        idle_share: f64,
        launches: f64,
        kernel_ns: f64,
    },
    /// The GPU waits, though the steps are CUDA graphs.
    IdleBetweenGraphs {
        idle_share: f64,
        between_ns: f64,
    },
    /// Copies while nothing computes.
    Copies {
        to_device: bool,
        bytes: f64,
        copies: f64,
        ns: f64,
        share: f64,
    },
    /// The host waits for the GPU, and then the GPU waits for the host.
    Waits {
        waits: f64,
        ns: f64,
        share: f64,
    },
    SmallKernels {
        share: f64,
        kernels: f64,
    },
    /// Between GPUs; `hidden` is the share that overlaps computation.
    Communication {
        share: f64,
        ns: f64,
        hidden: f64,
    },
    /// Attention takes longer from step to step.
    AttentionGrows {
        from_ns: f64,
        to_ns: f64,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = |share: f64| percent(100.0 * share);
        let time = |ns: f64| millis(ns / 1e6);
        match *self {
            Remark::LaunchBound { idle_share, launches, kernel_ns } => write!(
                f,
                "The GPU is idle {} of a step: {} launches of {}. CUDA graphs or torch.compile would help.",
                pct(idle_share),
                grouped(launches.round() as i64),
                time(kernel_ns)
            ),
            Remark::IdleBetweenGraphs { idle_share, between_ns } => write!(
                f,
                "The GPU is idle {} of a step although the program launches CUDA graphs: {} of it between steps.",
                pct(idle_share),
                time(between_ns)
            ),
            Remark::Copies { to_device, bytes: size, copies, ns, share } => write!(
                f,
                "{} {} of a step ({}) while nothing computes: {} in {} per step.",
                if to_device { "Copies to the device take" } else { "Copies to the host take" },
                pct(share),
                time(ns),
                bytes(size.round() as u64),
                counted(copies, "copy", "copies")
            ),
            Remark::Waits { waits, ns, share } => write!(
                f,
                "The host waits for the GPU {} per step, {} or {} of it, and launches no work meanwhile.",
                times(waits),
                time(ns),
                pct(share)
            ),
            Remark::SmallKernels { share, kernels } => write!(
                f,
                "{} of kernel time is in kernels shorter than 5 µs, {} per step: fusing them would help.",
                pct(share),
                grouped(kernels.round() as i64)
            ),
            Remark::Communication { share, ns, hidden } => write!(
                f,
                "Communication takes {} per step, {} of kernel time; {} of it runs beside computation.",
                time(ns),
                pct(share),
                pct(hidden)
            ),
            Remark::AttentionGrows { from_ns, to_ns } => write!(
                f,
                "Attention grew from {} to {} per step ({}): the context grows.",
                time(from_ns),
                time(to_ns),
                percent_change(100.0 * (to_ns / from_ns - 1.0))
            ),
        }
    }
}

/// The activity of a program on the GPU while it was recorded, for unknown steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Activity {
    /// From the first work of each recorded burst to its last.
    pub recorded_ns: u64,
    pub busy_ns: u64,
    pub kernels: u64,
    pub kernel_ns: f64,
    pub copies: u64,
    pub copy_ns: f64,
    pub copied_bytes: u64,
    pub in_graphs: bool,
    /// The kernel with the largest sum of times, and its share of the busy time.
    pub largest: Option<(String, f64)>,
}

impl Activity {
    /// `None` if nothing was recorded.
    pub fn from_window(window: &KernelWindow) -> Option<Activity> {
        let busy_ns = (window.busy_ns > 0).then_some(window.busy_ns)?;
        let (moved, kernels): (Vec<_>, Vec<_>) = window.rows.iter().partition(|row| row.bytes.is_some());
        // Filling memory does not move data.
        let copies: Vec<&KernelRow> = moved.into_iter().filter(|row| row.name != MEMSET).collect();
        let calls = |rows: &[&KernelRow]| rows.iter().map(|row| row.calls).sum::<u64>();
        let time = |row: &KernelRow| row.total_ns.unwrap_or(0.0);
        let mut by_family: BTreeMap<&str, f64> = BTreeMap::new();
        for row in &kernels {
            *by_family.entry(&row.family).or_default() += time(row);
        }
        let kernel_ns = by_family.values().sum();
        let largest = by_family.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Some(Activity {
            recorded_ns: window.span_ns,
            busy_ns,
            kernels: calls(&kernels),
            kernel_ns,
            copies: calls(&copies),
            copy_ns: copies.iter().map(|row| time(row)).sum(),
            copied_bytes: copies.iter().filter_map(|row| row.bytes).sum::<f64>() as u64,
            in_graphs: window.graph_launches as f64 >= SOME_GRAPHS * window.launches as f64,
            largest: largest.map(|(name, ns)| (name.to_owned(), ns / busy_ns as f64)),
        })
    }

    fn idle_share(&self) -> f64 {
        1.0 - (self.busy_ns as f64 / self.recorded_ns.max(1) as f64).min(1.0)
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = |share: f64| percent(100.0 * share);
        let (idle, recorded) = (self.idle_share(), millis(self.recorded_ns as f64 / 1e6));
        let copying = self.copy_ns / self.busy_ns.max(1) as f64;
        match idle >= BOUND_SHARE {
            false if copying > 0.5 => write!(
                f,
                "Copies limit the speed: they take {} of the recorded {recorded}.",
                pct((1.0 - idle) * copying.min(1.0))
            )?,
            true => write!(
                f,
                "The CPU limits the speed: the GPU is idle {} of the recorded {recorded}.",
                pct(idle)
            )?,
            false => write!(
                f,
                "Kernels limit the speed: the GPU is busy {} of the recorded {recorded}.",
                pct(1.0 - idle)
            )?,
        }
        if self.kernels > 0 {
            let mean = self.kernel_ns / self.kernels as f64;
            write!(
                f,
                " {} kernels take {} each on average",
                grouped(self.kernels as i64),
                millis(mean / 1e6)
            )?;
            f.write_str(if self.in_graphs { ", launched in CUDA graphs." } else { "." })?;
        }
        if let Some((name, share)) = &self.largest {
            write!(f, " The largest, {name}, has {} of the busy time.", pct(*share))?;
        }
        if self.copies > 0 {
            write!(f, " {} copies move {}.", grouped(self.copies as i64), bytes(self.copied_bytes))?;
        }
        Ok(())
    }
}

/// `2 copies`, `0.5 copies`, `1 copy`.
fn counted(n: f64, singular: &str, plural: &str) -> String {
    let rounded = (n * 10.0).round() / 10.0;
    format!("{rounded} {}", if rounded == 1.0 { singular } else { plural })
}

fn times(n: f64) -> String {
    let rounded = (n * 10.0).round() / 10.0;
    match rounded {
        1.0 => "once".to_owned(),
        2.0 => "twice".to_owned(),
        n => format!("{n} times"),
    }
}

/// All findings about the steps of a window, the most important first; none about the built-in engine, whose windows
/// have no overlaps. `attention_ns` are the attention times of steps, in order.
pub fn remarks(window: &KernelWindow, attention_ns: &[f64]) -> Vec<Remark> {
    let (Some(overlaps), Some(meter)) = (&window.overlaps, LaunchMeter::from_window(window)) else {
        return Vec::new();
    };
    let steps = window.steps as f64;
    let mut found = Vec::new();
    found.extend(idle(window, &meter));
    found.extend(copies(&overlaps.to_device, true, window, &meter));
    found.extend(copies(&overlaps.to_host, false, window, &meter));
    found.extend(waits(overlaps, steps, &meter));
    found.extend(communication(overlaps, steps));
    found.extend(small_kernels(overlaps, steps));
    if window.phase == Phase::Decode {
        found.extend(attention_growth(attention_ns));
    }
    found
}

fn idle(window: &KernelWindow, meter: &LaunchMeter) -> Option<Remark> {
    let idle_share = meter.idle_share().filter(|share| *share >= BOUND_SHARE)?;
    if meter.uses_graphs() {
        return Some(Remark::IdleBetweenGraphs { idle_share, between_ns: meter.between_ns });
    }
    let kernel_ns = window.busy_ns as f64 / window.launches.max(1) as f64;
    Some(Remark::LaunchBound { idle_share, launches: meter.launches, kernel_ns })
}

fn copies(sum: &Exposed, to_device: bool, window: &KernelWindow, meter: &LaunchMeter) -> Option<Remark> {
    let n = window.steps as f64;
    let ns = sum.exposed_ns as f64 / n;
    let share = ns / meter.step_ns();
    let (bytes, copies) = (sum.bytes as f64 / n, sum.count as f64 / n);
    (share >= SMALL_SHARE).then_some(Remark::Copies { to_device, bytes, copies, ns, share })
}

/// A wait costs time if the GPU has nothing to do after it.
fn waits(overlaps: &Overlaps, steps: f64, meter: &LaunchMeter) -> Option<Remark> {
    let (waits, ns) = (overlaps.waits as f64 / steps, overlaps.wait_ns as f64 / steps);
    let share = ns / meter.step_ns();
    let costs = share >= SMALL_SHARE && meter.idle_share().is_some_and(|idle| idle >= SMALL_SHARE);
    costs.then_some(Remark::Waits { waits, ns, share: share.min(1.0) })
}

fn communication(overlaps: &Overlaps, steps: f64) -> Option<Remark> {
    let sum = &overlaps.communication;
    let share = sum.total_ns as f64 / overlaps.kernel_ns.max(1) as f64;
    let hidden = 1.0 - sum.exposed_ns as f64 / sum.total_ns.max(1) as f64;
    let ns = sum.total_ns as f64 / steps;
    (share >= SMALL_SHARE).then_some(Remark::Communication { share, ns, hidden })
}

fn small_kernels(overlaps: &Overlaps, steps: f64) -> Option<Remark> {
    let share = overlaps.small_ns as f64 / overlaps.kernel_ns.max(1) as f64;
    let kernels = overlaps.small_kernels as f64 / steps;
    (share >= MANY_SMALL).then_some(Remark::SmallKernels { share, kernels })
}

/// Compares the first and the last quarter.
fn attention_growth(times: &[f64]) -> Option<Remark> {
    if times.len() < MIN_TREND {
        return None;
    }
    let quarter = times.len() / 4;
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let (from_ns, to_ns) = (mean(&times[..quarter]), mean(&times[times.len() - quarter..]));
    (from_ns > 0.0 && to_ns >= from_ns * (1.0 + MIN_GROWTH))
        .then_some(Remark::AttentionGrows { from_ns, to_ns })
}

/// The time of a class of kernels in a step, in two windows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    pub class: Class,
    pub before_ns: f64,
    pub after_ns: f64,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Change { class, before_ns, after_ns } = self;
        let time = |ns: f64| millis(ns / 1e6);
        let difference = after_ns - before_ns;
        let sign = if difference < 0.0 { "-" } else { "+" };
        write!(
            f,
            "{class}: {} → {} per step ({sign}{}",
            time(*before_ns),
            time(*after_ns),
            time(difference.abs())
        )?;
        if *before_ns > 0.0 {
            write!(f, ", {}", percent_change(100.0 * (after_ns / before_ns - 1.0)))?;
        }
        f.write_str(")")
    }
}

/// The classes of kernels whose time per step differs most, at most three; empty if a window has no steps.
pub fn changes(before: &KernelWindow, after: &KernelWindow) -> Vec<Change> {
    if before.steps == 0 || after.steps == 0 {
        return Vec::new();
    }
    let mut classes: BTreeMap<Class, (f64, f64)> = BTreeMap::new();
    for (window, is_after) in [(before, false), (after, true)] {
        for row in &window.rows {
            let ns = row.total_ns.unwrap_or(0.0) / window.steps as f64;
            let class = if row.grid.is_some() { Class::from_name(&row.name) } else { Class::Copy };
            let sums = classes.entry(class).or_default();
            *(if is_after { &mut sums.1 } else { &mut sums.0 }) += ns;
        }
    }
    let step_ns = before.busy_ns as f64 / before.steps as f64;
    let mut all: Vec<Change> = classes
        .into_iter()
        .map(|(class, (before_ns, after_ns))| Change { class, before_ns, after_ns })
        .filter(|change| (change.after_ns - change.before_ns).abs() >= 0.01 * step_ns)
        .collect();
    let size = |change: &Change| (change.after_ns - change.before_ns).abs();
    all.sort_by(|a, b| size(b).total_cmp(&size(a)));
    all.truncate(CHANGES);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::KernelRow;

    fn window(
        launches: u64,
        graph_launches: u64,
        busy_ns: u64,
        gaps_ns: u64,
        between_ns: u64,
    ) -> KernelWindow {
        let overlaps = Some(Overlaps { kernel_ns: 10 * busy_ns, ..Overlaps::default() });
        KernelWindow {
            phase: Phase::Decode,
            steps: 10,
            launches: 10 * launches,
            graph_launches: 10 * graph_launches,
            span_ns: 10 * (busy_ns + gaps_ns),
            busy_ns: 10 * busy_ns,
            between_ns: 10 * between_ns,
            overlaps,
            ..KernelWindow::default()
        }
    }

    fn overlaps(window: &mut KernelWindow) -> &mut Overlaps {
        window.overlaps.as_mut().unwrap()
    }

    fn text(window: &KernelWindow) -> Vec<String> {
        remarks(window, &[]).iter().map(Remark::to_string).collect()
    }

    #[test]
    fn launches_one_by_one() {
        assert_eq!(
            text(&window(1_245, 0, 2_490_000, 6_587_000, 500_000)),
            [
                "The GPU is idle 74 % of a step: 1,245 launches of 2.00 µs. CUDA graphs or torch.compile would help."
            ]
        );
        assert_eq!(
            text(&window(505, 500, 1_500_000, 100_000, 900_000)),
            [
                "The GPU is idle 40 % of a step although the program launches CUDA graphs: 0.900 ms of it between steps."
            ]
        );
        assert!(text(&window(505, 500, 1_500_000, 10_000, 5_000)).is_empty(), "nothing limits it");
        assert!(text(&KernelWindow { steps: 0, ..window(1, 0, 1, 1, 1) }).is_empty());
        assert!(
            text(&KernelWindow { overlaps: None, ..window(1_245, 0, 1, 9, 9) }).is_empty(),
            "our own engine"
        );
    }

    #[test]
    fn copies_and_waits() {
        let mut given = window(500, 0, 8_000_000, 1_500_000, 500_000);
        overlaps(&mut given).to_device =
            Exposed { count: 20, bytes: 160_000_000, total_ns: 9_000_000, exposed_ns: 8_000_000 };
        overlaps(&mut given).to_host = Exposed { count: 10, bytes: 80, total_ns: 10_000, exposed_ns: 10_000 };
        overlaps(&mut given).waits = 20;
        overlaps(&mut given).wait_ns = 30_000_000;
        assert_eq!(
            text(&given)[1..],
            [
                "Copies to the device take 8.0 % of a step (0.800 ms) while nothing computes: 16.0 MB in 2 copies per step.",
                "The host waits for the GPU twice per step, 3.00 ms or 30 % of it, and launches no work meanwhile."
            ]
        );
        let mut busy = window(500, 0, 10_000_000, 0, 0);
        overlaps(&mut busy).wait_ns = 90_000_000;
        assert!(text(&busy).is_empty(), "a wait for a busy GPU costs nothing");
    }

    #[test]
    fn small_kernels_and_communication() {
        let mut given = window(500, 500, 10_000_000, 0, 0);
        overlaps(&mut given).small_kernels = 4_000;
        overlaps(&mut given).small_ns = 45_000_000;
        overlaps(&mut given).communication =
            Exposed { count: 640, bytes: 0, total_ns: 22_000_000, exposed_ns: 16_500_000 };
        assert_eq!(
            text(&given),
            [
                "Communication takes 2.20 ms per step, 22 % of kernel time; 25 % of it runs beside computation.",
                "45 % of kernel time is in kernels shorter than 5 µs, 400 per step: fusing them would help."
            ]
        );
    }

    #[test]
    fn attention_that_grows_with_the_context() {
        let times: Vec<f64> = (0..100).map(|i| f64::from(100_000 + 1_000 * i)).collect();
        let given = window(500, 500, 10_000_000, 0, 0);
        let found: Vec<String> = remarks(&given, &times).iter().map(Remark::to_string).collect();
        assert_eq!(found, ["Attention grew from 0.112 ms to 0.187 ms per step (+67 %): the context grows."]);
        assert!(remarks(&given, &times[..8]).is_empty(), "too few");
        assert!(remarks(&KernelWindow { phase: Phase::Prefill, ..given }, &times).is_empty());
    }

    #[test]
    fn changes_between_two_windows() {
        let row = |name: &str, us: f64| KernelRow {
            calls: 10,
            total_ns: Some(us * 1e4),
            grid: Some([1, 1, 1]),
            ..KernelRow::named(name)
        };
        let of = |rows: Vec<KernelRow>| KernelWindow {
            steps: 10,
            busy_ns: 30_000_000,
            rows,
            ..KernelWindow::default()
        };
        let before = of(vec![
            row("vllm::rms_norm_kernel", 400.0),
            row("nvjet_sm90_tst_64x8", 2000.0),
            row("argmax", 9.0),
        ]);
        let after = of(vec![
            row("vllm::rms_norm_kernel", 520.0),
            row("nvjet_sm90_tst_64x8", 1000.0),
            row("cutlass_80_gemm", 500.0),
            row("argmax", 9.0),
            row("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 60.0),
            row("act_and_mul_kernel", 40.0),
        ]);
        let found: Vec<String> = changes(&before, &after).iter().map(Change::to_string).collect();
        assert_eq!(
            found,
            [
                "product: 2.00 ms → 1.50 ms per step (-0.500 ms, -25 %)",
                "norm: 0.400 ms → 0.520 ms per step (+0.120 ms, +30 %)",
                "NCCL all-reduce: 0 ms → 60.0 µs per step (+60.0 µs)"
            ]
        );
        assert!(changes(&before, &before).is_empty());
        assert!(changes(&before, &KernelWindow::default()).is_empty());
    }
}
