//! The kernel's information about one thread: `/proc/PID/task/TID/{schedstat,syscall,stat,comm,status}`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::system_call::SystemCall;
use crate::text::sanitised;

const LINE_MAX: usize = 512;
const THREADS_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Schedule {
    pub run_ns: u64,
    /// Time in the run queue.
    pub delay_ns: u64,
    /// How often it was put on a CPU.
    pub slices: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// On a CPU or in the run queue.
    Runnable,
    Call {
        call: SystemCall,
        arguments: [u64; 6],
        stack: u64,
    },
    /// Off the CPU outside of a system call: the state letter of `stat`.
    Outside {
        letter: u8,
    },
}

/// Keeps the two files open that each sample reads.
pub struct Task {
    directory: String,
    schedule: Option<File>,
    call: Option<File>,
}

impl Task {
    pub fn new(pid: u32, tid: u32, keep_open: bool) -> Task {
        let directory = format!("/proc/{pid}/task/{tid}");
        let open = |name: &str| keep_open.then(|| File::open(format!("{directory}/{name}")).ok()).flatten();
        let (schedule, call) = (open("schedstat"), open("syscall"));
        Task { directory, schedule, call }
    }

    /// `None`: the thread ended.
    pub fn schedule(&self) -> Option<Schedule> {
        let line = self.line(self.schedule.as_ref(), "schedstat").ok()?;
        let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        let (run_ns, delay_ns, slices) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Schedule { run_ns, delay_ns, slices })
    }

    pub fn activity(&self) -> Option<Activity> {
        let line = self.line(self.call.as_ref(), "syscall").unwrap_or_default();
        match parse_call(&line) {
            Some(activity) => Some(activity),
            None => self.activity_by_letter(),
        }
    }

    fn activity_by_letter(&self) -> Option<Activity> {
        let line = self.line(None, "stat").ok()?;
        let letter = *line.rsplit_once(") ")?.1.as_bytes().first()?;
        match letter {
            b'R' => Some(Activity::Runnable),
            b'Z' | b'X' => None,
            letter => Some(Activity::Outside { letter }),
        }
    }

    pub fn name(&self) -> Option<String> {
        let line = self.line(None, "comm").ok()?;
        Some(sanitised(line.trim_end(), 64)).filter(|name| !name.is_empty())
    }

    fn line(&self, file: Option<&File>, name: &str) -> io::Result<String> {
        let mut buffer = [0; LINE_MAX];
        let length = match file {
            Some(file) => file.read_at(&mut buffer, 0)?,
            None => File::open(format!("{}/{name}", self.directory))?.read_at(&mut buffer, 0)?,
        };
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

fn parse_call(line: &str) -> Option<Activity> {
    if line.starts_with("running") {
        return Some(Activity::Runnable);
    }
    let mut words = line.split_whitespace();
    let call = SystemCall(words.next()?.parse().ok()?);
    let mut numbers = words.map_while(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = numbers.next()?;
    }
    Some(Activity::Call { call, arguments, stack: numbers.next()? })
}

/// Thread identifiers in this PID namespace, by those in the namespace of the process. Empty if both are the same.
pub fn threads_by_inner_id(pid: u32) -> HashMap<u32, u32> {
    let Some(ids) = namespace_ids(pid, pid).filter(|ids| ids.len() > 1) else { return HashMap::new() };
    let depth = ids.len();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return HashMap::new() };
    let names = entries.take(THREADS_MAX).flatten().map(|entry| entry.file_name());
    let threads = names.filter_map(|name| name.to_str()?.parse().ok());
    threads.filter_map(|tid: u32| Some((*namespace_ids(pid, tid)?.get(depth - 1)?, tid))).collect()
}

/// The identifier in each PID namespace, that of this process first.
fn namespace_ids(pid: u32, tid: u32) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_parsed_and_garbage_is_refused() {
        let line = "202 0x7f01 0x189 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7fbd\n";
        let Some(Activity::Call { call, arguments, stack }) = parse_call(line) else { panic!("{line}") };
        assert_eq!((call.name(), arguments[0], stack), (SystemCall(202).name(), 0x7f01, 0x7ffc));
        assert_eq!(parse_call("running\n"), Some(Activity::Runnable));
        for line in ["", "-1 0x7ffc 0x7fbd", "202 0x1", "x y z"] {
            assert_eq!(parse_call(line), None, "{line}");
        }
    }
}
