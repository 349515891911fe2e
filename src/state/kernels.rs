//! Kernels: as they run, and in the reports of tools.

use std::collections::VecDeque;

use super::{Recording, push_bounded};
use crate::{
    analysis::launches::LaunchMeter,
    event::{
        KernelReport, KernelTrace, KernelWindow, Phase, Stamp, StepTimeline, ToolRun, ToolState,
        kernels::{KernelRow, KernelTable, Kind, OTHERS},
    },
};

/// The newest reports are kept.
pub const KEPT_REPORTS: usize = 8;
/// Rows of a phase. Prompts of many lengths have many grids; kernels beyond the limit are combined.
const MAX_ROWS: usize = 256;

#[derive(Debug, Clone, Default)]
pub struct KernelState {
    /// The tool that records kernels as they run, and whether it does.
    pub trace: Option<KernelTrace>,
    pub recording: Recording,
    pub prefill: LiveKernels,
    pub decode: LiveKernels,
    /// Reports of nsys and ncu, the newest last.
    pub reports: VecDeque<KernelReport>,
    /// The active run under a tool, or how the last one ended.
    pub tool_run: Option<ToolRun>,
}

/// The kernels of one phase.
#[derive(Debug, Clone, Default)]
pub struct LiveKernels {
    /// The sum of all windows.
    pub total: KernelWindow,
    /// The last timeline of a step.
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

    /// The tool that is running, its current step and how much of that is done.
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

    pub(super) fn switched(&mut self, t: Stamp, trace: &KernelTrace) {
        self.recording.switched(t, &trace.state);
        self.trace = Some(trace.clone());
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
        push_bounded(&mut self.reports, KEPT_REPORTS, report.clone());
    }
}

impl LiveKernels {
    fn add(&mut self, window: &KernelWindow) {
        let total = &mut self.total;
        total.phase = window.phase;
        total.steps += window.steps;
        total.span_ns += window.span_ns;
        total.busy_ns += window.busy_ns;
        total.between_ns += window.between_ns;
        total.launches += window.launches;
        total.graph_launches += window.graph_launches;
        total.dropped += window.dropped;
        let rows = &mut total.rows;
        for row in &window.rows {
            let same = |known: &KernelRow| {
                known.name == row.name && known.operator == row.operator && known.grid == row.grid
            };
            let full = rows.len() >= MAX_ROWS;
            let others = || rows.iter().position(|known| full && known.name == OTHERS);
            match rows.iter().position(same).or_else(others) {
                Some(index) => rows[index].absorb(row),
                None if full => {
                    let (name, family) = (OTHERS.to_owned(), OTHERS.to_owned());
                    rows.push(KernelRow { name, family, ..row.clone() });
                }
                None => rows.push(row.clone()),
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.total.steps == 0 && self.total.rows.is_empty() && self.timeline.is_none()
    }

    /// Launch overhead of a mean step; `None` before the first.
    pub fn launch_meter(&self) -> Option<LaunchMeter> {
        LaunchMeter::of(&self.total)
    }

    /// The rows as a table like those of other sources.
    pub fn table(&self, tool: &str) -> KernelTable {
        KernelTable { rows: self.total.rows.clone(), ..KernelTable::new(tool, Kind::Kernels) }
    }
}
