//! Where kernels are known from: phases as they run, and tables of reports. On the CPU, operators stand for them.

use std::borrow::Cow;

use crate::{
    event::{
        KernelReport, KernelTrace, Phase,
        kernels::{Group, KernelTable, Kind},
    },
    kernels::show::{Asked, Shown},
    state::{HostOperators, LiveKernels, RunState},
    tui::{ui::KernelsLook, view::View},
};

/// One of the things the pane can show.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    Live {
        phase: Phase,
        live: &'a LiveKernels,
        trace: Option<&'a KernelTrace>,
    },
    /// Operators that the CPU did.
    Timed {
        phase: Phase,
        host: &'a HostOperators,
    },
    Table {
        report: &'a KernelReport,
        table: &'a KernelTable,
    },
}

/// All there are: live ones first, reports as they came.
pub fn sources(state: &RunState) -> Vec<Source<'_>> {
    let kernels = &state.kernels;
    let live = [Phase::Prefill, Phase::Decode].into_iter().filter_map(|phase| {
        let live = kernels.live(phase).filter(|live| !live.is_empty())?;
        Some(Source::Live { phase, live, trace: kernels.trace.as_ref() })
    });
    let timed = [Phase::Prefill, Phase::Decode]
        .into_iter()
        .filter_map(|phase| Some(Source::Timed { phase, host: state.operators_on_cpu(phase)? }));
    let tables = kernels
        .reports
        .iter()
        .flat_map(|report| report.tables.iter().map(move |table| Source::Table { report, table }));
    live.chain(timed).chain(tables).collect()
}

/// The source on the screen and its place. Until the user chooses: the first table of the newest report, else decode.
pub fn chosen<'a>(all: &[Source<'a>], look: &KernelsLook) -> Option<(usize, Source<'a>)> {
    let last = all.len().checked_sub(1)?;
    let newest_report = || {
        let Source::Table { report: newest, .. } = all[last] else { return None };
        all.iter().position(
            |source| matches!(source, Source::Table { report, .. } if std::ptr::eq(*report, newest)),
        )
    };
    let at = look.source.unwrap_or_else(|| newest_report().unwrap_or(last)).min(last);
    Some((at, all[at]))
}

impl<'a> Source<'a> {
    /// Which tool, which phase, what of it.
    pub fn title(&self) -> String {
        match self {
            Source::Live { phase, .. } => format!("live {}", phase.name()),
            Source::Timed { phase, .. } => format!("wall time {}", phase.name()),
            Source::Table { report, table } => {
                let phase = report.phase.map(|phase| format!("{} ", phase.name())).unwrap_or_default();
                let what = match table.kind {
                    Kind::Kernels => "kernels",
                    Kind::ApiCalls => "CUDA calls",
                    Kind::MemoryTime => "copies",
                    Kind::MemorySize => "copies by size",
                    Kind::Ranges => "ranges",
                    Kind::Products => "products",
                };
                let tool = report.tool.split(' ').next().unwrap_or(&report.tool);
                format!("{tool} {phase}{what}")
            }
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

    /// What a row is, in a word.
    pub fn noun(&self) -> &'static str {
        match self {
            Source::Timed { .. } => "operator",
            _ => self.kind().nouns().0,
        }
    }

    /// What a row counts, one and several.
    pub fn count_nouns(&self) -> (&'static str, &'static str) {
        match self {
            Source::Timed { .. } => ("call", "calls"),
            _ => self.kind().count_nouns(),
        }
    }

    /// Steps that calls and times are shared out over, and what one of them is.
    pub fn steps(&self) -> Option<(u64, &'static str)> {
        match self {
            Source::Live { live, .. } if live.total.steps == 0 => None,
            Source::Live { phase: Phase::Decode, live, .. } => Some((live.total.steps, "token")),
            Source::Live { live, .. } => Some((live.total.steps, "prefill")),
            Source::Timed { phase: Phase::Decode, host } => Some((host.attributed_steps(), "token")),
            Source::Timed { host, .. } => Some((host.attributed_steps(), "prefill")),
            Source::Table { .. } => None,
        }
    }

    pub fn tells_operators(&self) -> bool {
        let rows = match self {
            Source::Live { live, .. } => &live.total.rows,
            Source::Timed { .. } => return true,
            Source::Table { table, .. } => &table.rows,
        };
        rows.iter().any(|row| row.operator.is_some())
    }

    /// What is put together: what the user wants, as far as the source allows.
    pub fn group(&self, look: &KernelsLook) -> Group {
        match look.group {
            Some(Group::Operator) | None if self.tells_operators() => Group::Operator,
            Some(Group::Operator) | None => Group::Family,
            Some(group) => group,
        }
    }

    /// The rows as the user wants them.
    pub fn shown(&self, look: &KernelsLook) -> Shown {
        let filter = Some(look.filter.clone()).filter(|text| !text.is_empty());
        let asked = Asked { group: self.group(look), sort: look.sort, filter, rows: None };
        Shown::new(&self.table(), &asked)
    }
}

/// For a list of sources. Reports of one tool are told apart by their files.
pub fn titles(all: &[Source<'_>]) -> Vec<String> {
    let plain: Vec<String> = all.iter().map(Source::title).collect();
    let file = |source: &Source<'_>| match source {
        Source::Table { report, .. } => report.file.rsplit('/').next().map(str::to_owned),
        Source::Live { .. } | Source::Timed { .. } => None,
    };
    let twice = |title: &String| plain.iter().filter(|other| *other == title).count() > 1;
    let told = |(title, source): (&String, &Source<'_>)| match file(source).filter(|_| twice(title)) {
        Some(file) => format!("{title} of {file}"),
        None => title.clone(),
    };
    plain.iter().zip(all).map(told).collect()
}

/// What the view looks at, if there is anything.
pub fn looked_at<'a>(view: &View<'a>) -> Option<(Vec<Source<'a>>, usize, Source<'a>)> {
    let all = sources(view.state);
    let (at, source) = chosen(&all, &view.ui.kernels)?;
    Some((all, at, source))
}
