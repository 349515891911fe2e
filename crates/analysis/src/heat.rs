//! Heat soak: whether the GPU has reached a thermal steady state, and when it would slow down if not.

use std::{collections::VecDeque, fmt};

use serde::Serialize;

use llmprof_base::units::percent;
use llmprof_event::Stamp;

/// Seconds over which steady state is decided; samples are averaged per second.
const WINDOW_S: usize = 45;
/// Seconds that are kept for the forecast: several time constants of a cooler.
const KEPT_S: usize = 300;
/// The initial speed is that of the first seconds, before the GPU is warm.
const BURST_S: f64 = 20.0;
/// A temperature with a smaller change is steady.
const STEADY_C_PER_MIN: f64 = 1.0;
/// A clock that changes by a smaller share within the window is steady.
const STEADY_CLOCK: f64 = 0.02;
/// Fewer seconds give no forecast, however short the time constant.
const MIN_FORECAST_S: usize = 30;
/// Temperatures are integers; a fit with a larger error is rejected, because the load has changed.
const MAX_MISFIT_C: f64 = 1.0;
/// A smaller rise under load gives no forecast.
const MIN_RISE_C: f64 = 3.0;
/// The time constants to try, from that of the die to that of a heavy cooler, each longer than the previous one by this
/// factor.
const TIME_CONSTANTS_S: (f64, f64, f64) = (5.0, 600.0, 1.08);
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
    /// Temperature and clock have reached a steady state.
    pub steady: bool,
    /// The forecast of the temperature under this load, if there is one.
    pub forecast: Option<Forecast>,
    /// Tokens per second of one sequence at the start, and over the window.
    pub burst_tok_s: Option<f64>,
    pub sustained_tok_s: Option<f64>,
}

/// The end of an exponential approach, fitted to the temperatures since the load began. Ranges contain the ends that
/// fit about as well (95 %).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Forecast {
    pub final_c: f64,
    pub final_range_c: (f64, f64),
    pub time_constant_s: f64,
    /// The slowdown temperature of the GPU.
    pub limit_c: Option<f64>,
    /// Seconds until then, from and to, if the whole range is above the limit.
    pub slowdown_in_s: Option<(f64, f64)>,
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
            if self.seconds.len() == KEPT_S {
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
            let recent = self.seconds.len().saturating_sub(WINDOW_S);
            let seconds = seconds.skip(recent);
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
        let rate = |n: u64, ns: u64| (n > 0 && ns > 0).then(|| n as f64 * 1e9 / ns as f64);
        let (n, ns) = self
            .seconds
            .iter()
            .rev()
            .take(WINDOW_S)
            .fold((0, 0), |(n, ns), second| (n + second.tokens, ns + second.token_ns));
        Some(Heat {
            temp_c: last,
            c_per_min,
            steady: full && c_per_min.abs() < STEADY_C_PER_MIN && settled && clock_moves < STEADY_CLOCK,
            forecast: self.forecast(slowdown_temp_c),
            burst_tok_s: rate(self.burst.0, self.burst.1),
            sustained_tok_s: rate(n, ns).filter(|_| full),
        })
    }
}

impl HeatSoak {
    /// A cooler under constant load approaches its final temperature exponentially. The fit needs a time constant of data.
    fn forecast(&self, limit_c: Option<u32>) -> Option<Forecast> {
        let temps: Vec<(f64, f64)> = self
            .seconds
            .iter()
            .filter(|second| second.temp.1 > 0)
            .map(|second| (second.index as f64, second.temp.0 / f64::from(second.temp.1)))
            .collect();
        let ((begin, first), (end, last)) = (*temps.first()?, *temps.last()?);
        if temps.len() < MIN_FORECAST_S || last - first < MIN_RISE_C {
            return None;
        }
        let (from, to, factor) = TIME_CONSTANTS_S;
        let constants = std::iter::successors(Some(from), |s| Some(s * factor)).take_while(|s| *s <= to);
        let fits: Vec<Approach> =
            constants.filter_map(|time_constant| Approach::fitted(&temps, time_constant)).collect();
        let best = fits.iter().min_by(|a, b| a.squares.total_cmp(&b.squares))?;
        let n = temps.len() as f64;
        if end - begin < best.time_constant || best.squares / n > MAX_MISFIT_C * MAX_MISFIT_C {
            return None;
        }
        // Neighbouring seconds are not independent: the reading stays the same for several.
        let independent = (n / 5.0 - 3.0).max(1.0);
        let misfit = best.squares.max(n / 12.0);
        let as_good: Vec<&Approach> =
            fits.iter().filter(|fit| fit.squares <= misfit * (1.0 + 3.84 / independent)).collect();
        // The longest time constant fits as well: the end is not known.
        if as_good.iter().any(|fit| fit.time_constant * factor > to) {
            return None;
        }
        let range = |of: &dyn Fn(&Approach) -> f64| {
            let values = as_good.iter().map(|fit| of(fit)).chain([of(best)]);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
        };
        let final_range_c = range(&|fit| fit.end_c);
        let limit_c = limit_c.map(f64::from);
        let slowdown_in_s = limit_c.filter(|limit| final_range_c.0 > *limit && last < *limit).map(|limit| {
            range(&|fit| (fit.time_constant * ((fit.end_c - last) / (fit.end_c - limit)).ln()).max(0.0))
        });
        Some(Forecast {
            final_c: best.end_c,
            final_range_c,
            time_constant_s: best.time_constant,
            limit_c,
            slowdown_in_s: slowdown_in_s.filter(|(_, late)| *late < MAX_FORECAST_S),
        })
    }
}

/// `end_c - rise · exp(-t / time_constant)`.
#[derive(Debug, Clone, Copy)]
struct Approach {
    time_constant: f64,
    end_c: f64,
    squares: f64,
}

impl Approach {
    /// By least squares for a given time constant; `None` if the temperature does not rise.
    fn fitted(points: &[(f64, f64)], time_constant: f64) -> Option<Approach> {
        let begin = points.first()?.0;
        let curve: Vec<(f64, f64)> =
            points.iter().map(|(t, temp)| ((-(t - begin) / time_constant).exp(), *temp)).collect();
        let (slope, mean) = linear_fit(&curve)?;
        let x = curve.iter().map(|(x, _)| x).sum::<f64>() / curve.len() as f64;
        let end_c = mean - slope * x;
        let squares = curve.iter().map(|(x, y)| (y - end_c - slope * x).powi(2)).sum();
        (slope < 0.0).then_some(Approach { time_constant, end_c, squares })
    }
}

impl Forecast {
    /// Whether a slowdown is forecast.
    pub fn slows_down(&self) -> bool {
        self.slowdown_in_s.is_some()
    }
}

impl fmt::Display for Forecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = self.final_range_c;
        write!(
            f,
            "Under this load the temperature approaches {:.0} °C ({low:.0} to {high:.0} °C, ",
            self.final_c
        )?;
        write!(f, "fitted with a time constant of {:.0} s)", self.time_constant_s)?;
        match (self.limit_c, self.slowdown_in_s) {
            (Some(limit), Some((early, late))) => write!(
                f,
                ": at {limit:.0} °C the GPU slows down, in {} to {}.",
                duration(early),
                duration(late)
            ),
            (Some(limit), None) if high < limit => {
                write!(f, ", below the {limit:.0} °C at which the GPU slows down.")
            }
            _ => f.write_str("."),
        }
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
    /// A sentence, if there is something to report.
    pub fn describe(&self) -> Option<String> {
        let change =
            self.burst_tok_s.zip(self.sustained_tok_s).map(|(burst, sustained)| sustained / burst - 1.0);
        let speed = change.filter(|change| *change < -0.02).map(|change| {
            format!(" The sustained speed is {} below the first {BURST_S:.0} s.", percent(-100.0 * change))
        });
        let speed = speed.unwrap_or_default();
        match (self.forecast, self.steady) {
            (Some(forecast), _) if forecast.slows_down() => Some(format!("{forecast}{speed}")),
            (_, true) => Some(format!("The temperature is steady at {:.0} °C.{speed}", self.temp_c)),
            (Some(forecast), false) => Some(format!("{forecast}{speed}")),
            (None, false) if !speed.is_empty() => Some(speed.trim().to_owned()),
            (None, false) => None,
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
    fn a_temperature_that_approaches_the_limit_has_a_forecast() {
        let approach = |end: f64, tau: f64| move |s: f64| (end - (end - 35.0) * (-s / tau).exp()).round();
        let hot = soaked(approach(100.0, 60.0), |_| 1980.0, 90).heat(Some(92)).unwrap();
        let forecast = hot.forecast.unwrap();
        assert!((forecast.final_c - 100.0).abs() < 2.0, "{forecast:?}");
        let (low, high) = forecast.final_range_c;
        assert!(low <= 100.0 && high >= 100.0 && high - low < 12.0, "{forecast:?}");
        // It is at 92 °C after 126 s; 90 s have passed.
        let (early, late) = forecast.slowdown_in_s.unwrap();
        assert!(early <= 36.0 && (36.0..80.0).contains(&late), "{forecast:?}");
        assert!(hot.describe().unwrap().contains("at 92 °C the GPU slows down, in"), "{:?}", hot.describe());
    }

    #[test]
    fn a_temperature_that_stays_below_the_limit_is_no_alarm() {
        // As an H200 in its first seconds under load: 5 °C per minute, and never above 60 °C.
        let approach = |s: f64| (58.0 - 20.0 * (-s / 40.0).exp()).round();
        for seconds in [15, 29] {
            assert_eq!(soaked(approach, |_| 1980.0, seconds).heat(Some(92)).unwrap().forecast, None);
        }
        let cool = soaked(approach, |_| 1980.0, 80).heat(Some(92)).unwrap();
        let forecast = cool.forecast.unwrap();
        assert!(!forecast.slows_down() && (forecast.final_c - 58.0).abs() < 2.0, "{forecast:?}");
        assert!(forecast.to_string().ends_with("below the 92 °C at which the GPU slows down."), "{forecast}");
        let steady = soaked(|s| 80.0 - 30.0 * (-s / 30.0).exp(), |_| 1980.0, 300).heat(Some(92)).unwrap();
        assert!(steady.steady, "{steady:?}");
        assert_eq!(steady.describe().unwrap(), "The temperature is steady at 80 °C.");
    }

    #[test]
    fn other_temperatures_have_no_forecast() {
        // Before its time constant, a straight line, and a load that changes.
        let slow = |s: f64| 95.0 - 60.0 * (-s / 300.0).exp();
        let straight = |s: f64| 40.0 + s / 10.0;
        let changing = |s: f64| if (s as u32 / 40).is_multiple_of(2) { 40.0 } else { 60.0 };
        assert_eq!(soaked(slow, |_| 1980.0, 60).heat(Some(92)).unwrap().forecast, None);
        assert_eq!(soaked(straight, |_| 1980.0, 120).heat(Some(92)).unwrap().forecast, None);
        assert_eq!(soaked(changing, |_| 1980.0, 140).heat(Some(92)).unwrap().forecast, None);
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
