//! The CSV that Nsight Compute prints with `--csv`.

mod details;
mod raw;

use std::io::BufRead;

pub use details::read_details;
pub use raw::read_raw;

use super::{
    cells::{CsvRow, Rows},
    error::KernelsError,
    quantity,
    tally::Durations,
};
use llmprof_event::kernels::{
    KernelRow, KernelTable,
    counters::{CounterMeans, Counters},
    names,
};

const REMEDY: &str =
    "profile with ncu --csv --page raw, or print a report with ncu --import FILE.ncu-rep --page raw --csv";

/// The remedy for misread numbers.
const WRITE_AGAIN: &str = "its numbers may be in a locale that could not be detected: print them again with LC_ALL=C \
                           ncu --import FILE.ncu-rep --page raw --csv";
/// Hit rates exceed 100 %. A larger number was misread.
const MAX_PERCENT: f64 = 1000.0;

/// Rejects a percentage that no metric reaches. The maximum over all units (`.max.`) is relative to the peak of one
/// unit, and has no limit.
fn check_percent(file: &str, metric: &str, unit: &str, value: f64) -> Result<(), KernelsError> {
    if unit != "%" || value.abs() <= MAX_PERCENT || metric.contains(".max.") {
        return Ok(());
    }
    let (file, metric) = (file.to_owned(), metric.to_owned());
    Err(KernelsError::Implausible { file, metric, percent: value, remedy: WRITE_AGAIN })
}

/// Whether it is a message of ncu in between rows.
fn is_message(row: CsvRow) -> bool {
    row.get(0).is_some_and(|first| first.starts_with(b"=="))
}

/// Further messages are dropped.
const MAX_MESSAGES: usize = 16;

/// Keeps an error or a warning of ncu, each text once.
fn keep_message(row: CsvRow, messages: &mut Vec<String>) {
    let Some(first) = row.get(0) else { return };
    let is_bad = first.starts_with(b"==ERROR==") || first.starts_with(b"==WARNING==");
    if !is_bad || messages.len() >= MAX_MESSAGES {
        return;
    }
    let text = row.texts().join(", ");
    let text = text.trim_start_matches("==ERROR==").trim_start_matches("==WARNING==").trim();
    if !messages.iter().any(|known| known == text) {
        messages.push(text.to_owned());
    }
}

/// The first row that `header` accepts, and the messages before it.
fn find_header<H>(
    file: &str,
    rows: &mut Rows<impl BufRead>,
    header: impl Fn(CsvRow) -> Option<H>,
) -> Result<(H, Vec<String>), KernelsError> {
    let mut messages = Vec::new();
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        match header(row).filter(|_| !is_message(row)) {
            Some(header) => return Ok((header, messages)),
            None => keep_message(row, &mut messages),
        }
    }
    let file = file.to_owned();
    Err(match messages.first() {
        Some(message) => {
            KernelsError::NoRows { file, what: format!("a message of ncu ({message})"), remedy: REMEDY }
        }
        None => KernelsError::Empty { file, remedy: REMEDY },
    })
}

/// The table of a page with its notes; an error if it has no rows.
fn finish(
    file: &str,
    page: &str,
    mut table: KernelTable,
    messages: Vec<String>,
    unread: u64,
) -> Result<KernelTable, KernelsError> {
    table.sort(Default::default());
    table.notes.extend(messages);
    if unread > 0 {
        table.notes.push(format!("{unread} rows could not be read"));
    }
    if table.rows.is_empty() {
        let message = table.notes.first().map_or_else(String::new, |note| format!(" (ncu reports: {note})"));
        let what = format!("the header of ncu's {page} page{message}");
        return Err(KernelsError::NoRows { file: file.to_owned(), what, remedy: REMEDY });
    }
    Ok(table)
}

/// The launches of one kernel, grid and range. The pages keep their counters in different forms.
struct Launches<C> {
    row: KernelRow,
    durations: Durations,
    counters: C,
}

impl<C> Launches<C> {
    fn new(row: KernelRow, counters: C) -> Launches<C> {
        Launches { row, durations: Durations::default(), counters }
    }

    /// Counts a launch. Returns the weight of its rates: its duration, if that is known.
    fn count(&mut self, ns: Option<f64>) -> f64 {
        self.row.calls += 1;
        if let Some(ns) = ns {
            self.durations.add(ns);
        }
        ns.filter(|ns| *ns > 0.0).unwrap_or(1.0)
    }

    fn into_row(self, counters: impl FnOnce(C) -> Counters) -> KernelRow {
        let Launches { mut row, durations, counters: counted } = self;
        durations.fill(&mut row);
        row.counters = counters(counted);
        let known = CounterMeans::from_counters(&row.counters);
        row.registers = known.registers.map(|n| n as u32);
        row.shared_bytes = known.shared_bytes.map(|n| n as u64);
        row
    }
}

/// The columns that identify a launch.
#[derive(Debug, Clone)]
struct LaunchColumns {
    name: Option<usize>,
    grid: Option<usize>,
    block: Option<usize>,
    push_pop: Option<usize>,
    start_stop: Option<usize>,
}

impl LaunchColumns {
    fn from_titles(titles: &[String]) -> LaunchColumns {
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

    /// Everything that distinguishes launches, as one byte string.
    fn key(&self, row: CsvRow, key: &mut Vec<u8>) {
        key.clear();
        for column in [self.name, self.grid, self.block, self.push_pop, self.start_stop].into_iter().flatten()
        {
            key.extend_from_slice(row.get(column).unwrap_or_default());
            key.push(0);
        }
    }

    fn name<'r>(&self, row: CsvRow<'r>) -> Option<&'r [u8]> {
        row.get(self.name?).map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
    }

    /// Kernel, grid and range of the launch in `row`.
    fn launch(&self, row: CsvRow) -> KernelRow {
        let name = String::from_utf8_lossy(self.name(row).unwrap_or_default());
        let extent = |column: Option<usize>| quantity::three(row.get(column?)?);
        let range = |column: Option<usize>| row.text(column?).and_then(|cell| range_names(&cell));
        KernelRow {
            grid: extent(self.grid),
            block: extent(self.block),
            range: range(self.push_pop).or_else(|| range(self.start_stop)),
            ..KernelRow::named(names::demangled(&name))
        }
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
