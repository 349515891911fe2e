//! What bounds a row, by whatever tells it.

use crate::kernels::{KernelRow, classify::Class};

/// The class by the row's own counters.
pub fn class_of(row: &KernelRow) -> Option<Class> {
    row.verdict().ok().map(|verdict| verdict.class)
}

/// Whether it is worth asking: without counters nothing is known.
pub fn may_be_told(row: &KernelRow) -> bool {
    !row.counters.is_empty()
}
