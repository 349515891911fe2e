//! The GPU part of the sampler: the due tiers, and the lost GPUs.

use std::time::{Duration, Instant};

use super::Due;
use crate::telemetry::{GpuProbe, ProbeError, Selection, Tier, absent::Absence};
use llmprof_base::cpu_time::thread_cpu_time;
use llmprof_config::NvmlConfig;
use llmprof_event::{
    Event, EventTx, GpuInfo, GpuLost, GpuProcess, GpuProcesses, GpuSample, Level, SamplerCost, Stamp,
};

const RARE_INTERVAL: Duration = Duration::from_secs(10);
const COST_INTERVAL: Duration = Duration::from_secs(5);
/// GPM counters at shorter intervals all read zero.
const GPM_MIN_MS: u32 = 100;

/// Samples every GPU of a probe, each tier at its own interval.
pub(super) struct GpuSampler {
    probe: Box<dyn GpuProbe>,
    pub(super) gpus: Vec<SampledGpu>,
    fast: Due,
    gpm: Due,
    slow: Due,
    slow_round: Duration,
    /// The next call of the slow tier; after the last one, processes are listed.
    slow_call: usize,
    rare: Due,
    cost: Due,
    metered: Option<(Instant, Duration)>,
}

pub(super) struct SampledGpu {
    pub(super) info: GpuInfo,
    lost: bool,
    /// Whether a failed sample was reported.
    reported_failure: bool,
    /// As last sent; `None` until they were listed.
    processes: Option<Vec<GpuProcess>>,
}

impl GpuSampler {
    pub(super) fn new(probe: Box<dyn GpuProbe>, config: &NvmlConfig) -> GpuSampler {
        let sampled = |info| SampledGpu { info, lost: false, reported_failure: false, processes: None };
        let slow_round = Duration::from_millis(u64::from(config.slow_interval_ms.max(10)));
        GpuSampler {
            gpus: probe.gpus().into_iter().map(sampled).collect(),
            probe,
            fast: Due::every_ms(config.interval_ms),
            gpm: Due::every_ms(config.gpm_interval_ms.max(GPM_MIN_MS)),
            slow: Due::every(slow_round),
            slow_round,
            slow_call: 0,
            rare: Due::every(RARE_INTERVAL).later(),
            cost: Due::every(COST_INTERVAL).later(),
            metered: None,
        }
    }

    pub(super) fn other_processes(&mut self, gpu: u32) -> Option<Vec<GpuProcess>> {
        self.probe.other_processes(gpu)
    }

    pub(super) fn announce(&self, tx: &EventTx) {
        for sampled in &self.gpus {
            tx.send(Event::GpuFound(Box::new(sampled.info.clone())));
        }
    }

    /// The next due time.
    pub(super) fn next(&self) -> Stamp {
        [&self.fast, &self.gpm, &self.slow, &self.rare, &self.cost]
            .map(|due| due.next)
            .into_iter()
            .min()
            .unwrap()
    }

    /// Sends the samples that are due at `now`. Fails when the last GPU is lost.
    pub(super) fn sample_due(&mut self, now: Stamp, tx: &EventTx) -> Result<(), Absence> {
        let mut selections = Vec::new();
        for (due, tier) in
            [(&mut self.fast, Tier::Fast), (&mut self.gpm, Tier::Gpm), (&mut self.rare, Tier::Rare)]
        {
            if due.take(now) {
                selections.push(Selection::Tier(tier));
            }
        }
        let mut list = false;
        if self.slow.take(now) {
            let calls = self.gpus.iter().map(|gpu| self.probe.slow_calls(gpu.info.index)).max().unwrap_or(0);
            // The round is divided into equal parts, so that expensive calls are never made together.
            self.slow.set_every(self.slow_round / (calls as u32 + 1), now);
            match self.slow_call {
                call if call < calls => selections.push(Selection::SlowCall(call)),
                _ => list = true,
            }
            self.slow_call = if list { 0 } else { self.slow_call + 1 };
        }
        for i in 0..self.gpus.len() {
            if !self.gpus[i].lost && !selections.is_empty() {
                self.sample(i, &selections, now, tx);
            }
            if !self.gpus[i].lost && list {
                self.list(i, tx);
            }
        }
        for remark in self.probe.take_remarks() {
            tx.notice(Level::Warn, "gpu", remark);
        }
        if self.cost.take(now) {
            self.send_cost(tx);
        }
        match self.gpus.iter().all(|sampled| sampled.lost) {
            true => Err(Absence::Lost { detail: "no GPU responds any longer".to_owned() }),
            false => Ok(()),
        }
    }

    fn sample(&mut self, i: usize, selections: &[Selection], now: Stamp, tx: &EventTx) {
        let sampled = &mut self.gpus[i];
        let gpu = sampled.info.index;
        let mut sample = GpuSample::new(gpu);
        for selection in selections {
            match self.probe.sample(gpu, *selection, now) {
                Ok(part) => sample.merge(&part),
                Err(error @ ProbeError::Unreadable { .. }) => {
                    if !std::mem::replace(&mut sampled.reported_failure, true) {
                        tx.notice(Level::Warn, "gpu", error.to_string());
                    }
                }
                Err(error @ ProbeError::Lost { .. }) => {
                    sampled.lost = true;
                    let detail = error.to_string();
                    tx.notice(Level::Error, "gpu", detail.clone());
                    let remedy = Absence::Lost { detail: detail.clone() }.remedy().to_owned();
                    tx.send(Event::GpuLost(GpuLost { gpu, reason: detail, remedy }));
                    return;
                }
            }
        }
        let refused = self.probe.refused(gpu);
        if refused.len() > sampled.info.refused.len() {
            sampled.info.refused = refused.to_vec();
            tx.send(Event::GpuFound(Box::new(sampled.info.clone())));
        }
        if !sample.is_empty() {
            tx.send(Event::GpuSample(Box::new(sample)));
        }
    }

    fn list(&mut self, i: usize, tx: &EventTx) {
        let gpu = self.gpus[i].info.index;
        let Some(processes) = self.probe.processes(gpu) else { return };
        let sampled = &mut self.gpus[i];
        if sampled.processes.as_ref() == Some(&processes)
            || (sampled.processes.is_none() && processes.is_empty())
        {
            return;
        }
        let known = sampled.processes.replace(processes.clone()).unwrap_or_default();
        let is_new =
            |process: &&GpuProcess| !process.own && known.iter().all(|known| known.pid != process.pid);
        for new in processes.iter().filter(is_new) {
            tx.notice(Level::Warn, "gpu", format!("another process uses GPU {gpu}: {new}"));
        }
        tx.send(Event::GpuProcesses(Box::new(GpuProcesses { gpu, processes })));
    }

    fn send_cost(&mut self, tx: &EventTx) {
        let calls: Vec<_> = self
            .gpus
            .iter()
            .flat_map(|sampled| {
                let mut costs = self.probe.costs(sampled.info.index);
                if self.gpus.len() > 1 {
                    costs.iter_mut().for_each(|cost| cost.call += &format!(" of GPU {}", sampled.info.index));
                }
                costs
            })
            .collect();
        let (now, cpu, spent) = (Instant::now(), thread_cpu_time(), self.probe.take_spent());
        let metered = self.metered.replace((now, cpu));
        if calls.is_empty() {
            return;
        }
        if let Some((since, cpu_since)) = metered {
            let passed = now.duration_since(since).as_secs_f32().max(1e-3);
            let pct = |part: Duration| 100.0 * part.as_secs_f32() / passed;
            let cpu_pct = Some(pct(cpu.saturating_sub(cpu_since)));
            tx.send(Event::SamplerCost(Box::new(SamplerCost { duty_pct: pct(spent), cpu_pct, calls })));
        }
    }
}
