//! The statistics held against runs whose truth is known.

use super::*;
use crate::{base::noise, event::RunStarted};

pub(super) fn facts(overrides: &[&str], gpu: bool) -> Facts {
    let run = RunStarted {
        schema: 1,
        program: "llmprof-tui".into(),
        started_unix_ms: 0,
        experiment: "baseline".into(),
        model: "qwen2_5_7b".into(),
        dtype: "bf16".into(),
        engine: EngineKind::Cuda,
        device: Device::Cuda(0),
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
    Facts { run, gpu, cpu: None, outcome: Some(crate::event::Outcome::Completed) }
}

/// A run that never was: its truth, and its noise.
#[derive(Clone, Copy)]
pub(super) struct MadeUp {
    pub seed: u64,
    pub requests: u64,
    pub steps: u32,
    pub itl_ms: f64,
    /// From request to request, and from token to token, as shares.
    pub request_noise: f64,
    pub token_noise: f64,
    /// How much of a request's deviation the next one inherits.
    pub alike: f64,
    pub sm_mhz: f64,
    /// How much of the time follows the SM clock, 0 to 1; the rest waits for memory.
    pub clock_bound: f64,
    pub gpu: bool,
}

pub(super) const USUAL_RUN: MadeUp = MadeUp {
    seed: 0,
    requests: 20,
    steps: 63,
    itl_ms: 3.8,
    request_noise: 0.01,
    token_noise: 0.02,
    alike: 0.0,
    sm_mhz: 1980.0,
    clock_bound: 1.0,
    gpu: true,
};

impl MadeUp {
    pub(super) fn sample(self, gaps: bool) -> Sample {
        let seed = |stream: u64| noise::bits(noise::bits(77, self.seed), stream);
        let slower = 1.0 + self.clock_bound * (1980.0 / self.sm_mhz - 1.0);
        let mut inherited = 0.0;
        let mut trace = match gaps {
            true => Trace::with_gaps(1 << 14),
            false => Trace::of_requests(1 << 14),
        };
        for nth in 0..self.requests {
            let fresh = (1.0 - self.alike * self.alike).sqrt() * noise::bell(seed(1), nth);
            inherited = self.alike * inherited + fresh;
            let level = self.itl_ms * 1e6 * slower * (1.0 + self.request_noise * inherited);
            let mut decode_ns = 0;
            for step in 0..self.steps {
                let wobble = noise::bell(seed(2), nth * u64::from(self.steps) + u64::from(step));
                let gap_ns = (level * (1.0 + self.token_noise * wobble)) as u64;
                decode_ns += gap_ns;
                if gaps {
                    trace.token(crate::event::Stamp(0), false, gap_ns);
                }
            }
            let ttft_ns = (43e6 * slower * (1.0 + self.request_noise * noise::bell(seed(3), nth))) as u64;
            trace.ended(Some(RequestSample {
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
            name: "made up".into(),
            facts: facts(&[], self.gpu),
            requests: trace.requests().iter().map(cycles).collect(),
            measured: self.requests,
            itl_ns: trace.itl_ns().cloned(),
            clocks: Clocks { prefill_sm_mhz: mhz, decode_sm_mhz: mhz, decode_mem_mhz: Some(3201.0) },
            limits: Vec::new(),
            others: 0,
            cpu_taken: None,
            events_lost: 0,
            peak_mem_bytes: Some(16 << 30),
            decode: None,
            prefill: None,
        }
    }
}

fn verdicts(a: MadeUp, b: MadeUp, metrics: &[Metric], trials: u64) -> Vec<[u32; 4]> {
    let mut counts = vec![[0; 4]; metrics.len()];
    let gaps = metrics.iter().any(|metric| matches!(metric, Metric::Itl(Of::Percentile(_))));
    for trial in 0..trials {
        let (x, y) =
            (MadeUp { seed: 2 * trial, ..a }.sample(gaps), MadeUp { seed: 2 * trial + 1, ..b }.sample(gaps));
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
const MOST_FALSE: u32 = 100 + 3 * 10;

#[test]
fn without_a_difference_verdicts_are_false_as_seldom_as_is_said() {
    let names = ["tpot.p50", "decode_tok_s"];
    let run = MadeUp { request_noise: 0.02, steps: 1, gpu: false, ..USUAL_RUN };
    let counts = verdicts(run, run, &metrics(&names), 2000);
    for (name, [_, better, worse, _]) in names.iter().zip(counts) {
        assert!(better + worse <= MOST_FALSE, "{name}: {} of 2000", better + worse);
    }
}

#[test]
fn requests_that_resemble_their_neighbours_do_not_fool_it() {
    let run = MadeUp { requests: 80, request_noise: 0.04, alike: 0.6, steps: 1, gpu: false, ..USUAL_RUN };
    let names = ["tpot.p50", "tpot.mean"];
    let counts = verdicts(run, run, &metrics(&names), 200);
    for (name, [_, better, worse, _]) in names.iter().zip(counts) {
        // Blocks know less of a spread than single requests do; without them a quarter would be false.
        assert!(better + worse <= 30, "{name}: {} of 200", better + worse);
    }
}

#[test]
fn three_percent_are_found() {
    let names = ["tpot.p50", "decode_tok_s"];
    let run = MadeUp { request_noise: 0.015, token_noise: 0.0, steps: 1, gpu: false, ..USUAL_RUN };
    for (ratio, place) in [(1.03, 2), (1.0 / 1.03, 1)] {
        let counts = verdicts(run, MadeUp { itl_ms: 3.8 * ratio, ..run }, &metrics(&names), 200);
        for (name, count) in names.iter().zip(counts) {
            assert!(count[place] >= 190, "{name}: {count:?}");
        }
    }
}

/// The figures of docs/compare.md: `cargo test --release --lib figures_of_the_statistics -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes: what it prints is in docs/compare.md"]
fn figures_of_the_statistics() {
    let all = ["tpot.p50", "tpot.mean", "ttft.p50", "decode_tok_s", "itl.p50", "itl.p90"];
    let told = |what: &str, a: MadeUp, b: MadeUp, names: &[&str]| {
        for (name, [same, better, worse, undecided]) in
            names.iter().zip(verdicts(a, b, &metrics(names), 2000))
        {
            println!(
                "{what}, {name}: same {same}, faster {better}, slower {worse}, undecided {undecided} of 2000"
            );
        }
    };
    for (requests, request_noise) in [(12, 0.02), (20, 0.005), (20, 0.02), (60, 0.05)] {
        let run = MadeUp { requests, request_noise, steps: 40, gpu: false, ..USUAL_RUN };
        told(&format!("no difference, {requests} requests, noise {request_noise}"), run, run, &all);
    }
    let alike = MadeUp { requests: 80, request_noise: 0.04, alike: 0.6, steps: 1, gpu: false, ..USUAL_RUN };
    told("no difference, neighbours alike", alike, alike, &["tpot.p50", "tpot.mean"]);
    for request_noise in [0.005, 0.015, 0.03] {
        let run = MadeUp { request_noise, steps: 40, gpu: false, ..USUAL_RUN };
        let slower = MadeUp { itl_ms: 3.8 * 1.03, ..run };
        told(
            &format!("3 % slower, noise {request_noise}"),
            run,
            slower,
            &["tpot.p50", "tpot.mean", "decode_tok_s"],
        );
    }
    for clock_bound in [1.0, 0.5, 0.1] {
        let cool = MadeUp { request_noise: 0.01, steps: 1, ..USUAL_RUN };
        let hot = MadeUp { sm_mhz: 1720.0, clock_bound, ..cool };
        told(&format!("heat alone, bound {clock_bound}"), cool, hot, &["tpot.p50", "decode_tok_s"]);
    }
}

#[test]
fn tokens_that_belong_together_are_drawn_together() {
    let names = ["itl.p50", "itl.p90"];
    // Within a request all tokens share its deviation: as single values they would promise far too much.
    let run =
        MadeUp { requests: 24, request_noise: 0.03, token_noise: 0.02, steps: 20, gpu: false, ..USUAL_RUN };
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
            let cool = MadeUp { request_noise: 0.01, steps: 1, ..USUAL_RUN };
            let hot = MadeUp { sm_mhz, clock_bound, ..cool };
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
    let cool = MadeUp { request_noise: 0.003, ..USUAL_RUN };
    let mut a = cool.sample(true);
    let mut b = MadeUp { seed: 1, sm_mhz: 1752.0, ..cool }.sample(true);
    let limit = |share| LimitShare { phase: "decode".into(), limit: "power cap".into(), share };
    (a.limits, b.limits) = (vec![limit(0.03)], vec![limit(0.41)]);
    let heat = compare(&a, &b, &Options::default());
    assert_eq!(heat.verdict, Verdict::Undecided);
    let words = "the clock was lower (power cap 41 % against 3.0 %, SM 1980 → 1752 MHz), not the code.";
    assert!(heat.sentence.starts_with("B is 13 % slower in TPOT by time"), "{}", heat.sentence);
    assert!(heat.sentence.ends_with(words), "{}", heat.sentence);

    let c = MadeUp { seed: 2, itl_ms: 3.8 * 0.969, ..cool }.sample(true);
    let code = compare(&a, &Sample { limits: a.limits.clone(), ..c }, &Options::default());
    assert_eq!((code.verdict, code.word), (Verdict::Better, "FASTER"), "{}", code.sentence);
    assert!(code.sentence.contains("and it is the code: in GPU cycles -3."), "{}", code.sentence);
}

#[test]
fn what_can_not_be_trusted_or_compared_has_no_verdict() {
    let good = USUAL_RUN.sample(false);
    let faster = MadeUp { seed: 3, itl_ms: 3.0, ..USUAL_RUN }.sample(false);
    let spoilt = |spoil: &dyn Fn(&mut Sample)| {
        let mut b = faster.clone();
        spoil(&mut b);
        compare(&good, &b, &Options::default())
    };
    assert_eq!(spoilt(&|_| {}).verdict, Verdict::Better);
    type Spoil = fn(&mut Sample);
    let cases: [(Spoil, &str); 9] = [
        (|b| b.others = 1, "B can't be trusted: another process was on the card"),
        (|b| b.cpu_taken = Some(0.6), "other processes took 60 % of the CPU"),
        (|b| b.events_lost = 3, "3 events were lost"),
        (|b| b.facts.run.perturbed = Some("nsys".into()), "it ran under nsys"),
        (|b| b.facts.outcome = Some(crate::event::Outcome::Failed), "the run failed"),
        (|b| b.facts.run.dtype = "f32".into(), "they can't be compared: dtype is bf16 and f32"),
        (|b| b.facts.run.batch = 4, "batch is 1 and 4"),
        (|b| b.requests.truncate(3), "B has 3 requests, 10 are needed"),
        (
            |b| b.requests.iter_mut().enumerate().for_each(|(i, r)| r.decode_ns += i as u64 * 4_000_000),
            "it drifts",
        ),
    ];
    for (spoil, word) in cases {
        let comparison = spoilt(&spoil);
        assert_eq!(comparison.verdict, Verdict::Undecided, "{word}: {}", comparison.sentence);
        assert!(comparison.sentence.contains(word), "{word}: {}", comparison.sentence);
        let row = comparison.row(HEADLINE).unwrap();
        let gate: Gate = "tpot<=+2%".parse().unwrap();
        assert!(matches!(gate.check(row), Held::Undecided(_)), "{word}");
    }
    // Memory is what it is, whoever else was there.
    let shared = spoilt(&|b| b.others = 1);
    assert_eq!(shared.row(Metric::PeakMemory).unwrap().verdict, Verdict::Same);
}

#[test]
fn what_the_overrides_say_was_meant() {
    let a = USUAL_RUN.sample(false);
    let mut b = MadeUp { seed: 5, ..USUAL_RUN }.sample(false);
    b.facts.run.dtype = "f32".into();
    b.facts.run.overrides = vec!["model.dtype=f32".into(), "hydra.run.dir=x".into()];
    let meant = compare(&a, &b, &Options::default());
    assert!(!meant.rows[1].blocked, "{}", meant.sentence);
    let told: Vec<_> = meant.differences.iter().map(|d| (d.what, d.meant.as_deref())).collect();
    assert_eq!(told, [("override", Some("model.dtype")), ("dtype", Some("model.dtype"))]);
    b.facts.run.overrides.clear();
    b.facts.gpu.as_mut().unwrap().driver = "590".into();
    assert!(compare(&a, &b, &Options::default()).rows[1].blocked);
    let said = Options { meant: vec!["dtype".into()], ..Options::default() };
    let said = compare(&a, &b, &said);
    assert!(!said.rows[1].blocked);
    let mut other =
        MadeUp { seed: 6, itl_ms: 5.0, sm_mhz: 1410.0, clock_bound: 0.0, ..USUAL_RUN }.sample(false);
    other.facts.gpu.as_mut().unwrap().name = "NVIDIA A100".into();
    let cards = compare(&a, &other, &Options { meant: vec!["gpu".into()], ..Options::default() });
    assert_eq!((cards.verdict, cards.rows[1].in_cycles), (Verdict::Worse, None), "{}", cards.sentence);
    let driver = said.differences.iter().find(|d| d.what == "driver").unwrap();
    assert!(driver.meant.is_none() && !driver.blocks());
}

#[test]
fn gates_hold_break_or_stay_open() {
    let a = USUAL_RUN.sample(false);
    let of = |ratio: f64, noise: f64| {
        let b = MadeUp { seed: 9, itl_ms: 3.8 * ratio, request_noise: noise, ..USUAL_RUN }.sample(false);
        let comparison = compare(&a, &b, &Options::default());
        "tpot.p50<=+2%".parse::<Gate>().unwrap().check(comparison.row(HEADLINE).unwrap())
    };
    assert_eq!(of(1.0, 0.003), Held::Held);
    assert_eq!(of(1.05, 0.003), Held::Broken);
    assert!(matches!(of(1.02, 0.03), Held::Undecided(_)));
}

#[test]
fn runs_in_turn_are_compared_pair_by_pair() {
    // From run to run everything changes by 5 %, but for both of a pair alike.
    let pairs: Vec<(Sample, Sample)> = (0..8)
        .map(|nth| {
            let level = 3.8 * (1.0 + 0.05 * noise::bell(4, nth));
            let run = MadeUp { request_noise: 0.005, seed: 2 * nth, itl_ms: level, ..USUAL_RUN };
            (run.sample(true), MadeUp { seed: 2 * nth + 1, itl_ms: level * 1.03, ..run }.sample(true))
        })
        .collect();
    let slower = compare_pairs(&pairs, &Options::default()).unwrap();
    assert_eq!((slower.verdict, slower.pairs), (Verdict::Worse, Some(8)), "{}", slower.sentence);
    let few = compare_pairs(&pairs[..3], &Options::default()).unwrap();
    assert!(few.sentence.contains("3 pairs of runs have it, 5 are needed"), "{}", few.sentence);
    assert!(compare_pairs(&[], &Options::default()).is_none());
}

#[test]
fn empty_and_one_token_runs_say_so() {
    let a = USUAL_RUN.sample(true);
    let empty = MadeUp { requests: 0, ..USUAL_RUN }.sample(true);
    let said = compare(&a, &empty, &Options::default());
    assert!(said.sentence.contains("B has no completed request"), "{}", said.sentence);
    let short = MadeUp { steps: 0, ..USUAL_RUN }.sample(true);
    let said = compare(&short, &a, &Options::default());
    assert!(said.sentence.contains("no request of A has more than one token"), "{}", said.sentence);
    assert_eq!(said.rows[0].verdict, Verdict::Same, "a first token has its time: {:?}", said.rows[0]);
}

#[test]
fn the_waterfall_names_what_changed() {
    let profile = |attention_ns: f64, family: &str| KernelProfile {
        steps: 10,
        launches: 500,
        span_ns: 38e6,
        busy_ns: 37e6,
        between_ns: 1e6,
        operators: [("attention".to_owned(), attention_ns), ("qkv".to_owned(), 9e6)].into(),
        families: [(family.to_owned(), 280), ("gemv".to_owned(), 220)].into(),
    };
    let mut a = USUAL_RUN.sample(false);
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
