//! The activity of each lane in a time in which all of them were recorded.

use std::collections::BTreeMap;

use super::{
    LanePieces, PieceKind,
    matching::{Instance, instances},
};
use llmprof_event::{
    Stamp,
    ranks::{Collective, CollectiveWindow, LaneSums, RanksWindow},
};

/// Characters of a lane's timeline.
const CELLS: u64 = 480;
/// The longest time that a timeline shows if steps are not known.
const PICTURE_NS: u64 = 20_000_000;
/// Maximum times of a collective, or of steps, that a window keeps.
const KEPT_TIMES: usize = 15;
/// Rows of collectives in a window; operations beyond them have no size.
const MAX_ROWS: usize = 64;

/// Intervals that do not overlap, in order.
#[derive(Debug, Default)]
struct Times(Vec<(u64, u64)>);

impl Times {
    /// Merges intervals.
    fn union(mut intervals: Vec<(u64, u64)>) -> Times {
        intervals.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in intervals {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ if end > start => merged.push((start, end)),
                _ => {}
            }
        }
        Times(merged)
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    fn within(&self, from: u64, to: u64) -> u64 {
        let first = self.0.partition_point(|(_, end)| *end <= from);
        let inside = self.0[first..].iter().take_while(|(start, _)| *start < to);
        inside.map(|(start, end)| (*end).min(to) - (*start).max(from)).sum()
    }

    /// The part of `self` that is in none of `others`.
    fn without(&self, others: &Times) -> Times {
        let mut left = Vec::new();
        for (start, end) in &self.0 {
            let mut at = *start;
            let first = others.0.partition_point(|(_, other_end)| *other_end <= at);
            for (other_start, other_end) in others.0[first..].iter().take_while(|(start, _)| start < end) {
                if *other_start > at {
                    left.push((at, *other_start));
                }
                at = at.max(*other_end);
            }
            if at < *end {
                left.push((at, *end));
            }
        }
        Times(left)
    }
}

/// The times of a lane by kind, none of which overlap.
struct Lane {
    compute: Times,
    /// Time in a collective that another rank had not begun.
    wait: Times,
    /// The rest of collectives.
    nccl: Times,
    copy: Times,
}

impl Lane {
    fn new(work: &LanePieces, waits: Vec<(u64, u64)>, (from, to): (u64, u64)) -> Lane {
        let clipped = |wanted: fn(&PieceKind) -> bool| {
            let pieces = work.pieces.iter().filter(|piece| wanted(&piece.kind));
            Times::union(
                pieces
                    .map(|piece| (piece.start_ns.clamp(from, to), piece.end_ns.clamp(from, to)))
                    .filter(|(start, end)| end > start)
                    .collect(),
            )
        };
        let compute = clipped(|kind| matches!(kind, PieceKind::Compute));
        let collective = clipped(|kind| matches!(kind, PieceKind::Collective(_))).without(&compute);
        let waits = waits.into_iter().map(|(start, end)| (start.clamp(from, to), end.clamp(from, to)));
        let wait = Times::union(waits.filter(|(start, end)| end > start).collect()).without(&compute);
        let nccl = collective.without(&wait);
        let copy = clipped(|kind| matches!(kind, PieceKind::Copy)).without(&compute).without(&collective);
        Lane { compute, wait, nccl, copy }
    }

    fn picture(&self, from: u64, to: u64) -> String {
        let ns = (to - from).max(1);
        let edge = |cell: u64| from + (u128::from(ns) * u128::from(cell) / u128::from(CELLS)) as u64;
        (0..CELLS)
            .map(|cell| {
                let (start, end) = (edge(cell), edge(cell + 1));
                let kinds = [('c', &self.compute), ('w', &self.wait), ('n', &self.nccl), ('m', &self.copy)];
                let times = kinds.map(|(sign, times)| (times.within(start, end), sign));
                let busy: u64 = times.iter().map(|(ns, _)| ns).sum();
                let idle = (end - start).saturating_sub(busy);
                match times.into_iter().max_by_key(|(ns, _)| *ns) {
                    Some((1.., sign)) if idle > busy => sign.to_ascii_uppercase(),
                    Some((1.., sign)) => sign,
                    _ => '.',
                }
            })
            .collect()
    }
}

/// The lanes from `from_ns` to `to_ns`, in which all of them were recorded. Clocks of the lanes agree to `slack_ns`.
/// Pieces are sorted by start; those that begin outside of the interval are not counted, and those that end outside are
/// cut.
pub fn window(lanes: &[LanePieces], from_ns: u64, to_ns: u64, slack_ns: u64) -> RanksWindow {
    let to_ns = to_ns.max(from_ns);
    let begins = |start: u64| (from_ns..to_ns).contains(&start);
    let all = instances(lanes, slack_ns);
    let within: Vec<&Instance> =
        all.iter().filter(|instance| instance.last().is_some_and(|last| begins(last.start_ns))).collect();
    let mut waits: Vec<Vec<(u64, u64)>> = vec![Vec::new(); lanes.len()];
    let mut sums: Vec<LaneSums> =
        lanes.iter().map(|work| LaneSums { lane: work.lane.clone(), ..LaneSums::default() }).collect();
    for instance in within.iter().filter(|instance| instance.is_complete) {
        let Some(last) = instance.last() else { continue };
        sums[last.lane].last += 1;
        for member in &instance.members {
            sums[member.lane].matched += 1;
            let (start, until) = (member.start_ns.max(from_ns), last.start_ns.min(member.end_ns));
            if until > start {
                waits[member.lane].push((start, until));
                sums[last.lane].caused_ns += until - start;
            }
        }
    }
    let picture = picture_span(lanes, from_ns, to_ns);
    for ((work, sums), waits) in lanes.iter().zip(&mut sums).zip(waits) {
        let lane = Lane::new(work, waits, (from_ns, to_ns));
        sums.compute_ns = lane.compute.total();
        sums.wait_ns = lane.wait.total();
        sums.nccl_ns = lane.nccl.total() + sums.wait_ns;
        sums.copy_ns = lane.copy.total();
        sums.idle_ns = (to_ns - from_ns).saturating_sub(sums.compute_ns + sums.nccl_ns + sums.copy_ns);
        for piece in work.pieces.iter().filter(|piece| begins(piece.start_ns)) {
            match piece.kind {
                PieceKind::Compute => sums.kernels += 1,
                PieceKind::Collective(_) => sums.collectives += 1,
                PieceKind::Copy => {}
            }
        }
        let whole = work.steps.windows(2).filter(|pair| begins(pair[0].0) && begins(pair[1].0));
        let mut times: Vec<u64> = whole.map(|pair| pair[1].0.saturating_sub(pair[0].0)).collect();
        times.sort_unstable();
        sums.steps = times.len() as u64;
        sums.step_ns = times.iter().sum();
        sums.step_times_ns = thinned(times);
        if let Some((from, to)) = picture {
            sums.picture = lane.picture(from, to);
        }
    }
    RanksWindow {
        from: Stamp(from_ns),
        span_ns: to_ns - from_ns,
        collectives: collectives(lanes, &within, begins),
        lanes: sums,
        picture_ns: picture.map_or(0, |(from, to)| to - from),
        clock_error_ns: None,
    }
}

/// A step in the middle of the time, or a part of the time.
fn picture_span(lanes: &[LanePieces], from: u64, to: u64) -> Option<(u64, u64)> {
    let middle = from + (to - from) / 2;
    let steps = lanes.iter().map(|work| &work.steps).find(|steps| !steps.is_empty());
    let whole = |pair: &&[(u64, u64)]| pair[0].0 >= from && pair[1].0 <= to && pair[1].0 > pair[0].0;
    let step =
        steps.and_then(|steps| steps.windows(2).filter(whole).min_by_key(|pair| pair[0].0.abs_diff(middle)));
    match step {
        Some(pair) if pair[1].0 - pair[0].0 <= 50 * PICTURE_NS => Some((pair[0].0, pair[1].0)),
        _ => Some((middle, to.min(middle + PICTURE_NS))).filter(|(from, to)| to > from),
    }
}

#[derive(Default)]
struct CollectiveSums {
    calls: u64,
    times_ns: Vec<u64>,
    matched: u64,
    wait_ns: u64,
}

fn collectives(
    lanes: &[LanePieces],
    instances: &[&Instance],
    begins: impl Fn(u64) -> bool,
) -> Vec<CollectiveWindow> {
    let mut rows: BTreeMap<(Collective, Option<u64>, u32), CollectiveSums> = BTreeMap::new();
    let mut row_of =
        |kind: Collective, bytes: Option<u64>, ranks: u32, add: &mut dyn FnMut(&mut CollectiveSums)| {
            let key = (kind, bytes, ranks);
            let full = rows.len() >= MAX_ROWS && !rows.contains_key(&key);
            add(rows.entry(if full { (kind, None, ranks) } else { key }).or_default());
        };
    for instance in instances {
        let (operation, members) = (&instance.operation, &instance.members);
        let ranks = operation.ranks.unwrap_or(0).max(members.len() as u32);
        row_of(operation.kind, operation.bytes, ranks, &mut |row| {
            row.calls += 1;
            let Some(last) = instance.last().filter(|_| instance.is_complete) else { return };
            row.matched += 1;
            row.times_ns.push(instance.end_ns().saturating_sub(last.start_ns));
            for member in members {
                row.wait_ns += last.start_ns.min(member.end_ns).saturating_sub(member.start_ns);
            }
        });
    }
    // One rank may end a broadcast before another begins: times are those of each kernel.
    for piece in lanes.iter().flat_map(|work| &work.pieces).filter(|piece| begins(piece.start_ns)) {
        let Some(operation) = piece.operation().filter(|operation| !operation.kind.is_mutual()) else {
            continue;
        };
        let ranks = operation.ranks.unwrap_or(lanes.len() as u32);
        row_of(operation.kind, operation.bytes, ranks, &mut |row| {
            row.calls += 1;
            row.times_ns.push(piece.end_ns.saturating_sub(piece.start_ns));
        });
    }
    rows.into_iter()
        .map(|((kind, bytes, ranks), mut row)| {
            row.times_ns.sort_unstable();
            CollectiveWindow {
                kind,
                bytes,
                ranks,
                calls: row.calls,
                matched: row.matched,
                times_ns: thinned(row.times_ns),
                wait_ns: row.wait_ns,
            }
        })
        .collect()
}

/// Values in the middle of equal parts of a sorted list: their median is that of the list.
fn thinned(sorted: Vec<u64>) -> Vec<u64> {
    if sorted.len() <= KEPT_TIMES {
        return sorted;
    }
    (0..KEPT_TIMES).map(|part| sorted[(2 * part + 1) * sorted.len() / (2 * KEPT_TIMES)]).collect()
}
