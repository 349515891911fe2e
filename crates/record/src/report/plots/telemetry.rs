//! Power, SM clock and temperature of the GPU over time, and the limits of its clock.

use plotters::prelude::*;

use super::{
    canvas::{
        Area, BLUE, COLUMNS, DrawError, FAINT, Format, GREEN, Hovers, INK, LINE, ORANGE, RED, Y_LABELS,
        chart, label, plot, recorded_bands, with_margin,
    },
    throughput::segments,
};
use crate::state::{Bucket, GpuState, RunState};
use llmprof_base::units::three_digits;
use llmprof_event::{Stamp, readings::Reading, reasons};

const LANE: u32 = 170;
/// The height of a reason: its name, with its active time below.
const REASON: i32 = LINE + 18;
/// A sample is valid for this long at most.
const HOLD_NS: u64 = 3_000_000_000;

const LANES: [(Reading, &str, RGBColor); 3] =
    [(Reading::Power, "W", ORANGE), (Reading::SmClock, "SM MHz", BLUE), (Reading::Temp, "°C", GREEN)];

/// `None` if none of the three was read.
pub fn telemetry_svg(state: &RunState, format: Format) -> Option<String> {
    let gpu = state.main_gpu()?;
    let lanes: Vec<_> = LANES.into_iter().filter(|(reading, ..)| !gpu.series(*reading).is_empty()).collect();
    if lanes.is_empty() {
        return None;
    }
    let limits: Vec<_> = gpu.reasons.iter().filter(|(bit, _)| reasons::faults(*bit) != 0).collect();
    let height = LANE * lanes.len() as u32 + limits.len() as u32 * REASON as u32 + 20;
    plot(state, format, height, |area, hovers| {
        let mut rest = area.clone();
        for (reading, unit, colour) in &lanes {
            let (lane, below) = rest.split_vertically(LANE);
            draw_lane(&lane, hovers, (state, gpu), (*reading, unit, *colour))?;
            rest = below;
        }
        let mut y = 4;
        for (bit, series) in limits {
            let (left, right) = (f64::from(8 + Y_LABELS), f64::from(format.width() - 24));
            let name = reasons::named(*bit).name().into_owned();
            rest.draw(&label(name, (left as i32, y), INK))?;
            y += LINE;
            let columns = series.held_columns(Stamp(0), state.now, COLUMNS, HOLD_NS);
            let x = |column: usize| (left + column as f64 * (right - left) / COLUMNS as f64).round() as i32;
            for (from, to, share) in active_spans(&columns) {
                let corners = [(x(from), y), (x(to), y + 10)];
                rest.draw(&Rectangle::new(corners, RED.mix(0.25 + 0.6 * share).filled()))?;
            }
            y += REASON - LINE;
        }
        Ok(())
    })
}

/// Columns in which a limit was active, with the share of the time in quarters; equal neighbours are one span.
fn active_spans(columns: &[Option<Bucket>]) -> Vec<(usize, usize, f64)> {
    let mut spans: Vec<(usize, usize, f64)> = Vec::new();
    for (i, bucket) in columns.iter().enumerate() {
        let share = bucket.map_or(0.0, |bucket| (4.0 * f64::from(bucket.mean())).ceil() / 4.0);
        match spans.last_mut() {
            _ if share <= 0.0 => {}
            Some((_, to, open)) if *to == i && *open == share => *to = i + 1,
            _ => spans.push((i, i + 1, share)),
        }
    }
    spans
}

fn draw_lane(
    area: &Area<'_>,
    hovers: &mut Hovers,
    (state, gpu): (&RunState, &GpuState),
    (reading, unit, colour): (Reading, &str, RGBColor),
) -> Result<(), DrawError> {
    let series = gpu.series(reading);
    let (low, high) = series.range().unwrap_or((0.0, 1.0));
    let limit = match reading {
        Reading::Power => gpu.info.power_limit_w.map(f64::from),
        Reading::SmClock => gpu.info.sm_clock_max_mhz.map(f64::from),
        Reading::Temp => gpu.info.slowdown_temp_c.map(f64::from),
        _ => None,
    };
    let (low, high) = (f64::from(low), f64::from(high).max(limit.unwrap_or(f64::MIN)));
    let end = state.now.secs().max(1e-3);
    let range = with_margin(low, high);
    let mut chart = chart(area, (0.0..end, ""), (range.clone(), unit), (None, None))?;
    recorded_bands(&mut chart, state, (range.start, range.end))?;
    if let Some(limit) = limit {
        chart.draw_series(LineSeries::new([(0.0, limit), (end, limit)], FAINT))?;
    }
    let columns = series.held_columns(Stamp(0), state.now, COLUMNS, HOLD_NS);
    let x = |i: usize| (i as f64 + 0.5) * end / COLUMNS as f64;
    for segment in segments(&columns, |_| 1) {
        let ends = segment.iter().filter(|(_, bucket)| bucket.max > bucket.min);
        for (i, bucket) in ends {
            let ends = [bucket.min, bucket.max].map(|value| (x(*i), f64::from(value)));
            chart.draw_series(LineSeries::new(ends, colour.mix(0.35)))?;
        }
        let line = segment.iter().map(|(i, bucket)| (x(*i), f64::from(bucket.mean())));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
    }
    let about = reading.about();
    hovers.columns(&chart, end, (range.start, range.end), |i| {
        let mean = columns.get(i).copied().flatten()?.mean();
        Some(format!("{:.1} s: {} {}", x(i), three_digits(f64::from(mean)), about.unit))
    });
    Ok(())
}
