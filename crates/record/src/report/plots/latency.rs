//! ITL as a histogram and as a cumulative distribution.

use plotters::prelude::*;

use super::canvas::{BLUE, COUNT, FAINT, Format, INK, ORANGE, Tick, chart, legend, plot};
use crate::state::RunState;
use llmprof_base::units::{grouped, millis, percent};

const BINS: usize = 80;
/// More points do not change how the line looks.
const POINTS: usize = 400;

/// `None` without a measured ITL.
pub fn latency_svg(state: &RunState, format: Format) -> Option<String> {
    let itl = &state.total.itl;
    let summary = itl.summary();
    let (min, max) = (summary.min?, summary.max?);
    // The slowest tokens would compress all others into one bin; a label counts them.
    let to = summary.p99.map_or(max, |p99| max.min(p99 + (p99 - min).max(p99 * 0.02)));
    let margin = ((to - min) * 0.02).max(to * 0.002).max(1e-6);
    let (from, to) = ((min - margin).max(0.0), to + margin);
    let counts = itl.bins(from, to, BINS);
    let beyond = itl.n() - counts.iter().sum::<u64>();
    let tallest = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let ecdf = itl.ecdf();
    let marks = [("p50", summary.p50), ("p90", summary.p90), ("p99", summary.p99)];
    plot(state, format, format.pick(400, 680), |area, hovers| {
        let (left, right) = format.pick(area.split_horizontally(500), area.split_vertically(340));
        let n = format!("n = {}", grouped(itl.n() as i64));
        let more = format!("{} more, up to {}", grouped(beyond as i64), millis(max));
        let more = (beyond > 0).then_some((more.as_str(), FAINT));
        let left = legend(&left, [(n.as_str(), INK)].into_iter().chain(more))?;
        let named: Vec<String> =
            marks.iter().filter_map(|(name, ms)| Some(format!("{name} {}", millis((*ms)?)))).collect();
        let right = legend(&right, named.iter().map(|text| (text.as_str(), ORANGE)))?;
        let mut histogram =
            chart(&left, (from..to, "ITL, ms"), (0.0..tallest * 1.1, "tokens"), (None, COUNT))?;
        let width = (to - from) / BINS as f64;
        for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let x = from + i as f64 * width;
            let bar = [(x, 0.0), (x + width, *count as f64)];
            histogram.draw_series([Rectangle::new(bar, BLUE.mix(0.75).filled())])?;
            let corners = [(x, 0.0), (x + width, tallest)].map(|corner| histogram.backend_coord(&corner));
            let text = format!("{x:.3} to {:.3} ms: {} tokens", x + width, grouped(*count as i64));
            hovers.add(corners[0], corners[1], &text);
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
        shares.draw_series(LineSeries::new(line.iter().copied(), BLUE.stroke_width(2)))?;
        for (_, ms) in marks {
            let ends = ms.map(|ms| [(ms, 0.0), (ms, 1.0)]);
            shares.draw_series(ends.map(|ends| PathElement::new(ends, ORANGE.mix(0.7))))?;
        }
        for i in 0..BINS {
            let at = from + (i as f64 + 1.0) * width;
            let up_to = line.iter().take_while(|(ms, _)| *ms <= at).last().map_or(0.0, |(_, share)| *share);
            let corners = [(at - width, 0.0), (at, 1.0)].map(|corner| shares.backend_coord(&corner));
            let text = format!("{} of tokens within {at:.3} ms", percent(up_to * 100.0));
            hovers.add(corners[0], corners[1], &text);
        }
        Ok(())
    })
}
