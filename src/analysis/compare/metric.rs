//! What can be held against each other, by name: how it is drawn from a sample, and which way is better.

use std::{fmt, str::FromStr};

use thiserror::Error;

use super::{
    blocks::Blocks,
    ratio::{self, LEAST_BLOCKS, LEAST_VALUES, values_needed},
    sample::{RequestSample, Sample},
};
use crate::{
    analysis::interval::Interval,
    base::units::{bytes, millis, three_digits},
};

/// What of a distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Of {
    Mean,
    Percentile(f64),
}

/// A number that a run has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Metric {
    Ttft(Of),
    Tpot(Of),
    Itl(Of),
    DecodeTokS,
    PrefillTokS,
    JPerToken,
    PeakMemory,
    KernelsPerToken,
}

/// The work that decides a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    Prefill,
    Decode,
    /// No clock changes it.
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no metric {asked:?}; there are ttft, tpot and itl (each with .mean, .p50, .p90, .p99), {others}")]
pub struct UnknownMetric {
    pub asked: String,
    pub others: String,
}

/// Those without a distribution.
const PLAIN: [(&str, Metric); 5] = [
    ("decode_tok_s", Metric::DecodeTokS),
    ("prefill_tok_s", Metric::PrefillTokS),
    ("j_per_token", Metric::JPerToken),
    ("peak_memory", Metric::PeakMemory),
    ("kernels_per_token", Metric::KernelsPerToken),
];

/// What is compared unless something else is asked for. The second one is the headline.
pub const USUAL: [Metric; 11] = [
    Metric::Ttft(Of::Percentile(50.0)),
    Metric::Tpot(Of::Percentile(50.0)),
    Metric::Tpot(Of::Percentile(90.0)),
    Metric::Itl(Of::Percentile(50.0)),
    Metric::Itl(Of::Percentile(90.0)),
    Metric::Itl(Of::Percentile(99.0)),
    Metric::DecodeTokS,
    Metric::PrefillTokS,
    Metric::JPerToken,
    Metric::PeakMemory,
    Metric::KernelsPerToken,
];

pub const HEADLINE: Metric = Metric::Tpot(Of::Percentile(50.0));

impl FromStr for Metric {
    type Err = UnknownMetric;

    /// `tpot.p50`, `itl.p99.9`, `decode_tok_s`; a distribution alone means its median.
    fn from_str(text: &str) -> Result<Metric, UnknownMetric> {
        let unknown =
            || UnknownMetric { asked: text.to_owned(), others: PLAIN.map(|(name, _)| name).join(", ") };
        if let Some((_, metric)) = PLAIN.into_iter().find(|(name, _)| *name == text) {
            return Ok(metric);
        }
        let (name, of) = text.split_once('.').unwrap_or((text, "p50"));
        let of = match of.strip_prefix('p') {
            _ if of == "mean" => Of::Mean,
            Some(number) if number.starts_with(|c: char| c.is_ascii_digit()) => {
                let percentile: f64 = number.parse().map_err(|_| unknown())?;
                Of::Percentile(percentile).checked().ok_or_else(unknown)?
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

impl Of {
    fn checked(self) -> Option<Of> {
        matches!(self, Of::Percentile(percentile) if (1.0..=99.9).contains(&percentile)).then_some(self)
    }
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Of::Mean => f.write_str("mean"),
            Of::Percentile(percentile) => write!(f, "p{percentile}"),
        }
    }
}

impl fmt::Display for Metric {
    /// As gates and `--metric` name it.
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

impl Metric {
    /// As a person reads it.
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

    /// The word for a sentence: "in TPOT", "in decode tok/s".
    pub fn noun(self) -> String {
        match self {
            Metric::Ttft(Of::Percentile(50.0)) => "TTFT".to_owned(),
            Metric::Tpot(Of::Percentile(50.0)) => "TPOT".to_owned(),
            Metric::Itl(Of::Percentile(50.0)) => "ITL".to_owned(),
            Metric::DecodeTokS => "decode tok/s".to_owned(),
            Metric::PrefillTokS => "prefill tok/s".to_owned(),
            Metric::JPerToken => "energy a token".to_owned(),
            Metric::KernelsPerToken => "kernels a token".to_owned(),
            other => other.label(),
        }
    }

    /// A value with its unit.
    pub fn shown(self, value: f64) -> String {
        match self {
            Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => millis(value),
            Metric::DecodeTokS | Metric::PrefillTokS => format!("{} tok/s", three_digits(value)),
            Metric::JPerToken => format!("{} J/token", three_digits(value)),
            Metric::PeakMemory => bytes(value as u64),
            Metric::KernelsPerToken => format!("{} /token", three_digits(value)),
        }
    }

    /// A greater value is the better one.
    pub fn more_is_better(self) -> bool {
        matches!(self, Metric::DecodeTokS | Metric::PrefillTokS)
    }

    /// It tells of time: such a metric is never drawn from a run under a tool.
    pub fn is_speed(self) -> bool {
        !matches!(self, Metric::JPerToken | Metric::PeakMemory | Metric::KernelsPerToken)
    }

    pub fn bound(self) -> Bound {
        match self {
            Metric::Ttft(_) | Metric::PrefillTokS => Bound::Prefill,
            Metric::Tpot(_) | Metric::Itl(_) | Metric::DecodeTokS | Metric::JPerToken => Bound::Decode,
            Metric::PeakMemory | Metric::KernelsPerToken => Bound::Nothing,
        }
    }

    /// It is counted once a run, not measured over and over.
    pub fn is_count(self) -> bool {
        matches!(self, Metric::PeakMemory | Metric::KernelsPerToken)
    }

    /// The value in a sample, in its unit (times in milliseconds); `None` where there is too little for it.
    pub fn value(self, sample: &Sample) -> Option<f64> {
        let value = match self {
            Metric::PeakMemory => sample.peak_mem_bytes? as f64,
            Metric::KernelsPerToken => sample.decode.as_ref()?.launches_per_step()?,
            Metric::Itl(Of::Percentile(percentile)) => {
                let gaps = sample.itl_ns.as_ref()?;
                let enough = gaps.n() >= crate::analysis::distribution::samples_needed(percentile);
                ratio::percentile_of(gaps, percentile).filter(|_| enough)? / 1e6
            }
            _ => match self.drawn(sample)? {
                Drawn::Shares(shares) => {
                    let (above, below) = shares.iter().fold((0.0, 0.0), |s, v| (s.0 + v.0, s.1 + v.1));
                    above / below * self.scale()
                }
                Drawn::Values(values, percentile) => {
                    let enough =
                        values.len() as u64 >= crate::analysis::distribution::samples_needed(percentile);
                    ratio::percentile_of(&Blocks::of_chunks(&values, 1), percentile).filter(|_| enough)? / 1e6
                }
            },
        };
        Some(value).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// From what is drawn to the unit that is shown.
    fn scale(self) -> f64 {
        match self {
            Metric::Ttft(_) | Metric::Tpot(_) | Metric::Itl(_) => 1e-6,
            Metric::DecodeTokS | Metric::PrefillTokS => 1e9,
            _ => 1.0,
        }
    }

    /// What a sample has of it, request by request.
    fn drawn(self, sample: &Sample) -> Option<Drawn> {
        let requests = &sample.requests;
        let share = |above: f64, below: f64| (above > 0.0 && below > 0.0).then_some((above, below));
        let shares = |of: &dyn Fn(&RequestSample) -> Option<(f64, f64)>| {
            Drawn::Shares(requests.iter().filter_map(of).collect())
        };
        let with = |values: Vec<f64>, of: Of| match of {
            Of::Mean => Drawn::Shares(values.into_iter().map(|value| (value, 1.0)).collect()),
            Of::Percentile(percentile) => Drawn::Values(values, percentile),
        };
        let drawn = match self {
            Metric::Ttft(of) => with(requests.iter().map(|r| r.ttft_ns as f64).collect(), of),
            Metric::Tpot(of) => with(sample.tpots_ns(), of),
            Metric::Itl(Of::Mean) => shares(&|r| share(r.decode_ns as f64, f64::from(r.steps))),
            Metric::DecodeTokS => {
                shares(&|r| share(f64::from(r.steps) * f64::from(r.batch), r.decode_ns as f64))
            }
            Metric::PrefillTokS => {
                shares(&|r| share(f64::from(r.prompt_tokens) * f64::from(r.batch), r.ttft_ns as f64))
            }
            Metric::JPerToken => shares(&|r| share(r.decode_j?, f64::from(r.steps) * f64::from(r.batch))),
            Metric::Itl(Of::Percentile(_)) | Metric::PeakMemory | Metric::KernelsPerToken => return None,
        };
        Some(drawn)
    }

    /// B over A with its interval, or why there is none.
    pub fn ratio(self, a: &Sample, b: &Sample, seed: u64) -> Result<Interval, String> {
        if self.is_count() {
            let (x, y) = (self.counted("A", a)?, self.counted("B", b)?);
            return Ok(Interval { estimate: y / x, low: y / x, high: y / x });
        }
        if let Metric::Itl(Of::Percentile(percentile)) = self {
            let gaps = |side: &str, sample: &Sample| match &sample.itl_ns {
                None => Err(format!("{side} keeps no single gaps between tokens; compare the whole runs")),
                Some(gaps) => enough_gaps(side, gaps, percentile).map(|()| gaps.clone()),
            };
            let (a, b) = (gaps("A", a)?, gaps("B", b)?);
            return ratio::of_percentile(&a, &b, percentile, seed)
                .ok_or_else(|| "no ratio can be told".into());
        }
        let (x, y) = (self.drawn(a), self.drawn(b));
        let (Some(x), Some(y)) = (x, y) else { return Err("no ratio can be told".to_owned()) };
        self.enough("A", a, &x)?;
        self.enough("B", b, &y)?;
        ratio_of(&x, &y, seed).ok_or_else(|| "no ratio can be told".to_owned())
    }

    /// The same in cycles of the SM clock: request by request where its cycles are known, else by the clock of the
    /// phase. `None` where no clock is known, or cycles mean nothing.
    pub fn cycles_ratio(self, a: &Sample, b: &Sample, in_time: Interval, seed: u64) -> Option<Interval> {
        let by_phase = |x: Option<f64>, y: Option<f64>| {
            let clocks = y? / x?;
            Some(in_time.map(|time| if self.more_is_better() { time / clocks } else { time * clocks }))
        };
        match self {
            Metric::JPerToken | Metric::PeakMemory | Metric::KernelsPerToken => None,
            Metric::Ttft(_) | Metric::PrefillTokS => {
                by_phase(a.clocks.prefill_sm_mhz, b.clocks.prefill_sm_mhz)
            }
            Metric::Tpot(_) | Metric::DecodeTokS | Metric::Itl(Of::Mean) => {
                let (x, y) = (cycles_of(a), cycles_of(b));
                let drawn = x.zip(y).and_then(|(x, y)| ratio_of(&self.drawn(&x)?, &self.drawn(&y)?, seed));
                drawn.or_else(|| by_phase(a.clocks.decode_sm_mhz, b.clocks.decode_sm_mhz))
            }
            Metric::Itl(Of::Percentile(_)) => by_phase(a.clocks.decode_sm_mhz, b.clocks.decode_sm_mhz),
        }
    }

    fn counted(self, side: &str, sample: &Sample) -> Result<f64, String> {
        self.value(sample).ok_or_else(|| match self {
            Metric::KernelsPerToken => format!("the kernels of {side} were not recorded"),
            _ => format!("the memory of {side} was not read"),
        })
    }

    /// Whether a side has enough for an interval.
    fn enough(self, side: &str, sample: &Sample, drawn: &Drawn) -> Result<(), String> {
        let (n, needed) = match drawn {
            Drawn::Shares(shares) => (shares.len(), LEAST_VALUES),
            Drawn::Values(values, percentile) => (values.len(), values_needed(*percentile)),
        };
        match (n, sample.measured) {
            (_, 0) => Err(format!("{side} has no completed request")),
            (0, _) if self == Metric::JPerToken => Err(format!("the power of {side} was not read")),
            (0, _) => Err(format!("no request of {side} has more than one token")),
            (n, _) if n < needed => Err(format!("{side} has {n} requests, {needed} are needed")),
            _ => Ok(()),
        }
    }
}

fn enough_gaps(side: &str, gaps: &Blocks, percentile: f64) -> Result<(), String> {
    let (n, needed) = (gaps.n(), values_needed(percentile) as u64);
    match gaps.blocks().len() {
        0 => Err(format!("no request of {side} has more than one token")),
        blocks if blocks < LEAST_BLOCKS => {
            Err(format!("{side} has {blocks} requests, {LEAST_BLOCKS} are needed"))
        }
        _ if n < needed => Err(format!("{side} has {n} tokens, {needed} are needed")),
        _ => Ok(()),
    }
}

/// What an interval is drawn from.
enum Drawn {
    /// Parts of a ratio of sums.
    Shares(Vec<(f64, f64)>),
    /// Values in nanoseconds, and the percentile of them.
    Values(Vec<f64>, f64),
}

fn ratio_of(a: &Drawn, b: &Drawn, seed: u64) -> Option<Interval> {
    match (a, b) {
        (Drawn::Shares(a), Drawn::Shares(b)) => ratio::of_sums(a, b, seed),
        (Drawn::Values(a, percentile), Drawn::Values(b, _)) => {
            let blocks = |values: &[f64]| Blocks::of_chunks(values, ratio::block_length(values));
            ratio::of_percentile(&blocks(a), &blocks(b), *percentile, seed)
        }
        _ => None,
    }
}

/// The sample with its decodes in thousands of cycles in place of nanoseconds; `None` where one is not known.
fn cycles_of(sample: &Sample) -> Option<Sample> {
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
    fn names_read_back() {
        for metric in USUAL {
            assert_eq!(metric.to_string().parse::<Metric>(), Ok(metric));
        }
        assert_eq!("tpot".parse::<Metric>(), Ok(HEADLINE));
        assert_eq!("itl.p99.9".parse::<Metric>(), Ok(Metric::Itl(Of::Percentile(99.9))));
        assert_eq!("ttft.mean".parse::<Metric>(), Ok(Metric::Ttft(Of::Mean)));
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
