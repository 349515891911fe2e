//! Compare: two snapshots side by side, with their differences.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget, Wrap},
};

use crate::{
    analysis::units::{grouped, three_digits},
    state::Snapshot,
    tui::{
        view::View,
        widgets::{boxed, note},
    },
};

pub struct ComparePane<'a>(pub View<'a>);

/// A line of the table: what it is, its unit, and its value in a snapshot.
type Row = (&'static str, &'static str, fn(&Snapshot) -> Option<f64>);

const ROWS: [Row; 15] = [
    ("decode", "tok/s", |s| s.metrics.decode_tok_s),
    ("prefill", "tok/s", |s| s.metrics.prefill_tok_s),
    ("TTFT p50", "ms", |s| s.metrics.ttft_ms.p50),
    ("TTFT p90", "ms", |s| s.metrics.ttft_ms.p90),
    ("TPOT p50", "ms", |s| s.metrics.tpot_ms.p50),
    ("TPOT p90", "ms", |s| s.metrics.tpot_ms.p90),
    ("ITL mean", "ms", |s| s.metrics.itl_ms.mean),
    ("ITL p50", "ms", |s| s.metrics.itl_ms.p50),
    ("ITL p90", "ms", |s| s.metrics.itl_ms.p90),
    ("ITL p99", "ms", |s| s.metrics.itl_ms.p99),
    ("ITL max", "ms", |s| s.metrics.itl_ms.max),
    ("power", "W", |s| s.power_w.map(f64::from)),
    ("SM clock", "MHz", |s| s.sm_clock_mhz.map(f64::from)),
    ("temperature", "°C", |s| s.temp_c.map(f64::from)),
    ("stretch", "s", |s| Some(s.metrics.to_s - s.metrics.from_s)),
];

impl Widget for ComparePane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let block = boxed(theme, "compare", "differences only: no verdict");
        let inner = block.inner(area);
        block.render(area, buf);
        let now;
        let (a, b) = match view.snapshots {
            [] => {
                let text = "No snapshot yet. Press s to name what was measured so far, change something, press s again: \
                            both stand here side by side.";
                return Paragraph::new(note(theme, text)).wrap(Wrap { trim: true }).render(inner, buf);
            }
            [only] => {
                now = view.state.window_snapshot("since then");
                (only, &now)
            }
            [.., a, b] => (a, b),
        };
        Paragraph::new(table(view, a, b, inner)).render(inner, buf);
    }
}

fn table<'a>(view: &View<'_>, a: &Snapshot, b: &Snapshot, area: Rect) -> Vec<Line<'a>> {
    let theme = view.theme;
    let wide = usize::from(area.width.saturating_sub(16 + 7 + 2) / 3).clamp(6, 20);
    let cut = |name: &str| name.chars().take(wide - 1).collect::<String>();
    let mut lines = vec![Line::from(vec![
        Text::raw(format!(" {:<13}{:<6}", "", "")),
        Text::styled(format!("{:>wide$}", cut(&a.name)), theme.accent),
        Text::styled(format!("{:>wide$}", cut(&b.name)), theme.accent),
        Text::styled(format!("{:>wide$}", "difference"), theme.dim),
    ])];
    for (name, unit, value) in ROWS {
        let (x, y) = (value(a), value(b));
        if x.is_none() && y.is_none() {
            continue;
        }
        let cell = |v: Option<f64>| v.map_or_else(|| theme.glyphs.none.to_owned(), three_digits);
        let delta = match (x, y) {
            (Some(x), Some(y)) if x != 0.0 => format!("{:+.1} %", 100.0 * (y - x) / x),
            _ => theme.glyphs.none.to_owned(),
        };
        lines.push(Line::from(vec![
            Text::styled(format!(" {name:<13}"), theme.text),
            Text::styled(format!("{:<6}", theme.glyphs.plain(unit)), theme.dim),
            Text::styled(format!("{:>wide$}", cell(x)), theme.text),
            Text::styled(format!("{:>wide$}", cell(y)), theme.text),
            Text::styled(format!("{delta:>wide$}"), theme.number),
        ]));
    }
    lines.push(Line::from(vec![
        Text::styled(format!(" {:<19}", "tokens"), theme.dim),
        Text::styled(format!("{:>wide$}", grouped(a.metrics.output_tokens as i64)), theme.dim),
        Text::styled(format!("{:>wide$}", grouped(b.metrics.output_tokens as i64)), theme.dim),
    ]));
    lines.push(Line::default());
    for snapshot in [a, b] {
        let overrides =
            if snapshot.overrides.is_empty() { "no overrides".into() } else { snapshot.overrides.join(" ") };
        lines.push(note(theme, &format!(" {}: {}, {overrides}", snapshot.name, snapshot.model)));
    }
    lines
}
