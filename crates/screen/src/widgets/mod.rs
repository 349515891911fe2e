//! The parts that panes are made of.

mod chart;
mod dots;
mod list;
mod strip;
mod table;
mod text;

pub use chart::{
    Chart, Lane, Span, TICKS, TimeAxis, before_now, draw_bar, draw_cursor, draw_dashes, draw_gauge, spans,
};
pub use dots::Dots;
pub use list::ListLayout;
pub use strip::{TokenStrip, heat_of};
pub use table::TableLines;
pub use text::{
    cut, cut_start, draw_box, draw_note, draw_pointed, fit, input_line, inside_box, label_value, note, popup,
    wrapped, wrapped_behind,
};
