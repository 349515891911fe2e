//! What the Python threads of a followed process do, by samples.

use serde::{Deserialize, Serialize};

use crate::text_enum::text_enum;

/// The samples of about one second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStacks {
    pub pid: u32,
    pub samples: u32,
    /// Samples while kernels were recorded, and while the GPU was idle then.
    pub recorded: u32,
    pub idle: u32,
    /// The positions of the threads. A thread is in one row per sample.
    pub rows: Vec<HostRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRow {
    pub thread: String,
    pub state: HostActivity,
    /// The file, the line and the function of the user's code, e.g. `vllm/v1/core/sched/scheduler.py:210 schedule`.
    pub line: String,
    pub samples: u32,
    /// The samples of this row while the GPU was idle.
    pub idle: u32,
}

text_enum! {
    /// The state of a thread.
    #[derive(PartialOrd, Ord)]
    HostActivity {
        RunningPython = "running Python",
        RunningNative = "running native code",
        WaitingForGil = "waiting for the GIL",
        WaitingForLock = "waiting for a lock",
        SystemCall = "in a system call",
        Sleeping = "sleeping",
        WaitingForGpu = "waiting for the GPU",
        WaitingForCpu = "waiting for a CPU",
        PageFault = "reading memory from disk",
        Stopped = "stopped",
        Unknown = "unknown",
    }
}
