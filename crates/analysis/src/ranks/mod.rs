//! Several GPUs of one program, side by side: the activity of each, who waited for whom, and why.
//!
//! - `matching`: the same collective on all of its ranks
//! - `window`: sums and timelines of the lanes in a time in which all of them were recorded
//! - `totals`: sums of windows
//! - `show`: lanes and collectives as tables
//! - `straggler`: the rank that the others wait for, and the reason
//! - `clocks`: alignment of traces with different clocks
//! - `nccl_log`: the output of `NCCL_DEBUG=INFO`

mod clocks;
mod matching;
mod nccl_log;
mod show;
mod straggler;
#[cfg(test)]
mod tests;
mod totals;
mod window;

pub use clocks::{Alignment, align};
pub use nccl_log::{NcclLog, Transport, is_nccl_line};
pub use show::{collective_table, lane_table};
pub use straggler::{Clock, Late, Reason, Straggler, straggler};
pub use totals::{CollectiveTotals, LaneTotals, Totals};
pub use window::window;

use llmprof_event::ranks::{Collective, RankLane};

/// The activity of a GPU in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start_ns: u64,
    pub end_ns: u64,
    pub kind: PieceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    Compute,
    Copy,
    Collective(Operation),
}

/// A collective, as seen by one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation {
    pub kind: Collective,
    /// The size of the whole operation.
    pub bytes: Option<u64>,
    /// The communicator: the same number on all of its ranks.
    pub communicator: Option<u64>,
    /// The number of ranks of the communicator, including those that are not recorded.
    pub ranks: Option<u32>,
}

impl Operation {
    pub fn new(kind: Collective) -> Operation {
        Operation { kind, bytes: None, communicator: None, ranks: None }
    }
}

impl Piece {
    fn operation(&self) -> Option<&Operation> {
        match &self.kind {
            PieceKind::Collective(operation) => Some(operation),
            _ => None,
        }
    }
}

/// The work of one lane, sorted by start.
#[derive(Debug, Clone, Default)]
pub struct LanePieces {
    pub lane: RankLane,
    pub pieces: Vec<Piece>,
    /// Steps, if they are known.
    pub steps: Vec<(u64, u64)>,
}
