//! The pane of several GPUs.

use llmprof::event::{
    Envelope, Event, GpuInfo, GpuSample, Level, Notice, ProcessJoined, ProcessLeft, RunStarted, Stamp,
    WorkKind,
    ranks::{Collective, CollectiveWindow, LaneSums, RankLane, RanksWindow},
    readings::Reading,
    reasons::SW_POWER_CAP,
};
use llmprof::{report::run_json, state::RunState, tui::ui::Pane};

use super::{at_all_sizes, run_started, showing};

const MS: u64 = 1_000_000;

/// Four ranks; the last runs at 1410 MHz under its power cap and is 9 ms of each 100 behind.
pub fn four_ranks() -> RunState {
    let mut state = RunState::default();
    let mut apply = |ms: u64, event: Event| state.apply(&Envelope { t: Stamp(ms * MS), event });
    apply(0, Event::RunStarted(Box::new(RunStarted { kind: WorkKind::Program, ..run_started() })));
    for rank in 0..4u32 {
        let process = ProcessJoined {
            pid: 100 + rank,
            parent: Some(99),
            command: "python tensor_parallel.py".into(),
            rank: Some(rank.to_string()),
            world: Some(4),
        };
        apply(1, Event::ProcessJoined(Box::new(process)));
        let uuid = format!("GPU-{rank}");
        let info = GpuInfo { index: rank, uuid, name: "NVIDIA H200".into(), ..GpuInfo::default() };
        apply(1, Event::GpuFound(Box::new(info)));
    }
    let log = "node:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0";
    apply(2, Event::Notice(Notice { level: Level::Info, source: "stdout".into(), text: log.into() }));
    for second in 1..5u64 {
        for rank in 0..4u32 {
            let is_late = rank == 3;
            let sample = GpuSample::new(rank)
                .with(Reading::SmClock, if is_late { 1410.0 } else { 1755.0 })
                .with_reasons(if is_late { SW_POWER_CAP } else { 0 });
            apply(1000 * second, Event::GpuSample(Box::new(sample)));
        }
        let lanes = (0..4u32).map(|rank| {
            let is_late = rank == 3;
            let wait_ns = if is_late { 0 } else { 9 * MS };
            let (layer, rest) = if is_late { ("cccccccccnn.", 3) } else { ("cccccccwwnn.", 3) };
            LaneSums {
                lane: RankLane {
                    rank: Some(rank),
                    pid: Some(100 + rank),
                    device: 0,
                    gpu: Some(rank),
                    uuid: Some(format!("GPU-{rank}")),
                    shares_process: false,
                },
                compute_ns: 79 * MS - wait_ns,
                nccl_ns: 12 * MS + wait_ns,
                wait_ns,
                idle_ns: 9 * MS,
                kernels: 5000,
                collectives: 640,
                last: if is_late { 600 } else { 13 },
                matched: 640,
                caused_ns: if is_late { 27 * MS } else { 100 },
                steps: 40,
                step_ns: 100 * MS,
                picture: layer.repeat(40 - rest) + &".".repeat(rest * 12),
                ..LaneSums::default()
            }
        });
        let row = |bytes, calls, ns: u64| CollectiveWindow {
            kind: Collective::AllReduce,
            bytes,
            ranks: 4,
            calls,
            matched: calls,
            times_ns: vec![ns],
            wait_ns: 27 * MS,
        };
        let window = RanksWindow {
            from: Stamp((1000 * second - 100) * MS),
            span_ns: 100 * MS,
            lanes: lanes.collect(),
            collectives: vec![row(Some(1 << 20), 600, 20_000), row(None, 40, 9_000)],
            picture_ns: 2_500_000,
            clock_error_ns: None,
        };
        apply(1000 * second, Event::Ranks(Box::new(window)));
    }
    state
}

#[test]
fn ranks_have_their_pane() {
    insta::assert_snapshot!("ranks", at_all_sizes(&four_ranks(), &showing(Pane::Ranks)));
}

/// Two ranks that mostly wait for their hosts: short kernels stay visible.
#[test]
fn a_step_that_is_mostly_idle_shows_what_ran() {
    let mut state = four_ranks();
    let lane = |rank: u32, picture: &str| LaneSums {
        lane: RankLane { rank: Some(rank), pid: Some(100 + rank), gpu: Some(rank), ..RankLane::default() },
        compute_ns: 5 * MS,
        nccl_ns: 2 * MS,
        idle_ns: 93 * MS,
        kernels: 50,
        steps: 2,
        step_ns: 240 * MS,
        step_times_ns: vec![65 * MS, 65 * MS, 110 * MS],
        picture: picture.repeat(40),
        ..LaneSums::default()
    };
    let window = RanksWindow {
        from: Stamp(5_000 * MS),
        span_ns: 100 * MS,
        lanes: vec![lane(0, "CC.N..cC.N.."), lane(1, ".CCN..MCcn.W")],
        picture_ns: 65 * MS,
        ..RanksWindow::default()
    };
    state.ranks = Default::default();
    state.apply(&Envelope { t: Stamp(5_100 * MS), event: Event::Ranks(Box::new(window)) });
    insta::assert_snapshot!("ranks_idle", at_all_sizes(&state, &showing(Pane::Ranks)));
}

/// Compared with calculation by hand: 9 ms of 100, 600 of 640, 1 MiB in 20 µs.
#[test]
fn the_late_rank_is_named_with_the_clock_of_its_gpu() {
    let mut state = four_ranks();
    assert_eq!(
        state.late_rank().to_string(),
        "Rank 3 (GPU 3) is 9.0 % behind, last in 94 % of collectives: power-capped at 1410 MHz, the others run at 1755 MHz."
    );
    let run = run_json(&state, None);
    let row = &run["ranks"]["collectives"][0];
    assert!((row["algbw_bytes_s"].as_f64().unwrap() - 1_048_576.0 / 20e-6).abs() < 1.0, "{row}");
    assert!((row["busbw_bytes_s"].as_f64().unwrap() - 1.5 * 1_048_576.0 / 20e-6).abs() < 1.0, "{row}");
    assert_eq!(run["ranks"]["nccl"]["version"], "2.28.9+cuda13.0");
    assert_eq!(run["ranks"]["lanes"][3]["limits"][0], "power-capped");
    // A rank that ends before the others is reported.
    assert!(state.ended_ranks().is_empty());
    state.apply(&Envelope { t: Stamp(4_500 * MS), event: Event::ProcessLeft(ProcessLeft { pid: 102 }) });
    assert_eq!(state.ended_ranks(), [(2, Stamp(4_500 * MS))]);
}
