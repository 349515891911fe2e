//! The plan of a Python process, from the configuration.

use std::{env, path::PathBuf, sync::Arc, time::Duration};

use serde_json::json;
use thiserror::Error;

use crate::{engine_settings::EngineSettings, inputs::Model};
use llmprof_base::user_data::user_data_dir;
use llmprof_config::{Compile, Dtype, NvtxDetail, PytorchConfig};
use llmprof_sources::pytorch::{Interpreter, ProfileOrder, Setup, WorkerPlan, command};

/// Errors in the settings of `runtime=pytorch`.
#[derive(Debug, Error)]
pub enum PytorchPlanError {
    #[error("runtime.pytorch is missing; use runtime=pytorch, which has its settings")]
    NoSettings,
    #[error("runtime.pytorch.script={0} does not exist")]
    NoScript(String),
    #[error("runtime.pytorch.python={0} does not exist")]
    NoPython(String),
    #[error(
        "cannot write the worker's file for Python: {0}; set XDG_DATA_HOME to a directory that can be written"
    )]
    NotWritten(std::io::Error),
}

/// The worker of `runtime=pytorch`.
pub(crate) fn worker(engine: &EngineSettings<'_>, dtype: Dtype) -> Result<WorkerPlan, PytorchPlanError> {
    let EngineSettings { config, inputs, device, .. } = *engine;
    let Model::Python(model) = &inputs.model else { return Err(PytorchPlanError::NoSettings) };
    let settings = config.runtime.pytorch().ok_or(PytorchPlanError::NoSettings)?;
    check_files(settings)?;
    let python = Interpreter::find(settings.python.as_deref());
    let workload = &inputs.workload;
    let positions = workload.prompt_tokens().saturating_add(workload.output_tokens);
    let profile = config.profiling.torch.enable.then(|| ProfileOrder {
        steps: config.profiling.torch.steps,
        shapes: config.profiling.torch.shapes,
        memory: config.profiling.torch.memory,
        stack: config.profiling.torch.stack,
        // Set once the run has a directory.
        file: String::new(),
        prompt: None,
    });
    let command = command(&python, &data_dir()).map_err(PytorchPlanError::NotWritten)?;
    Ok(WorkerPlan {
        setup: Setup {
            device: device.to_string(),
            threads: config.runtime.threads,
            dtype: torch_name(dtype),
            script: settings.script.clone(),
            weights: model.weights.as_ref().map(|path| path.display().to_string()),
            model: config.model.name.clone(),
            arch: model.arch.clone(),
            trust_remote_code: settings.trust_remote_code,
            attention: settings.attention.clone(),
            compile: mode(settings.compile),
            static_cache: settings.static_cache,
            device_map: settings.device_map.clone(),
            infer: json!(config.infer),
            preprocess: json!(config.model.preprocess),
            seed: config.runtime.seed,
            batch_size: config.runtime.batch_size,
            max_new_tokens: config.infer.max_new_tokens,
            max_positions: config.runtime.max_context.unwrap_or(positions).max(positions),
            nvtx: match config.profiling.nvtx.detail {
                NvtxDetail::Phase => "phase",
                NvtxDetail::Layer => "layer",
                NvtxDetail::Op => "op",
            },
            // Set once the run has a directory.
            visualizations: None,
        },
        python: python.path.display().to_string(),
        command,
        workload: workload.clone(),
        images: Arc::default(),
        question: inputs.pictures.as_ref().map(|pictures| pictures.question.clone()).unwrap_or_default(),
        profile,
        timeout: Duration::from_secs_f64(settings.timeout_s),
        answers: config.output.predictions.enable,
    })
}

fn check_files(settings: &PytorchConfig) -> Result<(), PytorchPlanError> {
    if let Some(script) = settings.script.as_ref().filter(|path| !PathBuf::from(path).is_file()) {
        return Err(PytorchPlanError::NoScript(script.clone()));
    }
    // A name without a directory is searched for at the start.
    match settings.python.as_ref().filter(|path| path.contains('/') && !PathBuf::from(path).is_file()) {
        Some(python) => Err(PytorchPlanError::NoPython(python.clone())),
        None => Ok(()),
    }
}

/// Without a home directory, one of this process.
fn data_dir() -> PathBuf {
    user_data_dir().unwrap_or_else(|| env::temp_dir().join(format!("llmprof-{}", std::process::id())))
}

fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    }
}

fn mode(compile: Compile) -> &'static str {
    match compile {
        Compile::None => "none",
        Compile::Default => "default",
        Compile::ReduceOverhead => "reduce-overhead",
        Compile::MaxAutotune => "max-autotune",
    }
}
