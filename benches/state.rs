//! Time to fold events, draw frames, replay a recorded hour, and show the first frame.

mod support;

use std::{
    env, fs,
    hint::black_box,
    io::{self, Read, Write},
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use llmprof::{
    analysis::compare::Options,
    base::noise,
    compare::compare_recordings,
    config::ThemeName,
    event::{Envelope, Stamp},
    report::remake,
    rundir::{EventReader, Player, Recorder, RunDir, RunEntry},
    state::RunState,
    tui::{
        frame::Frame,
        run_tree::RunTree,
        theme::{Depth, Glyphs, Theme},
        ui::{Arrangement, Pane, UiState},
        view::View,
    },
};
use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use ratatui::{
    Terminal, TerminalOptions, Viewport, backend::CrosstermBackend, buffer::Buffer, layout::Rect,
    widgets::Widget,
};
use support::MadeUpRun;

/// Tells this program to replay the recording in the next argument, in its own process.
const REPLAY: &str = "--replay-of";
const SCREEN: Rect = Rect::new(0, 0, 200, 50);
/// Like a 7B model on an H200: a GPU sample every 26 tokens.
const USUAL: MadeUpRun = MadeUpRun { tokens_per_s: 263, secs: 1800 };
const HOUR: MadeUpRun = MadeUpRun { tokens_per_s: 1000, secs: 3600 };
const FRAMES: usize = 200;
/// At ten frames per second.
const EVENTS_PER_FRAME: usize = 27;
const STARTS: usize = 10;
const EMPTY_DEMO: &str = "assets/demo/events.ndjson is empty";

fn main() {
    let mut args = env::args().skip_while(|arg| arg != REPLAY).skip(1);
    if let Some(recording) = args.next() {
        return replay_and_tell(Path::new(&recording));
    }
    println!("{:<42}{:>16}   bar", "", "measured");
    fold();
    draw();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let run = record_hour(dir.path());
    replay(&run);
    report(&run, dir.path());
    compare(&run);
    start(&run, dir.path());
}

fn row(what: &str, measured: &str, bar: &str) {
    println!("{what:<42}{measured:>16}   {bar}");
}

fn ms(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort();
    durations[durations.len() / 2]
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

fn usual_events() -> Vec<Envelope> {
    let mut events = Vec::new();
    USUAL.for_each(|envelope| events.push(envelope));
    events
}

fn fold() {
    let events = usual_events();
    let rounds = (0..5).map(|_| {
        timed(|| {
            let mut state = RunState::default();
            events.iter().for_each(|envelope| state.apply(envelope));
            state
        })
    });
    let per_s = events.len() as f64 / median(rounds.collect()).as_secs_f64();
    row("RunState::apply", &format!("{:.1} M events/s", per_s / 1e6), "≥ 1 M events/s");
}

/// A well-filled state to draw frames from, and the events that follow.
#[derive(Clone)]
struct Desk {
    state: RunState,
    to_come: std::vec::IntoIter<Envelope>,
    theme: Theme,
    runs: RunTree,
}

impl Desk {
    fn busy() -> Desk {
        let mut events = usual_events();
        let to_come = events.split_off(events.len() - FRAMES * EVENTS_PER_FRAME).into_iter();
        let mut state = RunState::default();
        events.iter().for_each(|envelope| state.apply(envelope));
        let entry = |nth: u32| RunEntry {
            experiment: "baseline".into(),
            model: "qwen2_5_7b".into(),
            name: format!("2026-01-01_00-00-{nth:02}"),
            answers: true,
            ..RunEntry::silent(Path::new("runs"), &Path::new("runs").join(nth.to_string()))
        };
        let theme = Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE);
        let runs = RunTree::new((0..2000).map(entry).collect(), Arrangement::default());
        Desk { state, to_come, theme, runs }
    }

    fn go_on(&mut self) {
        self.to_come.by_ref().take(EVENTS_PER_FRAME).for_each(|envelope| self.state.apply(&envelope));
    }

    fn show(&self, ui: &UiState, draw: impl FnOnce(Frame<'_>)) {
        let snapshots = [self.state.window_snapshot("before"), self.state.window_snapshot("after")];
        let (state, theme) = (&self.state, &self.theme);
        let (runs, snapshots) = (&self.runs, snapshots.as_slice());
        draw(Frame(View { runs, snapshots, ..View::new(state, ui, theme) }));
    }
}

fn draw() {
    let desk = Desk::busy();
    for pane in Pane::ALL {
        let ui = UiState { pane, ..UiState::new(ThemeName::Dark) };
        let what = |how: &str| format!("{} at {}×{}, {how}", pane.title(), SCREEN.width, SCREEN.height);
        row(&what("into a buffer"), &ms(median(renders(desk.clone(), &ui))), "≤ 2 ms");
        row(&what("to a terminal"), &ms(median(draws(desk.clone(), &ui, false))), "≤ 2 ms");
        row(&what("repainted"), &ms(median(draws(desk.clone(), &ui, true))), "≤ 2 ms");
    }
}

fn renders(mut desk: Desk, ui: &UiState) -> Vec<Duration> {
    let mut buffer = Buffer::empty(SCREEN);
    let frame = |_| {
        desk.go_on();
        buffer.reset();
        timed(|| desk.show(ui, |frame| frame.render(SCREEN, &mut buffer)))
    };
    (0..FRAMES).map(frame).collect()
}

/// Frames as they are sent to a terminal: the changed cells, or all of them.
fn draws(mut desk: Desk, ui: &UiState, repaint: bool) -> Vec<Duration> {
    let mut terminal = sink();
    let frame = |_| {
        desk.go_on();
        if repaint {
            terminal = sink();
        }
        timed(|| {
            desk.show(ui, |frame| {
                terminal.draw(|f| f.render_widget(frame, SCREEN)).expect("a frame in a sink");
            });
        })
    };
    (0..FRAMES).map(frame).collect()
}

fn sink() -> Terminal<CrosstermBackend<io::Sink>> {
    let options = TerminalOptions { viewport: Viewport::Fixed(SCREEN) };
    Terminal::with_options(CrosstermBackend::new(io::sink()), options).expect("a terminal")
}

fn record_hour(below: &Path) -> RunDir {
    let run = RunDir::create(&below.join("hour")).expect("a run directory");
    let mut recorder = Recorder::create(&run, 0, Duration::from_secs(1)).expect("a recorder");
    let took = timed(|| {
        HOUR.for_each(|envelope| recorder.record(&envelope));
        recorder.flush();
    });
    assert_eq!(recorder.loss(), None);
    let bytes = fs::metadata(run.events()).expect("the recording").len();
    row("Recorder, per event", &format!("{:.2} µs", took.as_secs_f64() * 1e6 / HOUR.tokens() as f64), "");
    row("the hour's size", &format!("{} MB", bytes / 1_000_000), "");
    run
}

/// All documents, from the events only.
fn report(run: &RunDir, dir: &Path) {
    let out = dir.join("reports");
    let took = timed(|| remake(run.path(), Some(&out), &mut |_| ()).expect("reports"));
    row("report, such an hour", &format!("{:.2} s", took.as_secs_f64()), "≤ 2 s");
}

/// The hour compared with itself: both sides are read, and every metric is resampled.
fn compare(run: &RunDir) {
    let name = run.path().display().to_string();
    let took = timed(|| {
        compare_recordings(&name, &name, Path::new("runs"), &Options::default(), &[]).expect("two runs")
    });
    row("compare, two such hours", &format!("{:.2} s", took.as_secs_f64()), "≤ 3 s");
}

fn replay(run: &RunDir) {
    let child = Command::new(env::current_exe().expect("this program"))
        .arg(REPLAY)
        .arg(run.events())
        .output()
        .expect("a replay of the hour");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    print!("{}", String::from_utf8_lossy(&child.stdout));
}

/// The child process: its memory is that of the replay.
fn replay_and_tell(recording: &Path) {
    let recording = recording.to_owned();
    let before = memory_bytes("VmRSS:");
    let start = Instant::now();
    let mut player = Player::open(move || EventReader::open(&recording)).expect("the recording");
    while player.load(Duration::from_secs(1)).expect("a readable recording") {}
    let secs = start.elapsed().as_secs_f64();
    let end = player.position().end;
    assert!(end.secs() > HOUR.secs as f64 - 1.0 && player.complete());
    row("replay of 3.6 M tokens", &format!("{secs:.2} s"), "< 3 s");
    let seeks = (0..10).map(|nth| {
        let to = Stamp(noise::bits(7, nth) % end.0);
        timed(|| player.seek(to).expect("a place in the recording"))
    });
    let slowest = seeks.max().unwrap_or_default();
    let grown = memory_bytes("VmHWM:").saturating_sub(before);
    row("  memory it takes, at most", &format!("{} MB", grown / 1_000_000), "< 300 MB");
    row("  slowest of 10 seeks", &ms(slowest), "");
}

fn memory_bytes(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let found = status.lines().find_map(|l| l.strip_prefix(line)).expect("a line of /proc/self/status");
    1024 * found.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB")
}

fn start(run: &RunDir, below: &Path) {
    let hour = run.path().to_str().expect("a path in UTF-8");
    let frame = |args: &[&str]| ms(median((0..STARTS).map(|_| first_frame(args, below)).collect()));
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo/events.ndjson");
    let shown =
        if fs::metadata(demo).is_ok_and(|m| m.len() > 0) { frame(&["demo"]) } else { "skipped".into() };
    let bar = if shown == "skipped" { EMPTY_DEMO } else { "< 150 ms" };
    row("start to first frame, demo", &shown, bar);
    row("start to first frame, replay of the hour", &frame(&["replay", hour]), "< 150 ms");
}

/// From the program's start to the first bytes of a frame on its terminal.
fn first_frame(args: &[&str], cwd: &Path) -> Duration {
    let size = PtySize { rows: SCREEN.height, cols: SCREEN.width, pixel_width: 0, pixel_height: 0 };
    let pty = native_pty_system().openpty(size).expect("a pty");
    let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_llmprof-tui"));
    command.args(args);
    command.cwd(cwd);
    command.env("TERM", "xterm-256color");
    let mut output = pty.master.try_clone_reader().expect("the pty's output");
    let mut keys = pty.master.take_writer().expect("the pty's input");
    let (drawn, first) = mpsc::channel();
    let reader = thread::spawn(move || {
        let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = output.read(&mut buffer) {
            seen.extend_from_slice(&buffer[..n]);
            if seen.windows(7).any(|w| w == b"llmprof") {
                let _ = drawn.send(Instant::now());
                seen.clear();
            }
        }
    });
    let start = Instant::now();
    let mut child = pty.slave.spawn_command(command).expect("the program");
    drop(pty.slave);
    let at = first.recv_timeout(Duration::from_secs(10)).expect("a frame within ten seconds");
    keys.write_all(b"q").expect("a key");
    assert!(child.wait().expect("the program's end").success(), "{args:?} failed");
    drop((keys, pty.master));
    reader.join().expect("the pty's reader");
    at - start
}
