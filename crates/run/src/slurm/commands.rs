//! Slurm's commands, each with a time limit.

use std::{
    path::Path,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use super::{
    answers::{
        ACCOUNTING_FIELDS, COMMAND_FORMAT, QUEUE_FORMAT, QueuedTask, TaskEnd, parse_accounting,
        parse_commands, parse_control, parse_max_array_size, parse_queue, parse_submitted,
    },
    error::SlurmError,
};
use llmprof_base::tools::process::{Captured, ToolError, captured};

/// The timeout of a query. A busy controller answers late; Slurm's own commands give up after 10 s to 100 s.
const QUESTION_LIMIT: Duration = Duration::from_secs(30);
/// A submission may have reached the controller when its command is killed, so it has a longer limit.
const SUBMIT_LIMIT: Duration = Duration::from_secs(120);
/// Maximum output of a command in bytes: enough for the tasks of many arrays.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// The Slurm installation of the commands in PATH.
#[derive(Debug, Clone, Default)]
pub struct Slurm {
    /// The cluster, if there are several.
    pub cluster: Option<String>,
    /// Ends commands when set.
    pub stop: Arc<AtomicBool>,
}

impl Slurm {
    /// Submits a script; returns the id of its array, and its cluster if there are several.
    pub fn submit(&self, script: &Path) -> Result<(u64, Option<String>), SlurmError> {
        let mut command = Command::new("sbatch");
        command.arg("--parsable").arg(script);
        let answer = self.answer("sbatch", &mut command, SUBMIT_LIMIT)?;
        parse_submitted(&answer)
            .ok_or_else(|| SlurmError::Failed { command: "sbatch", text: "it printed no job id".into() })
    }

    /// The jobs of these arrays that Slurm still lists, including those that ended some minutes ago.
    pub fn queue(&self, arrays: &[u64]) -> Result<Vec<QueuedTask>, SlurmError> {
        let ids = format!("--jobs={}", joined(arrays));
        let format = format!("--format={QUEUE_FORMAT}");
        let args = ["--noheader", "--array", "--states=all", &ids, &format];
        match self.ask("squeue", &args) {
            // Slurm no longer lists the only requested array.
            Err(SlurmError::Failed { text, .. }) if text.contains("Invalid job id") => Ok(Vec::new()),
            answer => answer.map(|text| parse_queue(&text)),
        }
    }

    /// The ends of jobs: by the accounting, or by the controller's memory if there is no accounting.
    pub fn ends(&self, array: u64) -> Result<Vec<TaskEnd>, SlurmError> {
        let (id, fields) = (format!("--jobs={array}"), format!("--format={ACCOUNTING_FIELDS}"));
        let args = ["--noheader", "--parsable2", "--allocations", "--array", &id, &fields];
        if let Ok(text) = self.ask("sacct", &args) {
            let ends = parse_accounting(&text);
            if !ends.is_empty() {
                return Ok(ends);
            }
        }
        match self.ask("scontrol", &["--oneliner", "show", "job", &array.to_string()]) {
            Err(SlurmError::Failed { text, .. }) if text.contains("Invalid job id") => Ok(Vec::new()),
            answer => answer.map(|text| parse_control(&text)),
        }
    }

    /// The maximum number of jobs in an array.
    pub fn max_array_size(&self) -> Result<Option<usize>, SlurmError> {
        self.ask("scontrol", &["show", "config"]).map(|text| parse_max_array_size(&text))
    }

    /// The array that was submitted with this script, if it is in the queue.
    pub fn array_of(&self, script: &Path) -> Result<Option<u64>, SlurmError> {
        let format = format!("--format={COMMAND_FORMAT}");
        let text = self.ask("squeue", &["--noheader", "--me", "--states=all", &format])?;
        Ok(parse_commands(&text, &script.display().to_string()))
    }

    /// Cancels jobs, each `array` or `array_task`.
    pub fn cancel(&self, ids: &[String]) -> Result<(), SlurmError> {
        let mut args = vec!["--quiet"];
        args.extend(ids.iter().map(String::as_str));
        self.ask("scancel", &args).map(drop)
    }

    fn ask(&self, name: &'static str, args: &[&str]) -> Result<String, SlurmError> {
        let mut command = Command::new(name);
        // Formats of times and states are in English and independent of the user's settings.
        command.args(args).env("LC_ALL", "C").env_remove("SQUEUE_FORMAT").env_remove("SQUEUE_STATES");
        if let Some(cluster) = &self.cluster {
            command.arg(format!("--clusters={cluster}"));
        }
        self.answer(name, &mut command, QUESTION_LIMIT)
    }

    fn answer(
        &self,
        name: &'static str,
        command: &mut Command,
        limit: Duration,
    ) -> Result<String, SlurmError> {
        let Captured { status, stdout, stderr } =
            captured(command, MAX_ANSWER_BYTES, Instant::now() + limit, &self.stop).map_err(|error| {
                match error {
                    ToolError::NotStarted(_) => SlurmError::Missing { command: name },
                    error => SlurmError::of_tool(name, error),
                }
            })?;
        match status.is_some_and(|status| status.success()) {
            true => Ok(stdout),
            false => Err(SlurmError::of_answer(name, &stderr)),
        }
    }
}

fn joined(arrays: &[u64]) -> String {
    arrays.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_stopped_and_named_with_a_remedy() {
        let mut command = Command::new("sleep");
        let error =
            Slurm::default().answer("sbatch", command.arg("1000"), Duration::from_millis(50)).unwrap_err();
        assert!(error.may_pass());
        let text = error.to_string();
        assert!(text.starts_with("Slurm's command sbatch does not answer and was stopped after "), "{text}");
        assert!(text.contains("`scontrol ping`") && text.contains("--resume"), "{text}");
        let text = SlurmError::of_tool("sbatch", ToolError::TimedOut(QUESTION_LIMIT)).to_string();
        assert!(text.contains(" was stopped after 30 s; jobs that it has submitted continue"), "{text}");
    }
}
