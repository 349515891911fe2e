//! A run without a screen: progress on stderr, the result left to the caller.

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
        session::{Ended, Session},
        sweep::{Column, Runner, Sweep},
    },
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
    let mut progress = Progress::new(quiet, None);
    let cause = attend(&mut session, &mut shutdown, &mut progress).await;
    let why = cause.as_ref().map(Cause::to_string);
    let ended = session.end(Outcome::Interrupted, why);
    Ok(Finished { state: std::mem::take(&mut session.state), ended, cause })
}

/// Looks at the GPUs for `time`, or until a signal ends it.
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
    let ended = session.end(outcome, cause.as_ref().map(Cause::to_string));
    Ok(Finished { state: std::mem::take(&mut session.state), ended, cause })
}

/// Runs the jobs that are left, with a rest between them; gives the reason where a signal ended it.
pub async fn sweep(runner: &mut Runner, quiet: bool) -> io::Result<Option<Cause>> {
    let mut shutdown = Shutdown::listen()?;
    loop {
        if let Some(cause) = rest(runner, &mut shutdown, quiet).await {
            return Ok(Some(cause));
        }
        let started = runner.start_next();
        tell(runner.take_remarks());
        let Some(mut session) = started else { return Ok(None) };
        let job = runner.sweep.current();
        let mut progress = Progress::new(quiet, Some((&runner.sweep, job)));
        let cause = attend(&mut session, &mut shutdown, &mut progress).await;
        runner.end_job(&mut session, Outcome::Interrupted, cause.as_ref().map(Cause::to_string));
        if !quiet {
            eprint_line(row(&runner.sweep, job));
        }
        tell(runner.take_remarks());
        if cause.is_some() {
            return Ok(cause);
        }
    }
}

/// Takes in what happens until the run ends, or a signal comes.
async fn attend(session: &mut Session, shutdown: &mut Shutdown, progress: &mut Progress) -> Option<Cause> {
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

/// Waits out the rest before the next job.
async fn rest(runner: &mut Runner, shutdown: &mut Shutdown, quiet: bool) -> Option<Cause> {
    let mut progress: Option<Progress> = None;
    let cause = loop {
        let cooling = runner.cooling(Instant::now());
        tell(runner.take_remarks());
        let Some(cooling) = cooling else { break None };
        let next = runner.sweep.current();
        let progress = progress.get_or_insert_with(|| Progress::new(quiet, Some((&runner.sweep, next))));
        progress.say(&cooling.words());
        tokio::select! {
            cause = shutdown.requested() => break Some(cause),
            () = tokio::time::sleep(BETWEEN_LOOKS) => {}
        }
    };
    if let Some(progress) = progress {
        progress.clear();
    }
    cause
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

fn tell(remarks: Vec<String>) {
    remarks.iter().for_each(eprint_line);
}

/// How a job ended, in a line.
fn row(sweep: &Sweep, job: usize) -> String {
    let mut line = format!("{}  {}", label(sweep, job), sweep.jobs[job].outcome_word());
    for column in Column::ALL {
        if let Some(cell) = column.cell(&sweep.jobs[job]) {
            line += &match column.heading {
                "tok/s" => format!("  {cell} tok/s"),
                heading => format!("  {heading} {cell}"),
            };
        }
    }
    if let Some(reason) = sweep.jobs[job].reason() {
        line += &format!(": {reason}");
    }
    line
}

/// `job 2/6  model=qwen3_0_6b`.
fn label(sweep: &Sweep, job: usize) -> String {
    format!("{}  {}", sweep.place(job), sweep.swept_text(job)).trim_end().to_owned()
}

/// A bar on a terminal, plain lines elsewhere; the job of a sweep stands in front.
enum Progress {
    Bar(ProgressBar),
    Lines { label: String, shown: Option<Instant>, said: String },
    Quiet,
}

const BETWEEN_LINES: Duration = Duration::from_secs(2);

impl Progress {
    fn new(quiet: bool, job: Option<(&Sweep, usize)>) -> Progress {
        if quiet {
            return Progress::Quiet;
        }
        let label = job.map_or_else(String::new, |(sweep, job)| label(sweep, job) + "  ");
        if !io::stderr().is_terminal() {
            // The first words of a single run can wait; those of a job tell which one it is.
            let shown = job.is_none().then(Instant::now);
            return Progress::Lines { label, shown, said: String::new() };
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{prefix}{bar:30.cyan} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_prefix(label);
        Progress::Bar(bar)
    }

    fn show(&mut self, state: &RunState) {
        match self {
            Progress::Quiet => {}
            Progress::Bar(bar) => {
                let under = state.kernels.working().map(|(_, _, share)| share.unwrap_or(0.0));
                bar.set_position((under.unwrap_or_else(|| state.request_share_done()) * 1000.0) as u64);
                bar.set_message(words(state));
            }
            Progress::Lines { .. } => {
                // The run's own time stands still while a tool does it again.
                let at = match state.kernels.working() {
                    Some(_) => String::new(),
                    None => format!("{:>5.1} s  ", state.now.secs()),
                };
                self.line(&words(state), &at);
            }
        }
    }

    /// Words in place of a measure.
    fn say(&mut self, words: &str) {
        match self {
            Progress::Quiet => {}
            Progress::Bar(bar) => bar.set_message(words.to_owned()),
            Progress::Lines { .. } => self.line(words, ""),
        }
    }

    fn line(&mut self, words: &str, time: &str) {
        if let Progress::Lines { label, shown, said } = self
            && shown.is_none_or(|shown| shown.elapsed() >= BETWEEN_LINES)
            && words != said
        {
            eprint_line(format_args!("{label}{time}{words}"));
            (*shown, *said) = (Some(Instant::now()), words.to_owned());
        }
    }

    fn clear(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn words(state: &RunState) -> String {
    if let Some((tool, doing, share)) = state.kernels.working() {
        let share = share.map(|share| format!(" {}", percent(100.0 * share))).unwrap_or_default();
        return format!("under {tool}: {doing}{share}");
    }
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
