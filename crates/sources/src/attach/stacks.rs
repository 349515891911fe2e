//! Samples of the Python threads of a followed process, and whether the GPU was idle at each.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use host_stacks::{Refusal, Sampler, State, ThreadSample, fold_to_user};
use llmprof_base::foreign::line;
use llmprof_event::{EventTx, HostActivity, HostRow, HostStacks, Level};

/// The interval between samples.
const INTERVAL: Duration = Duration::from_millis(20);
/// Records of kernels arrive within this time.
const LATE_NS: u64 = 1_500_000_000;
/// Between kernels, a shorter time is not idle.
const GAP_NS: u64 = 5_000;
/// Maximum of what is kept: samples of two minutes, threads of a sample, times of the GPU, rows of a window.
const MAX_SAMPLES: usize = 6000;
const MAX_THREADS: usize = 64;
const MAX_SPANS: usize = 1 << 18;
const MAX_ROWS: usize = 64;
const MAX_LINE: usize = 200;

type Row = (String, HostActivity, String);

struct Sample {
    at_ns: u64,
    threads: Vec<Row>,
}

#[derive(Default)]
struct Shared {
    samples: Mutex<Vec<Sample>>,
    stop: AtomicBool,
}

/// The samples of one process. Sampling ends with this value.
pub struct StackFollower {
    pid: u32,
    shared: Arc<Shared>,
    /// When kernels were recorded; the last span may be open.
    recorded: Vec<(u64, u64)>,
    /// When the GPU worked.
    busy: Vec<(u64, u64)>,
}

impl Drop for StackFollower {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl StackFollower {
    /// Samples process `pid` from now on, if it is a Python program.
    pub fn start(pid: u32, tx: &EventTx) -> StackFollower {
        let shared = Arc::new(Shared::default());
        let (theirs, tx) = (Arc::clone(&shared), tx.clone());
        // Without the thread there are no samples, as in a program that is not Python.
        let _ =
            thread::Builder::new().name("llmprof-stacks".to_owned()).spawn(move || sample(pid, &tx, &theirs));
        StackFollower { pid, shared, recorded: Vec::new(), busy: Vec::new() }
    }

    /// Every kernel is recorded from now on.
    pub fn begin_burst(&mut self, at_ns: u64) {
        self.recorded.push((at_ns, u64::MAX));
    }

    pub fn end_burst(&mut self, at_ns: u64) {
        if let Some(last) = self.recorded.last_mut() {
            last.1 = last.1.min(at_ns);
        }
    }

    /// The GPU worked.
    pub fn work(&mut self, start_ns: u64, end_ns: u64) {
        let room = self.busy.len() < MAX_SPANS;
        match self.busy.last_mut() {
            Some(last) if start_ns >= last.0 && start_ns <= last.1.saturating_add(GAP_NS) => {
                last.1 = last.1.max(end_ns);
            }
            _ if room => self.busy.push((start_ns, end_ns)),
            _ => {}
        }
    }

    /// The samples whose kernels are known by now; all of them at the end.
    pub fn take(&mut self, until_ns: Option<u64>) -> Option<HostStacks> {
        let until_ns = until_ns.map_or(u64::MAX, |until| until.saturating_sub(LATE_NS));
        let samples: Vec<Sample> = {
            let mut samples = self.shared.samples.lock().unwrap_or_else(PoisonError::into_inner);
            let known = samples.iter().take_while(|sample| sample.at_ns < until_ns).count();
            samples.drain(..known).collect()
        };
        let (first, last) = (samples.first()?.at_ns, samples.last()?.at_ns);
        self.busy.sort_unstable();
        let mut window = HostStacks { pid: self.pid, samples: 0, recorded: 0, idle: 0, rows: Vec::new() };
        let mut rows: BTreeMap<Row, (u32, u32)> = BTreeMap::new();
        for sample in &samples {
            let is_recorded = self.recorded.iter().any(|(from, to)| (*from..*to).contains(&sample.at_ns));
            let is_idle = is_recorded && !is_within(&self.busy, sample.at_ns);
            window.samples += 1;
            window.recorded += u32::from(is_recorded);
            window.idle += u32::from(is_idle);
            for row in &sample.threads {
                let counts = rows.entry(row.clone()).or_default();
                counts.0 += 1;
                counts.1 += u32::from(is_idle);
            }
        }
        self.recorded.retain(|(_, to)| *to > first);
        self.busy.retain(|(_, to)| *to > last);
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|(_, (samples, idle))| std::cmp::Reverse((*idle, *samples)));
        rows.truncate(MAX_ROWS);
        let row = |((thread, state, line), (samples, idle))| HostRow { thread, state, line, samples, idle };
        window.rows = rows.into_iter().map(row).collect();
        Some(window)
    }
}

/// Whether a time is within one of the sorted spans, which may overlap.
fn is_within(spans: &[(u64, u64)], at_ns: u64) -> bool {
    let after = spans.partition_point(|(start, _)| *start <= at_ns);
    // A span that began much earlier is longer than any kernel between.
    spans[..after].iter().rev().take(64).any(|(_, end)| at_ns < end.saturating_add(GAP_NS))
}

fn sample(pid: u32, tx: &EventTx, shared: &Shared) {
    let mut sampler = match Sampler::new(pid) {
        Ok(sampler) => sampler,
        Err(Refusal::NotPython { .. } | Refusal::Gone { .. }) => return,
        Err(refusal) => {
            let cause = line(refusal.to_string().trim_end_matches('.'), 300);
            return tx.notice(
                Level::Info,
                "stacks",
                format!("the Python lines of process {pid} cannot be read: {cause}"),
            );
        }
    };
    while !shared.stop.load(Ordering::Relaxed) {
        let at_ns = tx.clock().now().0;
        let Ok(threads) = sampler.sample() else { return };
        let threads = threads.iter().take(MAX_THREADS).filter_map(row).collect();
        let mut samples = shared.samples.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() < MAX_SAMPLES {
            samples.push(Sample { at_ns, threads });
        }
        drop(samples);
        thread::sleep(INTERVAL);
    }
}

fn row(thread: &ThreadSample) -> Option<Row> {
    let place = fold_to_user(&thread.frames).or(thread.frames.first())?;
    Some((line(&thread.name, 60), activity(&thread.state), line(&place.to_string(), MAX_LINE)))
}

fn activity(state: &State) -> HostActivity {
    match state {
        State::RunningPython => HostActivity::RunningPython,
        State::RunningNative => HostActivity::RunningNative,
        State::WaitingForGil { .. } => HostActivity::WaitingForGil,
        State::WaitingForLock => HostActivity::WaitingForLock,
        State::SystemCall(_) => HostActivity::SystemCall,
        State::Sleeping => HostActivity::Sleeping,
        State::WaitingForGpu => HostActivity::WaitingForGpu,
        State::Descheduled => HostActivity::WaitingForCpu,
        State::PageFault => HostActivity::PageFault,
        State::Stopped => HostActivity::Stopped,
        State::Unknown => HostActivity::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a thread.
    fn follower(samples: Vec<Sample>) -> StackFollower {
        let shared = Arc::new(Shared { samples: Mutex::new(samples), ..Shared::default() });
        StackFollower { pid: 7, shared, recorded: Vec::new(), busy: Vec::new() }
    }

    #[test]
    fn samples_are_idle_between_kernels_of_a_burst() {
        const MS: u64 = 1_000_000;
        let sample = |ms: u64, line: &str| Sample {
            at_ns: ms * MS,
            threads: vec![("main".to_owned(), HostActivity::RunningPython, line.to_owned())],
        };
        let mut stacks = follower(vec![
            sample(1, "before.py:1 f"),
            sample(11, "busy.py:1 f"),
            sample(15, "gap.py:1 f"),
            sample(19, "gap.py:1 f"),
            sample(25, "after.py:1 f"),
            sample(9_000, "late.py:1 f"),
        ]);
        stacks.begin_burst(10 * MS);
        // Records arrive in any order.
        stacks.work(17 * MS, 18 * MS);
        stacks.work(10 * MS, 12 * MS);
        stacks.work(12 * MS + 1000, 13 * MS);
        stacks.end_burst(20 * MS);
        let window = stacks.take(Some(10_000 * MS)).unwrap();
        assert_eq!((window.samples, window.recorded, window.idle), (5, 3, 2));
        let first = &window.rows[0];
        assert_eq!((first.line.as_str(), first.samples, first.idle), ("gap.py:1 f", 2, 2));
        assert!(window.rows[1..].iter().all(|row| row.idle == 0));
        assert_eq!(stacks.take(Some(10_000 * MS)), None, "its kernels may still come");
        assert_eq!(stacks.take(None).unwrap().samples, 1);
    }
}
