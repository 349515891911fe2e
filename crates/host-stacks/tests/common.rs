//! Starts Python programs and samples them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};

use host_stacks::{Frame, Refusal, Sampler, State, ThreadSample, fold_to_user};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Programs that compute disturb each other's ranks.
pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub struct Program(pub Child);

impl Program {
    pub fn start(python: &str, script: &Path) -> Program {
        Program::start_with(python, script, Path::new("-"))
    }

    pub fn start_with(python: &str, script: &Path, argument: &Path) -> Program {
        let command =
            Command::new(python).arg(script).arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Program(command.unwrap_or_else(|error| panic!("cannot start {python}: {error}")))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn fault(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults").join(format!("{name}.py"))
}

/// The number of the planted line.
pub fn planted(script: &Path) -> u32 {
    let text = std::fs::read_to_string(script).unwrap();
    text.lines().position(|line| line.ends_with("# planted")).unwrap() as u32 + 1
}

/// Waits until the interpreter has started and runs the script.
pub fn attach(pid: u32, script: &Path) -> Result<Sampler, Refusal> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let tried =
            Sampler::new(pid).and_then(|mut sampler| sampler.sample().map(|threads| (sampler, threads)));
        let in_script = |frame: &Frame| Path::new(&*frame.file) == script;
        match tried {
            Ok((sampler, threads)) if threads.iter().any(|thread| thread.frames.iter().any(in_script)) => {
                return Ok(sampler);
            }
            Err(refusal) if Instant::now() > deadline => return Err(refusal),
            _ => sleep(Duration::from_millis(20)),
        }
    }
}

/// Time by state and line of the program. Functions at the same line are one row.
pub struct SampledThread {
    /// Without the thread that holds the GIL.
    pub state: State,
    pub frame: Option<Frame>,
    pub ns: u64,
}

impl SampledThread {
    fn from_sample(sample: &ThreadSample) -> SampledThread {
        let state = match sample.state {
            State::WaitingForGil { .. } => State::WaitingForGil { held_by: None },
            state => state,
        };
        SampledThread { state, frame: fold_to_user(&sample.frames).or(sample.frames.first()).cloned(), ns: 0 }
    }
}

/// Samples the main thread at 50 Hz; each sample stands for the time since the last one. Most time first.
pub fn main_rows(sampler: &mut Sampler, time: Duration) -> Vec<SampledThread> {
    let mut rows: HashMap<_, SampledThread> = HashMap::new();
    let (start, mut last) = (Instant::now(), Instant::now());
    while start.elapsed() < time {
        sleep(Duration::from_millis(20));
        let weight = last.elapsed().as_nanos() as u64;
        last = Instant::now();
        for sample in sampler.sample().unwrap().iter().filter(|sample| &*sample.name == "main") {
            let row = SampledThread::from_sample(sample);
            let line = row.frame.as_ref().map(|frame| (frame.file.clone(), frame.line));
            rows.entry((row.state, line)).or_insert(row).ns += weight;
        }
    }
    let mut rows: Vec<SampledThread> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.ns));
    rows
}

pub fn describe(rows: &[SampledThread]) -> String {
    let time: u64 = rows.iter().map(|row| row.ns).sum();
    let row = |row: &SampledThread| {
        let frame = row.frame.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("  {:>5.1} %  {}  {frame}\n", 100.0 * row.ns as f64 / time.max(1) as f64, row.state)
    };
    rows.iter().take(5).map(row).collect()
}
