//! A sequence of any length in bounded memory.

/// At most `capacity` values of a sequence. If there are more, every second one is kept, then every fourth, and so on.
#[derive(Debug, Clone)]
pub struct Thinned<T> {
    values: Vec<T>,
    capacity: usize,
    stride: u64,
    pushed: u64,
}

impl<T> Default for Thinned<T> {
    fn default() -> Thinned<T> {
        Thinned::new(1 << 14)
    }
}

impl<T> Thinned<T> {
    pub fn new(capacity: usize) -> Thinned<T> {
        Thinned { values: Vec::new(), capacity: capacity.max(2), stride: 1, pushed: 0 }
    }

    pub fn push(&mut self, value: T) {
        self.pushed += 1;
        if !(self.pushed - 1).is_multiple_of(self.stride) {
            return;
        }
        if self.values.len() == self.capacity {
            let mut nth = 0;
            self.values.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.stride *= 2;
        }
        self.values.push(value);
    }

    pub fn clear(&mut self) {
        self.values.clear();
        (self.stride, self.pushed) = (1, 0);
    }

    /// The kept values, in order.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The number of all values.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_values_are_evenly_spaced() {
        let mut thinned = Thinned::new(64);
        (0..1000).for_each(|i| thinned.push(i));
        assert_eq!(thinned.pushed(), 1000);
        let kept = thinned.values();
        assert!((32..=64).contains(&kept.len()), "{}", kept.len());
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == kept[1] - kept[0]), "{kept:?}");
        thinned.clear();
        assert_eq!((thinned.pushed(), thinned.values().len()), (0, 0));
    }
}
