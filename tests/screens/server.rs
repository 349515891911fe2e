//! The pane of a server, and the report of its run.

use llmprof::event::{
    AlertChanged, ClientSample, Connecting, Envelope, Event, GpuInfo, GpuSample, Level, Notice, Outcome,
    RequestFailure, RequestFinished, RequestStarted, RunFinished, RunStarted, Served, ServerFound,
    ServerKind, ServerSample, ServerSilent, ServerTimes, Slo, Stamp, Token, WorkKind, readings::Reading,
};
use llmprof::{
    config::ThemeName,
    report::run_json,
    state::RunState,
    tui::{
        frame::Frame,
        theme::{Depth, Glyphs, Theme},
        ui::Pane,
        view::View,
    },
};
use ratatui::{Terminal, backend::TestBackend};

use super::{drawn, kernels::screens, run_started, showing};

/// A vLLM server with a full cache: three requests at a time, each with 20 ms in the queue and 30 ms of prefill; the last one is refused.
fn serving() -> RunState {
    let times = ServerTimes { queue_ms: Some(20.0), prefill_ms: Some(30.0), ..ServerTimes::default() };
    serving_as(times, ServerSample::default(), 0.0)
}

/// The same with these times of each request and this `sample`; a token of request 5 comes `late_ms` late.
fn serving_as(times: ServerTimes, sample: ServerSample, late_ms: f64) -> RunState {
    let mut state = RunState::default();
    let mut apply = |ms: f64, event: Event| state.apply(&Envelope { t: Stamp((ms * 1e6) as u64), event });
    let slo = Some(Slo { ttft_p99_ms: Some(59.0), ..Slo::default() });
    apply(
        0.0,
        Event::RunStarted(Box::new(RunStarted {
            kind: WorkKind::Server,
            slo,
            requests: 12,
            ..run_started()
        })),
    );
    apply(
        1.0,
        Event::ServerFound(Box::new(ServerFound {
            server: 0,
            url: "http://127.0.0.1:8000".into(),
            kind: ServerKind::Vllm,
            model: Some("org/model-7b".into()),
            metrics: Some("http://127.0.0.1:8000/metrics".into()),
            load: None,
        })),
    );
    let gpu = GpuInfo {
        name: "NVIDIA H200".into(),
        power_limit_w: Some(700.0),
        sm_clock_max_mhz: Some(1980),
        ..GpuInfo::default()
    };
    apply(1.0, Event::GpuFound(Box::new(gpu)));
    let mut events: Vec<(f64, Event)> = Vec::new();
    for n in 0..14u32 {
        let capped = n > 7;
        let sample = GpuSample::new(0)
            .with(Reading::SmClock, if capped { 1410.0 } else { 1980.0 })
            .with(Reading::Power, if capped { 699.0 } else { 500.0 })
            .with_reasons(if capped { 4 } else { 0 });
        events.push((50.0 + 100.0 * f64::from(n), Event::GpuSample(Box::new(sample))));
    }
    for request in 0..12u32 {
        let start = 100.0 + 100.0 * f64::from(request);
        let failed = request == 11;
        events.push((
            start,
            Event::RequestStarted(RequestStarted {
                request,
                warmup: false,
                batch: 1,
                prompt_tokens: 100,
                output_tokens: 24,
                cooldown: false,
                joined: false,
                images: 0,
            }),
        ));
        let ttft = 58.0 + 2.0 * f64::from(request % 2);
        for index in 0..(if failed { 0 } else { 24u32 }) {
            let token = Token { request, index, id: 0, device_ns: None, speculation: None };
            let late = if request == 5 && index >= 12 { late_ms } else { 0.0 };
            events.push((start + ttft + late + 10.0 * f64::from(index), Event::Token(token)));
        }
        let served = Served {
            late_ns: 100_000,
            connecting: Some(Connecting { resolve_ns: 100_000, tcp_ns: 900_000, tls_ns: 0 }),
            send_ns: 50_000,
            head_ns: Some(1_000_000),
            chunks: 24,
            together: 0,
            prompt_tokens: Some(100),
            output_tokens: Some(24),
            tokenized: false,
            cached_tokens: Some(0),
            server: times,
            reconnected: false,
            failure: failed.then_some(RequestFailure::Status(429)),
        };
        let finished = RequestFinished { request, complete: !failed, served: Some(Box::new(served)) };
        let late = if request == 5 { late_ms } else { 0.0 };
        events
            .push((start + if failed { 5.0 } else { ttft + late + 230.5 }, Event::RequestFinished(finished)));
    }
    for second in 0..2u32 {
        let sample = ServerSample {
            running: Some(3.0),
            queued: Some(f64::from(second)),
            kv_used: Some(0.98),
            preemptions: Some(2.0),
            output_tok_s: Some(240.0),
            ..sample.clone()
        };
        events.push((500.0 + 700.0 * f64::from(second), Event::ServerSample(Box::new(sample))));
        let client = ClientSample { streams: 3, lag_p50_us: 1000, lag_p99_us: 1200, lag_max_us: 2000 };
        events.push((501.0 + 700.0 * f64::from(second), Event::ClientSample(client)));
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    events.into_iter().for_each(|(ms, event)| apply(ms, event));
    state
}

#[test]
fn a_server_has_its_pane() {
    let state = serving();
    insta::assert_snapshot!("server", screens(&state, &showing(Pane::Server)));
    insta::assert_snapshot!("server_overview", screens(&state, &showing(Pane::Overview)));
}

/// Its last readings before it died are not shown as current ones.
#[test]
fn a_silent_monitored_server_shows_since_when() {
    let mut state = serving();
    let watch = RunStarted { kind: WorkKind::Watch, requests: 0, ..run_started() };
    state.apply(&Envelope { t: state.now, event: Event::RunStarted(Box::new(watch)) });
    let silent = ServerSilent { server: 0, url: None, answers: false, why: "connection refused".into() };
    state.apply(&Envelope { t: state.now, event: Event::ServerSilent(silent) });
    let later = Event::Notice(Notice { level: Level::Info, source: "server".into(), text: "later".into() });
    state.apply(&Envelope { t: Stamp(state.now.0 + 14_000_000_000), event: later });
    let text = screens(&state, &showing(Pane::Server));
    for words in ["has not answered for 14 s", ", 14 s ago"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("Requests wait in the queue"), "{text}");
    // It is in the header of every pane; a header of 30 columns has no room for it.
    for pane in [Pane::Server, Pane::Gpu, Pane::Log] {
        for size in [(80, 24), (120, 40), (200, 50)] {
            let screen = drawn(&state, &showing(pane), Glyphs::UNICODE, size);
            let header = screen.lines().next().unwrap_or_default();
            assert!(header.contains("no answer for 14 s: connection refused"), "{pane:?} {size:?}: {header}");
        }
    }
}

/// A run whose server died: the outcome is in every header, and the first sentences name the cause.
#[test]
fn every_pane_of_a_run_whose_server_died_shows_the_failure() {
    let mut state = serving();
    let cause = "the server stopped answering at 1.3 s (connection refused): 4 of 12 requests failed, 1,988 were not sent";
    let finished = RunFinished { outcome: Outcome::Failed, cause: Some(cause.into()) };
    state.apply(&Envelope { t: state.now, event: Event::RunFinished(finished) });
    for pane in Pane::ALL {
        for size in [(80, 24), (200, 50)] {
            let screen = drawn(&state, &showing(pane), Glyphs::UNICODE, size);
            let header = screen.lines().next().unwrap_or_default();
            assert!(header.contains("● failed"), "{pane:?} {size:?}: {header}");
            for claim in ["serving", "completed", "monitoring"] {
                assert!(!header.contains(claim), "{pane:?} {size:?}: {header}");
            }
        }
    }
    let overview = drawn(&state, &showing(Pane::Overview), Glyphs::UNICODE, (200, 50));
    assert!(overview.contains("The run failed: the server stopped answering at 1.3 s"), "{overview}");
}

#[test]
fn the_outcome_in_the_header_has_its_colour() {
    let (ui, theme) = (showing(Pane::Server), Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE));
    for (outcome, word, style) in
        [(Outcome::Failed, "failed", theme.bad), (Outcome::Completed, "completed", theme.good)]
    {
        let mut state = serving();
        let finished = RunFinished { outcome, cause: Some("the server stopped answering".into()) };
        state.apply(&Envelope { t: state.now, event: Event::RunFinished(finished) });
        let mut terminal = Terminal::new(TestBackend::new(120, 10)).unwrap();
        let view = View::new(&state, &ui, &theme);
        terminal.draw(|frame| frame.render_widget(Frame(view), frame.area())).unwrap();
        let header = &terminal.backend().buffer().content[..120];
        // The text has one character in each cell.
        let text: String = header.iter().map(|cell| cell.symbol()).collect();
        let column = text.find(word).map(|at| text[..at].chars().count());
        let column = column.unwrap_or_else(|| panic!("{word}: {text}"));
        for cell in &header[column..column + word.len()] {
            assert_eq!(Some(cell.fg), style.fg, "{word}: {text}");
        }
    }
}

/// Several concurrent streams: each has a row, and a late token is visible.
#[test]
fn the_tokens_of_several_streams_have_rows() {
    let state = serving_as(ServerTimes::default(), ServerSample::default(), 60.0);
    let text = screens(&state, &showing(Pane::Tokens));
    assert!(text.contains("4 streams") && text.contains("max 70.0 ms"), "{text}");
    insta::assert_snapshot!("server_tokens", text);
}

/// vLLM reports queue and prefill as histograms over all requests: their means are parts of TTFT, and the wait is the rest.
#[test]
fn means_of_the_server_are_parts_of_ttft() {
    let sample = ServerSample {
        timed_requests: Some(4.0),
        queue_ms: Some(20.0),
        prefill_ms: Some(30.0),
        ..ServerSample::default()
    };
    let state = serving_as(ServerTimes::default(), sample, 0.0);
    let run = run_json(&state, None);
    let parts = &run["server"]["ttft_parts_ms"];
    assert_eq!((&parts["queue"]["mean"], &parts["queue"]["by"]), (&20.0.into(), &"server".into()));
    let part = |name: &str| parts[name]["mean"].as_f64().unwrap();
    let sum: f64 = ["connect", "send", "queue", "prefill", "wait"].map(part).iter().sum();
    assert!((sum - run["ttft_ms"]["mean"].as_f64().unwrap()).abs() < 1e-6, "the parts are the whole");
    insta::assert_snapshot!("server_own_means", screens(&state, &showing(Pane::Server)));
}

/// Compared with calculation by hand: TTFT 58 and 60 ms alternately for eleven requests, TPOT 10 ms, eleven good of
/// twelve at most 59 ms.
#[test]
fn the_figures_are_those_of_the_events() {
    let run = run_json(&serving(), None);
    let server = &run["server"];
    assert_eq!((server["requests"].as_u64(), server["failed"].as_u64()), (Some(11), Some(1)));
    assert!((run["ttft_ms"]["mean"].as_f64().unwrap() - (6.0 * 58.0 + 5.0 * 60.0) / 11.0).abs() < 1e-6);
    assert!((run["tpot_ms"]["mean"].as_f64().unwrap() - 10.0).abs() < 1e-6);
    assert_eq!(server["good"], 6, "those of 58 ms");
    assert_eq!(server["output_tokens"], 11 * 24);
    let part = |name: &str| server["ttft_parts_ms"][name]["mean"].as_f64().unwrap();
    let sum: f64 = ["connect", "send", "queue", "prefill", "wait"].map(part).iter().sum();
    assert!((sum - run["ttft_ms"]["mean"].as_f64().unwrap()).abs() < 1e-6, "the parts are the whole");
    let why: Vec<&str> = server["why"].as_array().unwrap().iter().filter_map(|text| text.as_str()).collect();
    assert!(why[0].starts_with("1 of 12 requests failed"), "{why:?}");
    assert!(why[1].starts_with("KV cache 98 %") && why[1].contains("--max-num-seqs"), "{why:?}");
    assert!(why.iter().any(|text| text.starts_with("Requests wait 20.0 ms in the queue")), "{why:?}");
}

/// A list of the monitored servers, with the selected one below it.
#[test]
fn several_servers_are_a_list() {
    let mut state = RunState::default();
    let mut apply = |s: u64, event: Event| state.apply(&Envelope { t: Stamp(s * 1_000_000_000), event });
    apply(0, Event::RunStarted(Box::new(RunStarted { kind: WorkKind::Watch, ..run_started() })));
    for server in 0..2 {
        let url = format!("http://node{server}:8000");
        apply(
            1,
            Event::ServerFound(Box::new(ServerFound {
                server,
                url,
                kind: ServerKind::Vllm,
                model: None,
                metrics: None,
                load: None,
            })),
        );
        let sample = ServerSample {
            server,
            running: Some(3.0),
            queued: Some(f64::from(10 * server)),
            ..ServerSample::default()
        };
        apply(2, Event::ServerSample(Box::new(sample)));
    }
    let silent = |server: u32, url: Option<&str>| ServerSilent {
        server,
        url: url.map(str::to_owned),
        answers: false,
        why: "connection refused".into(),
    };
    apply(3, Event::ServerSilent(silent(2, Some("http://node2:8000"))));
    apply(17, Event::ServerSilent(silent(2, Some("http://node2:8000"))));
    let alert =
        AlertChanged { alert: "queued>5".into(), of: "http://node1:8000".into(), value: 10.0, crossed: true };
    apply(17, Event::AlertChanged(alert));
    assert_eq!(state.alerts_crossed, 1);
    let first = screens(&state, &showing(Pane::Server));
    for words in [
        "3 servers",
        "http://node0:8000  vllm  3.00 running  0 queued",
        "http://node1:8000  vllm  3.00 running  10.0 queued",
        "http://node2:8000  no answer for 14 s: connection refused",
        "vllm · http://node0:8000",
        "1 of 3 servers do not answer",
    ] {
        assert!(first.contains(words), "{words}: {first}");
    }
    let mut ui = showing(Pane::Server);
    *ui.row_mut(Pane::Server) = 1;
    let second = screens(&state, &ui);
    assert!(
        second.contains("vllm · http://node1:8000") && !second.contains("vllm · http://node0:8000"),
        "{second}"
    );
    let log = screens(&state, &showing(Pane::Log));
    assert!(log.contains("alert queued>5: 10.0 (http://node1:8000)"), "{log}");
}
