//! `run`: the workload without the TUI.

use std::{
    env,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    Failure,
    args::{ConfigArgs, runs_root},
    print, print_json, remote,
    remote::{RemoteArgs, Shown},
    sweep,
    sweep::{Started, SweepArgs},
};
use llmprof_base::{
    foreign::line,
    process::{eprint_line, shutdown::Cause},
    table::aligned,
    units::{grouped, millis, three_digits},
};
use llmprof_event::{Outcome, WorkKind};
use llmprof_record::{
    report::{kernels_text, run_json},
    state::{RunState, ServerState},
};
use llmprof_run::{
    headless,
    session::SessionSummary,
    sweep::{Launch, Runner, Sweep, sweep_json, table_text},
};

/// Maximum rows of a kernel table.
pub(super) const KERNEL_ROWS: usize = 20;

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
        return run_job(dir, number, args.ends_with_parent, &args.remote).await;
    }
    let shown = Shown { headless: true, json: args.json, quiet: args.quiet, ..Shown::default() };
    if !args.sweep.is_asked()
        && let Some(code) = remote::profile(&args.remote, &args.config.request()?, None, shown).await?
    {
        return Ok(code);
    }
    let host = args.remote.host.as_deref();
    if let Some(runner) = args.sweep.runner(&args.config, host, || args.remote.can_run_sweeps())? {
        let machine = args.remote.machine()?;
        return match args.sweep.launched(runner, &args.config, machine, args.quiet)? {
            Started::Here(runner) => run_sweep(*runner, args.json, args.quiet).await,
            Started::Elsewhere(launch) => run_launch(*launch, args.json, args.quiet).await,
        };
    }
    let plan = args.config.plan()?;
    plan.check_machine()?;
    for remark in plan.remarks.iter().chain(&plan.choices) {
        eprint_line(format_args!("note: {remark}"));
    }
    let only_tools = plan.is_for_tools_alone();
    let root = runs_root(&plan.composed);
    let mut finished = headless::run(plan, args.quiet).await?;
    finished.summary.discard_unbegun(&root);
    let dir = finished.summary.dir.as_deref();
    if args.json {
        print_json(&run_json(&finished.state, dir))?;
    } else {
        let summary = if only_tools { recorded_in(dir) } else { summary(&finished.state, dir) };
        let parts = [kernels_text(&finished.state, KERNEL_ROWS), summary.trim().to_owned()];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        print(&parts.join("\n\n"))?;
    }
    let code = report_end(&finished.summary);
    if let Some(cause) = &finished.cause {
        eprint_line(format_args!("interrupted: {cause}"));
        return Ok(cause.exit_code());
    }
    Ok(code)
}

async fn run_sweep(mut runner: Runner, json: bool, quiet: bool) -> Result<u8, Failure> {
    let cause = headless::sweep(&mut runner, quiet).await?;
    if json {
        print_json(&sweep_json(&runner.sweep))?;
    } else {
        print(&sweep_text(&runner.sweep))?;
    }
    Ok(sweep::report_end(&runner, cause.as_ref(), "llmprof-tui run"))
}

async fn run_launch(mut launch: Launch, json: bool, quiet: bool) -> Result<u8, Failure> {
    let cause = headless::launch(&mut launch, quiet).await?;
    launch.leave();
    let sweep = &launch.runner.sweep;
    if json {
        print_json(&sweep_json(sweep))?;
    } else {
        print(&sweep_text(sweep))?;
    }
    Ok(sweep::report_launch(&launch, cause.as_ref(), "llmprof-tui run"))
}

/// One job of a sweep, recorded in its directory. Its messages go to the launcher's log.
async fn run_job(
    dir: &Path,
    number: usize,
    ends_with_parent: bool,
    remote: &RemoteArgs,
) -> Result<u8, Failure> {
    if ends_with_parent {
        end_with_parent()?;
    }
    let done = || {
        eprint_line(format_args!("job {number} has already completed"));
        Ok(0)
    };
    let kept = |aside: &Option<PathBuf>| {
        if let Some(aside) = aside {
            eprint_line(format_args!("an earlier recording of this job is kept as {}", aside.display()));
        }
    };
    if remote.host.is_some() {
        let Some(task) = sweep::task_there(dir, number)? else { return done() };
        kept(&task.aside);
        return remote::job(remote, task).await;
    }
    let Some(task) = sweep::task(dir, number)? else { return done() };
    kept(&task.aside);
    let finished = headless::job(task).await?;
    print(&summary(&finished.state, finished.summary.dir.as_deref()))?;
    let code = report_end(&finished.summary);
    Ok(finished.cause.as_ref().map_or(code, Cause::exit_code))
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

/// Prints the problems of a run to stderr, and returns the exit code.
pub(super) fn report_end(ended: &SessionSummary) -> u8 {
    let failed = ended.finished.outcome == Outcome::Failed;
    if failed {
        eprint_line(format_args!("error: {}", ended.finished.cause.as_deref().unwrap_or("the run failed")));
    }
    // A run that only re-runs under tools fails with them: its cause names the tools.
    for trouble in ended.tool_failures.iter().filter(|_| !failed) {
        eprint_line(format_args!("error: {trouble}"));
    }
    if let Some(loss) = &ended.loss {
        eprint_line(format_args!("error: {loss}"));
    }
    u8::from(failed || ended.loss.is_some() || !ended.tool_failures.is_empty())
}

/// A server: its model, kind and address. Empty for one that never answered: the error reports that.
fn server_line(server: &ServerState) -> String {
    match &server.found {
        Some(found) => {
            let model = found.model.as_deref().unwrap_or("a model");
            format!("{}, {} at {}\n\n", line(model, 100), found.kind, found.url)
        }
        None => String::new(),
    }
}

/// The results as text.
pub(super) fn summary(state: &RunState, dir: Option<&Path>) -> String {
    let mut out = String::new();
    if let Some(run) = &state.run {
        out += &match &run.kind {
            _ if run.simulated => format!("{}, {}, simulated\n\n", run.model, run.dtype),
            WorkKind::Server => server_line(&state.server),
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program | WorkKind::Watch => {
                let dtype = if run.dtype.is_empty() { String::new() } else { format!(", {}", run.dtype) };
                let device = state.device().map_or_else(String::new, |device| format!(", on {device}"));
                format!("{}{dtype}{device} ({})\n\n", run.model, run.kind)
            }
        };
    }
    if state.found_no_steps() {
        // None of the values of these tables was measured.
        let said = state.verdict().into_iter().chain(state.workload_diagnosis().map(|d| d.verdict));
        out += &said.map(|sentence| format!("{sentence}\n")).collect::<String>();
        return out + "\n" + &recorded_in(dir);
    }
    let is_over_early = state.finished.as_ref().is_some_and(|end| end.outcome != Outcome::Completed);
    if is_over_early && state.has_no_tokens() {
        // Its cause is printed on stderr.
        return out + &recorded_in(dir);
    }
    let total = &state.total;
    let mut rows = vec![["", "mean", "p50", "p90", "p99", "n"].map(str::to_owned)];
    for (name, distribution) in state.latencies(total) {
        let s = distribution.summary();
        let [mean, p50, p90, p99] =
            [s.mean, s.p50, s.p90, s.p99].map(|ms| ms.map_or_else(|| "–".into(), millis));
        rows.push([name.to_owned(), mean, p50, p90, p99, grouped(s.n as i64)]);
    }
    out += &aligned(&rows, |column| column > 0);
    let rate = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format!("{} tok/s", three_digits(v)));
    let [output, prefill, decode] =
        [total.output_tok_s(), total.prefill_tok_s(), total.decode_tok_s()].map(rate);
    out += &match state.kind().infers_steps() {
        true => {
            let decode = total.decode_tok_s().map_or_else(|| "–".to_owned(), three_digits);
            format!("\n\ndecode {decode} steps/s; how many tokens a step makes is not known\n")
        }
        false => format!("\n\noutput {output} by the wall clock, prefill {prefill}, decode {decode}\n"),
    };
    if let Some(tally) = &state.vision {
        out += &format!("{tally}\n");
    }
    if let Some(tally) = state.speculation {
        out += &format!("{tally}\n");
    }
    if let Some(limit) = state.limit() {
        out += &format!("{limit}\n");
    }
    if let Some(sentence) = state.verdict() {
        out += &format!("{sentence}\n");
    }
    if let Some(diagnosis) = state.workload_diagnosis() {
        out += &format!("{}\n", diagnosis.verdict);
    }
    out + "\n" + &recorded_in(dir)
}

/// The results of a sweep as text.
pub(super) fn sweep_text(sweep: &Sweep) -> String {
    let dir = Some(sweep.dir.as_path()).filter(|dir| dir.is_dir());
    format!("{}\n\n{}", table_text(sweep), recorded_in(dir)).trim_end().to_owned()
}

pub(super) fn recorded_in(dir: Option<&Path>) -> String {
    dir.map(|dir| format!("recorded in {}\n", dir.display())).unwrap_or_default()
}
