//! `--host`: runs on a remote host over ssh.

mod args;
mod follow;
mod sweep;

use std::{ffi::OsString, io, path::Path};

use clap::{Args, CommandFactory};

pub(super) use self::{args::RemoteArgs, sweep::job};
use self::{
    args::{begin, connect},
    follow::{follow, print_there, without_screen},
};
use super::{
    Cli, Failure,
    args::{ConfigArgs, ConfigRequest},
    ask::ask,
    print,
    request::{Program, RunRequest, Shown},
    require_terminal,
};
use llmprof_base::{
    foreign::line,
    process::{eprint_line, shutdown::Shutdown},
    table::{Column, Table},
    units::{bytes, rough_seconds},
};
use llmprof_event::Outcome;
use llmprof_run::{
    plan::Plan,
    progress_line::ProgressLine,
    remote::{
        Frame, Host, Incoming, Listed, Machine, Order, Refusal, RemoteRequest, Request, ServedDir, Start,
        install, remote_machine, serve, work,
    },
};
use llmprof_sources::attach::OutputTo;

/// Options for runs that were started before, and for the remote program.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Remote host")]
pub(super) struct RemoteSessionArgs {
    /// Reconnect to a run in progress on the remote host, by NAME; "list" lists them (default: the only run)
    #[arg(long, value_name = "RUN", requires = "host", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["overrides", "model", "multirun", "resume"])]
    reconnect: Option<String>,
    /// End a run in progress on the remote host and copy its recording
    #[arg(long, value_name = "RUN", requires = "host", conflicts_with_all = ["reconnect", "overrides", "model", "multirun", "resume"])]
    end: Option<String>,
    /// Copy this program to ~/.local/bin on the remote host first; asks unless --yes is given
    #[arg(long, requires = "host", group = "asks")]
    install: bool,
}

/// Options that may precede the command.
const WITH_VALUE: [&str; 5] = ["--host", "--remote-program", "--remote-dir", "--ssh-option", "--fetch-limit"];

/// The number of words that a remote option takes at the beginning of `words`; 0 if there is none.
fn option_length(words: &[OsString]) -> usize {
    let Some(word) = words.first().and_then(|word| word.to_str()) else { return 0 };
    let is = |name: &str| word == name;
    let has_value = |name: &str| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
    match WITH_VALUE.iter().any(|name| is(name)) {
        true => words.len().min(2),
        false => usize::from(WITH_VALUE.iter().any(|name| has_value(name))),
    }
}

/// Turns `--host box exec …` into `exec --host box …`: remote options may precede the command.
pub(super) fn with_command_first(words: Vec<OsString>, is_command: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut at = 1.min(words.len());
    while at < words.len() && option_length(&words[at..]) > 0 {
        at += option_length(&words[at..]);
    }
    match words.get(at).and_then(|word| word.to_str()) {
        Some(word) if at > 1 && is_command(word) => {
            let mut sorted = vec![words[0].clone(), words[at].clone()];
            sorted.extend_from_slice(&words[1..at]);
            sorted.extend_from_slice(&words[at + 1..]);
            sorted
        }
        _ => words,
    }
}

/// The arguments without the remote options: those of the remote program.
fn remote_args(words: &[OsString]) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    let mut at = 1;
    while at < words.len() {
        match option_length(&words[at..]) {
            0 => {
                let word = words[at].to_str();
                found.push(word.ok_or_else(|| Failure::usage("an argument is not UTF-8 text"))?.to_owned());
                at += 1;
            }
            n => at += n,
        }
    }
    Ok(found)
}

/// Runs what a command asks for on the remote host, if `--host` is given.
pub(super) async fn run(args: &RemoteArgs, request: &RunRequest) -> Result<Option<u8>, Failure> {
    let Some(host) = args.host()? else { return Ok(None) };
    let work = args.work(&request.config, request.program.as_ref().and_then(Program::command))?;
    if !request.shown.headless {
        require_terminal("llmprof-tui run --host …")?;
    }
    let mut screen = ConfigRequest { conf_dir: None, ..request.config.clone() };
    screen.overrides.retain(|given| given.sets_within("output.tui"));
    follow(args, host, Start::New(work), &screen, request.shown).await.map(Some)
}

/// Options without a command: install, list, reconnect, end.
pub(super) async fn session(
    args: &RemoteArgs,
    session: &RemoteSessionArgs,
    yes: bool,
) -> Result<Option<u8>, Failure> {
    let Some(host) = args.host()? else { return Ok(None) };
    if session.install {
        copy_program(&host, yes)?;
    }
    let (id, cancel) = match (&session.reconnect, &session.end) {
        (Some(id), _) if id == "list" => return list(&host).await.map(Some),
        (Some(id), _) => (id, false),
        (None, Some(id)) => (id, true),
        (None, None) => return Ok(session.install.then_some(0)),
    };
    let start = Start::Again(id.clone());
    if !cancel && llmprof_app::terminal::is_there() {
        let screen = ConfigRequest::default();
        return follow(args, host, start, &screen, Shown::default()).await.map(Some);
    }
    let shown = Shown { headless: true, ..Shown::default() };
    let mut run = begin(args, host, start)?;
    if cancel {
        run.order(Order::End {
            outcome: Outcome::Interrupted,
            cause: Some("cancelled by the user".to_owned()),
        });
    }
    without_screen(run, shown).await.map(Some)
}

async fn list(host: &Host) -> Result<u8, Failure> {
    let mut connection = connect(host)?;
    connection.send(Request::List);
    let runs = match connection.frames.recv().await {
        Some(Incoming::Frame(Frame::Runs(runs), _)) => runs,
        Some(Incoming::Frame(Frame::Refused { reason, .. }, _)) => {
            return Err(Failure::work(line(&reason, 300)));
        }
        _ => return Err(Failure::work(format_args!("{} did not list its runs", host.short()))),
    };
    if runs.is_empty() {
        eprint_line(format_args!("no run was started on {} over ssh", host.short()));
        return Ok(0);
    }
    let mut table = Table::new(["run", "state", "started", "directory", "what"].map(Column::text));
    runs.iter().for_each(|run| table.push(row(run)));
    print(&table.text())?;
    Ok(0)
}

fn row(run: &Listed) -> [String; 5] {
    let state = match (run.alive, run.outcome) {
        (true, None) => "in progress".to_owned(),
        (_, Some(outcome)) => outcome.to_string(),
        (false, None) => "killed".to_owned(),
    };
    let what = match &run.command {
        Some(command) => command.join(" "),
        None => run.overrides.join(" "),
    };
    let dir = run.dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
    [
        line(&run.id, 12),
        state,
        format!("{} ago", rough_seconds(run.age_s as f64)),
        line(&dir, 120),
        line(&what, 80),
    ]
}

/// Copies this program to the remote host, after a question.
fn copy_program(host: &Host, yes: bool) -> Result<(), Failure> {
    let (here, there) = (Machine::here(), remote_machine(host).map_err(Failure::work)?);
    if here != there {
        return Err(Failure::work(format_args!(
            "{} is {}, and this program is for {}: build or download llmprof-tui for it, and name it with --remote-program",
            host.short(),
            there.0,
            here.0,
        )));
    }
    let version = env!("CARGO_PKG_VERSION");
    if !yes {
        let question = format!("Copy llmprof-tui {version} to ~/.local/bin on {}?", host.short());
        if !ask(&question).map_err(Failure::usage)? {
            return Err(Failure::work("not copied"));
        }
    }
    let mut line = ProgressLine::new(false, "");
    let installed = install(host, |done, total| {
        line.show_share(done as f64 / total.max(1) as f64);
        line.show(format!("copying {} of {} to {}", bytes(done), bytes(total), host.short()), "", None);
    });
    line.clear();
    let path = installed.map_err(Failure::work)?;
    eprint_line(format_args!("llmprof-tui {version} is on {} as {path}", host.short()));
    Ok(())
}

/// Runs a command whose output is its result, e.g. `doctor`, on a remote host.
pub(super) async fn command(args: &RemoteArgs, words: &[OsString]) -> Result<Option<u8>, Failure> {
    let Some(host) = args.host()? else { return Ok(None) };
    let mut connection = connect(&host)?;
    if let Some(warning) = &connection.warning {
        eprint_line(format_args!("warning: {warning}"));
    }
    connection.send(Request::Command { args: remote_args(words)?, dir: args.remote_dir.clone() });
    let mut shutdown = Shutdown::listen()?;
    let mut partial = [Vec::new(), Vec::new()];
    loop {
        let incoming = tokio::select! {
            cause = shutdown.requested() => return Err(Failure::Interrupted(cause)),
            incoming = connection.frames.recv() => incoming,
        };
        match incoming {
            Some(Incoming::Frame(Frame::Output { stderr, .. }, payload)) => {
                let rest = &mut partial[usize::from(stderr)];
                rest.extend_from_slice(&payload);
                if let Some(end) = rest.iter().rposition(|b| *b == b'\n') {
                    let whole: Vec<u8> = rest.drain(..=end).collect();
                    print_there(stderr, &whole[..end])?;
                }
            }
            Some(Incoming::Frame(Frame::Exit { code }, _)) => {
                for (stderr, rest) in [false, true].into_iter().zip(&partial) {
                    if !rest.is_empty() {
                        print_there(stderr, rest)?;
                    }
                }
                return Ok(Some(code));
            }
            Some(Incoming::Frame(Frame::Refused { reason, .. }, _)) => {
                return Err(Failure::work(line(&reason, 300)));
            }
            Some(Incoming::Ended(words) | Incoming::Wrong(words)) if !words.is_empty() => {
                return Err(Failure::work(format_args!(
                    "the connection to {} broke: {}",
                    host.short(),
                    line(&words, 300)
                )));
            }
            _ => return Err(Failure::work(format_args!("the connection to {} broke", host.short()))),
        }
    }
}

/// Serves one connection on the remote host.
pub(super) fn serve_here() -> Result<u8, Failure> {
    match serve() {
        // The local end has disconnected.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        result => result.map(|()| 0).map_err(Failure::from),
    }
}

/// The process of a run on this machine that was started over ssh.
pub(super) async fn work_here(dir: &Path) -> Result<u8, Failure> {
    work(&ServedDir::open(dir), plan).await?;
    Ok(0)
}

fn plan(work: &RemoteRequest) -> Result<Plan, Refusal> {
    let started =
        |command: &Vec<String>| Program::started(command.iter().map(OsString::from).collect(), OutputTo::Log);
    let program = work.command.as_ref().map(started);
    let config =
        ConfigArgs { conf_dir: work.conf_dir.clone(), ..ConfigArgs::with_overrides(&work.overrides) };
    let planned = config.request().and_then(|config| {
        let plan = RunRequest { config, program, shown: Shown::default(), remark: None }.plan()?.plan;
        plan.check_machine()?;
        Ok(plan)
    });
    planned.map_err(|failure| Refusal { usage: failure.exit_code() == 2, reason: failure.to_string() })
}

pub(super) fn is_command(word: &str) -> bool {
    Cli::command().get_subcommands().any(|command| command.get_name() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_options_may_stand_before_the_command() {
        for (typed, sorted) in [
            ("x --host box exec -- python a", "x exec --host box -- python a"),
            ("x --host=box --ssh-option A=b run --json", "x run --host=box --ssh-option A=b --json"),
            ("x --host box model=a", "x --host box model=a"),
            ("x run --host box", "x run --host box"),
            ("x --host run", "x --host run"),
            ("x", "x"),
        ] {
            assert_eq!(with_command_first(words(typed), is_command), words(sorted), "{typed}");
        }
    }

    #[test]
    fn other_arguments_are_passed_unchanged() {
        let there = remote_args(&words("x doctor --host box --json a=$(x) --remote-dir=/y")).unwrap();
        assert_eq!(there, ["doctor", "--json", "a=$(x)"]);
    }
}
