//! The GPUs of a run, and the processes of a program on them.

use super::{GpuState, RunState};
use llmprof_analysis::{
    energy::{Energy, energy},
    throttle::GpuActivity,
};
use llmprof_event::{
    Event, GpuAbsent, GpuInfo, GpuLost, GpuProcesses, GpuSample, GpuSource, ObserverSample, Phase,
    ProcessJoined, SamplerCost, Stamp, WorkKind, readings::Reading, reasons,
};

impl RunState {
    /// Tells the GPU of the workload what it works on from now on.
    pub(super) fn phase_of_gpus(&mut self, t: Stamp, event: &Event) {
        // While a tool runs, the workload waits and the GPU runs the tool's child process.
        let phase = if self.is_under_tool() { Phase::Idle } else { self.phase };
        // In another program, only the steps that were recognised have a phase.
        let infers_steps = self.kind().infers_steps();
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.info.profiled) {
            if let Event::ProcessStopped(stop) = event {
                gpu.ledger.phase(stop.since, Phase::Idle);
            }
            gpu.ledger.works_outside_phases = infers_steps;
            gpu.ledger.phase(t, phase);
        }
    }

    fn is_under_tool(&self) -> bool {
        self.kernels.working().is_some()
    }

    fn gpu_mut(&mut self, index: u32) -> Option<&mut GpuState> {
        self.gpus.iter_mut().find(|gpu| gpu.info.index == index)
    }

    pub(super) fn gpu_found(&mut self, _: Stamp, info: &GpuInfo) {
        self.gpu_absent = None;
        match self.gpu_mut(info.index) {
            Some(known) => known.info = info.clone(),
            None => self.gpus.push(GpuState::new(info.clone())),
        }
    }

    pub(super) fn gpu_absent(&mut self, _: Stamp, absent: &GpuAbsent) {
        self.gpu_absent = Some(absent.clone());
    }

    pub(super) fn sampler_cost(&mut self, _: Stamp, cost: &SamplerCost) {
        self.sampler = Some(cost.clone());
    }

    pub(super) fn observer(&mut self, _: Stamp, sample: &ObserverSample) {
        self.observer = Some(*sample);
    }

    pub(super) fn gpu_sample(&mut self, t: Stamp, sample: &GpuSample) {
        let main = self.main_gpu().map(|gpu| (gpu.info.index, gpu.info.sm_clock_max_mhz));
        if let Some((_, max_mhz)) = main.filter(|(index, _)| *index == sample.gpu) {
            if self.server.is_there() {
                let is_slowed = reasons::faults(sample.reasons.unwrap_or(0)) != 0;
                let clocks = max_mhz.map(f64::from).zip(sample.get(Reading::SmClock));
                let slower = clocks.filter(|(_, mhz)| is_slowed && *mhz > 0.0).map(|(max, mhz)| max / mhz);
                self.server.late.gpu(t, slower);
            }
            self.flight.gpu_sample(t, sample, self.trail.count());
        }
        self.bill_sample(t, sample);
        let Some(gpu) = self.gpu_mut(sample.gpu) else { return };
        gpu.record(t, sample);
        if gpu.info.profiled {
            let phase = self.phase;
            self.traces().for_each(|trace| trace.gpu_sample(t, phase, sample));
        }
    }

    pub(super) fn gpu_processes(&mut self, t: Stamp, listed: &GpuProcesses) {
        if self.is_under_tool() {
            return;
        }
        if let Some(gpu) = self.gpus.iter_mut().find(|gpu| gpu.info.index == listed.gpu) {
            gpu.record_processes(t, &self.programs.mark_own(&listed.processes));
        }
    }

    pub(super) fn gpu_lost(&mut self, t: Stamp, lost: &GpuLost) {
        if let Some(gpu) = self.gpu_mut(lost.gpu) {
            gpu.lost = Some((t, lost.clone()));
            self.flight.lost(t, lost.gpu, self.trail.count());
        }
    }

    pub(super) fn process_joined(&mut self, t: Stamp, process: &ProcessJoined) {
        self.programs.joined(t, process);
        // The process may have been on the GPU before it was known.
        for gpu in &mut self.gpus {
            gpu.processes_seen.retain(|(_, seen)| seen.pid != process.pid);
        }
    }

    /// The GPU the workload runs on, if it runs on one.
    pub fn profiled_gpu(&self) -> Option<&GpuState> {
        self.gpus.iter().find(|g| g.info.profiled)
    }

    /// The energy by phase, per token if tokens are counted.
    pub fn energy(&self, gpu: &GpuState) -> Option<Energy> {
        let energy = energy(&gpu.ledger)?;
        Some(if self.kind().infers_steps() { energy.without_tokens() } else { energy })
    }

    /// Whether the workload runs on it, or may: without a workload of this program any GPU does, and a server's GPUs
    /// are those of its machine.
    pub fn is_of_workload(&self, gpu: &GpuState) -> bool {
        gpu.info.profiled
            || match self.kind() {
                WorkKind::Watch => true,
                WorkKind::Server => self.server.is_local() || gpu.info.source == GpuSource::Dcgm,
                WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program => false,
            }
    }

    /// The GPU to show first: the workload's, else the one with the highest load.
    pub fn main_gpu(&self) -> Option<&GpuState> {
        let busy = |gpu: &GpuState| gpu.ledger.account(GpuActivity::Busy).time_ns;
        // The first of several with the same load.
        let busiest = || self.gpus.iter().rev().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        self.profiled_gpu().or_else(busiest)
    }
}
