//! Follows the jobs of a sweep in a thread: the launcher's view of them, and the content of their directories.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{End, Launcher, LauncherReport, ReportedState, result_of};
use llmprof_event::Outcome;
use llmprof_record::{
    rundir::{Following, RunDir},
    sweep::{JobResult, LiveFigures, Placement, result_in},
};

pub(super) enum Update {
    Waiting(usize, Placement),
    Running(usize, Placement),
    Live(usize, Box<LiveFigures>),
    Ended(usize, Option<Placement>, Box<JobResult>),
    Trouble(Option<String>),
    Remark(String),
}

pub(super) enum Order {
    Cancel,
    Leave,
}

/// A job that has not ended.
struct PendingJob {
    dir: PathBuf,
    placement: Option<Placement>,
    running: bool,
    /// Its recording, while it runs.
    recording: Option<Following>,
    /// Its end as reported by the launcher, and the time of the first report.
    ended: Option<(Instant, End)>,
}

/// The interval at which recordings of running jobs are read, and their maximum number.
const FIGURES_INTERVAL: Duration = Duration::from_secs(1);
const MAX_READ: usize = 16;

type FollowerHandles = (Sender<Order>, UnboundedReceiver<Update>, JoinHandle<()>);

/// Starts the thread for jobs and their directories.
pub(super) fn start(
    launcher: Box<dyn Launcher>,
    jobs: Vec<(usize, PathBuf)>,
    stop: Arc<AtomicBool>,
) -> io::Result<FollowerHandles> {
    let (orders, taken) = mpsc::channel();
    let (updates, received) = unbounded_channel();
    let watched =
        |dir: PathBuf| PendingJob { dir, placement: None, running: false, recording: None, ended: None };
    let open = jobs.into_iter().map(|(job, dir)| (job, watched(dir))).collect();
    let follower = Follower { launcher, open, updates, trouble: None, figures_at: Instant::now() };
    let thread = thread::Builder::new().name("jobs".into()).spawn(move || follower.run(&taken, &stop))?;
    Ok((orders, received, thread))
}

struct Follower {
    launcher: Box<dyn Launcher>,
    open: BTreeMap<usize, PendingJob>,
    updates: UnboundedSender<Update>,
    trouble: Option<String>,
    /// The time at which running jobs were last read.
    figures_at: Instant,
}

impl Follower {
    fn run(mut self, orders: &Receiver<Order>, stop: &AtomicBool) {
        while !self.open.is_empty() && !stop.load(Ordering::Acquire) {
            let look = self.launcher.look();
            // Errors of commands that were cancelled by the stop are not reported.
            if stop.load(Ordering::Acquire) {
                break;
            }
            self.report(look);
            self.settle(Instant::now());
            if self.open.is_empty() {
                break;
            }
            self.read_figures();
            match orders.recv_timeout(self.launcher.interval()) {
                Ok(Order::Cancel) => {
                    if let Err(error) = self.launcher.cancel() {
                        self.send(Update::Remark(format!("the jobs could not be cancelled: {error}")));
                    }
                }
                Ok(Order::Leave) => break,
                Err(_) => {}
            }
        }
        let jobs = self.launcher.leave();
        self.report(LauncherReport { jobs, trouble: self.trouble.clone(), remarks: Vec::new() });
        self.settle(Instant::now());
    }

    /// Without a receiver the program ends anyway.
    fn send(&self, update: Update) {
        let _ = self.updates.send(update);
    }

    fn report(&mut self, look: LauncherReport) {
        if look.trouble != self.trouble {
            self.trouble.clone_from(&look.trouble);
            self.send(Update::Trouble(look.trouble));
        }
        look.remarks.into_iter().for_each(|remark| self.send(Update::Remark(remark)));
        for (job, seen) in look.jobs {
            let Some(watched) = self.open.get_mut(&job) else { continue };
            let (placement, running) = match seen {
                ReportedState::Waiting(placement) => (placement, false),
                ReportedState::Running(placement) => (placement, true),
                ReportedState::Ended(placement, end) => {
                    watched.placement = Some(placement);
                    match &mut watched.ended {
                        // More may be known now: an exit code, a cause.
                        Some((_, known)) => *known = end,
                        none => *none = Some((Instant::now(), end)),
                    }
                    continue;
                }
            };
            let changed = watched.placement.as_ref() != Some(&placement) || watched.running != running;
            (watched.placement, watched.running, watched.ended) = (Some(placement.clone()), running, None);
            if changed {
                self.send(if running {
                    Update::Running(job, placement)
                } else {
                    Update::Waiting(job, placement)
                });
            }
        }
    }

    /// Reads the new events of running jobs.
    fn read_figures(&mut self) {
        if self.figures_at.elapsed() < FIGURES_INTERVAL {
            return;
        }
        self.figures_at = Instant::now();
        let running = self.open.iter_mut().filter(|(_, job)| job.running).take(MAX_READ);
        for (number, job) in running {
            let run = || Following::new(&RunDir::open(&job.dir));
            let recording = job.recording.get_or_insert_with(run);
            if recording.read() {
                let figures = Box::new(LiveFigures::from_state(&recording.state));
                // Without a receiver the program ends anyway.
                let _ = self.updates.send(Update::Live(*number, figures));
            }
        }
    }

    /// Sets the results of the jobs whose end is known.
    fn settle(&mut self, now: Instant) {
        let by_files = self.launcher.ends_by_files();
        let results: Vec<(usize, JobResult)> = self
            .open
            .iter()
            .filter(|(_, job)| job.ended.is_some() || job.running && by_files)
            .filter_map(|(number, job)| Some((*number, job.result(now)?)))
            .collect();
        for (number, result) in results {
            let placement = self.open.remove(&number).and_then(|job| job.placement);
            self.launcher.settled(number);
            self.send(Update::Ended(number, placement, Box::new(result)));
        }
    }
}

impl PendingJob {
    /// The directory decides first: a job that is recorded as completed is completed. The launcher may know the cause
    /// of an interrupted one better.
    fn result(&self, now: Instant) -> Option<JobResult> {
        let recorded = result_in(&self.dir).filter(JobResult::is_final);
        match (recorded, &self.ended) {
            (Some(result), _) if result.outcome != Outcome::Interrupted => Some(result),
            (Some(result), Some((_, end))) => {
                Some(JobResult { outcome: end.outcome, reason: Some(end.reason.clone()), ..result })
            }
            (Some(_), None) => None,
            (None, Some((since, end))) if now - *since >= end.wait => Some(result_of(end, &self.dir)),
            (None, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn ended(dir: &std::path::Path, wait_s: u64) -> PendingJob {
        let end =
            End { outcome: Outcome::Failed, reason: "TIMEOUT".into(), wait: Duration::from_secs(wait_s) };
        PendingJob {
            dir: dir.to_owned(),
            placement: None,
            running: false,
            recording: None,
            ended: Some((Instant::now(), end)),
        }
    }

    struct NoLauncher;

    impl Launcher for NoLauncher {
        fn look(&mut self) -> LauncherReport {
            LauncherReport::default()
        }

        fn settled(&mut self, _: usize) {}

        fn cancel(&mut self) -> Result<(), String> {
            Ok(())
        }

        fn leave(&mut self) -> Vec<(usize, ReportedState)> {
            Vec::new()
        }

        fn interval(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn figures_of_running_jobs_are_those_of_their_recordings() {
        let root = tempfile::tempdir().unwrap();
        let demo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/events.ndjson");
        let job = |name: &str, running: bool| {
            let dir = root.path().join(name);
            fs::create_dir(&dir).unwrap();
            fs::copy(&demo, dir.join("events.ndjson")).unwrap();
            PendingJob { dir, placement: None, running, recording: None, ended: None }
        };
        let (updates, mut received) = unbounded_channel();
        let open = BTreeMap::from([(3, job("a", true)), (4, job("b", false))]);
        let figures_at = Instant::now();
        let mut follower =
            Follower { launcher: Box::new(NoLauncher), open, updates, trouble: None, figures_at };
        let mut read = || {
            follower.figures_at -= FIGURES_INTERVAL;
            follower.read_figures();
            received.try_recv().ok()
        };
        let Some(Update::Live(3, figures)) = read() else { panic!("no figures of job 3") };
        assert!(figures.metrics.output_tokens > 0 && figures.elapsed > Duration::ZERO, "{figures:?}");
        assert!(read().is_none(), "nothing new, and nothing of a job that waits");
    }

    #[test]
    fn files_that_come_late_are_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("0");
        let job = ended(&dir, 30);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(31));
        assert_eq!(job.result(now), None, "the directory may come");
        let given_up = job.result(later).unwrap();
        assert_eq!(
            (given_up.outcome, given_up.reason.as_deref(), given_up.dir),
            (Outcome::Failed, Some("TIMEOUT"), None)
        );
        // The directory exists, but not its end.
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("events.ndjson"), "").unwrap();
        assert_eq!(job.result(now), None);
        assert_eq!(job.result(later).unwrap().dir.as_deref(), Some(dir.as_path()));
    }
}
