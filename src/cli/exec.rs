//! `exec`, `attach` and `inject`: other programs.

use std::ffi::OsString;

use clap::Args;

use super::{
    Failure,
    args::ConfigArgs,
    launch::{launch, launch_here},
    print_data,
    remote::RemoteArgs,
    request::{Program, RunRequest, Shown, model_of},
    watch::watching,
};
use llmprof_base::{own_children::OwnChild, shell::quoted};
use llmprof_sources::attach::{
    Joined, NotJoined, OutputTo, Target, find_processes, join, library_file, print_environment,
};

pub(super) const EXEC_EXAMPLES: &str = "\
Examples:
  llmprof-tui exec -- python serve.py            follow a program and its child processes in the TUI
  llmprof-tui exec --headless -- python bench.py the program keeps the terminal; the summary is printed on stderr
  llmprof-tui exec --model qwen2_5_7b -- ./server   with the model's shape: MBU, MFU and the roofline
  llmprof-tui exec --for 30 --json -- python serve.py   record for 30 s, then end the program
  llmprof-tui exec profiling.cupti.duty=1.0 -- python one.py   record every kernel, at any overhead

In the TUI, the program's output goes to the Log pane and to program.log in the run directory, and its stdin is empty.
Without the TUI, the program uses the terminal as if it were started directly. The exit code is the program's.";

pub(super) const ATTACH_EXAMPLES: &str = "\
Examples:
  llmprof-tui attach 4711            a running program, and its child processes that use CUDA
  llmprof-tui attach serve.py --for 30

Quitting (q) ends the recording; the program continues at full speed.";

pub(super) const INJECT_EXAMPLES: &str = "\
Examples:
  eval \"$(llmprof-tui inject --print-env)\"; python serve.py &
  llmprof-tui inject --print-env --format systemd    systemd unit file; compose: compose file";

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    follow: FollowArgs,
    /// Program to start, with its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND", help_heading = "Arguments")]
    command: Vec<OsString>,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, Args)]
pub(super) struct AttachArgs {
    /// Process ID, or name of a program or of its script
    #[arg(value_name = "PID|NAME")]
    process: String,
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    follow: FollowArgs,
}

#[derive(Debug, Args)]
struct FollowArgs {
    /// Run without the TUI
    #[arg(long)]
    headless: bool,
    /// Run without the TUI and print one JSON object on stdout at the end; the program's stdout goes to stderr
    #[arg(long)]
    json: bool,
    /// Run without the TUI for SECONDS; then `exec` ends the program and its descendants, `attach` detaches
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<f64>,
}

impl FollowArgs {
    fn shown(&self) -> Shown {
        let headless = self.headless || self.json || self.seconds.is_some();
        Shown { headless, json: self.json, quiet: false, seconds: self.seconds }
    }
}

#[derive(Debug, Args)]
pub(super) struct InjectArgs {
    /// Print the environment variables with which `attach` can join a program later; until then the library in it is dormant
    #[arg(long, required = true)]
    print_env: bool,
    /// Print them in this format
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Shell commands
    Shell,
    /// Lines for a systemd unit file
    Systemd,
    /// Lines for `environment` in a compose file
    Compose,
}

pub(super) async fn exec(args: ExecArgs) -> Result<u8, Failure> {
    let shown = args.follow.shown();
    let output = match (shown.headless, shown.json) {
        (false, _) => OutputTo::Log,
        (true, false) => OutputTo::Same,
        (true, true) => OutputTo::Stderr,
    };
    let program = Some(Program::started(args.command, output));
    launch(RunRequest { config: args.config.request()?, program, shown, remark: None }, &args.remote).await
}

pub(super) async fn attach(args: AttachArgs) -> Result<u8, Failure> {
    let found = find_processes(&args.process);
    if found.is_empty() {
        return Err(Failure::usage(format_args!("there is no process {}", quoted(&args.process))));
    }
    let shown = args.follow.shown();
    let Joined { processes, remarks } = match join(found) {
        Ok(joined) => joined,
        Err(several @ NotJoined::Several(_)) => return Err(Failure::usage(several)),
        Err(refusal) => return watch_from_outside(args.config, shown, &refusal).await,
    };
    let model =
        processes.iter().find_map(|process| model_of(&process.arguments, process.directory.as_deref()));
    // Its load and memory count as the run's.
    let _own: Vec<OwnChild> = processes.iter().map(|process| OwnChild::new(process.pid)).collect();
    let program = Some(Program { target: Target::Join { processes }, model });
    let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
    launch_here(RunRequest { config: args.config.request()?, program, shown, remark }).await
}

/// The observable facts about a program that cannot be joined.
async fn watch_from_outside(config: ConfigArgs, shown: Shown, refusal: &NotJoined) -> Result<u8, Failure> {
    let remark = format!(
        "{refusal}. Its kernels cannot be recorded; the GPU and the memory of its processes are monitored. To record \
         kernels, start it with `llmprof-tui exec -- …`, or with the variables of `llmprof-tui inject --print-env`"
    );
    if shown.seconds.is_none() && shown.headless {
        return Err(Failure::usage(format_args!("{remark}. Give a time: --for SECONDS")));
    }
    let mut config = config.request()?;
    config.preset(watching(false));
    launch_here(RunRequest { config, program: None, shown, remark: Some(remark) }).await
}

pub(super) fn inject(args: &InjectArgs) -> Result<u8, Failure> {
    let library = library_file().map_err(|e| Failure::work(format_args!("cannot write the library: {e}")))?;
    let variables = print_environment(&library).map_err(Failure::work)?;
    let lines = variables.iter().map(|(name, value)| {
        let value = value.to_string_lossy();
        match args.format {
            Format::Shell => format!("export {name}={}", quoted(&value)),
            Format::Systemd => format!("Environment=\"{name}={}\"", in_double_quotes(&value, '%')),
            Format::Compose => format!("      {name}: \"{}\"", in_double_quotes(&value, '$')),
        }
    });
    print_data(&lines.collect::<Vec<_>>().join("\n"))?;
    Ok(0)
}

/// A value in double quotes for a unit file or for YAML. `special` begins a substitution there, and is escaped by
/// doubling it.
fn in_double_quotes(value: &str, special: char) -> String {
    let mut out = String::new();
    for c in value.chars() {
        match c {
            '\\' | '"' => out.extend(['\\', c]),
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            c if c == special => out.extend([c, c]),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_meaning_in_unit_and_compose_files() {
        let path = "/home/a \"b\"/50%/$HOME\\x\ny";
        assert_eq!(in_double_quotes(path, '%'), r#"/home/a \"b\"/50%%/$HOME\\x\ny"#);
        assert_eq!(in_double_quotes(path, '$'), r#"/home/a \"b\"/50%/$$HOME\\x\ny"#);
    }
}
