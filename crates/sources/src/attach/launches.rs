//! Kernels by the Python frames that launched them: joined by the number that CUPTI gives each call, in bounded memory.

use std::collections::{BTreeMap, HashMap, VecDeque};

use llmprof_event::{LaunchLines, LaunchRow, LaunchStack};

/// Maximum launches whose kernels may still come, and kernels whose launches may.
const MAX_LAUNCHES: usize = 1 << 18;
const MAX_WAITING: usize = 1 << 14;
/// Maximum rows of a window; further kernels are counted as launched outside of Python.
const MAX_ROWS: usize = 4096;
/// The number of no stack.
const NONE: u32 = 0;

struct Kernel {
    correlation: u32,
    name: String,
    ns: u64,
}

#[derive(Default)]
pub struct Launches {
    /// The stack of each launch, in the order of their arrival.
    stacks: HashMap<u32, u32>,
    order: VecDeque<u32>,
    /// Kernels that have arrived before their launch, and those of the window before.
    waiting: VecDeque<Kernel>,
    late: VecDeque<Kernel>,
    /// Launches and their time, by stack and name.
    rows: BTreeMap<u32, BTreeMap<String, (u32, u64)>>,
    row_count: usize,
    /// Whether any launch has a stack: a program that is not Python has no lines.
    is_used: bool,
}

impl Launches {
    pub fn launch(&mut self, correlation: u32, stack: u32) {
        self.is_used = true;
        if self.order.len() >= MAX_LAUNCHES
            && let Some(oldest) = self.order.pop_front()
        {
            self.stacks.remove(&oldest);
        }
        if self.stacks.insert(correlation, stack).is_none() {
            self.order.push_back(correlation);
        }
    }

    pub fn kernel(&mut self, correlation: u32, name: Option<&str>, ns: u64) {
        if !self.is_used {
            return;
        }
        let name = name.unwrap_or("(unnamed)");
        match self.stacks.get(&correlation) {
            Some(stack) => self.count(*stack, name, ns),
            None if self.waiting.len() < MAX_WAITING => {
                self.waiting.push_back(Kernel { correlation, name: name.to_owned(), ns });
            }
            None => self.count(NONE, name, ns),
        }
    }

    fn count(&mut self, stack: u32, name: &str, ns: u64) {
        let is_known = self.rows.get(&stack).is_some_and(|kernels| kernels.contains_key(name));
        let (stack, name) =
            if is_known || self.row_count < MAX_ROWS { (stack, name) } else { (NONE, "(further kernels)") };
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

    /// The rows since the last call. A kernel whose launch is not known waits for one more call.
    pub fn take(&mut self, pid: u32, stacks: Vec<LaunchStack>, is_last: bool) -> Option<LaunchLines> {
        let settled: Vec<Kernel> = match is_last {
            true => self.late.drain(..).chain(self.waiting.drain(..)).collect(),
            false => std::mem::replace(&mut self.late, std::mem::take(&mut self.waiting)).into(),
        };
        for kernel in settled {
            let stack = self.stacks.get(&kernel.correlation).copied().unwrap_or(NONE);
            self.count(stack, &kernel.name, kernel.ns);
        }
        self.row_count = 0;
        let rows = std::mem::take(&mut self.rows).into_iter().flat_map(|(stack, kernels)| {
            let row = move |(kernel, (launches, ns))| LaunchRow { stack, kernel, launches, ns };
            kernels.into_iter().map(row)
        });
        let rows: Vec<LaunchRow> = rows.collect();
        (!rows.is_empty() || !stacks.is_empty()).then_some(LaunchLines { pid, stacks, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(launches: &mut Launches, is_last: bool) -> Vec<(u32, String, u32, u64)> {
        let lines = launches.take(7, Vec::new(), is_last);
        let rows = lines.map(|lines| lines.rows).unwrap_or_default();
        rows.into_iter().map(|row| (row.stack, row.kernel, row.launches, row.ns)).collect()
    }

    #[test]
    fn kernels_have_the_stack_of_their_launch_in_any_order() {
        let mut launches = Launches::default();
        launches.launch(10, 1);
        launches.kernel(10, Some("gemm"), 5);
        // The nodes of a graph have one launch.
        launches.kernel(10, Some("gemm"), 7);
        launches.kernel(11, Some("norm"), 2);
        launches.kernel(12, Some("copy"), 1);
        assert_eq!(rows(&mut launches, false), [(1, "gemm".to_owned(), 2, 12)]);
        launches.launch(11, 2);
        let last = [(0, "copy".to_owned(), 1, 1), (2, "norm".to_owned(), 1, 2)];
        assert_eq!(rows(&mut launches, true), last);
    }

    #[test]
    fn a_program_without_python_launches_has_no_rows() {
        let mut launches = Launches::default();
        launches.kernel(1, Some("gemm"), 5);
        assert_eq!(launches.take(7, Vec::new(), true), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut launches = Launches::default();
        for n in 0..MAX_LAUNCHES as u32 + 10 {
            launches.launch(n, n);
        }
        assert_eq!((launches.stacks.len(), launches.order.len()), (MAX_LAUNCHES, MAX_LAUNCHES));
        for n in 0..MAX_WAITING as u32 + 10 {
            launches.kernel(u32::MAX - n, Some("k"), 1);
        }
        for n in 0..MAX_ROWS as u32 + 10 {
            launches.kernel(20, Some(&format!("k{n}")), 1);
        }
        let rows = rows(&mut launches, true);
        assert!(rows.len() <= MAX_ROWS + 1);
        let all: u64 = rows.iter().map(|(.., ns)| ns).sum();
        assert_eq!(all, (MAX_WAITING + MAX_ROWS + 20) as u64, "every kernel is counted once");
    }
}
