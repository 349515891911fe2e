//! A whole frame: header, pane, transport bar, footer, and the overlay on top.

mod footer;
mod header;
pub(super) mod overlay;
mod remote;
mod sweep;
mod transport;

use ratatui::{buffer::Buffer, layout::Rect, text::Line, widgets::Widget};

use super::{layout::ScreenLayout, panes::overview, ui::Pane, view::View};
use llmprof_base::foreign::is_hidden;

/// Draws everything the user sees.
pub struct Frame<'a>(pub View<'a>);

impl Widget for Frame<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let view = self.0;
        buf.set_style(area, view.theme.ground);
        if area.width < 12 || area.height < 3 {
            return Line::raw("llmprof: too small").render(area, buf);
        }
        let layout = ScreenLayout::new(&view, area);
        let trust_is_shown = view.ui.pane == Pane::Overview && overview::shows_trust(&view, layout.body);
        header::draw(&view, layout.header, trust_is_shown, buf);
        if let Some(sweep) = view.sweep {
            sweep::draw(&view, sweep, layout.sweep, buf);
        } else if let Some(remote) = view.remote {
            remote::draw(&view, remote, layout.sweep, buf);
        }
        (view.ui.pane.spec().draw)(view, layout.body, buf);
        if let Some((bar, position)) = layout.transport.as_ref().zip(view.replay) {
            transport::draw(view.theme, bar, position, &view.state.kernels.recording, buf);
        }
        footer::draw(&view, &layout, buf);
        overlay::draw(&view, area, buf);
        replace_hidden(if view.theme.glyphs.ascii { "?" } else { "\u{fffd}" }, buf);
    }
}

/// A character with all its marks is shorter than this.
const MAX_SYMBOL_BYTES: usize = 64;

/// Shows `sign` in every cell with a hidden character, or with too many marks: untrusted names may change the direction
/// of a line. Control characters are never drawn into cells.
pub(super) fn replace_hidden(sign: &str, buf: &mut Buffer) {
    for cell in &mut buf.content {
        let symbol = cell.symbol();
        if !symbol.is_ascii() && (symbol.contains(is_hidden) || symbol.len() > MAX_SYMBOL_BYTES) {
            cell.set_symbol(sign);
        }
    }
}
