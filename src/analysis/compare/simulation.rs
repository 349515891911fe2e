//! Tests of the statistics on simulated runs with a known difference.

use super::*;
use crate::{
    analysis::trust::Conditions,
    base::noise,
    event::{Outcome, Phase, RunStarted},
};

pub(super) fn facts(overrides: &[&str], gpu: bool) -> Facts {
    let run = RunStarted {
        schema: 1,
        program: "llmprof-tui".into(),
        started_unix_ms: 0,
        experiment: "baseline".into(),
        model: "qwen2_5_7b".into(),
        dtype: "bf16".into(),
        engine: "cuda".into(),
        device: "cuda:0".into(),
        synthetic_weights: true,
        simulated: false,
        parameters: 7_600_000_000,
        weight_bytes: 15_200_000_000,
        step_weight_bytes: None,
        kv_bytes_per_position: 57_344,
        requests: 20,
        warmup: 1,
        batch: 1,
        prompt_tokens: 512,
        output_tokens: 64,
        seed: 0,
        overrides: overrides.iter().map(|text| (*text).to_owned()).collect(),
        shape: None,
        peaks: Default::default(),
        perturbed: None,
    };
    let gpu = gpu.then(|| GpuFacts {
        name: "NVIDIA H200".into(),
        driver: "580.159.04".into(),
        power_limit_w: Some(700.0),
        sm_clock_application_mhz: None,
        mig: Some(false),
    });
    Facts { run, gpu, cpu: None, outcome: Some(Outcome::Completed) }
}

/// A simulated run: its true values, and its noise.
#[derive(Clone, Copy)]
pub(super) struct SimulatedRun {
    pub seed: u64,
    pub requests: u64,
    pub steps: u32,
    pub itl_ms: f64,
    /// From request to request, and from token to token, as shares.
    pub request_noise: f64,
    pub token_noise: f64,
    /// The lag-1 autocorrelation of the requests.
    pub autocorrelation: f64,
    pub sm_mhz: f64,
    /// The compute-bound share of the time, 0 to 1; the rest is memory-bound.
    pub clock_bound: f64,
    pub gpu: bool,
}

pub(super) const BASE_RUN: SimulatedRun = SimulatedRun {
    seed: 0,
    requests: 20,
    steps: 63,
    itl_ms: 3.8,
    request_noise: 0.01,
    token_noise: 0.02,
    autocorrelation: 0.0,
    sm_mhz: 1980.0,
    clock_bound: 1.0,
    gpu: true,
};

impl SimulatedRun {
    pub(super) fn sample(self, gaps: bool) -> Sample {
        let seed = |stream: u64| noise::bits(noise::bits(77, self.seed), stream);
        let slower = 1.0 + self.clock_bound * (1980.0 / self.sm_mhz - 1.0);
        let mut deviation = 0.0;
        let mut trace = match gaps {
            true => RequestTrace::with_gaps(1 << 14),
            false => RequestTrace::of_requests(1 << 14),
        };
        for nth in 0..self.requests {
            let rho = self.autocorrelation;
            deviation = rho * deviation + (1.0 - rho * rho).sqrt() * noise::bell(seed(1), nth);
            let mean_ns = self.itl_ms * 1e6 * slower * (1.0 + self.request_noise * deviation);
            let mut decode_ns = 0;
            for step in 0..self.steps {
                let token_deviation = noise::bell(seed(2), nth * u64::from(self.steps) + u64::from(step));
                let gap_ns = (mean_ns * (1.0 + self.token_noise * token_deviation)) as u64;
                decode_ns += gap_ns;
                if gaps {
                    trace.token(crate::event::Stamp(0), false, gap_ns);
                }
            }
            let ttft_ns = (43e6 * slower * (1.0 + self.request_noise * noise::bell(seed(3), nth))) as u64;
            trace.request_ended(Some(RequestSample {
                ttft_ns,
                decode_ns,
                steps: self.steps,
                batch: 1,
                prompt_tokens: 512,
                decode_mcycles: None,
                decode_j: None,
            }));
        }
        let cycles = |request: &RequestSample| RequestSample {
            decode_mcycles: self.gpu.then(|| request.decode_ns as f64 / 1e9 * self.sm_mhz),
            ..*request
        };
        let mhz = Some(self.sm_mhz).filter(|_| self.gpu);
        Sample {
            schema: SAMPLE_SCHEMA,
            name: "simulated".into(),
            facts: facts(&[], self.gpu),
            requests: trace.requests().iter().map(cycles).collect(),
            measured: self.requests,
            itl_ns: trace.itl_ns().cloned(),
            clocks: Clocks { prefill_sm_mhz: mhz, decode_sm_mhz: mhz, decode_mem_mhz: Some(3201.0) },
            limits: Vec::new(),
            conditions: Conditions::default(),
            peak_mem_bytes: Some(16 << 30),
            decode: None,
        }
    }
}

fn verdicts(a: SimulatedRun, b: SimulatedRun, metrics: &[Metric], trials: u64) -> Vec<[u32; 4]> {
    let mut counts = vec![[0; 4]; metrics.len()];
    let gaps = metrics.iter().any(|metric| matches!(metric, Metric::Itl(Statistic::Percentile(_))));
    for trial in 0..trials {
        let (x, y) = (
            SimulatedRun { seed: 2 * trial, ..a }.sample(gaps),
            SimulatedRun { seed: 2 * trial + 1, ..b }.sample(gaps),
        );
        let options = Options { metrics: metrics.to_vec(), seed: trial, ..Options::default() };
        for (count, row) in counts.iter_mut().zip(compare(&x, &y, &options).rows) {
            count[row.verdict as usize] += 1;
        }
    }
    counts
}

fn metrics(names: &[&str]) -> Vec<Metric> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

/// 5 % of 2,000 and three standard errors of that.
const MAX_FALSE: u32 = 100 + 3 * 10;

#[test]
fn the_false_positive_rate_is_as_stated() {
    let names = ["tpot.p50", "decode_tok_s"];
    let run = SimulatedRun { request_noise: 0.02, steps: 1, gpu: false, ..BASE_RUN };
    let counts = verdicts(run, run, &metrics(&names), 2000);
    for (name, [_, better, worse, _]) in names.iter().zip(counts) {
        assert!(better + worse <= MAX_FALSE, "{name}: {} of 2000", better + worse);
    }
}

#[test]
fn autocorrelated_requests_do_not_raise_the_false_positive_rate() {
    let run = SimulatedRun {
        requests: 80,
        request_noise: 0.04,
        autocorrelation: 0.6,
        steps: 1,
        gpu: false,
        ..BASE_RUN
    };
    let names = ["tpot.p50", "tpot.mean"];
    let counts = verdicts(run, run, &metrics(&names), 200);
    for (name, [_, better, worse, _]) in names.iter().zip(counts) {
        // Blocks estimate the spread less precisely than single requests; without them a quarter would be false.
        assert!(better + worse <= 30, "{name}: {} of 200", better + worse);
    }
}

#[test]
fn a_difference_of_three_percent_is_found() {
    let names = ["tpot.p50", "decode_tok_s"];
    let run = SimulatedRun { request_noise: 0.015, token_noise: 0.0, steps: 1, gpu: false, ..BASE_RUN };
    for (ratio, index) in [(1.03, 2), (1.0 / 1.03, 1)] {
        let counts = verdicts(run, SimulatedRun { itl_ms: 3.8 * ratio, ..run }, &metrics(&names), 200);
        for (name, count) in names.iter().zip(counts) {
            assert!(count[index] >= 190, "{name}: {count:?}");
        }
    }
}

/// The figures of docs/compare.md: `cargo test --release --lib figures_of_the_statistics -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_the_statistics() {
    let all = ["tpot.p50", "tpot.mean", "ttft.p50", "decode_tok_s", "itl.p50", "itl.p90"];
    let print = |what: &str, a: SimulatedRun, b: SimulatedRun, names: &[&str]| {
        for (name, [same, better, worse, undecided]) in
            names.iter().zip(verdicts(a, b, &metrics(names), 2000))
        {
            println!(
                "{what}, {name}: same {same}, faster {better}, slower {worse}, undecided {undecided} of 2000"
            );
        }
    };
    for (requests, request_noise) in [(12, 0.02), (20, 0.005), (20, 0.02), (60, 0.05)] {
        let run = SimulatedRun { requests, request_noise, steps: 40, gpu: false, ..BASE_RUN };
        print(&format!("no difference, {requests} requests, noise {request_noise}"), run, run, &all);
    }
    let correlated = SimulatedRun {
        requests: 80,
        request_noise: 0.04,
        autocorrelation: 0.6,
        steps: 1,
        gpu: false,
        ..BASE_RUN
    };
    print("no difference, autocorrelation 0.6", correlated, correlated, &["tpot.p50", "tpot.mean"]);
    for request_noise in [0.005, 0.015, 0.03] {
        let run = SimulatedRun { request_noise, steps: 40, gpu: false, ..BASE_RUN };
        let slower = SimulatedRun { itl_ms: 3.8 * 1.03, ..run };
        print(
            &format!("3 % slower, noise {request_noise}"),
            run,
            slower,
            &["tpot.p50", "tpot.mean", "decode_tok_s"],
        );
    }
    for clock_bound in [1.0, 0.5, 0.1] {
        let cool = SimulatedRun { request_noise: 0.01, steps: 1, ..BASE_RUN };
        let hot = SimulatedRun { sm_mhz: 1720.0, clock_bound, ..cool };
        print(&format!("heat alone, bound {clock_bound}"), cool, hot, &["tpot.p50", "decode_tok_s"]);
    }
}

#[test]
fn tokens_of_a_request_are_drawn_together() {
    let names = ["itl.p50", "itl.p90"];
    // All tokens of a request share its deviation: as independent values they would give intervals that are far too narrow.
    let run = SimulatedRun {
        requests: 24,
        request_noise: 0.03,
        token_noise: 0.02,
        steps: 20,
        gpu: false,
        ..BASE_RUN
    };
    let counts = verdicts(run, run, &metrics(&names), 200);
    for (name, [_, better, worse, _]) in names.iter().zip(counts) {
        assert!(better + worse <= 10 + 10, "{name}: {}", better + worse);
    }
}

#[test]
fn heat_alone_is_never_called_code() {
    let names = ["tpot.p50", "ttft.p50", "decode_tok_s"];
    for sm_mhz in [1440.0, 1900.0] {
        for clock_bound in [1.0, 0.5, 0.1] {
            let cool = SimulatedRun { request_noise: 0.01, steps: 1, ..BASE_RUN };
            let hot = SimulatedRun { sm_mhz, clock_bound, ..cool };
            for (a, b) in [(cool, hot), (hot, cool)] {
                for (name, [_, better, worse, _]) in names.iter().zip(verdicts(a, b, &metrics(&names), 40)) {
                    assert_eq!(better + worse, 0, "{name} at {sm_mhz} MHz, bound {clock_bound}");
                }
            }
        }
    }
}

#[test]
fn the_clock_is_named_and_so_is_the_code() {
    let cool = SimulatedRun { request_noise: 0.003, ..BASE_RUN };
    let mut a = cool.sample(true);
    let mut b = SimulatedRun { seed: 1, sm_mhz: 1752.0, ..cool }.sample(true);
    let limit = |share| LimitShare { phase: Phase::Decode, limit: "power cap".into(), share };
    (a.limits, b.limits) = (vec![limit(0.03)], vec![limit(0.41)]);
    let heat = compare(&a, &b, &Options::default());
    assert_eq!(heat.verdict, Verdict::Undecided);
    let clocks = "the clock was lower (power cap 41 % vs 3.0 %, SM 1980 → 1752 MHz), not the code.";
    assert!(heat.sentence.starts_with("B is 13 % slower in TPOT, but "), "{}", heat.sentence);
    assert!(heat.sentence.ends_with(clocks), "{}", heat.sentence);

    let c = SimulatedRun { seed: 2, itl_ms: 3.8 * 0.969, ..cool }.sample(true);
    let code = compare(&a, &Sample { limits: a.limits.clone(), ..c }, &Options::default());
    assert_eq!((code.verdict, code.word), (Verdict::Better, "FASTER"), "{}", code.sentence);
    assert!(code.sentence.contains("the cause is the code: -3."), "{}", code.sentence);
}

#[test]
fn runs_that_cannot_be_trusted_or_compared_have_no_verdict() {
    let good = BASE_RUN.sample(false);
    let faster = SimulatedRun { seed: 3, itl_ms: 3.0, ..BASE_RUN }.sample(false);
    let spoilt = |spoil: &dyn Fn(&mut Sample)| {
        let mut b = faster.clone();
        spoil(&mut b);
        compare(&good, &b, &Options::default())
    };
    assert_eq!(spoilt(&|_| {}).verdict, Verdict::Better);
    type Spoil = fn(&mut Sample);
    let cases: [(Spoil, &str); 9] = [
        (|b| b.conditions.other_gpu_processes = 1, "B cannot be trusted: another process used the GPU"),
        (|b| b.conditions.external_cpu_share = Some(0.6), "other processes used 60 % of the CPU"),
        (|b| b.conditions.events_lost = 3, "3 events were lost"),
        (|b| b.facts.run.perturbed = Some("nsys".into()), "it ran under nsys"),
        (|b| b.facts.outcome = Some(Outcome::Failed), "the run failed"),
        (|b| b.facts.run.dtype = "f32".into(), "the runs differ in dtype (bf16 and f32)"),
        (|b| b.facts.run.batch = 4, "batch (1 and 4)"),
        (|b| b.requests.truncate(3), "B has 3 requests, 10 are needed"),
        (
            |b| b.requests.iter_mut().enumerate().for_each(|(i, r)| r.decode_ns += i as u64 * 4_000_000),
            "TPOT drifts: +",
        ),
    ];
    for (spoil, word) in cases {
        let comparison = spoilt(&spoil);
        assert_eq!(comparison.verdict, Verdict::Undecided, "{word}: {}", comparison.sentence);
        assert!(comparison.sentence.contains(word), "{word}: {}", comparison.sentence);
        let row = comparison.row(HEADLINE).unwrap();
        let gate: Gate = "tpot<=+2%".parse().unwrap();
        assert!(matches!(gate.check(row), GateOutcome::Undecided(_)), "{word}");
    }
    // Other processes do not change the memory of this one.
    let shared = spoilt(&|b| b.conditions.other_gpu_processes = 1);
    assert_eq!(shared.row(Metric::PeakMemory).unwrap().verdict, Verdict::Same);
}

#[test]
fn differences_by_overrides_are_intended() {
    let a = BASE_RUN.sample(false);
    let mut b = SimulatedRun { seed: 5, ..BASE_RUN }.sample(false);
    b.facts.run.dtype = "f32".into();
    b.facts.run.overrides = vec!["model.dtype=f32".into(), "hydra.run.dir=x".into()];
    let meant = compare(&a, &b, &Options::default());
    assert!(!meant.rows[1].blocked, "{}", meant.sentence);
    let found: Vec<_> = meant.differences.iter().map(|d| (d.what, d.meant.as_deref())).collect();
    assert_eq!(found, [("override", Some("model.dtype")), ("dtype", Some("model.dtype"))]);
    b.facts.run.overrides.clear();
    b.facts.gpu.as_mut().unwrap().driver = "590".into();
    assert!(compare(&a, &b, &Options::default()).rows[1].blocked);
    let intended = Options { meant: vec!["dtype".into()], ..Options::default() };
    let intended = compare(&a, &b, &intended);
    assert!(!intended.rows[1].blocked);
    let mut other =
        SimulatedRun { seed: 6, itl_ms: 5.0, sm_mhz: 1410.0, clock_bound: 0.0, ..BASE_RUN }.sample(false);
    other.facts.gpu.as_mut().unwrap().name = "NVIDIA A100".into();
    let cards = compare(&a, &other, &Options { meant: vec!["gpu".into()], ..Options::default() });
    assert_eq!((cards.verdict, cards.rows[1].in_cycles), (Verdict::Worse, None), "{}", cards.sentence);
    let driver = intended.differences.iter().find(|d| d.what == "driver").unwrap();
    assert!(driver.meant.is_none() && !driver.blocks());
}

#[test]
fn gates_are_held_broken_or_undecided() {
    let a = BASE_RUN.sample(false);
    let of = |ratio: f64, noise: f64| {
        let b = SimulatedRun { seed: 9, itl_ms: 3.8 * ratio, request_noise: noise, ..BASE_RUN }.sample(false);
        let comparison = compare(&a, &b, &Options::default());
        "tpot.p50<=+2%".parse::<Gate>().unwrap().check(comparison.row(HEADLINE).unwrap())
    };
    assert_eq!(of(1.0, 0.003), GateOutcome::Held);
    assert_eq!(of(1.05, 0.003), GateOutcome::Broken);
    assert!(matches!(of(1.02, 0.03), GateOutcome::Undecided(_)));
}

#[test]
fn interleaved_runs_are_compared_pair_by_pair() {
    // Everything changes by 5 % from pair to pair, and equally for both runs of a pair.
    let pairs: Vec<(Sample, Sample)> = (0..8)
        .map(|nth| {
            let itl_ms = 3.8 * (1.0 + 0.05 * noise::bell(4, nth));
            let run = SimulatedRun { request_noise: 0.005, seed: 2 * nth, itl_ms, ..BASE_RUN };
            (run.sample(true), SimulatedRun { seed: 2 * nth + 1, itl_ms: itl_ms * 1.03, ..run }.sample(true))
        })
        .collect();
    let slower = compare_pairs(&pairs, &Options::default()).unwrap();
    assert_eq!((slower.verdict, slower.pairs), (Verdict::Worse, Some(8)), "{}", slower.sentence);
    let few = compare_pairs(&pairs[..3], &Options::default()).unwrap();
    assert!(few.sentence.contains("3 pairs of runs have it, 5 are needed"), "{}", few.sentence);
    assert!(compare_pairs(&[], &Options::default()).is_none());
}

#[test]
fn empty_and_one_token_runs_are_reported() {
    let a = BASE_RUN.sample(true);
    let empty = SimulatedRun { requests: 0, ..BASE_RUN }.sample(true);
    let result = compare(&a, &empty, &Options::default());
    assert!(result.sentence.contains("B has no completed request"), "{}", result.sentence);
    let short = SimulatedRun { steps: 0, ..BASE_RUN }.sample(true);
    let result = compare(&short, &a, &Options::default());
    assert!(result.sentence.contains("no request of A has more than one token"), "{}", result.sentence);
    assert_eq!(result.rows[0].verdict, Verdict::Same, "TTFT needs one token: {:?}", result.rows[0]);
}

#[test]
fn the_waterfall_lists_the_changes() {
    let profile = |attention_ns: f64, family: &str| KernelProfile {
        steps: 10,
        launches: 500,
        span_ns: 38e6,
        busy_ns: 37e6,
        between_ns: 1e6,
        operators: [("attention".to_owned(), attention_ns), ("qkv".to_owned(), 9e6)].into(),
        families: [(family.to_owned(), 280), ("gemv".to_owned(), 220)].into(),
    };
    let mut a = BASE_RUN.sample(false);
    let mut b = a.clone();
    (a.decode, b.decode) = (Some(profile(5e6, "softmax")), Some(profile(3e6, "flash")));
    let fall = compare(&a, &b, &Options::default()).waterfall.unwrap();
    assert_eq!(fall.parts.len(), 1);
    assert_eq!((fall.parts[0].what.as_str(), fall.parts[0].delta_us()), ("attention", -200.0));
    assert_eq!(
        (fall.appeared, fall.vanished),
        (vec![("flash".into(), 28.0)], vec![("softmax".into(), 28.0)])
    );
}
