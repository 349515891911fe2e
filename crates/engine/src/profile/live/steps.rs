//! Groups records into steps, and steps into windows and timelines. Pure.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::external_id::ExternalId;
use llmprof_event::{
    KernelWindow, Phase, StepTimeline,
    kernels::{
        window::{StepSums, StepWork, Untimed, in_order, timeline, without_overlap},
        work::{DeviceActivity, MEMSET, NameId, Names, WorkKind},
    },
};
use llmprof_workload::listener::OperatorInstance;

/// Groups records into steps, in whatever order they arrive.
#[derive(Default)]
pub struct Steps {
    names: Names,
    /// By the address of a name: CUPTI uses one address for each kernel.
    by_address: HashMap<usize, NameId>,
    /// External ids of launches, by correlation id.
    ids: HashMap<u32, ExternalId>,
    /// Work whose external id has not arrived, and the number of batches it has waited.
    unmatched: Vec<(u32, StepWork, u8)>,
    open: BTreeMap<u32, Step>,
    /// The operators of the nodes of a decode step's graphs, in execution order.
    graphs: Vec<Vec<OperatorInstance>>,
    /// The last closed step, and the end of its last kernel.
    last: Option<(u32, u64)>,
    prefill: StepSums,
    decode: StepSums,
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
    works: Vec<StepWork>,
    /// Whether the last batch had no record of it.
    quiet: bool,
}

impl Steps {
    /// The launch `correlation` has the external id `id`.
    pub fn add_id(&mut self, correlation: u32, id: ExternalId) {
        // A launch has an id of its step and one of its operator; the operator's id is kept.
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
    pub fn add_work(&mut self, work: &DeviceActivity<usize>, name: &dyn Fn(usize) -> String) {
        let (number, launch, bytes) = match &work.kind {
            WorkKind::Kernel { name: address, launch } => {
                (self.number_at(*address, name), Some(*launch), None)
            }
            WorkKind::Copy { direction, bytes } => (self.names.number(direction.name()), None, Some(*bytes)),
            WorkKind::Memset { bytes } => (self.names.number(MEMSET), None, Some(*bytes)),
            // Not recorded.
            WorkKind::Graph { .. } | WorkKind::Sync => return,
        };
        let step_work = StepWork {
            start_ns: work.start_ns,
            end_ns: work.end_ns,
            in_graph: work.graph.is_some(),
            name: number,
            launch,
            bytes,
            instance: None,
            // The engine uses one stream.
            queue: (0, 0),
            own_ns: 0,
            waited: false,
        };
        self.assign(work.correlation, step_work, 0);
    }

    fn number_at(&mut self, address: usize, name: &dyn Fn(usize) -> String) -> NameId {
        let names = &mut self.names;
        *self.by_address.entry(address).or_insert_with(|| names.number(&name(address)))
    }

    fn assign(&mut self, correlation: u32, work: StepWork, waited: u8) {
        let Some(id) = self.ids.get(&correlation) else {
            // Work without an external id belongs to no step.
            if waited < 2 {
                self.unmatched.push((correlation, work, waited + 1));
            }
            return;
        };
        let phase = id.phase;
        let step =
            self.open.entry(id.step).or_insert_with(|| Step { phase, works: Vec::new(), quiet: false });
        step.works.push(StepWork { instance: id.operator, ..work });
        step.quiet = false;
    }

    pub fn add_dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    /// Adds a graph of decode steps.
    pub fn add_graph(&mut self, nodes: Vec<OperatorInstance>) {
        if !self.graphs.contains(&nodes) {
            self.graphs.push(nodes);
        }
    }

    /// Requests timelines of the next steps to close, one of each phase.
    pub fn request_timelines(&mut self) {
        self.timeline_wanted = true;
    }

    /// Ends a batch of records. A step is closed after a batch without records of it; at the end, `all` steps are
    /// closed.
    pub fn end_batch(&mut self, all: bool) {
        for (correlation, work, waited) in std::mem::take(&mut self.unmatched) {
            self.assign(correlation, work, waited);
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
        let span = match in_order(&mut step.works) {
            Ok(Some(span)) => span,
            Ok(None) => return,
            Err(Untimed(records)) => {
                self.dropped += records;
                return;
            }
        };
        // Work of a draft has its operator already.
        let in_graph = step.works.iter().filter(|work| work.in_graph && work.instance.is_none()).count();
        // The nodes of a graph with lost records cannot be distinguished.
        if let Some(graph) = self.graphs.iter().find(|graph| graph.len() == in_graph) {
            let nodes = step.works.iter_mut().filter(|work| work.in_graph && work.instance.is_none());
            nodes.zip(graph).for_each(|(work, node)| work.instance = Some(*node));
        }
        let before = self.last.replace((number, span.end_ns));
        let gap = before
            .filter(|(last, _)| step.phase == Phase::Decode && last.wrapping_add(1) == number)
            .map(|(_, ended)| span.first_ns.saturating_sub(ended));
        without_overlap(&mut step.works);
        let sums = if step.phase == Phase::Prefill { &mut self.prefill } else { &mut self.decode };
        sums.add_step(&step.works, span, gap);
        if self.timeline_wanted && !self.timelines.iter().any(|known| known.timeline.phase == step.phase) {
            let timeline = timeline(&self.names, step.phase, &step.works);
            self.timelines.push(RecordedStep { step: number, first_ns: span.first_ns, timeline });
        }
    }

    /// The steps closed since the last call, by phase.
    pub fn windows(&mut self) -> Vec<KernelWindow> {
        let mut windows: Vec<KernelWindow> = [
            (Phase::Prefill, std::mem::take(&mut self.prefill)),
            (Phase::Decode, std::mem::take(&mut self.decode)),
        ]
        .into_iter()
        .filter(|(_, sums)| sums.steps() > 0)
        .map(|(phase, sums)| sums.into_window(phase, &self.names))
        .collect();
        if let Some(last) = windows.last_mut() {
            last.dropped = std::mem::take(&mut self.dropped);
        }
        windows
    }

    /// The timelines created since the last call.
    pub fn timelines(&mut self) -> Vec<RecordedStep> {
        let timelines = std::mem::take(&mut self.timelines);
        self.timeline_wanted &= timelines.is_empty();
        timelines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llm_cost::Operator;
    use llmprof_event::kernels::work::{Direction, KernelLaunch};

    /// The tests' times start at this value: CUPTI uses 0 for "no time".
    const EPOCH: u64 = 1;

    fn kernel(correlation: u32, name: usize, from: u64, to: u64, in_graph: bool) -> DeviceActivity<usize> {
        let grid = [name as u32, 1, 1];
        let launch = KernelLaunch { grid, block: [128, 1, 1], registers: 40, shared_bytes: 0 };
        let kind = WorkKind::Kernel { name, launch };
        let graph = in_graph.then_some(1);
        DeviceActivity {
            correlation,
            start_ns: EPOCH + from,
            end_ns: EPOCH + to,
            stream: 7,
            device: 0,
            graph,
            kind,
        }
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
        // Records arrive in any order; work may arrive before its external id.
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
        steps.add_graph(vec![
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
        steps.add_graph(vec![instance(Operator::Qkv, Some(0)), instance(Operator::Rope, Some(0))]);
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
            let work = DeviceActivity { start_ns, end_ns, ..kernel(correlation, 1, 0, 0, false) };
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
        let kind = WorkKind::Copy { direction: Direction::HostToDevice, bytes: 2048 };
        steps.add_id(1, ExternalId { phase: Phase::Prefill, step: 0, operator: None });
        for start_ns in [EPOCH, 100] {
            let work = DeviceActivity { start_ns, end_ns: start_ns + 5, kind, ..kernel(1, 0, 0, 0, false) };
            steps.add_work(&work, &named);
        }
        let row = closed(&mut steps).remove(0).rows.remove(0);
        assert_eq!((row.name.as_str(), row.bytes, row.grid), ("copy, host to device", Some(4096.0), None));
    }
}
