//! One job of a sweep in its own process, as a launcher starts it.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    cooldown::{Cooldown, CooldownStep},
    error::SweepError,
    runner::{composed, fingerprint},
    store::StoredSweep,
};
use crate::plan::Plan;
use llmprof_config::{ComposeContext, Composed, ConfTree, Override, RunConfig, current_context};
use llmprof_event::{Device, readings::Reading};
use llmprof_record::{
    state::RunState,
    sweep::{CooldownStatus, JobState, Sweep},
};

/// A job that is about to run, and its cool-down afterwards.
pub struct Task {
    pub plan: Plan,
    /// The new path of an earlier recording of the job.
    pub aside: Option<PathBuf>,
    config: RunConfig,
    device: Device,
}

/// A job for a remote host.
pub struct TaskThere {
    pub overrides: Vec<Override>,
    /// As given to `--conf-dir` when the sweep was started.
    pub conf_dir: Option<PathBuf>,
    /// The directory for the copy of its recording.
    pub dir: PathBuf,
    /// The new path of an earlier recording of the job.
    pub aside: Option<PathBuf>,
}

/// A job of the sweep.
struct SweepJob {
    sweep: Sweep,
    number: usize,
    composed: Composed,
    conf_dir: Option<PathBuf>,
}

impl SweepJob {
    /// The job `number` of the sweep in `dir`; `None` if it has completed already.
    fn open<E: From<SweepError>>(
        dir: &Path,
        number: usize,
        open_tree: impl FnOnce(Option<&Path>) -> Result<ConfTree, E>,
    ) -> Result<Option<SweepJob>, E> {
        let not_a_sweep = |reason: String| SweepError::NotASweep { dir: dir.to_owned(), reason };
        let stored = StoredSweep::read_unlocked(dir)?;
        let Some(job) = stored.jobs.get(number) else {
            return Err(not_a_sweep(format!("it has no job {number}; the first is 0")).into());
        };
        let conf_dir = stored.conf_dir.clone();
        let tree = open_tree(conf_dir.as_deref())?;
        let now =
            stored.started.parse().map_err(|e| not_a_sweep(format!("sweep.json has no start time: {e}")))?;
        let context = ComposeContext { now, ..current_context() };
        let composed = composed(&tree, &context, number, &job.overrides)?;
        if fingerprint(&composed) != job.config_sha256 {
            return Err(SweepError::Changed { job: number + 1 }.into());
        }
        let mut sweep = stored.sweep(dir.to_owned());
        sweep.read_results();
        let is_done = sweep.jobs[number].state == JobState::Finished;
        Ok((!is_done).then_some(SweepJob { sweep, number, composed, conf_dir }))
    }

    fn dir(&self) -> PathBuf {
        self.sweep.job_dir(self.number)
    }

    /// Moves an earlier recording away.
    fn set_aside(&mut self) -> Result<Option<PathBuf>, SweepError> {
        let path = self.dir();
        self.sweep.set_aside(self.number).map_err(|source| SweepError::Io { path, source })
    }
}

impl TaskThere {
    /// Like [`Task::open`], for a remote host, which validates the job itself.
    pub fn open<E: From<SweepError>>(
        dir: &Path,
        number: usize,
        open_tree: impl FnOnce(Option<&Path>) -> Result<ConfTree, E>,
    ) -> Result<Option<TaskThere>, E> {
        let Some(mut found) = SweepJob::open(dir, number, open_tree)? else { return Ok(None) };
        let aside = found.set_aside()?;
        let overrides = found.sweep.jobs[number].overrides.clone();
        Ok(Some(TaskThere { overrides, dir: found.dir(), conf_dir: found.conf_dir, aside }))
    }
}

impl Task {
    /// The job `number` of the sweep in `dir`; `None` if it has completed already. An earlier recording of it is moved away.
    pub fn open<E: From<SweepError>>(
        dir: &Path,
        number: usize,
        open_tree: impl FnOnce(Option<&Path>) -> Result<ConfTree, E>,
    ) -> Result<Option<Task>, E> {
        let Some(mut found) = SweepJob::open(dir, number, open_tree)? else { return Ok(None) };
        let config = found.composed.config.clone();
        let plan = Plan::new(found.composed.clone())
            .map_err(SweepError::of_job(number, &found.sweep.jobs[number].overrides))?;
        let aside = found.set_aside()?;
        let device = plan.device.clone();
        Ok(Some(Task { plan: Plan { dir: found.dir(), ..plan }, aside, config, device }))
    }

    /// The cool-down after the run with this state, which keeps the node or the GPU until it is over.
    pub fn cooldown(config: &RunConfig, device: &Device, state: &RunState) -> TaskCooldown {
        let gpu = state.profiled_gpu();
        let last_temp_c = gpu.and_then(|gpu| gpu.value(Reading::Temp)).map(|celsius| celsius as f32);
        TaskCooldown(Cooldown::start(config, device, last_temp_c).0)
    }

    /// The settings for the cool-down: the run consumes the plan.
    pub fn settings(&self) -> (RunConfig, Device) {
        (self.config.clone(), self.device.clone())
    }
}

/// The cool-down after the only job of a process.
pub struct TaskCooldown(Cooldown);

impl TaskCooldown {
    /// The state of the cool-down; `None` once it is over.
    pub fn status(&mut self, now: Instant) -> Option<CooldownStatus> {
        self.0.poll(now);
        (self.0.step(now) == CooldownStep::Wait).then(|| self.0.status(now))
    }
}
