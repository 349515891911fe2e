//! The jobs of a sweep and their states.

use std::{path::PathBuf, time::Duration};

use crate::state::RunState;
use llmprof_analysis::metrics::MetricsSummary;
use llmprof_config::Override;
use llmprof_event::{Outcome, Stamp};

/// A sweep's directory and its jobs, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    pub dir: PathBuf,
    pub jobs: Vec<Job>,
}

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub overrides: Vec<Override>,
    /// Its directory, below the sweep's.
    pub subdir: String,
    pub state: JobState,
    /// Its result, in this process or before the sweep was resumed.
    pub result: Option<JobResult>,
    /// Its placement, if it is not in this process.
    pub placement: Option<Placement>,
    /// Its duration, if it ended in this process.
    pub took: Option<Duration>,
}

/// A job in another process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// The launcher's id of the job: `123_4`. Empty if it has none yet.
    pub id: String,
    /// The node or the GPU that it runs on.
    pub on: Option<String>,
    /// The reason why it waits.
    pub note: Option<String>,
}

/// The measurements of a running job.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveFigures {
    pub metrics: MetricsSummary,
    pub elapsed: Duration,
    pub left_s: Option<f64>,
}

impl LiveFigures {
    pub fn from_state(state: &RunState) -> LiveFigures {
        LiveFigures {
            metrics: state.summary(),
            elapsed: state.now.since(Stamp::default()),
            left_s: state.time_left_s(),
        }
    }
}

/// Why a recording has no end.
pub(super) const CUT_OFF: &str = "cut off: the recording has no end";

/// The state of a job in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    Waiting,
    Running,
    Finished,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobResult {
    pub outcome: Outcome,
    /// The reason of its end, or the losses of its recording.
    pub reason: Option<String>,
    /// Whether the recording is incomplete.
    pub lossy: bool,
    /// `None` if nothing was measured.
    pub metrics: Option<MetricsSummary>,
    /// The directory of the recording, if there is one.
    pub dir: Option<PathBuf>,
}

impl JobResult {
    /// Whether the recording has an end.
    pub fn is_final(&self) -> bool {
        !(self.outcome == Outcome::Interrupted && self.reason.as_deref() == Some(CUT_OFF))
    }

    /// A job that could not be started.
    pub fn failed(reason: String) -> JobResult {
        JobResult { outcome: Outcome::Failed, reason: Some(reason), lossy: false, metrics: None, dir: None }
    }
}

impl Job {
    pub fn new(overrides: Vec<Override>, subdir: String) -> Job {
        Job { overrides, subdir, state: JobState::Waiting, result: None, placement: None, took: None }
    }

    /// The override `index` as a key and its value.
    pub fn key_and_value(&self, index: usize) -> (&str, &str) {
        self.overrides.get(index).map_or(("", ""), Override::key_and_value)
    }

    /// Sets the result of an earlier process. A completed job is not repeated; any other keeps the result until it is.
    pub fn with_earlier(mut self, result: Option<JobResult>) -> Job {
        if result.as_ref().is_some_and(|result| result.outcome == Outcome::Completed) {
            self.state = JobState::Finished;
        }
        self.result = result;
        self
    }
}

impl Sweep {
    /// The first job that has not been run.
    pub fn next(&self) -> Option<usize> {
        self.jobs.iter().position(|job| job.state == JobState::Waiting)
    }

    /// The jobs that have not been run.
    pub fn waiting(&self) -> Vec<usize> {
        let waits = |job: &usize| self.jobs[*job].state == JobState::Waiting;
        (0..self.jobs.len()).filter(waits).collect()
    }

    /// The number of running jobs.
    pub fn count_running(&self) -> usize {
        self.jobs.iter().filter(|job| job.state == JobState::Running).count()
    }

    /// Whether some jobs are in other processes.
    pub fn has_placements(&self) -> bool {
        self.jobs.iter().any(|job| job.placement.is_some())
    }

    /// The job waits in another process.
    pub fn wait(&mut self, job: usize, placement: Placement) {
        let job = &mut self.jobs[job];
        (job.state, job.placement, job.result) = (JobState::Waiting, Some(placement), None);
    }

    /// The job runs in another process.
    pub fn run_at(&mut self, job: usize, placement: Placement) {
        self.begin(job);
        self.jobs[job].placement = Some(placement);
    }

    /// The number of jobs that are running or waiting.
    pub fn unfinished(&self) -> usize {
        self.jobs.iter().filter(|job| job.state != JobState::Finished).count()
    }

    pub fn running(&self) -> Option<usize> {
        self.jobs.iter().position(|job| job.state == JobState::Running)
    }

    /// The running job, else the next one, else the last.
    pub fn current(&self) -> usize {
        self.running().or_else(|| self.next()).unwrap_or_else(|| self.jobs.len().saturating_sub(1))
    }

    pub fn begin(&mut self, job: usize) {
        let job = &mut self.jobs[job];
        (job.state, job.result, job.took) = (JobState::Running, None, None);
    }

    pub fn end(&mut self, job: usize, result: JobResult) {
        (self.jobs[job].state, self.jobs[job].result) = (JobState::Finished, Some(result));
    }

    /// Seconds until the last job ends, if the waiting ones take as long as the completed ones. `running` has, for each
    /// running job, its elapsed time and its expected duration; as many jobs run concurrently until none waits.
    pub fn left_s(&self, running: &[(Duration, Option<f64>)]) -> Option<f64> {
        let running_s = running.iter().map(|(elapsed, left)| Some((elapsed.as_secs_f64(), (*left)?)));
        let running_s = running_s.collect::<Option<Vec<(f64, f64)>>>()?;
        let completed =
            |job: &&Job| job.result.as_ref().is_some_and(|result| result.outcome == Outcome::Completed);
        let ran =
            self.jobs.iter().filter(completed).filter_map(|job| job.took).map(|took| took.as_secs_f64());
        let all: Vec<f64> = ran.chain(running_s.iter().map(|(elapsed, left)| elapsed + left)).collect();
        let waiting = self.waiting().len();
        if waiting > 0 && all.is_empty() {
            return None;
        }
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let work_s: f64 = running_s.iter().map(|(_, left)| left).sum::<f64>() + waiting as f64 * mean;
        let longest_s = running_s.iter().map(|(_, left)| *left).fold(0.0, f64::max);
        Some((work_s / running_s.len().max(1) as f64).max(longest_s))
    }

    /// The number of jobs with this outcome.
    pub fn count(&self, outcome: Outcome) -> usize {
        let results = self.jobs.iter().filter_map(|job| job.result.as_ref());
        results.filter(|result| result.outcome == outcome).count()
    }

    /// Whether a job failed, or its recording is incomplete.
    pub fn has_failures(&self) -> bool {
        let bad = |result: &JobResult| result.outcome == Outcome::Failed || result.lossy;
        self.jobs.iter().filter_map(|job| job.result.as_ref()).any(bad)
    }

    /// Whether every job is completed.
    pub fn is_complete(&self) -> bool {
        self.count(Outcome::Completed) == self.jobs.len()
    }

    /// The indexes of the overrides that differ between jobs.
    pub fn swept(&self) -> Vec<usize> {
        let Some((first, others)) = self.jobs.split_first() else { return Vec::new() };
        let varies =
            |index: &usize| others.iter().any(|job| job.overrides.get(*index) != first.overrides.get(*index));
        (0..first.overrides.len()).filter(varies).collect()
    }

    /// The swept overrides of `job`: `model=a runtime.batch_size=4`.
    pub fn swept_text(&self, job: usize) -> String {
        self.swept_with(job, |key| key)
    }

    /// The same with the last part of each key: `model=a batch_size=4`.
    pub fn swept_short(&self, job: usize) -> String {
        self.swept_with(job, |key| key.rsplit('.').next().unwrap_or(key))
    }

    fn swept_with(&self, job: usize, name: impl Fn(&str) -> &str) -> String {
        let pair = |index: usize| {
            let (key, value) = self.jobs[job].key_and_value(index);
            format!("{}={value}", name(key))
        };
        self.swept().into_iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    /// `job 2/6`.
    pub fn label(&self, job: usize) -> String {
        format!("job {}/{}", job + 1, self.jobs.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sweep(jobs: usize) -> Sweep {
        let job = |n: usize| {
            let overrides = ["a=1".to_owned(), format!("+b.c={}", n % 2), format!("d={n}")];
            Job::new(overrides.map(|text| Override::parse(&text).unwrap()).into(), n.to_string())
        };
        Sweep { dir: "runs/x".into(), jobs: (0..jobs).map(job).collect() }
    }

    fn ended(outcome: Outcome) -> JobResult {
        JobResult { outcome, ..JobResult::failed("a reason".into()) }
    }

    #[test]
    fn only_swept_overrides_are_shown() {
        assert_eq!(sweep(3).swept_text(1), "b.c=1 d=1");
        assert_eq!(sweep(3).swept_short(1), "c=1 d=1");
        assert_eq!(sweep(1).swept_text(0), "");
        assert_eq!(sweep(3).label(1), "job 2/3");
    }

    #[test]
    fn an_earlier_result_counts_until_the_job_runs_again() {
        let mut sweep = sweep(2);
        sweep.jobs[0] = sweep.jobs[0].clone().with_earlier(Some(ended(Outcome::Failed)));
        assert!(sweep.has_failures());
        assert_eq!(sweep.next(), Some(0));
        sweep.begin(0);
        assert!(!sweep.has_failures());
        assert_eq!(sweep.current(), 0);
        sweep.end(0, ended(Outcome::Completed));
        assert_eq!((sweep.next(), sweep.current(), sweep.is_complete()), (Some(1), 1, false));
    }

    #[test]
    fn waiting_jobs_are_expected_to_take_as_long_as_those_that_ran() {
        let mut sweep = sweep(4);
        let seconds = Duration::from_secs;
        assert_eq!(sweep.left_s(&[]), None, "nothing ran");
        sweep.begin(0);
        assert_eq!(sweep.left_s(&[(seconds(5), None)]), None, "its end is not known");
        assert_eq!(sweep.left_s(&[(seconds(5), Some(5.0))]), Some(5.0 + 3.0 * 10.0));
        sweep.end(0, ended(Outcome::Completed));
        sweep.jobs[0].took = Some(seconds(20));
        assert_eq!(sweep.left_s(&[]), Some(3.0 * 20.0));
        sweep.begin(1);
        assert_eq!(sweep.left_s(&[(seconds(6), Some(4.0))]), Some(4.0 + 2.0 * 15.0));
        sweep.begin(2);
        // One waits and takes as long as the mean of 20, 10 and 10 s; two run at a time.
        let two = [(seconds(6), Some(4.0)), (seconds(0), Some(10.0))];
        assert_eq!(sweep.left_s(&two), Some((4.0 + 10.0 + (20.0 + 10.0 + 10.0) / 3.0) / 2.0));
        assert_eq!(
            sweep.left_s(&[(seconds(0), Some(90.0)), (seconds(0), Some(1.0))]),
            Some(90.0),
            "the longest"
        );
        (1..4).for_each(|job| sweep.end(job, ended(Outcome::Failed)));
        assert_eq!(sweep.left_s(&[]), Some(0.0));
    }

    proptest! {
        #[test]
        fn after_a_resume_each_job_is_completed_once(
            earlier in prop::collection::vec(prop::sample::select(vec![
                None, Some(Outcome::Completed), Some(Outcome::Failed), Some(Outcome::Interrupted),
            ]), 1..40)
        ) {
            let mut sweep = sweep(earlier.len());
            for (job, outcome) in sweep.jobs.iter_mut().zip(&earlier) {
                *job = job.clone().with_earlier(outcome.map(ended));
            }
            let mut done = Vec::new();
            while let Some(job) = sweep.next() {
                sweep.begin(job);
                sweep.end(job, ended(Outcome::Completed));
                done.push(job);
            }
            let wanted: Vec<usize> =
                (0..earlier.len()).filter(|job| earlier[*job] != Some(Outcome::Completed)).collect();
            prop_assert_eq!(done, wanted);
            prop_assert!(sweep.is_complete());
        }
    }
}
