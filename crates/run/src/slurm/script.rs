//! The script of a job array.

use std::path::{Path, PathBuf};

use thiserror::Error;

use llmprof_base::shell::quoted;
use llmprof_config::{SlurmLauncher, Text, YamlValue};

/// An option that cannot be written into a script.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("hydra.launcher.{key}: {problem}")]
pub struct ScriptError {
    key: String,
    problem: String,
}

/// The parameters of an array's script, in addition to the launcher's options.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    pub launcher: &'a SlurmLauncher,
    /// The program that runs a job.
    pub program: &'a Path,
    /// The working directory of the program's start.
    pub working_dir: &'a Path,
    pub sweep: &'a Path,
    /// The directory of scripts and logs.
    pub folder: &'a Path,
    /// A file with the number of one job per line.
    pub job_list: &'a Path,
    pub jobs: usize,
    /// An array that must have ended first.
    pub after: Option<u64>,
}

/// The directory of scripts and logs: `submitit_folder` up to the part that depends on a job.
pub fn folder_of(launcher: &SlurmLauncher) -> PathBuf {
    Path::new(&launcher.submitit_folder)
        .iter()
        .take_while(|part| !part.to_string_lossy().contains('%'))
        .collect()
}

impl Script<'_> {
    /// The text of the script.
    pub fn text(&self) -> Result<String, ScriptError> {
        let mut text = String::from("#!/bin/bash\n");
        for (name, value) in self.options()? {
            text += &match value {
                Some(value) => format!("#SBATCH --{name}=\"{value}\"\n"),
                None => format!("#SBATCH --{name}\n"),
            };
        }
        let sweep = self.sweep.display().to_string().replace(['\n', '\r'], " ");
        text += &format!("\n# Jobs of the sweep {sweep}.\n");
        for row in self.launcher.setup.iter().flatten() {
            text += &format!("{row}\n");
        }
        let word = |path: &Path| quoted(&path.display().to_string());
        text += &format!(
            "job=$(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\" {}) || exit\n\
             # The program takes the place of the shell: signals of Slurm reach it.\n\
             exec {} run --quiet --job-of {} --job \"$job\"\n",
            word(self.job_list),
            word(self.program),
            word(self.sweep),
        );
        Ok(text)
    }

    /// The options of sbatch, in order: names and values that are safe between quotes.
    fn options(&self) -> Result<Vec<(String, Option<String>)>, ScriptError> {
        let slurm = self.launcher;
        let parallel = self.jobs.min(slurm.array_parallelism as usize);
        let mut options: Vec<(&str, &str, String)> = Vec::new();
        options.push(("name", "job-name", slurm.name.0.clone()));
        options.push(("array_parallelism", "array", format!("0-{}%{parallel}", self.jobs - 1)));
        options.push(("", "chdir", self.working_dir.display().to_string()));
        let log =
            |end: &str| format!("{}/%A_%a_0_log.{end}", self.folder.display().to_string().replace('%', "%%"));
        options.push(("submitit_folder", "output", log("out")));
        if !slurm.stderr_to_stdout {
            options.push(("submitit_folder", "error", log("err")));
        }
        options.push(("", "open-mode", "append".into()));
        options.push(("timeout_min", "time", slurm.timeout_min.to_string()));
        options.push(("nodes", "nodes", slurm.nodes.to_string()));
        options.push(("tasks_per_node", "ntasks-per-node", slurm.tasks_per_node.to_string()));
        let text = |value: &Option<Text>| value.as_ref().map(|text| text.0.clone());
        let count = |value: Option<u32>| value.map(|count| count.to_string());
        let optional = [
            ("partition", "partition", text(&slurm.partition)),
            ("qos", "qos", text(&slurm.qos)),
            ("account", "account", text(&slurm.account)),
            ("comment", "comment", text(&slurm.comment)),
            ("constraint", "constraint", text(&slurm.constraint)),
            ("exclude", "exclude", text(&slurm.exclude)),
            ("gres", "gres", text(&slurm.gres)),
            ("cpus_per_task", "cpus-per-task", count(slurm.cpus_per_task)),
            ("cpus_per_gpu", "cpus-per-gpu", count(slurm.cpus_per_gpu)),
            ("gpus_per_node", "gpus-per-node", text(&slurm.gpus_per_node)),
            ("gpus_per_task", "gpus-per-task", text(&slurm.gpus_per_task)),
            ("mem_gb", "mem", slurm.mem_gb.map(|gb| format!("{}M", (gb * 1024.0).ceil()))),
            ("mem_per_gpu", "mem-per-gpu", text(&slurm.mem_per_gpu)),
            ("mem_per_cpu", "mem-per-cpu", text(&slurm.mem_per_cpu)),
            ("signal_delay_s", "signal", self.signal()),
            ("", "dependency", self.after.map(|id| format!("afterany:{id}"))),
        ];
        options.extend(optional.into_iter().filter_map(|(key, name, value)| Some((key, name, value?))));
        let mut all: Vec<(String, Option<String>)> = Vec::new();
        for (key, name, value) in options {
            all.push((name.to_owned(), Some(checked(key, value)?)));
        }
        let more = &slurm.additional_parameters;
        let requeues = |name: &str| more.keys().any(|key| key.replace('_', "-") == name);
        // A run that was lost with its node is reported as such; --resume repeats it.
        if !requeues("requeue") && !requeues("no-requeue") {
            all.push(("no-requeue".into(), None));
        }
        if slurm.exclusive {
            all.push(("exclusive".into(), None));
        }
        for (key, value) in more {
            all.extend(additional(key, value)?);
        }
        Ok(all)
    }

    /// Slurm sends signals up to a minute early, so a job must be longer than that.
    fn signal(&self) -> Option<String> {
        let (delay, limit) =
            (u64::from(self.launcher.signal_delay_s), 60 * u64::from(self.launcher.timeout_min));
        (delay > 0 && limit >= 2 * (delay + 60)).then(|| format!("B:TERM@{delay}"))
    }
}

fn checked(key: &str, value: String) -> Result<String, ScriptError> {
    let unsafe_in_quotes = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\');
    match value.contains(unsafe_in_quotes) {
        true => {
            let key = if key.is_empty() { "submitit_folder" } else { key }.to_owned();
            Err(ScriptError {
                key,
                problem: format!("{value:?} has a quote, a backslash or a line break; leave it out"),
            })
        }
        false => Ok(value),
    }
}

/// An additional option of the user: `true` is an option without a value, `false` omits it.
fn additional(key: &str, value: &YamlValue) -> Result<Option<(String, Option<String>)>, ScriptError> {
    let problem =
        |problem: &str| ScriptError { key: format!("additional_parameters.{key}"), problem: problem.into() };
    let name = key.replace('_', "-");
    if name.is_empty()
        || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        || name.starts_with('-')
    {
        return Err(problem("not the name of an option of sbatch, such as mail-user"));
    }
    if matches!(
        name.as_str(),
        "array" | "wrap" | "parsable" | "output" | "error" | "chdir" | "test-only" | "wait"
    ) {
        return Err(problem("this option is set by the program"));
    }
    match value {
        YamlValue::Bool(true) => Ok(Some((name, None))),
        YamlValue::Bool(false) | YamlValue::Null => Ok(None),
        YamlValue::Number(number) => Ok(Some((name, Some(number.to_string())))),
        YamlValue::String(text) => {
            let value = checked(&format!("additional_parameters.{key}"), text.clone())?;
            Ok(Some((name, Some(value))))
        }
        _ => Err(problem("expected a text, a number, true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::{Launcher, built_in, compose, launcher};

    fn launcher_of(overrides: &[&str]) -> SlurmLauncher {
        let overrides: Vec<String> =
            ["hydra/launcher=slurm"].iter().chain(overrides).map(|text| (*text).to_owned()).collect();
        match launcher(&compose(&built_in(), &overrides).unwrap()).unwrap() {
            Launcher::Slurm(slurm) => *slurm,
            other => panic!("{other:?}"),
        }
    }

    fn text(overrides: &[&str], after: Option<u64>) -> Result<String, String> {
        let launcher = launcher_of(overrides);
        let script = Script {
            launcher: &launcher,
            program: Path::new("/opt/my tools/llmprof-tui"),
            working_dir: Path::new("/home/me"),
            sweep: Path::new("/home/me/runs/s"),
            folder: Path::new("/home/me/runs/s/.submitit"),
            job_list: Path::new("/home/me/runs/s/.submitit/0.jobs"),
            jobs: 3,
            after,
        };
        script.text().map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_lines_of_sbatch() {
        let script = text(
            &[
                "hydra.launcher.partition=gpu",
                "hydra.launcher.gres='gpu:h100:1'",
                "hydra.launcher.mem_gb=1.5",
                "hydra.launcher.array_parallelism=2",
                "hydra.launcher.exclusive=true",
                "hydra.launcher.comment='two words'",
                "hydra.launcher.setup=['module load cuda','export A=1']",
                "+hydra.launcher.additional_parameters={mail_user: me, requeue: true, overcommit: false, nice: 5}",
            ],
            Some(41),
        )
        .unwrap();
        for row in [
            "#SBATCH --array=\"0-2%2\"",
            "#SBATCH --partition=\"gpu\"",
            "#SBATCH --gres=\"gpu:h100:1\"",
            "#SBATCH --mem=\"1536M\"",
            "#SBATCH --comment=\"two words\"",
            "#SBATCH --time=\"60\"",
            "#SBATCH --signal=\"B:TERM@120\"",
            "#SBATCH --dependency=\"afterany:41\"",
            "#SBATCH --exclusive",
            "#SBATCH --mail-user=\"me\"",
            "#SBATCH --requeue",
            "#SBATCH --nice=\"5\"",
            "#SBATCH --error=\"/home/me/runs/s/.submitit/%A_%a_0_log.err\"",
            "module load cuda",
            "exec '/opt/my tools/llmprof-tui' run --quiet --job-of /home/me/runs/s --job \"$job\"",
        ] {
            assert!(script.lines().any(|line| line == row), "{row} is not in\n{script}");
        }
        for absent in ["--qos", "--no-requeue", "overcommit", "null"] {
            assert!(!script.contains(absent), "{absent} is in\n{script}");
        }
    }

    #[test]
    fn a_short_limit_has_no_early_signal() {
        let script =
            text(&["hydra.launcher.timeout_min=5", "hydra.launcher.stderr_to_stdout=true"], None).unwrap();
        assert!(
            !script.contains("--signal") && !script.contains("--error") && script.contains("--no-requeue")
        );
    }

    #[test]
    fn nothing_leaves_its_line() {
        for (overrides, words) in [
            (&["hydra.launcher.comment=\"a\\nb\""][..], "hydra.launcher.comment"),
            (&["hydra.launcher.partition='a\"b'"], "hydra.launcher.partition"),
            (&["+hydra.launcher.additional_parameters={array: 1-2}"], "set by the program"),
            (&["+hydra.launcher.additional_parameters={mail-user: [1]}"], "expected a text"),
        ] {
            let error = text(overrides, None).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(folder_of(&launcher_of(&["hydra.launcher.submitit_folder=/a/b/%j/c"])), Path::new("/a/b"));
    }
}
