//! The footer: tabs and keys, or a message.

use std::ptr;

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
    widgets::{Clear, Widget},
};
use unicode_width::UnicodeWidthStr;

use crate::tui::{
    keys::{BINDINGS, Binding, Scope, binding, key_name},
    layout::ScreenLayout,
    ui::{Action, Effect},
    view::View,
};

pub fn draw(view: &View<'_>, layout: &ScreenLayout, buf: &mut Buffer) {
    let theme = view.theme;
    if let Some(message) = &view.ui.message {
        Clear.render(layout.footer, buf);
        let text = Line::styled(format!(" {}", theme.glyphs.plain(message)), theme.warn);
        return text.render(layout.footer, buf);
    }
    for (i, (pane, area)) in layout.tabs.iter().enumerate() {
        let selected = *pane == view.ui.pane;
        let (number, title) =
            if selected { (theme.selected, theme.selected) } else { (theme.accent, theme.dim) };
        let name = match area.width {
            0..=3 => " ".to_owned(),
            width => format!(" {:<1$}", pane.title(), width as usize - 3),
        };
        Line::from(vec![Span::styled(format!(" {}", i + 1), number), Span::styled(name, title)])
            .render(*area, buf);
    }
    let end = layout.tabs.last().map_or(layout.footer.x, |(_, area)| area.right());
    keys(view, Rect { x: end, width: layout.footer.right().saturating_sub(end), ..layout.footer }, buf);
}

/// As many keys as there is room for; help and quit always.
fn keys(view: &View<'_>, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let label = |b: &Binding| key_name(b.keys[0], theme.glyphs.ascii);
    let width = |b: &Binding| label(b).width() + b.short.len() + 3;
    let always = |b: &Binding| matches!(b.action, Action::Help | Action::Do(Effect::Quit));
    let mode = view.mode();
    let is_active = |b: &Binding| binding(b.keys[0], view.ui.pane, mode).is_some_and(|a| ptr::eq(a, b));
    let mut optional: Vec<&Binding> =
        BINDINGS.iter().filter(|b| !b.short.is_empty() && !always(b) && is_active(b)).collect();
    // The most specific first.
    optional.sort_by_key(|b| !matches!(b.scope, Scope::On(_) | Scope::Sweep));
    let fixed: Vec<&Binding> = BINDINGS.iter().filter(|b| always(b)).collect();
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
                Span::styled(format!(" {}", b.short), theme.dim),
            ]
        })
        .collect();
    if line.width() <= area.width as usize {
        line.right_aligned().render(area, buf);
    } else if area.width >= 7 {
        Line::styled("? help ", theme.dim).right_aligned().render(area, buf);
    }
}
