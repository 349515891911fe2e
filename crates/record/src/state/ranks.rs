//! Several GPUs in one run: sums of the windows of their lanes, the late rank, and NCCL's output.

use std::time::Duration;

use super::{GpuState, RunState};
use llmprof_analysis::{
    ranks::{Clock, Late, NcclLog, Totals, straggler},
    throttle::Limit,
};
use llmprof_event::{
    Notice, Stamp,
    ranks::{RankLane, RanksWindow},
    readings::Reading,
    reasons,
};

/// Recent values cover the last one to two of these periods.
const RECENT: Duration = Duration::from_secs(15);

/// The sums of a period.
#[derive(Debug, Clone, Default)]
struct Period {
    totals: Totals,
    from: Option<Stamp>,
    to: Stamp,
}

impl Period {
    fn add(&mut self, window: &RanksWindow) {
        self.from.get_or_insert(window.from);
        self.to = self.to.max(Stamp(window.from.0.saturating_add(window.span_ns)));
        self.totals.add(window);
    }
}

#[derive(Debug, Clone, Default)]
pub struct RanksState {
    run: Period,
    /// The older one covers the last one to two periods.
    recent: [Period; 2],
    recent_since: Option<Stamp>,
    /// The time that timelines of lanes show.
    pub picture_ns: u64,
    pub nccl: NcclLog,
}

impl RanksState {
    pub fn is_there(&self) -> bool {
        !self.run.totals.is_empty() || !self.nccl.is_empty()
    }

    pub fn total(&self) -> &Totals {
        &self.run.totals
    }

    /// The last quarter or half of a minute.
    pub fn recent(&self) -> &Totals {
        &self.recent_period().totals
    }

    fn recent_period(&self) -> &Period {
        let [older, newer] = &self.recent;
        if older.totals.is_empty() { newer } else { older }
    }

    pub(super) fn window(&mut self, t: Stamp, window: &RanksWindow) {
        let since = *self.recent_since.get_or_insert(t);
        if t.since(since) >= RECENT {
            self.recent = [std::mem::take(&mut self.recent[1]), Period::default()];
            self.recent_since = Some(t);
        }
        if window.picture_ns > 0 {
            self.picture_ns = window.picture_ns;
        }
        self.run.add(window);
        self.recent.iter_mut().for_each(|period| period.add(window));
    }

    /// Output of a program may be NCCL's.
    pub(super) fn printed(&mut self, notice: &Notice) {
        if matches!(notice.source.as_str(), "stdout" | "stderr") {
            self.nccl.line(&notice.text);
        }
    }
}

impl RunState {
    /// The GPU of a lane, if it is sampled.
    pub fn gpu_of(&self, lane: &RankLane) -> Option<&GpuState> {
        let by_uuid = lane.uuid.as_ref().and_then(|uuid| self.gpus.iter().find(|gpu| gpu.info.uuid == *uuid));
        // A GPU that identifies itself and is not sampled cannot be one of the sampled ones.
        by_uuid.or_else(|| {
            let index = lane.gpu.filter(|_| lane.uuid.is_none())?;
            self.gpus.iter().find(|gpu| gpu.info.index == index)
        })
    }

    /// The late rank of the recent periods, and the reason.
    pub fn late_rank(&self) -> Late {
        self.late_in(self.ranks.recent_period())
    }

    /// Over the whole run.
    pub fn late_rank_of_run(&self) -> Late {
        self.late_in(&self.ranks.run)
    }

    fn late_in(&self, period: &Period) -> Late {
        straggler(&period.totals, |lane| self.clock_in(lane, period))
    }

    /// The clock of a lane's GPU over the whole run.
    pub fn rank_clock(&self, lane: &RankLane) -> Clock {
        self.clock_in(lane, &self.ranks.run)
    }

    /// The same for the recent periods.
    pub fn recent_rank_clock(&self, lane: &RankLane) -> Clock {
        self.clock_in(lane, self.ranks.recent_period())
    }

    fn clock_in(&self, lane: &RankLane, period: &Period) -> Clock {
        let (Some(gpu), Some(from)) = (self.gpu_of(lane), period.from) else { return Clock::default() };
        // Samples are at most seconds apart.
        let (from, to) = (Stamp(from.0.saturating_sub(500_000_000)), Stamp(period.to.0 + 500_000_000));
        let mean = |series: &super::Series| {
            let buckets = series.within(from, to);
            let (sum, n) =
                buckets.fold((0.0, 0u32), |(sum, n), (_, bucket)| (sum + f64::from(bucket.mean()), n + 1));
            (n > 0).then(|| sum / f64::from(n))
        };
        let limits = gpu.reasons.iter().filter(|(bit, _)| reasons::named(*bit).fault());
        let limits = limits.filter(|(_, series)| mean(series).is_some_and(|share| share > 0.5));
        let limits = limits.map(|(bit, _)| Limit::Bit(*bit).participle().into_owned());
        Clock { sm_mhz: mean(gpu.series(Reading::SmClock)), limits: limits.collect() }
    }

    /// Processes that name a rank but had no kernels.
    pub fn silent_ranks(&self) -> Vec<u32> {
        let seen: Vec<Option<u32>> = self.ranks.total().lanes.iter().map(|lane| lane.lane().rank).collect();
        let named = self.programs.all().iter().filter_map(|known| known.process.rank.as_ref()?.parse().ok());
        let mut silent: Vec<u32> = named.filter(|rank| !seen.contains(&Some(*rank))).collect();
        silent.sort_unstable();
        silent.dedup();
        if self.ranks.total().is_empty() { Vec::new() } else { silent }
    }

    /// Ranks that had kernels and whose process ended before the run.
    pub fn ended_ranks(&self) -> Vec<(u32, Stamp)> {
        if self.finished.is_some() {
            return Vec::new();
        }
        let ended = self
            .programs
            .all()
            .iter()
            .filter_map(|known| Some((known.process.rank.as_ref()?.parse().ok()?, known.left?)));
        ended
            .filter(|(rank, _)| self.ranks.total().lanes.iter().any(|lane| lane.lane().rank == Some(*rank)))
            .collect()
    }
}
