//! Shared by all plots: size, colours, headline, axes, legend.

use plotters::{coord::Shift, prelude::*};

use crate::{
    base::{foreign::line, units::grouped},
    event::Stamp,
    state::{RecordedSpan, RunState},
};

pub type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub const INK: RGBColor = RGBColor(36, 41, 47);
pub const FAINT: RGBColor = RGBColor(130, 138, 148);
pub const BLUE: RGBColor = RGBColor(31, 95, 176);
pub const PURPLE: RGBColor = RGBColor(122, 63, 176);
pub const ORANGE: RGBColor = RGBColor(168, 90, 18);
pub const RED: RGBColor = RGBColor(190, 40, 40);
pub const GREEN: RGBColor = RGBColor(30, 120, 70);
const LIGHT_GRID: RGBColor = RGBColor(244, 245, 246);
const GRID: RGBColor = RGBColor(228, 231, 234);

/// Characters of a label.
const MAX_TEXT: usize = 200;
pub const WIDTH: u32 = 1000;
/// Columns of a chart over time.
pub const COLUMNS: usize = 450;

/// Draws a plot of this height with a headline; `None` if drawing fails.
pub fn plot(
    state: &RunState,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Option<String> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE).ok()?;
    let (head, rest) = root.split_vertically(26);
    head.draw(&label(headline(state), (14, 8), 14, INK)).ok()?;
    draw(&rest).ok()?;
    root.present().ok()?;
    drop((root, head, rest));
    Some(svg)
}

/// The model, its data type and the GPU; whether it was simulated or ran under a profiler.
fn headline(state: &RunState) -> String {
    state.run.as_ref().map_or_else(String::new, |run| {
        let gpu = state.profiled_gpu().map_or_else(|| run.device.to_string(), |gpu| gpu.info.name.clone());
        let simulated = if run.simulated { " · simulated" } else { "" };
        let under = run.perturbed.as_ref().map_or_else(String::new, |tool| format!(" · under {tool}"));
        format!("{} · {} · {gpu}{simulated}{under}", run.model, run.dtype)
    })
}

pub fn label(
    text: impl Into<String>,
    at: (i32, i32),
    size: u32,
    colour: RGBColor,
) -> Text<'static, (i32, i32), String> {
    Text::new(line(&text.into(), MAX_TEXT), at, ("sans-serif", size).into_font().color(&colour))
}

/// A line of coloured entries at the top of `area`.
pub fn legend<'a>(
    area: &Area<'_>,
    entries: impl IntoIterator<Item = (&'a str, RGBColor)>,
) -> Result<(), DrawError> {
    let mut x = 90;
    for (text, colour) in entries {
        area.draw(&label(text, (x, 0), 12, colour))?;
        x += 20 + (6.2 * text.chars().count() as f64) as i32;
    }
    Ok(())
}

/// `low..high` with a margin, never empty.
pub fn with_margin(low: f64, high: f64) -> std::ops::Range<f64> {
    let room = ((high - low) * 0.06).max(high.abs() * 0.01).max(1e-6);
    (if low >= 0.0 { (low - room).max(0.0) } else { low - room })..high + room
}

/// How a value is printed at its axis; by default with the digits that distinguish its ticks.
pub type Tick = Option<fn(f64) -> String>;

/// A count at an axis.
pub const COUNT: Tick = Some(|n| grouped(n.round() as i64));

/// Values of `range` with as many digits as a tenth of it has.
fn in_few_digits(range: &std::ops::Range<f64>) -> impl Fn(f64) -> String + use<> {
    let step = (range.end - range.start) / 10.0;
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    move |value| match value.abs() {
        large if large >= 1000.0 && digits == 0 => grouped(value.round() as i64),
        // Zero has no sign.
        small if small < step * 1e-6 => format!("{:.digits$}", 0.0),
        _ => format!("{value:.digits$}"),
    }
}

/// A chart with a grid; `x_tick` and `y_tick` print the ticks.
pub fn chart<'a, 'b>(
    area: &'b Area<'a>,
    (x, x_name): (std::ops::Range<f64>, &str),
    (y, y_name): (std::ops::Range<f64>, &str),
    (x_tick, y_tick): (Tick, Tick),
) -> Result<Chart<'b, SVGBackend<'a>>, DrawError> {
    let (x_digits, y_digits) = (in_few_digits(&x), in_few_digits(&y));
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(20)
        .x_label_area_size(if x_name.is_empty() { 20 } else { 38 })
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(LIGHT_GRID)
        .bold_line_style(GRID)
        .x_desc(x_name)
        .y_desc(y_name)
        .y_labels(6)
        .x_label_formatter(&|x| x_tick.map_or_else(|| x_digits(*x), |tick| tick(*x)))
        .y_label_formatter(&|y| y_tick.map_or_else(|| y_digits(*y), |tick| tick(*y)))
        .draw()?;
    Ok(chart)
}

pub type Chart<'a, DB> = ChartContext<
    'a,
    DB,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// Marks the time in which kernels were recorded.
pub fn recorded_bands<DB: DrawingBackend>(
    chart: &mut Chart<'_, DB>,
    state: &RunState,
    (bottom, top): (f64, f64),
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let end = state.now.secs();
    let band = |span: RecordedSpan| {
        let (from, to) = (span.from.secs(), span.to.map_or(end, Stamp::secs));
        Rectangle::new([(from, bottom), (to.min(end), top)], GREEN.mix(0.14).filled())
    };
    chart.draw_series(state.kernels.recording.spans().map(band)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_the_digits_it_needs() {
        for (range, values, written) in [
            (0.0..1.28, [0.0, 0.2, 1.2], ["0.0", "0.2", "1.2"]),
            (0.0..23.3, [0.0, 5.0, 20.0], ["0", "5", "20"]),
            (4.05..4.45, [4.1, 4.15, 4.2], ["4.10", "4.15", "4.20"]),
            (1400.0..2000.0, [1500.0, 1600.0, 2000.0], ["1,500", "1,600", "2,000"]),
            (-0.5..0.5, [-0.2, -1e-17, 0.2], ["-0.2", "0.0", "0.2"]),
        ] {
            let write = in_few_digits(&range);
            assert_eq!(values.map(write), written);
        }
    }
}
