//! The inputs of a run: `inputs.yaml`.

use crate::state::RunState;
use llmprof_config::yaml_text;

/// The run's start event without its shape, which is in `static_compute.json`. `None` if there was no run.
pub(super) fn inputs_yaml(state: &RunState) -> Option<String> {
    let mut run = state.run.clone()?;
    run.shape = None;
    Some(yaml_text(&run))
}
