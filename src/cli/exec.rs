//! `exec`, `attach` and `inject`: other programs.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest, runs_root, time_of},
    print_data, print_json,
    profile::{report_exit, require_terminal},
    remote,
    remote::{RemoteArgs, Shown},
    run::summary,
    watch::{self, WatchArgs},
};
use llmprof_base::{
    own_children::OwnChild,
    process::{eprint_line, eprint_lines, shutdown::Shutdown},
    shell::quoted,
};
use llmprof_config::Override;
use llmprof_record::report::{kernels_text, ranks_text, run_json};
use llmprof_run::{
    headless,
    plan::{Plan, gives_shape},
    session::Session,
};
use llmprof_screen as tui;
use llmprof_screen::{App, Live};
use llmprof_sources::attach::{OutputTo, Target, find_processes, library_file, print_environment};

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
  llmprof-tui attach 4711            a program that was started with the variables of `llmprof-tui inject --print-env`
  llmprof-tui attach serve.py --for 30

Quitting (q) ends the recording; the program continues at full speed.";

pub(super) const INJECT_EXAMPLES: &str = "\
Examples:
  eval \"$(llmprof-tui inject --print-env)\"; python serve.py &
  llmprof-tui inject --print-env --format systemd    systemd unit file; compose: compose file";

/// Maximum rows of a kernel table.
const KERNEL_ROWS: usize = 15;

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
    fn is_headless(&self) -> bool {
        self.headless || self.json || self.seconds.is_some()
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
    let FollowArgs { json, seconds, .. } = args.follow;
    let shown =
        Shown { headless: args.follow.is_headless(), json, seconds, program: true, ..Shown::default() };
    if let Some(code) =
        remote::profile(&args.remote, &args.config.request()?, Some(&args.command), shown).await?
    {
        return Ok(code);
    }
    let output = match (args.follow.is_headless(), args.follow.json) {
        (false, _) => OutputTo::Log,
        (true, false) => OutputTo::Same,
        (true, true) => OutputTo::Stderr,
    };
    let directory = std::env::current_dir().ok();
    let model = model_of(&args.command, directory.as_deref());
    let target = Target::Start { command: args.command, output };
    follow(args.config, target, model, &args.follow).await
}

pub(super) async fn attach(args: AttachArgs) -> Result<u8, Failure> {
    let found = find_processes(&args.process);
    if found.is_empty() {
        return Err(Failure::usage(format_args!("there is no process {}", quoted(&args.process))));
    }
    let (with, without): (Vec<_>, Vec<_>) = found.into_iter().partition(|process| process.library.is_some());
    if with.is_empty() {
        let remark = format!(
            "process {} ({}) was not started with our library, so its kernels cannot be seen; this is what can be seen from outside. To \
             see kernels, start it by `llmprof-tui exec -- …`, or with the variables of `llmprof-tui inject --print-env`",
            without[0].pid,
            without[0].command(),
        );
        let seconds = args.follow.seconds;
        if seconds.is_none() && args.follow.is_headless() {
            return Err(Failure::usage(format_args!("{remark}. Give a time: --for SECONDS")));
        }
        let watch = WatchArgs::from_outside(args.config, seconds, args.follow.json);
        return watch::with_remark(watch, Some(remark)).await;
    }
    let model = with.iter().find_map(|process| model_of(&process.arguments, process.directory.as_deref()));
    // Its load and memory count as the run's.
    let _own: Vec<OwnChild> = with.iter().map(|process| OwnChild::new(process.pid)).collect();
    follow(args.config, Target::Join { processes: with }, model, &args.follow).await
}

/// The plan for a program on this machine whose screen is on another.
pub(super) fn planned_there(config: ConfigArgs, command: &[String]) -> Result<Plan, Failure> {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    let model = model_of(&command, std::env::current_dir().ok().as_deref());
    let target = Target::Start { command, output: OutputTo::Log };
    Ok(planned(&config, &target, model)?.plan)
}

/// The plan of a followed program.
struct Planned {
    request: ConfigRequest,
    plan: Plan,
    /// Whether the shape of its model is known.
    is_known: bool,
}

fn planned(config: &ConfigArgs, target: &Target, model: Option<PathBuf>) -> Result<Planned, Failure> {
    let mut request = config.request_with(&["runtime=program"])?;
    let has_model = request.overrides.iter().any(gives_shape);
    if !has_model && !request.sets("model.name") {
        // The run is stored under the name of the program.
        request.overrides.push(Override::of_text("model.name", &target.file_name()));
    }
    let shape = model.filter(|_| !has_model);
    let shape = shape.map(|path| Override::of_text("model.config_json", &path.display().to_string()));
    let mut with_shape = request.clone();
    with_shape.overrides.extend(shape.clone());
    let (request, plan, is_known) = match (with_shape.plan(), shape) {
        (Ok(plan), shape) => (with_shape, plan, has_model || shape.is_some()),
        // An unreadable shape does not prevent following the program.
        (Err(failure), Some(shape)) => {
            let mut plan = request.plan()?;
            plan.remarks.push(format!("the model's shape is not used ({shape}): {failure}"));
            (request, plan, false)
        }
        (Err(failure), None) => return Err(failure),
    };
    let plan = plan.following(target.clone(), is_known);
    Ok(Planned { request, plan, is_known })
}

async fn follow(
    config: ConfigArgs,
    target: Target,
    model: Option<PathBuf>,
    args: &FollowArgs,
) -> Result<u8, Failure> {
    let time = args.seconds.map(time_of).transpose()?;
    let Planned { request, plan, is_known } = planned(&config, &target, model)?;
    if !args.is_headless() {
        require_terminal("llmprof-tui exec --headless")?;
        return on_screen(request, plan, target, is_known).await;
    }
    let finished = headless::follow(plan, time).await?;
    let dir = finished.summary.dir.as_deref();
    if args.json {
        print_json(&run_json(&finished.state, dir))?;
    } else {
        let parts = [
            kernels_text(&finished.state, KERNEL_ROWS),
            ranks_text(&finished.state),
            summary(&finished.state, dir).trim().to_owned(),
        ];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        eprint_lines(parts.join("\n\n"));
    }
    if let Some(loss) = &finished.summary.loss {
        eprint_line(format_args!("error: {loss}"));
    }
    if let Some(code) = finished.exit_code {
        return Ok(code);
    }
    match &finished.cause {
        Some(cause) => Ok(cause.exit_code()),
        None => Ok(super::run::report_end(&finished.summary)),
    }
}

async fn on_screen(
    request: ConfigRequest,
    plan: Plan,
    target: Target,
    is_known: bool,
) -> Result<u8, Failure> {
    let tui = plan.composed.config.output.tui.clone();
    let root = runs_root(&plan.composed);
    let replan = move |overrides: &[String]| {
        let plan = request.with_texts(overrides).and_then(|request| request.plan_again());
        let plan = plan.map_err(|failure| failure.to_string())?;
        Ok(plan.following(target.clone(), is_known))
    };
    let shutdown = Shutdown::listen()?;
    let session = Session::start(plan);
    let exit_code = session.program_control();
    let live = Live { session: session.into(), replan: Box::new(replan), sweep: None };
    let stopped: tui::Stopped = App::of_run(&tui, live, root).run(tui.mouse, shutdown).await;
    let code = report_exit(stopped)?;
    Ok(exit_code.exit_code().unwrap_or(code))
}

/// The `config.json` in a directory that the command names.
fn model_of(command: &[OsString], directory: Option<&Path>) -> Option<PathBuf> {
    let candidates = command.iter().skip(1).flat_map(|word| {
        let text = word.to_string_lossy().into_owned();
        let value = text.split_once('=').map(|(_, value)| value.to_owned());
        [Some(text), value].into_iter().flatten().collect::<Vec<_>>()
    });
    candidates.filter(|word| !word.starts_with('-')).find_map(|word| {
        let path = directory.unwrap_or(Path::new(".")).join(word).join("config.json");
        path.is_file().then_some(path)
    })
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
