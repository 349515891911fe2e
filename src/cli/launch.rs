//! Starts what a command asks for: a run, a sweep or a job of one, on this machine or on a remote host, in the TUI or
//! without it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Failure,
    args::{ConfigArgs, runs_root, time_of},
    outcome::{
        failures, has_failed, print_program, print_watched, report_end, report_exit, report_launch,
        report_sweep, result_text, summary, sweep_text, unseen,
    },
    print, print_json,
    remote::{self, RemoteArgs},
    request::{Planned, RunRequest, Shown},
    require_terminal,
    sweep::{self, Started, SweepArgs},
};
use llmprof_app::{App, Live, Replan};
use llmprof_base::process::{
    eprint_line, eprint_lines,
    shutdown::{Cause, Shutdown},
};
use llmprof_config::Urls;
use llmprof_record::{
    report::run_json,
    sweep::{sweep_json, table_text},
};
use llmprof_run::{
    headless::{self, Finished},
    plan::Plan,
    session::Session,
    sweep::{Launch, Runner},
    work::Work,
};

/// Starts a run: on the remote host if there is one, else here.
pub(super) async fn launch(request: RunRequest, remote: &RemoteArgs) -> Result<u8, Failure> {
    match remote::run(remote, &request).await? {
        Some(code) => Ok(code),
        None => launch_here(request).await,
    }
}

pub(super) async fn launch_here(request: RunRequest) -> Result<u8, Failure> {
    let time = request.shown.seconds.map(time_of).transpose()?;
    let Planned { plan, replan } = request.plan()?;
    let RunRequest { shown, remark, .. } = request;
    if !shown.headless {
        return on_screen(plan, replan, remark).await;
    }
    match plan.work() {
        Work::Model(_) | Work::Sim | Work::Python(_) | Work::Server(_) => workload(plan, shown).await,
        Work::Program(_) => program(plan, time, remark, shown).await,
        Work::Watch => watch(plan, time, remark, shown).await,
    }
}

/// One of several runs of a command, without the TUI, for its measurements. `name` is in the progress line.
pub(super) async fn measure(plan: Plan, quiet: bool, name: &str) -> Result<Finished, Failure> {
    let root = runs_root(&plan.composed);
    let mut finished = headless::run_named(plan, quiet, name).await?;
    finished.summary.discard_unbegun(&root);
    Ok(finished)
}

/// A run in the TUI.
async fn on_screen(mut plan: Plan, replan: Replan, remark: Option<String>) -> Result<u8, Failure> {
    let is_program = matches!(plan.work(), Work::Program(_));
    match is_program {
        true => plan.choices.extend(remark),
        false => plan.remarks.extend(remark),
    }
    plan.check_machine()?;
    require_terminal(match plan.work() {
        Work::Watch => "llmprof-tui watch --for SECONDS",
        Work::Program(_) => "llmprof-tui exec --headless",
        Work::Model(_) | Work::Sim | Work::Python(_) | Work::Server(_) => "llmprof-tui run",
    })?;
    let tui = plan.composed.config.output.tui.clone();
    let root = runs_root(&plan.composed);
    // Signals are caught before anything is started that a signal could leave unfinished.
    let shutdown = Shutdown::listen()?;
    let session = Session::start(plan);
    let control = session.program_control();
    let live = Live { session: session.into(), replan, sweep: None };
    let mut stopped = App::of_run(&tui, live, root.clone()).run(tui.mouse, shutdown).await;
    stopped.runs.iter_mut().for_each(|run| run.discard_unbegun(&root));
    let code = report_exit(stopped)?;
    Ok(control.exit_code().filter(|_| is_program).unwrap_or(code))
}

/// The workload without the TUI.
async fn workload(plan: Plan, shown: Shown) -> Result<u8, Failure> {
    plan.check_machine()?;
    for remark in plan.remarks.iter().chain(&plan.choices) {
        eprint_line(format_args!("note: {remark}"));
    }
    let only_tools = plan.is_for_tools_alone();
    let finished = measure(plan, shown.quiet, "").await?;
    let dir = finished.summary.dir.as_deref();
    match shown.json {
        true => print_json(&run_json(&finished.state, dir))?,
        false => print(&result_text(&finished.state, dir, only_tools))?,
    }
    let code = report_end(&finished.summary);
    if let Some(cause) = &finished.cause {
        eprint_line(format_args!("interrupted: {cause}"));
        return Ok(cause.exit_code());
    }
    Ok(code)
}

/// Another program without the TUI.
async fn program(
    mut plan: Plan,
    time: Option<Duration>,
    remark: Option<String>,
    shown: Shown,
) -> Result<u8, Failure> {
    remark.iter().for_each(|remark| eprint_line(format_args!("note: {remark}")));
    plan.choices.extend(remark);
    let finished = headless::follow(plan, time).await?;
    let dir = finished.summary.dir.as_deref();
    match shown.json {
        true => print_json(&run_json(&finished.state, dir))?,
        false => print_program(&finished.state, dir),
    }
    if let Some(loss) = &finished.summary.loss {
        eprint_line(format_args!("error: {loss}"));
    }
    if let Some(code) = finished.exit_code {
        return Ok(code);
    }
    match &finished.cause {
        Some(cause) => Ok(cause.exit_code()),
        None => Ok(report_end(&finished.summary)),
    }
}

/// GPUs and servers without the TUI.
async fn watch(
    plan: Plan,
    time: Option<Duration>,
    remark: Option<String>,
    shown: Shown,
) -> Result<u8, Failure> {
    let urls: Vec<String> =
        plan.composed.config.telemetry.server.as_ref().map_or(Vec::new(), |urls| Urls::all(urls).to_vec());
    remark.iter().chain(&plan.remarks).for_each(eprint_line);
    let root = runs_root(&plan.composed);
    let mut watched = headless::watch(plan, time).await?;
    watched.summary.discard_unbegun(&root);
    let state = &watched.state;
    if let Some(first) = urls.first().filter(|_| state.servers().all(|server| !server.is_there())) {
        return Err(unseen(first, state));
    }
    print_watched(state, shown.json)?;
    failures(&urls, state).iter().for_each(|failure| eprint_line(format_args!("error: {failure}")));
    if report_end(&watched.summary) != 0 || has_failed(state) {
        return Ok(1);
    }
    Ok(watched.cause.map_or(0, |cause| cause.exit_code()))
}

/// Starts the sweep that is asked for, else a single run of the workload.
pub(super) async fn launch_jobs(
    config: &ConfigArgs,
    sweep: &SweepArgs,
    remote: &RemoteArgs,
    shown: Shown,
) -> Result<u8, Failure> {
    let possible = || {
        if !shown.headless {
            require_terminal("llmprof-tui run")?;
        }
        remote.can_run_sweeps()
    };
    let Some(runner) = sweep.runner(config, remote.host.as_deref(), possible)? else {
        let request = RunRequest { config: config.request()?, program: None, shown, remark: None };
        return launch(request, remote).await;
    };
    match (sweep.launched(runner, config, remote.machine()?, shown.quiet)?, shown.headless) {
        (Started::Here(runner), true) => run_sweep(*runner, shown).await,
        (Started::Here(runner), false) => show_sweep(*runner).await,
        (Started::Elsewhere(launch), true) => run_launch(*launch, shown).await,
        (Started::Elsewhere(launch), false) => show_launch(*launch).await,
    }
}

/// One job of the sweep in `dir`, without the TUI, as its launcher asks for it.
pub(super) async fn launch_job(dir: &Path, number: usize, remote: &RemoteArgs) -> Result<u8, Failure> {
    let kept = |aside: &Option<PathBuf>| {
        if let Some(aside) = aside {
            eprint_line(format_args!("an earlier recording of this job is kept as {}", aside.display()));
        }
    };
    if remote.host.is_some() {
        let Some(task) = sweep::task_there(dir, number)? else { return Ok(already_completed(number)) };
        kept(&task.aside);
        return remote::job(remote, task).await;
    }
    let Some(task) = sweep::task(dir, number)? else { return Ok(already_completed(number)) };
    kept(&task.aside);
    let finished = headless::job(task).await?;
    print(&summary(&finished.state, finished.summary.dir.as_deref()))?;
    let code = report_end(&finished.summary);
    Ok(finished.cause.as_ref().map_or(code, Cause::exit_code))
}

fn already_completed(number: usize) -> u8 {
    eprint_line(format_args!("job {number} has already completed"));
    0
}

async fn run_sweep(mut runner: Runner, shown: Shown) -> Result<u8, Failure> {
    let cause = headless::sweep(&mut runner, shown.quiet).await?;
    if shown.json {
        print_json(&sweep_json(&runner.sweep))?;
    } else {
        print(&sweep_text(&runner.sweep))?;
    }
    Ok(report_sweep(&runner, cause.as_ref(), "llmprof-tui run"))
}

async fn run_launch(mut launch: Launch, shown: Shown) -> Result<u8, Failure> {
    let cause = headless::launch(&mut launch, shown.quiet).await?;
    launch.leave();
    let sweep = &launch.runner.sweep;
    if shown.json {
        print_json(&sweep_json(sweep))?;
    } else {
        print(&sweep_text(sweep))?;
    }
    Ok(report_launch(&launch, cause.as_ref(), "llmprof-tui run"))
}

async fn show_sweep(mut runner: Runner) -> Result<u8, Failure> {
    let shutdown = Shutdown::listen()?;
    let Some(session) = runner.start_next() else {
        runner.take_remarks().iter().for_each(eprint_line);
        eprint_lines(table_text(&runner.sweep));
        return Ok(report_sweep(&runner, None, "llmprof-tui"));
    };
    let composed = &session.plan().composed;
    let (tui, root) = (composed.config.output.tui.clone(), runs_root(composed));
    let live =
        Live { session: session.into(), replan: Box::new(|_| Err(String::new())), sweep: Some(runner) };
    report_exit(App::of_run(&tui, live, root).run(tui.mouse, shutdown).await)
}

async fn show_launch(launch: Launch) -> Result<u8, Failure> {
    let shutdown = Shutdown::listen()?;
    let composed = launch.runner.first()?;
    let (tui, root) = (composed.config.output.tui.clone(), runs_root(&composed));
    report_exit(App::of_jobs(&tui, launch, root).run(tui.mouse, shutdown).await)
}
