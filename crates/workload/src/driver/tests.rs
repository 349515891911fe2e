use std::sync::{Arc, Mutex};

use super::*;
use crate::{PromptSet, listener::Listener, text::Vocabulary};
use llmprof_event::{Clock, channel};

/// Returns scripted tokens, step by step, for a batch of two.
struct Scripted {
    steps: Vec<[u32; 2]>,
    at: usize,
}

impl Engine for Scripted {
    fn prefill(&mut self, _: &Prompts) -> Result<Vec<u32>, EngineError> {
        self.at = 0;
        self.decode()
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        self.at += 1;
        Ok(self.steps[self.at - 1].to_vec())
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// One request.
fn workload(batch: u32, output_tokens: u32) -> Workload {
    Workload {
        requests: 1,
        warmup: 0,
        open_ended: false,
        batch,
        prompts: PromptSet::Random { tokens: 3, vocab: 4 },
        output_tokens,
        stop_ids: Vec::new(),
        seed: 0,
    }
}

/// Every event of one warm-up request and one measured request.
fn events(steps: &[[u32; 2]], stop_ids: &[u32], tokenizer: Option<&Tokenizer>) -> Vec<Event> {
    events_with(steps, stop_ids, tokenizer, &Listeners::default())
}

fn events_with(
    steps: &[[u32; 2]],
    stop_ids: &[u32],
    tokenizer: Option<&Tokenizer>,
    listeners: &Listeners,
) -> Vec<Event> {
    let workload = Workload { warmup: 1, stop_ids: stop_ids.to_vec(), ..workload(2, 5) };
    let (tx, mut rx) = channel(Clock::virtual_clock());
    let driver = Driver {
        workload: &workload,
        control: &Control::default(),
        listeners,
        tx: &tx,
        predictions: tokenizer,
    };
    driver.run(&mut Scripted { steps: steps.to_vec(), at: 0 }).unwrap();
    drop(tx);
    std::iter::from_fn(|| rx.try_recv().ok()).map(|envelope| envelope.event).collect()
}

fn tokenizer() -> Tokenizer {
    let tokens = ["a", "b", "c", "</s>"].map(str::to_owned).to_vec();
    let types = vec![1, 1, 1, 3];
    let vocabulary = Vocabulary { kind: "gpt2".to_owned(), tokens, types, ..Vocabulary::default() };
    Tokenizer::from_vocabulary(&vocabulary).unwrap()
}

const STEPS: [[u32; 2]; 5] = [[0, 3], [1, 2], [3, 1], [2, 2], [0, 0]];

#[test]
fn a_request_ends_when_all_its_sequences_have() {
    // stop ids, tokens
    for (stop_ids, expected) in [(&[][..], 5), (&[3], 3), (&[0, 3], 1), (&[2], 4), (&[9], 5)] {
        let events = events(&STEPS, stop_ids, None);
        let tokens = events.iter().filter(|e| matches!(e, Event::Token(t) if t.request == 1)).count();
        assert_eq!(tokens, expected, "{stop_ids:?}");
        let finished = |e: &Event| matches!(e, Event::RequestFinished(f) if f.request == 1 && f.complete);
        assert!(events.iter().any(finished), "{stop_ids:?}: an early end completes the request");
        assert!(!events.iter().any(|e| matches!(e, Event::Prediction(_))), "predictions are off");
    }
}

#[test]
fn predictions_come_after_the_request_and_without_warm_up() {
    let events = events(&STEPS, &[3], Some(&tokenizer()));
    let finished = events.iter().rposition(|e| matches!(e, Event::RequestFinished(_))).unwrap();
    let predictions: Vec<_> = events[finished + 1..]
        .iter()
        .map(|event| match event {
            Event::Prediction(p) => (p.request, p.sequence, p.text.as_str(), p.output_tokens, p.ending),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(predictions, [(0, 0, "ab", 3, Ending::Stop), (0, 1, "", 1, Ending::Stop)]);
    let prediction = |e: &&Event| matches!(e, Event::Prediction(_));
    assert_eq!(events.iter().filter(prediction).count(), 2);
    let Some(Event::Prediction(first)) = events.iter().find(prediction) else { panic!() };
    assert_eq!(first.prompt.len(), 3, "random prompts have a text too: {:?}", first.prompt);
}

/// Spans as one line of text.
#[derive(Default)]
struct SpanText(Mutex<String>);

impl Listener for SpanText {
    fn wants_requests(&self) -> bool {
        true
    }

    fn begins(&self, span: Span) {
        *self.0.lock().unwrap() += &format!("({span:?} ");
    }

    fn ends(&self, _: Span) {
        self.0.lock().unwrap().push(')');
    }
}

#[test]
fn requests_and_the_phases_of_measured_ones_are_spans() {
    let text = Arc::new(SpanText::default());
    let listener: Arc<dyn Listener> = text.clone();
    events_with(&STEPS, &[3], None, &Listeners::from_iter([listener]));
    let expected = "(Warmup )(Request (Prefill )(Decode (DecodeStep )(DecodeStep )))";
    assert_eq!(*text.0.lock().unwrap(), expected);
}

/// Starts steps before their tokens are asked for, and pauses the workload in the third step.
struct Ahead<'a> {
    control: &'a Control,
    started: usize,
    taken: usize,
    may: bool,
}

impl Engine for Ahead<'_> {
    fn prefill(&mut self, _: &Prompts) -> Result<Vec<u32>, EngineError> {
        (self.started, self.taken) = (0, 0);
        Ok(vec![0])
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        self.started = self.started.max(self.taken + if self.may { 3 } else { 1 });
        self.taken += 1;
        if self.taken == 3 {
            self.control.set_paused(true);
        }
        Ok(vec![0])
    }

    fn work_ahead(&mut self, may: bool) {
        self.may = may;
    }

    fn steps_ahead(&self) -> usize {
        self.started - self.taken
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}

#[test]
fn a_pause_begins_when_no_step_is_in_flight() {
    let workload = workload(1, 12);
    let (tx, mut rx) = channel(Clock::virtual_clock());
    let control = Control::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let driver = Driver {
                workload: &workload,
                control: &control,
                listeners: &Listeners::default(),
                tx: &tx,
                predictions: None,
            };
            driver.run(&mut Ahead { control: &control, started: 0, taken: 0, may: true }).unwrap();
        });
        let mut tokens = Vec::new();
        while tokens.len() < 12 {
            match rx.blocking_recv().unwrap().event {
                Event::Token(token) => tokens.push(token.index),
                // The third step and the two that had already started; the first token comes from prefill.
                Event::WorkloadPaused => {
                    assert_eq!(tokens, (0..6).collect::<Vec<u32>>());
                    control.set_paused(false);
                }
                _ => {}
            }
        }
    });
}
