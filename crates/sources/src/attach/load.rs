//! Joins programs that were started without the library: loads it into them while they run.

use std::{collections::BTreeMap, fs};

use llmprof_inject::{LIBRARY, wire};
use thiserror::Error;

use super::{
    MAX_PROCESSES,
    process_info::{Library, ProcessInfo, cause},
};
use llmprof_base::{foreign::line, units::millis};

/// Maximum length of a command in a message.
const COMMAND: usize = 100;
/// Maximum processes in a message.
const LISTED: usize = 10;

/// Programs that have been joined.
#[derive(Debug)]
pub struct Joined {
    pub processes: Vec<ProcessInfo>,
    /// What was done, and which processes were not joined.
    pub remarks: Vec<String>,
}

#[derive(Debug, Error)]
pub enum NotJoined {
    #[error("{}", several(.0))]
    Several(Vec<ProcessInfo>),
    #[error("{} has not loaded CUDA, and neither have its child processes; if it is starting, try again later", process_label(.0))]
    NoCuda(Box<ProcessInfo>),
    #[error("{} cannot be joined: {cause}", process_label(.process))]
    Refused { process: Box<ProcessInfo>, cause: String },
}

fn process_label(process: &ProcessInfo) -> String {
    format!("process {} ({})", process.pid, line(&process.command(), COMMAND))
}

fn several(processes: &[ProcessInfo]) -> String {
    let lines = processes.iter().take(LISTED);
    let lines: String = lines
        .map(|process| format!("\n  {:>7}  {}", process.pid, line(&process.command(), COMMAND)))
        .collect();
    let more = processes.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    format!("several programs have this name; name one by its PID:{lines}{more}")
}

/// Loads the library into the only program among `found`: into each of its processes that uses CUDA. A server's
/// workers are its child processes.
pub fn join(found: Vec<ProcessInfo>) -> Result<Joined, NotJoined> {
    let parents = parents();
    let is_root = |process: &&ProcessInfo| {
        !ancestors(&parents, process.pid).any(|pid| found.iter().any(|other| other.pid == pid))
    };
    let mut programs: Vec<(&ProcessInfo, Vec<ProcessInfo>)> =
        found.iter().filter(is_root).map(|root| (root, cuda_processes(&parents, root))).collect();
    if programs.len() > 1 && programs.iter().any(|(_, processes)| !processes.is_empty()) {
        programs.retain(|(_, processes)| !processes.is_empty());
    }
    if programs.len() > 1 {
        return Err(NotJoined::Several(programs.into_iter().map(|(root, _)| root.clone()).collect()));
    }
    let Some((root, processes)) = programs.pop() else { return Err(NotJoined::Several(found)) };
    if processes.is_empty() {
        return Err(NotJoined::NoCuda(Box::new(root.clone())));
    }
    let mut joined = Joined { processes: Vec::new(), remarks: Vec::new() };
    let mut refused = None;
    for process in processes {
        if process.library.is_some() {
            joined.processes.push(process);
            continue;
        }
        match ptrace_load::load(process.pid, LIBRARY, wire::JOIN, b"", &ptrace_load::Options::default()) {
            Ok(loaded) if loaded.result != 0 => {
                joined.remarks.push(format!(
                    "the injection library does not start in {}: it may have too many open files",
                    process_label(&process)
                ));
            }
            Ok(loaded) => {
                joined.remarks.push(format!(
                    "the injection library was loaded into {}; its thread {} was stopped for {}",
                    process_label(&process),
                    loaded.borrowed,
                    millis(loaded.stopped.total.as_secs_f64() * 1e3)
                ));
                joined.processes.push(ProcessInfo { library: Some(Library::Loaded), ..process });
            }
            Err(refusal) => {
                let refusal = NotJoined::Refused { process: Box::new(process), cause: cause(&refusal) };
                joined.remarks.push(refusal.to_string());
                refused.get_or_insert(refusal);
            }
        }
    }
    match refused {
        Some(refusal) if joined.processes.is_empty() => Err(refusal),
        _ => Ok(joined),
    }
}

/// The parent of each process.
fn parents() -> BTreeMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, ProcessInfo::parent_of(pid)?))).collect()
}

/// From the parent upwards.
fn ancestors(parents: &BTreeMap<u32, u32>, pid: u32) -> impl Iterator<Item = u32> {
    // Processes end and ids are used again while the parents are read.
    std::iter::successors(parents.get(&pid).copied(), |pid| parents.get(pid).copied()).take(parents.len())
}

/// The processes of a program that use CUDA, or else those that are prepared for it.
fn cuda_processes(parents: &BTreeMap<u32, u32>, root: &ProcessInfo) -> Vec<ProcessInfo> {
    let descendants =
        parents.keys().copied().filter(|pid| ancestors(parents, *pid).any(|ancestor| ancestor == root.pid));
    let all = std::iter::once(root.clone()).chain(descendants.filter_map(ProcessInfo::read));
    let (with_cuda, others): (Vec<_>, Vec<_>) = all.partition(|process| process.uses_cuda);
    // A prepared program that has not started CUDA is waited for.
    let mut processes = with_cuda;
    if processes.is_empty() {
        processes = others.into_iter().filter(|process| process.library.is_some()).collect();
    }
    processes.truncate(MAX_PROCESSES);
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_end_where_parents_are_a_circle() {
        let parents = BTreeMap::from([(4, 3), (3, 2), (2, 4)]);
        assert_eq!(ancestors(&parents, 4).collect::<Vec<_>>(), [3, 2, 4]);
        assert_eq!(ancestors(&parents, 9).count(), 0);
    }
}
