//! The remote host as the arguments name it, and the connection to it.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;

use crate::cli::{
    Failure,
    args::{ConfigArgs, ConfigRequest, runs_root},
};
use llmprof_base::process::eprint_line;
use llmprof_config::Override;
use llmprof_run::remote::{Connection, Copies, Host, RemoteRequest, RemoteRun, Start};

/// Options of every command that can run on a remote host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Remote host")]
pub(in crate::cli) struct RemoteArgs {
    /// Run on HOST over ssh and show the run locally; HOST may be an alias from ssh's configuration
    #[arg(long, value_name = "[USER@]HOST[:PORT]")]
    pub(in crate::cli) host: Option<String>,
    /// Path of llmprof-tui on the remote host (default: llmprof-tui in PATH, then ~/.local/bin/llmprof-tui)
    #[arg(long, value_name = "PATH", requires = "host")]
    pub(super) remote_program: Option<String>,
    /// Working directory on the remote host, with conf/, models/ and runs/ (default: the home directory)
    #[arg(long, value_name = "DIR", requires = "host")]
    pub(super) remote_dir: Option<PathBuf>,
    /// Pass an option to ssh as with its -o; repeatable. LLMPROF_SSH replaces the ssh command itself
    #[arg(long, value_name = "NAME=VALUE", requires = "host")]
    pub(super) ssh_option: Vec<String>,
    /// Copy at most MB of a run to the local machine; larger files stay on the remote host and are listed
    #[arg(long, value_name = "MB", requires = "host", default_value_t = 4096)]
    pub(super) fetch_limit: u64,
}

impl RemoteArgs {
    pub(super) fn host(&self) -> Result<Option<Host>, Failure> {
        let Some(text) = &self.host else { return Ok(None) };
        let host: Host = text.parse().map_err(Failure::usage)?;
        Ok(Some(Host { options: self.ssh_option.clone(), program: self.remote_program.clone(), ..host }))
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.fetch_limit.saturating_mul(1_000_000)
    }

    pub(super) fn work(
        &self,
        request: &ConfigRequest,
        command: Option<&[OsString]>,
    ) -> Result<RemoteRequest, Failure> {
        let text = |word: &OsString| word.to_str().map(str::to_owned);
        let command = command.map(|words| words.iter().map(text).collect::<Option<Vec<String>>>());
        let command =
            command.map(|words| words.ok_or_else(|| Failure::usage("an argument is not UTF-8 text")));
        Ok(RemoteRequest {
            overrides: Override::texts(&request.overrides),
            conf_dir: request.conf_dir.clone(),
            command: command.transpose()?,
            dir: self.remote_dir.clone(),
        })
    }
}

pub(super) fn connect(host: &Host) -> Result<Connection, Failure> {
    Connection::open_asking(host).map_err(Failure::work)
}

pub(super) fn begin(args: &RemoteArgs, host: Host, start: Start) -> Result<RemoteRun, Failure> {
    let root = runs_root(&ConfigArgs::default().compose()?);
    let connection = connect(&host)?;
    if let Some(warning) = &connection.warning {
        eprint_line(format_args!("warning: {warning}"));
    }
    Ok(RemoteRun::new(host, connection, start, Copies::Below(root), args.limit_bytes()))
}
