//! A track of the trace, whose slices lie one after another or within each other, whatever the stamps are like.

use super::lines::{Args, Lines, Place};
use crate::event::Stamp;

pub struct Track {
    pub place: Place,
    /// Beginnings that have no end yet.
    open: usize,
    /// How far it is drawn.
    until: Stamp,
}

impl Track {
    pub fn new(place: Place) -> Track {
        Track { place, open: 0, until: Stamp::default() }
    }

    pub fn is_open(&self) -> bool {
        self.open > 0
    }

    /// From `t` on, until an end. Perfetto puts whole slices before a beginning of the same moment, so a track has either
    /// beginnings and ends or [`slice`](Self::slice)s.
    pub fn begin(
        &mut self,
        lines: &mut Lines,
        out: &mut String,
        t: Stamp,
        name: &str,
        args: &[(&str, Args<'_>)],
    ) {
        self.until = self.until.max(t);
        self.open += 1;
        lines.begin(out, self.place, self.until, name, args);
    }

    /// Ends what began last, where anything did.
    pub fn end(&mut self, lines: &mut Lines, out: &mut String, t: Stamp) {
        self.until = self.until.max(t);
        if let Some(left) = self.open.checked_sub(1) {
            self.open = left;
            lines.end(out, self.place, self.until);
        }
    }

    pub fn end_all(&mut self, lines: &mut Lines, out: &mut String, t: Stamp) {
        while self.is_open() {
            self.end(lines, out, t);
        }
    }

    /// A whole slice, less what is drawn already; gives what is left of it, if anything is.
    pub fn slice(
        &mut self,
        lines: &mut Lines,
        out: &mut String,
        (from, to): (Stamp, Stamp),
        name: &str,
        args: &[(&str, Args<'_>)],
    ) -> Option<(Stamp, Stamp)> {
        let from = from.max(self.until);
        let ns = to.0.checked_sub(from.0)?;
        self.until = to;
        lines.slice(out, self.place, from, ns, name, args);
        Some((from, to))
    }

    /// The inside of a slice of this track.
    pub fn within(&self, (from, _): (Stamp, Stamp)) -> Track {
        Track { until: from, ..Track::new(self.place) }
    }
}
