//! The bound of a row: by its own counters, otherwise by the cost of its operator and its time.

use super::source::Source;
use crate::view::View;
use llmprof_analysis::{
    classify::Verdict,
    operators::{OperatorRow, kernel_verdict},
};
use llmprof_event::kernels::{Group, KernelRow, Kind};

/// The operators of the displayed phase; none for reports.
pub struct Bounds {
    operators: Vec<OperatorRow>,
    group: Group,
}

impl Bounds {
    pub fn from_view(view: &View<'_>, source: &Source<'_>) -> Bounds {
        let operators = match source {
            Source::Live { phase, .. } | Source::Timed { phase, .. } => view.state.operator_rows(*phase),
            Source::Table { .. } => Vec::new(),
        };
        Bounds { operators, group: source.group(&view.ui.kernels) }
    }

    /// The bound of a row, or why it is unknown.
    pub fn verdict(&self, row: &KernelRow) -> Result<Verdict, String> {
        match self.operator(row) {
            // A row that is a whole operator has the operator's class.
            Some(operator) if self.group == Group::Operator && row.counters.is_empty() => {
                operator.verdict.clone()
            }
            _ => kernel_verdict(row, &self.operators),
        }
    }

    /// The operator to which a row belongs.
    pub fn operator(&self, row: &KernelRow) -> Option<&OperatorRow> {
        self.operators.iter().find(|known| known.operator.is_some() && known.operator == row.operator)
    }

    /// Whether any row may have a class.
    pub fn are_known(&self, source: &Source<'_>, rows: &[KernelRow]) -> bool {
        let counted = || rows.iter().any(|row| !row.counters.is_empty());
        source.kind() == Kind::Kernels && (counted() || self.operators.iter().any(|row| row.verdict.is_ok()))
    }
}
