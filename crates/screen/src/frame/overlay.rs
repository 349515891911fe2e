//! The overlays of the pane: help, evidence, a question, a prompt.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Margin, Rect},
    text::{Line, Span},
    widgets::{Paragraph, Widget, Wrap},
};

use crate::{
    keys::{BINDINGS, Scope},
    panes::evidence::evidence,
    ui::{Action, Deletion, Overlay, Palette, Prompt},
    view::{SweepView, View},
    widgets::{ListLayout, cut, input_line, popup, wrapped},
};
use llmprof_base::units::bytes;
use llmprof_record::rundir::RecordedKind;

pub fn draw(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    match &view.ui.overlay {
        Overlay::None => {}
        Overlay::Help { scroll } => help(view, *scroll, area, buf),
        Overlay::Evidence { scroll } => evidence_box(view, *scroll, area, buf),
        Overlay::ConfirmRerun => confirm_rerun(view, area, buf),
        Overlay::ConfirmDelete(deletion) => confirm_delete(view, deletion, area, buf),
        Overlay::ConfirmCancel => confirm_cancel(view, area, buf),
        Overlay::ConfirmLeave => confirm_leave(view, area, buf),
        Overlay::ConfirmQuit => confirm_quit(view, area, buf),
        Overlay::Prompt(asked) => prompt(view, asked, area, buf),
        Overlay::Palette(open) => palette(view, open, area, buf),
    }
}

/// The keys that scroll and close a box.
fn scroll_hint(view: &View<'_>) -> &'static str {
    if view.theme.glyphs.ascii { "up, down scroll - Esc closes" } else { "↑ ↓ scroll · Esc closes" }
}

/// The largest scroll of the open overlay.
pub fn scroll_end(view: &View<'_>, area: Rect) -> usize {
    let lines = match &view.ui.overlay {
        Overlay::Help { .. } => help_lines(view).len(),
        Overlay::Evidence { .. } => evidence_lines(view, area).1 as usize,
        _ => 0,
    };
    (lines + 2).saturating_sub(area.height as usize)
}

fn help(view: &View<'_>, scroll: usize, area: Rect, buf: &mut Buffer) {
    let lines = help_lines(view);
    let inner = popup(view.theme, ("help", scroll_hint(view)), (78, lines.len() as u16 + 2), area, buf);
    let scroll = scroll.min(scroll_end(view, area));
    Paragraph::new(lines).scroll((scroll as u16, 0)).render(inner, buf);
}

/// Panes and global keys first, then by scope.
fn help_lines<'a>(view: &View<'_>) -> Vec<Line<'a>> {
    let theme = view.theme;
    let panes = view.panes();
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut scope: Option<Scope> = None;
    for b in BINDINGS.iter() {
        if scope.replace(b.scope) != Some(b.scope) {
            lines.extend((!lines.is_empty()).then(Line::default));
            lines.push(Line::styled(format!(" {}", b.scope.title()), theme.accent));
        }
        let is_empty = matches!(b.action, Action::Show(pane) if !panes.has(pane));
        lines.push(Line::from(vec![
            Span::styled(format!("  {:<10} ", b.label(theme.glyphs.ascii)), theme.number),
            Span::styled(b.help, if is_empty { theme.dim } else { theme.text }),
            Span::styled(if is_empty { " (empty)" } else { "" }, theme.dim),
        ]));
    }
    lines.push(Line::default());
    for text in [
        " Ctrl-C quits without a question, Ctrl-Z suspends the program.",
        " Click tabs, rows, titles of columns (they sort; again, in reverse) and the",
        " replay bar; the mouse wheel scrolls. With Shift, the terminal selects text.",
    ] {
        lines.push(Line::styled(text, theme.dim));
    }
    lines
}

fn evidence_box(view: &View<'_>, scroll: usize, area: Rect, buf: &mut Buffer) {
    let (lines, rows) = evidence_lines(view, area);
    let inner =
        popup(view.theme, ("evidence", scroll_hint(view)), (evidence_width(area), rows + 2), area, buf);
    let inner = inner.inner(Margin::new(1, 0));
    let scroll = scroll.min(scroll_end(view, area));
    Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scroll as u16, 0)).render(inner, buf);
}

fn evidence_width(area: Rect) -> u16 {
    area.width.saturating_sub(4).min(130)
}

/// The evidence, and the number of its rows with an empty one at the end.
fn evidence_lines<'a>(view: &View<'a>, area: Rect) -> (Vec<Line<'a>>, u16) {
    let room = evidence_width(area).saturating_sub(4).max(2);
    let lines = evidence(view, room);
    let rows = |line: &Line<'_>| line.width().max(1).div_ceil(room as usize) as u16;
    let rows = lines.iter().map(rows).sum::<u16>() + 1;
    (lines, rows)
}

fn confirm_rerun(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let inner = popup(view.theme, ("re-run", "y starts it, Esc closes"), (64, 3), area, buf);
    let text = " End this run and start it again? Its recording is kept.";
    Line::styled(text, view.theme.text).render(inner, buf);
}

/// Shows the number of jobs that end.
fn confirm_cancel(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let (running, left) =
        view.sweep.map_or((0, 0), |view| (view.sweep.count_running(), view.sweep.unfinished()));
    let text = format!(
        "Cancel the {left} jobs that have not ended ({running} running)? Their recordings are kept; --resume runs \
         them again."
    );
    let width = area.width.saturating_sub(4).min(72);
    let lines = wrapped(&text, width.saturating_sub(4) as usize);
    let height = lines.len() as u16 + 2;
    let inner = popup(view.theme, ("cancel jobs", "y cancels, Esc closes"), (width, height), area, buf);
    let lines: Vec<Line<'_>> = lines.into_iter().map(|line| Line::styled(line, theme.text)).collect();
    Paragraph::new(lines).render(inner.inner(Margin::new(1, 0)), buf);
}

/// Shows what continues.
fn confirm_leave(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let Some(remote) = view.remote else { return };
    let theme = view.theme;
    let inner = popup(view.theme, ("leave", "Esc closes"), (66, 5), area, buf);
    let key = |key: &'static str, text: String| {
        Line::from(vec![Span::styled(format!(" {key:<6} "), theme.accent), Span::styled(text, theme.text)])
    };
    let host = cut(&remote.host, 30, theme.glyphs.ascii);
    let lines = vec![
        Line::styled(format!(" The run is in progress on {host}."), theme.text),
        key("Enter", format!("leave it running; --reconnect {} shows it again", remote.id)),
        key("c", "end it, and copy its recording".to_owned()),
    ];
    Paragraph::new(lines).render(inner, buf);
}

/// Shows what would end.
fn confirm_quit(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let width = area.width.saturating_sub(4).min(72);
    let lines = wrapped(&quit_question(view), width.saturating_sub(4) as usize);
    let height = lines.len() as u16 + 2;
    let inner = popup(theme, ("quit", "q again quits, Esc closes"), (width, height), area, buf);
    let lines: Vec<Line<'_>> = lines.into_iter().map(|line| Line::styled(line, theme.text)).collect();
    Paragraph::new(lines).render(inner.inner(Margin::new(1, 0)), buf);
}

fn quit_question(view: &View<'_>) -> String {
    match view.sweep {
        Some(SweepView { sweep, .. }) => {
            let (left, of) = (sweep.unfinished(), sweep.jobs.len());
            format!(
                "Jobs of the sweep that have not ended: {left} of {of}. Quit? The recordings are kept; --resume \
                 continues the sweep."
            )
        }
        None if view.state.kernels.working().is_some() => {
            "A tool is recording this run again. Quit and stop it? The first recording is kept.".to_owned()
        }
        None => "The run is in progress. Quit and end it? Its recording is kept.".to_owned(),
    }
}

/// Shows what is deleted.
fn confirm_delete(view: &View<'_>, deletion: &Deletion, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let Deletion { path, kind, bytes: size } = deletion;
    let (path, size) = (path.display(), bytes(*size));
    let question = match kind {
        RecordedKind::Run => format!("Delete the run {path} ({size})?"),
        RecordedKind::Job => {
            format!("Delete the run {path} ({size})? It is a job of a sweep: --resume would run it again.")
        }
        RecordedKind::Sweep => format!("Delete the sweep {path} with all its runs ({size})?"),
    };
    let text = format!("{question} This cannot be undone.");
    let width = area.width.saturating_sub(4).min(100);
    let lines = wrapped(&theme.glyphs.plain(&text), width.saturating_sub(4) as usize);
    let height = lines.len() as u16 + 2;
    let inner = popup(view.theme, ("delete", "y deletes, Esc closes"), (width, height), area, buf);
    let lines: Vec<Line<'_>> = lines.into_iter().map(|line| Line::styled(line, theme.text)).collect();
    Paragraph::new(lines).render(inner.inner(Margin::new(1, 0)), buf);
}

/// The typed text, and below it the matching actions with their keys.
fn palette(view: &View<'_>, open: &Palette, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let found = open.matches();
    let height = (found.len() as u16 + 4).clamp(5, 20);
    let inner = popup(view.theme, ("find an action", "Enter runs it, Esc closes"), (78, height), area, buf);
    let [typed, rest] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(inner);
    buf.set_string(typed.x + 1, typed.y, theme.glyphs.pointer, theme.accent);
    let line =
        Rect { x: typed.x + 3, width: typed.width.saturating_sub(3), height: 1.min(typed.height), ..typed };
    input_line(theme.text, &open.input, line).render(line, buf);
    if found.is_empty() {
        return Line::styled("  no action has this name", theme.dim).render(rest, buf);
    }
    for (i, place) in ListLayout::new(rest, found.len(), open.selected).rows() {
        let b = found[i];
        let line = Line::from(vec![
            Span::styled(format!(" {:<11}", b.label(theme.glyphs.ascii)), theme.accent),
            Span::styled(b.help, theme.text),
        ]);
        line.render(place, buf);
        if i == open.selected {
            buf.set_style(place, theme.selected);
        }
    }
}

fn prompt(view: &View<'_>, asked: &Prompt, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let width = area.width.saturating_sub(4).clamp(20, 100);
    let error_rows =
        asked.error.as_ref().map_or(0, |e| (e.chars().count() as u16).div_ceil(width.max(3) - 2).clamp(1, 6));
    let inner = popup(view.theme, (asked.kind.title(), "Esc closes"), (width, 3 + error_rows), area, buf);
    let text = if asked.proposed { theme.badge } else { theme.text };
    input_line(text, &asked.input, inner).render(Rect { height: 1.min(inner.height), ..inner }, buf);
    if let Some(error) = &asked.error {
        let below = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
        Paragraph::new(Line::styled(theme.glyphs.plain(error), theme.bad))
            .wrap(Wrap { trim: true })
            .render(below, buf);
    }
}
