//! The jobs of a sweep: swept values, outcomes and metrics.

use std::time::Duration;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span as Text},
    widgets::Widget,
};
use unicode_width::UnicodeWidthStr;

use crate::{
    layout::Hit,
    theme::Theme,
    view::View,
    widgets::{ListLayout, cut, draw_box, wrapped},
};
use llmprof_base::units::{clock, rough_seconds};
use llmprof_record::sweep::{Column, Job, JobState, LiveFigures, PLACEMENT_HEADINGS, Sweep};

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
        let columns = Columns::new(
            sweep,
            !view.sweep.and_then(|view| view.progress).is_none_or(|p| p.jobs.is_empty()),
            inner.width as usize,
        );
        let selected = view.selected_job();
        let mut details = self.details(selected, inner.width);
        let least = details.len() as u16 + 1;
        if columns.reason_width < REASON_WIDTH {
            details.extend(self.reasons_of_others(selected, inner.width));
        }
        // Rows for jobs come first: at least three.
        let spare = inner.height.saturating_sub(1 + sweep.jobs.len() as u16);
        let below = (details.len() as u16 + 1).min(spare.max(least)).min(inner.height.saturating_sub(4));
        let [heading, rows, below] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(below)])
                .areas(inner);
        columns.heading(theme).render(heading, buf);
        for (i, place) in ListLayout::new(rows, sweep.jobs.len(), selected).rows() {
            columns.row(theme, i, &sweep.jobs[i], self.live(i)).render(place, buf);
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
            None if self.sweep.left() == 0 => title += ", finished",
            None => {}
        }
        title
    }

    fn details<'l>(&self, selected: usize, width: u16) -> Vec<Line<'l>> {
        const MAX_ROWS: usize = 4;
        let (sweep, theme) = (self.sweep, self.view.theme);
        let Some(job) = sweep.jobs.get(selected) else { return Vec::new() };
        let [id, on] = job.placement_cells();
        let mut facts = vec![sweep.label(selected)];
        facts.extend([id, on].into_iter().filter(|fact| !fact.is_empty()));
        facts.push(status(theme, job).0);
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

/// The columns that fit.
struct Columns {
    number_width: usize,
    /// Widths of the launcher's id, and of the node or GPU; 0 if they are not shown.
    place: [usize; 2],
    /// Indices of swept overrides, with heading and width.
    swept: Vec<(usize, String, usize)>,
    /// Whether the duration of each job is shown.
    times: bool,
    measured: Vec<Column>,
    /// The width of the reason of a failure.
    reason_width: usize,
}

impl Columns {
    fn new(sweep: &Sweep, has_live: bool, width: usize) -> Columns {
        let number_width = sweep.jobs.len().to_string().len().max(3);
        let mut measured: Vec<Column> = Vec::from(Column::ALL);
        let cells = || sweep.jobs.iter().map(Job::placement_cells);
        let widest = |at: usize| cells().map(|cells| cells[at].width()).max().unwrap_or(0).clamp(2, 16) + 2;
        let mut place = if sweep.has_placements() { [widest(0), widest(1)] } else { [0, 0] };
        if width < 50 {
            // The node is more important than the id.
            place[0] = 0;
        }
        let fixed = 1 + number_width + 2 + place[0] + place[1] + OUTCOME_WIDTH;
        if fixed + measured.len() * NUMBER_WIDTH + 12 > width {
            // The decode rate is the most important.
            measured.drain(..measured.len() - 1);
        }
        let figures = fixed + measured.len() * NUMBER_WIDTH + 1;
        let is_timed = has_live || sweep.jobs.iter().any(|job| job.took.is_some());
        let times = is_timed && figures + TIME_WIDTH + 12 <= width;
        let mut room = width.saturating_sub(figures + if times { TIME_WIDTH } else { 0 });
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
        Columns { number_width, place, swept, times, measured, reason_width: room }
    }

    fn heading<'a>(&self, theme: &Theme) -> Line<'a> {
        let mut text = format!(" {:>1$}  ", "job", self.number_width);
        for (heading, width) in PLACEMENT_HEADINGS.into_iter().zip(self.place) {
            text += &padded(if width > 0 { heading } else { "" }, width);
        }
        for (_, heading, width) in &self.swept {
            text += &padded(&cut(heading, width - 2, theme.glyphs.ascii), *width);
        }
        text += &format!("{:<OUTCOME_WIDTH$}", "outcome");
        if self.times {
            text += &format!("{:>TIME_WIDTH$}", "time");
        }
        for column in &self.measured {
            text += &format!("{:>NUMBER_WIDTH$}", column.heading);
        }
        Line::styled(text, theme.dim)
    }

    /// A row, with the figures of a running job so far.
    fn row<'a>(&self, theme: &Theme, index: usize, job: &Job, running: Option<&LiveFigures>) -> Line<'a> {
        let (outcome, style) = status(theme, job);
        let text = if job.state == JobState::Waiting { theme.dim } else { theme.text };
        let pointer = if job.state == JobState::Running { theme.glyphs.pointer } else { " " };
        let mut line = vec![
            Text::styled(pointer, theme.accent),
            Text::styled(format!("{:>1$}  ", index + 1, self.number_width), text),
        ];
        for (cell, width) in job.placement_cells().into_iter().zip(self.place).filter(|(_, width)| *width > 0)
        {
            let cell = cut(&theme.glyphs.plain(&cell), width - 2, theme.glyphs.ascii);
            line.push(Text::styled(padded(&cell, width), text));
        }
        for (place, _, width) in &self.swept {
            let value = cut(job.key_and_value(*place).1, width - 2, theme.glyphs.ascii);
            line.push(Text::styled(padded(&value, *width), text));
        }
        line.push(Text::styled(format!("{outcome:<OUTCOME_WIDTH$}"), style));
        if self.times {
            let took = job.took.or(running.map(|job| job.elapsed));
            let cell = took.map_or_else(|| theme.glyphs.none.to_owned(), clock);
            line.push(Text::styled(format!("{cell:>TIME_WIDTH$}"), text));
        }
        for column in &self.measured {
            let cell = match running {
                Some(running) => column.cell_of(&running.metrics),
                None => column.cell(job),
            };
            let cell = cell.unwrap_or_else(|| theme.glyphs.none.to_owned());
            line.push(Text::styled(format!("{:>NUMBER_WIDTH$}", theme.glyphs.plain(&cell)), theme.number));
        }
        let left =
            running.and_then(|job| job.left_s).map(|left| format!("about {} left", rough_seconds(left)));
        if let Some(reason) = job.reason().or(left).filter(|_| self.reason_width >= REASON_WIDTH) {
            let reason = cut(&theme.glyphs.plain(&reason), self.reason_width - 2, theme.glyphs.ascii);
            line.push(Text::styled(format!("  {reason}"), theme.dim));
        }
        Line::from(line)
    }
}

/// The state of the job, or its result.
fn status(theme: &Theme, job: &Job) -> (String, Style) {
    match (job.state, &job.result) {
        (JobState::Running, _) => ("running".to_owned(), theme.accent),
        (_, Some(result)) => (result.outcome.to_string(), theme.outcome(result.outcome)),
        (JobState::Waiting, None) if job.placement.is_some() => ("pending".to_owned(), theme.dim),
        (JobState::Waiting, None) => ("waiting".to_owned(), theme.dim),
        (JobState::Finished, None) => ("not run".to_owned(), theme.dim),
    }
}

/// Padded to `width` cells.
fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}
