//! Power, SM clock and temperature of the card as lanes over one time axis, and what held its clock.

use plotters::prelude::*;

use super::{
    canvas::{Area, BLUE, COLUMNS, FAINT, GREEN, INK, ORANGE, RED, Trouble, chart, picture, roomy, words},
    throughput::stretches,
};
use crate::{
    event::{Stamp, readings::Reading, reasons},
    state::{GpuState, RunState},
};

const LANE: u32 = 170;
const REASON: i32 = 18;
/// A look holds for so long, at most.
const HOLD_NS: u64 = 3_000_000_000;

const LANES: [(Reading, &str, RGBColor); 3] =
    [(Reading::Power, "W", ORANGE), (Reading::SmClock, "SM MHz", BLUE), (Reading::Temp, "°C", GREEN)];

/// `None` where none of the three was read.
pub fn telemetry_svg(state: &RunState) -> Option<String> {
    let gpu = state.main_gpu()?;
    let lanes: Vec<_> = LANES.into_iter().filter(|(reading, ..)| !gpu.series(*reading).is_empty()).collect();
    if lanes.is_empty() {
        return None;
    }
    let held: Vec<_> = gpu.reasons.iter().filter(|(bit, _)| reasons::faults(*bit) != 0).collect();
    let height = 26 + LANE * lanes.len() as u32 + held.len() as u32 * REASON as u32 + 20;
    picture(state, height, |area| {
        let mut rest = area.clone();
        for (reading, unit, colour) in &lanes {
            let (lane, below) = rest.split_vertically(LANE);
            draw_lane(&lane, state, gpu, (*reading, unit, *colour))?;
            rest = below;
        }
        let mut y = 4;
        for (bit, series) in held {
            let (left, right) = (78.0, 980.0);
            let width = (right - left) / COLUMNS as f64;
            for (i, bucket) in series.held_columns(Stamp(0), state.now, COLUMNS, HOLD_NS).iter().enumerate() {
                let Some(share) = bucket.map(|bucket| f64::from(bucket.mean())).filter(|s| *s > 0.0) else {
                    continue;
                };
                let x = left + i as f64 * width;
                let corners = [(x as i32, y), ((x + width).ceil() as i32, y + 9)];
                rest.draw(&Rectangle::new(corners, RED.mix(0.25 + 0.6 * share).filled()))?;
            }
            let name = reasons::named(*bit).name().into_owned();
            rest.draw(&words(name, (4, y), 11, INK))?;
            y += REASON;
        }
        Ok(())
    })
}

fn draw_lane(
    area: &Area<'_>,
    state: &RunState,
    gpu: &GpuState,
    (reading, unit, colour): (Reading, &str, RGBColor),
) -> Result<(), Trouble> {
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
    let mut chart = chart(area, (0.0..end, ""), (roomy(low, high), unit), (None, None))?;
    if let Some(limit) = limit {
        chart.draw_series(LineSeries::new([(0.0, limit), (end, limit)], FAINT))?;
    }
    let columns = series.held_columns(Stamp(0), state.now, COLUMNS, HOLD_NS);
    let place = |i: usize| (i as f64 + 0.5) * end / COLUMNS as f64;
    for stretch in stretches(&columns, |_| 1) {
        let ends = stretch.iter().filter(|(_, bucket)| bucket.max > bucket.min);
        for (i, bucket) in ends {
            let ends = [bucket.min, bucket.max].map(|value| (place(*i), f64::from(value)));
            chart.draw_series(LineSeries::new(ends, colour.mix(0.35)))?;
        }
        let line = stretch.iter().map(|(i, bucket)| (place(*i), f64::from(bucket.mean())));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
    }
    Ok(())
}
