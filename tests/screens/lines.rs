//! The pane of Python lines.

use llmprof::event::{
    Envelope, Event, HostActivity, HostRow, HostStacks, LaunchFrame, LaunchLines, LaunchRow, LaunchStack,
    RunStarted, Stamp, WorkKind,
};
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

/// vLLM 0.24.0 on an H200: decode by graphs, prompts by compiled code.
#[test]
fn lines_are_shown_by_the_kernels_that_they_launched() {
    let mut state = scheduler();
    let lines = [
        (
            "vllm/compilation/cuda_graph.py",
            360,
            "CUDAGraphWrapper.__call__",
            "nvjet_sm90_tst_384x16_64x4_4x1_v_bz_TNT",
            109_580,
            1_337,
        ),
        (
            "inductor_cache/mh/cmhd23isswc5bh6vqbiku3f3wds2uw653cielhgz63cnhxxuhqoz.py",
            958,
            "Runner.call",
            "nvjet_sm90_tst_192x208_64x4_2x1_v_bz_coopB_TNT",
            489,
            222,
        ),
        (
            "model_executor/layers/utils.py",
            98,
            "default_unquantized_gemm",
            "nvjet_sm90_tst_384x16_64x4_2x1_v_bz_TNT",
            324,
            82,
        ),
    ];
    let frame = |(file, line, function): (&str, u32, &str)| LaunchFrame {
        file: file.to_owned(),
        dir: "/opt/".to_owned(),
        line,
        function: function.to_owned(),
    };
    let frames = lines.iter().map(|(file, line, function, ..)| frame((*file, *line, *function))).collect();
    let stacks = (1..4).map(|stack| LaunchStack { stack, frames: vec![stack - 1], own: Some(0) }).collect();
    let row = |stack, kernel: &str, launches, ms: u64| LaunchRow {
        stack,
        kernel: kernel.to_owned(),
        launches,
        ns: ms * 1_000_000,
    };
    let mut rows: Vec<LaunchRow> =
        (1..).zip(lines).map(|(stack, (_, _, _, kernel, n, ms))| row(stack, kernel, n, ms)).collect();
    rows.push(LaunchRow { ns: 20_000, ..row(0, "ncclDevKernel_AllGather_RING_LL", 12, 0) });
    let event = Event::LaunchLines(Box::new(LaunchLines { pid: 71, frames, stacks, rows }));
    state.apply(&Envelope { t: Stamp(11_000_000_000), event });
    insta::assert_snapshot!("lines_and_launches", at_all_sizes(&state, &showing(Pane::Lines)));
}
