//! The GPU's temperature while no workload runs.

use std::time::Instant;

use super::{
    GpuProbe, Look, ProbeError, Tier,
    absent::Absence,
    nvml::NvmlProbe,
    sampler::{Looks, looks_with, profiled_gpu},
    sim::SimProbe,
};
use crate::{
    config::RunConfig,
    event::{Activity, Stamp},
    readings::Reading,
    scenario::Scenario,
};

/// Reads the temperature of the GPU that the workload runs on.
pub struct Thermometer {
    probe: Box<dyn GpuProbe>,
    gpu: u32,
    begun: Instant,
    told_once: bool,
}

impl Thermometer {
    /// The one for `config`; a simulated card begins at `last_temp_c`.
    pub fn for_config(config: &RunConfig, last_temp_c: Option<f32>) -> Result<Thermometer, Absence> {
        let (probe, gpu): (Box<dyn GpuProbe>, u32) = match looks_with(config)? {
            Looks::Simulated => {
                // Whatever is scripted to go wrong goes wrong under load.
                let probe = SimProbe::new(Scenario::steady(), Activity::default(), config.runtime.seed, 0);
                (Box::new(probe.starting_at(last_temp_c)), 0)
            }
            Looks::Nvml => {
                let probe = NvmlProbe::open()?;
                let gpu = profiled_gpu(config, &probe.gpus(), None).unwrap_or(config.hardware.device_index);
                (Box::new(probe), gpu)
            }
        };
        Ok(Thermometer { probe, gpu, begun: Instant::now(), told_once: false })
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
