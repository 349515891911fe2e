//! Turns the operations of one GPU into tables of kernels and of copies.

use std::collections::{BTreeMap, HashMap};

use super::{
    busy::BusyTime,
    tally::{Durations, MAX_ROWS, Scope, Tally},
};
use llmprof_event::kernels::{KernelRow, KernelTable, Kind, OTHERS};

/// The time in which an operation ran.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub start_ns: i64,
    pub ns: f64,
}

impl Ran {
    fn end_ns(self) -> i64 {
        self.start_ns.saturating_add(self.ns as i64)
    }
}

/// The operations of one GPU.
#[derive(Debug, Default)]
pub struct Gpu {
    kernels: Tally<Vec<u8>, Launches>,
    copies: HashMap<String, Copies>,
    busy: BusyTime,
    copying: BusyTime,
}

/// Launches of the same kernel with the same grid in the same range.
#[derive(Debug)]
struct Launches {
    row: KernelRow,
    durations: Durations,
}

#[derive(Debug, Default)]
struct Copies {
    /// Unknown if one of them has no size.
    bytes: Option<f64>,
    durations: Durations,
}

impl Gpu {
    /// Counts a launch. Launches with the same key are rows of the same kernel; `new` creates the row of the first.
    /// Returns the row, for further values of the source.
    pub fn launch(
        &mut self,
        key: &[u8],
        name: &str,
        ran: Ran,
        new: impl FnOnce() -> KernelRow,
    ) -> &mut KernelRow {
        self.busy.add(ran.start_ns, ran.end_ns());
        let made = |scope: Scope| Launches { row: scope.limit(new()), durations: Durations::default() };
        let launches = self.kernels.row(key, name.as_bytes(), made);
        launches.durations.add(ran.ns);
        &mut launches.row
    }

    /// Counts a copy or a memset.
    pub fn copy(&mut self, name: &str, bytes: Option<f64>, ran: Ran) {
        self.copying.add(ran.start_ns, ran.end_ns());
        let name = if self.copies.len() < MAX_ROWS || self.copies.contains_key(name) { name } else { OTHERS };
        if !self.copies.contains_key(name) {
            self.copies.insert(name.to_owned(), Copies { bytes: Some(0.0), ..Copies::default() });
        }
        if let Some(copies) = self.copies.get_mut(name) {
            copies.bytes = copies.bytes.zip(bytes).map(|(sum, bytes)| sum + bytes);
            copies.durations.add(ran.ns);
        }
    }

    /// The tables of kernels and of copies, if there are any.
    pub fn into_tables(self, tool: &str, device: Option<&str>) -> [Option<KernelTable>; 2] {
        let note = self.kernels.note();
        let rows =
            self.kernels.into_rows().into_iter().map(|launches| launches.durations.into_row(launches.row));
        let mut kernels = filled(format!("{tool}, kernels"), Kind::Kernels, rows.collect(), device);
        if let Some(kernels) = &mut kernels {
            kernels.busy = self.busy.total();
            kernels.copying = self.copying.total();
            kernels.notes.extend(note);
        }
        let row = |(name, copies): (String, Copies)| {
            let row = KernelRow { family: name.clone(), name, bytes: copies.bytes, ..KernelRow::default() };
            copies.durations.into_row(row)
        };
        let rows = self.copies.into_iter().map(row).collect();
        [kernels, filled(format!("{tool}, memory operations"), Kind::MemoryTime, rows, device)]
    }
}

/// More GPUs than a machine has; operations of further ones count for the last one.
const MAX_GPUS: usize = 256;

/// The GPUs of a trace, by name.
#[derive(Debug, Default)]
pub struct Gpus(BTreeMap<String, Gpu>);

impl Gpus {
    pub fn named(&mut self, name: &str) -> &mut Gpu {
        let name = match self.0.len() < MAX_GPUS || self.0.contains_key(name) {
            true => name.to_owned(),
            false => self.0.keys().next_back().cloned().unwrap_or_default(),
        };
        self.0.entry(name).or_default()
    }

    /// The tables of kernels of each GPU, then those of copies of each.
    pub fn into_tables(self, tool: &str) -> Vec<KernelTable> {
        let device = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let tables = self.0.into_iter().map(|(name, gpu)| gpu.into_tables(tool, device(&name).as_deref()));
        let (kernels, copies): (Vec<_>, Vec<_>) = tables.map(|[kernels, copies]| (kernels, copies)).unzip();
        kernels.into_iter().chain(copies).flatten().collect()
    }
}

/// A sorted table; `None` without rows.
pub fn filled(
    source: impl Into<String>,
    kind: Kind,
    rows: Vec<KernelRow>,
    device: Option<&str>,
) -> Option<KernelTable> {
    let mut table = KernelTable { rows, device: device.map(str::to_owned), ..KernelTable::new(source, kind) };
    table.sort(Default::default());
    (!table.rows.is_empty()).then_some(table)
}
