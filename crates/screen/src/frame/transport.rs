//! The transport bar of a replay.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
    widgets::Widget,
};

use crate::{layout::TransportBar, theme::Theme};
use llmprof_event::Stamp;
use llmprof_record::{rundir::Position, state::Recording};

pub fn draw(theme: &Theme, bar: &TransportBar, position: Position, recording: &Recording, buf: &mut Buffer) {
    let style = match (position.following, position.playing) {
        (true, true) => theme.good,
        (false, true) => theme.accent,
        (_, false) => theme.warn,
    };
    let left = Line::from(vec![
        Span::styled(format!(" {} ", bar.sign), style),
        Span::styled(format!("{} ", bar.time), theme.number),
    ]);
    left.render(bar.area, buf);
    let knob = bar.knob().unwrap_or(bar.track.x);
    let recorded = recording.columns(Stamp(0), position.end, bar.track.width as usize);
    for (x, recorded) in (bar.track.left()..bar.track.right()).zip(recorded) {
        let glyph = if x == knob { theme.glyphs.knob } else { theme.glyphs.line };
        let style = match x <= knob {
            true if recorded => theme.warn,
            true => theme.accent,
            false => theme.border,
        };
        buf[(x, bar.track.y)].set_symbol(glyph).set_style(style);
    }
    let right = Line::from(vec![
        Span::styled(format!(" {}  ", bar.end), theme.dim),
        Span::styled(format!("{} ", bar.status), style),
    ]);
    let x = bar.track.right();
    right.render(Rect { x, width: bar.area.right().saturating_sub(x), ..bar.area }, buf);
}
