//! A simulated H200 and its host: they follow the scenario, the workload's phase and the clock.

use super::{GpuProbe, HostProbe, ProbeError};
use crate::{
    event::{Activity, GpuInfo, GpuSample, HostInfo, HostSample, Phase, Stamp},
    noise, reasons,
    scenario::{MAX_SM_CLOCK_MHZ, Scenario},
};

const MEM_TOTAL_BYTES: u64 = 143_771 << 20;
const MEM_CLOCK_MHZ: u32 = 3201;
const POWER_LIMIT_W: f64 = 700.0;
const IDLE_POWER_W: f64 = 122.0;
/// What a context takes before any weights are there.
const CONTEXT_BYTES: u64 = 683_540_480;
/// The clock moves in steps of this size.
const CLOCK_STEP_MHZ: f64 = 15.0;
const POWER_LAG_S: f64 = 0.05;
const TEMP_LAG_S: f64 = 1.2;

/// What a phase settles at, as captured from a real card.
struct Load {
    power_w: f64,
    temp_c: f64,
    gpu_util_pct: f64,
    mem_util_pct: f64,
}

fn load(phase: Phase) -> Load {
    match phase {
        Phase::Idle => Load { power_w: IDLE_POWER_W, temp_c: 38.0, gpu_util_pct: 0.0, mem_util_pct: 0.0 },
        Phase::Preparing => Load { power_w: 190.0, temp_c: 41.0, gpu_util_pct: 20.0, mem_util_pct: 12.0 },
        Phase::Prefill => Load { power_w: 655.0, temp_c: 57.0, gpu_util_pct: 99.0, mem_util_pct: 24.0 },
        Phase::Decode => Load { power_w: 597.0, temp_c: 49.0, gpu_util_pct: 97.0, mem_util_pct: 100.0 },
    }
}

/// One H200-like card. Equal calls give equal samples.
pub struct SimProbe {
    scenario: Scenario,
    activity: Activity,
    seed: u64,
    mem_used_bytes: u64,
    settled: Option<Settled>,
    samples: u64,
}

/// Where the slow quantities were at the last look.
#[derive(Clone, Copy)]
struct Settled {
    at: Stamp,
    power_w: f64,
    temp_c: f64,
}

impl SimProbe {
    /// `activity` is the workload's; `weight_bytes` is what it keeps on the card.
    pub fn new(scenario: Scenario, activity: Activity, seed: u64, weight_bytes: u64) -> SimProbe {
        let mem_used_bytes = (CONTEXT_BYTES + weight_bytes).min(MEM_TOTAL_BYTES);
        SimProbe { scenario, activity, seed, mem_used_bytes, settled: None, samples: 0 }
    }

    /// As a card that comes from a load: this warm, and idle by now.
    pub fn starting_at(mut self, temp_c: Option<f32>) -> SimProbe {
        let warm =
            |temp_c| Settled { at: Stamp::default(), power_w: IDLE_POWER_W, temp_c: f64::from(temp_c) };
        self.settled = temp_c.map(warm);
        self
    }

    /// Between -1 and 1, another for every `channel` of every sample.
    fn wobble(&self, channel: u64) -> f64 {
        2.0 * noise::unit(self.seed ^ 0x6770_7500, self.samples * 8 + channel) - 1.0
    }
}

impl GpuProbe for SimProbe {
    fn gpus(&self) -> Vec<GpuInfo> {
        vec![GpuInfo {
            index: 0,
            name: "NVIDIA H200".to_owned(),
            uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
            driver: "simulated".to_owned(),
            source: "sim".to_owned(),
            profiled: true,
            mem_total_bytes: Some(MEM_TOTAL_BYTES),
            power_limit_w: Some(POWER_LIMIT_W as f32),
            sm_clock_max_mhz: Some(MAX_SM_CLOCK_MHZ as u32),
            mem_clock_max_mhz: Some(MEM_CLOCK_MHZ),
            slowdown_temp_c: Some(92),
            refused: Vec::new(),
        }]
    }

    fn sample(&mut self, gpu: u32, now: Stamp) -> Result<GpuSample, ProbeError> {
        if gpu != 0 {
            return Err(ProbeError::Lost { gpu, reason: "the simulation has one card, GPU 0".to_owned() });
        }
        self.samples += 1;
        let phase = self.activity.get();
        let conditions = self.scenario.at(now, phase);
        let load = load(phase);

        let limited = reasons::faults(conditions.reasons) != 0;
        // Held by a limit, the clock hunts around it; free, it stands at its maximum.
        let hunting_mhz = if limited { CLOCK_STEP_MHZ * (1.5 * self.wobble(0)).round() } else { 0.0 };
        let target_mhz = MAX_SM_CLOCK_MHZ * conditions.sm_clock_factor;
        let sm_clock_mhz = (target_mhz / CLOCK_STEP_MHZ).round() * CLOCK_STEP_MHZ + hunting_mhz;

        let power_w = if conditions.reasons & reasons::SW_POWER_CAP != 0 {
            POWER_LIMIT_W - 10.0 + 25.0 * self.wobble(1)
        } else {
            // Dynamic power falls faster than the clock, because the voltage falls with it.
            let dynamic_w = (load.power_w - IDLE_POWER_W) * conditions.sm_clock_factor.powf(1.8);
            IDLE_POWER_W + dynamic_w * (1.0 + 0.015 * self.wobble(1)) + 0.5 * self.wobble(2)
        };
        let temp_c = load.temp_c + conditions.extra_temp_c;
        let settled = match self.settled {
            None => Settled { at: now, power_w: IDLE_POWER_W, temp_c: 38.0 },
            Some(last) => {
                let passed_s = now.since(last.at).as_secs_f64();
                let settle = |from: f64, to: f64, lag_s: f64| to + (from - to) * (-passed_s / lag_s).exp();
                Settled {
                    at: now,
                    power_w: settle(last.power_w, power_w, POWER_LAG_S),
                    temp_c: settle(last.temp_c, temp_c, TEMP_LAG_S),
                }
            }
        };
        self.settled = Some(settled);

        let busy = |pct: f64, channel: u64| match pct {
            0.0 => 0.0,
            pct => (pct + 1.5 * self.wobble(channel)).round().min(100.0) as f32,
        };
        Ok(GpuSample {
            gpu,
            gpu_util_pct: Some(busy(load.gpu_util_pct, 3)),
            mem_util_pct: Some(busy(load.mem_util_pct, 4)),
            sm_clock_mhz: Some(sm_clock_mhz as u32),
            mem_clock_mhz: Some(MEM_CLOCK_MHZ),
            power_w: Some((settled.power_w * 1e3).round() as f32 / 1e3),
            temp_c: Some(settled.temp_c.round() as f32),
            mem_used_bytes: Some(self.mem_used_bytes),
            mem_total_bytes: Some(MEM_TOTAL_BYTES),
            reasons: Some(conditions.reasons),
            read_us: Some((26.0 + 6.0 * self.wobble(5)) as u32),
        })
    }
}

const CORES: u32 = 16;

/// The machine around the simulated card: one thread keeps it busy, the others idle.
pub struct SimHost {
    activity: Activity,
    seed: u64,
    weight_bytes: u64,
    samples: u64,
}

impl SimHost {
    pub fn new(activity: Activity, seed: u64, weight_bytes: u64) -> SimHost {
        SimHost { activity, seed: seed ^ 0x686f_7374, weight_bytes, samples: 0 }
    }
}

impl HostProbe for SimHost {
    fn info(&self) -> HostInfo {
        HostInfo {
            cpu: "simulated CPU".to_owned(),
            cores: CORES,
            os: "simulated".to_owned(),
            mem_total_bytes: Some(128 << 30),
            power_source: "simulated".to_owned(),
        }
    }

    fn sample(&mut self, _now: Stamp) -> HostSample {
        self.samples += 1;
        let draw = |channel: u64| noise::unit(self.seed, self.samples * 32 + channel);
        let busy = self.activity.get() != Phase::Idle;
        // The launching thread wanders over the cores now and then.
        let launching_core = noise::bits(self.seed, self.samples / 16) % u64::from(CORES);
        let core_pct: Vec<f32> = (0..u64::from(CORES))
            .map(
                |core| {
                    if busy && core == launching_core { 88.0 + 10.0 * draw(core) } else { 4.0 * draw(core) }
                },
            )
            .map(|pct| pct as f32)
            .collect();
        let process_pct = if busy { 92.0 + 8.0 * draw(20) } else { 1.0 + draw(20) };
        HostSample {
            core_pct,
            freq_mhz: Some((3400.0 + 100.0 * draw(21)).round() as f32),
            mem_used_bytes: Some((9 << 30) + (draw(22) * f64::from(1 << 26)) as u64),
            process_pct: Some(process_pct as f32),
            process_rss_bytes: Some((400 << 20) + self.weight_bytes / 64),
            package_power_w: Some(if busy { 150.0 + 8.0 * draw(23) } else { 95.0 + 4.0 * draw(23) } as f32),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const STEP: Duration = Duration::from_millis(100);

    /// Samples each 100 ms while the workload is `phase` from `from_s` on; the last of them.
    fn after(scenario: &str, phase: Phase, from_s: f64, secs: f64) -> GpuSample {
        let activity = Activity::default();
        activity.set(phase);
        let mut probe = SimProbe::new(Scenario::named(scenario).unwrap(), activity, 1, 15_200_000_000);
        let mut now = Stamp::from_secs_f64(from_s);
        let end = now + Duration::from_secs_f64(secs);
        loop {
            let sample = probe.sample(0, now).unwrap();
            if now >= end {
                return sample;
            }
            now = now + STEP;
        }
    }

    #[test]
    fn phases_settle_where_a_real_card_does() {
        use Phase::{Decode, Idle, Prefill};
        // (scenario, phase, from, W, °C, MHz, reasons)
        let cases = [
            ("steady", Idle, 0.0, 115.0..130.0, 37.0..=41.0, 1980..=1980, 0),
            ("steady", Decode, 0.0, 580.0..615.0, 48.0..=50.0, 1980..=1980, 0),
            ("power_cap", Prefill, 0.0, 650.0..730.0, 56.0..=59.0, 1395..=1485, 0x4),
            ("power_cap", Decode, 0.0, 580.0..615.0, 48.0..=50.0, 1980..=1980, 0),
            ("thermal", Decode, 150.0, 300.0..420.0, 86.0..=91.0, 1320..=1380, 0x20),
            ("mixed", Decode, 70.0, 380.0..500.0, 86.0..=91.0, 1515..=1575, 0x20),
        ];
        for (scenario, phase, from_s, power_w, temp_c, sm_clock_mhz, reasons) in cases {
            let sample = after(scenario, phase, from_s, 10.0);
            let what = format!("{scenario} {phase:?}: {sample:?}");
            assert!(power_w.contains(&sample.power_w.unwrap()), "{what}");
            assert!(temp_c.contains(&sample.temp_c.unwrap()), "{what}");
            assert!(sm_clock_mhz.contains(&sample.sm_clock_mhz.unwrap()), "{what}");
            assert_eq!(sample.reasons, Some(reasons), "{what}");
            assert!(sample.mem_used_bytes < sample.mem_total_bytes, "{what}");
        }
    }

    #[test]
    fn power_leads_and_temperature_lags() {
        let early = after("steady", Phase::Decode, 0.0, 0.3);
        assert!(early.power_w.unwrap() > 560.0, "{early:?}");
        assert!(early.temp_c.unwrap() < 44.0, "{early:?}");
    }

    #[test]
    fn equal_calls_give_equal_samples() {
        let run = || (0..50).map(|i| after("mixed", Phase::Decode, f64::from(i), 1.0)).collect::<Vec<_>>();
        assert_eq!(run(), run());
        let host = || {
            let activity = Activity::default();
            activity.set(Phase::Decode);
            let mut host = SimHost::new(activity, 1, 0);
            (0..50).map(|i| host.sample(Stamp(i))).collect::<Vec<_>>()
        };
        assert_eq!(host(), host());
        assert!(host().iter().all(|sample| sample.core_pct.iter().all(|pct| (0.0..=100.0).contains(pct))));
    }
}
