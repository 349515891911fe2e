//! Verdicts, reasons and sentences of comparisons of simulated runs.

use super::{
    simulation::{BASE_RUN, SimulatedRun},
    *,
};
use llmprof_base::noise;
use llmprof_event::{Outcome, Phase, Slo};

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
    assert!(heat.sentence.starts_with("TPOT of B is 13 % higher, but "), "{}", heat.sentence);
    assert!(heat.sentence.ends_with(clocks), "{}", heat.sentence);

    let c = SimulatedRun { seed: 2, itl_ms: 3.8 * 0.969, ..cool }.sample(true);
    let code = compare(&a, &Sample { limits: a.limits.clone(), ..c }, &Options::default());
    assert_eq!((code.verdict, code.word), (Verdict::Better, "FASTER"), "{}", code.sentence);
    assert!(code.sentence.contains("not because of the clocks: -3."), "{}", code.sentence);
}

#[test]
fn goodput_is_the_share_of_requests_that_keep_every_slo() {
    let with = |kept: u64, ttft_p99_ms: Option<f64>| {
        let mut sample = BASE_RUN.sample(false);
        let mut outcomes = BlockHistogram::default();
        for request in 0..200 {
            outcomes.record(if request % 10 < kept { KEPT_SLO } else { BROKEN_SLO });
            outcomes.close();
        }
        sample.kept_slos = ttft_p99_ms.map(|_| outcomes);
        sample.facts.run.slo = ttft_p99_ms.map(|ms| Slo { ttft_p99_ms: Some(ms), ..Slo::default() });
        sample
    };
    let options = Options { metrics: vec![Metric::Goodput], ..Options::default() };
    let row = |a: &Sample, b: &Sample| compare(a, b, &options).row(Metric::Goodput).unwrap().clone();
    let better = row(&with(5, Some(50.0)), &with(9, Some(50.0)));
    assert_eq!((better.a, better.b), (Some(0.5), Some(0.9)));
    assert_eq!(better.verdict, Verdict::Better, "{better:?}");
    let same = row(&with(9, Some(50.0)), &with(9, Some(50.0)));
    assert!(!matches!(same.verdict, Verdict::Better | Verdict::Worse), "{same:?}");
    let other_slo = row(&with(5, Some(50.0)), &with(9, Some(80.0)));
    assert_eq!(other_slo.reason.as_deref(), Some("the SLOs differ"), "{other_slo:?}");
    assert_eq!(Metric::Goodput.format_value(0.905), "90.5 %");
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
    let cases: [(Spoil, &str); 12] = [
        (|b| b.conditions.other_gpu_processes = 1, "B cannot be trusted: another process used the GPU"),
        (|b| b.conditions.external_cpu_share = Some(0.6), "other processes used 60 % of the CPU"),
        (|b| b.conditions.events_lost = 3, "3 events were lost"),
        (|b| b.facts.run.perturbed = Some("nsys".into()), "it ran under nsys"),
        (|b| b.facts.outcome = Some(Outcome::Failed), "the run failed"),
        (|b| b.facts.run.dtype = "f32".into(), "the runs differ in dtype (bf16 and f32)"),
        (|b| b.facts.run.batch = 4, "batch (1 and 4)"),
        (|b| b.facts.run.model = "qwen3_4b".into(), "the runs differ in model ("),
        (|b| b.facts.run.prompt_tokens += 1, "the runs differ in prompt tokens ("),
        (|b| b.facts.gpu.as_mut().unwrap().name = "NVIDIA A100".into(), "the runs differ in gpu ("),
        (|b| b.requests.truncate(3), "B has 3 requests, 5 are needed"),
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

/// Another GPU by an override makes two workloads: the GPU is named first, and neither the clocks nor the code.
#[test]
fn a_gpu_that_an_override_changed_is_named_first() {
    let a = BASE_RUN.sample(false);
    let other = SimulatedRun { seed: 6, itl_ms: 5.0, sm_mhz: 1410.0, clock_bound: 0.0, ..BASE_RUN };
    for key in ["hardware.device_index", "runtime.device"] {
        let mut b = other.sample(false);
        b.facts.gpu.as_mut().unwrap().name = "NVIDIA A100".into();
        b.facts.run.overrides = vec![format!("{key}=1")];
        let comparison = compare(&a, &b, &Options::default());
        assert_eq!(comparison.verdict, Verdict::Worse, "{}", comparison.sentence);
        let begins = "A and B differ in gpu (NVIDIA H200 → NVIDIA A100). TPOT of B is ";
        assert!(comparison.sentence.starts_with(begins), "{key}: {}", comparison.sentence);
        assert!(comparison.sentence.contains(" % higher, 1.3"), "{key}: {}", comparison.sentence);
        for claim in ["the clocks", "the code"] {
            assert!(!comparison.sentence.contains(claim), "{key}: {}", comparison.sentence);
        }
        let changed: Vec<_> =
            comparison.changed_workload().map(|d| (d.what, d.meant.as_deref(), d.is_ignored())).collect();
        assert_eq!(changed, [("gpu", Some(key), false)]);
    }
}

#[test]
fn gates_pass_fail_or_are_undecided() {
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
    // 500 and 300 µs of attention, 900 of qkv, 200 between kernels.
    assert_eq!((fall.clock, fall.step.a_us, fall.step.b_us), (OperatorClock::Kernels, 1600.0, 1400.0));
    assert_eq!((fall.parts[0].what.as_str(), fall.parts[0].delta_us()), ("attention", -200.0));
    assert_eq!(
        (fall.appeared, fall.vanished),
        (vec![("flash".into(), 28.0)], vec![("softmax".into(), 28.0)])
    );
    // Kernels of one side are not compared with the wall time of the other.
    (b.decode_on_cpu, b.decode) = (b.decode.take(), None);
    assert_eq!(compare(&a, &b, &Options::default()).waterfall, None);
    a.decode_on_cpu = a.decode.take();
    let fall = compare(&a, &b, &Options::default()).waterfall.unwrap();
    assert_eq!((fall.clock, fall.parts[0].delta_us()), (OperatorClock::WallTime, -200.0));
}

/// Interleaved runs; `edit` changes a run, given its side and the number of its pair.
fn pairs(n: u64, edit: impl Fn(&str, u64, SimulatedRun) -> SimulatedRun) -> Vec<(Sample, Sample)> {
    let run = |side: &str, nth: u64, seed: u64| {
        edit(side, nth, SimulatedRun { seed, request_noise: 0.01, ..BASE_RUN }).sample(true)
    };
    (0..n).map(|nth| (run("A", nth, 2 * nth), run("B", nth, 2 * nth + 1))).collect()
}

#[test]
fn copies_are_no_evidence() {
    // All pairs are copies of one: the difference may be chance, however often it is repeated.
    let copies = pairs(6, |side, _, run| SimulatedRun { seed: u64::from(side == "B"), ..run });
    let comparison = compare_pairs(&copies, &Options { margin: 0.0, ..Options::default() }).unwrap();
    assert_eq!(comparison.verdict, Verdict::Undecided, "{}", comparison.sentence);
    assert!(comparison.sentence.contains("all 6 pairs are identical"), "{}", comparison.sentence);
    let gate: Gate = "tpot<=-50%".parse().unwrap();
    assert!(matches!(gate.check(comparison.row(HEADLINE).unwrap()), GateOutcome::Undecided(_)));
    assert!(comparison.rows.iter().all(|row| matches!(row.verdict, Verdict::Undecided | Verdict::Same)));
    // Times without any visible spread that are not copies.
    let still = |seed: u64, itl_ms: f64| {
        let mut sample =
            SimulatedRun { token_noise: 0.0, request_noise: 0.0, seed, itl_ms, ..BASE_RUN }.sample(true);
        sample
            .requests
            .iter_mut()
            .enumerate()
            .for_each(|(i, request)| request.decode_ns += 7 * seed + i as u64 % 3);
        sample
    };
    let fine: Vec<_> = (0..6).map(|nth| (still(nth, 3.8), still(nth + 9, 4.0))).collect();
    for comparison in [
        compare(&fine[0].0, &fine[0].1, &Options::default()),
        compare_pairs(&fine, &Options::default()).unwrap(),
    ] {
        for metric in ["tpot.mean", "itl.p50", "decode_tok_s"] {
            let row = comparison.row(metric.parse().unwrap()).unwrap();
            assert_eq!(row.verdict, Verdict::Worse, "{}: {row:?}", comparison.sentence);
        }
    }
    // Equal values are the same, with or without spread.
    let equal = pairs(6, |_, _, run| SimulatedRun { seed: 0, ..run });
    let comparison = compare_pairs(&equal, &Options::default()).unwrap();
    assert_eq!(comparison.verdict, Verdict::Same, "{}", comparison.sentence);
    let still = SimulatedRun { request_noise: 0.0, token_noise: 0.0, gpu: false, ..BASE_RUN };
    let slower = SimulatedRun { itl_ms: 4.0, ..still };
    let comparison = compare(&still.sample(true), &slower.sample(true), &Options::default());
    assert_eq!(comparison.verdict, Verdict::Undecided, "{}", comparison.sentence);
    assert!(comparison.sentence.contains("all values of a side are identical"), "{}", comparison.sentence);
}

#[test]
fn both_columns_and_their_ratio_are_one_statistic() {
    // One run of A is far slower than the others: the means over requests and over pairs would differ.
    let uneven = pairs(6, |side, nth, run| match (side, nth) {
        ("A", 2) => SimulatedRun { itl_ms: 9.0, requests: 60, ..run },
        _ => run,
    });
    let one = &uneven[2];
    let in_pairs = compare_pairs(&uneven, &Options::default()).unwrap();
    for comparison in [compare(&one.0, &one.1, &Options::default()), in_pairs] {
        for row in &comparison.rows {
            let (Some(a), Some(b), Some(ratio)) = (row.a, row.b, row.ratio) else { continue };
            assert!((b / a / ratio.estimate - 1.0).abs() < 1e-9, "{}: {row:?}", row.label);
        }
    }
}

#[test]
fn the_decode_rate_is_the_reciprocal_of_tpot() {
    let uneven = |seed: u64, itl_ms: f64| {
        let mut sample = SimulatedRun { seed, itl_ms, requests: 24, ..BASE_RUN }.sample(true);
        for (i, request) in sample.requests.iter_mut().enumerate() {
            // Lengths differ, and one request stalls.
            request.steps += i as u32 % 5 * 10;
            request.decode_ns = request.decode_ns * u64::from(request.steps) / 63;
            request.decode_ns += if i == 7 { 60_000_000 } else { 0 };
        }
        sample
    };
    let check = |comparison: &Comparison| {
        let (tpot, decode) = (comparison.row(HEADLINE).unwrap(), comparison.row(Metric::DecodeTokS).unwrap());
        assert_eq!((tpot.verdict, tpot.test), (decode.verdict, decode.test), "{tpot:?} {decode:?}");
        let (time, rate) = (tpot.ratio.unwrap(), decode.ratio.unwrap());
        for (x, y) in [(time.low, rate.high), (time.estimate, rate.estimate), (time.high, rate.low)] {
            assert!((x * y - 1.0).abs() < 1e-9, "{time:?} {rate:?}");
        }
        assert!((tpot.a.unwrap() * decode.a.unwrap() / 1e3 - 1.0).abs() < 1e-9);
    };
    for itl_ms in [3.8, 3.9, 4.2] {
        let found = compare(&uneven(1, 3.8), &uneven(2, itl_ms), &Options::default());
        assert!(!found.rows[1].blocked, "{}", found.sentence);
        check(&compare(&uneven(1, 3.8), &uneven(2, itl_ms), &Options::default()));
        let pairs: Vec<_> = (0..6).map(|nth| (uneven(2 * nth, 3.8), uneven(2 * nth + 1, itl_ms))).collect();
        check(&compare_pairs(&pairs, &Options::default()).unwrap());
    }
    // With another batch it is another quantity.
    let (a, mut b) = (uneven(1, 3.8), uneven(2, 3.8));
    b.facts.run.batch = 4;
    b.requests.iter_mut().for_each(|request| request.batch = 4);
    let batches = compare(&a, &b, &Options { meant: vec!["batch".into()], ..Options::default() });
    assert_eq!(batches.row(Metric::DecodeTokS).unwrap().verdict, Verdict::Better);
}

#[test]
fn equal_times_are_the_same_whatever_the_clocks() {
    let a = SimulatedRun { clock_bound: 0.0, ..BASE_RUN }.sample(true);
    for (sm_mhz, caveat) in [(1968.0, false), (1440.0, true)] {
        let b = SimulatedRun { clock_bound: 0.0, sm_mhz, ..BASE_RUN }.sample(true);
        let same = compare(&a, &b, &Options::default());
        assert_eq!(same.verdict, Verdict::Same, "{sm_mhz} MHz: {}", same.sentence);
        assert_eq!(same.sentence.contains("at equal clocks they may differ"), caveat, "{}", same.sentence);
    }
}

#[test]
fn the_clock_of_decode_is_not_that_of_prefill() {
    let cool = SimulatedRun { request_noise: 0.003, ..BASE_RUN };
    let capped = SimulatedRun { seed: 1, sm_mhz: 1440.0, ..cool };
    let ttft: Metric = "ttft.p50".parse().unwrap();
    let options = Options { metrics: vec![ttft], ..Options::default() };
    let limit = LimitShare { phase: Phase::Prefill, limit: "power cap".into(), share: 1.0 };
    // Prefills too short to be sampled: their clock is not known, that of decode is the same on both sides.
    let unsampled = |run: SimulatedRun, limits: &[LimitShare], known: &[Phase]| {
        let mut sample = run.sample(true);
        sample.clocks =
            Clocks { prefill_sm_mhz: None, decode_sm_mhz: Some(1980.0), decode_mem_mhz: Some(3201.0) };
        (sample.limits, sample.limits_known_in) = (limits.to_vec(), known.to_vec());
        sample
    };
    let both = [Phase::Prefill, Phase::Decode];
    for (limits, known, reason) in [
        (&[limit][..], &both[..], "the GPU was throttled (power cap "),
        (&[], &[Phase::Decode], "in prefill is not known: too few GPU samples fell into it"),
    ] {
        let (a, b) = (unsampled(cool, &[], known), unsampled(capped, limits, known));
        for (a, b) in [(&a, &b), (&b, &a)] {
            let comparison = compare(a, b, &options);
            let row = &comparison.rows[0];
            // The difference is known, its cause is not.
            assert_ne!(row.verdict, Verdict::Undecided, "{}", comparison.sentence);
            assert_eq!(row.cause, Some(Cause::Unclear), "{}", comparison.sentence);
            assert!(comparison.sentence.contains("the cause is unknown: "), "{}", comparison.sentence);
            assert!(comparison.sentence.contains(reason), "{}", comparison.sentence);
            let gate: Gate = "ttft.p50<=+5%".parse().unwrap();
            let is_slower = row.verdict == Verdict::Worse;
            let wanted = if is_slower { GateOutcome::Broken } else { GateOutcome::Held };
            assert_eq!(gate.check(row), wanted, "{row:?}");
        }
    }
    // A cap on one side may hide a change of the code if the times are the same.
    let both_cool = SimulatedRun { seed: 1, ..cool };
    let capped_limit = LimitShare { phase: Phase::Prefill, limit: "power cap".into(), share: 1.0 };
    let (a, b) = (unsampled(cool, &[], &both), unsampled(both_cool, &[capped_limit], &both));
    let comparison = compare(&a, &b, &options);
    assert_eq!(comparison.verdict, Verdict::Same, "{}", comparison.sentence);
    assert!(comparison.sentence.contains("at equal clocks they may differ"), "{}", comparison.sentence);
    let gate: Gate = "ttft.p50<=+5%".parse().unwrap();
    assert!(matches!(gate.check(&comparison.rows[0]), GateOutcome::Undecided(_)));
    // Without a sign of that, they are the same.
    let (a, b) = (unsampled(cool, &[], &[]), unsampled(both_cool, &[], &[]));
    let comparison = compare(&a, &b, &options);
    assert_eq!(gate.check(&comparison.rows[0]), GateOutcome::Held, "{}", comparison.sentence);
    // Locked clocks are not throttling: those of decode differ too.
    let (a, mut b) = (unsampled(cool, &[], &both), unsampled(capped, &[], &both));
    b.clocks.decode_sm_mhz = Some(1440.0);
    let locked = compare(&a, &b, &options);
    assert_eq!(locked.verdict, Verdict::Worse, "{}", locked.sentence);
    assert!(locked.sentence.contains("in decode it differed (SM 1980 → 1440 MHz)"), "{}", locked.sentence);
    // Without a limit on both sides, as far as is known: slower, but the cause is not known.
    let (a, b) = (unsampled(cool, &[], &both), unsampled(capped, &[], &both));
    let row = &compare(&a, &b, &options).rows[0];
    assert_eq!((row.verdict, row.cause), (Verdict::Worse, None), "{row:?}");
}

#[test]
fn the_sentence_names_the_factor_of_a_large_change() {
    // Both sides have the same noise, so that the factor is exact: 3.8 / 0.87 is 4.368.
    let run = |itl_ms: f64| SimulatedRun { itl_ms, ..BASE_RUN }.sample(true);
    let (usual, fast, near) = (run(3.8), run(0.87), run(3.5));
    for (a, b, headline, begins) in [
        (&usual, &fast, HEADLINE, "TPOT of B is 77 % lower, 4.37× as fast"),
        (&fast, &usual, HEADLINE, "TPOT of B is 337 % higher, 4.37× as long"),
        (&usual, &fast, Metric::DecodeTokS, "decode tok/s of B is 337 % higher, 4.37× as fast"),
        // A rate of a quarter is neither "as fast" nor "as long", and a small change needs no factor.
        (&fast, &usual, Metric::DecodeTokS, "decode tok/s of B is 77 % lower"),
        (&usual, &near, HEADLINE, "TPOT of B is 7.9 % lower"),
    ] {
        let sentence = compare(a, b, &Options { headline: Some(headline), ..Options::default() }).sentence;
        let begins = format!("{begins} in these two runs (95 % CI: ");
        assert!(sentence.starts_with(&begins), "{begins:?} does not begin {sentence:?}");
    }
}
