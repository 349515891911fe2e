//! The rest between two jobs: for a time, or until the GPU is cool.

use std::time::{Duration, Instant};

use crate::{
    config::{HardwareConfig, RunConfig},
    telemetry::Thermometer,
};

/// How long to rest, as `hardware` says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rest {
    pub least: Duration,
    /// Rest on until the GPU is below this.
    pub below_c: Option<f64>,
    pub most: Duration,
}

/// What is known of the GPU's temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Heat {
    At(f32),
    /// The last look failed; the next may not.
    NotNow,
    /// It cannot be read at all.
    Unknown,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Rest,
    GoOn,
    /// It took too long to cool down.
    GoOnWarm,
}

impl Rest {
    pub fn of(hardware: &HardwareConfig) -> Rest {
        let least = Duration::from_secs_f64(hardware.cooldown_s);
        let most = Duration::from_secs_f64(hardware.cooldown_max_s).max(least);
        Rest { least, below_c: hardware.cooldown_until_c, most }
    }

    pub fn turn(&self, passed: Duration, heat: Heat) -> Turn {
        match (self.below_c, heat) {
            _ if passed < self.least => Turn::Rest,
            (None, _) | (_, Heat::Unknown) => Turn::GoOn,
            (Some(below), Heat::At(temp)) if f64::from(temp) < below => Turn::GoOn,
            _ if passed < self.most => Turn::Rest,
            _ => Turn::GoOnWarm,
        }
    }
}

/// A rest as it is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cooling {
    /// Until it is over, or may be where it depends on the temperature.
    pub left: Duration,
    /// Until it is over in any case.
    pub left_at_most: Duration,
    pub heat: Heat,
    pub below_c: Option<f64>,
}

impl Cooling {
    /// `cool-down 4 s`, `cool-down 54 °C to below 45 °C, at most 120 s`.
    pub fn words(&self) -> String {
        let secs = |d: Duration| d.as_secs_f64().ceil() as u64;
        let least = (!self.left.is_zero()).then(|| format!("{} s", secs(self.left)));
        let heat = match (self.below_c, self.heat) {
            (None, _) => None,
            (_, Heat::Unknown) => Some("no temperature".to_owned()),
            (_, Heat::NotNow) => Some("temperature not read".to_owned()),
            (Some(below), Heat::At(temp)) if f64::from(temp) < below => Some(format!("{temp:.0} °C")),
            (Some(below), Heat::At(temp)) => Some(format!("{temp:.0} °C to below {below} °C")),
        };
        let most = (self.left.is_zero() && self.below_c.is_some())
            .then(|| format!("at most {} s", secs(self.left_at_most)));
        let parts: Vec<String> = [least, heat, most].into_iter().flatten().collect();
        format!("cool-down {}", parts.join(", "))
    }
}

/// A rest under way.
pub(super) struct CoolDown {
    rest: Rest,
    begun: Instant,
    looked: Option<Instant>,
    thermometer: Option<Thermometer>,
    heat: Heat,
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

impl CoolDown {
    /// Begins the rest before a job of `config`; `last_temp_c` is what the GPU was at the end of the job before. What
    /// keeps the temperature from being read is the second part.
    pub(super) fn begin(config: &RunConfig, last_temp_c: Option<f32>) -> (CoolDown, Option<String>) {
        let rest = Rest::of(&config.hardware);
        let wanted = rest.below_c.map(|_| crate::run::probes::thermometer(config, last_temp_c));
        let (thermometer, trouble) = match wanted {
            None => (None, None),
            Some(Ok(thermometer)) => (Some(thermometer), None),
            Some(Err(absence)) => (None, Some(absence.to_string())),
        };
        let heat = if thermometer.is_none() && rest.below_c.is_some() { Heat::Unknown } else { Heat::NotNow };
        (CoolDown { rest, begun: Instant::now(), looked: None, thermometer, heat }, trouble)
    }

    /// Looks at the thermometer when it is time. A temperature that will not be read any more is told once.
    pub(super) fn look(&mut self, now: Instant) -> Option<String> {
        if self.looked.is_some_and(|looked| now - looked < BETWEEN_LOOKS) {
            return None;
        }
        self.looked = Some(now);
        match self.thermometer.as_mut()?.read() {
            Ok(temp) => {
                self.heat = temp.map_or(Heat::NotNow, Heat::At);
                None
            }
            Err(reason) => {
                (self.thermometer, self.heat) = (None, Heat::Unknown);
                Some(reason)
            }
        }
    }

    pub(super) fn turn(&self, now: Instant) -> Turn {
        self.rest.turn(now - self.begun, self.heat)
    }

    pub(super) fn rest(&self) -> Rest {
        self.rest
    }

    pub(super) fn cooling(&self, now: Instant) -> Cooling {
        let left = |until: Duration| until.saturating_sub(now - self.begun);
        Cooling {
            left: left(self.rest.least),
            left_at_most: left(self.rest.most),
            heat: self.heat,
            below_c: self.rest.below_c,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_lasts_as_long_as_it_has_to() {
        use Heat::{At, NotNow, Unknown};
        use Turn::{GoOn, GoOnWarm, Rest as Wait};
        // (below, seconds passed, heat, what to do); at least 5 s, at most 60 s
        let table = [
            (None, 4.9, NotNow, Wait),
            (None, 5.0, NotNow, GoOn),
            (Some(45.0), 4.9, At(40.0), Wait),
            (Some(45.0), 5.0, At(44.0), GoOn),
            (Some(45.0), 5.0, At(45.0), Wait),
            (Some(45.0), 59.9, At(50.0), Wait),
            (Some(45.0), 60.0, At(50.0), GoOnWarm),
            (Some(45.0), 59.9, NotNow, Wait),
            (Some(45.0), 60.0, NotNow, GoOnWarm),
            (Some(45.0), 4.9, Unknown, Wait),
            (Some(45.0), 5.0, Unknown, GoOn),
        ];
        for (below_c, passed, heat, wanted) in table {
            let rest = Rest { least: Duration::from_secs(5), below_c, most: Duration::from_secs(60) };
            assert_eq!(
                rest.turn(Duration::from_secs_f64(passed), heat),
                wanted,
                "{below_c:?} {passed} {heat:?}"
            );
        }
    }

    #[test]
    fn the_least_rest_wins_over_the_most() {
        let hardware = HardwareConfig {
            cooldown_s: 10.0,
            cooldown_until_c: Some(40.0),
            cooldown_max_s: 1.0,
            ..HardwareConfig::default()
        };
        let rest = Rest::of(&hardware);
        assert_eq!(rest.turn(Duration::from_secs(9), Heat::At(80.0)), Turn::Rest);
        assert_eq!(rest.turn(Duration::from_secs(10), Heat::At(80.0)), Turn::GoOnWarm);
    }

    #[test]
    fn what_is_waited_for_is_told() {
        let cooling = |left, heat, below_c| Cooling {
            left: Duration::from_millis(left),
            left_at_most: Duration::from_secs(60),
            heat,
            below_c,
        };
        let table = [
            (cooling(3200, Heat::NotNow, None), "cool-down 4 s"),
            (cooling(3200, Heat::Unknown, Some(45.0)), "cool-down 4 s, no temperature"),
            (cooling(3200, Heat::At(54.4), Some(45.0)), "cool-down 4 s, 54 °C to below 45 °C"),
            (cooling(3200, Heat::At(44.4), Some(45.0)), "cool-down 4 s, 44 °C"),
            (cooling(0, Heat::At(54.4), Some(45.0)), "cool-down 54 °C to below 45 °C, at most 60 s"),
        ];
        for (cooling, wanted) in table {
            assert_eq!(cooling.words(), wanted);
        }
    }
}
