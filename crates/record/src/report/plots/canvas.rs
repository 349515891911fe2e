//! Common parts of all plots: formats, colours, headline, axes, legend, values under the pointer.

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::state::{RecordedSpan, RunState};
use llmprof_base::{foreign::line, markup::escaped, units::grouped};
use llmprof_event::Stamp;

pub type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub const INK: RGBColor = RGBColor(36, 41, 47);
pub const FAINT: RGBColor = RGBColor(96, 104, 114);
pub const BLUE: RGBColor = RGBColor(31, 95, 176);
pub const PURPLE: RGBColor = RGBColor(122, 63, 176);
pub const ORANGE: RGBColor = RGBColor(168, 90, 18);
pub const RED: RGBColor = RGBColor(190, 40, 40);
pub const GREEN: RGBColor = RGBColor(30, 120, 70);
pub const GRID: RGBColor = RGBColor(228, 231, 234);

/// Every colour of a plot, and the one that replaces it on a dark page.
pub const ON_DARK: [(RGBColor, &str); 8] = [
    (INK, "#d8dee9"),
    (FAINT, "#a0a9b8"),
    (BLUE, "#7db4ff"),
    (PURPLE, "#c9a0f5"),
    (ORANGE, "#f0a35e"),
    (RED, "#ff8a80"),
    (GREEN, "#6fd197"),
    (GRID, "#2b313a"),
];

/// The colour as it appears in the SVG.
pub fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Maximum characters of a label.
const MAX_TEXT: usize = 200;
/// Columns of a chart over time.
pub const COLUMNS: usize = 450;
/// The size of all text. The library divides it by 1.24: 14.5 units.
pub const TEXT: u32 = 18;
/// A line of text.
pub const LINE: i32 = 20;
/// The mean width of a character of text.
const CHAR: f64 = 8.3;

/// The place of a plot. Text has the same size everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A file of its own, with a headline.
    File,
    /// Part of a page.
    Page,
    /// Part of a page on a phone.
    Phone,
}

impl Format {
    pub fn width(self) -> u32 {
        self.pick(1000, 360)
    }

    /// `narrow` on a phone, otherwise `wide`.
    pub fn pick<T>(self, wide: T, narrow: T) -> T {
        match self {
            Format::File | Format::Page => wide,
            Format::Phone => narrow,
        }
    }
}

/// Areas of a plot with a text that a browser shows under the pointer.
#[derive(Default)]
pub struct Hovers(String);

impl Hovers {
    /// The area between two corners.
    pub fn add(&mut self, from: (i32, i32), to: (i32, i32), text: &str) {
        let (x, y) = (from.0.min(to.0), from.1.min(to.1));
        let (width, height) = ((to.0 - from.0).abs().max(1), (to.1 - from.1).abs().max(1));
        let text = escaped(&line(text, MAX_TEXT));
        self.0 += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"><title>{text}</title></rect>\n"
        );
    }

    /// The area around a point.
    pub fn point(&mut self, (x, y): (i32, i32), text: &str) {
        const REACH: i32 = 9;
        self.add((x - REACH, y - REACH), (x + REACH, y + REACH), text);
    }

    /// Parts of a chart with [`COLUMNS`] columns from 0 to `end`: each has the text of its first column that has one.
    pub fn columns<DB: DrawingBackend>(
        &mut self,
        chart: &Chart<'_, DB>,
        end: f64,
        (bottom, top): (f64, f64),
        text: impl Fn(usize) -> Option<String>,
    ) {
        const PART: usize = 3;
        let x = |column: usize| column as f64 * end / COLUMNS as f64;
        for from in (0..COLUMNS).step_by(PART) {
            if let Some(text) = (from..from + PART).find_map(&text) {
                let corners = [(x(from), top), (x(from + PART), bottom)];
                let [from, to] = corners.map(|corner| chart.backend_coord(&corner));
                self.add(from, to, &text);
            }
        }
    }

    /// Adds the areas on top of a plot.
    fn put_on(self, svg: String) -> String {
        if self.0.is_empty() {
            return svg;
        }
        let areas =
            format!("<g class=\"hover\" fill=\"{}\" fill-opacity=\"0\">\n{}</g>\n</svg>", hex(INK), self.0);
        svg.replacen("</svg>", &areas, 1)
    }
}

/// Draws a plot of this height below its headline; `None` if drawing fails.
pub fn plot(
    state: &RunState,
    format: Format,
    height: u32,
    draw: impl FnOnce(&Area<'_>, &mut Hovers) -> Result<(), DrawError>,
) -> Option<String> {
    let mut svg = String::new();
    let mut hovers = Hovers::default();
    let head = if format == Format::File { 30 } else { 0 };
    let root = SVGBackend::with_string(&mut svg, (format.width(), height + head)).into_drawing_area();
    root.fill(&WHITE).ok()?;
    let (above, rest) = root.split_vertically(head);
    if head > 0 {
        above.draw(&label(headline(state), (14, 8), INK)).ok()?;
    }
    draw(&rest, &mut hovers).ok()?;
    root.present().ok()?;
    drop((root, above, rest));
    Some(hovers.put_on(svg))
}

/// The model, its data type and the GPU; whether it was simulated or ran under a profiler.
fn headline(state: &RunState) -> String {
    state.run.as_ref().map_or_else(String::new, |run| {
        let gpu = state.device_name().map_or_else(String::new, |name| format!(" · {name}"));
        let simulated = if run.simulated { " · simulated" } else { "" };
        let under = run.perturbed.as_ref().map_or_else(String::new, |tool| format!(" · under {tool}"));
        format!("{} · {}{gpu}{simulated}{under}", run.model, run.dtype)
    })
}

pub fn label(text: impl Into<String>, at: (i32, i32), colour: RGBColor) -> Text<'static, (i32, i32), String> {
    Text::new(line(&text.into(), MAX_TEXT), at, ("sans-serif", TEXT).into_font().color(&colour))
}

/// A label that ends at the given position.
pub fn label_before(
    text: impl Into<String>,
    at: (i32, i32),
    colour: RGBColor,
) -> Text<'static, (i32, i32), String> {
    let style = ("sans-serif", TEXT).into_font().color(&colour).pos(Pos::new(HPos::Right, VPos::Top));
    Text::new(line(&text.into(), MAX_TEXT), at, style)
}

/// The part of a name that fits into a width.
pub fn fitted(name: &str, width: i32) -> String {
    let mut short = name.to_owned();
    while text_width(&short) > width && short.pop().is_some() {}
    match short.len() < name.len() {
        true => format!("{}…", short.trim_end_matches([' ', '_', ':'])),
        false => short,
    }
}

/// The estimated width of a text.
fn text_width(text: &str) -> i32 {
    (CHAR * text.chars().count() as f64).ceil() as i32
}

/// Coloured entries at the top of `area`, in as many lines as they need; returns the rest of it.
pub fn legend<'a, 'b>(
    area: &Area<'b>,
    entries: impl IntoIterator<Item = (&'a str, RGBColor)>,
) -> Result<Area<'b>, DrawError> {
    let width = area.dim_in_pixel().0 as i32;
    let left = if width < 500 { 8 } else { 92 };
    let (mut x, mut y) = (left, 0);
    for (text, colour) in entries {
        let wide = text_width(text);
        if x > left && x + wide > width {
            (x, y) = (left, y + LINE);
        }
        area.draw(&label(text, (x, y), colour))?;
        x += wide + 20;
    }
    Ok(area.split_vertically(y + LINE).1)
}

/// `low..high` with a margin, never empty.
pub fn with_margin(low: f64, high: f64) -> std::ops::Range<f64> {
    let room = ((high - low) * 0.06).max(high.abs() * 0.01).max(1e-6);
    (if low >= 0.0 { (low - room).max(0.0) } else { low - room })..high + room
}

/// The format of values at an axis; by default with the digits that distinguish its ticks.
pub type Tick = Option<fn(f64) -> String>;

/// A count at an axis.
pub const COUNT: Tick = Some(|n| grouped(n.round() as i64));

/// Values of `range` with the number of digits that a tenth of it needs.
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
    let (width, height) = area.dim_in_pixel();
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(if x_name.is_empty() { 26 } else { 50 })
        .y_label_area_size(Y_LABELS)
        .build_cartesian_2d(x, y)?;
    let text = ("sans-serif", TEXT).into_font().color(&INK);
    chart
        .configure_mesh()
        .label_style(text.clone())
        .axis_desc_style(text)
        .axis_style(FAINT)
        .max_light_lines(1)
        .light_line_style(GRID)
        .bold_line_style(GRID)
        .x_desc(x_name)
        .y_desc(y_name)
        .x_labels((width as usize / 90).clamp(4, 10))
        .y_labels((height as usize / 50).clamp(3, 6))
        .x_label_formatter(&|x| x_tick.map_or_else(|| x_digits(*x), |tick| tick(*x)))
        .y_label_formatter(&|y| y_tick.map_or_else(|| y_digits(*y), |tick| tick(*y)))
        .draw()?;
    Ok(chart)
}

/// The width of the values at the left of a chart.
pub const Y_LABELS: u32 = 78;

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
