//! The phases as NVTX ranges in the domain `llmprof`, for nsys and ncu.

use std::{collections::HashMap, ffi::CString, sync::LazyLock};

use nvtx::domain::{Domain, LocalRange, RegisteredString};

use super::ranges::Ranges;

/// Domains and what is registered in them live as long as the program.
static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(c"llmprof"));

/// Ranges of the engine's thread. With no tool attached, one costs some tens of nanoseconds.
#[derive(Default)]
pub struct NvtxRanges {
    open: Vec<LocalRange<'static>>,
    names: HashMap<&'static str, RegisteredString<'static>>,
}

impl Ranges for NvtxRanges {
    fn push(&mut self, name: &'static str) {
        let registered = *self.names.entry(name).or_insert_with(|| {
            // Names of phases have no zero byte.
            DOMAIN.register_string(CString::new(name).unwrap_or_default())
        });
        self.open.push(DOMAIN.local_range(registered));
    }

    fn pop(&mut self) {
        self.open.pop();
    }
}
