//! Multiple tests: the chance of at least one false result among all of them is at most `alpha`.

/// Which of `tests` hypotheses Holm's procedure rejects. `rejected_at` reports whether one is rejected at the given
/// level.
pub fn rejected(tests: usize, alpha: f64, rejected_at: impl Fn(usize, f64) -> bool) -> Vec<bool> {
    let mut rejected = vec![false; tests];
    loop {
        let left = rejected.iter().filter(|rejected| !**rejected).count();
        let level = alpha / left.max(1) as f64;
        let found: Vec<usize> =
            (0..tests).filter(|test| !rejected[*test] && rejected_at(*test, level)).collect();
        if found.is_empty() {
            return rejected;
        }
        found.into_iter().for_each(|test| rejected[test] = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_probabilities_are_rejected_step_by_step() {
        let of = |p: &[f64]| rejected(p.len(), 0.05, |test, level| p[test] <= level);
        // 0.05 / 4, 0.05 / 3, 0.05 / 2, 0.05.
        assert_eq!(of(&[0.01, 0.04, 0.03, 0.005]), [true, false, false, true]);
        assert_eq!(of(&[0.012, 0.016, 0.024, 0.049]), [true; 4]);
        assert_eq!(of(&[0.013, 0.016, 0.024, 0.049]), [false; 4]);
        assert_eq!(of(&[]), [false; 0]);
    }
}
