//! The jobs of a sweep: swept values, outcomes and metrics.

use std::time::Duration;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    layout::Hit,
    view::View,
    widgets::{ListLayout, TableLines, cut, draw_box, wrapped},
};
use llmprof_base::{
    table::{Cell, Column, Table, Tone},
    units::{clock, rough_seconds},
};
use llmprof_record::sweep::{Job, JobState, LiveFigures, Measured, PLACEMENT, Sweep, sweep_table};

pub(super) struct Jobs<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) sweep: &'a Sweep,
}

const OUTCOME_WIDTH: usize = 11;
const NUMBER_WIDTH: usize = 10;
const TIME_WIDTH: usize = 8;
/// The minimum width of a reason.
const REASON_WIDTH: usize = 30;

impl Widget for Jobs<'_> {
    /// All jobs with a selected one, and its details below.
    fn render(self, area: Rect, buf: &mut Buffer) {
        let (view, sweep, theme) = (self.view, self.sweep, self.view.theme);
        let title = self.title();
        let room = (area.width as usize).saturating_sub(title.width() + 8);
        let dir = sweep.dir.display().to_string();
        let inner = draw_box(theme, (&title, if dir.width() <= room { &dir } else { "" }), area, buf);
        let (table, reason_width) = self.table(inner.width as usize);
        let selected = view.selected_job();
        let mut details = self.details(selected, inner.width);
        let least = details.len() as u16 + 1;
        if reason_width < REASON_WIDTH {
            details.extend(self.reasons_of_others(selected, inner.width));
        }
        // Rows for jobs come first: at least three.
        let spare = inner.height.saturating_sub(1 + sweep.jobs.len() as u16);
        let below = (details.len() as u16 + 1).min(spare.max(least)).min(inner.height.saturating_sub(4));
        let [heading, rows, below] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(below)])
                .areas(inner);
        let line = |pointer, cells| [vec![Text::styled(pointer, theme.accent)], cells].concat();
        Line::from(line(" ", table.heading())).render(heading, buf);
        for (i, place) in ListLayout::new(rows, sweep.jobs.len(), selected).rows() {
            let is_running = sweep.jobs[i].state == JobState::Running;
            let pointer = if is_running { theme.glyphs.pointer } else { " " };
            Line::from(line(pointer, table.row(i))).render(place, buf);
            if i == selected {
                buf.set_style(place, theme.selected);
            }
            view.on_click(place, Hit::Row(i));
        }
        for (line, place) in details.into_iter().zip(below.rows().skip(1)) {
            line.render(place, buf);
        }
    }
}

impl Jobs<'_> {
    /// Figures of a running job.
    fn live(&self, job: usize) -> Option<&LiveFigures> {
        let is_running = self.sweep.jobs.get(job).is_some_and(|job| job.state == JobState::Running);
        self.view.sweep?.progress?.jobs.get(&job).filter(|_| is_running)
    }

    /// `sweep · 03:41, about 12 min left`.
    fn title(&self) -> String {
        let Some(progress) = self.view.sweep.and_then(|view| view.progress) else {
            return "sweep".to_owned();
        };
        let mut title = format!("sweep · {}", clock(progress.elapsed));
        let unknown = (Duration::ZERO, None);
        let of = |job: usize| self.live(job).map_or(unknown, |figures| (figures.elapsed, figures.left_s));
        let is_running = |job: &usize| self.sweep.jobs[*job].state == JobState::Running;
        let running: Vec<_> = (0..self.sweep.jobs.len()).filter(is_running).map(of).collect();
        match self.sweep.left_s(&running).filter(|left| *left > 0.0) {
            Some(left) => title += &format!(", about {} left", rough_seconds(left)),
            None if self.sweep.unfinished() == 0 => title += ", finished",
            None => {}
        }
        title
    }

    fn details<'l>(&self, selected: usize, width: u16) -> Vec<Line<'l>> {
        const MAX_ROWS: usize = 4;
        let (sweep, theme) = (self.sweep, self.view.theme);
        let Some(job) = sweep.jobs.get(selected) else { return Vec::new() };
        let mut facts = vec![sweep.label(selected)];
        facts.extend(job.placement_parts().into_iter().flatten().map(str::to_owned));
        facts.push(status(job).0);
        if let Some(running) = self.live(selected) {
            facts.push(clock(running.elapsed));
            facts.extend(running.left_s.map(|left| format!("about {} left", rough_seconds(left))));
        }
        let mut text = facts.join(&format!(" {} ", theme.glyphs.separator));
        if let Some(reason) = job.reason() {
            text += &format!(": {reason}");
        }
        let room = usize::from(width.saturating_sub(2));
        let lines = wrapped(&theme.glyphs.plain(&text), room).into_iter().take(MAX_ROWS);
        lines.map(|line| Line::styled(format!(" {line}"), theme.dim)).collect()
    }

    /// The jobs with their durations, and the figures of running ones so far.
    fn cells(&self) -> Table {
        let mut table = sweep_table(self.sweep, |job| Some(&self.live(job)?.metrics));
        table.columns.push(Column::number("time").key("time"));
        let [outcome, reason] = ["outcome", "reason"].map(|key| table.index(key).unwrap_or_default());
        for (i, job) in self.sweep.jobs.iter().enumerate() {
            let row = &mut table.rows[i];
            if job.state == JobState::Waiting {
                row.iter_mut().for_each(|cell| cell.tone = Tone::Dim);
            }
            let (text, tone) = status(job);
            row[outcome] = Cell::from(text).tone(tone);
            let running = self.live(i);
            let left = running.and_then(|job| job.left_s);
            let left = left.map(|left| format!("about {} left", rough_seconds(left)));
            row[reason] = Cell::from(job.reason().or(left).unwrap_or_default()).tone(Tone::Dim);
            row.push(job.took.or(running.map(|job| job.elapsed)).map(clock).into());
        }
        table
    }

    /// The columns that fit, and the width of the reasons of failures.
    fn table(&self, width: usize) -> (TableLines<'_>, usize) {
        let sweep = self.sweep;
        let mut table = self.cells();
        let widest = |key: &str| table.index(key).map(|column| table.width(column));
        let mut shown = vec![("job", sweep.jobs.len().to_string().len().max(3))];
        // The node is more important than the id.
        let placement = PLACEMENT.into_iter().skip(usize::from(width < 50));
        shown.extend(placement.filter_map(|key| Some((key, widest(key)?.clamp(2, 16) + 2))));
        let mut after = vec![("outcome", OUTCOME_WIDTH)];
        let mut measured = Measured::ALL.map(|measured| (measured.key, NUMBER_WIDTH)).to_vec();
        let taken = |columns: &[(&str, usize)]| columns.iter().map(|(_, width)| width).sum::<usize>();
        let fixed = 3 + taken(&shown) + OUTCOME_WIDTH;
        if fixed + taken(&measured) + 12 > width {
            // The decode rate is the most important.
            measured.drain(..measured.len() - 1);
        }
        let has_live = self.view.sweep.and_then(|view| view.progress).is_some_and(|p| !p.jobs.is_empty());
        let is_timed = has_live || sweep.jobs.iter().any(|job| job.took.is_some());
        let figures = fixed + taken(&measured) + 1;
        after.extend((is_timed && figures + TIME_WIDTH + 12 <= width).then_some(("time", TIME_WIDTH)));
        after.extend(measured);
        let mut room = width.saturating_sub(3 + taken(&shown) + taken(&after) + 1);
        let mut titles = Vec::new();
        for place in sweep.swept() {
            let key = sweep.jobs[0].key_and_value(place).0;
            let widest = widest(key).unwrap_or(0);
            // The last part of a key, if the whole key does not fit.
            let is_short = key.width().max(widest) + 2 > room / 2;
            let title = if is_short { key.rsplit('.').next().unwrap_or(key) } else { key };
            let wanted = (title.width().max(widest).min(24) + 2).min(room);
            if wanted >= 5 {
                shown.push((key, wanted));
                room -= wanted;
            }
            titles.push((key, title));
        }
        after.extend((room >= REASON_WIDTH).then(|| ("reason", room - 2)));
        for (key, title) in titles {
            table.rename(key, title.to_owned());
        }
        (TableLines::new(self.view.theme, table, shown.into_iter().chain(after)), room)
    }

    /// One line each, if the table has no column for them.
    fn reasons_of_others<'l>(&self, selected: usize, width: u16) -> impl Iterator<Item = Line<'l>> {
        let theme = self.view.theme;
        let others = self.sweep.jobs.iter().enumerate().filter(move |(i, _)| *i != selected);
        others.filter_map(move |(i, job)| {
            let reason = theme.glyphs.plain(&format!(" job {}: {}", i + 1, job.reason()?));
            Some(Line::styled(cut(&reason, usize::from(width), theme.glyphs.ascii), theme.dim))
        })
    }
}

/// The state of the job, or its result.
fn status(job: &Job) -> (String, Tone) {
    match (job.state, &job.result) {
        (JobState::Running, _) => ("running".to_owned(), Tone::Accent),
        (_, Some(result)) => (result.outcome.to_string(), result.outcome.tone()),
        (JobState::Waiting, None) if job.placement.is_some() => ("pending".to_owned(), Tone::Dim),
        (JobState::Waiting, None) => ("waiting".to_owned(), Tone::Dim),
        (JobState::Finished, None) => ("not run".to_owned(), Tone::Dim),
    }
}
