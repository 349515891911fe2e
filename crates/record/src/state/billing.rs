//! The bill of a run's requests, from its events.

use super::RunState;
use llmprof_analysis::{bill::Weights, roofline::Roof};
use llmprof_event::{
    Stamp, WorkKind,
    readings::{GpuSample, Reading},
};

impl RunState {
    /// The first measured request starts: the model and the GPU are known.
    pub(super) fn bill_starts(&mut self) {
        let shape = self.run.as_ref().and_then(|run| run.shape.as_deref());
        let weights =
            shape.zip(self.peaks().ok()).map(|(shape, peaks)| Weights::new(shape, &Roof::stated(&peaks)));
        self.bill.set_weights(weights);
        self.bill.restart();
    }

    /// Settles the bill with a reading of the GPU that does the work. The requests of another program are inferred, and
    /// not billed.
    pub(super) fn bill_sample(&mut self, t: Stamp, sample: &GpuSample) {
        let of_work = self.main_gpu().filter(|gpu| gpu.info.index == sample.gpu && self.is_of_workload(gpu));
        let has_requests = match self.kind() {
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Server => true,
            WorkKind::Program | WorkKind::Watch => false,
        };
        if let Some(watts) = sample.get(Reading::Power).filter(|_| of_work.is_some() && has_requests) {
            self.bill.sample(t, watts);
        }
    }

    /// The price of an hour of the GPU, if it is configured.
    pub fn gpu_hour(&self) -> Option<f64> {
        self.run.as_ref()?.gpu_hour
    }
}
