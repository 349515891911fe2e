//! The kind of a run, with what it needs.

use crate::speculation::SpeculationPlan;
use llmprof_config::Runtime;
use llmprof_event::{ModelEngine, WorkKind};
use llmprof_sources::{attach::Target, pytorch::WorkerPlan, server::LoadPlan};

/// The kind of a run by its runtime. The runtime `candle` has two engines; the device decides which.
pub fn kind_of(runtime: Runtime) -> WorkKind {
    match runtime {
        Runtime::Candle => WorkKind::Model(ModelEngine::Candle),
        Runtime::CandleStock => WorkKind::Model(ModelEngine::CandleTransformers),
        Runtime::Pytorch => WorkKind::Python,
        Runtime::Sim => WorkKind::Sim,
        Runtime::Watch => WorkKind::Watch,
        Runtime::Program => WorkKind::Program,
        Runtime::Server(_) => WorkKind::Server,
    }
}

#[derive(Debug, Clone)]
pub enum Work {
    /// A model in this process: the program's decoder or one of candle-transformers.
    Model(Box<ModelWork>),
    /// The simulated engine.
    Sim,
    /// A model of transformers, or a script, in a Python process.
    Python(Box<WorkerPlan>),
    /// Load on a server.
    Server(Box<ServerWork>),
    /// Another program.
    Program(ProgramWork),
    /// GPUs or servers are monitored.
    Watch,
}

#[derive(Debug, Clone)]
pub struct ModelWork {
    pub engine: ModelEngine,
    pub(crate) speculation: Option<SpeculationPlan>,
}

#[derive(Debug, Clone)]
pub struct ServerWork {
    pub load: LoadPlan,
    /// The command that starts the server, if the run does.
    pub program: Option<Target>,
    /// The user has named the shape of the server's model.
    pub has_model: bool,
}

#[derive(Debug, Clone)]
pub struct ProgramWork {
    pub target: Target,
    /// The shape of the program's model is known.
    pub has_model: bool,
}

impl Work {
    pub fn kind(&self) -> WorkKind {
        match self {
            Work::Model(model) => WorkKind::Model(model.engine.clone()),
            Work::Sim => WorkKind::Sim,
            Work::Python(_) => WorkKind::Python,
            Work::Server(_) => WorkKind::Server,
            Work::Program(_) => WorkKind::Program,
            Work::Watch => WorkKind::Watch,
        }
    }

    pub(crate) fn speculation(&self) -> Option<&SpeculationPlan> {
        match self {
            Work::Model(model) => model.speculation.as_ref(),
            _ => None,
        }
    }

    pub fn load(&self) -> Option<&LoadPlan> {
        match self {
            Work::Server(server) => Some(&server.load),
            _ => None,
        }
    }

    pub fn worker(&self) -> Option<&WorkerPlan> {
        match self {
            Work::Python(worker) => Some(worker),
            _ => None,
        }
    }

    /// The program that is followed instead of running a model.
    pub fn program(&self) -> Option<&Target> {
        match self {
            Work::Program(program) => Some(&program.target),
            _ => None,
        }
    }

    /// Another program is started or joined for the run.
    pub fn has_program(&self) -> bool {
        match self {
            Work::Python(_) | Work::Program(_) => true,
            Work::Server(server) => server.program.is_some(),
            Work::Model(_) | Work::Sim | Work::Watch => false,
        }
    }
}
