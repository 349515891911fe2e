use super::*;
use crate::event::*;

fn envelope(ms: u64, event: Event) -> Envelope {
    Envelope { t: Stamp(ms * 1_000_000), event }
}

fn request(ms: u64, request: u32, warmup: bool) -> Envelope {
    let started = RequestStarted { request, warmup, batch: 2, prompt_tokens: 10, output_tokens: 3 };
    envelope(ms, Event::RequestStarted(started))
}

fn token(ms: u64, request: u32, index: u32) -> Envelope {
    envelope(ms, Event::Token(Token { request, index, id: 7, device_ns: None }))
}

fn finished(ms: u64, request: u32) -> Envelope {
    envelope(ms, Event::RequestFinished(RequestFinished { request, complete: true }))
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
fn a_snapshot_starts_a_new_window_and_leaves_the_total() {
    let snap = envelope(200, Event::Snapshot(SnapshotTaken { name: "before".into() }));
    let state = fold(&[request(0, 0, false), token(50, 0, 0), token(60, 0, 1), snap, token(230, 0, 2)]);
    assert_eq!(state.snapshots[0].metrics.itl_ms.n, 1);
    assert_eq!((state.window.itl.n(), state.total.itl.n()), (1, 2));
    assert_eq!(state.window.from, Stamp(200_000_000));
}

#[test]
fn a_cancelled_request_is_not_a_request() {
    let cut = envelope(70, Event::RequestFinished(RequestFinished { request: 0, complete: false }));
    let state = fold(&[request(0, 0, false), token(50, 0, 0), cut]);
    assert_eq!((state.requests_done, state.total.requests, state.phase), (0, 0, Phase::Idle));
}

#[test]
fn every_reason_has_a_lane() {
    let info = GpuInfo { index: 0, ..GpuInfo::default() };
    let sample = |ms, bits| envelope(ms, Event::GpuSample(Box::new(GpuSample::of(0).with_reasons(bits))));
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
    let sample = GpuSample::of(3).with(Reading::Temp, 40.0);
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
        let processes = vec![GpuProcess { pid: 7, name: None, mem_bytes: None }];
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
