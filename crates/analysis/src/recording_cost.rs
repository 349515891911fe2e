//! The overhead of recording kernels: decode steps with recording, compared with those before and after.

use std::{collections::VecDeque, fmt};

use serde::Serialize;

use super::distribution::Distribution;
use llmprof_base::units::{grouped, millis, percent_change};

/// The number of steps before a span, and after it, that show the duration without recording.
const NEAR: usize = 64;
/// With fewer, the span is left out of the cost.
const MIN_STEPS: usize = 8;

/// How a decode step relates to a span with recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    Without,
    With,
    /// Recording was switched within the step.
    Switch,
}

/// The overhead of recording, by the medians of the steps of each span and of those around it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RecordingCost {
    /// Spans with enough steps in them and around them.
    pub spans: u32,
    /// Steps with recording in these spans.
    pub steps: u64,
    pub step_without_ms: f64,
    pub step_with_ms: f64,
    /// How much longer a step takes.
    pub cost_pct: f64,
}

impl fmt::Display for RecordingCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a step takes {} with recording, {} without ({}): medians of {} steps in {} {} and of the steps before and after",
            millis(self.step_with_ms),
            millis(self.step_without_ms),
            percent_change(self.cost_pct),
            grouped(self.steps as i64),
            self.spans,
            if self.spans == 1 { "span" } else { "spans" }
        )
    }
}

/// A fold of decode steps in order of time, in bounded memory.
#[derive(Debug, Clone, Default)]
pub struct CostMeter {
    /// The last steps without recording.
    before: VecDeque<u64>,
    span: Option<Span>,
    closed: Sums,
}

/// Sums over the steps of spans.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    spans: u32,
    steps: u64,
    without_ms: f64,
    with_ms: f64,
}

impl Sums {
    /// The sums with an additional span: its steps, and the median step without and with recording.
    fn plus(self, span: Option<(u64, f64, f64)>) -> Sums {
        let Some((steps, without_ms, with_ms)) = span else { return self };
        Sums {
            spans: self.spans + 1,
            steps: self.steps + steps,
            without_ms: self.without_ms + without_ms * steps as f64,
            with_ms: self.with_ms + with_ms * steps as f64,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Span {
    before: Vec<u64>,
    with: Distribution,
    after: Vec<u64>,
}

impl CostMeter {
    pub fn step(&mut self, kind: StepKind, ns: u64) {
        match kind {
            StepKind::Switch => {}
            StepKind::With => {
                let next = self.span.as_ref().is_some_and(|span| !span.after.is_empty());
                if next {
                    self.close();
                }
                let before = &self.before;
                let span = self.span.get_or_insert_with(|| Span {
                    before: before.iter().copied().collect(),
                    ..Span::default()
                });
                span.with.record(ns);
            }
            StepKind::Without => {
                if self.before.len() == NEAR {
                    self.before.pop_front();
                }
                self.before.push_back(ns);
                if let Some(span) = &mut self.span {
                    span.after.push(ns);
                    if span.after.len() == NEAR {
                        self.close();
                    }
                }
            }
        }
    }

    fn close(&mut self) {
        self.closed = self.closed.plus(self.span.take().and_then(|span| span.compare()));
    }

    /// The cost so far; `None` while no span can be compared with the steps around it.
    pub fn cost(&self) -> Option<RecordingCost> {
        let all = self.closed.plus(self.span.as_ref().and_then(Span::compare));
        let n = (all.steps > 0).then_some(all.steps as f64)?;
        Some(RecordingCost {
            spans: all.spans,
            steps: all.steps,
            step_without_ms: all.without_ms / n,
            step_with_ms: all.with_ms / n,
            cost_pct: 100.0 * (all.with_ms / all.without_ms - 1.0),
        })
    }
}

impl Span {
    /// Its steps, and the median step without and with recording.
    fn compare(&self) -> Option<(u64, f64, f64)> {
        let sides: Vec<f64> = [&self.before, &self.after]
            .into_iter()
            .filter(|steps| steps.len() >= MIN_STEPS)
            .filter_map(|steps| median_ms(steps))
            .collect();
        if sides.is_empty() || self.with.n() < MIN_STEPS as u64 {
            return None;
        }
        let without = sides.iter().sum::<f64>() / sides.len() as f64;
        Some((self.with.n(), without, self.with.percentile_ms(50.0)?)).filter(|_| without > 0.0)
    }
}

fn median_ms(steps: &[u64]) -> Option<f64> {
    let mut sorted = steps.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    Some((sorted[last / 2] + sorted[last.div_ceil(2)]) as f64 / 2e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(meter: &mut CostMeter, kind: StepKind, us: u64, n: usize) {
        (0..n).for_each(|_| meter.step(kind, us * 1000));
    }

    #[test]
    fn a_span_is_compared_with_the_steps_around_it() {
        let mut meter = CostMeter::default();
        assert_eq!(meter.cost(), None);
        // Steps far before the span were slower and do not count.
        steps(&mut meter, StepKind::Without, 5000, 100);
        steps(&mut meter, StepKind::Without, 800, NEAR);
        steps(&mut meter, StepKind::Switch, 90_000, 1);
        steps(&mut meter, StepKind::With, 1100, 50);
        let early = meter.cost().unwrap();
        assert!((early.cost_pct - 37.5).abs() < 1e-9, "{early:?}");
        // Steps grow with the context: those after the span have the same weight as those before.
        steps(&mut meter, StepKind::Without, 900, 2 * NEAR);
        let cost = meter.cost().unwrap();
        assert_eq!((cost.spans, cost.steps), (1, 50));
        assert!((cost.step_without_ms - 0.85).abs() < 1e-9 && (cost.step_with_ms - 1.1).abs() < 1e-9);
        assert!((cost.cost_pct - 100.0 * (1.1 / 0.85 - 1.0)).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn several_spans_are_weighted_by_their_steps() {
        let mut meter = CostMeter::default();
        for (us, n) in [(1100, 300), (1300, 100)] {
            steps(&mut meter, StepKind::Without, 1000, 20);
            steps(&mut meter, StepKind::With, us, n);
        }
        steps(&mut meter, StepKind::Without, 1000, 20);
        let cost = meter.cost().unwrap();
        assert_eq!((cost.spans, cost.steps), (2, 400));
        assert!((cost.cost_pct - 15.0).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn the_overhead_is_unknown_without_surrounding_steps() {
        let mut meter = CostMeter::default();
        steps(&mut meter, StepKind::With, 1000, 500);
        assert_eq!(meter.cost(), None);
        steps(&mut meter, StepKind::Without, 900, MIN_STEPS - 1);
        assert_eq!(meter.cost(), None);
        steps(&mut meter, StepKind::Without, 900, 1);
        assert!(meter.cost().is_some());
    }
}
