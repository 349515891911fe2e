//! The end of a run: its result as text or JSON, its problems, and the exit code.

use std::path::Path;

use super::{Failure, diagnose, print_data, print_json};
use llmprof_app as tui;
use llmprof_base::{
    foreign::line,
    process::{eprint_line, eprint_lines, shutdown::Cause},
    shell::quoted,
    units::three_digits,
};
use llmprof_event::{Outcome, WorkKind};
use llmprof_record::{
    report::{
        account_text, bill_text, kernels_text, latency_table, ranks_text, watched_server_json,
        watched_server_text,
    },
    state::{RunState, ServerState},
    sweep::{Sweep, table_text},
};
use llmprof_run::{
    session::SessionSummary,
    sweep::{Launch, Runner},
};

/// Maximum rows of a kernel table.
const KERNEL_ROWS: usize = 20;
/// The same for a program, whose kernels come by phase.
const PROGRAM_KERNEL_ROWS: usize = 15;

/// Kernels and summary of a run. With `only_tools` there was no other workload than that under tools.
pub(super) fn result_text(state: &RunState, dir: Option<&Path>, only_tools: bool) -> String {
    let summary = if only_tools { recorded_in(dir) } else { summary(state, dir) };
    paragraphs([kernels_text(state, KERNEL_ROWS), summary.trim().to_owned()])
}

/// Prints a followed program on stderr: stdout is the program's.
pub(super) fn print_program(state: &RunState, dir: Option<&Path>) {
    let kernels = kernels_text(state, PROGRAM_KERNEL_ROWS);
    eprint_lines(paragraphs([kernels, ranks_text(state), summary(state, dir).trim().to_owned()]));
}

fn paragraphs<const N: usize>(parts: [String; N]) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
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
    out += &latency_table(state).select("name,mean,p50,p90,p99,n").text();
    let rate = |v: Option<f64>| v.map_or_else(|| "–".to_owned(), |v| format!("{} tok/s", three_digits(v)));
    let [output, prefill, decode] =
        [total.output_tok_s(), total.prefill_tok_s(), state.decode_tok_s()].map(rate);
    out += &match state.kind().infers_steps() {
        true => {
            let decode = state.decode_tok_s().map_or_else(|| "–".to_owned(), three_digits);
            format!("\n\ndecode {decode} steps/s; the number of tokens per step is unknown\n")
        }
        false => format!("\n\noutput {output} by the wall clock, prefill {prefill}, decode {decode}\n"),
    };
    if let Some(tally) = &state.vision {
        out += &format!("{tally}\n");
    }
    if let Some(tally) = state.speculation {
        out += &format!("{tally}\n");
    }
    let account = account_text(state);
    if !account.is_empty() {
        out += &format!("\n{account}\n");
    }
    if let Some(limit) = state.limit() {
        out += &format!("\n{limit}\n");
    }
    if let Some(bill) = bill_text(state).filter(|_| state.load_tested().is_some()) {
        out += &format!("{bill}\n");
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

fn recorded_in(dir: Option<&Path>) -> String {
    dir.map(|dir| format!("recorded in {}\n", dir.display())).unwrap_or_default()
}

/// Like [`report_sweep`], for jobs in other processes.
pub(super) fn report_launch(launch: &Launch, cause: Option<&Cause>, command: &str) -> u8 {
    let sweep = &launch.runner.sweep;
    let left = sweep.unfinished();
    if left == 0 || !launch.goes_on {
        return report_sweep(&launch.runner, cause, command);
    }
    let dir = quoted(&sweep.dir.display().to_string());
    if let Some(cause) = cause {
        eprint_line(format_args!("interrupted: {cause}"));
    }
    eprint_lines(format_args!(
        "{left} jobs continue in Slurm\n  follow them again: {command} --resume {dir}\n  cancel them:       \
         llmprof-tui run --resume {dir} --cancel"
    ));
    cause.map_or_else(|| launch.runner.exit_code(), Cause::exit_code)
}

/// Prints how a sweep ended and how to resume it to stderr, and returns the exit code.
pub(super) fn report_sweep(runner: &Runner, cause: Option<&Cause>, command: &str) -> u8 {
    let sweep = &runner.sweep;
    if let Some(cause) = cause {
        eprint_line(format_args!("interrupted: {cause}"));
    }
    if !sweep.is_complete() {
        let (total, completed) = (sweep.jobs.len(), sweep.count(Outcome::Completed));
        let dir = quoted(&sweep.dir.display().to_string());
        let host = runner.host().map(|host| format!(" --host {}", quoted(host))).unwrap_or_default();
        eprint_line(format_args!(
            "{completed} of {total} jobs completed; to run the others: {command}{host} --resume {dir}"
        ));
    }
    cause.map_or_else(|| runner.exit_code(), Cause::exit_code)
}

/// Prints the outcome of the runs to stderr, below the restored terminal, and returns the exit code.
pub(super) fn report_exit(stopped: tui::Stopped) -> Result<u8, Failure> {
    let mut code = 0;
    for ended in &stopped.runs {
        if let Some(dir) = &ended.dir {
            eprint_line(format_args!("{}: recorded in {}", ended.finished.outcome, dir.display()));
        }
        code = code.max(report_end(ended));
    }
    stopped.exported.iter().for_each(eprint_line);
    if let Some(e) = stopped.error {
        return Err(Failure::work(format_args!("the terminal failed: {e}")));
    }
    if let Some(runner) = &stopped.sweep {
        eprint_lines(sweep_text(&runner.sweep));
        return Ok(report_sweep(runner, stopped.cause.as_ref(), "llmprof-tui"));
    }
    if let Some(launch) = &stopped.launch {
        eprint_lines(sweep_text(&launch.runner.sweep));
        return Ok(report_launch(launch, stopped.cause.as_ref(), "llmprof-tui"));
    }
    match stopped.cause {
        Some(cause) => {
            eprint_line(format_args!("interrupted: {cause}"));
            Ok(cause.exit_code())
        }
        None => Ok(code),
    }
}

/// Whether a server does not answer at the end, or an alert was crossed.
pub(super) fn has_failed(state: &RunState) -> bool {
    state.silence().is_some() || state.alerts_crossed > 0
}

/// No server has reported metrics.
pub(super) fn unseen(url: &str, state: &RunState) -> Failure {
    match state.server.silence(state.now).filter(|_| !state.server.has_unknown_metrics) {
        Some(silence) => Failure::work(format_args!("{url}: {silence}")),
        None => Failure::work(format_args!(
            "{url} has no metrics that this program reads: those of vLLM, SGLang (--enable-metrics), TensorRT-LLM, \
             Triton, llama.cpp (--metrics) and TGI. Pass the address of the page if it is not /metrics"
        )),
    }
}

/// The servers that do not answer at the end.
pub(super) fn failures(urls: &[String], state: &RunState) -> Vec<String> {
    let silences = state.servers().zip(urls).filter_map(|(server, url)| {
        let silence = server.silence(state.now)?;
        Some(if urls.len() > 1 { format!("{url}: {silence}") } else { silence })
    });
    silences.collect()
}

/// Prints the observations of a server or of the GPUs.
pub(super) fn print_watched(state: &RunState, json: bool) -> Result<(), Failure> {
    match (state.servers().any(|server| server.is_there()), json) {
        (true, true) => return print_json(&watched_server_json(state)),
        (true, false) => return print_data(&watched_server_text(state)),
        (false, _) => {}
    }
    if let Some(absent) = state.gpu_absent.as_ref().filter(|_| state.gpus.is_empty()) {
        return Err(Failure::work(format_args!("{}; {}", absent.reason, absent.remedy)));
    }
    diagnose::print_all(&diagnose::of_state(state), json)
}
