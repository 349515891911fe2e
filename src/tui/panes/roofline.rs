//! Roofline: operators and kernels against what the card can do.

use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};

use crate::tui::{
    view::View,
    widgets::{boxed, note},
};

pub struct RooflinePane<'a>(pub View<'a>);

impl Widget for RooflinePane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.0.theme;
        let block = boxed(theme, "roofline", "");
        let inner = block.inner(area);
        block.render(area, buf);
        note(theme, " nothing was recorded").render(inner, buf);
    }
}
