//! The tokens that are looked at: those that came last, up to the chosen one, or those around an incident.

use crate::{
    base::units::grouped,
    event::Stamp,
    state::{Incident, KeptSample, Series, TokenMark},
    tui::{ui::Pane, view::View},
};

/// What the strip shows: tokens as they came, or those around an incident.
pub struct Stretch<'a> {
    pub tokens: Vec<&'a TokenMark>,
    /// The number of the first of them, counted from the run's first.
    pub first: u64,
    pub title: String,
    /// The column that is looked at.
    pub cursor: Option<usize>,
    /// Columns with something unusual.
    pub unusual: Vec<usize>,
    /// What was seen of the card, where the run's history no longer tells it finely enough.
    pub kept: Option<&'a [KeptSample]>,
}

impl<'a> Stretch<'a> {
    /// At most `cells` of them, the one that is looked at among them.
    pub fn of(view: &View<'a>, cells: usize) -> Stretch<'a> {
        match view.open_incident().filter(|_| view.ui.pane == Pane::Tokens) {
            Some(incident) => Stretch::around(incident, cells),
            None => Stretch::of_trail(view, cells),
        }
    }

    fn of_trail(view: &View<'a>, cells: usize) -> Stretch<'a> {
        let state = view.state;
        let tokens: Vec<&TokenMark> = state.trail.window(view.tokens_back(), cells).collect();
        let first = (state.trail.seen() - view.tokens_back() as u64).saturating_sub(tokens.len() as u64);
        let column = |incident: &Incident| {
            let column = incident.token.checked_sub(first)? as usize;
            (column < tokens.len()).then_some(column)
        };
        let unusual = state.flight.incidents.iter().filter_map(column).collect();
        let (title, cursor) = match view.tokens_back() {
            0 => (format!("tokens · last {}", tokens.len()), None),
            back => (format!("tokens · {} before the newest", grouped(back as i64)), Some(tokens.len() - 1)),
        };
        Stretch { tokens, first, title, cursor, unusual, kept: None }
    }

    fn around(incident: &'a Incident, cells: usize) -> Stretch<'a> {
        let at = incident.tokens.partition_point(|mark| mark.t < incident.at);
        let from = at.saturating_sub(cells / 2).min(incident.tokens.len().saturating_sub(cells));
        let tokens: Vec<&TokenMark> = incident.tokens.iter().skip(from).take(cells).collect();
        let cursor = (at >= from && at - from < tokens.len()).then(|| at - from);
        let title = format!("incident at {:.3} s · {}", incident.at.secs(), incident.describe());
        let first = (incident.token + from as u64).saturating_sub(at as u64);
        let unusual = cursor.into_iter().collect();
        Stretch { tokens, first, title, cursor, unusual, kept: Some(&incident.samples) }
    }

    /// A reading while a token was made: the last look before it.
    pub fn value(&self, series: &Series, kept: fn(&KeptSample) -> Option<f64>, t: Stamp) -> Option<f32> {
        match self.kept {
            None => series.at(t),
            Some(looks) => {
                let before = looks.partition_point(|look| look.t <= t);
                looks[..before].iter().rev().find_map(kept).map(|value| value as f32)
            }
        }
    }
}
