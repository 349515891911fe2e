//! What the GPU and the host reported, over time.

use super::Series;
use crate::event::{GpuInfo, GpuSample, HostInfo, HostSample, Stamp};

/// One GPU: what it is, what it said last, and its history.
#[derive(Debug, Clone)]
pub struct GpuState {
    pub info: GpuInfo,
    pub latest: Option<(Stamp, GpuSample)>,
    pub power_w: Series,
    pub sm_clock_mhz: Series,
    pub mem_clock_mhz: Series,
    pub gpu_util_pct: Series,
    pub mem_util_pct: Series,
    pub temp_c: Series,
    pub mem_used_bytes: Series,
    /// NVML's reason bits of the last samples, for the throttle lanes.
    pub reasons: Vec<(u64, Series)>,
}

impl GpuState {
    pub(super) fn new(info: GpuInfo) -> Self {
        GpuState {
            info,
            latest: None,
            power_w: Series::default(),
            sm_clock_mhz: Series::default(),
            mem_clock_mhz: Series::default(),
            gpu_util_pct: Series::default(),
            mem_util_pct: Series::default(),
            temp_c: Series::default(),
            mem_used_bytes: Series::default(),
            reasons: Vec::new(),
        }
    }

    pub(super) fn record(&mut self, t: Stamp, sample: &GpuSample) {
        self.latest = Some((t, *sample));
        let readings = [
            (&mut self.power_w, sample.power_w),
            (&mut self.sm_clock_mhz, sample.sm_clock_mhz.map(|v| v as f32)),
            (&mut self.mem_clock_mhz, sample.mem_clock_mhz.map(|v| v as f32)),
            (&mut self.gpu_util_pct, sample.gpu_util_pct),
            (&mut self.mem_util_pct, sample.mem_util_pct),
            (&mut self.temp_c, sample.temp_c),
            (&mut self.mem_used_bytes, sample.mem_used_bytes.map(|v| v as f32)),
        ];
        for (series, reading) in readings {
            if let Some(value) = reading {
                series.push(t, value);
            }
        }
        if let Some(bits) = sample.reasons {
            self.record_reasons(t, bits);
        }
    }

    /// Every bit that was ever set has a lane of its own: 1 while active, 0 while not.
    fn record_reasons(&mut self, t: Stamp, bits: u64) {
        let mut fresh = self.reasons.iter().fold(bits, |left, (bit, _)| left & !bit);
        while fresh != 0 {
            let bit = 1 << fresh.trailing_zeros();
            fresh &= !bit;
            self.reasons.push((bit, Series::default()));
            self.reasons.sort_by_key(|(bit, _)| *bit);
        }
        for (bit, series) in &mut self.reasons {
            series.push(t, if bits & *bit != 0 { 1.0 } else { 0.0 });
        }
    }
}

/// The machine around the workload.
#[derive(Debug, Clone, Default)]
pub struct HostState {
    pub info: Option<HostInfo>,
    pub latest: Option<(Stamp, HostSample)>,
    /// Mean over all cores.
    pub cpu_pct: Series,
    pub freq_mhz: Series,
    pub mem_used_bytes: Series,
    pub process_pct: Series,
    pub process_rss_bytes: Series,
    pub package_power_w: Series,
}

impl HostState {
    /// Share of the machine's CPU that went to other processes between two moments.
    pub fn taken_by_others(&self, from: Stamp, to: Stamp) -> Option<f32> {
        let mean = |series: &Series| series.columns(from, to, 1)[0].map(|b| b.mean());
        let cores = self.latest.as_ref().map(|(_, s)| s.core_pct.len()).filter(|n| *n > 0)?;
        let taken = mean(&self.cpu_pct)? - mean(&self.process_pct)? / cores as f32;
        Some((taken / 100.0).clamp(0.0, 1.0))
    }

    pub(super) fn record(&mut self, t: Stamp, sample: &HostSample) {
        let cores = sample.core_pct.len();
        let mean = (cores > 0).then(|| sample.core_pct.iter().sum::<f32>() / cores as f32);
        let readings = [
            (&mut self.cpu_pct, mean),
            (&mut self.freq_mhz, sample.freq_mhz),
            (&mut self.mem_used_bytes, sample.mem_used_bytes.map(|v| v as f32)),
            (&mut self.process_pct, sample.process_pct),
            (&mut self.process_rss_bytes, sample.process_rss_bytes.map(|v| v as f32)),
            (&mut self.package_power_w, sample.package_power_w),
        ];
        for (series, reading) in readings {
            if let Some(value) = reading {
                series.push(t, value);
            }
        }
        self.latest = Some((t, sample.clone()));
    }
}
