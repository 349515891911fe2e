//! Numbers as text: few digits, always a unit.

use std::time::Duration;

/// The unit of a number, and the digits with which it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// [`three_digits`]; a count is written in full.
    #[default]
    None,
    /// A count with commas.
    Count,
    /// [`millis`].
    Millis,
    /// Microseconds, as [`millis`].
    Micros,
    /// A share of 1, as [`percent`].
    Share,
    /// A share of 1, of which a tiny one is not 0, as [`share_percent`].
    TinyShare,
    Percent,
    /// [`three_digits`] and this unit.
    Of(&'static str),
    /// This unit with a decimal prefix, as [`scaled`].
    Scaled(&'static str),
    /// A whole number of this unit.
    Whole(&'static str),
}

impl Unit {
    pub fn text(self, value: f64) -> String {
        match self {
            Unit::None => three_digits(value),
            Unit::Count => grouped(value.round() as i64),
            Unit::Millis => millis(value),
            Unit::Micros => millis(value / 1e3),
            Unit::Share => percent(100.0 * value),
            Unit::TinyShare => share_percent(100.0 * value),
            Unit::Percent => percent(value),
            Unit::Of(unit) => format!("{} {unit}", three_digits(value)),
            Unit::Scaled(unit) => scaled(value, unit).trim_end().to_owned(),
            Unit::Whole(unit) => format!("{value:.0} {unit}"),
        }
    }
}

/// About three significant digits: `0.412`, `3.78`, `43.1`, `264`, `47,600`.
pub fn three_digits(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if !value.is_finite() => "–".into(),
        m if m >= 999.5 => grouped(value.round() as i64),
        m if m >= 99.95 => format!("{value:.0}"),
        m if m >= 9.995 => format!("{value:.1}"),
        m if m >= 0.9995 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

/// With commas between thousands.
pub fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if value < 0 {
        out.push('-');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// With `digits` decimals, for a column of one precision: `8,068.25`.
pub fn fixed(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}{fraction}", whole.parse().map_or_else(|_| whole.to_owned(), grouped))
}

/// `15.9 GB`, decimal.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, "B")
}

pub const GIB: f64 = (1u64 << 30) as f64;

/// `14.8 GiB`, as nvidia-smi counts memory.
pub fn binary_bytes(n: u64) -> String {
    match n as f64 {
        n if n >= 0.9995 * GIB => format!("{} GiB", three_digits(n / GIB)),
        n => format!("{} MiB", three_digits(n / (GIB / 1024.0))),
    }
}

/// `4.30 TB/s`, decimal.
pub fn scaled(value: f64, unit: &str) -> String {
    const STEPS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    for (scale, prefix) in STEPS {
        if value.abs() >= scale * 0.9995 {
            return format!("{} {prefix}{unit}", three_digits(value / scale));
        }
    }
    format!("{} {unit}", three_digits(value))
}

/// A percentage to two significant digits and at most two decimals, without its unit: `0.21`, `3.8`, `43`, `1,250`.
pub fn percent_digits(pct: impl Into<f64>) -> String {
    let pct = pct.into();
    match pct.abs() {
        _ if !pct.is_finite() => "–".into(),
        p if p < 0.005 => "0".into(),
        p if p < 0.995 => format!("{pct:.2}"),
        p if p < 9.95 => format!("{pct:.1}"),
        _ => grouped(pct.round() as i64),
    }
}

/// `43 %`, with the digits of [`percent_digits`].
pub fn percent(pct: impl Into<f64>) -> String {
    percent_digits(pct) + " %"
}

/// A share as [`percent`] writes it; a tiny share is not shown as 0.
pub fn share_percent(pct: f64) -> String {
    if pct > 0.0 && pct < 0.005 { "<0.01 %".into() } else { percent(pct) }
}

/// A relative change with its sign: `+3.8 %`.
pub fn percent_change(pct: f64) -> String {
    let sign = if pct >= 0.005 { "+" } else { "" };
    format!("{sign}{}", percent(pct))
}

/// A ratio as a relative change: `1.038` is `+3.8 %`.
pub fn ratio_change(ratio: f64) -> String {
    percent_change(100.0 * (ratio - 1.0))
}

/// A duration given in milliseconds, in the unit that fits it.
pub fn millis(ms: f64) -> String {
    match ms {
        m if m >= 10_000.0 => format!("{} s", three_digits(ms / 1e3)),
        m if m < 0.1 && m > 0.0 => format!("{} µs", three_digits(ms * 1e3)),
        _ => format!("{} ms", three_digits(ms)),
    }
}

/// A rounded duration: `40 s`, `12 min`, `3.5 h`.
pub fn rough_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{} s", s.ceil().max(1.0)),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A duration as on a clock: `03:41`, `1:02:05`.
pub fn clock(elapsed: Duration) -> String {
    let secs = elapsed.as_secs();
    match secs / 3600 {
        0 => format!("{:02}:{:02}", secs / 60, secs % 60),
        hours => format!("{hours}:{:02}:{:02}", secs / 60 % 60, secs % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits_and_a_unit() {
        for (value, want) in [
            (0.0, "0"),
            (0.0412, "0.041"),
            (0.9996, "1.00"),
            (3.784, "3.78"),
            (43.12, "43.1"),
            (263.7, "264"),
            (999.7, "1,000"),
            (47_612.0, "47,612"),
            (-3.784, "-3.78"),
        ] {
            assert_eq!(three_digits(value), want);
        }
        assert_eq!(grouped(-1_234_567), "-1,234,567");
        assert_eq!(
            (fixed(8068.25, 1), fixed(-0.496, 2), fixed(999.6, 0)),
            ("8,068.2".into(), "-0.50".into(), "1,000".into())
        );
        assert_eq!(bytes(30_462_466_048), "30.5 GB");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(millis(0.05), "50.0 µs");
        assert_eq!(millis(12_345.0), "12.3 s");
        assert_eq!(clock(Duration::from_secs(221)), "03:41");
        assert_eq!(clock(Duration::from_secs(3725)), "1:02:05");
        assert_eq!(three_digits(f64::NAN), "–");
    }

    #[test]
    fn tiny_shares_are_not_zero() {
        assert_eq!([0.0, 0.004, 0.005, 43.1].map(share_percent), ["0 %", "<0.01 %", "0.01 %", "43 %"]);
    }

    #[test]
    fn percentages_have_two_significant_digits() {
        for (pct, want) in [
            (0.0, "0 %"),
            (-0.004, "0 %"),
            (0.213, "0.21 %"),
            (0.996, "1.0 %"),
            (3.84, "3.8 %"),
            (9.96, "10 %"),
            (43.12, "43 %"),
            (100.0, "100 %"),
            (1250.4, "1,250 %"),
            (f64::INFINITY, "– %"),
        ] {
            assert_eq!(percent(pct), want);
        }
        assert_eq!(percent_change(3.84), "+3.8 %");
        assert_eq!(percent_change(-12.6), "-13 %");
        assert_eq!(percent_change(0.004), "0 %");
        assert_eq!(ratio_change(0.962), "-3.8 %");
    }
}
