//! What a run under a tool left: its tables, or why there are none.

use std::path::{Path, PathBuf};

use super::{
    Outcome, Rerun, Tool,
    child::{Ended, Ending},
    command, kept,
    passes::{self, Pass},
    trouble::{Seen, Trouble, recognise},
};
use crate::{
    config::ToolPhase,
    event::kernels::{KernelTable, Kind, SortBy},
    kernels,
    tools::nsight::Installed,
};

/// Rows of a table that a recording keeps.
const MOST_ROWS: usize = 1000;

impl Rerun {
    /// The tables of what a pass left, or why there are none.
    pub(super) fn read(
        &self,
        installed: &Installed,
        files: &kept::Files,
        pass: &Pass,
        ended: &Ended,
    ) -> Outcome<(Vec<PathBuf>, Vec<KernelTable>)> {
        let gate = match (self.gated, self.tool, self.asked_phase()) {
            (false, ..) => None,
            (_, Tool::Nsys, ToolPhase::Decode) => Some("decode@llmprof"),
            (_, Tool::Nsys, ToolPhase::Prefill) => Some("prefill@llmprof"),
            (_, Tool::Nsys, ToolPhase::Both) => Some("request@llmprof"),
            (_, Tool::Ncu, ToolPhase::Decode) => Some("decode_step"),
            (_, Tool::Ncu, ToolPhase::Prefill) => Some("prefill"),
            (_, Tool::Ncu, ToolPhase::Both) => Some("prefill and decode_step"),
        };
        let logs = files.stderr.display().to_string();
        let seen = Seen {
            tool: self.tool,
            ending: &ended.ending,
            said: &ended.said,
            finished: ended.finished.as_ref(),
            device: &self.device,
            beside: self.beside,
            gate,
            kernel: pass.kernel.as_deref(),
            logs: &logs,
        };
        let reports = files.reports(self.tool.extension());
        let raw = files.reports("qdstrm");
        let failed = !matches!(ended.ending, Ending::Exit(status) if status.success());
        // A tool that failed after a report was written has told what there was; one that timed out has not.
        let timed_out = matches!(ended.ending, Ending::TimedOut { .. });
        if timed_out || (reports.is_empty() && raw.is_empty()) {
            return Err(recognise(&seen).into());
        }
        let found = if reports.is_empty() { &raw } else { &reports };
        let mut tables = Vec::new();
        for report in found {
            match kernels::open_on(report, &self.system) {
                Ok(read) => passes::join(&mut tables, read),
                Err(_) if failed => return Err(recognise(&seen).into()),
                Err(e) if self.tool == Tool::Ncu && ended.said.contains("No kernels were profiled") => {
                    tracing::info!("{e}");
                    return Err(recognise(&seen).into());
                }
                Err(e) => return Err(self.unreadable(installed, report, &e.to_string()).into()),
            }
        }
        if self.device.is_cuda() && !tables.iter().any(|table| table.kind == Kind::Kernels) {
            return Err(Trouble::new(
                format!("{} recorded ranges and no kernels", installed.words()),
                "an nsys older than the driver's CUDA records none: install a newer one (llmprof-tui doctor tells which)",
            )
            .into());
        }
        if failed && let Some(table) = tables.first_mut() {
            table.notes.push(format!("{} did not end well ({})", self.tool, ended.ending.words()));
        }
        Ok((found.clone(), tables))
    }

    /// A report that its own tool can't read. Most often the tool lacks a part, and what was captured is not lost.
    fn unreadable(&self, installed: &Installed, report: &Path, why: &str) -> Trouble {
        match installed.trouble(None) {
            Some(lacks) => Trouble::new(
                format!(
                    "{}: {}; what was captured is in {}",
                    installed.words(),
                    lacks.what,
                    report.display()
                ),
                format!("{}; then llmprof-tui kernels {}", lacks.remedy, report.display()),
            ),
            None => Trouble::new(why, format!("llmprof-tui kernels {} tries again", report.display())),
        }
    }

    /// Sorts, shortens and notes what is missing.
    pub(super) fn finish(&self, tables: &mut [KernelTable], notes: Vec<String>) -> Outcome<()> {
        for table in tables.iter_mut() {
            if self.device.is_cpu() && table.kind == Kind::Ranges {
                table.notes =
                    vec!["the workload runs on the CPU: there are ranges, and no kernels".to_owned()];
            }
            table.sort(SortBy::Time);
            let left_out = table.top(MOST_ROWS);
            if left_out > 0 {
                table.notes.push(format!("{left_out} rows that take the least are in the report alone"));
            }
        }
        let Some(first) = tables.first_mut() else { return Ok(()) };
        if self.tool == Tool::Ncu && self.config.profiling.ncu.set.is_none() {
            let asked = command::metrics(&self.config.profiling.ncu, self.chip);
            let missing = passes::missing(first, &asked);
            if !missing.is_empty() {
                first.notes.push(format!("asked for and not given by ncu: {}", missing.join(", ")));
            }
        }
        first.notes.extend(notes);
        Ok(())
    }
}
