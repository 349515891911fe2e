//! Activity counters of Hopper and newer (GPM): utilisation of SMs, tensor pipe and memory between two samples.

use std::time::{Duration, Instant};

use nvml_wrapper::{
    Device, Nvml,
    enums::gpm::GpmMetricId,
    error::NvmlError,
    gpm::{GpmSample, gpm_metrics_get},
};

use llmprof_event::readings::Reading;

/// At shorter intervals, all metrics read zero.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Metrics over a longer interval do not describe the present.
const MAX_INTERVAL: Duration = Duration::from_secs(15);

/// The metrics and their readings. Rates are in MiB/s.
const METRICS: [(GpmMetricId, Reading); 8] = [
    (GpmMetricId::SmUtil, Reading::SmActive),
    (GpmMetricId::SmOccupancy, Reading::Occupancy),
    (GpmMetricId::AnyTensorUtil, Reading::Tensor),
    (GpmMetricId::DramBwUtil, Reading::Dram),
    (GpmMetricId::PcieTxPerSec, Reading::PcieTx),
    (GpmMetricId::PcieRxPerSec, Reading::PcieRx),
    (GpmMetricId::NvlinkTotalTxPerSec, Reading::NvlinkTx),
    (GpmMetricId::NvlinkTotalRxPerSec, Reading::NvlinkRx),
];

/// A reading, or why it is absent.
pub(super) type Answer = (Reading, Result<f64, NvmlError>);

/// Keeps the previous sample: metrics are computed from two.
#[derive(Default)]
pub(super) struct Gpm {
    before: Option<(Instant, GpmSample<'static>)>,
}

impl Gpm {
    /// The readings since the previous sample, each with its own result; empty for the first sample.
    pub(super) fn sample(
        &mut self,
        nvml: &'static Nvml,
        device: &Device<'static>,
    ) -> Result<Vec<Answer>, NvmlError> {
        let now = Instant::now();
        if self.before.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < MIN_INTERVAL) {
            return Ok(Vec::new());
        }
        if !device.gpm_support()? {
            return Err(NvmlError::NotSupported);
        }
        let sample = device.gpm_sample()?;
        let before = self.before.take();
        let mut values = Vec::new();
        if let Some((at, earlier)) = before
            && now.duration_since(at) < MAX_INTERVAL
        {
            let answers = gpm_metrics_get(nvml, &earlier, &sample, &METRICS.map(|(id, _)| id))?;
            values = METRICS
                .iter()
                .zip(answers)
                .map(|((_, reading), answer)| (*reading, answer.map(|metric| metric.value)))
                .collect();
        }
        self.before = Some((now, sample));
        Ok(values)
    }
}
