//! Jobs of a sweep in other processes, on the screen.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::App;
use llmprof_record::{
    rundir::RunDir,
    sweep::{JobState, Sweep},
};
use llmprof_run::sweep::Launch;
use llmprof_screen::{
    ui::{JobsCommand, Overlay, Pane},
    view::{self, Progress, SweepView},
};

/// The jobs, and the messages about them.
pub(super) struct Elsewhere {
    launch: Launch,
    started: Instant,
    /// The second that was last shown.
    shown_s: u64,
    /// The duration, once all jobs have ended.
    took: Option<Duration>,
    progress: Progress,
}

impl Elsewhere {
    pub(super) fn new(launch: Launch) -> Elsewhere {
        Elsewhere { launch, started: Instant::now(), shown_s: 0, took: None, progress: Progress::default() }
    }

    pub(super) fn view(&self) -> SweepView<'_> {
        let elapsed = self.took.unwrap_or_else(|| self.started.elapsed());
        let launch = &self.launch;
        let elsewhere =
            view::Elsewhere { trouble: launch.trouble.as_deref(), cancelled: launch.cancelled, elapsed };
        SweepView {
            sweep: &launch.runner.sweep,
            cooling: None,
            elsewhere: Some(elsewhere),
            progress: Some(&self.progress),
        }
    }

    /// Whether jobs have not ended and would end with the screen. Jobs of Slurm continue without it.
    pub(super) fn ends_with_screen(&self) -> bool {
        self.launch.runner.sweep.unfinished() > 0 && !self.launch.goes_on
    }

    /// Called when the screen closes.
    pub(super) fn into_launch(mut self) -> Launch {
        self.launch.leave();
        self.launch
    }
}

/// Waits for updates of the jobs; forever if there are none.
pub(super) async fn pump(jobs: &mut Option<Elsewhere>) {
    match jobs {
        Some(jobs) if !jobs.launch.is_over() => {
            jobs.launch.pump().await;
        }
        _ => std::future::pending().await,
    }
}

impl App {
    /// Shows updates. Returns whether the screen changes by itself.
    pub(super) fn follow_jobs(&mut self) -> bool {
        let Some(jobs) = &mut self.jobs else { return false };
        let remarks = jobs.launch.runner.take_remarks();
        if !remarks.is_empty() {
            (self.ui.message, self.dirty) = (Some(remarks.join("; ")), true);
        }
        if jobs.launch.runner.sweep.unfinished() == 0 && jobs.took.is_none() {
            jobs.took = Some(jobs.started.elapsed());
            self.ui.message = Some("the sweep has finished; Enter opens a job, q quits".into());
            self.dirty = true;
        }
        let second = jobs.started.elapsed().as_secs();
        if jobs.took.is_none() && second != jobs.shown_s {
            (jobs.shown_s, self.dirty) = (second, true);
        }
        jobs.progress.elapsed = jobs.took.unwrap_or_else(|| jobs.started.elapsed());
        jobs.progress.jobs.clone_from(&jobs.launch.live);
        jobs.took.is_none()
    }

    pub(super) fn command_jobs(&mut self, command: JobsCommand) {
        match (command, &mut self.jobs) {
            (JobsCommand::Open, _) => self.open_job(),
            (JobsCommand::AskCancel, Some(jobs)) if jobs.launch.runner.sweep.unfinished() == 0 => {
                self.ui.message = Some("every job has ended".into());
            }
            (JobsCommand::AskCancel, Some(_)) => self.ui.overlay = Overlay::ConfirmCancel,
            (JobsCommand::Cancel, Some(jobs)) => {
                jobs.launch.cancel();
                self.ui.message = Some("the jobs are being cancelled".into());
            }
            (_, None) => {}
        }
    }

    /// The jobs of a sweep, in this process or in others.
    fn sweep(&self) -> Option<&Sweep> {
        let here = || self.live.as_ref()?.sweep.as_ref();
        self.jobs.as_ref().map(|jobs| &jobs.launch.runner).or_else(here).map(|runner| &runner.sweep)
    }

    pub(super) fn has_sweep(&self) -> bool {
        self.sweep().is_some()
    }

    /// Shows the recording of the selected job.
    fn open_job(&mut self) {
        let selected = self.with_view(|view| view.selected_job());
        let Some(job) = self.sweep().and_then(|sweep| sweep.jobs.get(selected)) else { return };
        let recorded = job.result.as_ref().and_then(|result| result.dir.clone());
        let dir = recorded.or_else(|| self.sweep().map(|sweep| sweep.job_dir(selected)));
        let (Some(dir), state) = (dir.map(|dir| RunDir::open(&dir)), job.state) else { return };
        self.ui.job = Some(selected);
        self.ui.message = match state {
            JobState::Running if self.jobs.is_none() => Some("this job is running: press 1 to see it".into()),
            _ if dir.events().exists() => {
                self.open_run(dir);
                return;
            }
            JobState::Finished => Some("this job has no recording".into()),
            JobState::Waiting | JobState::Running => Some("this job has recorded nothing yet".into()),
        };
    }

    /// The directory of the sweep whose jobs run in other processes.
    pub(super) fn sweep_dir(&self) -> Option<&Path> {
        self.jobs.as_ref().map(|jobs| jobs.launch.runner.sweep.dir.as_path())
    }

    /// Returns from the recording of a job to the table of jobs.
    pub(super) fn show_jobs(&mut self) {
        if self.has_sweep() {
            self.ui.pane = Pane::Compare;
        }
    }
}
