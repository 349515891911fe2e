//! The footer: tabs and keys, or a message.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
    widgets::{Clear, Widget},
};
use unicode_width::UnicodeWidthStr;

use crate::{
    keys::{BINDINGS, Binding, Scope, key_name},
    layout::ScreenLayout,
    ui::{Action, Effect, ReplayCommand, RunCommand, RunsCommand},
    view::View,
    widgets::wrapped,
};

pub fn draw(view: &View<'_>, layout: &ScreenLayout, buf: &mut Buffer) {
    let theme = view.theme;
    if let Some(message) = &view.ui.message {
        draw_message(view, message, layout, buf);
    }
    for (pane, area) in &layout.tabs {
        let selected = *pane == view.ui.pane;
        let (number, title) = if selected { (theme.badge, theme.badge) } else { (theme.accent, theme.dim) };
        let name = match area.width {
            0..=3 => " ".to_owned(),
            // A name that does not fit is shortened.
            width => format!(" {:<1$.1$}", pane.title(), width as usize - 3),
        };
        Line::from(vec![
            Span::styled(format!(" {}", key_name(pane.key(), theme.glyphs.ascii)), number),
            Span::styled(name, title),
        ])
        .render(*area, buf);
    }
    if let Some((n, area)) = layout.empty_tabs {
        Line::styled(format!(" +{n} empty"), theme.dim).render(area, buf);
    }
    let tabs = layout.tabs.last().map(|(_, area)| *area);
    let end = layout.empty_tabs.map(|(_, area)| area).or(tabs).map_or(layout.footer.x, Rect::right);
    keys(view, Rect { x: end, width: layout.footer.right().saturating_sub(end), ..layout.footer }, buf);
}

/// A message above the tabs, over the pane, with as many rows as it needs.
fn draw_message(view: &View<'_>, message: &str, layout: &ScreenLayout, buf: &mut Buffer) {
    let theme = view.theme;
    let width = layout.footer.width.saturating_sub(2);
    let lines = wrapped(&theme.glyphs.plain(message), width as usize);
    let below = layout.transport.as_ref().map_or(layout.footer.y, |bar| bar.area.y);
    let height = (lines.len() as u16).min(below.saturating_sub(1));
    let place = Rect { y: below - height, height, ..layout.footer };
    Clear.render(place, buf);
    buf.set_style(place, theme.ground.patch(theme.selected));
    for (line, y) in lines.into_iter().zip(place.top()..place.bottom()) {
        buf.set_string(place.x + 1, y, line, theme.warn);
    }
}

/// The current effect of a key; some keys toggle. Empty for a key without effect.
fn short(view: &View<'_>, b: &Binding) -> &'static str {
    if view.obstacle(&b.action).is_some() {
        return "";
    }
    let row = view.runs.selected(view.ui.runs.row);
    match &b.action {
        Action::Do(Effect::Replay(ReplayCommand::TogglePlay)) if view.replay.is_some_and(|r| r.playing) => {
            "pause"
        }
        // Back from an opened job.
        Action::Do(Effect::Replay(ReplayCommand::Leave)) if view.sweep.is_some() => "sweep",
        Action::Do(Effect::Quit) if view.sweep.is_some() && view.replay.is_some() => "sweep",
        Action::Do(Effect::Run(RunCommand::TogglePause)) if view.state.workload_paused_at.is_some() => {
            "resume"
        }
        Action::Do(Effect::Run(RunCommand::ToggleView)) if view.frozen => "unfreeze",
        Action::Do(Effect::Run(RunCommand::RunUnder(tool)))
            if view.state.kernels.working().is_some_and(|(working, ..)| working == tool.to_string()) =>
        {
            "cancel"
        }
        Action::Do(Effect::Runs(RunsCommand::Open)) => match view.runs.group_at(row) {
            Some(group) if group.folded => "unfold",
            Some(_) => "fold",
            None => b.short,
        },
        Action::Do(Effect::Runs(RunsCommand::Mark))
            if view
                .runs
                .run_at(row)
                .is_some_and(|run| view.ui.runs.marked.as_deref() == Some(run.dir.path())) =>
        {
            "unmark"
        }
        _ => b.short,
    }
}

/// As many keys as fit; help always, and quit unless only help fits.
fn keys(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let label = |b: &Binding| key_name(b.keys[0], theme.glyphs.ascii);
    let width = |b: &Binding| label(b).width() + short(view, b).len() + 3;
    let always = |b: &Binding| matches!(b.action, Action::Help | Action::Do(Effect::Quit));
    let mode = view.mode();
    // One key each: actions without a key are not shown.
    let mut optional: Vec<&Binding> = BINDINGS
        .iter()
        .filter(|b| b.is_active(view.ui.pane, mode) && !always(b) && !short(view, b).is_empty())
        .collect();
    // The most specific first.
    let leaves = |b: &Binding| matches!(b.action, Action::Do(Effect::Replay(ReplayCommand::Leave)));
    optional.sort_by_key(|b| if b.scope == Scope::Sweep || leaves(b) { 0 } else { b.scope.priority() });
    let fixed: Vec<&Binding> = BINDINGS.iter().filter(|b| always(b)).rev().collect();
    let mut left = (area.width as usize).saturating_sub(fixed.iter().map(|b| width(b)).sum());
    optional.retain(|b| {
        let fits = width(b) <= left;
        left -= if fits { width(b) } else { 0 };
        fits
    });
    let line: Line<'_> = optional
        .into_iter()
        .chain(fixed)
        .flat_map(|b| {
            [
                Span::styled(format!("  {}", label(b)), theme.accent),
                Span::styled(format!(" {}", short(view, b)), theme.dim),
            ]
        })
        .collect();
    if line.width() <= area.width as usize {
        line.right_aligned().render(area, buf);
    } else if area.width >= 9 {
        let key = |text| Span::styled(text, theme.accent);
        let line = Line::from(vec![key(" ? "), key("q"), Span::styled(" quit", theme.dim)]);
        line.right_aligned().render(area, buf);
    } else if area.width >= 2 {
        Line::styled(" ?", theme.accent).right_aligned().render(area, buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        theme::{Depth, Glyphs, Theme},
        ui::UiState,
    };
    use llmprof_config::ThemeName;
    use llmprof_event::{Outcome, RunFinished, Stamp};
    use llmprof_record::{rundir::Position, state::RunState};

    #[test]
    fn keys_are_named_by_what_they_do_now() {
        let (at, end) = (Stamp(0), Stamp::from_secs_f64(9.0));
        let playing =
            Position { at, end, playing: true, following: false, speed: 1.0, loading: false, cut_off: false };
        let paused = Position { playing: false, ..playing };
        let (ui, theme) =
            (UiState::new(ThemeName::Dark), Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE));
        let (running, mut stopped) = (RunState::default(), RunState::default());
        stopped.workload_paused_at = Some(at);
        let live = View::new(&running, &ui, &theme);
        for (view, wanted) in [
            (View { replay: Some(playing), ..live }, "space pause "),
            (View { replay: Some(paused), ..live }, "space play "),
            (live, "p pause "),
            (View { state: &stopped, ..live }, "p resume "),
            (live, "space freeze "),
            (View { frozen: true, ..live }, "space unfreeze "),
        ] {
            let area = Rect::new(0, 0, 200, 30);
            let mut buf = Buffer::empty(area);
            draw(&view, &ScreenLayout::new(&view, area), &mut buf);
            let text: String = buf.content().iter().map(|cell| cell.symbol()).collect();
            assert!(text.contains(wanted), "no {wanted:?} in {}", text.trim());
        }
    }

    #[test]
    fn keys_without_effect_are_left_out() {
        let (ui, theme) =
            (UiState::new(ThemeName::Dark), Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE));
        let mut state = RunState::default();
        let shown = |state: &RunState| {
            let (view, area) = (View::new(state, &ui, &theme), Rect::new(0, 0, 200, 30));
            let mut buf = Buffer::empty(area);
            draw(&view, &ScreenLayout::new(&view, area), &mut buf);
            buf.content().iter().map(|cell| cell.symbol()).collect::<String>()
        };
        assert!(shown(&state).contains("p pause"));
        state.finished = Some(RunFinished { outcome: Outcome::Completed, cause: None });
        assert!(!shown(&state).contains("p pause") && shown(&state).contains("r re-run"));
    }
}
