//! A run before it begins: its configuration, what it works on, and whether it can be done.

use std::{path::PathBuf, time::SystemTime};

use thiserror::Error;

use crate::{
    config::{Composed, Runtime},
    engine::{
        Engine, EngineError, Progress,
        candle::{
            CandleOptions,
            stock::{StockEngine, StockOptions},
        },
        device,
        sampling::Sampling,
        workload::Workload,
    },
    event::{Device, EngineKind, GivenPeaks, RunStarted, SCHEMA},
    run::{
        inputs::{Inputs, InputsError, Model},
        rerun::Tool,
        support::{self, NothingToDo},
    },
    sim::scenario::{Scenario, UnknownScenario},
    tools::under,
};

/// What can be wrong before anything is started.
#[derive(Debug, Error)]
pub enum PlanError {
    #[error(transparent)]
    Inputs(#[from] InputsError),
    #[error(transparent)]
    Scenario(#[from] UnknownScenario),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Support(#[from] NothingToDo),
    #[error("{key}={got} is more than the {limit} this program takes")]
    TooMany { key: &'static str, got: u64, limit: u64 },
}

/// A run that was looked at and can be started.
#[derive(Debug, Clone)]
pub struct Plan {
    pub composed: Composed,
    /// What the run does not do of what was asked.
    pub remarks: Vec<String>,
    /// Where it is kept, if it is recorded.
    pub dir: PathBuf,
    pub(crate) inputs: Inputs,
    /// The device of the workload, "auto" resolved.
    pub(crate) device: Device,
}

impl Plan {
    /// Checks what can be known without looking at the machine: the model's shape, weights, prompts, names.
    pub fn new(composed: Composed) -> Result<Plan, PlanError> {
        let config = &composed.config;
        let remarks = support::remarks(config)?;
        let inputs = Inputs::open(config)?;
        for name in config.telemetry.scenario.iter().chain([&config.runtime.sim.scenario]) {
            Scenario::named(name)?;
        }
        let dir = PathBuf::from(&config.hydra.run.dir);
        let resolved = device::resolve(&config.runtime.device, config.hardware.device_index)?;
        let device = match config.runtime.name {
            Runtime::Candle | Runtime::CandleStock => resolved,
            Runtime::Sim => Device::Sim,
            Runtime::Watch => Device::None,
        };
        let plan = Plan { composed, remarks, dir, inputs, device };
        plan.check_amounts()?;
        Ok(plan)
    }

    pub fn workload(&self) -> &Workload {
        &self.inputs.workload
    }

    /// What the weights take in memory.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.inputs.model.weight_bytes(self.composed.config.model.dtype)
    }

    fn check_amounts(&self) -> Result<(), PlanError> {
        let w = &self.inputs.workload;
        let prompt = u64::from(w.batch) * u64::from(w.prompt_tokens());
        let amounts = [
            ("runtime.requests", u64::from(w.requests), 10_000_000),
            ("runtime.warmup", u64::from(w.warmup), 10_000_000),
            ("runtime.batch_size", u64::from(w.batch), 65_536),
            ("runtime.batch_size × dataset.prompt_tokens", prompt, 1 << 30),
        ];
        match amounts.into_iter().find(|(_, got, limit)| got > limit) {
            Some((key, got, limit)) => Err(PlanError::TooMany { key, got, limit }),
            None => Ok(()),
        }
    }

    /// Whether the machine can hold it, before anything is allocated: device and memory.
    pub fn check_machine(&self) -> Result<(), EngineError> {
        match self.recipe() {
            _ if self.simulated() || self.watches() => Ok(()),
            Recipe::Ours(options) => device::check(&self.device, &options),
            Recipe::Stock(options) => options.check(),
        }
    }

    /// Makes the engine that really computes. `progress` may stop that.
    pub(crate) fn make_engine(&self, progress: Progress<'_>) -> Result<Box<dyn Engine>, EngineError> {
        match self.recipe() {
            Recipe::Ours(options) => device::make_engine(&self.device, &options, progress),
            Recipe::Stock(options) => Ok(Box::new(StockEngine::new(&options, progress)?)),
        }
    }

    /// What our own engines are made from; `None` where candle-transformers makes the model.
    pub fn engine_options(&self) -> Option<CandleOptions> {
        match self.recipe() {
            Recipe::Ours(options) => Some(*options),
            Recipe::Stock(_) => None,
        }
    }

    fn recipe(&self) -> Recipe {
        let config = &self.composed.config;
        let workload = &self.inputs.workload;
        let (dtype, threads, seed) = (config.model.dtype, config.runtime.threads, config.runtime.seed);
        let batch = workload.batch as usize;
        let max_positions = (workload.prompt_tokens() + workload.output_tokens) as usize;
        let prompt_tokens = workload.prompt_tokens() as usize;
        let sampling = Sampling::from_config(&config.infer, seed);
        let name = config.model.name.clone();
        match &self.inputs.model {
            Model::Ours { spec, checkpoint } => Recipe::Ours(Box::new(CandleOptions {
                model: name,
                spec: spec.as_ref().clone(),
                checkpoint: checkpoint.clone(),
                dtype,
                threads,
                batch,
                max_positions,
                prompt_tokens,
                seed,
                sampling,
                cuda_graphs: self.composed.config.runtime.cuda_graphs,
            })),
            Model::Stock(model) => Recipe::Stock(StockOptions {
                model: model.clone(),
                name,
                device: self.device.clone(),
                dtype,
                threads,
                batch,
                max_positions,
                prompt_tokens,
                seed,
                sampling,
            }),
        }
    }

    /// The tools that the run is done again under, in order: what nsys finds is what ncu looks at.
    pub fn tools(&self) -> Vec<Tool> {
        let profiling = &self.composed.config.profiling;
        let asked = [(profiling.nsys.enable, Tool::Nsys), (profiling.ncu.enable, Tool::Ncu)];
        let possible = !self.simulated() && !self.watches();
        asked.into_iter().filter_map(|(asked, tool)| (asked && possible).then_some(tool)).collect()
    }

    /// Nothing is asked of the run but what tools see of it, so there is no workload besides theirs.
    pub fn is_for_tools_alone(&self) -> bool {
        let profiling = &self.composed.config.profiling;
        !profiling.nvml.enable && !profiling.host.enable && !self.tools().is_empty()
    }

    /// There is no workload: others' work is looked at.
    pub(crate) fn watches(&self) -> bool {
        self.composed.config.runtime.name == Runtime::Watch
    }

    /// What the driver calls the GPU that the workload runs on.
    pub(crate) fn gpu_uuid(&self) -> Option<String> {
        device::gpu_uuid(&self.device)
    }

    pub(crate) fn simulated(&self) -> bool {
        self.composed.config.runtime.name == Runtime::Sim
    }

    pub(crate) fn started(&self) -> RunStarted {
        let config = &self.composed.config;
        let Inputs { model, workload, .. } = &self.inputs;
        let dtype = config.model.dtype;
        let engine = match config.runtime.name {
            Runtime::Candle if self.device.is_cuda() => EngineKind::Cuda,
            Runtime::Candle => EngineKind::Candle,
            Runtime::CandleStock => EngineKind::CandleTransformers,
            Runtime::Sim => EngineKind::Sim,
            Runtime::Watch => EngineKind::None,
        };
        RunStarted {
            schema: SCHEMA,
            program: format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
            started_unix_ms: unix_ms(),
            experiment: config.experiment.clone(),
            model: if self.watches() { "watch".to_owned() } else { config.model.name.clone() },
            dtype: model.type_name(dtype),
            engine,
            device: self.device.clone(),
            synthetic_weights: model.weights_path().is_none(),
            simulated: self.simulated(),
            parameters: model.parameters(),
            weight_bytes: self.weight_bytes(),
            step_weight_bytes: model.step_weight_bytes(dtype, workload.batch as usize),
            kv_bytes_per_position: model.kv_bytes_per_position(dtype),
            requests: workload.requests,
            warmup: workload.warmup,
            batch: workload.batch,
            prompt_tokens: workload.prompt_tokens(),
            output_tokens: workload.output_tokens,
            seed: workload.seed,
            overrides: self.composed.overrides.clone(),
            shape: model.shape(dtype).filter(|_| !self.watches()).map(Box::new),
            peaks: GivenPeaks {
                flops: config.hardware.peaks.flops,
                bytes_per_s: config.hardware.peaks.bytes_per_s,
            },
            perturbed: under::attached(|name| std::env::var(name).ok()),
        }
    }
}

/// What an engine is made from.
enum Recipe {
    Ours(Box<CandleOptions>),
    Stock(StockOptions),
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
