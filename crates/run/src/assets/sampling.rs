//! Selection and order of the samples of a dataset, a pure function of the settings and a seed.

use std::collections::HashMap;

use llmprof_base::noise;
use llmprof_config::{DatasetSampling, Names};

/// The number of passes, their size and their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampling {
    /// Passes over the dataset.
    pub num_epochs: u32,
    /// Samples per pass; `None` for all.
    pub num_samples_per_epoch: Option<u64>,
    /// Shuffle each pass; otherwise the order of the dataset.
    pub randomize: bool,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { num_epochs: 1, num_samples_per_epoch: None, randomize: false }
    }
}

impl Sampling {
    /// The sample indices of each pass, out of `count`.
    ///
    /// Equal settings, count and seed give equal indices on every machine. A pass has no duplicates; if there are
    /// fewer samples than requested, it has all of them.
    pub fn indexes(&self, count: u64, seed: u64) -> Vec<Vec<u64>> {
        self.epochs(count, seed).collect()
    }

    /// [`indexes`](Self::indexes) as an iterator over passes.
    pub fn epochs(&self, count: u64, seed: u64) -> impl Iterator<Item = Vec<u64>> + use<> {
        let take = self.num_samples_per_epoch.unwrap_or(count).min(count);
        let randomize = self.randomize;
        (0..u64::from(self.num_epochs)).map(move |epoch| match randomize {
            false => (0..take).collect(),
            true => draw(count, take, noise::bits(seed, epoch)),
        })
    }
}

impl From<&DatasetSampling> for Sampling {
    fn from(config: &DatasetSampling) -> Sampling {
        let DatasetSampling { num_epochs, num_samples_per_epoch, randomize, .. } = *config;
        Sampling { num_epochs, num_samples_per_epoch, randomize }
    }
}

/// `take` distinct indices below `count`, uniformly random: the start of a Fisher-Yates shuffle.
fn draw(count: u64, take: u64, seed: u64) -> Vec<u64> {
    let mut moved: HashMap<u64, u64> = HashMap::new();
    let mut indexes = Vec::with_capacity(take as usize);
    for position in 0..take {
        let left = count - position;
        // The modulo bias is below left / 2^64.
        let chosen = position + noise::bits(seed, position) % left;
        let value = moved.get(&chosen).copied().unwrap_or(chosen);
        let displaced = moved.get(&position).copied().unwrap_or(position);
        moved.insert(chosen, displaced);
        indexes.push(value);
    }
    indexes
}

/// The indices in `names` of the names in the file list `text`, in its order.
///
/// Blank lines and lines that start with `#` are skipped. An unknown name is an error with its line.
pub fn subset(text: &str, names: &[String]) -> Result<Vec<usize>, String> {
    let indices: HashMap<&str, usize> =
        names.iter().enumerate().map(|(i, name)| (name.as_str(), i)).collect();
    let mut chosen = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match indices.get(line) {
            Some(index) => chosen.push(*index),
            None => {
                let near = Names { all: Vec::new(), ..Names::near(line, names) };
                return Err(format!("line {}: {line:?} is not in the dataset{near}", number + 1));
            }
        }
    }
    if chosen.is_empty() {
        return Err("the list has no names".into());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn sampling(num_epochs: u32, per_epoch: Option<u64>, randomize: bool) -> Sampling {
        Sampling { num_epochs, num_samples_per_epoch: per_epoch, randomize }
    }

    #[test]
    fn passes_in_file_order() {
        assert_eq!(sampling(1, Some(3), false).indexes(5, 9), [[0, 1, 2]]);
        assert_eq!(sampling(2, None, false).indexes(2, 9), [[0, 1], [0, 1]]);
        assert_eq!(sampling(1, Some(9), false).indexes(2, 9), [[0, 1]]);
        assert!(sampling(0, None, false).indexes(2, 9).is_empty());
        assert_eq!(sampling(1, None, true).indexes(0, 9), [Vec::<u64>::new()]);
    }

    #[test]
    fn shuffled_passes_are_reproducible() {
        let epochs = sampling(2, Some(4), true).indexes(10, 42);
        assert_eq!(epochs, sampling(2, Some(4), true).indexes(10, 42));
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs, sampling(2, Some(4), true).indexes(10, 43));
        // A smaller pass is the start of a larger one.
        assert_eq!(sampling(1, Some(2), true).indexes(10, 42)[0], epochs[0][..2]);
    }

    #[test]
    fn samples_are_equally_likely() {
        let mut hits = [0u32; 10];
        for seed in 0..5000 {
            for index in &sampling(1, Some(3), true).indexes(10, seed)[0] {
                hits[*index as usize] += 1;
            }
        }
        assert!(hits.iter().all(|n| (1350..1650).contains(n)), "{hits:?}");
    }

    proptest! {
        #[test]
        fn a_pass_has_no_duplicates(count in 0u64..200, take in prop::option::of(0u64..300), seed: u64) {
            for epoch in sampling(2, take, true).indexes(count, seed) {
                let distinct: BTreeSet<u64> = epoch.iter().copied().collect();
                prop_assert_eq!(distinct.len(), epoch.len());
                prop_assert_eq!(epoch.len() as u64, take.unwrap_or(count).min(count));
                prop_assert!(epoch.iter().all(|i| *i < count));
            }
        }
    }

    #[test]
    fn subsets_of_a_file_list() {
        let names: Vec<String> = ["a.png", "b.png", "c.png"].map(String::from).to_vec();
        assert_eq!(subset("# two\nc.png\n\n a.png \n", &names).unwrap(), [2, 0]);
        assert_eq!(
            subset("a.png\nb.pmg", &names).unwrap_err(),
            "line 2: \"b.pmg\" is not in the dataset; did you mean b.png?"
        );
        assert_eq!(subset("# none\n", &names).unwrap_err(), "the list has no names");
    }
}
