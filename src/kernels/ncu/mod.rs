//! What Nsight Compute prints with `--csv`.

mod details;
mod raw;

pub use details::read_details;
pub use raw::read_raw;

use super::{cells::Row, quantity};

/// What of a file is needed to read it again, or to read it at all.
const REMEDY: &str =
    "profile with ncu --csv --page raw, or print a report with ncu --import FILE.ncu-rep --page raw --csv";

/// Lines that ncu writes among the rows.
fn is_noise(row: Row) -> bool {
    row.get(0).is_some_and(|first| first.starts_with(b"=="))
}

/// More remarks are not worth keeping.
const MOST_SAID: usize = 16;

/// Keeps what ncu says went wrong, among its noise; the same words once.
fn hear(row: Row, said: &mut Vec<String>) {
    let Some(first) = row.get(0) else { return };
    if !(first.starts_with(b"==ERROR==") || first.starts_with(b"==WARNING==")) || said.len() >= MOST_SAID {
        return;
    }
    let words = row.texts().join(", ");
    let words = words.trim_start_matches("==ERROR==").trim_start_matches("==WARNING==").trim();
    if !said.iter().any(|known| known == words) {
        said.push(words.to_owned());
    }
}

/// Where the columns of a launch are.
#[derive(Debug, Clone, Default)]
struct LaunchColumns {
    name: Option<usize>,
    grid: Option<usize>,
    block: Option<usize>,
    push_pop: Option<usize>,
    start_stop: Option<usize>,
}

impl LaunchColumns {
    fn of(titles: &[String]) -> LaunchColumns {
        let at = |title: &str| titles.iter().position(|one| one == title);
        let with = |part: &str| titles.iter().position(|one| one.contains(part));
        LaunchColumns {
            name: at("Kernel Name"),
            grid: at("Grid Size"),
            block: at("Block Size"),
            push_pop: with("Push/Pop_Range"),
            start_stop: with("Start/Stop_Range"),
        }
    }

    /// All that tells launches apart, in one run of bytes.
    fn key(&self, row: Row, key: &mut Vec<u8>) {
        key.clear();
        for column in [self.name, self.grid, self.block, self.push_pop, self.start_stop].into_iter().flatten()
        {
            key.extend_from_slice(row.get(column).unwrap_or_default());
            key.push(0);
        }
    }

    fn name<'r>(&self, row: Row<'r>) -> Option<&'r [u8]> {
        row.get(self.name?).map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
    }

    fn extent(&self, row: Row, column: Option<usize>) -> Option<[u32; 3]> {
        quantity::three(row.get(column?)?)
    }

    fn range(&self, row: Row) -> Option<String> {
        let text = |column: Option<usize>| row.text(column?).and_then(|cell| range_names(&cell));
        text(self.push_pop).or_else(|| text(self.start_stop))
    }
}

/// The names of the ranges in a cell such as `1  "<default domain>:decode:none:none:none:none:none:none"`, the
/// outermost first.
fn range_names(cell: &str) -> Option<String> {
    let names: Vec<&str> = cell
        .split('"')
        .skip(1)
        .step_by(2)
        .filter_map(|range| {
            let (_, rest) = range.split_once(':')?;
            // Payload, colour and message follow, two fields each.
            let mut name = rest;
            for _ in 0..6 {
                name = name.rsplit_once(':').map_or(name, |(before, _)| before);
            }
            Some(name).filter(|name| !name.is_empty())
        })
        .collect();
    (!names.is_empty()).then(|| names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_launch() {
        let one = "1  \"<default domain>:decode:none:none:none:none:none:none\" ";
        assert_eq!(range_names(one).as_deref(), Some("decode"));
        let two = "7  \"llmprof:decode:none:none:none:none:none:none\"  \
                   \"llmprof:model.layers.0:mlp:none:none:none:none:none:none\" ";
        assert_eq!(range_names(two).as_deref(), Some("decode/model.layers.0:mlp"));
        assert_eq!(range_names(""), None);
        assert_eq!(range_names("1 \"\""), None);
    }
}
