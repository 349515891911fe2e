//! Ranks with known skew, clocks with known offset, and logs of several versions.

use proptest::prelude::*;

use super::*;
use llmprof_event::ranks::{Collective, RankLane, RanksWindow};

const MS: u64 = 1_000_000;

fn lane(rank: u32) -> RankLane {
    RankLane { rank: Some(rank), pid: Some(100 + rank), device: 0, gpu: Some(rank), ..RankLane::default() }
}

fn reduce(bytes: u64) -> PieceKind {
    PieceKind::Collective(Operation { bytes: Some(bytes), ..Operation::new(Collective::AllReduce) })
}

/// Steps of two parts, each a computation and a reduction. `compute_us` is the computing time of each rank; the host of
/// a rank may be late.
fn program(compute_us: &[u64], late_us: &[u64], steps: u64, transfer_us: u64) -> Vec<LanePieces> {
    let mut lanes: Vec<LanePieces> = (0..compute_us.len())
        .map(|rank| LanePieces { lane: lane(rank as u32), ..LanePieces::default() })
        .collect();
    let mut at = 10 * MS;
    for _ in 0..steps {
        lanes.iter_mut().for_each(|lane| lane.steps.push((at, at)));
        for _ in 0..2 {
            let arrive: Vec<u64> =
                compute_us.iter().zip(late_us).map(|(us, late)| at + (us + late) * 1000).collect();
            let last = *arrive.iter().max().unwrap();
            let end = last + transfer_us * 1000;
            for (rank, lane) in lanes.iter_mut().enumerate() {
                let start = at + late_us[rank] * 1000;
                lane.pieces.push(Piece { start_ns: start, end_ns: arrive[rank], kind: PieceKind::Compute });
                // Ranks end some nanoseconds apart.
                let end = end + 100 * rank as u64;
                lane.pieces.push(Piece { start_ns: arrive[rank], end_ns: end, kind: reduce(1 << 20) });
            }
            at = end + 1000;
        }
    }
    lanes
}

fn whole(lanes: &[LanePieces]) -> RanksWindow {
    let end = lanes.iter().flat_map(|lane| &lane.pieces).map(|piece| piece.end_ns).max().unwrap();
    window(lanes, 10 * MS, end, 0)
}

fn totals(lanes: &[LanePieces]) -> Totals {
    let mut totals = Totals::default();
    totals.add(&whole(lanes));
    totals
}

#[test]
fn waits_are_those_for_the_last() {
    // Rank 2 computes 130 µs, the others 100: they wait 30 µs in each of 2 × 50 collectives.
    let window = whole(&program(&[100, 100, 130, 100], &[0; 4], 50, 20));
    let waits: Vec<u64> = window.lanes.iter().map(|lane| lane.wait_ns).collect();
    assert_eq!(waits, [3_000_000, 3_000_000, 0, 3_000_000]);
    assert_eq!(window.lanes[2].last, 100);
    assert_eq!(window.lanes[2].caused_ns, 9_000_000);
    for lane in &window.lanes {
        let sum = lane.compute_ns + lane.nccl_ns + lane.copy_ns + lane.idle_ns;
        assert_eq!(sum, window.span_ns);
        assert_eq!((lane.collectives, lane.matched, lane.kernels), (100, 100, 100));
    }
    let [row] = window.collectives.as_slice() else { panic!("{:?}", window.collectives) };
    assert_eq!((row.calls, row.matched, row.ranks, row.bytes), (100, 100, 4, Some(1 << 20)));
    // 20 µs and the delay of the last rank's end.
    assert!(row.times_ns.iter().all(|ns| *ns == 20_300), "{:?}", row.times_ns);
    assert_eq!(row.wait_ns, 9_000_000);
    assert!(window.lanes[0].picture.contains('w') && !window.lanes[2].picture.contains('w'));
}

/// A kernel of 2 µs and a collective of 30 µs in a step of 100 ms, which is 208 µs per cell.
#[test]
fn short_kernels_stay_visible_in_a_plot() {
    let mut lanes = program(&[2], &[0], 2, 30);
    lanes[0].pieces.truncate(2);
    lanes[0].steps = vec![(10 * MS, 10 * MS), (110 * MS, 110 * MS)];
    let seen = window(&lanes, 10 * MS, 111 * MS, 0);
    assert_eq!(seen.lanes[0].picture, format!("N{}", ".".repeat(479)));
    let all = window(&lanes, 10 * MS, 10 * MS + 32_000, 0);
    assert!(all.lanes[0].picture.bytes().all(|cell| cell == b'n'), "{}", all.lanes[0].picture);
}

/// The first step is long, as are those during which the program waits: the median excludes them.
#[test]
fn the_step_of_a_lane_is_a_median() {
    let mut lanes = program(&[100, 100], &[0; 2], 50, 20);
    let mut at = 20 * MS;
    let starts = (0..50u64).map(|n| {
        at += if n % 10 == 1 { 90 * MS } else { 3 * MS };
        (at, at)
    });
    lanes[0].steps = starts.collect();
    let mut totals = Totals::default();
    totals.add(&window(&lanes, 10 * MS, 1000 * MS, 0));
    let sums = &totals.lanes[0].sums;
    assert_eq!((sums.steps, sums.step_ns / MS), (49, 44 * 3 + 5 * 90));
    assert_eq!(totals.lanes[0].step_ms(), Some(3.0));
}

#[test]
fn bandwidths_are_those_of_nccl_tests() {
    let totals = totals(&program(&[100, 100, 100, 100], &[0; 4], 50, 20));
    let bandwidth = totals.collectives[0].bandwidth().unwrap();
    // 1 MiB in 20.3 µs; 2 (4 - 1) / 4 of that on the bus.
    assert!((bandwidth.algorithm - 1_048_576.0 / 20.3e-6).abs() < 1.0);
    assert!((bandwidth.bus / bandwidth.algorithm - 1.5).abs() < 1e-12);
    for (kind, ranks, factor) in [
        (Collective::AllReduce, 2, 1.0),
        (Collective::AllReduce, 8, 1.75),
        (Collective::AllGather, 8, 0.875),
        (Collective::ReduceScatter, 4, 0.75),
        (Collective::AllToAll, 4, 0.75),
        (Collective::Broadcast, 4, 1.0),
        (Collective::SendRecv, 2, 1.0),
        (Collective::AllReduce, 1, 0.0),
    ] {
        assert_eq!(kind.bus_factor(ranks), Some(factor), "{kind} {ranks}");
    }
    assert_eq!(Collective::Unknown.bus_factor(4), None);
    assert_eq!(Collective::AllGather.whole_bytes(100, 8), 800);
    assert_eq!(Collective::AllReduce.whole_bytes(100, 8), 100);
}

fn clock(sm_mhz: f64, limits: &[&str]) -> Clock {
    Clock { sm_mhz: Some(sm_mhz), limits: limits.iter().map(|limit| (*limit).to_owned()).collect() }
}

#[test]
fn the_straggler_is_named_with_its_reason() {
    let slow = totals(&program(&[100, 100, 100, 130], &[0; 4], 50, 20));
    let capped = |lane: &RankLane| match lane.rank {
        Some(3) => clock(1410.0, &["power-capped"]),
        _ => clock(1755.0, &[]),
    };
    let late = straggler(&slow, capped);
    let text = late.to_string();
    // 30 of 151.3 µs.
    assert!(
        text.starts_with(
            "Rank 3 (GPU 3) is 20 % behind, last in 100 % of collectives: power-capped at 1410 MHz"
        ),
        "{text}"
    );
    let same = straggler(&slow, |_| clock(1755.0, &[])).to_string();
    assert!(same.contains("slower at the same clock (1755 MHz)"), "{same}");
    let unknown = straggler(&slow, |_| Clock::default()).to_string();
    assert!(unknown.contains("clocks are not known"), "{unknown}");

    let host = totals(&program(&[100; 4], &[0, 25, 0, 0], 50, 20));
    let text = straggler(&host, |_| clock(1755.0, &[])).to_string();
    assert!(text.starts_with("Rank 1") && text.contains("slow host"), "{text}");

    let mut more = program(&[100, 130], &[0; 2], 50, 20);
    for piece in more[1].pieces.clone().iter().filter(|piece| piece.kind == PieceKind::Compute) {
        // The same time in two kernels.
        let middle = (piece.start_ns + piece.end_ns) / 2;
        let at = more[1].pieces.iter().position(|known| known == piece).unwrap();
        more[1].pieces[at].end_ns = middle;
        more[1].pieces.insert(at + 1, Piece { start_ns: middle, ..*piece });
    }
    let text = straggler(&totals(&more), |_| clock(1755.0, &[])).to_string();
    assert!(text.contains("more work: 200 kernels, the others 100"), "{text}");

    let equal = straggler(&totals(&program(&[100; 4], &[0; 4], 50, 20)), |_| Clock::default());
    assert!(matches!(equal, Late::Balanced { .. }), "{equal}");
    assert_eq!(straggler(&Totals::default(), |_| Clock::default()), Late::NotKnown);
}

#[test]
fn odd_programs_have_no_false_waits() {
    // One rank alone: the others are on another machine.
    let alone = whole(&program(&[100], &[0], 20, 20));
    assert_eq!((alone.lanes[0].wait_ns, alone.lanes[0].matched, alone.lanes[0].collectives), (0, 0, 40));
    assert_eq!((alone.collectives[0].calls, alone.collectives[0].matched), (40, 0));
    let mut totals = Totals::default();
    totals.add(&alone);
    assert_eq!(totals.collectives[0].bandwidth(), None);
    assert_eq!(straggler(&totals, |_| Clock::default()), Late::NotKnown);

    // A rank that dies in the middle: the other ranks are matched without it, or not at all.
    let mut dies = program(&[100, 100, 120], &[0; 3], 50, 20);
    dies[1].pieces.truncate(100);
    let window = whole(&dies);
    assert!(window.lanes[1].matched <= 50 && window.lanes[0].matched >= 50, "{window:?}");
    assert!(window.lanes[2].wait_ns == 0);

    // A lost record: one collective is left out, the others are unchanged.
    let mut lost = program(&[100, 130], &[0; 2], 50, 20);
    lost[0].pieces.remove(51);
    let window = whole(&lost);
    assert_eq!((window.lanes[0].matched, window.lanes[0].wait_ns), (99, 99 * 30_000));

    // Nothing at all, and no time.
    let empty = super::window(&[], 5, 5, 0);
    assert_eq!((empty.span_ns, empty.lanes.len()), (0, 0));
    let none = super::window(&[LanePieces::default()], 9, 3, 0);
    assert_eq!(none.span_ns, 0);
}

#[test]
fn groups_of_ranks_are_distinguished_by_their_communicators() {
    // Two pairs of ranks that reduce among themselves at about the same time.
    let mut lanes = program(&[100, 110], &[0; 2], 50, 20);
    let mut second = program(&[105, 150], &[0; 2], 40, 20);
    for (i, group) in [&mut lanes, &mut second].into_iter().enumerate() {
        for piece in group.iter_mut().flat_map(|lane| &mut lane.pieces) {
            if let PieceKind::Collective(operation) = &mut piece.kind {
                operation.communicator = Some(7 + i as u64);
            }
        }
    }
    second.iter_mut().zip(2..).for_each(|(work, rank)| work.lane = lane(rank));
    lanes.extend(second);
    let window = whole(&lanes);
    let waits: Vec<u64> = window.lanes.iter().map(|lane| lane.wait_ns).collect();
    assert_eq!(waits, [100 * 10_000, 0, 80 * 45_000, 0]);
    assert!(window.collectives.iter().all(|row| row.ranks == 2 && row.matched == row.calls));
}

#[test]
fn computation_hides_collectives() {
    let compute = Piece { start_ns: 100, end_ns: 200, kind: PieceKind::Compute };
    let nccl = Piece { start_ns: 150, end_ns: 260, kind: reduce(8) };
    let copy = Piece { start_ns: 190, end_ns: 280, kind: PieceKind::Copy };
    let work = LanePieces { lane: lane(0), pieces: vec![compute, nccl, copy], steps: Vec::new() };
    let window = super::window(&[work], 100, 300, 0);
    let sums = &window.lanes[0];
    assert_eq!((sums.compute_ns, sums.nccl_ns, sums.copy_ns, sums.idle_ns), (100, 60, 20, 20));
}

fn moved(mut work: LanePieces, by: i64) -> LanePieces {
    for piece in &mut work.pieces {
        piece.start_ns = piece.start_ns.saturating_add_signed(by);
        piece.end_ns = piece.end_ns.saturating_add_signed(by);
    }
    work
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The offset of a trace's clock is found within the stated error.
    #[test]
    fn a_clock_is_recovered(
        compute in proptest::collection::vec(50u64..200, 2..5),
        late in proptest::collection::vec(0u64..100, 5),
        offset in -9_000_000i64..9_000_000,
        steps in 5u64..40,
        transfer in 5u64..300,
        cut in 0usize..6,
    ) {
        let lanes = program(&compute, &late[..compute.len()], steps, transfer);
        let mut other = moved(lanes[1].clone(), offset);
        // Its trace began later.
        other.pieces.drain(..cut.min(other.pieces.len() / 4));
        let found = align(&lanes[0], &other);
        if cut == 0 {
            let error = found.error_ns.unwrap();
            let away = (found.offset_ns + offset).unsigned_abs();
            prop_assert!(away <= error, "{found:?} {offset}");
            // A collective is at most as long as this.
            prop_assert!(error <= (transfer + 400) * 1000, "{found:?}");
        } else {
            prop_assert!(found.is_shifted || cut == 1, "{found:?}");
        }
    }

    /// Sums add up to the span whatever the pieces are, and nothing panics.
    #[test]
    fn any_work_is_counted(
        pieces in proptest::collection::vec((0usize..3, 0u64..2000, 0u64..400, 0u8..4, proptest::option::of(0u64..3)), 0..200),
        from in 0u64..500, span in 0u64..2000, slack in 0u64..50,
    ) {
        let mut lanes: Vec<LanePieces> = (0..3).map(|rank| LanePieces { lane: lane(rank), ..LanePieces::default() }).collect();
        for (at, start_ns, ns, kind, communicator) in pieces {
            let kind = match kind {
                0 => PieceKind::Compute,
                1 => PieceKind::Copy,
                2 => PieceKind::Collective(Operation { communicator, ..Operation::new(Collective::AllReduce) }),
                _ => PieceKind::Collective(Operation::new(Collective::SendRecv)),
            };
            lanes[at].pieces.push(Piece { start_ns, end_ns: start_ns + ns, kind });
        }
        lanes.iter_mut().for_each(|lane| lane.pieces.sort_by_key(|piece| piece.start_ns));
        let window = super::window(&lanes, from, from + span, slack);
        for lane in &window.lanes {
            prop_assert_eq!(lane.compute_ns + lane.nccl_ns + lane.copy_ns + lane.idle_ns, span);
            prop_assert!(lane.wait_ns <= lane.nccl_ns);
        }
        let mut totals = Totals::default();
        totals.add(&window);
        let _ = straggler(&totals, |_| Clock::default()).to_string();
        for other in &lanes[1..] {
            let _ = align(&lanes[0], other).to_string();
        }
    }

    #[test]
    fn any_log_is_read(lines in proptest::collection::vec("(.{0,40}NCCL (INFO|WARN) )?(Channel [0-9/: ]{0,12}|Trees .{0,20}|AllReduce: [0-9]{1,25} Bytes -> Algo .{0,10} proto .{0,9}|[0-9]{1,12} coll channels.{0,30}|.{0,60})", 0..40)) {
        let mut log = NcclLog::default();
        for line in &lines {
            prop_assert_eq!(log.line(line), is_nccl_line(line));
        }
        let are_plain = log.words().iter().all(|words| words.len() < 2000 && !words.chars().any(char::is_control));
        prop_assert!(are_plain);
        prop_assert!(serde_json::to_string(&log).is_ok());
    }
}

#[test]
fn logs_of_several_versions_are_read() {
    let new = "\
node1:4100:4100 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.5<0>
node1:4100:4100 [0] NCCL INFO cudaDriverVersion 13000
node1:4100:4100 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
node1:4100:4170 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [RO]; OOB eth0:10.0.0.5<0>
node1:4100:4170 [0] NCCL INFO Using network IB
node1:4100:4170 [0] NCCL INFO ncclCommInitRankConfig comm 0x55d2 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 19000 commId 0xf1 - Init START
node1:4100:4170 [0] NCCL INFO NVLS multicast support is available on dev 0
node1:4100:4170 [0] NCCL INFO comm 0x55d2 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
node1:4100:4170 [0] NCCL INFO Channel 00/24 : 0 1 2 3
node1:4100:4170 [0] NCCL INFO Channel 01/24 : 0 3 2 1
node1:4100:4170 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
node1:4100:4170 [0] NCCL INFO P2P Chunksize set to 524288
node1:4100:4170 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node1:4100:4170 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
node1:4100:4170 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
node1:4101:4171 [1] NCCL INFO ncclCommInitRankConfig comm 0x56 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 3b000 commId 0xf1 - Init COMPLETE
node1:4100:4170 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to 24.
node1:4100:4100 [0] NCCL INFO AllReduce: 32768 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
node1:4100:4100 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
node1:4100:4200 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node2<4242>
";
    let mut log = NcclLog::default();
    let read = new.lines().filter(|line| log.line(line)).count();
    assert_eq!(read, new.lines().count());
    assert_eq!((log.version.as_deref(), log.ranks, log.nodes), (Some("2.27.3+cuda12.9"), Some(4), Some(2)));
    assert_eq!(log.rings[&0], [0, 1, 2, 3]);
    assert_eq!((log.rings.len(), log.trees.len(), log.devices.len()), (2, 2, 2));
    assert_eq!(log.transports[&Transport::PeerToPeer], 1);
    assert_eq!(log.transports[&Transport::GpuDirect], 1);
    let words = log.words().join("\n");
    for said in [
        "NCCL 2.27.3+cuda12.9, 4 ranks on 2 nodes, network IB.",
        "24 channels for collectives, 16 for NVLS, 32 for peers; 2 rings in 2 orders",
        "all-reduce of 32.8 kB to 65.5 kB: algorithm RING, protocol LL (2 lines).",
        "NCCL_MAX_NCHANNELS is set to 24.",
        "NCCL warning: socketProgress",
    ] {
        assert!(words.contains(said), "{said}\n{words}");
    }

    let old = "\
NCCL version 2.10.3+cuda11.3
host:1:2 [0] NCCL INFO Channel 00/02 :    0   1
host:1:2 [0] NCCL INFO Channel 00 : 0[1000] -> 1[2000] via direct shared memory
host:1:2 [0] NCCL INFO Channel 01 : 1[2000] -> 0[1000] [send] via NET/Socket/0
host:1:2 [0] NCCL INFO 2 coll channels, 2 p2p channels, 2 p2p channels per peer
host:1:2 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
host:1:2 [1] NCCL INFO comm 0x7f rank 1 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
host:1:2 [0] NCCL INFO AllReduce: 4 Bytes -> Algo 0 proto 2 time 14.2
an other line
";
    let mut log = NcclLog::default();
    old.lines().for_each(|line| {
        log.line(line);
    });
    assert_eq!(log.lines, 8);
    let words = log.words().join("\n");
    assert!(words.contains("2 ranks share 1 GPU."), "{words}");
    assert!(words.contains("algorithm TREE, protocol SIMPLE"), "{words}");
    assert_eq!(log.transports[&Transport::Socket], 1);
}
