//! Runs the jobs of a sweep one after another, with a cool-down between them.

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    consent::Consent,
    cooldown::{Cooldown, CooldownStep},
    error::SweepError,
    store::{SCHEMA, StoredJob, StoredSweep, check_subdir, write_csv},
};
use crate::{
    assets::sha256_hex,
    plan::Plan,
    session::{Session, SessionSummary},
};
use llmprof_config::{
    ComposeContext, Composed, ConfTree, Launcher, Override, compose_in, current_context, launcher,
    multirun_yaml,
};
use llmprof_event::{Outcome, Stamp, readings::Reading};
use llmprof_record::{
    rundir::RunDir,
    sweep::{CooldownStatus, JobResult, JobState, Sweep, Temperature},
};

/// A sweep in progress. The result of a job is on disk before the next job starts.
pub struct Runner {
    pub sweep: Sweep,
    stored: StoredSweep,
    tree: ConfTree,
    context: ComposeContext,
    /// Locks the sweep.
    _lock: File,
    cooldown: Option<Cooldown>,
    no_temperature_reported: bool,
    /// The error of writing the table.
    unwritten: Option<String>,
    remarks: Vec<String>,
    began: Instant,
    /// The end of the last job.
    ended: Option<Instant>,
}

impl Runner {
    /// Validates every job as far as possible without the machine, and creates the sweep's directory if all of them are valid.
    ///
    /// `jobs` are the overrides of each job; `overrides`, `conf_dir` and `host` are stored as
    /// typed.
    pub fn begin(
        tree: ConfTree,
        conf_dir: Option<PathBuf>,
        host: Option<String>,
        overrides: Vec<Override>,
        jobs: Vec<Vec<Override>>,
    ) -> Result<Runner, SweepError> {
        let context = current_context();
        let yaml = multirun_yaml(&tree, &overrides, &jobs, &context)?;
        let mut stored_jobs: Vec<StoredJob> = Vec::new();
        let mut taken: HashMap<String, usize> = HashMap::new();
        let mut wanted: Option<String> = None;
        for (job, overrides) in jobs.into_iter().enumerate() {
            let composed = composed(&tree, &context, job, &overrides)?;
            let subdir = subdir(&composed, job, &mut wanted)?;
            let sha256 = fingerprint(&composed);
            // A remote host has its own weights and tools: it validates its jobs.
            match &host {
                None => _ = Plan::new(composed).map_err(SweepError::of_job(job, &overrides))?,
                Some(host) => {
                    let launcher = launcher(&composed).map_err(SweepError::of_job(job, &overrides))?;
                    if launcher != Launcher::Basic {
                        return Err(SweepError::OneByOne { host: host.clone() });
                    }
                }
            }
            if let Some(first) = taken.insert(subdir.clone(), job + 1) {
                return Err(SweepError::SameSubdir { first, job: job + 1, subdir });
            }
            stored_jobs.push(StoredJob { overrides, subdir, config_sha256: sha256 });
        }
        let wanted = PathBuf::from(wanted.ok_or(SweepError::NoJobs)?);
        RunDir::name_in(&wanted)?;
        let started = context.now.to_string();
        let stored = StoredSweep { schema: SCHEMA, started, conf_dir, host, overrides, jobs: stored_jobs };
        let dir = RunDir::create(&wanted).map_err(|source| SweepError::Io { path: wanted, source })?;
        let lock = stored.write(dir.path(), &yaml)?;
        let sweep = stored.sweep(dir.path().to_owned());
        Ok(Runner::new(sweep, stored, tree, context, lock))
    }

    /// Resumes the sweep in `dir`. `open_tree` opens the configuration in the directory that was given when the sweep
    /// was started, if any. `confirm` is called if the user must agree; nothing is written before.
    pub fn resume<E: From<SweepError>>(
        dir: &Path,
        open_tree: impl FnOnce(Option<&Path>) -> Result<ConfTree, E>,
        confirm: impl FnOnce(&Consent) -> Result<(), E>,
    ) -> Result<Runner, E> {
        let (stored, lock) = StoredSweep::read(dir)?;
        let consent = Consent::new(dir, &lock, stored.conf_dir.as_deref());
        let mut consent = consent.map_err(|source| SweepError::Io { path: dir.to_owned(), source })?;
        let tree = open_tree(stored.conf_dir.as_deref())?;
        let now = stored.started.parse().map_err(|e| SweepError::NotASweep {
            dir: dir.to_owned(),
            reason: format!("sweep.json has no start time: {e}"),
        })?;
        let mut sweep = stored.sweep(dir.to_owned());
        sweep.read_results();
        let context = ComposeContext { now, ..current_context() };
        let mut runner = Runner::new(sweep, stored, tree, context, lock);
        let waiting = |job: &usize| runner.sweep.jobs[*job].state == JobState::Waiting;
        let waiting: Vec<usize> = (0..runner.sweep.jobs.len()).filter(waiting).collect();
        for job in waiting.iter().copied() {
            let composed = runner.composed(job)?;
            consent.add(&runner.sweep.label(job), &runner.sweep.jobs[job].overrides, &composed.config);
        }
        if let Launcher::Slurm(slurm) = runner.launcher(&[])? {
            consent.add_setup(slurm.setup.as_deref().unwrap_or_default());
        }
        if consent.is_needed() {
            confirm(&consent)?;
        }
        if runner.host().is_none() {
            waiting.into_iter().try_for_each(|job| runner.plan(job).map(drop))?;
        }
        runner.write_table();
        Ok(runner)
    }

    fn new(sweep: Sweep, stored: StoredSweep, tree: ConfTree, context: ComposeContext, lock: File) -> Runner {
        Runner {
            sweep,
            stored,
            tree,
            context,
            _lock: lock,
            cooldown: None,
            no_temperature_reported: false,
            unwritten: None,
            remarks: Vec::new(),
            began: Instant::now(),
            ended: None,
        }
    }

    /// Since the sweep was begun or resumed, until the end of its last job.
    pub fn elapsed(&self) -> Duration {
        self.ended.unwrap_or_else(Instant::now) - self.began
    }

    /// The job's configuration, which must be the same as when the sweep was started.
    fn composed(&self, job: usize) -> Result<Composed, SweepError> {
        let overrides = &self.sweep.jobs[job].overrides;
        let composed = composed(&self.tree, &self.context, job, overrides)?;
        match fingerprint(&composed) == self.stored.jobs[job].config_sha256 {
            true => Ok(composed),
            false => Err(SweepError::Changed { job: job + 1 }),
        }
    }

    fn plan(&self, job: usize) -> Result<Plan, SweepError> {
        let plan = Plan::new(self.composed(job)?)
            .map_err(SweepError::of_job(job, &self.sweep.jobs[job].overrides))?;
        Ok(Plan { dir: self.sweep.job_dir(job), ..plan })
    }

    /// Starts the next job. A job that cannot be started fails, and the next one is tried. `None` if no job is left.
    pub fn start_next(&mut self) -> Option<Session> {
        self.cooldown = None;
        while let Some(job) = self.sweep.next() {
            let label = self.sweep.label(job);
            let ready = self.plan(job).map_err(|e| e.to_string()).and_then(|plan| {
                let aside = self.set_aside(job);
                aside.map_err(|e| format!("its earlier recording cannot be moved: {e}")).map(|()| plan)
            });
            match ready {
                Ok(plan) => {
                    self.sweep.begin(job);
                    return Some(Session::start(plan));
                }
                Err(reason) => {
                    self.remarks.push(format!("{label} cannot be started: {reason}"));
                    self.set_result(job, JobResult::failed(reason));
                }
            }
        }
        None
    }

    /// Ends the running job and writes its row; `outcome` and `cause` apply to a job that has not ended by itself. The
    /// cool-down before the next job starts.
    pub fn end_job(
        &mut self,
        session: &mut Session,
        outcome: Outcome,
        cause: Option<String>,
    ) -> SessionSummary {
        let summary = session.end(outcome, cause);
        if let Some(job) = self.sweep.running() {
            let loss = summary.loss.as_ref();
            let measured = summary.metrics.output_tokens > 0;
            self.set_result(
                job,
                JobResult {
                    outcome: summary.finished.outcome,
                    reason: summary.finished.cause.clone().or_else(|| loss.map(|loss| loss.to_string())),
                    lossy: summary.loss.is_some(),
                    metrics: measured.then_some(summary.metrics),
                    dir: summary.dir.clone(),
                },
            );
            self.sweep.jobs[job].took = Some(session.state.now.since(Stamp::default()));
            self.start_cooldown(session);
        }
        summary
    }

    /// Sets the result of a job, and writes its row.
    pub(super) fn set_result(&mut self, job: usize, result: JobResult) {
        self.sweep.end(job, result);
        if self.sweep.unfinished() == 0 {
            self.ended.get_or_insert_with(Instant::now);
        }
        self.write_table();
    }

    fn write_table(&mut self) {
        if let Err(e) = write_csv(&self.sweep, &self.sweep.dir) {
            let error = e.to_string();
            if self.unwritten.replace(error.clone()).is_none() {
                self.remarks.push(format!("the table cannot be written: {error}"));
            }
        } else {
            self.unwritten = None;
        }
    }

    fn start_cooldown(&mut self, last: &Session) {
        let Some(Ok(next)) = self.sweep.next().map(|job| self.composed(job)) else { return };
        let gpu = last.state.profiled_gpu();
        let last_temp_c = gpu.and_then(|gpu| gpu.value(Reading::Temp)).map(|celsius| celsius as f32);
        let (cooldown, unavailable) = Cooldown::start(&next.config, &last.plan().device, last_temp_c);
        self.report_no_temperature(unavailable, &cooldown);
        self.cooldown = Some(cooldown);
    }

    fn report_no_temperature(&mut self, reason: Option<String>, cooldown: &Cooldown) {
        if let Some(reason) = reason.filter(|_| !self.no_temperature_reported) {
            self.no_temperature_reported = true;
            let secs = cooldown.rule().min.as_secs_f64();
            self.remarks.push(format!(
                "the temperature cannot be read ({reason}): waiting hardware.cooldown_s={secs} s instead"
            ));
        }
    }

    /// The cool-down before the next job, while it lasts.
    pub fn cooldown(&mut self, now: Instant) -> Option<CooldownStatus> {
        let mut cooldown = self.cooldown.take()?;
        let unavailable = cooldown.poll(now);
        self.report_no_temperature(unavailable, &cooldown);
        let status = cooldown.status(now);
        match cooldown.step(now) {
            CooldownStep::Wait => {
                self.cooldown = Some(cooldown);
                Some(status)
            }
            CooldownStep::Proceed => None,
            CooldownStep::ProceedWarm => {
                let temp = match status.temperature {
                    Temperature::Celsius(temp) => format!("at {temp:.0} °C"),
                    _ => "at an unknown temperature".into(),
                };
                let secs = cooldown.rule().max.as_secs_f64();
                self.remarks.push(format!(
                    "the GPU is still {temp} after {secs} s (hardware.cooldown_max_s): starting the next job"
                ));
                None
            }
        }
    }

    /// Ends the cool-down now.
    pub fn skip_cooldown(&mut self) {
        self.cooldown = None;
    }

    pub(super) fn add_remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    /// Moves an earlier recording of the job away.
    pub(super) fn set_aside(&mut self, job: usize) -> io::Result<()> {
        if let Some(aside) = self.sweep.set_aside(job)? {
            let aside = aside.strip_prefix(&self.sweep.dir).unwrap_or(&aside).display();
            let label = self.sweep.label(job);
            self.remarks.push(format!("{label} runs again; its earlier recording is kept as {aside}"));
        }
        self.sweep.jobs[job].result = None;
        Ok(())
    }

    /// Whether one of these jobs runs on a GPU of this machine.
    pub(super) fn uses_cuda(&self, jobs: &[usize]) -> Result<bool, SweepError> {
        for job in jobs {
            if self.plan(*job)?.device.is_cuda() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The remote host of the jobs, if there is one.
    pub fn host(&self) -> Option<&str> {
        self.stored.host.as_deref()
    }

    /// The configuration of the first job, for settings that all jobs share.
    pub fn first(&self) -> Result<Composed, SweepError> {
        composed(&self.tree, &self.context, 0, &self.sweep.jobs[0].overrides)
    }

    /// The launcher of the jobs, with additional `overrides` of the launcher.
    pub fn launcher(&self, overrides: &[Override]) -> Result<Launcher, SweepError> {
        let job = self.sweep.next().unwrap_or(0);
        let all = [&self.sweep.jobs[job].overrides, overrides].concat();
        let composed = composed(&self.tree, &self.context, job, &all)?;
        launcher(&composed).map_err(SweepError::of_job(job, &all))
    }

    /// New remarks for the user.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// 1 if a job failed or something could not be written, else 0.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.sweep.has_failures() || self.unwritten.is_some())
    }
}

pub(super) fn fingerprint(composed: &Composed) -> String {
    // The order of keys has no meaning: files of conf/ may be arranged in another way.
    let config = serde_json::to_value(&composed.config).unwrap_or_default();
    sha256_hex(config.to_string().as_bytes())
}

pub(super) fn composed(
    tree: &ConfTree,
    context: &ComposeContext,
    job: usize,
    overrides: &[Override],
) -> Result<Composed, SweepError> {
    let context = ComposeContext { job: Some(job), ..context.clone() };
    compose_in(tree, overrides, &context).map_err(SweepError::of_job(job, overrides))
}

/// The directory of a job below the sweep's, which is `dir` and must be the same for all jobs.
fn subdir(composed: &Composed, job: usize, dir: &mut Option<String>) -> Result<String, SweepError> {
    let (wanted, subdir) = composed.sweep_dirs()?;
    check_subdir(job, &subdir)?;
    let first = dir.get_or_insert_with(|| wanted.clone());
    if *first != wanted {
        return Err(SweepError::SeveralDirs { job: job + 1, first: first.clone(), other: wanted });
    }
    Ok(subdir)
}
