//! A run without a screen: progress on stderr, the result left to the caller.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    analysis::units::{millis, three_digits},
    event::{Outcome, Phase},
    plan::Plan,
    session::{Ended, Session},
    shutdown::{Cause, Shutdown},
    state::RunState,
};

/// How a headless run ended.
pub struct Finished {
    pub state: RunState,
    pub ended: Ended,
    pub cause: Option<Cause>,
}

/// Runs `plan` to its end, or until a signal ends it.
pub async fn run(plan: Plan, quiet: bool) -> io::Result<Finished> {
    let mut shutdown = Shutdown::listen()?;
    let mut session = Session::start(plan);
    let mut progress = Progress::new(quiet);
    let cause = loop {
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            _ = session.pump() => progress.show(&session.state),
        }
        if session.state.finished.is_some() {
            break None;
        }
    };
    progress.clear();
    let why = cause.as_ref().map(Cause::to_string);
    let ended = session.end(Outcome::Interrupted, why);
    Ok(Finished { state: std::mem::take(&mut session.state), ended, cause })
}

/// A line on stderr. Where nobody listens any more it is lost: no reason to end a run, as `eprintln!` would.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A bar on a terminal, plain lines elsewhere.
enum Progress {
    Bar(ProgressBar),
    Lines { shown: Instant, said: String },
    Quiet,
}

const BETWEEN_LINES: Duration = Duration::from_secs(2);

impl Progress {
    fn new(quiet: bool) -> Progress {
        if quiet {
            return Progress::Quiet;
        }
        if !io::stderr().is_terminal() {
            return Progress::Lines { shown: Instant::now(), said: String::new() };
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{bar:30.cyan} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Progress::Bar(bar)
    }

    fn show(&mut self, state: &RunState) {
        match self {
            Progress::Quiet => {}
            Progress::Bar(bar) => {
                bar.set_position((state.request_share_done() * 1000.0) as u64);
                bar.set_message(words(state));
            }
            Progress::Lines { shown, said } => {
                let line = words(state);
                if shown.elapsed() >= BETWEEN_LINES && line != *said {
                    say(format_args!("{:>5.1} s  {line}", state.now.secs()));
                    (*shown, *said) = (Instant::now(), line);
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

fn words(state: &RunState) -> String {
    if let (Phase::Preparing, Some(p)) = (state.phase, &state.preparing) {
        return format!("{} {} %", p.step, 100 * p.done / p.total.max(1));
    }
    let Some(run) = &state.run else { return "starting".to_owned() };
    let mut words = match &state.active {
        Some(active) if active.started.warmup => format!("warm-up {}/{}", state.warmup_done + 1, run.warmup),
        _ => format!("request {}/{}", (state.requests_done + 1).min(run.requests), run.requests),
    };
    words += &format!("  {}", state.phase.name());
    if let Some(rate) = state.recent_decode_tok_s(2.0) {
        words += &format!("  {} tok/s", three_digits(rate));
    }
    if let Some(ttft) = state.total.ttft.last_ms() {
        words += &format!("  TTFT {}", millis(ttft));
    }
    words
}
