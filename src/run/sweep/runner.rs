//! Takes the jobs of a sweep one after another, with a rest between them.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    cooldown::{CoolDown, Cooling, Heat, Turn as RestTurn},
    error::SweepError,
    jobs::{JobResult, Sweep},
    kept::{KeptJob, KeptSweep, check_subdir},
};
use crate::{
    assets::sha256_hex,
    config::{Composed, ConfTree, Surroundings, compose_in, multirun_yaml},
    event::{Outcome, readings::Reading},
    run::{
        plan::Plan,
        session::{Ended, Session},
    },
    rundir::{Loss, RunDir},
    state::RunState,
};

/// A sweep at work. Each job's result is on disk before the next job begins.
pub struct Runner {
    pub sweep: Sweep,
    kept: KeptSweep,
    tree: ConfTree,
    surroundings: Surroundings,
    /// Open as long as this process works on the sweep.
    _claim: File,
    cool_down: Option<CoolDown>,
    /// That no temperature can be read has been said.
    told_no_temperature: bool,
    /// The table could not be written.
    unwritten: Option<String>,
    remarks: Vec<String>,
}

impl Runner {
    /// Looks at every job that `overrides` expand to, and makes the sweep's directory when all of them can be begun.
    ///
    /// `jobs` are the overrides of each job; `overrides` and `conf_dir` are kept as they were typed.
    pub fn begin(
        tree: ConfTree,
        conf_dir: Option<PathBuf>,
        overrides: Vec<String>,
        jobs: Vec<Vec<String>>,
    ) -> Result<Runner, SweepError> {
        let surroundings = Surroundings::here();
        let yaml = multirun_yaml(&tree, &overrides, &jobs, &surroundings)?;
        let mut kept_jobs: Vec<KeptJob> = Vec::new();
        let mut taken: HashMap<String, usize> = HashMap::new();
        let mut wanted: Option<String> = None;
        for (at, overrides) in jobs.into_iter().enumerate() {
            let (composed, subdir) = looked_at(&tree, &surroundings, at, &overrides, &mut wanted)?;
            if let Some(first) = taken.insert(subdir.clone(), at + 1) {
                return Err(SweepError::SameSubdir { first, job: at + 1, subdir });
            }
            kept_jobs.push(KeptJob { overrides, subdir, config_sha256: fingerprint(&composed) });
        }
        let wanted = PathBuf::from(wanted.ok_or(SweepError::NoJobs)?);
        let kept = KeptSweep::new(&surroundings.now, conf_dir, overrides, kept_jobs);
        let dir = RunDir::create(&wanted).map_err(|source| SweepError::Io { path: wanted, source })?;
        let claim = kept.keep(dir.path(), &yaml)?;
        let sweep = kept.sweep(dir.path().to_owned());
        Ok(Runner::new(sweep, kept, tree, surroundings, claim))
    }

    /// Takes up the sweep in `dir` where it stopped. `tree_of` finds the configuration in the directory that was named
    /// when the sweep began, if one was.
    pub fn resume<E: From<SweepError>>(
        dir: &Path,
        tree_of: impl FnOnce(Option<&Path>) -> Result<ConfTree, E>,
    ) -> Result<Runner, E> {
        let (kept, claim) = KeptSweep::read(dir)?;
        let tree = tree_of(kept.conf_dir.as_deref())?;
        let now = kept.started.parse().map_err(|e| SweepError::NotASweep {
            dir: dir.to_owned(),
            reason: format!("sweep.json has no time it began: {e}"),
        })?;
        let mut sweep = kept.sweep(dir.to_owned());
        sweep.find_results();
        let surroundings = Surroundings { now, ..Surroundings::here() };
        let mut runner = Runner::new(sweep, kept, tree, surroundings, claim);
        for at in 0..runner.sweep.jobs.len() {
            if runner.sweep.jobs[at].turn == super::Turn::Waiting {
                runner.plan(at)?;
            }
        }
        runner.write_table();
        Ok(runner)
    }

    fn new(sweep: Sweep, kept: KeptSweep, tree: ConfTree, surroundings: Surroundings, claim: File) -> Runner {
        Runner {
            sweep,
            kept,
            tree,
            surroundings,
            _claim: claim,
            cool_down: None,
            told_no_temperature: false,
            unwritten: None,
            remarks: Vec::new(),
        }
    }

    /// The job's configuration, which has to be what it was when the sweep began.
    fn composed(&self, job: usize) -> Result<Composed, SweepError> {
        let overrides = &self.sweep.jobs[job].overrides;
        let composed = composed(&self.tree, &self.surroundings, job, overrides)?;
        match fingerprint(&composed) == self.kept.jobs[job].config_sha256 {
            true => Ok(composed),
            false => Err(SweepError::Changed { job: job + 1 }),
        }
    }

    fn plan(&self, job: usize) -> Result<Plan, SweepError> {
        let plan = Plan::new(self.composed(job)?).map_err(|source| SweepError::JobPlan {
            job: job + 1,
            overrides: self.sweep.jobs[job].overrides.join(" "),
            source: source.into(),
        })?;
        Ok(Plan { dir: self.sweep.job_dir(job), ..plan })
    }

    /// Begins the next job. One that can't be begun has failed, and the one after it is tried; `None` when none is
    /// left.
    pub fn start_next(&mut self) -> Option<Session> {
        self.cool_down = None;
        while let Some(job) = self.sweep.next() {
            let place = self.sweep.place(job);
            let ready = self.plan(job).map_err(|e| e.to_string()).and_then(|plan| {
                let aside = self.sweep.set_aside(job);
                let aside = aside.map_err(|e| format!("what it left before can't be moved aside: {e}"))?;
                Ok((plan, aside))
            });
            match ready {
                Ok((plan, aside)) => {
                    if let Some(aside) = aside {
                        let aside = aside.strip_prefix(&self.sweep.dir).unwrap_or(&aside).display();
                        self.remarks
                            .push(format!("{place} is done again; what it left before is kept as {aside}"));
                    }
                    self.sweep.begin(job);
                    return Some(Session::start(plan));
                }
                Err(reason) => {
                    self.remarks.push(format!("{place} can't be begun: {reason}"));
                    self.ended(job, JobResult::failed(reason));
                }
            }
        }
        None
    }

    /// Closes the job at work and writes its row; `outcome` and `cause` are for a job that has not ended by itself.
    /// The rest before the next job begins now.
    pub fn end_job(&mut self, session: &mut Session, outcome: Outcome, cause: Option<String>) -> Ended {
        let ended = session.end(outcome, cause);
        if let Some(job) = self.sweep.running() {
            let measured = ended.metrics.output_tokens > 0;
            self.ended(
                job,
                JobResult {
                    outcome: ended.finished.outcome,
                    reason: ended.finished.cause.clone().or_else(|| ended.loss.as_ref().map(Loss::to_string)),
                    lossy: ended.loss.is_some(),
                    metrics: measured.then_some(ended.metrics),
                    dir: ended.dir.clone(),
                },
            );
            self.rest(&session.state);
        }
        ended
    }

    fn ended(&mut self, job: usize, result: JobResult) {
        self.sweep.end(job, result);
        self.write_table();
    }

    fn write_table(&mut self) {
        if let Err(e) = self.sweep.write_csv(&self.sweep.dir) {
            let trouble = e.to_string();
            if self.unwritten.replace(trouble.clone()).is_none() {
                self.remarks.push(format!("the table could not be written: {trouble}"));
            }
        } else {
            self.unwritten = None;
        }
    }

    fn rest(&mut self, last: &RunState) {
        let Some(Ok(next)) = self.sweep.next().map(|job| self.composed(job)) else { return };
        let last_temp_c =
            last.profiled_gpu().and_then(|gpu| gpu.value(Reading::Temp)).map(|celsius| celsius as f32);
        let (cool_down, trouble) = CoolDown::begin(&next.config, last_temp_c);
        self.tell_no_temperature(trouble, &cool_down);
        self.cool_down = Some(cool_down);
    }

    fn tell_no_temperature(&mut self, trouble: Option<String>, cool_down: &CoolDown) {
        if let Some(reason) = trouble.filter(|_| !self.told_no_temperature) {
            self.told_no_temperature = true;
            let secs = cool_down.rest().least.as_secs_f64();
            self.remarks.push(format!(
                "no temperature can be read ({reason}): resting for hardware.cooldown_s={secs} s instead"
            ));
        }
    }

    /// The rest before the next job, as long as it lasts.
    pub fn cooling(&mut self, now: Instant) -> Option<Cooling> {
        let mut cool_down = self.cool_down.take()?;
        let trouble = cool_down.look(now);
        self.tell_no_temperature(trouble, &cool_down);
        let cooling = cool_down.cooling(now);
        match cool_down.turn(now) {
            RestTurn::Rest => {
                self.cool_down = Some(cool_down);
                Some(cooling)
            }
            RestTurn::GoOn => None,
            RestTurn::GoOnWarm => {
                let temp = match cooling.heat {
                    Heat::At(temp) => format!("still at {temp:.0} °C"),
                    _ => "not known to be cool".into(),
                };
                let secs = cool_down.rest().most.as_secs_f64();
                self.remarks
                    .push(format!("the GPU is {temp} after {secs} s (hardware.cooldown_max_s): going on"));
                None
            }
        }
    }

    /// The rest ends now.
    pub fn skip_rest(&mut self) {
        self.cool_down = None;
    }

    /// What the user should hear, once.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// 1 where a job failed or something could not be kept.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.sweep.has_failures() || self.unwritten.is_some())
    }
}

fn fingerprint(composed: &Composed) -> String {
    sha256_hex(composed.to_yaml().as_bytes())
}

fn composed(
    tree: &ConfTree,
    surroundings: &Surroundings,
    job: usize,
    overrides: &[String],
) -> Result<Composed, SweepError> {
    let here = Surroundings { job: Some(job), ..surroundings.clone() };
    compose_in(tree, overrides, &here).map_err(|source| SweepError::JobConfig {
        job: job + 1,
        overrides: overrides.join(" "),
        source: source.into(),
    })
}

/// Checks a job as far as that is possible without the machine; gives its configuration and its directory. `dir` is
/// the sweep's, which all jobs have to agree on.
fn looked_at(
    tree: &ConfTree,
    surroundings: &Surroundings,
    job: usize,
    overrides: &[String],
    dir: &mut Option<String>,
) -> Result<(Composed, String), SweepError> {
    let composed = composed(tree, surroundings, job, overrides)?;
    let (wanted, subdir) = composed.sweep_places()?;
    check_subdir(job, &subdir)?;
    let first = dir.get_or_insert_with(|| wanted.clone());
    if *first != wanted {
        return Err(SweepError::SeveralDirs { job: job + 1, first: first.clone(), other: wanted });
    }
    let plan = Plan::new(composed).map_err(|source| SweepError::JobPlan {
        job: job + 1,
        overrides: overrides.join(" "),
        source: source.into(),
    })?;
    Ok((plan.composed, subdir))
}
