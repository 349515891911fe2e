//! What bounds a row, by whatever tells it: its own counters, else the cost of its operator and the time it took.

use super::source::Source;
use crate::{
    analysis::{
        classify::Verdict,
        operators::{OperatorRow, kernel_verdict},
    },
    event::kernels::{Group, KernelRow, Kind},
    tui::view::View,
};

/// What is known of the operators that are looked at; nothing where they are no phase of this run.
pub struct Bounds {
    operators: Vec<OperatorRow>,
    group: Group,
}

impl Bounds {
    pub fn of(view: &View<'_>, source: &Source<'_>) -> Bounds {
        let operators = match source {
            Source::Live { phase, .. } | Source::Timed { phase, .. } => view.state.operator_rows(*phase),
            Source::Table { .. } => Vec::new(),
        };
        Bounds { operators, group: source.group(&view.ui.kernels) }
    }

    /// What bounds a row, or why that can't be told.
    pub fn verdict(&self, row: &KernelRow) -> Result<Verdict, String> {
        match self.whole(row) {
            // A row of all that an operator does has the operator's class.
            Some(whole) if self.group == Group::Operator && row.counters.is_empty() => whole.verdict.clone(),
            _ => kernel_verdict(row, &self.operators),
        }
    }

    /// The operator that a row is a part of.
    pub fn whole(&self, row: &KernelRow) -> Option<&OperatorRow> {
        self.operators.iter().find(|known| known.operator.is_some() && known.operator == row.operator)
    }

    /// Whether any row may have a class.
    pub fn are_told(&self, source: &Source<'_>, rows: &[KernelRow]) -> bool {
        let counted = || rows.iter().any(|row| !row.counters.is_empty());
        source.kind() == Kind::Kernels && (counted() || self.operators.iter().any(|row| row.verdict.is_ok()))
    }
}
