//! Profiler overhead: decode tok/s without the profiler, and with sampler, recording and screen.
//!
//! The two are interleaved (A B B A …) on one engine, so that external load affects both alike.

use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use llmprof::{
    app::{App, Input, Live},
    base::cpu_time::thread_cpu_time,
    config::{compose, find_tree},
    engine::candle::CandleEngine,
    event::{self, Clock},
    process::shutdown::Shutdown,
    run::{plan::Plan, session::Session},
    state::RunState,
    workload::{Control, Driver, Engine, EngineError, Prompts, listener::Listeners},
};
use ratatui::{Terminal, TerminalOptions, Viewport, backend::CrosstermBackend, layout::Rect};
use tokio::sync::mpsc::unbounded_channel;

const SCREEN: Rect = Rect::new(0, 0, 200, 50);
const ROUNDS: usize = 12;
const WORKLOAD: [&str; 5] = [
    "model=smollm2_135m",
    "runtime.device=cpu",
    "runtime.warmup=0",
    "runtime.requests=1",
    "infer.max_new_tokens=64",
];

fn plan(runs: &Path, nth: usize) -> Plan {
    let dir = format!("hydra.run.dir={}/{nth}", runs.display());
    let overrides: Vec<String> = WORKLOAD.into_iter().map(str::to_owned).chain([dir]).collect();
    let tree = find_tree(None, Path::new(env!("CARGO_MANIFEST_DIR"))).expect("conf/");
    Plan::new(compose(&tree, &overrides).expect("a good configuration")).expect("a run that fits")
}

/// The one engine, lent to each run in turn; signals the end of the workload.
struct Lent {
    engine: Arc<Mutex<CandleEngine>>,
    done: Box<dyn Fn() + Send>,
}

impl Lent {
    fn engine(&self) -> MutexGuard<'_, CandleEngine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Lent {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        self.engine().prefill(prompts)
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        self.engine().decode()
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        (self.done)();
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.engine().reset()
    }
}

/// Decode tok/s of the driver's loop, whose events are read only at the end.
fn bare(plan: &Plan, engine: Arc<Mutex<CandleEngine>>) -> f64 {
    let (tx, mut rx) = event::channel(Clock::wall());
    let workload = plan.workload().clone();
    let run = thread::spawn(move || {
        let control = Control::default();
        let mut engine = Lent { engine, done: Box::new(|| {}) };
        let driver = Driver {
            workload: &workload,
            control: &control,
            listeners: &Listeners::default(),
            tx: &tx,
            predictions: None,
        };
        driver.run(&mut engine)
    });
    run.join().expect("the engine's thread").expect("a run");
    let mut state = RunState::default();
    while let Ok(envelope) = rx.try_recv() {
        state.apply(&envelope);
    }
    state.total.decode_tok_s().expect("decoded tokens")
}

/// Overhead of the profiler's thread.
struct Watched {
    decode_tok_s: f64,
    /// CPU time of recording, folding and drawing, in percent of a core.
    ui_pct: f64,
    frames_per_s: f64,
}

/// The same loop within a session and under the screen, as the program runs it.
fn watched(plan: Plan, engine: Arc<Mutex<CandleEngine>>) -> Watched {
    let (keys, input) = unbounded_channel();
    let quit = Event::Key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE));
    let done = move || drop(keys.send(Input::Event(quit.clone())));
    let tui = plan.composed.config.output.tui.clone();
    let options = TerminalOptions { viewport: Viewport::Fixed(SCREEN) };
    let mut screen = Terminal::with_options(CrosstermBackend::new(io::sink()), options).expect("a screen");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (start, cpu_at_start) = (Instant::now(), thread_cpu_time());
    let stopped = runtime.block_on(async {
        let session = Session::start_on(plan, Box::new(Lent { engine, done: Box::new(done) }));
        let live =
            Live { session: session.into(), replan: Box::new(|_| Err("not here".into())), sweep: None };
        let shutdown = Shutdown::listen().expect("signals can be heard");
        App::of_run(&tui, live, "runs".into()).run_on(&mut screen, input, shutdown).await
    });
    let (elapsed, cpu) = (start.elapsed(), thread_cpu_time() - cpu_at_start);
    let ended = stopped.runs.into_iter().next().expect("a run");
    assert!(ended.loss.is_none() && stopped.error.is_none(), "{:?} {:?}", ended.loss, stopped.error);
    Watched {
        decode_tok_s: ended.metrics.decode_tok_s.expect("decoded tokens"),
        ui_pct: 100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64(),
        frames_per_s: screen.get_frame().count() as f64 / elapsed.as_secs_f64(),
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}

fn main() {
    let runs = tempfile::tempdir().expect("a temporary directory");
    let options = plan(runs.path(), 0).engine_options().expect("our own engine");
    let engine = CandleEngine::new(&options, &mut |_, _, _| true).expect("an engine");
    let engine = Arc::new(Mutex::new(engine));
    let (mut alone, mut with_us) = (Vec::new(), Vec::new());
    // The first round warms up.
    for round in 0..=ROUNDS {
        for turn in 0..2 {
            let plan = plan(runs.path(), 2 * round + turn);
            if (round + turn).is_multiple_of(2) {
                alone.push(bare(&plan, Arc::clone(&engine)));
            } else {
                with_us.push(watched(plan, Arc::clone(&engine)));
            }
        }
    }
    let (alone, with_us) = (&alone[1..], &with_us[1..]);
    let mut ratios: Vec<f64> = alone.iter().zip(with_us).map(|(a, w)| w.decode_tok_s / a).collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = (ratios[ROUNDS / 4], ratios[ROUNDS - 1 - ROUNDS / 4]);
    println!("smollm2_135m f32 on the CPU, medians of {ROUNDS} interleaved rounds");
    let row = |what, measured: String, bar| println!("{what:<42}{measured:>16}   {bar}");
    row("decode, bare loop", format!("{:.1} tok/s", median(alone.iter().copied())), "");
    row("decode, watched", format!("{:.1} tok/s", median(with_us.iter().map(|w| w.decode_tok_s))), "");
    row("watched / bare, of each round", format!("{:.3}", median(ratios)), "≥ 0.95");
    row("  half of the rounds within", format!("{low:.3} to {high:.3}"), "");
    let frames_per_s = median(with_us.iter().map(|w| w.frames_per_s));
    row("frames at 200×50", format!("{frames_per_s:.1} a second"), "10");
    row(
        "CPU of the watching thread",
        format!("{:.2} % of a core", median(with_us.iter().map(|w| w.ui_pct))),
        "< 3 %",
    );
}
