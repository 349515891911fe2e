//! What the pictures share: size, colours, headline, axes.

use plotters::{coord::Shift, prelude::*};

use crate::state::RunState;

pub type Trouble = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;
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

const WIDTH: u32 = 1000;
/// Columns of a chart over time.
pub const COLUMNS: usize = 450;

/// Draws a picture of this height with the run's name above it; `None` where the drawing fails.
pub fn picture(
    state: &RunState,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Trouble>,
) -> Option<String> {
    let mut svg = String::new();
    drawn(&mut svg, &headline(state), height, draw).ok()?;
    Some(svg)
}

fn drawn(
    svg: &mut String,
    title: &str,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, rest) = root.split_vertically(26);
    head.draw(&words(title, (14, 8), 14, INK))?;
    draw(&rest)?;
    root.present()
}

/// The model, its type, the card; what is simulated says so.
pub fn headline(state: &RunState) -> String {
    state.run.as_ref().map_or_else(String::new, |run| {
        let gpu = state.profiled_gpu().map_or(run.device.as_str(), |gpu| gpu.info.name.as_str());
        let simulated = if run.simulated { " · simulated" } else { "" };
        let under = run.perturbed.as_ref().map_or_else(String::new, |tool| format!(" · under {tool}"));
        shown(&format!("{} · {} · {gpu}{simulated}{under}", run.model, run.dtype))
    })
}

pub fn words(
    text: impl Into<String>,
    at: (i32, i32),
    size: u32,
    colour: RGBColor,
) -> Text<'static, (i32, i32), String> {
    Text::new(shown(&text.into()), at, ("sans-serif", size).into_font().color(&colour))
}

/// What can't be shown in XML is left out.
pub fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A range that has room for `low..high`, never empty.
pub fn roomy(low: f64, high: f64) -> std::ops::Range<f64> {
    let room = ((high - low) * 0.06).max(high.abs() * 0.01).max(1e-6);
    (if low >= 0.0 { (low - room).max(0.0) } else { low - room })..high + room
}

/// How a value is written at its axis.
pub type Tick = fn(f64) -> String;

/// A chart with our grid; ticks are written by `x_tick` and `y_tick`.
pub fn chart<'a, 'b>(
    area: &'b Area<'a>,
    (x, x_name): (std::ops::Range<f64>, &str),
    (y, y_name): (std::ops::Range<f64>, &str),
    (x_tick, y_tick): (Tick, Tick),
) -> Result<Chart<'b, SVGBackend<'a>>, Trouble> {
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
        .x_label_formatter(&|x| x_tick(*x))
        .y_label_formatter(&|y| y_tick(*y))
        .draw()?;
    Ok(chart)
}

pub type Chart<'a, DB> = ChartContext<
    'a,
    DB,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;
