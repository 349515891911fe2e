//! The rule that turns a confidence interval into a verdict.

use serde::Serialize;

use crate::interval::ConfidenceInterval;
use llmprof_base::table::Tone;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval is within the margin.
    Same,
    Better,
    Worse,
    Undecided,
}

impl Verdict {
    pub fn tone(self) -> Tone {
        match self {
            Verdict::Same => Tone::Dim,
            Verdict::Better => Tone::Good,
            Verdict::Worse => Tone::Bad,
            Verdict::Undecided => Tone::Warn,
        }
    }

    /// The verdict on the ratio of B to A: an interval within the margin is the same, one on either side of 1 is better or
    /// worse, anything else is undecided. `margin` is a share of A.
    pub fn from_ratio(ratio: ConfidenceInterval, margin: f64, more_is_better: bool) -> Verdict {
        let ConfidenceInterval { low, high, .. } = ratio;
        if !(low.is_finite() && high.is_finite()) {
            Verdict::Undecided
        } else if 1.0 / (1.0 + margin) <= low && high <= 1.0 + margin {
            Verdict::Same
        } else if low <= 1.0 && high >= 1.0 {
            Verdict::Undecided
        } else if (low > 1.0) == more_is_better {
            Verdict::Better
        } else {
            Verdict::Worse
        }
    }
}

/// The sample size on each side that would decide, given an interval from `n`; `None` if it cannot be estimated.
pub fn required_sample_size(ratio: ConfidenceInterval, margin: f64, n: u64) -> Option<u64> {
    // The wider side decides.
    let half_width = (ratio.high / ratio.estimate).ln().max((ratio.estimate / ratio.low).ln());
    let log_ratio = ratio.estimate.ln().abs();
    // The interval either excludes 1, or fits into the margin.
    let required = log_ratio.max((1.0 + margin).ln() - log_ratio);
    let needed = n as f64 * (half_width / required).powi(2) * 1.1;
    (needed.is_finite() && required > 0.0 && needed < 1e6).then(|| (needed.ceil() as u64).max(n + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(low: f64, high: f64) -> ConfidenceInterval {
        ConfidenceInterval { estimate: (low * high).sqrt(), low, high }
    }

    #[test]
    fn an_interval_has_one_verdict() {
        use Verdict::{Better, Same, Undecided, Worse};
        for (low, high, times, rates) in [
            (0.995, 1.005, Same, Same),
            // Significantly slower, but within the margin.
            (1.002, 1.008, Same, Same),
            (1.002, 1.02, Worse, Better),
            (1.05, 1.07, Worse, Better),
            (0.93, 0.95, Better, Worse),
            (0.98, 0.999, Better, Worse),
            (0.98, 1.02, Undecided, Undecided),
            (f64::NAN, f64::NAN, Undecided, Undecided),
        ] {
            let got = (
                Verdict::from_ratio(ratio(low, high), 0.01, false),
                Verdict::from_ratio(ratio(low, high), 0.01, true),
            );
            assert_eq!(got, (times, rates), "{low} to {high}");
        }
    }

    #[test]
    fn the_required_sample_size_is_about_right() {
        let wide = ConfidenceInterval { estimate: 1.0, low: 0.98, high: 1.0204 };
        let needed = required_sample_size(wide, 0.01, 20).unwrap();
        assert!((80..110).contains(&needed), "{needed}");
        assert_eq!(
            required_sample_size(ConfidenceInterval { estimate: 1.0, low: 0.0, high: 2.0 }, 0.01, 20),
            None
        );
    }
}
