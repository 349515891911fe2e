//! What bounds a row, by whatever tells it.

use super::source::Source;
use crate::{
    kernels::{KernelRow, Kind, classify::Class},
    tui::view::View,
};

/// The class by the row's own counters.
pub fn class_of(_view: &View<'_>, _source: &Source<'_>, row: &KernelRow) -> Option<Class> {
    row.verdict().ok().map(|verdict| verdict.class)
}

/// Whether any row may have a class: without counters nothing is known.
pub fn is_told(_view: &View<'_>, source: &Source<'_>, rows: &[KernelRow]) -> bool {
    source.kind() == Kind::Kernels && rows.iter().any(|row| !row.counters.is_empty())
}
