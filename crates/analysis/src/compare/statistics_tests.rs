//! How often verdicts on simulated runs are wrong, and how often a difference is found.

use super::{
    simulation::{BASE_RUN, SimulatedRun},
    *,
};

pub(super) fn verdicts(a: SimulatedRun, b: SimulatedRun, metrics: &[Metric], trials: u64) -> Vec<[u32; 4]> {
    let mut counts = vec![[0; 4]; metrics.len()];
    let gaps = metrics.iter().any(|metric| matches!(metric, Metric::Itl(Statistic::Percentile(_))));
    for trial in 0..trials {
        let (x, y) = (
            SimulatedRun { seed: 2 * trial, ..a }.sample(gaps),
            SimulatedRun { seed: 2 * trial + 1, ..b }.sample(gaps),
        );
        // Each as the headline.
        for (count, metric) in counts.iter_mut().zip(metrics) {
            let options = Options { metrics: vec![*metric], seed: trial, ..Options::default() };
            count[compare(&x, &y, &options).verdict as usize] += 1;
        }
    }
    counts
}

pub(super) fn metrics(names: &[&str]) -> Vec<Metric> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

/// 5 % of 2,000 and three standard errors of that.
const MAX_FALSE: u32 = 100 + 3 * 10;

#[test]
fn a_run_that_is_fully_trusted_has_enough_requests_for_its_median() {
    assert_eq!(ratio::values_needed(50.0), crate::trust::MIN_REQUESTS);
}

#[test]
fn the_false_positive_rate_is_as_stated() {
    let names = ["tpot.p50", "tpot.mean"];
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

/// A few requests wait for something that does not affect the others.
const TWO_MODES: SimulatedRun =
    SimulatedRun { requests: 30, slow_mode: (0.05, 1.5), steps: 1, gpu: false, ..BASE_RUN };

#[test]
fn a_rare_slow_mode_is_no_difference() {
    let names = ["tpot.p50", "tpot.mean"];
    let counts = verdicts(TWO_MODES, TWO_MODES, &metrics(&names), 1000);
    for (name, [_, better, worse, _]) in names.iter().zip(counts) {
        assert!(better + worse <= 60, "{name}: {} of 1000", better + worse);
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

#[test]
fn tokens_of_a_request_are_drawn_together() {
    let names = ["itl.p50", "itl.p90"];
    // All tokens of a request share its deviation: treated as independent values, they would give intervals that are
    // far too narrow.
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
fn the_largest_tokens_of_a_few_requests_are_no_difference() {
    // The slowest hundredth is from the slowest requests.
    let run = SimulatedRun { requests: 60, request_noise: 0.02, steps: 128, gpu: false, ..BASE_RUN };
    let [[_, better, worse, _]] = verdicts(run, run, &metrics(&["itl.p99"]), 300)[..] else { panic!() };
    assert!(better + worse <= 15 + 11, "{} of 300", better + worse);
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

/// One run of each side, and the variation of `saved` earlier runs of A.
fn of_single_runs(run: SimulatedRun, slower: f64, saved: u64, trial: u64) -> Comparison {
    let of = |nth: u64, itl_ms: f64| SimulatedRun { seed: 100 * trial + nth, itl_ms, ..run }.sample(false);
    let values = |nth: u64| {
        let mut values = RunValues::from_sample(&of(2 + nth, run.itl_ms));
        values.started_unix_ms = nth;
        values
    };
    let options = Options {
        metrics: vec![HEADLINE],
        seed: trial,
        spread: RunSpread::from_runs((0..saved).map(values)),
        ..Options::default()
    };
    compare(&of(0, run.itl_ms), &of(1, run.itl_ms * slower), &options)
}

fn of_pairs(run: SimulatedRun, slower: f64, pairs: u64, trial: u64) -> Comparison {
    let of = |nth: u64, itl_ms: f64| SimulatedRun { seed: 100 * trial + nth, itl_ms, ..run }.sample(false);
    let pairs: Vec<(Sample, Sample)> =
        (0..pairs).map(|nth| (of(2 * nth, run.itl_ms), of(2 * nth + 1, run.itl_ms * slower))).collect();
    let options = Options { metrics: vec![HEADLINE], seed: trial, ..Options::default() };
    compare_pairs(&pairs, &options).unwrap()
}

/// How many of `trials` have a verdict of FASTER or SLOWER.
fn decided(trials: u64, comparison: impl Fn(u64) -> Comparison) -> usize {
    let differs = |verdict| matches!(verdict, Verdict::Better | Verdict::Worse);
    (0..trials).filter(|trial| differs(comparison(*trial).verdict)).count()
}

const SPREAD: SimulatedRun =
    SimulatedRun { run_noise: 0.01, request_noise: 0.01, steps: 1, gpu: false, ..BASE_RUN };

#[test]
fn the_variation_from_run_to_run_is_known_from_saved_runs_or_pairs() {
    // Two single runs cannot include the variation.
    let alone = decided(200, |trial| of_single_runs(SPREAD, 1.0, 0, trial));
    assert!(alone > 50, "{alone} of 200");
    for (what, found) in [
        ("six saved runs", decided(200, |trial| of_single_runs(SPREAD, 1.0, 6, trial))),
        ("five pairs", decided(200, |trial| of_pairs(SPREAD, 1.0, 5, trial))),
    ] {
        assert!(found <= 10 + 9, "{what}: {found} of 200");
    }
    let two = of_single_runs(SPREAD, 1.1, 0, 1);
    assert!(two.sentence.contains(" higher in these two runs (95 % CI: "), "{}", two.sentence);
    assert!(two.sentence.contains(", n = 20 and 20 requests)"), "{}", two.sentence);
    assert!(two.advice[0].contains("compare --repeat 10"), "{:?}", two.advice);
    let known = of_single_runs(SPREAD, 1.1, 6, 1);
    assert!(known.sentence.contains(" % from run to run in 6 saved runs)"), "{}", known.sentence);
    assert!(known.advice.is_empty() && !known.sentence.contains("these two"), "{:?}", known.advice);
}

/// One program whose time varies by 1 % from run to run, compared with itself.
#[test]
fn no_sentence_on_equal_runs_claims_the_code() {
    let run = SimulatedRun { gpu: true, ..SPREAD };
    let sentences: Vec<String> = (0..60).map(|trial| of_single_runs(run, 1.0, 0, trial).sentence).collect();
    // Two single runs often differ, and the clocks are excluded as the cause. Nothing else is known.
    let excluded = sentences.iter().filter(|text| text.contains("not because of the clocks")).count();
    assert!(excluded >= 5, "{excluded} of 60");
    for sentence in sentences {
        assert!(!sentence.replace("not the code", "").contains("the code"), "{sentence}");
    }
}

/// The number of comparisons of equal runs with at least one false row: in all rows, and except the headline.
fn with_a_false_row(run: SimulatedRun, trials: u64) -> (usize, usize) {
    let differs = |row: &MetricComparison| matches!(row.verdict, Verdict::Better | Verdict::Worse);
    let (mut any, mut others) = (0, 0);
    for trial in 0..trials {
        let of = |nth: u64| SimulatedRun { seed: 2 * trial + nth, ..run }.sample(true);
        let comparison = compare(&of(0), &of(1), &Options { seed: trial, ..Options::default() });
        any += usize::from(comparison.rows.iter().any(differs));
        let corrected = |row: &&MetricComparison| row.test == RowTest::Corrected;
        others += usize::from(comparison.rows.iter().filter(corrected).any(differs));
    }
    (any, others)
}

#[test]
fn many_rows_do_not_raise_the_false_positive_rate() {
    let run = SimulatedRun { requests: 20, request_noise: 0.02, steps: 20, gpu: false, ..BASE_RUN };
    let (any, others) = with_a_false_row(run, 200);
    // 5 % and three standard errors; together with the headline at most twice that.
    assert!(others <= 10 + 9 && any <= 20 + 12, "{others} and {any} of 200");
}

/// Few requests: the verdict is from their tokens.
const FEW: SimulatedRun =
    SimulatedRun { requests: 3, request_noise: 0.0, token_noise: 0.05, steps: 64, gpu: false, ..BASE_RUN };

fn of_few_requests(run: SimulatedRun, slower: f64, trial: u64) -> Comparison {
    let of = |nth: u64, itl_ms: f64| SimulatedRun { seed: 2 * trial + nth, itl_ms, ..run }.sample(true);
    let options = Options { metrics: vec![HEADLINE, Metric::DecodeTokS], seed: trial, ..Options::default() };
    compare(&of(0, run.itl_ms), &of(1, run.itl_ms * slower), &options)
}

#[test]
fn few_requests_are_compared_by_their_tokens() {
    let slower = of_few_requests(FEW, 1.05, 1);
    assert_eq!(slower.verdict, Verdict::Worse, "{}", slower.sentence);
    assert!(slower.sentence.contains("n = 192 and 192 tokens"), "{}", slower.sentence);
    assert_eq!(slower.rows[1].verdict, Verdict::Worse, "{:?}", slower.rows[1]);
    let false_positives = decided(300, |trial| of_few_requests(FEW, 1.0, trial));
    assert!(false_positives <= 15 + 12, "{false_positives} of 300");
    let found = decided(100, |trial| of_few_requests(FEW, 1.03, trial));
    assert!(found >= 90, "{found} of 100");
    // The variation between requests does not count as a difference, even with one request on each side.
    for requests in [1, 3] {
        let uneven = SimulatedRun { requests, request_noise: 0.005, steps: 192, token_noise: 0.02, ..FEW };
        let false_positives = decided(200, |trial| of_few_requests(uneven, 1.0, trial));
        assert!(false_positives <= 10 + 9, "{requests} requests: {false_positives} of 200");
    }
    // Fewer tokens than that show no spread.
    let short = of_few_requests(SimulatedRun { requests: 1, ..FEW }, 1.05, 1);
    assert!(short.sentence.contains("A has 1 requests, 5 are needed"), "{}", short.sentence);
}

// The figures of docs/compare.md: `cargo test --release --lib figures_of -- --ignored --nocapture`.

const TRIALS: u64 = 2000;
/// The trials of comparisons that take longer.
const FEWER_TRIALS: u64 = 500;

fn print_verdicts(what: &str, a: SimulatedRun, b: SimulatedRun, names: &[&str]) {
    for (name, [same, better, worse, undecided]) in names.iter().zip(verdicts(a, b, &metrics(names), TRIALS))
    {
        println!(
            "{what}, {name}: same {same}, faster {better}, slower {worse}, undecided {undecided} of {TRIALS}"
        );
    }
}

#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_equal_runs() {
    let all = ["tpot.p50", "tpot.mean", "ttft.p50", "ttft.mean", "itl.p50", "itl.p90"];
    for (requests, request_noise) in [(12, 0.02), (20, 0.005), (20, 0.02), (60, 0.05)] {
        let run = SimulatedRun { requests, request_noise, steps: 40, gpu: false, ..BASE_RUN };
        print_verdicts(&format!("no difference, {requests} requests, noise {request_noise}"), run, run, &all);
    }
    let correlated = SimulatedRun {
        requests: 80,
        request_noise: 0.04,
        autocorrelation: 0.6,
        steps: 1,
        gpu: false,
        ..BASE_RUN
    };
    print_verdicts("no difference, autocorrelation 0.6", correlated, correlated, &["tpot.p50", "tpot.mean"]);
    for (requests, slow_mode) in [(30, (0.05, 1.5)), (60, (0.02, 1.5)), (60, (0.1, 1.2))] {
        let run = SimulatedRun { requests, slow_mode, ..TWO_MODES };
        let names = ["tpot.p50", "tpot.p90", "tpot.mean"];
        print_verdicts(&format!("no difference, {requests} requests, modes {slow_mode:?}"), run, run, &names);
    }
    let long = SimulatedRun { requests: 60, request_noise: 0.02, steps: 128, gpu: false, ..BASE_RUN };
    print_verdicts("no difference, 60 requests of 128 tokens", long, long, &["itl.p99"]);
}

#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_a_difference() {
    for request_noise in [0.005, 0.015, 0.03] {
        let run = SimulatedRun { request_noise, steps: 40, gpu: false, ..BASE_RUN };
        let slower = SimulatedRun { itl_ms: 3.8 * 1.03, ..run };
        print_verdicts(
            &format!("3 % slower, noise {request_noise}"),
            run,
            slower,
            &["tpot.p50", "tpot.mean"],
        );
    }
}

#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_heat() {
    for clock_bound in [1.0, 0.5, 0.1] {
        let cool = SimulatedRun { request_noise: 0.01, steps: 1, ..BASE_RUN };
        let hot = SimulatedRun { sm_mhz: 1720.0, clock_bound, ..cool };
        print_verdicts(&format!("heat alone, bound {clock_bound}"), cool, hot, &["tpot.p50", "tpot.mean"]);
    }
}

#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_the_variation_from_run_to_run() {
    let run = SimulatedRun { request_noise: 0.005, ..SPREAD };
    for slower in [1.0, 1.03] {
        let print = |what: &str, found: usize| {
            println!("1 % from run to run, times {slower}, {what}: {found} of {TRIALS} FASTER or SLOWER");
        };
        print("one run each", decided(TRIALS, |trial| of_single_runs(run, slower, 0, trial)));
        for saved in [3, 6, 10] {
            print(
                &format!("{saved} saved runs"),
                decided(TRIALS, |trial| of_single_runs(run, slower, saved, trial)),
            );
        }
        for pairs in [5, 10, 20] {
            print(&format!("{pairs} pairs"), decided(TRIALS, |trial| of_pairs(run, slower, pairs, trial)));
        }
    }
}

#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_many_rows() {
    for requests in [20, 60] {
        let run = SimulatedRun { requests, request_noise: 0.02, steps: 20, gpu: false, ..BASE_RUN };
        let (any, others) = with_a_false_row(run, FEWER_TRIALS);
        println!(
            "no difference, {requests} requests: a false row in {any}, beside the headline in {others} of {FEWER_TRIALS}"
        );
    }
}

#[test]
#[ignore = "takes minutes; its output is in docs/compare.md"]
fn figures_of_few_requests() {
    for request_noise in [0.0, 0.005] {
        for requests in [1, 2, 3, 4] {
            let run = SimulatedRun { requests, request_noise, steps: 128, token_noise: 0.02, ..FEW };
            let [same, slower] =
                [1.0, 1.03].map(|slower| decided(FEWER_TRIALS, |trial| of_few_requests(run, slower, trial)));
            println!(
                "{requests} requests of 128 tokens, noise {request_noise}: {same} false, {slower} of 3 % found, of {FEWER_TRIALS}"
            );
        }
    }
}
