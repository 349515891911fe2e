//! What a run does at the moment.

use crate::{event::Phase, state::RunState};

/// What the run does, and the share of it that is done.
pub fn progress(state: &RunState) -> (String, Option<f64>) {
    let Some(run) = &state.run else { return ("starting".to_owned(), None) };
    if let (Phase::Preparing, Some(preparing)) = (state.phase, &state.preparing) {
        let share = preparing.done as f64 / preparing.total.max(1) as f64;
        return (format!("loading {}", preparing.step), Some(share));
    }
    let (name, done, total) = match &state.active {
        Some(active) if active.started.warmup => ("warm-up", state.warmup_done, run.warmup),
        _ => ("request", state.requests_done, run.requests),
    };
    let text = format!("{name} {}/{total}  {}", (done + 1).min(total), state.phase.name());
    (text, state.active.is_some().then(|| state.request_share_done()))
}
