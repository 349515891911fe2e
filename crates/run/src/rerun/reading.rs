//! Reads the reports of a run under a tool.

use std::path::{Path, PathBuf};

use super::{
    Rerun,
    child::{ToolExit, ToolResult},
    command, configured_phase, extension,
    files::PassFiles,
    has_plain_ranges,
    passes::{self, Pass},
    trouble::{Observation, RerunError, RerunErrorKind, diagnose, no_kernels_profiled},
};
use gpu_traces as kernels;
use llmprof_base::{shell::quoted, tools::nsight::Installed};
use llmprof_config::ToolPhase;
use llmprof_event::{
    Tool,
    kernels::{KernelTable, Kind, Sort},
};

/// Rows of a table that are kept in the recording.
const MAX_ROWS: usize = 1000;

impl Rerun {
    /// The reports of a pass and their tables, or why there are none.
    pub(super) fn read(
        &self,
        installed: &Installed,
        files: &PassFiles,
        pass: &Pass,
        result: &ToolResult,
    ) -> Result<(Vec<PathBuf>, Vec<KernelTable>), RerunError> {
        let plain = has_plain_ranges(&self.config);
        let range = match (self.tool, configured_phase(self.tool, &self.config)) {
            (Tool::Nsys, ToolPhase::Decode) if plain => "decode",
            (Tool::Nsys, ToolPhase::Prefill) if plain => "prefill",
            (Tool::Nsys, ToolPhase::Both) if plain => "request",
            (Tool::Nsys, ToolPhase::Decode) => "decode@llmprof",
            (Tool::Nsys, ToolPhase::Prefill) => "prefill@llmprof",
            (Tool::Nsys, ToolPhase::Both) => "request@llmprof",
            (Tool::Ncu, ToolPhase::Decode) => "decode_step",
            (Tool::Ncu, ToolPhase::Prefill) => "prefill",
            (Tool::Ncu, ToolPhase::Both) => "prefill and decode_step",
        };
        let logs = files.stderr.display().to_string();
        let observed = Observation {
            tool: self.tool,
            exit: &result.exit,
            output: &result.output,
            finished: result.finished.as_ref(),
            device: &self.device,
            model_in_memory: self.model_in_memory,
            range,
            kernel: pass.kernel.as_deref(),
            logs: &logs,
        };
        let reports = files.reports(extension(self.tool));
        let raw = files.reports("qdstrm");
        let failed = !result.exit.is_success();
        // A report is complete if the tool failed after it was written, but not after a timeout.
        let timed_out = matches!(result.exit, ToolExit::TimedOut { .. });
        if timed_out || (reports.is_empty() && raw.is_empty()) {
            return Err(diagnose(&observed));
        }
        let found = if reports.is_empty() { &raw } else { &reports };
        let mut tables = Vec::new();
        for report in found {
            match kernels::open_on(report, &self.system) {
                Ok(read) => passes::join(&mut tables, read),
                Err(_) if failed => return Err(diagnose(&observed)),
                Err(e) if self.tool == Tool::Ncu && no_kernels_profiled(&result.output) => {
                    tracing::info!("{e}");
                    return Err(diagnose(&observed));
                }
                Err(e) => return Err(unreadable(installed, report, e.to_string())),
            }
        }
        if self.device.is_cuda() && !tables.iter().any(|table| table.kind == Kind::Kernels) {
            return Err(RerunErrorKind::RangesOnly { installed: installed.to_string() }.with_remedy(
                "an nsys that is older than the driver's CUDA records no kernels: install a newer one (llmprof-tui doctor reports which)",
            ));
        }
        if failed && let Some(table) = tables.first_mut() {
            table.notes.push(format!("{} failed ({})", self.tool, result.exit));
        }
        Ok((found.clone(), tables))
    }

    /// Sorts and shortens the tables, and adds notes on what is missing.
    pub(super) fn complete(&self, tables: &mut [KernelTable], notes: Vec<String>) {
        for table in tables.iter_mut() {
            if self.device.is_cpu() && table.kind == Kind::Ranges {
                table.notes =
                    vec!["the workload runs on the CPU: there are ranges and no kernels".to_owned()];
            }
            table.sort(Sort::default());
            let left_out = table.top(MAX_ROWS);
            if left_out > 0 {
                table.notes.push(format!("{left_out} shorter rows are only in the report"));
            }
        }
        let Some(first) = tables.first_mut() else { return };
        if self.tool == Tool::Ncu && self.config.profiling.ncu.set.is_none() {
            let asked = command::metrics(&self.config.profiling.ncu, self.compute_capability);
            let missing = passes::missing(first, &asked);
            if !missing.is_empty() {
                first.notes.push(format!("requested and not reported by ncu: {}", missing.join(", ")));
            }
        }
        first.notes.extend(notes);
    }
}

/// For a report that its own tool cannot read. Usually a part of the tool is missing, and the capture is not lost.
fn unreadable(installed: &Installed, report: &Path, error: String) -> RerunError {
    let report = report.display().to_string();
    let read_it = format!("llmprof-tui kernels {}", quoted(&report));
    match installed.problem(None) {
        Some(problem) => {
            RerunErrorKind::NotImported { installed: installed.to_string(), problem: problem.what, report }
                .with_remedy(format!("{}; then run {read_it}", problem.remedy))
        }
        None => RerunErrorKind::Unreadable(error).with_remedy(format!("try again with {read_it}")),
    }
}
