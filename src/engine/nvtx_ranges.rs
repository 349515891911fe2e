//! Phases, layers and operators as NVTX ranges in the domain `llmprof`, for nsys and ncu.

use std::{cell::RefCell, collections::HashMap, ffi::CString, sync::LazyLock};

use nvtx::domain::{Domain, LocalRange, RegisteredString};

use super::ranges::Ranges;
use crate::model::Operator;
use crate::profile::listener::{Listener, Part};

/// Domains and what is registered in them live as long as the program.
static DOMAIN: LazyLock<Domain> = LazyLock::new(|| Domain::new(c"llmprof"));

fn registered(name: &str) -> RegisteredString<'static> {
    // Names of phases and operators have no zero byte.
    DOMAIN.register_string(CString::new(name).unwrap_or_default())
}

/// Ranges of the engine's thread. With no tool attached, one costs some tens of nanoseconds.
#[derive(Default)]
pub struct NvtxRanges {
    open: Vec<LocalRange<'static>>,
    names: HashMap<&'static str, RegisteredString<'static>>,
}

impl Ranges for NvtxRanges {
    fn push(&mut self, name: &'static str) {
        let name = *self.names.entry(name).or_insert_with(|| registered(name));
        self.open.push(DOMAIN.local_range(name));
    }

    fn pop(&mut self) {
        self.open.pop();
    }
}

/// A range for each layer (`layer 12`), and within it one for each operator (`qkv`) where these are asked for.
pub struct NvtxParts {
    pub operators: bool,
}

thread_local! {
    /// Ranges belong to the thread that opened them.
    static OPEN: RefCell<OpenParts> = RefCell::default();
}

/// The operator is closed before its layer.
#[derive(Default)]
struct OpenParts {
    operator: Option<LocalRange<'static>>,
    layer: Option<(u16, LocalRange<'static>)>,
    layers: HashMap<u16, RegisteredString<'static>>,
    operators: HashMap<Operator, RegisteredString<'static>>,
}

impl Listener for NvtxParts {
    fn begins(&self, part: Part) {
        OPEN.with_borrow_mut(|open| {
            if open.layer.as_ref().map(|(layer, _)| *layer) != part.layer {
                open.layer = None;
                open.layer = part.layer.map(|layer| {
                    let name =
                        open.layers.entry(layer).or_insert_with(|| registered(&format!("layer {layer}")));
                    (layer, DOMAIN.local_range(*name))
                });
            }
            if self.operators {
                let name = open.operators.entry(part.operator);
                let name = name.or_insert_with(|| registered(part.operator.name()));
                open.operator = Some(DOMAIN.local_range(*name));
            }
        });
    }

    fn ends(&self) {
        OPEN.with_borrow_mut(|open| open.operator = None);
    }

    fn step_ends(&self) {
        OPEN.with_borrow_mut(|open| open.layer = None);
    }
}
