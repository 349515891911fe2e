//! ITL by context length: measured, and predicted from the model's cost.

use plotters::prelude::*;

use super::canvas::{BLUE, COUNT, FAINT, Format, INK, ORANGE, chart, legend, plot, with_margin};
use crate::state::{AtContext, RunState};
use llm_cost::Step;
use llmprof_analysis::roofline::Roof;
use llmprof_base::units::{grouped, millis};

const LINE_POINTS: u64 = 40;

/// `None` without a measured ITL.
pub fn context_svg(state: &RunState, format: Format) -> Option<String> {
    let measured: Vec<AtContext> = state.by_context.all().collect();
    let (first, last) = (measured.first()?, measured.last()?);
    let (from, to) = (first.from, last.to);
    let bound = lower_bound(state, from, to);
    let scaled = mean_speed(state, &measured, from, to);
    let ys =
        || measured.iter().map(|range| range.mean_ms).chain(bound.iter().chain(&scaled).map(|(_, ms)| *ms));
    let low = ys().fold(f64::INFINITY, f64::min);
    let high = ys().fold(0.0, f64::max);
    plot(state, format, 400, |area, hovers| {
        let entries = [
            ("measured: mean ITL of a range", BLUE, true),
            ("lower bound by the GPU's peaks", INK, !bound.is_empty()),
            ("the model's bytes at mean bandwidth", ORANGE, !scaled.is_empty()),
            ("the model's cost is unknown", FAINT, bound.is_empty() && scaled.is_empty()),
        ];
        let entries = entries.into_iter().filter(|entry| entry.2).map(|(text, colour, _)| (text, colour));
        let area = &legend(area, entries)?;
        let axes = (
            (with_margin(from as f64, to as f64), "positions in the cache"),
            (with_margin(low * 0.95, high), "ms per token"),
        );
        let mut chart = chart(area, axes.0, axes.1, (COUNT, None))?;
        chart.draw_series(LineSeries::new(bound.iter().copied(), INK.stroke_width(2)))?;
        chart.draw_series(LineSeries::new(scaled.iter().copied(), ORANGE.stroke_width(2)))?;
        let max_n = measured.iter().map(|range| range.n).max().unwrap_or(1).max(1) as f64;
        for range in &measured {
            // A range with few tokens is a small point.
            let size = 2 + (3.0 * (range.n as f64 / max_n).sqrt()) as i32;
            chart.draw_series([Circle::new((range.middle(), range.mean_ms), size, BLUE.filled())])?;
            let [from, to, n] = [range.from, range.to, range.n].map(|n| grouped(n as i64));
            let text = format!("{from} to {to} positions: {} per token, n = {n}", millis(range.mean_ms));
            hovers.point(chart.backend_coord(&(range.middle(), range.mean_ms)), &text);
        }
        Ok(())
    })
}

fn contexts(from: u64, to: u64) -> impl Iterator<Item = u64> {
    (0..=LINE_POINTS).map(move |i| from + (to - from) * i / LINE_POINTS)
}

/// The minimum time of a step at the stated peaks.
fn lower_bound(state: &RunState, from: u64, to: u64) -> Vec<(f64, f64)> {
    let shape = state.run.as_ref().and_then(|run| run.shape.as_ref());
    let (Some(shape), Ok(peaks)) = (shape, state.peaks()) else { return Vec::new() };
    let roof = Roof::stated(&peaks);
    let batch = u64::from(state.batch());
    let point = |context: u64| {
        let total = shape.cost(Step::decode(batch, context)).total();
        (context as f64, roof.min_seconds(total.flops(), total.certain_bytes()) * 1e3)
    };
    contexts(from, to).map(point).filter(|(_, ms)| ms.is_finite()).collect()
}

/// ITL at the mean bandwidth that was reached.
fn mean_speed(state: &RunState, measured: &[AtContext], from: u64, to: u64) -> Vec<(f64, f64)> {
    let Some(shape) = state.run.as_ref().and_then(|run| run.shape.as_ref()) else { return Vec::new() };
    let batch = u64::from(state.batch());
    let bytes = |context: u64| shape.cost(Step::decode(batch, context)).total().certain_bytes();
    let all_ms: f64 = measured.iter().map(|range| range.mean_ms * range.n as f64).sum();
    let all_bytes: f64 = measured.iter().map(|range| bytes(range.middle() as u64) * range.n as f64).sum();
    if all_bytes <= 0.0 {
        return Vec::new();
    }
    contexts(from, to).map(|context| (context as f64, bytes(context) * all_ms / all_bytes)).collect()
}
