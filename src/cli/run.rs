//! `run`: the workload without the TUI.

use std::{env, path::PathBuf};

use clap::Args;

use super::{
    Failure,
    args::ConfigArgs,
    launch::{launch_job, launch_jobs},
    remote::RemoteArgs,
    request::Shown,
    sweep::SweepArgs,
};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    pub(super) remote: RemoteArgs,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    pub(super) json: bool,
    /// Print no progress on stderr
    #[arg(long, short)]
    quiet: bool,
    /// Run this job of the sweep in DIR, for a launcher
    #[arg(long, value_name = "DIR", hide = true, requires = "job")]
    job_of: Option<PathBuf>,
    /// The number of the job, from 0
    #[arg(long, value_name = "N", hide = true, requires = "job_of")]
    job: Option<usize>,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    ends_with_parent: bool,
    /// Change to this directory first: tools start their programs elsewhere
    #[arg(long, value_name = "DIR", hide = true)]
    working_dir: Option<PathBuf>,
}

pub(super) async fn run(args: RunArgs) -> Result<u8, Failure> {
    if let Some(dir) = &args.working_dir {
        env::set_current_dir(dir).map_err(|e| Failure::usage(format_args!("{}: {e}", dir.display())))?;
    }
    if let (Some(dir), Some(number)) = (&args.job_of, args.job) {
        if args.ends_with_parent {
            end_with_parent()?;
        }
        return launch_job(dir, number, &args.remote).await;
    }
    let shown = Shown { headless: true, json: args.json, quiet: args.quiet, seconds: None };
    launch_jobs(&args.config, &args.sweep, &args.remote, shown).await
}

/// Requests SIGTERM at the end of the parent, and refuses to run if the parent has ended already.
fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|e| Failure::work(format_args!("the end of the parent cannot be watched: {e}")))?;
    match rustix::process::getppid() {
        Some(parent) if !parent.is_init() => Ok(()),
        _ => Err(Failure::work("the process that started this job has ended")),
    }
}
