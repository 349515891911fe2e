//! The parts that panes are made of.

mod dots;
mod list;
mod plot;
mod strip;
mod text;

pub use dots::Dots;
pub use list::ListLayout;
pub use plot::{Lane, Span, plot, spans};
pub use strip::{TokenStrip, heat_of};
pub use text::{
    cut, draw_box, draw_pointed, fit, input_line, inside_box, label_value, note, wrapped, wrapped_behind,
};
