//! The jobs of a sweep: swept values, outcomes and metrics.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span as Text},
    widgets::{Paragraph, Widget},
};
use unicode_width::UnicodeWidthStr;

use crate::{
    run::sweep::{Column, Job, JobState, Sweep},
    tui::{
        theme::Theme,
        view::View,
        widgets::{cut, draw_box},
    },
};

pub(super) struct Jobs<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) sweep: &'a Sweep,
}

const OUTCOME_WIDTH: usize = 11;
const NUMBER_WIDTH: usize = 10;
/// The minimum for a reason.
const REASON_WIDTH: usize = 30;

impl Widget for Jobs<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let (view, sweep, theme) = (self.view, self.sweep, self.view.theme);
        let room = (area.width as usize).saturating_sub(12);
        let dir = sweep.dir.display().to_string();
        let inner = draw_box(theme, ("sweep", if dir.width() <= room { &dir } else { "" }), area, buf);
        let layout = Columns::of(sweep, inner.width as usize);
        let mut lines = vec![layout.heading(theme)];
        let rows = inner.height.saturating_sub(1) as usize;
        let current = sweep.current();
        // The current job is shown, and some of the next ones.
        let ahead = (rows / 3).min(sweep.jobs.len() - 1 - current);
        let last = (current + ahead).saturating_sub(view.ui.jobs_back);
        let last = last.max(rows.min(sweep.jobs.len()).saturating_sub(1));
        let first = (last + 1).saturating_sub(rows.max(1));
        let shown = || sweep.jobs.iter().enumerate().skip(first).take(rows);
        lines.extend(shown().map(|(i, job)| layout.row(theme, i, job)));
        if layout.reason_width < REASON_WIDTH {
            // Without a column of their own, reasons are below the table.
            let reasons = shown().filter_map(|(i, job)| {
                let reason = theme.glyphs.plain(&format!(" job {}: {}", i + 1, job.reason()?));
                Some(Line::styled(cut(&reason, inner.width as usize, theme.glyphs.ascii), theme.dim))
            });
            lines.extend(std::iter::once(Line::default()).chain(reasons));
        }
        Paragraph::new(lines).render(inner, buf);
    }
}

/// The columns that fit.
struct Columns {
    number_width: usize,
    /// Indices of swept overrides, with heading and width.
    swept: Vec<(usize, String, usize)>,
    measured: Vec<Column>,
    /// For the reason of a failure.
    reason_width: usize,
}

impl Columns {
    fn of(sweep: &Sweep, width: usize) -> Columns {
        let number_width = sweep.jobs.len().to_string().len().max(3);
        let mut measured: Vec<Column> = Vec::from(Column::ALL);
        let fixed = 1 + number_width + 2 + OUTCOME_WIDTH;
        if fixed + measured.len() * NUMBER_WIDTH + 12 > width {
            // The decode rate is the most important.
            measured.drain(..measured.len() - 1);
        }
        let mut room = width.saturating_sub(fixed + measured.len() * NUMBER_WIDTH + 1);
        let mut swept = Vec::new();
        for place in sweep.swept() {
            let key = sweep.jobs[0].key_and_value(place).0.to_owned();
            let values = sweep.jobs.iter().map(|job| job.key_and_value(place).1.width());
            let widest = values.max().unwrap_or(0);
            // The last part of a key, if the whole key does not fit.
            let short = key.rsplit('.').next().unwrap_or(&key).to_owned();
            let heading = if key.width().max(widest) + 2 <= room / 2 { key } else { short };
            let wanted = (heading.width().max(widest).min(24) + 2).min(room);
            if wanted >= 5 {
                swept.push((place, heading, wanted));
                room -= wanted;
            }
        }
        Columns { number_width, swept, measured, reason_width: room }
    }

    fn heading<'a>(&self, theme: &Theme) -> Line<'a> {
        let mut text = format!(" {:>1$}  ", "job", self.number_width);
        for (_, heading, width) in &self.swept {
            text += &padded(&cut(heading, width - 2, theme.glyphs.ascii), *width);
        }
        text += &format!("{:<OUTCOME_WIDTH$}", "outcome");
        for column in &self.measured {
            text += &format!("{:>NUMBER_WIDTH$}", column.heading);
        }
        Line::styled(text, theme.dim)
    }

    fn row<'a>(&self, theme: &Theme, index: usize, job: &Job) -> Line<'a> {
        let (outcome, style) = match (job.state, &job.result) {
            (JobState::Running, _) => ("running".to_owned(), theme.accent),
            (_, Some(result)) => (result.outcome.to_string(), theme.outcome(result.outcome)),
            (JobState::Waiting, None) => ("waiting".to_owned(), theme.dim),
            (JobState::Finished, None) => ("not run".to_owned(), theme.dim),
        };
        let text = if job.state == JobState::Waiting { theme.dim } else { theme.text };
        let pointer = if job.state == JobState::Running { theme.glyphs.pointer } else { " " };
        let mut line = vec![
            Text::styled(pointer, theme.accent),
            Text::styled(format!("{:>1$}  ", index + 1, self.number_width), text),
        ];
        for (place, _, width) in &self.swept {
            let value = cut(job.key_and_value(*place).1, width - 2, theme.glyphs.ascii);
            line.push(Text::styled(padded(&value, *width), text));
        }
        line.push(Text::styled(format!("{outcome:<OUTCOME_WIDTH$}"), style));
        for column in &self.measured {
            let cell = column.cell(job).unwrap_or_else(|| theme.glyphs.none.to_owned());
            line.push(Text::styled(format!("{:>NUMBER_WIDTH$}", theme.glyphs.plain(&cell)), theme.number));
        }
        if let Some(reason) = job.reason().filter(|_| self.reason_width >= REASON_WIDTH) {
            let reason = cut(&theme.glyphs.plain(&reason), self.reason_width - 2, theme.glyphs.ascii);
            line.push(Text::styled(format!("  {reason}"), theme.dim));
        }
        Line::from(line)
    }
}

/// Padded to `width` cells.
fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}
