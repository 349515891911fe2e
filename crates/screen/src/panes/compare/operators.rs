//! The waterfall: the operators that make a decode step longer or shorter, as bars around zero.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    theme::Theme,
    widgets::{cut, fit, note, wrapped},
};
use llmprof_analysis::compare::{OperatorChange, OperatorClock, Waterfall, changed_families};
use llmprof_base::units::{ratio_change, three_digits};

pub struct Operators<'a> {
    pub theme: &'a Theme,
    pub waterfall: Option<&'a Waterfall>,
}

/// The widest name.
const NAME: usize = 20;
/// The width from which on both times are shown.
const WITH_TIMES: u16 = 56;
/// Cells of a time and of a change.
const TIME: usize = 8;
const CHANGE: usize = 9;
const MIN_BARS: usize = 9;
/// The longest bar to one side.
const MAX_SIDE: usize = 30;

impl Widget for Operators<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.theme;
        let Some(waterfall) = self.waterfall else {
            for (line, place) in none(theme, area.width).into_iter().zip(area.rows()) {
                line.render(place, buf);
            }
            return;
        };
        let lines = self.lines(waterfall, area);
        for (line, place) in lines.into_iter().zip(area.rows()) {
            line.render(place, buf);
        }
    }
}

/// Why there is no waterfall.
pub fn none<'l>(theme: &Theme, width: u16) -> Vec<Line<'l>> {
    let text = "No operators of both sides were recorded; on a GPU, K records kernels.";
    let lines = wrapped(text, (width as usize).saturating_sub(4));
    lines.into_iter().map(|line| note(theme, &format!("   {line}"))).collect()
}

impl Operators<'_> {
    fn lines<'l>(&self, waterfall: &Waterfall, area: Rect) -> Vec<Line<'l>> {
        let theme = self.theme;
        let mut lines = vec![self.title(waterfall, area.width)];
        if waterfall.is_empty() {
            lines.push(note(theme, " no operator changed"));
            return lines;
        }
        let room = (area.height as usize).saturating_sub(1);
        let families: Vec<String> = changed_families(waterfall)
            .into_iter()
            .map(|text| {
                cut(&theme.glyphs.plain(&text), (area.width as usize).saturating_sub(2), theme.glyphs.ascii)
            })
            .collect();
        // The largest changes come first, kernels that appeared only if there is room for them.
        let below = families.len().min(room.saturating_sub(4));
        let fitting = room - below;
        let shown = if waterfall.parts.len() > fitting { fitting.saturating_sub(1) } else { fitting };
        let (parts, rest, rest_us) = waterfall.largest(shown);
        let names = parts.iter().map(|part| part.what.width()).max().unwrap_or(0).min(NAME);
        let largest = parts.iter().map(|part| part.delta_us().abs()).fold(0.0, f64::max);
        lines.extend(parts.iter().map(|part| self.part(part, names, largest, area.width)));
        if rest > 0 {
            lines.push(note(theme, &format!(" … and {rest} more, {}", signed(rest_us))));
        }
        lines.extend(families.into_iter().take(below).map(|text| note(theme, &format!(" {text}"))));
        lines
    }

    /// The step of both sides.
    fn title<'l>(&self, waterfall: &Waterfall, width: u16) -> Line<'l> {
        let theme = self.theme;
        let step = &waterfall.step;
        let what = match waterfall.clock {
            OperatorClock::Kernels => " decode step, µs",
            OperatorClock::WallTime => " decode step, wall time in µs",
        };
        let change = if step.a_us > 0.0 { ratio_change(step.b_us / step.a_us) } else { String::new() };
        let times = format!("{} → {}  {change}", three_digits(step.a_us), three_digits(step.b_us));
        let span = |text: &str, style| vec![Text::styled(theme.glyphs.plain(text), style)];
        fit(theme, vec![span(what, theme.accent), span(&times, theme.number)], width)
    }

    /// Name, times, change, and a bar to the left for less and to the right for more.
    fn part<'l>(&self, part: &OperatorChange, names: usize, largest: f64, width: u16) -> Line<'l> {
        let theme = self.theme;
        let plain = |text: &str| theme.glyphs.plain(text);
        let name = cut(&plain(&part.what), names, theme.glyphs.ascii);
        let pad = " ".repeat(names.saturating_sub(name.width()));
        let mut spans = vec![Text::styled(format!(" {name}{pad}"), theme.text)];
        if width >= WITH_TIMES {
            let (a, b) = (three_digits(part.a_us), three_digits(part.b_us));
            spans.push(Text::styled(plain(&format!("{a:>TIME$} → {b:>TIME$}")), theme.dim));
        }
        let style = if part.delta_us() > 0.0 { theme.bad } else { theme.good };
        spans.push(Text::styled(format!("{:>CHANGE$} ", signed(part.delta_us())), style));
        let used: usize = spans.iter().map(Text::width).sum();
        let left = (width as usize).saturating_sub(used + 1);
        if left < MIN_BARS {
            return Line::from(spans);
        }
        let side = ((left - 1) / 2).min(MAX_SIDE);
        let long = ((part.delta_us().abs() / largest.max(f64::MIN_POSITIVE)) * side as f64).round().max(1.0)
            as usize;
        let [bar, axis] = if theme.glyphs.ascii { ["#", "|"] } else { ["█", "│"] };
        let (before, after) = if part.delta_us() < 0.0 { (long, 0) } else { (0, long) };
        spans.push(Text::styled(format!("{}{}", " ".repeat(side - before), bar.repeat(before)), style));
        spans.push(Text::styled(axis, theme.dim));
        spans.push(Text::styled(bar.repeat(after), style));
        Line::from(spans)
    }
}

fn signed(us: f64) -> String {
    let sign = if us > 0.0 { "+" } else { "" };
    format!("{sign}{}", three_digits(us))
}
