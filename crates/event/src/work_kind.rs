//! The kind of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::text_enum::text_enum;

/// The kind of a run. Recordings name it by its engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum WorkKind {
    /// A model in this process.
    Model(ModelEngine),
    /// The simulated engine.
    Sim,
    /// A model of transformers, or a script, in a Python process.
    Python,
    /// Another program, inferred from its kernels.
    Program,
    /// A load test of a server, which is known by its answers and its metrics.
    Server,
    /// GPUs or servers are monitored without a workload.
    Watch,
}

text_enum! {
    /// An engine of this process.
    ModelEngine {
        /// This program's decoder on the CPU.
        Candle = "candle",
        /// This program's decoder on an NVIDIA GPU.
        Cuda = "cuda",
        CandleTransformers = "candle-transformers",
    }
}

impl WorkKind {
    /// This program runs the model itself, in a process of its own, or simulates it.
    pub fn runs_model(&self) -> bool {
        match self {
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python => true,
            WorkKind::Program | WorkKind::Server | WorkKind::Watch => false,
        }
    }

    /// There is a workload whose steps or requests are measured.
    pub fn has_workload(&self) -> bool {
        match self {
            WorkKind::Watch => false,
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program | WorkKind::Server => {
                true
            }
        }
    }

    /// Steps and their times are inferred. The number of tokens per step and the extent of a request are not known.
    pub fn infers_steps(&self) -> bool {
        match self {
            WorkKind::Program => true,
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Server | WorkKind::Watch => {
                false
            }
        }
    }

    /// Requests run concurrently, in steps that they share; otherwise one after another.
    pub fn has_concurrent_requests(&self) -> bool {
        match self {
            WorkKind::Server => true,
            WorkKind::Model(_) | WorkKind::Sim | WorkKind::Python | WorkKind::Program | WorkKind::Watch => {
                false
            }
        }
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkKind::Model(engine) => engine.fmt(f),
            WorkKind::Sim => f.pad("sim"),
            WorkKind::Python => f.pad("pytorch"),
            WorkKind::Program => f.pad("program"),
            WorkKind::Server => f.pad("server"),
            WorkKind::Watch => f.pad("none"),
        }
    }
}

impl From<String> for WorkKind {
    /// An unknown name is an engine of another version.
    fn from(name: String) -> WorkKind {
        match name.as_str() {
            "sim" => WorkKind::Sim,
            "pytorch" => WorkKind::Python,
            "program" => WorkKind::Program,
            "server" => WorkKind::Server,
            "none" => WorkKind::Watch,
            engine => WorkKind::Model(engine.into()),
        }
    }
}

impl From<WorkKind> for String {
    fn from(kind: WorkKind) -> String {
        kind.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_as_they_were_written() {
        for (name, expected) in [
            ("candle", WorkKind::Model(ModelEngine::Candle)),
            ("cuda", WorkKind::Model(ModelEngine::Cuda)),
            ("candle-transformers", WorkKind::Model(ModelEngine::CandleTransformers)),
            ("vllm", WorkKind::Model(ModelEngine::Other("vllm".to_owned()))),
            ("sim", WorkKind::Sim),
            ("pytorch", WorkKind::Python),
            ("program", WorkKind::Program),
            ("server", WorkKind::Server),
            ("none", WorkKind::Watch),
        ] {
            let kind: WorkKind = serde_json::from_value(name.into()).unwrap();
            assert_eq!(kind, expected);
            assert_eq!(serde_json::to_value(&kind).unwrap(), name);
            assert_eq!(kind.to_string(), name);
        }
    }
}
