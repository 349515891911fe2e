//! The pieces panes are made of.

mod dots;
mod plot;
mod strip;
mod text;

pub use dots::Dots;
pub use plot::{Lane, Span, plot, spans};
pub use strip::{TokenStrip, heat_of};
pub use text::{boxed, cut, fit, input_line, label_value, note, wrapped, wrapped_behind};
