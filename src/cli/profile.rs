//! Without a command: the workload in the TUI.

use super::{
    Failure,
    args::ConfigArgs,
    launch::launch_jobs,
    remote::{self, RemoteArgs, RemoteSessionArgs},
    request::Shown,
    sweep::SweepArgs,
};

pub(super) async fn run(
    config: &ConfigArgs,
    sweep: &SweepArgs,
    remote: &RemoteArgs,
    session: &RemoteSessionArgs,
) -> Result<u8, Failure> {
    match remote::session(remote, session, sweep.yes).await? {
        Some(code) => Ok(code),
        None => launch_jobs(config, sweep, remote, Shown::default()).await,
    }
}
