//! A headless run in its own process: it starts like the first run of the program, unaffected by earlier runs.

use std::{
    env, fs,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use llmprof_base::{
    process::shutdown::{Cause, Shutdown},
    tools::process::Running,
};
use llmprof_config::Override;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum size of the messages; of longer ones the end is kept.
const MAX_MESSAGES_BYTES: u64 = 1 << 20;

/// The end of a run in its own process.
pub struct Ended {
    pub status: Option<ExitStatus>,
    /// Its output on stderr.
    pub messages: String,
    /// The signal that ended it early.
    pub cause: Option<Cause>,
}

/// Runs the workload of `overrides`, recorded in `dir`, until it ends or a signal ends it.
pub async fn run(overrides: &[Override], dir: &Path) -> io::Result<Ended> {
    let mut shutdown = Shutdown::listen()?;
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut messages = tempfile::tempfile()?;
    let mut command = Command::new(env::current_exe()?);
    let dir = Override::of_text("hydra.run.dir", &dir.display().to_string());
    command.args(["run", "--quiet", "--"]).args(overrides.iter().chain([&dir]).map(|given| &given.text));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages.try_clone()?);
    let mut running = Running::start(&mut command).map_err(io::Error::other)?;
    let cause = loop {
        if running.has_ended() {
            break None;
        }
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    };
    let status = running.end();
    let mut text = Vec::new();
    let length = messages.metadata()?.len();
    messages.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGES_BYTES)))?;
    messages.take(MAX_MESSAGES_BYTES).read_to_end(&mut text)?;
    Ok(Ended { status, messages: String::from_utf8_lossy(&text).into_owned(), cause })
}
