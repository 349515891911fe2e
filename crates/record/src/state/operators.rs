//! Operator times on the host, and the memory of allocators.

use super::{RunState, Series};
use llm_cost::Operator;
use llmprof_event::{
    Allocator, AllocatorSample, ExpertUse, HeapGrowth, HostSpan, HostTimeline, KernelSpan, OperatorTime,
    OperatorWindow, Phase, Stamp, StepTimeline,
    kernels::{KernelRow, KernelTable, Kind},
};

/// Operators by the engine's own clock, by phase, without warm-up.
#[derive(Debug, Clone, Default)]
pub struct OperatorState {
    pub vision: HostOperators,
    pub prefill: HostOperators,
    pub decode: HostOperators,
    /// Since the last snapshot.
    vision_window: HostOperators,
    prefill_window: HostOperators,
    decode_window: HostOperators,
    /// Timed steps of warm-up requests.
    pub warmup_steps: u64,
}

/// The steps of one phase, over all windows.
#[derive(Debug, Clone, Default)]
pub struct HostOperators {
    pub steps: u64,
    pub host_ns: u64,
    /// Steps without operators, and their time.
    pub unattributed_steps: u64,
    pub unattributed_ns: u64,
    /// The growth of the heap in the steps; `None` if the heap is not counted.
    pub heap: Option<HeapGrowth>,
    /// In execution order.
    pub times: Vec<OperatorTime>,
    /// The last timeline of a step, with the names of operators.
    pub timeline: Option<StepTimeline>,
    /// Whether the process was stopped since the last window.
    stopped: bool,
}

impl OperatorState {
    pub fn phase(&self, phase: Phase) -> Option<&HostOperators> {
        match phase {
            Phase::Vision => Some(&self.vision),
            Phase::Prefill => Some(&self.prefill),
            Phase::Decode => Some(&self.decode),
            _ => None,
        }
    }

    fn of_mut(&mut self, phase: Phase) -> Option<&mut HostOperators> {
        match phase {
            Phase::Vision => Some(&mut self.vision),
            Phase::Prefill => Some(&mut self.prefill),
            Phase::Decode => Some(&mut self.decode),
            _ => None,
        }
    }

    /// Since the last snapshot, without a timeline.
    pub fn window_of(&self, phase: Phase) -> Option<&HostOperators> {
        match phase {
            Phase::Vision => Some(&self.vision_window),
            Phase::Prefill => Some(&self.prefill_window),
            Phase::Decode => Some(&self.decode_window),
            _ => None,
        }
    }

    pub(super) fn window(&mut self, _: Stamp, window: &OperatorWindow) {
        if window.warmup {
            self.warmup_steps += window.steps;
            return;
        }
        let known = match window.phase {
            Phase::Vision => [&mut self.vision, &mut self.vision_window],
            Phase::Prefill => [&mut self.prefill, &mut self.prefill_window],
            Phase::Decode => [&mut self.decode, &mut self.decode_window],
            _ => return,
        };
        if !std::mem::take(&mut known[0].stopped) {
            known.into_iter().for_each(|known| known.add(window));
        }
    }

    /// Starts a new window.
    pub(super) fn restart(&mut self) {
        (self.vision_window, self.prefill_window, self.decode_window) = Default::default();
    }

    /// Starts the run here: earlier steps are discarded.
    pub(super) fn forget(&mut self) {
        for known in [&mut self.vision, &mut self.prefill, &mut self.decode] {
            *known = HostOperators { stopped: known.stopped, ..HostOperators::default() };
        }
        self.restart();
    }

    /// Called after the process was stopped: the next window of each phase is left out.
    pub(super) fn stopped(&mut self) {
        for known in [&mut self.vision, &mut self.prefill, &mut self.decode] {
            known.stopped = true;
        }
    }

    pub(super) fn timeline(&mut self, _: Stamp, timeline: &HostTimeline) {
        if let Some(known) = self.of_mut(timeline.phase) {
            known.timeline = Some(step_timeline(timeline));
        }
    }
}

fn step_timeline(timeline: &HostTimeline) -> StepTimeline {
    let names = Operator::ALL.iter().map(|operator| operator.name().to_owned()).collect();
    let span = |span: &HostSpan| KernelSpan {
        name: span.operator as u16,
        operator: Some(span.operator),
        layer: span.layer,
        start_ns: span.start_ns,
        ns: span.ns,
    };
    let spans = timeline.spans.iter().map(span).collect();
    StepTimeline { phase: timeline.phase, at: Some(timeline.at), names, spans }
}

fn sum(a: Option<HeapGrowth>, b: Option<HeapGrowth>) -> Option<HeapGrowth> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.and(b)),
        (a, b) => a.or(b),
    }
}

impl HostOperators {
    fn add(&mut self, window: &OperatorWindow) {
        self.steps += window.steps;
        self.host_ns = self.host_ns.saturating_add(window.host_ns);
        self.unattributed_steps += window.unattributed_steps;
        self.unattributed_ns = self.unattributed_ns.saturating_add(window.unattributed_ns);
        self.heap = sum(self.heap, window.heap);
        for time in &window.operators {
            match self.times.binary_search_by_key(&time.operator, |known| known.operator) {
                Ok(index) => {
                    let known = &mut self.times[index];
                    known.calls += time.calls;
                    known.ns = known.ns.saturating_add(time.ns);
                    known.min_ns = known.min_ns.min(time.min_ns);
                    known.max_ns = known.max_ns.max(time.max_ns);
                    known.heap = sum(known.heap, time.heap);
                }
                Err(index) => self.times.insert(index, *time),
            }
        }
    }

    /// Steps with operators.
    pub fn attributed_steps(&self) -> u64 {
        self.steps.saturating_sub(self.unattributed_steps)
    }

    /// The time of the steps with operators.
    pub fn attributed_ns(&self) -> u64 {
        self.host_ns.saturating_sub(self.unattributed_ns)
    }

    /// The part of that time outside of operators.
    pub fn self_ns(&self) -> u64 {
        self.times.iter().fold(self.attributed_ns(), |left, time| left.saturating_sub(time.ns))
    }

    /// The operators as a table like those of kernels.
    pub fn table(&self) -> KernelTable {
        let row = |time: &OperatorTime| KernelRow {
            calls: time.calls,
            total_ns: Some(time.ns as f64),
            mean_ns: Some(time.ns as f64 / time.calls.max(1) as f64),
            min_ns: Some(time.min_ns as f64),
            max_ns: Some(time.max_ns as f64),
            operator: Some(time.operator),
            ..KernelRow::named(time.operator.name())
        };
        KernelTable {
            rows: self.times.iter().map(row).collect(),
            ..KernelTable::new("wall time", Kind::Kernels)
        }
    }

    pub fn time_of(&self, operator: Operator) -> Option<&OperatorTime> {
        self.times.iter().find(|time| time.operator == operator)
    }
}

/// The memory of each allocator, now and over the run.
#[derive(Debug, Clone, Default)]
pub struct AllocatorState {
    all: Vec<(AllocatorSample, Series)>,
}

impl RunState {
    pub(super) fn experts(&mut self, _: Stamp, experts: &ExpertUse) {
        self.experts = Some(*experts);
    }
}

impl AllocatorState {
    pub(super) fn record(&mut self, t: Stamp, sample: &AllocatorSample) {
        let known = self.all.iter().position(|(known, _)| known.allocator == sample.allocator);
        let index = known.unwrap_or_else(|| {
            self.all.push((*sample, Series::default()));
            self.all.len() - 1
        });
        self.all[index].0 = *sample;
        self.all[index].1.push(t, sample.live_bytes as f32);
    }

    /// The last sample; `None` if it is not counted.
    pub fn latest(&self, allocator: Allocator) -> Option<&AllocatorSample> {
        self.all.iter().map(|(sample, _)| sample).find(|sample| sample.allocator == allocator)
    }

    /// Live bytes over the run.
    pub fn live_bytes(&self, allocator: Allocator) -> Option<&Series> {
        self.all.iter().find(|(sample, _)| sample.allocator == allocator).map(|(_, series)| series)
    }

    /// All allocators with samples, the heap first.
    pub fn all(&self) -> impl Iterator<Item = &AllocatorSample> {
        Allocator::ALL.into_iter().filter_map(|allocator| self.latest(allocator))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(warmup: bool, steps: u64, host_ns: u64, times: &[(Operator, u64, u64)]) -> OperatorWindow {
        let operators = times
            .iter()
            .map(|&(operator, calls, ns)| OperatorTime {
                operator,
                calls,
                ns,
                min_ns: ns / calls,
                max_ns: ns / calls,
                heap: Some(HeapGrowth { allocated_bytes: ns, peak_bytes: ns }),
            })
            .collect();
        OperatorWindow {
            phase: Phase::Decode,
            warmup,
            steps,
            host_ns,
            operators,
            ..OperatorWindow::default()
        }
    }

    #[test]
    fn windows_add_up_without_warm_up() {
        let mut state = OperatorState::default();
        state.window(Stamp(0), &window(true, 9, 900, &[(Operator::Qkv, 9, 90)]));
        state.window(
            Stamp(0),
            &window(false, 2, 200, &[(Operator::Attention, 2, 60), (Operator::Down, 2, 80)]),
        );
        state.window(Stamp(0), &window(false, 1, 100, &[(Operator::Qkv, 1, 10), (Operator::Down, 1, 20)]));
        let decode = state.phase(Phase::Decode).unwrap();
        assert_eq!((state.warmup_steps, decode.steps, decode.host_ns), (9, 3, 300));
        let order: Vec<Operator> = decode.times.iter().map(|time| time.operator).collect();
        assert_eq!(order, [Operator::Qkv, Operator::Attention, Operator::Down]);
        let down = decode.time_of(Operator::Down).unwrap();
        assert_eq!((down.calls, down.ns, down.min_ns, down.max_ns), (3, 100, 20, 40));
        assert_eq!(down.heap, Some(HeapGrowth { allocated_bytes: 100, peak_bytes: 80 }));
        assert_eq!(decode.self_ns(), 300 - 170);
        state.stopped();
        state.window(Stamp(0), &window(false, 1, 1 << 40, &[(Operator::Qkv, 1, 1 << 40)]));
        state.window(Stamp(0), &window(false, 1, 100, &[(Operator::Qkv, 1, 10)]));
        assert_eq!(state.phase(Phase::Decode).unwrap().host_ns, 400);
    }
}
