//! Turns two samples into rows with verdicts, and the rows into a sentence.

use super::{
    clock::{ClockComparison, ClockEffect, Doubt, compare_clocks, limit_difference, same_gpu},
    comparer::Comparer,
    comparison::{Cause, Comparison, MetricComparison, Options, RowTest, caveats, headline},
    difference::Difference,
    estimate::Estimated,
    holm,
    metric::Metric,
    owners::{OwnerChange, owner_changes},
    ratio,
    sample::Sample,
    sentence::{unknown_clock, verdict_word},
    spread::RunDeviation,
    verdict::Verdict,
    waterfall::waterfall,
};
use crate::interval::{ALPHA, ConfidenceInterval, SamplingDistribution};

/// Compares B with A.
pub fn compare(a: &Sample, b: &Sample, options: &Options) -> Comparison {
    let spread = &options.spread;
    let copies = [a, b].into_iter().all(Sample::has_equal_requests);
    let owners = owner_changes(&[(a, b)]);
    Comparer::new(a, b, options, None, copies).comparison(owners, &|metric| {
        let mut estimated = metric.estimate(a, b, options.seed);
        estimated.log_ratio = estimated.log_ratio.map(|log_ratio| spread.widened(metric, log_ratio));
        let ratio = estimated.log_ratio.as_ref().ok().and_then(ratio::interval);
        (estimated, ratio.and_then(|ratio| metric.cycles_ratio(a, b, ratio, options.seed)))
    })
}

/// Compares interleaved runs of B with those of A: the intervals include the variation from run to run, and effects on
/// both runs of a pair cancel. `None` without a pair.
pub fn compare_pairs(pairs: &[(Sample, Sample)], options: &Options) -> Option<Comparison> {
    let (a, b): (Vec<Sample>, Vec<Sample>) = pairs.iter().cloned().unzip();
    let is_copy = |pair: &[Sample]| pair[0].requests == pair[1].requests;
    let copies = [&a, &b].into_iter().all(|side| side.windows(2).all(is_copy));
    let (a, b) = (Sample::pooled(&a)?, Sample::pooled(&b)?);
    let owners = owner_changes(&pairs.iter().map(|(a, b)| (a, b)).collect::<Vec<_>>());
    Some(Comparer::new(&a, &b, options, Some(pairs.len()), copies).comparison(owners, &|metric| {
        (metric.estimate_in_pairs(pairs, options.seed), metric.cycles_ratio_in_pairs(pairs, options.seed))
    }))
}

/// A row with the data for its verdict at another confidence.
struct JudgedRow {
    row: MetricComparison,
    log_ratio: Option<SamplingDistribution>,
    effect: ClockEffect,
}

impl Comparer<'_> {
    /// `estimate` returns a metric of both sides, and its ratio in cycles.
    fn comparison(
        self,
        owners: Vec<OwnerChange>,
        estimate: &dyn Fn(Metric) -> (Estimated, Option<ConfidenceInterval>),
    ) -> Comparison {
        let metrics = &self.options.metrics;
        let mut judged: Vec<JudgedRow> =
            metrics.iter().map(|metric| self.judge(*metric, estimate(*metric))).collect();
        let corrected_rows = self.correct(&mut judged);
        let rows: Vec<MetricComparison> = judged.into_iter().map(|judged| judged.row).collect();
        let headline_metric = self.headline();
        let headline = rows.iter().find(|row| Some(row.metric) == headline_metric);
        let (verdict, word) =
            headline.map_or((Verdict::Undecided, "UNDECIDED"), |row| (row.verdict, row.word));
        let sentence = headline.map_or_else(|| "Nothing was compared.".to_owned(), |row| self.sentence(row));
        let advice = headline.map_or_else(Vec::new, |row| self.advice(row));
        let run_spread = headline.and_then(|row| self.run_spread(row.metric));
        let [a, b] = self.sides;
        Comparison {
            verdict,
            headline: headline_metric,
            word,
            sentence,
            margin: self.options.margin,
            pairs: self.pairs,
            run_spread,
            corrected_rows,
            a,
            b,
            rows,
            owners,
            waterfall: waterfall(self.a, self.b),
            caveats: caveats(self.a, self.b),
            itl: self.a.itl.clone().zip(self.b.itl.clone()).map(|(a, b)| [a, b]),
            advice,
            differences: self.differences,
        }
    }

    fn headline(&self) -> Option<Metric> {
        headline(self.options, &self.differences)
    }

    /// The variation from run to run that a comparison of two runs takes into account.
    pub(super) fn run_spread(&self, metric: Metric) -> Option<RunDeviation> {
        self.options.spread.deviation(metric).filter(|_| self.pairs.is_none())
    }

    fn judge(
        &self,
        metric: Metric,
        (estimated, in_cycles): (Estimated, Option<ConfidenceInterval>),
    ) -> JudgedRow {
        let Estimated { a, b, log_ratio, n } = estimated;
        let row = MetricComparison {
            metric,
            label: metric.label(),
            a,
            b,
            ratio: None,
            n,
            test: RowTest::None,
            in_cycles: None,
            code: None,
            verdict: Verdict::Undecided,
            word: "UNDECIDED",
            cause: None,
            reason: None,
            blocked: false,
        };
        let mut judged = JudgedRow { row, log_ratio: None, effect: ClockEffect::NONE };
        let row = &mut judged.row;
        let log_ratio = match log_ratio {
            Ok(log_ratio) => log_ratio,
            Err(reason) => {
                (row.reason, row.blocked) = (Some(reason), true);
                return judged;
            }
        };
        row.ratio = ratio::interval(&log_ratio);
        row.in_cycles = in_cycles.filter(|_| same_gpu(self.a, self.b));
        if let Some(reason) = self.obstacle(metric) {
            (row.reason, row.blocked) = (Some(reason), true);
            return judged;
        }
        if let Some(ratio) = row.ratio {
            judged.effect = self.decide(row, ratio);
        }
        row.word = verdict_word(metric, row.verdict);
        judged.log_ratio = Some(log_ratio).filter(|_| !judged.row.blocked && !metric.is_count());
        judged
    }

    /// The headline keeps its level. The other rows share one level, because of many rows one would often differ by
    /// chance. Returns the number of the other rows.
    fn correct(&self, judged: &mut [JudgedRow]) -> usize {
        let headline_metric = self.headline();
        let is_headline = |metric: Metric| {
            headline_metric.is_some_and(|headline| {
                metric == headline || metric.is_reciprocal_of(headline, self.a, self.b)
            })
        };
        let mut family = Vec::new();
        for (i, judged) in judged.iter_mut().enumerate().filter(|(_, judged)| judged.log_ratio.is_some()) {
            judged.row.test = match is_headline(judged.row.metric) {
                true => RowTest::Headline,
                false => RowTest::Corrected,
            };
            if judged.row.test == RowTest::Corrected {
                family.push(i);
            }
        }
        let rejected = holm::rejected(family.len(), ALPHA, |nth, level| {
            let JudgedRow { row, log_ratio, effect } = &judged[family[nth]];
            let interval = log_ratio.as_ref().and_then(|log_ratio| log_ratio.interval(level));
            interval.is_some_and(|interval| {
                let code = self.attributable(row.metric, interval.map(f64::exp), *effect);
                !code.contains(1.0)
            })
        });
        for (i, rejected) in family.iter().zip(rejected) {
            let row = &mut judged[*i].row;
            if !rejected && matches!(row.verdict, Verdict::Better | Verdict::Worse) {
                (row.verdict, row.word, row.cause) = (Verdict::Undecided, "UNDECIDED", None);
                row.reason = Some(format!(
                    "not significant among the {} rows that are corrected together",
                    family.len()
                ));
            }
        }
        family.len()
    }

    /// The reason why there is no verdict, whatever the numbers are.
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

    /// The part of a ratio that the clocks cannot explain. Energy does not follow the clock in a known way.
    fn attributable(
        &self,
        metric: Metric,
        ratio: ConfidenceInterval,
        effect: ClockEffect,
    ) -> ConfidenceInterval {
        match metric {
            Metric::JPerToken => ratio,
            _ => effect.remove_from(ratio, metric.more_is_better(), self.options.margin),
        }
    }

    /// Decides a row; returns the possible effect of the clocks.
    fn decide(&self, row: &mut MetricComparison, ratio: ConfidenceInterval) -> ClockEffect {
        let (metric, margin) = (row.metric, self.options.margin);
        let rates = metric.more_is_better();
        let in_time = Verdict::from_ratio(ratio, margin, rates);
        let differs = matches!(in_time, Verdict::Better | Verdict::Worse);
        // Copies have no spread. That is no evidence of a difference.
        if differs && !metric.is_count() && (self.copies || ratio.low == ratio.high) {
            row.blocked = true;
            row.reason = Some(self.no_spread());
            return ClockEffect::NONE;
        }
        let clocks = compare_clocks(self.a, self.b, metric);
        let limits = limit_difference(self.a, self.b, metric);
        let (effect, unknown) = match clocks {
            ClockComparison::Known { effect, .. } => (effect, None),
            ClockComparison::Irrelevant | ClockComparison::NotSampled => (ClockEffect::NONE, None),
            ClockComparison::Unknown { phase, doubt } => {
                // Without a sign that the clocks differed, equal times are just equal.
                let doubt = doubt.filter(|doubt| differs || matches!(doubt, Doubt::OtherPhase { .. }));
                (ClockEffect::NONE, unknown_clock(phase, limits.as_deref(), doubt))
            }
        };
        if differs && unknown.is_some() {
            // The difference is measured; its cause is not known.
            (row.verdict, row.cause, row.reason) = (in_time, Some(Cause::Unclear), unknown);
            row.code = Some(ratio);
            return effect;
        }
        let clocks_differ = effect.range() > 1.0 + margin;
        let is_energy = metric == Metric::JPerToken;
        let attributable = unknown.is_none() && !(is_energy && clocks_differ);
        row.code = attributable.then(|| self.attributable(metric, ratio, effect));
        let described = || self.describe_clocks(clocks, limits.as_deref());
        if in_time == Verdict::Same {
            // The times are equal. Whether the times at equal clocks are equal is not known.
            row.verdict = Verdict::Same;
            row.reason = unknown.or_else(|| clocks_differ.then(described)).map(|why| {
                format!("the values are the same although {why}; at equal clocks they may differ")
            });
            return effect;
        }
        if is_energy && clocks_differ {
            row.blocked = true;
            row.reason = Some(format!("{}, which changes the energy", described()));
            return effect;
        }
        row.verdict = row.code.map_or(Verdict::Undecided, |code| Verdict::from_ratio(code, margin, rates));
        match row.verdict {
            Verdict::Better | Verdict::Worse => {
                row.cause = matches!(clocks, ClockComparison::Known { .. }).then_some(Cause::Code);
            }
            Verdict::Undecided if differs => {
                // Decided by time only, although the clocks may explain it.
                let same_in_cycles = row.in_cycles.is_some_and(|cycles| {
                    cycles.contains(1.0) || Verdict::from_ratio(cycles, margin, rates) != in_time
                });
                row.cause = Some(if same_in_cycles { Cause::Clock } else { Cause::Unclear });
                row.reason = Some(described());
            }
            Verdict::Undecided => row.reason = Some(self.too_wide(row, ratio)),
            Verdict::Same => {}
        }
        effect
    }
}
