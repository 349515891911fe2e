//! A simulated GPU and its host: they follow the scenario, the workload's phase and the clock.

use crate::{
    sim::{card::SimCard, scenario::Scenario, timing::SimLoad},
    telemetry::{GpuProbe, HostProbe, ProbeError, Selection, Tier},
};
use llmprof_base::noise;
use llmprof_event::{
    Activity, GpuInfo, GpuProcess, GpuSample, GpuSource, HostInfo, HostSample, Phase, Query, Refusal,
    Refused, Stamp, readings::Reading, reasons,
};

/// Memory of a CUDA context without weights.
const CONTEXT_BYTES: u64 = 683_540_480;
/// The clock changes in steps of this size.
const CLOCK_STEP_MHZ: f64 = 15.0;
const POWER_LAG_S: f64 = 0.05;
const AVERAGE_LAG_S: f64 = 0.5;
const TEMP_LAG_S: f64 = 1.2;

/// The temperature without load.
const IDLE_TEMP_C: f64 = 38.0;
/// The shares of dynamic power that any kernel draws, and that a fully used ceiling adds.
const BASE_POWER: f64 = 0.1;
const CEILING_POWER: f64 = 0.9;

/// Steady-state values of a phase.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// The share of the power between idle and the limit.
    power: f64,
    extra_temp_c: f64,
    gpu_util_pct: f64,
    mem_util_pct: f64,
    sm_active_pct: f64,
    occupancy_pct: f64,
    tensor_pct: f64,
    dram_pct: f64,
}

impl Load {
    const PREPARING: Load = Load {
        power: 0.12,
        extra_temp_c: 3.0,
        gpu_util_pct: 20.0,
        mem_util_pct: 12.0,
        sm_active_pct: 15.0,
        occupancy_pct: 5.0,
        tensor_pct: 0.0,
        dram_pct: 10.0,
    };

    /// A phase that uses the ceilings by the shares of `used`. The relations between the counters are those
    /// of a real GPU.
    fn new(used: SimLoad, extra_temp_c: f64, gpu_util_pct: f64, occupancy_pct: f64) -> Load {
        let (tensor_pct, dram_pct) = (100.0 * used.compute, 100.0 * used.memory);
        Load {
            power: BASE_POWER + CEILING_POWER * used.compute.max(used.memory).min(1.0),
            extra_temp_c,
            gpu_util_pct,
            mem_util_pct: (1.3 * dram_pct).min(100.0),
            sm_active_pct: tensor_pct.max(0.85 * dram_pct).min(100.0),
            occupancy_pct,
            tensor_pct,
            dram_pct,
        }
    }
}

/// The readings that a consumer GPU does not report.
fn consumer_refusals() -> Vec<Refused> {
    let unsupported = [
        Reading::PowerCapNs,
        Reading::Energy,
        Reading::MemTemp,
        Reading::EccCorrected,
        Reading::EccUncorrected,
    ];
    let gpm = [Query::Gpm].into_iter().chain(Reading::GPM.map(Query::from));
    let unsupported = [Query::ClockEventReasons].into_iter().chain(unsupported.map(Query::from));
    gpm.map(|reading| Refused::new(reading, Refusal::NoGpm))
        .chain(unsupported.map(|reading| Refused::new(reading, Refusal::Unsupported)))
        .collect()
}

/// One GPU. Equal calls give equal samples.
pub struct SimProbe {
    scenario: Scenario,
    activity: Activity,
    seed: u64,
    card: &'static SimCard,
    prefill: SimLoad,
    decode: SimLoad,
    mem_used_bytes: u64,
    settled: Option<Settled>,
    samples: u64,
    refused: Vec<Refused>,
}

/// The slow quantities and the counters at the last sample.
#[derive(Clone, Copy)]
struct Settled {
    at: Stamp,
    power_w: f64,
    average_w: f64,
    temp_c: f64,
    energy_mj: f64,
    reasons: u64,
    /// Nanoseconds under each limit that has a counter.
    limited_ns: [f64; COUNTERS.len()],
}

impl Settled {
    fn cold(at: Stamp, card: &SimCard) -> Settled {
        Settled {
            at,
            power_w: card.idle_power_w,
            average_w: card.idle_power_w,
            temp_c: IDLE_TEMP_C,
            energy_mj: 2_981_197.0,
            reasons: 0,
            limited_ns: [0.0; COUNTERS.len()],
        }
    }
}

/// The limits that have a counter.
const COUNTERS: [(u64, Reading); 5] = [
    (reasons::SW_POWER_CAP, Reading::PowerCapNs),
    (reasons::SYNC_BOOST, Reading::SyncBoostNs),
    (reasons::SW_THERMAL, Reading::SwThermalNs),
    (reasons::HW_THERMAL, Reading::HwThermalNs),
    (reasons::HW_POWER_BRAKE, Reading::PowerBrakeNs),
];

impl SimProbe {
    /// `activity` is the workload's; `model_bytes` is its memory on the GPU.
    pub fn new(scenario: Scenario, activity: Activity, seed: u64, model_bytes: u64) -> SimProbe {
        let card = scenario.card().model();
        SimProbe {
            refused: if scenario.card().consumer { consumer_refusals() } else { Vec::new() },
            scenario,
            activity,
            seed,
            card,
            prefill: SimLoad::PREFILL,
            decode: SimLoad::DECODE,
            mem_used_bytes: (CONTEXT_BYTES + model_bytes).min(card.mem_bytes),
            settled: None,
            samples: 0,
        }
    }

    /// With the load of a model instead of a typical one.
    pub fn with_load(self, prefill: SimLoad, decode: SimLoad) -> SimProbe {
        SimProbe { prefill, decode, ..self }
    }

    fn load(&self) -> Load {
        match self.activity.get() {
            Phase::Idle => Load::default(),
            Phase::Preparing => Load::PREPARING,
            Phase::Vision | Phase::Prefill | Phase::Mixed => Load::new(self.prefill, 19.0, 99.0, 14.1),
            Phase::Decode => Load::new(self.decode, 11.0, 97.0, 9.4),
        }
    }

    /// Starts at this temperature, idle after a load.
    pub fn starting_at(mut self, temp_c: Option<f32>) -> SimProbe {
        self.settled = temp_c.map(|temp_c| Settled {
            temp_c: f64::from(temp_c),
            ..Settled::cold(Stamp::default(), self.card)
        });
        self
    }

    /// A value in [-1, 1) for each `channel` of each sample.
    fn wobble(&self, channel: u64) -> f64 {
        2.0 * noise::unit(self.seed ^ 0x6770_7500, self.samples * 16 + channel) - 1.0
    }

    /// A percentage with some noise; zero stays zero.
    fn share(&self, pct: f64, spread: f64, channel: u64) -> f64 {
        if pct == 0.0 { 0.0 } else { (pct + spread * self.wobble(channel)).clamp(0.0, 100.0) }
    }

    fn settle(&mut self, now: Stamp, power_w: f64, temp_c: f64, reasons: u64) -> Settled {
        let Some(last) = self.settled else {
            return Settled { reasons, ..Settled::cold(now, self.card) };
        };
        let passed = now.since(last.at);
        let passed_s = passed.as_secs_f64();
        let settle = |from: f64, to: f64, lag_s: f64| to + (from - to) * (-passed_s / lag_s).exp();
        let mut limited_ns = last.limited_ns;
        for (ns, (bit, _)) in limited_ns.iter_mut().zip(COUNTERS) {
            if last.reasons & bit != 0 {
                *ns += passed.as_nanos() as f64;
            }
        }
        Settled {
            at: now,
            power_w: settle(last.power_w, power_w, POWER_LAG_S),
            average_w: settle(last.average_w, power_w, AVERAGE_LAG_S),
            temp_c: settle(last.temp_c, temp_c, TEMP_LAG_S),
            energy_mj: last.energy_mj + last.power_w * passed_s * 1e3,
            reasons,
            limited_ns,
        }
    }

    fn fast(&mut self, gpu: u32, now: Stamp) -> GpuSample {
        self.samples += 1;
        let phase = self.activity.get();
        let conditions = self.scenario.at(now, phase);
        let (load, card) = (self.load(), self.card);

        let limited = reasons::faults(conditions.reasons) != 0;
        // Under a limit the clock oscillates around it; otherwise it is at its maximum.
        let hunting_mhz = if limited { CLOCK_STEP_MHZ * (1.5 * self.wobble(0)).round() } else { 0.0 };
        let target_mhz = f64::from(card.sm_clock_max_mhz) * conditions.sm_clock_factor;
        let sm_clock_mhz = (target_mhz / CLOCK_STEP_MHZ).round() * CLOCK_STEP_MHZ + hunting_mhz;

        let power_w = if conditions.reasons & reasons::SW_POWER_CAP != 0 {
            card.power_limit_w - 10.0 + 25.0 * self.wobble(1)
        } else {
            // Dynamic power falls faster than the clock, because the voltage falls with it.
            let range_w = card.power_limit_w - card.idle_power_w;
            let dynamic_w = load.power * range_w * conditions.sm_clock_factor.powf(1.8);
            card.idle_power_w + dynamic_w * (1.0 + 0.015 * self.wobble(1)) + 0.5 * self.wobble(2)
        };
        let temp_c = IDLE_TEMP_C + load.extra_temp_c + conditions.extra_temp_c;
        let settled = self.settle(now, power_w, temp_c, conditions.reasons);
        self.settled = Some(settled);

        let mut sample = GpuSample::new(gpu)
            .with(Reading::GpuUtil, self.share(load.gpu_util_pct, 1.5, 3).round())
            .with(Reading::MemUtil, self.share(load.mem_util_pct, 1.5, 4).round())
            .with(Reading::SmClock, sm_clock_mhz)
            .with(Reading::MemClock, f64::from(card.mem_clock_mhz))
            .with(Reading::Power, settled.power_w)
            .with(Reading::PowerAverage, settled.average_w)
            .with(Reading::Temp, settled.temp_c.round())
            .with(Reading::MemTemp, (settled.temp_c + 9.0).round())
            .with(Reading::MemUsed, self.mem_used_bytes as f64)
            .with(Reading::MemTotal, card.mem_bytes as f64)
            .with(Reading::PowerCapNs, settled.limited_ns[0])
            .with_reasons(conditions.reasons);
        sample.read_us = Some((26.0 + 6.0 * self.wobble(5)) as u32);
        sample
    }

    fn activity_counters(&self, gpu: u32) -> GpuSample {
        let load = self.load();
        GpuSample::new(gpu)
            .with(Reading::SmActive, self.share(load.sm_active_pct, 1.5, 6))
            .with(Reading::Occupancy, self.share(load.occupancy_pct, 0.3, 7))
            .with(Reading::Tensor, self.share(load.tensor_pct, 0.8, 8))
            .with(Reading::Dram, self.share(load.dram_pct, 1.2, 9))
            .with(Reading::PcieTx, 10.0 + 4.0 * self.wobble(10))
            .with(Reading::PcieRx, 20.0 + 8.0 * self.wobble(11))
    }

    fn slow(&self, gpu: u32) -> GpuSample {
        let settled = self.settled.unwrap_or_else(|| Settled::cold(Stamp::default(), self.card));
        let mut sample = GpuSample::new(gpu)
            .with(Reading::Energy, settled.energy_mj.round())
            .with(Reading::BoardLimitNs, 0.0)
            .with(Reading::ReliabilityNs, 0.0)
            .with(Reading::PowerLimit, self.card.power_limit_w)
            .with(Reading::SmClockMax, f64::from(self.card.sm_clock_max_mhz))
            .with(Reading::PcieGen, f64::from(self.card.pcie_gen))
            .with(Reading::PcieWidth, f64::from(self.scenario.card().pcie_width))
            .with(Reading::EccCorrected, 0.0)
            .with(Reading::EccUncorrected, 0.0);
        for ((_, reading), ns) in COUNTERS.into_iter().zip(settled.limited_ns) {
            sample.set(reading, Some(ns));
        }
        sample
    }
}

impl GpuProbe for SimProbe {
    fn gpus(&self) -> Vec<GpuInfo> {
        let card = self.card;
        vec![GpuInfo {
            index: 0,
            name: card.name.to_owned(),
            uuid: "GPU-00000000-0000-0000-0000-000000000000".to_owned(),
            driver: "simulated".to_owned(),
            source: GpuSource::Sim,
            profiled: true,
            architecture: Some(card.architecture.to_owned()),
            mem_total_bytes: Some(card.mem_bytes),
            power_limit_w: Some(card.power_limit_w as f32),
            power_limit_default_w: Some(card.power_limit_w as f32),
            power_limit_max_w: Some(card.power_limit_w as f32),
            sm_clock_max_mhz: Some(card.sm_clock_max_mhz),
            mem_clock_max_mhz: Some(card.mem_clock_mhz),
            slowdown_temp_c: Some(card.slowdown_temp_c),
            pcie_gen_max: Some(card.pcie_gen),
            pcie_width_max: Some(16),
            persistence: Some(true),
            refused: self.refused.clone(),
            ..GpuInfo::default()
        }]
    }

    fn slow_calls(&self, _gpu: u32) -> usize {
        1
    }

    fn sample(&mut self, gpu: u32, selection: Selection, now: Stamp) -> Result<GpuSample, ProbeError> {
        if gpu != 0 {
            return Err(ProbeError::Lost { gpu, reason: "the simulation has one GPU, GPU 0".to_owned() });
        }
        if self.scenario.card().vanishes_at_s.is_some_and(|at_s| now.secs() >= at_s) {
            return Err(ProbeError::Lost { gpu, reason: "fell off the bus (simulated)".to_owned() });
        }
        let mut sample = match selection {
            Selection::Tier(Tier::Fast) => self.fast(gpu, now),
            Selection::Tier(Tier::Gpm) => self.activity_counters(gpu),
            Selection::SlowCall(_) | Selection::Tier(Tier::Slow) => self.slow(gpu),
            Selection::Tier(Tier::Rare) => GpuSample::new(gpu),
        };
        for refused in &self.refused {
            match refused.reading {
                Query::Reading(reading) => sample.set(reading, None),
                Query::ClockEventReasons => sample.reasons = None,
                Query::Gpm | Query::ProcessUtilisation | Query::Other(_) => {}
            }
        }
        Ok(sample)
    }

    fn refused(&self, _gpu: u32) -> &[Refused] {
        &self.refused
    }

    fn processes(&mut self, _gpu: u32) -> Option<Vec<GpuProcess>> {
        let since = self.settled.map_or(0.0, |settled| settled.at.secs());
        let there = self.scenario.card().shared_from_s.is_some_and(|from_s| since >= from_s);
        let other = GpuProcess {
            pid: 4711,
            name: Some("python3".to_owned()),
            user: Some("guest".to_owned()),
            mem_bytes: Some(9 << 30),
            sm_pct: Some(35),
            own: false,
        };
        Some(if there { vec![other] } else { Vec::new() })
    }
}

const CORES: u32 = 16;

/// The host of the simulated GPU: one busy thread, the others idle.
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
        // The launching thread migrates between cores at times.
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

    /// The last of samples taken every 100 ms in `phase` from `from_s` on.
    fn after(scenario: &str, phase: Phase, from_s: f64, secs: f64) -> GpuSample {
        let activity = Activity::default();
        activity.set(phase);
        let mut probe = SimProbe::new(Scenario::named(scenario).unwrap(), activity, 1, 15_200_000_000);
        let mut now = Stamp::from_secs_f64(from_s);
        let end = now + Duration::from_secs_f64(secs);
        loop {
            let sample = probe.sample(0, Selection::Tier(Tier::Fast), now).unwrap();
            if now >= end {
                return sample;
            }
            now = now + STEP;
        }
    }

    #[test]
    fn phases_settle_where_a_real_gpu_does() {
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
            assert!(power_w.contains(&(sample.get(Reading::Power).unwrap() as f32)), "{what}");
            assert!(temp_c.contains(&(sample.get(Reading::Temp).unwrap() as f32)), "{what}");
            assert!(sm_clock_mhz.contains(&(sample.get(Reading::SmClock).unwrap() as u32)), "{what}");
            assert_eq!(sample.reasons, Some(reasons), "{what}");
            assert!(sample.get(Reading::MemUsed) < sample.get(Reading::MemTotal), "{what}");
        }
    }

    #[test]
    fn power_leads_and_temperature_lags() {
        let early = after("steady", Phase::Decode, 0.0, 0.3);
        assert!(early.get(Reading::Power).unwrap() > 560.0, "{early:?}");
        assert!(early.get(Reading::Temp).unwrap() < 44.0, "{early:?}");
    }

    #[test]
    fn a_consumer_card_is_one() {
        let probe = SimProbe::new(Scenario::named("consumer").unwrap(), Activity::default(), 1, 0);
        let info = &probe.gpus()[0];
        assert_eq!(info.name, "NVIDIA GeForce RTX 4090");
        assert_eq!((info.power_limit_w, info.mem_total_bytes), (Some(450.0), Some(24_564 << 20)));
    }

    #[test]
    fn a_light_load_draws_less() {
        let sample = |decode: SimLoad| {
            let activity = Activity::default();
            activity.set(Phase::Decode);
            let mut probe =
                SimProbe::new(Scenario::steady(), activity, 1, 0).with_load(SimLoad::PREFILL, decode);
            (0..20)
                .map(|i| probe.sample(0, Selection::Tier(Tier::Fast), Stamp(i * 100_000_000)).unwrap())
                .last()
        };
        let watts =
            |memory: f64| sample(SimLoad { compute: 0.0, memory }).unwrap().get(Reading::Power).unwrap();
        assert!(watts(0.1) < 250.0 && watts(0.8) > 550.0);
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
