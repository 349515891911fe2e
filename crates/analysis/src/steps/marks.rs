//! What happens equally often in every step and is recorded between bursts too: a copy, or the launch of a graph.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Basis, Confidence, StepPhase};
use llmprof_event::kernels::work::{DeviceActivity, Direction, WorkKind};

/// Steps that marks are learned from.
const RECENT: usize = 64;
/// A mark is used if at least this share of the steps have the same number of it.
const MIN_SHARE: f64 = 0.9;
/// More of one kind in a step are not counted.
const MAX_EACH: u32 = 8;
/// Steps that are needed to choose a mark.
const MIN_STEPS: usize = 3;
/// Steps that are needed to know how short one can be.
const STEPS_OF_SHORTEST: usize = 16;
/// Long steps whose phases are remembered.
const LONG: usize = 16;
/// A step between bursts is like a long one of a burst if neither is so many times as long as the other.
const LIKE: f64 = 4.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    AnyToHost,
    Copy { direction: Direction, bytes: u64 },
    AnyGraph,
    Graph(u32),
}

impl Mark {
    /// Marks are preferred in this order: what also marks steps of other kinds and sizes comes first. A copy to the device may be in more of
    /// the steps seen and still be missing in those of another batch.
    fn rank(self) -> (u8, u64) {
        match self {
            Mark::AnyToHost => (0, 0),
            Mark::Copy { direction: Direction::DeviceToHost, bytes } => (1, bytes),
            Mark::AnyGraph => (2, 0),
            Mark::Graph(graph) => (3, u64::from(graph)),
            Mark::Copy { direction: Direction::HostToDevice, bytes } => (4, bytes),
            Mark::Copy { bytes, .. } => (5, bytes),
        }
    }

    pub fn basis(self) -> Basis {
        match self {
            Mark::AnyToHost | Mark::Copy { .. } => Basis::Copy,
            Mark::AnyGraph | Mark::Graph(_) => Basis::Graph,
        }
    }

    pub fn fits(self, work: &DeviceActivity) -> bool {
        match (self, work.kind) {
            (Mark::AnyToHost, WorkKind::Copy { direction, .. }) => direction == Direction::DeviceToHost,
            (Mark::Copy { direction, bytes }, WorkKind::Copy { direction: d, bytes: b }) => {
                direction == d && bytes == b
            }
            (Mark::AnyGraph, kind) => work.graph.is_some() || matches!(kind, WorkKind::Graph { .. }),
            (Mark::Graph(graph), kind) => work.graph == Some(graph) || kind == WorkKind::Graph { graph },
            _ => false,
        }
    }

    /// The marks that a work could be.
    fn from_work(work: &DeviceActivity, launches: &mut HashSet<u32>) -> [Option<Mark>; 2] {
        let graph = match work.kind {
            WorkKind::Graph { graph } => Some(graph),
            _ => work.graph.filter(|_| launches.insert(work.correlation)),
        };
        if let Some(graph) = graph {
            return [Some(Mark::AnyGraph), Some(Mark::Graph(graph))];
        }
        match work.kind {
            // Nodes of graphs are not recorded between bursts.
            WorkKind::Copy { direction, bytes } if work.graph.is_none() => {
                let any = (direction == Direction::DeviceToHost).then_some(Mark::AnyToHost);
                [any, Some(Mark::Copy { direction, bytes })]
            }
            _ => [None, None],
        }
    }
}

/// The facts that the recorded steps have shown.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// How the steps were found.
    basis: Option<Basis>,
    steps: VecDeque<Seen>,
    /// Lengths and phases of the last steps that were far longer than the usual one.
    long: VecDeque<(u64, StepPhase)>,
    chosen: Option<Chosen>,
    typical_ns: u64,
    shortest_ns: u64,
    decode_has_graphs: bool,
    /// Launches of whole graphs are recorded between bursts.
    whole_graphs: bool,
}

/// A mark, how many of it a step has, and how sure that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen {
    pub mark: Mark,
    pub each: u32,
    pub confidence: Confidence,
}

/// A step that was recorded: how often it has each mark, whether it launches graphs, and its length.
#[derive(Debug)]
struct Seen {
    counts: Vec<(Mark, u32)>,
    graphs: bool,
    phase: StepPhase,
    length_ns: u64,
}

impl Marks {
    /// Whether steps that were found in this way are learned from. Those found in another are forgotten then: a server tries steps of its
    /// own before it answers, which have no results to copy. A few that are found in another way, such as long prompts, change nothing.
    pub fn are_found_by(&mut self, basis: Basis, steps: usize) -> bool {
        if self.basis == Some(basis) {
            return true;
        }
        let teaches = self.basis.is_none() || steps >= MIN_STEPS;
        if teaches {
            self.basis = Some(basis);
            self.steps.clear();
        }
        teaches
    }

    /// Learns from a step whose kernels were recorded; `length_ns` is the time until the next step.
    pub fn learn(&mut self, works: &[DeviceActivity], phase: StepPhase, length_ns: u64) {
        let mut counts: HashMap<Mark, u32> = HashMap::new();
        let mut launches = HashSet::new();
        for work in works {
            for mark in Mark::from_work(work, &mut launches).into_iter().flatten() {
                // A step with hundreds of different copies has its marks among the first.
                if counts.len() < 64 || counts.contains_key(&mark) {
                    *counts.entry(mark).or_default() += 1;
                }
            }
        }
        let counts = counts.into_iter().filter(|(_, n)| *n <= MAX_EACH).collect();
        if self.steps.len() == RECENT {
            self.steps.pop_front();
        }
        if self.typical_ns > 0 && self.is_long(length_ns) {
            if self.long.len() == LONG {
                self.long.pop_front();
            }
            self.long.push_back((length_ns, phase));
        }
        self.steps.push_back(Seen { counts, graphs: !launches.is_empty(), phase, length_ns });
    }

    /// Chooses the mark of the steps seen so far.
    pub fn choose(&mut self) {
        let n = self.steps.len();
        if n < MIN_STEPS && self.chosen.is_some() {
            return;
        }
        let mut lengths: Vec<u64> = self.steps.iter().map(|step| step.length_ns).collect();
        lengths.sort_unstable();
        self.typical_ns = lengths.get(n / 2).copied().unwrap_or(0);
        self.shortest_ns = lengths.first().copied().unwrap_or(0);
        let decode = self.steps.iter().filter(|step| step.phase == StepPhase::Decode);
        self.decode_has_graphs = decode.clone().count() > 0 && decode.clone().all(|step| step.graphs);
        let mut counts: HashMap<(Mark, u32), u32> = HashMap::new();
        for key in self.steps.iter().flat_map(|step| &step.counts) {
            *counts.entry(*key).or_default() += 1;
        }
        let enough =
            |(_, count): &((Mark, u32), u32)| n >= MIN_STEPS && f64::from(*count) >= MIN_SHARE * n as f64;
        let best = counts
            .into_iter()
            .filter(enough)
            .filter(|((mark, _), _)| self.whole_graphs || mark.basis() != Basis::Graph)
            .min_by_key(|((mark, each), count)| (*each, mark.rank(), u32::MAX - count));
        self.chosen = best.map(|((mark, each), count)| {
            let confidence = Confidence { confirmed: count, of: n as u32 };
            Chosen { mark, each, confidence }
        });
    }

    /// A whole graph was recorded: its launches can be marks.
    pub fn see_whole_graph(&mut self) {
        if !self.whole_graphs {
            self.whole_graphs = true;
            self.choose();
        }
    }

    pub fn chosen(&self) -> Option<Chosen> {
        self.chosen
    }

    /// The usual time from a step to the next.
    pub fn typical_ns(&self) -> u64 {
        self.typical_ns
    }

    /// Marks closer together are not steps: none of those recorded was nearly that short.
    pub fn is_too_short(&self, ns: u64) -> bool {
        self.steps.len() >= STEPS_OF_SHORTEST && ns < self.shortest_ns / 2
    }

    /// The phase of a step whose kernels were not recorded. `other_result`: what it copied to the host has another size than that of the
    /// decode steps before.
    pub fn phase(&self, has_graph: bool, length_ns: u64, other_result: bool) -> StepPhase {
        match (self.decode_has_graphs && self.whole_graphs, has_graph) {
            (true, true) => StepPhase::Decode,
            // Prompts have many lengths: engines run them without graphs.
            (true, false) => StepPhase::Prefill,
            _ if !self.is_long(length_ns) => StepPhase::Decode,
            _ => self.phase_of_long(length_ns, other_result),
        }
    }

    fn is_long(&self, length_ns: u64) -> bool {
        length_ns > self.typical_ns.saturating_mul(2)
    }

    /// The phase of the long step of a burst whose length is nearest. Where there is none, a step that took long and answered another
    /// number of sequences has prompts.
    fn phase_of_long(&self, length_ns: u64, other_result: bool) -> StepPhase {
        let times = |length: u64| {
            let (short, long) = (length.min(length_ns).max(1), length.max(length_ns));
            long as f64 / short as f64
        };
        let nearest = self.long.iter().min_by(|(a, _), (b, _)| times(*a).total_cmp(&times(*b)));
        let is_like = |(length, _): &&(u64, StepPhase)| times(*length) <= LIKE;
        let unseen = if other_result { StepPhase::Prefill } else { StepPhase::Other };
        nearest.filter(is_like).map_or(unseen, |(_, phase)| *phase)
    }
}
