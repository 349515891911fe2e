//! The engine's thread: prepares the engine, runs the workload, and reports the outcome.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use crate::{inputs::Inputs, plan::Plan, work::Work};
use llmprof_base::{
    process::crash,
    units::{bytes, millis},
};
use llmprof_engine::profile::{
    live::Tracer, nvtx_ranges, operator_clock::OperatorClock, prefill_progress::PrefillReporter,
};
use llmprof_event::{Event, EventTx, Level, Outcome, Preparing, Ready, RunFinished};
use llmprof_sources::{
    sim::{SimEngine, SimKernels, SimTiming},
    telemetry::Sampler,
};
use llmprof_workload::{Control, Driver, Engine, EngineError, PrepareStep, listener::Listeners};

/// Minimum interval between two events about the weights.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct EngineThread {
    pub plan: Plan,
    pub control: Control,
    pub tx: EventTx,
    /// Records kernels of a run on a GPU.
    pub tracer: Option<Arc<Tracer>>,
    /// Whether a simulated run records kernels.
    pub sim_kernels: Arc<AtomicBool>,
    /// The sampler of a simulated run, which samples between its steps so that equal seeds give equal runs.
    pub sampler: Option<Sampler>,
}

impl EngineThread {
    /// Runs the workload on `ready`, or on the engine of the plan. Sends the outcome of the run, unless it was
    /// cancelled: then the session records the cause.
    pub fn run(mut self, ready: Option<Box<dyn Engine + Send>>) {
        crash::fault_point("engine");
        if let Some(tracer) = &self.tracer {
            tracer.begin();
        }
        let engine = match ready {
            Some(engine) => Ok(engine as Box<dyn Engine>),
            None => self.prepare(),
        };
        let finished = match engine.and_then(|mut engine| self.work(engine.as_mut())) {
            Ok(()) => RunFinished { outcome: Outcome::Completed, cause: None },
            Err(EngineError::Cancelled) => return,
            Err(e) => {
                self.tx.notice(Level::Error, "engine", e.to_string());
                RunFinished { outcome: Outcome::Failed, cause: Some(e.to_string()) }
            }
        };
        self.tx.send(Event::RunFinished(finished));
    }

    fn work(&self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let EngineThread { plan, control, tx, tracer, .. } = self;
        let config = &plan.composed.config;
        let Inputs { workload, tokenizer, .. } = &plan.inputs;
        let predictions = tokenizer.as_deref().filter(|_| config.output.predictions.enable);
        let nvtx = nvtx_ranges::listener(config.profiling.nvtx.detail);
        let mut listeners: Listeners = nvtx.into_iter().collect();
        if let Some(tracer) = tracer {
            listeners.add(tracer.clone());
        }
        if let Some(layers) = plan.inputs.model.layers().filter(|_| plan.device.is_cpu()) {
            listeners.add(Arc::new(PrefillReporter::new(tx.clone(), layers)));
        }
        let clock = config.profiling.operators.enable.then(|| {
            let clock = Arc::new(OperatorClock::new(tx.clone(), workload.warmup));
            // Added last, so that operators exclude the time of the other listeners.
            listeners.add(clock.clone());
            clock
        });
        engine.set_listeners(listeners.clone());
        let listeners = &listeners;
        let done = Driver { workload, control, listeners, tx, predictions }.run(engine);
        if let Some(clock) = &clock {
            clock.finish();
        }
        if let Some(tracer) = tracer {
            tracer.finish();
        }
        done
    }

    fn prepare(&mut self) -> Result<Box<dyn Engine>, EngineError> {
        let started = Instant::now();
        let engine: Box<dyn Engine> = match self.plan.work {
            Work::Sim => Box::new(self.simulated()?),
            // These have no engine.
            Work::Watch | Work::Program(_) | Work::Python(_) | Work::Server(_) => {
                return Err(EngineError::Cancelled);
            }
            Work::Model(_) => {
                let (tx, control) = (&self.tx, &self.control);
                let mut sent: Option<Instant> = None;
                let mut progress = |step: PrepareStep<'_>, done: u64, total: u64| {
                    let due = sent.is_none_or(|sent| sent.elapsed() > PROGRESS_INTERVAL);
                    if due || step == PrepareStep::Kernels {
                        sent = Some(Instant::now());
                        tracing::debug!("{step:?}");
                        tx.send(Event::Preparing(Preparing { step: step.to_string(), done, total }));
                    }
                    !control.is_cancelled()
                };
                self.plan.make_engine(&mut progress)?
            }
        };
        // A simulated run contains no time of this machine. Whole microseconds are recorded without rounding.
        let prepare_ms = if self.plan.simulated() { 0.0 } else { started.elapsed().as_micros() as f64 / 1e3 };
        self.tx.send(Event::Ready(Ready { prepare_ms }));
        self.tx.notice(Level::Info, "engine", format!("ready after {}", millis(prepare_ms)));
        if let Some(remark) = engine.remark() {
            self.tx.notice(Level::Warn, "engine", remark);
        }
        Ok(engine)
    }

    fn simulated(&mut self) -> Result<SimEngine, EngineError> {
        let config = &self.plan.composed.config;
        let runtime = &config.runtime;
        let (model, tx) = (&self.plan.inputs.model, &self.tx);
        let (clock, cancel) = (tx.clock().clone(), self.control.cancel_flag());
        let mut engine = SimEngine::new(&runtime.sim, runtime.seed, model.vocab() as u32, clock, cancel)
            .map_err(|e| EngineError::Backend(e.to_string()))?;
        if let Some(shape) = model.shape(self.plan.dtype) {
            let shape = shape.with_kv_cache(runtime.kv_cache_dtype);
            let (card, graphs) = (engine.card(), runtime.cuda_graphs);
            engine = engine.with_timing(SimTiming::new(shape.clone(), card, graphs));
            if self.plan.weight_bytes() > card.mem_bytes {
                let (needed, there) = (bytes(self.plan.weight_bytes()), bytes(card.mem_bytes));
                let text = format!("the weights need {needed}, the simulated {} has {there}", card.name);
                tx.notice(Level::Warn, "engine", text);
            }
            let (tx, requested) = (tx.clone(), self.sim_kernels.clone());
            engine = engine.with_kernels(SimKernels::new(shape, card, tx, (graphs, runtime.seed), requested));
        }
        if let Some(mut sampler) = self.sampler.take() {
            let tx = tx.clone();
            engine = engine.with_tick(Box::new(move |now| sampler.sample_due(now, &tx)));
        }
        Ok(engine)
    }
}
