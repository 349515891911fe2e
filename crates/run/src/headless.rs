//! Runs without a screen: progress is printed on stderr, the result is returned.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    plan::Plan,
    progress::progress,
    progress_line::ProgressLine,
    session::{Session, SessionSummary},
    sweep::{Launch, Runner, Task},
    time_left::{Estimate, TimeLeft},
};
use llmprof_base::{
    process::{
        eprint_line, ring_stderr,
        shutdown::{Cause, Relayed, Shutdown},
    },
    units::{millis, percent, three_digits},
};
use llmprof_event::{Outcome, Phase};
use llmprof_record::{
    state::RunState,
    sweep::{JobState, Measured, Sweep},
};
use llmprof_sources::attach::Target;

/// A headless run that has ended.
pub struct Finished {
    pub state: RunState,
    pub summary: SessionSummary,
    pub cause: Option<Cause>,
}

/// Runs `plan` until it ends or a signal ends it.
pub async fn run(plan: Plan, quiet: bool) -> io::Result<Finished> {
    run_named(plan, quiet, "").await
}

/// Like [`run`], with a name in the progress line.
pub async fn run_named(plan: Plan, quiet: bool, name: &str) -> io::Result<Finished> {
    let mut shutdown = Shutdown::listen()?;
    let mut session = Session::start(plan);
    let mut line = ProgressLine::new(quiet, name);
    let cause = run_session(&mut session, &mut shutdown, &mut line, (&TimeLeft::start(), 1)).await;
    Ok(finish(session, Outcome::Interrupted, cause))
}

/// The end of a run that may last for `time`.
fn end_after(time: Option<Duration>) -> tokio::time::Instant {
    tokio::time::Instant::now() + time.unwrap_or(Duration::from_secs(u32::MAX.into()))
}

/// Monitors the GPUs for `time`, or until a signal ends it.
pub async fn watch(plan: Plan, time: Option<Duration>) -> io::Result<Finished> {
    let mut shutdown = Shutdown::listen()?;
    let mut session = Session::start(plan);
    let until = end_after(time);
    let mut shown = (0, 0);
    let cause = loop {
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            () = tokio::time::sleep_until(until) => break None,
            _ = session.pump() => {}
        }
        shown = show_alerts(&session.state, shown);
        let has_gpu = session.state.gpu_absent.is_none() || !session.state.gpus.is_empty();
        let plan = session.plan();
        if !has_gpu && plan.watched_servers.is_empty() && plan.watched_gpus.is_none() {
            break None;
        }
    };
    let outcome = if cause.is_some() { Outcome::Interrupted } else { Outcome::Completed };
    Ok(finish(session, outcome, cause))
}

/// Prints the changes of alerts after the first `changed`, and rings the bell if more than `crossed` became true.
/// Returns both numbers.
fn show_alerts(state: &RunState, (crossed, changed): (u64, u64)) -> (u64, u64) {
    if state.alerts_crossed > crossed {
        ring_stderr();
    }
    let new = (state.alerts_changed - changed) as usize;
    let old = state.alerts.len().saturating_sub(new);
    state.alerts.iter().skip(old).for_each(|(_, alert)| eprint_line(alert));
    (state.alerts_crossed, state.alerts_changed)
}

/// Another program that has ended, or was followed until the time limit.
pub struct ProgramOutcome {
    pub state: RunState,
    pub summary: SessionSummary,
    pub cause: Option<Cause>,
    /// The exit code of the program, if it has ended.
    pub exit_code: Option<u8>,
}

/// Follows another program until it ends, or ends it after `time`; a joined program is detached from then, or at a
/// signal. Ctrl-C reaches the program too; other signals are forwarded to it, once. The program decides what they mean.
pub async fn follow(plan: Plan, time: Option<Duration>) -> io::Result<ProgramOutcome> {
    let mut shutdown = Shutdown::listen()?;
    let mut relayed = Relayed::listen()?;
    // A joined program continues.
    let is_joined = matches!(plan.work.program(), Some(Target::Join { .. }));
    let mut session = Session::start(plan);
    let until = end_after(time);
    let mut cause: Option<Cause> = None;
    while !session.is_done() {
        tokio::select! {
            // The second signal does not wait for the program.
            requested = shutdown.requested() => match cause.replace(requested) {
                Some(_) => break,
                None if is_joined => break,
                // The terminal has also sent it to the program.
                None if cause == Some(Cause::Interrupt) => {}
                None => match cause.as_ref().and_then(Cause::signal) {
                    Some(signal) => session.program_control().pass_on(signal),
                    None => session.end_program(),
                },
            },
            signal = relayed.next() => session.program_control().pass_on(signal),
            () = tokio::time::sleep_until(until) => break,
            _ = session.pump() => {}
        }
    }
    let outcome = if cause.is_some() { Outcome::Interrupted } else { Outcome::Completed };
    let control = session.program_control();
    let Finished { state, summary, cause } = finish(session, outcome, cause);
    Ok(ProgramOutcome { state, summary, cause, exit_code: control.exit_code() })
}

fn finish(mut session: Session, outcome: Outcome, cause: Option<Cause>) -> Finished {
    let summary = session.end(outcome, cause.as_ref().map(Cause::to_string));
    Finished { state: std::mem::take(&mut session.state), summary, cause }
}

/// Runs the remaining jobs, with a cool-down between them. Returns the signal if one ended it.
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
            run_session(&mut session, &mut shutdown, &mut line, (&time_left, runner.sweep.unfinished()))
                .await;
        time_left.part_done();
        runner.end_job(&mut session, Outcome::Interrupted, cause.as_ref().map(Cause::to_string));
        if !quiet {
            let left = time_left
                .estimate(runner.sweep.unfinished(), 0.0)
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

/// Runs one job of a sweep, then cools down: until that is over, the launcher gives the GPU to no other job.
pub async fn job(task: Task) -> io::Result<Finished> {
    let (config, device) = task.settings();
    let finished = run(task.plan, true).await?;
    if finished.cause.is_none() {
        let mut shutdown = Shutdown::listen()?;
        let mut cooldown = Task::cooldown(&config, &device, &finished.state);
        while cooldown.status(Instant::now()).is_some() {
            tokio::select! {
                _ = shutdown.requested() => break,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }
    Ok(finished)
}

/// Follows jobs in other processes until all of them have ended, or until a signal. If they continue without this
/// program, the signal ends only the following.
pub async fn launch(launch: &mut Launch, quiet: bool) -> io::Result<Option<Cause>> {
    let mut shutdown = Shutdown::listen()?;
    let mut time_left = TimeLeft::start();
    let mut line = ProgressLine::new(quiet, "sweep");
    let mut trouble: Option<String> = None;
    let cause = loop {
        if launch.trouble != trouble {
            trouble.clone_from(&launch.trouble);
            line.pause(|| match &trouble {
                Some(trouble) => eprint_line(trouble),
                None => eprint_line("the jobs are visible again"),
            });
        }
        let remarks = launch.runner.take_remarks();
        if !remarks.is_empty() {
            line.pause(|| remarks.iter().for_each(eprint_line));
        }
        let sweep = &launch.runner.sweep;
        let done = sweep.jobs.len() - sweep.unfinished();
        line.show_share(done as f64 / sweep.jobs.len().max(1) as f64);
        line.show(launch_line(sweep), "", time_left.estimate(sweep.unfinished(), 0.0));
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            ended = launch.pump() => {
                let Some(ended) = ended else { break None };
                for job in ended {
                    time_left.part_done();
                    let text = row(&launch.runner.sweep, job);
                    line.pause(|| if !quiet { eprint_line(text) });
                }
            }
        }
    };
    line.clear();
    print_remarks(&mut launch.runner);
    Ok(cause)
}

/// `3 of 8 jobs ended, 2 running (n1, n2), 3 pending: no free resources`.
fn launch_line(sweep: &Sweep) -> String {
    const NAMES: usize = 4;
    let ended = sweep.jobs.len() - sweep.unfinished();
    let mut text = format!("{ended} of {} jobs ended", sweep.jobs.len());
    let running = sweep.count_running();
    if running > 0 {
        let mut on: Vec<&str> = Vec::new();
        for job in sweep.jobs.iter().filter(|job| job.state == JobState::Running) {
            let name = job.placement.as_ref().and_then(|placement| placement.on.as_deref());
            on.extend(name.filter(|name| !on.contains(name)));
        }
        let more = if on.len() > NAMES { ", …" } else { "" };
        on.truncate(NAMES);
        let on = if on.is_empty() { String::new() } else { format!(" ({}{more})", on.join(", ")) };
        text += &format!(", {running} running{on}");
    }
    let waiting = sweep.waiting();
    if let Some(first) = waiting.first() {
        let why = sweep.jobs[*first].reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        text += &format!(", {} pending{why}", waiting.len());
    }
    text
}

/// Processes events until the run ends or a signal arrives.
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

/// Shows the activity of the run and its progress.
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
    if let [id, Some(on)] = sweep.jobs[job].placement_parts() {
        line += &format!(" ({})", id.into_iter().chain([on]).collect::<Vec<_>>().join(" on "));
    }
    for measured in Measured::ALL {
        let cell = measured.cell(sweep.jobs[job].metrics());
        if !cell.is_missing() {
            line += &format!("  {} {}", measured.title, cell.text());
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

/// The activity of the run with its latest measurements, and the share done.
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
