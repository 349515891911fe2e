//! Sweeps: several runs from one command line, in the TUI or without it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest, with_model_name},
    ask::ask,
    conf_consent::MayAsk,
};
use llmprof_base::{
    process::{eprint_line, eprint_lines},
    shell::quoted,
};
use llmprof_config::{Composed, ConfTree, Launcher, Override, compose, expand_sweep};
use llmprof_run::sweep::{Consent, Launch, Machine, Runner, SweepError, Task, TaskThere};

#[derive(Debug, Clone, Default, Args)]
pub(super) struct SweepArgs {
    /// Run every combination of the values listed in overrides (key=a,b), one after another or with hydra/launcher
    #[arg(long, short, conflicts_with = "cfg")]
    pub(super) multirun: bool,
    /// Resume an interrupted sweep and find its jobs in Slurm again; accepts overrides of hydra.launcher
    #[arg(long, value_name = "DIR", conflicts_with_all = ["multirun", "model", "conf_dir", "cfg"], group = "asks")]
    pub(super) resume: Option<PathBuf>,
    /// With --resume: cancel the sweep's jobs in Slurm
    #[arg(long, requires = "resume")]
    cancel: bool,
    /// Do not ask: with --resume, before a sweep that belongs to another user or starts programs; with --install, before copying
    #[arg(long, short, requires = "asks")]
    pub(super) yes: bool,
}

impl SweepArgs {
    /// The requested sweep, if any, with every job validated and the directory created. `precondition` is checked
    /// before anything is written. `host` is the remote host of the sweep, if it has one.
    pub(super) fn runner(
        &self,
        config: &ConfigArgs,
        host: Option<&str>,
        precondition: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Option<Runner>, Failure> {
        if let Some(dir) = &self.resume {
            precondition()?;
            launcher_overrides(&config.overrides)?;
            let runner = Runner::resume(dir, tree_of, |consent| self.confirm(consent))?;
            same_host(runner.host(), host)?;
            if runner.sweep.is_complete() {
                eprint_line("every job of this sweep has already completed");
            }
            return Ok(Some(runner));
        }
        if !self.multirun {
            return Ok(None);
        }
        let request = config.request()?;
        let tree = request.tree()?;
        let jobs = expand_sweep(&tree, &request.overrides).map_err(Failure::usage)?;
        let jobs: Vec<Vec<Override>> = jobs.into_iter().map(with_model_name).collect();
        precondition()?;
        // A job that does not compose has its own error.
        let composed: Vec<Composed> = jobs.iter().filter_map(|job| compose(&tree, job).ok()).collect();
        request.confirm(&composed.iter().collect::<Vec<_>>(), MayAsk::Yes)?;
        let ConfigRequest { conf_dir, overrides } = request;
        Ok(Some(Runner::begin(tree, conf_dir, host.map(str::to_owned), overrides, jobs)?))
    }

    /// The sweep with its launcher or remote host; unchanged if its jobs run in this process.
    pub(super) fn launched(
        &self,
        runner: Runner,
        config: &ConfigArgs,
        machine: Option<Machine>,
        quiet: bool,
    ) -> Result<Started, Failure> {
        let overrides =
            if self.resume.is_some() { launcher_overrides(&config.overrides)? } else { Vec::new() };
        let launcher = runner.launcher(&overrides)?;
        if let Some(machine) = machine {
            if runner.sweep.waiting().is_empty() {
                return Ok(Started::Here(Box::new(runner)));
            }
            if launcher != Launcher::Basic || self.cancel {
                return Err(SweepError::OneByOne { host: machine.name }.into());
            }
            let launch = Launch::on_machine(runner, machine).map_err(Failure::work)?;
            return Ok(Started::Elsewhere(Box::new(launch)));
        }
        let elsewhere = launcher != Launcher::Basic || self.cancel;
        // A complete sweep has nothing to launch.
        if !elsewhere || runner.sweep.waiting().is_empty() {
            return Ok(Started::Here(Box::new(runner)));
        }
        let dir = runner.sweep.dir.clone();
        if matches!(launcher, Launcher::Slurm(_)) && !quiet {
            eprint_line(format_args!("querying Slurm; the sweep is in {}", dir.display()));
        }
        Launch::start(runner, launcher, self.cancel)
            .map(|launch| Started::Elsewhere(Box::new(launch)))
            .map_err(|error| {
                let again = format!(
                    "to submit the jobs later: llmprof-tui run --resume {}",
                    quoted(&dir.display().to_string())
                );
                let message =
                    if error.is_remediable() { format!("{error}; {again}") } else { error.to_string() };
                if error.is_usage() { Failure::usage(message) } else { Failure::work(message) }
            })
    }

    fn confirm(&self, consent: &Consent) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        eprint_lines(consent);
        match ask("Resume it?").map_err(Failure::usage)? {
            true => Ok(()),
            false => Err(Failure::work("not resumed")),
        }
    }
}

/// The overrides with which a sweep may be resumed.
fn launcher_overrides(words: &[String]) -> Result<Vec<Override>, Failure> {
    let parsed = |word: &String| {
        let given = Override::parse(word).ok();
        let is_launcher =
            |given: &Override| given.sets("hydra/launcher") || given.sets_within("hydra.launcher");
        given.filter(is_launcher).ok_or_else(|| {
            Failure::usage(format_args!(
                "--resume does not accept {word}: only hydra/launcher and hydra.launcher can be changed in a resumed \
                 sweep"
            ))
        })
    };
    words.iter().map(parsed).collect()
}

/// A sweep whose jobs run in this process, or in others.
pub(super) enum Started {
    Here(Box<Runner>),
    Elsewhere(Box<Launch>),
}

/// A sweep is resumed on the machine on which it was started, because its jobs are compared.
fn same_host(started: Option<&str>, given: Option<&str>) -> Result<(), Failure> {
    match (started, given) {
        (started, given) if started == given => Ok(()),
        (Some(host), _) => {
            Err(Failure::usage(format_args!("the jobs of this sweep run on {host}: pass --host {host}")))
        }
        (None, _) => {
            Err(Failure::usage("the jobs of this sweep run on this machine: resume it without --host"))
        }
    }
}

fn tree_of(conf_dir: Option<&Path>) -> Result<ConfTree, Failure> {
    ConfigRequest { conf_dir: conf_dir.map(Path::to_owned), ..ConfigRequest::default() }.tree()
}

/// The job for which a launcher has started this process.
pub(super) fn task(dir: &Path, number: usize) -> Result<Option<Task>, Failure> {
    Task::open(dir, number, tree_of)
}

/// The same for a job that a remote host runs.
pub(super) fn task_there(dir: &Path, number: usize) -> Result<Option<TaskThere>, Failure> {
    TaskThere::open(dir, number, tree_of)
}

impl From<SweepError> for Failure {
    fn from(e: SweepError) -> Self {
        if e.is_usage() { Failure::usage(e) } else { Failure::work(e) }
    }
}
