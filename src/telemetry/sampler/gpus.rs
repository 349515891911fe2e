//! The GPUs' part of the sampler: which tier is due, what became of the cards.

use std::time::{Duration, Instant};

use super::Due;
use crate::{
    base::cpu_time::thread_cpu_time,
    config::NvmlConfig,
    event::{
        Event, EventTx, GpuInfo, GpuLost, GpuProcess, GpuProcesses, GpuSample, Level, SamplerCost, Stamp,
    },
    telemetry::{GpuProbe, Look, ProbeError, Tier, absent::Absence},
};

const RARE: Duration = Duration::from_secs(10);
const BETWEEN_COSTS: Duration = Duration::from_secs(5);
/// GPM counters that lie closer together all read zero.
const GPM_LEAST_MS: u32 = 100;

/// Looks at every GPU of a probe, each tier at its own pace.
pub(super) struct GpuWatch {
    probe: Box<dyn GpuProbe>,
    pub(super) gpus: Vec<Watched>,
    fast: Due,
    gpm: Due,
    slow: Due,
    slow_round: Duration,
    /// The place in the round of the slow tier; the last one lists processes.
    turn: usize,
    rare: Due,
    cost: Due,
    metered: Option<(Instant, Duration)>,
}

pub(super) struct Watched {
    pub(super) info: GpuInfo,
    lost: bool,
    complained: bool,
    /// As told last; `None` until they were listed.
    processes: Option<Vec<GpuProcess>>,
}

impl GpuWatch {
    pub(super) fn new(probe: Box<dyn GpuProbe>, config: &NvmlConfig) -> GpuWatch {
        let watched = |info| Watched { info, lost: false, complained: false, processes: None };
        let slow_round = Duration::from_millis(u64::from(config.slow_interval_ms.max(10)));
        GpuWatch {
            gpus: probe.gpus().into_iter().map(watched).collect(),
            probe,
            fast: Due::every_ms(config.interval_ms),
            gpm: Due::every_ms(config.gpm_interval_ms.max(GPM_LEAST_MS)),
            slow: Due::every(slow_round),
            slow_round,
            turn: 0,
            rare: Due::every(RARE).later(),
            cost: Due::every(BETWEEN_COSTS).later(),
            metered: None,
        }
    }

    pub(super) fn processes(&mut self, gpu: u32) -> Option<Vec<GpuProcess>> {
        self.probe.other_processes(gpu)
    }

    pub(super) fn announce(&self, tx: &EventTx) {
        for watched in &self.gpus {
            tx.send(Event::GpuFound(Box::new(watched.info.clone())));
        }
    }

    /// When to come again.
    pub(super) fn next(&self) -> Stamp {
        [&self.fast, &self.gpm, &self.slow, &self.rare, &self.cost]
            .map(|due| due.next)
            .into_iter()
            .min()
            .unwrap()
    }

    /// Sends what is due at `now`. Fails when the last GPU has gone.
    pub(super) fn sample_due(&mut self, now: Stamp, tx: &EventTx) -> Result<(), Absence> {
        let mut looks = Vec::new();
        for (due, tier) in
            [(&mut self.fast, Tier::Fast), (&mut self.gpm, Tier::Gpm), (&mut self.rare, Tier::Rare)]
        {
            if due.take(now) {
                looks.push(Look::All(tier));
            }
        }
        let mut list = false;
        if self.slow.take(now) {
            let turns = self.gpus.iter().map(|gpu| self.probe.turns(gpu.info.index)).max().unwrap_or(0);
            // The round is cut into equal parts, so that dear calls never come together.
            self.slow.set_every(self.slow_round / (turns as u32 + 1), now);
            match self.turn {
                turn if turn < turns => looks.push(Look::Turn(turn)),
                _ => list = true,
            }
            self.turn = if list { 0 } else { self.turn + 1 };
        }
        for i in 0..self.gpus.len() {
            if !self.gpus[i].lost && !looks.is_empty() {
                self.look(i, &looks, now, tx);
            }
            if !self.gpus[i].lost && list {
                self.list(i, tx);
            }
        }
        for remark in self.probe.take_remarks() {
            tx.notice(Level::Warn, "gpu", remark);
        }
        if self.cost.take(now) {
            self.tell_cost(tx);
        }
        match self.gpus.iter().all(|watched| watched.lost) {
            true => Err(Absence::Lost { detail: "no GPU answers any more".to_owned() }),
            false => Ok(()),
        }
    }

    fn look(&mut self, i: usize, looks: &[Look], now: Stamp, tx: &EventTx) {
        let watched = &mut self.gpus[i];
        let gpu = watched.info.index;
        let mut sample = GpuSample::of(gpu);
        for look in looks {
            match self.probe.look(gpu, *look, now) {
                Ok(part) => sample.merge(&part),
                Err(error @ ProbeError::Unreadable { .. }) => {
                    if !std::mem::replace(&mut watched.complained, true) {
                        tx.notice(Level::Warn, "gpu", error.to_string());
                    }
                }
                Err(error @ ProbeError::Lost { .. }) => {
                    watched.lost = true;
                    let detail = error.to_string();
                    tx.notice(Level::Error, "gpu", detail.clone());
                    let remedy = Absence::Lost { detail: detail.clone() }.remedy().to_owned();
                    tx.send(Event::GpuLost(GpuLost { gpu, reason: detail, remedy }));
                    return;
                }
            }
        }
        let refused = self.probe.refused(gpu);
        if refused.len() > watched.info.refused.len() {
            watched.info.refused = refused.to_vec();
            tx.send(Event::GpuFound(Box::new(watched.info.clone())));
        }
        if !sample.is_empty() {
            tx.send(Event::GpuSample(Box::new(sample)));
        }
    }

    fn list(&mut self, i: usize, tx: &EventTx) {
        let gpu = self.gpus[i].info.index;
        let Some(processes) = self.probe.other_processes(gpu) else { return };
        let watched = &mut self.gpus[i];
        if watched.processes.as_ref() == Some(&processes)
            || (watched.processes.is_none() && processes.is_empty())
        {
            return;
        }
        let known = watched.processes.replace(processes.clone()).unwrap_or_default();
        for new in processes.iter().filter(|new| known.iter().all(|known| known.pid != new.pid)) {
            tx.notice(Level::Warn, "gpu", format!("another process is on GPU {gpu}: {new}"));
        }
        tx.send(Event::GpuProcesses(Box::new(GpuProcesses { gpu, processes })));
    }

    fn tell_cost(&mut self, tx: &EventTx) {
        let calls: Vec<_> = self
            .gpus
            .iter()
            .flat_map(|watched| {
                let mut costs = self.probe.costs(watched.info.index);
                if self.gpus.len() > 1 {
                    costs.iter_mut().for_each(|cost| cost.call += &format!(" of GPU {}", watched.info.index));
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
