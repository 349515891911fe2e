//! The inputs of a run: `inputs.yaml`.

use crate::{config::yaml_text, state::RunState};

/// The run's start event without its shape, which is in `static_compute.json`. `None` if there was no run.
pub(super) fn inputs_yaml(state: &RunState) -> Option<String> {
    let mut run = state.run.clone()?;
    run.shape = None;
    Some(yaml_text(&run))
}
