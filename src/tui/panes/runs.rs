//! Runs: the recorded runs, to open and to compare.

use jiff::{Timestamp, tz::TimeZone};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::Widget,
};

use crate::{
    base::units::three_digits,
    event::Outcome,
    rundir::RunEntry,
    tui::{
        ui::RunOrder,
        view::View,
        widgets::{ListLayout, draw_box, inside_box, note},
    },
};

pub struct RunsPane<'a>(pub View<'a>);

/// The rows of the pane: below a heading, in a box.
pub fn list(view: &View<'_>, area: Rect) -> ListLayout {
    let inner = inside_box(area);
    let below = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    ListLayout::new(below, view.runs.len(), view.ui.run_selected)
}

impl Widget for RunsPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let order = match view.ui.run_order {
            RunOrder::Newest => "newest first",
            RunOrder::Fastest => "fastest first",
            RunOrder::Model => "by model",
        };
        let aside = match view.ui.runs_filter.as_str() {
            "" => order.to_owned(),
            filter => format!("{order}, containing \"{filter}\""),
        };
        let inner = draw_box(theme, ("runs", &aside), area, buf);
        if view.runs.is_empty() {
            let text = match view.ui.runs_filter.as_str() {
                _ if view.listing => " reading the list of runs",
                "" => " no recorded runs",
                _ => " no run contains this text; press / to change it",
            };
            return note(theme, text).render(inner, buf);
        }
        let wide = inner.width >= 100;
        let heading = if wide {
            format!(
                " {:<22}{:<18}{:<20}{:<13}{:>10}{:>12}{:>7}",
                "recorded", "experiment", "model", "outcome", "tok/s", "TTFT p50", "n"
            )
        } else {
            format!(" {:<16}{:<20}{:<13}{:>8}", "recorded", "model", "outcome", "tok/s")
        };
        Line::styled(heading, theme.dim).render(inner, buf);
        let list = list(view, area);
        for (i, place) in list.rows() {
            let run = view.runs[i];
            row(view, run, wide).render(place, buf);
            if view.ui.run_marked.as_deref() == Some(run.dir.path()) {
                buf.set_string(place.x, place.y, "A", theme.accent);
            }
            if i == list.selected {
                buf.set_style(place, theme.selected);
            }
        }
    }
}

fn row<'a>(view: &View<'_>, run: &RunEntry, wide: bool) -> Line<'a> {
    let theme = view.theme;
    if !run.answers {
        let text = format!(" {} does not answer: its disk may be offline; press R to try again", run.name);
        return Line::styled(text, theme.bad);
    }
    let format = if wide { "%Y-%m-%d %H:%M:%S" } else { "%m-%d %H:%M" };
    let recorded = Timestamp::try_from(run.modified)
        .map(|t| t.to_zoned(TimeZone::system()).strftime(format).to_string())
        .unwrap_or_default();
    let none = theme.glyphs.none;
    let metrics = run.result.as_ref().map(|r| r.metrics);
    let number = |v: Option<f64>| v.map_or_else(|| none.to_owned(), three_digits);
    let tok_s = number(metrics.and_then(|m| m.decode_tok_s));
    let outcome = run.result.as_ref().map(|r| r.outcome);
    let style = match outcome {
        Some(Outcome::Completed) => theme.good,
        Some(Outcome::Failed) => theme.bad,
        Some(Outcome::Interrupted) | None => theme.warn,
    };
    let outcome = outcome.map_or_else(|| "no end".to_owned(), |outcome| outcome.to_string());
    let cut = |text: &str, n: usize| text.chars().take(n - 1).collect::<String>();
    let model = if run.simulated() { format!("sim: {}", run.model) } else { run.model.clone() };
    if !wide {
        return Line::from(vec![
            Text::styled(format!(" {recorded:<16}"), theme.text),
            Text::styled(format!("{:<20}", cut(&model, 20)), theme.accent),
            Text::styled(format!("{outcome:<13}"), style),
            Text::styled(format!("{tok_s:>8}"), theme.number),
        ]);
    }
    let ttft = metrics.and_then(|m| m.ttft_ms.p50);
    let ttft = number(ttft) + if ttft.is_some() { " ms" } else { "" };
    let n = metrics.map_or_else(|| none.to_owned(), |m| m.requests.to_string());
    Line::from(vec![
        Text::styled(format!(" {recorded:<22}"), theme.text),
        Text::styled(format!("{:<18}", cut(&run.experiment, 18)), theme.dim),
        Text::styled(format!("{:<20}", cut(&model, 20)), theme.accent),
        Text::styled(format!("{outcome:<13}"), style),
        Text::styled(format!("{tok_s:>10}"), theme.number),
        Text::styled(format!("{ttft:>12}"), theme.text),
        Text::styled(format!(" {n:>6}"), theme.dim),
    ])
}
