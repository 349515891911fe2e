//! Turns steps of recorded kernels into windows and timelines, by the same rules for the built-in engine and for other
//! programs.

use std::collections::HashMap;

use super::{
    Durations, Extent, KernelRow,
    live::{KernelSpan, KernelWindow, StepTimeline},
    work::{KernelLaunch, NameId, Names, is_timed},
};
use crate::Phase;
use llm_cost::{Operator, OperatorInstance};

/// The longest gap between steps of one request; a longer one is a pause.
pub const MAX_GAP_NS: u64 = 1_000_000_000;
/// Maximum kernels of one timeline: names are numbered in 16 bits.
const MAX_SPANS: usize = 20_000;
/// Maximum rows of one window; kernels beyond the limit are combined.
const MAX_ROWS: usize = 8_192;

/// A kernel, copy or memset of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWork {
    pub start_ns: u64,
    pub end_ns: u64,
    pub in_graph: bool,
    pub name: NameId,
    /// The launch of a kernel; `None` for a copy or a memset.
    pub launch: Option<KernelLaunch>,
    /// The size of a copy or a memset; `None` for a kernel.
    pub bytes: Option<u64>,
    /// The operator that it is part of, if that is known.
    pub instance: Option<OperatorInstance>,
    /// The GPU and the stream.
    pub queue: (u16, u32),
    /// Its time without the part in which it waited for the preceding work of its stream; [`without_overlap`] sets it.
    pub own_ns: u64,
    /// Most of its time was such a wait.
    pub waited: bool,
}

impl StepWork {
    pub fn is_timed(&self) -> bool {
        is_timed(self.start_ns, self.end_ns)
    }
}

/// From the start of the first kernel of a step to the end of the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSpan {
    pub first_ns: u64,
    pub end_ns: u64,
}

/// Records without times; a step that contains them has no span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untimed(pub u64);

/// Sorts the works of a step by their start and gives its span; `None` without works.
pub fn in_order(works: &mut [StepWork]) -> Result<Option<StepSpan>, Untimed> {
    // CUPTI has no times of work that was in progress when recording was switched.
    let untimed = works.iter().filter(|work| !work.is_timed()).count();
    if untimed > 0 {
        return Err(Untimed(untimed as u64));
    }
    works.sort_by_key(|work| (work.start_ns, work.end_ns));
    let end = works.iter().map(|work| work.end_ns).max();
    Ok(works.first().zip(end).map(|(first, end_ns)| StepSpan { first_ns: first.start_ns, end_ns }))
}

/// Leaves each work the time that it adds to the step. A kernel may start before the previous one of its stream has
/// ended, and wait for it; work of another stream runs in parallel and has a duration of its own. `works` are in order.
pub fn without_overlap(works: &mut [StepWork]) {
    let mut reached = 0;
    // A step uses few of them.
    let mut queues: Vec<((u16, u32), u64)> = Vec::new();
    for work in works {
        let whole_ns = work.end_ns.saturating_sub(work.start_ns);
        let known = queues.iter().position(|(queue, _)| *queue == work.queue);
        let at = known.unwrap_or_else(|| {
            queues.push((work.queue, 0));
            queues.len() - 1
        });
        let queue_ns = &mut queues[at].1;
        work.own_ns = work.end_ns.saturating_sub(work.start_ns.max(*queue_ns));
        work.waited = work.own_ns * 2 < whole_ns;
        *queue_ns = (*queue_ns).max(work.end_ns);
        work.start_ns = work.start_ns.max(reached);
        work.end_ns = work.end_ns.max(work.start_ns);
        reached = work.end_ns;
    }
}

/// The steps of a phase since the last window.
#[derive(Debug, Default)]
pub struct StepSums {
    steps: u64,
    span_ns: u64,
    busy_ns: u64,
    between_ns: u64,
    launches: u64,
    graph_launches: u64,
    rows: HashMap<(NameId, Option<Operator>, Option<Extent>), Sum>,
}

#[derive(Debug)]
struct Sum {
    calls: u64,
    graph_calls: u64,
    total_ns: u64,
    own_ns: u64,
    squares: f64,
    min_ns: u64,
    max_ns: u64,
    durations: Durations,
    launch: Option<KernelLaunch>,
    bytes: Option<u64>,
}

impl StepSums {
    /// Adds a step: its works in order and without overlap, and the gap to the previous step, if that is of the same
    /// request.
    pub fn add_step(&mut self, works: &[StepWork], span: StepSpan, gap_ns: Option<u64>) {
        self.steps += 1;
        self.between_ns += gap_ns.filter(|gap| *gap < MAX_GAP_NS).unwrap_or(0);
        self.add_outside(works, span);
    }

    /// Adds works that belong to no step.
    pub fn add_outside(&mut self, works: &[StepWork], span: StepSpan) {
        self.span_ns += span.end_ns - span.first_ns;
        for work in works {
            self.busy_ns += work.end_ns - work.start_ns;
            self.add(work);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.steps == 0 && self.launches == 0
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    fn add(&mut self, work: &StepWork) {
        let ns = work.end_ns - work.start_ns;
        self.launches += 1;
        self.graph_launches += u64::from(work.in_graph);
        let operator = work.instance.map(|instance| instance.operator);
        let mut key = (work.name, operator, work.launch.map(|launch| launch.grid));
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            key = (Names::OTHERS, None, None);
        }
        let sum = self.rows.entry(key).or_insert(Sum {
            calls: 0,
            graph_calls: 0,
            total_ns: 0,
            own_ns: 0,
            squares: 0.0,
            min_ns: u64::MAX,
            max_ns: 0,
            durations: Durations::default(),
            launch: work.launch.filter(|_| key.2.is_some()),
            bytes: None,
        });
        sum.calls += 1;
        sum.graph_calls += u64::from(work.in_graph);
        sum.total_ns += ns;
        sum.own_ns += work.own_ns;
        sum.squares += work.own_ns as f64 * work.own_ns as f64;
        sum.max_ns = sum.max_ns.max(work.own_ns);
        // What remains after a long wait is not its duration.
        if work.own_ns > 0 && !work.waited {
            sum.min_ns = sum.min_ns.min(work.own_ns);
            sum.durations.add(work.own_ns);
        }
        if let Some(bytes) = work.bytes {
            let known = sum.bytes.get_or_insert(0);
            *known = known.saturating_add(bytes);
        }
    }

    /// The window of these steps, the longest kernel first.
    pub fn into_window(self, phase: Phase, names: &Names) -> KernelWindow {
        let mut rows: Vec<KernelRow> = self
            .rows
            .into_iter()
            .map(|((name, operator, grid), sum)| {
                let (n, own) = (sum.calls as f64, sum.own_ns as f64);
                let spread = ((sum.squares - own * own / n) / (n - 1.0)).max(0.0).sqrt();
                KernelRow {
                    calls: sum.calls,
                    total_ns: Some(sum.total_ns as f64),
                    // With few digits, so that a recording reads back the same number.
                    mean_ns: Some((own / n * 10.0).round() / 10.0),
                    min_ns: (sum.min_ns < u64::MAX).then_some(sum.min_ns as f64),
                    max_ns: Some(sum.max_ns as f64),
                    stddev_ns: Some(spread.round()).filter(|spread| spread.is_finite()),
                    durations: sum.durations,
                    grid,
                    block: sum.launch.map(|launch| launch.block),
                    registers: sum.launch.map(|launch| u32::from(launch.registers)),
                    shared_bytes: sum.launch.map(|launch| u64::from(launch.shared_bytes)),
                    operator,
                    graph_calls: Some(sum.graph_calls),
                    bytes: sum.bytes.map(|bytes| bytes as f64),
                    ..KernelRow::named(names.text(name))
                }
            })
            .collect();
        let time = |row: &KernelRow| row.total_ns.unwrap_or(0.0);
        rows.sort_by(|a, b| {
            let by_time = time(b).total_cmp(&time(a)).then_with(|| a.name.cmp(&b.name));
            by_time.then_with(|| (a.operator, a.grid).cmp(&(b.operator, b.grid)))
        });
        KernelWindow {
            overlaps: None,
            phase,
            steps: self.steps,
            span_ns: self.span_ns,
            busy_ns: self.busy_ns,
            between_ns: self.between_ns,
            launches: self.launches,
            graph_launches: self.graph_launches,
            dropped: 0,
            unmeasured: 0,
            prompt_tokens: None,
            tokens: None,
            rows,
        }
    }
}

/// The timeline of a step: its works in order and without overlap. Its time by the run's clock is not set.
pub fn timeline(names: &Names, phase: Phase, works: &[StepWork]) -> StepTimeline {
    let first = works.first().map_or(0, |work| work.start_ns);
    let mut numbers: HashMap<NameId, u16> = HashMap::new();
    let mut texts = Vec::new();
    let spans = works
        .iter()
        .take(MAX_SPANS)
        .map(|work| {
            let name = *numbers.entry(work.name).or_insert_with(|| {
                texts.push(names.text(work.name).to_owned());
                (texts.len() - 1) as u16
            });
            KernelSpan {
                name,
                operator: work.instance.map(|instance| instance.operator),
                layer: work.instance.and_then(|instance| instance.layer),
                start_ns: work.start_ns - first,
                ns: work.end_ns - work.start_ns,
            }
        })
        .collect();
    StepTimeline { phase, at: None, names: texts, spans }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_another_stream_adds_little_and_has_its_own_duration() {
        let work = |start_ns, end_ns, queue| StepWork {
            start_ns,
            end_ns,
            in_graph: false,
            name: Names::OTHERS,
            launch: None,
            bytes: None,
            instance: None,
            queue,
            own_ns: 0,
            waited: false,
        };
        // A kernel, one beside it, one on another GPU with the same number, and one that waits for the first.
        let (first, beside, other_gpu) = ((0, 7), (0, 8), (1, 7));
        let mut works =
            [work(0, 100, first), work(10, 40, beside), work(20, 90, other_gpu), work(30, 150, first)];
        without_overlap(&mut works);
        let own: Vec<u64> = works.iter().map(|work| work.own_ns).collect();
        assert_eq!(own, [100, 30, 70, 50]);
        let added: Vec<u64> = works.iter().map(|work| work.end_ns - work.start_ns).collect();
        assert_eq!(added, [100, 0, 0, 50], "they add up to the busy time");
        assert_eq!(works.map(|work| work.waited), [false, false, false, true]);
    }
}
