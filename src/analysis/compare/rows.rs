//! Two samples become rows with verdicts, and the rows a sentence.

use serde::Serialize;

use super::{
    clock::{ClockComparison, ClockEffect, compare_clocks, limit_difference, same_gpu},
    difference::{Difference, differences},
    metric::{DEFAULT_METRICS, HEADLINE, Metric},
    sample::Sample,
    verdict::{Verdict, required_sample_size},
    waterfall::{Waterfall, waterfall},
};
use crate::{
    analysis::{
        interval::{ConfidenceInterval, MIN_VALUES},
        trust::{Severity, TrustIssue, coefficient_of_variation},
    },
    base::units::{percent, ratio_change},
    event::{Outcome, Phase},
};

/// What to compare, and how strictly.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub metrics: Vec<Metric>,
    /// Differences up to this share of A count as none.
    pub margin: f64,
    /// Facts that are intended to differ without an override.
    pub meant: Vec<String>,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { metrics: DEFAULT_METRICS.to_vec(), margin: 0.01, meant: Vec::new(), seed: 0 }
    }
}

/// What causes a difference in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The difference is larger than the clocks explain.
    Code,
    /// In GPU cycles the difference disappears, or has the other sign.
    Clock,
    /// The clocks may explain all or some of it.
    Unclear,
}

/// One metric of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub metric: Metric,
    pub label: String,
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// B over A.
    pub ratio: Option<ConfidenceInterval>,
    /// The same in GPU cycles.
    pub in_cycles: Option<ConfidenceInterval>,
    /// The ratio without what the clocks may explain. Verdicts and gates are based on it.
    pub code: Option<ConfidenceInterval>,
    pub verdict: Verdict,
    /// The verdict as a word for this metric.
    pub word: &'static str,
    pub cause: Option<Cause>,
    /// Why it is undecided, and what would decide it.
    pub reason: Option<String>,
    /// The sides cannot be compared, or one of them cannot be trusted.
    pub blocked: bool,
}

/// A summary of one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub name: String,
    pub what: String,
    pub requests: u64,
    /// The coefficient of variation of TPOT.
    pub tpot_cv: Option<f64>,
    /// What blocks a comparison of times.
    #[serde(rename = "doubts")]
    pub blocking_issues: Vec<TrustIssue>,
    pub remarks: Vec<String>,
    #[serde(rename = "held_back_prefill")]
    pub throttled_prefill: f64,
    #[serde(rename = "held_back_decode")]
    pub throttled_decode: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub verdict: Verdict,
    /// The verdict of the headline as a word.
    pub word: &'static str,
    pub sentence: String,
    pub margin: f64,
    /// The number of interleaved runs of each side; `None` for a comparison of one run with another.
    pub pairs: Option<usize>,
    pub a: Side,
    pub b: Side,
    pub differences: Vec<Difference>,
    pub rows: Vec<Row>,
    pub waterfall: Option<Waterfall>,
    pub advice: Vec<String>,
}

impl Comparison {
    pub fn row(&self, metric: Metric) -> Option<&Row> {
        self.rows.iter().find(|row| row.metric == metric)
    }

    /// The row that decides the verdict.
    pub fn headline(&self) -> Option<&Row> {
        headline(&self.rows)
    }
}

fn headline(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| row.metric == HEADLINE).or_else(|| rows.first())
}

/// Compares B with A.
pub fn compare(a: &Sample, b: &Sample, options: &Options) -> Comparison {
    let ratio = |metric: Metric| metric.ratio(a, b, options.seed);
    Comparer::new(a, b, options, None).comparison(&ratio)
}

/// Compares interleaved runs of B with those of A: the intervals include the variation from run to run, and what slows both runs
/// of a pair cancels. `None` without a pair.
pub fn compare_pairs(pairs: &[(Sample, Sample)], options: &Options) -> Option<Comparison> {
    let (a, b): (Vec<Sample>, Vec<Sample>) = pairs.iter().cloned().unzip();
    let (a, b) = (Sample::pooled(&a)?, Sample::pooled(&b)?);
    let ratio = |metric: Metric| paired_ratio(pairs, metric, options.seed);
    Some(Comparer::new(&a, &b, options, Some(pairs.len())).comparison(&ratio))
}

fn paired_ratio(pairs: &[(Sample, Sample)], metric: Metric, seed: u64) -> Result<ConfidenceInterval, String> {
    let values: Vec<(f64, f64)> =
        pairs.iter().filter_map(|(a, b)| Some((metric.value(b)?, metric.value(a)?))).collect();
    if metric.is_count() && !values.is_empty() {
        let (b, a) = super::ratio::sums(&values);
        return Ok(ConfidenceInterval::exact(b / a));
    }
    let change = ConfidenceInterval::of_change_pct(&values, seed).map(|pct| pct.map(|pct| 1.0 + pct / 100.0));
    change.ok_or_else(|| match values.len() {
        0 => "no pair of runs has it: too few requests in each run, or it is not measured here".to_owned(),
        n => format!("{n} pairs of runs have it, {MIN_VALUES} are needed"),
    })
}

fn side(sample: &Sample, interleaved: bool) -> Side {
    let run = &sample.facts.run;
    let device = sample.facts.gpu.as_ref().map_or_else(|| run.device.to_string(), |gpu| gpu.name.clone());
    let mut issues = sample.trust(interleaved).issues;
    issues.retain(|issue| issue.severity() == Severity::BlocksComparison);
    Side {
        name: sample.name.clone(),
        what: format!(
            "{} as {} on {device} ({}), batch {}, {} prompt and {} output tokens",
            run.model, run.dtype, run.engine, run.batch, run.prompt_tokens, run.output_tokens
        ),
        requests: sample.measured,
        tpot_cv: coefficient_of_variation(&sample.tpots_ns()),
        blocking_issues: issues,
        remarks: remarks(sample),
        throttled_prefill: sample.throttled_share(Phase::Prefill),
        throttled_decode: sample.throttled_share(Phase::Decode),
    }
}

/// Notes on a run that do not affect its trust.
fn remarks(sample: &Sample) -> Vec<String> {
    let mut remarks = Vec::new();
    match sample.facts.outcome {
        None => remarks.push("the run has no end: it is still being written, or was killed".to_owned()),
        Some(Outcome::Interrupted) => remarks.push("the run was interrupted".to_owned()),
        _ => {}
    }
    if sample.facts.run.simulated {
        remarks.push("simulated, not measured".to_owned());
    }
    if (sample.requests.len() as u64) < sample.measured {
        remarks.push(format!("{} of its requests were kept", sample.requests.len()));
    }
    remarks
}

/// The change without its sign.
fn change_size(ratio: f64) -> String {
    percent(100.0 * (ratio - 1.0).abs())
}

struct Comparer<'a> {
    a: &'a Sample,
    b: &'a Sample,
    options: &'a Options,
    pairs: Option<usize>,
    differences: Vec<Difference>,
    sides: [Side; 2],
}

impl<'a> Comparer<'a> {
    fn new(a: &'a Sample, b: &'a Sample, options: &'a Options, pairs: Option<usize>) -> Comparer<'a> {
        let differences = differences(&a.facts, &b.facts, &options.meant);
        let sides = [a, b].map(|sample| side(sample, pairs.is_some()));
        Comparer { a, b, options, pairs, differences, sides }
    }

    fn comparison(self, ratio: &dyn Fn(Metric) -> Result<ConfidenceInterval, String>) -> Comparison {
        let rows: Vec<Row> =
            self.options.metrics.iter().map(|metric| self.row(*metric, ratio(*metric))).collect();
        let headline = headline(&rows);
        let (verdict, word) =
            headline.map_or((Verdict::Undecided, "UNDECIDED"), |row| (row.verdict, row.word));
        let sentence = headline.map_or_else(|| "Nothing was compared.".to_owned(), |row| self.sentence(row));
        let advice = headline.map_or_else(Vec::new, |row| self.advice(row));
        let [a, b] = self.sides;
        Comparison {
            verdict,
            word,
            sentence,
            margin: self.options.margin,
            pairs: self.pairs,
            a,
            b,
            rows,
            waterfall: waterfall(self.a, self.b),
            advice,
            differences: self.differences,
        }
    }

    fn row(&self, metric: Metric, ratio: Result<ConfidenceInterval, String>) -> Row {
        let mut row = Row {
            metric,
            label: metric.label(),
            a: metric.value(self.a),
            b: metric.value(self.b),
            ratio: None,
            in_cycles: None,
            code: None,
            verdict: Verdict::Undecided,
            word: "UNDECIDED",
            cause: None,
            reason: None,
            blocked: false,
        };
        let ratio = match ratio {
            Ok(ratio) => ratio,
            Err(reason) => {
                (row.reason, row.blocked) = (Some(reason), true);
                return row;
            }
        };
        row.ratio = Some(ratio);
        if same_gpu(self.a, self.b) {
            row.in_cycles = metric.cycles_ratio(self.a, self.b, ratio, self.options.seed);
        }
        if let Some(reason) = self.obstacle(metric) {
            (row.reason, row.blocked) = (Some(reason), true);
            return row;
        }
        self.decide(&mut row, ratio);
        row.word = verdict_word(metric, row.verdict);
        row
    }

    /// Why there is no verdict, whatever the numbers are.
    fn obstacle(&self, metric: Metric) -> Option<String> {
        if let Some(difference) = self.differences.iter().find(|difference| difference.blocks()) {
            let Difference { what, a, b, .. } = difference;
            return Some(format!("the runs differ in {what} ({a} and {b}), which is not intended"));
        }
        // Other processes change neither memory nor counts.
        let mut issues = ["A", "B"]
            .into_iter()
            .zip(&self.sides)
            .filter_map(|(name, side)| Some((name, side.blocking_issues.first()?)));
        let (name, issue) = issues.next().filter(|_| !metric.is_count())?;
        Some(format!("{name} cannot be trusted: {issue}"))
    }

    fn decide(&self, row: &mut Row, ratio: ConfidenceInterval) {
        let (metric, margin) = (row.metric, self.options.margin);
        let rates = metric.more_is_better();
        let in_time = Verdict::of(ratio, margin, rates);
        let clocks = compare_clocks(self.a, self.b, metric);
        let limits = limit_difference(self.a, self.b, metric);
        let effect = match (clocks, &limits) {
            (ClockComparison::Known { effect, .. }, _) => effect,
            (ClockComparison::Unknown, Some(limits)) => {
                row.blocked = true;
                row.reason = Some(format!("the GPU was throttled ({limits}), and its clock is not known"));
                return;
            }
            (ClockComparison::Irrelevant | ClockComparison::Unknown, _) => ClockEffect::NONE,
        };
        let is_energy = metric == Metric::JPerToken;
        // Energy does not follow the clock in a known way.
        if is_energy && effect.range() > 1.0 + margin {
            row.blocked = true;
            row.reason = Some(format!(
                "{}, which changes the energy",
                self.describe_clocks(clocks, limits.as_deref())
            ));
            return;
        }
        let code = if is_energy { ratio } else { effect.remove_from(ratio, rates, margin) };
        row.code = Some(code);
        row.verdict = Verdict::of(code, margin, rates);
        match (row.verdict, in_time) {
            (Verdict::Better | Verdict::Worse, _) => {
                row.cause = matches!(clocks, ClockComparison::Known { .. }).then_some(Cause::Code);
            }
            (Verdict::Undecided, Verdict::Undecided) => row.reason = Some(self.too_wide(ratio)),
            (Verdict::Undecided, _) => {
                // Decided by time alone, but the clocks may explain it.
                let same_in_cycles = row.in_cycles.is_some_and(|cycles| {
                    cycles.contains(1.0) || Verdict::of(cycles, margin, rates) != in_time
                });
                let differs = in_time != Verdict::Same;
                row.cause = Some(if differs && same_in_cycles { Cause::Clock } else { Cause::Unclear });
                row.reason = Some(self.describe_clocks(clocks, limits.as_deref()));
            }
            (Verdict::Same, _) => {}
        }
    }

    /// The interval, and what would decide.
    fn too_wide(&self, ratio: ConfidenceInterval) -> String {
        let between =
            format!("the change is between {} and {}", ratio_change(ratio.low), ratio_change(ratio.high));
        let (n, unit) = match self.pairs {
            Some(pairs) => (pairs as u64, "pairs of runs"),
            None => (self.a.measured.min(self.b.measured), "requests on each side"),
        };
        match required_sample_size(ratio, self.options.margin, n) {
            Some(needed) => format!("{between}; about {needed} {unit} would decide"),
            None => between,
        }
    }

    /// "the clock was lower (power cap 41 % vs 3.0 %, SM 1980 → 1720 MHz)"
    fn describe_clocks(&self, clocks: ClockComparison, limits: Option<&str>) -> String {
        let ClockComparison::Known { a_mhz, b_mhz, .. } = clocks else {
            return "the clock is not known".to_owned();
        };
        let direction = |a: f64, b: f64| if b < a { "lower" } else { "higher" };
        // The clock that differs more is named.
        if let Some((a, b)) = self.a.clocks.decode_mem_mhz.zip(self.b.clocks.decode_mem_mhz)
            && (a / b).ln().abs() > (a_mhz / b_mhz).ln().abs()
        {
            return format!("the memory clock was {} ({a:.0} → {b:.0} MHz)", direction(a, b));
        }
        let limits = limits.map_or_else(String::new, |limits| format!("{limits}, "));
        format!("the clock was {} ({limits}SM {a_mhz:.0} → {b_mhz:.0} MHz)", direction(a_mhz, b_mhz))
    }

    /// The result in one sentence.
    fn sentence(&self, row: &Row) -> String {
        let noun = row.metric.noun();
        let reason = row.reason.as_deref().unwrap_or("too little was measured");
        let (Some(ratio), true) = (row.ratio, row.verdict != Verdict::Undecided || row.cause.is_some())
        else {
            return format!("Cannot compare {noun}: {reason}.");
        };
        let interval = format!("95 % CI: {} to {}", ratio_change(ratio.low), ratio_change(ratio.high));
        let better = (ratio.estimate > 1.0) == row.metric.more_is_better();
        let direction = verdict_word(row.metric, if better { Verdict::Better } else { Verdict::Worse });
        let change = format!("{} {}", change_size(ratio.estimate), direction.to_lowercase());
        let cycles = row.in_cycles.map(|cycles| ratio_change(cycles.estimate));
        match (row.verdict, row.cause) {
            (Verdict::Same, _) => format!(
                "B is the same as A in {noun}: {} ({interval}), within the margin of {}.",
                ratio_change(ratio.estimate),
                change_size(1.0 + self.options.margin)
            ),
            (Verdict::Better | Verdict::Worse, cause) => {
                let code = match (cause, cycles) {
                    (Some(Cause::Code), Some(cycles)) => {
                        format!("; the cause is the code: {cycles} in GPU cycles")
                    }
                    _ => String::new(),
                };
                format!("B is {change} in {noun} ({interval}){code}.")
            }
            (Verdict::Undecided, Some(Cause::Clock)) => {
                let cycles = cycles.unwrap_or_else(|| "unknown".to_owned());
                format!("B is {change} in {noun}, but {cycles} in GPU cycles: {reason}, not the code.")
            }
            (Verdict::Undecided, _) => format!(
                "{noun} changed by {} ({interval}), but {reason}, which may be the cause.",
                ratio_change(ratio.estimate)
            ),
        }
    }

    /// What to do.
    fn advice(&self, row: &Row) -> Vec<String> {
        if row.verdict != Verdict::Undecided {
            return Vec::new();
        }
        let blocking = self.differences.iter().filter(|difference| difference.blocks());
        let blocking: Vec<&str> = blocking.map(|difference| difference.what).collect();
        vec![if !blocking.is_empty() {
            format!("if the difference is intended, pass --meant '{}'", blocking.join(","))
        } else if self.pairs.is_none() {
            "run both sides interleaved, so that heat and external load affect both alike: llmprof-tui compare --repeat 20 -- A-OVERRIDES vs B-OVERRIDES"
                .to_owned()
        } else {
            "increase --repeat or --max-time, or reduce the external load".to_owned()
        }]
    }
}

/// The verdict as a word for this metric.
fn verdict_word(metric: Metric, verdict: Verdict) -> &'static str {
    match (verdict, metric.is_speed()) {
        (Verdict::Same, _) => "SAME",
        (Verdict::Undecided, _) => "UNDECIDED",
        (Verdict::Better, true) => "FASTER",
        (Verdict::Worse, true) => "SLOWER",
        (Verdict::Better, false) => "LESS",
        (Verdict::Worse, false) => "MORE",
    }
}
