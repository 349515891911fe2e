//! Every pane at three sizes, in four states: no data yet, running, not available, too small.

mod export;
mod kernels;
mod lines;
mod ranks;
mod runs;
mod server;

use std::time::Duration;

use llmprof::{
    analysis::{
        compare::{Options, Subject, compare},
        metrics::Metrics,
    },
    config::{Dtype, Override, ThemeName, built_in, compose},
    event::{
        Device, Envelope, Event, GivenPeaks, GpuAbsent, GpuInfo, GpuLost, GpuProcess, GpuProcesses,
        GpuSample, HostInfo, HostSample, KernelReport, Level, ModelEngine, Notice, OperatorTime,
        OperatorWindow, Outcome, Phase, Preparing, RequestFinished, RequestStarted, RunFinished, RunStarted,
        SCHEMA, SnapshotTaken, Stamp, Token, ToolRun, ToolState, WorkKind, readings::Reading,
    },
    model::{Operator, Shape, Step},
    report::{plots::roofline_svg, report_md, run_json},
    rundir::{EventReader, Next, Player},
    sim::{SimSteps, card::H200, sim_kernels},
    state::{RunState, Snapshot},
    sweep::{CooldownStatus, Job, JobResult, JobState, LiveFigures, Placement, Sweep, Temperature},
    tui::{
        frame::Frame,
        theme::{Depth, Glyphs, Theme},
        ui::{Action, ComparePart, Extent, Overlay, Pane, PromptKind, UiState, update},
        view::{Elsewhere, Progress, SweepView, View},
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
    let started = RequestStarted {
        request: 0,
        warmup: false,
        batch: 1,
        prompt_tokens: 128,
        output_tokens: 64,
        cooldown: false,
        joined: false,
        images: 0,
    };
    apply(500, Event::RequestStarted(started));
    for i in 0..40u64 {
        let token =
            Token { request: 0, index: i as u32, id: 100 + i as u32, device_ns: None, speculation: None };
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

pub fn run_started() -> RunStarted {
    RunStarted {
        schema: SCHEMA,
        program: "llmprof-tui".into(),
        started_unix_ms: 0,
        experiment: "baseline".into(),
        model: "smollm2_135m".into(),
        dtype: "f32".into(),
        kind: WorkKind::Model(ModelEngine::Candle),
        device: Device::Cpu,
        synthetic_weights: true,
        simulated: false,
        parameters: 134_515_008,
        weight_bytes: 538_060_032,
        step_weight_bytes: Some(538_060_032),
        kv_bytes_per_position: 46_080,
        requests: 10,
        warmup: 1,
        batch: 1,
        prompt_tokens: 128,
        output_tokens: 64,
        seed: 0,
        overrides: Vec::new(),
        shape: Some(Box::new(shape("smollm2_135m", Dtype::F32))),
        peaks: GivenPeaks::default(),
        command: None,
        slo: None,
        gpu_hour: None,
        perturbed: None,
    }
}

/// A shape of the built-in configuration.
fn shape(model: &str, dtype: Dtype) -> Shape {
    let composed = compose(&built_in(), &[format!("model={model}")]).unwrap();
    Shape::from_hf(&composed.config.model.arch, dtype).unwrap()
}

/// The demo with simulated kernels of both phases, and counters that ncu wrote on an H200.
fn with_kernels(graph: bool) -> RunState {
    let mut state = running();
    let t = state.now;
    let shape = shape("qwen2_5_7b", Dtype::Bf16);
    let of = |phase, step, steps, step_ns, graph| {
        sim_kernels(&SimSteps { shape: &shape, card: &H200, phase, step, steps, step_ns, graph, seed: 1 })
    };
    let windows = [
        of(Phase::Decode, Step::decode(1, 1152), 500, 3_800_000, graph),
        of(Phase::Prefill, Step::prefill(1, 1024), 4, 22_000_000, false),
    ];
    for (window, timeline) in windows {
        state.apply(&Envelope { t, event: Event::Kernels(Box::new(window)) });
        state.apply(&Envelope { t, event: Event::StepTimeline(Box::new(timeline)) });
    }
    let counted = include_bytes!("fixtures/h200_ncu_raw.csv");
    let table = llmprof::kernels::ncu::read_raw("raw", &counted[..]).unwrap();
    let report = KernelReport {
        tool: "ncu 2025.3.1".into(),
        phase: Some(Phase::Decode),
        file: "raw.csv".into(),
        tables: vec![table],
    };
    state.apply(&Envelope { t, event: Event::KernelReport(Box::new(report)) });
    state
}

fn drawn(state: &RunState, ui: &UiState, glyphs: Glyphs, size: (u16, u16)) -> String {
    drawn_in(None, state, ui, glyphs, size)
}

fn drawn_in(
    sweep: Option<SweepView<'_>>,
    state: &RunState,
    ui: &UiState,
    glyphs: Glyphs,
    (width, height): (u16, u16),
) -> String {
    let theme = Theme::new(ui.theme, Depth::True, glyphs);
    let snapshots: Vec<Snapshot> = state.snapshots.iter().cloned().collect();
    let comparison = match &snapshots[..] {
        [.., a, b] if ui.pane == Pane::Compare => {
            let options = Options { subject: Subject::Snapshots, ..Options::default() };
            a.sample.as_ref().zip(b.sample.as_ref()).map(|(a, b)| compare(a, b, &options))
        }
        _ => None,
    };
    let view = View {
        snapshots: &snapshots,
        comparison: comparison.as_ref(),
        sweep,
        ..View::new(state, ui, &theme)
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
fn panes_in_every_state() {
    let states = [("no data", RunState::default()), ("running", running()), ("no gpu", without_gpu())];
    for pane in Pane::ALL {
        for (state_name, state) in &states {
            let name = format!("{} {state_name}", pane.title()).to_lowercase().replace(' ', "_");
            insta::assert_snapshot!(name, at_all_sizes(state, &showing(pane)));
        }
    }
}

/// `exec` of a program that did not use CUDA, after its end.
fn without_cuda() -> RunState {
    let run = RunStarted {
        model: "sh".into(),
        dtype: String::new(),
        kind: WorkKind::Program,
        synthetic_weights: false,
        parameters: 0,
        weight_bytes: 0,
        step_weight_bytes: None,
        kv_bytes_per_position: 0,
        requests: 0,
        warmup: 0,
        prompt_tokens: 0,
        output_tokens: 0,
        shape: None,
        command: Some("sh -c 'echo hello'".into()),
        ..run_started()
    };
    let mut state = RunState::default();
    let mut apply = |ms: u64, event: Event| state.apply(&Envelope { t: Stamp(ms * 1_000_000), event });
    apply(0, Event::RunStarted(Box::new(run)));
    let step = "the program has not started CUDA".into();
    apply(1, Event::Preparing(Preparing { step, done: 0, total: 1 }));
    let text = "the program did not use CUDA, or loads it without the driver's library: there are no kernels";
    apply(900, Event::Notice(Notice { level: Level::Warn, source: "program".into(), text: text.into() }));
    apply(900, Event::RunFinished(RunFinished { outcome: Outcome::Completed, cause: None }));
    state
}

/// The words of a screen without its frames.
fn words_of(screen: &str) -> String {
    let words = screen.lines().flat_map(|line| line.trim_matches('"').split(['│', ' ']));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Each pane says why it is empty, to the last word.
#[test]
fn every_empty_pane_says_why() {
    let no_snapshot = "No snapshot yet. Press s to save what was measured so far, change something, and press s \
                       again: the two snapshots are compared here.";
    let no_server =
        "no server: llmprof-tui run runtime=openai runtime.server.url=http://HOST:PORT, or watch URL";
    let no_ranks =
        "no ranks: llmprof-tui exec -- torchrun --nproc-per-node 2 PROGRAM, or kernels TRACE TRACE…";
    let in_an_empty_directory = |pane: Pane| match pane {
        Pane::Overview => "No measurements yet.",
        Pane::Why => {
            "No measurements yet: the first request adds the account of its TTFT, its tokens that of TPOT."
        }
        Pane::Gpu => "no sample yet",
        Pane::Tokens => "no token yet",
        Pane::Kernels => "llmprof-tui kernels FILE shows an nsys or ncu report",
        Pane::Roofline => "No data recorded yet.",
        Pane::Compare => no_snapshot,
        Pane::Runs => "no recorded runs",
        Pane::Log => "no messages",
        Pane::Server => no_server,
        Pane::Ranks => no_ranks,
        Pane::Lines => "no Python program: llmprof-tui exec -- python PROGRAM, or attach PID",
    };
    let no_cuda = "The program did not use CUDA: none of its processes started the driver.";
    let of_a_program_without_cuda = |pane: Pane| match pane {
        Pane::Overview | Pane::Why | Pane::Kernels | Pane::Roofline => no_cuda,
        Pane::Gpu => "no sample was taken",
        Pane::Tokens => "no token was measured",
        Pane::Log => {
            "the program did not use CUDA, or loads it without the driver's library: there are no kernels"
        }
        Pane::Compare => no_snapshot,
        Pane::Runs => "no recorded runs",
        Pane::Server => no_server,
        Pane::Ranks => no_ranks,
        Pane::Lines => "no line of a Python program was sampled",
    };
    for size in [(80, 24), (200, 50)] {
        for pane in Pane::ALL {
            for (state, sentence) in [
                (RunState::default(), in_an_empty_directory(pane)),
                (without_cuda(), of_a_program_without_cuda(pane)),
            ] {
                let screen = drawn(&state, &showing(pane), Glyphs::UNICODE, size);
                assert!(words_of(&screen).contains(sentence), "{pane:?} {size:?}, {sentence}:\n{screen}");
                // What did not happen does not follow either.
                let has_ended = state.finished.is_some();
                assert!(!has_ended || !screen.contains("no token yet"), "{pane:?} {size:?}:\n{screen}");
            }
        }
    }
}

#[test]
fn the_roofline_shows_operators_and_kernels() {
    let state = with_kernels(true);
    let mut ui = showing(Pane::Roofline);
    *ui.row_mut(Pane::Roofline) = 3;
    insta::assert_snapshot!("roofline_operators", at_all_sizes(&state, &ui));
    *ui.row_mut(Pane::Roofline) = 1000;
    let last = drawn(&with_kernels(false), &ui, Glyphs::UNICODE, (160, 50));
    assert!(last.contains("A CUDA graph would save about"), "{last}");
    for (width, height) in
        [(200, 50), (120, 40), (80, 24), (110, 12), (60, 16), (40, 14), (30, 8), (13, 4), (1, 1)]
    {
        drawn(&state, &ui, Glyphs::UNICODE, (width, height));
        let ascii = drawn(&state, &ui, Glyphs::ASCII, (width, height));
        assert!(ascii.is_ascii(), "{ascii}");
    }
}

#[test]
fn mfu_and_mbu_are_on_the_screen_and_in_the_report() {
    let state = with_kernels(true);
    let screen = drawn(&state, &showing(Pane::Overview), Glyphs::UNICODE, (120, 40));
    assert!(screen.contains("MBU") && screen.contains("of 4.80 TB/s") && screen.contains("MFU"), "{screen}");
    let json = run_json(&state, None);
    for key in ["mfu", "mbu"] {
        let share = json[key].as_f64().unwrap();
        assert!((0.01..1.0).contains(&share), "{key} {share}");
    }
    let report = report_md(&state);
    for words in ["## Efficiency", "decode gate_up", "roofline.svg", "989 TFLOP/s at 1,830 MHz"] {
        assert!(report.contains(words), "{report}");
    }
    let svg = roofline_svg(&state).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("decode gate_up") && svg.contains("simulated"), "{svg}");

    let cpu = without_gpu();
    let json = run_json(&cpu, None);
    assert!(json["mfu"].is_null() && json["mbu"].is_null());
    assert!(report_md(&cpu).contains("Peaks unknown: no GPU is profiled"));
    assert!(roofline_svg(&cpu).unwrap().contains("peaks unknown"));
    assert_eq!(roofline_svg(&RunState::default()), None);
}

/// A run with two snapshots of twelve requests each; `ratio` is the ITL of the second divided by that of the first.
fn two_snapshots(ratio: f64) -> RunState {
    two_snapshots_of(12, 16, ratio)
}

fn two_snapshots_of(requests: u32, tokens: u32, ratio: f64) -> RunState {
    let mut state = RunState::default();
    let mut t = 0;
    let mut apply = |after_us: u64, event: Event| {
        t += after_us * 1000;
        state.apply(&Envelope { t: Stamp(t), event });
    };
    apply(0, Event::RunStarted(Box::new(run_started())));
    for (nth, name) in ["before", "after"].into_iter().enumerate() {
        for request in 0..requests {
            let id = requests * nth as u32 + request;
            let started = RequestStarted {
                request: id,
                warmup: false,
                batch: 1,
                prompt_tokens: 128,
                output_tokens: tokens,
                cooldown: false,
                joined: false,
                images: 0,
            };
            apply(1000, Event::RequestStarted(started));
            for index in 0..tokens {
                let noise = u64::from((index * 37 + request * 11) % 20);
                let gap = if nth == 0 { 4000.0 } else { 4000.0 * ratio };
                let gap = if index == 0 { 40_000 } else { gap as u64 + noise };
                apply(
                    gap,
                    Event::Token(Token { request: id, index, id: index, device_ns: None, speculation: None }),
                );
            }
            apply(10, Event::RequestFinished(RequestFinished { request: id, complete: true, served: None }));
        }
        apply(10, Event::Operators(Box::new(operators_of(if nth == 0 { 1.0 } else { ratio }))));
        apply(10, Event::Snapshot(SnapshotTaken { name: name.to_owned() }));
    }
    state
}

/// A hundred decode steps on the CPU. Matrix products take `ratio` times as long, attention a little less.
fn operators_of(ratio: f64) -> OperatorWindow {
    let of = |operator, us: f64| {
        let ns = (us * 1e3) as u64;
        OperatorTime { operator, calls: 100, ns: ns * 100, min_ns: ns, max_ns: ns, heap: None }
    };
    let operators = vec![
        of(Operator::Qkv, 600.0 * ratio),
        of(Operator::Rope, 40.0),
        of(Operator::Attention, 310.0 - 20.0 * (ratio - 1.0)),
        of(Operator::GateUp, 1400.0 * ratio),
        of(Operator::Down, 700.0 * ratio),
        of(Operator::LmHead, 900.0),
    ];
    let host_ns = operators.iter().map(|time| time.ns).sum::<u64>() + 5_000_000;
    OperatorWindow { phase: Phase::Decode, steps: 100, host_ns, operators, ..OperatorWindow::default() }
}

#[test]
fn two_snapshots_have_a_verdict() {
    for (name, ratio) in [("faster", 0.95), ("same", 1.0), ("slower", 1.2)] {
        let state = two_snapshots(ratio);
        let screen = at_all_sizes(&state, &showing(Pane::Compare));
        let wide = drawn(&state, &showing(Pane::Compare), Glyphs::UNICODE, (200, 50));
        let screen = format!("{screen}\n200x50\n{wide}");
        assert!(screen.contains(&name.to_uppercase()), "{screen}");
        insta::assert_snapshot!(format!("compare_{name}"), screen);
        let ascii = drawn(&state, &showing(Pane::Compare), Glyphs::ASCII, (120, 40));
        assert!(ascii.is_ascii(), "{ascii}");
    }
}

#[test]
fn the_parts_of_a_comparison_have_a_screen_each() {
    let state = two_snapshots(1.2);
    let mut ui = showing(Pane::Compare);
    let mut screens = Vec::new();
    for part in [ComparePart::Itl, ComparePart::Operators, ComparePart::Notes] {
        update(&mut ui, Action::NextComparePart, Extent::default());
        assert_eq!(ui.compare_part, part);
        screens.push(drawn(&state, &ui, Glyphs::UNICODE, (80, 24)));
        let ascii = drawn(&state, &ui, Glyphs::ASCII, (80, 24));
        assert!(ascii.is_ascii(), "{ascii}");
    }
    insta::assert_snapshot!("compare_parts", screens.join("\n"));
    update(&mut ui, Action::NextComparePart, Extent::default());
    assert_eq!(ui.compare_part, ComparePart::All);
}

#[test]
fn one_snapshot_is_compared_with_the_time_since() {
    let mut state = two_snapshots(1.1);
    state.snapshots.pop_back();
    let screen = at_all_sizes(&state, &showing(Pane::Compare));
    assert!(screen.contains("differences, no verdict"), "{screen}");
}

#[test]
fn snapshots_of_two_requests_have_a_verdict_by_their_tokens() {
    let state = two_snapshots_of(2, 101, 1.05);
    let screen = drawn(&state, &showing(Pane::Compare), Glyphs::UNICODE, (120, 40));
    let wanted = "SLOWER  TPOT of B is 5.0 % higher in these two snapshots (95 % CI: +5.0 % to +5.0 %, n = 200 and 200 tokens)";
    assert!(screen.contains(wanted), "{screen}");
    assert!(screen.contains("TPOT is from blocks of consecutive tokens"), "{screen}");
}

/// The profiled GPU, another one, and one that is lost.
fn several_gpus() -> RunState {
    let mut state = running();
    let t = state.now;
    let mut apply = |event: Event| state.apply(&Envelope { t, event });
    for index in [1, 2] {
        let info =
            GpuInfo { index, name: "NVIDIA H200".into(), power_limit_w: Some(700.0), ..GpuInfo::default() };
        apply(Event::GpuFound(Box::new(info)));
    }
    let idle = GpuSample::new(1).with(Reading::Power, 76.0).with(Reading::SmClock, 345.0).with_reasons(1);
    apply(Event::GpuSample(Box::new(idle)));
    let (reason, remedy) = ("GPU 2 has gone: it has fallen off the bus".into(), String::new());
    apply(Event::GpuLost(GpuLost { gpu: 2, reason, remedy }));
    state
}

#[test]
fn every_gpu_is_shown() {
    let state = several_gpus();
    insta::assert_snapshot!("gpu_several", at_all_sizes(&state, &showing(Pane::Gpu)));
    let opened = UiState { gpu: Some(1), gpu_open: true, ..showing(Pane::Gpu) };
    let screen = drawn(&state, &opened, Glyphs::UNICODE, (120, 40));
    assert!(screen.contains("GPU 1 · NVIDIA H200") && screen.contains("Esc all 3 GPUs"), "{screen}");
    assert!(!screen.contains("power-capped"), "the verdict is on another GPU: {screen}");
}

/// Eight busy GPUs, one of them too hot.
fn eight_gpus() -> RunState {
    let mut state = running();
    let mut apply = |t: Stamp, event: Event| state.apply(&Envelope { t, event });
    let end = Stamp::from_secs_f64(84.0);
    for index in 1..8 {
        let info = GpuInfo {
            index,
            name: "NVIDIA GeForce RTX 5090".into(),
            power_limit_w: Some(575.0),
            sm_clock_max_mhz: Some(3090),
            slowdown_temp_c: Some(90),
            mem_total_bytes: Some(32 << 30),
            ..GpuInfo::default()
        };
        apply(end, Event::GpuFound(Box::new(info)));
        for step in 0..60u32 {
            let wave = f64::from((step + 7 * index) % 20);
            let hot = index == 5 && step > 30;
            let sample = GpuSample::new(index)
                .with(Reading::GpuUtil, 60.0 + 2.0 * wave)
                .with(Reading::Power, 300.0 + 10.0 * wave)
                .with(Reading::Temp, if hot { 89.0 } else { 50.0 + wave })
                .with(Reading::SmClock, if hot { 1800.0 } else { 2700.0 })
                .with(Reading::MemUsed, f64::from(index) * 3e9)
                .with_reasons(if hot { 0x20 } else { 0 });
            apply(Stamp::from_secs_f64(24.0 + f64::from(step)), Event::GpuSample(Box::new(sample)));
        }
    }
    let processes = vec![
        GpuProcess {
            pid: 4711,
            name: Some("python3".into()),
            user: Some("ada".into()),
            mem_bytes: Some(9 << 30),
            sm_pct: Some(35),
            own: false,
        },
        GpuProcess { pid: 99, name: Some("a\u{1b}[2J".into()), ..GpuProcess::default() },
        GpuProcess { pid: 12, name: Some("llmprof-tui".into()), own: true, ..GpuProcess::default() },
    ];
    apply(end, Event::GpuProcesses(Box::new(GpuProcesses { gpu: 0, processes })));
    apply(
        end,
        Event::GpuSample(Box::new(GpuSample::new(0).with(Reading::Fan, 40.0).with(Reading::FanRpm, 1210.0))),
    );
    state
}

#[test]
fn eight_gpus_fit_and_one_is_opened_with_its_processes() {
    let state = eight_gpus();
    let table = showing(Pane::Gpu);
    let mut screens = at_all_sizes(&state, &table);
    screens += &drawn(&state, &table, Glyphs::UNICODE, (200, 50));
    insta::assert_snapshot!("gpu_eight", screens);
    for (size, glyphs) in [((80, 24), Glyphs::UNICODE), ((80, 24), Glyphs::ASCII)] {
        let screen = drawn(&state, &table, glyphs, size);
        assert_eq!((1..8).filter(|i| screen.contains(&format!(" {i}  RTX 5090"))).count(), 7, "{screen}");
        assert!(!glyphs.ascii || screen.is_ascii(), "{screen}");
    }
    let opened = UiState { gpu: Some(0), gpu_open: true, ..showing(Pane::Gpu) };
    insta::assert_snapshot!("gpu_processes", at_all_sizes(&state, &opened));
}

#[test]
fn evidence_and_an_open_incident() {
    let state = running();
    let evidence = UiState { overlay: Overlay::Evidence { scroll: 0 }, ..showing(Pane::Overview) };
    insta::assert_snapshot!("evidence", at_all_sizes(&state, &evidence));
    assert!(!state.flight.incidents.is_empty());
    let incident = UiState {
        incident_open: state.flight.incidents.last().map(|incident| incident.at),
        ..showing(Pane::Tokens)
    };
    insta::assert_snapshot!("incident", at_all_sizes(&state, &incident));
    let ascii = drawn(&state, &evidence, Glyphs::ASCII, (120, 60));
    assert!(ascii.is_ascii(), "{ascii}");
}

/// Six jobs: completed, interrupted, failed, one running if `running`, the others waiting.
fn sweep(running: bool) -> Sweep {
    let models = ["smollm2_135m", "qwen2_5_72b", "qwen3_0_6b"];
    let mut jobs = Vec::new();
    for model in models {
        for batch in ["1", "16"] {
            let overrides =
                ["runtime=sim".into(), format!("model={model}"), format!("runtime.batch_size={batch}")];
            let overrides = overrides.map(|text| Override::parse(&text).unwrap());
            jobs.push(Job::new(overrides.into(), jobs.len().to_string()));
        }
    }
    let mut sweep = Sweep { dir: "runs/baseline/multirun/2026-01-01_12-00-00".into(), jobs };
    let mut metrics = Metrics::default();
    for _ in 0..20 {
        metrics.first_token(43_100_000, 128, 1);
        metrics.next_token(3_790_000, 1);
        metrics.tpot.record(3_790_000);
    }
    let done = JobResult {
        outcome: Outcome::Completed,
        reason: None,
        lossy: false,
        metrics: Some(metrics.summary()),
        dir: Some(sweep.job_dir(0)),
    };
    sweep.end(0, done.clone());
    sweep.end(
        1,
        JobResult { outcome: Outcome::Interrupted, reason: Some("ended by the user".into()), ..done },
    );
    sweep.end(2, JobResult::failed("qwen2_5_72b needs 291 GB as f32, and 12.1 GB are free".into()));
    if running {
        sweep.begin(3);
    }
    sweep
}

fn cooling() -> CooldownStatus {
    CooldownStatus {
        left: Duration::from_secs(2),
        left_at_most: Duration::from_secs(120),
        temperature: Temperature::Celsius(54.0),
        below_c: Some(45.0),
    }
}

#[test]
fn a_sweep_has_a_progress_line_and_a_table() {
    let (state, working, waiting) = (running(), sweep(true), sweep(false));
    let mut finished = sweep(false);
    (3..6).for_each(|job| finished.end(job, JobResult::failed("no reason in particular".into())));
    let sweeps = [
        ("running", SweepView { sweep: &working, cooling: None, elsewhere: None, progress: None }),
        ("cooling", SweepView { sweep: &waiting, cooling: Some(cooling()), elsewhere: None, progress: None }),
        ("finished", SweepView { sweep: &finished, cooling: None, elsewhere: None, progress: None }),
    ];
    for (name, view) in sweeps {
        for pane in [Pane::Overview, Pane::Compare] {
            let mut state = state.clone();
            if name == "running" {
                state.snapshots.clear();
            }
            let screens = [(80, 24), (200, 50), (30, 8)].map(|size| {
                let screen = drawn_in(Some(view), &state, &showing(pane), Glyphs::UNICODE, size);
                format!("{}x{}\n{screen}", size.0, size.1)
            });
            let name = format!("sweep {name} {}", pane.title()).to_lowercase().replace(' ', "_");
            insta::assert_snapshot!(name, screens.join("\n"));
            let ascii = drawn_in(Some(view), &state, &showing(pane), Glyphs::ASCII, (80, 24));
            assert!(ascii.is_ascii(), "{ascii}");
        }
    }
}

#[test]
fn a_sweep_shows_its_time_and_the_figures_of_the_running_job() {
    let mut state = running();
    state.snapshots.clear();
    let mut working = sweep(true);
    working.jobs[0].took = Some(Duration::from_secs(58));
    let mut metrics = Metrics::default();
    for _ in 0..20 {
        metrics.first_token(51_200_000, 128, 1);
        metrics.next_token(5_120_000, 1);
        metrics.tpot.record(5_120_000);
    }
    let elapsed = Duration::from_secs(42);
    let job = |left_s: Option<f64>| Some(LiveFigures { metrics: metrics.summary(), elapsed, left_s });
    let seen = |sweep: &Sweep, job: Option<LiveFigures>, glyphs: Glyphs, size: (u16, u16)| {
        let progress = Progress {
            elapsed: Duration::from_secs(221),
            jobs: job.into_iter().map(|job| (3, job)).collect(),
        };
        let view = SweepView { sweep, cooling: None, elsewhere: None, progress: Some(&progress) };
        drawn_in(Some(view), &state, &showing(Pane::Compare), glyphs, size)
    };
    let wide = |sweep: &Sweep, job: Option<LiveFigures>| seen(sweep, job, Glyphs::UNICODE, (200, 50));
    let line = |screen: &str, part: &str| {
        let found = screen.lines().find(|line| line.contains(part));
        found.unwrap_or_else(|| panic!("no {part:?} in {screen}")).to_owned()
    };

    // 20 s, and 60 s for each of the two jobs that wait: as long as the first job and this one.
    let screen = wide(&working, job(Some(20.0)));
    assert!(screen.contains("╭ sweep · 03:41, about 2 min left ─"), "{screen}");
    let row = line(&screen, "▸  4  ");
    for cell in ["running", "  00:42", "51.2 ms", "5.12 ms", "  195  ", "about 20 s left"] {
        assert!(row.contains(cell), "{cell:?} is not in {row}");
    }
    let done = line(&screen, "   1  smollm2_135m");
    assert!(done.contains("  00:58") && done.contains("3.79 ms"), "{done}");
    let waiting = line(&screen, "   5  qwen3_0_6b");
    assert!(waiting.contains("waiting") && !waiting.contains("ms"), "{waiting}");
    assert!(screen.contains("job 4/6 · running · 00:42 · about 20 s left"), "{screen}");

    // The end of the job is unknown, and so is that of the sweep.
    let title = line(&wide(&working, job(None)), "╭ sweep");
    assert!(title.contains("╭ sweep · 03:41 ─"), "{title}");
    let mut finished = sweep(false);
    (3..6).for_each(|job| finished.end(job, JobResult::failed("no reason in particular".into())));
    let title = line(&wide(&finished, None), "╭ sweep");
    assert!(title.contains("╭ sweep · 03:41, finished ─"), "{title}");

    for size in [(80, 24), (30, 8), (200, 50)] {
        let screen = seen(&working, job(Some(20.0)), Glyphs::ASCII, size);
        assert!(screen.is_ascii(), "{screen}");
    }
}

/// A sweep on Slurm: one job completed, one failed, two running, two pending.
fn sweep_on_slurm() -> Sweep {
    let mut sweep = sweep(true);
    sweep.jobs[1].state = JobState::Running;
    sweep.jobs[1].result = None;
    for (number, job) in sweep.jobs.iter_mut().enumerate() {
        let on = (number < 4).then(|| format!("node{number}"));
        let note = on.is_none().then(|| "no free resources".to_owned());
        job.placement = Some(Placement { id: format!("412_{number}"), on, note });
    }
    sweep
}

fn on_slurm(trouble: Option<&str>) -> Option<Elsewhere<'_>> {
    Some(Elsewhere { trouble, cancelled: false, elapsed: Duration::from_secs(83) })
}

#[test]
fn jobs_on_slurm_have_a_list_with_a_selected_one() {
    let (state, sweep) = (RunState::default(), sweep_on_slurm());
    let trouble = "Slurm's controller does not answer (connect failure); submitted jobs continue";
    for (name, trouble, job, overlay) in [
        ("followed", None, Some(2), Overlay::None),
        ("away", Some(trouble), None, Overlay::None),
        ("cancelling", None, None, Overlay::ConfirmCancel),
    ] {
        let view = SweepView { sweep: &sweep, cooling: None, elsewhere: on_slurm(trouble), progress: None };
        let mut ui = showing(Pane::Compare);
        (ui.job, ui.overlay) = (job, overlay);
        let screens = [(80, 24), (200, 50), (30, 8)].map(|size| {
            let screen = drawn_in(Some(view), &state, &ui, Glyphs::UNICODE, size);
            format!("{}x{}\n{screen}", size.0, size.1)
        });
        insta::assert_snapshot!(format!("sweep_slurm_{name}"), screens.join("\n"));
        let ascii = drawn_in(Some(view), &state, &ui, Glyphs::ASCII, (80, 24));
        assert!(ascii.is_ascii(), "{ascii}");
    }
}

#[test]
fn no_size_is_too_small_for_a_sweep() {
    let (state, waiting) = (running(), sweep(false));
    for pane in Pane::ALL {
        for width in [1, 12, 20, 40, 60, 200] {
            for height in [1, 3, 6, 8, 12, 50] {
                for cooling in [None, Some(cooling())] {
                    let mut ui = showing(pane);
                    ui.job = Some(5);
                    let view = Some(SweepView { sweep: &waiting, cooling, elsewhere: None, progress: None });
                    drawn_in(view, &state, &ui, Glyphs::UNICODE, (width, height));
                    drawn_in(view, &state, &ui, Glyphs::ASCII, (width, height));
                }
                let elsewhere = sweep_on_slurm();
                let view = SweepView {
                    sweep: &elsewhere,
                    cooling: None,
                    elsewhere: on_slurm(Some("away")),
                    progress: None,
                };
                drawn_in(Some(view), &RunState::default(), &showing(pane), Glyphs::UNICODE, (width, height));
            }
        }
    }
}

#[test]
fn help_and_prompts_are_on_top() {
    let state = running();
    let mut ui = showing(Pane::Overview);
    ui.overlay = Overlay::Help { scroll: 0 };
    insta::assert_snapshot!("help", at_all_sizes(&state, &ui));
    ui.overlay = Overlay::ConfirmRerun;
    insta::assert_snapshot!("confirm_rerun", at_all_sizes(&state, &ui));
    ui.open_prompt(PromptKind::Overrides, "runtime.batch_size=two".into());
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
    let widths = [1, 13, 30, 56, 101, 200];
    for state in &states {
        for pane in Pane::ALL {
            for width in widths {
                for height in [1, 2, 8, 9, 24, 50] {
                    let mut ui = showing(pane);
                    for overlay in [Overlay::None, Overlay::ConfirmRerun, Overlay::Help { scroll: 99 }] {
                        ui.overlay = overlay;
                        drawn(state, &ui, Glyphs::UNICODE, (width, height));
                    }
                    ui.open_prompt(PromptKind::SnapshotName, "x".repeat(300));
                    drawn(state, &ui, Glyphs::ASCII, (width, height));
                }
            }
        }
    }
}

#[test]
fn a_small_terminal_still_shows_the_rate() {
    let screen = drawn(&running(), &showing(Pane::Overview), Glyphs::UNICODE, (30, 8));
    assert!(screen.contains("tok/s") && screen.contains("TTFT"), "{screen}");
}

/// Finds the parts of the header at every 40th event of the demo recording while its requests run.
#[test]
fn the_parts_of_the_header_keep_their_places() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo/events.ndjson");
    let mut reader = EventReader::open(path.as_ref()).unwrap();
    let (mut state, mut n) = (RunState::default(), 0);
    let mut places = std::collections::BTreeSet::new();
    while let Ok(Next::Event(envelope)) = reader.read_next() {
        state.apply(&envelope);
        n += 1;
        if n % 40 != 0 || state.active.latest().is_none() || state.finished.is_some() {
            continue;
        }
        for width in [120, 200] {
            let screen = drawn(&state, &showing(Pane::Log), Glyphs::UNICODE, (width, 10));
            let header: Vec<char> = screen.lines().next().unwrap().chars().collect();
            let place = |text: &str| {
                let text: Vec<char> = text.chars().collect();
                header.windows(text.len()).rposition(|part| part == text)
            };
            let seconds = header.iter().rposition(|c| *c == ':');
            let request = place("request").or(place("warm-up"));
            places.insert((width, place(" tok "), seconds, request));
        }
    }
    assert!(n > 1000, "{n} events");
    assert_eq!(places.len(), 2, "{places:?}");
    assert!(places.iter().all(|(_, tok, seconds, _)| tok.is_some() && seconds.is_some()), "{places:?}");
}

#[test]
fn the_trust_of_a_run_is_shown_once() {
    for (pane, times) in [(Pane::Overview, 1), (Pane::Log, 1)] {
        let screen = drawn(&running(), &showing(pane), Glyphs::UNICODE, (200, 50));
        assert_eq!(screen.matches("trust").count(), times, "{screen}");
    }
}

#[test]
fn the_first_tile_is_the_decode_rate() {
    let wide = drawn(&running(), &showing(Pane::Overview), Glyphs::UNICODE, (120, 40));
    assert!(wide.contains("╭ decode tok/s ─"), "{wide}");
    let narrow = drawn(&running(), &showing(Pane::Overview), Glyphs::UNICODE, (80, 24));
    assert!(narrow.contains("╭ decode ─"), "{narrow}");
}

#[test]
fn a_running_tool_is_in_every_header() {
    let mut state = running();
    let working = ToolState::Working { doing: "decode".into(), share: Some(0.45) };
    let run = ToolRun { tool: "nsys".into(), phase: Phase::Decode, state: working };
    state.apply(&Envelope { t: state.now, event: Event::ToolRun(Box::new(run)) });
    for pane in Pane::ALL {
        let screen = drawn(&state, &showing(pane), Glyphs::UNICODE, (80, 24));
        assert!(screen.lines().any(|line| line.contains("nsys: decode 45 %")), "{pane:?}: {screen}");
    }
}
