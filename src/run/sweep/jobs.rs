//! The jobs of a sweep and how far they are.

use std::path::PathBuf;

use crate::{analysis::metrics::MetricsSummary, event::Outcome};

/// A sweep's jobs in the order they are done, and where they are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    pub dir: PathBuf,
    pub jobs: Vec<Job>,
}

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub overrides: Vec<String>,
    /// Its directory, below the sweep's.
    pub subdir: String,
    pub turn: Turn,
    /// How it ended, now or before the sweep was taken up again.
    pub result: Option<JobResult>,
}

/// Where a job stands in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Waiting,
    Running,
    Over,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobResult {
    pub outcome: Outcome,
    /// Why it ended as it did, or what of its recording is missing.
    pub reason: Option<String>,
    /// Not all of it is on disk.
    pub lossy: bool,
    /// `None` where nothing was measured.
    pub metrics: Option<MetricsSummary>,
    /// Where it is recorded, if it is.
    pub dir: Option<PathBuf>,
}

impl JobResult {
    /// A job that could not even begin.
    pub fn failed(reason: String) -> JobResult {
        JobResult { outcome: Outcome::Failed, reason: Some(reason), lossy: false, metrics: None, dir: None }
    }
}

impl Job {
    pub fn new(overrides: Vec<String>, subdir: String) -> Job {
        Job { overrides, subdir, turn: Turn::Waiting, result: None }
    }

    /// The override at place `at`, as a key and its value.
    pub fn key_and_value(&self, at: usize) -> (&str, &str) {
        let text = self.overrides.get(at).map_or("", String::as_str);
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        (key.trim_start_matches('+'), value)
    }

    /// The job was done before: it need not be done again where it was completed; otherwise it is, and until then
    /// counts as what it was.
    pub fn with_earlier(mut self, result: Option<JobResult>) -> Job {
        if result.as_ref().is_some_and(|result| result.outcome == Outcome::Completed) {
            self.turn = Turn::Over;
        }
        self.result = result;
        self
    }
}

impl Sweep {
    /// The first job that still has to be done.
    pub fn next(&self) -> Option<usize> {
        self.jobs.iter().position(|job| job.turn == Turn::Waiting)
    }

    pub fn running(&self) -> Option<usize> {
        self.jobs.iter().position(|job| job.turn == Turn::Running)
    }

    /// The job to speak of: the one at work, or else the next one, or else the last.
    pub fn current(&self) -> usize {
        self.running().or_else(|| self.next()).unwrap_or_else(|| self.jobs.len().saturating_sub(1))
    }

    pub fn begin(&mut self, job: usize) {
        (self.jobs[job].turn, self.jobs[job].result) = (Turn::Running, None);
    }

    pub fn end(&mut self, job: usize, result: JobResult) {
        (self.jobs[job].turn, self.jobs[job].result) = (Turn::Over, Some(result));
    }

    /// How many jobs ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        let results = self.jobs.iter().filter_map(|job| job.result.as_ref());
        results.filter(|result| result.outcome == outcome).count()
    }

    /// Some job failed, or is not wholly on disk.
    pub fn has_failures(&self) -> bool {
        let bad = |result: &JobResult| result.outcome == Outcome::Failed || result.lossy;
        self.jobs.iter().filter_map(|job| job.result.as_ref()).any(bad)
    }

    /// Every job is completed.
    pub fn is_complete(&self) -> bool {
        self.count(Outcome::Completed) == self.jobs.len()
    }

    /// Which of the overrides are swept: those with one value for all jobs are not.
    pub fn swept(&self) -> Vec<usize> {
        let Some((first, others)) = self.jobs.split_first() else { return Vec::new() };
        let varies = |at: &usize| others.iter().any(|job| job.overrides.get(*at) != first.overrides.get(*at));
        (0..first.overrides.len()).filter(varies).collect()
    }

    /// What is particular about `job`, in one line: `model=a runtime.batch_size=4`.
    pub fn swept_text(&self, job: usize) -> String {
        self.swept_with(job, |key| key)
    }

    /// The same with the last word of each key: `model=a batch_size=4`.
    pub fn swept_short(&self, job: usize) -> String {
        self.swept_with(job, |key| key.rsplit('.').next().unwrap_or(key))
    }

    fn swept_with(&self, job: usize, name: impl Fn(&str) -> &str) -> String {
        let pair = |at: usize| {
            let (key, value) = self.jobs[job].key_and_value(at);
            format!("{}={value}", name(key))
        };
        self.swept().into_iter().map(pair).collect::<Vec<_>>().join(" ")
    }

    /// `job 2/6`.
    pub fn place(&self, job: usize) -> String {
        format!("job {}/{}", job + 1, self.jobs.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sweep(jobs: usize) -> Sweep {
        let job = |n: usize| {
            Job::new(vec!["a=1".into(), format!("+b.c={}", n % 2), format!("d={n}")], n.to_string())
        };
        Sweep { dir: "runs/x".into(), jobs: (0..jobs).map(job).collect() }
    }

    fn ended(outcome: Outcome) -> JobResult {
        JobResult { outcome, ..JobResult::failed("a reason".into()) }
    }

    #[test]
    fn only_what_varies_is_told() {
        assert_eq!(sweep(3).swept_text(1), "b.c=1 d=1");
        assert_eq!(sweep(3).swept_short(1), "c=1 d=1");
        assert_eq!(sweep(1).swept_text(0), "");
        assert_eq!(sweep(3).place(1), "job 2/3");
    }

    #[test]
    fn a_result_from_before_counts_until_the_job_is_done_again() {
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

    proptest! {
        #[test]
        fn taken_up_again_each_job_is_completed_once(
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
