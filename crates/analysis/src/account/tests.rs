use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{late::LateCause, launches::LaunchMeter, roofline::Roof, throttle::Limit};
use llm_cost::{Operator, Shape, Step};
use llmprof_event::{KernelWindow, kernels::KernelRow, reasons::SW_POWER_CAP};

const H200: Roof = Roof { flops: 989.4e12, bytes_per_s: 4.8e12 };

/// The shape of Qwen2.5-7B.
fn shape() -> Shape {
    serde_json::from_value(json!({
        "vocab": 152064, "hidden": 3584, "intermediate": 18944, "heads": 28, "kv_heads": 4, "head_dim": 128,
        "max_positions": 131072, "layers": [{"count": 28}], "qkv_bias": true, "dtype": "bf16",
        "number_bytes": 2, "weight_bytes": 15_231_233_024u64
    }))
    .unwrap()
}

fn row(name: &str, operator: Option<Operator>, us_per_step: f64, steps: u64) -> KernelRow {
    KernelRow {
        calls: steps,
        total_ns: Some(us_per_step * 1e3 * steps as f64),
        grid: Some([1, 1, 1]),
        operator,
        ..KernelRow::named(name)
    }
}

/// A hundred recorded steps of vLLM with 16 sequences, as in a recording.
fn window() -> KernelWindow {
    let steps = 100;
    let rows = vec![
        row("nvjet_gate_up", Some(Operator::GateUp), 1_990.0, steps),
        row("nvjet_down", Some(Operator::Down), 1_010.0, steps),
        row("nvjet_qkv", Some(Operator::Qkv), 330.0, steps),
        row("nvjet_out", Some(Operator::AttentionOutput), 310.0, steps),
        row("flash_attention", Some(Operator::Attention), 460.0, steps),
        row("nvjet_lm_head", Some(Operator::LmHead), 266.0, steps),
        row("rms_norm", Some(Operator::MlpNorm), 180.0, steps),
        row("rope", Some(Operator::Rope), 120.0, steps),
        row("prepare_inputs", None, 20.0, steps),
        KernelRow { grid: None, bytes: Some(64.0), ..row("memcpy HtoD", None, 4.0, steps) },
    ];
    let busy_ns = rows.iter().filter_map(|row| row.total_ns).sum::<f64>() as u64;
    KernelWindow {
        steps,
        span_ns: busy_ns + 23_000_000,
        busy_ns,
        between_ns: 18_000_000,
        launches: 39_500,
        graph_launches: 39_000,
        rows,
        ..KernelWindow::default()
    }
}

fn step() -> StepFacts {
    let cost = shape().cost(Step::decode(16, 384));
    StepFacts::from_window(&window(), Some(&cost), Some(&H200)).unwrap()
}

fn bytes(ns: f64) -> Option<Bound> {
    Some(Bound { bytes_ns: ns, flops_ns: 0.0 })
}

fn sum(account: &Account) -> f64 {
    account.entries.iter().map(|entry| entry.ns).sum()
}

#[test]
fn a_step_of_vllm_is_bytes_then_gemms_then_small_kernels() {
    let facts = DecodeFacts {
        is_tpot: true,
        mean_ns: 5.61e6,
        n: 10_000,
        late: vec![Interference { cause: LateCause::Prefill, ns: 0.5e6 }],
        step: Some(step()),
        ..DecodeFacts::default()
    };
    let account = decode(&facts);
    assert!((sum(&account) - 5.61e6).abs() < 1.0);
    let ms = |owner| account.ns(owner) / 1e6;
    // 14.7 GB of weights and KV cache at 4.8 TB/s.
    assert!((ms(Owner::Bytes) - 3.0).abs() < 0.1, "{}", ms(Owner::Bytes));
    assert_eq!(ms(Owner::OtherPrefills), 0.5);
    assert!((ms(Owner::SmallKernels) - 0.3).abs() < 0.01);
    assert!((ms(Owner::KernelGaps) - 0.23).abs() < 1e-6);
    assert_eq!(account.entries[0].owner, Owner::Bytes, "the bound is first");
    assert_eq!(account.entries.last().unwrap().owner, Owner::Unexplained, "the unexplained time is last");
    assert!(account.unexplained_share() < 0.05, "{}", account.unexplained_share());
    let text = headline(&account, &Setup { peak_bytes_per_s: Some(4.8e12), ..Setup::default() });
    let text = text.unwrap();
    assert!(text.starts_with("Decode is at 5"), "{text}");
    assert!(text.contains("of 5.61 ms are bytes at 4.80 TB/s. Largest loss: "), "{text}");
}

#[test]
fn gaps_get_at_most_the_time_without_recording() {
    // Recording made the steps longer: 5.1 ms instead of 4.8.
    let facts = DecodeFacts { mean_ns: 4.8e6, n: 100, step: Some(step()), ..DecodeFacts::default() };
    let account = decode(&facts);
    assert!((sum(&account) - 4.8e6).abs() < 1.0);
    let gaps = account.ns(Owner::KernelGaps) / account.ns(Owner::StepGaps);
    assert!((gaps - 23.0 / 18.0).abs() < 1e-6, "in proportion: {gaps}");
    assert_eq!(account.ns(Owner::Unexplained), 0.0);
}

#[test]
fn a_clock_takes_its_loss_from_the_excess_of_kernels() {
    let clock = ClockLoss { limit: Limit::Bit(SW_POWER_CAP), share: 0.05, is_measured: false };
    let facts =
        |clock| DecodeFacts { mean_ns: 5.2e6, n: 100, step: Some(step()), clock, ..DecodeFacts::default() };
    let (free, capped) = (decode(&facts(None)), decode(&facts(Some(clock))));
    assert_eq!(free.ns(Owner::Bytes), capped.ns(Owner::Bytes));
    let gpu = |account: &Account| account.group_ns(Group::Gpu) + account.group_ns(Group::Clock);
    assert!((gpu(&free) - gpu(&capped)).abs() < 1.0, "moved, not added");
    let lost = capped.ns(Owner::Clock(clock.limit));
    assert!(lost <= 0.05 * step().launches.step_ns() + 1.0, "{lost}");
}

#[test]
fn what_is_done_already_is_not_recommended() {
    let on_cpu = Setup { is_on_cpu: true, ..Setup::default() };
    assert!(remedy(Owner::Unexplained, &on_cpu).unwrap().contains("profiling.operators.enable=true"));
    assert_eq!(remedy(Owner::Unexplained, &Setup { times_operators: true, ..on_cpu }), None);
    let recorded = Setup { is_quantised: true, speculates: true, ..Setup::default() };
    assert_eq!(remedy(Owner::Bytes, &recorded), None);
}

#[test]
fn a_host_that_launches_too_slowly_is_named_with_its_launches() {
    let launches = LaunchMeter {
        launches: 1_546.0,
        graph_share: 0.0,
        busy_ns: 6.2e6,
        gaps_ns: 14.9e6,
        between_ns: 0.4e6,
    };
    let step = StepFacts {
        parts: vec![Part { owner: Owner::SmallKernels, ns: 6.2e6, bound: Bound::default() }],
        launches,
        steps: 10,
    };
    let account = decode(&DecodeFacts { mean_ns: 21.5e6, n: 50, step: Some(step), ..DecodeFacts::default() });
    let setup = Setup { launches: Some(launches), ..Setup::default() };
    let text = headline(&account, &setup).unwrap();
    assert_eq!(
        text,
        "The host limits decode: the GPU is idle 71 % of the time, 15.3 ms of 21.5 ms per step, in which it launches \
         1,546 kernels. CUDA graphs, or torch.compile(mode=\"reduce-overhead\")."
    );
    let graphs = Setup { uses_graphs: true, ..setup };
    assert!(!headline(&account, &graphs).unwrap().contains("torch.compile"), "it has graphs already");
}

#[test]
fn without_kernels_the_clock_of_the_gpu_divides_the_step() {
    let facts = DecodeFacts {
        mean_ns: 4.0e6,
        n: 100,
        bound: bytes(3.1e6),
        device_ns: Some(3.7e6),
        ..DecodeFacts::default()
    };
    let account = decode(&facts);
    assert_eq!(account.ns(Owner::Bytes), 3.1e6);
    assert!((account.ns(Owner::Work) - 0.6e6).abs() < 1.0);
    assert!((account.ns(Owner::StepGaps) - 0.3e6).abs() < 1.0);
    // A bound above the measured time is no time.
    let wrong = decode(&DecodeFacts { bound: bytes(9.9e6), ..facts });
    assert_eq!(wrong.ns(Owner::Bytes), 3.7e6);
}

#[test]
fn a_remote_server_is_unexplained_apart_from_late_tokens() {
    let facts = DecodeFacts {
        is_tpot: true,
        mean_ns: 12.0e6,
        n: 100,
        late: vec![
            Interference { cause: LateCause::Prefill, ns: 2.0e6 },
            Interference { cause: LateCause::Unknown, ns: 1.0e6 },
            Interference { cause: LateCause::Throttling, ns: 1.0e6 },
        ],
        ..DecodeFacts::default()
    };
    let account = decode(&facts);
    assert_eq!((account.ns(Owner::OtherPrefills), account.ns(Owner::Unexplained)), (2.0e6, 10.0e6));
    let text = headline(&account, &Setup::default()).unwrap();
    assert!(text.starts_with("10.0 ms (83 %) of the time between tokens are unexplained."), "{text}");
    let nothing = decode(&DecodeFacts { late: Vec::new(), ..facts });
    assert_eq!(headline(&nothing, &Setup::default()), None, "nothing is known");
}

#[test]
fn ttft_is_divided_in_order_of_time() {
    let facts = TtftFacts {
        mean_ns: 100e6,
        n: 40,
        connect_ns: Some(1e6),
        send_ns: Some(1e6),
        queue_ns: Some(50e6),
        prefill: PrefillFacts { ns: Some(40e6), bound: bytes(25e6), ..PrefillFacts::default() },
        ..TtftFacts::default()
    };
    let account = ttft(&facts);
    assert!((sum(&account) - 100e6).abs() < 1.0);
    assert_eq!(account.ns(Owner::Queue), 50e6);
    assert_eq!((account.ns(Owner::Bytes), account.ns(Owner::Prefill)), (25e6, 15e6));
    assert!((account.ns(Owner::Unexplained) - 8e6).abs() < 1.0);
}

#[test]
fn prompts_that_share_a_step_share_its_time() {
    let prefill =
        PrefillFacts { ns: Some(80e6), bound: bytes(5e6), own_share: Some(0.25), ..PrefillFacts::default() };
    let account = ttft(&TtftFacts { mean_ns: 100e6, n: 16, prefill, ..TtftFacts::default() });
    assert_eq!(account.ns(Owner::OtherPrefills), 60e6);
    assert!((account.ns(Owner::Prefill) - 15e6).abs() < 1.0);
    assert!((account.ns(Owner::Unexplained) - 20e6).abs() < 1.0);
}

#[test]
fn throughput_has_the_owners_of_its_requests_and_idle_time() {
    let decode = decode(&DecodeFacts { mean_ns: 5e6, n: 1, bound: bytes(4e6), ..DecodeFacts::default() });
    let ttft = ttft(&TtftFacts { mean_ns: 50e6, n: 1, queue_ns: Some(30e6), ..TtftFacts::default() });
    // A quarter of a second without requests; then two at a time, a third of their time before the first token.
    let load = Load { wall_ns: 1e9, output_tokens: 300, ttft_ns: 0.5e9, decode_ns: 1.0e9, idle_ns: 0.25e9 };
    let account = throughput(&load, Some(&ttft), Some(&decode)).unwrap();
    assert!((sum(&account) - 1e9 / 300.0).abs() < 1e-3);
    let share = |owner| account.share(account.ns(owner));
    assert!((share(Owner::NoRequests) - 0.25).abs() < 1e-9);
    assert!((share(Owner::Bytes) - 0.4).abs() < 1e-9);
    assert!((share(Owner::Queue) - 0.15).abs() < 1e-9);
    assert_eq!(throughput(&Load::default(), None, None), None);
}

#[test]
fn a_program_without_steps_is_kernels_copies_and_idle_time() {
    let window = KernelWindow { steps: 0, ..window() };
    let account = program(&window).unwrap();
    assert!((sum(&account) - window.span_ns as f64).abs() < 1.0);
    assert!((account.ns(Owner::GpuIdle) - 23e6).abs() < 1.0);
    assert!((account.ns(Owner::Copies) - 0.4e6).abs() < 1.0);
    assert_eq!(program(&KernelWindow::default()), None);
}

fn times() -> impl Strategy<Value = f64> {
    prop_oneof![4 => 0.0..1e8f64, 1 => Just(0.0), 1 => Just(f64::NAN), 1 => Just(f64::INFINITY), 1 => -1e6..0.0f64]
}

proptest! {
    #[test]
    fn owners_are_never_negative_and_add_up(
        mean_ns in times(),
        late in prop::collection::vec((0usize..7, times()), 0..6),
        recording in prop::option::of(times()),
        bound in prop::option::of(times()),
        device in prop::option::of(times()),
        clock in prop::option::of(0.0..2.0f64),
        with_step in any::<bool>(),
    ) {
        let late = late.into_iter().map(|(cause, ns)| Interference { cause: LateCause::ALL[cause], ns }).collect();
        let clock = clock.map(|share| ClockLoss { limit: Limit::Bit(SW_POWER_CAP), share, is_measured: true });
        let facts = DecodeFacts {
            is_tpot: true, mean_ns, n: 1, late, recording_ns: recording, bound: bound.and_then(bytes), device_ns: device, clock,
            step: with_step.then(step), operators: Vec::new(),
        };
        let account = decode(&facts);
        prop_assert!(account.entries.iter().all(|entry| entry.ns >= 0.0 && entry.ns.is_finite()));
        prop_assert!((sum(&account) - account.total_ns).abs() <= 0.005 * account.total_ns + 1e-6);
        let mut owners: Vec<String> = account.entries.iter().map(|entry| entry.owner.key()).collect();
        owners.sort();
        owners.dedup();
        prop_assert_eq!(owners.len(), account.entries.len(), "each owner once");
        let _ = headline(&account, &Setup::default());
    }

    #[test]
    fn another_instrument_never_enlarges_what_is_unexplained(mean_ns in 1e6..1e8f64, bound in times(), device in times()) {
        let plain = DecodeFacts { mean_ns, n: 1, bound: bytes(bound), ..DecodeFacts::default() };
        let timed = DecodeFacts { device_ns: Some(device.abs().min(mean_ns)), ..plain.clone() };
        let recorded = DecodeFacts { step: Some(step()), ..timed.clone() };
        let unexplained = |facts: &DecodeFacts| decode(facts).ns(Owner::Unexplained);
        prop_assert!(unexplained(&timed) <= unexplained(&plain) + 1.0);
        prop_assert!(decode(&recorded).ns(Owner::OtherPrefills) == 0.0);
    }
}

/// The context of another program's sequences is not known, and with it the bytes that attention must read.
#[test]
fn an_operator_without_a_bound_is_no_loss() {
    let mut cost = shape().cost(Step::decode(1, 0));
    cost.operators.retain(|operator| operator.operator != Operator::Attention);
    let step = StepFacts::from_window(&window(), Some(&cost), Some(&H200)).unwrap();
    let facts = DecodeFacts { mean_ns: 5.1e6, n: 100, step: Some(step), ..DecodeFacts::default() };
    let account = decode(&facts);
    assert_eq!(account.without_bound().unwrap().owner, Owner::Operator(Operator::Attention));
    let largest = account.largest_loss().unwrap();
    assert_eq!(largest.owner, Owner::Operator(Operator::GateUp), "attention takes longer: {account:?}");
    let text = headline(&account, &Setup { peak_bytes_per_s: Some(4.8e12), ..Setup::default() }).unwrap();
    assert!(text.contains(" % or more of the memory limit: "), "{text}");
    assert!(text.contains("The bound of attention, 0.460 ms (9.0 %), is not known: it depends"), "{text}");

    let account =
        decode(&DecodeFacts { mean_ns: 5.1e6, n: 100, step: Some(self::step()), ..DecodeFacts::default() });
    assert_eq!(account.without_bound(), None, "with its context every operator has a bound");
}
