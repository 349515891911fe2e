//! Energy per phase and token, and how far it can be trusted.

use serde::Serialize;

use super::throttle::{Ledger, Work};
use crate::base::units::three_digits;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Energy {
    /// How it was measured.
    pub method: String,
    /// What may be wrong with it.
    pub uncertainty: String,
    pub phases: Vec<PhaseEnergy>,
}

/// The card's energy in one kind of work, warm-up included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseEnergy {
    pub phase: &'static str,
    pub joules: f64,
    pub mean_w: Option<f64>,
    /// Tokens of the prompts in a prefill, tokens that came out in a decode.
    pub tokens: u64,
    pub j_per_token: Option<f64>,
}

/// What the card has spent where; `None` where it told neither energy nor power.
pub fn energy(ledger: &Ledger) -> Option<Energy> {
    let phases: Vec<PhaseEnergy> = Work::ALL
        .into_iter()
        .map(|work| (work, ledger.of(work)))
        .filter(|(work, _)| ledger.energy_j(*work) > 0.0)
        .map(|(work, account)| PhaseEnergy {
            phase: work.name(),
            joules: ledger.energy_j(work),
            mean_w: account.power_w.value(),
            tokens: account.tokens,
            j_per_token: (account.tokens > 0).then(|| ledger.energy_j(work) / account.tokens as f64),
        })
        .collect();
    if phases.is_empty() {
        return None;
    }
    let (method, uncertainty) = match ledger.energy_is_counted() {
        true => (
            "the card's energy counter, divided between phases by sampled power (by that alone after its last reading)",
            format!(
                "the division, which rests on {}; the card does not tell how exact its counter is",
                phases_looked_at(ledger)
            ),
        ),
        false => (
            "sampled power over time: the card's energy counter was not read twice",
            "5 % (the accuracy NVML states for power), and whatever happens between two samples".to_owned(),
        ),
    };
    Some(Energy { method: method.to_owned(), uncertainty, phases })
}

fn plural(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

/// "12 looks in prefill, 205 in decode"
fn phases_looked_at(ledger: &Ledger) -> String {
    let looks = Work::ALL.into_iter().filter(|work| work.is_load() && ledger.of(*work).time_ns > 0.0);
    let words: Vec<String> =
        looks.map(|work| format!("{} in {}", plural(ledger.of(work).looks, "look"), work.name())).collect();
    if words.is_empty() { "no look at any work".to_owned() } else { words.join(", ") }
}

impl Energy {
    /// A line for each phase, then how it was measured and what may be wrong with it.
    pub fn lines(&self) -> Vec<String> {
        let phase = |phase: &PhaseEnergy| {
            let each = phase.j_per_token.map(|joules| format!(", {} J a token", three_digits(joules)));
            format!("{:<10}{} J{}", phase.phase, three_digits(phase.joules), each.unwrap_or_default())
        };
        let basis = format!("by {}; uncertain by {}", self.method, self.uncertainty);
        self.phases.iter().map(phase).chain([basis]).collect()
    }

    /// Of the phase with this name.
    pub fn of(&self, phase: &str) -> Option<&PhaseEnergy> {
        self.phases.iter().find(|energy| energy.phase == phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Phase, Stamp,
        readings::{GpuSample, Reading},
    };

    #[test]
    fn a_decode_token_costs_what_the_power_says() {
        let mut ledger = Ledger::default();
        assert_eq!(energy(&ledger), None);
        ledger.phase(Stamp(0), Phase::Decode);
        for ms in (0..=1000u64).step_by(100) {
            let look = GpuSample::of(0).with(Reading::Power, 600.0).with(Reading::SmClock, 1980.0);
            ledger.sample(Stamp(ms * 1_000_000), &look.with_reasons(0));
            (0..25).for_each(|_| ledger.token(Stamp(ms * 1_000_000), false, 4_000_000, 1, false));
        }
        let energy = energy(&ledger).unwrap();
        let decode = energy.of("decode").unwrap();
        assert!((decode.joules - 600.0).abs() < 1e-6 && decode.tokens == 275, "{decode:?}");
        assert!((decode.j_per_token.unwrap() - 600.0 / 275.0).abs() < 1e-9);
        assert!(energy.method.starts_with("sampled power"), "{energy:?}");
    }
}
