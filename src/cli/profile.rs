//! Without a command: the workload in the TUI.

use super::{
    Failure,
    args::{ConfigArgs, ConfigRequest, runs_root},
    remote,
    remote::{RemoteArgs, RemoteSessionArgs, Shown},
    run, sweep,
    sweep::{Started, SweepArgs},
};
use llmprof_base::process::{eprint_line, eprint_lines, shutdown::Shutdown};
use llmprof_run::{
    session::Session,
    sweep::{Launch, Runner, table_text},
    work::Work,
};
use llmprof_screen as tui;
use llmprof_screen::{App, Live};

pub(super) async fn run(
    config: ConfigArgs,
    sweep: &SweepArgs,
    remote: &RemoteArgs,
    session: &RemoteSessionArgs,
) -> Result<u8, Failure> {
    if let Some(code) = remote::session(remote, session, sweep.yes).await? {
        return Ok(code);
    }
    if !sweep.is_asked()
        && let Some(code) = remote::profile(remote, &config.request()?, None, Shown::default()).await?
    {
        return Ok(code);
    }
    let possible = || require_terminal("llmprof-tui run").and_then(|()| remote.can_run_sweeps());
    match sweep.runner(&config, remote.host.as_deref(), possible)? {
        Some(runner) => match sweep.launched(runner, &config, remote.machine()?, false)? {
            Started::Here(runner) => profile_sweep(*runner).await,
            Started::Elsewhere(launch) => profile_launch(*launch).await,
        },
        None => profile(config.request()?, None).await,
    }
}

/// One live run in the TUI; the remark is shown in its Log.
pub(super) async fn profile(request: ConfigRequest, remark: Option<String>) -> Result<u8, Failure> {
    let mut plan = request.plan()?;
    plan.remarks.extend(remark);
    plan.check_machine()?;
    require_terminal(if matches!(plan.work(), Work::Watch) {
        "llmprof-tui watch --for SECONDS"
    } else {
        "llmprof-tui run"
    })?;
    let tui = plan.composed.config.output.tui.clone();
    let root = runs_root(&plan.composed);
    let replan = move |overrides: &[String]| {
        let plan = request.with_texts(overrides).and_then(|request| request.plan_again());
        plan.map_err(|failure| failure.to_string())
    };
    // Signals are caught before anything is started that a signal could leave unfinished.
    let shutdown = Shutdown::listen()?;
    let live = Live { session: Session::start(plan).into(), replan: Box::new(replan), sweep: None };
    let mut stopped = App::of_run(&tui, live, root.clone()).run(tui.mouse, shutdown).await;
    stopped.runs.iter_mut().for_each(|run| run.discard_unbegun(&root));
    report_exit(stopped)
}

async fn profile_sweep(mut runner: Runner) -> Result<u8, Failure> {
    let shutdown = Shutdown::listen()?;
    let Some(session) = runner.start_next() else {
        runner.take_remarks().iter().for_each(eprint_line);
        eprint_lines(table_text(&runner.sweep));
        return Ok(sweep::report_end(&runner, None, "llmprof-tui"));
    };
    let composed = &session.plan().composed;
    let (tui, root) = (composed.config.output.tui.clone(), runs_root(composed));
    let live =
        Live { session: session.into(), replan: Box::new(|_| Err(String::new())), sweep: Some(runner) };
    report_exit(App::of_run(&tui, live, root).run(tui.mouse, shutdown).await)
}

async fn profile_launch(launch: Launch) -> Result<u8, Failure> {
    let shutdown = Shutdown::listen()?;
    let composed = launch.runner.first()?;
    let (tui, root) = (composed.config.output.tui.clone(), runs_root(&composed));
    report_exit(App::of_jobs(&tui, launch, root).run(tui.mouse, shutdown).await)
}

/// Refuses to open the TUI without a terminal; `alternative` works without one.
pub(super) fn require_terminal(alternative: &str) -> Result<(), Failure> {
    if tui::terminal::is_there() {
        return Ok(());
    }
    Err(Failure::usage(format_args!("not a terminal: the TUI needs one; use {alternative}")))
}

/// Prints the outcome of the runs to stderr, below the restored terminal, and returns the exit code.
pub(super) fn report_exit(stopped: tui::Stopped) -> Result<u8, Failure> {
    let mut code = 0;
    for ended in &stopped.runs {
        if let Some(dir) = &ended.dir {
            eprint_line(format_args!("{}: recorded in {}", ended.finished.outcome, dir.display()));
        }
        code = code.max(run::report_end(ended));
    }
    stopped.exported.iter().for_each(eprint_line);
    if let Some(e) = stopped.error {
        return Err(Failure::work(format_args!("the terminal failed: {e}")));
    }
    if let Some(runner) = &stopped.sweep {
        eprint_lines(run::sweep_text(&runner.sweep));
        return Ok(sweep::report_end(runner, stopped.cause.as_ref(), "llmprof-tui"));
    }
    if let Some(launch) = &stopped.launch {
        eprint_lines(run::sweep_text(&launch.runner.sweep));
        return Ok(sweep::report_launch(launch, stopped.cause.as_ref(), "llmprof-tui"));
    }
    match stopped.cause {
        Some(cause) => {
            eprint_line(format_args!("interrupted: {cause}"));
            Ok(cause.exit_code())
        }
        None => Ok(code),
    }
}
