//! The flight recorder: the seconds around an incident.

use std::collections::VecDeque;

use super::{push_bounded, trail::TokenMark};
use llmprof_event::{GpuSample, Stamp, readings::Reading, reasons};

/// The time kept before and after an incident.
const BEFORE_NS: u64 = 3_000_000_000;
const AFTER_NS: u64 = 2_000_000_000;
/// The number of tokens and samples kept on each side of an incident.
const KEPT_TOKENS: usize = 2048;
const KEPT_SAMPLES: usize = 256;
/// Beyond this number, the least severe incidents are dropped.
const KEPT_INCIDENTS: usize = 32;
/// Outliers closer together are one incident.
const SAME_NS: u64 = 1_000_000_000;
/// A gap is an outlier if it is this many times the usual one, and longer by at least this much.
const OUTLIER: f64 = 3.0;
const LATE_NS: u64 = 2_000_000;
/// After this many late tokens in a row, their gap becomes the usual one.
const NEW_USUAL: u64 = 24;
/// The usual gap is known after this many tokens.
const MIN_TOKENS: u64 = 50;

/// The kind of an incident.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum IncidentKind {
    /// A token was late.
    LateToken {
        gap_ns: u64,
        usual_ns: u64,
    },
    /// A clock event reason became active for the first time.
    NewReason {
        bit: u64,
    },
    Lost {
        gpu: u32,
    },
}

/// A GPU sample of an incident.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeptSample {
    pub t: Stamp,
    pub power_w: Option<f64>,
    pub sm_clock_mhz: Option<f64>,
    pub temp_c: Option<f64>,
    pub reasons: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Incident {
    pub at: Stamp,
    pub kind: IncidentKind,
    /// The index of the late or next token, counted from the run's first.
    pub token: u64,
    pub tokens: Vec<TokenMark>,
    pub samples: Vec<KeptSample>,
    open: bool,
}

impl Incident {
    /// The incident as a short text.
    pub fn describe(&self) -> String {
        match self.kind {
            IncidentKind::LateToken { gap_ns, usual_ns } => {
                format!("{:.1} ms instead of {:.1} ms", gap_ns as f64 / 1e6, usual_ns as f64 / 1e6)
            }
            IncidentKind::NewReason { bit } => format!("{} begins", reasons::named(bit).name()),
            IncidentKind::Lost { gpu } => format!("GPU {gpu} is lost"),
        }
    }

    /// Whether kernels were recorded during its token, changes of the GPU's clock around the incident, and the active
    /// faults.
    pub fn meanwhile(&self) -> String {
        let recorded = self.tokens.iter().any(|mark| mark.t == self.at && mark.recorded);
        let clocks: Vec<f64> = self.samples.iter().filter_map(|sample| sample.sm_clock_mhz).collect();
        let ends = clocks.iter().copied().reduce(f64::min).zip(clocks.iter().copied().reduce(f64::max));
        let clock = ends.filter(|(min, max)| max - min > 15.0);
        let bits = self.samples.iter().filter_map(|sample| sample.reasons).fold(0, |all, bits| all | bits);
        let faults = reasons::active(reasons::faults(bits)).map(|reason| reason.name().into_owned());
        let parts = recorded
            .then(|| "kernels were recorded".to_owned())
            .into_iter()
            .chain(clock.map(|(min, max)| format!("SM {min:.0}–{max:.0} MHz")))
            .chain(faults);
        parts.collect::<Vec<_>>().join(", ")
    }

    fn severity(&self) -> f64 {
        severity(&self.kind)
    }
}

fn severity(kind: &IncidentKind) -> f64 {
    match *kind {
        IncidentKind::LateToken { gap_ns, usual_ns } => gap_ns as f64 / usual_ns.max(1) as f64,
        IncidentKind::NewReason { .. } => 1e3,
        IncidentKind::Lost { .. } => f64::INFINITY,
    }
}

/// Keeps the last seconds, and permanently the seconds around incidents.
#[derive(Debug, Clone, Default)]
pub struct FlightRecorder {
    tokens: VecDeque<TokenMark>,
    samples: VecDeque<KeptSample>,
    usual_ns: f64,
    /// The number of tokens from which `usual_ns` is derived.
    tokens_learnt: u64,
    /// Late tokens in a row.
    late: u64,
    known_faults: u64,
    pub incidents: Vec<Incident>,
}

impl FlightRecorder {
    /// The `number`th token of the run.
    pub(super) fn token(&mut self, mark: TokenMark, number: u64) {
        push_bounded(&mut self.tokens, KEPT_TOKENS, mark);
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
        let late = self.tokens_learnt >= MIN_TOKENS
            && gap > OUTLIER * self.usual_ns
            && mark.gap_ns > self.usual_ns as u64 + LATE_NS;
        if late {
            self.late += 1;
            if self.late >= NEW_USUAL {
                // The new pace is one incident, not one per second.
                (self.usual_ns, self.late) = (gap, 0);
            }
            self.open(
                mark.t,
                IncidentKind::LateToken { gap_ns: mark.gap_ns, usual_ns: self.usual_ns as u64 },
                number,
            );
            return;
        }
        self.late = 0;
        self.tokens_learnt += 1;
        // A moving mean: a gradual slowdown is not an outlier.
        let weight = 1.0 / self.tokens_learnt.min(100) as f64;
        self.usual_ns += weight * (gap - self.usual_ns);
    }

    pub(super) fn gpu_sample(&mut self, t: Stamp, sample: &GpuSample, tokens_seen: u64) {
        let kept = KeptSample {
            t,
            power_w: sample.get(Reading::Power),
            sm_clock_mhz: sample.get(Reading::SmClock),
            temp_c: sample.get(Reading::Temp),
            reasons: sample.reasons,
        };
        if kept.sm_clock_mhz.is_none() && kept.reasons.is_none() {
            return;
        }
        push_bounded(&mut self.samples, KEPT_SAMPLES, kept);
        for incident in self.incidents.iter_mut().filter(|incident| incident.open) {
            if t.0 <= incident.at.0 + AFTER_NS && incident.samples.len() < 2 * KEPT_SAMPLES {
                incident.samples.push(kept);
            }
        }
        let new = reasons::faults(sample.reasons.unwrap_or(0)) & !self.known_faults;
        self.known_faults |= new;
        for reason in reasons::active(new) {
            self.open(t, IncidentKind::NewReason { bit: reason.bit() }, tokens_seen);
        }
    }

    pub(super) fn lost(&mut self, t: Stamp, gpu: u32, tokens_seen: u64) {
        self.open(t, IncidentKind::Lost { gpu }, tokens_seen);
    }

    fn open(&mut self, at: Stamp, kind: IncidentKind, token: u64) {
        let late = |kind: &IncidentKind| matches!(kind, IncidentKind::LateToken { .. });
        if let Some(last) = self.incidents.last_mut()
            && late(&last.kind)
            && late(&kind)
            && at.since(last.at).as_nanos() < u128::from(SAME_NS)
        {
            // The incident is that of the latest token.
            if last.severity() < severity(&kind) {
                (last.at, last.kind, last.token) = (at, kind, token);
            }
            return;
        }
        let since = at.0.saturating_sub(BEFORE_NS);
        let incident = Incident {
            at,
            kind,
            token,
            tokens: self.tokens.iter().filter(|mark| mark.t.0 >= since).copied().collect(),
            samples: self.samples.iter().filter(|sample| sample.t.0 >= since).copied().collect(),
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
        TokenMark {
            tokens: 1,
            t,
            gap_ns: (gap_ms * 1e6) as u64,
            id: 0,
            request: 0,
            stream: 0,
            first: false,
            warmup: false,
            recorded: false,
        }
    }

    #[test]
    fn a_late_token_keeps_the_seconds_around_it() {
        let mut recorder = FlightRecorder::default();
        for n in 0..4000 {
            recorder.token(mark(n, if n == 2000 { 30.0 } else { 4.0 }), n);
        }
        let [incident] = &recorder.incidents[..] else { panic!("{:?}", recorder.incidents.len()) };
        assert_eq!((incident.token, incident.describe()), (2000, "30.0 ms instead of 4.0 ms".to_owned()));
        let (first, last) = (incident.tokens[0].t, incident.tokens[incident.tokens.len() - 1].t);
        assert_eq!((incident.at.since(first).as_secs(), last.since(incident.at).as_secs()), (3, 2));
    }

    #[test]
    fn a_gradual_slowdown_is_no_incident_and_a_burst_is_one() {
        let mut recorder = FlightRecorder::default();
        (0..3000).for_each(|n| recorder.token(mark(n, 4.0 + n as f64 / 300.0), n));
        assert!(recorder.incidents.is_empty());
        (3000..3020).for_each(|n| recorder.token(mark(n, 60.0), n));
        assert_eq!(recorder.incidents.len(), 1);
    }

    #[test]
    fn a_new_pace_is_one_incident_and_the_latest_token_is_reported() {
        let mut recorder = FlightRecorder::default();
        (0..200).for_each(|n| recorder.token(mark(n, 4.0), n));
        recorder.token(mark(200, 13.0), 200);
        recorder.token(mark(201, 500.0), 201);
        (202..400).for_each(|n| recorder.token(mark(n, 4.0), n));
        let text = recorder.incidents[0].describe();
        assert!(text.starts_with("500.0 ms instead of") && recorder.incidents.len() == 1, "{text}");
        (1000..9000).for_each(|n| recorder.token(mark(n, 16.0), n));
        assert_eq!(recorder.incidents.len(), 2, "slower from there on");
    }

    #[test]
    fn a_reason_is_new_once() {
        let mut recorder = FlightRecorder::default();
        let sample = |bits, mhz| GpuSample::new(0).with(Reading::SmClock, mhz).with_reasons(bits);
        for (i, bits) in [0, 0x4, 0, 0x4, 0x24, 0x2].into_iter().enumerate() {
            recorder.gpu_sample(
                Stamp(i as u64 * 100_000_000),
                &sample(bits, 1980.0 - bits as f64 * 100.0),
                7,
            );
        }
        let texts: Vec<String> = recorder.incidents.iter().map(Incident::describe).collect();
        assert_eq!(texts, ["power cap begins", "thermal slowdown begins"]);
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
