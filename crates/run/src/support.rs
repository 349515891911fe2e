//! Finds profiling settings that a run cannot follow, before it starts.

use thiserror::Error;

use llmprof_config::{KvCacheDtype, NvtxDetail, RunConfig};
use llmprof_event::{ModelEngine, WorkKind};

/// None of the requested profiling is possible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{settings} would do nothing: {reason}; profiling=minimal samples the GPU and the host, profiling=none only measures \
     latencies"
)]
pub struct NothingToDo {
    settings: String,
    reason: &'static str,
}

/// Remarks on the settings that a run of this kind ignores.
pub fn remarks(config: &RunConfig, kind: &WorkKind) -> Result<Vec<String>, NothingToDo> {
    let profiling = &config.profiling;
    let tools = enabled([
        (profiling.nsys.enable, "profiling.nsys.enable=true"),
        (profiling.ncu.enable, "profiling.ncu.enable=true"),
    ]);
    let mut remarks = Vec::new();
    if let Some(reason) = no_tools(kind).filter(|_| !tools.is_empty()) {
        let settings = tools.join(", ");
        let sampled = enabled([(profiling.nvml.enable, "the GPU"), (profiling.host.enable, "the host")]);
        if sampled.is_empty() {
            return Err(NothingToDo { settings, reason });
        }
        remarks.push(format!("this run samples {}; {reason} ({settings})", sampled.join(" and ")));
    }
    remarks.extend(ranges_remark(config, kind));
    remarks.extend(cache_remark(config, kind));
    remarks.extend(images_remark(config, kind));
    Ok(remarks)
}

/// Why a run of this kind is not repeated under nsys and ncu.
pub(crate) fn no_tools(kind: &WorkKind) -> Option<&'static str> {
    match kind {
        WorkKind::Sim => Some("a simulated run has nothing for nsys and ncu to profile"),
        WorkKind::Watch => Some("there is no workload to run under nsys and ncu"),
        WorkKind::Server => Some("a server cannot be run again under nsys and ncu"),
        WorkKind::Program => Some("another program cannot be run again under nsys and ncu"),
        WorkKind::Model(_) | WorkKind::Python => None,
    }
}

fn enabled(options: [(bool, &'static str); 2]) -> Vec<&'static str> {
    options.into_iter().filter_map(|(enabled, name)| enabled.then_some(name)).collect()
}

/// For a dataset with only images and an engine that reads text.
fn images_remark(config: &RunConfig, kind: &WorkKind) -> Option<String> {
    let dataset = &config.dataset;
    let blind = !matches!(kind, WorkKind::Python | WorkKind::Server);
    (blind && dataset.images.is_some() && dataset.prompts.is_none()).then(|| {
        format!(
            "dataset={} has images, which only runtime=pytorch reads: prompts are random tokens",
            dataset.name
        )
    })
}

/// For a KV cache type that only the built-in engine has.
fn cache_remark(config: &RunConfig, kind: &WorkKind) -> Option<String> {
    let ours = matches!(kind, WorkKind::Model(ModelEngine::Candle) | WorkKind::Sim);
    (config.runtime.kv_cache_dtype != KvCacheDtype::Auto && !ours)
        .then(|| "runtime.kv_cache_dtype is ignored: only runtime=candle has it".to_owned())
}

/// For ranges finer than phases in a runtime without them.
fn ranges_remark(config: &RunConfig, kind: &WorkKind) -> Option<String> {
    if config.profiling.nvtx.detail == NvtxDetail::Phase {
        return None;
    }
    let reason = match kind {
        WorkKind::Model(ModelEngine::CandleTransformers) => {
            "models of candle-transformers do not report their layers; runtime=candle does"
        }
        WorkKind::Model(_) | WorkKind::Python => return None,
        WorkKind::Sim | WorkKind::Program | WorkKind::Server | WorkKind::Watch => "this run has no layers",
    };
    Some(format!("profiling.nvtx.detail asks for more than phases: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::kind_of;
    use llmprof_config::{built_in, compose};

    fn remarks_with(overrides: &[&str]) -> Result<Vec<String>, String> {
        let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
        let composed = compose(&built_in(), &overrides).unwrap();
        let config = &composed.config;
        remarks(config, &kind_of(config.runtime.name)).map_err(|e| e.to_string())
    }

    #[test]
    fn built_in_options_need_no_remarks() {
        for option in built_in().options("profiling") {
            let remarks = remarks_with(&[&format!("profiling={option}")]);
            match option.as_str() {
                "minimal" | "none" | "nsys" | "ncu" | "full" | "roofline_only" => {
                    assert_eq!(remarks, Ok(Vec::new()), "{option}");
                }
                other => panic!("profiling={other} is not covered"),
            }
        }
    }

    #[test]
    fn a_simulated_run_is_not_repeated_under_tools() {
        let refused = remarks_with(&["runtime=sim", "profiling=nsys"]).unwrap_err();
        assert!(
            refused.contains("profiling.nsys.enable=true would do nothing: a simulated run"),
            "{refused}"
        );
        let remark = remarks_with(&["runtime=sim", "profiling=full"]).unwrap().join("");
        assert!(remark.contains("simulated run has nothing for nsys and ncu to profile"), "{remark}");
    }

    #[test]
    fn missing_ranges_are_remarked_on() {
        let asked = "profiling.nvtx.detail=op";
        let remarks = remarks_with(&["runtime=candle", asked]).unwrap();
        assert_eq!(remarks, Vec::<String>::new());
        assert_eq!(remarks_with(&["runtime=candle_stock", asked]).unwrap().len(), 1);
        let cache = "runtime.kv_cache_dtype=fp8";
        assert_eq!(remarks_with(&["runtime=candle_stock", cache]).unwrap().len(), 1);
        assert_eq!(remarks_with(&["runtime=candle", cache]).unwrap().len(), 0);
        assert_eq!(remarks_with(&["runtime=sim", "profiling.nvtx.detail=layer"]).unwrap().len(), 1);
    }
}
