//! The changes since the last snapshot.

use super::source::{Source, StepUnit};
use crate::{view::View, widgets::cut};
use gpu_traces::change::{Change, Changes, Profiled};
use llmprof_base::units::ratio_change;
use llmprof_event::{
    KernelReport,
    kernels::{KernelRow, KernelTable},
};
use llmprof_record::state::{StepTable, WindowKernels};

/// The rows since the last snapshot compared with those of the snapshot.
pub struct Against {
    snapshot: String,
    /// The unit of the times; `None` for a call.
    unit: Option<StepUnit>,
    changes: Changes,
}

/// Longer names of snapshots are truncated.
const NAME: usize = 24;

impl Against {
    /// `None` without a snapshot that has kernels of the same kind of source.
    pub fn from_view(view: &View<'_>, source: &Source<'_>) -> Option<Against> {
        let snapshot = view.snapshots.last()?;
        let group = source.group(&view.ui.kernels);
        let (before, now) = (&snapshot.kernels, view.state.window_kernels());
        let steps = |before: Option<&StepTable>, now: Option<&StepTable>| {
            Changes::between(profiled(before?), profiled(now?), group)
        };
        let changes = match source {
            Source::Live { phase, .. } => steps(before.live(*phase), now.live(*phase)),
            Source::Timed { phase, .. } => steps(before.timed(*phase), now.timed(*phase)),
            Source::Table { report, table } => {
                let [before, now] =
                    [earlier(before, report, table)?, table].map(|table| Profiled { table, steps: None });
                Changes::between(before, now, group)
            }
        }?;
        let snapshot = cut(&snapshot.name, NAME, view.theme.glyphs.ascii);
        Some(Against { snapshot, unit: source.steps().map(|(_, unit)| unit), changes })
    }

    pub fn of_row(&self, row: &KernelRow) -> Option<Change> {
        self.changes.get(row)
    }

    /// For the title of the table: "change per token against snap-1".
    pub fn title(&self) -> String {
        format!("change {}", self.reference())
    }

    fn reference(&self) -> String {
        let unit = self.unit.map_or_else(|| "call".to_owned(), |unit| unit.to_string());
        format!("per {unit} against {}", self.snapshot)
    }

    /// "+3.1 % per token against snap-1"
    pub fn describe(&self, row: &KernelRow) -> Option<String> {
        Some(match self.of_row(row)? {
            Change::Time(ratio) => format!("{} {}", ratio_change(ratio), self.reference()),
            Change::New => format!("new since {}", self.snapshot),
            Change::Gone => format!("gone since {}", self.snapshot),
        })
    }

    /// Rows of the snapshot that have not run since.
    pub fn gone(&self) -> Option<String> {
        let gone = &self.changes.gone;
        let noun = if gone.len() == 1 { "row" } else { "rows" };
        (!gone.is_empty())
            .then(|| format!("gone since {}: {} {noun}, {}", self.snapshot, gone.len(), gone.join(", ")))
    }
}

fn profiled(StepTable { steps, table }: &StepTable) -> Profiled<'_> {
    Profiled { table, steps: Some(*steps) }
}

/// The table of the same tool, phase and kind in the newest report of a snapshot; `None` if that is the same report.
fn earlier<'s>(
    snapshot: &'s WindowKernels,
    report: &KernelReport,
    table: &KernelTable,
) -> Option<&'s KernelTable> {
    let tool = |report: &KernelReport| report.tool.split(' ').next().map(str::to_owned);
    if snapshot.reports.iter().any(|known| std::ptr::eq(&**known, report)) {
        return None;
    }
    let same = snapshot
        .reports
        .iter()
        .rev()
        .filter(|known| (tool(known), known.phase) == (tool(report), report.phase));
    same.flat_map(|known| &known.tables)
        .find(|known| known.kind == table.kind && known.device == table.device)
}
