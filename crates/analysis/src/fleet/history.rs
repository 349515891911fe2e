//! One GPU over time, as the events of a run without a workload, for the GPU pane.

use std::time::Duration;

use super::gpu::{Gpu, Snapshot};
use llmprof_event::{
    Device, Envelope, Event, GivenPeaks, GpuInfo, GpuSample, GpuSource, Query, Refusal, Refused, RunStarted,
    SCHEMA, Stamp, WorkKind,
};

/// Charts connect samples that are no further apart: a value is valid until the next scrape.
const HELD: Duration = Duration::from_secs(2);

/// The readings of one GPU, with their times in seconds of Unix time.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    pub gpu: Gpu,
    /// The time between two samples.
    pub step_s: f64,
    pub samples: Vec<(f64, GpuSample)>,
}

impl History {
    pub fn begin_unix_s(&self) -> Option<f64> {
        self.samples.first().map(|(at, _)| *at)
    }

    /// As the events of a run. A sample is repeated until the next one, but for no longer than two steps: missing
    /// scrapes are gaps.
    pub fn events(&self) -> Vec<Envelope> {
        let Some(begin) = self.begin_unix_s() else { return Vec::new() };
        let index = self.gpu.gpu.parse().unwrap_or(0);
        let stamp = |unix_s: f64| Stamp::from_secs_f64((unix_s - begin).max(0.0));
        let mut events = vec![
            Envelope { t: Stamp(0), event: Event::RunStarted(Box::new(started(&self.gpu, begin))) },
            Envelope { t: Stamp(0), event: Event::GpuFound(Box::new(self.info(index))) },
        ];
        for (i, (at, sample)) in self.samples.iter().enumerate() {
            let next = self.samples.get(i + 1).map(|(next, _)| *next);
            let end = next.unwrap_or(*at).min(at + 2.0 * self.step_s);
            let mut sample = *sample;
            sample.gpu = index;
            let mut t = *at;
            loop {
                events.push(Envelope { t: stamp(t), event: Event::GpuSample(Box::new(sample)) });
                t += HELD.as_secs_f64();
                if t >= end {
                    break;
                }
            }
        }
        events
    }

    fn info(&self, index: u32) -> GpuInfo {
        let last = self.samples.last().map(|(_, sample)| sample);
        let has_reasons = self.samples.iter().any(|(_, sample)| sample.reasons.is_some());
        let not_exported = || Refused {
            reading: Query::ClockEventReasons,
            reason: Refusal::Other("not exported".to_owned()),
            remedy: Some("add DCGM_FI_DEV_CLOCKS_EVENT_REASONS to the counters of the exporter".to_owned()),
        };
        let mut info = GpuInfo {
            index,
            name: self.gpu.model.clone().unwrap_or_default(),
            uuid: self.gpu.uuid.clone().unwrap_or_default(),
            driver: self.gpu.driver.clone().unwrap_or_default(),
            source: GpuSource::Dcgm,
            refused: (!has_reasons).then(not_exported).into_iter().collect(),
            ..GpuInfo::default()
        };
        if let Some(sample) = last {
            info.mem_total_bytes =
                sample.get(llmprof_event::readings::Reading::MemTotal).map(|bytes| bytes as u64);
            info.update(sample);
        }
        info
    }
}

fn started(gpu: &Gpu, begin: f64) -> RunStarted {
    RunStarted {
        schema: SCHEMA,
        program: format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
        started_unix_ms: (begin * 1e3) as u64,
        experiment: String::new(),
        model: gpu.node.clone(),
        dtype: String::new(),
        kind: WorkKind::Watch,
        device: Device::None,
        synthetic_weights: false,
        simulated: false,
        parameters: 0,
        weight_bytes: 0,
        step_weight_bytes: None,
        kv_bytes_per_position: 0,
        requests: 0,
        warmup: 0,
        batch: 0,
        prompt_tokens: 0,
        output_tokens: 0,
        seed: 0,
        overrides: Vec::new(),
        shape: None,
        peaks: GivenPeaks::default(),
        command: None,
        slo: None,
        gpu_hour: None,
        perturbed: None,
    }
}

/// The history of a GPU in the snapshots of a recording, oldest first.
pub fn from_recording<'a>(gpu: &Gpu, snapshots: impl Iterator<Item = &'a Snapshot>) -> History {
    let mut samples: Vec<(f64, GpuSample)> = Vec::new();
    for snapshot in snapshots {
        let found = snapshot.gpus.iter().find(|found| found.key == gpu.key);
        let fresh = found.filter(|found| !snapshot.is_silent(found));
        samples.extend(fresh.map(|found| (snapshot.unix_s, found.sample)));
    }
    let gaps: Vec<f64> = samples.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let step_s = super::peers::median(&gaps).unwrap_or(15.0).max(1.0);
    History { gpu: gpu.clone(), step_s, samples }
}
