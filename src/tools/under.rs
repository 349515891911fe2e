//! Runs under a tool: how a program knows of being in one, and who belongs to it.

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// A variable that everything inherits which a tool starts. Tools put programs into groups and sessions of their own,
/// so a process group alone does not tell who belongs together.
pub const VARIABLE: &str = "LLMPROF_UNDER";

/// Longest wait for processes that were killed.
const PATIENCE: Duration = Duration::from_secs(2);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// One run under `tool`, told from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    pub fn new(tool: &str) -> Mark {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
        Mark(format!("{tool}/{}-{next}-{now}", std::process::id()))
    }

    /// What the variable is set to.
    pub fn value(&self) -> &str {
        &self.0
    }

    /// The processes that have the mark. One that has ended and waits to be reaped has none.
    pub fn processes(&self) -> Vec<Pid> {
        let wanted = format!("{VARIABLE}={}", self.0);
        let own = std::process::id();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let has_mark = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        };
        numbers
            .filter(|pid| *pid != own)
            .filter(has_mark)
            .filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw))
            .collect()
    }

    /// Ends whoever has the mark, and waits until nobody has.
    pub fn end_all(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = self.processes();
            if left.is_empty() || Instant::now() >= until {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// The tool that this program runs under, by its variables: ours, that of nsys, or that of any tool of CUDA.
pub fn attached(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(mark) = set(VARIABLE) {
        return mark.split('/').next().map(str::to_owned);
    }
    if set("NSYS_PROFILING_SESSION_ID").is_some() {
        return Some("nsys".to_owned());
    }
    let library = set("CUDA_INJECTION64_PATH")?;
    Some(library.rsplit('/').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_tool_is_known_by_what_it_sets() {
        for (name, value, wanted) in [
            (VARIABLE, "ncu/1-2-3", Some("ncu")),
            ("NSYS_PROFILING_SESSION_ID", "1011137", Some("nsys")),
            ("CUDA_INJECTION64_PATH", "/opt/x/libToolsInjection64.so", Some("libToolsInjection64.so")),
            ("CUDA_INJECTION64_PATH", "", None),
            ("HOME", "/root", None),
        ] {
            let found = attached(|asked| (asked == name).then(|| value.to_owned()));
            assert_eq!(found.as_deref(), wanted, "{name}={value}");
        }
    }

    #[test]
    fn who_has_left_the_group_is_ended_too() {
        let (mark, other) = (Mark::new("nsys"), Mark::new("nsys"));
        assert_ne!(mark, other);
        let start = |mark: &Mark, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env(VARIABLE, mark.value()).spawn().unwrap()
        };
        let mut children = [start(&mark, "setsid sleep 600 & sleep 600"), start(&other, "exec sleep 600")];
        let until = Instant::now() + Duration::from_secs(20);
        while (mark.processes().len() < 3 || other.processes().is_empty()) && Instant::now() < until {
            thread::sleep(BETWEEN_LOOKS);
        }
        assert_eq!((mark.processes().len(), other.processes().len()), (3, 1));
        mark.end_all();
        assert_eq!((mark.processes().len(), other.processes().len()), (0, 1));
        other.end_all();
        children.iter_mut().for_each(|child| drop(child.wait()));
    }
}
