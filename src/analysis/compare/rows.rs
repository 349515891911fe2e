//! Two samples become rows with verdicts, and the rows a sentence.

use serde::Serialize;

use super::{
    clock::{self, Clock, Heat},
    difference::{Difference, differences},
    doubts::{doubts, remarks, variation},
    metric::{HEADLINE, Metric, USUAL},
    sample::Sample,
    verdict::{Verdict, judged, requests_to_decide},
    waterfall::{Waterfall, waterfall},
};
use crate::analysis::interval::{self, Interval};
use crate::base::units::{percent, ratio_change};

/// What to compare, and how strictly.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    pub metrics: Vec<Metric>,
    /// Differences up to this share of A are none.
    pub margin: f64,
    /// Facts that were meant to differ though no override says so.
    pub meant: Vec<String>,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { metrics: USUAL.to_vec(), margin: 0.01, meant: Vec::new(), seed: 0 }
    }
}

/// What a difference in time comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// More than the clocks can have done.
    Code,
    /// Gone, or turned around, once the clocks are taken into account.
    Clock,
    /// The clocks may have done it, or some of it.
    Unclear,
}

/// One metric of both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// As gates name it.
    pub metric: String,
    pub label: String,
    #[serde(skip)]
    pub of: Metric,
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// B over A, with its 95 % interval.
    pub ratio: Option<Interval>,
    /// The same in GPU cycles.
    pub in_cycles: Option<Interval>,
    /// What may be the code's: the ratio with whatever the clocks can have done taken out. Verdicts and gates go by it.
    pub code: Option<Interval>,
    pub verdict: Verdict,
    /// The verdict in the metric's own word.
    pub word: &'static str,
    pub cause: Option<Cause>,
    /// Why it is undecided, and what would decide it.
    pub reason: Option<String>,
    /// The sides can't be compared, or one of them can't be trusted.
    pub blocked: bool,
}

/// One of the two, in short.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub name: String,
    pub what: String,
    pub requests: u64,
    pub tpot_cv: Option<f64>,
    /// What speaks against it.
    pub doubts: Vec<String>,
    pub remarks: Vec<String>,
    pub held_back_prefill: f64,
    pub held_back_decode: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub verdict: Verdict,
    /// That of the first row that matters.
    pub word: &'static str,
    pub sentence: String,
    pub margin: f64,
    /// Runs of each side that were done in turn; `None` for one run against another.
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
        self.rows.iter().find(|row| row.of == metric)
    }
}

/// Holds B against A.
pub fn compare(a: &Sample, b: &Sample, options: &Options) -> Comparison {
    assembled(a, b, options, None, &|metric| metric.ratio(a, b, options.seed))
}

/// Holds runs of B against runs of A that were done in turn: what changes from run to run is in the intervals, and what
/// slows both of a pair is in neither's favour. `None` without a pair.
pub fn compare_pairs(pairs: &[(Sample, Sample)], options: &Options) -> Option<Comparison> {
    let (a, b): (Vec<Sample>, Vec<Sample>) = pairs.iter().cloned().unzip();
    let (a, b) = (Sample::pooled(&a)?, Sample::pooled(&b)?);
    let ratio = |metric: Metric| paired_ratio(pairs, metric, options.seed);
    Some(assembled(&a, &b, options, Some(pairs.len()), &ratio))
}

fn paired_ratio(pairs: &[(Sample, Sample)], metric: Metric, seed: u64) -> Result<Interval, String> {
    let measured: Vec<(f64, f64)> =
        pairs.iter().filter_map(|(a, b)| Some((metric.value(b)?, metric.value(a)?))).collect();
    if metric.is_count() && !measured.is_empty() {
        let (b, a) = measured.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        return Ok(Interval { estimate: b / a, low: b / a, high: b / a });
    }
    let change = interval::of_change_pct(&measured, seed).map(|pct| pct.map(|pct| 1.0 + pct / 100.0));
    change.ok_or_else(|| match measured.len() {
        0 => "no pair of runs has it: too few requests in each, or it is not measured here".to_owned(),
        n => format!("{n} pairs of runs have it, {} are needed", interval::LEAST_VALUES),
    })
}

fn assembled(
    a: &Sample,
    b: &Sample,
    options: &Options,
    pairs: Option<usize>,
    ratio: &dyn Fn(Metric) -> Result<Interval, String>,
) -> Comparison {
    let differences = differences(&a.facts, &b.facts, &options.meant);
    let sides = [side(a, pairs.is_some()), side(b, pairs.is_some())];
    let judge = Judge { a, b, options, pairs, differences: &differences, sides: &sides };
    let rows: Vec<Row> = options.metrics.iter().map(|metric| judge.row(*metric, ratio(*metric))).collect();
    let headline = rows.iter().find(|row| row.of == HEADLINE).or_else(|| rows.first());
    let (verdict, word) = headline.map_or((Verdict::Undecided, "UNDECIDED"), |row| (row.verdict, row.word));
    let sentence = headline.map_or_else(|| "Nothing was compared.".to_owned(), |row| judge.sentence(row));
    let advice = headline.map_or_else(Vec::new, |row| judge.advice(row));
    let [side_a, side_b] = sides.clone();
    Comparison {
        verdict,
        word,
        sentence,
        margin: options.margin,
        pairs,
        a: side_a,
        b: side_b,
        rows,
        waterfall: waterfall(a, b),
        advice,
        differences,
    }
}

fn side(sample: &Sample, in_turn: bool) -> Side {
    let run = &sample.facts.run;
    let on = sample.facts.gpu.as_ref().map_or_else(|| run.device.to_string(), |gpu| gpu.name.clone());
    Side {
        name: sample.name.clone(),
        what: format!(
            "{} as {} on {on} ({}), batch {}, {} prompt and {} output tokens",
            run.model, run.dtype, run.engine, run.batch, run.prompt_tokens, run.output_tokens
        ),
        requests: sample.measured,
        tpot_cv: variation(&sample.tpots_ns()),
        doubts: doubts(sample, in_turn),
        remarks: remarks(sample),
        held_back_prefill: sample.held_back("prefill"),
        held_back_decode: sample.held_back("decode"),
    }
}

/// The size of a change, without its direction.
fn size(ratio: f64) -> String {
    percent(100.0 * (ratio - 1.0).abs())
}

struct Judge<'a> {
    a: &'a Sample,
    b: &'a Sample,
    options: &'a Options,
    pairs: Option<usize>,
    differences: &'a [Difference],
    sides: &'a [Side; 2],
}

impl Judge<'_> {
    fn row(&self, metric: Metric, ratio: Result<Interval, String>) -> Row {
        let mut row = Row {
            metric: metric.to_string(),
            label: metric.label(),
            of: metric,
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
        if clock::same_card(self.a, self.b) {
            row.in_cycles = metric.cycles_ratio(self.a, self.b, ratio, self.options.seed);
        }
        if let Some(reason) = self.obstacle(metric) {
            (row.reason, row.blocked) = (Some(reason), true);
            return row;
        }
        self.decide(&mut row, ratio);
        row.word = word(metric, row.verdict);
        row
    }

    /// Why nothing is to be said, whatever the numbers are.
    fn obstacle(&self, metric: Metric) -> Option<String> {
        if let Some(difference) = self.differences.iter().find(|difference| difference.blocks()) {
            let Difference { what, a, b, .. } = difference;
            return Some(format!(
                "they can't be compared: {what} is {a} and {b}, and nothing says that was meant"
            ));
        }
        let doubt = |name: &str, side: &Side| {
            side.doubts.first().map(|doubt| format!("{name} can't be trusted: {doubt}"))
        };
        let [a, b] = self.sides;
        doubt("A", a).or_else(|| doubt("B", b)).filter(|_| !metric.is_count())
    }

    fn decide(&self, row: &mut Row, ratio: Interval) {
        let (metric, margin) = (row.of, self.options.margin);
        let rates = metric.more_is_better();
        let in_time = judged(ratio, margin, rates);
        let clock = clock::clock(self.a, self.b, metric.bound());
        let apart = clock::limits_apart(self.a, self.b, metric.bound());
        let heat = match clock {
            Clock::Known { heat, .. } => heat,
            Clock::Irrelevant => Heat::NONE,
            Clock::Unknown => {
                if let Some(apart) = apart {
                    row.blocked = true;
                    row.reason =
                        Some(format!("the card was held back ({apart}), and its clock is not known"));
                    return;
                }
                Heat::NONE
            }
        };
        // Energy does not follow the clock in any one way.
        if metric == Metric::JPerToken && heat.most / heat.least > 1.0 + margin {
            row.blocked = true;
            row.reason = Some(format!("{}, and energy with it", self.clock_words(clock, apart.as_deref())));
            return;
        }
        let code = if metric == Metric::JPerToken { ratio } else { heat.taken_out_of(ratio, rates, margin) };
        row.code = Some(code);
        row.verdict = judged(code, margin, rates);
        match (row.verdict, in_time) {
            (Verdict::Better | Verdict::Worse, _) => {
                row.cause = matches!(clock, Clock::Known { .. }).then_some(Cause::Code);
            }
            (Verdict::Undecided, Verdict::Undecided) => row.reason = Some(self.too_wide(ratio)),
            (Verdict::Undecided, _) => {
                // The interval says something; the clocks take it back.
                let same_in_cycles = row
                    .in_cycles
                    .is_some_and(|cycles| cycles.contains(1.0) || judged(cycles, margin, rates) != in_time);
                let differs = in_time != Verdict::Same;
                row.cause = Some(if differs && same_in_cycles { Cause::Clock } else { Cause::Unclear });
                row.reason = Some(self.clock_words(clock, apart.as_deref()));
            }
            (Verdict::Same, _) => {}
        }
    }

    /// What would decide it.
    fn too_wide(&self, ratio: Interval) -> String {
        let between = format!("between {} and {}", ratio_change(ratio.low), ratio_change(ratio.high));
        let (n, what) = match self.pairs {
            Some(pairs) => (pairs as u64, "pairs of runs"),
            None => (self.a.measured.min(self.b.measured), "requests on each side"),
        };
        match requests_to_decide(ratio, self.options.margin, n) {
            Some(needed) => format!("it is {between}; about {needed} {what} would decide"),
            None => format!("it is {between}"),
        }
    }

    /// "the clock was lower (power cap 41 % against 3 %, SM 1980 → 1720 MHz)"
    fn clock_words(&self, clock: Clock, apart: Option<&str>) -> String {
        let Clock::Known { a_mhz, b_mhz, .. } = clock else { return "the clock is not known".to_owned() };
        let memory = self.a.clocks.decode_mem_mhz.zip(self.b.clocks.decode_mem_mhz);
        let which = match memory {
            // What matters most is named.
            Some((x, y)) if (x / y).ln().abs() > (a_mhz / b_mhz).ln().abs() => {
                return format!(
                    "the memory clock was {} ({x:.0} → {y:.0} MHz)",
                    if y < x { "lower" } else { "higher" }
                );
            }
            _ if b_mhz < a_mhz => "lower",
            _ => "higher",
        };
        let limits = apart.map_or_else(String::new, |apart| format!("{apart}, "));
        format!("the clock was {which} ({limits}SM {a_mhz:.0} → {b_mhz:.0} MHz)")
    }

    /// The outcome in words.
    fn sentence(&self, row: &Row) -> String {
        let noun = row.of.noun();
        let Some(ratio) = row.ratio else {
            let reason = row.reason.as_deref().unwrap_or("nothing was measured");
            return format!("Of {noun} nothing can be said: {reason}.");
        };
        let interval = format!("95 %: {} to {}", ratio_change(ratio.low), ratio_change(ratio.high));
        let better = (ratio.estimate > 1.0) == row.of.more_is_better();
        let direction = word(row.of, if better { Verdict::Better } else { Verdict::Worse }).to_lowercase();
        let cycles = row.in_cycles.map(|cycles| cycles.estimate);
        match (row.verdict, row.cause) {
            (Verdict::Same, _) => format!(
                "B is the same as A in {noun}: {} ({interval}), within the margin of {}.",
                ratio_change(ratio.estimate),
                size(1.0 + self.options.margin)
            ),
            (Verdict::Better | Verdict::Worse, cause) => {
                let code = match (cause, cycles) {
                    (Some(Cause::Code), Some(cycles)) => {
                        format!(", and it is the code: in GPU cycles {}", ratio_change(cycles))
                    }
                    _ => String::new(),
                };
                format!("B is {} {direction} in {noun} ({interval}){code}.", size(ratio.estimate))
            }
            (Verdict::Undecided, Some(Cause::Clock)) => format!(
                "B is {} {direction} in {noun} by time, {} in GPU cycles: {}, not the code.",
                size(ratio.estimate),
                cycles.map_or_else(|| "not".to_owned(), ratio_change),
                row.reason.as_deref().unwrap_or_default()
            ),
            (Verdict::Undecided, Some(_)) => format!(
                "{noun} is {} by time ({interval}), but {}, which may have done it.",
                ratio_change(ratio.estimate),
                row.reason.as_deref().unwrap_or_default()
            ),
            (Verdict::Undecided, None) => {
                let reason = row.reason.as_deref().unwrap_or("too little was measured");
                format!("Of {noun} nothing can be said: {reason}.")
            }
        }
    }

    /// What to do.
    fn advice(&self, row: &Row) -> Vec<String> {
        let mut advice = Vec::new();
        if row.verdict != Verdict::Undecided {
            return advice;
        }
        let blocking: Vec<&str> = self
            .differences
            .iter()
            .filter(|difference| difference.blocks())
            .map(|difference| difference.what)
            .collect();
        if !blocking.is_empty() {
            advice.push(format!("if that was meant, say so: --meant '{}'", blocking.join(",")));
            return advice;
        }
        if self.pairs.is_none() {
            advice.push(
                "llmprof-tui compare --repeat 20 -- A-OVERRIDES vs B-OVERRIDES runs both in turn, so that heat and others are in neither's favour"
                    .to_owned(),
            );
        } else {
            advice.push("more of --repeat or --max-time, or a quieter machine".to_owned());
        }
        advice
    }
}

/// The verdict in the metric's own word.
fn word(metric: Metric, verdict: Verdict) -> &'static str {
    match (verdict, metric.is_speed()) {
        (Verdict::Same, _) => "SAME",
        (Verdict::Undecided, _) => "UNDECIDED",
        (Verdict::Better, true) => "FASTER",
        (Verdict::Worse, true) => "SLOWER",
        (Verdict::Better, false) => "LESS",
        (Verdict::Worse, false) => "MORE",
    }
}
