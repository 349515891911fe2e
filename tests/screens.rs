//! Every pane at three sizes, in its four looks: no data yet, running, unavailable, too small.

use llmprof::{
    config::ThemeName,
    event::{
        Envelope, Event, GpuAbsent, HostInfo, HostSample, Level, Notice, RequestStarted, RunStarted, SCHEMA,
        Stamp, Token,
    },
    rundir::{EventReader, Player},
    state::{RunState, Snapshot},
    tui::{
        frame::Frame,
        theme::{Depth, Glyphs, Theme},
        ui::{Asks, Overlay, Pane, UiState},
        view::View,
    },
};
use ratatui::{Terminal, backend::TestBackend};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (30, 8)];

/// The demo recording at a moment in its thermal episode.
fn running() -> RunState {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo/events.ndjson");
    let mut player = Player::open(move || EventReader::open(path.as_ref())).unwrap();
    player.seek(Stamp::from_secs_f64(84.0)).unwrap();
    player.state().clone()
}

/// A CPU run on a machine without a GPU.
fn without_gpu() -> RunState {
    let mut state = RunState::default();
    let mut apply = |ms: u64, event: Event| state.apply(&Envelope { t: Stamp(ms * 1_000_000), event });
    apply(0, Event::RunStarted(Box::new(run_started())));
    let absent = GpuAbsent {
        reason: "libnvidia-ml.so.1 is not on this machine".into(),
        remedy: "install the NVIDIA driver; without one the workload runs on the CPU".into(),
    };
    apply(1, Event::GpuAbsent(absent));
    let info = HostInfo {
        cpu: "Example CPU".into(),
        cores: 2,
        os: "Linux".into(),
        mem_total_bytes: Some(24_000_000_000),
        power_source: "/sys/class/powercap is not there".into(),
    };
    apply(2, Event::HostFound(Box::new(info)));
    let notice = Notice { level: Level::Info, source: "engine".into(), text: "ready after 412 ms".into() };
    apply(3, Event::Notice(notice));
    let started =
        RequestStarted { request: 0, warmup: false, batch: 1, prompt_tokens: 128, output_tokens: 64 };
    apply(500, Event::RequestStarted(started));
    for i in 0..40u64 {
        let token = Token { request: 0, index: i as u32, id: 100 + i as u32 };
        apply(900 + 70 * i + if i == 20 { 60 } else { 0 }, Event::Token(token));
        if i % 7 == 0 {
            let sample = HostSample {
                core_pct: vec![97.0, 88.0],
                freq_mhz: None,
                mem_used_bytes: Some(2_100_000_000),
                process_pct: Some(183.0),
                process_rss_bytes: Some(700_000_000),
                package_power_w: None,
            };
            apply(900 + 70 * i, Event::HostSample(Box::new(sample)));
        }
    }
    state
}

fn run_started() -> RunStarted {
    RunStarted {
        schema: SCHEMA,
        program: "llmprof-tui".into(),
        started_unix_ms: 0,
        experiment: "baseline".into(),
        model: "smollm2_135m".into(),
        dtype: "f32".into(),
        engine: "candle".into(),
        device: "cpu".into(),
        synthetic_weights: true,
        simulated: false,
        parameters: 134_515_008,
        weight_bytes: 538_060_032,
        step_weight_bytes: 538_060_032,
        kv_bytes_per_position: 46_080,
        requests: 10,
        warmup: 1,
        batch: 1,
        prompt_tokens: 128,
        output_tokens: 64,
        seed: 0,
        overrides: Vec::new(),
    }
}

fn drawn(state: &RunState, ui: &UiState, glyphs: Glyphs, (width, height): (u16, u16)) -> String {
    let theme = Theme::new(ui.theme, Depth::True, glyphs);
    let snapshots: Vec<Snapshot> = state.snapshots.iter().cloned().collect();
    let view = View {
        state,
        ui,
        theme: &theme,
        replay: None,
        frozen: false,
        waiting: None,
        loss: None,
        runs: &[],
        snapshots: &snapshots,
        sweep: None,
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| frame.render_widget(Frame(view), frame.area())).unwrap();
    terminal.backend().to_string()
}

fn at_all_sizes(state: &RunState, ui: &UiState) -> String {
    let screen =
        |size: (u16, u16)| format!("{}x{}\n{}", size.0, size.1, drawn(state, ui, Glyphs::UNICODE, size));
    SIZES.map(screen).join("\n")
}

fn showing(pane: Pane) -> UiState {
    UiState { pane, ..UiState::new(ThemeName::Dark) }
}

#[test]
fn panes_in_their_looks() {
    let looks = [("no data", RunState::default()), ("running", running()), ("no gpu", without_gpu())];
    for pane in Pane::ALL {
        for (look, state) in &looks {
            let name = format!("{} {look}", pane.title()).to_lowercase().replace(' ', "_");
            insta::assert_snapshot!(name, at_all_sizes(state, &showing(pane)));
        }
    }
}

#[test]
fn help_and_prompts_lie_on_top() {
    let state = running();
    let mut ui = showing(Pane::Overview);
    ui.overlay = Overlay::Help { scroll: 0 };
    insta::assert_snapshot!("help", at_all_sizes(&state, &ui));
    ui.ask(Asks::Overrides, "runtime.batch_size=two".into());
    if let Overlay::Prompt(prompt) = &mut ui.overlay {
        prompt.error = Some("runtime.batch_size wants a whole number, got \"two\"".into());
    }
    insta::assert_snapshot!("prompt_refused", at_all_sizes(&state, &ui));
}

#[test]
fn ascii_screens_are_ascii() {
    for state in [running(), without_gpu()] {
        for pane in Pane::ALL {
            let screen = drawn(&state, &showing(pane), Glyphs::ASCII, (120, 40));
            let odd: Vec<char> = screen.chars().filter(|c| !c.is_ascii()).collect();
            assert!(odd.is_empty(), "{pane:?}: {odd:?}\n{screen}");
        }
    }
}

#[test]
fn no_size_and_no_pane_panics() {
    let states = [RunState::default(), running(), without_gpu()];
    let widths = [1, 5, 12, 13, 20, 30, 49, 55, 56, 60, 79, 80, 101, 200];
    for state in &states {
        for pane in Pane::ALL {
            for width in widths {
                for height in [1, 2, 3, 4, 6, 8, 9, 12, 15, 24, 34, 50] {
                    let mut ui = showing(pane);
                    for overlay in [Overlay::None, Overlay::Help { scroll: 99 }] {
                        ui.overlay = overlay;
                        drawn(state, &ui, Glyphs::UNICODE, (width, height));
                    }
                    ui.ask(Asks::SnapshotName, "x".repeat(300));
                    drawn(state, &ui, Glyphs::ASCII, (width, height));
                }
            }
        }
    }
}

#[test]
fn a_small_terminal_still_tells_the_speed() {
    let screen = drawn(&running(), &showing(Pane::Overview), Glyphs::UNICODE, (30, 8));
    assert!(screen.contains("tok/s") && screen.contains("TTFT"), "{screen}");
}
