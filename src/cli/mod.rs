//! The command line: arguments, dispatch and exit codes. Each command has a file of its own.

mod args;
mod ask;
mod bootstrap;
mod compare;
mod completion;
mod conf_consent;
mod config;
mod cost;
mod dataset;
mod diagnose;
mod doctor;
mod exec;
mod fetch;
mod fleet;
mod kernels;
mod knee;
mod launch;
mod outcome;
mod profile;
mod remote;
mod replay;
mod report;
mod request;
mod run;
mod sweep;
mod third_party;
mod watch;

use std::{
    env,
    ffi::OsString,
    fmt::{self, Display},
    io,
    os::fd::OwnedFd,
    panic,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::LazyLock,
};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, builder::StyledStr};
use rustix::io::Errno;
use serde::Serialize;

use args::{ConfigArgs, ConfigRequest, WhichConfig};
use llmprof_base::{
    build::Build,
    foreign::{Lines, is_hidden, visible},
    process::{
        abort, crash, eprint_line, eprint_lines, logfile, output,
        shutdown::{self, Cause},
        stops,
    },
};
use llmprof_engine::cuda::Manifest;
use llmprof_record::{
    rundir::{EventReader, Next, RunDir},
    state::RunState,
};
use llmprof_run::{assets::AssetError, plan::PlanError};
use llmprof_workload::EngineError;

const ABOUT: &str = "A live profiler for LLM inference: runs a model, shows GPU and token timings, and explains what limits its speed";

const EXAMPLES: &str = "\
Examples:
  llmprof-tui                                  profile the default model on this machine
  llmprof-tui --model qwen2_5_0_5b model.dtype=bf16
  llmprof-tui runtime=sim                      try the screens with a simulated run
  llmprof-tui run --json runtime.requests=20   headless, one JSON object on stdout
  llmprof-tui run -m model=qwen3_0_6b,smollm2_135m runtime.batch_size=1,4   every combination
  llmprof-tui run --resume runs/baseline/multirun/2026-01-01_12-00-00
  llmprof-tui run profiling=nsys               kernels by Nsight Systems; profiling=ncu: counters
  llmprof-tui config model=qwen2_5_7b --package model.arch
  llmprof-tui replay runs/baseline/smollm2_135m/2026-01-01_12-00-00
  llmprof-tui demo
  llmprof-tui exec -- python serve.py          follow another program: kernels, steps, what limits it
  llmprof-tui --host me@box --model qwen2_5_7b run on a remote host over ssh, with the TUI local
  llmprof-tui watch                            monitor the GPU while another program uses it
  llmprof-tui fleet --prometheus URL           find slow GPUs in a cluster: since when, and why
  llmprof-tui report runs/…                    write the reports and plots of a run again
  llmprof-tui diagnose gpu.csv                 why was it slow? a run or an nvidia-smi log
  llmprof-tui compare runs/… runs/…            did it help? a verdict with confidence intervals
  llmprof-tui kernels out.sqlite               the most expensive kernels in nsys or ncu files
  llmprof-tui cost --gpu h100 model=qwen2_5_7b estimate FLOPs, memory and latency bounds
  llmprof-tui fetch qwen2_5_0_5b               download weights from the Hugging Face hub
  llmprof-tui doctor                           check this machine and suggest fixes

Exit codes: 0 ok, 1 the run failed or was not fully recorded, or a gate is broken,
2 bad usage or configuration, 3 undecided, 130/143 interrupted.";

const BUILD: Build = Build { commit: env!("LLMPROF_COMMIT"), rustc: env!("LLMPROF_RUSTC") };

/// What `--version` prints; `-V` prints the first line.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let (version, Build { commit, rustc }) = (env!("CARGO_PKG_VERSION"), BUILD);
    format!("{version}\ncommit {commit}, {rustc}\nkernels {}", Manifest::get())
});

#[derive(Debug, Parser)]
#[command(name = "llmprof-tui", version, long_version = LONG_VERSION.as_str(), about = ABOUT, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    sweep: sweep::SweepArgs,
    #[command(flatten)]
    remote: remote::RemoteArgs,
    #[command(flatten)]
    session: remote::RemoteSessionArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the workload without the TUI
    Run(run::RunArgs),
    /// Open a recorded run in the TUI, or follow a run that is being recorded
    Replay(replay::ReplayArgs),
    /// Play a recording that is built into the program
    Demo(replay::DemoArgs),
    /// Compare two runs: same, faster or slower, and whether the code or the clocks changed
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::CompareArgs),
    /// Save a run as a baseline for comparisons, in ./baselines/
    #[command(subcommand)]
    Baseline(compare::BaselineCommand),
    /// Find what slowed the GPU down in a recorded run, an nvml.csv or an nvidia-smi log
    #[command(after_help = diagnose::EXAMPLES)]
    Diagnose(diagnose::DiagnoseArgs),
    /// Rewrite the reports of a recorded run or sweep from its events
    Report(report::ReportArgs),
    /// Show the most expensive kernels in nsys, ncu, PyTorch or cuBLAS files, and what bounds them
    #[command(after_help = kernels::EXAMPLES)]
    Kernels(kernels::KernelsArgs),
    /// Estimate a model's FLOPs, bytes, memory and latency bounds on a GPU
    #[command(after_help = cost::EXAMPLES)]
    Cost(cost::CostArgs),
    /// Monitor GPUs and servers (watch URL…) without running a workload
    #[command(after_help = watch::EXAMPLES)]
    Watch(watch::WatchArgs),
    /// Find the slow GPUs of a cluster in Prometheus: which, since when, why
    #[command(after_help = fleet::EXAMPLES)]
    Fleet(Box<fleet::FleetArgs>),
    /// Find the highest rate at which a server meets its SLOs
    #[command(after_help = knee::EXAMPLES)]
    Knee(knee::KneeArgs),
    /// Start another CUDA program and show its kernels, steps and phases
    #[command(after_help = exec::EXEC_EXAMPLES)]
    Exec(exec::ExecArgs),
    /// Join a running program, without preparation, and show its kernels, steps and phases
    #[command(after_help = exec::ATTACH_EXAMPLES)]
    Attach(exec::AttachArgs),
    /// Print the environment variables with which `attach` can join a program later
    #[command(after_help = exec::INJECT_EXAMPLES)]
    Inject(exec::InjectArgs),
    /// Print the resolved configuration
    Config {
        #[command(flatten)]
        config: ConfigArgs,
        #[command(flatten)]
        print: config::PrintArgs,
    },
    /// Check this machine and suggest fixes, or measure profiler overhead or device peaks
    #[command(after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorArgs),
    /// Print the completion script for a shell
    #[command(after_help = completion::EXAMPLES)]
    Completion { shell: completion::Shell },
    /// Answer the completion scripts
    #[command(name = completion::COMMAND, hide = true)]
    Complete(completion::CompleteArgs),
    /// Serve one connection of llmprof-tui --host
    #[command(name = "remote-serve", hide = true)]
    RemoteServe,
    /// Run the workload of a run that was started over ssh
    #[command(name = "remote-work", hide = true)]
    RemoteWork { place: PathBuf },
    /// Link stored models and datasets into the project
    #[command(after_help = bootstrap::EXAMPLES)]
    Bootstrap(bootstrap::BootstrapArgs),
    /// Download a model, or only its source files, from the Hugging Face hub
    #[command(after_help = fetch::EXAMPLES)]
    Fetch(fetch::FetchArgs),
    /// Check and update the pinned reference sources in third_party/
    #[command(after_help = third_party::EXAMPLES, subcommand)]
    ThirdParty(third_party::ThirdPartyCommand),
    /// List datasets and prepare variants of them
    #[command(after_help = dataset::EXAMPLES, subcommand)]
    Dataset(dataset::DatasetCommand),
}

/// Why a command failed.
#[derive(Debug)]
enum Failure {
    /// A usage error: exit code 2.
    Usage(String),
    /// Exit code 1.
    Work(String),
    /// A signal ended the work before it had a result.
    Interrupted(Cause),
}

impl Failure {
    fn usage(message: impl Display) -> Failure {
        Failure::Usage(message.to_string())
    }

    fn work(message: impl Display) -> Failure {
        Failure::Work(message.to_string())
    }

    fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> Failure {
        move |e| Failure::work(format_args!("cannot write {}: {e}", path.display()))
    }

    fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Work(_) => 1,
            Failure::Interrupted(cause) => cause.exit_code(),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) | Failure::Work(message) => f.write_str(message),
            Failure::Interrupted(cause) => cause.fmt(f),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Failure::work(e)
    }
}

impl From<PlanError> for Failure {
    fn from(e: PlanError) -> Self {
        match e {
            PlanError::Engine(e) => e.into(),
            PlanError::NoProgram => Failure::work(e),
            e => Failure::usage(e),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(e: EngineError) -> Self {
        match e {
            EngineError::NoDevice { .. } | EngineError::ContextTooLong { .. } => Failure::usage(e),
            e => Failure::work(e),
        }
    }
}

impl From<AssetError> for Failure {
    fn from(e: AssetError) -> Self {
        if e.is_usage() { Failure::usage(e) } else { Failure::work(e) }
    }
}

/// Parses the command line, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    BUILD.set();
    let words = remote::with_command_first(env::args_os().collect(), remote::is_command);
    let parsed = for_people(Cli::command()).try_get_matches_from(&words);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are not errors.
            let code = if e.use_stderr() { 2 } else { 0 };
            print_clap(&e);
            return ExitCode::from(code);
        }
    };
    crash::keep_panics();
    logfile::install();
    let prepared =
        abort::prepare().and_then(|()| shutdown::survive_file_size_limit()).and_then(|()| stops::watch());
    let work = || prepared.map_err(Failure::from).and_then(|()| dispatch(cli, &words));
    let code = match panic::catch_unwind(panic::AssertUnwindSafe(work)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => {
            let label = if matches!(failure, Failure::Interrupted(_)) { "interrupted" } else { "error" };
            eprint_line(format_args!("{label}: {failure}"));
            failure.exit_code()
        }
        Err(_) => {
            let message = crash::first_panic().unwrap_or_else(|| "panic without a message".into());
            eprint_line(format_args!("error: {message}"));
            eprint_line("This is a bug in the program. Details are in the run's llmprof.log.");
            1
        }
    };
    output::finish_stderr();
    ExitCode::from(code)
}

impl Cli {
    /// The other machine that the command is for.
    fn remote(&self) -> Option<&remote::RemoteArgs> {
        match &self.command {
            None => Some(&self.remote),
            Some(Command::Run(args)) => Some(&args.remote),
            Some(Command::Doctor(args)) => Some(&args.remote),
            Some(Command::Watch(args)) => Some(&args.remote),
            Some(_) => None,
        }
    }

    /// The configuration to print instead of running the command (`--cfg`), and whether as JSON.
    fn printed_config(&self) -> Result<Option<(WhichConfig, ConfigRequest, bool)>, Failure> {
        let (config, json) = match &self.command {
            None => (&self.config, false),
            Some(Command::Run(args)) => (&args.config, args.json),
            Some(Command::Doctor(args)) => (&args.config, args.json),
            Some(Command::Cost(args)) => (&args.config, args.json),
            Some(Command::Watch(args)) => (&args.config, args.json),
            Some(Command::Knee(args)) => (&args.config, args.json),
            Some(_) => return Ok(None),
        };
        let Some(which) = config.cfg else { return Ok(None) };
        let request = match &self.command {
            Some(Command::Watch(args)) => args.watch_config()?,
            _ => config.request()?,
        };
        Ok(Some((which, request, json)))
    }
}

fn dispatch(cli: Cli, words: &[OsString]) -> Result<u8, Failure> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Some((which, request, json)) = cli.printed_config()? {
        let there =
            cli.remote().map(|remote| runtime()?.block_on(remote::command(remote, words))).transpose()?;
        return match there.flatten() {
            Some(code) => Ok(code),
            None => config::run(&request, which, &config::PrintArgs { json, ..Default::default() }),
        };
    }
    require_descriptors()?;
    let runtime = runtime()?;
    let Some(command) = cli.command else {
        return runtime.block_on(profile::run(&cli.config, &cli.sweep, &cli.remote, &cli.session));
    };
    match command {
        Command::Run(args) => runtime.block_on(run::run(args)),
        Command::Replay(args) => runtime.block_on(replay::run(args)),
        Command::Demo(args) => runtime.block_on(replay::demo(args)),
        Command::Compare(args) => runtime.block_on(compare::run(args)),
        Command::Baseline(command) => compare::baseline(command),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Kernels(args) => runtime.block_on(kernels::run(args)),
        Command::Cost(args) => cost::run(&args),
        Command::Watch(args) => runtime.block_on(watch::run(args)),
        Command::Fleet(args) => runtime.block_on(fleet::run(*args)),
        Command::Knee(args) => runtime.block_on(knee::run(args)),
        Command::Exec(args) => runtime.block_on(exec::exec(args)),
        Command::Attach(args) => runtime.block_on(exec::attach(args)),
        Command::Inject(args) => exec::inject(&args),
        Command::Config { config, print } => {
            config::run(&config.request()?, config.cfg.unwrap_or(WhichConfig::Job), &print)
        }
        Command::Doctor(args) => match runtime.block_on(remote::command(&args.remote, words))? {
            Some(code) => Ok(code),
            None => runtime.block_on(doctor::run(args)),
        },
        Command::RemoteServe => remote::serve_here(),
        Command::RemoteWork { place } => runtime.block_on(remote::work_here(&place)),
        Command::Completion { shell } => {
            print_data(shell.script().trim_end())?;
            Ok(0)
        }
        Command::Complete(args) => Ok(completion::complete(&args)),
        Command::Bootstrap(args) => bootstrap::run(&args),
        Command::Fetch(args) => fetch::run(&args),
        Command::ThirdParty(command) => third_party::run(command),
        Command::Dataset(command) => dataset::run(command),
    }
}

/// Refuses to start if too few files can be opened: later failures would be less clear.
fn require_descriptors() -> Result<(), Failure> {
    const NEEDED: usize = 16;
    let spare: Result<Vec<OwnedFd>, Errno> =
        (0..NEEDED).map(|_| rustix::io::dup(rustix::stdio::stderr())).collect();
    match spare {
        Err(Errno::MFILE | Errno::NFILE) => Err(Failure::work(
            "too few open files are allowed; raise the limit on open files (ulimit -n) to 32 or more",
        )),
        // A closed stderr says nothing about the limit.
        _ => Ok(()),
    }
}

/// Refuses to open the TUI without a terminal; `alternative` works without one.
fn require_terminal(alternative: &str) -> Result<(), Failure> {
    if llmprof_app::terminal::is_there() {
        return Ok(());
    }
    Err(Failure::usage(format_args!("not a terminal: the TUI needs one; use {alternative}")))
}

/// Prints help or an error in the arguments: with colours, unless an argument, which may be the name of a file, has
/// hidden characters.
fn print_clap(error: &clap::Error) {
    match env::args_os().any(|argument| argument.to_string_lossy().contains(is_hidden)) {
        true => eprint_lines(error.render().to_string().trim_end()),
        // Without a reader, there is nothing to do.
        false => drop(error.print()),
    }
}

/// Commands for developers of this program, used in the project's own directory.
const FOR_DEVELOPERS: [&str; 3] = ["bootstrap", "third-party", "dataset"];

/// The command line with the developers' commands under their own heading.
fn for_people(command: clap::Command) -> clap::Command {
    let mut heading = "For developers of llmprof-tui:\n".to_owned();
    let mut command = command;
    for name in FOR_DEVELOPERS {
        command = command.mut_subcommand(name, |developers| {
            let about = developers.get_about().map(StyledStr::to_string).unwrap_or_default();
            heading += &format!("  {name:<11}  {about}\n");
            developers.hide(true)
        });
    }
    command.after_help(format!("{heading}\n{EXAMPLES}"))
}

/// The command line, for the manual page.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The commands as a Markdown table, for the documentation.
pub fn commands_markdown() -> String {
    let row = |name: &str, about: Option<&StyledStr>| {
        let about = about.map(StyledStr::to_string).unwrap_or_default();
        format!("| `{name}` | {about} |\n")
    };
    let mut table = String::from("| command | what it does |\n|---|---|\n");
    table += &row("llmprof-tui", Some(&"Profile the configured model in the TUI".into()));
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        table += &row(&format!("llmprof-tui {}", command.get_name()), command.get_about());
    }
    table
}

/// Prints a human-readable result to stdout.
fn print(text: &str) -> Result<(), Failure> {
    print_styled(&Lines(text).to_string())
}

/// The state at the end of a recorded run, and the number of unreadable lines.
fn read_run(path: &Path) -> Result<(RunState, u64), Failure> {
    let mut reader = EventReader::open(&RunDir::open(path).events()).map_err(Failure::work)?;
    let mut state = RunState::default();
    while let Next::Event(envelope) = reader.read_next().map_err(Failure::work)? {
        state.apply(&envelope);
    }
    Ok((state, reader.skipped()))
}

/// Prints a machine-readable result to stdout: lines of any length.
fn print_data(text: &str) -> Result<(), Failure> {
    print_styled(&visible(text))
}

/// Prints text to stdout unchanged: it may have colours, and all untrusted text in it was sanitised. A reader that
/// closes the pipe early is not an error.
fn print_styled(text: &str) -> Result<(), Failure> {
    match output::print(&format!("{text}\n")) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_data(&serde_json::to_string_pretty(value).map_err(Failure::work)?)
}
