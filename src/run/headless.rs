//! Runs without a screen: progress is printed on stderr, the result is returned.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    base::units::{millis, percent, three_digits},
    event::{Outcome, Phase},
    process::{
        eprint_line,
        shutdown::{Cause, Shutdown},
    },
    run::{
        plan::Plan,
        progress::progress,
        progress_line::ProgressLine,
        session::{Session, SessionSummary},
        sweep::{Column, Runner, Sweep},
        time_left::{Estimate, TimeLeft},
    },
    state::RunState,
};

/// A headless run that has ended.
pub struct Finished {
    pub state: RunState,
    pub summary: SessionSummary,
    pub cause: Option<Cause>,
}

/// Runs `plan` to its end, or until a signal ends it.
pub async fn run(plan: Plan, quiet: bool) -> io::Result<Finished> {
    let mut shutdown = Shutdown::listen()?;
    let mut session = Session::start(plan);
    let mut line = ProgressLine::new(quiet, "");
    let cause = run_session(&mut session, &mut shutdown, &mut line, (&TimeLeft::start(), 1)).await;
    Ok(finish(session, Outcome::Interrupted, cause))
}

/// Monitors the GPUs for `time`, or until a signal ends it.
pub async fn watch(plan: Plan, time: Duration) -> io::Result<Finished> {
    let mut shutdown = Shutdown::listen()?;
    let mut session = Session::start(plan);
    let until = tokio::time::Instant::now() + time;
    let cause = loop {
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            () = tokio::time::sleep_until(until) => break None,
            _ = session.pump() => {}
        }
        let has_gpu = session.state.gpu_absent.is_none() || !session.state.gpus.is_empty();
        let plan = session.plan();
        if !has_gpu && plan.watched_server.is_none() && plan.watched_gpus.is_none() {
            break None;
        }
    };
    let outcome = if cause.is_some() { Outcome::Interrupted } else { Outcome::Completed };
    Ok(finish(session, outcome, cause))
}

/// Another program that has ended, or was followed for long enough.
pub struct Followed {
    pub state: RunState,
    pub summary: SessionSummary,
    pub cause: Option<Cause>,
    /// Of the program, where it has ended.
    pub exit_code: Option<u8>,
}

/// Follows another program to its end, or ends it after `time`. Ctrl-C reaches the program too, which decides what that means; other
/// signals are passed on as a request to end.
pub async fn follow(plan: Plan, time: Option<Duration>) -> io::Result<Followed> {
    let mut shutdown = Shutdown::listen()?;
    let mut session = Session::start(plan);
    let until = tokio::time::Instant::now() + time.unwrap_or(Duration::from_secs(u32::MAX.into()));
    let mut cause: Option<Cause> = None;
    while !session.is_done() {
        tokio::select! {
            // The second signal does not wait for the program.
            requested = shutdown.requested() => match cause.replace(requested) {
                Some(_) => break,
                None if cause == Some(Cause::Interrupt) => {}
                None => session.end_program(),
            },
            () = tokio::time::sleep_until(until) => break,
            _ = session.pump() => {}
        }
    }
    let outcome = if cause.is_some() { Outcome::Interrupted } else { Outcome::Completed };
    let control = session.program_control();
    let Finished { state, summary, cause } = finish(session, outcome, cause);
    Ok(Followed { state, summary, cause, exit_code: control.exit_code() })
}

fn finish(mut session: Session, outcome: Outcome, cause: Option<Cause>) -> Finished {
    let summary = session.end(outcome, cause.as_ref().map(Cause::to_string));
    Finished { state: std::mem::take(&mut session.state), summary, cause }
}

/// Runs the remaining jobs, with a cool-down between them. Returns the cause where a signal ended it.
pub async fn sweep(runner: &mut Runner, quiet: bool) -> io::Result<Option<Cause>> {
    let mut shutdown = Shutdown::listen()?;
    let mut time_left = TimeLeft::start();
    loop {
        if let Some(cause) = cool_down(runner, &mut shutdown, quiet).await {
            return Ok(Some(cause));
        }
        let started = runner.start_next();
        print_remarks(runner);
        let Some(mut session) = started else { return Ok(None) };
        let job = runner.sweep.current();
        let mut line = ProgressLine::new(quiet, &label(&runner.sweep, job));
        let cause =
            run_session(&mut session, &mut shutdown, &mut line, (&time_left, runner.sweep.left())).await;
        time_left.part_done();
        runner.end_job(&mut session, Outcome::Interrupted, cause.as_ref().map(Cause::to_string));
        if !quiet {
            let left = time_left
                .estimate(runner.sweep.left(), 0.0)
                .map(|left| format!("; {left}"))
                .unwrap_or_default();
            eprint_line(format_args!("{}{left}", row(&runner.sweep, job)));
        }
        print_remarks(runner);
        if cause.is_some() {
            return Ok(cause);
        }
    }
}

/// Takes events until the run ends, or a signal comes.
async fn run_session(
    session: &mut Session,
    shutdown: &mut Shutdown,
    line: &mut ProgressLine,
    (time_left, parts): (&TimeLeft, usize),
) -> Option<Cause> {
    let mut cause = None;
    // It may have failed at its start.
    while cause.is_none() && !session.is_done() {
        tokio::select! {
            requested = shutdown.requested() => cause = Some(requested),
            _ = session.pump() => show(line, &session.state, |share| time_left.estimate(parts, share)),
        }
    }
    line.clear();
    cause
}

/// Shows what the run does, and how far it is.
pub fn show(line: &mut ProgressLine, state: &RunState, left: impl Fn(f64) -> Option<Estimate>) {
    let (text, share) = describe(state);
    // The time of the run does not advance during a re-run under a tool.
    let time = state.kernels.working().is_none().then(|| format!("{:>5.1} s  ", state.now.secs()));
    line.show_share(share);
    line.show(text, &time.unwrap_or_default(), left(share));
}

/// Waits for the end of the cool-down before the next job.
async fn cool_down(runner: &mut Runner, shutdown: &mut Shutdown, quiet: bool) -> Option<Cause> {
    let mut line: Option<ProgressLine> = None;
    let cause = loop {
        let status = runner.cooldown(Instant::now());
        print_remarks(runner);
        let Some(status) = status else { break None };
        let next = runner.sweep.current();
        let line = line.get_or_insert_with(|| ProgressLine::new(quiet, &label(&runner.sweep, next)));
        line.show(status.to_string(), "", None);
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    };
    if let Some(line) = line {
        line.clear();
    }
    cause
}

const POLL_INTERVAL: Duration = Duration::from_millis(200);

fn print_remarks(runner: &mut Runner) {
    runner.take_remarks().iter().for_each(eprint_line);
}

/// The result of a job in one line.
fn row(sweep: &Sweep, job: usize) -> String {
    let mut line = format!("{}  {}", label(sweep, job), sweep.jobs[job].status());
    for column in Column::ALL {
        if let Some(cell) = column.cell(&sweep.jobs[job]) {
            line += &format!("  {} {cell}", column.heading);
        }
    }
    if let Some(reason) = sweep.jobs[job].reason() {
        line += &format!(": {reason}");
    }
    line
}

/// `job 2/6  model=qwen3_0_6b`.
fn label(sweep: &Sweep, job: usize) -> String {
    format!("{}  {}", sweep.label(job), sweep.swept_text(job)).trim_end().to_owned()
}

/// What the run does with its latest measurements, and the share done.
fn describe(state: &RunState) -> (String, f64) {
    if let Some((tool, doing, share)) = state.kernels.working() {
        let percentage = share.map(|share| format!(" {}", percent(100.0 * share))).unwrap_or_default();
        return (format!("under {tool}: {doing}{percentage}"), share.unwrap_or(0.0));
    }
    let (mut text, share) = progress(state);
    if let (Phase::Preparing, Some(share)) = (state.phase, share) {
        text += &format!(" {}", percent(100.0 * share));
    }
    if let Some(rate) = state.recent_decode_tok_s(2.0) {
        text += &format!("  {} tok/s", three_digits(rate));
    }
    if let Some(ttft) = state.total.ttft.last_ms() {
        text += &format!("  TTFT {}", millis(ttft));
    }
    (text, share.unwrap_or(0.0))
}
