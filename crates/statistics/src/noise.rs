//! Seeded noise without state: the same seed and counter give the same value on every machine.

/// A well-mixed 64-bit value for the `n`-th draw of `seed` (splitmix64).
pub fn bits(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Evenly spread over `[0, 1)`.
pub fn unit(seed: u64, n: u64) -> f64 {
    (bits(seed, n) >> 11) as f64 / (1u64 << 53) as f64
}

/// Near a standard normal, but bounded by ±3.5, so that a simulated duration has no absurd tail.
pub fn bell(seed: u64, n: u64) -> f64 {
    let z = bits(seed, n);
    let sum: f64 = (0..4).map(|i| f64::from((z >> (16 * i)) as u16) / 65536.0).sum();
    // Four uniforms have mean 2 and variance 1/3.
    (sum - 2.0) * 3f64.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_named_distributions() {
        let n = 20_000;
        let mean = |f: fn(u64, u64) -> f64| (0..n).map(|i| f(7, i)).sum::<f64>() / n as f64;
        assert!((mean(unit) - 0.5).abs() < 0.01);
        assert!(mean(bell).abs() < 0.03);
        let variance = (0..n).map(|i| bell(7, i).powi(2)).sum::<f64>() / n as f64;
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn values_do_not_change_between_versions() {
        assert_eq!(bits(0, 0), 0xE220_A839_7B1D_CDAF);
        assert_ne!(bits(0, 1), bits(1, 0));
    }
}
