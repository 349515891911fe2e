//! Records whose times are no measurement.
//!
//! CUPTI keeps the times of a graph's nodes per graph, not per launch. A launch that runs while recording is switched on or off
//! has nodes with the begin of an earlier launch or the end of a later one: on an H200 a kernel of 2 µs lasted 56 ms. Kernels of
//! one stream run one after the other, which shows it.

use std::collections::{BTreeSet, HashMap};

use llmprof_event::kernels::work::{DeviceActivity, WorkKind};

/// Kernels that wait for the one before them may start early, as programmatic dependent launches do; so many of them.
const RUNS_AHEAD: usize = 3;
/// Branches of a graph run beside each other. Where so many of its nodes last beyond the next ones, its times are wrong: one in four.
const MIN_SHARE: usize = 4;

/// Removes records of kernels that lasted beyond the next ones of their stream. `works` are in the order of their starts. Returns how
/// many were removed.
pub(super) fn leave_out(works: &mut Vec<DeviceActivity>) -> u64 {
    let wrong = wrong_launches(works);
    let mut is_kept = contains_no_other(works);
    let nexts = next_launches(works);
    for (kept, work) in is_kept.iter_mut().zip(works.iter()) {
        let next = || nexts.get(&(work.device, work.stream, work.correlation));
        *kept &= work.graph.is_none()
            || !wrong.contains(&work.correlation) && next().is_none_or(|next| work.end_ns <= *next);
    }
    let before = works.len();
    let mut kept = is_kept.into_iter();
    works.retain(|_| kept.next().unwrap_or(true));
    (before - works.len()) as u64
}

/// Launches of graphs, by their correlation ids, many of whose nodes last beyond the next ones.
fn wrong_launches(works: &[DeviceActivity]) -> BTreeSet<u32> {
    let mut launches: HashMap<u32, Vec<&DeviceActivity>> = HashMap::new();
    for work in works.iter().filter(|work| is_kernel(work) && work.graph.is_some()) {
        launches.entry(work.correlation).or_default().push(work);
    }
    let is_wrong = |nodes: &[&DeviceActivity]| {
        let pairs = nodes.iter().zip(nodes.iter().skip(RUNS_AHEAD));
        let beyond = pairs.clone().filter(|(work, later)| work.end_ns > later.start_ns).count();
        beyond > 0 && beyond * MIN_SHARE >= pairs.count()
    };
    launches.into_iter().filter(|(_, nodes)| is_wrong(nodes)).map(|(correlation, _)| correlation).collect()
}

/// For each launch of a graph, by its stream: when the work of later launches is certain to run there, which waits for all of its
/// nodes.
fn next_launches(works: &[DeviceActivity]) -> HashMap<(u16, u32, u32), u64> {
    let mut streams: HashMap<(u16, u32), Vec<&DeviceActivity>> = HashMap::new();
    for work in works.iter().filter(|work| !matches!(work.kind, WorkKind::Sync)) {
        streams.entry((work.device, work.stream)).or_default().push(work);
    }
    let mut nexts = HashMap::new();
    for ((device, stream), works) in streams {
        let mut seen = BTreeSet::new();
        for (i, work) in works.iter().enumerate().rev() {
            // The last node of its launch.
            if work.graph.is_some()
                && seen.insert(work.correlation)
                && let Some(later) = works.get(i + 1 + RUNS_AHEAD)
            {
                nexts.insert((device, stream, work.correlation), later.start_ns);
            }
        }
    }
    nexts
}

/// For each work whether it lasts beyond the whole of a later kernel of its stream. Nodes of a graph may have the stream of its
/// launch and run beside each other.
fn contains_no_other(works: &[DeviceActivity]) -> Vec<bool> {
    let mut earliest_end: HashMap<(u16, u32), u64> = HashMap::new();
    let mut is_kept = vec![true; works.len()];
    for (i, work) in works.iter().enumerate().rev() {
        if !is_kernel(work) || work.graph.is_some() {
            continue;
        }
        let end = earliest_end.entry((work.device, work.stream)).or_insert(u64::MAX);
        is_kept[i] = work.end_ns <= *end;
        *end = work.end_ns.min(*end);
    }
    is_kept
}

fn is_kernel(work: &DeviceActivity) -> bool {
    matches!(work.kind, WorkKind::Kernel { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::kernels::work::{KernelLaunch, NameId};

    /// Start, end, correlation and whether it is a node of a graph.
    fn left(given: &[(u64, u64, u32, bool)]) -> Vec<u64> {
        let launch = KernelLaunch { grid: [1; 3], block: [1; 3], registers: 0, shared_bytes: 0 };
        let work = |&(start_ns, end_ns, correlation, in_graph): &(u64, u64, u32, bool)| DeviceActivity {
            start_ns,
            end_ns,
            stream: 7,
            device: 0,
            correlation,
            graph: in_graph.then_some(1),
            kind: WorkKind::Kernel { name: NameId(1), launch },
        };
        let mut works: Vec<DeviceActivity> = given.iter().map(work).collect();
        let removed = leave_out(&mut works);
        assert_eq!(removed as usize + works.len(), given.len());
        works.iter().map(|work| work.start_ns).collect()
    }

    #[test]
    fn a_launch_with_ends_of_a_later_one_is_left_out() {
        let sound: Vec<_> = (0..8).map(|i| (10 * i, 10 * i + 9, 1, true)).collect();
        assert_eq!(left(&sound).len(), 8);
        let wrong = (0..8).map(|i| (100 + 10 * i, 1_000 + 10 * i, 2, true));
        let both: Vec<_> = sound.iter().copied().chain(wrong).collect();
        assert_eq!(left(&both), [0, 10, 20, 30, 40, 50, 60, 70]);
    }

    #[test]
    fn a_node_that_lasts_beyond_the_next_launch_is_left_out() {
        let launches = (0..24).map(|i| (10 * i, 10 * i + 9, i as u32 / 8, true));
        let mut works: Vec<_> = launches.collect();
        // Beside the rest of its launch, and beyond.
        works[3].1 = 75;
        assert_eq!(left(&works).len(), 24);
        works[3].1 = 5000;
        assert!(left(&works).len() == 23 && !left(&works).contains(&30));
        works[23].1 = 5000;
        assert_eq!(left(&works).len(), 23, "nothing is known after the last launch");
    }

    #[test]
    fn branches_of_a_graph_and_early_starts_stay() {
        // One long kernel beside many short ones.
        let mut branches: Vec<_> = (0..12).map(|i| (10 + 10 * i, 18 + 10 * i, 1, true)).collect();
        branches.insert(0, (0, 110, 1, true));
        assert_eq!(left(&branches).len(), 13);
        let early: Vec<_> = (0..8).map(|i| (10 * i, 10 * i + 14, i as u32, false)).collect();
        assert_eq!(left(&early).len(), 8);
    }

    #[test]
    fn a_kernel_around_another_of_its_stream_is_left_out() {
        assert_eq!(left(&[(0, 100, 1, false), (10, 20, 2, false), (20, 30, 3, false)]), [10, 20]);
    }
}
