//! Operators as an engine does them, told to whoever listens: tools that look at single kernels.

use std::sync::Arc;

use crate::{event::Phase, model::Operator};

/// An operator, and the layer it belongs to if it belongs to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    pub operator: Operator,
    pub layer: Option<u16>,
}

/// Called on the engine's thread, around what it puts on the device (or computes on the CPU). The default hears nothing.
pub trait Listener: Send + Sync {
    /// A step of `phase` is put on the device; ended by [`step_ends`](Self::step_ends).
    fn step_begins(&self, _phase: Phase) {}
    fn step_ends(&self) {}
    /// What follows belongs to `part`, until [`ends`](Self::ends). Parts do not lie within each other.
    fn begins(&self, _part: Part) {}
    fn ends(&self) {}
    /// From now on a decode step is one graph, whose nodes belong to `nodes` in the order in which they run.
    fn captured(&self, _nodes: &[Part]) {}
}

/// The engine's end: all that listen. With nobody there, telling costs a look at an empty list.
#[derive(Clone, Default)]
pub struct Listeners(Vec<Arc<dyn Listener>>);

impl From<Vec<Arc<dyn Listener>>> for Listeners {
    fn from(all: Vec<Arc<dyn Listener>>) -> Listeners {
        Listeners(all)
    }
}

impl Listeners {
    pub fn add(&mut self, listener: Arc<dyn Listener>) {
        self.0.push(listener);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Does `work` as a step of `phase`.
    pub fn step<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        self.0.iter().for_each(|listener| listener.step_begins(phase));
        let done = work();
        self.0.iter().rev().for_each(|listener| listener.step_ends());
        done
    }

    /// Does `work` as `operator`.
    pub fn part<T>(&self, operator: Operator, layer: Option<usize>, work: impl FnOnce() -> T) -> T {
        if self.0.is_empty() {
            return work();
        }
        let part = Part { operator, layer: layer.and_then(|layer| u16::try_from(layer).ok()) };
        self.0.iter().for_each(|listener| listener.begins(part));
        let done = work();
        self.0.iter().rev().for_each(|listener| listener.ends());
        done
    }

    pub fn captured(&self, nodes: &[Part]) {
        self.0.iter().for_each(|listener| listener.captured(nodes));
    }
}
