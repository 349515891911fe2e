//! Aligns traces of several clocks by collectives: none ends on one rank before the last rank has begun it.

use std::{collections::BTreeMap, fmt};

use super::{LanePieces, Operation};
use llmprof_base::units::millis;
use llmprof_event::ranks::Collective;

/// Smaller differences are not distinguished from those of the clocks of one machine.
const SAME_NS: i64 = 10_000;
/// The maximum shift between traces beyond the difference of their numbers of collectives.
const MAX_SHIFT: usize = 64;
/// The number of pairs by which a shift is judged.
const JUDGED: usize = 512;

/// The relation of a trace's clock to that of the first trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// The offset that is added to its times.
    pub offset_ns: i64,
    /// The maximum error of the offset if collectives were paired correctly; `None` if nothing bounds it.
    pub error_ns: Option<u64>,
    /// Pairs of collectives.
    pub pairs: usize,
    /// Whether the numbers of collectives differ, so that they were matched by their times.
    pub is_shifted: bool,
}

impl Alignment {
    const UNKNOWN: Alignment = Alignment { offset_ns: 0, error_ns: None, pairs: 0, is_shifted: false };
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: f64| millis(ns / 1e6);
        let Some(error) = self.error_ns else {
            return f.write_str("its clock is used as it is: no collectives in common with the first");
        };
        match self.offset_ns {
            0 => write!(f, "its clock agrees with the first to {}", ms(error as f64))?,
            offset => write!(f, "its clock is moved by {} (± {})", ms(offset as f64), ms(error as f64))?,
        }
        write!(f, ", by {} collectives", self.pairs)?;
        if self.is_shifted {
            f.write_str("; the traces have different numbers of them, so a whole step may be missing")?;
        }
        Ok(())
    }
}

type Ends = Vec<(i128, i128)>;

/// Start and end of mutual collectives by kind, size and communicator, in order.
fn by_key(work: &LanePieces) -> BTreeMap<(Collective, Option<u64>, Option<u64>), Ends> {
    let mut all: BTreeMap<_, Ends> = BTreeMap::new();
    for piece in &work.pieces {
        let Some(Operation { kind, bytes, communicator, .. }) = piece.operation() else { continue };
        if kind.is_mutual() {
            let key = (*kind, *bytes, *communicator);
            all.entry(key).or_default().push((i128::from(piece.start_ns), i128::from(piece.end_ns)));
        }
    }
    all
}

/// The offset of `other`'s clock from `first`'s.
pub fn align(first: &LanePieces, other: &LanePieces) -> Alignment {
    let (a, b) = (by_key(first), by_key(other));
    let mut bounds: Option<(i128, i128)> = None;
    let (mut differences, mut is_shifted) = (Vec::new(), false);
    for (key, theirs) in &b {
        let Some(ours) = a.get(key) else { continue };
        let shift = if ours.len() == theirs.len() { 0 } else { best_shift(ours, theirs) };
        is_shifted |= ours.len() != theirs.len();
        for ((a_start, a_end), (b_start, b_end)) in pairs(ours, theirs, shift) {
            let (low, high) = (a_start - b_end, a_end - b_start);
            bounds = Some(bounds.map_or((low, high), |(l, h)| (l.max(low), h.min(high))));
            differences.push(a_end - b_end);
        }
    }
    let Some((low, high)) = bounds.filter(|(low, high)| low <= high) else {
        return Alignment { pairs: differences.len(), ..Alignment::UNKNOWN };
    };
    let pairs = differences.len();
    // All ranks end a collective at about the same time.
    let middle = pairs / 2;
    let ends = *differences.select_nth_unstable(middle).1;
    let ends = if ends.abs() < i128::from(SAME_NS) { 0 } else { ends };
    let offset = ends.clamp(low, high);
    let error = (offset - low).max(high - offset);
    match (i64::try_from(offset), u64::try_from(error)) {
        (Ok(offset_ns), Ok(error)) => Alignment { offset_ns, error_ns: Some(error), pairs, is_shifted },
        _ => Alignment::UNKNOWN,
    }
}

/// Pairs of the same collective if `theirs` is shifted by `shift`.
fn pairs<'a>(
    ours: &'a [(i128, i128)],
    theirs: &'a [(i128, i128)],
    shift: isize,
) -> impl Iterator<Item = ((i128, i128), (i128, i128))> + 'a {
    let (skip_ours, skip_theirs) = (shift.max(0) as usize, (-shift).max(0) as usize);
    ours.iter().skip(skip_ours).copied().zip(theirs.iter().skip(skip_theirs).copied())
}

/// The shift with the most even differences between the ends; of equal ones, that with the smallest difference of the
/// clocks.
fn best_shift(ours: &[(i128, i128)], theirs: &[(i128, i128)]) -> isize {
    let reach = (ours.len().abs_diff(theirs.len()) + 8).min(MAX_SHIFT) as isize;
    let mut scored: Vec<(i128, i128, isize)> = Vec::new();
    for shift in -reach..=reach {
        let mut ends: Vec<i128> =
            pairs(ours, theirs, shift).take(JUDGED).map(|((_, a), (_, b))| a - b).collect();
        if ends.len() < ours.len().min(theirs.len()).min(JUDGED) / 2 || ends.is_empty() {
            continue;
        }
        let middle = ends.len() / 2;
        let median = *ends.select_nth_unstable(middle).1;
        let mut away: Vec<i128> = ends.iter().map(|end| (end - median).abs()).collect();
        let spread = *away.select_nth_unstable(middle).1;
        scored.push((spread, median.abs(), shift));
    }
    let Some(least) = scored.iter().map(|(spread, ..)| *spread).min() else { return 0 };
    let alike = scored.iter().filter(|(spread, ..)| *spread <= 2 * least + i128::from(SAME_NS));
    alike.min_by_key(|(_, away, shift)| (*away, shift.abs())).map_or(0, |(_, _, shift)| *shift)
}
