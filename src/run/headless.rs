//! Runs without a screen: progress is printed on stderr, the result is returned.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
        session::{Session, SessionSummary},
        sweep::{Column, Runner, Sweep},
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
    let mut progress = Progress::new(quiet, None);
    let cause = run_session(&mut session, &mut shutdown, &mut progress).await;
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
        if session.state.gpu_absent.is_some() && session.state.gpus.is_empty() {
            break None;
        }
    };
    let outcome = if cause.is_some() { Outcome::Interrupted } else { Outcome::Completed };
    Ok(finish(session, outcome, cause))
}

fn finish(mut session: Session, outcome: Outcome, cause: Option<Cause>) -> Finished {
    let summary = session.end(outcome, cause.as_ref().map(Cause::to_string));
    Finished { state: std::mem::take(&mut session.state), summary, cause }
}

/// Runs the remaining jobs, with a cool-down between them. Returns the cause where a signal ended it.
pub async fn sweep(runner: &mut Runner, quiet: bool) -> io::Result<Option<Cause>> {
    let mut shutdown = Shutdown::listen()?;
    loop {
        if let Some(cause) = cool_down(runner, &mut shutdown, quiet).await {
            return Ok(Some(cause));
        }
        let started = runner.start_next();
        print_remarks(runner);
        let Some(mut session) = started else { return Ok(None) };
        let job = runner.sweep.current();
        let mut progress = Progress::new(quiet, Some((&runner.sweep, job)));
        let cause = run_session(&mut session, &mut shutdown, &mut progress).await;
        runner.end_job(&mut session, Outcome::Interrupted, cause.as_ref().map(Cause::to_string));
        if !quiet {
            eprint_line(row(&runner.sweep, job));
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
    progress: &mut Progress,
) -> Option<Cause> {
    let cause = loop {
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            _ = session.pump() => progress.show(&session.state),
        }
        if session.is_done() {
            break None;
        }
    };
    progress.clear();
    cause
}

/// Waits for the end of the cool-down before the next job.
async fn cool_down(runner: &mut Runner, shutdown: &mut Shutdown, quiet: bool) -> Option<Cause> {
    let mut progress: Option<Progress> = None;
    let cause = loop {
        let status = runner.cooldown(Instant::now());
        print_remarks(runner);
        let Some(status) = status else { break None };
        let next = runner.sweep.current();
        let progress = progress.get_or_insert_with(|| Progress::new(quiet, Some((&runner.sweep, next))));
        progress.show_text(status.to_string(), "");
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    };
    if let Some(progress) = progress {
        progress.clear();
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

/// A bar on a terminal, plain lines elsewhere, with the job of a sweep as a prefix.
enum Progress {
    Bar(ProgressBar),
    Lines { label: String, printed: Option<Instant>, last: String },
    Quiet,
}

const LINE_INTERVAL: Duration = Duration::from_secs(2);

impl Progress {
    fn new(quiet: bool, job: Option<(&Sweep, usize)>) -> Progress {
        if quiet {
            return Progress::Quiet;
        }
        let label = job.map_or_else(String::new, |(sweep, job)| label(sweep, job) + "  ");
        if !io::stderr().is_terminal() {
            // The first line of a job names the job, so it is printed at once.
            let printed = job.is_none().then(Instant::now);
            return Progress::Lines { label, printed, last: String::new() };
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{prefix}{bar:30.cyan} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_prefix(label);
        Progress::Bar(bar)
    }

    fn show(&mut self, state: &RunState) {
        let (text, share) = describe(state);
        if let Progress::Bar(bar) = self {
            bar.set_position((share * 1000.0) as u64);
        }
        // The time of the run does not advance during a re-run under a tool.
        let time = state.kernels.working().is_none().then(|| format!("{:>5.1} s  ", state.now.secs()));
        self.show_text(text, &time.unwrap_or_default());
    }

    /// `time` is printed with a line, but alone it makes no new one.
    fn show_text(&mut self, text: String, time: &str) {
        match self {
            Progress::Quiet => {}
            Progress::Bar(bar) => bar.set_message(text),
            Progress::Lines { label, printed, last } => {
                if printed.is_none_or(|printed| printed.elapsed() >= LINE_INTERVAL) && text != *last {
                    eprint_line(format_args!("{label}{time}{text}"));
                    (*printed, *last) = (Some(Instant::now()), text);
                }
            }
        }
    }

    fn clear(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
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
