//! The phase of the workload. [`Phase::after`] is the one rule that derives it from events.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use serde::{Deserialize, Serialize};

use super::Event;

/// The activity of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Phase {
    #[default]
    Idle = 0,
    Preparing = 1,
    Prefill = 2,
    Decode = 3,
    /// Images become embeddings.
    Vision = 4,
    /// Steps of a server that contain both prompts and single tokens.
    Mixed = 5,
}

impl Phase {
    pub const ALL: [Phase; 6] =
        [Phase::Idle, Phase::Preparing, Phase::Prefill, Phase::Decode, Phase::Vision, Phase::Mixed];

    /// The phases of a request, in their order.
    pub const WORK: [Phase; 4] = [Phase::Vision, Phase::Prefill, Phase::Mixed, Phase::Decode];

    /// The phase after `event`.
    pub fn after(self, event: &Event) -> Phase {
        match event {
            Event::Preparing(_) => Phase::Preparing,
            // Requests to a server overlap: one begins while others decode.
            Event::RequestStarted(started) if self != Phase::Decode => match started.images {
                0 => Phase::Prefill,
                _ => Phase::Vision,
            },
            Event::ImagesEncoded(_) if self == Phase::Vision => Phase::Prefill,
            Event::Token(_) if matches!(self, Phase::Prefill | Phase::Vision) => Phase::Decode,
            Event::RequestFinished(finished) if finished.served.is_some() => self,
            // A program without known steps still counts as working.
            Event::Kernels(window) if window.steps == 0 && self == Phase::Preparing => Phase::Idle,
            Event::Ready(_) | Event::RequestFinished(_) | Event::RunFinished(_) => Phase::Idle,
            _ => self,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Preparing => "preparing",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Vision => "vision",
            Phase::Mixed => "mixed",
        }
    }
}

/// The current phase, readable from any thread. The sender of events keeps it up to date.
#[derive(Debug, Clone, Default)]
pub struct Activity(Arc<AtomicU8>);

impl Activity {
    /// Stores the phase after `event`. An event that does not change the phase stores nothing, so a sender without
    /// phases never overwrites the workload's.
    pub(super) fn apply(&self, event: &Event) {
        let phase = self.get();
        let next = phase.after(event);
        if next != phase {
            self.set(next);
        }
    }

    /// Sets the phase of work that sends no events.
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    pub fn get(&self) -> Phase {
        Phase::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}
