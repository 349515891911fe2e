//! Numbers that events share, and the values that they refer to.

use std::collections::HashMap;

/// Maximum number of links: 16 bytes each.
const MAX_LINKS: usize = 1 << 23;
/// Links are sorted into the others in groups of this size.
const GROUP: usize = 1 << 16;

/// Values by number. Numbers come in about ascending order, and are used more than once.
#[derive(Debug, Default)]
pub struct Links {
    sorted: Vec<(u64, u64)>,
    recent: HashMap<u64, u64>,
    /// The number of links that were not kept.
    pub dropped: u64,
}

impl Links {
    pub fn add(&mut self, number: u64, value: u64) {
        if self.sorted.len() >= MAX_LINKS {
            self.dropped += 1;
            return;
        }
        self.recent.insert(number, value);
        if self.recent.len() >= GROUP {
            // A stable sort merges what is already in order.
            let mut group: Vec<(u64, u64)> = self.recent.drain().collect();
            group.sort_unstable();
            self.sorted.extend(group);
            self.sorted.sort_by_key(|(number, _)| *number);
        }
    }

    pub fn get(&self, number: u64) -> Option<u64> {
        if let Some(value) = self.recent.get(&number) {
            return Some(*value);
        }
        // The last of several values with the same number.
        let after = self.sorted.partition_point(|(known, _)| *known <= number);
        let (known, value) = self.sorted.get(after.checked_sub(1)?)?;
        (*known == number).then_some(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_any_order() {
        let mut links = Links::default();
        let n = 3 * GROUP as u64 + 17;
        for at in (0..n).map(|at| at * 7919 % n) {
            links.add(at, at + 1);
        }
        links.add(5, 99);
        assert!((0..n).all(|at| links.get(at) == Some(if at == 5 { 99 } else { at + 1 })));
        assert_eq!(links.get(n), None);
    }
}
