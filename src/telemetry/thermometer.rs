//! The GPU's temperature while no workload runs.

use std::time::Instant;

use super::{GpuProbe, Look, ProbeError, Tier};
use crate::event::{Stamp, readings::Reading};

/// Reads the temperature of the GPU that the workload runs on.
pub struct Thermometer {
    probe: Box<dyn GpuProbe>,
    gpu: u32,
    begun: Instant,
    told_once: bool,
}

impl Thermometer {
    /// Reads `gpu`, numbered as NVML counts, through `probe`.
    pub fn new(probe: Box<dyn GpuProbe>, gpu: u32) -> Thermometer {
        Thermometer { probe, gpu, begun: Instant::now(), told_once: false }
    }

    /// The temperature; `None` where this look failed and the next may not. An error stays.
    pub fn read(&mut self) -> Result<Option<f32>, String> {
        let now = Stamp::from_secs_f64(self.begun.elapsed().as_secs_f64());
        match self.probe.look(self.gpu, Look::All(Tier::Fast), now) {
            Ok(sample) => {
                let temp_c = sample.get(Reading::Temp).map(|celsius| celsius as f32);
                let never = temp_c.is_none() && !self.told_once;
                self.told_once |= temp_c.is_some();
                if never {
                    Err(format!("GPU {} does not tell its temperature", self.gpu))
                } else {
                    Ok(temp_c)
                }
            }
            Err(ProbeError::Unreadable { .. }) => Ok(None),
            Err(error @ ProbeError::Lost { .. }) => Err(error.to_string()),
        }
    }
}
