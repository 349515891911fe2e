//! The rules that decide a thread's state. The README lists them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::frame::Frame;
use crate::source::source_line;
use crate::state::State;
use crate::system_call::Purpose;
use crate::task::Activity;

/// The facts of one sample of one thread.
pub struct Facts<'a> {
    pub activity: Activity,
    pub holds_gil: bool,
    /// According to its share of time in the run queue.
    pub queued: bool,
    pub gil_futexes: &'a Range<u64>,
    pub gil_holder: Option<u32>,
    /// The stack has a return address into CUDA's driver.
    pub in_cuda: bool,
    /// The innermost line is a CUDA synchronisation, in a process that has loaded CUDA's driver.
    pub synchronises: bool,
}

/// Calls with which CUDA's driver waits. It allocates with `ioctl`, which is not a wait for the GPU.
const CUDA_WAITS: [&str; 9] = [
    "futex",
    "poll",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "read",
    "sched_yield",
    "nanosleep",
    "clock_nanosleep",
];

impl Facts<'_> {
    pub fn state(&self) -> State {
        match self.activity {
            Activity::Runnable => self.runnable(),
            Activity::Call { call, arguments, .. } => {
                let waits = call.name().is_some_and(|name| CUDA_WAITS.contains(&name));
                match call.purpose(&arguments) {
                    Purpose::Futex if self.gil_futexes.contains(&arguments[0]) => {
                        State::WaitingForGil { held_by: self.gil_holder }
                    }
                    _ if waits && (self.in_cuda || self.synchronises) => State::WaitingForGpu,
                    Purpose::Sleep => State::Sleeping,
                    Purpose::Futex => State::WaitingForLock,
                    Purpose::Other => State::SystemCall(call),
                }
            }
            Activity::Outside { letter: b'D' } => State::PageFault,
            Activity::Outside { letter: b'T' | b't' } => State::Stopped,
            Activity::Outside { .. } => State::Unknown,
        }
    }

    fn runnable(&self) -> State {
        match (self.queued, self.holds_gil, self.synchronises) {
            (true, _, _) => State::Descheduled,
            (false, true, _) => State::RunningPython,
            (false, false, true) => State::WaitingForGpu,
            (false, false, false) => State::RunningNative,
        }
    }
}

const SYNCHRONISATIONS: [&str; 13] = [
    ".item(",
    ".cpu(",
    ".tolist(",
    ".numpy(",
    "synchronize(",
    "Synchronize(",
    "nonzero(",
    ".to('cpu'",
    ".to(\"cpu\"",
    "device='cpu'",
    "device=\"cpu\"",
    "masked_select(",
    "torch.unique(",
];
const LINES_MAX: usize = 4096;
/// A file is read for each new line: the cost of a sample stays bounded.
const NEW_LINES_PER_SAMPLE: u32 = 2;

/// Which lines of the program are CUDA synchronisations, by their text.
#[derive(Default)]
pub struct Synchronisations {
    known: HashMap<(Arc<str>, u32), bool>,
    budget: u32,
}

impl Synchronisations {
    pub fn start_sample(&mut self) {
        self.budget = NEW_LINES_PER_SAMPLE;
    }

    pub fn contain(&mut self, pid: u32, frame: &Frame) -> bool {
        let key = (frame.file.clone(), frame.line);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        if self.budget == 0 || self.known.len() >= LINES_MAX {
            return false;
        }
        self.budget -= 1;
        let found = source_line(&frame.file, frame.line, pid).is_some_and(|text| synchronises(&text));
        self.known.insert(key, found);
        found
    }
}

fn synchronises(line: &str) -> bool {
    let code = line.split('#').next().unwrap_or(line);
    SYNCHRONISATIONS.iter().any(|text| code.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_call::SystemCall;

    fn number(name: &str) -> SystemCall {
        (0..500).map(SystemCall).find(|call| call.name() == Some(name)).unwrap()
    }

    fn blocked(name: &str, arguments: [u64; 6]) -> Activity {
        Activity::Call { call: number(name), arguments, stack: 0 }
    }

    fn state(activity: Activity, change: fn(&mut Facts)) -> State {
        let range = 0x1000..0x1100;
        let mut facts = Facts {
            activity,
            holds_gil: false,
            queued: false,
            gil_futexes: &range,
            gil_holder: Some(7),
            in_cuda: false,
            synchronises: false,
        };
        change(&mut facts);
        facts.state()
    }

    #[test]
    fn blocked_threads_wait_for_what_they_call() {
        let futex = blocked("futex", [0x1040, 0x189, 0, 0, 0, 0]);
        let lock = blocked("futex", [0x2000, 0x189, 0, 0, 0, 0]);
        let poll = blocked("ppoll", [1, 1, 0, 0, 0, 0]);
        let none = |_: &mut Facts| {};
        assert_eq!(state(futex, none), State::WaitingForGil { held_by: Some(7) });
        assert_eq!(state(lock, none), State::WaitingForLock);
        assert_eq!(state(lock, |facts| facts.in_cuda = true), State::WaitingForGpu);
        assert_eq!(state(poll, none), State::SystemCall(number("ppoll")));
        assert_eq!(state(poll, |facts| facts.synchronises = true), State::WaitingForGpu);
        assert_eq!(state(blocked("ppoll", [0; 6]), none), State::Sleeping);
        assert_eq!(
            state(blocked("ioctl", [3; 6]), |facts| facts.in_cuda = true),
            State::SystemCall(number("ioctl"))
        );
        assert_eq!(state(Activity::Outside { letter: b'D' }, none), State::PageFault);
    }

    #[test]
    fn runnable_threads_run_or_are_queued() {
        assert_eq!(state(Activity::Runnable, |facts| facts.holds_gil = true), State::RunningPython);
        assert_eq!(state(Activity::Runnable, |_| {}), State::RunningNative);
        assert_eq!(state(Activity::Runnable, |facts| facts.synchronises = true), State::WaitingForGpu);
        assert_eq!(state(Activity::Runnable, |facts| facts.queued = true), State::Descheduled);
    }

    #[test]
    fn synchronisations_are_found_by_their_text() {
        assert!(synchronises("    token = logits.argmax(-1).item()"));
        assert!(synchronises("torch._C._cuda_synchronize()"));
        assert!(!synchronises("x = y  # not .item()"));
        assert!(!synchronises("for item in items():"));
    }
}
