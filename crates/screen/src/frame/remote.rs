//! The connection to the remote host, on one line.

use ratatui::{
    buffer::Buffer,
    layout::Rect,
    text::{Line, Span},
    widgets::Widget,
};

use crate::{
    view::{RemoteView, View},
    widgets::cut,
};
use llmprof_base::units::{bytes, millis, rough_seconds};
use llmprof_event::Link;

/// The remote host and the state of the connection; at the right the copy in progress, or the remote name of the run.
pub fn draw(view: &View<'_>, remote: &RemoteView, area: Rect, buf: &mut Buffer) {
    let theme = view.theme;
    let right = match remote.fetching {
        Some((done, total)) => Line::from(Span::styled(
            format!("copying {} of {} ", bytes(done), bytes(total.max(done))),
            theme.accent,
        )),
        None => Line::from(Span::styled(format!("run {} ", remote.id), theme.dim)),
    };
    let (words, style) = match &remote.link {
        Link::Up { .. } if !remote.goes_on => ("connected; the remote run has ended".to_owned(), theme.dim),
        Link::Up { behind_ms: Some(ms) } => (format!("{} behind", millis(*ms)), theme.dim),
        Link::Up { behind_ms: None } => ("connected".to_owned(), theme.dim),
        Link::Silent { since } => (format!("no answer for {}", seconds(since.as_secs_f64())), theme.warn),
        Link::Lost { since, next, reason } => {
            (lost(since.as_secs_f64(), next.map(|n| n.as_secs_f64()), reason, remote), theme.bad)
        }
        Link::Closed => ("the run and its connection have ended".to_owned(), theme.dim),
    };
    let host = cut(&theme.glyphs.plain(&remote.host), 30, theme.glyphs.ascii);
    let mut left =
        Line::from(vec![Span::styled(" over ssh to ", theme.dim), Span::styled(host, theme.accent)]);
    left.push_span(Span::styled(format!(" {} ", theme.glyphs.separator), theme.border));
    let room = (area.width as usize).saturating_sub(left.width() + 1);
    let spare = room.saturating_sub(right.width() + 2);
    let words = theme.glyphs.plain(&words);
    // A lost connection is more important than the name of the run.
    let is_lost = matches!(remote.link, Link::Lost { .. });
    left.push_span(Span::styled(cut(&words, if is_lost { room } else { spare }, theme.glyphs.ascii), style));
    let fits = left.width() + right.width() < area.width as usize;
    left.render(area, buf);
    if fits {
        right.right_aligned().render(area, buf);
    }
}

fn lost(since: f64, next: Option<f64>, reason: &str, remote: &RemoteView) -> String {
    let goes_on = if remote.goes_on { "; the run continues" } else { "" };
    let next = match next {
        Some(next) if next < 0.5 => "; connecting".to_owned(),
        Some(next) => format!("; retry in {}, H now", seconds(next)),
        None => "; H tries again".to_owned(),
    };
    format!("lost for {}{goes_on}{next} ({reason})", seconds(since))
}

fn seconds(secs: f64) -> String {
    if secs < 100.0 { format!("{secs:.0} s") } else { rough_seconds(secs) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        theme::{Depth, Glyphs, Theme},
        ui::UiState,
    };
    use llmprof_config::ThemeName;
    use llmprof_record::state::RunState;

    fn drawn(link: Link, fetching: Option<(u64, u64)>, width: u16) -> String {
        let (state, ui) = (RunState::default(), UiState::new(ThemeName::Dark));
        let theme = Theme::new(ThemeName::Dark, Depth::True, Glyphs::UNICODE);
        let remote = RemoteView { host: "box".into(), id: "k3f9a2".into(), link, fetching, goes_on: true };
        let area = Rect { x: 0, y: 0, width, height: 1 };
        let mut buf = Buffer::empty(area);
        draw(&View::new(&state, &ui, &theme), &remote, area, &mut buf);
        buf.content.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()
    }

    #[test]
    fn the_line_shows_the_most_important_state() {
        let up = Link::Up { behind_ms: Some(23.0) };
        assert!(drawn(up.clone(), None, 80).starts_with(" over ssh to box · 23.0 ms behind  "));
        assert!(drawn(up.clone(), None, 80).ends_with("run k3f9a2"));
        assert!(drawn(up.clone(), Some((1_000_000, 4_000_000)), 80).ends_with("copying 1.00 MB of 4.00 MB"));
        let lost = Link::Lost {
            since: Duration::from_secs(12),
            next: Some(Duration::from_secs(3)),
            reason: "Connection reset by peer\u{1b}[2J".into(),
        };
        let text = drawn(lost.clone(), None, 80);
        assert!(
            text.starts_with(" over ssh to box · lost for 12 s; the run continues; retry in 3 s, H now (Con"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'));
        let silent = Link::Silent { since: Duration::from_secs(5) };
        assert!(drawn(silent.clone(), None, 80).contains("no answer for 5 s"));
        // Any width.
        for (link, width) in [up, lost, silent, Link::Closed]
            .into_iter()
            .flat_map(|link| (0..60).map(move |w| (link.clone(), w)))
        {
            drawn(link, Some((1, 2)), width);
        }
    }
}
