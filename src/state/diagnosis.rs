//! What the state of a run says of its card.

use super::{GpuState, RunState};
use crate::{
    analysis::{
        throttle::{Diagnosis, Evidence, Ledger, Workload, diagnose},
        trust::{Judged, Trust, trust},
    },
    event::{GpuProcess, readings::Reading},
};

impl RunState {
    /// What holds the main GPU back, or that nothing does; `None` where there is no GPU or nothing was seen of it.
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let gpu = self.main_gpu()?;
        self.diagnosis_of(gpu)
    }

    /// How far the run can be trusted; `None` until something was measured.
    pub fn trust(&self) -> Option<Trust> {
        let run = self.run.as_ref()?;
        let diagnosis = self.profiled_gpu().and_then(|gpu| self.diagnosis_of(gpu));
        let on_cpu = run.device.is_cpu();
        trust(&Judged {
            metrics: &self.total,
            diagnosis: diagnosis.as_ref(),
            others: self.profiled_gpu().map_or(0, |gpu| gpu.processes_seen.len()),
            cpu_taken: self.host.taken_by_others(self.total.from, self.now).filter(|_| on_cpu),
            events_lost: self.observer.map_or(0, |observer| observer.lost),
            drift: self.drift.ratio(),
            perturbed: run.perturbed.as_deref(),
        })
    }

    /// What is to be said of a GPU at this moment: of our own work all of it, of others' the last minute or two.
    pub fn diagnosis_now(&self, gpu: &GpuState) -> Option<Diagnosis> {
        self.diagnosis_by(gpu, if self.watches() { gpu.lately() } else { &gpu.ledger })
    }

    pub fn diagnosis_of(&self, gpu: &GpuState) -> Option<Diagnosis> {
        self.diagnosis_by(gpu, &gpu.ledger)
    }

    fn diagnosis_by(&self, gpu: &GpuState, ledger: &Ledger) -> Option<Diagnosis> {
        let profiled = gpu.info.profiled;
        let workload = self.run.as_ref().filter(|_| profiled);
        let others: Vec<GpuProcess> = gpu.processes_seen.iter().map(|(_, process)| process.clone()).collect();
        // Without a workload of ours everyone on the card is there by right.
        let others = if profiled { others } else { Vec::new() };
        diagnose(&Evidence {
            info: &gpu.info,
            ledger,
            workload: workload.map(|run| Workload { batch: run.batch, prompt_tokens: run.prompt_tokens }),
            tpot_ms: self.total.itl.mean_ms().filter(|_| profiled),
            device_share: self.total.device_share().filter(|_| profiled),
            temp_c: gpu.value(Reading::Temp),
            fan_pct: gpu.value(Reading::Fan),
            pcie_width: gpu.value(Reading::PcieWidth),
            others: &others,
            lost: gpu.lost.as_ref().map(|(_, lost)| lost),
            reasons_refused: gpu.refusal("clock event reasons").map(|(reason, _)| reason),
        })
    }
}
