//! Tables of named durations.

use crate::{gpu::filled, tally::Durations};
use llmprof_event::kernels::{KernelRow, KernelTable, Kind};

pub fn timed(
    source: &str,
    kind: Kind,
    by_name: impl IntoIterator<Item = (String, Durations)>,
    device: Option<&str>,
) -> Option<KernelTable> {
    let rows = by_name.into_iter().map(|(name, durations)| durations.into_row(simple_row(name)));
    filled(source, kind, rows.collect(), device)
}

/// A row whose family is its name.
pub fn simple_row(name: String) -> KernelRow {
    KernelRow { family: name.clone(), name, ..KernelRow::default() }
}
