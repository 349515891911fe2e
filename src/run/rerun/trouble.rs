//! Why a run under a tool gave nothing, in words, and what to do about it.

use crate::{
    event::{Device, Outcome, RunFinished},
    tools::nsight::COUNTERS_FOR_ALL,
};

use super::{Tool, child::Ending};

/// What went wrong, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub reason: String,
    pub remedy: String,
}

impl Trouble {
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Trouble {
        Trouble { reason: reason.into(), remedy: remedy.into() }
    }
}

/// What was seen of a run under a tool that left no report, or one without kernels.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    pub tool: Tool,
    pub ending: &'a Ending,
    /// Stderr and stdout.
    pub said: &'a str,
    /// How the run itself ended, where it came to that.
    pub finished: Option<&'a RunFinished>,
    /// What the workload runs on.
    pub device: &'a Device,
    /// Another run's model is in memory meanwhile.
    pub beside: bool,
    /// The ranges that the tool waits for, if it does.
    pub gate: Option<&'a str>,
    /// The kernel that was looked for, if it was one.
    pub kernel: Option<&'a str>,
    /// Where the logs are.
    pub logs: &'a str,
}

/// A text of a tool, what it means and what to do; the first that fits counts.
const TEXTS: [(&str, &str, &str); 8] = [
    ("ERR_NVGPUCTRPERM", "this user may not read performance counters (ERR_NVGPUCTRPERM)", COUNTERS_FOR_ALL),
    (
        "driver resource was unavailable",
        "another program holds the performance counters",
        "end other profilers; DCGM lets go of them with `dcgmi profprobe --pause`",
    ),
    (
        "CUDA_INJECTION64_PATH is set",
        "another tool is attached already (CUDA_INJECTION64_PATH is set)",
        "unset CUDA_INJECTION64_PATH and start again",
    ),
    (
        "failed to connect to the CUDA driver",
        "the tool finds no CUDA driver",
        "llmprof-tui doctor looks at driver and GPU",
    ),
    (
        "nsight-compute-lock",
        "a lock of another user's ncu is in the way (nsight-compute-lock)",
        "remove that file, or set TMPDIR to a folder of your own",
    ),
    (
        "unrecognised option",
        "the tool does not know one of its options",
        "install a newer release; llmprof-tui doctor tells which one the driver needs, and profiling.*.extra adds options",
    ),
    (
        "unrecognized option",
        "the tool does not know one of its options",
        "install a newer release; llmprof-tui doctor tells which one the driver needs, and profiling.*.extra adds options",
    ),
    (
        "error while loading shared libraries",
        "the tool does not start: a library is missing",
        "llmprof-tui doctor names the library and the package that has it",
    ),
];

/// Words that say that memory did not suffice: the driver's, and those of this program before it allocates.
const OUT_OF_MEMORY: [&str; 4] = ["out of memory", "out_of_memory", " free; try ", "oom-kill"];

/// Recognises what happened.
pub fn recognise(seen: &Seen<'_>) -> Trouble {
    let tool = seen.tool.name();
    let by_logs = format!("{} has what it said", seen.logs);
    if let Ending::TimedOut { limit_s } = seen.ending {
        return Trouble::new(
            format!("{tool} took longer than profiling.{tool}.timeout_s={limit_s} and was ended"),
            "raise that limit, or take a smaller model or fewer tokens",
        );
    }
    if let Ending::NotStarted(why) = seen.ending {
        return Trouble::new(
            format!("{tool} can't be started: {why}"),
            "llmprof-tui doctor looks at the tool",
        );
    }
    if let Some((_, reason, remedy)) = TEXTS.iter().find(|(text, ..)| seen.said.contains(text)) {
        return Trouble::new(*reason, *remedy);
    }
    let cause = seen.finished.filter(|finished| finished.outcome == Outcome::Failed);
    let cause = cause.map(|finished| finished.cause.clone().unwrap_or_else(|| "no cause is told".to_owned()));
    let cause = cause.or_else(|| own_error(seen.said));
    let words = cause.as_deref().unwrap_or(seen.said).to_lowercase();
    if OUT_OF_MEMORY.iter().any(|text| words.contains(text)) {
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let remedy = match seen.beside {
            true => format!(
                "the paused run keeps its model in memory, and the run under {tool} needs it once more: take a smaller \
                 model, or do it without the screen: llmprof-tui run profiling={tool}"
            ),
            false => "take a smaller model, batch or length".to_owned(),
        };
        return Trouble::new(format!("the run under {tool} is out of memory{cause}"), remedy);
    }
    if let Some(cause) = cause {
        return Trouble::new(format!("the run under {tool} failed: {cause}"), by_logs);
    }
    let ended_well = matches!(seen.ending, Ending::Exit(status) if status.success());
    if seen.said.contains("No kernels were profiled") || (ended_well && seen.tool == Tool::Ncu) {
        return no_kernels(seen);
    }
    if ended_well && let Some(gate) = seen.gate {
        return Trouble::new(
            format!("{tool} wrote no report: the range {gate} never began"),
            "take another profiling.nsys.phase, and a run that has that phase (infer.max_new_tokens)",
        );
    }
    if ended_well {
        return Trouble::new(format!("{tool} ended well and wrote no report"), by_logs);
    }
    let ending = seen.ending.words();
    match seen.finished {
        None => Trouble::new(format!("the run under {tool} ended in the middle ({ending})"), by_logs),
        Some(_) => Trouble::new(format!("{tool} failed after the run ({ending})"), by_logs),
    }
}

/// ncu saw no launch that it was to look at.
fn no_kernels(seen: &Seen<'_>) -> Trouble {
    if seen.device.is_cpu() {
        return Trouble::new(
            "ncu saw no kernels: the workload runs on the CPU",
            "take a GPU (runtime.device=cuda:0, in a build with CUDA)",
        );
    }
    match (seen.kernel, seen.gate) {
        (Some(kernel), gate) => Trouble::new(
            format!(
                "ncu saw no launch of {kernel}{}",
                gate.map(|gate| format!(" in {gate}")).unwrap_or_default()
            ),
            "take a list of kernels of this phase (profiling.ncu.kernels, profiling.ncu.phase), and a smaller \
             profiling.ncu.launch_skip",
        ),
        (None, Some(gate)) => Trouble::new(
            format!("ncu saw no kernels in {gate}"),
            "take another profiling.ncu.phase, and a run that has that phase (infer.max_new_tokens)",
        ),
        (None, None) => Trouble::new("ncu saw no kernels", "llmprof-tui doctor looks at driver, GPU and ncu"),
    }
}

/// What this program says last on stderr when it gives up.
fn own_error(said: &str) -> Option<String> {
    said.lines().rev().find_map(|line| line.trim().strip_prefix("error: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;

    fn seen<'a>(tool: Tool, ending: &'a Ending, said: &'a str) -> Seen<'a> {
        Seen {
            tool,
            ending,
            said,
            finished: None,
            device: &Device::Cuda(0),
            beside: false,
            gate: Some("decode@llmprof"),
            kernel: None,
            logs: "nsys/stderr.log",
        }
    }

    fn exit(code: i32) -> Ending {
        Ending::Exit(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn every_failure_has_its_words_and_its_remedy() {
        let permission = "==PROF== Connected to process 4711 (/bin/llmprof-tui)\n==ERROR== ERR_NVGPUCTRPERM - The user \
             does not have permission to access NVIDIA GPU Performance Counters on the target device 0. For instructions \
             on enabling permissions and to get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM";
        let busy = "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool \
             (like DCGM) is concurrently collecting profiling data.";
        let oom = "error: qwen2_5_7b needs 16.1 GB as bf16, 3.2 GB free; try model=smollm2_135m";
        let cases: [(Tool, Ending, &str, &str, &str); 12] = [
            (Tool::Ncu, exit(1), permission, "ERR_NVGPUCTRPERM", "NVreg_RestrictProfilingToAdminUsers=0"),
            (Tool::Ncu, exit(9), busy, "another program holds", "dcgmi profprobe --pause"),
            (Tool::Ncu, exit(0), "==WARNING== No kernels were profiled.", "no kernels in decode@", "phase"),
            (Tool::Ncu, exit(1), "==ERROR== unrecognised option '--x'.", "does not know", "newer release"),
            (Tool::Ncu, exit(1), "CUDA_INJECTION64_PATH is set", "another tool", "unset"),
            (
                Tool::Ncu,
                exit(1),
                "==ERROR== failed to connect to the CUDA driver",
                "finds no CUDA driver",
                "doctor",
            ),
            (
                Tool::Nsys,
                exit(0),
                "Generated:\n",
                "the range decode@llmprof never began",
                "profiling.nsys.phase",
            ),
            (Tool::Nsys, exit(1), oom, "out of memory: qwen2_5_7b needs 16.1 GB", "smaller model"),
            (Tool::Nsys, exit(1), "error: no such model", "failed: no such model", "nsys/stderr.log"),
            (Tool::Nsys, exit(139), "", "ended in the middle (exit status: 139)", "nsys/stderr.log"),
            (
                Tool::Nsys,
                Ending::TimedOut { limit_s: 2.0 },
                "",
                "longer than profiling.nsys.timeout_s=2",
                "raise",
            ),
            (Tool::Nsys, Ending::NotStarted("not found".into()), "", "can't be started: not found", "doctor"),
        ];
        for (tool, ending, said, reason, remedy) in cases {
            let found = recognise(&seen(tool, &ending, said));
            assert!(found.reason.contains(reason), "{said}: {found:?}");
            assert!(found.remedy.contains(remedy), "{said}: {found:?}");
        }
    }

    #[test]
    fn what_the_run_itself_said_counts() {
        let ending = exit(1);
        let failed = |cause: &str| RunFinished { outcome: Outcome::Failed, cause: Some(cause.to_owned()) };
        let finished = failed("CUDA_ERROR_OUT_OF_MEMORY: out of memory");
        let plain = Seen { finished: Some(&finished), ..seen(Tool::Ncu, &ending, "") };
        assert!(recognise(&plain).remedy.contains("smaller model, batch"), "{:?}", recognise(&plain));
        let found = recognise(&Seen { beside: true, ..plain });
        assert!(found.remedy.contains("llmprof-tui run profiling=ncu"), "{found:?}");
        let finished = failed("the weights are broken");
        let found = recognise(&Seen { finished: Some(&finished), ..plain });
        assert_eq!(found.reason, "the run under ncu failed: the weights are broken");
    }

    #[test]
    fn kernels_that_never_came_are_named() {
        let ending = exit(0);
        let said = "==WARNING== No kernels were profiled.";
        let on_cpu = Seen { device: &Device::Cpu, ..seen(Tool::Ncu, &ending, said) };
        assert!(recognise(&on_cpu).reason.contains("runs on the CPU"));
        let one = Seen { kernel: Some("rope"), ..seen(Tool::Ncu, &ending, said) };
        assert_eq!(recognise(&one).reason, "ncu saw no launch of rope in decode@llmprof");
        let ungated = Seen { gate: None, ..seen(Tool::Nsys, &ending, "") };
        assert_eq!(recognise(&ungated).reason, "nsys ended well and wrote no report");
    }
}
