//! What is known of kernels: as they run, and as tools wrote them down.

use std::collections::VecDeque;

use crate::{
    analysis::launches::{LaunchMeter, Steps},
    event::{
        KernelReport, KernelTrace, KernelWindow, Phase, StepTimeline, ToolRun, ToolState,
        kernels::{KernelRow, KernelTable, Kind, OTHERS},
    },
};

/// Reports kept; the newest are looked at.
pub const KEPT_REPORTS: usize = 8;
/// Rows of a phase; a run with prompts of many lengths has many grids, and what comes then is put together.
const MOST_ROWS: usize = 256;

#[derive(Debug, Clone, Default)]
pub struct KernelState {
    /// Whether kernels are recorded as they run, and by whom.
    pub trace: Option<KernelTrace>,
    pub prefill: LiveKernels,
    pub decode: LiveKernels,
    /// What nsys and ncu wrote, the newest last.
    pub reports: VecDeque<KernelReport>,
    /// The run under a tool that is under way, or how the last one ended.
    pub tool_run: Option<ToolRun>,
}

/// The kernels of one phase, over all windows.
#[derive(Debug, Clone, Default)]
pub struct LiveKernels {
    pub steps: u64,
    pub span_ns: u64,
    pub busy_ns: u64,
    pub between_ns: u64,
    pub launches: u64,
    pub graph_launches: u64,
    pub dropped: u64,
    pub rows: Vec<KernelRow>,
    /// The step that was drawn last.
    pub timeline: Option<StepTimeline>,
}

impl KernelState {
    pub fn live(&self, phase: Phase) -> Option<&LiveKernels> {
        match phase {
            Phase::Prefill => Some(&self.prefill),
            Phase::Decode => Some(&self.decode),
            _ => None,
        }
    }

    /// The tool that is at work, what it does and how much of that is done.
    pub fn working(&self) -> Option<(&str, &str, Option<f64>)> {
        let run = self.tool_run.as_ref()?;
        match &run.state {
            ToolState::Working { doing, share } => Some((&run.tool, doing, *share)),
            _ => None,
        }
    }

    fn live_mut(&mut self, phase: Phase) -> Option<&mut LiveKernels> {
        match phase {
            Phase::Prefill => Some(&mut self.prefill),
            Phase::Decode => Some(&mut self.decode),
            _ => None,
        }
    }

    pub(super) fn window(&mut self, window: &KernelWindow) {
        if let Some(live) = self.live_mut(window.phase) {
            live.add(window);
        }
    }

    pub(super) fn timeline(&mut self, timeline: &StepTimeline) {
        if let Some(live) = self.live_mut(timeline.phase) {
            live.timeline = Some(timeline.clone());
        }
    }

    pub(super) fn report(&mut self, report: &KernelReport) {
        if self.reports.len() == KEPT_REPORTS {
            self.reports.pop_front();
        }
        self.reports.push_back(report.clone());
    }
}

impl LiveKernels {
    fn add(&mut self, window: &KernelWindow) {
        self.steps += window.steps;
        self.span_ns += window.span_ns;
        self.busy_ns += window.busy_ns;
        self.between_ns += window.between_ns;
        self.launches += window.launches;
        self.graph_launches += window.graph_launches;
        self.dropped += window.dropped;
        for row in &window.rows {
            let same = |known: &KernelRow| {
                known.name == row.name && known.operator == row.operator && known.grid == row.grid
            };
            let at = self.rows.iter().position(same);
            let full = self.rows.len() >= MOST_ROWS;
            let others = || self.rows.iter().position(|known| known.name == OTHERS);
            match at.or_else(|| if full { others() } else { None }) {
                Some(at) => self.rows[at].absorb(row),
                None if full => {
                    let (name, family) = (OTHERS.to_owned(), OTHERS.to_owned());
                    self.rows.push(KernelRow { name, family, ..row.clone() });
                }
                None => self.rows.push(row.clone()),
            }
        }
    }

    /// Whether anything is known.
    pub fn is_empty(&self) -> bool {
        self.steps == 0 && self.rows.is_empty() && self.timeline.is_none()
    }

    /// What starting kernels costs a mean step; `None` before the first.
    pub fn launch_meter(&self) -> Option<LaunchMeter> {
        LaunchMeter::of(Steps {
            steps: self.steps,
            launches: self.launches,
            graph_launches: self.graph_launches,
            span_ns: self.span_ns,
            busy_ns: self.busy_ns,
            between_ns: self.between_ns,
        })
    }

    /// The rows as a table like those of other sources.
    pub fn table(&self, tool: &str) -> KernelTable {
        KernelTable { rows: self.rows.clone(), ..KernelTable::new(tool, Kind::Kernels) }
    }
}
