//! The current activity of a run.

use llmprof_event::{Phase, PrefillProgress};
use llmprof_record::state::RunState;

/// The activity of the run, and the share that is done.
pub fn progress(state: &RunState) -> (String, Option<f64>) {
    let Some(run) = &state.run else { return ("starting".to_owned(), None) };
    if let (Phase::Preparing, Some(loading), Some(text)) = (state.phase, &state.loading, state.loading_text())
    {
        return (text.trim_end_matches('.').to_owned(), loading.share());
    }
    let (name, done, total) = match state.active.latest() {
        Some(active) if active.started.warmup => ("warm-up", state.warmup_done, run.warmup),
        _ => ("request", state.requests_done, run.requests),
    };
    let mut text = format!("{name} {}/{total}  {}", (done + 1).min(total), state.phase.name());
    if let Some(PrefillProgress { layer, layers }) = prefill_progress(state) {
        text += &format!(", layer {}/{layers}", layer + 1);
    }
    let is_known = state.active.count() > 0 && state.has_steady_progress();
    (text, is_known.then(|| state.request_share_done()))
}

/// The last report of a prefill in progress.
fn prefill_progress(state: &RunState) -> Option<PrefillProgress> {
    state.active.latest().filter(|active| active.tokens == 0)?.prefill
}
