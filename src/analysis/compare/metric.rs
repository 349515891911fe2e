//! The metrics that can be compared, by name: how each is computed from a sample, and which direction is better.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};
use thiserror::Error;

use super::{
    blocks::BlockHistogram,
    ratio::{self, MIN_BLOCKS, values_needed},
    sample::{RequestSample, Sample},
};
use crate::{
    analysis::{
        distribution::samples_needed,
        interval::{ConfidenceInterval, MIN_VALUES},
    },
    base::units::{bytes, millis, three_digits},
    event::Phase,
};

/// A statistic of a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statistic {
    Mean,
    Percentile(f64),
}

/// A number that is measured in a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Metric {
    Ttft(Statistic),
    Tpot(Statistic),
    Itl(Statistic),
    DecodeTokS,
    PrefillTokS,
    JPerToken,
    PeakMemory,
    KernelsPerToken,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no metric {name:?}; metrics are ttft, tpot and itl (each with .mean, .p50, .p90, .p99), {others}")]
pub struct UnknownMetric {
    pub name: String,
    pub others: String,
}

/// Metrics without a distribution.
const PLAIN: [(&str, Metric); 5] = [
    ("decode_tok_s", Metric::DecodeTokS),
    ("prefill_tok_s", Metric::PrefillTokS),
    ("j_per_token", Metric::JPerToken),
    ("peak_memory", Metric::PeakMemory),
    ("kernels_per_token", Metric::KernelsPerToken),
];

/// What is compared by default.
pub const DEFAULT_METRICS: [Metric; 11] = [
    Metric::Ttft(Statistic::Percentile(50.0)),
    Metric::Tpot(Statistic::Percentile(50.0)),
    Metric::Tpot(Statistic::Percentile(90.0)),
    Metric::Itl(Statistic::Percentile(50.0)),
    Metric::Itl(Statistic::Percentile(90.0)),
    Metric::Itl(Statistic::Percentile(99.0)),
    Metric::DecodeTokS,
    Metric::PrefillTokS,
    Metric::JPerToken,
    Metric::PeakMemory,
    Metric::KernelsPerToken,
];

/// The metric that decides the verdict of a comparison.
pub const HEADLINE: Metric = Metric::Tpot(Statistic::Percentile(50.0));

impl FromStr for Metric {
    type Err = UnknownMetric;

    /// `tpot.p50`, `itl.p99.9`, `decode_tok_s`; a distribution alone is its median.
    fn from_str(text: &str) -> Result<Metric, UnknownMetric> {
        let unknown =
            || UnknownMetric { name: text.to_owned(), others: PLAIN.map(|(name, _)| name).join(", ") };
        if let Some((_, metric)) = PLAIN.into_iter().find(|(name, _)| *name == text) {
            return Ok(metric);
        }
        let (name, of) = text.split_once('.').unwrap_or((text, "p50"));
        let of = match of.strip_prefix('p') {
            _ if of == "mean" => Statistic::Mean,
            Some(number) if number.starts_with(|c: char| c.is_ascii_digit()) => {
                let percentile =
                    number.parse().ok().filter(|percentile: &f64| (1.0..=99.9).contains(percentile));
                Statistic::Percentile(percentile.ok_or_else(unknown)?)
            }
            _ => return Err(unknown()),
        };
        match name {
            "ttft" => Ok(Metric::Ttft(of)),
            "tpot" => Ok(Metric::Tpot(of)),
            "itl" => Ok(Metric::Itl(of)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statistic::Mean => f.write_str("mean"),
            Statistic::Percentile(percentile) => write!(f, "p{percentile}"),
        }
    }
}

impl fmt::Display for Metric {
    /// The name in gates and `--metric`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Metric::Ttft(of) => write!(f, "ttft.{of}"),
            Metric::Tpot(of) => write!(f, "tpot.{of}"),
            Metric::Itl(of) => write!(f, "itl.{of}"),
            plain => {
                let name = PLAIN.iter().find(|(_, metric)| metric == plain).map_or("", |(name, _)| name);
                f.write_str(name)
            }
        }
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Metric {
    /// The label of a table row.
    pub fn label(self) -> String {
        match self {
            Metric::Ttft(of) => format!("TTFT {of}"),
            Metric::Tpot(of) => format!("TPOT {of}"),
            Metric::Itl(of) => format!("ITL {of}"),
            Metric::DecodeTokS => "decode".to_owned(),
            Metric::PrefillTokS => "prefill".to_owned(),
            Metric::JPerToken => "energy".to_owned(),
            Metric::PeakMemory => "peak memory".to_owned(),
            Metric::KernelsPerToken => "kernels".to_owned(),
        }
    }

    /// The name within a sentence: "in TPOT", "in decode tok/s".
    pub fn noun(self) -> String {
        match self {
            Metric::Ttft(Statistic::Percentile(50.0)) => "TTFT".to_owned(),
            Metric::Tpot(Statistic::Percentile(50.0)) => "TPOT".to_owned(),
            Metric::Itl(Statistic::Percentile(50.0)) => "ITL".to_owned(),
            Metric::DecodeTokS => "decode tok/s".to_owned(),
            Metric::PrefillTokS => "prefill tok/s".to_owned(),
            Metric::JPerToken => "energy per token".to_owned(),
            Metric::KernelsPerToken => "kernels per token".to_owned(),
            other => other.label(),
        }
    }

    /// A value with its unit.
    pub fn format_value(self, value: f64) -> String {
        match self {
            Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => millis(value),
            Metric::DecodeTokS | Metric::PrefillTokS => format!("{} tok/s", three_digits(value)),
            Metric::JPerToken => format!("{} J/token", three_digits(value)),
            Metric::PeakMemory => bytes(value as u64),
            Metric::KernelsPerToken => format!("{} /token", three_digits(value)),
        }
    }

    /// A higher value is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Metric::DecodeTokS | Metric::PrefillTokS)
    }

    /// It is a time or a rate, as opposed to energy, memory or a count.
    pub fn is_speed(self) -> bool {
        !matches!(self, Metric::JPerToken | Metric::PeakMemory | Metric::KernelsPerToken)
    }

    /// The phase it measures; `None` where no clock changes it.
    pub fn phase(self) -> Option<Phase> {
        match self {
            Metric::Ttft(_) | Metric::PrefillTokS => Some(Phase::Prefill),
            Metric::Tpot(_) | Metric::Itl(_) | Metric::DecodeTokS | Metric::JPerToken => Some(Phase::Decode),
            Metric::PeakMemory | Metric::KernelsPerToken => None,
        }
    }

    /// It is counted once in a run, and has no interval.
    pub fn is_count(self) -> bool {
        matches!(self, Metric::PeakMemory | Metric::KernelsPerToken)
    }

    /// The value in a sample, in its unit (times in milliseconds); `None` where there are too few values for it.
    pub fn value(self, sample: &Sample) -> Option<f64> {
        let value = match self {
            Metric::PeakMemory => sample.peak_mem_bytes? as f64,
            Metric::KernelsPerToken => sample.decode.as_ref()?.launches_per_step()?,
            Metric::Itl(Statistic::Percentile(percentile)) => {
                let gaps = sample.itl_ns.as_ref()?;
                let enough = gaps.n() >= samples_needed(percentile);
                ratio::percentile_of(gaps, percentile).filter(|_| enough)? / 1e6
            }
            _ => match self.observations(sample)? {
                Observations::Rates(terms) => {
                    let (numerator, denominator) = ratio::sums(&terms);
                    numerator / denominator * self.scale()
                }
                Observations::Values(values, percentile) => {
                    let enough = values.len() as u64 >= samples_needed(percentile);
                    let histogram = BlockHistogram::of_chunks(&values, 1);
                    ratio::percentile_of(&histogram, percentile).filter(|_| enough)? / 1e6
                }
            },
        };
        Some(value).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// The factor from observations to the unit of the metric.
    fn scale(self) -> f64 {
        match self {
            Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => 1e-6,
            Metric::DecodeTokS | Metric::PrefillTokS => 1e9,
            _ => 1.0,
        }
    }

    /// The observations of a sample, one for each request.
    fn observations(self, sample: &Sample) -> Option<Observations> {
        let requests = &sample.requests;
        let term = |numerator: f64, denominator: f64| {
            (numerator > 0.0 && denominator > 0.0).then_some((numerator, denominator))
        };
        let rates = |of: &dyn Fn(&RequestSample) -> Option<(f64, f64)>| {
            Observations::Rates(requests.iter().filter_map(of).collect())
        };
        let values = |values: Vec<f64>, statistic: Statistic| match statistic {
            Statistic::Mean => Observations::Rates(values.into_iter().map(|value| (value, 1.0)).collect()),
            Statistic::Percentile(percentile) => Observations::Values(values, percentile),
        };
        let tokens = |r: &RequestSample| f64::from(r.steps) * f64::from(r.batch);
        Some(match self {
            Metric::Ttft(of) => values(requests.iter().map(|r| r.ttft_ns as f64).collect(), of),
            Metric::Tpot(of) => values(sample.tpots_ns(), of),
            Metric::Itl(Statistic::Mean) => rates(&|r| term(r.decode_ns as f64, f64::from(r.steps))),
            Metric::DecodeTokS => rates(&|r| term(tokens(r), r.decode_ns as f64)),
            Metric::PrefillTokS => {
                rates(&|r| term(f64::from(r.prompt_tokens) * f64::from(r.batch), r.ttft_ns as f64))
            }
            Metric::JPerToken => rates(&|r| term(r.decode_j?, tokens(r))),
            Metric::Itl(Statistic::Percentile(_)) | Metric::PeakMemory | Metric::KernelsPerToken => {
                return None;
            }
        })
    }

    /// B over A with its interval, or why there is none.
    pub fn ratio(self, a: &Sample, b: &Sample, seed: u64) -> Result<ConfidenceInterval, String> {
        if self.is_count() {
            let (a, b) = (self.counted("A", a)?, self.counted("B", b)?);
            return Ok(ConfidenceInterval::exact(b / a));
        }
        let ratio = match (self, self.observations(a), self.observations(b)) {
            (Metric::Itl(Statistic::Percentile(percentile)), ..) => {
                ratio::of_percentile(gaps("A", a, percentile)?, gaps("B", b, percentile)?, percentile, seed)
            }
            (_, Some(of_a), Some(of_b)) => {
                self.check_sample_size("A", a, &of_a)?;
                self.check_sample_size("B", b, &of_b)?;
                of_a.ratio_to(&of_b, seed)
            }
            _ => None,
        };
        ratio.ok_or_else(|| "the ratio cannot be computed".to_owned())
    }

    /// The same in cycles of the SM clock: from the cycles of each request where they are known, else from the clock of the
    /// phase. `None` where no clock is known, or the metric is not a time.
    pub fn cycles_ratio(
        self,
        a: &Sample,
        b: &Sample,
        in_time: ConfidenceInterval,
        seed: u64,
    ) -> Option<ConfidenceInterval> {
        let by_phase = |a_mhz: Option<f64>, b_mhz: Option<f64>| {
            let clocks = b_mhz? / a_mhz?;
            Some(in_time.map(|time| if self.more_is_better() { time / clocks } else { time * clocks }))
        };
        match self {
            Metric::JPerToken | Metric::PeakMemory | Metric::KernelsPerToken => None,
            Metric::Ttft(_) | Metric::PrefillTokS => {
                by_phase(a.clocks.prefill_sm_mhz, b.clocks.prefill_sm_mhz)
            }
            Metric::Tpot(_) | Metric::DecodeTokS | Metric::Itl(Statistic::Mean) => {
                let by_request = in_cycles(a)
                    .zip(in_cycles(b))
                    .and_then(|(a, b)| self.observations(&a)?.ratio_to(&self.observations(&b)?, seed));
                by_request.or_else(|| by_phase(a.clocks.decode_sm_mhz, b.clocks.decode_sm_mhz))
            }
            Metric::Itl(Statistic::Percentile(_)) => by_phase(a.clocks.decode_sm_mhz, b.clocks.decode_sm_mhz),
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
        let (n, needed) = match of {
            Observations::Rates(terms) => (terms.len(), MIN_VALUES),
            Observations::Values(values, percentile) => (values.len(), values_needed(*percentile)),
        };
        match (n, sample.measured) {
            (_, 0) => Err(format!("{side} has no completed request")),
            (0, _) if self == Metric::JPerToken => Err(format!("the power of {side} was not sampled")),
            (0, _) => Err(format!("no request of {side} has more than one token")),
            (n, _) if n < needed => Err(format!("{side} has {n} requests, {needed} are needed")),
            _ => Ok(()),
        }
    }
}

/// The gaps between tokens, where there are enough for an interval.
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

/// What a metric is estimated from.
enum Observations {
    /// Numerators and denominators of a rate.
    Rates(Vec<(f64, f64)>),
    /// Values in nanoseconds, and the percentile of them.
    Values(Vec<f64>, f64),
}

impl Observations {
    /// The ratio of `b` to this, with its interval.
    fn ratio_to(&self, b: &Observations, seed: u64) -> Option<ConfidenceInterval> {
        match (self, b) {
            (Observations::Rates(a), Observations::Rates(b)) => ratio::of_rates(a, b, seed),
            (Observations::Values(a, percentile), Observations::Values(b, _)) => {
                let blocks = |values: &[f64]| BlockHistogram::of_chunks(values, ratio::block_length(values));
                ratio::of_percentile(&blocks(a), &blocks(b), *percentile, seed)
            }
            _ => None,
        }
    }
}

/// The sample with its decodes in thousands of cycles in place of nanoseconds; `None` where one is not known.
fn in_cycles(sample: &Sample) -> Option<Sample> {
    let requests = sample.requests.iter().map(|request| {
        let decode_ns = (request.decode_mcycles? * 1e3).round() as u64;
        Some(RequestSample { decode_ns, ..*request })
    });
    let requests: Vec<RequestSample> = requests.collect::<Option<_>>()?;
    Some(Sample { requests, itl_ns: None, ..sample.clone() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_parse_as_their_metric() {
        for metric in DEFAULT_METRICS {
            assert_eq!(metric.to_string().parse::<Metric>(), Ok(metric));
        }
        assert_eq!("tpot".parse::<Metric>(), Ok(HEADLINE));
        assert_eq!("itl.p99.9".parse::<Metric>(), Ok(Metric::Itl(Statistic::Percentile(99.9))));
        assert_eq!("ttft.mean".parse::<Metric>(), Ok(Metric::Ttft(Statistic::Mean)));
        for bad in ["", "tpto", "tpot.", "tpot.p", "tpot.p0", "tpot.p100", "tpot.pNaN", "tpot.p+5", "itl.max"]
        {
            let error = bad.parse::<Metric>().unwrap_err();
            assert!(error.to_string().contains("decode_tok_s"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_metric_or_is_refused(text in "\\PC{0,20}") {
            if let Ok(metric) = text.parse::<Metric>() {
                prop_assert_eq!(metric.to_string().parse::<Metric>(), Ok(metric));
            }
        }
    }
}
