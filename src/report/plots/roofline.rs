//! The roofline as a picture beside the report.

use plotters::prelude::*;

use super::canvas::{
    Area, BLUE as DECODE, INK as ROOF, ORANGE as KERNEL, PURPLE as PREFILL, Trouble, headline, shown,
};
use crate::{
    analysis::{
        roofline::{Point, PointKind, Roof, Roofline},
        units::{scaled, three_digits},
    },
    state::RunState,
};

const SIZE: (u32, u32) = (1000, 560);
const LEGEND: u32 = 330;
const MOST_ROWS: usize = 30;
const STATED: RGBColor = RGBColor(160, 168, 178);

/// The roofline of a run as SVG; `None` where there is no point that could be drawn.
pub fn roofline_svg(state: &RunState) -> Option<String> {
    let roofline = state.roofline();
    if !has_points(&roofline) {
        return None;
    }
    let mut svg = String::new();
    drawn(&mut svg, &roofline, &headline(state)).ok()?;
    Some(svg)
}

/// Whether anything could be drawn.
fn has_points(roofline: &Roofline) -> bool {
    roofline.points.iter().any(|point| place(point).is_some())
}

fn place(point: &Point) -> Option<(f64, f64)> {
    let (x, y) = (point.timed.flop_per_byte()?, point.timed.flop_per_s());
    (x > 0.0 && y > 0.0 && x.is_finite() && y.is_finite()).then_some((x, y))
}

fn colour(point: &Point) -> RGBColor {
    match (point.kind, point.phase) {
        (PointKind::Kernel, _) => KERNEL,
        (_, "prefill") => PREFILL,
        _ => DECODE,
    }
}

fn drawn(svg: &mut String, roofline: &Roofline, title: &str) -> Result<(), Trouble> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 - LEGEND);
    let (xs, ys) = roofline.extent();
    let range = |[low, high]: [f64; 2]| (10f64.powf(low)..10f64.powf(high)).log_scale();
    let mut chart = ChartBuilder::on(&left)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .build_cartesian_2d(range(xs), range(ys))?;
    chart
        .configure_mesh()
        .light_line_style(RGBColor(244, 245, 246))
        .bold_line_style(RGBColor(228, 231, 234))
        .x_desc("FLOP for each byte")
        .y_desc("FLOP/s")
        .x_label_formatter(&|x| three_digits(*x))
        .y_label_formatter(&|y| scaled(*y, "").trim().to_owned())
        .draw()?;
    for (roof, style) in [(roofline.stated(), STATED), (roofline.now(), ROOF)] {
        if let Some(roof) = roof {
            chart.draw_series(LineSeries::new(roof_line(&roof, xs, ys), style.stroke_width(2)))?;
        }
    }
    for (i, point) in roofline.points.iter().enumerate() {
        let Some(at) = place(point) else { continue };
        let size = if point.kind == PointKind::Phase { 6 } else { 4 };
        chart.draw_series([Circle::new(at, size, colour(point).filled())])?;
        let label = Text::new((i + 1).to_string(), (7, -13), ("sans-serif", 12).into_font().color(&ROOF));
        chart.draw_series([EmptyElement::at(at) + label])?;
    }
    legend(&right, roofline)?;
    root.present()?;
    drop(chart);
    Ok(())
}

/// Up along the memory's ceiling, then flat. It begins within the plot.
fn roof_line(roof: &Roof, xs: [f64; 2], ys: [f64; 2]) -> Vec<(f64, f64)> {
    let lowest = 10f64.powf(ys[0]) / roof.bytes_per_s;
    let (from, to) = (10f64.powf(xs[0]).max(lowest), 10f64.powf(xs[1]));
    [from, roof.ridge(), to]
        .into_iter()
        .filter(|x| (from..=to).contains(x))
        .map(|x| (x, roof.ceiling(x)))
        .collect()
}

fn legend(area: &Area<'_>, roofline: &Roofline) -> Result<(), Trouble> {
    let text = |words: &str, x: i32, y: i32, colour: RGBColor| {
        area.draw(&Text::new(shown(words), (x, y), ("sans-serif", 12).into_font().color(&colour)))
    };
    let mut y = 20;
    match &roofline.peaks {
        Err(_) => text("no ceilings are known", 0, y, ROOF)?,
        Ok(peaks) => {
            text(&format!("{} of memory", scaled(peaks.bytes_per_s, "B/s")), 0, y, ROOF)?;
            let clock =
                peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
            y += 16;
            text(&format!("{}{clock}, as stated", scaled(peaks.flops, "FLOP/s")), 0, y, STATED)?;
        }
    }
    if let (Some(now), Some(mhz)) = (roofline.now(), roofline.clock_mhz) {
        y += 16;
        text(&format!("{} at {} MHz, as run", scaled(now.flops, "FLOP/s"), three_digits(mhz)), 0, y, ROOF)?;
    }
    y += 26;
    for (i, point) in roofline.points.iter().enumerate().take(MOST_ROWS) {
        let share = point.share.map(|share| format!("{:.0} %", share.most()));
        text(&(i + 1).to_string(), 0, y, ROOF)?;
        text(&point.label(), 24, y, colour(point))?;
        text(&share.unwrap_or_default(), 220, y, ROOF)?;
        let class = point.verdict.as_ref().map_or("", |verdict| verdict.class.word());
        text(class, 262, y, ROOF)?;
        y += 15;
    }
    Ok(())
}
