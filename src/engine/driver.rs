//! The prefill/decode loop: runs requests on an engine and tells what happens.

use std::sync::{
    Arc, Condvar, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{Engine, EngineError, Prompts, ranges::Ranges};
use crate::{
    event::{Activity, Event, EventTx, Phase, RequestFinished, RequestStarted, Token},
    noise,
};

/// What to run: `warmup` requests that don't count, then `requests` that do.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    pub requests: u32,
    pub warmup: u32,
    pub batch: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub vocab: u32,
    pub seed: u64,
}

impl Workload {
    /// Random prompts, the same for the same seed and request.
    pub fn prompts(&self, request: u32) -> Prompts {
        let seed = noise::bits(self.seed, u64::from(request));
        let ids = (0..u64::from(self.batch) * u64::from(self.prompt_tokens))
            .map(|i| (noise::bits(seed, i) % u64::from(self.vocab)) as u32);
        Prompts { ids: ids.collect(), batch: self.batch as usize }
    }
}

/// Pauses, resumes and cancels the workload; it listens between tokens.
#[derive(Debug, Clone, Default)]
pub struct Control(Arc<Switches>);

#[derive(Debug, Default)]
struct Switches {
    cancelled: Arc<AtomicBool>,
    paused: Mutex<bool>,
    changed: Condvar,
}

impl Control {
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.set_paused(false);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
    }

    /// Turns true when the workload is cancelled.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.cancelled)
    }

    pub fn is_paused(&self) -> bool {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_paused(&self, paused: bool) {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner) = paused;
        self.0.changed.notify_all();
    }

    fn wait_while_paused(&self) {
        let paused = self.0.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |paused: &mut bool| *paused && !self.is_cancelled();
        drop(self.0.changed.wait_while(paused, still).unwrap_or_else(PoisonError::into_inner));
    }
}

/// What the driver works with, besides the engine.
pub struct Driver<'a> {
    pub workload: &'a Workload,
    pub control: &'a Control,
    pub ranges: &'a mut dyn Ranges,
    pub tx: &'a EventTx,
    pub activity: &'a Activity,
}

impl Driver<'_> {
    /// Runs the whole workload. `Cancelled` when it was told to stop before the end.
    pub fn run(mut self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        for request in 0..self.workload.warmup.saturating_add(self.workload.requests) {
            let done = self.request(engine, request);
            self.activity.set(Phase::Idle);
            self.tx.send(Event::RequestFinished(RequestFinished { request, complete: done.is_ok() }));
            done?;
            engine.reset()?;
        }
        engine.synchronize()
    }

    fn request(&mut self, engine: &mut dyn Engine, request: u32) -> Result<(), EngineError> {
        let w = self.workload;
        let prompts = w.prompts(request);
        self.listen()?;
        self.activity.set(Phase::Prefill);
        self.ranges.push("request");
        self.tx.send(Event::RequestStarted(RequestStarted {
            request,
            warmup: request < w.warmup,
            batch: w.batch,
            prompt_tokens: w.prompt_tokens,
            output_tokens: w.output_tokens,
        }));
        let done = self.steps(engine, request, &prompts);
        self.ranges.pop();
        done
    }

    fn steps(&mut self, engine: &mut dyn Engine, request: u32, prompts: &Prompts) -> Result<(), EngineError> {
        let first = self.ranged("prefill", |_| engine.prefill(prompts))?;
        self.token(request, 0, &first);
        self.activity.set(Phase::Decode);
        self.ranged("decode", |driver| {
            for index in 1..driver.workload.output_tokens {
                driver.listen()?;
                let ids = driver.ranged("decode_step", |_| engine.decode())?;
                driver.token(request, index, &ids);
            }
            Ok(())
        })
    }

    fn ranged<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.ranges.push(name);
        let done = work(self);
        self.ranges.pop();
        done
    }

    fn token(&mut self, request: u32, index: u32, ids: &[u32]) {
        let id = ids.first().copied().unwrap_or_default();
        self.tx.send(Event::Token(Token { request, index, id }));
    }

    /// Between tokens: stops when cancelled, waits while paused.
    fn listen(&mut self) -> Result<(), EngineError> {
        if self.control.is_paused() {
            self.tx.send(Event::WorkloadPaused);
            self.control.wait_while_paused();
            self.tx.send(Event::WorkloadResumed);
        }
        if self.control.is_cancelled() { Err(EngineError::Cancelled) } else { Ok(()) }
    }
}
