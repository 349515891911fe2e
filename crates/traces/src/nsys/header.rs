//! The columns of the reports of `nsys stats`, with the headers of all versions since 2021.

use std::sync::Arc;

use serde_json::Value;

use crate::quantity::{self, Decimal, base};
use llmprof_event::kernels::{KernelRow, Kind, counters::Counter, names};

/// What a column is.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    Name,
    /// The range of a kernel.
    Range,
    Calls,
    Total(f64),
    Mean(f64),
    Median(f64),
    Min(f64),
    Max(f64),
    Spread(f64),
    Grid,
    Block,
    /// The index of a row's GPU.
    Device,
    /// The kind of a row, in a summary of several kinds.
    Category,
    /// The function that launched.
    Launcher,
    /// Another number, with its name, base unit and factor.
    Other(Arc<str>, Arc<str>, f64),
    /// Not used: shares are computed here; process and style are not needed.
    Unused,
}

/// The columns of a report, and the kind of its rows.
#[derive(Debug, Clone)]
pub struct Header {
    pub columns: Vec<Column>,
    pub kind: Kind,
    pub source: &'static str,
}

/// A row, and the table it belongs to.
#[derive(Debug)]
pub struct Placed {
    pub kind: Kind,
    pub device: Option<String>,
    pub row: KernelRow,
}

impl Header {
    /// `None` for a row that is not the header of a summary.
    pub fn from_titles(titles: &[String]) -> Option<Header> {
        let plain: Vec<(String, &str)> = titles.iter().map(|title| split_unit(title)).collect();
        let has = |name: &str| plain.iter().any(|(title, _)| title == name);
        let by_kernel = has("kernelname");
        let of_launches = has("kavg");
        let columns: Vec<Column> = plain
            .iter()
            .zip(titles)
            .map(|((name, unit), title)| match of_launches {
                true => launch_column(name, unit),
                false => column(name, unit, title, by_kernel),
            })
            .collect();
        let timed = columns.iter().any(|column| matches!(column, Column::Total(_))) || of_launches;
        if !timed || !columns.contains(&Column::Name) || !columns.contains(&Column::Calls) {
            return None;
        }
        let (kind, source) = if of_launches {
            (Kind::Kernels, "nsys, kernels with the times of their launches")
        } else if has("category") && has("operation") {
            (Kind::Kernels, "nsys, kernels, copies and calls")
        } else if by_kernel {
            (Kind::Kernels, "nsys, kernels by NVTX range")
        } else if has("operation") && plain.iter().any(|(name, unit)| name == "total" && is_size(unit)) {
            (Kind::MemorySize, "nsys, memory operations by size")
        } else if has("operation") {
            (Kind::MemoryTime, "nsys, memory operations by time")
        } else if has("totalprojtime") {
            (Kind::Ranges, "nsys, NVTX ranges projected on the GPU")
        } else if has("range") {
            (Kind::Ranges, "nsys, NVTX ranges on the host")
        } else if has("numcalls") || has("calls") {
            (Kind::ApiCalls, "nsys, CUDA calls")
        } else {
            (Kind::Kernels, "nsys, kernels")
        };
        Some(Header { columns, kind, source })
    }

    /// Whether a column has numbers.
    pub fn is_number(&self, column: usize) -> bool {
        !matches!(
            self.columns.get(column),
            Some(
                Column::Name
                    | Column::Range
                    | Column::Grid
                    | Column::Block
                    | Column::Category
                    | Column::Launcher
                    | Column::Unused
            ) | None
        )
    }

    pub fn row<'c>(&self, cell: impl Fn(usize) -> Option<Cell<'c>>) -> Option<Placed> {
        let mut row = KernelRow::default();
        let (mut name, mut calls, mut device) = (None, None, None);
        let (mut kind, mut in_graphs) = (self.kind, None);
        for (at, column) in self.columns.iter().enumerate() {
            let Some(cell) = cell(at) else { continue };
            let scaled = |factor: &f64| cell.number().map(|value| value * factor);
            match column {
                Column::Name => name = Some(cell.text()).filter(|name| !name.is_empty()),
                Column::Range => row.range = Some(cell.text()).filter(|range| !range.is_empty()),
                Column::Calls => calls = cell.number().filter(|n| *n >= 0.0).map(|n| n as u64),
                Column::Total(by) if self.kind == Kind::MemorySize => row.bytes = scaled(by),
                Column::Total(by) => row.total_ns = scaled(by),
                // Only the total of sizes is kept.
                _ if self.kind == Kind::MemorySize => {}
                Column::Mean(by) => row.mean_ns = scaled(by),
                Column::Median(by) => row.median_ns = scaled(by),
                Column::Min(by) => row.min_ns = scaled(by),
                Column::Max(by) => row.max_ns = scaled(by),
                Column::Spread(by) => row.stddev_ns = scaled(by),
                Column::Grid => row.grid = quantity::three(cell.text().as_bytes()),
                Column::Block => row.block = quantity::three(cell.text().as_bytes()),
                Column::Device => device = Some(cell.text()).filter(|id| !id.is_empty()),
                Column::Category => kind = category(&cell.text()),
                Column::Launcher => in_graphs = Some(is_graph_launch(&cell.text())),
                Column::Other(name, unit, by) => {
                    if let Some(value) = scaled(by) {
                        let mut counter = Counter::NONE;
                        counter.add(value, 1.0);
                        row.counters.merge(name, unit, &counter);
                    }
                }
                Column::Unused => {}
            }
        }
        // A range in the default domain begins with a colon.
        let name = name?;
        let name = if kind == Kind::Ranges { name.trim_start_matches(':') } else { &name };
        let known = KernelRow::named(names::demangled(name));
        let family = if kind == Kind::Kernels { known.family } else { name.to_owned() };
        let calls = calls?;
        let mean_ns = row.mean_ns.or_else(|| Some(row.total_ns? / Some(calls).filter(|n| *n > 0)? as f64));
        // Sizes have no times.
        let total_ns = row.total_ns.or_else(|| Some(mean_ns? * calls as f64));
        let graph_calls = in_graphs.map(|in_graphs: bool| if in_graphs { calls } else { 0 });
        let row = KernelRow { name: known.name, family, calls, mean_ns, total_ns, graph_calls, ..row };
        Some(Placed { kind, device: device.map(|id| format!("GPU {id}")), row })
    }
}

/// Whether a function launches a CUDA graph.
pub fn is_graph_launch(function: &str) -> bool {
    function.contains("GraphLaunch")
}

/// The kind of a row in a summary of several kinds.
fn category(text: &str) -> Kind {
    match text {
        "CUDA_API" => Kind::ApiCalls,
        "MEMORY_OPER" => Kind::MemoryTime,
        _ => Kind::Kernels,
    }
}

/// The name of a column in lower case without spaces, and the unit in parentheses after it.
pub fn split_unit(title: &str) -> (String, &str) {
    let (name, unit) = match title.rsplit_once('(') {
        Some((name, unit)) if title.ends_with(')') => (name, unit.trim_end_matches(')').trim()),
        _ => (title, ""),
    };
    let name =
        name.chars().filter(|c| !c.is_whitespace() && *c != '_').flat_map(char::to_lowercase).collect();
    (name, unit)
}

fn is_size(unit: &str) -> bool {
    base(unit).unit == "byte"
}

fn column(name: &str, unit: &str, title: &str, by_kernel: bool) -> Column {
    // Times without a unit are in ns.
    let by = base(unit).factor;
    match name {
        "name" | "operation" | "kernelname" => Column::Name,
        "range" if !by_kernel => Column::Name,
        "range" | "nvtxrange" => Column::Range,
        "instances" | "numcalls" | "calls" | "count" | "operations" | "kerninst" | "rangeinstances" => {
            Column::Calls
        }
        "totaltime" | "total" | "totalprojtime" => Column::Total(by),
        "avg" | "average" | "projavg" => Column::Mean(by),
        "med" | "median" | "projmed" => Column::Median(by),
        "min" | "minimum" | "projmin" => Column::Min(by),
        "max" | "maximum" | "projmax" => Column::Max(by),
        "stddev" | "projstddev" => Column::Spread(by),
        "category" => Column::Category,
        "gridxyz" => Column::Grid,
        "blockxyz" => Column::Block,
        "time" | "time(%)" | "style" | "pid" | "tid" => Column::Unused,
        _ => {
            let scale = base(unit);
            let bare =
                if unit.is_empty() { title } else { title.rsplit_once('(').map_or(title, |(name, _)| name) };
            Column::Other(Arc::from(bare.trim()), Arc::from(scale.unit), scale.factor)
        }
    }
}

/// A column of the summary of launches: times of the call (A), in the queue (Q), of the kernel (K) and of all three (T).
fn launch_column(name: &str, unit: &str) -> Column {
    let scale = base(unit);
    let by = scale.factor;
    let other = |name: &str| Column::Other(Arc::from(name), Arc::from(scale.unit.as_str()), by);
    match name {
        "kernelname" => Column::Name,
        "count" => Column::Calls,
        "devid" => Column::Device,
        "apiname" | "apifunction" => Column::Launcher,
        "kavg" => Column::Mean(by),
        "kmed" => Column::Median(by),
        "kmin" => Column::Min(by),
        "kmax" => Column::Max(by),
        "kstddev" => Column::Spread(by),
        "aavg" => other("call of the launch"),
        "qavg" => other("wait in the queue"),
        _ => Column::Unused,
    }
}

/// A cell of a CSV or a JSON row.
#[derive(Clone, Copy)]
pub enum Cell<'c> {
    Bytes(&'c [u8], Decimal),
    Json(&'c Value),
}

impl Cell<'_> {
    pub fn number(&self) -> Option<f64> {
        match self {
            Cell::Bytes(bytes, decimal) => decimal.number(bytes),
            Cell::Json(Value::String(text)) => Decimal::Point.number(text.as_bytes()),
            Cell::Json(value) => value.as_f64(),
        }
    }

    pub fn text(&self) -> String {
        match self {
            Cell::Bytes(bytes, _) => String::from_utf8_lossy(bytes.trim_ascii()).into_owned(),
            Cell::Json(Value::String(text)) => text.trim().to_owned(),
            Cell::Json(Value::Number(value)) => value.to_string(),
            Cell::Json(_) => String::new(),
        }
    }
}
