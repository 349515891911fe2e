//! Parts of texts that several documents have.

use super::list_item;
use crate::state::RunState;
use llmprof_event::Phase;

pub(super) fn none() -> String {
    "–".to_owned()
}

/// The findings about kernels, without a full stop.
pub(super) fn all_hints(state: &RunState) -> Vec<String> {
    [Phase::Decode, Phase::Prefill].into_iter().flat_map(|phase| hints(state, phase)).collect()
}

pub(super) fn hints(state: &RunState, phase: Phase) -> Vec<String> {
    state.kernel_hints(phase).iter().map(|hint| hint.trim_end_matches('.').to_owned()).collect()
}

/// A list with one item for each sentence, and an empty line after it.
pub(super) fn list(out: &mut String, sentences: &[String]) {
    for sentence in sentences {
        *out += &list_item(&format!("{sentence}."));
    }
    if !sentences.is_empty() {
        out.push('\n');
    }
}
