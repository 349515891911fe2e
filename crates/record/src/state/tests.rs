mod account;

use super::*;
use crate::report;
use llmprof_analysis::server::ServerRemark;
use llmprof_event::{
    kernels::{KernelRow, Overlaps},
    *,
};

fn envelope(ms: u64, event: Event) -> Envelope {
    Envelope { t: Stamp(ms * 1_000_000), event }
}

fn request(ms: u64, request: u32, warmup: bool) -> Envelope {
    let started = RequestStarted {
        request,
        warmup,
        batch: 2,
        prompt_tokens: 10,
        output_tokens: 3,
        cooldown: false,
        joined: false,
        images: 0,
    };
    envelope(ms, Event::RequestStarted(started))
}

fn token(ms: u64, request: u32, index: u32) -> Envelope {
    envelope(ms, Event::Token(Token { request, index, id: 7, device_ns: None, speculation: None }))
}

fn finished(ms: u64, request: u32) -> Envelope {
    envelope(ms, Event::RequestFinished(RequestFinished { request, complete: true, served: None }))
}

fn fold(events: &[Envelope]) -> RunState {
    let mut state = RunState::default();
    events.iter().for_each(|e| state.apply(e));
    state
}

#[test]
fn latencies_match_their_definitions() {
    let state = fold(&[
        request(100, 0, false),
        token(150, 0, 0),
        token(160, 0, 1),
        token(180, 0, 2),
        finished(181, 0),
    ]);
    let s = state.total.summary();
    assert_eq!(s.ttft_ms.mean, Some(50.0));
    assert_eq!(s.tpot_ms.mean, Some(15.0));
    assert_eq!((s.itl_ms.n, s.itl_ms.mean), (2, Some(15.0)));
    // Two sequences of ten prompt tokens in 50 ms; two more tokens of both in 30 ms.
    assert_eq!(s.prefill_tok_s, Some(400.0));
    assert!((s.decode_tok_s.unwrap() - 4.0 / 0.030).abs() < 1e-9);
    assert_eq!((s.requests, s.output_tokens), (1, 6));
    assert_eq!(s.e2e_ms.map(|e2e| (e2e.n, e2e.mean)), Some((1, Some(80.0))));
    assert!((s.output_tok_s.unwrap() - 6.0 / 0.080).abs() < 1e-9);
}

#[test]
fn the_wall_clock_includes_prefills_and_the_time_between_requests() {
    let one = |start: u64, id: u32| {
        vec![
            request(start, id, id == 0),
            token(start + 600, id, 0),
            token(start + 610, id, 1),
            token(start + 620, id, 2),
            finished(start + 621, id),
        ]
    };
    let state = fold(&[one(0, 0), one(1000, 1), one(2000, 2)].concat());
    let s = state.total.summary();
    // From 1,000 to 2,620 ms: twice three tokens of two sequences. Warm-up is left out.
    assert!((s.output_tok_s.unwrap() - 12.0 / 1.620).abs() < 1e-9, "{s:?}");
    assert!((s.decode_tok_s.unwrap() - 8.0 / 0.040).abs() < 1e-9, "{s:?}");
    assert_eq!(s.e2e_ms.unwrap().p50, Some(620.0));
}

fn recording(ms: u64, state: TraceState) -> Envelope {
    envelope(ms, Event::KernelTrace(KernelTrace { tool: "CUPTI".into(), state }))
}

/// Requests of 20 tokens, each starting at the second of its number, 10 ms per token; 15 ms while kernels are recorded.
fn run_with(spans: &[(u64, u64)], requests: u32) -> RunState {
    let recorded = |ms: u64| spans.iter().any(|(from, to)| (*from..*to).contains(&ms));
    let mut events: Vec<Envelope> = Vec::new();
    for (from, to) in spans {
        events.extend([recording(*from, TraceState::On), recording(*to, TraceState::Off)]);
    }
    for id in 0..requests {
        let mut at = u64::from(id) * 1000 + 1;
        events.push(request(at, id, false));
        for index in 0..20 {
            at += if recorded(at) { 15 } else { 10 };
            events.push(token(at, id, index));
        }
        events.push(finished(at + 1, id));
    }
    events.sort_by_key(|event| event.t);
    fold(&events)
}

#[test]
fn recorded_spans_are_excluded_and_shown_separately() {
    let state = run_with(&[(3000, 5000), (7000, 8000)], 10);
    let total = &state.total;
    assert_eq!((total.requests, total.itl.n(), total.itl.mean_ms()), (7, 7 * 19, Some(10.0)));
    assert_eq!(total.tpot.percentile_ms(50.0), Some(10.0));
    let left_out = total.left_out().unwrap();
    assert_eq!((left_out.requests, left_out.itl.n(), left_out.itl.mean_ms()), (3, 3 * 19, Some(15.0)));
    let cost = state.kernels.recording.cost().unwrap();
    assert_eq!((cost.spans, cost.steps), (2, 57));
    assert!((cost.cost_pct - 50.0).abs() < 1e-9, "{cost:?}");
    assert_eq!(state.tpots_ns.values().len(), 7);
    let verdict = RunState { run: Some(run_started()), ..state }.verdict().unwrap();
    assert!(verdict.contains("mean ITL 10.0 ms without, 15.0 ms with"), "{verdict}");
}

#[test]
fn without_recording_events_nothing_is_excluded() {
    let state = run_with(&[], 3);
    assert!(state.total.left_out().is_none() && !state.kernels.recording.is_used());
    assert_eq!((state.total.itl.n(), state.kernels.recording.cost()), (57, None));
}

#[test]
fn a_run_that_is_recorded_throughout_keeps_its_latencies() {
    let state = run_with(&[(0, 60_000)], 12);
    assert!(state.total.is_recorded() && state.total.left_out().is_none());
    assert_eq!((state.total.requests, state.total.itl.mean_ms()), (12, Some(15.0)));
    let trust = RunState { run: Some(run_started()), ..state }.trust().unwrap();
    assert!(!trust.blocks_comparison() && trust.score == 4, "{trust:?}");
}

#[test]
fn a_snapshot_over_a_recorded_span_has_the_requests_without_it() {
    let mut state = run_with(&[(12_000, 20_000)], 24);
    state.run = Some(run_started());
    let sample = state.window_sample("all").unwrap();
    assert_eq!((sample.requests.len(), sample.conditions.recorded_share), (16, None));
    let trust = sample.trust(false);
    assert!(trust.issues.is_empty(), "{trust:?}");
    // Each request has a part with recording: TPOT drifts, and recording is the cause.
    let spans: Vec<(u64, u64)> = (0..24).map(|i| (i * 1000 + 150 - 5 * i, i * 1000 + 900)).collect();
    let mut state = run_with(&spans, 24);
    state.run = Some(run_started());
    let trust = state.window_sample("all").unwrap().trust(false);
    assert!(trust.issues[0].to_string().contains("kernels were recorded in"), "{trust:?}");
}

fn run_started() -> RunStarted {
    serde_json::from_value(serde_json::json!({
        "schema": 1, "program": "", "started_unix_ms": 0, "experiment": "", "model": "tiny", "dtype": "f32",
        "engine": "sim", "device": "cuda:0", "synthetic_weights": true, "simulated": true, "parameters": 1,
        "weight_bytes": 4, "step_weight_bytes": 4, "kv_bytes_per_position": 1, "requests": 24, "warmup": 0,
        "batch": 2, "prompt_tokens": 10, "output_tokens": 20, "seed": 0, "overrides": []
    }))
    .unwrap()
}

#[test]
fn the_rate_is_that_of_several_tokens() {
    let mut events = vec![request(0, 0, false), token(100, 0, 0)];
    let mut at = 100;
    // A late token is followed by an early one.
    for (index, gap) in (1..).zip([10, 10, 10, 10, 10, 10, 48, 2]) {
        at += gap;
        events.push(token(at, 0, index));
    }
    let state = fold(&events);
    let columns = state.itl_columns(Stamp(0), Stamp(at * 1_000_000), 100);
    let fastest = columns.iter().flatten().map(|bucket| bucket.mean()).fold(f32::INFINITY, f32::min);
    assert!((fastest - 110.0 / 8.0).abs() < 1e-3, "{fastest} ms is the fastest mean");
    assert!((state.recent_decode_tok_s(0.001).unwrap() - 8.0 / 0.110).abs() < 1e-6);
}

#[test]
fn warm_up_is_shown_but_not_measured() {
    let state = fold(&[request(0, 0, true), token(500, 0, 0), token(900, 0, 1), finished(901, 0)]);
    assert_eq!(state.total.summary().ttft_ms.n, 0);
    assert_eq!((state.warmup_done, state.requests_done, state.trail.len()), (1, 0, 2));
    assert_eq!(state.total.from, Stamp(0));
    let measured = fold(&[request(0, 0, true), finished(901, 0), request(950, 1, false)]);
    assert_eq!(measured.total.from, Stamp(950_000_000));
}

#[test]
fn a_pause_belongs_to_no_latency() {
    let pause = |from, to| [envelope(from, Event::WorkloadPaused), envelope(to, Event::WorkloadResumed)];
    let [p1, r1] = pause(10, 1010);
    let [p2, r2] = pause(1060, 5060);
    let state = fold(&[
        request(0, 0, false),
        p1,
        r1,
        token(1050, 0, 0),
        p2,
        r2,
        token(5070, 0, 1),
        finished(5071, 0),
    ]);
    let s = state.total.summary();
    assert_eq!((s.ttft_ms.mean, s.itl_ms.mean, s.tpot_ms.mean), (Some(50.0), Some(20.0), Some(20.0)));
}

#[test]
fn time_in_which_the_process_was_stopped_belongs_to_no_latency() {
    let stopped = |since: u64, ms| {
        envelope(ms, Event::ProcessStopped(ProcessStopped { since: Stamp(since * 1_000_000) }))
    };
    let state = fold(&[
        request(0, 0, false),
        token(50, 0, 0),
        stopped(50, 8050),
        token(8055, 0, 1),
        token(8065, 0, 2),
        finished(8066, 0),
        request(8100, 1, false),
        stopped(8100, 9100),
        token(9120, 1, 0),
        token(9130, 1, 1),
        token(9140, 1, 2),
        finished(9141, 1),
        request(9200, 2, false),
        token(9250, 2, 0),
        token(9260, 2, 1),
        token(9270, 2, 2),
        finished(9271, 2),
    ]);
    let s = state.total.summary();
    assert_eq!((s.ttft_ms.n, s.ttft_ms.mean), (2, Some(50.0)));
    // The token of the first request that spans the stop is left out, and so are both requests.
    assert_eq!((s.itl_ms.n, s.itl_ms.mean), (5, Some(10.0)));
    assert_eq!((s.tpot_ms.n, s.tpot_ms.mean, s.requests), (1, Some(10.0), 3));
    assert_eq!((s.output_tokens, s.e2e_ms.map(|e2e| e2e.n)), (18, Some(1)));
    assert!(s.output_tok_s.unwrap() > 18.0 / 0.3, "{s:?}");
}

#[test]
fn a_stop_within_a_pause_is_excluded_once() {
    let stopped = envelope(900, Event::ProcessStopped(ProcessStopped { since: Stamp(100_000_000) }));
    let state = fold(&[
        request(0, 0, false),
        token(50, 0, 0),
        envelope(60, Event::WorkloadPaused),
        stopped,
        envelope(1060, Event::WorkloadResumed),
        token(1070, 0, 1),
        finished(1071, 0),
    ]);
    assert_eq!(state.total.summary().itl_ms.mean, Some(20.0));
}

#[test]
fn lost_tokens_make_no_latency() {
    let state = fold(&[
        request(0, 0, false),
        token(50, 0, 0),
        // Token 1 is lost, and so are the start of the next request and the end of this one.
        token(70, 0, 2),
        finished(101, 1),
        finished(71, 0),
    ]);
    let s = state.total.summary();
    assert_eq!((s.itl_ms.n, s.tpot_ms.mean, s.output_tokens, s.requests), (0, Some(10.0), 6, 1));
    // An impossible number counts as the next one.
    let state = fold(&[request(0, 0, false), token(50, 0, 0), token(60, 0, u32::MAX), token(70, 0, 1)]);
    assert_eq!((state.total.itl.n(), state.total.output_tokens), (2, 6));
}

#[test]
fn a_snapshot_starts_a_new_window_and_leaves_the_total() {
    let snap = envelope(200, Event::Snapshot(SnapshotTaken { name: "before".into() }));
    let state = fold(&[request(0, 0, false), token(50, 0, 0), token(60, 0, 1), snap, token(230, 0, 2)]);
    assert_eq!(state.snapshots[0].metrics.itl_ms.n, 1);
    assert_eq!((state.window.itl.n(), state.total.itl.n()), (1, 2));
    assert_eq!(state.window.from, Stamp(200_000_000));
}

#[test]
fn the_kernels_of_a_snapshot_are_those_of_its_window() {
    use llmprof_event::kernels::KernelRow;
    let window = |ms, mean_ns: f64| {
        let row = KernelRow { calls: 10, total_ns: Some(10.0 * mean_ns), ..KernelRow::named("gemv") };
        let rows = vec![KernelRow { mean_ns: Some(mean_ns), ..row }];
        let window = KernelWindow { phase: Phase::Decode, steps: 10, rows, ..KernelWindow::default() };
        envelope(ms, Event::Kernels(Box::new(window)))
    };
    let snap = |ms, name: &str| envelope(ms, Event::Snapshot(SnapshotTaken { name: name.into() }));
    let report = KernelReport { tool: "ncu 1".into(), phase: None, file: String::new(), tables: Vec::new() };
    let state = fold(&[
        envelope(0, Event::RunStarted(Box::new(run_started()))),
        window(1, 100.0),
        envelope(2, Event::KernelReport(Box::new(report))),
        snap(3, "a"),
        window(4, 300.0),
        snap(5, "b"),
        window(6, 700.0),
    ]);
    let mean = |kernels: &WindowKernels| kernels.live(Phase::Decode).map(|live| live.table.rows[0].mean_ns);
    let means = state.snapshots.iter().map(|snapshot| mean(&snapshot.kernels));
    assert_eq!(means.collect::<Vec<_>>(), [Some(Some(100.0)), Some(Some(300.0))]);
    assert_eq!(mean(&state.window_kernels()), Some(Some(700.0)));
    assert_eq!(state.kernels.decode.total.steps, 30);
    assert_eq!(state.snapshots[1].kernels.reports.len(), 1);
    // 100 and 300 ns in a step.
    let samples: Vec<_> = state.snapshots.iter().filter_map(|snapshot| snapshot.sample.as_deref()).collect();
    let fall = llmprof_analysis::compare::waterfall(samples[0], samples[1]).unwrap();
    assert_eq!((fall.step.a_us, fall.step.b_us), (0.1, 0.3));
}

#[test]
fn a_cancelled_request_is_not_a_request() {
    let cut =
        envelope(70, Event::RequestFinished(RequestFinished { request: 0, complete: false, served: None }));
    let state = fold(&[request(0, 0, false), token(50, 0, 0), cut]);
    assert_eq!((state.requests_done, state.total.requests, state.phase), (0, 0, Phase::Idle));
}

#[test]
fn every_reason_has_a_lane() {
    let info = GpuInfo { index: 0, ..GpuInfo::default() };
    let sample = |ms, bits| envelope(ms, Event::GpuSample(Box::new(GpuSample::new(0).with_reasons(bits))));
    let state = fold(&[
        envelope(0, Event::GpuFound(Box::new(info))),
        sample(100, 0x4),
        sample(200, 1 << 40),
        sample(300, 0),
    ]);
    let lanes: Vec<(u64, Option<f32>)> =
        state.gpus[0].reasons.iter().map(|(b, s)| (*b, s.last().map(|l| l.1))).collect();
    assert_eq!(lanes, [(0x4, Some(0.0)), (1 << 40, Some(0.0))]);
}

#[test]
fn absent_readings_leave_no_trace() {
    let info = GpuInfo { index: 3, ..GpuInfo::default() };
    let sample = GpuSample::new(3).with(Reading::Temp, 40.0);
    let state = fold(&[
        envelope(0, Event::GpuFound(Box::new(info))),
        envelope(1, Event::GpuSample(Box::new(sample))),
    ]);
    let gpu = &state.gpus[0];
    assert_eq!((gpu.value(Reading::Power), gpu.value(Reading::Temp)), (None, Some(40.0)));
    assert!(gpu.series(Reading::Power).is_empty() && gpu.reasons.is_empty());
    assert_eq!(gpu.series(Reading::Temp).last().map(|l| l.1), Some(40.0));
    assert_eq!(gpu.age(Reading::Temp, Stamp(5_000_000)), Some(std::time::Duration::from_millis(4)));
}

#[test]
fn stray_events_are_ignored() {
    let state = fold(&[token(5, 9, 0), finished(6, 9), envelope(7, Event::WorkloadResumed)]);
    assert_eq!((state.total.itl.n(), state.trail.len(), state.requests_done), (0, 0, 0));
}

#[test]
fn a_child_under_a_tool_is_not_another_process() {
    let tool = |ms, state| {
        envelope(ms, Event::ToolRun(Box::new(ToolRun { tool: "ncu".into(), phase: Phase::Decode, state })))
    };
    let processes = |ms| {
        let processes = vec![GpuProcess { pid: 7, ..GpuProcess::default() }];
        envelope(ms, Event::GpuProcesses(Box::new(GpuProcesses { gpu: 0, processes })))
    };
    let found = envelope(0, Event::GpuFound(Box::new(GpuInfo { profiled: true, ..GpuInfo::default() })));
    let working = ToolState::Working { doing: "decode".into(), share: None };
    let mut state = fold(&[found, tool(1, working), processes(2)]);
    assert!(state.gpus[0].processes_seen.is_empty());
    state.apply(&tool(3, ToolState::Done));
    state.apply(&processes(4));
    assert_eq!(state.gpus[0].processes_seen.len(), 1);
}

#[test]
fn a_token_that_waits_for_the_recorder_to_start_is_recorded() {
    let recording = |ms: u64, state: TraceState| {
        envelope(ms, Event::KernelTrace(KernelTrace { tool: "CUPTI".into(), state }))
    };
    let started = RequestStarted {
        request: 0,
        warmup: false,
        batch: 1,
        prompt_tokens: 10,
        output_tokens: 9,
        cooldown: false,
        joined: false,
        images: 0,
    };
    let mut events = vec![envelope(0, Event::RequestStarted(started))];
    events.extend((0..5).map(|i| token(100 + 4 * u64::from(i), 0, i)));
    // The next token is late; the event that recording is on follows it.
    events.extend([recording(117, TraceState::Starting), token(132, 0, 5), recording(133, TraceState::On)]);
    let state = fold(&events);
    assert_eq!(state.total.itl.max_ms(), Some(4.0));
    assert_eq!(state.total.left_out().map(|recorded| recorded.itl.max_ms()), Some(Some(16.0)));
    // So is the token that waits until the recorder has detached.
    events.extend([recording(134, TraceState::Off), recording(143, TraceState::Off), token(145, 0, 6)]);
    events.push(token(149, 0, 7));
    let state = fold(&events);
    assert_eq!(state.total.itl.max_ms(), Some(4.0));
    assert_eq!((state.total.itl.n(), state.kernels.recording.is_on()), (5, false));
}

#[test]
fn the_length_of_a_run_is_known_from_its_first_tokens() {
    let run = RunStarted { requests: 9, warmup: 1, ..run_started() };
    let started = RequestStarted {
        request: 0,
        warmup: true,
        batch: 1,
        prompt_tokens: 10,
        output_tokens: 101,
        cooldown: false,
        joined: false,
        images: 0,
    };
    let mut events = vec![
        envelope(0, Event::RunStarted(Box::new(run))),
        envelope(1000, Event::RequestStarted(started)),
        token(3000, 0, 0),
    ];
    assert_eq!(fold(&events).time_left_s(), None, "no token after the first");
    events.extend((1..=10).map(|i| token(3000 + 100 * u64::from(i), 0, i)));
    // Ten requests of 2 s and a hundred tokens of 0.1 s, of which 3 s are over.
    let left = fold(&events).time_left_s().unwrap();
    assert!((left - (10.0 * 12.0 - 3.0)).abs() < 1e-9, "{left}");
}

#[test]
fn kernels_of_another_program_are_compared_with_the_last_snapshot() {
    let run = RunStarted { kind: WorkKind::Program, simulated: false, ..run_started() };
    let window = |ns: f64| {
        let row = KernelRow {
            calls: 10,
            total_ns: Some(ns),
            grid: Some([1; 3]),
            ..KernelRow::named("nvjet_sm90_tst_64x8")
        };
        Event::Kernels(Box::new(KernelWindow {
            phase: Phase::Decode,
            steps: 10,
            launches: 10,
            busy_ns: ns as u64,
            span_ns: ns as u64,
            overlaps: Some(Overlaps { kernel_ns: ns as u64, ..Overlaps::default() }),
            rows: vec![row],
            ..KernelWindow::default()
        }))
    };
    let mut state = RunState::default();
    state.apply(&envelope(0, Event::RunStarted(Box::new(run))));
    state.apply(&envelope(1, window(2e7)));
    assert_eq!(state.kernel_hints(Phase::Decode), [""; 0]);
    state.apply(&envelope(2, Event::Snapshot(SnapshotTaken { name: "before".to_owned() })));
    state.apply(&envelope(3, window(1e7)));
    let hints = state.kernel_hints(Phase::Decode);
    assert_eq!(hints, ["Since the snapshot before: product: 2.00 ms → 1.00 ms per step (-1.00 ms, -50 %)."]);
}

/// Earlier requests continue during a pause: their latencies are unchanged, and only the time without tokens is left
/// out.
#[test]
fn a_pause_does_not_change_requests_to_a_server() {
    let run = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
    let state = fold(&[
        envelope(0, Event::RunStarted(Box::new(run))),
        request(100, 0, false),
        token(150, 0, 0),
        envelope(155, Event::WorkloadPaused),
        token(160, 0, 1),
        token(170, 0, 2),
        finished(171, 0),
        envelope(5000, Event::WorkloadResumed),
        request(5000, 1, false),
        token(5050, 1, 0),
    ]);
    assert_eq!(state.total.ttft.mean_ms(), Some(50.0));
    assert_eq!((state.total.itl.mean_ms(), state.total.tpot.mean_ms()), (Some(10.0), Some(10.0)));
    assert_eq!(state.total.wall_ns, 120_000_000, "70 ms before the pause, 50 ms after it");
}

#[test]
fn bursts_do_not_split_requests_to_a_server() {
    let run = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
    let of = |on: u64, off: u64| {
        fold(&[
            envelope(0, Event::RunStarted(Box::new(run.clone()))),
            request(100, 0, false),
            recording(on, TraceState::On),
            recording(off, TraceState::Off),
            token(6100, 0, 0),
            token(6110, 0, 1),
            token(6120, 0, 2),
            finished(6121, 0),
        ])
    };
    let burst = of(2000, 2200);
    assert_eq!(burst.total.without.ttft.mean_ms(), Some(6000.0));
    assert_eq!((burst.total.without.requests, burst.total.with.requests), (1, 0));
    let long = of(1000, 5000);
    assert_eq!(long.total.without.ttft.mean_ms(), None);
    assert_eq!(long.total.with.requests, 1);
}

/// Of 40 chunks of an answer, so many arrive together with an earlier one.
fn served(ms: u64, request: u32, together: u32) -> Envelope {
    let served = Served {
        late_ns: 0,
        connecting: None,
        send_ns: 0,
        head_ns: None,
        chunks: 40,
        together,
        prompt_tokens: None,
        output_tokens: None,
        tokenized: false,
        cached_tokens: None,
        server: ServerTimes::default(),
        reconnected: false,
        failure: None,
    };
    let served = Some(Box::new(served));
    envelope(ms, Event::RequestFinished(RequestFinished { request, complete: true, served }))
}

/// The gaps between chunks of answers that are not streamed are no ITL.
#[test]
fn answers_that_are_held_back_have_no_decode_rate() {
    for (together, has_rate) in [(0, true), (10, true), (38, false)] {
        let run = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
        let state = fold(&[
            envelope(0, Event::RunStarted(Box::new(run))),
            request(10, 0, false),
            token(50, 0, 0),
            token(60, 0, 1),
            token(70, 0, 2),
            served(80, 0, together),
        ]);
        assert!(state.total.decode_tok_s().is_some());
        assert_eq!(state.decode_tok_s().is_some(), has_rate, "{together} of 40");
        let rates = [
            state.summary().decode_tok_s,
            state.window_snapshot("a").metrics.decode_tok_s,
            report::metrics_json(&state)["metrics"]["decode_tok_s"].as_f64(),
            report::run_json(&state, None)["decode_tok_s"].as_f64(),
        ];
        assert_eq!(rates.map(|rate| rate.is_some()), [has_rate; 4], "{together} of 40: {rates:?}");
        let documents = report::documents(&state);
        let page = documents.iter().find(|document| document.name == "report.html").unwrap();
        assert!(page.content.contains("<span>Decode</span>"));
        assert_eq!(page.content.contains("<span>Decode</span><b>–</b>"), !has_rate, "{together} of 40");
        assert_eq!(state.summary().output_tok_s, state.total.output_tok_s());
    }
}

/// A stream is the lowest free row.
#[test]
fn requests_take_the_lowest_free_stream() {
    let run = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
    let state = fold(&[
        envelope(0, Event::RunStarted(Box::new(run))),
        request(10, 0, false),
        request(11, 1, false),
        request(12, 2, false),
        served(20, 1, 0),
        served(21, 0, 0),
        request(30, 3, false),
        request(31, 4, false),
        request(32, 5, false),
        served(40, 2, 0),
    ]);
    let streams: Vec<(u32, u32)> =
        state.server.lanes.iter().map(|lane| (lane.request, lane.stream)).collect();
    assert_eq!(streams, [(1, 1), (0, 0), (2, 2)]);
    let active: Vec<(u32, u32)> =
        state.active.iter().map(|active| (active.started.request, active.stream)).collect();
    assert_eq!(active, [(3, 0), (4, 1), (5, 3)]);
}

/// Preemptions before the first measured request belong to other requests.
#[test]
fn preemptions_per_minute_are_those_since_the_first_measured_request() {
    let run = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
    let sample = |ms, preemptions| {
        let sample = ServerSample { preemptions: Some(preemptions), ..ServerSample::default() };
        envelope(ms, Event::ServerSample(Box::new(sample)))
    };
    let state = fold(&[
        envelope(0, Event::RunStarted(Box::new(run))),
        sample(500, 100.0),
        request(1000, 0, true),
        sample(1500, 7.0),
        token(1600, 0, 0),
        finished(1700, 0),
        request(2000, 1, false),
        sample(32_000, 1.0),
        sample(62_000, 0.0),
    ]);
    assert_eq!(state.server.preemptions, 108.0, "all of them are counted");
    let remarks = state.server_remarks();
    let per_min = remarks.iter().find_map(|remark| match remark {
        ServerRemark::Preemptions { per_min, .. } => Some(*per_min),
        _ => None,
    });
    assert_eq!(per_min, Some(1.0), "{remarks:?}");
    assert!(remarks.iter().any(|remark| remark.to_string().starts_with("1.00 preemptions ")), "{remarks:?}");
}

mod ttft_parts {
    use proptest::prelude::*;

    use super::*;

    /// A request: connect, send and TTFT in microseconds; queue and prefill by the server's clock, which may report any
    /// value.
    type Timed = (u64, u64, u64, Option<f64>, Option<f64>);
    /// The server's own means of queue and prefill, and the number of requests of all clients.
    type Own = (Option<f64>, Option<f64>, f64);

    fn folded(requests: &[Timed], own: &[Own]) -> RunState {
        let run = RunStarted { kind: WorkKind::Server, simulated: false, ..run_started() };
        let mut events = vec![envelope(0, Event::RunStarted(Box::new(run)))];
        let mut at_us = 1000;
        for (n, (connect_us, send_us, ttft_us, queue_ms, prefill_ms)) in (0..).zip(requests) {
            let at = |us: u64, event| Envelope { t: Stamp(1000 * us), event };
            let Event::RequestStarted(started) = request(0, n, false).event else { unreachable!() };
            events.push(at(at_us, Event::RequestStarted(started)));
            events.push(at(at_us + ttft_us, token(0, n, 0).event));
            let connecting = Connecting { resolve_ns: 0, tcp_ns: 1000 * connect_us, tls_ns: 0 };
            let served = Served {
                late_ns: 5,
                connecting: Some(connecting),
                send_ns: 1000 * send_us,
                head_ns: None,
                chunks: 1,
                together: 0,
                prompt_tokens: None,
                output_tokens: None,
                tokenized: false,
                cached_tokens: None,
                server: ServerTimes {
                    queue_ms: *queue_ms,
                    prefill_ms: *prefill_ms,
                    ..ServerTimes::default()
                },
                reconnected: false,
                failure: None,
            };
            let served = Some(Box::new(served));
            let finished = RequestFinished { request: n, complete: true, served };
            events.push(at(at_us + ttft_us + 1, Event::RequestFinished(finished)));
            at_us += ttft_us + 10;
        }
        for (queue_ms, prefill_ms, timed) in own {
            let sample = ServerSample {
                queue_ms: *queue_ms,
                prefill_ms: *prefill_ms,
                timed_requests: Some(*timed),
                ..ServerSample::default()
            };
            events.push(envelope(at_us / 1000 + 1, Event::ServerSample(Box::new(sample))));
        }
        fold(&events)
    }

    /// TTFT of the same requests as its parts, and the parts as shares of it.
    fn check(state: &RunState, requests: usize) -> Result<(), TestCaseError> {
        let server = &state.server;
        let whole = server.ttft_mean_ms().unwrap();
        let parts: Vec<_> =
            server.ttft_parts().into_iter().filter(|times| times.part != TtftPart::ClientLag).collect();
        match parts.iter().map(|times| times.mean_ms).sum::<Option<f64>>() {
            Some(sum) => {
                prop_assert!((sum - whole).abs() <= 1e-6 * whole.max(1.0), "{sum} of {whole}");
                for times in &parts {
                    let within = times.mean_ms.is_some_and(|ms| (0.0..=whole * (1.0 + 1e-9)).contains(&ms));
                    prop_assert!(within, "{times:?} of {whole}");
                }
            }
            // The server's means are of other requests, and exceed the whole.
            None => prop_assert!(parts.iter().any(|times| matches!(times.of, MeanOf::ServerRequests))),
        }
        for times in &parts {
            let n = times.distribution().map_or(requests as u64, Distribution::n);
            prop_assert_eq!(n, requests as u64, "{:?}", times.part);
            let mean = server.part_mean_ms(times.part).unwrap_or(0.0);
            prop_assert!(mean <= whole * (1.0 + 1e-9), "{:?}: {mean} of {whole}", times.part);
        }
        for part in [TtftPart::Queue, TtftPart::Prefill] {
            prop_assert!(server.part_mean_ms(part).unwrap_or(0.0) <= whole * (1.0 + 1e-9));
        }
        for remark in state.server_remarks() {
            let text = remark.to_string();
            let Some((before, _)) = text.split_once(" % of TTFT") else { continue };
            let share: f64 = before.rsplit(' ').next().unwrap().parse().unwrap();
            prop_assert!(share <= 100.0, "{text}");
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn parts_are_of_the_same_requests_and_never_exceed_the_whole(
            requests in prop::collection::vec(
                (0u64..3000, 0u64..3000, 1u64..2_000_000, prop::option::of(0.0f64..5000.0), prop::option::of(0.0f64..5000.0)),
                1..12,
            ),
            own in prop::collection::vec(
                (prop::option::of(0.0f64..5000.0), prop::option::of(0.0f64..5000.0), 1.0f64..50.0),
                0..4,
            ),
        ) {
            // By the client's own clock, its parts are within its TTFT.
            let requests: Vec<Timed> = requests
                .into_iter()
                .map(|(connect, send, ttft, queue, prefill)| (connect, send, connect + send + ttft, queue, prefill))
                .collect();
            check(&folded(&requests, &own), requests.len())?;
        }
    }

    /// One of ten requests reports its queue; the server's own means include other clients.
    #[test]
    fn a_queue_of_some_requests_is_no_share_of_the_ttft_of_all() {
        let mut requests: Vec<Timed> = vec![(0, 0, 10_000, None, None); 9];
        requests.push((0, 0, 1_000_000, Some(900.0), None));
        let state = folded(&requests, &[(Some(4000.0), Some(4000.0), 3.0)]);
        let server = &state.server;
        assert_eq!(server.ttft_mean_ms().map(f64::round), Some(109.0));
        assert_eq!(server.part_mean_ms(TtftPart::Queue).map(f64::round), Some(90.0));
        assert_eq!(server.part_mean_ms(TtftPart::Prefill), None, "longer than the wait of these requests");
        check(&state, 10).unwrap();
    }
}

/// A loop of kernels is not inference, but has a summary.
#[test]
fn a_program_without_steps_has_a_summary() {
    let run = RunStarted { kind: WorkKind::Program, simulated: false, ..run_started() };
    let row = KernelRow {
        calls: 900,
        total_ns: Some(0.9e9),
        mean_ns: Some(1e6),
        ..KernelRow::named("void gemm<float>(int)")
    };
    let copies = KernelRow {
        calls: 10,
        total_ns: Some(1e7),
        bytes: Some(2e9),
        ..KernelRow::named("[copy to device]")
    };
    let window = |span_ns| KernelWindow {
        span_ns,
        busy_ns: 910_000_000,
        launches: 910,
        rows: vec![row.clone(), copies.clone()],
        ..KernelWindow::default()
    };
    let joined =
        ProcessJoined { pid: 7, parent: None, command: "python loop.py".into(), rank: None, world: None };
    let said = |events: &[Envelope]| {
        let waiting = Preparing { step: "waiting".into(), done: 0, total: 1 };
        let start =
            [envelope(0, Event::RunStarted(Box::new(run.clone()))), envelope(1, Event::Preparing(waiting))];
        let state = fold(&[&start[..], events].concat());
        (state.verdict(), state.kernels.without_steps().map(|live| live.table("live").rows.len()))
    };
    let end = || envelope(9000, Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None }));
    let kernels = |span_ns| envelope(2000, Event::Kernels(Box::new(window(span_ns))));
    let start = || envelope(1000, Event::ProcessJoined(Box::new(joined.clone())));
    let (verdict, rows) = said(&[start(), kernels(1_000_000_000), end()]);
    assert_eq!(
        verdict.unwrap(),
        "Kernels limit the speed: the GPU is busy 91 % of the recorded 1,000 ms. 900 kernels take 1.00 ms each on average. \
         The largest, gemm, has 99 % of the busy time. 10 copies move 2.00 GB."
    );
    assert_eq!(rows, Some(2));
    let (verdict, _) = said(&[start(), kernels(4_000_000_000)]);
    assert!(verdict.unwrap().starts_with("The CPU limits the speed: the GPU is idle 77 % of the recorded"));
    assert!(said(&[end()]).0.unwrap().starts_with("The program did not use CUDA"));
    assert!(said(&[start(), end()]).0.unwrap().starts_with("The program started CUDA, but no kernel"));
}
