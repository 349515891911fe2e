//! The kind of the run, and the parts of the state that only a kind has.

use super::{Programs, RunState, ServerState};
use llmprof_event::{ModelEngine, WorkKind};

/// The kind of a state without a run: nothing distinguishes it from a model that has not started.
static NO_RUN: WorkKind = WorkKind::Model(ModelEngine::Candle);

impl RunState {
    /// The kind of the run.
    pub fn kind(&self) -> &WorkKind {
        self.run.as_ref().map_or(&NO_RUN, |run| &run.kind)
    }

    /// The server, if the run load-tests one.
    pub fn load_tested(&self) -> Option<&ServerState> {
        match self.kind() {
            WorkKind::Server => Some(&self.server),
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program | WorkKind::Watch => {
                None
            }
        }
    }

    /// The processes of the program, if the run follows one.
    pub fn followed(&self) -> Option<&Programs> {
        match self.kind() {
            WorkKind::Program => Some(&self.programs),
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Server | WorkKind::Watch => {
                None
            }
        }
    }

    /// Steps would be inferred, but none was: no rate or latency is known.
    pub fn found_no_steps(&self) -> bool {
        self.kind().infers_steps() && self.total.itl.n() == 0
    }

    /// The time left can be estimated from the share of finished requests. The warm-up requests of a server are sent
    /// one by one, the others concurrently.
    pub fn has_steady_progress(&self) -> bool {
        !self.kind().has_concurrent_requests() || self.requests_done > 0
    }
}
