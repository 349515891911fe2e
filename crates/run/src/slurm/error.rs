//! Messages about errors of Slurm.

use std::time::Duration;

use thiserror::Error;

use llmprof_base::{foreign::message, tools::process::ToolError};

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SlurmError {
    #[error(
        "Slurm's command {command} is not in PATH; start this on a login node of the cluster, or load its module, then \
         repeat the command"
    )]
    Missing { command: &'static str },
    #[error(
        "Slurm has no configuration on this machine ({0}); set SLURM_CONF, or start this on a login node of the cluster"
    )]
    Unconfigured(String),
    #[error("Slurm's controller does not answer ({0}); submitted jobs continue")]
    Controller(String),
    #[error(
        "Slurm's command {command} does not answer and was stopped after {:.0} s; jobs that it has submitted continue. `scontrol ping` \
         shows whether the controller answers; once it does, repeat the command with --resume",
        .after.as_secs_f64()
    )]
    Silent { command: &'static str, after: Duration },
    #[error("Slurm accepts no more jobs of this user or account now ({0})")]
    SubmitLimit(String),
    #[error("Slurm refuses an array of this size ({0})")]
    ArrayLimit(String),
    #[error("sbatch refuses the jobs: {0}; see hydra.launcher")]
    Refused(String),
    #[error("{command} failed: {text}")]
    Failed { command: &'static str, text: String },
}

impl SlurmError {
    pub(super) fn of_tool(command: &'static str, error: ToolError) -> SlurmError {
        match error {
            ToolError::TimedOut(after) => SlurmError::Silent { command, after },
            error => SlurmError::Failed { command, text: error.to_string() },
        }
    }

    /// From the output of a failed command.
    pub(super) fn of_answer(command: &'static str, stderr: &str) -> SlurmError {
        let rows = || stderr.lines().map(str::trim).filter(|row| !row.is_empty());
        let has = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
        // The last line reports what the command could not do; an earlier one may report the reason.
        let last = rows().next_back().unwrap_or("it printed no message");
        let plain = |row: &str| {
            let row = row.strip_prefix(command).unwrap_or(row).trim_start_matches(':').trim_start();
            message(row.strip_prefix("error: ").unwrap_or(row))
        };
        if has(&["configuration source"]) {
            return SlurmError::Unconfigured(plain(last));
        }
        let unreachable = [
            "Unable to contact slurm controller",
            "Socket timed out",
            "Zero Bytes were transmitted",
            "Connection refused",
            "Connection reset",
            "backup controller",
            "authentication",
            "Protocol",
        ];
        if has(&unreachable) {
            return SlurmError::Controller(plain(last));
        }
        if has(&[
            "submit limit",
            "MaxSubmitJobs",
            "MaxJobCount",
            "job count limit",
            "Slurm temporarily unable to accept",
        ]) {
            return SlurmError::SubmitLimit(plain(last));
        }
        if has(&["Invalid job array specification"]) {
            return SlurmError::ArrayLimit(plain(last));
        }
        match command {
            "sbatch" => SlurmError::Refused(plain(rows().next().unwrap_or(last))),
            command => SlurmError::Failed { command, text: plain(last) },
        }
    }

    /// Whether it may be transient.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            SlurmError::Controller(_)
                | SlurmError::Silent { .. }
                | SlurmError::SubmitLimit(_)
                | SlurmError::Failed { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        for (command, stderr, words) in [
            (
                "sbatch",
                "sbatch: error: invalid partition specified: nix\nsbatch: error: Batch job submission failed: Invalid partition name specified\n",
                "sbatch refuses the jobs: invalid partition specified: nix; see hydra.launcher",
            ),
            (
                "sbatch",
                "sbatch: error: Batch job submission failed: Invalid job array specification\n",
                "Slurm refuses an array of this size (Batch job submission failed: Invalid job array specification)",
            ),
            (
                "sbatch",
                "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n",
                "Slurm accepts no more jobs of this user or account now (Batch job submission failed: Job violates",
            ),
            (
                "squeue",
                "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
                "Slurm's controller does not answer (slurm_load_jobs error: Unable to contact slurm controller \
                 (connect failure)); submitted jobs continue",
            ),
            (
                "sbatch",
                "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source\n",
                "Slurm has no configuration on this machine",
            ),
            ("scancel", "", "scancel failed: it printed no message"),
            ("scancel", "scancel: \u{1b}]0;x\u{7}", "scancel failed: \\u001b]0;x\\u0007"),
        ] {
            let error = SlurmError::of_answer(command, stderr).to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
