//! What a configuration asks of profiling and this run will not do: told before a run, never passed over.

use thiserror::Error;

use crate::{
    config::{NvtxDetail, ProfilingConfig, RunConfig, Runtime},
    profile::nvtx_ranges,
};

/// Everything of profiling that was asked for is missing here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{asked} would do nothing: {why}; profiling=minimal samples the GPU and the host, profiling=none measures latencies \
     alone"
)]
pub struct NothingToDo {
    asked: String,
    why: String,
}

/// What to tell of a run that does a part of what was asked.
pub fn remarks(config: &RunConfig) -> Result<Vec<String>, NothingToDo> {
    let ProfilingConfig { nvml, host, nsys, ncu, .. } = &config.profiling;
    let no_tools = match config.runtime.name {
        Runtime::Sim => Some("a simulated run has nothing that nsys and ncu could look at"),
        Runtime::Watch => Some("there is no workload of ours to run under nsys and ncu"),
        Runtime::Candle | Runtime::CandleStock => None,
    };
    let asked = [
        (nsys.enable, "profiling.nsys.enable=true", no_tools),
        (ncu.enable, "profiling.ncu.enable=true", no_tools),
    ];
    let asked: Vec<(&str, Option<&str>)> =
        asked.into_iter().filter_map(|(asked, key, why)| asked.then_some((key, why))).collect();
    let mut remarks = Vec::new();
    let mut reasons: Vec<&str> = asked.iter().filter_map(|(_, why)| *why).collect();
    reasons.dedup();
    if !reasons.is_empty() {
        let missing = asked.iter().filter(|(_, why)| why.is_some()).map(|(key, _)| *key);
        let missing = missing.collect::<Vec<_>>().join(", ");
        let samplers = [(nvml.enable, "the GPU"), (host.enable, "the host")];
        let sampled: Vec<&str> = samplers.into_iter().filter_map(|(on, what)| on.then_some(what)).collect();
        let why = reasons.join(", ");
        if sampled.is_empty() && asked.iter().all(|(_, why)| why.is_some()) {
            return Err(NothingToDo { asked: missing, why });
        }
        remarks.push(match sampled.is_empty() {
            true => format!("{why} ({missing})"),
            false => format!("this run samples {}; {why} ({missing})", sampled.join(" and ")),
        });
    }
    remarks.extend(ranges_remark(config));
    Ok(remarks)
}

/// What is said where ranges finer than phases are asked for and nobody makes them.
fn ranges_remark(config: &RunConfig) -> Option<String> {
    let detail = config.profiling.nvtx.detail;
    if detail == NvtxDetail::Phase {
        return None;
    }
    let why = match (nvtx_ranges::AVAILABLE, config.runtime.name) {
        (false, _) => "this build has no NVTX ranges; one with the feature nvtx or cuda has",
        (_, Runtime::Candle) => return None,
        (_, Runtime::CandleStock) => {
            "candle-transformers' models do not tell their layers; runtime=candle does"
        }
        (_, Runtime::Sim | Runtime::Watch) => "this run has no layers",
    };
    Some(format!("profiling.nvtx.detail asks for more than phases: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfTree, compose};

    fn of(profiling: &str) -> Result<Vec<String>, String> {
        let composed = compose(&ConfTree::built_in(), &[format!("profiling={profiling}")]).unwrap();
        remarks(&composed.config).map_err(|e| e.to_string())
    }

    fn with(overrides: &[&str]) -> Result<Vec<String>, String> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let composed = compose(&ConfTree::built_in(), &overrides).unwrap();
        remarks(&composed.config).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_says_what_it_does_not_do() {
        for option in ConfTree::built_in().options("profiling") {
            let said = of(&option);
            match option.as_str() {
                "minimal" | "none" | "nsys" | "ncu" | "full" | "roofline_only" => {
                    assert_eq!(said, Ok(Vec::new()), "{option}");
                }
                other => panic!("nothing is said of profiling={other}"),
            }
        }
    }

    #[test]
    fn a_simulated_run_is_not_done_again_under_tools() {
        let said = with(&["runtime=sim", "profiling=nsys"]).unwrap_err();
        assert!(said.contains("profiling.nsys.enable=true would do nothing: a simulated run"), "{said}");
        let said = with(&["runtime=sim", "profiling=full"]).unwrap().join("");
        assert!(said.contains("simulated run has nothing that nsys and ncu could look at"), "{said}");
    }

    #[test]
    fn ranges_that_nobody_makes_are_said() {
        let asked = "profiling.nvtx.detail=op";
        let said = with(&["runtime=candle", asked]).unwrap();
        assert_eq!(said.is_empty(), nvtx_ranges::AVAILABLE, "{said:?}");
        assert_eq!(with(&["runtime=candle_stock", asked]).unwrap().len(), 1);
        assert_eq!(with(&["runtime=sim", "profiling.nvtx.detail=layer"]).unwrap().len(), 1);
    }
}
