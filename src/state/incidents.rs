//! The flight recorder: what happened in the seconds around something unusual.

use std::collections::VecDeque;

use super::trail::TokenMark;
use crate::event::{GpuSample, Stamp, readings::Reading, reasons};

/// What is kept before and after an incident.
const BEFORE_NS: u64 = 3_000_000_000;
const AFTER_NS: u64 = 2_000_000_000;
/// Of each, at most so many tokens and looks.
const KEPT_TOKENS: usize = 2048;
const KEPT_LOOKS: usize = 256;
/// More incidents than this, and the mildest are dropped.
const KEPT_INCIDENTS: usize = 32;
/// Outliers closer together than this are one incident.
const SAME_NS: u64 = 1_000_000_000;
/// A gap this many times the usual one is an outlier, if it is also late by this much.
const OUTLIER: f64 = 3.0;
const LATE_NS: u64 = 2_000_000;
/// So many late tokens in a row are the new usual.
const NEW_USUAL: u64 = 24;
/// The usual gap is known after so many tokens.
const LEARNT: u64 = 50;

/// Why it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unusual {
    /// A token came late.
    LateToken {
        gap_ns: u64,
        usual_ns: u64,
    },
    /// The clock is held by something that did not hold it before.
    NewReason {
        bit: u64,
    },
    Lost {
        gpu: u32,
    },
}

/// A look as an incident keeps it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptLook {
    pub t: Stamp,
    pub power_w: Option<f64>,
    pub sm_clock_mhz: Option<f64>,
    pub temp_c: Option<f64>,
    pub reasons: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Incident {
    pub at: Stamp,
    pub what: Unusual,
    /// The number of the token that was late, or that came next, counted from the run's first.
    pub token: u64,
    pub tokens: Vec<TokenMark>,
    pub looks: Vec<KeptLook>,
    open: bool,
}

impl Incident {
    /// In a few words.
    pub fn words(&self) -> String {
        match self.what {
            Unusual::LateToken { gap_ns, usual_ns } => {
                format!("a token after {:.1} ms, usual are {:.1}", gap_ns as f64 / 1e6, usual_ns as f64 / 1e6)
            }
            Unusual::NewReason { bit } => format!("{} begins", reasons::named(bit).name()),
            Unusual::Lost { gpu } => format!("GPU {gpu} has gone"),
        }
    }

    /// What the card did meanwhile, where it looked different before and after.
    pub fn meanwhile(&self) -> String {
        let clocks: Vec<f64> = self.looks.iter().filter_map(|look| look.sm_clock_mhz).collect();
        let (Some(least), Some(most)) =
            (clocks.iter().copied().reduce(f64::min), clocks.iter().copied().reduce(f64::max))
        else {
            return String::new();
        };
        let bits = self.looks.iter().filter_map(|look| look.reasons).fold(0, |all, bits| all | bits);
        let names: Vec<String> =
            reasons::found(reasons::faults(bits)).map(|found| found.name().into_owned()).collect();
        let clock =
            if most - least > 15.0 { format!("SM {least:.0}–{most:.0} MHz") } else { String::new() };
        [clock, names.join(", ")].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    fn severity(&self) -> f64 {
        severity(&self.what)
    }
}

fn severity(what: &Unusual) -> f64 {
    match *what {
        Unusual::LateToken { gap_ns, usual_ns } => gap_ns as f64 / usual_ns.max(1) as f64,
        Unusual::NewReason { .. } => 1e3,
        Unusual::Lost { .. } => f64::INFINITY,
    }
}

/// Keeps the last seconds at all times, and for good what lay around something unusual.
#[derive(Debug, Clone, Default)]
pub struct FlightRecorder {
    tokens: VecDeque<TokenMark>,
    looks: VecDeque<KeptLook>,
    usual_ns: f64,
    learnt: u64,
    /// Late tokens in a row.
    late: u64,
    known_faults: u64,
    pub incidents: Vec<Incident>,
}

impl FlightRecorder {
    /// A token that was worked on like the others, the `number`th of the run.
    pub(super) fn token(&mut self, mark: TokenMark, number: u64) {
        if self.tokens.len() == KEPT_TOKENS {
            self.tokens.pop_front();
        }
        self.tokens.push_back(mark);
        for incident in self.incidents.iter_mut().filter(|incident| incident.open) {
            match mark.t.0 <= incident.at.0 + AFTER_NS && incident.tokens.len() < 2 * KEPT_TOKENS {
                true => incident.tokens.push(mark),
                false => incident.open = false,
            }
        }
        if mark.first || mark.warmup {
            return;
        }
        let gap = mark.gap_ns as f64;
        let late = self.learnt >= LEARNT
            && gap > OUTLIER * self.usual_ns
            && mark.gap_ns > self.usual_ns as u64 + LATE_NS;
        if late {
            self.late += 1;
            if self.late >= NEW_USUAL {
                // That is how it goes from here on: one incident, not one a second.
                (self.usual_ns, self.late) = (gap, 0);
            }
            self.open(
                mark.t,
                Unusual::LateToken { gap_ns: mark.gap_ns, usual_ns: self.usual_ns as u64 },
                number,
            );
            return;
        }
        self.late = 0;
        self.learnt += 1;
        // A mean of the usual ones that follows slowly: a run that gets slower is no outlier.
        let weight = 1.0 / self.learnt.min(100) as f64;
        self.usual_ns += weight * (gap - self.usual_ns);
    }

    pub(super) fn look(&mut self, t: Stamp, sample: &GpuSample, tokens_seen: u64) {
        let look = KeptLook {
            t,
            power_w: sample.get(Reading::Power),
            sm_clock_mhz: sample.get(Reading::SmClock),
            temp_c: sample.get(Reading::Temp),
            reasons: sample.reasons,
        };
        if look.sm_clock_mhz.is_none() && look.reasons.is_none() {
            return;
        }
        if self.looks.len() == KEPT_LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back(look);
        for incident in self.incidents.iter_mut().filter(|incident| incident.open) {
            if t.0 <= incident.at.0 + AFTER_NS && incident.looks.len() < 2 * KEPT_LOOKS {
                incident.looks.push(look);
            }
        }
        let new = reasons::faults(sample.reasons.unwrap_or(0)) & !self.known_faults;
        self.known_faults |= new;
        for found in reasons::found(new) {
            self.open(t, Unusual::NewReason { bit: found.bit() }, tokens_seen);
        }
    }

    pub(super) fn lost(&mut self, t: Stamp, gpu: u32, tokens_seen: u64) {
        self.open(t, Unusual::Lost { gpu }, tokens_seen);
    }

    fn open(&mut self, at: Stamp, what: Unusual, token: u64) {
        let late = |what: &Unusual| matches!(what, Unusual::LateToken { .. });
        if let Some(last) = self.incidents.last_mut()
            && late(&last.what)
            && late(&what)
            && at.since(last.at).as_nanos() < u128::from(SAME_NS)
        {
            // One incident: that of the latest token among them.
            if last.severity() < severity(&what) {
                (last.at, last.what, last.token) = (at, what, token);
            }
            return;
        }
        let since = at.0.saturating_sub(BEFORE_NS);
        let incident = Incident {
            at,
            what,
            token,
            tokens: self.tokens.iter().filter(|mark| mark.t.0 >= since).copied().collect(),
            looks: self.looks.iter().filter(|look| look.t.0 >= since).copied().collect(),
            open: true,
        };
        if self.incidents.len() == KEPT_INCIDENTS {
            let mildest = (0..self.incidents.len())
                .min_by(|a, b| self.incidents[*a].severity().total_cmp(&self.incidents[*b].severity()));
            if let Some(mildest) = mildest {
                self.incidents.remove(mildest);
            }
        }
        self.incidents.push(incident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(n: u64, gap_ms: f64) -> TokenMark {
        let t = Stamp(n * 4_000_000);
        TokenMark { t, gap_ns: (gap_ms * 1e6) as u64, id: 0, request: 0, first: false, warmup: false }
    }

    #[test]
    fn a_late_token_keeps_what_lay_around_it() {
        let mut recorder = FlightRecorder::default();
        for n in 0..4000 {
            recorder.token(mark(n, if n == 2000 { 30.0 } else { 4.0 }), n);
        }
        let [incident] = &recorder.incidents[..] else { panic!("{:?}", recorder.incidents.len()) };
        assert_eq!(
            (incident.token, incident.words()),
            (2000, "a token after 30.0 ms, usual are 4.0".to_owned())
        );
        let (first, last) = (incident.tokens[0].t, incident.tokens[incident.tokens.len() - 1].t);
        assert_eq!((incident.at.since(first).as_secs(), last.since(incident.at).as_secs()), (3, 2));
    }

    #[test]
    fn slower_by_and_by_is_not_unusual_and_a_storm_is_one_incident() {
        let mut recorder = FlightRecorder::default();
        (0..3000).for_each(|n| recorder.token(mark(n, 4.0 + n as f64 / 300.0), n));
        assert!(recorder.incidents.is_empty());
        (3000..3020).for_each(|n| recorder.token(mark(n, 60.0), n));
        assert_eq!(recorder.incidents.len(), 1);
    }

    #[test]
    fn a_new_pace_is_one_incident_and_the_latest_token_is_the_one_that_is_told() {
        let mut recorder = FlightRecorder::default();
        (0..200).for_each(|n| recorder.token(mark(n, 4.0), n));
        recorder.token(mark(200, 13.0), 200);
        recorder.token(mark(201, 500.0), 201);
        (202..400).for_each(|n| recorder.token(mark(n, 4.0), n));
        let told = recorder.incidents[0].words();
        assert!(told.starts_with("a token after 500.0 ms") && recorder.incidents.len() == 1, "{told}");
        (1000..9000).for_each(|n| recorder.token(mark(n, 16.0), n));
        assert_eq!(recorder.incidents.len(), 2, "slower from there on");
    }

    #[test]
    fn a_reason_is_new_once() {
        let mut recorder = FlightRecorder::default();
        let look = |bits, mhz| GpuSample::of(0).with(Reading::SmClock, mhz).with_reasons(bits);
        for (i, bits) in [0, 0x4, 0, 0x4, 0x24, 0x2].into_iter().enumerate() {
            recorder.look(Stamp(i as u64 * 100_000_000), &look(bits, 1980.0 - bits as f64 * 100.0), 7);
        }
        let words: Vec<String> = recorder.incidents.iter().map(Incident::words).collect();
        assert_eq!(words, ["power cap begins", "thermal slowdown begins"]);
        assert!(
            recorder.incidents[0].meanwhile().contains("power cap"),
            "{}",
            recorder.incidents[0].meanwhile()
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut recorder = FlightRecorder::default();
        (0..200_000).for_each(|n| recorder.token(mark(n, if n % 500 == 499 { 40.0 } else { 4.0 }), n));
        assert_eq!(recorder.incidents.len(), KEPT_INCIDENTS);
        assert!(recorder.incidents.iter().all(|incident| incident.tokens.len() <= 2 * KEPT_TOKENS));
    }
}
