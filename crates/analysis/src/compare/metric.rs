//! The metrics that can be compared, by name: their labels and units, and which direction is better.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};
use thiserror::Error;

use llmprof_base::units::{binary_bytes, millis, three_digits};
use llmprof_event::Phase;

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
    /// The share of a server's requests that meet every SLO.
    Goodput,
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
const PLAIN: [(&str, Metric); 6] = [
    ("decode_tok_s", Metric::DecodeTokS),
    ("prefill_tok_s", Metric::PrefillTokS),
    ("goodput", Metric::Goodput),
    ("j_per_token", Metric::JPerToken),
    ("peak_memory", Metric::PeakMemory),
    ("kernels_per_token", Metric::KernelsPerToken),
];

/// The metrics that are compared by default.
pub const DEFAULT_METRICS: [Metric; 12] = [
    Metric::Ttft(Statistic::Mean),
    HEADLINE,
    Metric::Tpot(Statistic::Percentile(90.0)),
    Metric::Itl(Statistic::Percentile(50.0)),
    Metric::Itl(Statistic::Percentile(90.0)),
    Metric::Itl(Statistic::Percentile(99.0)),
    Metric::DecodeTokS,
    Metric::PrefillTokS,
    Metric::Goodput,
    Metric::JPerToken,
    Metric::PeakMemory,
    Metric::KernelsPerToken,
];

/// The metric that decides the verdict of a comparison. A mean finds smaller differences than a median.
pub const HEADLINE: Metric = Metric::Tpot(Statistic::Mean);

impl FromStr for Metric {
    type Err = UnknownMetric;

    /// `tpot.p50`, `itl.p99.9`, `decode_tok_s`; a distribution without a statistic is its mean.
    fn from_str(text: &str) -> Result<Metric, UnknownMetric> {
        let unknown =
            || UnknownMetric { name: text.to_owned(), others: PLAIN.map(|(name, _)| name).join(", ") };
        if let Some((_, metric)) = PLAIN.into_iter().find(|(name, _)| *name == text) {
            return Ok(metric);
        }
        let (name, of) = text.split_once('.').unwrap_or((text, "mean"));
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
            Metric::Goodput => "goodput".to_owned(),
            Metric::JPerToken => "decode energy".to_owned(),
            Metric::PeakMemory => "peak memory".to_owned(),
            Metric::KernelsPerToken => "kernels".to_owned(),
        }
    }

    /// The name within a sentence: "in TPOT", "in decode tok/s".
    pub fn noun(self) -> String {
        match self {
            Metric::Ttft(Statistic::Mean) => "TTFT".to_owned(),
            Metric::Tpot(Statistic::Mean) => "TPOT".to_owned(),
            Metric::Itl(Statistic::Mean) => "ITL".to_owned(),
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
            Metric::Goodput => format!("{:.1} %", 100.0 * value),
            Metric::JPerToken => format!("{} J/token", three_digits(value)),
            Metric::PeakMemory => binary_bytes(value as u64),
            Metric::KernelsPerToken => format!("{} /token", three_digits(value)),
        }
    }

    /// A higher value is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Metric::DecodeTokS | Metric::PrefillTokS | Metric::Goodput)
    }

    /// It is a time or a rate, as opposed to energy, memory or a count.
    pub fn is_speed(self) -> bool {
        !matches!(self, Metric::JPerToken | Metric::PeakMemory | Metric::KernelsPerToken)
    }

    /// The phase it measures; `None` if no clock changes it.
    pub fn phase(self) -> Option<Phase> {
        match self {
            Metric::Ttft(_) | Metric::PrefillTokS => Some(Phase::Prefill),
            Metric::Tpot(_) | Metric::Itl(_) | Metric::DecodeTokS | Metric::JPerToken => Some(Phase::Decode),
            Metric::Goodput | Metric::PeakMemory | Metric::KernelsPerToken => None,
        }
    }

    /// It is a percentile, and computed from buckets.
    pub fn is_percentile(self) -> bool {
        use Statistic::Percentile;
        matches!(self, Metric::Ttft(Percentile(_)) | Metric::Tpot(Percentile(_)) | Metric::Itl(Percentile(_)))
    }

    /// It is counted once in a run, and has no interval.
    pub fn is_count(self) -> bool {
        matches!(self, Metric::PeakMemory | Metric::KernelsPerToken)
    }
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
