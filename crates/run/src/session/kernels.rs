//! Switches the recording of single kernels on and off.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::Session;
use crate::{plan::Plan, work::Work};
use llmprof_engine::profile::live::Tracer;
use llmprof_event::{Event, EventTx, KernelTrace, TraceState};
use llmprof_sources::attach::ProgramControl;

/// The recorder of a run's kernels.
pub(super) struct KernelSwitches {
    /// For a model of this process on a GPU.
    pub(super) tracer: Option<Arc<Tracer>>,
    /// For a simulated run.
    pub(super) simulated: Arc<AtomicBool>,
    /// For a followed program, which it also ends.
    pub(super) program: Arc<ProgramControl>,
}

impl KernelSwitches {
    pub(super) fn new(plan: &Plan, tx: &EventTx) -> KernelSwitches {
        let enable = plan.composed.config.profiling.cupti.enable;
        let tracer = (plan.device.is_cuda() && matches!(plan.work, Work::Model(_)))
            .then(|| Arc::new(Tracer::new(tx.clone(), enable)));
        KernelSwitches { tracer, simulated: Arc::new(AtomicBool::new(enable)), program: Arc::default() }
    }
}

impl Session {
    /// Starts or stops recording single kernels. Returns a message for the user. An event reports the result.
    pub fn toggle_kernels(&mut self) -> String {
        if self.state.finished.is_some() {
            return "the run has ended; r starts it again".to_owned();
        }
        let message = |enable: bool| match enable {
            true => "recording kernels".to_owned(),
            false => "no longer recording kernels".to_owned(),
        };
        if self.plan.simulated() {
            return message(!self.kernels.simulated.fetch_xor(true, Ordering::Relaxed));
        }
        // A worker on the CPU has no kernels.
        if self.plan.work.has_program() && (self.plan.work.worker().is_none() || self.plan.uses_gpu()) {
            if !self.state.programs.uses_cuda() {
                return "no process of the program uses CUDA now: there are no kernels to record".to_owned();
            }
            let everything = !self.kernels.program.everything.fetch_xor(true, Ordering::Relaxed);
            return match everything {
                true => "recording every kernel for 10 s".to_owned(),
                false => "recording kernels in bursts again".to_owned(),
            };
        }
        let Some(tracer) = &self.kernels.tracer else {
            let (reason, remedy) = match self.plan.work.load() {
                Some(_) => (
                    "llmprof-tui did not start the server",
                    "set runtime.server.command, so that it starts the server and records its kernels",
                ),
                None => ("this run has no kernels on a GPU", "run it on an NVIDIA GPU"),
            };
            let state = TraceState::Refused { reason: reason.to_owned(), remedy: remedy.to_owned() };
            self.emit(Event::KernelTrace(KernelTrace { tool: "CUPTI".to_owned(), state }));
            return format!("{reason}; {remedy}");
        };
        let enable = !tracer.is_requested();
        tracer.request(enable);
        message(enable)
    }
}
