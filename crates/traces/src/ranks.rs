//! The GPUs of one program in files: several GPUs in one recording, or one recording per rank, aligned to one clock.

use std::collections::{BTreeMap, HashMap};

use llmprof_analysis::{
    ranks::{LanePieces, Operation, Piece, PieceKind, align, window},
    steps::Class,
};
use llmprof_base::units::grouped;
use llmprof_event::ranks::{Collective, RankLane, RanksWindow};

/// Maximum work items of one file, 16 bytes each; further ones are left out.
const MAX_WORKS: u64 = 4 << 20;
const MAX_OPERATIONS: usize = 1 << 16;
const MAX_NAMES: usize = 1 << 16;
const MAX_LANES: usize = 256;
const MAX_STEPS: usize = 1 << 16;
/// The possible difference between the clocks of one machine's GPUs, and the largest that is attributed to it.
const SLACK_NS: u64 = 20_000;
const MAX_SLACK_NS: u64 = 1_000_000;

/// A work item without its description.
#[derive(Debug, Clone, Copy)]
struct Small {
    start_ns: i64,
    /// At most four seconds: longer ones are cut.
    ns: u32,
    kind: u32,
}

const COMPUTE: u32 = 0;
const COPY: u32 = 1;
const FIRST_OPERATION: u32 = 2;

/// A process and its index of the GPU.
type GpuOfProcess = (Option<u32>, i64);

/// The parts of a file that are kept while it is read.
#[derive(Debug, Default)]
pub struct Gathered {
    works: BTreeMap<GpuOfProcess, Vec<Small>>,
    steps: BTreeMap<i64, Vec<(i64, i64)>>,
    operations: Vec<Operation>,
    numbers: HashMap<Operation, u32>,
    collectives: HashMap<String, Option<Collective>>,
    count: u64,
    left_out: u64,
}

impl Gathered {
    /// The collective that a kernel of this name is a part of.
    pub fn collective(&mut self, name: &str) -> Option<Collective> {
        if let Some(known) = self.collectives.get(name) {
            return *known;
        }
        let found = match Class::from_name(name) {
            Class::Collective(kind) => Some(kind),
            Class::CustomAllReduce => Some(Collective::AllReduce),
            _ => None,
        };
        if self.collectives.len() < MAX_NAMES {
            self.collectives.insert(name.to_owned(), found);
        }
        found
    }

    fn add(&mut self, place: GpuOfProcess, start_ns: i64, ns: f64, kind: u32) {
        let known = self.works.len() < MAX_LANES || self.works.contains_key(&place);
        if self.count >= MAX_WORKS || !known {
            self.left_out += 1;
            return;
        }
        self.count += 1;
        let ns = ns.clamp(0.0, f64::from(u32::MAX)) as u32;
        self.works.entry(place).or_default().push(Small { start_ns, ns, kind });
    }

    pub fn compute(&mut self, place: GpuOfProcess, start_ns: i64, ns: f64) {
        self.add(place, start_ns, ns, COMPUTE);
    }

    pub fn copy(&mut self, place: GpuOfProcess, start_ns: i64, ns: f64) {
        self.add(place, start_ns, ns, COPY);
    }

    pub fn operation(&mut self, place: GpuOfProcess, start_ns: i64, ns: f64, operation: Operation) {
        let number = match self.numbers.get(&operation) {
            Some(number) => *number,
            None if self.operations.len() < MAX_OPERATIONS => {
                let number = FIRST_OPERATION + self.operations.len() as u32;
                self.operations.push(operation);
                self.numbers.insert(operation, number);
                number
            }
            None => {
                self.left_out += 1;
                return;
            }
        };
        self.add(place, start_ns, ns, number);
    }

    pub fn step(&mut self, device: i64, start_ns: i64, ns: f64) {
        let steps = self.steps.entry(device).or_default();
        if steps.len() < MAX_STEPS {
            steps.push((start_ns, start_ns.saturating_add(ns.clamp(0.0, 9e15) as i64)));
        }
    }

    /// The lanes of the file. Its times begin at `base_ns` of the clock.
    pub fn trace(self, file: &str, rank: Option<u32>, base_ns: i64) -> RankTrace {
        let time = |ns: i64| u64::try_from(ns.saturating_add(base_ns)).unwrap_or(0);
        let shares = self.works.len() > 1;
        let mut lanes = Vec::new();
        for ((pid, device), works) in self.works {
            let mut pieces: Vec<Piece> = works
                .into_iter()
                .map(|work| {
                    let start_ns = time(work.start_ns);
                    let kind = match work.kind {
                        COMPUTE => PieceKind::Compute,
                        COPY => PieceKind::Copy,
                        number => {
                            let known = self.operations.get((number - FIRST_OPERATION) as usize);
                            PieceKind::Collective(
                                known.copied().unwrap_or(Operation::new(Collective::Unknown)),
                            )
                        }
                    };
                    Piece { start_ns, end_ns: start_ns.saturating_add(work.ns.into()), kind }
                })
                .collect();
            pieces.sort_by_key(|piece| (piece.start_ns, piece.end_ns));
            let mut steps: Vec<(u64, u64)> = self
                .steps
                .get(&device)
                .map(|steps| steps.iter().map(|(start, end)| (time(*start), time(*end))).collect())
                .unwrap_or_default();
            steps.sort_unstable();
            let device = u32::try_from(device).unwrap_or(0);
            let lane = RankLane { rank, pid, device, gpu: Some(device), uuid: None, shares_process: shares };
            lanes.push(LanePieces { lane, pieces, steps });
        }
        RankTrace { file: file.to_owned(), lanes, left_out: self.left_out }
    }
}

/// The lanes of one file, by one clock.
#[derive(Debug, Clone, Default)]
pub struct RankTrace {
    pub file: String,
    pub lanes: Vec<LanePieces>,
    pub left_out: u64,
}

impl RankTrace {
    fn collectives(&self) -> usize {
        let all = self.lanes.iter().flat_map(|lane| &lane.pieces);
        all.filter(|piece| matches!(piece.kind, PieceKind::Collective(_))).count()
    }
}

/// Lanes of several files in their common time.
#[derive(Debug, Clone)]
pub struct Merged {
    pub window: RanksWindow,
    /// Notes on the alignment of the clocks, and on what is missing.
    pub notes: Vec<String>,
}

/// `None` for one GPU without collectives.
pub fn merge(mut traces: Vec<RankTrace>) -> Option<Merged> {
    traces.retain(|trace| !trace.lanes.is_empty());
    traces.sort_by_key(|trace| trace.lanes.first().and_then(|lane| lane.lane.rank));
    let has_collectives = traces.iter().any(|trace| trace.collectives() > 0);
    if traces.iter().map(|trace| trace.lanes.len()).sum::<usize>() < 2 && !has_collectives {
        return None;
    }
    let mut notes = Vec::new();
    for trace in traces.iter().filter(|trace| trace.left_out > 0) {
        let n = grouped(i64::try_from(trace.left_out).unwrap_or(i64::MAX));
        notes.push(format!(
            "{}: {n} works beyond the first {} are left out",
            trace.file,
            grouped(MAX_WORKS as i64)
        ));
    }
    let mut error_ns = None;
    if let Some((first, others)) = traces.split_first_mut().filter(|(_, others)| !others.is_empty()) {
        let with_collectives = |trace: &RankTrace| {
            let count = |lane: &&LanePieces| {
                lane.pieces.iter().filter(|p| matches!(p.kind, PieceKind::Collective(_))).count()
            };
            trace.lanes.iter().max_by_key(count).cloned()
        };
        let reference = with_collectives(first)?;
        for other in others {
            let Some(lane) = with_collectives(other) else { continue };
            let alignment = align(&reference, &lane);
            for piece in other.lanes.iter_mut().flat_map(|lane| &mut lane.pieces) {
                piece.start_ns = piece.start_ns.saturating_add_signed(alignment.offset_ns);
                piece.end_ns = piece.end_ns.saturating_add_signed(alignment.offset_ns);
            }
            for (start, end) in other.lanes.iter_mut().flat_map(|lane| &mut lane.steps) {
                *start = start.saturating_add_signed(alignment.offset_ns);
                *end = end.saturating_add_signed(alignment.offset_ns);
            }
            error_ns = error_ns.max(alignment.error_ns);
            notes.push(format!("{}: {alignment}", other.file));
        }
    }
    let mut lanes: Vec<LanePieces> = traces.into_iter().flat_map(|trace| trace.lanes).collect();
    // Files without ranks are distinguished by their order.
    let unnamed = lanes.len() > 1
        && lanes.iter().enumerate().any(|(i, lane)| lanes[..i].iter().any(|other| other.lane.is(&lane.lane)));
    if unnamed {
        lanes.iter_mut().zip(0..).for_each(|(lane, n)| lane.lane.rank = Some(n));
        notes.push(
            "the files do not say which ranks they are: they are numbered in the order they were given"
                .to_owned(),
        );
    }
    let first = |lane: &LanePieces| lane.pieces.first().map_or(0, |piece| piece.start_ns);
    let last = |lane: &LanePieces| lane.pieces.iter().map(|piece| piece.end_ns).max().unwrap_or(0);
    let from = lanes.iter().map(first).max()?;
    let to = lanes.iter().map(last).min()?;
    if to <= from {
        notes.push(
            "the files have no time in common: they are of different runs, or their clocks differ".to_owned(),
        );
    }
    let slack = SLACK_NS + error_ns.unwrap_or(0).min(MAX_SLACK_NS);
    let mut window = window(&lanes, from, to.max(from), slack);
    window.from = llmprof_event::Stamp(0);
    window.clock_error_ns = error_ns;
    Some(Merged { window, notes })
}
