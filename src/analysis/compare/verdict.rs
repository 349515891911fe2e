//! The rule from an interval to a verdict.

use serde::Serialize;

use crate::analysis::interval::Interval;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Within the margin, for sure.
    Same,
    Better,
    Worse,
    Undecided,
}

/// What the interval of B over A says: wholly within the margin is the same, wholly on one side of 1 is better or
/// worse, anything else is undecided. `margin` is a share of A.
pub fn judged(ratio: Interval, margin: f64, more_is_better: bool) -> Verdict {
    let within = 1.0 / (1.0 + margin) <= ratio.low && ratio.high <= 1.0 + margin;
    match () {
        () if !(ratio.low.is_finite() && ratio.high.is_finite()) => Verdict::Undecided,
        () if within => Verdict::Same,
        () if ratio.low > 1.0 => {
            if more_is_better {
                Verdict::Better
            } else {
                Verdict::Worse
            }
        }
        () if ratio.high < 1.0 => {
            if more_is_better {
                Verdict::Worse
            } else {
                Verdict::Better
            }
        }
        () => Verdict::Undecided,
    }
}

/// About how many requests on each side would decide, given the `n` there are; `None` where that can't be told.
pub fn requests_to_decide(ratio: Interval, margin: f64, n: u64) -> Option<u64> {
    // The wider side decides.
    let half = (ratio.high / ratio.estimate).ln().max((ratio.estimate / ratio.low).ln());
    let off = ratio.estimate.ln().abs();
    // Either the interval leaves 1 behind, or it fits into the margin.
    let room = off.max((1.0 + margin).ln() - off);
    let needed = n as f64 * (half / room).powi(2) * 1.1;
    (needed.is_finite() && room > 0.0 && needed < 1e6).then(|| (needed.ceil() as u64).max(n + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(low: f64, high: f64) -> Interval {
        Interval { estimate: (low * high).sqrt(), low, high }
    }

    #[test]
    fn an_interval_has_one_verdict() {
        use Verdict::{Better, Same, Undecided, Worse};
        for (low, high, times, rates) in [
            (0.995, 1.005, Same, Same),
            // Surely slower, but by less than matters.
            (1.002, 1.008, Same, Same),
            (1.002, 1.02, Worse, Better),
            (1.05, 1.07, Worse, Better),
            (0.93, 0.95, Better, Worse),
            (0.98, 0.999, Better, Worse),
            (0.98, 1.02, Undecided, Undecided),
            (f64::NAN, f64::NAN, Undecided, Undecided),
        ] {
            let got = (judged(ratio(low, high), 0.01, false), judged(ratio(low, high), 0.01, true));
            assert_eq!(got, (times, rates), "{low} to {high}");
        }
    }

    #[test]
    fn what_would_decide_is_about_right() {
        let wide = Interval { estimate: 1.0, low: 0.98, high: 1.0204 };
        let needed = requests_to_decide(wide, 0.01, 20).unwrap();
        assert!((80..110).contains(&needed), "{needed}");
        assert_eq!(requests_to_decide(Interval { estimate: 1.0, low: 0.0, high: 2.0 }, 0.01, 20), None);
    }
}
