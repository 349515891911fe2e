//! Runs: what was recorded, to open again.

use jiff::{Timestamp, tz::TimeZone};
use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};

use crate::{
    base::units::three_digits,
    event::Outcome,
    rundir::RunEntry,
    tui::{
        ui::SortRuns,
        view::View,
        widgets::{boxed, note},
    },
};

pub struct RunsPane<'a>(pub View<'a>);

/// The index of the first run shown when `selected` has to be seen in `rows` rows.
pub fn first_row(selected: usize, rows: usize) -> usize {
    (selected + 1).saturating_sub(rows.max(1))
}

impl Widget for RunsPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = &self.0;
        let theme = view.theme;
        let sort = match view.ui.sort {
            SortRuns::Newest => "newest first",
            SortRuns::Fastest => "fastest first",
            SortRuns::Model => "by model",
        };
        let aside = match view.ui.runs_filter.as_str() {
            "" => sort.to_owned(),
            filter => format!("{sort}, containing \"{filter}\""),
        };
        let block = boxed(theme, "runs", &aside);
        let inner = block.inner(area);
        block.render(area, buf);
        if view.runs.is_empty() {
            let text = if view.ui.runs_filter.is_empty() {
                " no run is recorded here yet"
            } else {
                " no run contains that; / changes it"
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
        let mut lines = vec![Line::styled(heading, theme.dim)];
        let rows = inner.height.saturating_sub(1) as usize;
        let selected = view.ui.run_selected.min(view.runs.len() - 1);
        let first = first_row(selected, rows);
        for (i, run) in view.runs.iter().enumerate().skip(first).take(rows) {
            let mut line = row(view, run, wide);
            if view.ui.run_marked.as_deref() == Some(run.dir.path())
                && let Some(first) = line.spans.first_mut()
            {
                // In the margin, so that nothing moves.
                *first = Text::styled(format!("A{}", &first.content[1..]), theme.accent);
            }
            if i == selected {
                line = Line::styled(line.to_string() + &" ".repeat(inner.width as usize), theme.selected);
            }
            lines.push(line);
        }
        Paragraph::new(lines).render(inner, buf);
    }
}

fn row<'a>(view: &View<'_>, run: &RunEntry, wide: bool) -> Line<'a> {
    let theme = view.theme;
    let when = Timestamp::try_from(run.modified)
        .map(|t| {
            t.to_zoned(TimeZone::system())
                .strftime(if wide { "%Y-%m-%d %H:%M:%S" } else { "%m-%d %H:%M" })
                .to_string()
        })
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
            Text::styled(format!(" {when:<16}"), theme.text),
            Text::styled(format!("{:<20}", cut(&model, 20)), theme.accent),
            Text::styled(format!("{outcome:<13}"), style),
            Text::styled(format!("{tok_s:>8}"), theme.number),
        ]);
    }
    let ttft = metrics.and_then(|m| m.ttft_ms.p50);
    let ttft = number(ttft) + if ttft.is_some() { " ms" } else { "" };
    let n = metrics.map_or_else(|| none.to_owned(), |m| m.requests.to_string());
    Line::from(vec![
        Text::styled(format!(" {when:<22}"), theme.text),
        Text::styled(format!("{:<18}", cut(&run.experiment, 18)), theme.dim),
        Text::styled(format!("{:<20}", cut(&model, 20)), theme.accent),
        Text::styled(format!("{outcome:<13}"), style),
        Text::styled(format!("{tok_s:>10}"), theme.number),
        Text::styled(format!("{ttft:>12}"), theme.text),
        Text::styled(format!("{n:>7}"), theme.dim),
    ])
}
