//! The activity of the processes of one program in the same time: their records by GPU, limited to the times in which
//! all of them were recorded.

use std::collections::{BTreeMap, HashMap, VecDeque};

use llmprof_inject::wire::Payload;

use super::process_info::ProcessInfo;
use llmprof_analysis::{
    ranks::{LanePieces, Operation, Piece, PieceKind, window},
    steps::{Class, Step},
};
use llmprof_event::{
    kernels::work::{DeviceActivity, NameId, WorkKind},
    ranks::{Collective, RankLane, RanksWindow},
};

/// Maximum work items of one process that wait for the other processes, and maximum calls of NCCL.
const MAX_PIECES: usize = 1 << 18;
const MAX_CALLS: usize = 1 << 16;
const MAX_BURSTS: usize = 64;
const MAX_STEPS: usize = 1 << 14;
/// More than a process has.
const MAX_DEVICES: usize = 64;
const MAX_COMMUNICATORS: usize = 256;
/// The maximum delay of records.
const SETTLE_NS: u64 = 700_000_000;
/// Continuous recording is reported in parts of at least this length.
const PART_NS: u64 = 900_000_000;
/// A shorter time is not reported.
const MIN_NS: u64 = 5_000_000;
/// The maximum difference between the clocks of GPUs on one machine.
const SLACK_NS: u64 = 20_000;

/// The size and the communicator of a call, if they are known.
type CallSize = (Option<u64>, Option<u64>);

/// A call of NCCL, from its NVTX range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    start_ns: u64,
    kind: Collective,
    message_bytes: Option<u64>,
    communicator: Option<u64>,
}

/// The records of one process that are kept until the others have caught up.
#[derive(Debug, Default)]
pub struct RankRecord {
    pid: u32,
    rank: Option<u32>,
    visible: Option<Vec<String>>,
    uuids: HashMap<u32, String>,
    /// By the process's index of the GPU; ordered by start, except for overlapping ones.
    pieces: BTreeMap<u16, VecDeque<Piece>>,
    count: usize,
    bursts: VecDeque<(u64, Option<u64>)>,
    calls: VecDeque<Call>,
    /// The size of each communicator, and the rank of this process in it.
    communicators: HashMap<u64, (u32, Option<u32>)>,
    /// The size and communicator of each kind, if there was only one so far; `None` if there were several.
    only: HashMap<Collective, Option<CallSize>>,
    steps: VecDeque<(u64, u64)>,
    /// Its first work. Recording may begin long before that, while it loads its model.
    began_ns: Option<u64>,
    reported_ns: u64,
}

impl RankRecord {
    pub fn new(pid: u32, info: Option<&ProcessInfo>) -> RankRecord {
        RankRecord {
            pid,
            rank: info.and_then(|info| info.rank.as_ref()?.parse().ok()),
            visible: info.and_then(|info| info.visible_gpus.clone()),
            ..RankRecord::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn begin(&mut self, at_ns: u64) {
        self.end(at_ns);
        if self.bursts.len() == MAX_BURSTS {
            self.bursts.pop_front();
        }
        self.bursts.push_back((at_ns, None));
    }

    pub fn end(&mut self, at_ns: u64) {
        if let Some((from, to)) = self.bursts.back_mut() {
            to.get_or_insert(at_ns.max(*from));
        }
    }

    /// No more records will arrive: it ends with its last work.
    pub fn has_left(&mut self) {
        let last = self.pieces.values().filter_map(|pieces| pieces.back()).map(|piece| piece.end_ns).max();
        self.end(last.unwrap_or(0));
    }

    pub fn device(&mut self, number: u32, uuid: String) {
        if self.uuids.len() < MAX_DEVICES {
            self.uuids.insert(number, uuid);
        }
    }

    pub fn steps(&mut self, steps: &[Step]) {
        for step in steps.iter().filter(|step| step.is_recorded()) {
            if self.steps.len() == MAX_STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back((step.start_ns, step.end_ns));
        }
    }

    pub fn work(&mut self, work: &DeviceActivity, class: impl Fn(NameId) -> Class) {
        if !work.is_timed() || work.end_ns <= self.reported_ns {
            return;
        }
        let kind = match work.kind {
            WorkKind::Kernel { name, .. } => match class(name) {
                Class::Collective(kind) => PieceKind::Collective(Operation::new(kind)),
                Class::CustomAllReduce => PieceKind::Collective(Operation::new(Collective::AllReduce)),
                _ => PieceKind::Compute,
            },
            WorkKind::Copy { .. } | WorkKind::Memset { .. } => PieceKind::Copy,
            WorkKind::Graph { .. } | WorkKind::Sync => return,
        };
        if self.pieces.len() >= MAX_DEVICES && !self.pieces.contains_key(&work.device) {
            return;
        }
        if self.count >= MAX_PIECES {
            // Drops the oldest of the longest list.
            if let Some(longest) = self.pieces.values_mut().max_by_key(|pieces| pieces.len()) {
                longest.pop_front();
                self.count -= 1;
            }
        }
        self.began_ns.get_or_insert(work.start_ns);
        let pieces = self.pieces.entry(work.device).or_default();
        pieces.push_back(Piece { start_ns: work.start_ns, end_ns: work.end_ns, kind });
        self.count += 1;
    }

    /// A range with a payload, e.g. of a call of NCCL.
    pub fn call(&mut self, text: &str, (start_ns, _): (u64, u64), payload: &Payload) {
        if let (Some(communicator), Some(ranks)) = (payload.communicator, payload.ranks)
            && self.communicators.len() < MAX_COMMUNICATORS
        {
            self.communicators.insert(communicator, (ranks, payload.rank));
        }
        let Some(name) = text.strip_prefix("nccl") else { return };
        let kind = match name {
            "Send" | "Recv" => Collective::SendRecv,
            name => Collective::in_name(&name.to_ascii_lowercase()),
        };
        if kind == Collective::Unknown || payload.message_bytes.is_none() {
            return;
        }
        if self.calls.len() == MAX_CALLS {
            self.calls.pop_front();
        }
        let Payload { message_bytes, communicator, .. } = *payload;
        let this = (message_bytes, communicator);
        let only = self.only.entry(kind).or_insert(Some(this));
        *only = only.filter(|known| *known == this);
        self.calls.push_back(Call { start_ns, kind, message_bytes, communicator });
    }

    /// The times in which the program was recorded, from its first work up to `horizon`. The last element is whether
    /// that is all of it.
    fn recorded(&self, horizon: u64) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let begins = self.began_ns.map_or(u64::MAX, |began| began.max(self.reported_ns));
        self.bursts.iter().filter_map(move |(from, to)| {
            let from = (*from).max(begins);
            let is_closed = to.is_some_and(|to| to <= horizon);
            let to = to.unwrap_or(horizon).min(horizon);
            (to > from).then_some((from, to, is_closed))
        })
    }

    /// The recorded time with the largest overlap with the span, and the size of the overlap.
    fn best_overlap(&self, (from, to): (u64, u64), horizon: u64) -> Option<((u64, u64), u64)> {
        let overlaps = self
            .recorded(horizon)
            .map(|(start, end, _)| ((start, end), end.min(to).saturating_sub(start.max(from))));
        overlaps.max_by_key(|(_, overlap_ns)| *overlap_ns)
    }

    /// The point at which a span is divided because this process was not recorded in more than a quarter of it: where
    /// it joined or left.
    fn division(&self, (from, to): (u64, u64), horizon: u64) -> Option<u64> {
        let ((start, end), overlap_ns) = self.best_overlap((from, to), horizon)?;
        let is_part = overlap_ns >= MIN_NS && 4 * overlap_ns < 3 * (to - from);
        is_part.then_some(if start >= from + MIN_NS { start } else { end })
    }

    /// The rank in the environment, or else in the program's largest communicator.
    fn rank(&self) -> Option<u32> {
        let largest = || self.communicators.values().max_by_key(|(ranks, _)| *ranks);
        self.rank.or_else(|| largest().filter(|(ranks, _)| *ranks > 1)?.1)
    }

    fn lane(&self, device: u16) -> RankLane {
        let number = usize::from(device);
        let visible = self.visible.as_ref().map(|list| list.get(number));
        let uuid = self
            .uuids
            .get(&u32::from(device))
            .cloned()
            .or_else(|| visible.flatten().filter(|gpu| gpu.starts_with("GPU-")).cloned());
        let gpu = match visible {
            None => Some(u32::from(device)),
            Some(listed) => listed.and_then(|gpu| gpu.parse().ok()),
        };
        RankLane {
            rank: self.rank(),
            pid: Some(self.pid),
            device: u32::from(device),
            gpu,
            uuid,
            shares_process: self.pieces.len() > 1,
        }
    }

    /// The lanes from `from` to `to`, collectives with their sizes if calls report them.
    fn lanes(&self, from: u64, to: u64) -> Vec<LanePieces> {
        let within = |piece: &&Piece| piece.end_ns > from && piece.start_ns < to;
        let steps: Vec<(u64, u64)> =
            self.steps.iter().copied().filter(|(start, _)| (from..to).contains(start)).collect();
        let mut lanes: Vec<LanePieces> = self
            .pieces
            .iter()
            .map(|(device, pieces)| {
                let mut pieces: Vec<Piece> = pieces.iter().filter(within).copied().collect();
                pieces.sort_by_key(|piece| (piece.start_ns, piece.end_ns));
                LanePieces { lane: self.lane(*device), pieces, steps: steps.clone() }
            })
            .filter(|lane| !lane.pieces.is_empty())
            .collect();
        let single = lanes.len() == 1;
        for lane in &mut lanes {
            self.size(&mut lane.pieces, (from, to), single);
        }
        lanes
    }

    /// Assigns the reported sizes to collectives: if all calls of a kind are alike, that size; else by order, if the
    /// numbers are equal.
    fn size(&self, pieces: &mut [Piece], (from, to): (u64, u64), single: bool) {
        let mut by_kind: BTreeMap<Collective, Vec<&mut Operation>> = BTreeMap::new();
        for piece in pieces {
            if let PieceKind::Collective(operation) = &mut piece.kind {
                by_kind.entry(operation.kind).or_default().push(operation);
            }
        }
        for (kind, operations) in by_kind {
            let set = |operation: &mut Operation, (message, communicator): (Option<u64>, Option<u64>)| {
                operation.communicator = communicator;
                operation.ranks = communicator.and_then(|id| Some(self.communicators.get(&id)?.0));
                let whole = |message| match kind.whole_bytes(1, 2) {
                    1 => Some(message),
                    _ => Some(kind.whole_bytes(message, operation.ranks?)),
                };
                operation.bytes = message.and_then(whole);
            };
            if let Some(Some(only)) = self.only.get(&kind) {
                operations.into_iter().for_each(|operation| set(operation, *only));
                continue;
            }
            let calls: Vec<&Call> = self
                .calls
                .iter()
                .filter(|call| call.kind == kind && (from..to).contains(&call.start_ns))
                .collect();
            if single && calls.len() == operations.len() {
                for (operation, call) in operations.into_iter().zip(calls) {
                    set(operation, (call.message_bytes, call.communicator));
                }
            }
        }
    }

    fn forget(&mut self, until: u64) {
        self.reported_ns = self.reported_ns.max(until);
        for pieces in self.pieces.values_mut() {
            pieces.retain(|piece| piece.end_ns > until);
        }
        self.count = self.pieces.values().map(VecDeque::len).sum();
        self.steps.retain(|(start, _)| *start >= until);
        self.calls.retain(|call| call.start_ns >= until);
        self.bursts.retain(|(_, to)| to.is_none_or(|to| to > until));
    }
}

/// The times in which all processes were recorded, up to `now_ns`; without it all remaining ones. One GPU without
/// collectives has none.
pub fn windows(mut records: Vec<&mut RankRecord>, now_ns: Option<u64>) -> Vec<RanksWindow> {
    let horizon = now_ns.map_or(u64::MAX / 4, |now| now.saturating_sub(SETTLE_NS));
    let mut windows = Vec::new();
    records.sort_by_key(|record| (record.rank(), record.pid));
    // The process that began first determines the windows.
    loop {
        let last_ns = records.iter().flat_map(|record| record.pieces.values().flatten());
        let last_ns = last_ns.map(|piece| piece.end_ns).max().unwrap_or(0);
        let horizon = if now_ns.is_none() { horizon.min(last_ns.max(1)) } else { horizon };
        let working = records.iter().filter(|record| !record.is_empty());
        let Some(first) = working.min_by_key(|record| record.began_ns) else { break };
        let next = first.recorded(horizon).find(|(from, to, is_closed)| {
            *is_closed || to - from >= PART_NS || (now_ns.is_none() && to - from >= MIN_NS)
        });
        let Some((from, to, _)) = next else { break };
        let to = records.iter().filter_map(|record| record.division((from, to), horizon)).min().unwrap_or(to);
        let (mut common_from, mut common_to) = (from, to);
        let mut together: Vec<usize> = Vec::new();
        for (i, record) in records.iter().enumerate() {
            let Some((best, overlap_ns)) = record.best_overlap((from, to), horizon) else { continue };
            if 2 * overlap_ns >= to - from {
                (common_from, common_to) = (common_from.max(best.0), common_to.min(best.1));
                together.push(i);
            }
        }
        if common_to.saturating_sub(common_from) >= MIN_NS {
            let lanes: Vec<LanePieces> =
                together.iter().flat_map(|i| records[*i].lanes(common_from, common_to)).collect();
            let has_collectives = lanes
                .iter()
                .flat_map(|lane| &lane.pieces)
                .any(|piece| matches!(piece.kind, PieceKind::Collective(_)));
            // A program that has not begun yet, or has ended, is not idle.
            let pieces = || lanes.iter().flat_map(|lane| &lane.pieces);
            let begins = pieces().map(|piece| piece.start_ns).min().unwrap_or(common_from).max(common_from);
            let ends = pieces().map(|piece| piece.end_ns).max().unwrap_or(common_to).min(common_to);
            if (lanes.len() > 1 || has_collectives) && ends > begins {
                windows.push(window(&lanes, begins, ends, SLACK_NS));
            }
        }
        records.iter_mut().for_each(|record| record.forget(to));
    }
    // Drops records that no common time can contain any more.
    if let Some(now) = now_ns {
        let old = now.saturating_sub(10 * SETTLE_NS);
        records.iter_mut().for_each(|record| record.forget(old.min(horizon)));
    }
    windows
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use llmprof_analysis::steps::Fold;
    use llmprof_event::kernels::work::{Direction, KernelLaunch};

    const MS: u64 = 1_000_000;

    fn record(pid: u32, rank: u32) -> RankRecord {
        RankRecord { pid, rank: Some(rank), ..RankRecord::default() }
    }

    fn kernel(name: u32, start_ns: u64, end_ns: u64) -> DeviceActivity {
        let launch = KernelLaunch { grid: [1; 3], block: [32, 1, 1], registers: 32, shared_bytes: 0 };
        let kind = WorkKind::Kernel { name: NameId(name), launch };
        DeviceActivity { start_ns, end_ns, stream: 7, device: 0, correlation: 1, graph: None, kind }
    }

    fn class(name: NameId) -> Class {
        if name.0 == 2 { Class::Collective(Collective::AllReduce) } else { Class::Product }
    }

    /// Steps of 1 ms from `from` to `to`: 0.6 ms of work, and a collective that ends for all at 0.8 ms.
    fn run(record: &mut RankRecord, from: u64, to: u64, late_ns: u64) {
        record.begin(from);
        for at in (from..to).step_by(MS as usize) {
            let arrives = at + 600_000 + late_ns;
            record.work(&kernel(1, at, arrives), class);
            record.work(&kernel(2, arrives, at + 800_000), class);
        }
        record.end(to);
    }

    #[test]
    fn windows_are_the_times_in_which_all_were_recorded() {
        let (mut a, mut b) = (record(1, 0), record(2, 1));
        // The second process begins and ends its burst later; then only the first is recorded; then both.
        run(&mut a, 1000 * MS, 1200 * MS, 0);
        run(&mut b, 1020 * MS, 1210 * MS, 50_000);
        run(&mut a, 3000 * MS, 3200 * MS, 0);
        run(&mut a, 5000 * MS, 5200 * MS, 0);
        run(&mut b, 5000 * MS, 5200 * MS, 50_000);
        assert!(windows(vec![&mut a, &mut b], Some(1100 * MS)).is_empty(), "not settled yet");
        let found = windows(vec![&mut a, &mut b], Some(9000 * MS));
        let spans: Vec<(u64, u64, usize)> = found
            .iter()
            .map(|window| (window.from.0 / MS, window.span_ns / MS, window.lanes.len()))
            .collect();
        assert_eq!(spans, [(1020, 179, 2), (3000, 199, 1), (5000, 199, 2)]);
        assert_eq!(found[0].lanes[0].wait_ns, 180 * 50_000);
        assert_eq!((found[1].lanes[0].wait_ns, found[1].lanes[0].matched), (0, 0));
        assert_eq!(found[2].lanes[1].last, 200);
        assert!(a.is_empty() && b.is_empty());
        assert!(windows(vec![&mut a, &mut b], None).is_empty(), "nothing is reported twice");
    }

    #[test]
    fn recording_without_an_end_is_reported_in_parts_and_at_its_end() {
        let (mut a, mut b) = (record(1, 0), record(2, 1));
        for record in [&mut a, &mut b] {
            run(record, 1000 * MS, 3000 * MS, 0);
            // As if the burst continued.
            record.bursts.back_mut().unwrap().1 = None;
        }
        assert!(windows(vec![&mut a, &mut b], Some(2000 * MS)).is_empty(), "0.3 s are too short");
        assert_eq!(windows(vec![&mut a, &mut b], Some(2700 * MS)).len(), 1);
        let rest = windows(vec![&mut a, &mut b], None);
        assert_eq!(rest.len(), 1);
        assert_eq!(rest[0].lanes[0].matched, 1000);
    }

    /// The second process dies after 0.7 of 1.7 s, or after 1.0 s; the third joins after 1.2 s: all are reported, and
    /// no time is lost.
    #[test]
    fn a_process_that_leaves_early_or_joins_late_has_a_separate_window() {
        let (mut a, mut b, mut c) = (record(1, 0), record(2, 1), record(3, 2));
        run(&mut a, 1000 * MS, 2700 * MS, 0);
        run(&mut b, 1001 * MS, 2000 * MS, 0);
        b.has_left();
        run(&mut c, 1000 * MS, 2700 * MS, 0);
        let found = windows(vec![&mut a, &mut b, &mut c], Some(9000 * MS));
        let spans: Vec<(u64, usize)> =
            found.iter().map(|window| (window.from.0 / MS, window.lanes.len())).collect();
        assert_eq!(spans, [(1001, 3), (2000, 2)]);

        let (mut a, mut b, mut c) = (record(1, 0), record(2, 1), record(3, 2));
        run(&mut a, 1000 * MS, 2700 * MS, 0);
        run(&mut b, 1000 * MS, 1700 * MS, 0);
        b.has_left();
        run(&mut c, 2200 * MS, 2700 * MS, 0);
        let found = windows(vec![&mut a, &mut b, &mut c], None);
        let spans: Vec<(u64, usize)> =
            found.iter().map(|window| (window.from.0 / MS, window.lanes.len())).collect();
        assert_eq!(spans, [(1000, 2), (1700, 1), (2200, 2)]);
    }

    /// The second process is recorded from the start, but loads its model for most of the time.
    #[test]
    fn a_process_begins_with_its_first_work() {
        let (mut a, mut b) = (record(1, 0), record(2, 1));
        run(&mut a, 1000 * MS, 2600 * MS, 0);
        b.begin(1000 * MS);
        (1600..2600).for_each(|ms| b.work(&kernel(2, ms * MS + 600_000, ms * MS + 800_000), class));
        b.end(2600 * MS);
        let found = windows(vec![&mut a, &mut b], Some(9000 * MS));
        let spans: Vec<(u64, u64, usize)> = found
            .iter()
            .map(|window| (window.from.0 / MS, window.span_ns / MS, window.lanes.len()))
            .collect();
        assert_eq!(spans, [(1000, 600, 1), (1600, 999, 2)]);
        assert_eq!(found[1].lanes.iter().map(|lane| lane.matched).collect::<Vec<_>>(), [1000, 1000]);

        // The same if the first process is late: the earlier activity of the others is reported too.
        let (mut a, mut b, mut c) = (record(1, 0), record(2, 1), record(3, 2));
        for record in [&mut b, &mut c] {
            run(record, 1000 * MS, 2600 * MS, 0);
        }
        a.begin(1000 * MS);
        (1600..2600).for_each(|ms| a.work(&kernel(2, ms * MS + 600_000, ms * MS + 800_000), class));
        a.end(2600 * MS);
        let found = windows(vec![&mut a, &mut b, &mut c], Some(9000 * MS));
        let spans: Vec<(u64, usize)> =
            found.iter().map(|window| (window.span_ns / MS, window.lanes.len())).collect();
        assert_eq!(spans, [(600, 2), (999, 3)]);
    }

    #[test]
    fn one_gpu_without_collectives_has_no_windows() {
        let mut alone = record(1, 0);
        alone.begin(MS);
        (1..500).for_each(|n| alone.work(&kernel(1, n * MS, n * MS + 500_000), class));
        alone.end(500 * MS);
        assert!(windows(vec![&mut alone], None).is_empty());
    }

    #[test]
    fn memory_is_bounded_whatever_a_program_writes() {
        let mut wild = record(1, 0);
        wild.begin(1);
        for n in 0..MAX_PIECES as u64 + 5000 {
            let mut work = kernel(2, 1 + n * 10, 5 + n * 10);
            work.device = (n % 1000) as u16;
            wild.work(&work, class);
            let payload =
                Payload { communicator: Some(n), message_bytes: Some(n), ranks: Some(2), rank: Some(0) };
            wild.call("ncclAllReduce", (n, n + 1), &payload);
            wild.device(n as u32, String::new());
        }
        assert!(
            wild.count <= MAX_PIECES && wild.pieces.len() <= MAX_DEVICES && wild.calls.len() <= MAX_CALLS
        );
        assert!(wild.communicators.len() <= MAX_COMMUNICATORS && wild.uuids.len() <= MAX_DEVICES);
        let _ = windows(vec![&mut wild], None);
    }

    #[test]
    fn gpus_are_known_by_their_variables() {
        let listed = |visible: Option<&str>| RankRecord {
            visible: visible.map(|list| list.split(',').map(str::to_owned).collect()),
            ..record(1, 3)
        };
        assert_eq!(listed(None).lane(2).gpu, Some(2));
        assert_eq!(listed(Some("5,7")).lane(1).gpu, Some(7));
        let by_uuid = listed(Some("GPU-12345678-0000-0000-0000-000000000000")).lane(0);
        assert_eq!((by_uuid.gpu, by_uuid.uuid.is_some()), (None, true));
        assert_eq!(listed(Some("5")).lane(4).gpu, None);
    }

    /// Records per second of eight ranks through the folds of steps and of ranks:
    /// `cargo test --lib records_of_eight_ranks -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn records_of_eight_ranks_per_second() {
        const RANKS: usize = 8;
        let names = [
            "void rms_norm_kernel<__nv_bfloat16>(T1 *)",
            "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
            "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)128>>(Flash_fwd_params)",
            "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        ];
        let mut folds: Vec<Fold> = (0..RANKS).map(|_| Fold::default()).collect();
        let mut records: Vec<RankRecord> = (0..RANKS as u32).map(|rank| record(100 + rank, rank)).collect();
        let (mut count, mut found, mut at) = (0u64, 0, 1_000 * MS);
        let since = Instant::now();
        for (fold, record) in folds.iter_mut().zip(&mut records) {
            fold.begin_burst(at);
            record.begin(at);
        }
        for second in 1..=10u64 {
            // 32 layers, 5 kernels each, at 5 µs.
            while at < (1 + second) * 1_000 * MS {
                for (rank, (fold, record)) in folds.iter_mut().zip(&mut records).enumerate() {
                    let mut start = at;
                    for _ in 0..32 {
                        for (i, name) in names.iter().enumerate() {
                            let mut work =
                                kernel(0, start, start + 4_000 + if i == 3 { 10 * rank as u64 } else { 0 });
                            if let WorkKind::Kernel { name: number, .. } = &mut work.kind {
                                *number = fold.name(name);
                            }
                            record.work(&work, |name| fold.class(name));
                            fold.add(work);
                            count += 1;
                            start += 5_000;
                        }
                    }
                    let kind = WorkKind::Copy { direction: Direction::DeviceToHost, bytes: 8 };
                    fold.add(DeviceActivity { kind, ..kernel(0, start, start + 1_000) });
                }
                at += 900_000;
            }
            folds.iter_mut().zip(&mut records).for_each(|(fold, record)| {
                fold.end_batch(at);
                let steps = fold.steps();
                record.steps(&steps);
                let _ = fold.windows();
            });
            found += windows(records.iter_mut().collect(), Some(at)).len();
        }
        let seconds = since.elapsed().as_secs_f64();
        println!(
            "{count} records of {RANKS} ranks in {seconds:.2} s: {:.0} a second, {found} windows",
            count as f64 / seconds
        );
        assert!(found >= 5);
    }
}
