//! Two accounts, one subtracted from the other: which owner took the difference, or gave it.

use serde::Serialize;

use super::sample::Sample;
use crate::{account::OwnerTime, interval::ConfidenceInterval};

/// The time of an owner per token, or per step, on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OwnerChange {
    pub owner: String,
    pub a_us: f64,
    pub b_us: f64,
    /// B minus A. The interval is over pairs of runs; a single pair has none.
    pub delta_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_us: Option<[f64; 2]>,
}

/// Smaller changes are left out.
const MIN_CHANGE_US: f64 = 0.05;

/// The owners whose time changed, the largest change first, as means over `pairs`. They add up to the change of the mean
/// time. Empty if a run has no account.
pub fn owner_changes(pairs: &[(&Sample, &Sample)]) -> Vec<OwnerChange> {
    let has_account = |sample: &Sample| !sample.owners.is_empty();
    if pairs.is_empty() || !pairs.iter().all(|(a, b)| has_account(a) && has_account(b)) {
        return Vec::new();
    }
    let mut names: Vec<&str> = Vec::new();
    for time in pairs.iter().flat_map(|(a, b)| a.owners.iter().chain(&b.owners)) {
        if !names.contains(&time.owner.as_str()) {
            names.push(&time.owner);
        }
    }
    let us = |owners: &[OwnerTime], name: &str| -> f64 {
        owners.iter().filter(|time| time.owner == name).map(|time| time.ns / 1e3).sum()
    };
    let n = pairs.len() as f64;
    let change = |name: &str| {
        let sides: Vec<[f64; 2]> =
            pairs.iter().map(|(a, b)| [us(&a.owners, name), us(&b.owners, name)]).collect();
        let [a_us, b_us] = [0, 1].map(|side| sides.iter().map(|us| us[side]).sum::<f64>() / n);
        let deltas: Vec<f64> = sides.iter().map(|[a, b]| b - a).collect();
        let interval_us =
            ConfidenceInterval::of_mean(&deltas, 0).map(|interval| [interval.low, interval.high]);
        OwnerChange { owner: name.to_owned(), a_us, b_us, delta_us: b_us - a_us, interval_us }
    };
    let mut changes: Vec<OwnerChange> = names.into_iter().map(change).collect();
    changes.retain(|change| change.delta_us.abs() >= MIN_CHANGE_US);
    changes.sort_by(|l, r| r.delta_us.abs().total_cmp(&l.delta_us.abs()));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::simulation::BASE_RUN;

    fn with(owners: &[(&str, f64)]) -> Sample {
        let mut sample = BASE_RUN.sample(false);
        sample.owners =
            owners.iter().map(|(owner, us)| OwnerTime { owner: (*owner).to_owned(), ns: us * 1e3 }).collect();
        sample
    }

    #[test]
    fn owners_add_up_to_the_change_of_the_whole() {
        let a = with(&[("bound", 3000.0), ("gaps", 400.0)]);
        let b = with(&[("bound", 3000.0), ("gaps", 100.0), ("copies", 50.0)]);
        let changes = owner_changes(&[(&a, &b)]);
        let texts: Vec<(&str, f64)> =
            changes.iter().map(|change| (change.owner.as_str(), change.delta_us)).collect();
        assert_eq!(texts, [("gaps", -300.0), ("copies", 50.0)]);
        assert_eq!(changes[0].interval_us, None, "one pair shows no spread");
        assert!(owner_changes(&[(&a, &a)]).is_empty());
        assert!(owner_changes(&[(&a, &BASE_RUN.sample(false))]).is_empty(), "no account");
    }

    #[test]
    fn pairs_have_an_interval() {
        let a: Vec<Sample> = (0..6).map(|nth| with(&[("gaps", 400.0 + f64::from(nth))])).collect();
        let b: Vec<Sample> = (0..6).map(|nth| with(&[("gaps", 300.0 - f64::from(nth % 2))])).collect();
        let pairs: Vec<(&Sample, &Sample)> = a.iter().zip(&b).collect();
        let change = &owner_changes(&pairs)[0];
        let [low, high] = change.interval_us.unwrap();
        assert!(low < change.delta_us && change.delta_us < high && high < -95.0, "{change:?}");
    }
}
