//! Since when a GPU is slow among its peers, by the same rule at every step of a range.

use std::collections::BTreeMap;

use super::{
    gpu::{Key, Since},
    peers::{BUSY_PCT, Basis},
};

/// Values over time of every GPU, by the second.
pub type Matrix = BTreeMap<Key, BTreeMap<u64, f64>>;

/// This many consecutive steps in which a GPU was as fast as its peers end a slow period.
const RECOVERED_STEPS: usize = 3;

/// Since when `slow` is slow among `equals`, by their clocks and utilisation. `None` if no step shows it.
pub fn since(slow: &str, equals: &[&str], clocks: &Matrix, utilisation: &Matrix) -> Option<Since> {
    let own = clocks.get(slow)?;
    let busy_at = |key: &str, at: &u64| {
        let pct = utilisation.get(key).and_then(|values| values.get(at));
        pct.is_some_and(|pct| *pct >= BUSY_PCT)
    };
    let (mut first, mut as_fast) = (None, 0);
    let mut earlier = false;
    for (at, mhz) in own.iter().rev() {
        if !busy_at(slow, at) {
            continue;
        }
        let members = equals.iter().filter(|key| busy_at(key, at));
        let at_once: Vec<f64> = members.filter_map(|key| clocks.get(*key)?.get(at).copied()).collect();
        let Some(basis) = Basis::from_clocks(&at_once) else { continue };
        if basis.is_slow(*mhz) {
            (first, as_fast) = (Some(*at), 0);
        } else {
            as_fast += 1;
            earlier = true;
            if as_fast >= RECOVERED_STEPS {
                break;
            }
        }
    }
    // No earlier step was as fast, so the start of the slow period is unknown.
    let or_earlier = !(earlier && as_fast > 0);
    first.map(|at| Since { unix_s: at as f64, or_earlier })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: &[(&str, &[f64])]) -> Matrix {
        let row = |values: &[f64]| (0..).map(|i| i * 30).zip(values.iter().copied()).collect();
        rows.iter().map(|(key, values)| ((*key).to_owned(), row(values))).collect()
    }

    #[test]
    fn the_beginning_of_the_last_slow_time_is_found() {
        let equals = ["a", "b", "c", "d"];
        let full: &[f64] = &[1980.0; 10];
        let clocks = |slow: &[f64]| matrix(&[("a", slow), ("b", full), ("c", full), ("d", full)]);
        let busy: &[f64] = &[99.0; 10];
        let all_busy = matrix(&[("a", busy), ("b", busy), ("c", busy), ("d", busy)]);
        let (s, f) = (1410.0, 1980.0);
        let found = |slow: &[f64]| {
            since("a", &equals, &clocks(slow), &all_busy).map(|since| (since.unix_s, since.or_earlier))
        };
        assert_eq!(found(&[f, f, f, f, f, f, s, s, s, s]), Some((180.0, false)));
        assert_eq!(found(&[s; 10]), Some((0.0, true)));
        // Two steps as fast as the others do not end it; three do.
        assert_eq!(found(&[f, f, f, s, s, f, f, s, s, s]), Some((90.0, false)));
        assert_eq!(found(&[s, s, s, f, f, f, s, s, s, s]), Some((180.0, false)));
        assert_eq!(found(&[f; 10]), None);
        // Idle steps are unknown.
        let mut idle = [99.0; 10];
        idle[..6].fill(0.0);
        let half = matrix(&[("a", &idle), ("b", busy), ("c", busy), ("d", busy)]);
        let since = since("a", &equals, &clocks(&[s; 10]), &half).unwrap();
        assert_eq!((since.unix_s, since.or_earlier), (180.0, true));
    }
}
