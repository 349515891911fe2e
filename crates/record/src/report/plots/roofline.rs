//! The roofline plot.

use plotters::prelude::*;

use super::canvas::{
    Area, BLUE as DECODE, DrawError, FAINT as STATED, Format, GRID, Hovers, INK as ROOF, LINE,
    ORANGE as KERNEL, PURPLE as PREFILL, TEXT, Y_LABELS, fitted, label, label_before, plot,
};
use crate::state::RunState;
use llmprof_analysis::roofline::{Point, PointKind, Roof, Roofline};
use llmprof_base::units::{percent, scaled, three_digits};

const HEIGHT: u32 = 560;
const NARROW_HEIGHT: u32 = 340;
const LEGEND: u32 = 360;
/// Above the rows of the legend.
const LEGEND_HEAD: u32 = 100;
const MAX_ROWS: usize = 48;

/// The roofline of a run as SVG; `None` without a point to draw.
pub fn svg(state: &RunState, format: Format) -> Option<String> {
    let roofline = state.roofline();
    roofline.points.iter().find_map(position)?;
    let rows = roofline.points.len().min(MAX_ROWS + 1) as u32;
    let legend = LEGEND_HEAD + rows * LINE as u32;
    plot(state, format, format.pick(HEIGHT.max(legend), NARROW_HEIGHT + legend), |area, hovers| {
        draw(area, hovers, &roofline, format)
    })
}

fn position(point: &Point) -> Option<(f64, f64)> {
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

fn draw(area: &Area<'_>, hovers: &mut Hovers, roofline: &Roofline, format: Format) -> Result<(), DrawError> {
    let beside = || area.split_horizontally(format.width() - LEGEND);
    let (left, right) = match format {
        Format::File | Format::Page => (beside().0.split_vertically(HEIGHT).0, beside().1),
        Format::Phone => area.split_vertically(NARROW_HEIGHT),
    };
    let (xs, ys) = roofline.extent();
    let range = |[low, high]: [f64; 2]| (10f64.powf(low)..10f64.powf(high)).log_scale();
    let mut chart = ChartBuilder::on(&left)
        .margin(10)
        .x_label_area_size(50)
        .y_label_area_size(Y_LABELS)
        .build_cartesian_2d(range(xs), range(ys))?;
    chart
        .configure_mesh()
        .label_style(("sans-serif", TEXT).into_font().color(&ROOF))
        .axis_desc_style(("sans-serif", TEXT).into_font().color(&ROOF))
        .axis_style(STATED)
        .max_light_lines(1)
        .light_line_style(GRID)
        .bold_line_style(GRID)
        .x_labels(format.pick(8, 4))
        .x_desc("FLOP per byte")
        .y_desc("FLOP/s")
        .x_label_formatter(&|x| three_digits(*x))
        .y_label_formatter(&|y| scaled(*y, "").trim().to_owned())
        .draw()?;
    for (roof, style) in [(roofline.stated(), STATED), (roofline.now(), ROOF)] {
        if let Some(roof) = roof {
            chart.draw_series(LineSeries::new(roof_line(&roof, xs, ys), style.stroke_width(2)))?;
        }
    }
    let mut labels = Labels::default();
    for (i, point) in roofline.points.iter().enumerate() {
        let Some(at) = position(point) else { continue };
        let size = if point.kind == PointKind::Phase { 6 } else { 4 };
        chart.draw_series([Circle::new(at, size, colour(point).filled())])?;
        hovers.point(chart.backend_coord(&at), &describe(point));
        let number = (i + 1).to_string();
        // Points that overlap are only in the legend.
        let Some(offset) = labels.offset(chart.backend_coord(&at), number.len()) else { continue };
        let label = Text::new(number, offset, ("sans-serif", TEXT).into_font().color(&ROOF));
        chart.draw_series([EmptyElement::at(at) + label])?;
    }
    legend(&right, roofline)
}

/// A point as text.
fn describe(point: &Point) -> String {
    let mut text = format!("{}: {}", point.label(), scaled(point.timed.flop_per_s(), "FLOP/s"));
    text += &format!(", {}", scaled(point.timed.bytes_per_s(), "B/s"));
    if let Some(share) = point.share {
        text += &format!(", {} of peak", percent(share.max_pct()));
    }
    match &point.verdict {
        Some(verdict) => format!("{text}, {}", verdict.class.word()),
        None => text,
    }
}

/// Numbers next to points, without overlaps.
#[derive(Default)]
struct Labels {
    /// Left upper corners and widths.
    placed: Vec<(i32, i32, i32)>,
}

impl Labels {
    const HEIGHT: i32 = 16;

    /// The offset of a number with `digits` digits from its point; `None` if there is no space on any side.
    fn offset(&mut self, (x, y): (i32, i32), digits: usize) -> Option<(i32, i32)> {
        let width = 9 * digits as i32 + 1;
        let sides =
            [(7, -17), (-7 - width, -17), (8, 1), (-8 - width, 1), (-width / 2, -26), (-width / 2, 10)];
        let free = |(dx, dy): &(i32, i32)| {
            let (left, top) = (x + dx, y + dy);
            let apart = |(other_left, other_top, other_width): &(i32, i32, i32)| {
                left + width <= *other_left
                    || other_left + other_width <= left
                    || (top - other_top).abs() >= Labels::HEIGHT
            };
            self.placed.iter().all(apart)
        };
        let (dx, dy) = sides.into_iter().find(free)?;
        self.placed.push((x + dx, y + dy, width));
        Some((dx, dy))
    }
}

/// Rises along the memory bandwidth, then is flat. It starts within the plot.
fn roof_line(roof: &Roof, xs: [f64; 2], ys: [f64; 2]) -> Vec<(f64, f64)> {
    let lowest = 10f64.powf(ys[0]) / roof.bytes_per_s;
    let (from, to) = (10f64.powf(xs[0]).max(lowest), 10f64.powf(xs[1]));
    [from, roof.ridge(), to]
        .into_iter()
        .filter(|x| (from..=to).contains(x))
        .map(|x| (x, roof.ceiling(x)))
        .collect()
}

fn legend(area: &Area<'_>, roofline: &Roofline) -> Result<(), DrawError> {
    let text = |text: &str, x: i32, y: i32, colour: RGBColor| area.draw(&label(text, (x + 8, y), colour));
    let mut y = 10;
    match &roofline.peaks {
        Err(_) => text("peaks unknown", 0, y, ROOF)?,
        Ok(peaks) => {
            text(&format!("{} memory bandwidth", scaled(peaks.bytes_per_s, "B/s")), 0, y, ROOF)?;
            let clock =
                peaks.clock_mhz.map_or_else(String::new, |mhz| format!(" at {} MHz", three_digits(mhz)));
            y += LINE;
            text(&format!("{}{clock}, {}", scaled(peaks.flops, "FLOP/s"), peaks.basis), 0, y, STATED)?;
        }
    }
    if let (Some(now), Some(mhz)) = (roofline.now(), roofline.clock_mhz) {
        y += LINE;
        text(&format!("{} at {} MHz, this run", scaled(now.flops, "FLOP/s"), three_digits(mhz)), 0, y, ROOF)?;
    }
    y += 26;
    for (i, point) in roofline.points.iter().enumerate().take(MAX_ROWS) {
        let share = point.share.map(|share| percent(share.max_pct()));
        text(&(i + 1).to_string(), 0, y, ROOF)?;
        text(&fitted(&point.label(), 185), 26, y, colour(point))?;
        area.draw(&label_before(share.unwrap_or_default(), (278, y), ROOF))?;
        let class = point.verdict.as_ref().map_or("", |verdict| verdict.class.word());
        text(class, 282, y, ROOF)?;
        y += LINE;
    }
    if let Some(more) = roofline.points.len().checked_sub(MAX_ROWS).filter(|more| *more > 0) {
        text(&format!("and {more} more"), 24, y, STATED)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap() {
        let mut labels = Labels::default();
        let at: Vec<_> = (0..9).map(|i| labels.offset((100, 100), 1 + i / 9)).collect();
        assert_eq!(at.iter().flatten().count(), 6, "one on each side: {at:?}");
        let far = labels.offset((300, 100), 2);
        assert_eq!(far, Some((7, -17)));
    }
}
