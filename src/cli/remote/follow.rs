//! Follows a remote run locally: on the screen, or as text.

use std::{path::Path, time::Duration};

use super::args::{RemoteArgs, begin};
use crate::cli::{
    Failure,
    args::{ConfigRequest, runs_root, time_of},
    outcome::{has_failed, print_watched, report_end, report_exit, result_text},
    print, print_data, print_json,
    request::Shown,
};
use llmprof_app::{App, Live, Workload};
use llmprof_base::{
    foreign::Lines,
    process::{
        eprint_line, eprint_lines,
        shutdown::{Cause, Shutdown},
    },
    shell::quoted,
    units::bytes,
};
use llmprof_event::{Link, Outcome, WorkKind};
use llmprof_record::report::run_json;
use llmprof_run::{
    headless,
    progress_line::ProgressLine,
    remote::{Host, Order, RemoteMessage, RemoteRun, Start},
    time_left::TimeLeft,
};

/// Time for an ended run to confirm that it is no longer needed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// `screen` has the settings of the screen.
pub(super) async fn follow(
    args: &RemoteArgs,
    host: Host,
    start: Start,
    screen: &ConfigRequest,
    shown: Shown,
) -> Result<u8, Failure> {
    let run = begin(args, host, start)?;
    match shown.headless {
        true => without_screen(run, shown).await,
        false => on_screen(run, screen).await,
    }
}

/// Waits for the remote run to begin, so that its errors are reported before the screen opens.
async fn begun(run: &mut RemoteRun, shutdown: &mut Shutdown) -> Result<(), Failure> {
    let mut line = ProgressLine::new(false, "");
    let text = format!("starting on {}", run.host().short());
    while run.dir().is_none() {
        line.show(text.clone(), "", None);
        tokio::select! {
            cause = shutdown.requested() => return Err(Failure::Interrupted(cause)),
            _ = run.pump() => {}
        }
        if let Some((reason, usage)) = run.failed().cloned() {
            line.clear();
            return Err(if usage { Failure::Usage(reason) } else { Failure::Work(reason) });
        }
    }
    line.clear();
    Ok(())
}

async fn on_screen(mut run: RemoteRun, screen: &ConfigRequest) -> Result<u8, Failure> {
    let composed = screen.compose()?;
    let tui = composed.config.output.tui.clone();
    let mut shutdown = Shutdown::listen()?;
    begun(&mut run, &mut shutdown).await?;
    let live = Live {
        session: Workload::There(Box::new(run)),
        replan: Box::new(|_| Err(String::new())),
        sweep: None,
    };
    let mut stopped = App::of_run(&tui, live, runs_root(&composed)).run(tui.mouse, shutdown).await;
    let Some(mut run) = stopped.remote.take() else { return report_exit(stopped) };
    let mut shutdown = Shutdown::listen()?;
    let leaves = stopped.cause.is_some() || stopped.error.is_some();
    if !leaves && (run.has_orders() || !run.is_running()) {
        finish(&mut run, &mut shutdown, false).await;
    }
    stopped.runs = run.summaries();
    let program = run.done().and_then(|ended| ended.exit_code);
    report_left(&run);
    let code = report_exit(stopped)?;
    Ok(program.unwrap_or(code))
}

/// Waits for the end of the run and for its files, then releases it. A signal ends the waiting.
async fn finish(run: &mut RemoteRun, shutdown: &mut Shutdown, quiet: bool) -> Option<Cause> {
    let mut line = ProgressLine::new(quiet, "");
    while !run.is_complete() && run.failed().is_none() {
        show_copy(&mut line, run);
        tokio::select! {
            cause = shutdown.requested() => {
                line.clear();
                return Some(cause);
            }
            _ = run.pump() => {}
        }
        if let Link::Lost { next: None, .. } = run.link() {
            break;
        }
    }
    line.clear();
    leave(run).await;
    None
}

/// The process of an ended run need not wait for further commands.
async fn leave(run: &mut RemoteRun) {
    if run.done().is_none() || !run.is_connected() {
        return;
    }
    run.order(Order::Leave);
    let answered = async {
        while run.has_orders() && run.is_connected() {
            run.pump().await;
        }
    };
    // Without a confirmation it ends by itself a little later.
    let _ = tokio::time::timeout(LEAVE_TIMEOUT, answered).await;
}

fn show_copy(line: &mut ProgressLine, run: &RemoteRun) {
    let host = run.host().short();
    let text = match (run.link(), run.fetching()) {
        (Link::Lost { since, reason, .. }, _) => {
            format!("connection to {host} lost for {:.0} s: {reason}", since.as_secs_f64())
        }
        (_, Some((done, total))) => {
            line.show_share(done as f64 / total.max(1) as f64);
            format!("copying {} of {} from {host}", bytes(done), bytes(total.max(done)))
        }
        (_, None) => format!("waiting for {host}"),
    };
    line.show(text, "", None);
}

/// Reports what continues on the remote host and which files stayed on it.
fn report_left(run: &RemoteRun) {
    let (host, command) = (run.host().short(), run.host().command_line());
    if let (true, Some(id)) = (run.is_running(), run.id()) {
        eprint_line(format_args!("the run {id} is in progress on {host}"));
        eprint_line(format_args!("  show it again:  {command} --reconnect {id}"));
        eprint_line(format_args!("  end it:         {command} --end {id}"));
        return;
    }
    if !run.is_complete() && run.done().is_some() {
        let id = run.id().unwrap_or_default();
        eprint_line(format_args!(
            "the local copy of the run is incomplete; complete it with {command} --reconnect {id}"
        ));
    }
    for name in run.left_out() {
        eprint_line(format_args!("left on the remote host, beyond --fetch-limit: {name}"));
    }
    if let Some(file) = run.left_out().first().and_then(|name| name.rsplit_once(" (")) {
        eprint_line(format_args!("  copy one with scp {}:{} .", run.host().name, quoted(file.0)));
    }
}

/// Prints progress on stderr, and the result as `run` and `exec` do.
pub(super) async fn without_screen(mut run: RemoteRun, shown: Shown) -> Result<u8, Failure> {
    let is_program = run.follows_program();
    let time = shown.seconds.map(time_of).transpose()?;
    let mut shutdown = Shutdown::listen()?;
    begun(&mut run, &mut shutdown).await?;
    let until = tokio::time::Instant::now() + time.unwrap_or(Duration::from_secs(u32::MAX.into()));
    let mut line = ProgressLine::new(shown.quiet, "");
    let time_left = TimeLeft::start();
    let (mut cause, mut timed_out) = (None, false);
    if is_program {
        run.keep_output();
    }
    while !run.is_complete() && run.failed().is_none() {
        tokio::select! {
            requested = shutdown.requested() => match cause.replace(requested.clone()) {
                // A closed terminal leaves the run in progress; so does a second signal.
                Some(_) => break,
                None if requested == Cause::HangUp => break,
                None => run.order(Order::End { outcome: Outcome::Interrupted, cause: Some(requested.to_string()) }),
            },
            () = tokio::time::sleep_until(until), if !timed_out => {
                timed_out = true;
                run.order(Order::End { outcome: Outcome::Completed, cause: None });
            }
            _ = run.pump() => {}
        }
        while let Some(said) = run.take_said() {
            let (RemoteMessage::Message(text) | RemoteMessage::Error(text)) = said;
            line.clear();
            eprint_line(text);
            line = ProgressLine::new(shown.quiet, "");
        }
        while let Some((stderr, text)) = run.take_output() {
            line.clear();
            print_there(stderr || shown.json, text.as_bytes())?;
            line = ProgressLine::new(shown.quiet, "");
        }
        match (run.link(), run.fetching()) {
            (Link::Lost { next: None, .. }, _) => break,
            (Link::Up { .. }, None) => {
                headless::show(&mut line, &run.state, |share| time_left.estimate(1, share));
            }
            _ => show_copy(&mut line, &run),
        }
    }
    line.clear();
    if let Some((reason, usage)) = run.failed().cloned() {
        return Err(if usage { Failure::Usage(reason) } else { Failure::Work(reason) });
    }
    if cause.is_none() || run.is_complete() {
        leave(&mut run).await;
    }
    report_left(&run);
    let Some(ended) = run.done().cloned() else {
        return Ok(cause.map_or(1, |cause| cause.exit_code()));
    };
    let dir = run.dir().map(Path::to_owned);
    let text = || result_text(&run.state, dir.as_deref(), run.is_for_tools_alone());
    let is_watch = *run.state.kind() == WorkKind::Watch;
    match (is_watch, shown.json, is_program) {
        (true, json, _) => print_watched(&run.state, json)?,
        (false, true, _) => print_json(&run_json(&run.state, dir.as_deref()))?,
        (false, false, true) => eprint_lines(text()),
        (false, false, false) => print(&text())?,
    }
    let code = run.summaries().last().map_or(0, report_end).max(u8::from(!run.is_complete()));
    let code = code.max(u8::from(is_watch && has_failed(&run.state)));
    match (&cause, ended.exit_code.filter(|_| is_program)) {
        (_, Some(code)) => Ok(code),
        (Some(cause), None) => {
            eprint_line(format_args!("interrupted: {cause}"));
            Ok(cause.exit_code())
        }
        (None, None) => Ok(code),
    }
}

/// Prints text of the remote host.
pub(super) fn print_there(stderr: bool, text: &[u8]) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(text);
    match stderr {
        true => {
            eprint_lines(Lines(&*text));
            Ok(())
        }
        false => print_data(&text),
    }
}
