//! Activity counters of Hopper and newer (GPM): what the SMs, the tensor pipe and the memory did between two looks.

use std::time::{Duration, Instant};

use nvml_wrapper::{
    Device, Nvml,
    enums::gpm::GpmMetricId,
    error::NvmlError,
    gpm::{GpmSample, gpm_metrics_get},
};

use crate::event::readings::Reading;

/// Closer together than this, everything reads zero.
const LEAST_APART: Duration = Duration::from_millis(100);
/// Two looks this far apart say little of the moment.
const MOST_APART: Duration = Duration::from_secs(15);

/// What is asked, and the reading it becomes. Rates come in MiB/s.
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

/// The readings GPM gives.
pub(super) fn readings() -> impl Iterator<Item = Reading> {
    METRICS.iter().map(|(_, reading)| *reading)
}

/// A reading, or why it is not there.
pub(super) type Answer = (Reading, Result<f64, NvmlError>);

/// Keeps the look before, against which the next is held.
#[derive(Default)]
pub(super) struct Gpm {
    before: Option<(Instant, GpmSample<'static>)>,
}

impl Gpm {
    /// The readings since the look before, each with its own success; none at the first look.
    pub(super) fn look(
        &mut self,
        nvml: &'static Nvml,
        device: &Device<'static>,
    ) -> Result<Vec<Answer>, NvmlError> {
        let now = Instant::now();
        if self.before.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < LEAST_APART) {
            return Ok(Vec::new());
        }
        if !device.gpm_support()? {
            return Err(NvmlError::NotSupported);
        }
        let sample = device.gpm_sample()?;
        let before = self.before.take();
        let mut values = Vec::new();
        if let Some((at, earlier)) = before
            && now.duration_since(at) < MOST_APART
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
