//! The GPU of a row of a log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    LogError,
    columns::{Column, number, text},
    header::{Clock, Header, LogSample},
};

/// How the GPUs of a log are identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentifiedBy {
    /// The column with this name.
    Column(String),
    /// Each poll has a row per GPU, always in the same order.
    Order,
    /// There is one GPU.
    Nothing,
}

impl fmt::Display for IdentifiedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentifiedBy::Column(name) => write!(f, "GPUs identified by {name}"),
            IdentifiedBy::Order => f.write_str(
                "GPUs identified by the order of their rows: the log has no index, uuid or pci.bus_id",
            ),
            IdentifiedBy::Nothing => f.write_str("one GPU"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GpuKey {
    Index(u32),
    Text(String),
}

/// The rule for the GPU of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GpuOfRow {
    Index(usize),
    Text(usize),
    /// Row `first` is the first GPU's, followed by one row per GPU.
    Order {
        gpus: u64,
        first: u64,
    },
    Single,
}

/// Maximum rows per poll.
const MAX_PER_POLL: u64 = 16;
/// nvidia-smi writes the rows of a poll faster than this, in seconds.
const MAX_ROW_GAP_S: f64 = 0.05;
/// The time between two polls is at least this many times that between the rows of a poll.
const POLL_RATIO: f64 = 4.0;

impl GpuOfRow {
    /// Decides from the first rows of a log.
    pub(super) fn find(name: &str, header: &Header, rows: &[LogSample]) -> Result<GpuOfRow, LogError> {
        let with_text = |wanted: fn(&Column) -> bool| {
            let columns = header.fields.iter().enumerate();
            let mut wanted = columns.filter(|(_, field)| field.column.as_ref().is_some_and(wanted));
            wanted.find(|(i, _)| rows.iter().any(|row| text(&row.cells[*i]).is_some())).map(|(i, _)| i)
        };
        let index = with_text(|column| matches!(column, Column::Gpu));
        let identity = with_text(|column| matches!(column, Column::Identity));
        match (index, identity) {
            // Joined logs of several machines have index 0 more than once.
            (Some(index), Some(identity)) if names_several(rows, index, identity) => {
                return Ok(GpuOfRow::Text(identity));
            }
            (Some(index), _) => return Ok(GpuOfRow::Index(index)),
            (None, Some(identity)) => return Ok(GpuOfRow::Text(identity)),
            (None, None) => {}
        }
        let name_column = with_text(|column| matches!(column, Column::Name));
        let names: BTreeSet<&str> =
            name_column.iter().flat_map(|i| rows.iter().filter_map(|row| text(&row.cells[*i]))).collect();
        let order = rows_per_poll(rows).filter(|(gpus, _)| *gpus > names.len() as u64);
        let same_time = rows.windows(2).any(|pair| pair[0].secs == pair[1].secs);
        match (order, name_column) {
            // Times in whole seconds do not separate the rows of one GPU from each other.
            (Some((gpus, first)), _) if rows.iter().any(|row| row.secs.fract() != 0.0) => {
                Ok(GpuOfRow::Order { gpus, first })
            }
            (None, Some(column)) if names.len() > 1 => Ok(GpuOfRow::Text(column)),
            _ if same_time && matches!(header.clock, Clock::Date(_)) => {
                Err(LogError::GpusUnnamed { name: name.to_owned() })
            }
            _ => Ok(GpuOfRow::Single),
        }
    }

    /// The GPU of a row; `None` if its cell does not name one, as on a lost GPU.
    pub(super) fn key(self, row: &LogSample) -> Option<GpuKey> {
        match self {
            GpuOfRow::Index(column) => number(&row.cells[column]).map(|index| GpuKey::Index(index as u32)),
            GpuOfRow::Text(column) => text(&row.cells[column]).map(|name| GpuKey::Text(name.to_owned())),
            GpuOfRow::Order { gpus, first } => {
                Some(GpuKey::Index(((row.number + gpus - first) % gpus) as u32))
            }
            GpuOfRow::Single => Some(GpuKey::Index(0)),
        }
    }

    pub(super) fn identified_by(self, header: &Header) -> IdentifiedBy {
        match self {
            GpuOfRow::Index(column) | GpuOfRow::Text(column) => {
                IdentifiedBy::Column(header.fields[column].name.clone())
            }
            GpuOfRow::Order { .. } => IdentifiedBy::Order,
            GpuOfRow::Single => IdentifiedBy::Nothing,
        }
    }
}

/// Whether one index has several identities.
fn names_several(rows: &[LogSample], index: usize, identity: usize) -> bool {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    rows.iter()
        .filter_map(|row| Some((text(&row.cells[index])?, text(&row.cells[identity])?)))
        .any(|(index, identity)| *known.entry(index).or_insert(identity) != identity)
}

/// The number of rows per poll, and the first row of a poll; `None` if every row is a poll.
fn rows_per_poll(rows: &[LogSample]) -> Option<(u64, u64)> {
    let candidates = (2..=MAX_PER_POLL).flat_map(|n| (0..n).map(move |first| (n, first)));
    candidates.into_iter().find(|(n, first)| {
        let gaps = rows.windows(2).map(|pair| (pair[1].number, pair[1].secs - pair[0].secs));
        let (between, within): (Vec<_>, Vec<_>) = gaps.partition(|(number, _)| number % n == *first);
        let shortest = between.iter().map(|(_, gap)| *gap).fold(f64::INFINITY, f64::min);
        let longest = within.iter().map(|(_, gap)| *gap).fold(0.0, f64::max);
        let enough = between.len() >= 2 && within.len() >= 2;
        enough && longest <= MAX_ROW_GAP_S && shortest > POLL_RATIO * longest
    })
}
