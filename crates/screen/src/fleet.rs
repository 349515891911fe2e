//! The fleet on the screen: a list of GPUs or nodes, and the history of one GPU.

mod draw;
pub mod keys;
mod table;
mod ui;

use llmprof_analysis::fleet::{Fleet, History, Order};
use llmprof_record::state::RunState;
use ratatui::layout::Rect;

use crate::theme::{Depth, Glyphs, Theme};

pub use self::{
    draw::{FleetView, help_end, list_layout, order_at},
    ui::{Effect, FleetUi, Opened, Overlay, update},
};

/// A frame without a terminal, for tests: the fleet in the list, or the history of a GPU.
pub fn still(fleet: &Fleet, history: Option<&History>, area: Rect) -> ratatui::buffer::Buffer {
    use ratatui::widgets::Widget;
    let mut ui = FleetUi::new(llmprof_config::ThemeName::Dark, Order::Lost);
    if let Some(history) = history {
        let mut opened = Opened::new(history.gpu.clone(), ui.theme);
        let mut state = RunState::default();
        history.events().iter().for_each(|event| state.apply(event));
        opened.state = Some(Box::new(state));
        opened.step_s = history.step_s;
        ui.opened = Some(opened);
    }
    let theme = Theme::new(ui.theme, Depth::True, Glyphs::UNICODE);
    let view = FleetView {
        ui: &ui,
        theme: &theme,
        fleet: Some(fleet),
        source: "http://prometheus:9090",
        error: None,
        age_s: Some(3.0),
        replay: None,
        recording: false,
    };
    let mut buffer = ratatui::buffer::Buffer::empty(area);
    view.render(area, &mut buffer);
    buffer
}
