//! Validates a run before it starts: its configuration, its inputs, and whether the machine can run it.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Component, Path, PathBuf},
    time::SystemTime,
};

use thiserror::Error;

use crate::{
    engine_settings::{EngineOptions, EngineSettings},
    inputs::{Inputs, InputsError, Model},
    pytorch_plan::{self, PytorchPlanError},
    rerun::configured_tools,
    server_plan::{
        ServerPlanError, load_plan, served_tokenizer, server_program, watched_gpus, watched_servers,
    },
    speculation::{ProposedBy, SpeculationError, SpeculationPlan},
    support::{self, NothingToDo},
    work::{ModelWork, ProgramWork, ServerWork, Work, kind_of},
};
use llmprof_analysis::alert::{Alert, AlertError};
use llmprof_base::{foreign::line, tools::under};
use llmprof_config::{Composed, Dtype, KvCacheDtype, Override, RunConfig};
use llmprof_engine::{
    candle::{CandleOptions, stock::StockEngine},
    device,
    sampling::Sampling,
    speculation::{Draft, Proposer, Speculator},
};
use llmprof_event::{Device, GivenPeaks, ModelEngine, RunStarted, SCHEMA, Slo, Tool, WorkKind};
use llmprof_record::rundir::{NoNewDir, RunDir};
use llmprof_sources::{
    attach::Target,
    server::MetricsAt,
    sim::scenario::{Scenario, UnknownScenario},
};
use llmprof_workload::{Engine, EngineError, Progress, Workload};

/// Errors before a run starts.
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
    #[error(transparent)]
    Server(#[from] ServerPlanError),
    #[error(transparent)]
    Speculation(#[from] SpeculationError),
    #[error(transparent)]
    Pytorch(#[from] PytorchPlanError),
    #[error("telemetry.alerts: {0}")]
    Alert(#[from] AlertError),
    #[error("output.metrics={0}: expected an address, e.g. 127.0.0.1:9464")]
    MetricsAddress(String),
    #[error("hydra.run.dir: {0}")]
    RunDir(#[from] NoNewDir),
    #[error("runtime.max_context={given} is less than the {needed} positions of prompt and output")]
    ContextTooShort { given: u32, needed: u32 },
    #[error("{key}={got} exceeds the limit of {limit}")]
    TooMany { key: &'static str, got: u64, limit: u64 },
    #[error(
        "runtime=program needs a program: llmprof-tui exec -- COMMAND starts one, llmprof-tui attach PID joins one"
    )]
    NoProgram,
}

/// A validated run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub composed: Composed,
    /// Settings that the run ignores or reads under another name.
    pub remarks: Vec<String>,
    /// The choices of `auto`, with their reasons.
    pub choices: Vec<String>,
    /// The directory of the recording, if the run is recorded.
    pub dir: PathBuf,
    pub(crate) work: Work,
    /// The address at which the metrics of the run are served.
    pub(crate) metrics_address: Option<SocketAddr>,
    /// The servers whose metrics are read during the run.
    pub(crate) watched_servers: Vec<MetricsAt>,
    pub(crate) alerts: Vec<Alert>,
    pub(crate) watched_gpus: Option<MetricsAt>,
    pub(crate) inputs: Inputs,
    /// The device of the workload, with "auto" resolved.
    pub(crate) device: Device,
    /// The type of the weights, with "auto" resolved.
    pub(crate) dtype: Dtype,
}

/// The directory of the run. A server has its own model: unless the command line names one, the runtime replaces the
/// default model in the path.
fn run_dir(composed: &Composed) -> PathBuf {
    let config = &composed.config;
    let dir = PathBuf::from(&config.hydra.run.dir);
    let names_model = composed.composition.overrides().iter().any(|given| given.sets_within("model"));
    let chosen = composed.composition.choices.get("runtime").cloned().flatten();
    let Some(runtime) = chosen.filter(|_| config.runtime.name.server().is_some() && !names_model) else {
        return dir;
    };
    let of_runtime = |part: Component<'_>| match part.as_os_str() == config.model.name.as_str() {
        true => OsString::from(&runtime),
        false => part.as_os_str().to_owned(),
    };
    dir.components().map(of_runtime).collect()
}

impl Plan {
    /// The run of a configuration. Validates everything that does not depend on the machine: the model's shape,
    /// weights, prompts, names.
    pub fn new(composed: Composed) -> Result<Plan, PlanError> {
        Plan::with(composed, None)
    }

    /// The same for a run that follows another program.
    pub fn of_program(composed: Composed, program: Target) -> Result<Plan, PlanError> {
        Plan::with(composed, Some(program))
    }

    fn with(composed: Composed, program: Option<Target>) -> Result<Plan, PlanError> {
        let config = &composed.config;
        let kind = program.as_ref().map_or_else(|| kind_of(config.runtime.name), |_| WorkKind::Program);
        let mut remarks: Vec<String> = composed.composition.aliases.iter().map(ToString::to_string).collect();
        remarks.extend(support::remarks(config, &kind)?);
        let mut inputs = Inputs::open(config, &kind)?;
        for name in config.telemetry.scenario.iter().chain([&config.runtime.sim.scenario]) {
            Scenario::named(name)?;
        }
        let dir = run_dir(&composed);
        if config.output.record {
            RunDir::name_in(&dir)?;
        }
        let device = device_of(config, &kind)?;
        check_context(config, &inputs.workload)?;
        let mut speculation = None;
        if kind == WorkKind::Model(ModelEngine::Candle) {
            if !device.is_cuda() {
                inputs.model = inputs.model.for_cpu()?;
                remarks.extend(unused_gpu(config));
            }
            speculation = SpeculationPlan::new(config, &inputs.model)?;
            remarks.extend(speculation.as_ref().and_then(|plan| plan.remark(&inputs.model)));
        }
        check_limits(&inputs.workload)?;
        let settings =
            EngineSettings { config, inputs: &inputs, device: &device, speculation: speculation.as_ref() };
        let chosen = settings.choose_dtype();
        let names_model = composed.composition.overrides().iter().any(gives_shape);
        let work = match kind {
            WorkKind::Model(ModelEngine::Candle) if device.is_cuda() => {
                Work::Model(Box::new(ModelWork { engine: ModelEngine::Cuda, speculation }))
            }
            WorkKind::Model(engine) => Work::Model(Box::new(ModelWork { engine, speculation })),
            WorkKind::Sim => Work::Sim,
            WorkKind::Python => Work::Python(Box::new(pytorch_plan::worker(&settings, chosen.dtype)?)),
            WorkKind::Server => {
                let tokenizer = served_tokenizer(config, &inputs.model, names_model)?;
                let load = load_plan(config, &inputs.workload, tokenizer)?;
                let program = server_program(config)?;
                Work::Server(Box::new(ServerWork { load, program, has_model: names_model }))
            }
            WorkKind::Program => {
                let target = program.ok_or(PlanError::NoProgram)?;
                Work::Program(ProgramWork { target, has_model: names_model })
            }
            WorkKind::Watch => Work::Watch,
        };
        let choice = chosen.remark().filter(|_| work.kind().runs_model());
        Ok(Plan {
            choices: inputs.choices.iter().cloned().chain(choice).collect(),
            dtype: chosen.dtype,
            watched_servers: watched_servers(config)?,
            alerts: config.telemetry.alerts.iter().map(|alert| alert.parse()).collect::<Result<_, _>>()?,
            watched_gpus: watched_gpus(config)?,
            metrics_address: metrics_address(config)?,
            composed,
            remarks,
            dir,
            work,
            inputs,
            device,
        })
    }

    pub fn work(&self) -> &Work {
        &self.work
    }

    pub fn workload(&self) -> &Workload {
        &self.inputs.workload
    }

    /// The size of the weights in memory.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.inputs.model.weight_bytes(self.dtype)
    }

    /// Checks device and memory, before anything is allocated.
    pub fn check_machine(&self) -> Result<(), EngineError> {
        match &self.work {
            Work::Model(_) => self.engine_settings().check(self.dtype),
            // PyTorch itself reports insufficient memory.
            Work::Python(_) | Work::Sim | Work::Program(_) | Work::Server(_) | Work::Watch => Ok(()),
        }
    }

    fn engine_settings(&self) -> EngineSettings<'_> {
        EngineSettings {
            config: &self.composed.config,
            inputs: &self.inputs,
            device: &self.device,
            speculation: self.work.speculation(),
        }
    }

    /// Creates the engine of a run that is not simulated. `progress` may cancel that.
    pub(crate) fn make_engine(&self, progress: Progress<'_>) -> Result<Box<dyn Engine>, EngineError> {
        match self.engine_settings().options(self.dtype) {
            EngineOptions::Own(options) => self.own_engine(*options, progress),
            EngineOptions::Stock(options) => Ok(Box::new(StockEngine::new(&options, progress)?)),
            EngineOptions::Elsewhere => Err(EngineError::Cancelled),
        }
    }

    fn own_engine(
        &self,
        options: CandleOptions,
        progress: Progress<'_>,
    ) -> Result<Box<dyn Engine>, EngineError> {
        let engine = device::make_engine(&self.device, &options, progress)?;
        let Some(speculation) = self.work.speculation() else { return Ok(engine) };
        let proposer = match &speculation.source {
            ProposedBy::Ngram { longest } => Proposer::Ngram { longest: *longest },
            ProposedBy::Draft { model, name } => {
                let Model::Own { spec, checkpoint, scheme } = model else {
                    return Err(EngineError::Backend(format!("{name} cannot generate draft tokens")));
                };
                let draft = CandleOptions {
                    model: name.clone(),
                    spec: spec.as_ref().clone(),
                    checkpoint: checkpoint.clone(),
                    scheme: *scheme,
                    // The model's choices are the most likely tokens.
                    sampling: Sampling::greedy(),
                    ..options
                };
                Proposer::Draft(Draft::new(device::make_engine(&self.device, &draft, progress)?, spec.vocab))
            }
        };
        Ok(Box::new(Speculator::new(engine, proposer, speculation.tokens, speculation.assumed)))
    }

    /// The options of the program's engines; `None` for models of candle-transformers.
    pub fn engine_options(&self) -> Option<CandleOptions> {
        match self.engine_settings().options(self.dtype) {
            EngineOptions::Own(options) => Some(*options),
            EngineOptions::Stock(_) | EngineOptions::Elsewhere => None,
        }
    }

    /// The tools to re-run under, in order: ncu profiles kernels that nsys found.
    pub fn tools(&self) -> Vec<Tool> {
        configured_tools(&self.composed.config)
    }

    /// The only workload is that under tools.
    pub fn is_for_tools_alone(&self) -> bool {
        let profiling = &self.composed.config.profiling;
        !profiling.nvml.enable && !profiling.host.enable && !self.tools().is_empty()
    }

    /// The driver's identifier of the GPU of the workload.
    pub(crate) fn gpu_uuid(&self) -> Option<String> {
        device::gpu_uuid(&self.device)
    }

    /// Whether the workload runs on a GPU.
    pub fn uses_gpu(&self) -> bool {
        self.device.is_cuda()
    }

    /// Whether time is simulated.
    pub(crate) fn simulated(&self) -> bool {
        matches!(self.work, Work::Sim)
    }

    /// The name of a script whose model the user has not described.
    fn unknown_script(&self) -> Option<String> {
        let script = self.work.worker()?.setup.script.as_ref()?;
        let is_given = self.composed.composition.overrides().iter().any(gives_shape);
        let name = Path::new(script).file_name().map(|name| line(&name.to_string_lossy(), 60));
        name.filter(|_| !is_given)
    }

    /// The model, or the name that replaces it.
    fn title(&self) -> String {
        let name = &self.composed.config.model.name;
        match &self.work {
            Work::Program(ProgramWork { target, has_model: false }) => target.name(),
            Work::Watch => "watch".to_owned(),
            Work::Server(server) if !server.has_model => {
                let server = self.composed.config.runtime.server();
                server.and_then(|server| server.model.clone()).unwrap_or_else(|| "server".to_owned())
            }
            Work::Python(_) => self.unknown_script().unwrap_or_else(|| name.clone()),
            Work::Model(_) | Work::Sim | Work::Server(_) | Work::Program(_) => name.clone(),
        }
    }

    /// The model's shape is known: the configuration names it, not only the program or the server.
    fn is_model_known(&self) -> bool {
        match &self.work {
            Work::Model(_) | Work::Sim => true,
            Work::Python(_) => self.unknown_script().is_none(),
            Work::Server(server) => server.has_model,
            Work::Program(program) => program.has_model,
            Work::Watch => false,
        }
    }

    pub(crate) fn started(&self) -> RunStarted {
        let config = &self.composed.config;
        let Inputs { model, workload, .. } = &self.inputs;
        let dtype = self.dtype;
        let kind = self.work.kind();
        let is_model_known = self.is_model_known();
        let runs_model = kind.runs_model();
        // Models of candle-transformers have a cache of their own.
        let kv_cache = match model {
            Model::Own { .. } => config.runtime.kv_cache_dtype,
            Model::Stock(_) | Model::Python(_) => KvCacheDtype::Auto,
        };
        let has_requests = runs_model || self.work.load().is_some();
        RunStarted {
            schema: SCHEMA,
            program: format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
            started_unix_ms: unix_ms(),
            experiment: config.experiment.clone(),
            model: self.title(),
            dtype: if is_model_known { model.type_name(dtype) } else { String::new() },
            kind,
            device: self.device.clone(),
            synthetic_weights: runs_model && is_model_known && model.weights_path().is_none(),
            simulated: self.simulated(),
            parameters: if is_model_known { model.parameters() } else { 0 },
            weight_bytes: if is_model_known { self.weight_bytes() } else { 0 },
            step_weight_bytes: model
                .step_weight_bytes(dtype, workload.batch as usize)
                .filter(|_| is_model_known),
            kv_bytes_per_position: if is_model_known {
                model.kv_bytes_per_position(dtype, kv_cache)
            } else {
                0
            },
            requests: match self.work.load() {
                Some(load) => load.requests,
                None if runs_model => workload.requests,
                None => 0,
            },
            warmup: if has_requests { workload.warmup } else { 0 },
            batch: workload.batch,
            prompt_tokens: if has_requests { workload.prompt_tokens() } else { 0 },
            output_tokens: if has_requests { workload.output_tokens } else { 0 },
            seed: workload.seed,
            overrides: self.composed.overrides.clone(),
            shape: model
                .shape(dtype)
                .filter(|_| is_model_known)
                .map(|shape| Box::new(shape.with_kv_cache(kv_cache))),
            peaks: GivenPeaks {
                flops: config.hardware.peaks.flops,
                bytes_per_s: config.hardware.peaks.bytes_per_s,
            },
            command: self.work.program().map(Target::text),
            slo: self.work.load().is_some().then_some(Slo {
                ttft_p99_ms: config.slo.ttft_p99_ms,
                tpot_p99_ms: config.slo.tpot_p99_ms,
                e2e_p99_ms: config.slo.e2e_p99_ms,
            }),
            gpu_hour: config.cost.gpu_hour,
            perturbed: under::attached(|name| std::env::var(name).ok()),
        }
    }
}

/// The device of the workload, with "auto" resolved.
fn device_of(config: &RunConfig, kind: &WorkKind) -> Result<Device, EngineError> {
    let (asked, index) = (config.runtime.device.as_str(), config.hardware.device_index);
    let resolved = device::resolve(asked, index)?;
    Ok(match kind {
        WorkKind::Model(ModelEngine::CandleTransformers) => device::for_stock(asked, resolved),
        WorkKind::Model(_) | WorkKind::Python => resolved,
        WorkKind::Sim => Device::Sim,
        WorkKind::Program => Device::Cuda(index),
        WorkKind::Server | WorkKind::Watch => Device::None,
    })
}

/// Why an installed GPU is not used, if the model may run on it.
fn unused_gpu(config: &RunConfig) -> Option<String> {
    let may_use = config.runtime.device == "auto";
    let reason = may_use.then(|| device::unused_gpu(config.hardware.device_index)).flatten()?;
    Some(format!("the model runs on the CPU: {reason}"))
}

fn metrics_address(config: &RunConfig) -> Result<Option<SocketAddr>, PlanError> {
    let parsed = |text: &String| text.parse().map_err(|_| PlanError::MetricsAddress(text.clone()));
    config.output.metrics.as_ref().map(parsed).transpose()
}

/// The KV cache must have space for prompt and output.
fn check_context(config: &RunConfig, workload: &Workload) -> Result<(), PlanError> {
    let needed = workload.prompt_tokens().saturating_add(workload.output_tokens);
    match config.runtime.max_context.filter(|given| *given < needed) {
        Some(given) => Err(PlanError::ContextTooShort { given, needed }),
        None => Ok(()),
    }
}

/// Limits of the workload, which keep counters and buffers in range.
fn check_limits(workload: &Workload) -> Result<(), PlanError> {
    let prompt = u64::from(workload.batch) * u64::from(workload.prompt_tokens());
    let limits = [
        ("runtime.requests", u64::from(workload.requests), 10_000_000),
        ("runtime.warmup", u64::from(workload.warmup), 10_000_000),
        ("runtime.batch_size", u64::from(workload.batch), 65_536),
        ("runtime.batch_size × dataset.prompt_tokens", prompt, 1 << 30),
    ];
    match limits.into_iter().find(|(_, got, limit)| got > limit) {
        Some((key, got, limit)) => Err(PlanError::TooMany { key, got, limit }),
        None => Ok(()),
    }
}

/// Whether an override defines the model; a name or a type alone does not.
pub fn gives_shape(given: &Override) -> bool {
    let is_shape = |key: &str| given.sets(key);
    ["model", "model.config_json", "model.weights", "model.path"].into_iter().any(is_shape)
        || given.sets_within("model.arch")
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_config::{built_in, compose};

    #[test]
    fn runs_of_a_server_are_stored_under_their_runtime() {
        let dir = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
            run_dir(&compose(&built_in(), &overrides).unwrap()).display().to_string()
        };
        assert!(dir(&[]).starts_with("runs/baseline/smollm2_135m/"));
        assert!(dir(&["runtime=vllm"]).starts_with("runs/baseline/vllm/"));
        assert!(dir(&["runtime=vllm", "model=qwen2_5_7b"]).starts_with("runs/baseline/qwen2_5_7b/"));
        assert_eq!(dir(&["runtime=openai", "hydra.run.dir=mine"]), "mine");
    }
}
