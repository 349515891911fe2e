//! Jobs of a sweep in other processes: several at once on this machine, or as a Slurm job array.
//!
//! A [`Launcher`] starts jobs and reports their states, `follow` reads their directories and decides their results in
//! its own thread, and [`Launch`] folds the updates of that thread into the sweep.

mod arrays;
mod follow;
mod gpus;
mod local;
mod on_slurm;

pub use self::local::Machine;
use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::mpsc::UnboundedReceiver;

use self::follow::{Order, Update};
use super::{error::SweepError, runner::Runner};
use crate::slurm::{ScriptError, SlurmError};
use llmprof_base::foreign::line;
use llmprof_config::Launcher as Configured;
use llmprof_event::Outcome;
use llmprof_record::sweep::{JobResult, LiveFigures, Placement};

/// Why the jobs could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Sweep(#[from] SweepError),
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error("hydra.launcher.gpus: {0}")]
    Gpus(String),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("--cancel: the jobs of this sweep do not run in Slurm, so there is nothing to cancel")]
    NothingToCancel,
}

impl LaunchError {
    /// Whether the same jobs can be started later, or with other options.
    pub fn is_remediable(&self) -> bool {
        matches!(self, LaunchError::Slurm(_))
    }

    /// Whether the error is in the command, not on the machine.
    pub fn is_usage(&self) -> bool {
        match self {
            LaunchError::Sweep(error) => error.is_usage(),
            LaunchError::Slurm(error) => matches!(error, SlurmError::Refused(_)),
            LaunchError::Script(_) | LaunchError::Gpus(_) | LaunchError::NothingToCancel => true,
            LaunchError::Io(_) => false,
        }
    }
}

/// Starts jobs and reports their states.
trait Launcher: Send {
    /// Starts jobs for which there is room, and reports the states of those that have not ended.
    fn look(&mut self) -> LauncherReport;
    /// The result of the job is set; it needs no more attention.
    fn settled(&mut self, job: usize);
    /// Ends all jobs, and starts no more.
    fn cancel(&mut self) -> Result<(), String>;
    /// The program ends. Returns the jobs that end with it.
    fn leave(&mut self) -> Vec<(usize, ReportedState)>;
    /// The time until the next look.
    fn interval(&self) -> Duration;
    /// Whether a running job has ended as soon as its directory shows it; otherwise it ends with its process.
    fn ends_by_files(&self) -> bool {
        true
    }
}

/// The observations of a launcher.
#[derive(Default)]
struct LauncherReport {
    jobs: Vec<(usize, ReportedState)>,
    /// The error that prevents a complete look.
    trouble: Option<String>,
    remarks: Vec<String>,
}

enum ReportedState {
    Waiting(Placement),
    Running(Placement),
    Ended(Placement, End),
}

/// The end of a job whose directory does not show it.
#[derive(Debug, Clone, PartialEq)]
struct End {
    outcome: Outcome,
    reason: String,
    /// The maximum wait for its files.
    wait: Duration,
}

/// A sweep whose jobs run in other processes.
pub struct Launch {
    pub runner: Runner,
    /// The error that prevents following the jobs.
    pub trouble: Option<String>,
    /// Whether the jobs continue without this program.
    pub goes_on: bool,
    /// Whether they were cancelled on request.
    pub cancelled: bool,
    /// Figures of running jobs whose recordings can be read locally.
    pub live: BTreeMap<usize, LiveFigures>,
    updates: UnboundedReceiver<Update>,
    orders: Sender<Order>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    over: bool,
}

impl Launch {
    /// Starts the incomplete jobs with the configured launcher, or finds them again. With `cancel`, the found jobs are
    /// cancelled, and none is started.
    pub fn start(mut runner: Runner, launcher: Configured, cancel: bool) -> Result<Launch, LaunchError> {
        let stop: Arc<AtomicBool> = Arc::default();
        let mut jobs = runner.sweep.waiting();
        let (launcher, goes_on): (Box<dyn Launcher>, bool) = match launcher {
            Configured::Slurm(options) => {
                let slurm =
                    on_slurm::SlurmJobs::begin(&mut runner, *options, &jobs, cancel, Arc::clone(&stop))?;
                jobs = slurm.open();
                (Box::new(slurm), true)
            }
            Configured::Local(_) | Configured::Basic if cancel => return Err(LaunchError::NothingToCancel),
            Configured::Local(options) => {
                (Box::new(local::LocalJobs::begin(&mut runner, &options, &jobs)?), false)
            }
            Configured::Basic => return Err(LaunchError::Gpus("this launcher starts no processes".into())),
        };
        let mut launch = Launch::follow(runner, launcher, jobs, goes_on, stop)?;
        if cancel {
            launch.cancel();
        }
        Ok(launch)
    }

    /// Starts the incomplete jobs on a remote host, one after another.
    pub fn on_machine(mut runner: Runner, machine: Machine) -> Result<Launch, LaunchError> {
        let jobs = runner.sweep.waiting();
        let launcher = Box::new(local::LocalJobs::on_machine(&mut runner, machine, &jobs)?);
        Launch::follow(runner, launcher, jobs, false, Arc::default())
    }

    fn follow(
        runner: Runner,
        launcher: Box<dyn Launcher>,
        jobs: Vec<usize>,
        goes_on: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Launch, LaunchError> {
        let watched = jobs.into_iter().map(|job| (job, runner.sweep.job_dir(job))).collect();
        let (orders, updates, thread) = follow::start(launcher, watched, Arc::clone(&stop))?;
        Ok(Launch {
            runner,
            trouble: None,
            goes_on,
            cancelled: false,
            live: BTreeMap::new(),
            updates,
            orders,
            stop,
            thread: Some(thread),
            over: false,
        })
    }

    /// Waits for updates of the jobs. `None` after the last one.
    pub async fn pump(&mut self) -> Option<Vec<usize>> {
        if self.over {
            return None;
        }
        let Some(update) = self.updates.recv().await else {
            self.over = true;
            return None;
        };
        let mut ended: Vec<usize> = self.apply(update).into_iter().collect();
        while let Ok(update) = self.updates.try_recv() {
            ended.extend(self.apply(update));
        }
        Some(ended)
    }

    /// Returns the job that ended with this update.
    fn apply(&mut self, update: Update) -> Option<usize> {
        match update {
            Update::Waiting(job, placement) => self.runner.sweep.wait(job, placement),
            Update::Running(job, placement) => self.runner.sweep.run_at(job, placement),
            Update::Ended(job, placement, result) => {
                self.runner.sweep.jobs[job].placement =
                    placement.or(self.runner.sweep.jobs[job].placement.take());
                self.live.remove(&job);
                self.runner.set_result(job, *result);
                return Some(job);
            }
            Update::Live(job, figures) => {
                self.live.insert(job, *figures);
            }
            Update::Trouble(trouble) => self.trouble = trouble,
            Update::Remark(remark) => self.runner.add_remark(remark),
        }
        None
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Cancels every job that has not ended.
    pub fn cancel(&mut self) {
        self.cancelled = true;
        // A thread that has ended has no jobs left.
        let _ = self.orders.send(Order::Cancel);
    }

    /// Ends the following. Jobs of this machine end with it; jobs of Slurm continue.
    pub fn leave(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.orders.send(Order::Leave);
        if let Some(thread) = self.thread.take() {
            // Its panic was reported already.
            let _ = thread.join();
        }
        while let Ok(update) = self.updates.try_recv() {
            self.apply(update);
        }
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The last line of a job's log, if it reports an error.
fn last_words(log: &Path) -> Option<String> {
    use std::io::{Read, Seek, SeekFrom};
    const TAIL_BYTES: u64 = 16 << 10;
    let mut file = llmprof_base::dir::open_file(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let rows = || text.lines().map(str::trim).filter(|row| !row.is_empty());
    let error = rows().rev().find_map(|row| row.strip_prefix("error: "));
    // Slurm's own remarks on the end of a job say less than its state.
    let last = rows().rev().find(|row| !row.starts_with("slurmstepd:"));
    error.or(last).map(|row| line(row, 300))
}

/// The result of a job that is known only to its launcher.
fn result_of(end: &End, dir: &Path) -> JobResult {
    let dir = dir.is_dir().then(|| dir.to_owned());
    JobResult { outcome: end.outcome, reason: Some(end.reason.clone()), lossy: false, metrics: None, dir }
}
