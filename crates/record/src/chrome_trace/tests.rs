use proptest::{collection::vec, prelude::*};
use serde_json::Value;

use super::*;
use llm_cost::Operator;
use llmprof_event::{
    GpuInfo, HostSpan, KernelSpan, Level, Outcome, Preparing, Ready, RequestFinished, RunFinished,
    SnapshotTaken, Token,
};

fn traced(events: &[(u64, Event)]) -> String {
    let mut trace = ChromeTrace::default();
    let lines = |(t, event): &(u64, Event)| trace.lines_of(&Envelope { t: Stamp(*t), event: event.clone() });
    events.iter().map(lines).collect()
}

/// The events of a trace. A truncated one is closed first, as Chrome and Perfetto do.
fn parsed(text: &str) -> Vec<Value> {
    let closed = if text.ends_with("]\n") { text.to_owned() } else { format!("{text}]") };
    match closed.as_str() {
        "]" => Vec::new(),
        closed => serde_json::from_str(closed).unwrap_or_else(|e| panic!("{e}: {closed}")),
    }
}

fn ns(value: &Value) -> u64 {
    (value.as_f64().unwrap() * 1e3).round() as u64
}

/// Every begin has its end or is open at the end, slices are nested or separate, and the times of counters increase.
fn assert_sound(events: &[Value]) {
    let mut tracks: std::collections::BTreeMap<(u64, u64), Vec<(u64, u64)>> = Default::default();
    let mut open: HashMap<(u64, u64), Vec<u64>> = HashMap::new();
    let mut counters: HashMap<(u64, String), u64> = HashMap::new();
    for event in events {
        let number = |key: &str| event[key].as_u64().unwrap();
        let track = (number("pid"), number("tid"));
        match event["ph"].as_str().unwrap() {
            "M" => assert!(!event["args"].as_object().unwrap().is_empty()),
            "B" => open.entry(track).or_default().push(ns(&event["ts"])),
            "E" => {
                let from = open.get_mut(&track).and_then(Vec::pop).expect("an end without a begin");
                let to = ns(&event["ts"]);
                assert!(from <= to, "{event}");
                tracks.entry(track).or_default().push((from, to));
            }
            "X" => {
                let from = ns(&event["ts"]);
                tracks.entry(track).or_default().push((from, from + ns(&event["dur"])));
            }
            "i" => assert!(event["name"].is_string()),
            "C" => {
                assert!(event["args"].as_object().unwrap().values().all(Value::is_number), "{event}");
                let last = counters.entry((track.0, event["name"].to_string())).or_default();
                assert!(*last <= ns(&event["ts"]), "{event}");
                *last = ns(&event["ts"]);
            }
            other => panic!("{other}"),
        }
    }
    let kinds = |kind: &str| -> std::collections::BTreeSet<(u64, u64)> {
        let of_kind = events.iter().filter(|event| event["ph"] == kind);
        of_kind.map(|event| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())).collect()
    };
    assert!(kinds("B").is_disjoint(&kinds("X")), "a track has either complete slices or begins and ends");
    for (track, mut slices) in tracks {
        slices.sort_by_key(|(from, to)| (*from, u64::MAX - to));
        let mut around: Vec<u64> = Vec::new();
        for (from, to) in slices {
            while around.last().is_some_and(|end| *end <= from && *end < to) {
                around.pop();
            }
            assert!(around.last().is_none_or(|end| to <= *end), "{track:?}: {from}–{to} overlaps {around:?}");
            around.push(to);
        }
    }
}

fn request(warmup: bool) -> Event {
    Event::RequestStarted(RequestStarted {
        request: 0,
        warmup,
        batch: 1,
        prompt_tokens: 8,
        output_tokens: 3,
        cooldown: false,
        joined: false,
        images: 0,
    })
}

fn token(index: u32, device_ns: Option<u64>) -> Event {
    Event::Token(Token { request: 0, index, id: 1, device_ns, speculation: None })
}

fn finished() -> Event {
    Event::RequestFinished(RequestFinished { request: 0, complete: true, served: None })
}

fn end() -> Event {
    Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None })
}

fn kernels(at: Option<u64>) -> Event {
    let span =
        |name, start_ns, ns| KernelSpan { name, operator: Some(Operator::Qkv), layer: Some(3), start_ns, ns };
    Event::StepTimeline(Box::new(StepTimeline {
        phase: Phase::Decode,
        at: at.map(Stamp),
        names: vec!["a \"kernel\"\\\n".to_owned()],
        spans: vec![span(0, 0, 100), span(9, 100, 50)],
    }))
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

#[test]
fn a_run_becomes_tracks() {
    let text = traced(&[
        (0, Event::Preparing(Preparing { step: "weights".to_owned(), done: 0, total: 1 })),
        (900, Event::Ready(Ready { prepare_ms: 0.0 })),
        (1_000, request(true)),
        (2_000, token(0, None)),
        (3_000, finished()),
        (10_000, request(false)),
        (20_123, token(0, Some(9_000))),
        (30_000, token(1, Some(9_900))),
        (30_500, Event::WorkloadPaused),
        (90_000, Event::WorkloadResumed),
        (99_999, token(2, None)),
        (100_000, kernels(Some(21_000))),
        (100_000, kernels(None)),
        (100_001, finished()),
        (100_002, end()),
        (100_002, request(false)),
    ]);
    assert!(text.starts_with("[\n{") && text.ends_with("}\n]\n"), "{text}");
    let events = parsed(&text);
    assert_sound(&events);
    assert_eq!(named(&events, "request 0").len(), 1, "events after the end are not part of it");
    assert_eq!(named(&events, "warm-up 0").len(), 1);
    let steps: Vec<(u64, u64)> = events
        .windows(2)
        .filter(|pair| pair[0]["name"] == "decode_step" && pair[1]["ph"] == "E")
        .map(|pair| (ns(&pair[0]["ts"]), ns(&pair[1]["ts"])))
        .collect();
    // A pause is not part of a step.
    assert_eq!(steps, [(20_123, 30_000), (90_000, 99_999)]);
    assert!(text.contains("\"ts\":20.123,"), "{text}");
    let device: Vec<&Value> =
        events.iter().filter(|e| e["ph"] == "X" && e["pid"] == 2 && e["tid"] == 1).collect();
    assert_eq!((ns(&device[0]["ts"]), ns(&device[0]["dur"])), (11_123, 9_000));
    // By the host's clock the second began before the first ended: only the rest of it is drawn, its duration is an
    // argument.
    assert_eq!((ns(&device[1]["ts"]), ns(&device[1]["dur"])), (20_123, 9_877));
    assert_eq!(device[1]["args"]["device_ns"], 9_900);
    let kernel = named(&events, "a \"kernel\"\\\n");
    assert_eq!((kernel.len(), kernel[0]["args"]["layer"].as_u64()), (1, Some(3)), "only steps with a time");
    assert_eq!(named(&events, "(unnamed)").len(), 1);
}

#[test]
fn operators_are_nested_in_their_step() {
    let span = |start_ns, ns| HostSpan { operator: Operator::Down, layer: Some(1), start_ns, ns };
    let timeline = |at, ns, spans| {
        Event::HostTimeline(Box::new(HostTimeline { phase: Phase::Decode, at: Stamp(at), ns, spans }))
    };
    let events = parsed(&traced(&[
        (500, timeline(100, 300, vec![span(0, 100), span(100, 150), span(290, 80)])),
        // Contradictory times: slices that were already drawn are kept.
        (600, timeline(350, 100, vec![span(0, 20), span(60, 10)])),
    ]));
    assert_sound(&events);
    let down: Vec<(u64, u64)> =
        named(&events, "down").iter().map(|e| (ns(&e["ts"]), ns(&e["dur"]))).collect();
    assert_eq!(down, [(100, 100), (200, 150), (390, 10), (410, 10)]);
}

#[test]
fn counters_are_drawn_when_they_change() {
    let sample = |watts: f64, reasons| {
        let mut sample = GpuSample::new(1).with(Reading::Power, watts).with(Reading::MemUsed, 3e6);
        sample.reasons = Some(reasons);
        Event::GpuSample(Box::new(sample))
    };
    let info = GpuInfo { index: 1, name: "NVIDIA H200".to_owned(), ..GpuInfo::default() };
    let heap = AllocatorSample {
        allocator: Allocator::Heap,
        live_bytes: 1 << 20,
        peak_bytes: 1 << 21,
        reserved_bytes: Some(1 << 22),
    };
    let events = parsed(&traced(&[
        (0, Event::GpuFound(Box::new(info))),
        (100, sample(600.5, 0)),
        (200, sample(600.5, 0)),
        (300, sample(610.0, reasons::SW_POWER_CAP)),
        (400, Event::Allocator(heap)),
        (500, Event::Snapshot(SnapshotTaken { name: "x".to_owned() })),
        (600, end()),
    ]));
    assert_sound(&events);
    let power: Vec<f64> = named(&events, "power").iter().map(|e| e["args"]["W"].as_f64().unwrap()).collect();
    assert_eq!(power, [600.5, 610.0]);
    assert_eq!(named(&events, "memory").len(), 1);
    assert_eq!(named(&events, "power cap").len(), 1);
    assert_eq!(named(&events, "heap, reserved")[0]["args"]["MiB"], 4.0);
    assert!(named(&events, "process_name").iter().any(|e| e["args"]["name"] == "GPU 1 · NVIDIA H200"));
    assert_eq!(named(&events, "snapshot x").len(), 1);
}

#[test]
fn no_events_give_an_empty_trace() {
    assert_eq!(traced(&[]), "");
    assert!(parsed(&traced(&[(0, end())])).iter().all(|e| e["ph"] != "B"));
}

fn any_event() -> impl Strategy<Value = Event> {
    let spans = vec((0..9u16, 0..3_000u64, 0..3_000u64), 0..6);
    let host = (0..9_000u64, 0..4_000u64, spans.clone()).prop_map(|(at, ns, spans)| {
        let span = |&(layer, start_ns, ns): &(u16, u64, u64)| HostSpan {
            operator: Operator::ALL[usize::from(layer)],
            layer: Some(layer),
            start_ns,
            ns,
        };
        let spans = spans.iter().map(span).collect();
        Event::HostTimeline(Box::new(HostTimeline { phase: Phase::Prefill, at: Stamp(at), ns, spans }))
    });
    let kernels = (proptest::option::of(0..9_000u64), spans).prop_map(|(at, spans)| {
        let span = |&(name, start_ns, ns): &(u16, u64, u64)| KernelSpan {
            name,
            operator: None,
            layer: None,
            start_ns,
            ns,
        };
        let (at, spans) = (at.map(Stamp), spans.iter().map(span).collect());
        let names = vec!["k".to_owned(); 4];
        Event::StepTimeline(Box::new(StepTimeline { phase: Phase::Decode, at, names, spans }))
    });
    let sample = (0..2u32, 0..4u8, 0..4u64).prop_map(|(gpu, watts, bits)| {
        let mut sample = GpuSample::new(gpu).with(Reading::Power, f64::from(watts));
        sample.reasons = Some(bits);
        Event::GpuSample(Box::new(sample))
    });
    let notice = any::<String>()
        .prop_map(|text| Event::Notice(Notice { level: Level::Warn, source: "fuzz".to_owned(), text }));
    prop_oneof![
        Just(Event::Preparing(Preparing { step: String::new(), done: 0, total: 0 })),
        Just(Event::Ready(Ready { prepare_ms: 1.0 })),
        any::<bool>().prop_map(request),
        (0..9u32, proptest::option::of(0..9_000u64)).prop_map(|(index, ns)| token(index, ns)),
        Just(finished()),
        Just(Event::WorkloadPaused),
        Just(Event::WorkloadResumed),
        Just(end()),
        host,
        kernels,
        sample,
        notice,
    ]
}

#[test]
fn a_long_run_has_a_limited_number_of_steps() {
    let steps = |n: u64| {
        let tokens = (0..n).map(|i| (10 * i + 10, token(i as u32, Some(5))));
        let next = 10 * n + 20;
        let last =
            [(next, finished()), (next, request(false)), (next + 5, token(0, Some(3))), (next + 9, end())];
        let events: Vec<(u64, Event)> = [(0, request(false))].into_iter().chain(tokens).chain(last).collect();
        parsed(&traced(&events))
    };
    let count =
        |events: &[Value], name: &str| events.iter().filter(|event| event["name"] == name).count() as u64;
    let long = steps(MAX_STEPS + 500);
    assert_sound(&long);
    assert_eq!(count(&long, "decode_step"), MAX_STEPS - 1, "the first token ends a prefill");
    assert_eq!(count(&long, "steps are not drawn individually from this point on"), 1);
    assert_eq!(count(&long, "request 0"), 2, "requests continue");
    assert_eq!(count(&steps(50), "steps are not drawn individually from this point on"), 0);
}

proptest! {
    /// In any order of events, as long as time increases.
    #[test]
    fn any_stream_gives_a_sound_trace(events in vec((0..2_000u64, any_event()), 0..60)) {
        let mut t = 0;
        let events: Vec<(u64, Event)> = events
            .into_iter()
            .map(|(after, event)| {
                t += after;
                (t, event)
            })
            .collect();
        assert_sound(&parsed(&traced(&events)));
        // A trace that is truncated after any event is sound too.
        assert_sound(&parsed(&traced(&events[..events.len() / 2])));
    }
}

#[test]
fn recorded_spans_are_slices() {
    let switch = |t: u64, state: TraceState| {
        (t, Event::KernelTrace(llmprof_event::KernelTrace { tool: "CUPTI".to_owned(), state }))
    };
    let text = traced(&[
        switch(5, TraceState::Off),
        switch(10, TraceState::On),
        switch(15, TraceState::On),
        switch(20, TraceState::Off),
        switch(30, TraceState::On),
        (40, Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None })),
    ]);
    let events = parsed(&text);
    assert_sound(&events);
    let recording: Vec<(&str, u64)> = events
        .iter()
        .filter(|event| event["tid"] == RECORDING.thread && event["ph"] != "M")
        .map(|event| (event["ph"].as_str().unwrap(), ns(&event["ts"])))
        .collect();
    assert_eq!(recording, [("B", 10), ("E", 20), ("B", 30), ("E", 40)]);
}
