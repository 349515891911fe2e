//! Samples of the Python threads of a followed process, and whether the GPU was idle at each.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use host_stacks::{Frame, FrameLayout, Refusal, Sampler, State, ThreadSample, fold_to_user, shorten};
use llmprof_analysis::steps::KernelTime;
use llmprof_base::foreign::line;
use llmprof_event::{EventTx, HostActivity, HostRow, HostStacks, LaunchFrame, LaunchLines, Level};
use llmprof_inject::wire;

use super::launches::{Launches, ReadStack};

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
/// Maximum stacks of a process, and the time in which the last ones are read.
const MAX_STACKS: usize = 1 << 15;
const LAST_READ: Duration = Duration::from_millis(200);
/// Maximum length of a file's path and of a function's name.
const MAX_FILE: usize = 1024;
const MAX_FUNCTION: usize = 200;

type ThreadState = (String, HostActivity, String);

struct Sample {
    at_ns: u64,
    threads: Vec<ThreadState>,
}

#[derive(Default)]
struct Shared {
    samples: Mutex<Vec<Sample>>,
    /// Where threads of the process find their frames, until it was sent to the library.
    layout: Mutex<Option<FrameLayout>>,
    /// Stacks of launches whose frames are to be read, and those that were.
    unread: Mutex<Vec<(u32, Vec<wire::FrameAt>)>>,
    read: Mutex<Vec<ReadStack>>,
    stop: AtomicBool,
}

fn locked<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The samples of one process. Sampling ends with this value.
pub struct StackFollower {
    pid: u32,
    shared: Arc<Shared>,
    /// When kernels were recorded; the last span may be open.
    recorded: Vec<(u64, u64)>,
    /// When the GPU worked.
    busy: Vec<(u64, u64)>,
    launches: Launches,
    has_warned: bool,
    /// Stacks of launches so far.
    stack_count: usize,
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
        StackFollower {
            pid,
            shared,
            recorded: Vec::new(),
            busy: Vec::new(),
            launches: Launches::default(),
            has_warned: false,
            stack_count: 0,
        }
    }

    /// What the library has to know to send the frames of launches; once, as soon as it is known.
    pub fn take_layout(&self) -> Option<wire::FrameLayout> {
        let layout = locked(&self.shared.layout).take()?;
        let offset = |offset: u64| u16::try_from(offset).ok();
        let optional = |of: Option<u64>| of.map_or(Some(None), |of| offset(of).map(Some));
        Some(wire::FrameLayout {
            frame: offset(layout.frame)?,
            cframe: optional(layout.cframe)?,
            back: offset(layout.back)?,
            code: offset(layout.code)?,
            instruction: offset(layout.instruction)?,
            scale: layout.scale.unwrap_or(0),
            owner: optional(layout.owner)?,
            code_type: layout.code_type,
        })
    }

    /// The frames of a stack are read soon: their code objects may be freed later.
    pub fn stack(&mut self, number: u32, frames: &[u64]) {
        // The library does not send more either.
        if self.stack_count < MAX_STACKS {
            self.stack_count += 1;
            let frames = frames.iter().copied().map(wire::FrameAt::from_word).collect();
            locked(&self.shared.unread).push((number, frames));
        }
    }

    pub fn launch(&mut self, correlation: u32, stack: u32) {
        self.launches.launch(correlation, stack);
    }

    /// The kernels by their lines since the last call: those that were measured, and their launches before that.
    pub fn take_launches<'a>(
        &mut self,
        kernels: impl Iterator<Item = (&'a str, KernelTime)>,
        is_last: bool,
    ) -> Option<LaunchLines> {
        for (name, KernelTime { correlation, ns, in_graph, .. }) in kernels {
            self.launches.kernel(correlation, name, ns, in_graph);
        }
        if is_last {
            // The thread reads within two intervals.
            let since = Instant::now();
            while !locked(&self.shared.unread).is_empty() && since.elapsed() < LAST_READ {
                thread::sleep(INTERVAL / 4);
            }
        }
        let stacks = std::mem::take(&mut *locked(&self.shared.read));
        self.launches.take(self.pid, stacks)
    }

    /// Said once: that kernels are missing which the program has launched.
    pub fn take_warning(&mut self) -> Option<String> {
        let missing = self.launches.unrecorded().filter(|_| !self.has_warned)?;
        self.has_warned = true;
        Some(format!(
            "process {}: in the last burst, CUPTI recorded only kernels of CUDA graphs, and none of {missing} other \
             launches; CUPTI 13.0 may do so after many recordings: all figures of kernels leave them out until the \
             program is restarted",
            self.pid
        ))
    }

    /// Every kernel is recorded from now on.
    pub fn begin_burst(&mut self, at_ns: u64) {
        self.recorded.push((at_ns, u64::MAX));
        self.launches.begin_burst();
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
            // Without a measured time.
            _ if start_ns == 0 => {}
            Some(last) if start_ns >= last.0 && start_ns <= last.1.saturating_add(GAP_NS) => {
                last.1 = last.1.max(end_ns);
            }
            _ if room => self.busy.push((start_ns, end_ns)),
            _ => {}
        }
    }

    /// Records were lost: what was recorded of this burst is not known to be all.
    pub fn lose(&mut self) {
        self.recorded.pop();
    }

    /// The samples whose kernels are known by now; all of them at the end.
    pub fn take(&mut self, until_ns: Option<u64>) -> Option<HostStacks> {
        let until_ns = until_ns.map_or(u64::MAX, |until| until.saturating_sub(LATE_NS));
        let samples: Vec<Sample> = {
            let mut samples = locked(&self.shared.samples);
            let known = samples.iter().take_while(|sample| sample.at_ns < until_ns).count();
            samples.drain(..known).collect()
        };
        self.merge();
        let mut window = HostStacks { pid: self.pid, samples: 0, recorded: 0, idle: 0, rows: Vec::new() };
        let mut rows: BTreeMap<ThreadState, (u32, u32)> = BTreeMap::new();
        for sample in &samples {
            let is_busy = self.is_busy(sample.at_ns);
            let is_idle = is_busy == Some(false);
            window.samples += 1;
            window.recorded += u32::from(is_busy.is_some());
            window.idle += u32::from(is_idle);
            for row in &sample.threads {
                let counts = rows.entry(row.clone()).or_default();
                counts.0 += 1;
                counts.1 += u32::from(is_idle);
            }
        }
        // Further samples may be as late as this.
        let kept = samples.last().map_or(until_ns, |last| last.at_ns).saturating_sub(LATE_NS);
        self.recorded.retain(|(_, to)| *to > kept);
        self.busy.retain(|(_, to)| *to > kept);
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|(_, (samples, idle))| std::cmp::Reverse((*idle, *samples)));
        rows.truncate(MAX_ROWS);
        let row = |((thread, state, line), (samples, idle))| HostRow { thread, state, line, samples, idle };
        window.rows = rows.into_iter().map(row).collect();
        (window.samples > 0).then_some(window)
    }

    /// Spans in order, none of which overlap.
    fn merge(&mut self) {
        self.busy.sort_unstable();
        self.busy.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1.saturating_add(GAP_NS);
            kept.1 = if joins { kept.1.max(next.1) } else { kept.1 };
            joins
        });
    }

    /// Whether the GPU worked at a time; `None` if that is not known. In a burst it is known from its first work to its
    /// last: what ran when recording was switched on or off has no record.
    fn is_busy(&self, at_ns: u64) -> Option<bool> {
        let (from, to) = self.recorded.iter().find(|(from, to)| (*from..*to).contains(&at_ns))?;
        let first = self.busy.partition_point(|(start, _)| start < from);
        let next = self.busy.partition_point(|(start, _)| *start <= at_ns);
        let (_, end) = self.busy[first..].get(next.checked_sub(first + 1)?)?;
        let is_busy = at_ns < end.saturating_add(GAP_NS);
        let has_next = self.busy.get(next).is_some_and(|(start, _)| start < to);
        (is_busy || has_next).then_some(is_busy)
    }
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
    *locked(&shared.layout) = Some(sampler.frame_layout());
    while !shared.stop.load(Ordering::Relaxed) {
        read_stacks(&mut sampler, shared);
        let at_ns = tx.clock().now().0;
        let Ok(threads) = sampler.sample() else { return };
        let threads = rows(&threads[..threads.len().min(MAX_THREADS)]);
        let mut samples = locked(&shared.samples);
        if samples.len() < MAX_SAMPLES {
            samples.push(Sample { at_ns, threads });
        }
        drop(samples);
        thread::sleep(INTERVAL);
    }
}

/// Reads the frames of launches. The entry is removed after it was read: whoever waits for it finds it.
fn read_stacks(sampler: &mut Sampler, shared: &Shared) {
    let unread = locked(&shared.unread).clone();
    let stacks = unread.iter().map(|(stack, words)| {
        let frames: Vec<Frame> =
            words.iter().filter_map(|at| sampler.frame_at(at.code, i64::from(at.unit) * 2)).collect();
        let own = fold_to_user(&frames).and_then(|own| frames.iter().position(|frame| frame == own));
        ReadStack { stack: *stack, frames: frames.iter().map(launch_frame).collect(), own }
    });
    let stacks: Vec<ReadStack> = stacks.collect();
    locked(&shared.read).extend(stacks);
    locked(&shared.unread).drain(..unread.len());
}

fn launch_frame(frame: &Frame) -> LaunchFrame {
    let file = shorten(&frame.file);
    let dir = frame.file.strip_suffix(file).unwrap_or_default();
    LaunchFrame {
        file: line(file, MAX_FILE),
        dir: line(dir, MAX_FILE),
        line: frame.line,
        function: line(&frame.function, MAX_FUNCTION),
    }
}

/// One row per thread. Threads of one name have their number, too.
fn rows(threads: &[ThreadSample]) -> Vec<ThreadState> {
    let row = |thread: &ThreadSample| {
        let place = fold_to_user(&thread.frames).or(thread.frames.first())?;
        let is_only = threads.iter().filter(|other| other.name == thread.name).count() == 1;
        let name = line(&thread.name, 60);
        let name = if is_only { name } else { format!("{name} ({})", thread.thread) };
        Some((name, activity(&thread.state), line(&place.to_string(), MAX_LINE)))
    };
    threads.iter().filter_map(row).collect()
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
        StackFollower {
            pid: 7,
            shared,
            recorded: Vec::new(),
            busy: Vec::new(),
            launches: Launches::default(),
            has_warned: false,
            stack_count: 0,
        }
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
        // Records arrive in any order, and one without a time is none.
        stacks.work(19 * MS + MS / 2, 20 * MS);
        stacks.work(17 * MS, 18 * MS);
        stacks.work(10 * MS, 12 * MS);
        stacks.work(0, 0);
        stacks.work(12 * MS + 1000, 13 * MS);
        stacks.end_burst(21 * MS);
        let window = stacks.take(Some(10_000 * MS)).unwrap();
        assert_eq!((window.samples, window.recorded, window.idle), (5, 3, 2));
        let first = &window.rows[0];
        assert_eq!((first.line.as_str(), first.samples, first.idle), ("gap.py:1 f", 2, 2));
        assert!(window.rows[1..].iter().all(|row| row.idle == 0));
        assert_eq!(stacks.take(Some(10_000 * MS)), None, "its kernels may still come");
        assert_eq!(stacks.take(None).unwrap().samples, 1);
    }

    /// Before its first work and after its last, a burst says nothing.
    #[test]
    fn a_gpu_is_idle_only_between_recorded_work() {
        let mut stacks = follower(Vec::new());
        stacks.begin_burst(100_000);
        stacks.work(200_000, 300_000);
        stacks.work(250_000, 260_000);
        stacks.work(500_000, 600_000);
        stacks.end_burst(900_000);
        stacks.merge();
        let found =
            [50_000, 150_000, 250_000, 400_000, 550_000, 700_000, 950_000].map(|at| stacks.is_busy(at));
        assert_eq!(found, [None, None, Some(true), Some(false), Some(true), None, None]);
        stacks.lose();
        assert_eq!(stacks.is_busy(400_000), None, "records are missing");
    }
}
