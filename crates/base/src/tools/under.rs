//! Runs under a tool: detects the tool, and finds all processes of one run.

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::own_children::own_children;

/// An environment variable that all processes of a run under a tool inherit. Tools start programs in process groups and
/// sessions of their own, so the process group does not identify them.
pub const VARIABLE: &str = "LLMPROF_UNDER";

/// Longest wait for killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Longer than any chain of parents.
const MAX_ANCESTORS: usize = 64;

/// Identifies one run under a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    pub fn new(tool: &str) -> Mark {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
        Mark(format!("{tool}/{}-{next}-{now}", std::process::id()))
    }

    /// The value of the variable.
    pub fn value(&self) -> &str {
        &self.0
    }

    /// The processes that have the mark. A zombie has no environment, and so no mark.
    pub fn processes(&self) -> Vec<Pid> {
        marked(|mark| mark == self.0)
    }

    /// Kills all processes that have the mark. Returns whether there was one.
    pub fn kill_all(&self) -> bool {
        let left = self.processes();
        for pid in &left {
            let _ = kill_process(*pid, Signal::KILL);
        }
        !left.is_empty()
    }

    /// Kills all processes that have the mark, and waits until they are gone.
    pub fn end_all(&self) {
        let until = Instant::now() + KILL_TIMEOUT;
        while self.kill_all() && Instant::now() < until {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Kills all processes of runs under `tool` that this process has started.
pub fn kill_runs(tool: &str) {
    let own = format!("{tool}/{}-", std::process::id());
    for pid in marked(|mark| mark.starts_with(&own)) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Other processes whose mark matches.
fn marked(is_wanted: impl Fn(&str) -> bool) -> Vec<Pid> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others = numbers.filter(|pid| *pid != own && mark_of(*pid).is_some_and(|mark| is_wanted(&mark)));
    others.filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw)).collect()
}

/// The mark in the environment of a process.
fn mark_of(pid: u32) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables =
        environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    variables.find_map(|entry| Some(entry.strip_prefix(VARIABLE)?.strip_prefix('=')?.to_owned()))
}

/// Whether a process belongs to the same run as this one: a child, a process that the run has joined or that a tool
/// started for a re-run, or, in a re-run, the program that requested it.
pub fn is_of_same_run(pid: u32) -> bool {
    let own = std::process::id();
    let asked_by = |value: &str| value.split('/').nth(1)?.split('-').next()?.parse::<u32>().ok();
    let asked_for_this = std::env::var(VARIABLE).ok().as_deref().and_then(asked_by);
    pid == own
        || descends(pid, own)
        || own_children().iter().any(|child| pid == *child || descends(pid, *child))
        || mark_of(pid).as_deref().and_then(asked_by) == Some(own)
        || asked_for_this == Some(pid)
}

/// Whether `pid` is a child of `ancestor`, or a child's child, and so on.
fn descends(pid: u32, ancestor: u32) -> bool {
    let parent = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain any character.
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    std::iter::successors(Some(pid), parent).skip(1).take(MAX_ANCESTORS).any(|parent| parent == ancestor)
}

/// The tool under which this program runs, from the environment variables of this program, of nsys or of CUDA.
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

    /// A process that takes longer is assumed to hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Whether `pid` runs `sleep`. During its exec a process has no environment, and so no mark.
    fn sleeps(pid: u32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    }

    /// Polls until `is_so`.
    #[track_caller]
    fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_tool_is_detected_by_its_variables() {
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
    fn processes_of_this_run_are_known() {
        assert!(is_of_same_run(std::process::id()));
        assert!(!is_of_same_run(1), "init");
        // The shell ends at once, so `sleep` gets another parent, as the programs that nsys starts do.
        let mark = Mark::new("nsys");
        let orphan = |mark: Option<&Mark>| {
            let mut command = Command::new("sh");
            command.args(["-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]);
            mark.map(|mark| command.env(VARIABLE, mark.value()));
            let output = command.output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse::<u32>().unwrap()
        };
        let (ours, foreign) = (orphan(Some(&mark)), orphan(None));
        eventually("the process with the mark", || sleeps(ours) && is_of_same_run(ours));
        assert!(!is_of_same_run(foreign));
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert!(is_of_same_run(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        mark.end_all();
        let foreign = i32::try_from(foreign).ok().and_then(Pid::from_raw).unwrap();
        kill_process(foreign, Signal::KILL).unwrap();
    }

    #[test]
    fn processes_outside_the_group_are_killed_too() {
        let (mark, other) = (Mark::new("nsys"), Mark::new("nsys"));
        assert_ne!(mark, other);
        let start = |mark: &Mark, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).env(VARIABLE, mark.value()).spawn().unwrap()
        };
        let mut children = [start(&mark, "setsid sleep 600 & sleep 600"), start(&other, "exec sleep 600")];
        let count = || (mark.processes().len(), other.processes().len());
        let asleep = |mark: &Mark| {
            let pids = mark.processes().into_iter();
            pids.filter(|pid| sleeps(pid.as_raw_nonzero().get().unsigned_abs())).count()
        };
        eventually("a shell and two programs with one mark, and one program with the other", || {
            (asleep(&mark), asleep(&other)) == (2, 1) && count() == (3, 1)
        });
        mark.end_all();
        // `end_all` does not wait for a process that is slow to die.
        eventually("the end of all processes with the first mark", || count().0 == 0);
        assert_eq!(count(), (0, 1));
        other.end_all();
        children.iter_mut().for_each(|child| drop(child.wait()));
    }
}
