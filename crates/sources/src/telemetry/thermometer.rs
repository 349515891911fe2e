//! The GPU's temperature while no workload runs.

use std::time::Instant;

use super::{GpuProbe, ProbeError, Selection, Tier};
use llmprof_event::{Stamp, readings::Reading};

/// Reads the temperature of the GPU that the workload runs on.
pub struct Thermometer {
    probe: Box<dyn GpuProbe>,
    gpu: u32,
    start: Instant,
    has_reported: bool,
}

impl Thermometer {
    /// Reads the GPU with the NVML index `gpu` through `probe`.
    pub fn new(probe: Box<dyn GpuProbe>, gpu: u32) -> Thermometer {
        Thermometer { probe, gpu, start: Instant::now(), has_reported: false }
    }

    /// The temperature; `None` if this sample failed and the next may succeed. An error is permanent.
    pub fn read(&mut self) -> Result<Option<f32>, String> {
        let now = Stamp::from_secs_f64(self.start.elapsed().as_secs_f64());
        match self.probe.sample(self.gpu, Selection::Tier(Tier::Fast), now) {
            Ok(sample) => {
                let temp_c = sample.get(Reading::Temp).map(|celsius| celsius as f32);
                self.has_reported |= temp_c.is_some();
                match self.has_reported {
                    true => Ok(temp_c),
                    false => Err(format!("GPU {} does not report its temperature", self.gpu)),
                }
            }
            Err(ProbeError::Unreadable { .. }) => Ok(None),
            Err(error @ ProbeError::Lost { .. }) => Err(error.to_string()),
        }
    }
}
