//! The roofline: the ceilings of a device, and how close measured work comes to them.

use std::fmt;

use serde::Serialize;

use super::{
    as_text,
    classify::{Verdict, class_of},
    peaks::Peaks,
};
use llmprof_base::{
    cells,
    table::{Column, Table, Tone},
    units::{Unit, millis, percent, scaled},
};

/// The ceilings of compute and of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Roof {
    pub flops: f64,
    pub bytes_per_s: f64,
}

impl Roof {
    /// At the clock of the stated peaks.
    pub fn stated(peaks: &Peaks) -> Roof {
        Roof { flops: peaks.flops, bytes_per_s: peaks.bytes_per_s }
    }

    /// With the SMs at `mhz`: compute follows their clock, memory does not. `None` if the clock of the peaks is not known.
    pub fn at_clock(peaks: &Peaks, mhz: f64) -> Option<Roof> {
        let stated = peaks.clock_mhz.filter(|stated| *stated > 0.0 && mhz > 0.0)?;
        Some(Roof { flops: peaks.flops * mhz / stated, bytes_per_s: peaks.bytes_per_s })
    }

    /// The arithmetic intensity above which compute is the ceiling.
    pub fn ridge(&self) -> f64 {
        self.flops / self.bytes_per_s
    }

    /// The maximum FLOP/s at an arithmetic intensity.
    pub fn ceiling(&self, flop_per_byte: f64) -> f64 {
        self.flops.min(flop_per_byte * self.bytes_per_s)
    }

    /// The minimum duration of the work.
    pub fn min_seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bytes_per_s)
    }
}

/// Work and its duration.
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

    /// Arithmetic intensity; `None` if no bytes are moved.
    pub fn flop_per_byte(&self) -> Option<f64> {
        (self.bytes > 0.0).then(|| self.flops / self.bytes)
    }

    /// Percentages of both ceilings. More than 100 % of one is an error.
    pub fn share_of(&self, roof: &Roof) -> Result<Share, AbovePeak> {
        let share = Share {
            flops_pct: self.flop_per_s() / roof.flops * 100.0,
            bytes_pct: self.bytes_per_s() / roof.bytes_per_s * 100.0,
        };
        if share.max_pct() <= 100.0 { Ok(share) } else { Err(AbovePeak { bytes: share.bytes_pct > 100.0 }) }
    }
}

/// A rate above the device's peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbovePeak {
    /// Whether it is the rate of memory; otherwise that of arithmetic.
    bytes: bool,
}

impl fmt::Display for AbovePeak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.bytes {
            true => {
                "by its time it would read more than DRAM can deliver: a cache has its data, or its name, bytes or time are wrong"
            }
            false => "by its time it would compute more than the GPU can: its name, FLOPs or time are wrong",
        })
    }
}

/// Percentages of both ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Share {
    pub flops_pct: f64,
    pub bytes_pct: f64,
}

impl Share {
    /// The percentage of the nearer ceiling.
    pub fn max_pct(&self) -> f64 {
        self.flops_pct.max(self.bytes_pct)
    }
}

/// The bound of an operator or a step (`of` is its name), from its operations, its bytes and its duration. Counters may
/// disagree, because they count the bytes that were actually moved.
pub fn estimated(of: &str, call: &Timed, roof: &Roof) -> Result<Verdict, AbovePeak> {
    let Share { flops_pct, bytes_pct } = call.share_of(roof)?;
    let (class, rule) = class_of(bytes_pct, flops_pct, Some(call.seconds * 1e9));
    let rule = format!(
        "estimated from the {of}'s FLOPs and bytes: DRAM {}, FLOP/s {} of peak: {rule}",
        percent(bytes_pct),
        percent(flops_pct)
    );
    Ok(Verdict { class, rule })
}

/// What a point represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PointKind {
    /// A prefill or a decode step.
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
    /// Its share of the ceilings at the clock of its phase, if they are known.
    pub share: Option<Share>,
    /// Its share of the phase's time, if that is known.
    pub time_pct: Option<f64>,
    #[serde(serialize_with = "as_text")]
    pub basis: PointBasis,
    pub verdict: Option<Verdict>,
}

/// The source of a point's numbers: counters, or the model's shape with a measured duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PointBasis {
    DeviceClock,
    Ttft,
    Itl,
    Operator(OperatorBasis),
    /// Counters of a tool, and the instructions they count.
    Counters {
        tool: String,
        counted: String,
    },
}

/// The clock of operator times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorBasis {
    /// By the GPU's own clock.
    Kernels,
    /// By the engine's thread, on the CPU.
    WallTime,
}

impl fmt::Display for PointBasis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = match self {
            PointBasis::DeviceClock => "mean time by the GPU's own clock",
            PointBasis::Ttft => "mean TTFT",
            PointBasis::Itl => "mean ITL",
            PointBasis::Operator(OperatorBasis::Kernels) => "time of its kernels",
            PointBasis::Operator(OperatorBasis::WallTime) => "wall time on the CPU",
            PointBasis::Counters { tool, counted } => return write!(f, "counters of {tool} ({counted})"),
        };
        write!(f, "FLOPs and bytes from the model's shape, {duration}")
    }
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
    pub fn describe(&self) -> String {
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

/// The data of a roofline plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// The peaks, or why they are not known.
    pub peaks: Result<Peaks, String>,
    /// The SM clock, if it was read.
    pub clock_mhz: Option<f64>,
    pub points: Vec<Point>,
}

impl Roofline {
    /// A row per point.
    pub fn table(&self) -> Table {
        let data = ["flops", "bytes", "seconds", "flops_pct", "bytes_pct"].map(Column::data);
        let number = |title, key, unit| Column::number(title).key(key).unit(unit).tone(Tone::Number);
        let mut table = Table::new([
            Column::data("phase"),
            Column::data("name"),
            Column::text("").key("label"),
            number("FLOP/B", "flop_per_byte", Unit::None),
            number("FLOP/s", "flop_per_s", Unit::Scaled("")),
            number("B/s", "bytes_per_s", Unit::Scaled("")),
            number("of peak", "peak_pct", Unit::Percent),
            Column::text("class").key("class").tone(Tone::Number),
            number("time share", "time_pct", Unit::Percent),
            Column::data("basis"),
        ]);
        table.columns.extend(data);
        for point in &self.points {
            let Timed { flops, bytes, seconds } = point.timed;
            table.push(cells![
                point.phase,
                point.name.as_str(),
                point.label(),
                point.timed.flop_per_byte(),
                point.timed.flop_per_s(),
                point.timed.bytes_per_s(),
                point.share.map(|share| share.max_pct()),
                point.verdict.as_ref().map(|verdict| verdict.class.word()),
                point.time_pct,
                point.basis.to_string(),
                flops,
                bytes,
                seconds,
                point.share.map(|share| share.flops_pct),
                point.share.map(|share| share.bytes_pct),
            ]);
        }
        table
    }

    /// The ceilings at the clock of the stated peaks.
    pub fn stated(&self) -> Option<Roof> {
        self.peaks.as_ref().ok().map(Roof::stated)
    }

    /// The ceilings at the current clock.
    pub fn now(&self) -> Option<Roof> {
        Roof::at_clock(self.peaks.as_ref().ok()?, self.clock_mhz?)
    }

    /// The range of both axes in powers of ten: arithmetic intensity and FLOP/s.
    pub fn extent(&self) -> ([f64; 2], [f64; 2]) {
        let points =
            self.points.iter().filter_map(|p| Some((p.timed.flop_per_byte()?, p.timed.flop_per_s())));
        let ridges = [self.stated(), self.now()].into_iter().flatten().map(|roof| (roof.ridge(), roof.flops));
        let shown = |(x, y): &(f64, f64)| *x > 0.0 && *y > 0.0 && x.is_finite() && y.is_finite();
        let all: Vec<(f64, f64)> = points.chain(ridges).filter(shown).collect();
        if all.is_empty() {
            return ([-1.0, 3.0], [9.0, 12.0]);
        }
        let span = |values: &mut dyn Iterator<Item = f64>, margin: f64| {
            let none = [f64::INFINITY, f64::NEG_INFINITY];
            let [low, high] = values.fold(none, |[low, high], v| [low.min(v.log10()), high.max(v.log10())]);
            [low - 0.3, high + margin]
        };
        let [left, right] = span(&mut all.iter().map(|(x, _)| *x), 0.6);
        let [bottom, top] = span(&mut all.iter().map(|(_, y)| *y), 0.3);
        // The memory ceiling is drawn from an intensity of 0.1 on.
        ([left.min(-1.0), right.max(2.0)], [bottom, top])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classify::Class;

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
    fn estimates_use_the_rules_of_counters() {
        for (flops, bytes, us, wanted) in [
            (1.0, 80.0, 70.0, Class::Memory),
            (80.0, 20.0, 900.0, Class::Compute),
            (70.0, 75.0, 900.0, Class::Balanced),
            (1.0, 30.0, 40.0, Class::Latency),
            (0.1, 3.0, 2.4, Class::Launch),
            (1.0, 80.0, 2.4, Class::Memory),
        ] {
            let verdict = estimated("operator", &call(flops, bytes, us), &ROOF).unwrap();
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
    fn only_the_compute_ceiling_follows_the_clock() {
        let peaks = crate::peaks::peaks(Some("NVIDIA H200"), "bf16", Default::default()).unwrap();
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
            basis: PointBasis::Itl,
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
