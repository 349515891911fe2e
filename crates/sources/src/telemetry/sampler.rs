//! Takes samples when they are due, on its own thread or from the steps of a simulation.

mod gpus;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use gpus::GpuSampler;

use super::{
    GpuProbe, HostProbe,
    absent::Absence,
    isolation::{ExternalLoad, remarks_on_gpu},
    visible::nvml_index,
};
use llmprof_config::{HardwareConfig, NvmlConfig, RunConfig, Runtime, SamplerConfig};
use llmprof_event::{AllocatorSample, Device, Event, EventTx, GpuInfo, GpuSource, Level, Stamp};

/// The longest delay of a stop if the thread is not unparked.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Counting is cheap, but querying the reserved memory of the C library blocks other allocations.
const HEAP_INTERVAL: Duration = Duration::from_secs(1);

/// Owns the probes and their schedules.
pub struct Sampler {
    gpu: Result<GpuSampler, Absence>,
    host: Option<HostSampler>,
    /// Remarks on the machine, reported at the start.
    remarks: Vec<String>,
    /// Set if external load is measured at the start.
    isolation: Option<HardwareConfig>,
}

struct HostSampler {
    probe: Box<dyn HostProbe>,
    due: Due,
    heap_due: Due,
    heap: Option<AllocatorSample>,
}

impl HostSampler {
    fn new(probe: Box<dyn HostProbe>, interval_ms: u32) -> HostSampler {
        // Host readings are rates, so the first one needs an interval before it.
        let (due, heap_due) = (Due::every_ms(interval_ms).later(), Due::every(HEAP_INTERVAL));
        HostSampler { probe, due, heap_due, heap: None }
    }

    /// Sends a sample, and the heap if it has changed.
    fn sample(&mut self, now: Stamp, tx: &EventTx) {
        tx.send(Event::HostSample(Box::new(self.probe.sample(now))));
        if !self.heap_due.take(now) {
            return;
        }
        let heap = self.probe.heap();
        if let Some(sample) = heap.filter(|_| heap != self.heap) {
            self.heap = heap;
            tx.send(Event::Allocator(sample));
        }
    }
}

/// Times at a fixed interval; missed ones are skipped.
struct Due {
    next: Stamp,
    every: Duration,
}

impl Due {
    fn every(every: Duration) -> Due {
        Due { next: Stamp::default(), every }
    }

    fn every_ms(ms: u32) -> Due {
        Due::every(Duration::from_millis(u64::from(ms.max(1))))
    }

    /// The same without the first time.
    fn later(self) -> Due {
        Due { next: self.next + self.every, ..self }
    }

    /// Whether it is due; if so, advances to the first time after `now`.
    fn take(&mut self, now: Stamp) -> bool {
        if now < self.next {
            return false;
        }
        let missed = now.since(self.next).as_nanos() / self.every.as_nanos();
        self.next = self.next + self.every * u32::try_from(missed + 1).unwrap_or(u32::MAX);
        true
    }

    /// Changes the interval, starting at `now`.
    fn set_every(&mut self, every: Duration, now: Stamp) {
        if every != self.every {
            (self.every, self.next) = (every, now + every);
        }
    }
}

impl Sampler {
    /// A sampler for a run with `config`. `uuid` is CUDA's id of the GPU that the workload runs on, if known.
    pub fn for_run(
        config: &RunConfig,
        probe: Result<Box<dyn GpuProbe>, Absence>,
        host: Option<Box<dyn HostProbe>>,
        uuid: Option<&str>,
    ) -> Sampler {
        let simulated_run = config.runtime.name == Runtime::Sim;
        let mut sampler = Sampler::new(probe, &config.profiling.nvml, host, &config.profiling.host);
        if let Ok(sampled) = &mut sampler.gpu {
            let infos: Vec<GpuInfo> = sampled.gpus.iter().map(|gpu| gpu.info.clone()).collect();
            let profiled = if simulated_run { Some(0) } else { profiled_gpu(config, &infos, uuid) };
            for gpu in &mut sampled.gpus {
                // A real workload does not run on a simulated GPU.
                gpu.info.profiled =
                    profiled == Some(gpu.info.index) && (simulated_run || gpu.info.source != GpuSource::Sim);
            }
            // Listed before the engine starts, which would be one of the processes.
            for gpu in sampled.gpus.iter().map(|gpu| gpu.info.clone()).collect::<Vec<_>>() {
                let others = sampled.other_processes(gpu.index);
                sampler.remarks.extend(remarks_on_gpu(&config.hardware, &gpu, others.as_deref()));
            }
        } else if config.hardware.expected_power_limit_w.is_some() {
            sampler.remarks.push(
                "hardware.expected_power_limit_w cannot be checked: no GPU is read in this run".to_owned(),
            );
        }
        sampler.isolation =
            (config.hardware.isolation.check && !simulated_run).then(|| config.hardware.clone());
        sampler
    }

    pub fn new(
        gpu: Result<Box<dyn GpuProbe>, Absence>,
        gpu_intervals: &NvmlConfig,
        host: Option<Box<dyn HostProbe>>,
        host_interval: &SamplerConfig,
    ) -> Sampler {
        let gpu = gpu.map(|probe| GpuSampler::new(probe, gpu_intervals));
        let host = host.map(|probe| HostSampler::new(probe, host_interval.interval_ms));
        Sampler { gpu, host, remarks: Vec::new(), isolation: None }
    }

    /// Reports the sampled GPUs, and why the others are not sampled.
    pub fn announce(&self, tx: &EventTx) {
        match &self.gpu {
            Ok(sampled) => sampled.announce(tx),
            Err(absence) => {
                tx.send(Event::GpuAbsent(absence.into()));
            }
        }
        if let Some(host) = &self.host {
            tx.send(Event::HostFound(Box::new(host.probe.info())));
        }
        for remark in &self.remarks {
            tx.notice(Level::Warn, "hardware", remark.clone());
        }
    }

    /// Sends the samples that are due at `now`; returns the next due time, or `None` if there is nothing to sample.
    pub fn sample_due(&mut self, now: Stamp, tx: &EventTx) -> Option<Stamp> {
        if let Ok(sampled) = &mut self.gpu
            && let Err(absence) = sampled.sample_due(now, tx)
        {
            self.gpu = Err(absence);
        }
        if let Some(host) = &mut self.host
            && host.due.take(now)
        {
            host.sample(now, tx);
        }
        let gpu_next = self.gpu.as_ref().ok().map(GpuSampler::next);
        let host_next = self.host.as_ref().map(|host| host.due.next);
        gpu_next.into_iter().chain(host_next).min()
    }

    /// Samples on the calling thread by a wall clock until `stop` is set. `stop` is checked when the thread is unparked,
    /// and every 50 ms.
    pub fn run(&mut self, tx: &EventTx, stop: &AtomicBool) {
        let mut external = self.isolation.take().and_then(|hardware| {
            let load = ExternalLoad::start(Path::new("/proc"))?;
            Some((load, hardware, tx.clock().now() + ExternalLoad::DURATION))
        });
        while !stop.load(Ordering::Acquire) {
            let now = tx.clock().now();
            if let Some((load, hardware, _)) = external.take_if(|(_, _, due)| now >= *due)
                && let Some(remark) = load.remark(&hardware)
            {
                tx.notice(Level::Warn, "hardware", remark);
            }
            let due = self.sample_due(now, tx);
            let Some(next) = due.into_iter().chain(external.as_ref().map(|(_, _, due)| *due)).min() else {
                return;
            };
            while !stop.load(Ordering::Acquire) {
                let left = next.since(tx.clock().now());
                if left.is_zero() {
                    break;
                }
                std::thread::park_timeout(left.min(STOP_CHECK));
            }
        }
    }
}

/// The NVML index of the GPU that the workload runs on.
pub fn profiled_gpu(config: &RunConfig, gpus: &[GpuInfo], uuid: Option<&str>) -> Option<u32> {
    let index = match Device::from(config.runtime.device.as_str()) {
        Device::Cpu | Device::None => return None,
        Device::Cuda(index) => index,
        Device::Sim | Device::Other(_) => config.hardware.device_index,
    };
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    nvml_index(gpus, index, uuid, visible.as_deref())
}

#[cfg(test)]
mod tests;
