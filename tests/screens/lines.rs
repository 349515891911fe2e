//! The pane of Python lines.

use llmprof::event::{Envelope, Event, HostActivity, HostRow, HostStacks, RunStarted, Stamp, WorkKind};
use llmprof::{state::RunState, tui::ui::Pane};

use super::{at_all_sizes, run_started, showing};

/// An engine whose scheduler keeps the GPU waiting, beside a thread that only waits.
fn scheduler() -> RunState {
    let row = |thread: &str, state: HostActivity, line: &str, samples: u32, idle: u32| HostRow {
        thread: thread.to_owned(),
        state,
        line: line.to_owned(),
        samples,
        idle,
    };
    let scheduler = "vllm/v1/core/sched/scheduler.py:210 schedule";
    let rows = vec![
        row("main", HostActivity::RunningPython, scheduler, 180, 61),
        row(
            "main",
            HostActivity::WaitingForGpu,
            "vllm/v1/worker/gpu_model_runner.py:1650 execute_model",
            250,
            4,
        ),
        row("main", HostActivity::WaitingForGil, scheduler, 70, 25),
        row(
            "tokenizer",
            HostActivity::RunningPython,
            "vllm/transformers_utils/detokenizer.py:88 update",
            500,
            90,
        ),
        row("zmq", HostActivity::SystemCall, "zmq/sugar/socket.py:900 recv", 500, 90),
    ];
    let window = HostStacks { pid: 71, samples: 500, recorded: 240, idle: 90, rows };
    let mut state = RunState::default();
    let mut apply = |ms: u64, event: Event| state.apply(&Envelope { t: Stamp(ms * 1_000_000), event });
    apply(0, Event::RunStarted(Box::new(RunStarted { kind: WorkKind::Program, ..run_started() })));
    apply(10_000, Event::HostStacks(Box::new(window)));
    state
}

#[test]
fn lines_are_shown_by_the_time_in_which_the_gpu_was_idle() {
    insta::assert_snapshot!("lines", at_all_sizes(&scheduler(), &showing(Pane::Lines)));
}
