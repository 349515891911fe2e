//! Overhead of the operator clock: an empty operator, and decode steps with and without the clock, interleaved on one engine.

use std::{hint::black_box, path::Path, sync::Arc, time::Instant};

use llmprof::{
    config::{compose, find_tree},
    engine::candle::CandleEngine,
    event::{self, Clock, EventRx, Phase},
    model::Operator,
    profile::operator_clock::OperatorClock,
    run::plan::Plan,
    workload::{
        Engine, Prompts,
        heap::CountingHeap,
        listener::{Listener, Listeners, Span},
    },
};

/// Installed as in the program: counting is part of the overhead.
#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

const ROUNDS: usize = 12;
const STEPS: usize = 32;
const PARTS: u32 = 300;

fn listening() -> (Listeners, EventRx) {
    let (tx, rx) = event::channel(Clock::wall());
    let clock: Arc<dyn Listener> = Arc::new(OperatorClock::new(tx, 0));
    (Listeners::from_iter([clock]), rx)
}

/// Nanoseconds of an empty operator, the best of some rounds.
fn part_ns(listeners: &Listeners) -> f64 {
    let round = || {
        let begun = Instant::now();
        for _ in 0..100 {
            listeners.during(Span::Step(Phase::Decode), || {
                for layer in 0..PARTS as usize {
                    listeners.operator(Operator::Qkv, Some(layer), || black_box(layer));
                }
            });
        }
        begun.elapsed().as_nanos() as f64 / f64::from(100 * PARTS)
    };
    (0..50).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Seconds of some decode steps.
fn decode_s(engine: &mut dyn Engine, prompts: &Prompts) -> f64 {
    engine.prefill(prompts).expect("a prefill");
    let begun = Instant::now();
    for _ in 0..STEPS {
        engine.decode().expect("a step");
    }
    begun.elapsed().as_secs_f64()
}

fn main() {
    let (listeners, _rx) = listening();
    let (with, without) = (part_ns(&listeners), part_ns(&Listeners::default()));
    println!("a part of nothing: {with:.0} ns with the clock, {without:.1} ns without");

    let overrides =
        ["model=smollm2_135m", "runtime.device=cpu", "infer.max_new_tokens=64"].map(str::to_owned);
    let tree = find_tree(None, Path::new(env!("CARGO_MANIFEST_DIR"))).expect("conf/");
    let plan = Plan::new(compose(&tree, &overrides).expect("a good configuration")).expect("a run that fits");
    let options = plan.engine_options().expect("our own engine");
    let mut engine = CandleEngine::new(&options, &mut |_, _, _| true).expect("an engine");
    let prompts = Prompts { ids: vec![1; 32], batch: 1 };
    decode_s(&mut engine, &prompts);
    let mut ratios = Vec::new();
    let mut best = [f64::INFINITY; 2];
    for round in 0..ROUNDS {
        // A B, then B A: external load affects both alike.
        let mut took = [0.0; 2];
        for timed in [round % 2, (round + 1) % 2] {
            engine.set_listeners(if timed == 1 { listening().0 } else { Listeners::default() });
            took[timed] = decode_s(&mut engine, &prompts);
            best[timed] = best[timed].min(took[timed]);
        }
        ratios.push(took[1] / took[0]);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "smollm2_135m, {STEPS} decode steps, {ROUNDS} pairs: with the clock / without, median {:.4}, from {:.4} to {:.4}; best of each {:.4}",
        ratios[ROUNDS / 2],
        ratios[0],
        ratios[ROUNDS - 1],
        best[1] / best[0]
    );
}
