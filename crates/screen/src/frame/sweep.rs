//! The progress of a sweep on one line.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
    widgets::{Clear, Widget},
};
use unicode_width::UnicodeWidthStr;

use crate::{
    view::{Elsewhere, SweepView, View},
    widgets::cut,
};
use llmprof_event::Outcome;
use llmprof_record::sweep::Sweep;

/// The current job and its swept values; at the right the results of the others, or the cool-down.
pub fn draw(view: &View<'_>, shown: SweepView<'_>, area: Rect, buf: &mut Buffer) {
    let SweepView { sweep, cooling, elsewhere, .. } = shown;
    let theme = view.theme;
    if let Some(elsewhere) = elsewhere {
        return draw_elsewhere(view, sweep, elsewhere, area, buf);
    }
    let job = sweep.current();
    let over = sweep.running().is_none() && sweep.next().is_none();
    let mut right = Line::default();
    match cooling {
        Some(cooling) => right.push_span(Span::styled(theme.glyphs.plain(&cooling.to_string()), theme.warn)),
        None => {
            for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Interrupted] {
                let n = sweep.count(outcome);
                if n > 0 || (outcome == Outcome::Completed && area.width >= 60) {
                    let gap = if right.spans.is_empty() { "" } else { "  " };
                    right.push_span(Span::styled(format!("{gap}{n} "), theme.number));
                    right.push_span(Span::styled(outcome.to_string(), theme.outcome(outcome)));
                }
            }
        }
    }
    right.push_span(" ");
    let place = match (over, cooling) {
        (true, _) => format!(" sweep of {} finished", sweep.jobs.len()),
        (false, Some(_)) => format!(" next {}", sweep.label(job)),
        (false, None) => format!(" {}", sweep.label(job)),
    };
    let used = place.width() + 2;
    let room = (area.width as usize).saturating_sub(used + right.width() + 2);
    let full = sweep.swept_text(job);
    let swept = match over {
        true => String::new(),
        false if full.width() <= room => full,
        false => cut(&sweep.swept_short(job), room, theme.glyphs.ascii),
    };
    let left = vec![Span::styled(place, theme.accent), Span::styled(format!("  {swept}"), theme.text)];
    Line::from(left).render(area, buf);
    if (right.width() + used) <= area.width as usize {
        right.right_aligned().render(area, buf);
    } else if let Some(cooling) = cooling {
        // The cool-down is more important than the next job.
        let text = theme.glyphs.plain(&format!(" {cooling}"));
        Clear.render(area, buf);
        Line::styled(cut(&text, area.width as usize, theme.glyphs.ascii), theme.warn).render(area, buf);
    }
}

/// The number of jobs that wait, run and have ended; the error that prevents following them, or why the first of them
/// waits.
fn draw_elsewhere(view: &View<'_>, sweep: &Sweep, elsewhere: Elsewhere<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let waiting = sweep.waiting();
    let mut right = Line::default();
    let mut count = |n: usize, name: String, style| {
        if n > 0 {
            let gap = if right.spans.is_empty() { "" } else { "  " };
            right.push_span(Span::styled(format!("{gap}{n} "), theme.number));
            right.push_span(Span::styled(name, style));
        }
    };
    count(waiting.len(), "pending".into(), theme.dim);
    count(sweep.count_running(), "running".into(), theme.accent);
    for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Interrupted] {
        count(sweep.count(outcome), outcome.to_string(), theme.outcome(outcome));
    }
    right.push_span(" ");
    let why = waiting.first().and_then(|job| sweep.jobs[*job].reason());
    let (text, style) = match (elsewhere.trouble, why) {
        (Some(trouble), _) => (trouble.to_owned(), theme.warn),
        (None, _) if sweep.unfinished() == 0 => ("all jobs have ended".to_owned(), theme.text),
        (None, _) if elsewhere.cancelled => ("cancelling the jobs".to_owned(), theme.warn),
        (None, Some(why)) => (format!("pending: {why}"), theme.text),
        (None, None) => (String::new(), theme.text),
    };
    let room = (area.width as usize).saturating_sub(right.width() + 3);
    let text = cut(&theme.glyphs.plain(&text), room, theme.glyphs.ascii);
    Line::styled(format!(" {text}"), style).render(area, buf);
    right.right_aligned().render(area, buf);
}
