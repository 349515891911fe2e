//! Named spans around the workload's phases, for tools that look from outside.

/// Where the driver announces its phases. The default does nothing and costs nothing.
pub trait Ranges {
    fn push(&mut self, _name: &'static str) {}
    fn pop(&mut self) {}
}

/// No tool is listening.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoRanges;

impl Ranges for NoRanges {}

/// What this build can tell tools: NVTX ranges with the feature `nvtx`, nothing otherwise.
pub fn for_tools() -> Box<dyn Ranges> {
    #[cfg(feature = "nvtx")]
    return Box::new(super::nvtx_ranges::NvtxRanges::default());
    #[cfg(not(feature = "nvtx"))]
    Box::new(NoRanges)
}
