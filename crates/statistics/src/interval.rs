//! Confidence intervals of means: the wider one of the studentised bootstrap and Student's t; only Student's t if there
//! are too few values to resample.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::{
    binomial::share_bounds,
    bootstrap::{Resampler, bootstrap, quantile},
    percentile::OrderStatistics,
};

/// The share of 95 % intervals that miss the true value.
pub const ALPHA: f64 = 0.05;

/// Fewer values do not show their own spread.
pub const MIN_VALUES: usize = 5;
/// Fewer values are not resampled: a single outlier is missing from many resamples, which then have almost no spread.
const MIN_RESAMPLED: usize = 12;
const RESAMPLES: usize = 2000;
/// A standard error below this is rounding.
const NO_ERROR: f64 = 1e-12;

/// An estimate and its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ConfidenceInterval {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

/// A value estimated from a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub standard_error: f64,
}

impl Estimate {
    /// The mean of `values`.
    fn of_mean(values: &[f64]) -> Estimate {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Estimate { value: mean, standard_error: (squares / (n - 1.0) / n).sqrt() }
    }
}

impl ConfidenceInterval {
    /// A value that is known exactly.
    pub fn exact(value: f64) -> ConfidenceInterval {
        ConfidenceInterval { estimate: value, low: value, high: value }
    }

    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    pub fn map(self, f: impl Fn(f64) -> f64) -> ConfidenceInterval {
        ConfidenceInterval { estimate: f(self.estimate), low: f(self.low), high: f(self.high) }
    }

    /// The mean of `values`; `None` for fewer than [`MIN_VALUES`], or if a value is not finite.
    pub fn of_mean(values: &[f64], seed: u64) -> Option<ConfidenceInterval> {
        SamplingDistribution::of_mean(values, seed)?.interval(ALPHA)
    }

    /// By how much the first of each pair exceeds the second, in percent of the second; `None` for fewer than
    /// [`MIN_VALUES`] pairs, or if a value is not above zero.
    ///
    /// The values of a pair were measured close together, so what slows both cancels. The estimate is the ratio of
    /// the geometric means: the mean of the log ratios.
    pub fn of_change_pct(pairs: &[(f64, f64)], seed: u64) -> Option<ConfidenceInterval> {
        let log_ratios: Vec<f64> = pairs.iter().map(|(a, b)| a.ln() - b.ln()).collect();
        Some(ConfidenceInterval::of_mean(&log_ratios, seed)?.map(|log_ratio| log_ratio.exp_m1() * 100.0))
    }
}

/// What is known about an estimate: the source of its interval for any confidence.
#[derive(Debug, Clone, PartialEq)]
pub enum SamplingDistribution {
    /// Counted, or from values without any spread.
    Point(f64),
    StudentT {
        estimate: Estimate,
        degrees_of_freedom: f64,
    },
    /// The t statistics of resamples, in ascending order.
    ///
    /// Quantiles of resampled estimates alone give intervals that are too narrow for few values. Each is therefore divided by
    /// the standard error of its own resample, which corrects that without an assumption on the distribution of the values.
    Studentised {
        estimate: Estimate,
        t_statistics: Vec<f64>,
    },
    /// The logarithm of the ratio of a percentile of the second to that of the first, by their order statistics.
    Percentiles(Box<[OrderStatistics; 2]>),
    /// The logarithm of the ratio of the second share to the first, by the exact interval of each.
    Shares(Box<[Share; 2]>),
    /// For rounded values without any spread: it is only known that rounding hides the spread.
    Rounded {
        estimate: f64,
        half_width: f64,
    },
    /// The wider interval of two.
    Wider(Box<[SamplingDistribution; 2]>),
}

impl SamplingDistribution {
    /// The distribution of an estimate from `n` independent values. `resampled` draws a resample and
    /// estimates the same from it.
    pub fn studentised(
        estimate: Estimate,
        n: usize,
        seed: u64,
        mut resampled: impl FnMut(&mut Resampler) -> Option<Estimate>,
    ) -> SamplingDistribution {
        let Estimate { value, standard_error } = estimate;
        if standard_error < NO_ERROR {
            return SamplingDistribution::Point(value);
        }
        if n < MIN_RESAMPLED {
            return SamplingDistribution::StudentT { estimate, degrees_of_freedom: n as f64 - 1.0 };
        }
        let mut t_statistics = bootstrap(seed, RESAMPLES, |resampler| {
            let resampled = resampled(resampler)?;
            // One value drawn every time has no spread.
            (resampled.standard_error > 0.0).then(|| (resampled.value - value) / resampled.standard_error)
        });
        t_statistics.sort_by(f64::total_cmp);
        // A rare slow mode may be missing from one side. Resamples of the other side show its share, but no resample
        // shows that the first side could have had it too.
        let student_t = SamplingDistribution::StudentT { estimate, degrees_of_freedom: n as f64 - 1.0 };
        let studentised = SamplingDistribution::Studentised { estimate, t_statistics };
        SamplingDistribution::Wider(Box::new([studentised, student_t]))
    }

    /// The distribution of the mean of `values`; `None` for fewer than [`MIN_VALUES`], or if one is not
    /// finite.
    pub fn of_mean(values: &[f64], seed: u64) -> Option<SamplingDistribution> {
        if values.len() < MIN_VALUES || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut resample = values.to_vec();
        Some(SamplingDistribution::studentised(Estimate::of_mean(values), values.len(), seed, |resampler| {
            resampler.fill(&mut resample, values);
            Some(Estimate::of_mean(&resample))
        }))
    }

    pub fn estimate(&self) -> f64 {
        match self {
            SamplingDistribution::Point(estimate) | SamplingDistribution::Rounded { estimate, .. } => {
                *estimate
            }
            SamplingDistribution::Percentiles(sides) => sides[1].value().ln() - sides[0].value().ln(),
            SamplingDistribution::Shares(sides) => sides[1].value.ln() - sides[0].value.ln(),
            SamplingDistribution::StudentT { estimate, .. }
            | SamplingDistribution::Studentised { estimate, .. } => estimate.value,
            SamplingDistribution::Wider(both) => both[0].estimate(),
        }
    }

    /// The standard error, if it is known directly.
    pub fn standard_error(&self) -> Option<f64> {
        match self {
            SamplingDistribution::StudentT { estimate, .. }
            | SamplingDistribution::Studentised { estimate, .. } => Some(estimate.standard_error),
            SamplingDistribution::Wider(both) => both[0].standard_error(),
            _ => None,
        }
    }

    /// The interval that misses the true value with probability `alpha`; `None` if nothing could be resampled.
    pub fn interval(&self, alpha: f64) -> Option<ConfidenceInterval> {
        let tail = alpha / 2.0;
        Some(match self {
            SamplingDistribution::Point(value) => ConfidenceInterval::exact(*value),
            SamplingDistribution::StudentT {
                estimate: Estimate { value, standard_error },
                degrees_of_freedom,
            } => {
                let half = student_t_quantile(*degrees_of_freedom, tail) * standard_error;
                ConfidenceInterval { estimate: *value, low: value - half, high: value + half }
            }
            SamplingDistribution::Studentised {
                estimate: Estimate { value, standard_error },
                t_statistics,
            } => ConfidenceInterval {
                estimate: *value,
                low: value - quantile(t_statistics, 1.0 - tail)? * standard_error,
                high: value - quantile(t_statistics, tail)? * standard_error,
            },
            SamplingDistribution::Percentiles(sides) => log_ratio(sides.each_ref().map(|side| {
                let (low, high) = side.range(alpha)?;
                Some((side.value(), low, high))
            }))?,
            SamplingDistribution::Shares(sides) => log_ratio(sides.each_ref().map(|side| {
                let (low, high) = share_bounds(side.value * side.worth, side.worth, alpha);
                (side.value > 0.0).then_some((side.value, low, high))
            }))?,
            SamplingDistribution::Rounded { estimate, half_width } => ConfidenceInterval {
                estimate: *estimate,
                low: estimate - half_width,
                high: estimate + half_width,
            },
            SamplingDistribution::Wider(both) => {
                let [first, second] = [both[0].interval(alpha)?, both[1].interval(alpha)?];
                ConfidenceInterval {
                    estimate: first.estimate,
                    low: first.low.min(second.low),
                    high: first.high.max(second.high),
                }
            }
        })
    }

    /// The distribution of the negative: of the logarithm of a reciprocal.
    pub fn negated(self) -> SamplingDistribution {
        let negative = |Estimate { value, standard_error }| Estimate { value: -value, standard_error };
        let mirrored = |values: Vec<f64>| values.into_iter().rev().map(|value| -value).collect();
        match self {
            SamplingDistribution::Point(value) => SamplingDistribution::Point(-value),
            SamplingDistribution::StudentT { estimate, degrees_of_freedom } => {
                SamplingDistribution::StudentT { estimate: negative(estimate), degrees_of_freedom }
            }
            SamplingDistribution::Studentised { estimate, t_statistics } => {
                SamplingDistribution::Studentised {
                    estimate: negative(estimate),
                    t_statistics: mirrored(t_statistics),
                }
            }
            SamplingDistribution::Percentiles(sides) => {
                let [first, second] = *sides;
                SamplingDistribution::Percentiles(Box::new([second, first]))
            }
            SamplingDistribution::Shares(sides) => {
                let [first, second] = *sides;
                SamplingDistribution::Shares(Box::new([second, first]))
            }
            SamplingDistribution::Rounded { estimate, half_width } => {
                SamplingDistribution::Rounded { estimate: -estimate, half_width }
            }
            SamplingDistribution::Wider(both) => {
                SamplingDistribution::Wider(Box::new((*both).map(SamplingDistribution::negated)))
            }
        }
    }
}

/// A share of values that are worth `worth` independent ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    pub value: f64,
    pub worth: f64,
}

/// The interval of a difference from those of its two parts, each a value with its bounds, by the method of variance estimates recovery
/// (Zou and Donner 2008).
fn log_ratio([a, b]: [Option<(f64, f64, f64)>; 2]) -> Option<ConfidenceInterval> {
    let ln = |(value, low, high): (f64, f64, f64)| (value.ln(), low.ln(), high.ln());
    let ((a, low_a, high_a), (b, low_b, high_b)) = (ln(a?), ln(b?));
    let estimate = b - a;
    Some(ConfidenceInterval {
        estimate,
        low: estimate - (b - low_b).hypot(high_a - a),
        high: estimate + (high_b - b).hypot(a - low_a),
    })
}

/// The value that Student's t exceeds with probability `tail`.
pub(crate) fn student_t_quantile(degrees_of_freedom: f64, tail: f64) -> f64 {
    StudentsT::new(0.0, 1.0, degrees_of_freedom)
        .expect("degrees of freedom are above zero")
        .inverse_cdf(1.0 - tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise;

    #[test]
    fn the_interval_contains_the_true_mean_as_often_as_stated() {
        for n in [5, 8, 12, 30] {
            let trials = 400;
            let hits = (0..trials).filter(|trial| {
                let values: Vec<f64> = (0..n).map(|i| 5.0 + noise::bell(*trial, i)).collect();
                ConfidenceInterval::of_mean(&values, 1).unwrap().contains(5.0)
            });
            let share = hits.count() as f64 / trials as f64;
            assert!((0.92..=0.985).contains(&share), "{share} of the intervals over {n} values");
        }
    }

    #[test]
    fn quantiles_match_the_tables() {
        for (degrees, expected) in
            [(4.0, 2.7764), (8.0, 2.3060), (14.0, 2.1448), (38.0, 2.0244), (1000.0, 1.9623)]
        {
            let quantile = student_t_quantile(degrees, ALPHA / 2.0);
            assert!((quantile - expected).abs() < 1e-4, "{degrees}: {quantile}");
        }
    }

    /// Five pairs of a run with itself: four almost equal, one slightly different.
    #[test]
    fn one_outlier_does_not_widen_the_interval_without_bound() {
        let interval = ConfidenceInterval::of_mean(&[0.0, 1e-6, 0.0, -1e-6, 1e-3], 0).unwrap();
        assert!(interval.low > -2e-3 && interval.high < 2e-3, "{interval:?}");
    }

    #[test]
    fn a_difference_is_found_and_none_is_not() {
        let pairs = |slower: f64| -> Vec<(f64, f64)> {
            (0..20)
                .map(|i| (10.0 * slower + 0.1 * noise::bell(1, i), 10.0 + 0.1 * noise::bell(2, i)))
                .collect()
        };
        let found = ConfidenceInterval::of_change_pct(&pairs(1.05), 0).unwrap();
        assert!(found.contains(5.0) && !found.contains(0.0), "{found:?}");
        let none = ConfidenceInterval::of_change_pct(&pairs(1.0), 0).unwrap();
        assert!(none.contains(0.0) && none.high - none.low < 2.0, "{none:?}");
    }

    #[test]
    fn what_slows_both_of_a_pair_cancels() {
        let drifting: Vec<(f64, f64)> = (0..12).map(|i| (1.01 * (1 << i) as f64, (1 << i) as f64)).collect();
        let change = ConfidenceInterval::of_change_pct(&drifting, 3).unwrap();
        assert!((change.estimate - 1.0).abs() < 1e-9 && change.high - change.low < 1e-6, "{change:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values: Vec<f64> = (0..15).map(|i| noise::unit(4, i)).collect();
        assert_eq!(ConfidenceInterval::of_mean(&values, 7), ConfidenceInterval::of_mean(&values, 7));
        assert_ne!(ConfidenceInterval::of_mean(&values, 7), ConfidenceInterval::of_mean(&values, 8));
    }

    #[test]
    fn more_confidence_is_wider_and_a_reciprocal_is_the_mirror_image() {
        let values: Vec<f64> = (0..15).map(|i| noise::unit(4, i)).collect();
        for n in [8, 15] {
            let of = SamplingDistribution::of_mean(&values[..n], 7).unwrap();
            let [narrow, wide] = [0.05, 0.005].map(|alpha| of.interval(alpha).unwrap());
            assert!(wide.low < narrow.low && narrow.high < wide.high, "{narrow:?} {wide:?}");
            let mirror = of.negated().interval(0.05).unwrap();
            assert_eq!(
                (mirror.low, mirror.estimate, mirror.high),
                (-narrow.high, -narrow.estimate, -narrow.low)
            );
        }
    }

    #[test]
    fn too_few_values_give_no_interval() {
        assert_eq!(ConfidenceInterval::of_mean(&[1.0; 4], 0), None);
        assert_eq!(ConfidenceInterval::of_mean(&[1.0, 2.0, 3.0, 4.0, f64::NAN], 0), None);
        assert_eq!(ConfidenceInterval::of_change_pct(&[(1.0, 0.0); 8], 0), None, "a ratio to zero");
        assert_eq!(ConfidenceInterval::of_mean(&[2.0; 6], 0), Some(ConfidenceInterval::exact(2.0)));
    }
}
