//! The diagnosis of a run's GPU, from the state.

use super::{GpuState, RunState};
use crate::{
    analysis::{
        gpu_idle::GpuIdle,
        throttle::{Diagnosis, Evidence, Ledger, Workload, diagnose},
        trust::{Conditions, Trust, TrustInput, evenness, trust},
        verdict,
    },
    event::{GpuProcess, Stamp, readings::Reading},
};

/// More are on the Kernels pane.
const VERDICT_REMARKS: usize = 2;

impl RunState {
    /// The diagnosis of the main GPU; `None` without a GPU, and before its first sample.
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let gpu = self.main_gpu()?;
        self.diagnosis_of(gpu)
    }

    /// The diagnosis of the GPU that the workload runs on, as the screen shows it; `None` on the CPU.
    pub fn workload_diagnosis(&self) -> Option<Diagnosis> {
        self.diagnosis_of(self.profiled_gpu()?)
    }

    /// How far the run can be trusted; `None` until something was measured.
    pub fn trust(&self) -> Option<Trust> {
        let run = self.run.as_ref().filter(|_| self.total.itl.n() > 0)?;
        Some(trust(&TrustInput {
            conditions: self.conditions(
                self.total.from,
                self.tpots_ns.is_recorded().then(|| self.total.recorded_share()),
            ),
            tool: run.perturbed.as_deref(),
            outcome: self.finished.as_ref().map(|finished| finished.outcome),
            tpots_ns: self.tpots_ns.values(),
            interleaved: false,
        }))
    }

    /// What happened around the run since `from`, where `recorded_share` of the compared time has kernels recorded.
    pub(super) fn conditions(&self, from: Stamp, recorded_share: Option<f64>) -> Conditions {
        let gpu = self.profiled_gpu();
        let on_cpu = self.run.as_ref().is_some_and(|run| run.device.is_cpu());
        Conditions {
            other_gpu_processes: gpu.map_or(0, |gpu| gpu.processes_seen.len() as u32),
            external_cpu_share: self.host.taken_by_others(from, self.now).filter(|_| on_cpu),
            events_lost: self.observer.map_or(0, |observer| observer.lost) + self.unreadable_lines,
            throttled: gpu
                .and_then(|gpu| self.diagnosis_of(gpu))
                .is_some_and(|diagnosis| diagnosis.throttled),
            recorded_share,
        }
    }

    /// How long the GPU is idle during decode; `None` where neither kernels nor steps were timed on it.
    pub fn gpu_idle(&self) -> Option<GpuIdle> {
        GpuIdle::of(self.kernels.decode.launch_meter().as_ref(), self.total.device_share())
    }

    /// The summary of the run so far; `None` until something was measured.
    pub fn verdict(&self) -> Option<String> {
        let run = self.run.as_ref()?;
        // Of another program, they say why the GPU is idle.
        let remarks = self.kernels.decode.remarks();
        let why = remarks.iter().take(VERDICT_REMARKS).map(|remark| format!(" {remark}")).collect::<String>();
        let summary = verdict::summary(&verdict::Measurements {
            metrics: &self.total,
            tpot: evenness(self.tpots_ns.values()),
            idle: self.gpu_idle().filter(|_| why.is_empty()),
            recorded: self.total.left_out(),
            recording_cost: self.kernels.recording.cost(),
            batch: run.batch,
            step_bytes: self.decode_step_bytes(),
            cpu_taken_by_others: self
                .host
                .taken_by_others(self.total.from, self.now)
                .filter(|_| run.device.is_cpu()),
            simulated: run.simulated,
            inferred: self.follows(),
        });
        summary.map(|summary| summary + &why)
    }

    /// The current diagnosis of a GPU: of a workload all of its time, of external load the last minute or two.
    pub fn diagnosis_now(&self, gpu: &GpuState) -> Option<Diagnosis> {
        self.diagnosis_by(gpu, if self.watches() { gpu.recent_ledger() } else { &gpu.ledger })
    }

    pub fn diagnosis_of(&self, gpu: &GpuState) -> Option<Diagnosis> {
        self.diagnosis_by(gpu, &gpu.ledger)
    }

    fn diagnosis_by(&self, gpu: &GpuState, ledger: &Ledger) -> Option<Diagnosis> {
        let profiled = gpu.info.profiled;
        let workload = self.run.as_ref().filter(|_| profiled);
        let others: Vec<GpuProcess> = gpu.processes_seen.iter().map(|(_, process)| process.clone()).collect();
        // Without a workload, other processes are what is monitored.
        let others = if profiled { others } else { Vec::new() };
        diagnose(&Evidence {
            info: &gpu.info,
            ledger,
            workload: workload.map(|run| Workload { batch: run.batch, prompt_tokens: run.prompt_tokens }),
            tpot_ms: self.total.itl.mean_ms().filter(|_| profiled),
            device_share: self.total.device_share().filter(|_| profiled),
            fan_pct: gpu.value(Reading::Fan),
            pcie_width: gpu.value(Reading::PcieWidth),
            others: &others,
            lost: gpu.lost.as_ref().map(|(_, lost)| lost),
        })
    }
}
