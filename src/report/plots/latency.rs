//! ITL as a histogram and as a cumulative distribution.

use plotters::prelude::*;

use super::canvas::{BLUE, COUNT, FAINT, INK, ORANGE, Tick, chart, label, plot};
use crate::{
    base::units::{grouped, millis, percent},
    state::RunState,
};

const BINS: usize = 80;
/// More points do not change how the line looks.
const POINTS: usize = 400;

/// `None` without a measured ITL.
pub fn latency_svg(state: &RunState) -> Option<String> {
    let itl = &state.total.itl;
    let summary = itl.summary();
    let (min, max) = (summary.min?, summary.max?);
    // The slowest few would squeeze all others into one bin; a label counts them.
    let to = summary.p99.map_or(max, |p99| max.min(p99 + (p99 - min).max(p99 * 0.02)));
    let margin = ((to - min) * 0.02).max(to * 0.002).max(1e-6);
    let (from, to) = ((min - margin).max(0.0), to + margin);
    let counts = itl.bins(from, to, BINS);
    let beyond = itl.n() - counts.iter().sum::<u64>();
    let tallest = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let ecdf = itl.ecdf();
    let marks = [("p50", summary.p50), ("p90", summary.p90), ("p99", summary.p99)];
    plot(state, 420, |area| {
        let (left, right) = area.split_horizontally(500);
        let mut histogram =
            chart(&left, (from..to, "ITL, ms"), (0.0..tallest * 1.1, "tokens"), (None, COUNT))?;
        let width = (to - from) / BINS as f64;
        for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let x = from + i as f64 * width;
            let bar = [(x, 0.0), (x + width, *count as f64)];
            histogram.draw_series([Rectangle::new(bar, BLUE.mix(0.75).filled())])?;
        }
        let share: Tick = Some(|share| percent(share * 100.0));
        let mut shares = chart(&right, (from..to, "ITL, ms"), (0.0..1.0, "share of tokens"), (None, share))?;
        let every = ecdf.len().div_ceil(POINTS).max(1);
        let mut line = vec![(from, 0.0)];
        let mut share = 0.0;
        for (i, (ms, up_to)) in ecdf.iter().enumerate() {
            if *ms > to {
                break;
            }
            if i % every == 0 || i + 1 == ecdf.len() {
                line.extend([(*ms, share), (*ms, *up_to)]);
                share = *up_to;
            }
        }
        line.push((to, share));
        shares.draw_series(LineSeries::new(line, BLUE.stroke_width(2)))?;
        let mut y = 30;
        for (name, ms) in marks {
            let Some(ms) = ms else { continue };
            shares.draw_series(LineSeries::new([(ms, 0.0), (ms, 1.0)], ORANGE.mix(0.7)))?;
            right.draw(&label(format!("{name} {}", millis(ms)), (360, y + 180), 12, ORANGE))?;
            y += 16;
        }
        left.draw(&label(format!("n = {}", grouped(itl.n() as i64)), (90, 0), 12, INK))?;
        if beyond > 0 {
            let text = format!("{} more, up to {}", grouped(beyond as i64), millis(max));
            left.draw(&label(text, (300, 0), 12, FAINT))?;
        }
        Ok(())
    })
}
