//! The state of a thread, and the rules that decide it.

use std::fmt;

use crate::system_call::SystemCall;

/// The state of a thread at the time of a sample. The README has the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Runnable, and it holds the GIL.
    RunningPython,
    /// Runnable without the GIL: native code.
    RunningNative,
    /// `held_by` is the thread that held the GIL when it was read, if any.
    WaitingForGil {
        held_by: Option<u32>,
    },
    /// A futex that is not the GIL's: `threading.Lock`, `Condition`, `queue.Queue`, or a lock of native code.
    WaitingForLock,
    /// Any other call; its text is "in write".
    SystemCall(SystemCall),
    Sleeping,
    /// It synchronises with the GPU.
    WaitingForGpu,
    /// Runnable, in the run queue of a CPU that another thread uses.
    Descheduled,
    /// A page of its memory is read from disk.
    PageFault,
    /// Stopped by a signal or by a debugger.
    Stopped,
    Unknown,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::RunningPython => f.write_str("running Python"),
            State::RunningNative => f.write_str("running native code"),
            State::WaitingForGil { held_by: Some(thread) } => {
                write!(f, "waiting for the GIL (held by {thread})")
            }
            State::WaitingForGil { held_by: None } => f.write_str("waiting for the GIL"),
            State::WaitingForLock => f.write_str("waiting for a lock"),
            State::SystemCall(call) => write!(f, "in {call}"),
            State::Sleeping => f.write_str("sleeping"),
            State::WaitingForGpu => f.write_str("waiting for the GPU"),
            State::Descheduled => f.write_str("waiting for a CPU"),
            State::PageFault => f.write_str("reading memory from disk"),
            State::Stopped => f.write_str("stopped"),
            State::Unknown => f.write_str("unknown"),
        }
    }
}
