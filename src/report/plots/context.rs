//! ITL against context: what was measured, and the lines that the model's cost gives.

use plotters::prelude::*;

use super::canvas::{BLUE, FAINT, INK, ORANGE, Tick, chart, picture, roomy, words};
use crate::{
    analysis::roofline::Roof,
    base::units::grouped,
    model::Step,
    state::{AtContext, RunState},
};

const LINE_POINTS: u64 = 40;

/// `None` where no measured token followed another.
pub fn context_svg(state: &RunState) -> Option<String> {
    let measured: Vec<AtContext> = state.by_context.all().collect();
    let (first, last) = (measured.first()?, measured.last()?);
    let (from, to) = (first.from, last.to);
    let least = least_line(state, from, to);
    let through = through_the_mean(state, &measured, from, to);
    let ys = || measured.iter().map(|at| at.mean_ms).chain(least.iter().chain(&through).map(|(_, ms)| *ms));
    let low = ys().fold(f64::INFINITY, f64::min);
    let high = ys().fold(0.0, f64::max);
    picture(state, 380, |area| {
        let tick: Tick = Some(|n| grouped(n.round() as i64));
        let axes = (
            (roomy(from as f64, to as f64), "positions in the cache"),
            (roomy(low * 0.95, high), "ms a token"),
        );
        let mut chart = chart(area, axes.0, axes.1, (tick, None))?;
        chart.draw_series(LineSeries::new(least.iter().copied(), INK.stroke_width(2)))?;
        chart.draw_series(LineSeries::new(through.iter().copied(), ORANGE.stroke_width(2)))?;
        let most = measured.iter().map(|at| at.n).max().unwrap_or(1).max(1) as f64;
        for at in &measured {
            // A stretch with few tokens is a small point.
            let size = 2 + (3.0 * (at.n as f64 / most).sqrt()) as i32;
            chart.draw_series([Circle::new((at.middle(), at.mean_ms), size, BLUE.filled())])?;
        }
        let legend = [
            ("measured: mean ITL of a stretch", BLUE, true),
            ("the model's cost at the card's ceilings: the least time", INK, !least.is_empty()),
            ("the model's bytes at the mean speed that was reached", ORANGE, !through.is_empty()),
            ("what the model costs is not known", FAINT, least.is_empty() && through.is_empty()),
        ];
        let mut x = 90;
        for (text, colour, _) in legend.into_iter().filter(|(_, _, shown)| *shown) {
            area.draw(&words(text, (x, 0), 12, colour))?;
            x += 20 + (6.2 * text.chars().count() as f64) as i32;
        }
        Ok(())
    })
}

fn contexts(from: u64, to: u64) -> impl Iterator<Item = u64> {
    (0..=LINE_POINTS).map(move |i| from + (to - from) * i / LINE_POINTS)
}

/// The least time of a step at the stated ceilings.
fn least_line(state: &RunState, from: u64, to: u64) -> Vec<(f64, f64)> {
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

/// How ITL would grow if every byte took as long as it does on average.
fn through_the_mean(state: &RunState, measured: &[AtContext], from: u64, to: u64) -> Vec<(f64, f64)> {
    let Some(shape) = state.run.as_ref().and_then(|run| run.shape.as_ref()) else { return Vec::new() };
    let batch = u64::from(state.batch());
    let bytes = |context: u64| shape.cost(Step::decode(batch, context)).total().certain_bytes();
    let all_ms: f64 = measured.iter().map(|at| at.mean_ms * at.n as f64).sum();
    let all_bytes: f64 = measured.iter().map(|at| bytes(at.middle() as u64) * at.n as f64).sum();
    if all_bytes <= 0.0 {
        return Vec::new();
    }
    contexts(from, to).map(|context| (context as f64, bytes(context) * all_ms / all_bytes)).collect()
}
