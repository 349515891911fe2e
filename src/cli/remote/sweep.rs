//! Sweeps on a remote host.

use super::{args::RemoteArgs, follow::without_screen};
use crate::cli::{Failure, request::Shown};
use llmprof_base::process::eprint_line;
use llmprof_config::Override;
use llmprof_run::{
    remote::{Connection, Copies, Patience, RemoteRequest, RemoteRun, Start},
    sweep::{Machine, TaskThere},
};

/// For sweeps, whose jobs run one after another, each with its own connection.
impl RemoteArgs {
    /// Checks that the jobs of a sweep can connect without questions.
    pub(in crate::cli) fn can_run_sweeps(&self) -> Result<(), Failure> {
        let Some(host) = self.host()? else { return Ok(()) };
        match Connection::open(&host, Patience::Never) {
            Ok(connection) => {
                connection.warning.iter().for_each(|warning| eprint_line(format_args!("warning: {warning}")));
                Ok(())
            }
            Err(trouble) if trouble.asks() => Err(Failure::work(format_args!(
                "{trouble}. Each job of a sweep opens its own connection, for which ssh cannot ask questions: log in \
                 with a key (ssh-copy-id {}) or an ssh agent",
                host.name
            ))),
            Err(trouble) => Err(Failure::work(trouble)),
        }
    }

    /// The remote host as the process of a job connects to it.
    pub(in crate::cli) fn machine(&self) -> Result<Option<Machine>, Failure> {
        let Some(host) = self.host()? else { return Ok(None) };
        let mut arguments = vec!["--host".to_owned(), host.argument()];
        let fetch_limit = Some(self.fetch_limit.to_string());
        let dir = self.remote_dir.as_ref().map(|dir| dir.display().to_string());
        for (name, value) in [
            ("--remote-program", &self.remote_program),
            ("--remote-dir", &dir),
            ("--fetch-limit", &fetch_limit),
        ] {
            arguments.extend(value.iter().map(|value| format!("{name}={value}")));
        }
        arguments.extend(self.ssh_option.iter().map(|option| format!("--ssh-option={option}")));
        Ok(Some(Machine { name: host.short().to_owned(), arguments }))
    }
}

/// One job of a sweep on a remote host, recorded in its local directory.
pub(in crate::cli) async fn job(args: &RemoteArgs, task: TaskThere) -> Result<u8, Failure> {
    let host = args.host()?.ok_or_else(|| Failure::usage("--host is missing"))?;
    let work = RemoteRequest {
        overrides: Override::texts(&task.overrides),
        conf_dir: task.conf_dir,
        command: None,
        dir: args.remote_dir.clone(),
    };
    let connection = Connection::open(&host, Patience::Never).map_err(Failure::work)?;
    let copies = Copies::At(task.dir);
    let run = RemoteRun::new(host, connection, Start::New(work), copies, args.limit_bytes());
    let shown = Shown { headless: true, quiet: true, ..Shown::default() };
    without_screen(run, shown).await
}
