//! States, exit codes and reasons: Slurm's names, and messages.

use std::{fmt, str::FromStr};

use llmprof_base::foreign::line;

/// Maximum characters of an unknown state or reason, which is shown unchanged.
const MAX_REASON: usize = 120;

/// The state of a job of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskState {
    Pending,
    Running,
    /// Its processes are ending.
    Completing,
    Suspended,
    Completed,
    Failed,
    Cancelled,
    Timeout,
    OutOfMemory,
    NodeFail,
    BootFail,
    Deadline,
    Preempted,
    Other(String),
}

impl TaskState {
    /// From a name such as `RUNNING`, `CANCELLED by 1000` or `CANCELLED+`.
    pub fn parse(text: &str) -> TaskState {
        let name = text.split([' ', '+']).next().unwrap_or_default();
        match name {
            "PENDING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
                TaskState::Pending
            }
            "RUNNING" | "CONFIGURING" | "RESIZING" | "SIGNALING" | "STAGE_OUT" => TaskState::Running,
            "COMPLETING" => TaskState::Completing,
            "SUSPENDED" | "STOPPED" => TaskState::Suspended,
            "COMPLETED" => TaskState::Completed,
            "FAILED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => TaskState::Failed,
            "CANCELLED" | "REVOKED" => TaskState::Cancelled,
            "TIMEOUT" => TaskState::Timeout,
            "OUT_OF_MEMORY" => TaskState::OutOfMemory,
            "NODE_FAIL" => TaskState::NodeFail,
            "BOOT_FAIL" => TaskState::BootFail,
            "DEADLINE" => TaskState::Deadline,
            "PREEMPTED" => TaskState::Preempted,
            other => TaskState::Other(line(other, MAX_REASON)),
        }
    }

    /// Whether the job will not run any more.
    pub fn is_over(&self) -> bool {
        !matches!(
            self,
            TaskState::Pending
                | TaskState::Running
                | TaskState::Completing
                | TaskState::Suspended
                | TaskState::Other(_)
        )
    }
}

/// The exit status of a job's program: `4:0`, `0:9`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitCode {
    pub code: u8,
    pub signal: u8,
}

impl FromStr for ExitCode {
    type Err = ();

    fn from_str(text: &str) -> Result<ExitCode, ()> {
        let (code, signal) = text.trim().split_once(':').ok_or(())?;
        Ok(ExitCode { code: code.parse().map_err(|_| ())?, signal: signal.parse().map_err(|_| ())? })
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.signal {
            0 => return write!(f, "exit code {}", self.code),
            6 => "SIGABRT",
            7 => "SIGBUS",
            9 => "SIGKILL",
            11 => "SIGSEGV",
            15 => "SIGTERM",
            number => return write!(f, "signal {number}"),
        };
        write!(f, "ended by {name}")
    }
}

/// Why a job has not started, from the reason of squeue.
pub fn waiting_reason(reason: &str) -> String {
    let name = reason.split([',', ' ', '(', ':']).next().unwrap_or_default();
    let words = match name {
        "" | "None" => "not yet scheduled",
        "Resources" => "no free resources",
        "Priority" => "other jobs have priority",
        "JobArrayTaskLimit" => "array_parallelism is reached",
        "Dependency" => "earlier jobs of the sweep are first",
        "DependencyNeverSatisfied" => "will never start: a job that it depends on has failed",
        "BeginTime" => "its start time has not come",
        "JobHeldUser" | "JobHeldAdmin" => "held; scontrol release starts it",
        "Licenses" => "no free licence",
        "NodeDown" => "its node is down",
        "ReqNodeNotAvail" => "the requested nodes are not available",
        "Reservation" => "its reservation has not begun",
        "PartitionDown" | "PartitionInactive" => "the partition accepts no jobs now",
        "PartitionTimeLimit" => "will never start: timeout_min is more than the partition allows",
        "PartitionNodeLimit" => "will never start: nodes is more than the partition allows",
        "BadConstraints" => "will never start: no node has the requested resources",
        "InvalidAccount" | "InvalidQOS" => "will never start: the account or QOS is invalid",
        "Cleaning" => "its last attempt is being cleaned up",
        name if name.starts_with("QOS") => "a limit of its QOS is reached",
        name if name.starts_with("Assoc") => "a limit of its account is reached",
        _ => return line(reason, MAX_REASON),
    };
    match name {
        // The name contains the limit.
        name if name.starts_with("QOS") || name.starts_with("Assoc") => {
            format!("{words} ({})", line(name, 60))
        }
        _ => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_all_commands_write_them() {
        for (text, state, over) in [
            ("PENDING", TaskState::Pending, false),
            ("RUNNING", TaskState::Running, false),
            ("COMPLETING", TaskState::Completing, false),
            ("COMPLETED", TaskState::Completed, true),
            ("CANCELLED by 1000", TaskState::Cancelled, true),
            ("CANCELLED+", TaskState::Cancelled, true),
            ("OUT_OF_MEMORY", TaskState::OutOfMemory, true),
            ("TIMEOUT", TaskState::Timeout, true),
            ("NODE_FAIL", TaskState::NodeFail, true),
            // A state of a later version of Slurm: following the job is better than dropping it.
            ("TELEPORTING", TaskState::Other("TELEPORTING".into()), false),
        ] {
            assert_eq!(TaskState::parse(text), state);
            assert_eq!(state.is_over(), over, "{text}");
        }
    }

    #[test]
    fn exit_codes_have_a_text() {
        for (text, words) in [
            ("4:0", "exit code 4"),
            ("0:9", "ended by SIGKILL"),
            ("0:15", "ended by SIGTERM"),
            ("0:31", "signal 31"),
        ] {
            assert_eq!(text.parse::<ExitCode>().unwrap().to_string(), words);
        }
        for bad in ["", "4", "a:b", "300:0", "1:2:3"] {
            assert_eq!(bad.parse::<ExitCode>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn reasons_have_a_text() {
        for (reason, words) in [
            ("Resources", "no free resources"),
            ("None", "not yet scheduled"),
            ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "the requested nodes are not available"),
            ("QOSMaxJobsPerUserLimit", "a limit of its QOS is reached (QOSMaxJobsPerUserLimit)"),
            ("launch failed requeued held", "launch failed requeued held"),
            ("\u{1b}[31m", "\\u001b[31m"),
        ] {
            assert_eq!(waiting_reason(reason), words);
        }
    }
}
