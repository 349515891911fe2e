//! The hook of an engine: spans of its work, reported to listeners when they begin and end.

use std::sync::Arc;

use llm_cost::Operator;
pub use llm_cost::OperatorInstance;
use llmprof_event::Phase;

/// Work with a beginning and an end. The driver reports requests and their phases, the engine its steps and operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// A warm-up request. Its phases are not reported.
    Warmup,
    Request,
    Prefill,
    Decode,
    /// From the request for the next tokens until they are on the host.
    DecodeStep,
    /// The launches of one step. An engine may launch steps before the driver asks for their tokens.
    Step(Phase),
    /// The computation of draft tokens by a smaller model; it belongs to the next step.
    Draft,
    /// An operator of a step. Operators do not overlap.
    Operator(OperatorInstance),
}

/// Its methods are called on the thread that does the work: the launches of a GPU engine, the computation of a CPU
/// engine.
pub trait Listener: Send + Sync {
    /// Whether requests and phases are reported to it. Called once, when the listener is added.
    fn wants_requests(&self) -> bool {
        false
    }

    /// Whether steps and operators are reported to it. Called once, when the listener is added.
    fn wants_steps(&self) -> bool {
        true
    }

    fn begins(&self, span: Span);

    fn ends(&self, span: Span);

    /// From now on, a decode step is one CUDA graph with these nodes, in execution order.
    fn graph_captured(&self, _nodes: &[OperatorInstance]) {}
}

/// All listeners of a run. Without listeners, a span costs one test for an empty list.
#[derive(Clone, Default)]
pub struct Listeners {
    of_requests: Vec<Arc<dyn Listener>>,
    of_steps: Vec<Arc<dyn Listener>>,
}

impl FromIterator<Arc<dyn Listener>> for Listeners {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Listener>>>(all: I) -> Listeners {
        let mut listeners = Listeners::default();
        all.into_iter().for_each(|listener| listeners.add(listener));
        listeners
    }
}

impl Listeners {
    /// Adds the innermost listener: the last to be called at the beginning of a span, the first at its end.
    pub fn add(&mut self, listener: Arc<dyn Listener>) {
        if listener.wants_requests() {
            self.of_requests.push(Arc::clone(&listener));
        }
        if listener.wants_steps() {
            self.of_steps.push(listener);
        }
    }

    /// Runs `work` as `span`.
    pub fn during<T>(&self, span: Span, work: impl FnOnce() -> T) -> T {
        let listeners = match span {
            Span::Step(_) | Span::Draft | Span::Operator(_) => &self.of_steps,
            Span::Warmup | Span::Request | Span::Prefill | Span::Decode | Span::DecodeStep => {
                &self.of_requests
            }
        };
        listeners.iter().for_each(|listener| listener.begins(span));
        let done = work();
        listeners.iter().rev().for_each(|listener| listener.ends(span));
        done
    }

    /// Runs `work` as `operator` of a layer.
    pub fn operator<T>(&self, operator: Operator, layer: Option<usize>, work: impl FnOnce() -> T) -> T {
        if self.of_steps.is_empty() {
            return work();
        }
        let layer = layer.and_then(|layer| u16::try_from(layer).ok());
        self.during(Span::Operator(OperatorInstance { operator, layer }), work)
    }

    pub fn graph_captured(&self, nodes: &[OperatorInstance]) {
        self.of_steps.iter().for_each(|listener| listener.graph_captured(nodes));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use crate::listener::*;

    /// Records its name and the spans it is called for.
    struct Recorder {
        name: &'static str,
        requests: bool,
        steps: bool,
        calls: Arc<Mutex<Vec<String>>>,
    }

    impl Listener for Recorder {
        fn wants_requests(&self) -> bool {
            self.requests
        }

        fn wants_steps(&self) -> bool {
            self.steps
        }

        fn begins(&self, span: Span) {
            self.calls.lock().unwrap().push(format!("{}+{span:?}", self.name));
        }

        fn ends(&self, span: Span) {
            self.calls.lock().unwrap().push(format!("{}-{span:?}", self.name));
        }
    }

    #[test]
    fn listeners_get_the_spans_they_want_and_nest() {
        let calls = Arc::default();
        let listener = |name, requests, steps| -> Arc<dyn Listener> {
            Arc::new(Recorder { name, requests, steps, calls: Arc::clone(&calls) })
        };
        let listeners: Listeners =
            [listener("a", true, false), listener("b", true, true), listener("c", false, true)]
                .into_iter()
                .collect();
        let result = listeners
            .during(Span::Prefill, || listeners.during(Span::Step(Phase::Prefill), || "done".to_owned()));
        assert_eq!(result, "done");
        let expected = [
            "a+Prefill",
            "b+Prefill",
            "b+Step(Prefill)",
            "c+Step(Prefill)",
            "c-Step(Prefill)",
            "b-Step(Prefill)",
            "b-Prefill",
            "a-Prefill",
        ];
        assert_eq!(*calls.lock().unwrap(), expected);
    }
}
