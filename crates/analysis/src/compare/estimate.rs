//! The values of a metric on both sides, and the ratio of B to A, from requests, tokens or pairs of runs.

use std::fmt;

use serde::Serialize;

use super::{
    blocks::BlockHistogram,
    metric::{Metric, Statistic},
    ratio::{self, MIN_BLOCKS, TooFew, values_needed},
    sample::{RequestSample, SLO_LIMIT, Sample},
};
use crate::{
    distribution::samples_needed,
    interval::{ConfidenceInterval, Estimate, MIN_VALUES, SamplingDistribution},
};
use llmprof_base::units::grouped;

/// From this number of requests of both sides on, their deviation is estimated.
const MIN_POOLED_REQUESTS: usize = 4;
/// The relative deviation of TPOT from request to request if it cannot be estimated.
const ASSUMED_REQUEST_DEVIATION: f64 = 0.005;

/// A metric of both sides. The estimate of the ratio is `b / a`.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimated {
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// The logarithm of B over A, or why there is none.
    pub log_ratio: Result<SamplingDistribution, String>,
    pub n: Option<SampleSize>,
}

/// The sample size of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum SampleSize {
    Requests { a: u64, b: u64 },
    Tokens { a: u64, b: u64 },
    Pairs { pairs: u64 },
}

impl SampleSize {
    /// The size of the smaller side.
    pub fn smaller(self) -> u64 {
        match self {
            SampleSize::Requests { a, b } | SampleSize::Tokens { a, b } => a.min(b),
            SampleSize::Pairs { pairs } => pairs,
        }
    }

    /// The unit of the sample size, as in "20 requests on each side".
    pub fn unit(self) -> &'static str {
        match self {
            SampleSize::Requests { .. } => "requests on each side",
            SampleSize::Tokens { .. } => "tokens on each side",
            SampleSize::Pairs { .. } => "pairs of runs",
        }
    }
}

impl fmt::Display for SampleSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: u64| grouped(n as i64);
        match *self {
            SampleSize::Requests { a, b } => write!(f, "{} and {} requests", count(a), count(b)),
            SampleSize::Tokens { a, b } => write!(f, "{} and {} tokens", count(a), count(b)),
            SampleSize::Pairs { pairs } => write!(f, "{} pairs of runs", count(pairs)),
        }
    }
}

impl Metric {
    /// The value in a sample, in its unit (times in milliseconds); `None` if there are too few values for it.
    pub fn value(self, sample: &Sample) -> Option<f64> {
        let value = match self {
            Metric::PeakMemory => sample.peak_mem_bytes? as f64,
            Metric::KernelsPerToken => sample.decode.as_ref()?.launches_per_step()?,
            Metric::Goodput => ratio::of_share(sample.kept_slos.as_ref()?, SLO_LIMIT)?.estimate,
            Metric::Itl(Statistic::Percentile(percentile)) => {
                let gaps = sample.itl_ns.as_ref()?;
                let enough = gaps.n() >= samples_needed(percentile);
                ratio::percentile_of(gaps, percentile).filter(|_| enough)? / 1e6
            }
            _ => match self.observations(sample)? {
                Observations::Rates(terms) => self.rate(&terms),
                Observations::Values(values, percentile) => {
                    let enough = values.len() as u64 >= samples_needed(percentile);
                    let histogram = BlockHistogram::of_chunks(&values, 1);
                    ratio::percentile_of(&histogram, percentile).filter(|_| enough)? / 1e6
                }
            },
        };
        Some(value).filter(|value| value.is_finite() && *value > 0.0)
    }

    fn rate(self, terms: &[(f64, f64)]) -> f64 {
        let (numerator, denominator) = ratio::sums(terms);
        let scale = match self {
            Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => 1e-6,
            Metric::DecodeTokS | Metric::PrefillTokS => 1e9,
            _ => 1.0,
        };
        numerator / denominator * scale
    }

    /// The observations of a sample, one for each request.
    fn observations(self, sample: &Sample) -> Option<Observations> {
        let requests = &sample.requests;
        let rates = |of: &dyn Fn(&RequestSample) -> Option<(f64, f64)>| {
            Observations::Rates(requests.iter().filter_map(of).collect())
        };
        let tokens = |r: &RequestSample| f64::from(r.steps) * f64::from(r.batch);
        Some(match self {
            Metric::Ttft(Statistic::Mean) => rates(&|r| term(r.ttft_ns? as f64, 1.0)),
            Metric::Ttft(Statistic::Percentile(percentile)) => Observations::Values(
                requests.iter().filter_map(|r| r.ttft_ns).map(|ns| ns as f64).collect(),
                percentile,
            ),
            Metric::Tpot(Statistic::Percentile(percentile)) => {
                Observations::Values(sample.tpots_ns(), percentile)
            }
            // Time over tokens: the reciprocal of the decode rate, whatever the lengths of the requests.
            Metric::Tpot(Statistic::Mean) | Metric::Itl(Statistic::Mean) => {
                rates(&|r| term(r.decode_ns as f64, f64::from(r.steps)))
            }
            Metric::DecodeTokS => rates(&|r| term(tokens(r), r.decode_ns as f64)),
            Metric::PrefillTokS => {
                rates(&|r| term(f64::from(r.prompt_tokens) * f64::from(r.batch), r.ttft_ns? as f64))
            }
            Metric::JPerToken => rates(&|r| term(r.decode_j?, tokens(r))),
            Metric::Itl(Statistic::Percentile(_))
            | Metric::Goodput
            | Metric::PeakMemory
            | Metric::KernelsPerToken => return None,
        })
    }

    /// Whether both are reciprocals of one quantity on these sides: the decode rate is the batch over the mean TPOT.
    pub fn is_reciprocal_of(self, other: Metric, a: &Sample, b: &Sample) -> bool {
        let pair = [self, other];
        let both = [Metric::DecodeTokS, Metric::Tpot(Statistic::Mean)];
        both.iter().all(|metric| pair.contains(metric)) && a.facts.run.batch == b.facts.run.batch
    }

    /// Compares one sample with another.
    pub fn estimate(self, a: &Sample, b: &Sample, seed: u64) -> Estimated {
        if let Some(tokens) = self.estimate_from_tokens(a, b, seed) {
            return tokens;
        }
        let n = match self {
            Metric::PeakMemory | Metric::KernelsPerToken => None,
            Metric::Itl(Statistic::Percentile(_)) => {
                let count = |sample: &Sample| sample.itl_ns.as_ref().map_or(0, BlockHistogram::n);
                Some(SampleSize::Tokens { a: count(a), b: count(b) })
            }
            Metric::Goodput => {
                let count = |sample: &Sample| sample.kept_slos.as_ref().map_or(0, BlockHistogram::n);
                Some(SampleSize::Requests { a: count(a), b: count(b) })
            }
            _ => {
                let count = |sample: &Sample| self.observations(sample).map_or(0, |of| of.len() as u64);
                Some(SampleSize::Requests { a: count(a), b: count(b) })
            }
        };
        let (value_a, value_b) = (self.value(a), self.value(b));
        Estimated { a: value_a, b: value_b, log_ratio: self.log_ratio(a, b, seed), n }
    }

    /// The estimate from the tokens within requests, if a side has too few requests. Blocks of tokens are resampled.
    fn estimate_from_tokens(self, a: &Sample, b: &Sample, seed: u64) -> Option<Estimated> {
        if !matches!(self, Metric::Tpot(Statistic::Mean) | Metric::Itl(Statistic::Mean) | Metric::DecodeTokS)
            || a.requests.len().min(b.requests.len()) >= MIN_VALUES
        {
            return None;
        }
        if self == Metric::DecodeTokS {
            let mean_tpot = Metric::Tpot(Statistic::Mean);
            let time = mean_tpot
                .estimate_from_tokens(a, b, seed)
                .filter(|_| self.is_reciprocal_of(mean_tpot, a, b))?;
            let rate = |ms: Option<f64>| ms.map(|ms| f64::from(a.facts.run.batch) * 1e3 / ms);
            let log_ratio = time.log_ratio.map(SamplingDistribution::negated);
            return Some(Estimated { a: rate(time.a), b: rate(time.b), log_ratio, n: time.n });
        }
        let terms = |sample: &Sample| -> Option<Vec<(f64, f64)>> {
            let blocks = sample.token_blocks.blocks();
            let terms = blocks.iter().filter_map(|block| term(block.ns as f64, f64::from(block.steps)));
            (blocks.len() >= MIN_BLOCKS).then(|| terms.collect())
        };
        let (of_a, of_b) = (terms(a)?, terms(b)?);
        let of_tokens = ratio::of_rates(&of_a, &of_b, seed)?;
        let log_ratio = with_request_variation(of_tokens, a, b, of_a.len().min(of_b.len()));
        Some(Estimated {
            a: Some(self.rate(&of_a)),
            b: Some(self.rate(&of_b)),
            log_ratio: Ok(log_ratio),
            n: Some(SampleSize::Tokens { a: a.token_blocks.steps(), b: b.token_blocks.steps() }),
        })
    }

    fn log_ratio(self, a: &Sample, b: &Sample, seed: u64) -> Result<SamplingDistribution, String> {
        if self.is_count() {
            let (a, b) = (self.counted("A", a)?, self.counted("B", b)?);
            return Ok(SamplingDistribution::Point((b / a).ln()));
        }
        if self == Metric::Goodput {
            let of = |side: &str, sample: &Sample| {
                let kept = sample.kept_slos.as_ref().filter(|kept| kept.n() > 0);
                kept.cloned().ok_or_else(|| format!("{side} has no SLOs"))
            };
            let (of_a, of_b) = (of("A", a)?, of("B", b)?);
            if a.facts.run.slo != b.facts.run.slo {
                return Err("the SLOs differ".to_owned());
            }
            return ratio::of_shares(&of_a, &of_b, SLO_LIMIT)
                .ok_or_else(|| "a side has too few requests, or none that meets its SLOs".to_owned());
        }
        // Estimated once, so that both rows agree.
        let mean_tpot = Metric::Tpot(Statistic::Mean);
        if self == Metric::DecodeTokS && self.is_reciprocal_of(mean_tpot, a, b) {
            return mean_tpot.log_ratio(a, b, seed).map(SamplingDistribution::negated);
        }
        match (self, self.observations(a), self.observations(b)) {
            (Metric::Itl(Statistic::Percentile(percentile)), ..) => {
                log_ratio_of_percentiles(gaps("A", a, percentile)?, gaps("B", b, percentile)?, percentile)
            }
            (_, Some(of_a), Some(of_b)) => {
                self.check_sample_size("A", a, &of_a)?;
                self.check_sample_size("B", b, &of_b)?;
                of_a.log_ratio_to(&of_b, seed)
            }
            _ => Err(NO_RATIO.to_owned()),
        }
    }

    /// Compares interleaved runs pair by pair: the values are geometric means over the runs of a side, the ratio is theirs.
    pub fn estimate_in_pairs(self, pairs: &[(Sample, Sample)], seed: u64) -> Estimated {
        let values = |(a, b): &(Sample, Sample)| Some((self.value(a)?, self.value(b)?));
        let values: Vec<(f64, f64)> = pairs.iter().filter_map(values).collect();
        let n = SampleSize::Pairs { pairs: values.len() as u64 };
        if values.is_empty() {
            let reason =
                "no pair of runs has it: each run has too few requests, or the metric was not measured";
            return Estimated { a: None, b: None, log_ratio: Err(reason.to_owned()), n: Some(n) };
        }
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| values.iter().map(of).sum::<f64>() / values.len() as f64;
        if self.is_count() {
            let (a, b) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
            let log_ratio = Ok(SamplingDistribution::Point((b / a).ln()));
            return Estimated { a: Some(a), b: Some(b), log_ratio, n: None };
        }
        let log_ratio = match log_ratio_of_pairs(&values, seed) {
            Some(SamplingDistribution::Point(log_ratio)) if self.is_percentile() => {
                Some(ratio::of_buckets(log_ratio))
            }
            log_ratio => log_ratio,
        };
        Estimated {
            a: Some(mean(&|pair| pair.0.ln()).exp()),
            b: Some(mean(&|pair| pair.1.ln()).exp()),
            log_ratio: log_ratio
                .ok_or_else(|| format!("{} pairs of runs have it, {MIN_VALUES} are needed", values.len())),
            n: Some(n),
        }
    }

    /// The ratio in cycles of the SM clock: from the cycles of each request if they are known, else from the clock of the
    /// phase. `None` if no clock is known, or the metric is not a time.
    pub fn cycles_ratio(
        self,
        a: &Sample,
        b: &Sample,
        in_time: ConfidenceInterval,
        seed: u64,
    ) -> Option<ConfidenceInterval> {
        let by_request = || {
            let (a, b) = (in_cycles(a)?, in_cycles(b)?);
            let log_ratio = self.observations(&a)?.log_ratio_to(&self.observations(&b)?, seed).ok()?;
            ratio::interval(&log_ratio)
        };
        let by_phase = || {
            let clocks = self.clock_mhz(b)? / self.clock_mhz(a)?;
            Some(in_time.map(|time| if self.more_is_better() { time / clocks } else { time * clocks }))
        };
        if self.has_cycles_of_requests() { by_request().or_else(by_phase) } else { by_phase() }
    }

    /// The same for pairs.
    pub fn cycles_ratio_in_pairs(self, pairs: &[(Sample, Sample)], seed: u64) -> Option<ConfidenceInterval> {
        let of = |sample: &Sample| {
            let by_request = || self.value(&in_cycles(sample)?);
            let by_phase = || {
                let (value, mhz) = (self.value(sample)?, self.clock_mhz(sample)?);
                // As in `in_cycles`: thousands of cycles in place of nanoseconds.
                let cycles_per_ns = mhz / 1e6;
                Some(if self.more_is_better() { value / cycles_per_ns } else { value * cycles_per_ns })
            };
            if self.has_cycles_of_requests() { by_request().or_else(by_phase) } else { by_phase() }
        };
        let values: Vec<(f64, f64)> = pairs.iter().filter_map(|(a, b)| Some((of(a)?, of(b)?))).collect();
        ratio::interval(&log_ratio_of_pairs(&values, seed).filter(|_| values.len() == pairs.len())?)
    }

    /// Whether it is computed from the decodes of single requests.
    fn has_cycles_of_requests(self) -> bool {
        matches!(self, Metric::Tpot(_) | Metric::DecodeTokS | Metric::Itl(Statistic::Mean))
    }

    /// The SM clock in the metric's phase, if the metric is a time.
    fn clock_mhz(self, sample: &Sample) -> Option<f64> {
        match self {
            Metric::Ttft(_) | Metric::PrefillTokS => sample.clocks.prefill_sm_mhz,
            Metric::Tpot(_) | Metric::DecodeTokS | Metric::Itl(_) => sample.clocks.decode_sm_mhz,
            Metric::Goodput | Metric::JPerToken | Metric::PeakMemory | Metric::KernelsPerToken => None,
        }
    }

    fn counted(self, side: &str, sample: &Sample) -> Result<f64, String> {
        self.value(sample).ok_or_else(|| match self {
            Metric::KernelsPerToken => format!("the kernels of {side} were not recorded"),
            _ => format!("the memory of {side} was not sampled"),
        })
    }

    /// Whether a side has enough observations for an interval.
    fn check_sample_size(self, side: &str, sample: &Sample, of: &Observations) -> Result<(), String> {
        let needed = match of {
            Observations::Rates(_) => MIN_VALUES,
            Observations::Values(_, percentile) => values_needed(*percentile),
        };
        match (of.len(), sample.measured) {
            (_, 0) => Err(format!("{side} has no completed request")),
            (0, _) if self == Metric::JPerToken => Err(format!("the power of {side} was not sampled")),
            (0, _) => Err(format!("no request of {side} has more than one token")),
            (n, _) if n < needed => Err(format!("{side} has {n} requests, {needed} are needed")),
            _ => Ok(()),
        }
    }
}

/// Requests vary by more than their tokens do. If there are at least four, the interval is at least that of Student's t over
/// requests, with one deviation for both sides; for fewer, their deviation is assumed.
fn with_request_variation(
    of_tokens: SamplingDistribution,
    a: &Sample,
    b: &Sample,
    blocks: usize,
) -> SamplingDistribution {
    let logs = |sample: &Sample| sample.tpots_ns().into_iter().map(f64::ln).collect::<Vec<f64>>();
    let sides = [logs(a), logs(b)];
    let per_side = |logs: &Vec<f64>| 1.0 / logs.len().max(1) as f64;
    let unevenness = sides.iter().map(per_side).sum::<f64>().sqrt();
    let n: usize = sides.iter().map(Vec::len).sum();
    let value = of_tokens.estimate();
    if n >= MIN_POOLED_REQUESTS && sides.iter().all(|logs| !logs.is_empty()) {
        let squares = |logs: &Vec<f64>| {
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>()
        };
        let degrees_of_freedom = (n - 2) as f64;
        let deviation = (sides.iter().map(squares).sum::<f64>() / degrees_of_freedom).sqrt();
        let estimate = Estimate { value, standard_error: deviation * unevenness };
        let of_requests = SamplingDistribution::StudentT { estimate, degrees_of_freedom };
        return SamplingDistribution::Wider(Box::new([of_tokens, of_requests]));
    }
    match of_tokens.standard_error() {
        None => of_tokens,
        Some(error) => SamplingDistribution::StudentT {
            estimate: Estimate { value, standard_error: error.hypot(ASSUMED_REQUEST_DEVIATION * unevenness) },
            degrees_of_freedom: blocks as f64 - 1.0,
        },
    }
}

/// A term of a rate, if it has both parts.
fn term(numerator: f64, denominator: f64) -> Option<(f64, f64)> {
    (numerator > 0.0 && denominator > 0.0).then_some((numerator, denominator))
}

/// The mean log ratio of pairs of A and B: effects on both sides of a pair cancel.
fn log_ratio_of_pairs(values: &[(f64, f64)], seed: u64) -> Option<SamplingDistribution> {
    let log_ratios: Vec<f64> = values.iter().map(|(a, b)| b.ln() - a.ln()).collect();
    SamplingDistribution::of_mean(&log_ratios, seed)
}

const NO_RATIO: &str = "the ratio cannot be computed";

fn log_ratio_of_percentiles(
    a: &BlockHistogram,
    b: &BlockHistogram,
    percentile: f64,
) -> Result<SamplingDistribution, String> {
    ratio::of_percentile(a, b, percentile).map_err(|few| match few {
        TooFew::Values => NO_RATIO.to_owned(),
        TooFew::Independent { a, b, needed } => format!(
            "neighbouring values are correlated: those of A are worth {} independent ones and those of B {}, {needed} are needed for p{percentile}",
            grouped(a as i64),
            grouped(b as i64),
        ),
    })
}

/// The gaps between tokens, if there are enough for an interval.
fn gaps<'a>(side: &str, sample: &'a Sample, percentile: f64) -> Result<&'a BlockHistogram, String> {
    let Some(gaps) = &sample.itl_ns else {
        return Err(format!("{side} has no record of single ITLs; compare whole runs"));
    };
    let (n, needed) = (gaps.n(), values_needed(percentile) as u64);
    match gaps.blocks().len() {
        0 => Err(format!("no request of {side} has more than one token")),
        blocks if blocks < MIN_BLOCKS => {
            Err(format!("{side} has {blocks} requests, {MIN_BLOCKS} are needed"))
        }
        _ if n < needed => Err(format!("{side} has {n} tokens, {needed} are needed")),
        _ => Ok(gaps),
    }
}

/// The data from which a metric is estimated.
enum Observations {
    /// Numerators and denominators of a rate.
    Rates(Vec<(f64, f64)>),
    /// Values in nanoseconds, and the percentile of them.
    Values(Vec<f64>, f64),
}

impl Observations {
    fn len(&self) -> usize {
        match self {
            Observations::Rates(terms) => terms.len(),
            Observations::Values(values, _) => values.len(),
        }
    }

    /// The logarithm of the ratio of `b` to this, or why there is none.
    fn log_ratio_to(&self, b: &Observations, seed: u64) -> Result<SamplingDistribution, String> {
        match (self, b) {
            (Observations::Rates(a), Observations::Rates(b)) => {
                ratio::of_rates(a, b, seed).ok_or_else(|| NO_RATIO.to_owned())
            }
            (Observations::Values(a, percentile), Observations::Values(b, _)) => {
                let blocks = |values: &[f64]| BlockHistogram::of_chunks(values, ratio::block_length(values));
                log_ratio_of_percentiles(&blocks(a), &blocks(b), *percentile)
            }
            _ => Err(NO_RATIO.to_owned()),
        }
    }
}

/// The sample with its decodes in thousands of cycles in place of nanoseconds; `None` if one is not known.
fn in_cycles(sample: &Sample) -> Option<Sample> {
    let requests = sample.requests.iter().map(|request| {
        let decode_ns = (request.decode_mcycles? * 1e3).round() as u64;
        Some(RequestSample { decode_ns, ..*request })
    });
    let requests: Vec<RequestSample> = requests.collect::<Option<_>>()?;
    Some(Sample { requests, itl_ns: None, ..sample.clone() })
}
