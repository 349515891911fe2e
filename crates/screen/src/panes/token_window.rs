//! The tokens on the screen: the newest, those up to the selected one, or those around an incident.

use crate::{ui::Pane, view::View};
use llmprof_base::units::grouped;
use llmprof_event::Stamp;
use llmprof_record::state::{Incident, KeptSample, Series, TokenMark};

pub struct TokenWindow<'a> {
    pub tokens: Vec<&'a TokenMark>,
    /// The index of the first of them, counted from the run's first token.
    pub first: u64,
    pub title: String,
    /// The column of the selected token.
    pub cursor: Option<usize>,
    /// Columns with an incident.
    pub incidents: Vec<usize>,
    /// The GPU samples kept with an incident: the run's history is coarser.
    pub samples: Option<&'a [KeptSample]>,
}

/// The index of the last token of the strip: the newest, or the last one at the time of the selection. A selected token
/// outside of the strip moves it.
fn end_of_strip(newest: u64, selected: u64, held: Option<u64>, cells: usize) -> u64 {
    let shows = |end: u64| selected <= end && end - selected < cells as u64;
    let end = held.unwrap_or(newest).min(newest);
    if shows(end) { end } else { selected.saturating_add(cells as u64 / 5 * 4).min(newest) }
}

impl<'a> TokenWindow<'a> {
    /// At most `cells` tokens, including the selected one.
    pub fn new(view: &View<'a>, cells: usize) -> TokenWindow<'a> {
        match view.open_incident().filter(|_| view.ui.pane == Pane::Tokens) {
            Some(incident) => TokenWindow::around(incident, cells),
            None => TokenWindow::of_trail(view, cells),
        }
    }

    fn of_trail(view: &View<'a>, cells: usize) -> TokenWindow<'a> {
        let state = view.state;
        let newest = state.trail.count().saturating_sub(1);
        let back = view.tokens_back();
        let end = end_of_strip(newest, newest - back as u64, view.ui.token.map(|token| token.end), cells);
        let tokens: Vec<&TokenMark> = state.trail.window((newest - end) as usize, cells).collect();
        let first = (end + 1).saturating_sub(tokens.len() as u64);
        let column = |incident: &Incident| {
            let column = incident.token.checked_sub(first)? as usize;
            (column < tokens.len()).then_some(column)
        };
        let incidents = state.flight.incidents.iter().filter_map(column).collect();
        let (title, cursor) = match back {
            0 => (format!("tokens · last {}", tokens.len()), None),
            _ => {
                let column = tokens.len().checked_sub(1 + (end - (newest - back as u64)) as usize);
                (format!("tokens · {} before the newest", grouped(back as i64)), column)
            }
        };
        TokenWindow { tokens, first, title, cursor, incidents, samples: None }
    }

    fn around(incident: &'a Incident, cells: usize) -> TokenWindow<'a> {
        let at = incident.tokens.partition_point(|mark| mark.t < incident.at);
        let from = at.saturating_sub(cells / 2).min(incident.tokens.len().saturating_sub(cells));
        let tokens: Vec<&TokenMark> = incident.tokens.iter().skip(from).take(cells).collect();
        let cursor = (at >= from && at - from < tokens.len()).then(|| at - from);
        let title = format!("incident at {:.3} s · {}", incident.at.secs(), incident.describe());
        let first = (incident.token + from as u64).saturating_sub(at as u64);
        let incidents = cursor.into_iter().collect();
        TokenWindow { tokens, first, title, cursor, incidents, samples: Some(&incident.samples) }
    }

    /// The last value of a reading before a token.
    pub fn value(&self, series: &Series, of_sample: fn(&KeptSample) -> Option<f64>, t: Stamp) -> Option<f32> {
        match self.samples {
            None => series.at(t),
            Some(samples) => {
                let before = samples.partition_point(|sample| sample.t <= t);
                samples[..before].iter().rev().find_map(of_sample).map(|value| value as f32)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strip_holds_until_the_selected_token_leaves_it() {
        assert_eq!(end_of_strip(1000, 1000, None, 50), 1000);
        assert_eq!(end_of_strip(1000, 960, Some(990), 50), 990);
        // To the left of the strip, or to its right: it moves.
        assert_eq!(end_of_strip(1000, 900, Some(990), 50), 940);
        assert_eq!(end_of_strip(1000, 995, Some(990), 50), 1000);
        assert_eq!(end_of_strip(1000, 10, Some(990), usize::MAX), 990);
        assert_eq!(end_of_strip(0, 0, None, 0), 0);
    }
}
