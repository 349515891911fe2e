//! Groups records into steps, and steps into windows and timelines. Pure.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::{
    external_id::ExternalId,
    records::{DeviceWork, KernelLaunch, WorkKind},
};
use crate::{
    event::{
        KernelSpan, KernelWindow, Phase, StepTimeline,
        kernels::{Extent, KernelRow, names},
    },
    model::Operator,
    profile::listener::OperatorInstance,
};

/// The longest gap between steps of one request; anything longer is a pause.
const MAX_GAP_NS: u64 = 1_000_000_000;
/// The most kernels of one timeline: names are numbered in 16 bits.
const MAX_SPANS: usize = 20_000;

/// Groups records into steps, in whatever order they arrive.
#[derive(Default)]
pub struct Steps {
    names: Names,
    /// External ids of launches, by correlation id.
    ids: HashMap<u32, ExternalId>,
    /// Work whose external id has not arrived, and how many batches it has waited.
    unmatched: Vec<(Work, u8)>,
    open: BTreeMap<u32, Step>,
    /// The operators of the nodes of a decode step's graph, in execution order.
    graph: Vec<OperatorInstance>,
    /// The last closed step, and the end of its last kernel.
    last: Option<(u32, u64)>,
    prefill: Window,
    decode: Window,
    timeline_wanted: bool,
    timelines: Vec<RecordedStep>,
    dropped: u64,
}

/// A step with its timeline. Its time by the run's clock is not set yet.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedStep {
    pub step: u32,
    /// The start of its first kernel, by the clock of the records.
    pub first_ns: u64,
    pub timeline: StepTimeline,
}

/// A step whose records are arriving.
struct Step {
    phase: Phase,
    works: Vec<(Work, Option<OperatorInstance>)>,
    /// No record of it was in the last batch.
    quiet: bool,
}

/// Device work with its name as a number.
#[derive(Debug, Clone, Copy)]
struct Work {
    correlation: u32,
    start_ns: u64,
    end_ns: u64,
    in_graph: bool,
    name: u32,
    launch: Option<KernelLaunch>,
    bytes: Option<u64>,
}

impl Work {
    fn is_timed(&self) -> bool {
        self.start_ns > 0 && self.end_ns >= self.start_ns
    }
}

#[derive(Default)]
struct Names {
    /// By the address of a name: CUPTI uses one address for each kernel.
    by_address: HashMap<usize, u32>,
    by_text: HashMap<String, u32>,
    texts: Vec<String>,
}

impl Names {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.by_text.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(names::demangled(text).into_owned());
        self.by_text.insert(text.to_owned(), number);
        number
    }

    fn number_at(&mut self, address: usize, text: impl FnOnce() -> String) -> u32 {
        if let Some(number) = self.by_address.get(&address) {
            return *number;
        }
        let number = self.number(&text());
        self.by_address.insert(address, number);
        number
    }
}

/// The steps of a phase since the last window.
#[derive(Default)]
struct Window {
    steps: u64,
    span_ns: u64,
    busy_ns: u64,
    between_ns: u64,
    launches: u64,
    graph_launches: u64,
    rows: HashMap<(u32, Option<Operator>, Option<Extent>), Sum>,
}

struct Sum {
    calls: u64,
    graph_calls: u64,
    total_ns: u64,
    squares: f64,
    min_ns: u64,
    max_ns: u64,
    launch: Option<KernelLaunch>,
    bytes: Option<u64>,
}

impl Steps {
    /// The launch `correlation` has the external id `id`.
    pub fn add_id(&mut self, correlation: u32, id: ExternalId) {
        // A launch has an id of its step and one of its operator; the operator's is kept.
        match self.ids.entry(correlation) {
            Entry::Vacant(entry) => {
                entry.insert(id);
            }
            Entry::Occupied(mut known) => {
                if known.get().operator.is_none() {
                    known.insert(id);
                }
            }
        }
    }

    /// Adds work of the GPU; `name` reads a kernel's name from its address.
    pub fn add_work(&mut self, work: &DeviceWork, name: &dyn Fn(usize) -> String) {
        let (number, launch, bytes) = match &work.kind {
            WorkKind::Kernel { name_address, launch } => {
                (self.names.number_at(*name_address, || name(*name_address)), Some(*launch), None)
            }
            WorkKind::Copy { direction, bytes } => (self.names.number(direction), None, Some(*bytes)),
            WorkKind::Memset { bytes } => (self.names.number("memset"), None, Some(*bytes)),
        };
        let work = Work {
            correlation: work.correlation,
            start_ns: work.start_ns,
            end_ns: work.end_ns,
            in_graph: work.in_graph,
            name: number,
            launch,
            bytes,
        };
        self.assign(work, 0);
    }

    fn assign(&mut self, work: Work, waited: u8) {
        let Some(id) = self.ids.get(&work.correlation) else {
            // Work without an external id belongs to no step.
            if waited < 2 {
                self.unmatched.push((work, waited + 1));
            }
            return;
        };
        let (phase, operator) = (id.phase, id.operator);
        let step =
            self.open.entry(id.step).or_insert_with(|| Step { phase, works: Vec::new(), quiet: false });
        step.works.push((work, operator));
        step.quiet = false;
    }

    pub fn add_dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    pub fn set_graph(&mut self, nodes: Vec<OperatorInstance>) {
        self.graph = nodes;
    }

    /// Makes timelines of the next steps to close, one of each phase.
    pub fn request_timelines(&mut self) {
        self.timeline_wanted = true;
    }

    /// Ends a batch of records. A step is closed after a batch without records of it; at the end, `all` are.
    pub fn end_batch(&mut self, all: bool) {
        for (work, waited) in std::mem::take(&mut self.unmatched) {
            self.assign(work, waited);
        }
        let mut closed = Vec::new();
        for (number, step) in &mut self.open {
            if all || std::mem::replace(&mut step.quiet, true) {
                closed.push(*number);
            }
        }
        for number in &closed {
            if let Some(step) = self.open.remove(number) {
                self.close(*number, step);
            }
        }
        if let Some(last) = closed.last() {
            // Ids of closed steps are no longer needed. Step numbers wrap around.
            self.ids.retain(|_, id| (id.step.wrapping_sub(*last) as i32) > 0);
        }
    }

    fn close(&mut self, number: u32, mut step: Step) {
        // CUPTI has no times of work that was under way when recording was switched. Such a step has no span.
        let untimed = step.works.iter().filter(|(work, _)| !work.is_timed()).count();
        if untimed > 0 {
            self.dropped += untimed as u64;
            return;
        }
        step.works.sort_by_key(|(work, _)| (work.start_ns, work.end_ns));
        let in_graph = step.works.iter().filter(|(work, _)| work.in_graph).count();
        // The nodes of a graph with lost records cannot be distinguished.
        if in_graph == self.graph.len() {
            let nodes = step.works.iter_mut().filter(|(work, _)| work.in_graph);
            nodes.zip(&self.graph).for_each(|((_, operator), node)| *operator = Some(*node));
        }
        let (Some(first), Some(end)) = (
            step.works.first().map(|(work, _)| work.start_ns),
            step.works.iter().map(|(work, _)| work.end_ns).max(),
        ) else {
            return;
        };
        let before = self.last.replace((number, end));
        let gap = before
            .filter(|(last, _)| step.phase == Phase::Decode && last.wrapping_add(1) == number)
            .map(|(_, ended)| first.saturating_sub(ended))
            .filter(|gap| *gap < MAX_GAP_NS);
        let window = if step.phase == Phase::Prefill { &mut self.prefill } else { &mut self.decode };
        window.steps += 1;
        window.span_ns += end - first;
        window.between_ns += gap.unwrap_or(0);
        // A kernel may start before the previous one has ended, and wait for it. Only the time it adds counts.
        let mut reached = first;
        for (work, operator) in &mut step.works {
            work.start_ns = work.start_ns.max(reached);
            work.end_ns = work.end_ns.max(work.start_ns);
            reached = work.end_ns;
            window.busy_ns += work.end_ns - work.start_ns;
            window.add(work, operator.map(|instance| instance.operator));
        }
        if self.timeline_wanted && !self.timelines.iter().any(|known| known.timeline.phase == step.phase) {
            let timeline = self.names.timeline(&step, first);
            self.timelines.push(RecordedStep { step: number, first_ns: first, timeline });
        }
    }

    /// The steps closed since the last call, by phase.
    pub fn windows(&mut self) -> Vec<KernelWindow> {
        let mut windows: Vec<KernelWindow> = [
            (Phase::Prefill, std::mem::take(&mut self.prefill)),
            (Phase::Decode, std::mem::take(&mut self.decode)),
        ]
        .into_iter()
        .filter(|(_, window)| window.steps > 0)
        .map(|(phase, window)| window.into_event(phase, &self.names))
        .collect();
        if let Some(last) = windows.last_mut() {
            last.dropped = std::mem::take(&mut self.dropped);
        }
        windows
    }

    /// The timelines made since the last call.
    pub fn timelines(&mut self) -> Vec<RecordedStep> {
        let timelines = std::mem::take(&mut self.timelines);
        self.timeline_wanted &= timelines.is_empty();
        timelines
    }
}

impl Window {
    fn add(&mut self, work: &Work, operator: Option<Operator>) {
        let ns = work.end_ns - work.start_ns;
        self.launches += 1;
        self.graph_launches += u64::from(work.in_graph);
        let key = (work.name, operator, work.launch.map(|launch| launch.grid));
        let sum = self.rows.entry(key).or_insert(Sum {
            calls: 0,
            graph_calls: 0,
            total_ns: 0,
            squares: 0.0,
            min_ns: u64::MAX,
            max_ns: 0,
            launch: work.launch,
            bytes: None,
        });
        sum.calls += 1;
        sum.graph_calls += u64::from(work.in_graph);
        sum.total_ns += ns;
        sum.squares += ns as f64 * ns as f64;
        sum.min_ns = sum.min_ns.min(ns);
        sum.max_ns = sum.max_ns.max(ns);
        if let Some(bytes) = work.bytes {
            *sum.bytes.get_or_insert(0) += bytes;
        }
    }

    fn into_event(self, phase: Phase, names: &Names) -> KernelWindow {
        let mut rows: Vec<KernelRow> = self
            .rows
            .into_iter()
            .map(|((name, operator, grid), sum)| {
                let (n, total) = (sum.calls as f64, sum.total_ns as f64);
                let spread = ((sum.squares - total * total / n) / (n - 1.0)).max(0.0).sqrt();
                KernelRow {
                    calls: sum.calls,
                    total_ns: Some(total),
                    // With few digits, so that a recording reads back the same number.
                    mean_ns: Some((total / n * 10.0).round() / 10.0),
                    min_ns: Some(sum.min_ns as f64),
                    max_ns: Some(sum.max_ns as f64),
                    stddev_ns: Some(spread.round()).filter(|spread| spread.is_finite()),
                    grid,
                    block: sum.launch.map(|launch| launch.block),
                    registers: sum.launch.map(|launch| u32::from(launch.registers)),
                    shared_bytes: sum.launch.map(|launch| u64::from(launch.shared_bytes)),
                    operator,
                    graph_calls: Some(sum.graph_calls),
                    bytes: sum.bytes.map(|bytes| bytes as f64),
                    ..KernelRow::named(&names.texts[name as usize])
                }
            })
            .collect();
        rows.sort_by(|a, b| {
            b.total_ns.unwrap_or(0.0).total_cmp(&a.total_ns.unwrap_or(0.0)).then_with(|| a.name.cmp(&b.name))
        });
        KernelWindow {
            phase,
            steps: self.steps,
            span_ns: self.span_ns,
            busy_ns: self.busy_ns,
            between_ns: self.between_ns,
            launches: self.launches,
            graph_launches: self.graph_launches,
            dropped: 0,
            rows,
        }
    }
}

impl Names {
    fn timeline(&self, step: &Step, first: u64) -> StepTimeline {
        let mut numbers: HashMap<u32, u16> = HashMap::new();
        let mut names = Vec::new();
        let spans = step
            .works
            .iter()
            .take(MAX_SPANS)
            .map(|(work, operator)| {
                let name = *numbers.entry(work.name).or_insert_with(|| {
                    names.push(self.texts[work.name as usize].clone());
                    (names.len() - 1) as u16
                });
                KernelSpan {
                    name,
                    operator: operator.map(|instance| instance.operator),
                    layer: operator.and_then(|instance| instance.layer),
                    start_ns: work.start_ns - first,
                    ns: work.end_ns - work.start_ns,
                }
            })
            .collect();
        StepTimeline { phase: step.phase, at: None, names, spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of the tests begin here: CUPTI has 0 for "no time".
    const EPOCH: u64 = 1;

    fn kernel(correlation: u32, name: usize, from: u64, to: u64, in_graph: bool) -> DeviceWork {
        let grid = [name as u32, 1, 1];
        let launch = KernelLaunch { grid, block: [128, 1, 1], registers: 40, shared_bytes: 0 };
        let kind = WorkKind::Kernel { name_address: name, launch };
        DeviceWork { correlation, start_ns: EPOCH + from, end_ns: EPOCH + to, in_graph, kind }
    }

    fn named(address: usize) -> String {
        format!("kernel{address}")
    }

    fn instance(operator: Operator, layer: Option<u16>) -> OperatorInstance {
        OperatorInstance { operator, layer }
    }

    fn decode(step: u32, operator: Option<OperatorInstance>) -> ExternalId {
        ExternalId { phase: Phase::Decode, step, operator }
    }

    fn closed(steps: &mut Steps) -> Vec<KernelWindow> {
        steps.end_batch(false);
        steps.end_batch(false);
        steps.windows()
    }

    #[test]
    fn launches_of_an_eager_step_have_external_ids() {
        let mut steps = Steps::default();
        steps.add_id(1, decode(7, Some(instance(Operator::Qkv, Some(0)))));
        steps.add_id(2, decode(7, Some(instance(Operator::Attention, Some(0)))));
        // Records arrive in any order, work before its external id too.
        steps.add_work(&kernel(2, 11, 150, 180, false), &named);
        steps.add_work(&kernel(1, 10, 100, 140, false), &named);
        steps.add_work(&kernel(3, 12, 185, 190, false), &named);
        steps.add_id(3, decode(7, None));
        steps.add_work(&kernel(99, 13, 0, 500, false), &named);
        let windows = closed(&mut steps);
        let [window] = &windows[..] else { panic!("{windows:?}") };
        assert_eq!((window.steps, window.span_ns, window.busy_ns), (1, 90, 75));
        assert_eq!(
            (window.launches, window.graph_launches),
            (3, 0),
            "work without an external id is not counted"
        );
        let row = |operator| window.rows.iter().find(|row| row.operator == operator).unwrap();
        assert_eq!(row(Some(Operator::Qkv)).name, "kernel10");
        assert_eq!(row(Some(Operator::Attention)).mean_ns, Some(30.0));
        assert_eq!(row(None).name, "kernel12");
        assert!(closed(&mut steps).is_empty());
    }

    #[test]
    fn nodes_of_a_graph_are_distinguished_by_their_order() {
        let mut steps = Steps::default();
        steps.set_graph(vec![
            instance(Operator::Qkv, Some(0)),
            instance(Operator::Rope, Some(0)),
            instance(Operator::LmHead, None),
        ]);
        steps.request_timelines();
        for step in 0..3u32 {
            let at = u64::from(step) * 1000;
            steps.add_id(step, decode(step, None));
            steps.add_work(&kernel(step, 3, at + 60, at + 100, true), &named);
            steps.add_work(&kernel(step, 1, at, at + 30, true), &named);
            // It starts before the previous kernel ends.
            steps.add_work(&kernel(step, 2, at + 20, at + 50, true), &named);
        }
        let window = closed(&mut steps).remove(0);
        assert_eq!((window.steps, window.launches, window.graph_launches), (3, 9, 9));
        assert_eq!((window.span_ns, window.busy_ns), (300, 270));
        assert_eq!(window.between_ns, 1800, "two gaps of 900");
        let operators: Vec<_> =
            window.rows.iter().map(|row| (row.name.as_str(), row.operator.unwrap())).collect();
        assert_eq!(
            operators,
            [("kernel3", Operator::LmHead), ("kernel1", Operator::Qkv), ("kernel2", Operator::Rope)]
        );
        let added: f64 = window.rows.iter().filter_map(|row| row.total_ns).sum();
        assert_eq!(added, 270.0, "rows add up to the busy time");
        assert_eq!(window.rows[2].mean_ns, Some(20.0), "its first 10 ns overlap the previous kernel");
        let timelines = steps.timelines();
        assert_eq!(timelines.len(), 1);
        let spans = &timelines[0].timeline.spans;
        assert_eq!((timelines[0].step, timelines[0].first_ns), (0, EPOCH));
        assert_eq!(spans[1].layer, Some(0));
        assert_eq!((spans[2].start_ns, spans[2].ns), (60, 40));
        assert!(steps.timelines().is_empty());
    }

    #[test]
    fn nodes_of_a_graph_with_a_lost_record_have_no_operator() {
        let mut steps = Steps::default();
        steps.set_graph(vec![instance(Operator::Qkv, Some(0)), instance(Operator::Rope, Some(0))]);
        steps.add_id(1, decode(1, None));
        steps.add_work(&kernel(1, 2, 0, 10, true), &named);
        steps.add_dropped(1);
        let window = closed(&mut steps).remove(0);
        assert_eq!((window.rows[0].operator, window.dropped), (None, 1));
    }

    #[test]
    fn a_step_is_open_while_its_records_arrive() {
        let mut steps = Steps::default();
        steps.add_id(1, decode(1, None));
        steps.add_work(&kernel(1, 1, 0, 10, false), &named);
        steps.end_batch(false);
        assert!(steps.windows().is_empty());
        steps.add_work(&kernel(1, 2, 10, 20, false), &named);
        steps.end_batch(false);
        assert!(steps.windows().is_empty(), "the last batch had a record of it");
        steps.end_batch(true);
        assert_eq!(steps.windows()[0].launches, 2);
        assert!(steps.ids.is_empty() && steps.open.is_empty());
    }

    #[test]
    fn gaps_are_within_a_request_and_exclude_pauses() {
        let mut steps = Steps::default();
        let prefill = |step| ExternalId { phase: Phase::Prefill, step, operator: None };
        let ids = [(1, prefill(1)), (2, decode(2, None)), (3, prefill(3)), (4, decode(4, None))];
        let times = [(0, 100), (150, 200), (900, 1000), (5_000_000_000, 5_000_000_100)];
        for ((correlation, id), (from, to)) in ids.into_iter().zip(times) {
            steps.add_id(correlation, id);
            steps.add_work(&kernel(correlation, 1, from, to, false), &named);
        }
        let windows = closed(&mut steps);
        assert_eq!(windows[0].between_ns, 0, "a prefill starts a request");
        assert_eq!(
            (windows[1].phase, windows[1].between_ns),
            (Phase::Decode, 50),
            "five seconds are a pause"
        );
    }

    #[test]
    fn steps_with_records_without_times_are_left_out() {
        let mut steps = Steps::default();
        let times = [(1, 1_000, 1_500), (2, 0, 0), (2, 1_600, 1_700), (3, 1_800, 0), (4, 2_000, 2_400)];
        for (step, start_ns, end_ns) in times {
            let correlation = step * 10 + u32::from(start_ns == 0);
            steps.add_id(correlation, decode(step, Some(instance(Operator::Qkv, Some(0)))));
            let work = DeviceWork { start_ns, end_ns, ..kernel(correlation, 1, 0, 0, false) };
            steps.add_work(&work, &named);
        }
        let windows = closed(&mut steps);
        assert_eq!(windows.len(), 1);
        let window = &windows[0];
        assert_eq!((window.steps, window.span_ns, window.busy_ns), (2, 900, 900));
        assert_eq!(window.dropped, 2, "the records without times");
    }

    #[test]
    fn copies_have_bytes() {
        let mut steps = Steps::default();
        let kind = WorkKind::Copy { direction: "copy, host to device", bytes: 2048 };
        steps.add_id(1, ExternalId { phase: Phase::Prefill, step: 0, operator: None });
        for start_ns in [EPOCH, 100] {
            let (end_ns, kind) = (start_ns + 5, kind.clone());
            let work = DeviceWork { correlation: 1, start_ns, end_ns, in_graph: false, kind };
            steps.add_work(&work, &named);
        }
        let row = closed(&mut steps).remove(0).rows.remove(0);
        assert_eq!((row.name.as_str(), row.bytes, row.grid), ("copy, host to device", Some(4096.0), None));
    }
}
