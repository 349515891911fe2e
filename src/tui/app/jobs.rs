//! Jobs of a sweep in other processes, on the screen.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use super::App;
use crate::{
    run::sweep::Launch,
    rundir::RunDir,
    tui::{
        ui::{JobsCommand, Overlay, Pane},
        view::{self, SweepView},
    },
};

/// The jobs, and what was said about them.
pub(super) struct Elsewhere {
    launch: Launch,
    started: Instant,
    /// The second that was last shown.
    shown_s: u64,
    /// How long it took, once all jobs have ended.
    took: Option<Duration>,
}

impl Elsewhere {
    pub(super) fn new(launch: Launch) -> Elsewhere {
        Elsewhere { launch, started: Instant::now(), shown_s: 0, took: None }
    }

    pub(super) fn view(&self) -> SweepView<'_> {
        let elapsed = self.took.unwrap_or_else(|| self.started.elapsed());
        let launch = &self.launch;
        let elsewhere =
            view::Elsewhere { trouble: launch.trouble.as_deref(), cancelled: launch.cancelled, elapsed };
        SweepView { sweep: &launch.runner.sweep, cooling: None, elsewhere: Some(elsewhere) }
    }

    /// The screen is left.
    pub(super) fn left(mut self) -> Launch {
        self.launch.leave();
        self.launch
    }
}

/// Waits for news of the jobs; forever where there are none.
pub(super) async fn pump(jobs: &mut Option<Elsewhere>) {
    match jobs {
        Some(jobs) if !jobs.launch.is_over() => {
            jobs.launch.pump().await;
        }
        _ => std::future::pending().await,
    }
}

impl App {
    /// Shows what is new. Returns whether the screen changes by itself.
    pub(super) fn follow_jobs(&mut self) -> bool {
        let Some(jobs) = &mut self.jobs else { return false };
        let remarks = jobs.launch.runner.take_remarks();
        if !remarks.is_empty() {
            (self.ui.message, self.dirty) = (Some(remarks.join("; ")), true);
        }
        if jobs.launch.runner.sweep.left() == 0 && jobs.took.is_none() {
            jobs.took = Some(jobs.started.elapsed());
            self.ui.message = Some("the sweep has finished; Enter opens a job, q quits".into());
            self.dirty = true;
        }
        let second = jobs.started.elapsed().as_secs();
        if jobs.took.is_none() && second != jobs.shown_s {
            (jobs.shown_s, self.dirty) = (second, true);
        }
        jobs.took.is_none()
    }

    pub(super) fn command_jobs(&mut self, command: JobsCommand) {
        let selected = self.with_view(|view| view.selected_job());
        let Some(jobs) = &mut self.jobs else { return };
        let sweep = &jobs.launch.runner.sweep;
        match command {
            JobsCommand::AskCancel if sweep.left() == 0 => {
                self.ui.message = Some("every job has ended".into());
            }
            JobsCommand::AskCancel => self.ui.overlay = Overlay::ConfirmCancel,
            JobsCommand::Cancel => {
                jobs.launch.cancel();
                self.ui.message = Some("the jobs are being cancelled".into());
            }
            JobsCommand::Open => {
                let dir = RunDir::open(&sweep.job_dir(selected));
                self.ui.job = Some(selected);
                match dir.events().exists() {
                    true => self.open_run(dir),
                    false => self.ui.message = Some("this job has recorded nothing yet".into()),
                }
            }
        }
    }

    /// Of the jobs in other processes.
    pub(super) fn sweep_dir(&self) -> Option<&Path> {
        self.jobs.as_ref().map(|jobs| jobs.launch.runner.sweep.dir.as_path())
    }

    /// Returns from the recording of a job to the list of jobs.
    pub(super) fn show_jobs(&mut self) {
        if self.jobs.is_some() {
            self.ui.pane = Pane::Compare;
        }
    }
}
