//! Peers: GPUs of one model that do the same work, and those that deviate from the others.

use std::collections::BTreeMap;

use serde::Serialize;

use super::gpu::{Gpu, Snapshot};
use llmprof_event::readings::Reading;

/// Below this utilisation a GPU is idle.
pub const BUSY_PCT: f64 = 10.0;
/// With fewer peers, none is called slow.
pub const MIN_PEERS: usize = 4;
/// A GPU is slow if it is this many standard deviations, estimated from the MAD, below the median.
const DEVIATIONS: f64 = 3.0;
/// The standard deviation of normal values, in MADs.
const MAD_TO_SIGMA: f64 = 1.4826;
/// It must also be below the median by at least this share: clocks move in steps of 15 MHz.
const LEAST_SHARE: f64 = 0.03;
/// The faster of two groups is the reference if it has at least a quarter of the GPUs, and if the slower one is so
/// large that the median of all no longer separates them: a third.
const FASTER_SHARE: usize = 4;
const SLOWER_SHARE: usize = 3;
/// Without a label for the work, a GPU does other work if its utilisation or tensor activity differs from the median of
/// its model by this many points.
const OTHER_WORK_POINTS: f64 = 25.0;

pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// The median of the distances from the median.
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    median(&values.iter().map(|value| (value - centre).abs()).collect::<Vec<_>>())
}

/// The reference of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Basis {
    /// The number of peers, including the GPU itself.
    pub equals: usize,
    /// The number of peers in the reference: all, or the faster ones if they are in two groups.
    pub measured_by: usize,
    /// The median of the reference.
    pub median_mhz: f64,
    pub mad_mhz: f64,
    /// Below this a GPU is slow.
    pub threshold_mhz: f64,
}

impl Basis {
    /// `None` for too few values.
    pub fn from_clocks(mhz: &[f64]) -> Option<Basis> {
        if mhz.len() < MIN_PEERS {
            return None;
        }
        let mut sorted = mhz.to_vec();
        sorted.sort_by(f64::total_cmp);
        let measure = faster_group(&sorted).unwrap_or(&sorted);
        let (median_mhz, mad_mhz) = (median(measure)?, mad(measure)?);
        let distance = (DEVIATIONS * MAD_TO_SIGMA * mad_mhz).max(LEAST_SHARE * median_mhz);
        Some(Basis {
            equals: mhz.len(),
            measured_by: measure.len(),
            median_mhz,
            mad_mhz,
            threshold_mhz: median_mhz - distance,
        })
    }

    pub fn is_slow(&self, mhz: f64) -> bool {
        mhz < self.threshold_mhz
    }

    /// The loss of speed in percent, if speed is proportional to the clock.
    pub fn lost_pct(&self, mhz: f64) -> f64 {
        100.0 * (1.0 - mhz / self.median_mhz).max(0.0)
    }
}

/// The faster group, if the clocks, in ascending order, are in two groups with a gap between them that is wider than
/// either group. A median alone calls none slow as soon as half of them are.
fn faster_group(sorted: &[f64]) -> Option<&[f64]> {
    let gaps = sorted.windows(2).map(|pair| pair[1] - pair[0]).enumerate();
    let (last_slow, gap) = gaps.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let (slower, faster) = sorted.split_at(last_slow + 1);
    let spread = |group: &[f64]| group[group.len() - 1] - group[0];
    let n = sorted.len();
    let is_group = faster.len() * FASTER_SHARE >= n && faster.len() > 1 && slower.len() * SLOWER_SHARE >= n;
    let is_apart = gap >= LEAST_SHARE * faster[0] && gap > spread(slower).max(spread(faster));
    (is_group && is_apart).then_some(faster)
}

pub fn is_busy(gpu: &Gpu) -> Option<bool> {
    gpu.get(Reading::GpuUtil).map(|pct| pct >= BUSY_PCT)
}

/// Model, MIG profile, and work.
type Kind<'a> = (Option<&'a str>, Option<&'a str>, Option<&'a str>);

/// The GPUs that can be compared with each other, by their index in the snapshot; each is in at most one group. Idle
/// and silent GPUs, and those that do other work than most of their model, are in none.
pub fn groups(snapshot: &Snapshot) -> Vec<Vec<usize>> {
    let gpus = &snapshot.gpus;
    let mut kinds: BTreeMap<Kind<'_>, Vec<usize>> = BTreeMap::new();
    let works = |gpu: &Gpu| is_busy(gpu) == Some(true) && !snapshot.is_silent(gpu);
    for (i, gpu) in gpus.iter().enumerate().filter(|(_, gpu)| works(gpu)) {
        let kind = (gpu.model.as_deref(), gpu.mig_profile.as_deref(), gpu.work.as_deref());
        kinds.entry(kind).or_default().push(i);
    }
    let named = |(_, _, work): &Kind<'_>| work.is_some();
    kinds.iter().map(|(kind, all)| if named(kind) { all.clone() } else { alike(gpus, all) }).collect()
}

/// The GPUs of `all` whose activity is near the median of all.
fn alike(gpus: &[Gpu], all: &[usize]) -> Vec<usize> {
    let centre = |reading| {
        let values: Vec<f64> = all.iter().filter_map(|i| gpus[*i].get(reading)).collect();
        median(&values)
    };
    let activity = [Reading::GpuUtil, Reading::Tensor].map(|reading| (reading, centre(reading)));
    let near = |i: &usize| {
        activity.iter().all(|(reading, centre)| match (gpus[*i].get(*reading), centre) {
            (Some(value), Some(centre)) => (value - centre).abs() <= OTHER_WORK_POINTS,
            _ => true,
        })
    };
    all.iter().copied().filter(near).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_median_and_its_mad_by_hand() {
        // Sorted: 1410 1950 1965 1980 1980; distances from 1965: 0 15 15 15 555.
        let clocks = [1980.0, 1410.0, 1965.0, 1950.0, 1980.0];
        assert_eq!((median(&clocks), mad(&clocks)), (Some(1965.0), Some(15.0)));
        let basis = Basis::from_clocks(&clocks).unwrap();
        // 3 × 1.4826 × 15 = 66.717 is more than 3 % of 1965 = 58.95.
        assert!((basis.threshold_mhz - (1965.0 - 66.717)).abs() < 1e-9);
        assert!(basis.is_slow(1410.0) && !basis.is_slow(1950.0));
        assert!((basis.lost_pct(1410.0) - 28.244_274_8).abs() < 1e-6);
        assert_eq!((median(&[]), mad(&[]), median(&[3.0, 1.0])), (None, None, Some(2.0)));
    }

    #[test]
    fn half_of_the_peers_may_be_slow() {
        for slow in [8, 10, 12] {
            let clocks: Vec<f64> =
                (0..16).map(|i| if i < slow { 1410.0 + i as f64 } else { 1965.0 + i as f64 }).collect();
            let basis = Basis::from_clocks(&clocks).unwrap();
            assert_eq!((basis.equals, basis.measured_by), (16, 16 - slow));
            assert_eq!(clocks.iter().filter(|mhz| basis.is_slow(**mhz)).count(), slow);
        }
        // One GPU that is faster than all others is not a reference, and values without a gap have no groups.
        let mut one = vec![1800.0; 15];
        one.push(1980.0);
        assert_eq!(Basis::from_clocks(&one).unwrap().measured_by, 16);
        let even: Vec<f64> = (0..16).map(|i| 1500.0 + 30.0 * f64::from(i)).collect();
        assert_eq!(Basis::from_clocks(&even).unwrap().measured_by, 16);
    }

    #[test]
    fn equal_clocks_need_a_difference_that_matters() {
        let mut clocks = vec![1980.0; 7];
        clocks.push(1950.0);
        let basis = Basis::from_clocks(&clocks).unwrap();
        assert_eq!((basis.mad_mhz, basis.is_slow(1950.0), basis.is_slow(1900.0)), (0.0, false, true));
        assert_eq!(Basis::from_clocks(&clocks[..3]), None);
    }

    proptest! {
        #[test]
        fn the_reference_gpus_are_mostly_not_slow(clocks in prop::collection::vec(1.0f64..4000.0, 4..200)) {
            let basis = Basis::from_clocks(&clocks).unwrap();
            let slow = clocks.iter().filter(|mhz| basis.is_slow(**mhz)).count();
            let others = clocks.len() - basis.measured_by;
            prop_assert!(2 * slow < basis.measured_by + 2 * others);
            prop_assert!(4 * basis.measured_by >= clocks.len());
            prop_assert!(clocks.iter().all(|mhz| (0.0..=100.0).contains(&basis.lost_pct(*mhz))));
        }

        #[test]
        fn the_order_does_not_matter(mut clocks in prop::collection::vec(1.0f64..4000.0, 4..50)) {
            let before = Basis::from_clocks(&clocks);
            clocks.reverse();
            prop_assert_eq!(Basis::from_clocks(&clocks), before);
        }
    }
}
