//! Energy: sampled power integrated over time and corrected by the GPU's counter, and its summary per phase.

use std::fmt;

use serde::Serialize;

use super::{
    as_text,
    throttle::{GpuActivity, Ledger},
};
use llmprof_base::units::three_digits;

/// Integrates sampled power over time, in `N` parts. If the GPU has an energy counter, its increase is divided over the
/// parts in proportion to the sampled energy since its last reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnergyMeter<const N: usize> {
    /// Up to the last reading of the counter; by samples alone while there is no counter.
    settled_j: [f64; N],
    /// By samples since the last reading of the counter.
    since_j: [f64; N],
    counter_j: Option<f64>,
    /// Energy between readings of the counter: by the counter, and by samples.
    counted_j: f64,
    sampled_j: f64,
}

impl<const N: usize> Default for EnergyMeter<N> {
    fn default() -> Self {
        EnergyMeter {
            settled_j: [0.0; N],
            since_j: [0.0; N],
            counter_j: None,
            counted_j: 0.0,
            sampled_j: 0.0,
        }
    }
}

impl<const N: usize> EnergyMeter<N> {
    /// The sampled power was `watts` for `secs`.
    pub fn add(&mut self, part: usize, watts: f64, secs: f64) {
        let joules = watts * secs;
        self.since_j[part] += joules;
        if !self.is_counted() {
            self.settled_j[part] += joules;
        }
    }

    /// The energy counter of the GPU reads `joules`.
    pub fn read_counter(&mut self, joules: f64) {
        let sampled: f64 = self.since_j.iter().sum();
        match self.counter_j {
            // Power was not sampled since the last reading: the increase is divided at a later one.
            Some(last) if joules >= last && sampled <= 0.0 => return,
            Some(last) if joules >= last => {
                let counted_before = self.is_counted();
                (self.counted_j, self.sampled_j) = (self.counted_j + joules - last, self.sampled_j + sampled);
                for (settled, since) in self.settled_j.iter_mut().zip(self.since_j) {
                    if !counted_before {
                        // The counter replaces the samples since its first reading.
                        *settled -= since;
                    }
                    *settled += (joules - last) * since / sampled;
                }
            }
            // The first reading, or the counter was reset.
            _ => {}
        }
        (self.counter_j, self.since_j) = (Some(joules), [0.0; N]);
    }

    /// Discards the last reading of the counter: the increase until the next one belongs to an unknown time.
    pub fn restart(&mut self) {
        (self.counter_j, self.since_j) = (None, [0.0; N]);
    }

    /// The energy of a part: by the counter, and by samples since its last reading.
    pub fn joules(&self, part: usize) -> f64 {
        self.settled_j[part] + if self.is_counted() { self.since_j[part] } else { 0.0 }
    }

    /// Whether the counter was read at least twice, so that energy comes from it.
    pub fn is_counted(&self) -> bool {
        self.sampled_j > 0.0
    }

    /// The counted energy over the sampled energy of the same time.
    pub fn correction(&self) -> Option<f64> {
        (self.counted_j > 0.0 && self.sampled_j > 0.0).then(|| self.counted_j / self.sampled_j)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Energy {
    #[serde(serialize_with = "as_text")]
    pub method: EnergyMethod,
    /// The uncertainty of the method.
    pub uncertainty: String,
    /// All requests, if there were any.
    pub requests: Option<RequestsEnergy>,
    pub phases: Vec<PhaseEnergy>,
}

/// The GPU's energy in all requests: prefill and decode, including warm-up, excluding loading and idle time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RequestsEnergy {
    pub joules: f64,
    /// Generated tokens of all sequences, including the first ones.
    pub output_tokens: u64,
    pub j_per_output_token: f64,
}

/// How energy was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnergyMethod {
    Counter,
    SampledPower,
}

impl fmt::Display for EnergyMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EnergyMethod::Counter => {
                "the GPU's energy counter, divided between phases by sampled power (samples only after its last reading)"
            }
            EnergyMethod::SampledPower => {
                "sampled power over time: the GPU's energy counter was not read twice"
            }
        })
    }
}

/// The GPU's energy in one kind of work, including warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PhaseEnergy {
    #[serde(serialize_with = "as_text")]
    pub phase: GpuActivity,
    pub joules: f64,
    pub mean_w: Option<f64>,
    /// Tokens of the prompts in a prefill, generated tokens after the first in a decode; `None` if they are not known.
    pub tokens: Option<u64>,
    pub j_per_token: Option<f64>,
}

/// The energy of each kind of work; `None` if the GPU reported neither energy nor power.
pub fn energy(ledger: &Ledger) -> Option<Energy> {
    let meter = ledger.energy();
    let phase = |work: GpuActivity| {
        let (joules, account) = (meter.joules(work as usize), ledger.account(work));
        (joules > 0.0).then(|| PhaseEnergy {
            phase: work,
            joules,
            mean_w: account.power_w.value(),
            tokens: Some(account.tokens),
            j_per_token: (account.tokens > 0).then(|| joules / account.tokens as f64),
        })
    };
    let phases: Vec<PhaseEnergy> = GpuActivity::ALL.into_iter().filter_map(phase).collect();
    if phases.is_empty() {
        return None;
    }
    let (method, uncertainty) = match meter.is_counted() {
        true => (
            EnergyMethod::Counter,
            format!(
                "the division, which relies on {}; the accuracy of the counter is not documented",
                sample_counts(ledger)
            ),
        ),
        false => (
            EnergyMethod::SampledPower,
            "5 % (NVML's stated accuracy of power) and changes of power between samples".to_owned(),
        ),
    };
    Some(Energy { method, uncertainty, requests: requests(ledger), phases })
}

fn requests(ledger: &Ledger) -> Option<RequestsEnergy> {
    let joules: f64 = [GpuActivity::Prefill, GpuActivity::Decode]
        .into_iter()
        .map(|work| ledger.energy().joules(work as usize))
        .sum();
    let output_tokens = ledger.output_tokens();
    (joules > 0.0 && output_tokens > 0).then(|| RequestsEnergy {
        joules,
        output_tokens,
        j_per_output_token: joules / output_tokens as f64,
    })
}

/// "12 samples in prefill, 205 in decode"
fn sample_counts(ledger: &Ledger) -> String {
    let work =
        GpuActivity::ALL.into_iter().filter(|work| work.is_load() && ledger.account(*work).time_ns > 0.0);
    let counts: Vec<String> = work
        .map(|work| match ledger.account(work).samples {
            1 => format!("1 sample in {}", work.name()),
            n => format!("{n} samples in {}", work.name()),
        })
        .collect();
    if counts.is_empty() { "no sample under load".to_owned() } else { counts.join(", ") }
}

impl Energy {
    /// The energy of another program, whose tokens per step are not known.
    pub fn without_tokens(self) -> Energy {
        let phases =
            self.phases.into_iter().map(|phase| PhaseEnergy { tokens: None, j_per_token: None, ..phase });
        Energy { requests: None, phases: phases.collect(), ..self }
    }

    /// A line for all requests and one for each phase, then the method and its uncertainty.
    pub fn lines(&self) -> Vec<String> {
        let requests = self.requests.map(|all| {
            format!(
                "{:<10}{} J, {} J per output token: prefill and decode",
                "requests",
                three_digits(all.joules),
                three_digits(all.j_per_output_token)
            )
        });
        let phase = |phase: &PhaseEnergy| {
            let token =
                if phase.phase == GpuActivity::Prefill { "prompt token" } else { "token after the first" };
            let each = phase.j_per_token.map(|joules| format!(", {} J per {token}", three_digits(joules)));
            format!("{:<10}{} J{}", phase.phase.name(), three_digits(phase.joules), each.unwrap_or_default())
        };
        let basis = format!("by {}; uncertainty: {}", self.method, self.uncertainty);
        requests.into_iter().chain(self.phases.iter().map(phase)).chain([basis]).collect()
    }

    pub fn phase(&self, phase: GpuActivity) -> Option<&PhaseEnergy> {
        self.phases.iter().find(|energy| energy.phase == phase)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::{
        Phase, Stamp,
        readings::{GpuSample, Reading},
    };

    #[test]
    fn energy_per_token_follows_from_sampled_power() {
        let mut ledger = Ledger::default();
        assert_eq!(energy(&ledger), None);
        ledger.phase(Stamp(0), Phase::Decode);
        for ms in (0..=1000u64).step_by(100) {
            let sample = GpuSample::new(0).with(Reading::Power, 600.0).with(Reading::SmClock, 1980.0);
            ledger.sample(Stamp(ms * 1_000_000), &sample.with_reasons(0));
            (0..25).for_each(|_| ledger.token(Stamp(ms * 1_000_000), false, 4_000_000, 1, Some(0)));
        }
        let energy = energy(&ledger).unwrap();
        let decode = energy.phase(GpuActivity::Decode).unwrap();
        assert!((decode.joules - 600.0).abs() < 1e-6 && decode.tokens == Some(275), "{decode:?}");
        assert!((decode.j_per_token.unwrap() - 600.0 / 275.0).abs() < 1e-9);
        assert_eq!(energy.method, EnergyMethod::SampledPower);
    }

    #[test]
    fn an_output_token_costs_its_share_of_the_prefill_too() {
        let mut ledger = Ledger::default();
        let sample = |ms: u64, ledger: &mut Ledger| {
            let sample = GpuSample::new(0).with(Reading::Power, 500.0).with(Reading::SmClock, 1980.0);
            ledger.sample(Stamp(ms * 1_000_000), &sample.with_reasons(0));
        };
        ledger.phase(Stamp(0), Phase::Prefill);
        (0..=600).step_by(100).for_each(|ms| sample(ms, &mut ledger));
        ledger.token(Stamp(600_000_000), true, 600_000_000, 4096, Some(0));
        ledger.generated(2);
        ledger.phase(Stamp(600_000_000), Phase::Decode);
        for ms in (700..=1000).step_by(100) {
            sample(ms, &mut ledger);
            ledger.token(Stamp(ms * 1_000_000), false, 100_000_000, 2, Some(0));
            ledger.generated(2);
        }
        let energy = energy(&ledger).unwrap();
        let requests = energy.requests.unwrap();
        // 600 ms of prefill and 400 ms of decode at 500 W for ten tokens, of which eight are after a first one.
        assert_eq!(requests.output_tokens, 10);
        assert!((requests.j_per_output_token - 50.0).abs() < 1e-9, "{requests:?}");
        assert!((energy.phase(GpuActivity::Decode).unwrap().j_per_token.unwrap() - 25.0).abs() < 1e-9);
        let steps = energy.clone().without_tokens();
        let decode = steps.phase(GpuActivity::Decode).unwrap();
        assert_eq!((steps.requests, decode.tokens, decode.j_per_token), (None, None, None));
        assert_eq!(
            decode.joules,
            energy.phase(GpuActivity::Decode).unwrap().joules,
            "the energy is that of the same work"
        );
        let lines = energy.lines();
        assert_eq!(lines[0], "requests  500 J, 50.0 J per output token: prefill and decode");
        assert_eq!(lines[2], "decode    200 J, 25.0 J per token after the first");
    }

    #[test]
    fn a_counter_replaces_the_samples_since_its_first_reading() {
        let mut meter = EnergyMeter::<2>::default();
        meter.add(0, 100.0, 1.0);
        meter.read_counter(5000.0);
        meter.add(0, 100.0, 1.0);
        meter.add(1, 300.0, 1.0);
        assert_eq!((meter.joules(0), meter.joules(1), meter.is_counted()), (200.0, 300.0, false));
        meter.read_counter(5800.0);
        assert_eq!((meter.joules(0), meter.joules(1), meter.correction()), (300.0, 600.0, Some(2.0)));
        meter.read_counter(5900.0);
        meter.add(1, 50.0, 1.0);
        assert_eq!(meter.joules(1), 650.0, "samples only after the last reading");
        meter.read_counter(6000.0);
        assert_eq!(meter.joules(1), 800.0, "growth without samples is divided later");
        meter.add(1, 50.0, 1.0);
        meter.read_counter(10.0);
        assert_eq!(meter.joules(1), 800.0, "the counter was reset");
    }
}
