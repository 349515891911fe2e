//! How the jobs of a sweep are started: `hydra/launcher`.

use std::collections::BTreeMap;

use hydra_config::{ConfigError, OutOfRange, Schema, Value, text_or_scalar};
use serde::Deserialize;

use super::Composed;

/// The launcher of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub enum Launcher {
    /// One after another, in this process.
    Basic,
    Local(LocalLauncher),
    Slurm(Box<SlurmLauncher>),
}

/// Several jobs at once on this machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalLauncher {
    #[serde(rename = "_target_")]
    pub target: String,
    pub gpus: Gpus,
    pub n_jobs: Option<i64>,
}

/// GPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Gpus {
    /// Indexes or UUIDs.
    Listed(Vec<Text>),
    /// `all`.
    Named(String),
}

/// Text that may also be written as a number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Text(#[serde(deserialize_with = "text_or_scalar")] pub String);

/// A Slurm job array, with the names of Hydra's submitit launcher.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmLauncher {
    #[serde(rename = "_target_")]
    pub target: String,
    pub submitit_folder: String,
    pub name: Text,
    pub partition: Option<Text>,
    pub qos: Option<Text>,
    pub account: Option<Text>,
    pub comment: Option<Text>,
    pub constraint: Option<Text>,
    pub exclude: Option<Text>,
    pub gres: Option<Text>,
    pub timeout_min: u32,
    pub nodes: u32,
    pub tasks_per_node: u32,
    pub cpus_per_task: Option<u32>,
    pub cpus_per_gpu: Option<u32>,
    pub gpus_per_node: Option<Text>,
    pub gpus_per_task: Option<Text>,
    pub mem_gb: Option<f64>,
    pub mem_per_gpu: Option<Text>,
    pub mem_per_cpu: Option<Text>,
    pub array_parallelism: u32,
    pub exclusive: bool,
    pub signal_delay_s: u32,
    pub max_num_timeout: u32,
    pub stderr_to_stdout: bool,
    pub additional_parameters: BTreeMap<String, Value>,
    pub setup: Option<Vec<String>>,
    pub files_wait_s: f64,
}

#[derive(Deserialize)]
struct Of<L> {
    hydra: OfHydra<L>,
}

#[derive(Deserialize)]
struct OfHydra<L> {
    launcher: L,
}

impl Schema for Of<LocalLauncher> {
    fn out_of_range(&self) -> Option<OutOfRange> {
        let LocalLauncher { gpus, n_jobs, .. } = &self.hydra.launcher;
        let bad = |key: &str, got: String, expected: &str| {
            Some(OutOfRange { key: format!("hydra.launcher.{key}"), got, expected: expected.into() })
        };
        match (gpus, n_jobs) {
            (Gpus::Named(name), _) if name != "all" => bad("gpus", name.clone(), "all or a list, e.g. [0,1]"),
            (Gpus::Listed(list), _) if list.is_empty() => {
                bad("gpus", "[]".into(), "at least one GPU, or all")
            }
            (_, Some(n)) if *n == 0 || *n < -1 || *n > 1024 => {
                bad("n_jobs", n.to_string(), "1 to 1024, or -1 for one job per CPU")
            }
            _ => None,
        }
    }
}

impl Schema for Of<SlurmLauncher> {
    fn out_of_range(&self) -> Option<OutOfRange> {
        let slurm = &self.hydra.launcher;
        let bad = |key: &str, got: String, expected: &str| {
            Some(OutOfRange { key: format!("hydra.launcher.{key}"), got, expected: expected.into() })
        };
        let counts = [
            ("timeout_min", slurm.timeout_min),
            ("nodes", slurm.nodes),
            ("tasks_per_node", slurm.tasks_per_node),
            ("array_parallelism", slurm.array_parallelism),
        ];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return bad(key, "0".into(), "at least 1");
        }
        if slurm.max_num_timeout > 0 {
            let expected = "0: a run that reached its time limit cannot be continued; raise timeout_min";
            return bad("max_num_timeout", slurm.max_num_timeout.to_string(), expected);
        }
        if !(0.0..=86_400.0).contains(&slurm.files_wait_s) {
            return bad("files_wait_s", slurm.files_wait_s.to_string(), "0 to 86400 seconds");
        }
        match slurm.mem_gb {
            Some(gb) if !(gb > 0.0 && gb < 1e6) => bad("mem_gb", gb.to_string(), "more than 0"),
            _ => None,
        }
    }

    fn is_untyped(key: &str) -> bool {
        key.starts_with("hydra.launcher.additional_parameters")
    }
}

/// The launcher of the sweep to which `composed` belongs. It is selected by the class name in `_target_`, so that files
/// for Hydra's own launchers work unchanged.
pub fn launcher(composed: &Composed) -> Result<Launcher, ConfigError> {
    let target = composed.composition.resolved_hydra("launcher._target_").unwrap_or_default();
    let class = target.as_str().unwrap_or("BasicLauncher").rsplit('.').next().unwrap_or_default();
    match class {
        "SlurmLauncher" => composed
            .hydra_part::<Of<SlurmLauncher>>("launcher")
            .map(|of| Launcher::Slurm(Box::new(of.hydra.launcher))),
        "LocalLauncher" | "JoblibLauncher" => {
            composed.hydra_part::<Of<LocalLauncher>>("launcher").map(|of| Launcher::Local(of.hydra.launcher))
        }
        "BasicLauncher" => Ok(Launcher::Basic),
        other => Err(ConfigError::OutOfRange {
            key: "hydra.launcher._target_".into(),
            got: other.into(),
            expected: "BasicLauncher, LocalLauncher or SlurmLauncher (hydra/launcher=basic, local or slurm)"
                .into(),
            origin: hydra_config::Origin::Composition,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{built_in, compose};

    fn launcher_of(overrides: &[&str]) -> Result<Launcher, String> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        compose(&built_in(), &overrides)
            .and_then(|composed| launcher(&composed))
            .map_err(|error| error.to_string())
    }

    fn slurm(overrides: &[&str]) -> SlurmLauncher {
        match launcher_of(overrides) {
            Ok(Launcher::Slurm(slurm)) => *slurm,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_launcher_is_chosen_by_its_group() {
        assert_eq!(launcher_of(&[]), Ok(Launcher::Basic));
        assert!(matches!(launcher_of(&["hydra/launcher=local"]), Ok(Launcher::Local(_))));
        // The directory of a sweep contains the time.
        let dir = "hydra.sweep.dir=sweeps";
        let one =
            slurm(&[dir, "hydra/launcher=slurm", "hydra.launcher.partition=7", "hydra.launcher.gres=gpu:2"]);
        let other = slurm(&[
            dir,
            "hydra/launcher=submitit_slurm",
            "hydra.launcher.partition=7",
            "hydra.launcher.gres='gpu:2'",
        ]);
        assert_eq!(one, other);
        assert_eq!(one.partition, Some(Text("7".into())));
        assert_eq!(one.name, Text("baseline".into()));
        assert!(one.submitit_folder.ends_with("/.submitit/%j"), "{}", one.submitit_folder);
        let theirs =
            "hydra.launcher._target_=hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher";
        assert_eq!(slurm(&["hydra/launcher=slurm", theirs]).nodes, 1);
        let more = slurm(&[
            "hydra/launcher=slurm",
            "+hydra.launcher.additional_parameters={mail-user: me, requeue: true}",
        ]);
        assert_eq!(more.additional_parameters.len(), 2);
    }

    #[test]
    fn errors_name_the_invalid_value() {
        for (overrides, words) in [
            (&["hydra/launcher=slrum"][..], "slurm"),
            (&["hydra/launcher=slurm", "hydra.launcher.partion=x"], "hydra.launcher.partition"),
            (&["hydra/launcher=slurm", "+hydra.launcher.partion=x"], "hydra.launcher.partion"),
            (&["hydra/launcher=slurm", "hydra.launcher.timeout_min=soon"], "hydra.launcher.timeout_min"),
            (&["hydra/launcher=slurm", "hydra.launcher.timeout_min=0"], "at least 1"),
            (&["hydra/launcher=slurm", "hydra.launcher.max_num_timeout=3"], "raise timeout_min"),
            (&["hydra/launcher=local", "hydra.launcher.n_jobs=0"], "1 to 1024"),
            (&["hydra/launcher=local", "hydra.launcher.gpus=some"], "all or a list"),
            (&["hydra/launcher=local", "hydra.launcher._target_=a.b.RayLauncher"], "hydra/launcher=basic"),
        ] {
            let error = launcher_of(overrides).unwrap_err();
            assert!(error.contains(words), "{overrides:?}: {error}");
        }
    }
}
