//! Scenarios: scripted episodes that the simulated engine and the simulated GPU both follow.

use thiserror::Error;

use crate::sim::card::{H200, RTX_4090, SimCard};
use llmprof_base::noise;
use llmprof_event::{Phase, Stamp, reasons};

/// The conditions at one moment, in one phase of the workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// A step takes this many times as long.
    pub time_factor: f64,
    /// The SM clock, as a share of its maximum.
    pub sm_clock_factor: f64,
    /// Temperature above that of the load.
    pub extra_temp_c: f64,
    /// Clock event reason bits.
    pub reasons: u64,
}

impl Conditions {
    pub const UNDISTURBED: Conditions =
        Conditions { time_factor: 1.0, sm_clock_factor: 1.0, extra_temp_c: 0.0, reasons: 0 };
}

/// A permanent failure of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    EnginePanic,
    EngineError,
}

/// Properties of the simulated GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// The number of PCIe lanes in use.
    pub pcie_width: u32,
    /// The second from which another process uses it.
    pub shared_from_s: Option<f64>,
    /// The second at which it falls off the bus.
    pub vanishes_at_s: Option<f64>,
    /// Whether it is a consumer GPU, which reports fewer readings.
    pub consumer: bool,
}

impl Card {
    /// The model of the GPU.
    pub fn model(&self) -> &'static SimCard {
        if self.consumer { &RTX_4090 } else { &H200 }
    }

    /// A data-centre GPU without faults.
    pub const IN_ORDER: Card =
        Card { pcie_width: 16, shared_from_s: None, vanishes_at_s: None, consumer: false };
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown scenario {asked:?}; known are {known}")]
pub struct UnknownScenario {
    pub asked: String,
    pub known: String,
}

/// A script and its seed: a pure function of time.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    script: &'static Script,
    seed: u64,
}

impl Scenario {
    pub fn named(name: &str) -> Result<Scenario, UnknownScenario> {
        match SCRIPTS.iter().find(|script| script.name == name) {
            Some(script) => Ok(Scenario { script, seed: 0 }),
            None => Err(UnknownScenario {
                asked: name.to_owned(),
                known: Scenario::all().map(|(name, _)| name).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The scenario without episodes.
    pub fn steady() -> Scenario {
        Scenario { script: &SCRIPTS[0], seed: 0 }
    }

    /// The name and description of every scenario.
    pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
        SCRIPTS.iter().map(|script| (script.name, script.about))
    }

    /// Moves the one-off spikes; the episodes are unchanged.
    pub fn with_seed(self, seed: u64) -> Scenario {
        Scenario { seed, ..self }
    }

    pub fn name(&self) -> &'static str {
        self.script.name
    }

    /// The conditions at `t` for a workload in `phase`.
    pub fn at(&self, t: Stamp, phase: Phase) -> Conditions {
        let mut now = Conditions::UNDISTURBED;
        for episode in self.script.episodes {
            let strength = episode.strength(t.secs(), phase);
            if strength > 0.0 {
                // Limits do not add up: the tightest one applies.
                now.time_factor = now.time_factor.max(1.0 + strength * (episode.time_factor - 1.0));
                let clock = 1.0 + strength * (episode.sm_clock_mhz / MAX_SM_CLOCK_MHZ - 1.0);
                now.sm_clock_factor = now.sm_clock_factor.min(clock);
                now.extra_temp_c = now.extra_temp_c.max(strength * episode.extra_temp_c);
                now.reasons |= episode.reasons;
            }
        }
        now
    }

    /// The additional time of a decode step over `[from, to)` because of one-off spikes, in undisturbed steps.
    pub fn spike_steps(&self, from: Stamp, to: Stamp) -> f64 {
        let Some(spikes) = self.script.spikes else { return 0.0 };
        let slot_of = |t: Stamp| (t.secs() / spikes.every_s) as u64;
        (slot_of(from)..=slot_of(to))
            .filter(|&slot| {
                let at =
                    Stamp::from_secs_f64((slot as f64 + noise::unit(self.seed, 2 * slot)) * spikes.every_s);
                from <= at && at < to
            })
            .map(|slot| spikes.steps * (0.5 + noise::unit(self.seed, 2 * slot + 1)))
            .sum()
    }

    /// The properties of the GPU.
    pub fn card(&self) -> Card {
        self.script.card
    }

    /// The fault that has happened by `t`.
    pub fn fault(&self, t: Stamp) -> Option<Fault> {
        self.script.fault.filter(|&(at_s, _)| t.secs() >= at_s).map(|(_, fault)| fault)
    }
}

/// The clock that scripts are written against.
pub const MAX_SM_CLOCK_MHZ: f64 = 1980.0;

#[derive(Debug)]
struct Script {
    name: &'static str,
    about: &'static str,
    episodes: &'static [Episode],
    spikes: Option<Spikes>,
    card: Card,
    fault: Option<(f64, Fault)>,
}

/// A part of each period in which a limit is active.
#[derive(Debug, Clone, Copy)]
struct Episode {
    /// Only in this phase of the workload.
    phase: Option<Phase>,
    period_s: f64,
    from_s: f64,
    to_s: f64,
    shape: Shape,
    time_factor: f64,
    sm_clock_mhz: f64,
    extra_temp_c: f64,
    reasons: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Hold,
    Rise,
    Fall,
}

impl Episode {
    /// An episode without effect, as a base for scripts.
    const QUIET: Episode = Episode {
        phase: None,
        period_s: 180.0,
        from_s: 0.0,
        to_s: 180.0,
        shape: Shape::Hold,
        time_factor: 1.0,
        sm_clock_mhz: MAX_SM_CLOCK_MHZ,
        extra_temp_c: 0.0,
        reasons: 0,
    };

    /// 0 outside of the episode, up to 1 inside.
    fn strength(&self, t_s: f64, phase: Phase) -> f64 {
        let into_s = t_s.rem_euclid(self.period_s) - self.from_s;
        let length_s = self.to_s - self.from_s;
        if !(0.0..length_s).contains(&into_s) || self.phase.is_some_and(|only| only != phase) {
            return 0.0;
        }
        match self.shape {
            Shape::Hold => 1.0,
            Shape::Rise => into_s / length_s,
            Shape::Fall => 1.0 - into_s / length_s,
        }
    }
}

/// One late token in every slot of `every_s`, at a moment that the seed selects.
#[derive(Debug, Clone, Copy)]
struct Spikes {
    every_s: f64,
    /// The mean delay in undisturbed steps; the seed selects between half and one and a half times that.
    steps: f64,
}

/// Dense GEMMs draw more power than allowed: the clock falls until they fit. Compute-bound, so time follows it.
const PREFILL_POWER_CAP: Episode = Episode {
    phase: Some(Phase::Prefill),
    time_factor: MAX_SM_CLOCK_MHZ / 1440.0,
    sm_clock_mhz: 1440.0,
    reasons: reasons::SW_POWER_CAP,
    ..Episode::QUIET
};

/// The temperature at which a GPU under a decode load starts thermal slowdown.
const SLOWDOWN_EXTRA_TEMP_C: f64 = 38.0;

const fn warming(from_s: f64, to_s: f64) -> Episode {
    Episode { from_s, to_s, shape: Shape::Rise, extra_temp_c: SLOWDOWN_EXTRA_TEMP_C, ..Episode::QUIET }
}

const fn cooling(from_s: f64, to_s: f64) -> Episode {
    Episode { from_s, to_s, shape: Shape::Fall, extra_temp_c: SLOWDOWN_EXTRA_TEMP_C, ..Episode::QUIET }
}

/// Decode is memory-bound, so it slows down less than the clock.
const fn thermal_step(from_s: f64, to_s: f64, sm_clock_mhz: f64, time_factor: f64) -> Episode {
    Episode {
        from_s,
        to_s,
        time_factor,
        sm_clock_mhz,
        extra_temp_c: SLOWDOWN_EXTRA_TEMP_C,
        reasons: reasons::SW_THERMAL,
        ..Episode::QUIET
    }
}

const QUIET_SCRIPT: Script =
    Script { name: "", about: "", episodes: &[], spikes: None, card: Card::IN_ORDER, fault: None };

/// A limit in all phases: prefill follows the clock, decode only in part.
const fn held(from_s: f64, sm_clock_mhz: f64, reasons: u64) -> [Episode; 2] {
    let prefill = Episode {
        phase: Some(Phase::Prefill),
        from_s,
        time_factor: MAX_SM_CLOCK_MHZ / sm_clock_mhz,
        sm_clock_mhz,
        reasons,
        ..Episode::QUIET
    };
    let time_factor = 1.0 + (prefill.time_factor - 1.0) / 4.0;
    [prefill, Episode { phase: Some(Phase::Decode), time_factor, ..prefill }]
}

const SCRIPTS: &[Script] = &[
    Script { name: "steady", about: "nothing happens", ..QUIET_SCRIPT },
    Script {
        name: "power_cap",
        about: "prefill is power-capped from 1980 to 1440 MHz, decode is not",
        episodes: &[PREFILL_POWER_CAP],
        ..QUIET_SCRIPT
    },
    Script {
        name: "thermal",
        about: "the GPU warms up for two minutes, then thermal slowdown starts",
        episodes: &[
            warming(0.0, 120.0),
            thermal_step(120.0, 130.0, 1755.0, 1.10),
            thermal_step(130.0, 145.0, 1545.0, 1.22),
            thermal_step(145.0, 165.0, 1350.0, 1.38),
            cooling(165.0, 180.0),
        ],
        ..QUIET_SCRIPT
    },
    Script {
        name: "itl_spikes",
        about: "every few seconds a token is late",
        spikes: Some(Spikes { every_s: 3.0, steps: 2.5 }),
        ..QUIET_SCRIPT
    },
    Script {
        name: "mixed",
        about: "a power-capped prefill, occasional late tokens, thermal slowdown for half a minute in every three",
        episodes: &[
            PREFILL_POWER_CAP,
            warming(25.0, 60.0),
            thermal_step(60.0, 68.0, 1755.0, 1.10),
            thermal_step(68.0, 82.0, 1545.0, 1.22),
            thermal_step(82.0, 90.0, 1755.0, 1.10),
            cooling(90.0, 115.0),
        ],
        spikes: Some(Spikes { every_s: 11.0, steps: 1.5 }),
        ..QUIET_SCRIPT
    },
    Script {
        name: "power_brake",
        about: "after 2 s the power brake halves the clock",
        episodes: &held(2.0, 1005.0, reasons::HW_SLOWDOWN | reasons::HW_POWER_BRAKE),
        ..QUIET_SCRIPT
    },
    Script {
        name: "locked_clocks",
        about: "the clock is locked to 1410 MHz",
        episodes: &held(0.0, 1410.0, reasons::APPLICATION_CLOCKS),
        ..QUIET_SCRIPT
    },
    Script {
        name: "narrow_pcie",
        about: "4 of 16 PCIe lanes are in use",
        card: Card { pcie_width: 4, ..Card::IN_ORDER },
        ..QUIET_SCRIPT
    },
    Script {
        name: "shared",
        about: "after 2 s another process uses the GPU, and tokens take longer",
        episodes: &[Episode { from_s: 2.0, time_factor: 1.5, ..Episode::QUIET }],
        card: Card { shared_from_s: Some(2.0), ..Card::IN_ORDER },
        ..QUIET_SCRIPT
    },
    Script {
        name: "vanished",
        about: "after 3 s the GPU is lost, and the engine fails",
        card: Card { vanishes_at_s: Some(3.0), ..Card::IN_ORDER },
        fault: Some((3.0, Fault::EngineError)),
        ..QUIET_SCRIPT
    },
    Script {
        name: "consumer",
        about: "a consumer GPU that refuses half of the calls",
        card: Card { consumer: true, ..Card::IN_ORDER },
        ..QUIET_SCRIPT
    },
    Script {
        name: "panic",
        about: "the engine panics after 3 s",
        fault: Some((3.0, Fault::EnginePanic)),
        ..QUIET_SCRIPT
    },
    Script {
        name: "fail",
        about: "the engine fails after 3 s",
        fault: Some((3.0, Fault::EngineError)),
        ..QUIET_SCRIPT
    },
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(name: &str, t_s: f64, phase: Phase) -> Conditions {
        Scenario::named(name).unwrap().at(Stamp::from_secs_f64(t_s), phase)
    }

    #[test]
    fn episodes_hold_where_the_script_says() {
        use Phase::{Decode, Idle, Prefill};
        let cap = reasons::SW_POWER_CAP;
        let thermal = reasons::SW_THERMAL;
        // (scenario, second, phase, reasons, MHz, slower than undisturbed)
        let cases = [
            ("steady", 100.0, Prefill, 0, 1980.0, false),
            ("power_cap", 1.0, Prefill, cap, 1440.0, true),
            ("power_cap", 1.0, Decode, 0, 1980.0, false),
            ("power_cap", 1.0, Idle, 0, 1980.0, false),
            ("power_cap", 100_000.0, Prefill, cap, 1440.0, true),
            ("thermal", 119.0, Decode, 0, 1980.0, false),
            ("thermal", 121.0, Decode, thermal, 1755.0, true),
            ("thermal", 150.0, Decode, thermal, 1350.0, true),
            ("thermal", 170.0, Decode, 0, 1980.0, false),
            ("thermal", 180.0 + 150.0, Decode, thermal, 1350.0, true),
            ("mixed", 59.0, Decode, 0, 1980.0, false),
            ("mixed", 75.0, Decode, thermal, 1545.0, true),
            ("mixed", 75.0, Prefill, cap | thermal, 1440.0, true),
            ("mixed", 91.0, Decode, 0, 1980.0, false),
        ];
        for (name, t_s, phase, reasons, mhz, slower) in cases {
            let now = at(name, t_s, phase);
            assert_eq!(now.reasons, reasons, "{name} at {t_s} s");
            assert!(
                (now.sm_clock_factor * MAX_SM_CLOCK_MHZ - mhz).abs() < 0.01,
                "{name} at {t_s} s: {now:?}"
            );
            assert_eq!(now.time_factor > 1.0, slower, "{name} at {t_s} s: {now:?}");
        }
    }

    #[test]
    fn heat_comes_before_the_slowdown_and_goes_after_it() {
        let heat: Vec<f64> =
            [0.0, 60.0, 119.9, 150.0, 172.5].map(|t| at("thermal", t, Phase::Decode).extra_temp_c).into();
        assert!((heat[0], heat[3]) == (0.0, SLOWDOWN_EXTRA_TEMP_C), "{heat:?}");
        assert!((heat[1] - 19.0).abs() < 0.1 && heat[2] > 37.0 && (heat[4] - 19.0).abs() < 0.1, "{heat:?}");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let text = Scenario::named("sunny").unwrap_err().to_string();
        for (name, about) in Scenario::all() {
            assert!(text.contains(name), "{text}");
            assert!(!about.is_empty());
        }
        assert!(text.contains("\"sunny\""), "{text}");
    }

    #[test]
    fn each_slot_has_one_spike_however_it_is_cut_into_steps() {
        let scenario = Scenario::named("itl_spikes").unwrap().with_seed(42);
        let sum = |step_s: f64| -> (f64, usize) {
            let steps = (300.0 / step_s).round() as u64;
            (0..steps)
                .map(|i| {
                    let edge = |i: u64| Stamp::from_secs_f64(i as f64 * step_s);
                    scenario.spike_steps(edge(i), edge(i + 1))
                })
                .filter(|&extra| extra > 0.0)
                .fold((0.0, 0), |(total, n), extra| (total + extra, n + 1))
        };
        let (fine, n) = sum(0.004);
        assert_eq!(n, 100);
        let (coarse, _) = sum(0.5);
        assert!((fine - coarse).abs() < 1e-6);
        assert_ne!(fine, 0.0);
    }

    #[test]
    fn faults_strike_once_their_time_has_come() {
        let panic = Scenario::named("panic").unwrap();
        assert_eq!(panic.fault(Stamp::from_secs_f64(2.9)), None);
        assert_eq!(panic.fault(Stamp::from_secs_f64(3.0)), Some(Fault::EnginePanic));
        assert_eq!(
            Scenario::named("fail").unwrap().fault(Stamp::from_secs_f64(9.0)),
            Some(Fault::EngineError)
        );
        assert_eq!(Scenario::named("mixed").unwrap().fault(Stamp(u64::MAX)), None);
    }

    #[test]
    fn the_steady_scenario_has_no_episodes() {
        assert_eq!(Scenario::steady().name(), "steady");
    }

    proptest! {
        #[test]
        fn conditions_are_sane_at_any_time(script in 0..SCRIPTS.len(), t in 0..u64::MAX / 4, phase in 0..4u8) {
            let phase = [Phase::Idle, Phase::Preparing, Phase::Prefill, Phase::Decode][phase as usize];
            let scenario = Scenario { script: &SCRIPTS[script], seed: 1 };
            let now = scenario.at(Stamp(t), phase);
            prop_assert!((1.0..2.0).contains(&now.time_factor));
            prop_assert!(now.sm_clock_factor > 0.5 && now.sm_clock_factor <= 1.0);
            prop_assert!((0.0..50.0).contains(&now.extra_temp_c));
            prop_assert_eq!(now, scenario.at(Stamp(t), phase));
            // A limited clock always has a reason.
            prop_assert_eq!(now.sm_clock_factor < 1.0, now.reasons != 0);
        }
    }
}
