//! The yield of speculative decoding.

use std::fmt;

use serde::Serialize;

use llmprof_event::Speculation;

/// The steps of measured requests that could have draft tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SpeculationTally {
    pub steps: u64,
    pub proposed: u64,
    pub accepted: u64,
    /// The tokens of the steps: accepted ones, and one of the model itself per step.
    pub tokens: u64,
}

impl SpeculationTally {
    pub(super) fn add(&mut self, step: Speculation, tokens: u32) {
        self.steps += 1;
        self.proposed += u64::from(step.proposed);
        // A recording may contain anything.
        self.accepted += u64::from(step.accepted.min(step.proposed));
        self.tokens += u64::from(tokens);
    }

    pub fn tokens_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.tokens as f64 / self.steps as f64)
    }

    /// The acceptance rate of draft tokens.
    pub fn acceptance(&self) -> Option<f64> {
        (self.proposed > 0).then(|| self.accepted as f64 / self.proposed as f64)
    }
}

/// `2.41 tokens per step: 47 % of 3.0 draft tokens accepted`.
impl fmt::Display for SpeculationTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(tokens) = self.tokens_per_step() else { return f.write_str("no step yet") };
        write!(f, "{tokens:.2} tokens per step: ")?;
        match self.acceptance() {
            Some(share) => {
                let proposed = self.proposed as f64 / self.steps as f64;
                write!(f, "{:.0} % of {proposed:.1} draft tokens accepted", share * 100.0)
            }
            None => f.write_str("no draft tokens"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_summed_up() {
        let mut tally = SpeculationTally::default();
        assert_eq!(tally.to_string(), "no step yet");
        tally.add(Speculation { proposed: 0, accepted: 0 }, 1);
        assert_eq!(tally.to_string(), "1.00 tokens per step: no draft tokens");
        tally.add(Speculation { proposed: 4, accepted: 3 }, 4);
        tally.add(Speculation { proposed: 4, accepted: 0 }, 1);
        assert_eq!(tally.to_string(), "2.00 tokens per step: 38 % of 2.7 draft tokens accepted");
    }
}
