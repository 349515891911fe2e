//! Heat soak: whether the GPU has reached a thermal steady state, and when it would slow down if not.

use std::collections::VecDeque;

use serde::Serialize;

use crate::{base::units::percent, event::Stamp};

/// Samples are averaged per second; trends are computed over so many seconds.
const WINDOW_S: usize = 45;
/// The initial speed is that of the first seconds, before the GPU is warm.
const BURST_S: f64 = 20.0;
/// A temperature that changes less is steady.
const STEADY_C_PER_MIN: f64 = 1.0;
/// A clock that changes by a smaller share within the window is steady.
const STEADY_CLOCK: f64 = 0.02;
/// The forecast uses the trend of the last seconds.
const RECENT_S: usize = 15;
/// A slower rise gives no forecast.
const RISING_C_PER_MIN: f64 = 0.5;
/// The longest forecast.
const MAX_FORECAST_S: f64 = 3600.0;

/// One second: sums and counts of its samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Second {
    /// Its number since the start of the run.
    index: u64,
    temp: (f64, u32),
    clock: (f64, u32),
    tokens: u64,
    token_ns: u64,
}

/// A fold over samples and tokens, in bounded memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeatSoak {
    seconds: VecDeque<Second>,
    loaded_since: Option<Stamp>,
    burst: (u64, u64),
}

/// The thermal state of a GPU under load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Heat {
    pub temp_c: f64,
    pub c_per_min: f64,
    /// The rise that the forecast uses: the slower of the window's and that of its end.
    pub rise_c_per_min: f64,
    /// Temperature and clock have reached a steady state.
    pub steady: bool,
    /// Seconds until the GPU slows down, extrapolated.
    pub slowdown_in_s: Option<f64>,
    /// Tokens per second of one sequence at the start, and over the window.
    pub burst_tok_s: Option<f64>,
    pub sustained_tok_s: Option<f64>,
}

impl HeatSoak {
    /// A sample of the GPU, under load or idle.
    pub fn sample(&mut self, t: Stamp, temp_c: Option<f64>, clock_mhz: Option<f64>, loaded: bool) {
        if !loaded && self.loaded_since.is_none() {
            return;
        }
        self.loaded_since.get_or_insert(t);
        let second = self.second(t);
        let add = |(sum, n): &mut (f64, u32), value: Option<f64>| {
            if let Some(value) = value {
                (*sum, *n) = (*sum + value, *n + 1);
            }
        };
        add(&mut second.temp, temp_c);
        add(&mut second.clock, clock_mhz);
    }

    /// A decode step of one sequence took `gap_ns`.
    pub fn token(&mut self, t: Stamp, gap_ns: u64) {
        let since = *self.loaded_since.get_or_insert(t);
        if t.since(since).as_secs_f64() <= BURST_S {
            self.burst = (self.burst.0 + 1, self.burst.1 + gap_ns);
        }
        let second = self.second(t);
        (second.tokens, second.token_ns) = (second.tokens + 1, second.token_ns + gap_ns);
    }

    fn second(&mut self, t: Stamp) -> &mut Second {
        let index = t.0 / 1_000_000_000;
        if self.seconds.back().is_none_or(|last| last.index < index) {
            if self.seconds.len() == WINDOW_S {
                self.seconds.pop_front();
            }
            self.seconds.push_back(Second { index, ..Second::default() });
        }
        self.seconds.back_mut().expect("one was pushed")
    }

    /// The state over the window; `None` before there are enough samples.
    pub fn heat(&self, slowdown_temp_c: Option<u32>) -> Option<Heat> {
        let points = |of: fn(&Second) -> (f64, u32)| -> Vec<(f64, f64)> {
            let seconds = self.seconds.iter().map(|second| (second.index as f64, of(second)));
            seconds.filter(|(_, (_, n))| *n > 0).map(|(x, (sum, n))| (x, sum / f64::from(n))).collect()
        };
        let temps = points(|second| second.temp);
        let clocks = points(|second| second.clock);
        let (temp_slope, temp_mean) = linear_fit(&temps)?;
        let (_, last) = *temps.last()?;
        let c_per_min = 60.0 * temp_slope;
        let full = temps.len() >= WINDOW_S - 2;
        let clock_moves =
            linear_fit(&clocks).map_or(0.0, |(slope, mean)| (slope * WINDOW_S as f64 / mean).abs());
        // Compares the mean of the window with its end: a line through noise may be flat by chance.
        let settled = (last - temp_mean).abs() <= 1.5;
        let recent =
            linear_fit(&temps[temps.len().saturating_sub(RECENT_S)..]).map_or(0.0, |(slope, _)| slope);
        // The slower of the two: close to a steady state, the rise slows down.
        let rise = temp_slope.min(recent);
        let rising = full && 60.0 * rise >= RISING_C_PER_MIN;
        let slowdown_in_s = slowdown_temp_c
            .map(|limit| (f64::from(limit) - last) / rise)
            .filter(|secs| rising && (0.0..MAX_FORECAST_S).contains(secs));
        let rate = |n: u64, ns: u64| (n > 0 && ns > 0).then(|| n as f64 * 1e9 / ns as f64);
        let (n, ns) =
            self.seconds.iter().fold((0, 0), |(n, ns), second| (n + second.tokens, ns + second.token_ns));
        Some(Heat {
            temp_c: last,
            c_per_min,
            rise_c_per_min: 60.0 * rise,
            steady: full && c_per_min.abs() < STEADY_C_PER_MIN && settled && clock_moves < STEADY_CLOCK,
            slowdown_in_s,
            burst_tok_s: rate(self.burst.0, self.burst.1),
            sustained_tok_s: rate(n, ns).filter(|_| full),
        })
    }
}

/// Slope of the least-squares line through the points, and their mean; `None` for fewer than five.
fn linear_fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    if points.len() < 5 {
        return None;
    }
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let variance: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let covariance: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (variance > 0.0).then(|| (covariance / variance, y))
}

impl Heat {
    /// A sentence, where there is something to report.
    pub fn describe(&self) -> Option<String> {
        let change =
            self.burst_tok_s.zip(self.sustained_tok_s).map(|(burst, sustained)| sustained / burst - 1.0);
        let speed = change.filter(|change| *change < -0.02).map(|change| {
            format!(" The sustained speed is {} below the first {BURST_S:.0} s.", percent(-100.0 * change))
        });
        let speed = speed.unwrap_or_default();
        match (self.steady, self.slowdown_in_s) {
            (_, Some(secs)) => Some(format!(
                "At {:.0} °C and {:+.1} °C/min the GPU would slow down in about {} (extrapolated).{speed}",
                self.temp_c,
                self.rise_c_per_min,
                duration(secs)
            )),
            (true, None) => Some(format!("The temperature is steady at {:.0} °C.{speed}", self.temp_c)),
            (false, None) if !speed.is_empty() => Some(speed.trim().to_owned()),
            _ => None,
        }
    }
}

fn duration(secs: f64) -> String {
    if secs < 90.0 { format!("{secs:.0} s") } else { format!("{:.0} min", secs / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soaked(temp: impl Fn(f64) -> f64, clock: impl Fn(f64) -> f64, secs: u32) -> HeatSoak {
        let mut soak = HeatSoak::default();
        for tenth in 0..secs * 10 {
            let s = f64::from(tenth) / 10.0;
            soak.sample(Stamp::from_secs_f64(s), Some(temp(s)), Some(clock(s)), true);
            soak.token(Stamp::from_secs_f64(s), (4e6 * 1980.0 / clock(s)) as u64);
        }
        soak
    }

    #[test]
    fn a_rising_temperature_has_a_forecast_and_a_steady_one_does_not() {
        let rising = soaked(|s| 50.0 + s / 10.0, |_| 1980.0, 100).heat(Some(92)).unwrap();
        assert!(!rising.steady && (rising.c_per_min - 6.0).abs() < 0.1, "{rising:?}");
        assert!((rising.slowdown_in_s.unwrap() - 320.0).abs() < 10.0, "{rising:?}");
        assert!(rising.describe().unwrap().contains("5 min"), "{:?}", rising.describe());
        let soaked = soaked(|s| 80.0 - 30.0 * (-s / 30.0).exp(), |_| 1980.0, 300).heat(Some(92)).unwrap();
        assert!(soaked.steady && soaked.slowdown_in_s.is_none(), "{soaked:?}");
        assert_eq!(soaked.describe().unwrap(), "The temperature is steady at 80 °C.");
    }

    #[test]
    fn a_short_run_is_not_steady() {
        assert!(HeatSoak::default().heat(None).is_none());
        let short = soaked(|_| 60.0, |_| 1980.0, 20).heat(Some(92)).unwrap();
        assert!(!short.steady && short.sustained_tok_s.is_none(), "{short:?}");
    }

    #[test]
    fn burst_and_sustained_speed_are_distinguished() {
        let slower =
            soaked(|_| 88.0, |s| if s < 30.0 { 1980.0 } else { 1584.0 }, 120).heat(Some(92)).unwrap();
        assert!((slower.sustained_tok_s.unwrap() / slower.burst_tok_s.unwrap() - 0.8).abs() < 0.01);
        assert!(slower.describe().unwrap().contains("20 % below"), "{:?}", slower.describe());
    }

    #[test]
    fn a_falling_clock_is_not_steady() {
        let falling = soaked(|_| 88.0, |s| 1980.0 - 3.0 * s, 120).heat(Some(92)).unwrap();
        assert!(!falling.steady, "{falling:?}");
    }
}
