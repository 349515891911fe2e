//! When requests are sent: the schedule of an open loop.

use std::time::Duration;

use llmprof_base::noise;

/// The gaps between requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gaps {
    Constant,
    /// Exponential gaps, as in a Poisson process.
    Poisson,
    /// Gamma with this shape: below 1 burstier than Poisson, above 1 more even.
    Gamma {
        shape: f64,
    },
}

impl Gaps {
    /// The shape of gamma gaps: 1 for exponential ones. Equal gaps have none.
    pub fn burstiness(self) -> Option<f64> {
        match self {
            Gaps::Constant => None,
            Gaps::Poisson => Some(1.0),
            Gaps::Gamma { shape } => Some(shape),
        }
    }
}

/// An endless schedule: the time of each request after the start.
#[derive(Debug, Clone)]
pub struct Schedule {
    gaps: Gaps,
    /// Requests per second after the ramp.
    rate: f64,
    /// Seconds in which the rate grows from a tenth to its value.
    ramp_s: f64,
    seed: u64,
    drawn: u64,
    at_s: f64,
}

impl Schedule {
    pub fn new(gaps: Gaps, rate: f64, ramp_s: f64, seed: u64) -> Schedule {
        Schedule { gaps, rate, ramp_s, seed, drawn: 0, at_s: 0.0 }
    }

    fn unit(&mut self) -> f64 {
        self.drawn += 1;
        noise::unit(self.seed, self.drawn)
    }

    /// A normal variate, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// A gamma variate with mean 1, by Marsaglia and Tsang.
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = (1.0 - self.unit()).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * (shape + 1.0) / shape * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v / shape;
            }
        }
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = self.at_s;
        let grown = if self.ramp_s > 0.0 { (now / self.ramp_s).clamp(0.1, 1.0) } else { 1.0 };
        let gap = match self.gaps {
            Gaps::Constant => 1.0,
            Gaps::Poisson => -(1.0 - self.unit()).ln(),
            Gaps::Gamma { shape } => self.gamma(shape),
        };
        self.at_s += gap / (self.rate * grown);
        Some(Duration::from_secs_f64(now.min(1e9)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and coefficient of variation of many gaps.
    fn moments(gaps: Gaps) -> (f64, f64) {
        let times: Vec<f64> =
            Schedule::new(gaps, 10.0, 0.0, 3).take(20_001).map(|t| t.as_secs_f64()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn gaps_have_the_moments_of_their_distribution() {
        for (gaps, variation) in [
            (Gaps::Constant, 0.0),
            (Gaps::Poisson, 1.0),
            (Gaps::Gamma { shape: 0.25 }, 2.0),
            (Gaps::Gamma { shape: 4.0 }, 0.5),
        ] {
            let (mean, cv) = moments(gaps);
            assert!((mean - 0.1).abs() < 0.005, "{gaps:?}: {mean}");
            assert!((cv - variation).abs() < 0.06, "{gaps:?}: {cv}");
        }
    }

    #[test]
    fn a_ramp_begins_slowly() {
        let times: Vec<f64> =
            Schedule::new(Gaps::Constant, 10.0, 10.0, 0).take(500).map(|t| t.as_secs_f64()).collect();
        let within = |from: f64, to: f64| times.iter().filter(|t| (from..to).contains(*t)).count();
        assert!(within(0.0, 2.0) < within(8.0, 10.0) / 3);
        assert_eq!(within(20.0, 21.0), 10);
        assert_eq!(times[0], 0.0);
    }
}
