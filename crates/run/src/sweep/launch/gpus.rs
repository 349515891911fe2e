//! The GPUs that a sweep uses concurrently, and their shared resources.

use std::collections::BTreeMap;

use llmprof_config::{Gpus, LocalLauncher};
use llmprof_sources::telemetry::nvml::NvmlProbe;

/// A GPU of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) index: u32,
    pub(super) uuid: String,
    /// GPUs of one board have the same number; `None` if NVML does not report it.
    pub(super) board: Option<u32>,
}

/// The GPUs of this machine that CUDA can see; none without a driver.
pub(super) fn here(visible: Option<&str>) -> Vec<Gpu> {
    use llmprof_sources::telemetry::{GpuProbe, visible::nvml_index};
    let Ok(probe) = NvmlProbe::open() else { return Vec::new() };
    let gpus = probe.gpus();
    let seen = (0..gpus.len() as u32).map_while(|ordinal| nvml_index(&gpus, ordinal, None, visible));
    seen.filter_map(|index| {
        let gpu = gpus.iter().find(|gpu| gpu.index == index)?;
        Some(Gpu { index, uuid: gpu.uuid.clone(), board: probe.board(index) })
    })
    .collect()
}

/// The GPUs of `there` that the launcher uses.
pub(super) fn chosen(launcher: &LocalLauncher, there: &[Gpu]) -> Result<Vec<Gpu>, String> {
    let named = match &launcher.gpus {
        Gpus::Named(_) => return Ok(there.to_vec()),
        Gpus::Listed(named) => named,
    };
    let known = || there.iter().map(|gpu| gpu.index.to_string()).collect::<Vec<_>>().join(", ");
    let mut chosen: Vec<Gpu> = Vec::new();
    for name in named {
        let is_it = |gpu: &&Gpu| match name.0.parse::<u32>() {
            Ok(index) => gpu.index == index,
            Err(_) => !name.0.is_empty() && gpu.uuid.starts_with(&name.0),
        };
        let gpu = there.iter().find(is_it).ok_or_else(|| match there.is_empty() {
            true => {
                "this machine has no NVIDIA GPU; leave gpus out and set n_jobs to run on the CPU".to_owned()
            }
            false => format!("there is no GPU {}; the GPUs of this machine are {}", name.0, known()),
        })?;
        if chosen.contains(gpu) {
            return Err(format!("GPU {} is listed twice", gpu.index));
        }
        chosen.push(gpu.clone());
    }
    Ok(chosen)
}

/// The resources that concurrent jobs on these GPUs share, and the effect on their timings.
pub(super) fn shared(gpus: &[Gpu], jobs_at_once: usize) -> Option<String> {
    if jobs_at_once < 2 {
        return None;
    }
    let mut boards: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for gpu in gpus.iter().take(jobs_at_once) {
        if let Some(board) = gpu.board {
            boards.entry(board).or_default().push(gpu.index);
        }
    }
    let on_one_board = boards.values().find(|gpus| gpus.len() > 1);
    let host = "jobs at once on one machine share its CPU, memory, PCIe and cooling";
    let advice = "for timings to compare, run them one after another (hydra/launcher=basic)";
    Some(match on_one_board {
        Some(gpus) => {
            let names = gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
            format!("GPUs {names} are on one board and share its power and thermal budget; {host}; {advice}")
        }
        None if gpus.is_empty() => format!("{host}; {advice}"),
        None => {
            format!("{host}; NVML does not report whether the GPUs share a power or thermal budget; {advice}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::Text;

    fn gpu(index: u32, board: Option<u32>) -> Gpu {
        Gpu { index, uuid: format!("GPU-{index}{index}ab"), board }
    }

    fn launcher(gpus: Gpus) -> LocalLauncher {
        LocalLauncher { target: String::new(), gpus, n_jobs: None }
    }

    #[test]
    fn gpus_are_chosen_by_index_or_uuid() {
        let there = [gpu(0, None), gpu(2, None), gpu(3, None)];
        let chosen = |names: &[&str], there: &[Gpu]| {
            let names = names.iter().map(|name| Text((*name).into())).collect();
            let chosen = chosen(&launcher(Gpus::Listed(names)), there);
            chosen.map(|gpus| gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["3", "GPU-00"], &there), Ok(vec![3, 0]));
        assert_eq!(
            chosen(&["1"], &there).unwrap_err(),
            "there is no GPU 1; the GPUs of this machine are 0, 2, 3"
        );
        assert_eq!(chosen(&["2", "GPU-22"], &there).unwrap_err(), "GPU 2 is listed twice");
        assert!(chosen(&["0"], &[]).unwrap_err().starts_with("this machine has no NVIDIA GPU"));
        assert_eq!(super::chosen(&launcher(Gpus::Named("all".into())), &there).unwrap().len(), 3);
    }

    #[test]
    fn shared_gpus_are_reported() {
        let warning = |boards: [Option<u32>; 3], jobs| {
            let gpus: Vec<Gpu> = (0..).zip(boards).map(|(index, board)| gpu(index, board)).collect();
            shared(&gpus, jobs)
        };
        assert_eq!(warning([Some(1), Some(2), Some(3)], 1), None);
        let one_board = warning([Some(1), Some(1), Some(3)], 3).unwrap();
        assert!(one_board.starts_with("GPUs 0 and 1 are on one board"), "{one_board}");
        let apart = warning([Some(1), Some(2), Some(1)], 2).unwrap();
        assert!(apart.contains("NVML does not report whether"), "{apart}");
        assert!(!shared(&[], 4).unwrap().contains("NVML"));
    }
}
