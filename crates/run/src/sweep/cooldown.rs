//! The cool-down between two jobs: for a time, or until the GPU is below a temperature.

use std::time::{Duration, Instant};

use crate::probes;
use llmprof_config::{HardwareConfig, RunConfig};
use llmprof_event::Device;
use llmprof_record::sweep::{CooldownStatus, Temperature};
use llmprof_sources::telemetry::Thermometer;

/// How long to wait, from `hardware`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CooldownRule {
    pub min: Duration,
    /// Wait until the GPU is below this.
    pub below_c: Option<f64>,
    pub max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CooldownStep {
    Wait,
    Proceed,
    /// The maximum pause is over, and the GPU is not cool.
    ProceedWarm,
}

/// The pause after a job on a GPU if `hardware.cooldown_s` is null.
const AFTER_GPU_S: f64 = 5.0;

impl CooldownRule {
    /// The rule after a job on `last`. Simulated and CPU jobs need no cool-down.
    pub fn new(hardware: &HardwareConfig, last: &Device) -> CooldownRule {
        let default = if last.is_cuda() { AFTER_GPU_S } else { 0.0 };
        let min = Duration::from_secs_f64(hardware.cooldown_s.unwrap_or(default));
        let max = Duration::from_secs_f64(hardware.cooldown_max_s).max(min);
        CooldownRule { min, below_c: hardware.cooldown_until_c, max }
    }

    pub fn step(&self, elapsed: Duration, temperature: Temperature) -> CooldownStep {
        match (self.below_c, temperature) {
            _ if elapsed < self.min => CooldownStep::Wait,
            (None, _) | (_, Temperature::Unavailable) => CooldownStep::Proceed,
            (Some(below), Temperature::Celsius(temp)) if f64::from(temp) < below => CooldownStep::Proceed,
            _ if elapsed < self.max => CooldownStep::Wait,
            _ => CooldownStep::ProceedWarm,
        }
    }
}

/// A cool-down in progress.
pub(super) struct Cooldown {
    rule: CooldownRule,
    started: Instant,
    polled: Option<Instant>,
    thermometer: Option<Thermometer>,
    temperature: Temperature,
}

const POLL_INTERVAL: Duration = Duration::from_millis(500);

impl Cooldown {
    /// Starts the cool-down before a job of `config`, after a job on `last`. `last_temp_c` is the temperature at the
    /// end of that job. The second value is the reason why the temperature cannot be read.
    pub(super) fn start(
        config: &RunConfig,
        last: &Device,
        last_temp_c: Option<f32>,
    ) -> (Cooldown, Option<String>) {
        let rule = CooldownRule::new(&config.hardware, last);
        let (thermometer, temperature, unavailable) = match rule.below_c {
            None => (None, Temperature::NotRead, None),
            Some(_) => match probes::thermometer(config, last_temp_c) {
                Ok(thermometer) => (Some(thermometer), Temperature::NotRead, None),
                Err(absence) => (None, Temperature::Unavailable, Some(absence.to_string())),
            },
        };
        (Cooldown { rule, started: Instant::now(), polled: None, thermometer, temperature }, unavailable)
    }

    /// Reads the temperature when it is due. Returns the reason when it can no longer be read.
    pub(super) fn poll(&mut self, now: Instant) -> Option<String> {
        if self.polled.is_some_and(|polled| now - polled < POLL_INTERVAL) {
            return None;
        }
        self.polled = Some(now);
        match self.thermometer.as_mut()?.read() {
            Ok(temp) => {
                self.temperature = temp.map_or(Temperature::NotRead, Temperature::Celsius);
                None
            }
            Err(reason) => {
                (self.thermometer, self.temperature) = (None, Temperature::Unavailable);
                Some(reason)
            }
        }
    }

    pub(super) fn step(&self, now: Instant) -> CooldownStep {
        self.rule.step(now - self.started, self.temperature)
    }

    pub(super) fn rule(&self) -> CooldownRule {
        self.rule
    }

    pub(super) fn status(&self, now: Instant) -> CooldownStatus {
        let left = |until: Duration| until.saturating_sub(now - self.started);
        CooldownStatus {
            left: left(self.rule.min),
            left_at_most: left(self.rule.max),
            temperature: self.temperature,
            below_c: self.rule.below_c,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cooldown_ends_between_its_limits() {
        use CooldownStep::{Proceed, ProceedWarm, Wait};
        use Temperature::{Celsius, NotRead, Unavailable};
        // (below, seconds elapsed, temperature, step); at least 5 s, at most 60 s
        let table = [
            (None, 4.9, NotRead, Wait),
            (None, 5.0, NotRead, Proceed),
            (Some(45.0), 4.9, Celsius(40.0), Wait),
            (Some(45.0), 5.0, Celsius(44.0), Proceed),
            (Some(45.0), 5.0, Celsius(45.0), Wait),
            (Some(45.0), 59.9, Celsius(50.0), Wait),
            (Some(45.0), 60.0, Celsius(50.0), ProceedWarm),
            (Some(45.0), 59.9, NotRead, Wait),
            (Some(45.0), 60.0, NotRead, ProceedWarm),
            (Some(45.0), 4.9, Unavailable, Wait),
            (Some(45.0), 5.0, Unavailable, Proceed),
        ];
        for (below_c, elapsed, temperature, wanted) in table {
            let rule = CooldownRule { min: Duration::from_secs(5), below_c, max: Duration::from_secs(60) };
            assert_eq!(
                rule.step(Duration::from_secs_f64(elapsed), temperature),
                wanted,
                "{below_c:?} {elapsed} {temperature:?}"
            );
        }
    }

    #[test]
    fn the_minimum_wins_over_the_maximum() {
        let hardware = HardwareConfig {
            cooldown_s: Some(10.0),
            cooldown_until_c: Some(40.0),
            cooldown_max_s: 1.0,
            ..HardwareConfig::default()
        };
        let rule = CooldownRule::new(&hardware, &Device::Cpu);
        assert_eq!(rule.step(Duration::from_secs(9), Temperature::Celsius(80.0)), CooldownStep::Wait);
        assert_eq!(rule.step(Duration::from_secs(10), Temperature::Celsius(80.0)), CooldownStep::ProceedWarm);
    }

    #[test]
    fn only_a_gpu_is_left_to_cool() {
        let wait = |cooldown_s, last: Device| {
            let hardware = HardwareConfig { cooldown_s, ..HardwareConfig::default() };
            CooldownRule::new(&hardware, &last).min.as_secs_f64()
        };
        assert_eq!([Device::Cpu, Device::Sim, Device::Cuda(0)].map(|last| wait(None, last)), [0.0, 0.0, 5.0]);
        assert_eq!([Device::Cpu, Device::Sim, Device::Cuda(0)].map(|last| wait(Some(2.0), last)), [2.0; 3]);
    }
}
