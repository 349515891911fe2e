//! What a run worked on: `inputs.yaml`.

use crate::{config::yaml_text, state::RunState};

/// What the run said of itself when it began, its shape left out: that is in `static_compute.json`. `None` of files.
pub(super) fn inputs_yaml(state: &RunState) -> Option<String> {
    let mut run = state.run.clone()?;
    run.shape = None;
    Some(yaml_text(&run))
}
