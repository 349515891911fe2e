//! Spans in which single kernels are recorded. Recording changes times, so measurements in these spans are kept
//! separately.

use std::{collections::VecDeque, ops::Deref, time::Duration};

use super::{ByContext, push_bounded};
use llmprof_analysis::{
    compare::{RequestTrace, Thinned},
    metrics::Metrics,
    recording_cost::{CostMeter, RecordingCost, StepKind},
};
use llmprof_event::{Stamp, TraceState};

/// A larger share of the time is not a burst.
const BURST_SHARE: f64 = 0.5;
/// Maximum number of spans; the newest are kept.
const KEPT_SPANS: usize = 256;

/// When kernels were recorded, and the overhead.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// Oldest first.
    spans: VecDeque<RecordedSpan>,
    cost: CostMeter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedSpan {
    pub from: Stamp,
    /// `None` while kernels are being recorded.
    pub to: Option<Stamp>,
}

impl RecordedSpan {
    fn overlaps(&self, from: Stamp, to: Stamp) -> bool {
        self.from < to && self.to.is_none_or(|end| end > from)
    }

    fn contains(&self, from: Stamp, to: Stamp) -> bool {
        self.from <= from && self.to.is_none_or(|end| end >= to)
    }
}

impl Recording {
    pub(super) fn switched(&mut self, t: Stamp, state: &TraceState) {
        let is_on = self.is_on();
        match state {
            TraceState::Starting | TraceState::On if !is_on => {
                push_bounded(&mut self.spans, KEPT_SPANS, RecordedSpan { from: t, to: None });
            }
            TraceState::Starting | TraceState::On => {}
            // Reported twice: when recording stops, and when the recorder has detached, which delays a step.
            TraceState::Off => self.spans.back_mut().into_iter().for_each(|span| span.to = Some(t)),
            TraceState::Refused { .. } => self.end(t),
        }
    }

    /// Called when kernels are no longer recorded.
    pub(super) fn end(&mut self, t: Stamp) {
        if let Some(open) = self.spans.back_mut().filter(|span| span.to.is_none()) {
            open.to = Some(t);
        }
    }

    /// A decode step from `from` to `to`.
    pub(super) fn step(&mut self, from: Stamp, to: Stamp) {
        let kind = match self.newest(from, to) {
            None => StepKind::Without,
            Some(span) if span.contains(from, to) => StepKind::With,
            Some(_) => StepKind::Switch,
        };
        self.cost.step(kind, to.since(from).as_nanos() as u64);
    }

    pub fn is_on(&self) -> bool {
        self.spans.back().is_some_and(|span| span.to.is_none())
    }

    /// Whether kernels were ever recorded.
    pub fn is_used(&self) -> bool {
        !self.spans.is_empty()
    }

    pub fn spans(&self) -> impl Iterator<Item = RecordedSpan> {
        self.spans.iter().copied()
    }

    /// Whether kernels were recorded at some time within `from..to`.
    pub fn overlaps(&self, from: Stamp, to: Stamp) -> bool {
        self.newest(from, to).is_some()
    }

    /// Whether most of `from..to` was recorded. Bursts, whose overhead is limited, occur in most requests to a server,
    /// and change little.
    pub fn dominates(&self, from: Stamp, to: Stamp) -> bool {
        let within = |span: &RecordedSpan| span.to.unwrap_or(to).min(to).since(span.from.max(from));
        let recorded: Duration = self.spans.iter().map(within).sum();
        recorded.as_secs_f64() > BURST_SHARE * to.since(from).as_secs_f64()
    }

    fn newest(&self, from: Stamp, to: Stamp) -> Option<&RecordedSpan> {
        self.spans.iter().rev().find(|span| span.overlaps(from, to))
    }

    /// The interval `from..to` in `columns` equal parts: whether kernels were recorded in each.
    pub fn columns(&self, from: Stamp, to: Stamp, columns: usize) -> Vec<bool> {
        let edge = |i: usize| {
            let part = u128::from(to.0.saturating_sub(from.0)) * i as u128 / columns.max(1) as u128;
            Stamp(from.0 + part as u64)
        };
        (0..columns).map(|i| self.overlaps(edge(i), edge(i + 1))).collect()
    }

    /// What recording costs, by the decode steps before and after each span.
    pub fn cost(&self) -> Option<RecordingCost> {
        self.cost.cost()
    }
}

/// What was measured without recording kernels, and what was measured with it. It reads as the former; as the latter if
/// there is nothing else.
#[derive(Debug, Clone, Default)]
pub struct Split<T> {
    pub without: T,
    pub with: T,
}

/// A collection of measurements.
pub trait Measured {
    fn is_empty(&self) -> bool;
}

impl Measured for Metrics {
    fn is_empty(&self) -> bool {
        self.output_tokens == 0
    }
}

impl<T> Measured for Thinned<T> {
    fn is_empty(&self) -> bool {
        self.pushed() == 0
    }
}

impl Measured for RequestTrace {
    fn is_empty(&self) -> bool {
        self.measured() == 0
    }
}

impl Measured for ByContext {
    fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }
}

impl<T: Measured> Split<T> {
    pub(super) fn half_mut(&mut self, recorded: bool) -> &mut T {
        if recorded { &mut self.with } else { &mut self.without }
    }

    pub(super) fn both_mut(&mut self) -> [&mut T; 2] {
        [&mut self.without, &mut self.with]
    }

    /// Whether everything was measured with recording.
    pub fn is_recorded(&self) -> bool {
        self.without.is_empty() && !self.with.is_empty()
    }

    /// The measurements that are left out because kernels were recorded.
    pub fn left_out(&self) -> Option<&T> {
        (!self.without.is_empty() && !self.with.is_empty()).then_some(&self.with)
    }
}

impl Split<Metrics> {
    /// Output tokens with and without recording.
    pub fn all_output_tokens(&self) -> u64 {
        self.without.output_tokens + self.with.output_tokens
    }

    /// The share of the decode time in which kernels were recorded.
    pub fn recorded_share(&self) -> f64 {
        let [without, with] = [&self.without, &self.with].map(|metrics| metrics.itl.sum_secs());
        if with > 0.0 { with / (with + without) } else { 0.0 }
    }
}

impl<T: Measured> Deref for Split<T> {
    type Target = T;

    fn deref(&self) -> &T {
        if self.is_recorded() { &self.with } else { &self.without }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    #[test]
    fn spans_begin_and_end_with_their_events() {
        let mut recording = Recording::default();
        recording.end(at(0));
        for (ms, state) in [
            (10, TraceState::On),
            (15, TraceState::On),
            (20, TraceState::Off),
            (25, TraceState::Off),
            (40, TraceState::On),
        ] {
            recording.switched(at(ms), &state);
        }
        let spans: Vec<RecordedSpan> = recording.spans().collect();
        assert_eq!(
            spans,
            [RecordedSpan { from: at(10), to: Some(at(25)) }, RecordedSpan { from: at(40), to: None }]
        );
        for (from, to, overlaps) in
            [(0, 10, false), (0, 11, true), (12, 14, true), (25, 40, false), (19, 45, true), (50, 60, true)]
        {
            assert_eq!(recording.overlaps(at(from), at(to)), overlaps, "{from}..{to}");
        }
        assert_eq!(recording.columns(at(0), at(50), 5), [false, true, true, false, true]);
        assert!(recording.columns(at(5), at(5), 0).is_empty());
    }
}
