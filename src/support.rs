//! What a configuration asks of profiling and this version does not do: told before a run, never passed over.

use thiserror::Error;

use crate::config::{ProfilingConfig, RunConfig};

/// Everything of profiling that was asked for is missing here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{asked} would do nothing: this version does not have {what}; profiling=minimal samples the GPU and the host, \
     profiling=none measures latencies alone"
)]
pub struct NothingToDo {
    asked: String,
    what: String,
}

/// What to tell of a run that does a part of what was asked.
pub fn remarks(config: &RunConfig) -> Result<Vec<String>, NothingToDo> {
    let ProfilingConfig { nvml, host, nsys, ncu, .. } = &config.profiling;
    let missing: Vec<(&str, &str)> = [
        (nsys.enable, "profiling.nsys.enable=true", "runs under Nsight Systems"),
        (ncu.enable, "profiling.ncu.enable=true", "runs under Nsight Compute"),
    ]
    .into_iter()
    .filter_map(|(enabled, key, what)| enabled.then_some((key, what)))
    .collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<&str> = missing.iter().map(|(key, _)| *key).collect();
    let what: Vec<&str> = missing.iter().map(|(_, what)| *what).collect();
    let (asked, what) = (keys.join(", "), what.join(", "));
    let samplers = [(nvml.enable, "the GPU"), (host.enable, "the host")];
    let sampled: Vec<&str> = samplers.into_iter().filter_map(|(on, what)| on.then_some(what)).collect();
    match sampled.is_empty() {
        true => Err(NothingToDo { asked, what }),
        false => Ok(vec![format!(
            "this run samples {}; this version does not have {what} ({asked})",
            sampled.join(" and ")
        )]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfTree, compose};

    fn of(profiling: &str) -> Result<Vec<String>, String> {
        let composed = compose(&ConfTree::built_in(), &[format!("profiling={profiling}")]).unwrap();
        remarks(&composed.config).map_err(|e| e.to_string())
    }

    #[test]
    fn every_option_says_what_it_does_not_do() {
        for option in ConfTree::built_in().options("profiling") {
            let said = of(&option);
            match option.as_str() {
                "minimal" | "none" | "roofline_only" => assert_eq!(said, Ok(Vec::new()), "{option}"),
                "full" => {
                    let said = said.unwrap().join("\n");
                    assert!(said.starts_with("this run samples the GPU and the host; this version does not"));
                    assert!(said.contains("Nsight Systems, runs under Nsight Compute"), "{said}");
                }
                "nsys" | "ncu" => {
                    let said = said.unwrap_err();
                    assert!(
                        said.contains("would do nothing") && said.contains("profiling=minimal"),
                        "{said}"
                    );
                }
                other => panic!("nothing is said of profiling={other}"),
            }
        }
    }
}
