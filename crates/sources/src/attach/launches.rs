//! Kernels by the Python frames that launched them: joined by the number that CUPTI gives each call, in bounded memory.

use std::collections::{BTreeMap, HashMap, VecDeque};

use llmprof_event::{LaunchFrame, LaunchLines, LaunchRow, LaunchStack};

/// Maximum launches whose kernels may still come, and bursts that they belong to.
const MAX_LAUNCHES: usize = 1 << 18;
const MAX_BURSTS: usize = 64;
/// Maximum rows of a window; further kernels are counted together.
const MAX_ROWS: usize = 4096;
const FURTHER: &str = "(further kernels)";
/// Maximum frames of a process; further ones are left out of their stacks.
const MAX_FRAMES: usize = 1 << 16;
/// The number of no stack.
const OUTSIDE: u32 = 0;
/// The kernels of a burst have arrived when so many more have begun.
const SETTLED_AFTER: usize = 4;
/// Launches of a burst below which it says nothing that none of them has a kernel.
const FEW: u32 = 100;

#[derive(Default)]
pub struct Launches {
    /// The stack of each launch, in the order of their arrival, and whether a kernel of it was recorded.
    stacks: HashMap<u32, (u32, bool)>,
    order: VecDeque<u32>,
    bursts: VecDeque<Burst>,
    frames: HashMap<LaunchFrame, u32>,
    /// Launches and their time, by stack and name.
    rows: BTreeMap<u32, BTreeMap<String, (u32, u64)>>,
    row_count: usize,
}

/// A stack whose frames were read, innermost first, and the index of the program's own frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadStack {
    pub stack: u32,
    pub frames: Vec<LaunchFrame>,
    pub own: Option<usize>,
}

/// The launches of a burst.
#[derive(Debug, Default)]
struct Burst {
    /// The first and the last one.
    range: Option<(u32, u32)>,
    launches: u32,
    /// Those of which kernels were recorded: launches of graphs, and others.
    graphs: u32,
    others: u32,
}

impl Burst {
    fn contains(&self, correlation: u32) -> bool {
        self.range.is_some_and(|(first, last)| (first..=last).contains(&correlation))
    }
}

impl Launches {
    pub fn begin_burst(&mut self) {
        if self.bursts.len() >= MAX_BURSTS {
            self.bursts.pop_front();
        }
        self.bursts.push_back(Burst::default());
    }

    /// The number of launches without kernels in the last burst whose kernels have arrived, if CUPTI has recorded kernels of
    /// graphs alone. Launches that a graph captures have no kernels either, but then no graph runs.
    pub fn unrecorded(&self) -> Option<u32> {
        let settled = self.bursts.len().checked_sub(SETTLED_AFTER + 1)?;
        let burst = &self.bursts[settled];
        let missing = burst.launches.saturating_sub(burst.graphs);
        (burst.graphs > 0 && burst.others == 0 && missing >= FEW).then_some(missing)
    }

    pub fn launch(&mut self, correlation: u32, stack: u32) {
        if let Some(burst) = self.bursts.back_mut() {
            let (first, last) = burst.range.get_or_insert((correlation, correlation));
            (*first, *last) = ((*first).min(correlation), (*last).max(correlation));
            burst.launches += 1;
        }
        if self.order.len() >= MAX_LAUNCHES
            && let Some(oldest) = self.order.pop_front()
        {
            self.stacks.remove(&oldest);
        }
        if self.stacks.insert(correlation, (stack, false)).is_none() {
            self.order.push_back(correlation);
        }
    }

    /// A kernel that a burst has recorded, after its launch. Work that was launched before the burst is not counted.
    pub fn kernel(&mut self, correlation: u32, name: &str, ns: u64, in_graph: bool) {
        let burst = self.bursts.iter_mut().find(|burst| burst.contains(correlation));
        let stack = match (self.stacks.get_mut(&correlation), burst) {
            (Some((stack, is_recorded)), burst) => {
                let is_first = !std::mem::replace(is_recorded, true);
                if let Some(burst) = burst.filter(|_| is_first) {
                    let counted = if in_graph { &mut burst.graphs } else { &mut burst.others };
                    *counted += 1;
                }
                *stack
            }
            (None, Some(_)) => OUTSIDE,
            (None, None) => return,
        };
        let has_row = self.rows.get(&stack).is_some_and(|kernels| kernels.contains_key(name));
        let (stack, name) =
            if has_row || self.row_count < MAX_ROWS { (stack, name) } else { (OUTSIDE, FURTHER) };
        let kernels = self.rows.entry(stack).or_default();
        let counts = match kernels.get_mut(name) {
            Some(counts) => counts,
            None => {
                self.row_count += 1;
                kernels.entry(name.to_owned()).or_default()
            }
        };
        counts.0 = counts.0.saturating_add(1);
        counts.1 = counts.1.saturating_add(ns);
    }

    /// The rows since the last call.
    pub fn take(&mut self, pid: u32, read: Vec<ReadStack>) -> Option<LaunchLines> {
        let mut frames = Vec::new();
        let stacks: Vec<LaunchStack> = read.into_iter().map(|read| self.number(read, &mut frames)).collect();
        self.row_count = 0;
        let rows = std::mem::take(&mut self.rows).into_iter().flat_map(|(stack, kernels)| {
            let row = move |(kernel, (launches, ns))| LaunchRow { stack, kernel, launches, ns };
            kernels.into_iter().map(row)
        });
        let rows: Vec<LaunchRow> = rows.collect();
        (!rows.is_empty() || !stacks.is_empty()).then_some(LaunchLines { pid, frames, stacks, rows })
    }

    /// Gives the stack's frames their numbers; new ones are added to `named`.
    fn number(&mut self, read: ReadStack, named: &mut Vec<LaunchFrame>) -> LaunchStack {
        let mut own = None;
        let mut numbers = Vec::with_capacity(read.frames.len());
        for (i, frame) in read.frames.into_iter().enumerate() {
            let next = self.frames.len() as u32;
            let number = match self.frames.get(&frame) {
                Some(number) => *number,
                None if self.frames.len() >= MAX_FRAMES => continue,
                None => {
                    named.push(frame.clone());
                    self.frames.insert(frame, next);
                    next
                }
            };
            if read.own == Some(i) {
                own = Some(numbers.len() as u32);
            }
            numbers.push(number);
        }
        LaunchStack { stack: read.stack, frames: numbers, own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(launches: &mut Launches) -> Vec<(u32, String, u32, u64)> {
        let rows = launches.take(7, Vec::new()).map(|lines| lines.rows).unwrap_or_default();
        rows.into_iter().map(|row| (row.stack, row.kernel, row.launches, row.ns)).collect()
    }

    #[test]
    fn kernels_have_the_stack_of_their_launch() {
        let mut launches = Launches::default();
        launches.begin_burst();
        launches.launch(10, 1);
        launches.launch(14, 2);
        launches.kernel(10, "gemm", 5, false);
        // The nodes of a graph have one launch.
        launches.kernel(10, "gemm", 7, false);
        launches.kernel(14, "norm", 2, false);
        // Between both, by a thread that is not Python's.
        launches.kernel(12, "copy", 1, false);
        // Before the burst.
        launches.kernel(9, "gemm", 40, false);
        let expected = [(0, "copy", 1, 1), (1, "gemm", 2, 12), (2, "norm", 1, 2)];
        assert_eq!(rows(&mut launches), expected.map(|(s, name, n, ns)| (s, name.to_owned(), n, ns)));
        assert_eq!(launches.take(7, Vec::new()), None);
    }

    #[test]
    fn each_frame_is_named_once() {
        let frame = |line| LaunchFrame {
            file: "a.py".to_owned(),
            dir: "/app/".to_owned(),
            line,
            function: "f".to_owned(),
        };
        let read = |stack, lines: &[u32], own| ReadStack {
            stack,
            frames: lines.iter().copied().map(frame).collect(),
            own: Some(own),
        };
        let mut launches = Launches::default();
        let first = launches.take(7, vec![read(1, &[5, 9], 1), read(2, &[6, 9], 0)]).unwrap();
        assert_eq!(first.frames, [5, 9, 6].map(frame));
        assert_eq!(first.stacks[1], LaunchStack { stack: 2, frames: vec![2, 1], own: Some(0) });
        let second = launches.take(7, vec![read(3, &[7, 9], 1)]).unwrap();
        assert_eq!((second.frames, &second.stacks[0].frames), (vec![frame(7)], &vec![3, 1]));
    }

    #[test]
    fn launches_without_kernels_are_noticed() {
        // In each burst ten launches of graphs and 200 others.
        let noticed = |are_recorded: bool, graphs_run: bool| {
            let mut launches = Launches::default();
            for n in 0..=SETTLED_AFTER as u32 {
                assert_eq!(launches.unrecorded(), None, "kernels may still come");
                launches.begin_burst();
                (0..210).for_each(|i| launches.launch(1000 * n + i, 1));
                (0..210).filter(|i| if *i < 10 { graphs_run } else { are_recorded }).for_each(|i| {
                    launches.kernel(1000 * n + i, "k", 1, i < 10);
                });
            }
            launches.unrecorded()
        };
        assert_eq!(noticed(false, true), Some(200));
        assert_eq!((noticed(true, true), noticed(false, false)), (None, None), "a graph captures launches");
    }

    #[test]
    fn a_program_without_python_launches_has_no_rows() {
        let mut launches = Launches::default();
        launches.begin_burst();
        launches.kernel(1, "gemm", 5, false);
        assert_eq!(launches.take(7, Vec::new()), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut launches = Launches::default();
        (0..2 * MAX_BURSTS).for_each(|_| launches.begin_burst());
        assert_eq!(launches.bursts.len(), MAX_BURSTS);
        for n in 0..MAX_LAUNCHES as u32 + 10 {
            launches.launch(n, n);
        }
        assert_eq!((launches.stacks.len(), launches.order.len()), (MAX_LAUNCHES, MAX_LAUNCHES));
        for n in 0..MAX_ROWS as u32 + 10 {
            launches.kernel(20, &format!("k{n}"), 1, false);
        }
        let rows = rows(&mut launches);
        assert_eq!(rows.len(), MAX_ROWS + 1);
        assert_eq!(rows.iter().map(|(.., ns)| ns).sum::<u64>(), MAX_ROWS as u64 + 10, "each is counted once");
    }
}
