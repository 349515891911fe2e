//! Runs by their age: `latest`, `latest~1`, …

/// The name of the newest run.
pub const LATEST: &str = "latest";

/// 0 for `latest`, 1 for `latest~1`.
pub(super) fn age(name: &str) -> Option<usize> {
    match name.strip_prefix(LATEST)? {
        "" => Some(0),
        rest => rest.strip_prefix('~')?.parse().ok(),
    }
}
