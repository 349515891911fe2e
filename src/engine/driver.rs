//! The prefill/decode loop: runs requests on an engine and tells what happens.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{Engine, EngineError, Prompts, ranges::Ranges, workload::Workload};
use crate::{
    event::{
        Activity, AllocatorSample, Ending, Event, EventTx, Level, Phase, Prediction, RequestFinished,
        RequestStarted, Token,
    },
    process::crash,
    text::{TextError, Tokenizer},
};

/// Pauses, resumes and cancels the workload; it listens between tokens.
#[derive(Debug, Clone, Default)]
pub struct Control(Arc<Switches>);

#[derive(Debug, Default)]
struct Switches {
    cancelled: Arc<AtomicBool>,
    enough: AtomicBool,
    paused: Mutex<bool>,
    changed: Condvar,
}

impl Control {
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.set_paused(false);
    }

    /// A workload that goes on until it is told ends with its current request.
    pub fn finish(&self) {
        self.0.enough.store(true, Ordering::Release);
    }

    pub fn is_enough(&self) -> bool {
        self.0.enough.load(Ordering::Acquire)
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
    /// Turns answers into text, where they are to be told.
    pub predictions: Option<&'a Tokenizer>,
}

/// What a sequence has answered so far.
#[derive(Debug, Default, Clone)]
struct Answer {
    ids: Vec<u32>,
    ended: bool,
}

impl Driver<'_> {
    /// Runs the whole workload. `Cancelled` when it was told to stop before the end.
    pub fn run(mut self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let planned = self.workload.warmup.saturating_add(self.workload.requests);
        let mut request = 0;
        let mut allocator = None;
        self.tell_allocator(engine, &mut allocator);
        while request < planned || (self.workload.until_told && !self.control.is_enough()) {
            let done = self.request(engine, request);
            self.activity.set(Phase::Idle);
            self.tx.send(Event::RequestFinished(RequestFinished { request, complete: done.is_ok() }));
            self.tell_allocator(engine, &mut allocator);
            let answers = done?;
            if let Some(tokenizer) = self.predictions.filter(|_| request >= self.workload.warmup)
                && let Err(e) = self.tell(request, &answers, tokenizer)
            {
                self.tx.notice(Level::Error, "text", format!("request {request}: {e}"));
            }
            engine.reset()?;
            request += 1;
        }
        engine.synchronize()
    }

    /// Tells what the device's allocator holds, where that is another than was `told`.
    fn tell_allocator(&self, engine: &dyn Engine, told: &mut Option<AllocatorSample>) {
        let now = engine.allocator();
        if let Some(sample) = now.filter(|_| now != *told) {
            *told = now;
            self.tx.send(Event::Allocator(sample));
        }
    }

    fn request(&mut self, engine: &mut dyn Engine, request: u32) -> Result<Vec<Answer>, EngineError> {
        let w = self.workload;
        let mut prompts = w.prompts(request);
        if crash::is_requested("tokens") {
            // Beyond any vocabulary: a GPU reads where there is no memory, and stops.
            prompts.ids.fill(u32::MAX / 2);
        }
        self.listen()?;
        self.activity.set(Phase::Prefill);
        let warmup = request < w.warmup;
        self.ranges.push(if warmup { "warmup" } else { "request" });
        self.tx.send(Event::RequestStarted(RequestStarted {
            request,
            warmup,
            batch: w.batch,
            prompt_tokens: prompts.len() as u32,
            output_tokens: w.output_tokens,
        }));
        let done = self.steps(engine, request, &prompts);
        self.ranges.pop();
        done
    }

    fn steps(
        &mut self,
        engine: &mut dyn Engine,
        request: u32,
        prompts: &Prompts,
    ) -> Result<Vec<Answer>, EngineError> {
        let warmup = request < self.workload.warmup;
        let first = self.ranged(warmup, "prefill", |_| engine.prefill(prompts))?;
        self.token(request, 0, &first, engine.device_time());
        let mut answers = vec![Answer::default(); first.len()];
        self.note(&mut answers, &first);
        self.activity.set(Phase::Decode);
        self.ranged(warmup, "decode", |driver| {
            for index in 1..driver.workload.output_tokens {
                // A batch goes on until its last sequence has ended.
                if answers.iter().all(|answer| answer.ended) {
                    break;
                }
                driver.listen()?;
                let ids = driver.ranged(warmup, "decode_step", |_| engine.decode())?;
                driver.token(request, index, &ids, engine.device_time());
                driver.note(&mut answers, &ids);
            }
            Ok(())
        })?;
        Ok(answers)
    }

    /// Adds a step's tokens to the answers that go on.
    fn note(&self, answers: &mut [Answer], ids: &[u32]) {
        for (answer, &id) in answers.iter_mut().zip(ids).filter(|(answer, _)| !answer.ended) {
            answer.ids.push(id);
            answer.ended = self.workload.stop_ids.contains(&id);
        }
    }

    fn tell(&self, request: u32, answers: &[Answer], tokenizer: &Tokenizer) -> Result<(), TextError> {
        let prompts = self.workload.prompts(request);
        for (sequence, (answer, prompt_ids)) in
            answers.iter().zip(prompts.ids.chunks(prompts.len())).enumerate()
        {
            let prompt = match self.workload.text(request) {
                Some(text) => text.to_owned(),
                None => tokenizer.text(prompt_ids)?,
            };
            self.tx.send(Event::Prediction(Box::new(Prediction {
                request: request - self.workload.warmup,
                sequence: sequence as u32,
                prompt,
                text: tokenizer.text(&answer.ids)?,
                prompt_tokens: prompt_ids.len() as u32,
                output_tokens: answer.ids.len() as u32,
                ending: if answer.ended { Ending::Stop } else { Ending::Length },
            })));
        }
        Ok(())
    }

    /// Does `work` within a range. Phases of a warm-up have none: tools wait for the first one that counts.
    fn ranged<T>(
        &mut self,
        warmup: bool,
        name: &'static str,
        work: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if warmup {
            return work(self);
        }
        self.ranges.push(name);
        let done = work(self);
        self.ranges.pop();
        done
    }

    fn token(&mut self, request: u32, index: u32, ids: &[u32], on_device: Option<Duration>) {
        let id = ids.first().copied().unwrap_or_default();
        let device_ns = on_device.map(|time| time.as_nanos() as u64);
        self.tx.send(Event::Token(Token { request, index, id, device_ns }));
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

#[cfg(test)]
mod tests;
