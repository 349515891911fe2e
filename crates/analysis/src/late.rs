//! Late chunks of a server's streams: the time lost, and the causes.

use std::{collections::VecDeque, fmt, time::Duration};

use super::{distribution::Distribution, server::FULL_CACHE};
use llmprof_event::Stamp;

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

/// The cause of a late chunk. The first that applies counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LateCause {
    /// The client's delay was at least half of the lost time.
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
    has_grown: bool,
}

/// A fact about the time between two moments.
#[derive(Debug, Clone, Copy)]
struct Fact {
    from: Stamp,
    to: Stamp,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// The maximum factor by which work takes longer at this clock.
    Throttled(f64),
    Preempted,
    FullCache,
    FirstChunk(u32),
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
    last_server: Option<Stamp>,
    last_client: Option<Stamp>,
    last_gpu: Option<Stamp>,
    lost: [Lost; LateCause::ALL.len()],
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
            self.waiting.push_back(LateChunk { request, from, to, usual_ns, has_grown });
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

    pub fn first_chunk(&mut self, t: Stamp, request: u32) {
        // Other chunks of the same step arrive a moment later.
        let until = t + Duration::from_nanos(self.usual_ns.unwrap_or(0) / 2);
        self.fact(t, until, What::FirstChunk(request));
    }

    /// A reading of the server's own metrics: preemptions and cache.
    pub fn server(&mut self, t: Stamp, preemptions: Option<f64>, kv_used: Option<f64>) {
        let from = self.last_server.replace(t).unwrap_or(t - Duration::from_secs(1));
        if preemptions.is_some_and(|n| n > 0.0) {
            self.fact(from, t, What::Preempted);
        }
        if kv_used.is_some_and(|share| share >= FULL_CACHE) {
            self.fact(from, t, What::FullCache);
        }
    }

    /// The client's longest delay since its last report.
    pub fn client(&mut self, t: Stamp, lag: Duration) {
        let from = self.last_client.replace(t).unwrap_or(t - Duration::from_secs(1));
        if lag >= LATE / 2 {
            self.fact(from, t, What::ClientLag(lag));
        }
    }

    /// A reading of the GPU: its maximum clock over its clock, if it is throttled. It covers the time since the
    /// previous one.
    pub fn gpu(&mut self, t: Stamp, slower: Option<f64>) {
        let last = self.last_gpu.replace(t).unwrap_or(t - AROUND);
        if let Some(slower) = slower {
            let from = last.min(t - AROUND).max(t - SETTLE);
            self.fact(from, t + AROUND, What::Throttled(slower));
        }
    }

    fn fact(&mut self, from: Stamp, to: Stamp, what: What) {
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
    }

    /// Ends the fold: no more facts will arrive.
    pub fn end(&mut self) {
        while let Some(chunk) = self.waiting.pop_front() {
            self.attribute(chunk);
        }
    }

    fn attribute(&mut self, chunk: LateChunk) {
        let lost_ns = (chunk.to.since(chunk.from).as_nanos() as u64).saturating_sub(chunk.usual_ns);
        let causes = self.facts.iter().filter(|fact| fact.from < chunk.to && fact.to > chunk.from);
        let causes = causes.filter_map(|fact| match fact.what {
            // A clock that is 1 % lower does not explain a chunk that is late by half.
            What::Throttled(slower) => {
                let most_ns = (slower - 1.0) * chunk.usual_ns as f64;
                (2.0 * most_ns >= lost_ns as f64).then_some(LateCause::Throttling)
            }
            What::Preempted => Some(LateCause::Preemption),
            What::FullCache => Some(LateCause::KvPressure),
            What::FirstChunk(other) => (other != chunk.request).then_some(LateCause::Prefill),
            What::ClientLag(lag) => (2 * lag.as_nanos() as u64 >= lost_ns).then_some(LateCause::ClientLag),
        });
        let grown = chunk.has_grown.then_some(LateCause::BatchGrowth);
        let cause = causes.chain(grown).min().unwrap_or(LateCause::Unknown);
        let lost = &mut self.lost[cause as usize];
        lost.chunks += 1;
        lost.ns += lost_ns;
    }

    /// The sum of all gaps of all streams: elapsed time times concurrent streams.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The median gap.
    pub fn usual_ms(&self) -> Option<f64> {
        self.usual_ns.map(|ns| ns as f64 / 1e6)
    }

    /// By cause, the largest first.
    pub fn by_cause(&self) -> Vec<(LateCause, Lost)> {
        let mut all: Vec<_> =
            LateCause::ALL.into_iter().map(|cause| (cause, self.lost[cause as usize])).collect();
        all.retain(|(_, lost)| lost.chunks > 0);
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
        for (expected, meanwhile, streams) in [
            (LateCause::Unknown, (|_| {}) as fn(&mut LateChunks), 2),
            (LateCause::Throttling, |late| late.gpu(at(2050), Some(4.0)), 2),
            (LateCause::Unknown, |late| late.gpu(at(2050), Some(1.015)), 2),
            (LateCause::Preemption, |late| late.server(at(2500), Some(1.0), Some(0.99)), 2),
            (LateCause::KvPressure, |late| late.server(at(2500), Some(0.0), Some(0.99)), 2),
            (LateCause::Prefill, |late| late.first_chunk(at(2058), 7), 2),
            (LateCause::BatchGrowth, |_| {}, 4),
            (LateCause::ClientLag, |late| late.client(at(2500), Duration::from_millis(40)), 2),
        ] {
            let late = late(meanwhile, streams);
            let ns = 50_000_000;
            let found = late.by_cause();
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert_eq!((found[0].0, found[0].1.chunks), (expected, 1));
            assert!(found[0].1.ns.abs_diff(ns) < 200_000, "{found:?}");
        }
    }

    #[test]
    fn events_at_another_time_are_no_cause() {
        let elsewhere = |late: &mut LateChunks| {
            late.gpu(at(1500), Some(3.0));
            late.first_chunk(at(1990), 7);
            // A request's own first chunk is not another request's.
            late.first_chunk(at(2050), 0);
            late.server(at(1900), Some(3.0), None);
            late.client(at(1950), Duration::from_millis(80));
            // The delay is too small to explain the lost time.
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
                    1 => late.first_chunk(at(t), request),
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
