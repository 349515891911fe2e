//! The sources of the pane: live phases and tables of reports. On the CPU, operators replace kernels.

use std::{borrow::Cow, fmt};

use crate::{ui::KernelsSettings, view::View};
use gpu_traces::show::{RowQuery, TableView};
use llmprof_event::{
    KernelReport, KernelTrace, Phase, WorkKind,
    kernels::{Group, KernelTable, Kind, Platform},
};
use llmprof_record::state::{HostOperators, LiveKernels, RunState};

/// One source of the pane.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    Live {
        phase: Phase,
        live: &'a LiveKernels,
        unit: StepUnit,
        trace: Option<&'a KernelTrace>,
    },
    /// Operators timed on the CPU.
    Timed {
        phase: Phase,
        unit: StepUnit,
        host: &'a HostOperators,
    },
    Table {
        report: &'a KernelReport,
        table: &'a KernelTable,
    },
}

/// All sources and the displayed one.
pub struct Sources<'a> {
    pub all: Vec<Source<'a>>,
    pub index: usize,
}

impl<'a> Sources<'a> {
    /// `None` without any. The default is the first table of the newest report, otherwise decode.
    pub fn from_view(view: &View<'a>) -> Option<Sources<'a>> {
        let all = sources(view.state);
        let last = all.len().checked_sub(1)?;
        let newest_report = || {
            let Source::Table { report: newest, .. } = all[last] else { return None };
            all.iter().position(
                |source| matches!(source, Source::Table { report, .. } if std::ptr::eq(*report, newest)),
            )
        };
        let index = view.ui.kernels.source.unwrap_or_else(|| newest_report().unwrap_or(last)).min(last);
        Some(Sources { all, index })
    }

    /// The displayed source.
    pub fn shown(&self) -> Source<'a> {
        self.all[self.index]
    }

    /// For the list. Reports of the same tool are distinguished by their files.
    pub fn titles(&self) -> Vec<String> {
        let titles: Vec<String> = self.all.iter().map(Source::title).collect();
        let is_ambiguous = |title: &String| titles.iter().filter(|other| *other == title).count() > 1;
        let full = |(title, source): (&String, &Source<'_>)| match source {
            Source::Table { report, .. } if is_ambiguous(title) => {
                format!("{title} of {}", report.file.rsplit('/').next().unwrap_or_default())
            }
            _ => title.clone(),
        };
        titles.iter().zip(&self.all).map(full).collect()
    }
}

/// Live sources first, then reports in order.
fn sources(state: &RunState) -> Vec<Source<'_>> {
    let kernels = &state.kernels;
    let decode_unit = match state.kind() {
        WorkKind::Program | WorkKind::Server => StepUnit::Step,
        _ if state.speculation.is_some() => StepUnit::Step,
        WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Watch => StepUnit::Token,
    };
    let unit = |phase| match phase {
        Phase::Mixed => StepUnit::Step,
        Phase::Decode => decode_unit,
        Phase::Vision => StepUnit::Images,
        _ => StepUnit::Prefill,
    };
    let phases = || Phase::WORK.into_iter();
    // Work outside of steps is shown if there are no steps.
    let outside = kernels.without_steps().filter(|_| state.followed().is_some()).map(|_| Phase::Idle);
    let live = outside.into_iter().chain(phases()).filter_map(|phase| {
        let live = kernels.live(phase).filter(|live| !live.is_empty())?;
        Some(Source::Live { phase, live, unit: unit(phase), trace: kernels.trace.as_ref() })
    });
    let timed = phases().filter_map(|phase| {
        Some(Source::Timed { phase, unit: unit(phase), host: state.operators_on_cpu(phase)? })
    });
    let tables = kernels
        .reports
        .iter()
        .flat_map(|report| report.tables.iter().map(move |table| Source::Table { report, table }));
    live.chain(timed).chain(tables).collect()
}

/// The unit that divides calls and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepUnit {
    Token,
    /// With several tokens.
    Step,
    Prefill,
    /// The images of a request.
    Images,
}

impl fmt::Display for StepUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StepUnit::Token => "token",
            StepUnit::Step => "step",
            StepUnit::Prefill => "prefill",
            StepUnit::Images => "request",
        })
    }
}

impl<'a> Source<'a> {
    /// Tool, phase and kind of table; with several GPUs, the GPU.
    pub fn title(&self) -> String {
        match self {
            Source::Live { phase: Phase::Idle, .. } => "live kernels".to_owned(),
            Source::Live { phase, .. } => format!("live {}", phase.name()),
            Source::Timed { phase, .. } => format!("wall time {}", phase.name()),
            Source::Table { report, table } => {
                let phase = report.phase.map(|phase| format!("{} ", phase.name())).unwrap_or_default();
                let what = match table.kind {
                    Kind::Kernels => "kernels",
                    Kind::ApiCalls => table.platform.calls(),
                    Kind::MemoryTime => "memory copies",
                    Kind::MemorySize => "memory copies by size",
                    Kind::Ranges => "ranges",
                    Kind::Products => "products",
                    Kind::Operators => "operators",
                    Kind::Streams => "streams",
                    Kind::Layers => "layers",
                    Kind::Allocations => "allocations",
                };
                let tool = report.tool.split(' ').next().unwrap_or(&report.tool);
                let same_kind = report.tables.iter().filter(|other| other.kind == table.kind);
                let several = same_kind.map(|other| &other.device).any(|device| *device != table.device);
                let device = table.device.as_ref().filter(|_| several);
                let device = device.map(|name| format!(" on {name}")).unwrap_or_default();
                format!("{tool} {phase}{what}{device}")
            }
        }
    }

    /// The tool that measured it, with its version if that is known.
    pub fn tool(&self) -> String {
        match self {
            Source::Live { trace, .. } => {
                trace.map_or_else(|| "CUPTI".to_owned(), |trace| trace.tool.clone())
            }
            Source::Timed { .. } => "engine thread".to_owned(),
            Source::Table { report, .. } => report.tool.clone(),
        }
    }

    /// `None` if it has all phases, or the phase is not known.
    pub fn phase(&self) -> Option<Phase> {
        match self {
            Source::Live { phase, .. } | Source::Timed { phase, .. } => Some(*phase),
            Source::Table { report, .. } => report.phase,
        }
    }

    pub fn table(&self) -> Cow<'a, KernelTable> {
        match self {
            Source::Live { live, trace, .. } => {
                Cow::Owned(live.table(trace.map_or("live", |trace| trace.tool.as_str())))
            }
            Source::Timed { host, .. } => Cow::Owned(host.table()),
            Source::Table { table, .. } => Cow::Borrowed(table),
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Source::Live { .. } | Source::Timed { .. } => Kind::Kernels,
            Source::Table { table, .. } => table.kind,
        }
    }

    pub fn platform(&self) -> Platform {
        match self {
            Source::Live { .. } | Source::Timed { .. } => Platform::Cuda,
            Source::Table { table, .. } => table.platform,
        }
    }

    /// The kind of a row.
    pub fn noun(&self) -> &'static str {
        match self {
            Source::Timed { .. } => "operator",
            Source::Live { .. } => Kind::Kernels.nouns().0,
            Source::Table { table, .. } => table.nouns().0,
        }
    }

    /// What a row counts, in singular and plural.
    pub fn count_nouns(&self) -> (&'static str, &'static str) {
        match self {
            Source::Timed { .. } => ("call", "calls"),
            _ => self.kind().count_nouns(),
        }
    }

    /// The number of steps that divides calls and times.
    pub fn steps(&self) -> Option<(u64, StepUnit)> {
        match self {
            Source::Live { unit, live, .. } => (live.total.steps > 0).then_some((live.total.steps, *unit)),
            Source::Timed { unit, host, .. } => Some((host.attributed_steps(), *unit)),
            Source::Table { .. } => None,
        }
    }

    /// Whether rows have operators.
    pub fn has_operators(&self) -> bool {
        let rows = match self {
            Source::Live { live, .. } => &live.total.rows,
            Source::Timed { .. } => return true,
            Source::Table { table, .. } => &table.rows,
        };
        rows.iter().any(|row| row.operator.is_some())
    }

    /// The grouping that the user has set, as far as the source allows it.
    pub fn group(&self, settings: &KernelsSettings) -> Group {
        match settings.group {
            Some(Group::Operator) | None if self.has_operators() => Group::Operator,
            Some(Group::Operator) | None => Group::Family,
            Some(group) => group,
        }
    }

    /// The rows, grouped, sorted and filtered.
    pub fn shown(&self, settings: &KernelsSettings) -> TableView {
        let filter = Some(settings.filter.clone()).filter(|text| !text.is_empty());
        let query = RowQuery { group: self.group(settings), sort: settings.sort, filter, rows: None };
        TableView::new(&self.table(), &query)
    }
}
