//! The Kernels pane: live kernels, reports of tools, and without any.

use std::path::Path;

use llmprof::{
    event::{
        Allocator, AllocatorSample, Device, HeapGrowth, HostSpan, HostTimeline, KernelReport, KernelSpan,
        KernelTrace, KernelWindow, ModelEngine, OperatorTime, OperatorWindow, Phase, StepTimeline, ToolRun,
        ToolState, TraceState, WorkKind,
        kernels::{Busy, Group, KernelRow, KernelTable, Kind, SortBy},
    },
    kernels::open,
    tui::ui::{Effect, KernelsSettings, ReplayCommand, RunCommand},
};
use proptest::{
    collection::vec,
    option::of,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};

use super::*;
use crate::common::h200_step;

const SIZES: [(u16, u16); 4] = [(80, 24), (120, 40), (200, 50), (30, 8)];

fn folded(events: Vec<Event>) -> RunState {
    let mut state = RunState::default();
    let started =
        RunStarted { device: Device::Cuda(0), kind: WorkKind::Model(ModelEngine::Cuda), ..run_started() };
    state.apply(&Envelope { t: Stamp(0), event: Event::RunStarted(Box::new(started)) });
    events.into_iter().for_each(|event| state.apply(&Envelope { t: Stamp(1_000_000_000), event }));
    state
}

fn live() -> RunState {
    folded(h200_step::events(200, true))
}

/// Thirty layers on the CPU, timed by the engine.
fn on_cpu() -> RunState {
    let layer = [
        (Operator::AttentionNorm, 4_000),
        (Operator::Qkv, 140_000),
        (Operator::Rope, 9_000),
        (Operator::Attention, 60_000),
        (Operator::AttentionOutput, 90_000),
        (Operator::MlpNorm, 4_000),
        (Operator::GateUp, 420_000),
        (Operator::Activation, 12_000),
        (Operator::Down, 210_000),
    ];
    let mut spans = Vec::new();
    let mut at = 0;
    let layers = (0..30).flat_map(|number| layer.map(|(operator, ns)| (operator, Some(number), ns)));
    let ends = [(Operator::FinalNorm, None, 5_000), (Operator::LmHead, None, 7_400_000)];
    for (operator, layer, ns) in layers.chain(ends) {
        spans.push(HostSpan { operator, layer, start_ns: at, ns });
        at += ns + 1_000;
    }
    let mut operators: Vec<OperatorTime> = Vec::new();
    for &operator in Operator::ALL {
        let of: Vec<&HostSpan> = spans.iter().filter(|span| span.operator == operator).collect();
        let Some(one) = of.first() else { continue };
        let heap = Some(HeapGrowth { allocated_bytes: 4_608 * of.len() as u64 * 100, peak_bytes: 6_144 });
        let (calls, ns) = (of.len() as u64 * 100, one.ns * of.len() as u64 * 100);
        operators.push(OperatorTime { operator, calls, ns, min_ns: one.ns - 500, max_ns: one.ns * 3, heap });
    }
    let window = OperatorWindow {
        phase: Phase::Decode,
        steps: 100,
        host_ns: (at + 20_000) * 100,
        operators,
        ..OperatorWindow::default()
    };
    let timeline = HostTimeline { phase: Phase::Decode, at: Stamp(9_000), ns: at + 20_000, spans };
    let heap = AllocatorSample {
        allocator: Allocator::Heap,
        live_bytes: 548_000_000,
        peak_bytes: 551_000_000,
        reserved_bytes: Some(552_000_000),
    };
    let mut state = RunState::default();
    for event in [
        Event::RunStarted(Box::new(RunStarted { device: Device::Cpu, ..run_started() })),
        Event::Operators(Box::new(window)),
        Event::HostTimeline(Box::new(timeline)),
        Event::Allocator(heap),
    ] {
        state.apply(&Envelope { t: Stamp(1_000_000_000), event });
    }
    state
}

fn report(file: &str, tool: &str, phase: Option<Phase>) -> Event {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(file);
    let tables = open(&path).unwrap();
    Event::KernelReport(Box::new(KernelReport { tool: tool.into(), phase, file: file.into(), tables }))
}

fn refused() -> Event {
    Event::KernelTrace(KernelTrace {
        tool: "CUPTI".into(),
        state: TraceState::Refused {
            reason: "another tool has subscribed to CUPTI: this program runs under nsys".into(),
            remedy: "run it without nsys, or look at nsys's own report with llmprof-tui kernels".into(),
        },
    })
}

fn tool(state: ToolState) -> Event {
    Event::ToolRun(Box::new(ToolRun { tool: "ncu".into(), phase: Phase::Decode, state }))
}

fn working() -> Event {
    tool(ToolState::Working { doing: "counting kernel 41 of 64".into(), share: Some(0.64) })
}

fn failed() -> Event {
    tool(ToolState::Failed {
        reason: "the driver lets only administrators count (ERR_NVGPUCTRPERM)".into(),
        remedy: "set NVreg_RestrictProfilingToAdminUsers=0 and load the driver again".into(),
    })
}

fn with_settings(kernels: KernelsSettings) -> UiState {
    UiState { kernels, ..showing(Pane::Kernels) }
}

pub(super) fn screens(state: &RunState, ui: &UiState) -> String {
    let screen =
        |size: (u16, u16)| format!("{}x{}\n{}", size.0, size.1, drawn(state, ui, Glyphs::UNICODE, size));
    SIZES.map(screen).join("\n")
}

/// A snapshot, then half as many steps in which one kernel is slower, one is gone and one is new.
fn since_a_snapshot() -> RunState {
    let mut events = h200_step::events(200, true);
    events.push(Event::Snapshot(SnapshotTaken { name: "snap-1".into() }));
    let mut windows: Vec<KernelWindow> = h200_step::events(200, true)
        .into_iter()
        .filter_map(|event| if let Event::Kernels(window) = event { Some(*window) } else { None })
        .collect();
    for window in &mut windows {
        window.steps /= 2;
        window.rows.retain(|row| row.operator != Some(Operator::Embedding));
        for row in &mut window.rows {
            let slower = if row.operator == Some(Operator::GateUp) { 1.031 } else { 1.0 };
            row.calls /= 2;
            row.total_ns = row.total_ns.map(|ns| ns / 2.0 * slower);
            row.mean_ns = row.mean_ns.map(|ns| ns * slower);
        }
        let calls = window.steps;
        let (total_ns, mean_ns) = (Some(calls as f64 * 900.0), Some(900.0));
        window.rows.push(KernelRow { calls, total_ns, mean_ns, ..KernelRow::named("convert_bf16") });
    }
    events.extend(windows.into_iter().map(|window| Event::Kernels(Box::new(window))));
    folded(events)
}

/// Kernels of an H200 as they ran, and a few of them under ncu.
fn live_and_counted() -> RunState {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo/h200_kernels/events.ndjson");
    let mut player = Player::open(move || EventReader::open(path.as_ref())).unwrap();
    player.seek(Stamp::from_secs_f64(1e4)).unwrap();
    player.state().clone()
}

#[test]
fn the_change_is_of_a_step_since_the_last_snapshot() {
    let state = since_a_snapshot();
    let ui = with_settings(KernelsSettings::default());
    let screen = drawn(&state, &ui, Glyphs::UNICODE, (200, 50));
    assert!(screen.contains("change per token against snap-1"), "{screen}");
    let line = |name: &str| screen.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line(" gate_up ").contains(" +3.1 % "), "{screen}");
    assert!(line(" qkv ").contains(" 0 % "), "{screen}");
    assert!(line(" embedding ").contains(" gone "), "{screen}");
    assert!(line(" convert_bf16 ").contains(" new "), "{screen}");
    assert!(screen.contains("gone since snap-1: 1 row, embedding"), "{screen}");
    // Without kernels since the snapshot, no comparison is shown.
    let mut events = h200_step::events(200, true);
    events.push(Event::Snapshot(SnapshotTaken { name: "snap-1".into() }));
    let screen = drawn(&folded(events), &ui, Glyphs::UNICODE, (120, 40));
    assert!(!screen.contains("against"), "{screen}");
}

#[test]
fn details_join_kernels_with_their_counters() {
    let state = live_and_counted();
    let details = |source, row| {
        let settings =
            KernelsSettings { source: Some(source), row, open: true, ..KernelsSettings::default() };
        drawn(&state, &with_settings(settings), Glyphs::UNICODE, (120, 50))
    };
    let down = details(1, 1);
    for wanted in [
        "live decode, CUPTI",
        "ncu decode kernels",
        "with launches of",
        "grid 224, block 256",
        "(cost of its operator)",
        "utilisation, ncu 2025.3.1",
        "occupancy limit       ",
        "warp stalls, by reason, ncu 2025.3.1",
    ] {
        assert!(down.contains(wanted), "{wanted}\n{down}");
    }
    let prefill = details(0, 0);
    assert!(prefill.contains("no counters of this kernel; c collects them"), "{prefill}");
    let counted = details(2, 0);
    assert!(counted.contains("live decode  "), "{counted}");
}

#[test]
fn kernels_in_every_state() {
    let default = KernelsSettings::default;
    let opened = || KernelsSettings { open: true, ..default() };
    let with = |mut events: Vec<Event>, more: Event| {
        events.push(more);
        folded(events)
    };
    let ncu_raw = || report("h200_ncu_raw.csv", "ncu 2025.3.1", Some(Phase::Decode));
    let ncu_details = || report("h200_ncu_details.csv", "ncu 2025.3.1", Some(Phase::Decode));
    let nsys = || report("nsys/kernels.sqlite", "nsys 2022.4.2", None);
    let screens_of: Vec<(&str, RunState, KernelsSettings)> = vec![
        ("live", live(), default()),
        ("live_without_graphs", folded(h200_step::events(3_000, false)), default()),
        (
            "live_one_layer",
            live(),
            KernelsSettings { zoom: 2, part: 3, group: Some(Group::Name), ..default() },
        ),
        ("live_opened", live(), KernelsSettings { row: 1, ..opened() }),
        ("live_since_snapshot", since_a_snapshot(), default()),
        ("live_and_ncu_opened", live_and_counted(), KernelsSettings { source: Some(1), ..opened() }),
        ("wall_time", on_cpu(), default()),
        ("wall_time_opened", on_cpu(), opened()),
        ("ncu", folded(vec![ncu_raw(), ncu_details()]), default()),
        ("ncu_opened", folded(vec![ncu_details()]), KernelsSettings { row: 1, ..opened() }),
        ("ncu_scrolled", folded(vec![ncu_details()]), KernelsSettings { scroll: 30, ..opened() }),
        ("nsys", folded(vec![nsys()]), default()),
        ("nsys_ranges", folded(vec![nsys()]), KernelsSettings { source: Some(1), ..default() }),
        ("refused", folded(vec![refused()]), default()),
        ("tool_running", with(h200_step::events(200, true), working()), default()),
        ("tool_failed", with(vec![refused()], failed()), default()),
        (
            "filtered",
            live(),
            KernelsSettings { filter: "SKINNY".into(), sort: SortBy::Mean.into(), ..default() },
        ),
        ("filtered_empty", live(), KernelsSettings { filter: "no such thing".into(), ..default() }),
    ];
    for (name, state, kernels) in screens_of {
        let ui = with_settings(kernels);
        insta::assert_snapshot!(name, screens(&state, &ui));
        let ascii = drawn(&state, &ui, Glyphs::ASCII, (120, 40));
        let odd: Vec<char> = ascii.chars().filter(|c| !c.is_ascii()).collect();
        assert!(odd.is_empty(), "{name}: {odd:?}\n{ascii}");
    }
}

#[test]
fn files_have_a_screen_without_a_run() {
    let mut state = RunState::default();
    state.apply(&Envelope { t: Stamp(0), event: report("nsys/kernels.sqlite", "nsys SQLite", None) });
    insta::assert_snapshot!("files", screens(&state, &showing(Pane::Kernels)));
    let mut trace = RunState::default();
    trace.apply(&Envelope { t: Stamp(0), event: report("torch/gpu_rank1.json", "PyTorch trace", None) });
    let operators = KernelsSettings { source: Some(1), ..KernelsSettings::default() };
    insta::assert_snapshot!("torch", screens(&trace, &showing(Pane::Kernels)));
    insta::assert_snapshot!("torch_operators", screens(&trace, &with_settings(operators)));
    let overview = drawn(&state, &showing(Pane::Overview), Glyphs::UNICODE, (80, 24));
    assert!(!overview.contains("snapshot") && !overview.contains("idle"), "{overview}");
}

#[test]
fn a_recording_shows_the_same_screen() {
    let mut events = h200_step::events(200, true);
    events.push(working());
    events.push(report("h200_ncu_details.csv", "ncu 2025.3.1", Some(Phase::Decode)));
    events.push(report("nsys/kernels.sqlite", "nsys 2022.4.2", None));
    let recorded = |event: &Event| serde_json::from_str(&serde_json::to_string(event).unwrap()).unwrap();
    let replayed = folded(events.iter().map(recorded).collect());
    let state = folded(events);
    for source in 0..7 {
        for open in [false, true] {
            let ui =
                with_settings(KernelsSettings { source: Some(source), open, ..KernelsSettings::default() });
            assert_eq!(screens(&replayed, &ui), screens(&state, &ui));
        }
    }
}

/// The effects of some actions in sequence.
fn pressed(state: &RunState, ui: &mut UiState, actions: &[Action]) -> Vec<Option<Effect>> {
    let theme = Theme::new(ui.theme, Depth::True, Glyphs::UNICODE);
    let mut effects = Vec::new();
    for action in actions {
        let extent = View::new(state, ui, &theme).extent();
        effects.push(update(ui, action.clone(), extent));
    }
    effects
}

#[test]
fn keys_move_within_the_content() {
    let mut events = h200_step::events(200, true);
    events.push(report("nsys/kernels.sqlite", "nsys 2022.4.2", None));
    let state = folded(events);
    let mut ui = showing(Pane::Kernels);
    let shown = |ui: &UiState| drawn(&state, ui, Glyphs::UNICODE, (120, 40));
    assert!(shown(&ui).contains("nsys kernels · 3 of 6"), "a new report is shown\n{}", shown(&ui));
    pressed(&state, &mut ui, &[Action::StepKernelSource(-1)]);
    assert!(
        shown(&ui).contains("live decode · 2 of 6") && shown(&ui).contains("by operator"),
        "{}",
        shown(&ui)
    );
    pressed(
        &state,
        &mut ui,
        &[Action::GroupKernels, Action::Sort, Action::Zoom(1), Action::StepTimelinePart(1)],
    );
    let text = shown(&ui);
    for words in ["by family, most calls first", "layers 4 to 7"] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    let effects = pressed(
        &state,
        &mut ui,
        &[Action::Move(99), Action::ToggleKernelDetails, Action::CloseKernelDetails],
    );
    assert_eq!(effects, [None, None, None]);
    // With nothing to close, Esc leaves a replay.
    let leave = Effect::Replay(ReplayCommand::Leave);
    assert_eq!(pressed(&state, &mut ui, &[Action::CloseKernelDetails]), [Some(leave)]);
    let toggle = Effect::Run(RunCommand::ToggleKernels);
    assert_eq!(pressed(&state, &mut ui, &[Action::Do(toggle.clone())]), [Some(toggle)]);
    pressed(&state, &mut ui, &[Action::StepKernelSource(99), Action::StepKernelSource(99)]);
    assert!(shown(&ui).contains("6 of 6"), "{}", shown(&ui));
}

#[test]
fn names_are_aligned() {
    for width in [40, 60, 80, 100, 120, 160, 200] {
        let screen = drawn(&live(), &showing(Pane::Kernels), Glyphs::UNICODE, (width, 40));
        let columns: Vec<usize> = screen
            .lines()
            .filter(|line| line.contains(" % ") && line.contains("│"))
            .filter_map(|line| {
                let at = ["  gate_up ", "  down ", "  qkv ", "  attention "]
                    .iter()
                    .find_map(|name| line.find(name))?;
                Some(line[..at].chars().count())
            })
            .take(4)
            .collect();
        assert_eq!(columns.len(), 4, "{screen}");
        assert!(columns.iter().all(|column| *column == columns[0]), "{columns:?}\n{screen}");
    }
}

fn any_operator() -> impl Strategy<Value = Option<Operator>> {
    of(select(Operator::ALL))
}

fn any_number() -> impl Strategy<Value = Option<f64>> {
    of(prop_oneof![any::<f64>(), (0u32..1_000_000).prop_map(f64::from)])
}

fn any_row() -> impl Strategy<Value = KernelRow> {
    let name =
        prop_oneof![Just(String::new()), "[a-c核 ]{1,90}", Just("void ns::gemv<4, float>(int)".to_owned())];
    let times = [any_number(), any_number(), any_number(), any_number(), any_number(), any_number()];
    let launch = (of(any::<[u32; 3]>()), of(any::<[u32; 3]>()), of(any::<u32>()), of(any::<u64>()));
    (name, any::<u32>(), times, launch, any_operator(), of("[a-z/]{0,12}")).prop_map(
        |(
            name,
            calls,
            [total, mean, min, max, bytes, flops],
            (grid, block, registers, shared),
            operator,
            range,
        )| {
            KernelRow {
                calls: calls.into(),
                total_ns: total,
                mean_ns: mean,
                min_ns: min,
                max_ns: max,
                bytes,
                flops,
                grid,
                block,
                registers,
                shared_bytes: shared,
                operator,
                range,
                ..KernelRow::named(name)
            }
        },
    )
}

fn any_event() -> impl Strategy<Value = Event> {
    let phase = || select(&[Phase::Idle, Phase::Prefill, Phase::Decode][..]);
    let rows = || vec(any_row(), 0..6);
    let window = (phase(), any::<[u32; 6]>(), rows()).prop_map(|(phase, n, rows)| {
        let [steps, span_ns, busy_ns, between_ns, launches, dropped] = n.map(u64::from);
        let graph_launches = dropped;
        Event::Kernels(Box::new(KernelWindow {
            overlaps: None,
            phase,
            steps,
            span_ns,
            busy_ns,
            between_ns,
            launches,
            graph_launches,
            dropped,
            rows,
            ..KernelWindow::default()
        }))
    });
    let span = (0u16..4, any_operator(), of(0u16..5), any::<u64>(), any::<u64>())
        .prop_map(|(name, operator, layer, start_ns, ns)| KernelSpan { name, operator, layer, start_ns, ns });
    let timeline = (phase(), vec(span, 0..12)).prop_map(|(phase, spans)| {
        Event::StepTimeline(Box::new(StepTimeline {
            phase,
            at: None,
            names: vec!["核".into(), "x".into()],
            spans,
        }))
    });
    let kinds = [
        Kind::Kernels,
        Kind::ApiCalls,
        Kind::MemoryTime,
        Kind::MemorySize,
        Kind::Ranges,
        Kind::Products,
        Kind::Operators,
        Kind::Streams,
        Kind::Allocations,
    ];
    let device = of(select(vec!["GPU 0".to_owned(), "GPU 1".to_owned()]));
    let table =
        (select(kinds.to_vec()), rows(), any::<bool>(), device).prop_map(|(kind, rows, nested, device)| {
            let busy = nested.then_some(Busy { busy_ns: 1.0, span_ns: rows.len() as f64 });
            KernelTable {
                rows,
                nested,
                device,
                busy,
                notes: vec!["a note".into()],
                ..KernelTable::new("source", kind)
            }
        });
    let report = (of(phase()), vec(table, 0..3)).prop_map(|(phase, tables)| {
        let (tool, file) = (String::new(), "x/y".to_owned());
        Event::KernelReport(Box::new(KernelReport { tool, phase, file, tables }))
    });
    prop_oneof![window, timeline, report, select(vec![refused(), working(), failed()])]
}

#[test]
fn any_kernels_are_drawn_at_any_size() {
    let settings = (0usize..9, 0usize..9, 0usize..4, any::<bool>(), 0usize..90, 0usize..4, 0usize..9);
    let given = (vec(any_event(), 0..6), settings, 1u16..210, 1u16..60);
    let mut runner = TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
    let ran =
        runner.run(&given, |(events, (source, row, group, open, scroll, zoom, part), width, height)| {
            let group = [Group::Operator, Group::Family, Group::Name, Group::None][group];
            let source = source.checked_sub(1);
            let (group, filter) = (Some(group), if row == 8 { "a".to_owned() } else { String::new() });
            let sort = [SortBy::Time, SortBy::Calls, SortBy::Mean][row % 3];
            let ui = with_settings(KernelsSettings {
                source,
                row,
                group,
                sort: sort.into(),
                filter,
                open,
                scroll,
                zoom,
                part,
            });
            let state = folded(events);
            let screen = drawn(&state, &ui, Glyphs::UNICODE, (width, height));
            prop_assert_eq!(screen.lines().count(), usize::from(height));
            prop_assert!(drawn(&state, &ui, Glyphs::ASCII, (width, height)).is_ascii());
            Ok(())
        });
    ran.unwrap();
}
