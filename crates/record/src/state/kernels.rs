//! Kernels: live, and in the reports of tools.

use std::{collections::VecDeque, sync::Arc};

use super::{Recording, RunState, push_bounded};
use llm_cost::Operator;
use llmprof_analysis::{
    launches::LaunchMeter,
    program::{Remark, remarks},
};
use llmprof_event::{
    KernelReport, KernelTrace, KernelWindow, Phase, Stamp, StepTimeline, ToolRun, ToolState,
    kernels::{KernelRow, KernelTable, Kind, OTHERS},
};

/// Maximum number of reports; the newest are kept.
pub const KEPT_REPORTS: usize = 8;
/// The number of windows for the trend of attention.
const KEPT_ATTENTION: usize = 256;
/// Maximum rows of a phase. Prompts of many lengths have many grids; kernels beyond the limit are combined.
const MAX_ROWS: usize = 256;

#[derive(Debug, Clone, Default)]
pub struct KernelState {
    /// The tool that records live kernels, and its state.
    pub trace: Option<KernelTrace>,
    pub recording: Recording,
    pub vision: LiveKernels,
    pub prefill: LiveKernels,
    pub mixed: LiveKernels,
    pub decode: LiveKernels,
    /// Work of another program that belongs to no step.
    pub outside: LiveKernels,
    /// Reports of nsys and ncu, the newest last.
    pub reports: VecDeque<Arc<KernelReport>>,
    /// The active run under a tool, or the outcome of the last one.
    pub tool_run: Option<ToolRun>,
}

/// The kernels of one phase.
#[derive(Debug, Clone, Default)]
pub struct LiveKernels {
    /// The sum of all windows.
    pub total: KernelWindow,
    /// The sum of the windows since the last snapshot.
    pub window: KernelWindow,
    /// The last timeline of a step.
    pub timeline: Option<StepTimeline>,
    /// Time in attention of a mean step of the newest windows, oldest first.
    attention_ns: VecDeque<f64>,
}

impl KernelState {
    pub fn live(&self, phase: Phase) -> Option<&LiveKernels> {
        match phase {
            Phase::Vision => Some(&self.vision),
            Phase::Prefill => Some(&self.prefill),
            Phase::Mixed => Some(&self.mixed),
            Phase::Decode => Some(&self.decode),
            Phase::Idle => Some(&self.outside),
            Phase::Preparing => None,
        }
    }

    /// The work of a program without known steps.
    pub fn without_steps(&self) -> Option<&LiveKernels> {
        let stepped = [&self.vision, &self.prefill, &self.mixed, &self.decode];
        let has_steps = stepped.iter().any(|live| live.total.steps > 0);
        Some(&self.outside).filter(|outside| !has_steps && !outside.is_empty())
    }

    /// The tool that is running, its current step and its progress.
    pub fn working(&self) -> Option<(&str, &str, Option<f64>)> {
        let run = self.tool_run.as_ref()?;
        match &run.state {
            ToolState::Working { doing, share } => Some((&run.tool, doing, *share)),
            _ => None,
        }
    }

    fn live_mut(&mut self, phase: Phase) -> Option<&mut LiveKernels> {
        match phase {
            Phase::Vision => Some(&mut self.vision),
            Phase::Prefill => Some(&mut self.prefill),
            Phase::Mixed => Some(&mut self.mixed),
            Phase::Decode => Some(&mut self.decode),
            Phase::Idle => Some(&mut self.outside),
            Phase::Preparing => None,
        }
    }

    fn all_mut(&mut self) -> [&mut LiveKernels; 5] {
        [&mut self.vision, &mut self.prefill, &mut self.mixed, &mut self.decode, &mut self.outside]
    }

    pub(super) fn switched(&mut self, t: Stamp, trace: &KernelTrace) {
        self.recording.switched(t, &trace.state);
        self.trace = Some(trace.clone());
    }

    pub(super) fn window(&mut self, _: Stamp, window: &KernelWindow) {
        if let Some(live) = self.live_mut(window.phase) {
            live.add(window);
        }
    }

    pub(super) fn timeline(&mut self, _: Stamp, timeline: &StepTimeline) {
        if let Some(live) = self.live_mut(timeline.phase) {
            live.timeline = Some(timeline.clone());
        }
    }

    pub(super) fn report(&mut self, _: Stamp, report: &KernelReport) {
        push_bounded(&mut self.reports, KEPT_REPORTS, Arc::new(report.clone()));
    }

    pub(super) fn tool_run(&mut self, _: Stamp, run: &ToolRun) {
        self.tool_run = Some(run.clone());
    }

    /// Starts a new window.
    pub(super) fn restart(&mut self) {
        for live in self.all_mut() {
            live.window = KernelWindow::default();
        }
    }

    /// Starts the run here: earlier kernels are discarded.
    pub(super) fn forget(&mut self) {
        for live in self.all_mut() {
            *live = LiveKernels::default();
        }
    }
}

impl LiveKernels {
    fn add(&mut self, window: &KernelWindow) {
        add(&mut self.total, window);
        add(&mut self.window, window);
        let attention = window.rows.iter().filter(|row| row.operator == Some(Operator::Attention));
        let ns: f64 = attention.filter_map(|row| row.total_ns).sum();
        if window.steps > 0 && ns > 0.0 {
            push_bounded(&mut self.attention_ns, KEPT_ATTENTION, ns / window.steps as f64);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.total.steps == 0 && self.total.rows.is_empty() && self.timeline.is_none()
    }

    /// What limits the steps of another program, the most important first.
    pub fn remarks(&self) -> Vec<Remark> {
        let attention: Vec<f64> = self.attention_ns.iter().copied().collect();
        remarks(&self.total, &attention)
    }

    /// Launch overhead of a mean step; `None` before the first.
    pub fn launch_meter(&self) -> Option<LaunchMeter> {
        LaunchMeter::from_window(&self.total)
    }

    /// The rows as a table like those of other sources.
    pub fn table(&self, tool: &str) -> KernelTable {
        KernelTable { rows: self.total.rows.clone(), ..KernelTable::new(tool, Kind::Kernels) }
    }
}

fn add(total: &mut KernelWindow, window: &KernelWindow) {
    total.phase = window.phase;
    if window.steps > 0 {
        total.tokens = match total.steps {
            0 => window.tokens,
            _ => total.tokens.zip(window.tokens).map(|(total, tokens)| total + tokens),
        };
    }
    total.steps += window.steps;
    total.span_ns += window.span_ns;
    total.busy_ns += window.busy_ns;
    total.between_ns += window.between_ns;
    total.launches += window.launches;
    total.graph_launches += window.graph_launches;
    total.dropped += window.dropped;
    total.unmeasured += window.unmeasured;
    if let Some(tokens) = window.prompt_tokens {
        *total.prompt_tokens.get_or_insert_default() += tokens;
    }
    if let Some(overlaps) = &window.overlaps {
        total.overlaps.get_or_insert_default().plus(overlaps);
    }
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

/// The kernels of a window of a run, as a snapshot keeps them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowKernels {
    /// Live kernels by phase.
    live: Vec<(Phase, StepTable)>,
    /// Operators timed on the CPU.
    timed: Vec<(Phase, StepTable)>,
    /// The reports that existed at its end, the newest last.
    pub reports: Vec<Arc<KernelReport>>,
}

/// Rows, and the number of steps that they cover.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTable {
    pub steps: u64,
    pub table: KernelTable,
}

impl StepTable {
    /// The same rows as a window.
    pub fn as_window(&self) -> KernelWindow {
        let busy_ns: f64 = self.table.rows.iter().filter_map(|row| row.total_ns).sum();
        KernelWindow {
            steps: self.steps,
            busy_ns: busy_ns as u64,
            rows: self.table.rows.clone(),
            ..KernelWindow::default()
        }
    }
}

impl WindowKernels {
    pub fn live(&self, phase: Phase) -> Option<&StepTable> {
        of_phase(&self.live, phase)
    }

    pub fn timed(&self, phase: Phase) -> Option<&StepTable> {
        of_phase(&self.timed, phase)
    }
}

fn of_phase(all: &[(Phase, StepTable)], phase: Phase) -> Option<&StepTable> {
    all.iter().find(|(of, _)| *of == phase).map(|(_, table)| table)
}

impl RunState {
    /// The kernels since the last snapshot.
    pub fn window_kernels(&self) -> WindowKernels {
        let phases = || Phase::WORK.into_iter();
        let of_rows = |window: &KernelWindow| KernelTable {
            rows: window.rows.clone(),
            ..KernelTable::new("live", Kind::Kernels)
        };
        let live = phases().filter_map(|phase| {
            let window = &self.kernels.live(phase)?.window;
            (window.steps > 0).then(|| (phase, StepTable { steps: window.steps, table: of_rows(window) }))
        });
        let timed = phases().filter_map(|phase| {
            self.operators_on_cpu(phase)?;
            let window = self.operators.window_of(phase).filter(|window| window.attributed_steps() > 0)?;
            Some((phase, StepTable { steps: window.attributed_steps(), table: window.table() }))
        });
        let reports = self.kernels.reports.iter().cloned().collect();
        WindowKernels { live: live.collect(), timed: timed.collect(), reports }
    }
}
