//! The GPU of an estimate.

use llmprof_analysis::peaks::{GPUS, GpuPeaks, MemoryBasis};
use llmprof_event::GpuInfo;

/// A GPU and its memory, if that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostGpu {
    pub name: String,
    pub memory: Option<(u64, MemoryBasis)>,
}

impl CostGpu {
    /// The GPU as the driver describes it: its memory is the driver's figure, else that of the table.
    pub fn reported(info: &GpuInfo) -> CostGpu {
        let known = GpuPeaks::matching(&info.name, info.mem_total_bytes);
        let name = known.map_or_else(|| info.name.clone(), |gpu| gpu.name.to_owned());
        let reported = info.mem_total_bytes.map(|bytes| (bytes, MemoryBasis::Driver));
        CostGpu { name, memory: reported.or(known.map(|gpu| (gpu.mem_bytes, gpu.mem_basis))) }
    }
}

impl From<&GpuPeaks> for CostGpu {
    fn from(gpu: &GpuPeaks) -> CostGpu {
        CostGpu { name: gpu.name.to_owned(), memory: Some((gpu.mem_bytes, gpu.mem_basis)) }
    }
}

/// The names of the GPUs whose peaks are built in.
pub fn known_gpus() -> Vec<String> {
    GPUS.iter().map(|gpu| gpu.name.to_owned()).collect()
}
