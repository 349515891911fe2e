//! Sweeps: several runs from one command line, in the TUI or without it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, with_model_name},
    ask::ask,
};
use crate::{
    base::shell::quoted,
    config::expand_sweep,
    event::Outcome,
    process::{eprint_line, eprint_lines, shutdown::Cause},
    run::sweep::{Consent, Runner, SweepError},
};

#[derive(Debug, Clone, Default, Args)]
pub(super) struct SweepArgs {
    /// Run every combination of the values listed in overrides (key=a,b), one after another
    #[arg(long, short, conflicts_with = "cfg")]
    pub(super) multirun: bool,
    /// Resume an interrupted sweep
    #[arg(long, value_name = "DIR", conflicts_with_all = ["multirun", "model", "conf_dir", "cfg", "overrides"], group = "asks")]
    pub(super) resume: Option<PathBuf>,
    /// With --resume: do not ask before a sweep that belongs to another user or starts nsys or ncu; with --install: do not ask
    #[arg(long, short, requires = "asks")]
    pub(super) yes: bool,
}

impl SweepArgs {
    pub(super) fn is_asked(&self) -> bool {
        self.multirun || self.resume.is_some()
    }

    /// The requested sweep, if any: every job validated, the directory created. `precondition` is checked before
    /// anything is written.
    pub(super) fn runner(
        &self,
        config: &ConfigArgs,
        precondition: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Option<Runner>, Failure> {
        if let Some(dir) = &self.resume {
            precondition()?;
            let tree_of = |conf_dir: Option<&Path>| {
                ConfigArgs { conf_dir: conf_dir.map(Path::to_owned), ..ConfigArgs::default() }.tree()
            };
            let runner = Runner::resume(dir, tree_of, |consent| self.confirm(consent))?;
            if runner.sweep.is_complete() {
                eprint_line("every job of this sweep has already completed");
            }
            return Ok(Some(runner));
        }
        if !self.multirun {
            return Ok(None);
        }
        config.reject_bare_words()?;
        let (tree, typed) = (config.tree()?, config.typed_overrides());
        let jobs = expand_sweep(&tree, &typed).map_err(Failure::usage)?;
        let jobs = jobs.into_iter().map(with_model_name).collect();
        precondition()?;
        Ok(Some(Runner::begin(tree, config.conf_dir.clone(), typed, jobs)?))
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

/// Prints how a sweep ended and how to resume it to stderr, and returns the exit code.
pub(super) fn report_end(runner: &Runner, cause: Option<&Cause>, command: &str) -> u8 {
    let sweep = &runner.sweep;
    if let Some(cause) = cause {
        eprint_line(format_args!("interrupted: {cause}"));
    }
    if !sweep.is_complete() {
        let (total, completed) = (sweep.jobs.len(), sweep.count(Outcome::Completed));
        let dir = quoted(&sweep.dir.display().to_string());
        eprint_line(format_args!(
            "{completed} of {total} jobs completed; to run the others: {command} --resume {dir}"
        ));
    }
    cause.map_or_else(|| runner.exit_code(), Cause::exit_code)
}

impl From<SweepError> for Failure {
    fn from(e: SweepError) -> Self {
        if e.is_usage() { Failure::usage(e) } else { Failure::work(e) }
    }
}
