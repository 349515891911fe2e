//! Why a run under a tool gave no report, and the remedy.

use std::fmt;

use thiserror::Error;

use super::child::ToolExit;
use llmprof_base::tools::nsight::COUNTERS_FOR_ALL;
use llmprof_event::{Device, Outcome, RunFinished, Tool};

/// The problem and the remedy.
#[derive(Debug, Clone, PartialEq)]
pub struct RerunError {
    pub kind: RerunErrorKind,
    pub remedy: String,
}

#[derive(Debug, Clone, PartialEq, Error)]
pub enum RerunErrorKind {
    #[error("{title} is not installed (searched {searched})")]
    NotInstalled { title: &'static str, searched: String },
    #[error("{title} at {path}: {problem}")]
    Broken { title: &'static str, path: String, problem: String },
    #[error("{action}: {error}")]
    Io { action: String, error: String },
    #[error("{0}")]
    KernelList(String),
    #[error("{tool} exceeded profiling.{tool}.timeout_s={limit_s} and was stopped")]
    TimedOut { tool: Tool, limit_s: f64 },
    #[error("{tool} cannot be started: {error}")]
    NotStarted { tool: Tool, error: String },
    /// A known message of the tool.
    #[error("{0}")]
    Known(&'static str),
    #[error("the run under {tool} is out of memory{}", .cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
    OutOfMemory { tool: Tool, cause: Option<String> },
    #[error("the run under {tool} failed: {cause}")]
    RunFailed { tool: Tool, cause: String },
    #[error("the run under {tool} ended early ({exit})")]
    RunEndedEarly { tool: Tool, exit: ToolExit },
    #[error("{tool} failed after the run ({exit})")]
    FailedAfterRun { tool: Tool, exit: ToolExit },
    #[error("{tool} wrote no report: the range {range} never began")]
    RangeNeverBegan { tool: Tool, range: &'static str },
    /// One kernel of a list was not launched; the others may have been.
    #[error("ncu saw no launch of {kernel} in {range}")]
    KernelNotLaunched { kernel: String, range: &'static str },
    #[error("ncu saw no kernels in {range}")]
    NoKernels { range: &'static str },
    #[error("ncu saw no kernels: the workload runs on the CPU")]
    CpuWorkload,
    #[error("{installed} recorded ranges and no kernels")]
    RangesOnly { installed: String },
    #[error("{installed}: {problem}; the capture is kept in {report}")]
    NotImported { installed: String, problem: String, report: String },
    #[error("{0}")]
    Unreadable(String),
    #[error("the reports have no tables")]
    NoTables,
}

impl RerunErrorKind {
    pub fn with_remedy(self, remedy: impl Into<String>) -> RerunError {
        RerunError { kind: self, remedy: remedy.into() }
    }
}

impl fmt::Display for RerunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.kind, self.remedy)
    }
}

/// The facts about a run under a tool without a report, or with one without kernels.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    pub tool: Tool,
    pub exit: &'a ToolExit,
    /// Stderr and stdout.
    pub output: &'a str,
    /// The end of the run itself, if it has ended.
    pub finished: Option<&'a RunFinished>,
    pub device: &'a Device,
    /// Whether the model of the original run is in memory at the same time.
    pub model_in_memory: bool,
    /// The ranges that the tool waits for.
    pub range: &'static str,
    /// The requested kernel, if there was one.
    pub kernel: Option<&'a str>,
    /// The path of the logs.
    pub logs: &'a str,
}

/// Messages of tools, their meaning and the remedy. The first match counts.
const KNOWN_MESSAGES: [(&[&str], &str, &str); 7] = [
    (
        &["ERR_NVGPUCTRPERM"],
        "this user may not read performance counters (ERR_NVGPUCTRPERM)",
        COUNTERS_FOR_ALL,
    ),
    (
        &["driver resource was unavailable"],
        "another program uses the performance counters",
        "stop other profilers; `dcgmi profprobe --pause` makes DCGM release them",
    ),
    (
        &["CUDA_INJECTION64_PATH is set"],
        "another tool is already attached (CUDA_INJECTION64_PATH is set)",
        "unset CUDA_INJECTION64_PATH and start again",
    ),
    (
        &["failed to connect to the CUDA driver"],
        "the tool finds no CUDA driver",
        "run llmprof-tui doctor to check the driver and the GPU",
    ),
    (
        &["nsight-compute-lock"],
        "ncu is blocked by another user's lock file (nsight-compute-lock)",
        "remove that file, or set TMPDIR to a directory of your own",
    ),
    (
        &["unrecognised option", "unrecognized option"],
        "the tool does not know one of its options",
        "install a newer release; llmprof-tui doctor reports which one the driver needs, and profiling.*.extra adds options",
    ),
    (
        &["error while loading shared libraries"],
        "the tool does not start: a library is missing",
        "llmprof-tui doctor names the library and its package",
    ),
];

/// How the driver, the kernel and this program report insufficient memory.
const OUT_OF_MEMORY: [&str; 4] = ["out of memory", "out_of_memory", " free; try ", "oom-kill"];

/// Whether ncu reported that it profiled nothing.
pub fn no_kernels_profiled(output: &str) -> bool {
    output.contains("No kernels were profiled")
}

/// Finds the reason why there is no report.
pub fn diagnose(observed: &Observation<'_>) -> RerunError {
    let tool = observed.tool;
    let see_logs = format!("see {}", observed.logs);
    match observed.exit {
        ToolExit::TimedOut { limit_s } => {
            return RerunErrorKind::TimedOut { tool, limit_s: *limit_s }
                .with_remedy("raise the limit, or use a smaller model or fewer tokens");
        }
        ToolExit::NotStarted(error) => {
            return RerunErrorKind::NotStarted { tool, error: error.clone() }
                .with_remedy("run llmprof-tui doctor to check the tool");
        }
        ToolExit::Status(_) | ToolExit::Cancelled => {}
    }
    let known =
        KNOWN_MESSAGES.iter().find(|(texts, ..)| texts.iter().any(|text| observed.output.contains(text)));
    if let Some((_, meaning, remedy)) = known {
        return RerunErrorKind::Known(meaning).with_remedy(*remedy);
    }
    let failed = observed.finished.filter(|finished| finished.outcome == Outcome::Failed);
    let cause =
        failed.map(|finished| finished.cause.clone().unwrap_or_else(|| "no cause is recorded".to_owned()));
    let cause = cause.or_else(|| printed_error(observed.output));
    let message = cause.as_deref().unwrap_or(observed.output).to_lowercase();
    if OUT_OF_MEMORY.iter().any(|text| message.contains(text)) {
        let remedy = match observed.model_in_memory {
            true => format!(
                "the paused run keeps its model in memory, and the run under {tool} loads it a second time: use a \
                 smaller model, or run without the screen: llmprof-tui run profiling={tool}"
            ),
            false => "use a smaller model, batch or length".to_owned(),
        };
        return RerunErrorKind::OutOfMemory { tool, cause }.with_remedy(remedy);
    }
    if let Some(cause) = cause {
        return RerunErrorKind::RunFailed { tool, cause }.with_remedy(see_logs);
    }
    if no_kernels_profiled(observed.output) || (observed.exit.is_success() && tool == Tool::Ncu) {
        return no_kernels(observed);
    }
    match observed.exit.is_success() {
        true => RerunErrorKind::RangeNeverBegan { tool, range: observed.range }.with_remedy(
            "choose another profiling.nsys.phase, and a run that has that phase (infer.max_new_tokens)",
        ),
        false => {
            let exit = observed.exit.clone();
            let kind = match observed.finished {
                None => RerunErrorKind::RunEndedEarly { tool, exit },
                Some(_) => RerunErrorKind::FailedAfterRun { tool, exit },
            };
            kind.with_remedy(see_logs)
        }
    }
}

fn no_kernels(observed: &Observation<'_>) -> RerunError {
    let range = observed.range;
    match observed.kernel {
        _ if observed.device.is_cpu() => RerunErrorKind::CpuWorkload
            .with_remedy("use a GPU (runtime.device=cuda:0)"),
        Some(kernel) => RerunErrorKind::KernelNotLaunched { kernel: kernel.to_owned(), range }.with_remedy(
            "give a list of kernels of this phase (profiling.ncu.kernels, profiling.ncu.phase), and a smaller \
             profiling.ncu.launch_skip",
        ),
        None => RerunErrorKind::NoKernels { range }.with_remedy(
            "choose another profiling.ncu.phase, and a run that has that phase (infer.max_new_tokens)",
        ),
    }
}

/// The last error that this program printed as the child.
fn printed_error(output: &str) -> Option<String> {
    output.lines().rev().find_map(|line| line.trim().strip_prefix("error: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;
    use llmprof_workload::EngineError;

    fn observation<'a>(tool: Tool, exit: &'a ToolExit, output: &'a str) -> Observation<'a> {
        Observation {
            tool,
            exit,
            output,
            finished: None,
            device: &Device::Cuda(0),
            model_in_memory: false,
            range: "decode@llmprof",
            kernel: None,
            logs: "nsys/stderr.log",
        }
    }

    fn status(code: i32) -> ToolExit {
        ToolExit::Status(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn every_failure_has_a_reason_and_a_remedy() {
        let permission = "==PROF== Connected to process 4711 (/bin/llmprof-tui)\n==ERROR== ERR_NVGPUCTRPERM - The user \
             does not have permission to access NVIDIA GPU Performance Counters on the target device 0. For instructions \
             on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM";
        let busy = "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool \
             (like DCGM) is concurrently collecting profiling data.";
        let too_large = EngineError::OutOfMemory {
            what: "qwen2_5_7b".into(),
            need: "16.1 GB".into(),
            dtype: "bf16".into(),
            free: "3.2 GB".into(),
            remedy: "model=smollm2_135m".into(),
        };
        let oom = format!("error: {too_large}");
        let cases: [(Tool, ToolExit, &str, &str, &str); 12] = [
            (Tool::Ncu, status(1), permission, "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
            (Tool::Ncu, status(9), busy, "another program uses", "dcgmi profprobe --pause"),
            (Tool::Ncu, status(0), "==WARNING== No kernels were profiled.", "no kernels in decode@", "phase"),
            (Tool::Ncu, status(1), "==ERROR== unrecognised option '--x'.", "does not know", "newer release"),
            (Tool::Ncu, status(1), "CUDA_INJECTION64_PATH is set", "another tool", "unset"),
            (
                Tool::Ncu,
                status(1),
                "==ERROR== failed to connect to the CUDA driver",
                "finds no CUDA driver",
                "doctor",
            ),
            (
                Tool::Nsys,
                status(0),
                "Generated:\n",
                "the range decode@llmprof never began",
                "profiling.nsys.phase",
            ),
            (Tool::Nsys, status(1), &oom, "out of memory: qwen2_5_7b needs 16.1 GB", "smaller model"),
            (Tool::Nsys, status(1), "error: no such model", "failed: no such model", "nsys/stderr.log"),
            (Tool::Nsys, status(139), "", "ended early (exit status: 139)", "nsys/stderr.log"),
            (
                Tool::Nsys,
                ToolExit::TimedOut { limit_s: 2.0 },
                "",
                "exceeded profiling.nsys.timeout_s=2",
                "raise",
            ),
            (
                Tool::Nsys,
                ToolExit::NotStarted("not found".into()),
                "",
                "cannot be started: not found",
                "doctor",
            ),
        ];
        for (tool, exit, output, reason, remedy) in cases {
            let found = diagnose(&observation(tool, &exit, output));
            assert!(found.kind.to_string().contains(reason), "{output}: {found:?}");
            assert!(found.remedy.contains(remedy), "{output}: {found:?}");
        }
    }

    #[test]
    fn the_cause_that_the_run_recorded_counts() {
        let exit = status(1);
        let failed = |cause: &str| RunFinished { outcome: Outcome::Failed, cause: Some(cause.to_owned()) };
        let finished = failed("CUDA_ERROR_OUT_OF_MEMORY: out of memory");
        let plain = Observation { finished: Some(&finished), ..observation(Tool::Ncu, &exit, "") };
        assert!(diagnose(&plain).remedy.contains("smaller model, batch"), "{:?}", diagnose(&plain));
        let found = diagnose(&Observation { model_in_memory: true, ..plain });
        assert!(found.remedy.contains("llmprof-tui run profiling=ncu"), "{found:?}");
        let finished = failed("the weights are broken");
        let found = diagnose(&Observation { finished: Some(&finished), ..plain });
        assert_eq!(found.kind.to_string(), "the run under ncu failed: the weights are broken");
    }

    #[test]
    fn kernels_that_were_not_launched_are_named() {
        let exit = status(0);
        let output = "==WARNING== No kernels were profiled.";
        let on_cpu = Observation { device: &Device::Cpu, ..observation(Tool::Ncu, &exit, output) };
        assert_eq!(diagnose(&on_cpu).kind, RerunErrorKind::CpuWorkload);
        let one = Observation { kernel: Some("rope"), ..observation(Tool::Ncu, &exit, output) };
        assert_eq!(diagnose(&one).kind.to_string(), "ncu saw no launch of rope in decode@llmprof");
    }
}
