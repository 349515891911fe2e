//! From records to steps, and from steps to windows and timelines: pure.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use super::{
    mark::Mark,
    records::{What, Work},
};
use crate::{
    event::{
        KernelSpan, KernelWindow, Phase, StepTimeline,
        kernels::{Extent, KernelRow, names},
    },
    model::Operator,
    profile::listener::Part,
};

/// Between steps of one request; what is longer is a pause.
const LONGEST_GAP_NS: u64 = 1_000_000_000;
/// Kernels of one timeline: names are numbered in 16 bits.
const MOST_SPANS: usize = 20_000;

/// Puts records together, whatever the order in which they come.
#[derive(Default)]
pub struct Steps {
    names: Names,
    /// What launches belong to.
    marks: HashMap<u32, Mark>,
    /// Work whose mark has not come yet, and how often it was waited for.
    unmarked: Vec<(Done, u8)>,
    open: BTreeMap<u32, Step>,
    /// What the nodes of a decode step's graph belong to, in their order.
    graph: Vec<Part>,
    /// The last step that was closed, and when its last kernel ended.
    last: Option<(u32, u64)>,
    prefill: Window,
    decode: Window,
    timeline_wanted: bool,
    timelines: Vec<Drawn>,
    dropped: u64,
}

/// A step that was drawn; when it happened is yet to be said by the run's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    pub step: u32,
    /// When its first kernel began, by the clock of the records.
    pub first_ns: u64,
    pub timeline: StepTimeline,
}

/// A step whose kernels are coming in.
struct Step {
    phase: Phase,
    works: Vec<(Done, Option<Part>)>,
    /// Nothing came since the last look.
    quiet: bool,
}

/// Work with its name as a number.
#[derive(Debug, Clone, Copy)]
struct Done {
    correlation: u32,
    start_ns: u64,
    end_ns: u64,
    in_graph: bool,
    name: u32,
    launch: Option<Launch>,
    bytes: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Launch {
    grid: Extent,
    block: Extent,
    registers: u32,
    shared_bytes: u64,
}

#[derive(Default)]
struct Names {
    /// By the address of a name: CUPTI gives the same one for the same kernel.
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

    fn at(&mut self, address: usize, text: impl FnOnce() -> String) -> u32 {
        if let Some(number) = self.by_address.get(&address) {
            return *number;
        }
        let number = self.number(&text());
        self.by_address.insert(address, number);
        number
    }
}

/// What a window adds up.
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
    launch: Option<Launch>,
    bytes: Option<u64>,
}

impl Steps {
    /// The launch `correlation` was made under `mark`.
    pub fn mark(&mut self, correlation: u32, mark: Mark) {
        // The innermost mark of a launch says the most.
        match self.marks.entry(correlation) {
            Entry::Vacant(place) => {
                place.insert(mark);
            }
            Entry::Occupied(mut known) => {
                if known.get().part.is_none() {
                    known.insert(mark);
                }
            }
        }
    }

    /// The GPU did `work`; `name` reads a kernel's name from its address.
    pub fn work(&mut self, work: &Work, name: &dyn Fn(usize) -> String) {
        let (number, launch, bytes) = match &work.what {
            What::Kernel { name_at, grid, block, registers, shared_bytes } => {
                let launch = Launch {
                    grid: *grid,
                    block: *block,
                    registers: u32::from(*registers),
                    shared_bytes: u64::from(*shared_bytes),
                };
                (self.names.at(*name_at, || name(*name_at)), Some(launch), None)
            }
            What::Copy { direction, bytes } => (self.names.number(direction), None, Some(*bytes)),
            What::Set { bytes } => (self.names.number("memset"), None, Some(*bytes)),
        };
        let done = Done {
            correlation: work.correlation,
            start_ns: work.start_ns,
            end_ns: work.end_ns.max(work.start_ns),
            in_graph: work.in_graph,
            name: number,
            launch,
            bytes,
        };
        self.place(done, 0);
    }

    fn place(&mut self, done: Done, waited: u8) {
        let Some(mark) = self.marks.get(&done.correlation) else {
            // What nobody marks is no part of a step.
            if waited < 2 {
                self.unmarked.push((done, waited + 1));
            }
            return;
        };
        let (phase, part) = (mark.phase, mark.part);
        let step =
            self.open.entry(mark.step).or_insert_with(|| Step { phase, works: Vec::new(), quiet: false });
        step.works.push((done, part));
        step.quiet = false;
    }

    pub fn dropped(&mut self, records: u64) {
        self.dropped += records;
    }

    pub fn graph(&mut self, nodes: Vec<Part>) {
        self.graph = nodes;
    }

    /// The next steps that end are drawn, one of each phase.
    pub fn want_timeline(&mut self) {
        self.timeline_wanted = true;
    }

    /// To be called after each batch of records. A step is closed when a batch brought nothing of it; at the end, all are.
    pub fn settle(&mut self, all: bool) {
        for (done, waited) in std::mem::take(&mut self.unmarked) {
            self.place(done, waited);
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
            // Their launches are over. Numbers go round.
            self.marks.retain(|_, mark| (mark.step.wrapping_sub(*last) as i32) > 0);
        }
    }

    fn close(&mut self, number: u32, mut step: Step) {
        step.works.sort_by_key(|(done, _)| (done.start_ns, done.end_ns));
        let in_graph = step.works.iter().filter(|(done, _)| done.in_graph).count();
        // A graph that lost records can't be told apart.
        if in_graph == self.graph.len() {
            let nodes = step.works.iter_mut().filter(|(done, _)| done.in_graph);
            nodes.zip(&self.graph).for_each(|((_, part), node)| *part = Some(*node));
        }
        let (Some(first), Some(end)) = (
            step.works.first().map(|(done, _)| done.start_ns),
            step.works.iter().map(|(done, _)| done.end_ns).max(),
        ) else {
            return;
        };
        let before = self.last.replace((number, end));
        let gap = before
            .filter(|(last, _)| step.phase == Phase::Decode && last.wrapping_add(1) == number)
            .map(|(_, ended)| first.saturating_sub(ended))
            .filter(|gap| *gap < LONGEST_GAP_NS);
        let window = if step.phase == Phase::Prefill { &mut self.prefill } else { &mut self.decode };
        window.steps += 1;
        window.span_ns += end - first;
        window.between_ns += gap.unwrap_or(0);
        // A kernel may be let in before the one before it has ended, and waits there. Its time is what it adds.
        let mut reached = first;
        for (done, part) in &mut step.works {
            done.start_ns = done.start_ns.max(reached);
            done.end_ns = done.end_ns.max(done.start_ns);
            reached = done.end_ns;
            window.busy_ns += done.end_ns - done.start_ns;
            window.add(done, part.map(|part| part.operator));
        }
        if self.timeline_wanted && !self.timelines.iter().any(|drawn| drawn.timeline.phase == step.phase) {
            let timeline = self.names.timeline(&step, first);
            self.timelines.push(Drawn { step: number, first_ns: first, timeline });
        }
    }

    /// What was closed since the last time, phase by phase.
    pub fn windows(&mut self) -> Vec<KernelWindow> {
        let mut windows: Vec<KernelWindow> = [
            (Phase::Prefill, std::mem::take(&mut self.prefill)),
            (Phase::Decode, std::mem::take(&mut self.decode)),
        ]
        .into_iter()
        .filter(|(_, window)| window.steps > 0)
        .map(|(phase, window)| window.told(phase, &self.names))
        .collect();
        if let Some(last) = windows.last_mut() {
            last.dropped = std::mem::take(&mut self.dropped);
        }
        windows
    }

    /// The steps that were drawn, if any were wanted and have ended.
    pub fn timelines(&mut self) -> Vec<Drawn> {
        let drawn = std::mem::take(&mut self.timelines);
        self.timeline_wanted &= drawn.is_empty();
        drawn
    }
}

impl Window {
    fn add(&mut self, done: &Done, operator: Option<Operator>) {
        let ns = done.end_ns - done.start_ns;
        self.launches += 1;
        self.graph_launches += u64::from(done.in_graph);
        let key = (done.name, operator, done.launch.map(|launch| launch.grid));
        let sum = self.rows.entry(key).or_insert(Sum {
            calls: 0,
            graph_calls: 0,
            total_ns: 0,
            squares: 0.0,
            min_ns: u64::MAX,
            max_ns: 0,
            launch: done.launch,
            bytes: None,
        });
        sum.calls += 1;
        sum.graph_calls += u64::from(done.in_graph);
        sum.total_ns += ns;
        sum.squares += ns as f64 * ns as f64;
        sum.min_ns = sum.min_ns.min(ns);
        sum.max_ns = sum.max_ns.max(ns);
        if let Some(bytes) = done.bytes {
            *sum.bytes.get_or_insert(0) += bytes;
        }
    }

    fn told(self, phase: Phase, names: &Names) -> KernelWindow {
        let mut rows: Vec<KernelRow> = self
            .rows
            .into_iter()
            .map(|((name, operator, grid), sum)| {
                let (n, total) = (sum.calls as f64, sum.total_ns as f64);
                let spread = ((sum.squares - total * total / n) / (n - 1.0)).max(0.0).sqrt();
                KernelRow {
                    calls: sum.calls,
                    total_ns: Some(total),
                    // With few digits: it comes back from a recording as it was.
                    mean_ns: Some((total / n * 10.0).round() / 10.0),
                    min_ns: Some(sum.min_ns as f64),
                    max_ns: Some(sum.max_ns as f64),
                    stddev_ns: Some(spread.round()).filter(|spread| spread.is_finite()),
                    grid,
                    block: sum.launch.map(|launch| launch.block),
                    registers: sum.launch.map(|launch| launch.registers),
                    shared_bytes: sum.launch.map(|launch| launch.shared_bytes),
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
            .take(MOST_SPANS)
            .map(|(done, part)| {
                let name = *numbers.entry(done.name).or_insert_with(|| {
                    names.push(self.texts[done.name as usize].clone());
                    (names.len() - 1) as u16
                });
                KernelSpan {
                    name,
                    operator: part.map(|part| part.operator),
                    layer: part.and_then(|part| part.layer),
                    start_ns: done.start_ns - first,
                    ns: done.end_ns - done.start_ns,
                }
            })
            .collect();
        StepTimeline { phase: step.phase, at: None, names, spans }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(correlation: u32, name: usize, from: u64, to: u64, in_graph: bool) -> Work {
        let what = What::Kernel {
            name_at: name,
            grid: [name as u32, 1, 1],
            block: [128, 1, 1],
            registers: 40,
            shared_bytes: 0,
        };
        Work { correlation, start_ns: from, end_ns: to, in_graph, what }
    }

    fn named(at: usize) -> String {
        format!("kernel{at}")
    }

    fn part(operator: Operator, layer: Option<u16>) -> Part {
        Part { operator, layer }
    }

    fn decode(step: u32, part: Option<Part>) -> Mark {
        Mark { phase: Phase::Decode, step, part }
    }

    fn settled(steps: &mut Steps) -> Vec<KernelWindow> {
        steps.settle(false);
        steps.settle(false);
        steps.windows()
    }

    #[test]
    fn launches_of_an_eager_step_carry_their_marks() {
        let mut steps = Steps::default();
        steps.mark(1, decode(7, Some(part(Operator::Qkv, Some(0)))));
        steps.mark(2, decode(7, Some(part(Operator::Attention, Some(0)))));
        // Records come in any order, work before its mark too.
        steps.work(&kernel(2, 11, 150, 180, false), &named);
        steps.work(&kernel(1, 10, 100, 140, false), &named);
        steps.work(&kernel(3, 12, 185, 190, false), &named);
        steps.mark(3, decode(7, None));
        steps.work(&kernel(99, 13, 0, 500, false), &named);
        let windows = settled(&mut steps);
        let [window] = &windows[..] else { panic!("{windows:?}") };
        assert_eq!((window.steps, window.span_ns, window.busy_ns), (1, 90, 75));
        assert_eq!((window.launches, window.graph_launches), (3, 0), "what nobody marked is no part of it");
        let row = |operator| window.rows.iter().find(|row| row.operator == operator).unwrap();
        assert_eq!(row(Some(Operator::Qkv)).name, "kernel10");
        assert_eq!(row(Some(Operator::Attention)).mean_ns, Some(30.0));
        assert_eq!(row(None).name, "kernel12");
        assert!(settled(&mut steps).is_empty());
    }

    #[test]
    fn nodes_of_a_graph_are_told_apart_by_their_order() {
        let mut steps = Steps::default();
        steps.graph(vec![
            part(Operator::Qkv, Some(0)),
            part(Operator::Rope, Some(0)),
            part(Operator::LmHead, None),
        ]);
        steps.want_timeline();
        for step in 0..3u32 {
            let at = u64::from(step) * 1000;
            steps.mark(step, decode(step, None));
            steps.work(&kernel(step, 3, at + 60, at + 100, true), &named);
            steps.work(&kernel(step, 1, at, at + 30, true), &named);
            // It began before the one before it had ended.
            steps.work(&kernel(step, 2, at + 20, at + 50, true), &named);
        }
        let window = settled(&mut steps).remove(0);
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
        assert_eq!(added, 270.0, "rows add up to what is busy");
        assert_eq!(window.rows[2].mean_ns, Some(20.0), "its first ten were spent waiting for the one before");
        let drawn = steps.timelines();
        assert_eq!(drawn.len(), 1);
        let spans = &drawn[0].timeline.spans;
        assert_eq!((drawn[0].step, drawn[0].first_ns), (0, 0));
        assert_eq!(spans[1].layer, Some(0));
        assert_eq!((spans[2].start_ns, spans[2].ns), (60, 40));
        assert!(steps.timelines().is_empty());
    }

    #[test]
    fn a_graph_that_lost_a_record_is_not_told_apart() {
        let mut steps = Steps::default();
        steps.graph(vec![part(Operator::Qkv, Some(0)), part(Operator::Rope, Some(0))]);
        steps.mark(1, decode(1, None));
        steps.work(&kernel(1, 2, 0, 10, true), &named);
        steps.dropped(1);
        let window = settled(&mut steps).remove(0);
        assert_eq!((window.rows[0].operator, window.dropped), (None, 1));
    }

    #[test]
    fn a_step_waits_for_its_records() {
        let mut steps = Steps::default();
        steps.mark(1, decode(1, None));
        steps.work(&kernel(1, 1, 0, 10, false), &named);
        steps.settle(false);
        assert!(steps.windows().is_empty());
        steps.work(&kernel(1, 2, 10, 20, false), &named);
        steps.settle(false);
        assert!(steps.windows().is_empty(), "more came of it");
        steps.settle(true);
        assert_eq!(steps.windows()[0].launches, 2);
        assert!(steps.marks.is_empty() && steps.open.is_empty());
    }

    #[test]
    fn gaps_are_of_one_request_and_no_pauses() {
        let mut steps = Steps::default();
        let prefill = |step| Mark { phase: Phase::Prefill, step, part: None };
        let marks = [(1, prefill(1)), (2, decode(2, None)), (3, prefill(3)), (4, decode(4, None))];
        let times = [(0, 100), (150, 200), (900, 1000), (5_000_000_000, 5_000_000_100)];
        for ((correlation, mark), (from, to)) in marks.into_iter().zip(times) {
            steps.mark(correlation, mark);
            steps.work(&kernel(correlation, 1, from, to, false), &named);
        }
        let windows = settled(&mut steps);
        assert_eq!(windows[0].between_ns, 0, "a prefill begins a request");
        assert_eq!(
            (windows[1].phase, windows[1].between_ns),
            (Phase::Decode, 50),
            "four seconds are a pause"
        );
    }

    #[test]
    fn copies_have_bytes() {
        let mut steps = Steps::default();
        let what = What::Copy { direction: "copy, host to device", bytes: 2048 };
        steps.mark(1, Mark { phase: Phase::Prefill, step: 0, part: None });
        for at in [0, 100] {
            let work =
                Work { correlation: 1, start_ns: at, end_ns: at + 5, in_graph: false, what: what.clone() };
            steps.work(&work, &named);
        }
        let row = settled(&mut steps).remove(0).rows.remove(0);
        assert_eq!((row.name.as_str(), row.bytes, row.grid), ("copy, host to device", Some(4096.0), None));
    }
}
