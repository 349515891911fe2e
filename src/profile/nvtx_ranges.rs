//! Requests, phases, layers and operators as NVTX ranges in the domain `llmprof`, for nsys and ncu.

use std::sync::Arc;

use super::listener::Listener;
use crate::config::NvtxDetail;

/// Whether this build has NVTX ranges.
pub const AVAILABLE: bool = cfg!(feature = "nvtx");

/// Opens NVTX ranges; `None` in a build without the feature `nvtx`.
pub fn listener(detail: NvtxDetail) -> Option<Arc<dyn Listener>> {
    #[cfg(feature = "nvtx")]
    return Some(Arc::new(ranges::NvtxRanges { detail }));
    #[cfg(not(feature = "nvtx"))]
    {
        let _ = detail;
        None
    }
}

#[cfg(feature = "nvtx")]
mod ranges {
    use std::{cell::RefCell, collections::HashMap, ffi::CString, sync::LazyLock};

    use nvtx::domain::{Domain, LocalRange, RegisteredString};

    use crate::{
        config::NvtxDetail,
        profile::listener::{Listener, OperatorInstance, Span},
    };

    /// Domains and the strings registered in them live as long as the program.
    static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(c"llmprof"));

    fn registered(name: &str) -> RegisteredString<'static> {
        // Names of phases and operators have no zero byte.
        DOMAIN.register_string(CString::new(name).unwrap_or_default())
    }

    /// A range for each request and phase; by `detail` also for each layer (`layer 12`) and each operator (`qkv`). With
    /// no tool attached, a range costs some tens of nanoseconds.
    pub struct NvtxRanges {
        pub detail: NvtxDetail,
    }

    thread_local! {
        /// A range belongs to the thread that opened it.
        static OPEN: RefCell<OpenRanges> = RefCell::default();
    }

    /// An operator is closed before its layer.
    #[derive(Default)]
    struct OpenRanges {
        operator: Option<LocalRange<'static>>,
        layer: Option<(u16, LocalRange<'static>)>,
        phases: Vec<LocalRange<'static>>,
        names: HashMap<&'static str, RegisteredString<'static>>,
        layer_names: HashMap<u16, RegisteredString<'static>>,
    }

    impl OpenRanges {
        fn range(&mut self, name: &'static str) -> LocalRange<'static> {
            DOMAIN.local_range(*self.names.entry(name).or_insert_with(|| registered(name)))
        }

        fn open_operator(&mut self, instance: OperatorInstance, detail: NvtxDetail) {
            if self.layer.as_ref().map(|(layer, _)| *layer) != instance.layer {
                self.layer = None;
                self.layer = instance.layer.map(|layer| {
                    let name = self.layer_names.entry(layer);
                    let name = name.or_insert_with(|| registered(&format!("layer {layer}")));
                    (layer, DOMAIN.local_range(*name))
                });
            }
            if detail == NvtxDetail::Op {
                self.operator = Some(self.range(instance.operator.name()));
            }
        }

        fn open_phase(&mut self, name: &'static str) {
            let range = self.range(name);
            self.phases.push(range);
        }
    }

    impl Listener for NvtxRanges {
        fn wants_requests(&self) -> bool {
            true
        }

        fn wants_steps(&self) -> bool {
            self.detail > NvtxDetail::Phase
        }

        fn begins(&self, span: Span) {
            OPEN.with_borrow_mut(|open| match span {
                Span::Warmup => open.open_phase("warmup"),
                Span::Request => open.open_phase("request"),
                Span::Prefill => open.open_phase("prefill"),
                Span::Decode => open.open_phase("decode"),
                Span::DecodeStep => open.open_phase("decode_step"),
                Span::Step(_) => {}
                Span::Operator(instance) => open.open_operator(instance, self.detail),
            });
        }

        fn ends(&self, span: Span) {
            OPEN.with_borrow_mut(|open| match span {
                Span::Operator(_) => open.operator = None,
                Span::Step(_) => open.layer = None,
                _ => {
                    open.phases.pop();
                }
            });
        }
    }
}
