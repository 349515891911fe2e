//! Jobs of a sweep in processes of this machine: several at once, one per GPU or on the CPU; or one after another, each
//! of which follows its run on a remote host.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    End, LaunchError, Launcher, LauncherReport, ReportedState,
    gpus::{self, Gpu},
    last_words,
};
use crate::sweep::{CooldownRule, Runner};
use llmprof_base::tools::process::Running;
use llmprof_config::{HardwareConfig, LocalLauncher};
use llmprof_event::{Device, Event, Outcome};
use llmprof_record::{
    rundir::{EventReader, Next, RunDir},
    sweep::Placement,
};

const INTERVAL: Duration = Duration::from_millis(200);
/// Time for a cancelled job to complete its recording, and to copy it from a remote host.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_TIMEOUT_THERE: Duration = Duration::from_secs(40);
/// The directory of the jobs' logs in the sweep's directory.
const FOLDER: &str = ".jobs";

/// A remote host, as the process of a job reaches it.
#[derive(Debug, Clone)]
pub struct Machine {
    pub name: String,
    /// Arguments of the process.
    pub arguments: Vec<String>,
}

/// A slot for one job.
struct Slot {
    name: String,
    /// The UUID of the slot's GPU, if it has one.
    uuid: Option<String>,
    job: Option<Started>,
    /// The next job waits until then, for the GPU to cool.
    free_at: Instant,
}

struct Started {
    number: usize,
    process: Running,
    log: PathBuf,
    /// The directory of the job's recording.
    dir: PathBuf,
}

pub(super) struct LocalJobs {
    program: PathBuf,
    sweep: PathBuf,
    /// The remote host, if the jobs run on one; and the pause after a job on one of its GPUs.
    machine: Option<(Machine, HardwareConfig)>,
    slots: Vec<Slot>,
    /// The directories of the recordings, by the number of the job.
    dirs: BTreeMap<usize, PathBuf>,
    waiting: VecDeque<usize>,
    cancelled: bool,
}

impl LocalJobs {
    pub(super) fn begin(
        runner: &mut Runner,
        options: &LocalLauncher,
        jobs: &[usize],
    ) -> Result<LocalJobs, LaunchError> {
        let visible = env::var("CUDA_VISIBLE_DEVICES").ok();
        let listed = matches!(options.gpus, llmprof_config::Gpus::Listed(_));
        let gpus = match listed || runner.uses_cuda(jobs)? {
            true => gpus::chosen(options, &gpus::here(visible.as_deref())).map_err(LaunchError::Gpus)?,
            false => Vec::new(),
        };
        let slots = slots(options, &gpus, jobs.len());
        if let Some(wanted) = options.n_jobs.filter(|wanted| !gpus.is_empty() && *wanted > gpus.len() as i64)
        {
            runner.add_remark(format!("n_jobs={wanted}, but {} at once: one job per GPU", gpus.len()));
        }
        if let Some(warning) = gpus::shared(&gpus, slots.len()) {
            runner.add_remark(format!("warning: {warning}"));
        }
        LocalJobs::new(runner, slots, jobs, None)
    }

    pub(super) fn on_machine(
        runner: &mut Runner,
        machine: Machine,
        jobs: &[usize],
    ) -> Result<LocalJobs, LaunchError> {
        let hardware = runner.first()?.config.hardware;
        let slots = vec![slot(machine.name.clone(), None)];
        LocalJobs::new(runner, slots, jobs, Some((machine, hardware)))
    }

    fn new(
        runner: &mut Runner,
        slots: Vec<Slot>,
        jobs: &[usize],
        machine: Option<(Machine, HardwareConfig)>,
    ) -> Result<LocalJobs, LaunchError> {
        jobs.iter().try_for_each(|job| runner.set_aside(*job))?;
        fs::create_dir_all(runner.sweep.dir.join(FOLDER))?;
        Ok(LocalJobs {
            program: env::current_exe()?,
            sweep: runner.sweep.dir.clone(),
            machine,
            slots,
            dirs: jobs.iter().map(|job| (*job, runner.sweep.job_dir(*job))).collect(),
            waiting: jobs.iter().copied().collect(),
            cancelled: false,
        })
    }

    fn start(&mut self, at: usize, number: usize) -> Result<Started, String> {
        let slot = &self.slots[at];
        let log = self.sweep.join(FOLDER).join(format!("{number}.log"));
        let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = Command::new(&self.program);
        command.args(["run", "--quiet", "--ends-with-parent", "--job-of"]).arg(&self.sweep);
        command.args(["--job", &number.to_string()]);
        command.args(self.machine.iter().flat_map(|(machine, _)| &machine.arguments));
        if let Some(uuid) = &slot.uuid {
            command.env("CUDA_VISIBLE_DEVICES", uuid);
        }
        let (out, err) = (file.try_clone().map_err(|e| e.to_string())?, file);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let process = Running::start(&mut command).map_err(|e| e.to_string())?;
        let dir = self.dirs.get(&number).cloned().unwrap_or_default();
        Ok(Started { number, process, log, dir })
    }

    /// Reaps the jobs that have ended, and returns their results.
    fn reap(&mut self) -> Vec<(usize, ReportedState)> {
        let mut seen = Vec::new();
        for slot in &mut self.slots {
            let Some(mut job) = slot.job.take_if(|job| job.process.has_ended()) else { continue };
            let status = job.process.end().map_or_else(|| "it ended".to_owned(), |status| status.to_string());
            let end = match self.cancelled {
                true => End {
                    outcome: Outcome::Interrupted,
                    reason: "ended with the sweep".into(),
                    wait: Duration::ZERO,
                },
                false => {
                    let words = last_words(&job.log).map(|words| format!(": {words}")).unwrap_or_default();
                    End { outcome: Outcome::Failed, reason: format!("{status}{words}"), wait: Duration::ZERO }
                }
            };
            if let Some((_, hardware)) = &self.machine {
                // The process of the job cannot read the temperature of a remote GPU.
                let pause = CooldownRule::new(hardware, &device_of(&job.dir)).min;
                slot.free_at = Instant::now() + pause;
            }
            seen.push((job.number, ReportedState::Ended(placement(&job, &slot.name), end)));
        }
        seen
    }
}

/// The device of a recorded job.
fn device_of(dir: &Path) -> Device {
    let first = EventReader::open(&RunDir::open(dir).events()).and_then(|mut events| events.read_next());
    match first {
        Ok(Next::Event(envelope)) => match envelope.event {
            Event::RunStarted(run) => run.device,
            _ => Device::None,
        },
        _ => Device::None,
    }
}

fn placement(job: &Started, on: &str) -> Placement {
    Placement { id: job.process.id().to_string(), on: Some(on.to_owned()), note: None }
}

/// One slot per GPU, or the configured number of processes.
fn slots(options: &LocalLauncher, gpus: &[Gpu], jobs: usize) -> Vec<Slot> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let wanted = match options.n_jobs {
        None if gpus.is_empty() => 1,
        None => gpus.len(),
        Some(n) => usize::try_from(n).unwrap_or(cpus),
    };
    match gpus.is_empty() {
        true => (1..=wanted.min(jobs).max(1)).map(|n| slot(format!("process {n}"), None)).collect(),
        false => {
            let gpus = gpus.iter().take(wanted.min(jobs).max(1));
            gpus.map(|gpu| slot(format!("GPU {}", gpu.index), Some(&gpu.uuid))).collect()
        }
    }
}

fn slot(name: String, uuid: Option<&String>) -> Slot {
    Slot { name, uuid: uuid.cloned(), job: None, free_at: Instant::now() }
}

impl Launcher for LocalJobs {
    fn look(&mut self) -> LauncherReport {
        let mut jobs = self.reap();
        if self.cancelled {
            let end = End {
                outcome: Outcome::Interrupted,
                reason: "cancelled before it started".into(),
                wait: Duration::ZERO,
            };
            jobs.extend(
                self.waiting
                    .drain(..)
                    .map(|job| (job, ReportedState::Ended(Placement::default(), end.clone()))),
            );
        }
        for at in 0..self.slots.len() {
            if self.slots[at].job.is_some() || Instant::now() < self.slots[at].free_at {
                continue;
            }
            let Some(number) = self.waiting.pop_front() else { break };
            match self.start(at, number) {
                Ok(started) => self.slots[at].job = Some(started),
                Err(reason) => {
                    let reason = format!("it cannot be started: {reason}");
                    let end = End { outcome: Outcome::Failed, reason, wait: Duration::ZERO };
                    jobs.push((number, ReportedState::Ended(Placement::default(), end)));
                }
            }
        }
        for slot in &self.slots {
            jobs.extend(
                slot.job.as_ref().map(|job| (job.number, ReportedState::Running(placement(job, &slot.name)))),
            );
        }
        LauncherReport { jobs, ..LauncherReport::default() }
    }

    fn settled(&mut self, _job: usize) {}

    fn cancel(&mut self) -> Result<(), String> {
        self.cancelled = true;
        self.slots.iter().filter_map(|slot| slot.job.as_ref()).for_each(|job| job.process.terminate());
        Ok(())
    }

    fn leave(&mut self) -> Vec<(usize, ReportedState)> {
        let _ = self.cancel();
        let limit = if self.machine.is_some() { END_TIMEOUT_THERE } else { END_TIMEOUT };
        let until = Instant::now() + limit;
        let mut seen = self.reap();
        while self.slots.iter().any(|slot| slot.job.is_some()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
            seen.extend(self.reap());
        }
        for slot in &mut self.slots {
            // A job that does not end in time is killed when it is dropped.
            if let Some(job) = slot.job.take() {
                let end = End {
                    outcome: Outcome::Interrupted,
                    reason: "killed with the sweep".into(),
                    wait: Duration::ZERO,
                };
                seen.push((job.number, ReportedState::Ended(placement(&job, &slot.name), end)));
            }
        }
        seen
    }

    fn interval(&self) -> Duration {
        INTERVAL
    }

    /// The files of a run on a remote host arrive after its end.
    fn ends_by_files(&self) -> bool {
        self.machine.is_none()
    }
}
