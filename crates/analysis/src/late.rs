//! Late chunks of a server's streams: the time lost, and the causes.

use std::{collections::VecDeque, fmt, time::Duration};

use super::distribution::Distribution;
use llmprof_event::Stamp;

/// A cache above this utilisation makes requests wait or be preempted.
pub(super) const FULL_CACHE: f64 = 0.95;
/// A chunk is late if its gap is this many times the median gap, and longer by at least `LATE`.
pub const FACTOR: f64 = 1.5;
pub const LATE: Duration = Duration::from_millis(2);
/// The median gap is known after this many chunks.
const MIN_CHUNKS: u64 = 50;
/// The median gap is computed again after this many chunks.
const RENEW: u64 = 512;
/// Servers and GPUs report events with up to this delay.
const SETTLE: Duration = Duration::from_millis(1500);
/// Maximum late chunks and facts that wait; beyond this the oldest are processed.
const KEPT: usize = 4096;
/// This many times the usual number of streams is a larger batch.
const GROWN: f64 = 1.25;
/// A reading of the GPU applies to this time around it.
const AROUND: Duration = Duration::from_millis(150);

/// The cause of a late chunk. Each explains at most what it can cost; the next explains the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LateCause {
    ClientLag,
    Throttling,
    Preemption,
    /// Another request got its first chunk.
    Prefill,
    /// More streams than usual.
    BatchGrowth,
    KvPressure,
    Unknown,
}

impl LateCause {
    pub const ALL: [LateCause; 7] = [
        LateCause::ClientLag,
        LateCause::Throttling,
        LateCause::Preemption,
        LateCause::Prefill,
        LateCause::BatchGrowth,
        LateCause::KvPressure,
        LateCause::Unknown,
    ];

    /// The name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            LateCause::ClientLag => "client_lag",
            LateCause::Throttling => "throttling",
            LateCause::Preemption => "preemption",
            LateCause::Prefill => "prefill",
            LateCause::BatchGrowth => "batch_growth",
            LateCause::KvPressure => "kv_pressure",
            LateCause::Unknown => "unknown",
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            LateCause::ClientLag => "the client's delay",
            LateCause::Throttling => "throttling",
            LateCause::Preemption => "preemption",
            LateCause::Prefill => "prefill of another request",
            LateCause::BatchGrowth => "a larger batch",
            LateCause::KvPressure => "a full KV cache",
            LateCause::Unknown => "unknown",
        }
    }
}

impl fmt::Display for LateCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Chunks of which it is the largest cause.
    pub chunks: u64,
    /// The time beyond the median gap.
    pub ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct LateChunk {
    request: u32,
    from: Stamp,
    to: Stamp,
    usual_ns: u64,
    /// Streams at its end.
    streams: usize,
    has_grown: bool,
    /// The number of its stall, counted from the first.
    stall: u64,
}

/// Late chunks that arrive together: a step that took long is late for all of its streams.
#[derive(Debug, Clone, Copy)]
struct Stall {
    last: Stamp,
    late: usize,
}

/// A fact about the time between two moments.
#[derive(Debug, Clone, Copy)]
struct Fact {
    from: Stamp,
    to: Stamp,
    what: CauseKind,
}

#[derive(Debug, Clone, Copy)]
enum CauseKind {
    /// The maximum factor by which work takes longer at this clock.
    Throttled(f64),
    /// The number of requests that were preempted.
    Preempted(u64),
    FullCache,
    /// The first chunk of a request that started at `since`.
    FirstChunk {
        request: u32,
        since: Stamp,
    },
    ClientLag(Duration),
}

/// Gaps between chunks, and the causes of the late ones.
#[derive(Debug, Clone, Default)]
pub struct LateChunks {
    gaps: Distribution,
    usual_ns: Option<u64>,
    usual_streams: f64,
    total_ns: u64,
    waiting: VecDeque<LateChunk>,
    facts: VecDeque<Fact>,
    /// The stalls of the chunks that wait, and how many came before these.
    stalls: VecDeque<Stall>,
    past_stalls: u64,
    /// The time between readings of the server, and the part of it with a full cache.
    read_ns: u64,
    full_ns: u64,
    last_server: Option<Stamp>,
    last_client: Option<Stamp>,
    last_gpu: Option<Stamp>,
    lost: [Lost; LateCause::ALL.len()],
    /// First chunks, the steps that they came from, and the time of the last one.
    firsts: u64,
    first_steps: u64,
    last_first: Option<Stamp>,
}

impl LateChunks {
    /// A chunk of `request` other than its first, while `streams` requests were being answered.
    pub fn chunk(&mut self, from: Stamp, to: Stamp, request: u32, streams: usize) {
        let gap_ns = to.since(from).as_nanos() as u64;
        self.total_ns = self.total_ns.saturating_add(gap_ns);
        if let Some(usual_ns) = self.usual_ns
            && gap_ns as f64 > FACTOR * usual_ns as f64
            && gap_ns > usual_ns + LATE.as_nanos() as u64
        {
            let has_grown = streams as f64 >= GROWN * self.usual_streams;
            let stall = self.stall(to);
            self.waiting.push_back(LateChunk { request, from, to, usual_ns, streams, has_grown, stall });
        }
        self.gaps.record(gap_ns);
        let n = self.gaps.n();
        let weight = 1.0 / n.min(4 * RENEW) as f64;
        self.usual_streams += weight * (streams as f64 - self.usual_streams);
        if n == MIN_CHUNKS || n.is_multiple_of(RENEW) {
            self.usual_ns = self.gaps.percentile_ms(50.0).map(|ms| (ms * 1e6) as u64);
        }
        self.settle(to);
    }

    /// Counts a late chunk that ends at `t`; returns the number of its stall.
    fn stall(&mut self, t: Stamp) -> u64 {
        let moment = self.moment();
        match self.stalls.back_mut().filter(|stall| t.since(stall.last) <= moment) {
            Some(stall) => *stall = Stall { last: t, late: stall.late + 1 },
            None => self.stalls.push_back(Stall { last: t, late: 1 }),
        }
        self.past_stalls + self.stalls.len() as u64 - 1
    }

    /// Chunks of one step arrive within this time.
    fn moment(&self) -> Duration {
        Duration::from_nanos(self.usual_ns.unwrap_or(0) / 2)
    }

    /// The first chunk of `request`, which started at `since`.
    pub fn first_chunk(&mut self, t: Stamp, request: u32, since: Stamp) {
        let moment = self.moment();
        let together = moment.max(Duration::from_millis(1));
        let is_same_step = self.last_first.replace(t).is_some_and(|last| t.since(last) <= together);
        self.firsts += 1;
        self.first_steps += u64::from(!is_same_step);
        // Other chunks of the same step arrive a moment earlier or later.
        self.fact(t - moment, t + moment, CauseKind::FirstChunk { request, since });
    }

    /// A reading of the server's own metrics: preemptions and cache.
    pub fn server(&mut self, t: Stamp, preemptions: Option<f64>, kv_used: Option<f64>) {
        let from = self.last_server.replace(t).unwrap_or(t - Duration::from_secs(1));
        if let Some(n) = preemptions.filter(|n| *n > 0.0) {
            self.fact(from, t, CauseKind::Preempted(n.ceil() as u64));
        }
        let ns = t.since(from).as_nanos() as u64;
        self.read_ns += ns;
        if kv_used.is_some_and(|share| share >= FULL_CACHE) {
            self.full_ns += ns;
            self.fact(from, t, CauseKind::FullCache);
        }
    }

    /// The client's longest delay since its last report.
    pub fn client(&mut self, t: Stamp, lag: Duration) {
        let from = self.last_client.replace(t).unwrap_or(t - Duration::from_secs(1));
        if lag >= LATE / 2 {
            self.fact(from, t, CauseKind::ClientLag(lag));
        }
    }

    /// A reading of the GPU: its maximum clock over its clock, if it is throttled. It covers the time since the
    /// previous one.
    pub fn gpu(&mut self, t: Stamp, slower: Option<f64>) {
        let last = self.last_gpu.replace(t).unwrap_or(t - AROUND);
        if let Some(slower) = slower {
            let from = last.min(t - AROUND).max(t - SETTLE);
            self.fact(from, t + AROUND, CauseKind::Throttled(slower));
        }
    }

    fn fact(&mut self, from: Stamp, to: Stamp, what: CauseKind) {
        if self.facts.len() == KEPT {
            self.facts.pop_front();
        }
        self.facts.push_back(Fact { from, to, what });
    }

    /// Attributes the late chunks for which no more facts will arrive.
    fn settle(&mut self, now: Stamp) {
        while let Some(chunk) = self.waiting.front().copied() {
            if chunk.to + SETTLE > now && self.waiting.len() <= KEPT {
                break;
            }
            self.waiting.pop_front();
            self.attribute(chunk);
        }
        let oldest = self.waiting.front().map_or(now, |chunk| chunk.from);
        let keep = oldest - SETTLE - SETTLE;
        while self.facts.front().is_some_and(|fact| fact.to < keep) {
            self.facts.pop_front();
        }
        let first =
            self.waiting.front().map_or(self.past_stalls + self.stalls.len() as u64, |chunk| chunk.stall);
        // The newest stall may get more chunks.
        while self.past_stalls < first && self.stalls.len() > 1 {
            self.stalls.pop_front();
            self.past_stalls += 1;
        }
    }

    /// Ends the fold: no more facts will arrive.
    pub fn end(&mut self) {
        while let Some(chunk) = self.waiting.pop_front() {
            self.attribute(chunk);
        }
    }

    fn attribute(&mut self, chunk: LateChunk) {
        let lost_ns = (chunk.to.since(chunk.from).as_nanos() as u64).saturating_sub(chunk.usual_ns);
        let mut most_ns = [0; LateCause::ALL.len()];
        let mut claim = |cause: LateCause, ns: u64| {
            let most = &mut most_ns[cause as usize];
            *most = ns.max(*most);
        };
        let stall = chunk.stall.checked_sub(self.past_stalls).and_then(|i| self.stalls.get(i as usize));
        let late = stall.map_or(1, |stall| stall.late);
        // A full cache that is usual does not explain what is not.
        let is_cache_usually_full = self.full_ns * 2 > self.read_ns;
        let mut preempted_by = None;
        let meanwhile = |fact: &Fact| fact.from < chunk.to && fact.to > chunk.from;
        for (i, fact) in self.facts.iter().enumerate().filter(|(_, fact)| meanwhile(fact)) {
            match fact.what {
                // The usual work takes longer at a lower clock.
                CauseKind::Throttled(slower) => {
                    claim(LateCause::Throttling, ((slower - 1.0).max(0.0) * chunk.usual_ns as f64) as u64);
                }
                // It stops the preempted requests, not the others.
                CauseKind::Preempted(left) if left > 0 && 2 * late <= chunk.streams.max(2) => {
                    preempted_by.get_or_insert(i);
                    claim(LateCause::Preemption, lost_ns);
                }
                CauseKind::FullCache if !is_cache_usually_full => claim(LateCause::KvPressure, lost_ns),
                // It stops all streams, since its request was there.
                CauseKind::FirstChunk { request, since }
                    if request != chunk.request && 2 * late >= chunk.streams =>
                {
                    let ns = chunk.to.since(since.max(chunk.from)).as_nanos() as u64;
                    claim(LateCause::Prefill, ns.min(lost_ns));
                }
                // The longest delay of a second was at another moment, unless it explains most of the loss.
                CauseKind::ClientLag(lag) if 2 * lag.as_nanos() as u64 >= lost_ns => {
                    claim(LateCause::ClientLag, lag.as_nanos() as u64);
                }
                CauseKind::Preempted(_)
                | CauseKind::FullCache
                | CauseKind::FirstChunk { .. }
                | CauseKind::ClientLag(_) => {}
            }
        }
        if chunk.has_grown {
            claim(LateCause::BatchGrowth, lost_ns);
        }
        if let Some(Fact { what: CauseKind::Preempted(left), .. }) =
            preempted_by.and_then(|i| self.facts.get_mut(i))
        {
            *left -= 1;
        }
        most_ns[LateCause::Unknown as usize] = lost_ns;
        let mut left_ns = lost_ns;
        let mut largest = (0, LateCause::Unknown);
        for cause in LateCause::ALL {
            let ns = most_ns[cause as usize].min(left_ns);
            left_ns -= ns;
            self.lost[cause as usize].ns += ns;
            if ns > largest.0 {
                largest = (ns, cause);
            }
        }
        self.lost[largest.1 as usize].chunks += 1;
    }

    /// The sum of all gaps of all streams: elapsed time times concurrent streams.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The share of the prompts of a prefill that are the request's own, as a mean over requests: one of several whose
    /// first chunks arrive together.
    pub fn own_prompt_share(&self) -> Option<f64> {
        (self.firsts > 0).then(|| self.first_steps as f64 / self.firsts as f64)
    }

    /// The number of gaps.
    pub fn gaps(&self) -> u64 {
        self.gaps.n()
    }

    /// The median gap.
    pub fn usual_ms(&self) -> Option<f64> {
        self.usual_ns.map(|ns| ns as f64 / 1e6)
    }

    /// By cause, the largest first.
    pub fn by_cause(&self) -> Vec<(LateCause, Lost)> {
        let mut all: Vec<_> =
            LateCause::ALL.into_iter().map(|cause| (cause, self.lost[cause as usize])).collect();
        all.retain(|(_, lost)| lost.ns > 0);
        all.sort_by_key(|(_, lost)| std::cmp::Reverse(lost.ns));
        all
    }

    /// The time lost to late chunks, as a share of the time between chunks.
    pub fn share(&self) -> Option<f64> {
        let lost: u64 = self.lost.iter().map(|lost| lost.ns).sum();
        (self.total_ns > 0 && self.usual_ns.is_some()).then(|| lost as f64 / self.total_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    /// Two streams with gaps of 10 ms for 2 s; then a gap of 60 ms in stream 0 from 2,000 to 2,060 ms, and 40 ms more.
    fn late(meanwhile: impl Fn(&mut LateChunks), streams: usize) -> LateChunks {
        let mut late = LateChunks::default();
        for n in 0..200 {
            for request in 0..2 {
                late.chunk(at(10 * n), at(10 * n + 10), request, 2);
            }
        }
        meanwhile(&mut late);
        late.chunk(at(2000), at(2060), 0, streams);
        late.end();
        late
    }

    #[test]
    fn each_cause_is_found() {
        let full = |late: &mut LateChunks, preemptions| {
            late.server(at(1000), Some(0.0), Some(0.5));
            late.server(at(2000), Some(0.0), Some(0.5));
            late.server(at(2500), Some(preemptions), Some(0.99));
        };
        // The cause, and the milliseconds of 50 that it explains.
        for (expected, ms, meanwhile, streams) in [
            (LateCause::Unknown, 50, &(|_: &mut LateChunks| {}) as &dyn Fn(&mut LateChunks), 2),
            // The usual 10 ms take 40 at a quarter of the clock.
            (LateCause::Throttling, 30, &|late| late.gpu(at(2050), Some(4.0)), 2),
            (LateCause::Throttling, 0, &|late| late.gpu(at(2050), Some(1.015)), 2),
            (LateCause::Preemption, 50, &|late| full(late, 1.0), 2),
            (LateCause::KvPressure, 50, &|late| full(late, 0.0), 2),
            (LateCause::Prefill, 50, &|late| late.first_chunk(at(2058), 7, at(1900)), 2),
            // Its request came later.
            (LateCause::Prefill, 20, &|late| late.first_chunk(at(2058), 7, at(2040)), 2),
            // One late stream of four: the others got their tokens meanwhile.
            (LateCause::Prefill, 0, &|late| late.first_chunk(at(2058), 7, at(1900)), 5),
            (LateCause::BatchGrowth, 50, &|_| {}, 4),
            (LateCause::ClientLag, 40, &|late| late.client(at(2500), Duration::from_millis(40)), 2),
        ] {
            let late = late(meanwhile, streams);
            let found = late.by_cause();
            let of = |cause| found.iter().find(|(known, _)| *known == cause).map_or(0, |(_, lost)| lost.ns);
            assert!(of(expected).abs_diff(ms * 1_000_000) < 400_000, "{expected}: {found:?}");
            let sum: u64 = found.iter().map(|(_, lost)| lost.ns).sum();
            assert!(sum.abs_diff(50_000_000) < 200_000, "{found:?}");
            assert_eq!(found.iter().map(|(_, lost)| lost.chunks).sum::<u64>(), 1);
        }
    }

    #[test]
    fn a_cache_that_is_always_full_explains_nothing() {
        let full = |late: &mut LateChunks| (0..4).for_each(|s| late.server(at(1000 * s), None, Some(1.0)));
        assert_eq!(late(full, 2).by_cause()[0].0, LateCause::Unknown);
    }

    #[test]
    fn a_preemption_stops_one_request() {
        let mut late = LateChunks::default();
        for n in 0..200 {
            (0..8).for_each(|request| late.chunk(at(10 * n), at(10 * n + 10), request, 8));
        }
        // Two requests stop, one preemption is counted.
        late.server(at(2500), Some(1.0), None);
        late.chunk(at(2000), at(2100), 0, 8);
        late.chunk(at(2000), at(2200), 1, 8);
        late.end();
        let found = late.by_cause();
        assert_eq!(found.iter().map(|(_, lost)| lost.chunks).collect::<Vec<_>>(), [1, 1], "{found:?}");
    }

    #[test]
    fn events_at_another_time_are_no_cause() {
        let elsewhere = |late: &mut LateChunks| {
            late.gpu(at(1500), Some(3.0));
            late.first_chunk(at(1990), 7, at(1900));
            // A request's own first chunk is not another request's.
            late.first_chunk(at(2050), 0, at(2000));
            late.server(at(1900), Some(3.0), None);
            late.client(at(1950), Duration::from_millis(80));
            late.client(at(2800), Duration::from_millis(3));
        };
        assert_eq!(late(elsewhere, 2).by_cause()[0].0, LateCause::Unknown);
    }

    #[test]
    fn no_token_is_late_before_the_median_gap_is_known() {
        let mut late = LateChunks::default();
        late.chunk(at(0), at(5000), 0, 1);
        late.end();
        assert_eq!((late.share(), late.by_cause()), (None, Vec::new()));
    }

    proptest! {
        #[test]
        fn the_loss_is_at_most_the_elapsed_time(gaps in prop::collection::vec((0u64..200, 0u32..4, 1usize..9, 0u8..6), 0..400)) {
            let mut late = LateChunks::default();
            let mut t = 0;
            for (gap, request, streams, fact) in gaps {
                late.chunk(at(t), at(t + gap), request, streams);
                t += gap;
                match fact {
                    0 => late.gpu(at(t), Some(3.0)),
                    1 => late.first_chunk(at(t), request, at(t.saturating_sub(50))),
                    2 => late.server(at(t), Some(1.0), Some(1.0)),
                    3 => late.client(at(t), Duration::from_millis(gap)),
                    _ => {}
                }
            }
            late.end();
            prop_assert!(late.share().is_none_or(|share| (0.0..=1.0).contains(&share)));
        }
    }
}
