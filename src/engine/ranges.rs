//! Named spans around the workload's phases, layers and operators, for tools that look from outside.

use std::sync::Arc;

use crate::config::NvtxDetail;
use crate::profile::listener::Listener;

/// Whether this build tells tools anything.
pub const TOLD: bool = cfg!(feature = "nvtx");

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

/// Tells tools of what is finer than phases; `None` where nothing finer is asked for, or this build can't.
pub fn parts_for_tools(detail: NvtxDetail) -> Option<Arc<dyn Listener>> {
    #[cfg(feature = "nvtx")]
    if detail > NvtxDetail::Phase {
        let operators = detail == NvtxDetail::Op;
        return Some(Arc::new(super::nvtx_ranges::NvtxParts { operators }));
    }
    let _ = detail;
    None
}
