//! Requests, phases, layers and operators as NVTX ranges in the domain `llmprof`, for nsys and ncu.

use std::{cell::RefCell, collections::HashMap, ffi::CString, sync::Arc};

use super::nvtx_client::{Domain, Name, Range};
use llmprof_config::NvtxDetail;
use llmprof_workload::listener::{Listener, OperatorInstance, Span};

/// Opens NVTX ranges; `None` if no tool is attached to receive them.
pub fn listener(detail: NvtxDetail) -> Option<Arc<dyn Listener>> {
    let domain = Domain::new(c"llmprof")?;
    Some(Arc::new(NvtxRanges { detail, domain }))
}

fn registered(domain: Domain, name: &str) -> Name {
    // Names of phases and operators contain no zero byte.
    domain.name(&CString::new(name).unwrap_or_default())
}

/// A range for each request and phase; by `detail` also for each layer (`layer 12`) and each operator (`qkv`).
struct NvtxRanges {
    detail: NvtxDetail,
    domain: Domain,
}

thread_local! {
    /// A range belongs to the thread that opened it.
    static OPEN: RefCell<OpenRanges> = RefCell::default();
}

/// An operator is closed before its layer.
#[derive(Default)]
struct OpenRanges {
    operator: Option<Range>,
    layer: Option<(u16, Range)>,
    phases: Vec<Range>,
    names: HashMap<&'static str, Name>,
    layer_names: HashMap<u16, Name>,
}

impl OpenRanges {
    fn range(&mut self, domain: Domain, name: &'static str) -> Range {
        domain.range(*self.names.entry(name).or_insert_with(|| registered(domain, name)))
    }

    fn open_operator(&mut self, domain: Domain, instance: OperatorInstance, detail: NvtxDetail) {
        if self.layer.as_ref().map(|(layer, _)| *layer) != instance.layer {
            self.layer = None;
            self.layer = instance.layer.map(|layer| {
                let name = self.layer_names.entry(layer);
                let name = name.or_insert_with(|| registered(domain, &format!("layer {layer}")));
                (layer, domain.range(*name))
            });
        }
        if detail == NvtxDetail::Op {
            self.operator = Some(self.range(domain, instance.operator.name()));
        }
    }

    fn open_phase(&mut self, domain: Domain, name: &'static str) {
        let range = self.range(domain, name);
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
            Span::Warmup => open.open_phase(self.domain, "warmup"),
            Span::Request => open.open_phase(self.domain, "request"),
            Span::Prefill => open.open_phase(self.domain, "prefill"),
            Span::Decode => open.open_phase(self.domain, "decode"),
            Span::DecodeStep => open.open_phase(self.domain, "decode_step"),
            Span::Step(_) => {}
            Span::Draft => open.open_phase(self.domain, "draft"),
            Span::Operator(instance) => open.open_operator(self.domain, instance, self.detail),
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
