//! A whole frame: header, pane, transport, footer, and what lies on top.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
    widgets::{Clear, Paragraph, Widget, Wrap},
};

use unicode_width::UnicodeWidthStr;

use super::{
    keys::{self, Scope},
    panes::{
        ComparePane, GpuPane, KernelsPane, LogPane, OverviewPane, RooflinePane, RunsPane, TokensPane,
        evidence,
    },
    ui::{Overlay, Pane, Prompt},
    view::{SweepView, View},
    widgets::{boxed, cut, input_line, label_value},
};
use crate::{
    base::units::{clock, grouped, percent},
    event::{Outcome, Phase},
    rundir::{Loss, Position},
};

/// Where things are; the mouse asks the same as the pen.
pub struct Areas {
    pub header: Rect,
    /// Where a sweep stands; empty without one.
    pub sweep: Rect,
    pub body: Rect,
    pub transport: Rect,
    pub footer: Rect,
}

impl Areas {
    pub fn of(area: Rect, replaying: bool, sweeping: bool) -> Areas {
        let transport = u16::from(replaying && area.height > 5);
        let sweep = u16::from(sweeping && area.height > 6);
        let [header, sweep, body, transport, footer] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(sweep),
            Constraint::Min(0),
            Constraint::Length(transport),
            Constraint::Length(1),
        ])
        .areas(area);
        Areas { header, sweep, body, transport, footer }
    }

    /// The tabs in the footer.
    pub fn tabs(&self) -> Vec<(Pane, Rect)> {
        // Closer together where there is little room.
        let pad = if self.footer.width >= 100 { 4 } else { 3 };
        let named: u16 = Pane::ALL.iter().map(|p| p.title().len() as u16 + pad).sum();
        let mut x = self.footer.x;
        Pane::ALL
            .into_iter()
            .map(|pane| {
                let width = if named <= self.footer.width { pane.title().len() as u16 + pad } else { 3 };
                let rect = Rect { x, width, height: 1, ..self.footer }.intersection(self.footer);
                x += width;
                (pane, rect)
            })
            .collect()
    }
}

/// Draws everything the user sees.
pub struct Frame<'a>(pub View<'a>);

impl Widget for Frame<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = self.0;
        if area.width < 12 || area.height < 3 {
            return Line::raw("llmprof: too small").render(area, buf);
        }
        let areas = Areas::of(area, view.replay.is_some(), view.sweep.is_some());
        header(&view, areas.header, buf);
        if let Some(at_work) = view.sweep {
            sweep_strip(&view, at_work, areas.sweep, buf);
        }
        match view.ui.pane {
            Pane::Overview => OverviewPane(view).render(areas.body, buf),
            Pane::Gpu => GpuPane(view).render(areas.body, buf),
            Pane::Tokens => TokensPane(view).render(areas.body, buf),
            Pane::Kernels => KernelsPane(view).render(areas.body, buf),
            Pane::Roofline => RooflinePane(view).render(areas.body, buf),
            Pane::Compare => ComparePane(view).render(areas.body, buf),
            Pane::Runs => RunsPane(view).render(areas.body, buf),
            Pane::Log => LogPane(view).render(areas.body, buf),
        }
        if let Some(position) = view.replay {
            transport(&view, position, areas.transport, buf);
        }
        footer(&view, &areas, buf);
        match &view.ui.overlay {
            Overlay::None => {}
            Overlay::Help { scroll } => help(&view, *scroll, area, buf),
            Overlay::Evidence { scroll } => evidence_box(&view, *scroll, area, buf),
            Overlay::Prompt(asked) => prompt(&view, asked, area, buf),
        }
    }
}

fn header(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let dot = format!(" {} ", theme.glyphs.separator);
    // Whatever else there is no room for, nobody may take a simulation for a measurement.
    let simulated = view.state.run.as_ref().is_some_and(|run| run.simulated);
    let brand = match (simulated, area.width >= 50) {
        (true, true) => " llmprof simulated ",
        (true, false) => " sim ",
        (false, true) => " llmprof ",
        (false, false) => "",
    };
    let mut left = vec![Span::styled(brand, theme.selected), Span::raw(" ")];
    let state_watches = view.state.watches();
    if let Some(run) = &view.state.run {
        left.push(Span::styled(run.model.clone(), theme.number));
        let gpu = view.state.profiled_gpu().map(|g| g.info.name.trim_start_matches("NVIDIA ").to_owned());
        let device = gpu.unwrap_or_else(|| run.device.to_string());
        let mut facts = vec![run.dtype.clone(), device, run.engine.to_string()];
        if run.batch > 1 {
            facts.push(format!("batch {}", run.batch));
        }
        if run.simulated {
            facts.truncate(1);
        }
        if state_watches {
            facts.clear();
        }
        // The right half of the line belongs to the phase and the progress.
        let room = area.width.saturating_sub(52) as usize;
        for fact in facts {
            let width: usize = left.iter().map(Span::width).sum();
            if width + fact.len() + 3 <= room.max(22) {
                left.push(Span::styled(dot.clone(), theme.border));
                left.push(Span::styled(fact, theme.dim));
            }
        }
    }
    if view.state.is_of_files() {
        let files: Vec<&str> = view.state.kernels.reports.iter().map(|report| report.file.as_str()).collect();
        let room = (area.width as usize).saturating_sub(brand.width() + 2);
        left.push(Span::styled(
            cut(&theme.glyphs.plain(&files.join(", ")), room, theme.glyphs.ascii),
            theme.number,
        ));
    }
    let left = Line::from(left);
    let left_width = left.width() as u16;
    left.render(area, buf);
    let room = area.width.saturating_sub(left_width + 2);
    let mut right: Vec<Span<'_>> = Vec::new();
    for part in status(view) {
        let width: usize = right.iter().map(Span::width).sum::<usize>() + 3;
        if width + part.iter().map(Span::width).sum::<usize>() <= room as usize {
            if !right.is_empty() {
                right.push(Span::raw("   "));
            }
            right.extend(part);
        }
    }
    right.push(Span::raw(" "));
    Line::from(right).right_aligned().render(area, buf);
}

/// What a tool does, in so many cells.
const TOOL_WORDS: usize = 24;

/// The state of the run, most telling first.
fn status<'a>(view: &View<'_>) -> Vec<Vec<Span<'a>>> {
    let theme = view.theme;
    let state = view.state;
    let dot = |style| Span::styled(format!("{} ", theme.glyphs.dot), style);
    let mut parts = Vec::new();
    if state.is_of_files() {
        return parts;
    }
    if let Some(loss) = view.loss {
        let word = if matches!(loss, Loss::NotRecorded { .. }) { "not recorded" } else { "not all recorded" };
        parts.push(vec![Span::styled(word, theme.bad)]);
    }
    if let Some(word) = view.waiting {
        parts.push(vec![Span::styled(word.to_owned(), theme.warn)]);
    }
    if view.frozen {
        parts.push(vec![Span::styled("view frozen", theme.warn)]);
    }
    if let Some((tool, doing, share)) = state.kernels.working() {
        let share = share.map(|share| format!(" {}", percent(100.0 * share))).unwrap_or_default();
        let doing = cut(doing, TOOL_WORDS, theme.glyphs.ascii);
        parts.push(vec![Span::styled(format!("{tool}: {doing}{share}"), theme.accent)]);
    }
    let phase = match (&state.finished, state.workload_paused_at) {
        (Some(finished), _) => {
            let style = match finished.outcome {
                Outcome::Completed => theme.good,
                Outcome::Interrupted => theme.warn,
                Outcome::Failed => theme.bad,
            };
            vec![dot(style), Span::styled(finished.outcome.to_string(), style)]
        }
        (None, Some(_)) => vec![dot(theme.warn), Span::styled("paused", theme.warn)],
        (None, None) => {
            let style = theme.phase(state.phase);
            let word = match (&state.preparing, state.phase) {
                _ if state.watches() => "others' work".to_owned(),
                (Some(p), Phase::Preparing) if p.total > 0 => {
                    format!("{} {} %", p.step, 100 * p.done / p.total)
                }
                (_, phase) => phase.name().to_owned(),
            };
            vec![dot(style), Span::styled(word, style)]
        }
    };
    parts.push(phase);
    if let Some(run) = &state.run {
        let warm = state.active.as_ref().is_some_and(|a| a.started.warmup);
        let (word, done, of) = match warm {
            true => ("warm-up", state.warmup_done + 1, run.warmup),
            false => {
                let done = (state.requests_done + u32::from(state.active.is_some())).max(1);
                // A run that waits for something may take more than it planned.
                ("request", done, run.requests.max(done))
            }
        };
        if state.finished.is_some() {
            parts.push(label_value(
                theme,
                "requests",
                &format!("{}/{}", state.requests_done, run.requests.max(state.requests_done)),
                "",
            ));
        } else if state.active.is_some() || state.requests_done > 0 {
            parts.push(label_value(theme, word, &format!("{done}/{of}"), ""));
        }
    }
    if let Some(active) = &state.active {
        let of = format!("{}/{}", active.tokens, active.started.output_tokens);
        parts.push(label_value(theme, "", &of, "tok"));
    } else if state.finished.is_some() {
        parts.push(label_value(theme, "", &grouped(state.total.output_tokens as i64), "tok"));
    }
    parts.push(vec![Span::styled(clock(state.now.since(crate::event::Stamp(0))), theme.text)]);
    if let Some(trust) = state.trust() {
        let dots = |n: u32, dot: &str| dot.repeat(n as usize);
        let style = if trust.score + 1 >= trust.of { theme.good } else { theme.warn };
        parts.push(vec![
            Span::styled("trust ", theme.dim),
            Span::styled(dots(trust.score, theme.glyphs.dot), style),
            Span::styled(dots(trust.of - trust.score, theme.glyphs.hollow_dot), theme.dim),
        ]);
    }
    parts
}

/// Where a sweep stands: which job, what is particular about it, and how the others ended or what is waited for.
fn sweep_strip(view: &View<'_>, at_work: SweepView<'_>, area: Rect, buf: &mut Buffer) {
    let (theme, sweep) = (view.theme, at_work.sweep);
    let job = sweep.current();
    let over = sweep.running().is_none() && sweep.next().is_none();
    let mut right: Vec<Span<'_>> = Vec::new();
    if let Some(cooling) = at_work.cooling {
        right.push(Span::styled(theme.glyphs.plain(&cooling.to_string()), theme.warn));
    } else {
        let tallies = [
            (Outcome::Completed, theme.good),
            (Outcome::Failed, theme.bad),
            (Outcome::Interrupted, theme.warn),
        ];
        for (outcome, style) in tallies {
            let n = sweep.count(outcome);
            if n > 0 || (outcome == Outcome::Completed && area.width >= 60) {
                let gap = if right.is_empty() { "" } else { "  " };
                right.push(Span::styled(format!("{gap}{n} "), theme.number));
                right.push(Span::styled(outcome.to_string(), style));
            }
        }
    }
    right.push(Span::raw(" "));
    let right = Line::from(right);
    let word = match (over, at_work.cooling) {
        (true, _) => format!(" sweep of {} over", sweep.jobs.len()),
        (false, Some(_)) => format!(" next {}", sweep.label(job)),
        (false, None) => format!(" {}", sweep.label(job)),
    };
    let mut left = vec![Span::styled(word, theme.accent)];
    let used = left[0].width() + 2;
    let room = (area.width as usize).saturating_sub(used + right.width() + 2);
    let whole = sweep.swept_text(job);
    let swept = match over {
        true => String::new(),
        false if whole.width() <= room => whole,
        false => cut(&sweep.swept_short(job), room, theme.glyphs.ascii),
    };
    left.push(Span::styled(format!("  {swept}"), theme.text));
    Line::from(left).render(area, buf);
    if (right.width() + used) <= area.width as usize {
        right.right_aligned().render(area, buf);
    } else if let Some(cooling) = at_work.cooling {
        // What is waited for tells more than what comes next.
        let words = theme.glyphs.plain(&format!(" {}", cooling.to_string()));
        Clear.render(area, buf);
        Line::styled(cut(&words, area.width as usize, theme.glyphs.ascii), theme.warn).render(area, buf);
    }
}

/// Where a replay stands, and how it moves.
fn transport(view: &View<'_>, position: Position, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let glyphs = theme.glyphs;
    let (sign, style) = match (position.following, position.playing) {
        (true, true) => (glyphs.play, theme.good),
        (false, true) => (glyphs.play, theme.accent),
        (_, false) => (glyphs.pause, theme.warn),
    };
    let word = match position {
        Position { loading: true, .. } => "reading".to_owned(),
        Position { following: true, cut_off: true, .. } => "cut off, no end recorded".to_owned(),
        Position { following: true, playing: true, .. } => "following".to_owned(),
        Position { speed, .. } => format!("{speed}{}", if glyphs.ascii { "x" } else { "×" }),
    };
    let (at, end) = (position.at.secs(), position.end.secs().max(1e-9));
    let left = Line::from(vec![
        Span::styled(format!(" {sign} "), style),
        Span::styled(format!("{} ", time_of(at)), theme.number),
    ]);
    let right = Line::from(vec![
        Span::styled(format!(" {}  ", time_of(end)), theme.dim),
        Span::styled(format!("{word} "), style),
    ]);
    let track = Rect { x: area.x + left.width() as u16, ..area };
    let track = Rect { width: area.width.saturating_sub((left.width() + right.width()) as u16), ..track };
    left.render(area, buf);
    let knob = ((at / end).min(1.0) * f64::from(track.width.saturating_sub(1))) as u16;
    for x in 0..track.width {
        let (glyph, style) = match x.cmp(&knob) {
            std::cmp::Ordering::Less => (glyphs.line, theme.accent),
            std::cmp::Ordering::Equal => (glyphs.knob, theme.accent),
            std::cmp::Ordering::Greater => (glyphs.line, theme.border),
        };
        buf[(track.x + x, area.y)].set_symbol(glyph).set_style(style);
    }
    let rest = Rect { x: track.right(), width: area.right().saturating_sub(track.right()), ..area };
    right.render(rest, buf);
}

fn time_of(secs: f64) -> String {
    clock(std::time::Duration::from_secs_f64(secs.max(0.0)))
}

/// The moment a click on the transport line means. The track lies between the time at its left and the end and
/// the speed at its right.
pub fn clicked_moment(position: Position, area: Rect, x: u16) -> f64 {
    let (at, end) = (position.at.secs(), position.end.secs());
    let left = time_of(at).len() as u16 + 4;
    let right = time_of(end).len() as u16 + 3 + if position.following { 10 } else { 3 };
    let width = area.width.saturating_sub(left + right).max(1);
    f64::from(x.saturating_sub(area.x + left)).min(f64::from(width)) / f64::from(width) * end
}

fn footer(view: &View<'_>, areas: &Areas, buf: &mut Buffer) {
    let theme = view.theme;
    let mut end = areas.footer.x;
    for (i, (pane, rect)) in areas.tabs().into_iter().enumerate() {
        let chosen = pane == view.ui.pane;
        let named = rect.width > 3;
        let (number, title) =
            if chosen { (theme.selected, theme.selected) } else { (theme.accent, theme.dim) };
        let mut tab = vec![Span::styled(format!(" {}", i + 1), number)];
        tab.push(Span::styled(
            if named { format!(" {:<1$}", pane.title(), rect.width as usize - 3) } else { " ".to_owned() },
            title,
        ));
        Line::from(tab).render(rect, buf);
        end = rect.right();
    }
    if let Some(message) = &view.ui.message {
        Clear.render(areas.footer, buf);
        let text = Line::styled(format!(" {}", theme.glyphs.plain(message)), theme.warn);
        return text.render(areas.footer, buf);
    }
    let room = Rect { x: end, width: areas.footer.right().saturating_sub(end), ..areas.footer };
    let mode = view.mode();
    // Help and quit always fit; the rest as far as there is room.
    let (fixed, others): (Vec<_>, Vec<_>) = keys::BINDINGS
        .iter()
        .filter(|b| !b.short.is_empty() && keys::applies(b.scope, view.ui.pane, mode))
        .partition(|b| matches!(b.short, "help" | "quit"));
    let width = |b: &keys::Binding| b.label.len() + b.short.len() + 3;
    let mut left = (room.width as usize).saturating_sub(fixed.iter().map(|b| width(b)).sum());
    let mut shown = Vec::new();
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|b| matches!(b.scope, Scope::On(_) | Scope::Sweep));
    for binding in here.into_iter().chain(elsewhere) {
        if width(binding) <= left {
            left -= width(binding);
            shown.push(binding);
        }
    }
    let spans: Vec<Span<'_>> = shown
        .into_iter()
        .chain(fixed)
        .flat_map(|b| {
            [
                Span::styled(format!("  {}", b.label), theme.accent),
                Span::styled(format!(" {}", b.short), theme.dim),
            ]
        })
        .collect();
    let line = Line::from(spans);
    if line.width() <= room.width as usize {
        line.right_aligned().render(room, buf);
    } else if room.width >= 7 {
        Line::styled("? help ", theme.dim).right_aligned().render(room, buf);
    }
}

/// A rectangle in the middle, not larger than wanted.
fn centred(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

fn help(view: &View<'_>, scroll: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut scopes: Vec<Scope> = Vec::new();
    for binding in keys::BINDINGS {
        if !scopes.contains(&binding.scope) {
            scopes.push(binding.scope);
        }
    }
    for scope in scopes {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        lines.push(Line::styled(format!(" {}", scope.title()), theme.accent));
        for b in keys::BINDINGS.iter().filter(|b| b.scope == scope) {
            let label = if theme.glyphs.ascii { ascii_label(b.label) } else { b.label.to_owned() };
            lines.push(Line::from(vec![
                Span::styled(format!("  {label:<10} "), theme.number),
                Span::styled(b.help, theme.text),
            ]));
        }
    }
    lines.push(Line::default());
    lines.push(Line::styled(" The mouse chooses tabs and runs; its wheel scrolls.", theme.dim));
    let area = centred(area, 78, lines.len() as u16 + 2);
    let block = boxed(theme, "help", "↑ ↓ scroll · Esc closes");
    let inner = block.inner(area);
    let last = lines.len().saturating_sub(inner.height as usize);
    Clear.render(area, buf);
    block.render(area, buf);
    Paragraph::new(lines).scroll((scroll.min(last) as u16, 0)).render(inner, buf);
}

fn evidence_box(view: &View<'_>, scroll: usize, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let width = area.width.saturating_sub(4).min(130);
    let room = width.saturating_sub(4).max(2);
    let lines = evidence(view, room);
    let rows = |line: &Line<'_>| line.width().max(1).div_ceil(room as usize) as u16;
    let height: u16 = lines.iter().map(rows).sum::<u16>() + 3;
    let area = centred(area, width, height);
    let arrows = if theme.glyphs.ascii { "up, down scroll" } else { "↑ ↓ scroll" };
    let block = boxed(theme, "evidence", &format!("{arrows} {} Esc closes", theme.glyphs.separator));
    let inner = block.inner(area);
    Clear.render(area, buf);
    block.render(area, buf);
    let inner = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    let last = (height as usize).saturating_sub(inner.height as usize + 2);
    Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((scroll.min(last) as u16, 0)).render(inner, buf);
}

fn ascii_label(label: &str) -> String {
    label.replace('←', "left").replace('→', "right").replace('↑', "up").replace('↓', "down")
}

fn prompt(view: &View<'_>, asked: &Prompt, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let width = area.width.saturating_sub(4).clamp(20, 100);
    let error_rows =
        asked.error.as_ref().map_or(0, |e| (e.chars().count() as u16).div_ceil(width.max(3) - 2).clamp(1, 6));
    let area = centred(area, width, 3 + error_rows);
    let block = boxed(theme, asked.asks.title(), "Esc closes");
    let inner = block.inner(area);
    Clear.render(area, buf);
    block.render(area, buf);
    input_line(theme, &asked.input, inner).render(Rect { height: 1.min(inner.height), ..inner }, buf);
    if let Some(error) = &asked.error {
        let below = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
        Paragraph::new(Line::styled(theme.glyphs.plain(error), theme.bad))
            .wrap(Wrap { trim: true })
            .render(below, buf);
    }
}
