//! Live kernels of a real run, on a GPU.

use std::time::{Duration, Instant};

use super::Session;
use crate::plan::Plan;
use llm_cost::Operator;
use llmprof_config::{built_in, compose};
use llmprof_event::{Outcome, TraceState};
use llmprof_record::state::LiveKernels;

const LAYERS: u64 = 24;

fn start(overrides: &[&str]) -> Session {
    let asked = [
        "model=qwen2_5_0_5b",
        "runtime.device=cuda:0",
        "dataset.prompt_tokens=64",
        "infer.max_new_tokens=256",
        "runtime.warmup=0",
        "output.record=false",
        "telemetry=none",
    ];
    let asked: Vec<String> = asked.iter().chain(overrides).map(|o| (*o).to_owned()).collect();
    Session::start(Plan::new(compose(&built_in(), &asked).unwrap()).unwrap())
}

fn pump(session: &mut Session, what: &str, until: impl Fn(&Session) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let begun = Instant::now();
    while !until(session) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {what}: {:?}", session.state.log);
        runtime.block_on(session.pump());
    }
}

/// Every operator of the model has its kernels, layer by layer, and there are no others.
fn complete(live: &LiveKernels, what: &str) {
    let per_step = |operator: Operator| {
        let rows = live.total.rows.iter().filter(|row| row.operator == Some(operator));
        rows.map(|row| row.calls).sum::<u64>() as f64 / live.total.steps as f64
    };
    assert!(live.total.steps > 0, "{what}");
    let untimed = live.total.rows.iter().find(|row| row.min_ns.is_none_or(|ns| ns <= 0.0));
    assert!(untimed.is_none(), "{what}: {untimed:?}");
    for (operator, times) in [
        (Operator::Embedding, 1),
        (Operator::Qkv, LAYERS),
        (Operator::Attention, LAYERS),
        (Operator::Down, LAYERS),
    ] {
        assert!(per_step(operator) >= times as f64, "{what}: {operator} {} times a step", per_step(operator));
    }
    let unnamed: Vec<_> =
        live.total.rows.iter().filter(|row| row.operator.is_none() && row.bytes.is_none()).collect();
    assert!(unnamed.is_empty(), "{what}: {unnamed:?}");
    let added: f64 = live.total.rows.iter().filter_map(|row| row.total_ns).sum();
    assert!(live.total.busy_ns <= live.total.span_ns, "{what}: {live:?}");
    assert!(
        (added / live.total.busy_ns as f64 - 1.0).abs() < 1e-3,
        "{what}: {added} of {}",
        live.total.busy_ns
    );
}

#[test]
#[ignore = "needs a GPU and CUPTI"]
fn cuda_kernels_are_recorded_with_graphs_and_without() {
    for graphs in ["true", "false"] {
        let graphs_override = format!("runtime.cuda_graphs={graphs}");
        let mut session = start(&["runtime.requests=2", "profiling.cupti.enable=true", &graphs_override]);
        pump(&mut session, "end", |session| session.state.finished.is_some());
        let kernels = &session.state.kernels;
        assert_eq!(session.state.finished.as_ref().unwrap().outcome, Outcome::Completed);
        assert_eq!(kernels.trace.as_ref().map(|trace| &trace.state), Some(&TraceState::On));
        assert_eq!(kernels.prefill.total.steps, 2);
        // Steps that were queued beyond a request's end ran too.
        assert!((2 * 255..2 * 258).contains(&kernels.decode.total.steps), "{}", kernels.decode.total.steps);
        complete(&kernels.prefill, "prefill");
        complete(&kernels.decode, graphs);
        assert_eq!((kernels.prefill.total.dropped, kernels.decode.total.dropped), (0, 0));
        let in_graphs = if graphs == "true" { kernels.decode.total.launches } else { 0 };
        assert_eq!(kernels.decode.total.graph_launches, in_graphs);
        let timeline = kernels.decode.timeline.as_ref().unwrap();
        assert_eq!(timeline.spans.iter().filter_map(|span| span.layer).max(), Some(LAYERS as u16 - 1));
    }
}

#[test]
#[ignore = "needs a GPU and CUPTI"]
fn cuda_kernels_can_be_switched_on_late_and_off() {
    let mut session = start(&["runtime.requests=2000"]);
    pump(&mut session, "token", |session| session.state.trail.count() > 300);
    assert!(session.state.kernels.trace.is_none());
    for _ in 0..2 {
        let before = session.state.kernels.decode.total.steps;
        session.toggle_kernels();
        pump(&mut session, "kernels", |session| session.state.kernels.decode.total.steps > before + 500);
        complete(&session.state.kernels.decode, "late");
        session.toggle_kernels();
        let off = |session: &Session| {
            session.state.kernels.trace.as_ref().is_some_and(|trace| trace.state == TraceState::Off)
        };
        pump(&mut session, "end of the recording", off);
        let (steps, seen) = (session.state.kernels.decode.total.steps, session.state.trail.count());
        pump(&mut session, "token", |session| session.state.trail.count() > seen + 600);
        assert_eq!(session.state.kernels.decode.total.steps, steps, "off is off");
    }
    session.end(Outcome::Interrupted, None);
}
