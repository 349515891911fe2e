//! The options of an engine.

use crate::{
    dtype::{ChosenDtype, Circumstances},
    inputs::{Inputs, Model},
    speculation::SpeculationPlan,
};
use llmprof_config::{Dtype, RunConfig};
use llmprof_engine::{
    candle::{CandleOptions, stock::StockOptions},
    device,
    sampling::Sampling,
};
use llmprof_event::Device;
use llmprof_workload::EngineError;

/// What determines the options of an engine, apart from the type of the weights.
#[derive(Clone, Copy)]
pub(crate) struct EngineSettings<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) inputs: &'a Inputs,
    pub(crate) device: &'a Device,
    pub(crate) speculation: Option<&'a SpeculationPlan>,
}

impl EngineSettings<'_> {
    pub(crate) fn choose_dtype(&self) -> ChosenDtype {
        let model = &self.config.model;
        ChosenDtype::new(
            model.dtype,
            &Circumstances {
                published: model.published_dtype(),
                device: self.device,
                capability: device::compute_capability(self.device),
                fastest_on_cpu: self.inputs.model.fastest_on_cpu(),
                fits: &|dtype| self.check(dtype).is_ok(),
            },
        )
    }

    pub(crate) fn check(&self, dtype: Dtype) -> Result<(), EngineError> {
        match self.options(dtype) {
            EngineOptions::Own(options) => device::check(self.device, &options),
            EngineOptions::Stock(options) => options.check(),
            EngineOptions::Elsewhere => Ok(()),
        }
    }

    pub(crate) fn options(&self, dtype: Dtype) -> EngineOptions {
        let EngineSettings { config, inputs, device, speculation } = *self;
        let workload = &inputs.workload;
        let (threads, seed) = (config.runtime.threads, config.runtime.seed);
        let batch = workload.batch as usize;
        let positions = workload.prompt_tokens() + workload.output_tokens;
        let max_positions = config.runtime.max_context.unwrap_or(positions).max(positions) as usize;
        let prompt_tokens = workload.prompt_tokens() as usize;
        let sampling = Sampling::from_config(&config.infer, seed);
        let name = config.model.name.clone();
        match &inputs.model {
            Model::Own { spec, checkpoint, scheme } => EngineOptions::Own(Box::new(CandleOptions {
                model: name,
                spec: spec.as_ref().clone(),
                checkpoint: checkpoint.clone(),
                scheme: *scheme,
                dtype,
                threads,
                batch,
                max_positions,
                prompt_tokens,
                seed,
                sampling,
                cuda_graphs: config.runtime.cuda_graphs,
                cublas: config.runtime.cublas,
                fused_step: config.runtime.fused_step,
                kv_cache: config.runtime.kv_cache_dtype,
                step_positions: 1 + speculation.map_or(0, |plan| plan.tokens),
            })),
            Model::Stock(model) => EngineOptions::Stock(StockOptions {
                model: model.clone(),
                name,
                device: device.clone(),
                dtype,
                threads,
                batch,
                max_positions,
                prompt_tokens,
                seed,
                sampling,
            }),
            Model::Python(_) => EngineOptions::Elsewhere,
        }
    }
}

pub(crate) enum EngineOptions {
    Own(Box<CandleOptions>),
    Stock(StockOptions),
    /// Another process has the engine.
    Elsewhere,
}
