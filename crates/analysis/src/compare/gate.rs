//! A bound on the change of a metric: `tpot.p50<=+2%`.

use std::{fmt, str::FromStr};

use serde::Serialize;
use thiserror::Error;

use super::{
    comparison::MetricComparison,
    metric::{Metric, UnknownMetric},
};
use llmprof_base::units::ratio_change;

/// A metric, the direction of its bound, and the bound as a share of A.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    pub metric: Metric,
    pub at_most: bool,
    pub change: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GateError {
    #[error("{gate:?}: no <= or >=; a gate is METRIC<=+N% or METRIC>=-N%, for example tpot.p50<=+2%")]
    NoSign { gate: String },
    #[error("{gate:?}: {source}")]
    Metric { gate: String, source: UnknownMetric },
    #[error(
        "{gate:?}, at character {position}: {found:?} is not a change in percent, for example +2% or -5%"
    )]
    Change { gate: String, position: usize, found: String },
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Gate, GateError> {
        let gate = || text.to_owned();
        let sign =
            text.find("<=").or_else(|| text.find(">=")).ok_or_else(|| GateError::NoSign { gate: gate() })?;
        let (name, rest) = text.split_at(sign);
        let metric = name.trim().parse().map_err(|source| GateError::Metric { gate: gate(), source })?;
        let change = &rest[2..];
        let wrong = || GateError::Change {
            gate: gate(),
            position: text[..sign + 2].chars().count() + 1,
            found: change.trim().to_owned(),
        };
        let number = change.trim().strip_suffix('%').ok_or_else(wrong)?.trim_end();
        let digits = number.strip_prefix(['+', '-']).unwrap_or(number);
        let plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
        let percent: f64 = number.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
        // A value cannot fall by more than 100 %.
        if !(-100.0..=1e6).contains(&percent) {
            return Err(wrong());
        }
        Ok(Gate { metric, at_most: rest.starts_with('<'), change: rounded(percent) / 100.0 })
    }
}

/// Rounded to the digits of a gate, so that its text parses as the same share.
fn rounded(percent: f64) -> f64 {
    (percent * 1e9).round() / 1e9
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = rounded(self.change * 100.0);
        write!(f, "{}{}{percent:+}%", self.metric, if self.at_most { "<=" } else { ">=" })
    }
}

/// The result of a gate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "reason")]
pub enum GateOutcome {
    /// The whole interval is within the bound.
    Held,
    /// The whole interval is beyond the bound.
    Broken,
    Undecided(String),
}

impl fmt::Display for GateOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GateOutcome::Held => f.write_str("held"),
            GateOutcome::Broken => f.write_str("BROKEN"),
            GateOutcome::Undecided(reason) => write!(f, "UNDECIDED: {reason}"),
        }
    }
}

impl Gate {
    /// Applies the gate to the row of its metric.
    pub fn check(&self, row: &MetricComparison) -> GateOutcome {
        let (Some(code), false) = (row.code, row.blocked) else {
            let reason = row.reason.clone().unwrap_or_else(|| "the metric was not measured".to_owned());
            return GateOutcome::Undecided(reason);
        };
        let bound = 1.0 + self.change;
        let (held, broken) = match self.at_most {
            true => (code.high <= bound, code.low > bound),
            false => (code.low >= bound, code.high < bound),
        };
        match (held, broken) {
            (true, _) => GateOutcome::Held,
            (_, true) => GateOutcome::Broken,
            _ => {
                let between = format!(
                    "the change is between {} and {}",
                    ratio_change(code.low),
                    ratio_change(code.high)
                );
                // Without a cause, the reason is about the margin only.
                let reason = row.reason.as_ref().filter(|_| row.cause.is_some());
                GateOutcome::Undecided(
                    reason.map_or_else(|| between.clone(), |why| format!("{between}; {why}")),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gates_are_parsed_and_errors_name_the_position() {
        let gate: Gate = "tpot.p50<=+2%".parse().unwrap();
        assert_eq!((gate.metric.to_string().as_str(), gate.at_most, gate.change), ("tpot.p50", true, 0.02));
        let gate: Gate = " decode_tok_s >= -2.5 % ".parse().unwrap();
        assert_eq!((gate.at_most, gate.change), (false, -0.025));
        let gate: Gate = "tpot<=.0111111111111%".parse().unwrap();
        assert_eq!(gate.to_string().parse(), Ok(gate), "more digits than are written");
        for (bad, word) in [
            ("tpot.p50", "no <= or >="),
            ("tpot.p50<+2%", "no <= or >="),
            ("tpto<=2%", "no metric \"tpto\""),
            ("tpot<=2", "at character 7"),
            ("tpot<=two%", "at character 7: \"two%\""),
            ("tpot<=%", "at character 7"),
            ("tpot<=nan%", "at character 7"),
            ("tpot<=-200%", "is not a change in percent"),
            ("<=2%", "no metric \"\""),
        ] {
            let error = bad.parse::<Gate>().unwrap_err().to_string();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_gate_or_is_refused(text in "\\PC{0,30}") {
            if let Ok(gate) = text.parse::<Gate>() {
                prop_assert_eq!(gate.to_string().parse::<Gate>(), Ok(gate));
            }
        }

        #[test]
        fn what_is_written_reads_back(percent in -100i32..1000, tenths in 0u8..10, at_most: bool) {
            let sign = if at_most { "<=" } else { ">=" };
            let gate: Gate = format!("itl.p99{sign}{percent}.{tenths}%").parse().unwrap_or(Gate {
                metric: "itl.p99".parse().unwrap(), at_most, change: 0.0,
            });
            prop_assert_eq!(gate.to_string().parse::<Gate>(), Ok(gate));
        }
    }
}
