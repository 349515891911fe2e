//! A track of the trace. Its slices follow each other or nest, whatever the times are.

use super::lines::{Args, Lines, TrackId};
use llmprof_event::Stamp;

pub struct Track {
    pub id: TrackId,
    /// Open slices.
    open: usize,
    /// The end of the last slice.
    until: Stamp,
}

impl Track {
    pub fn new(id: TrackId) -> Track {
        Track { id, open: 0, until: Stamp::default() }
    }

    pub fn is_open(&self) -> bool {
        self.open > 0
    }

    /// Begins a slice. Perfetto sorts complete slices before a begin of the same moment, so a track has either begins and
    /// ends or [`slice`](Self::slice)s.
    pub fn begin(&mut self, lines: &mut Lines, t: Stamp, name: &str, args: Args<'_>) {
        self.until = self.until.max(t);
        self.open += 1;
        lines.begin(self.id, self.until, name, args);
    }

    /// Ends the last open slice, if there is one.
    pub fn end(&mut self, lines: &mut Lines, t: Stamp) {
        self.until = self.until.max(t);
        if let Some(left) = self.open.checked_sub(1) {
            self.open = left;
            lines.end(self.id, self.until);
        }
    }

    pub fn end_all(&mut self, lines: &mut Lines, t: Stamp) {
        while self.is_open() {
            self.end(lines, t);
        }
    }

    /// A complete slice without the part that overlaps the previous one. Returns the rest, if there is one.
    pub fn slice(
        &mut self,
        lines: &mut Lines,
        (from, to): (Stamp, Stamp),
        name: &str,
        args: Args<'_>,
    ) -> Option<(Stamp, Stamp)> {
        let from = from.max(self.until);
        let ns = to.0.checked_sub(from.0)?;
        self.until = to;
        lines.slice(self.id, from, ns, name, args);
        Some((from, to))
    }

    /// A track for slices inside a slice of this track.
    pub fn within(&self, (from, _): (Stamp, Stamp)) -> Track {
        Track { until: from, ..Track::new(self.id) }
    }
}
