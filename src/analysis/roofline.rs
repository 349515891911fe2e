//! The roofline: how fast a piece of work could be at most, how fast it was, and what that makes of it.

use serde::Serialize;

use super::peaks::Peaks;
use crate::analysis::classify::{BUSY_PCT, Class, EVEN_PCT, SHORT_NS, Verdict};
use crate::base::units::{millis, percent, scaled, three_digits};

/// Two ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Roof {
    pub flops: f64,
    pub bytes_per_s: f64,
}

impl Roof {
    /// As the peaks are stated.
    pub fn stated(peaks: &Peaks) -> Roof {
        Roof { flops: peaks.flops, bytes_per_s: peaks.bytes_per_s }
    }

    /// With the SMs at `mhz`: operations follow their clock, memory has its own. `None` where nobody tells which clock
    /// the peaks are for.
    pub fn at_clock(peaks: &Peaks, mhz: f64) -> Option<Roof> {
        let stated = peaks.clock_mhz.filter(|stated| *stated > 0.0 && mhz > 0.0)?;
        Some(Roof { flops: peaks.flops * mhz / stated, bytes_per_s: peaks.bytes_per_s })
    }

    /// Operations for each byte from which on memory is not the ceiling.
    pub fn ridge(&self) -> f64 {
        self.flops / self.bytes_per_s
    }

    /// The most operations a second at so many for each byte.
    pub fn ceiling(&self, flop_per_byte: f64) -> f64 {
        self.flops.min(flop_per_byte * self.bytes_per_s)
    }

    /// The least time that so much work takes.
    pub fn least_seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bytes_per_s)
    }
}

/// Work that was timed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timed {
    pub flops: f64,
    pub bytes: f64,
    pub seconds: f64,
}

impl Timed {
    pub fn flop_per_s(&self) -> f64 {
        self.flops / self.seconds
    }

    pub fn bytes_per_s(&self) -> f64 {
        self.bytes / self.seconds
    }

    /// `None` where nothing is moved.
    pub fn flop_per_byte(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.flops / self.bytes)
    }

    pub fn share_of(&self, roof: &Roof) -> Share {
        Share {
            flops_pct: self.flop_per_s() / roof.flops * 100.0,
            bytes_pct: self.bytes_per_s() / roof.bytes_per_s * 100.0,
        }
    }
}

/// Percents of both ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Share {
    pub flops_pct: f64,
    pub bytes_pct: f64,
}

impl Share {
    /// How near it is to the nearer ceiling.
    pub fn most(&self) -> f64 {
        self.flops_pct.max(self.bytes_pct)
    }
}

/// What bounds an operator or a whole step (`of` says which), by what it has to compute and to move and the time it
/// took. Counters may say otherwise: they see what really was moved.
pub fn estimated(of: &str, call: &Timed, roof: &Roof) -> Verdict {
    let share = call.share_of(roof);
    let Share { flops_pct: compute, bytes_pct: memory } = share;
    let numbers = format!(
        "estimated from the {of}'s FLOPs and bytes: DRAM {}, FLOP/s {} of peak",
        percent(memory),
        percent(compute)
    );
    let ns = call.seconds * 1e9;
    let (class, rule) = match share.most() {
        most if most < BUSY_PCT && ns < SHORT_NS => (
            Class::Launch,
            format!(
                "both under {BUSY_PCT} %, and over in {} µs: starting it costs about as much",
                three_digits(ns / 1e3)
            ),
        ),
        most if most < BUSY_PCT => (Class::Latency, format!("both under {BUSY_PCT} %")),
        _ if memory.min(compute) >= BUSY_PCT && (memory - compute).abs() <= EVEN_PCT => {
            (Class::Balanced, format!("both at {BUSY_PCT} % or more, within {EVEN_PCT} of each other"))
        }
        _ if memory > compute => {
            (Class::Memory, format!("at {BUSY_PCT} % or more, and ahead of the operations"))
        }
        _ => (Class::Compute, format!("at {BUSY_PCT} % or more, and ahead of memory")),
    };
    Verdict { class, rule: format!("{numbers}: {rule}") }
}

/// What a point stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointKind {
    /// A whole prefill, or a decode step.
    Phase,
    Operator,
    /// A kernel whose counters were read.
    Kernel,
}

/// A piece of work on the plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    pub kind: PointKind,
    pub phase: &'static str,
    pub name: String,
    #[serde(flatten)]
    pub timed: Timed,
    /// Of the ceilings at the clock that its phase had, where they are known.
    pub share: Option<Share>,
    /// What of its phase's time it takes, where that is known.
    pub time_pct: Option<f64>,
    /// Where its numbers come from.
    pub basis: String,
    pub verdict: Option<Verdict>,
}

impl Point {
    /// `decode gate_up`.
    pub fn label(&self) -> String {
        match self.kind {
            PointKind::Phase => self.name.clone(),
            _ => format!("{} {}", self.phase, self.name),
        }
    }

    /// Its numbers in a line.
    pub fn words(&self) -> String {
        let Timed { flops, bytes, seconds } = self.timed;
        format!(
            "{} and {} in {}: {}, {}",
            scaled(flops, "FLOP"),
            scaled(bytes, "B"),
            millis(seconds * 1e3),
            scaled(self.timed.flop_per_s(), "FLOP/s"),
            scaled(self.timed.bytes_per_s(), "B/s"),
        )
    }
}

/// All that a plot needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// What the ceilings are, or why there are none.
    pub peaks: Result<Peaks, String>,
    /// The SM clock, where it was read.
    pub clock_mhz: Option<f64>,
    pub points: Vec<Point>,
}

impl Roofline {
    /// At the clock that the peaks are stated at.
    pub fn stated(&self) -> Option<Roof> {
        self.peaks.as_ref().ok().map(Roof::stated)
    }

    /// At the clock that was read.
    pub fn now(&self) -> Option<Roof> {
        Roof::at_clock(self.peaks.as_ref().ok()?, self.clock_mhz?)
    }

    /// What both axes have to span, as powers of ten: operations for each byte, and operations a second.
    pub fn extent(&self) -> ([f64; 2], [f64; 2]) {
        let points =
            self.points.iter().filter_map(|p| Some((p.timed.flop_per_byte()?, p.timed.flop_per_s())));
        let ridges = [self.stated(), self.now()].into_iter().flatten().map(|roof| (roof.ridge(), roof.flops));
        let shown = |(x, y): &(f64, f64)| *x > 0.0 && *y > 0.0 && x.is_finite() && y.is_finite();
        let all: Vec<(f64, f64)> = points.chain(ridges).filter(shown).collect();
        if all.is_empty() {
            return ([-1.0, 3.0], [9.0, 12.0]);
        }
        let span = |values: &mut dyn Iterator<Item = f64>, more: f64| {
            let none = [f64::INFINITY, f64::NEG_INFINITY];
            let [low, high] = values.fold(none, |[low, high], v| [low.min(v.log10()), high.max(v.log10())]);
            [low - 0.3, high + more]
        };
        let [left, right] = span(&mut all.iter().map(|(x, _)| *x), 0.6);
        let [bottom, top] = span(&mut all.iter().map(|(_, y)| *y), 0.3);
        // The memory's ceiling is seen from one operation for ten bytes on.
        ([left.min(-1.0), right.max(2.0)], [bottom, top])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOF: Roof = Roof { flops: 1000e12, bytes_per_s: 5e12 };

    fn call(flops_pct: f64, bytes_pct: f64, us: f64) -> Timed {
        let seconds = us * 1e-6;
        Timed {
            flops: ROOF.flops * seconds * flops_pct / 100.0,
            bytes: ROOF.bytes_per_s * seconds * bytes_pct / 100.0,
            seconds,
        }
    }

    #[test]
    fn estimates_follow_the_rules_of_counters() {
        for (flops, bytes, us, wanted) in [
            (1.0, 80.0, 70.0, Class::Memory),
            (80.0, 20.0, 900.0, Class::Compute),
            (70.0, 75.0, 900.0, Class::Balanced),
            (1.0, 30.0, 40.0, Class::Latency),
            (0.1, 3.0, 2.4, Class::Launch),
            (1.0, 80.0, 2.4, Class::Memory),
        ] {
            let verdict = estimated("operator", &call(flops, bytes, us), &ROOF);
            assert_eq!(verdict.class, wanted, "{}", verdict.rule);
            assert!(
                verdict.rule.starts_with("estimated from the operator's FLOPs and bytes")
                    && verdict.rule.contains("60 %"),
                "{}",
                verdict.rule
            );
        }
    }

    #[test]
    fn the_compute_ceiling_follows_the_clock_and_the_other_does_not() {
        let peaks = crate::analysis::peaks::peaks(Some("NVIDIA H200"), "bf16", Default::default()).unwrap();
        let slow = Roof::at_clock(&peaks, 915.0).unwrap();
        assert_eq!((slow.flops, slow.bytes_per_s), (494.7e12, 4.8e12));
        assert!(slow.ridge() < Roof::stated(&peaks).ridge());
        assert_eq!(slow.ceiling(1.0), 4.8e12);
        assert_eq!(slow.ceiling(1e6), 494.7e12);
        let given = Peaks { clock_mhz: None, ..peaks };
        assert_eq!(Roof::at_clock(&given, 915.0), None);
    }

    #[test]
    fn axes_span_every_point() {
        let point = |flops: f64, bytes: f64| Point {
            kind: PointKind::Operator,
            phase: "decode",
            name: "x".into(),
            timed: Timed { flops, bytes, seconds: 1e-5 },
            share: None,
            time_pct: None,
            basis: String::new(),
            verdict: None,
        };
        let mut roofline = Roofline { peaks: Err("none".into()), clock_mhz: None, points: Vec::new() };
        assert_eq!(roofline.extent(), ([-1.0, 3.0], [9.0, 12.0]));
        roofline.points = vec![point(1e6, 1e9), point(5e9, 1e6), point(0.0, 1e6), point(1e6, 0.0)];
        let (x, y) = roofline.extent();
        for point in &roofline.points[..2] {
            let (at_x, at_y) =
                (point.timed.flop_per_byte().unwrap().log10(), point.timed.flop_per_s().log10());
            assert!(x[0] < at_x && at_x < x[1] && y[0] < at_y && at_y < y[1], "{x:?} {y:?}");
        }
    }
}
