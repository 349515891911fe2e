//! Divides the increase of a limit's counter over kinds of work.

use super::{GpuActivity, Limit};

/// A value for each kind of work.
pub(super) type PerWork = [f64; GpuActivity::ALL.len()];

/// The counter of a limit, and the samples since it was last read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LimitCounter {
    last: Option<f64>,
    /// Since the last reading: time in which samples found the limit, sampled time, and time.
    found: PerWork,
    sampled: PerWork,
    time: PerWork,
    /// The total time between readings.
    pub(super) covered: PerWork,
    /// The increase between the first and the last reading.
    grown: Option<f64>,
}

impl LimitCounter {
    pub(super) fn is_read(&self) -> bool {
        self.last.is_some()
    }

    /// Its increase; `None` before the second reading.
    pub(super) fn grown(&self) -> Option<f64> {
        self.grown
    }

    pub(super) fn add_time(&mut self, work: GpuActivity, ns: f64) {
        self.time[work as usize] += ns;
    }

    /// A sample with the reasons in `bits` represents `ns`.
    pub(super) fn add_sampled(&mut self, limit: Limit, work: GpuActivity, bits: u64, ns: f64) {
        self.sampled[work as usize] += ns;
        if matches!(limit, Limit::Bit(bit) if bits & bit != 0) {
            self.found[work as usize] += ns;
        }
    }

    /// Discards the last reading: the increase until the next one belongs to an unknown time.
    pub(super) fn restart(&mut self) {
        *self = LimitCounter { covered: self.covered, grown: self.grown, ..LimitCounter::default() };
    }

    /// The counter reads `value`: its increase is divided over kinds of work in proportion to the time in which samples
    /// found the limit active. `prior_share` is the earlier share of each work's time in which the limit was active; it
    /// is used if there was no sample since the last reading.
    pub(super) fn read(&mut self, value: f64, prior_share: impl Fn(GpuActivity) -> f64) -> Option<PerWork> {
        let last = self.last;
        let parts = self.active_times(prior_share);
        let total: f64 = parts.iter().sum();
        let growth = value - last.unwrap_or(value);
        if growth > 0.0 && total <= 0.0 {
            // No time has passed since the last reading: it is divided at a later one.
            return None;
        }
        if last.is_some() {
            *self.grown.get_or_insert(0.0) += growth.max(0.0);
        }
        let time = self.time;
        self.restart();
        self.last = Some(value);
        if last.is_none() || growth < 0.0 {
            return None;
        }
        self.covered.iter_mut().zip(time).for_each(|(covered, ns)| *covered += ns);
        Some(parts.map(|part| if total > 0.0 { growth * part / total } else { 0.0 }))
    }

    /// Estimated time for which the limit was active in each kind of work since the last reading.
    fn active_times(&self, prior_share: impl Fn(GpuActivity) -> f64) -> PerWork {
        let times = GpuActivity::ALL.map(|work| {
            let w = work as usize;
            let share = match self.sampled[w] > 0.0 {
                true => self.found[w] / self.sampled[w],
                false => prior_share(work),
            };
            share * self.time[w]
        });
        if times.iter().sum::<f64>() > 0.0 {
            return times;
        }
        // No sample has found it active: it was active under load, or else at any time.
        let load = GpuActivity::ALL.map(|work| if work.is_load() { self.time[work as usize] } else { 0.0 });
        if load.iter().sum::<f64>() > 0.0 { load } else { self.time }
    }
}
