//! Tokens per second over time, with prefills, warm-up and incidents.

use plotters::prelude::*;

use super::canvas::{
    BLUE, COLUMNS, FAINT, Format, GREEN, ORANGE, PURPLE, RED, chart, legend, plot, recorded_bands,
};
use crate::state::{Bucket, RunState};
use llmprof_base::units::three_digits;
use llmprof_event::Stamp;

/// `None` without a measured ITL.
pub fn throughput_svg(state: &RunState, format: Format) -> Option<String> {
    let (_, slowest) = state.itl_ms.range()?;
    let end = state.now.secs().max(1e-3);
    let batch = f64::from(state.batch());
    let column_s = end / COLUMNS as f64;
    let columns = state.itl_columns(Stamp(0), state.now, COLUMNS);
    let rate = |ms: f32| if ms > 0.0 { batch * 1e3 / f64::from(ms) } else { 0.0 };
    let x = |i: usize| (i as f64 + 0.5) * column_s;
    let known = || columns.iter().enumerate().filter_map(|(i, bucket)| Some((i, (*bucket)?)));
    let max = known().map(|(_, bucket)| rate(bucket.mean())).fold(rate(slowest), f64::max);
    let top = max.max(1e-3) * 1.08;
    plot(state, format, 400, |area, hovers| {
        let entries = [
            ("mean of at least 8 tokens", BLUE),
            ("thin: down to the slowest", BLUE),
            ("prefill", PURPLE),
            ("before measurement", FAINT),
            ("incident", RED),
        ];
        let recorded = state.kernels.recording.is_used().then_some(("kernels recorded", GREEN));
        let no_end = state.finished.is_none().then_some(("the recording has no end", ORANGE));
        let area = &legend(area, entries.into_iter().chain(recorded).chain(no_end))?;
        let axes = ((0.0..end, "seconds"), (0.0..top, "decode tok/s"));
        let mut chart = chart(area, axes.0, axes.1, (None, None))?;
        let measured = state.total.from.secs().min(end);
        if measured > 0.0 && state.total.ttft.n() > 0 {
            chart.draw_series([Rectangle::new([(0.0, 0.0), (measured, top)], FAINT.mix(0.12).filled())])?;
        }
        recorded_bands(&mut chart, state, (0.0, top))?;
        for (i, bucket) in state.ttft_ms.columns(Stamp(0), state.now, COLUMNS).iter().enumerate() {
            let Some(bucket) = bucket else { continue };
            let to = (i as f64 + 1.0) * column_s;
            let from = (to - (f64::from(bucket.mean()) / 1e3).max(column_s)).max(0.0);
            let band = Rectangle::new([(from, 0.0), (to, top)], PURPLE.mix(0.16).filled());
            chart.draw_series([band])?;
        }
        // The slowest token of a column, then the mean. The fastest token is not a rate: it may follow a late one.
        for (i, bucket) in known() {
            let ends = [rate(bucket.max), rate(bucket.mean())].map(|rate| (x(i), rate));
            chart.draw_series(LineSeries::new(ends, BLUE.mix(0.25)))?;
        }
        // Columns between two slow tokens are empty: the line continues for as long as the tokens took.
        let reach = |bucket: &Bucket| 1 + (bucket.sum() / 1e3 / column_s).ceil() as usize;
        for segment in segments(&columns, reach) {
            let line: Vec<_> = segment.iter().map(|(i, bucket)| (x(*i), rate(bucket.mean()))).collect();
            if let [alone] = line[..] {
                chart.draw_series([Circle::new(alone, 1, BLUE.filled())])?;
            }
            chart.draw_series(LineSeries::new(line, BLUE.stroke_width(2)))?;
        }
        for incident in &state.flight.incidents {
            let x = incident.at.secs();
            chart.draw_series(LineSeries::new([(x, 0.0), (x, top)], RED.mix(0.6)))?;
            chart.draw_series([Circle::new((x, top * 0.97), 3, RED.filled())])?;
        }
        hovers.columns(&chart, end, (0.0, top), |i| {
            let bucket = columns.get(i).copied().flatten()?;
            Some(format!("{:.1} s: {} tok/s", x(i), three_digits(rate(bucket.mean()))))
        });
        for incident in &state.flight.incidents {
            let at = chart.backend_coord(&(incident.at.secs(), top * 0.97));
            hovers.point(at, &format!("{:.1} s: {}", incident.at.secs(), incident.describe()));
        }
        Ok(())
    })
}

/// Segments of columns without a gap. Two values are in one segment if their distance in columns is at most the `reach`
/// of either.
pub(super) fn segments<T: Copy>(columns: &[Option<T>], reach: impl Fn(&T) -> usize) -> Vec<Vec<(usize, T)>> {
    let mut segments: Vec<Vec<(usize, T)>> = Vec::new();
    let known = columns.iter().enumerate().filter_map(|(i, value)| Some((i, (*value)?)));
    for (i, value) in known {
        match segments.last_mut() {
            Some(open)
                if open.last().is_some_and(|(before, last)| i - before <= reach(&value).max(reach(last))) =>
            {
                open.push((i, value));
            }
            _ => segments.push(vec![(i, value)]),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_ends_a_segment_unless_it_is_within_reach() {
        let columns = [Some(1), Some(1), None, Some(1), None, None, Some(3), None, Some(1)];
        let ends = |segments: Vec<Vec<(usize, i32)>>| {
            segments.iter().map(|s| (s[0].0, s[s.len() - 1].0)).collect::<Vec<_>>()
        };
        assert_eq!(ends(segments(&columns, |_| 1)), [(0, 1), (3, 3), (6, 6), (8, 8)]);
        assert_eq!(ends(segments(&columns, |reach| *reach as usize)), [(0, 1), (3, 8)]);
    }
}
