//! Samples of all Python threads of a process, without stopping it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::frame::Frame;
use crate::layout::FrameLayout;
use crate::maps;
use crate::python::{GilState, Python, PythonThread};
use crate::refusal::Refusal;
use crate::state::State;
use crate::task::{self, Activity, Schedule, Task};
use crate::wait::{Facts, Synchronisations};

/// Two files each; further threads open theirs at each sample.
const THREADS_WITH_OPEN_FILES: usize = 128;
/// A program may load CUDA's driver later: the search is repeated after a time that doubles between these.
const CUDA_SEARCH_AFTER: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A runnable thread that has not run for so long is in the run queue: the kernel counts run time at each tick, 10 ms
/// at most.
const TICK: Duration = Duration::from_millis(12);
/// A program whose memory is slow to read does not block its reader: further threads are left out of the
/// sample.
const SAMPLE_TIME: Duration = Duration::from_millis(250);
const STACK_BYTES: usize = 4096;

/// The activity of one thread at the time of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSample {
    /// The thread's identifier, as `ps` on this machine shows it.
    pub thread: u32,
    /// "main", the name that the thread gave itself, or the function that it was started with.
    pub name: Arc<str>,
    pub state: State,
    /// Innermost first, 64 at most.
    pub frames: Vec<Frame>,
}

/// Reads the threads of one process from outside. The process continues to run.
pub struct Sampler {
    pid: u32,
    python: Python,
    threads: HashMap<u64, TrackedThread>,
    inner_ids: HashMap<u32, u32>,
    cuda: Vec<Range<u64>>,
    cuda_searched: Instant,
    cuda_search_after: Duration,
    synchronisations: Synchronisations,
}

/// A thread between samples.
struct TrackedThread {
    tid: u32,
    pthread: u64,
    task: Task,
    name: Option<Arc<str>>,
    schedule: Schedule,
    read_at: Instant,
    /// Dithers the share of time in the run queue over the samples of a runnable thread.
    queue_credit: f64,
    blocked: bool,
    sample: Option<ThreadSample>,
    seen: bool,
}

impl Sampler {
    pub fn new(pid: u32) -> Result<Sampler, Refusal> {
        let python = Python::attach(pid)?;
        Ok(Sampler {
            pid,
            python,
            threads: HashMap::new(),
            inner_ids: task::threads_by_inner_id(pid),
            cuda: maps::read(pid).map(|maps| maps::cuda_code(&maps)).unwrap_or_default(),
            cuda_searched: Instant::now(),
            cuda_search_after: CUDA_SEARCH_AFTER.0,
            synchronisations: Synchronisations::default(),
        })
    }

    /// All Python threads, in the order of their identifiers, except for those that start or end meanwhile. An error
    /// reports that the process ended or executes another program; a new sampler can then try again.
    pub fn sample(&mut self) -> Result<Vec<ThreadSample>, Refusal> {
        self.search_cuda();
        self.synchronisations.start_sample();
        let threads = self.python.threads()?;
        let start = Instant::now();
        let in_time = || start.elapsed() < SAMPLE_TIME;
        let (mut samples, mut taken) = (Vec::new(), HashSet::new());
        for thread in threads.iter().take_while(|_| in_time()) {
            self.learn(thread);
            let tid = self.threads.get(&thread.address).map(|tracked| tracked.tid);
            if tid.is_some_and(|tid| taken.insert(tid)) {
                samples.extend(self.sample_thread(thread));
            }
        }
        self.threads.retain(|_, tracked| std::mem::take(&mut tracked.seen));
        samples.sort_by_key(|sample| sample.thread);
        Ok(samples)
    }

    /// The place of a thread's own frames, for code in the process.
    pub fn frame_layout(&self) -> FrameLayout {
        self.python.frame_layout()
    }

    /// The frame that executes the instruction `at` bytes from the code object at address `code`; `None` if no code object
    /// is there any more.
    pub fn frame_at(&mut self, code: u64, at: i64) -> Option<Frame> {
        self.python.line(code, at)
    }

    fn search_cuda(&mut self) {
        if self.cuda.is_empty() && self.cuda_searched.elapsed() > self.cuda_search_after {
            self.cuda = maps::read(self.pid).map(|maps| maps::cuda_code(&maps)).unwrap_or_default();
            self.cuda_searched = Instant::now();
            self.cuda_search_after = (self.cuda_search_after * 2).min(CUDA_SEARCH_AFTER.1);
        }
    }

    fn learn(&mut self, thread: &PythonThread) {
        if self.threads.get(&thread.address).is_some_and(|tracked| tracked.pthread == thread.pthread) {
            return;
        }
        if self.tid(thread).is_none() && !self.inner_ids.is_empty() {
            self.inner_ids = task::threads_by_inner_id(self.pid);
        }
        if let Some(tid) = self.tid(thread) {
            let keep_open = self.threads.len() < THREADS_WITH_OPEN_FILES;
            self.threads.insert(thread.address, TrackedThread::new(self.pid, tid, thread.pthread, keep_open));
        }
    }

    /// After a fork CPython may keep the identifier of the parent's thread: the one of glibc is asked next.
    fn tid(&self, thread: &PythonThread) -> Option<u32> {
        let outer = |inner: u32| match self.inner_ids.is_empty() {
            true => Some(inner),
            false => self.inner_ids.get(&inner).copied(),
        };
        let exists = |tid: &u32| Task::new(self.pid, *tid, false).schedule().is_some();
        let by = |inner: Option<u32>| inner.and_then(outer).filter(exists);
        by(thread.native).or_else(|| by(self.python.id_of_pthread(thread)))
    }

    fn sample_thread(&mut self, thread: &PythonThread) -> Option<ThreadSample> {
        let mut tracked = self.threads.remove(&thread.address)?;
        let sample = self.sample_tracked(thread, &mut tracked)?;
        tracked.seen = true;
        self.threads.insert(thread.address, tracked);
        Some(sample)
    }

    fn sample_tracked(&mut self, thread: &PythonThread, tracked: &mut TrackedThread) -> Option<ThreadSample> {
        let schedule = tracked.task.schedule()?;
        let activity = tracked.task.activity()?;
        if let Some(sample) = tracked.unchanged(schedule) {
            return Some(self.still_blocked(sample, activity, thread, tracked));
        }
        let gil = self.python.gil();
        let queued = activity == Activity::Runnable && tracked.is_queued(schedule);
        tracked.blocked = activity != Activity::Runnable;
        tracked.schedule = schedule;
        tracked.read_at = Instant::now();
        let frames = self.python.frames(thread);
        let state = self.state(thread, tracked, activity, queued, &gil, &frames);
        let name = tracked.name(self.pid, &frames);
        let sample = ThreadSample { thread: tracked.tid, name, state, frames };
        tracked.sample = Some(sample.clone());
        Some(sample)
    }

    /// A thread that was blocked and has not run since is as it was, or it is in the run queue.
    fn still_blocked(
        &self,
        sample: ThreadSample,
        activity: Activity,
        thread: &PythonThread,
        tracked: &TrackedThread,
    ) -> ThreadSample {
        let state = match (activity, sample.state) {
            (Activity::Runnable, _) => State::Descheduled,
            (_, State::WaitingForGil { .. }) => {
                State::WaitingForGil { held_by: self.thread_at(self.python.gil().holder, thread, tracked) }
            }
            (_, state) => state,
        };
        ThreadSample { state, ..sample }
    }

    fn state(
        &mut self,
        thread: &PythonThread,
        tracked: &TrackedThread,
        activity: Activity,
        queued: bool,
        gil: &GilState,
        frames: &[Frame],
    ) -> State {
        let facts = Facts {
            activity,
            holds_gil: gil.holder == Some(thread.address),
            queued,
            gil_futexes: &gil.range,
            gil_holder: self.thread_at(gil.holder, thread, tracked),
            in_cuda: self.in_cuda(activity),
            synchronises: self.synchronises(frames),
        };
        facts.state()
    }

    fn thread_at(&self, address: Option<u64>, thread: &PythonThread, tracked: &TrackedThread) -> Option<u32> {
        match address? {
            address if address == thread.address => Some(tracked.tid),
            address => self.threads.get(&address).map(|tracked| tracked.tid),
        }
    }

    fn synchronises(&mut self, frames: &[Frame]) -> bool {
        let innermost = frames.first().filter(|_| !self.cuda.is_empty());
        innermost.is_some_and(|frame| self.synchronisations.contain(self.pid, frame))
    }

    fn in_cuda(&self, activity: Activity) -> bool {
        let Activity::Call { stack, .. } = activity else { return false };
        if self.cuda.is_empty() {
            return false;
        }
        let words = self.python.stack_words(stack, STACK_BYTES);
        words.iter().any(|word| self.cuda.iter().any(|code| code.contains(word)))
    }
}

impl TrackedThread {
    fn new(pid: u32, tid: u32, pthread: u64, keep_open: bool) -> TrackedThread {
        TrackedThread {
            tid,
            pthread,
            task: Task::new(pid, tid, keep_open),
            name: None,
            schedule: Schedule::default(),
            read_at: Instant::now(),
            queue_credit: 0.5,
            blocked: false,
            sample: None,
            seen: true,
        }
    }

    fn unchanged(&self, schedule: Schedule) -> Option<ThreadSample> {
        let same = self.blocked
            && self.schedule.slices == schedule.slices
            && self.schedule.run_ns == schedule.run_ns;
        self.sample.clone().filter(|_| same)
    }

    /// Spreads the run-queue samples of a runnable thread according to its share of time in the run queue since the last
    /// one.
    fn is_queued(&mut self, now: Schedule) -> bool {
        if self.sample.is_none() {
            return false;
        }
        let run = now.run_ns.saturating_sub(self.schedule.run_ns) as f64;
        let delay = now.delay_ns.saturating_sub(self.schedule.delay_ns) as f64;
        let stuck = run + delay == 0.0 && !self.blocked && self.read_at.elapsed() > TICK;
        let share = if run + delay > 0.0 { delay / (run + delay) } else { f64::from(u8::from(stuck)) };
        self.queue_credit += share;
        let queued = self.queue_credit >= 1.0;
        self.queue_credit -= f64::from(u8::from(queued));
        queued
    }

    fn name(&mut self, pid: u32, frames: &[Frame]) -> Arc<str> {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let name: Arc<str> = match self.tid == pid {
            true => "main".into(),
            false => self.own_name(pid).or_else(|| started_with(frames)).unwrap_or_else(|| "thread".into()),
        };
        // A thread that has no frame yet may be named later.
        self.name = (!frames.is_empty()).then(|| name.clone());
        name
    }

    /// A name that differs from the process's.
    fn own_name(&self, pid: u32) -> Option<Arc<str>> {
        let process = Task::new(pid, pid, false).name();
        self.task.name().filter(|name| Some(name) != process.as_ref()).map(Arc::from)
    }
}

/// The outermost function that is not of `threading`.
fn started_with(frames: &[Frame]) -> Option<Arc<str>> {
    let own = |frame: &&Frame| maps::file_name(&frame.file) != "threading.py";
    frames.iter().rev().find(own).map(|frame| frame.function.clone())
}
