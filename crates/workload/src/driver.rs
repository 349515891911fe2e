//! The prefill and decode loop: runs requests on an engine and reports them as events.

use std::time::Duration;

use crate::{
    Control, Engine, EngineError, Prompts, Workload,
    listener::{Listeners, Span},
    text::{TextError, Tokenizer},
};
use llmprof_event::{
    AllocatorSample, Ending, Event, EventTx, Level, Prediction, RequestFinished, RequestStarted, Token,
};

/// Everything the driver uses besides the engine.
pub struct Driver<'a> {
    pub workload: &'a Workload,
    pub control: &'a Control,
    /// Requests and phases are reported to these; the engine reports its steps itself.
    pub listeners: &'a Listeners,
    pub tx: &'a EventTx,
    /// Turns answers into text, if predictions are reported.
    pub predictions: Option<&'a Tokenizer>,
}

/// The tokens a sequence has generated so far.
#[derive(Debug, Default, Clone)]
struct Answer {
    ids: Vec<u32>,
    ended: bool,
}

impl Driver<'_> {
    /// Runs the workload to its end; `Cancelled` when it is cancelled before.
    pub fn run(self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let planned = self.workload.warmup.saturating_add(self.workload.requests);
        let mut request = 0;
        let mut allocator = None;
        self.report_allocator(engine, &mut allocator);
        while request < planned || (self.workload.open_ended && !self.control.is_finishing()) {
            let done = self.request(engine, request);
            self.tx.send(Event::RequestFinished(RequestFinished {
                request,
                complete: done.is_ok(),
                served: None,
            }));
            self.report_allocator(engine, &mut allocator);
            let answers = done?;
            if let Some(experts) = engine.expert_use()? {
                self.tx.send(Event::Experts(experts));
            }
            if let Some(tokenizer) = self.predictions.filter(|_| request >= self.workload.warmup)
                && let Err(e) = self.report_predictions(request, &answers, tokenizer)
            {
                self.tx.notice(Level::Error, "text", format!("request {request}: {e}"));
            }
            engine.reset()?;
            request += 1;
        }
        engine.synchronize()
    }

    /// Reports the device's allocator when it differs from the sample `reported` last.
    fn report_allocator(&self, engine: &dyn Engine, reported: &mut Option<AllocatorSample>) {
        let now = engine.allocator();
        if let Some(sample) = now.filter(|_| now != *reported) {
            *reported = now;
            self.tx.send(Event::Allocator(sample));
        }
    }

    fn request(&self, engine: &mut dyn Engine, request: u32) -> Result<Vec<Answer>, EngineError> {
        let w = self.workload;
        let prompts = w.prompts(request);
        self.check_control()?;
        let warmup = request < w.warmup;
        self.listeners.during(if warmup { Span::Warmup } else { Span::Request }, || {
            self.tx.send(Event::RequestStarted(RequestStarted {
                request,
                warmup,
                batch: w.batch,
                prompt_tokens: prompts.len() as u32,
                output_tokens: w.output_tokens,
                cooldown: false,
                joined: false,
                images: 0,
            }));
            self.steps(engine, request, &prompts)
        })
    }

    fn steps(
        &self,
        engine: &mut dyn Engine,
        request: u32,
        prompts: &Prompts,
    ) -> Result<Vec<Answer>, EngineError> {
        let warmup = request < self.workload.warmup;
        let first = self.during(warmup, Span::Prefill, || engine.prefill(prompts))?;
        self.report_token(request, 0, &first, engine);
        let mut answers = vec![Answer::default(); first.len()];
        self.extend(&mut answers, &first);
        self.during(warmup, Span::Decode, || {
            let mut index = 1;
            while index < self.workload.output_tokens {
                // A batch continues until its last sequence has ended.
                if answers.iter().all(|answer| answer.ended) {
                    break;
                }
                self.between_steps(engine)?;
                let ids = self.during(warmup, Span::DecodeStep, || engine.decode())?;
                let left = (self.workload.output_tokens - index) as usize;
                // A step may return more tokens than fit, or continue after the end of the answer.
                let mut given = 0;
                for ids in ids.chunks(answers.len()).take(left) {
                    self.extend(&mut answers, ids);
                    given += 1;
                    if answers.iter().all(|answer| answer.ended) {
                        break;
                    }
                }
                index += given;
                self.report_token(request, index - 1, &ids[..given as usize * answers.len()], engine);
            }
            Ok(())
        })?;
        Ok(answers)
    }

    /// Appends a step's tokens to the answers that have not ended.
    fn extend(&self, answers: &mut [Answer], ids: &[u32]) {
        for (answer, &id) in answers.iter_mut().zip(ids).filter(|(answer, _)| !answer.ended) {
            answer.ids.push(id);
            answer.ended = self.workload.stop_ids.contains(&id);
        }
    }

    fn report_predictions(
        &self,
        request: u32,
        answers: &[Answer],
        tokenizer: &Tokenizer,
    ) -> Result<(), TextError> {
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

    /// Runs `work` as `span`. Phases of a warm-up are not reported: tools wait for the first measured one.
    fn during<T>(
        &self,
        warmup: bool,
        span: Span,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if warmup { work() } else { self.listeners.during(span, work) }
    }

    /// Reports a step whose last token has the number `index`.
    fn report_token(&self, request: u32, index: u32, ids: &[u32], engine: &dyn Engine) {
        let speculation = engine.speculation();
        // A batch reports the token of its first sequence; a sequence with several tokens reports the last.
        let id = if speculation.is_some() { ids.last() } else { ids.first() };
        let device_ns = engine.device_time().map(|time: Duration| time.as_nanos() as u64);
        let id = id.copied().unwrap_or_default();
        self.tx.send(Event::Token(Token { request, index, id, device_ns, speculation }));
    }

    /// A pause begins when no step is in flight: the time of a step that ends during a pause is unknown.
    fn between_steps(&self, engine: &mut dyn Engine) -> Result<(), EngineError> {
        let pausing = self.control.is_paused();
        engine.work_ahead(!pausing);
        if pausing && engine.steps_ahead() > 0 {
            return Ok(());
        }
        self.check_control()?;
        engine.work_ahead(true);
        Ok(())
    }

    /// Between tokens: waits while paused, and stops when cancelled.
    fn check_control(&self) -> Result<(), EngineError> {
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
