//! The kind of a run, with what it needs.

use llmprof_event::{ModelEngine, WorkKind};
use llmprof_sources::{attach::Target, pytorch::WorkerPlan, server::LoadPlan};

#[derive(Debug, Clone)]
pub enum Work {
    /// A model in this process: the program's decoder or one of candle-transformers.
    Model(ModelEngine),
    /// The simulated engine.
    Sim,
    /// A model of transformers, or a script, in a Python process.
    Python(Box<WorkerPlan>),
    /// Load on a server.
    Server(Box<ServerWork>),
    /// Another program, once it is known which.
    Program(ProgramWork),
    /// GPUs or servers are monitored.
    Watch,
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
    pub target: Option<Target>,
    /// The shape of the program's model is known.
    pub has_model: bool,
}

impl Work {
    pub fn kind(&self) -> WorkKind {
        match self {
            Work::Model(engine) => WorkKind::Model(engine.clone()),
            Work::Sim => WorkKind::Sim,
            Work::Python(_) => WorkKind::Python,
            Work::Server(_) => WorkKind::Server,
            Work::Program(_) => WorkKind::Program,
            Work::Watch => WorkKind::Watch,
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
            Work::Program(program) => program.target.as_ref(),
            _ => None,
        }
    }

    /// Another program is started or joined for the run.
    pub fn has_program(&self) -> bool {
        match self {
            Work::Python(_) => true,
            Work::Server(server) => server.program.is_some(),
            Work::Program(program) => program.target.is_some(),
            Work::Model(_) | Work::Sim | Work::Watch => false,
        }
    }
}
