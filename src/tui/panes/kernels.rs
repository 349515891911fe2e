//! Kernels: what the GPU's time goes to.

use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};

use crate::tui::{
    view::View,
    widgets::{boxed, note},
};

pub struct KernelsPane<'a>(pub View<'a>);

impl Widget for KernelsPane<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = self.0.theme;
        let block = boxed(theme, "kernels", "");
        let inner = block.inner(area);
        block.render(area, buf);
        note(theme, " nothing was recorded").render(inner, buf);
    }
}
