//! The jobs of a sweep as Slurm job arrays.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    env, fs,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use super::{
    End, LaunchError, Launcher, LauncherReport, ReportedState,
    arrays::{Arrays, StoredArray},
    last_words,
};
use crate::{
    slurm::{ExitCode, Script, Slurm, SlurmError, TaskEnd, TaskState, folder_of, waiting_reason},
    sweep::Runner,
};
use llmprof_base::dir;
use llmprof_config::SlurmLauncher;
use llmprof_event::Outcome;
use llmprof_record::sweep::Placement;

/// The number of tasks of an array if Slurm does not report its limit.
const USUAL_ARRAY_SIZE: usize = 1001;
/// The interval between looks grows from the first to the second value while nothing changes: many users share a
/// controller.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(15);
/// The interval between submissions while Slurm accepts no more jobs.
const SUBMIT_AGAIN: Duration = Duration::from_secs(30);
/// The same after one of its jobs has ended.
const SUBMIT_SOON: Duration = Duration::from_secs(2);
/// The wait for the files of a failed job, which may have none.
const FAILED_WAIT: Duration = Duration::from_secs(5);
/// A job that Slurm does not list may just have been submitted.
const LOOKS_BEFORE_UNKNOWN: u32 = 3;

/// The working directory and the program as absolute paths: the nodes start elsewhere.
struct Paths {
    program: PathBuf,
    working_dir: PathBuf,
    sweep: PathBuf,
    folder: PathBuf,
}

pub(super) struct SlurmJobs {
    slurm: Slurm,
    options: SlurmLauncher,
    paths: Paths,
    arrays: Arrays,
    /// The array of each submitted job, and its task index.
    tasks: HashMap<usize, (u64, u32)>,
    /// Jobs that are being followed.
    open: BTreeSet<usize>,
    unsubmitted: VecDeque<usize>,
    /// The maximum number of jobs in an array.
    max_array_size: usize,
    /// Jobs of the next array: fewer if Slurm accepts no more.
    array_size: usize,
    submit_at: Option<Instant>,
    why_unsubmitted: Option<String>,
    ends: HashMap<(u64, u32), TaskEnd>,
    /// The number of looks at which Slurm did not list a job.
    unlisted: HashMap<usize, u32>,
    cancelled: bool,
    last: Vec<(usize, String)>,
    changed: Instant,
    in_trouble: bool,
}

impl SlurmJobs {
    /// Finds the submitted jobs again, and submits the others unless `find_only` is set.
    pub(super) fn begin(
        runner: &mut Runner,
        options: SlurmLauncher,
        jobs: &[usize],
        find_only: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<SlurmJobs, LaunchError> {
        let working_dir = env::current_dir()?;
        let sweep = working_dir.join(&runner.sweep.dir);
        let folder = working_dir.join(folder_of(&options));
        let arrays = Arrays::read(&runner.sweep.dir, runner.sweep.jobs.len())?;
        let cluster = arrays.arrays.iter().find_map(|array| array.cluster.clone());
        let mut this = SlurmJobs {
            slurm: Slurm { cluster, stop },
            options,
            paths: Paths { program: env::current_exe()?, working_dir, sweep, folder },
            arrays,
            tasks: HashMap::new(),
            open: jobs.iter().copied().collect(),
            unsubmitted: VecDeque::new(),
            max_array_size: USUAL_ARRAY_SIZE,
            array_size: USUAL_ARRAY_SIZE,
            submit_at: None,
            why_unsubmitted: None,
            ends: HashMap::new(),
            unlisted: HashMap::new(),
            cancelled: false,
            last: Vec::new(),
            changed: Instant::now(),
            in_trouble: false,
        };
        let missing = this.missing()?;
        let found = this.open.len() - missing.len();
        if found > 0 {
            runner.add_remark(format!("found in Slurm again: {}", counted(found)));
        }
        if find_only {
            for job in missing {
                this.open.remove(&job);
            }
            return Ok(this);
        }
        if missing.is_empty() {
            return Ok(this);
        }
        for job in missing.iter().copied() {
            runner.set_aside(job).map_err(|source| {
                let path = runner.sweep.job_dir(job);
                crate::sweep::SweepError::Io { path, source }
            })?;
        }
        let known = this.arrays.arrays.len();
        fs::create_dir_all(&this.paths.folder)?;
        this.max_array_size =
            this.slurm.max_array_size()?.filter(|size| *size > 0).unwrap_or(USUAL_ARRAY_SIZE);
        this.array_size = this.max_array_size;
        for job in &missing {
            this.tasks.remove(job);
        }
        this.unsubmitted = missing.into();
        while !this.unsubmitted.is_empty() {
            match this.submit_next() {
                Ok(()) => {}
                // Some jobs are submitted; the others wait.
                Err(LaunchError::Slurm(error)) if error.may_pass() && this.submit_at.is_some() => break,
                Err(error) => return Err(error),
            }
        }
        for array in &this.arrays.arrays[known..] {
            let id = array.id.unwrap_or_default();
            runner.add_remark(format!("submitted as the Slurm array {id}: {}", counted(array.jobs.len())));
        }
        Ok(this)
    }

    /// The jobs that Slurm does not and will not run. Asks until the answer is certain: a job must not run twice.
    fn missing(&mut self) -> Result<Vec<usize>, LaunchError> {
        let lost: Vec<usize> =
            (0..self.arrays.arrays.len()).filter(|at| self.arrays.arrays[*at].id.is_none()).collect();
        for at in lost.iter().copied() {
            // The program was ended during a submission.
            self.arrays.arrays[at].id = self.slurm.array_of(&self.arrays.arrays[at].script)?;
        }
        if !lost.is_empty() {
            self.arrays.arrays.retain(|array| array.id.is_some());
            self.arrays.write(&self.paths.sweep)?;
        }
        self.tasks = self.arrays.tasks();
        let ids = self.ids();
        let queue = if ids.is_empty() { Vec::new() } else { self.slurm.queue(&ids)? };
        let queue: HashMap<(u64, u32), TaskState> =
            queue.into_iter().map(|task| ((task.array, task.task), task.state)).collect();
        let is_there = |job: &usize| {
            let Some(task) = self.tasks.get(job) else { return false };
            // Completed jobs may only lack files that arrive late.
            queue.get(task).is_some_and(|state| !state.is_over() || *state == TaskState::Completed)
        };
        Ok(self.open.iter().copied().filter(|job| !is_there(job)).collect())
    }

    /// The jobs that are being followed.
    pub(super) fn open(&self) -> Vec<usize> {
        self.open.iter().copied().collect()
    }

    /// The arrays of open jobs.
    fn ids(&self) -> Vec<u64> {
        let ids: BTreeSet<u64> = self.open.iter().filter_map(|job| Some(self.tasks.get(job)?.0)).collect();
        ids.into_iter().collect()
    }

    /// Submits one array of jobs that were not submitted. If Slurm accepts no more, smaller arrays are tried.
    fn submit_next(&mut self) -> Result<(), LaunchError> {
        let jobs: Vec<usize> = self.unsubmitted.iter().copied().take(self.array_size).collect();
        match self.submit(&jobs) {
            Ok(()) => {
                self.unsubmitted.drain(..jobs.len());
                self.array_size = (2 * self.array_size).min(self.max_array_size);
                (self.submit_at, self.why_unsubmitted) = (None, None);
                Ok(())
            }
            Err(LaunchError::Slurm(SlurmError::SubmitLimit(_) | SlurmError::ArrayLimit(_)))
                if jobs.len() > 1 =>
            {
                self.array_size = jobs.len().div_ceil(2);
                self.submit_next()
            }
            Err(LaunchError::Slurm(error @ SlurmError::SubmitLimit(_))) => {
                self.submit_at = Some(Instant::now() + SUBMIT_AGAIN);
                self.why_unsubmitted =
                    Some(format!("{error}; tried again every {} s", SUBMIT_AGAIN.as_secs()));
                Err(error.into())
            }
            Err(error) => Err(error),
        }
    }

    fn submit(&mut self, jobs: &[usize]) -> Result<(), LaunchError> {
        let Paths { program, working_dir, sweep, folder } = &self.paths;
        let number = (self.arrays.arrays.len()..)
            .find(|number| !folder.join(format!("array-{number}.sh")).exists())
            .unwrap_or_default();
        let (script, job_list) =
            (folder.join(format!("array-{number}.sh")), folder.join(format!("array-{number}.jobs")));
        // Arrays follow each other, so that at most array_parallelism jobs of the sweep run at once.
        let after =
            self.arrays.arrays.iter().rev().find_map(|array| array.id).filter(|_| !self.ids().is_empty());
        let (launcher, count) = (&self.options, jobs.len());
        let text =
            Script { launcher, program, working_dir, sweep, folder, job_list: &job_list, jobs: count, after };
        let text = text.text()?;
        let list: String = jobs.iter().map(|job| format!("{job}\n")).collect();
        dir::write(&job_list, list)?;
        dir::write(&script, text)?;
        let stored = StoredArray { script: script.clone(), id: None, cluster: None, jobs: jobs.to_vec() };
        self.arrays.arrays.push(stored);
        self.arrays.write(sweep)?;
        match self.slurm.submit(&script) {
            Ok((id, cluster)) => {
                if let Some(array) = self.arrays.arrays.last_mut() {
                    (array.id, array.cluster) = (Some(id), cluster.clone());
                }
                self.tasks.extend(jobs.iter().copied().zip((0..).map(|task| (id, task))));
                self.slurm.cluster = self.slurm.cluster.take().or(cluster);
                Ok(self.arrays.write(sweep)?)
            }
            // It may have been accepted: the entry is kept, and --resume looks for it.
            Err(error @ SlurmError::Silent { .. }) => Err(error.into()),
            Err(error) => {
                self.arrays.arrays.pop();
                self.arrays.write(sweep)?;
                Err(error.into())
            }
        }
    }

    fn placement(&self, job: usize) -> Placement {
        let id = self.tasks.get(&job).map(|(array, task)| format!("{array}_{task}"));
        Placement { id: id.unwrap_or_default(), on: None, note: None }
    }

    /// A message about the end of a job.
    fn end(&self, end: &TaskEnd) -> End {
        let log = |kind: &str| self.paths.folder.join(format!("{}_{}_0_log.{kind}", end.array, end.task));
        let words = last_words(&log(if self.options.stderr_to_stdout { "out" } else { "err" }));
        let after =
            |text: String| words.as_ref().map_or_else(|| text.clone(), |words| format!("{text}: {words}"));
        let on = end.nodes.as_ref().map_or_else(|| "its node".to_owned(), Clone::clone);
        let minutes = self.options.timeout_min;
        let files_wait = Duration::from_secs_f64(self.options.files_wait_s);
        let reason = match &end.state {
            TaskState::Completed => {
                let reason = format!(
                    "Slurm reports that the job completed, but its directory has no end after {} s (hydra.launcher.files_wait_s); \
                     put hydra.sweep.dir on a file system that this machine and the nodes share",
                    self.options.files_wait_s
                );
                return End { outcome: Outcome::Failed, reason, wait: files_wait };
            }
            TaskState::Cancelled if self.cancelled => {
                let reason = "cancelled on request".to_owned();
                return End { outcome: Outcome::Interrupted, reason, wait: FAILED_WAIT.min(files_wait) };
            }
            TaskState::Cancelled => "CANCELLED: by scancel, from outside of this program".to_owned(),
            TaskState::Timeout => {
                format!("TIMEOUT: the limit of {minutes} min was reached; raise hydra.launcher.timeout_min")
            }
            TaskState::OutOfMemory => {
                after(format!("OUT_OF_MEMORY on {on}; raise hydra.launcher.mem_gb, or make the job smaller"))
            }
            TaskState::NodeFail => format!("NODE_FAIL: {on} was lost"),
            TaskState::BootFail => format!("BOOT_FAIL: {on} did not start"),
            TaskState::Preempted => "PREEMPTED by a job of higher priority".to_owned(),
            TaskState::Deadline => "DEADLINE: it could not start in time".to_owned(),
            _ => match end.exit {
                Some(ExitCode { code: 143, .. }) if self.options.signal_delay_s > 0 => format!(
                    "ended by SIGTERM on {on}, probably {} s before its time limit of {minutes} min; raise hydra.launcher.timeout_min",
                    self.options.signal_delay_s
                ),
                Some(exit) => after(format!("{exit} on {on}")),
                None => after(format!("failed on {on}")),
            },
        };
        End { outcome: Outcome::Failed, reason, wait: FAILED_WAIT.min(files_wait) }
    }

    /// A job that Slurm no longer lists.
    fn unknown(&mut self, job: usize) -> Option<End> {
        let looks = self.unlisted.entry(job).or_default();
        *looks += 1;
        (*looks >= LOOKS_BEFORE_UNKNOWN).then(|| End {
            outcome: Outcome::Failed,
            reason: "Slurm no longer knows the job, and its directory has no end".into(),
            wait: Duration::from_secs_f64(self.options.files_wait_s),
        })
    }

    /// Asks once for the ends of jobs that are over.
    fn learn_ends(&mut self, over: &[(u64, u32)]) {
        let arrays: BTreeSet<u64> =
            over.iter().filter(|task| !self.ends.contains_key(*task)).map(|(array, _)| *array).collect();
        for array in arrays {
            // Without an answer the state in the queue is used, until the next look.
            for end in
                self.slurm.ends(array).unwrap_or_default().into_iter().filter(|end| end.state.is_over())
            {
                self.ends.insert((end.array, end.task), end);
            }
        }
    }

    fn see(&mut self) -> Result<Vec<(usize, ReportedState)>, SlurmError> {
        let ids = self.ids();
        let queue = if ids.is_empty() { Vec::new() } else { self.slurm.queue(&ids)? };
        let queued: HashMap<(u64, u32), _> =
            queue.into_iter().map(|task| ((task.array, task.task), task)).collect();
        let open: Vec<(usize, Option<(u64, u32)>)> =
            self.open.iter().map(|job| (*job, self.tasks.get(job).copied())).collect();
        let is_over = |task: &(u64, u32)| queued.get(task).is_none_or(|queued| queued.state.is_over());
        let over: Vec<(u64, u32)> = open.iter().filter_map(|(_, task)| *task).filter(is_over).collect();
        self.learn_ends(&over);
        let mut seen = Vec::new();
        for (job, task) in open {
            let mut placement = self.placement(job);
            let Some(task) = task else {
                placement = Placement { id: String::new(), on: None, note: self.why_unsubmitted.clone() };
                seen.push((
                    job,
                    match self.cancelled {
                        true => ReportedState::Ended(
                            placement,
                            End {
                                outcome: Outcome::Interrupted,
                                reason: "cancelled on request before it was submitted".into(),
                                wait: Duration::ZERO,
                            },
                        ),
                        false => ReportedState::Waiting(placement),
                    },
                ));
                continue;
            };
            let queued = queued.get(&task);
            placement.on = queued.and_then(|queued| queued.nodes.clone());
            match queued.map(|queued| (&queued.state, queued.reason.as_str())) {
                Some((TaskState::Pending | TaskState::Other(_), reason)) => {
                    placement.note = Some(waiting_reason(reason));
                    seen.push((job, ReportedState::Waiting(placement)));
                }
                Some((TaskState::Suspended, _)) => {
                    placement.note = Some("suspended".into());
                    seen.push((job, ReportedState::Running(placement)));
                }
                Some((TaskState::Running | TaskState::Completing, _)) => {
                    seen.push((job, ReportedState::Running(placement)))
                }
                state => {
                    let known = self.ends.get(&task).cloned().or_else(|| {
                        let (state, exit) = (state?.0.clone(), None);
                        Some(TaskEnd {
                            array: task.0,
                            task: task.1,
                            state,
                            exit,
                            nodes: placement.on.clone(),
                        })
                    });
                    let end = match known {
                        Some(end) => {
                            placement.on = placement.on.take().or_else(|| end.nodes.clone());
                            Some(self.end(&end))
                        }
                        None => self.unknown(job),
                    };
                    seen.extend(end.map(|end| (job, ReportedState::Ended(placement, end))));
                }
            }
        }
        Ok(seen)
    }
}

/// `1 job`, `3 jobs`.
fn counted(jobs: usize) -> String {
    if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") }
}

impl Launcher for SlurmJobs {
    fn look(&mut self) -> LauncherReport {
        let mut remarks = Vec::new();
        if self.submit_at.is_some_and(|at| Instant::now() >= at) && !self.cancelled {
            let before = self.unsubmitted.len();
            if let Err(error) = self.submit_next() {
                self.submit_at = Some(Instant::now() + SUBMIT_AGAIN);
                self.why_unsubmitted = Some(error.to_string());
            } else if !self.unsubmitted.is_empty() {
                self.submit_at = Some(Instant::now());
            }
            let more = before - self.unsubmitted.len();
            if more > 0 {
                remarks.push(format!("submitted to Slurm: {} more", counted(more)));
            }
        }
        let (jobs, trouble) = match self.see() {
            Ok(jobs) => (jobs, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        self.in_trouble = trouble.is_some();
        let states = jobs.iter().map(|(job, seen)| {
            let (ReportedState::Waiting(placement)
            | ReportedState::Running(placement)
            | ReportedState::Ended(placement, _)) = seen;
            (*job, format!("{}{placement:?}", matches!(seen, ReportedState::Ended(..))))
        });
        let states: Vec<(usize, String)> = states.collect();
        if states != self.last {
            (self.last, self.changed) = (states, Instant::now());
        }
        LauncherReport { jobs, trouble, remarks }
    }

    fn settled(&mut self, job: usize) {
        self.open.remove(&job);
        self.changed = Instant::now();
        // Another job may be accepted now.
        self.submit_at = self.submit_at.map(|at| at.min(Instant::now() + SUBMIT_SOON));
    }

    fn cancel(&mut self) -> Result<(), String> {
        self.cancelled = true;
        self.submit_at = None;
        let ids: Vec<String> =
            self.open.iter().map(|job| self.placement(*job).id).filter(|id| !id.is_empty()).collect();
        // A command line has room for a few thousand ids.
        for ids in ids.chunks(1000) {
            self.slurm.cancel(ids).map_err(|error| error.to_string())?;
        }
        self.changed = Instant::now();
        Ok(())
    }

    /// The jobs continue.
    fn leave(&mut self) -> Vec<(usize, ReportedState)> {
        Vec::new()
    }

    fn interval(&self) -> Duration {
        let pause = (self.changed.elapsed() / 8).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
        if self.in_trouble { pause.max(Duration::from_secs(2)) } else { pause }
    }
}
