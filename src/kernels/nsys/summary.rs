//! The summaries of `nsys stats`, with the headers of all versions since 2021.

use std::{
    fmt,
    io::{BufRead, Read},
    sync::Arc,
};

use serde::{
    Deserializer,
    de::{SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::{
    event::kernels::{KernelRow, KernelTable, Kind, OTHERS, counters::Counter, names},
    kernels::{
        cells::{Row, Rows},
        error::{KernelsError, RECORD_KERNELS},
        quantity::{self, base},
        tally::MAX_ROWS,
    },
};

/// What a column is.
#[derive(Debug, Clone, PartialEq)]
enum Column {
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
    /// Another number, with its name, base unit and factor.
    Other(Arc<str>, Arc<str>, f64),
    /// Shares are computed here; process and style are not needed.
    Unused,
}

/// The columns of a report, and what its rows are.
#[derive(Debug, Clone)]
struct Header {
    columns: Vec<Column>,
    kind: Kind,
    source: &'static str,
}

impl Header {
    /// `None` for a row that is not the header of a summary.
    fn of(titles: &[String]) -> Option<Header> {
        let plain: Vec<(String, &str)> = titles.iter().map(|title| split_unit(title)).collect();
        let has = |name: &str| plain.iter().any(|(title, _)| title == name);
        let by_kernel = has("kernelname");
        let columns: Vec<Column> = plain
            .iter()
            .zip(titles)
            .map(|((name, unit), title)| column(name, unit, title, by_kernel))
            .collect();
        let total = columns.iter().any(|column| matches!(column, Column::Total(_)));
        if !total || !columns.contains(&Column::Name) || !columns.contains(&Column::Calls) {
            return None;
        }
        let (kind, source) = if by_kernel {
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

    fn row<'c>(&self, cell: impl Fn(usize) -> Option<Cell<'c>>) -> Option<KernelRow> {
        let mut row = KernelRow::default();
        let (mut name, mut calls) = (None, None);
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
        let name = if self.kind == Kind::Ranges { name.trim_start_matches(':') } else { &name };
        let known = KernelRow::named(names::demangled(name));
        let family = if self.kind == Kind::Kernels { known.family } else { name.to_owned() };
        let mean_ns = row.mean_ns.or_else(|| Some(row.total_ns? / calls.filter(|n| *n > 0)? as f64));
        Some(KernelRow { name: known.name, family, calls: calls?, mean_ns, ..row })
    }
}

/// Whether `titles` are the header of a summary.
pub fn is_header(titles: &[String]) -> bool {
    Header::of(titles).is_some()
}

/// The name of a column in lower case without spaces, and the unit in parentheses after it.
fn split_unit(title: &str) -> (String, &str) {
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

/// A cell of a CSV or a JSON row.
enum Cell<'c> {
    Bytes(&'c [u8]),
    Json(&'c Value),
}

impl Cell<'_> {
    fn number(&self) -> Option<f64> {
        match self {
            Cell::Bytes(bytes) => quantity::number(bytes),
            Cell::Json(Value::String(text)) => quantity::number(text.as_bytes()),
            Cell::Json(value) => value.as_f64(),
        }
    }

    fn text(&self) -> String {
        match self {
            Cell::Bytes(bytes) => String::from_utf8_lossy(bytes.trim_ascii()).into_owned(),
            Cell::Json(Value::String(text)) => text.trim().to_owned(),
            Cell::Json(Value::Number(value)) => value.to_string(),
            Cell::Json(_) => String::new(),
        }
    }
}

/// A table of bounded size.
struct Collected {
    header: Header,
    table: KernelTable,
    unread: u64,
}

impl Collected {
    fn new(header: Header) -> Collected {
        let mut table = KernelTable::new(header.source, header.kind);
        table.nested |= header.columns.contains(&Column::Range);
        Collected { header, table, unread: 0 }
    }

    fn add(&mut self, row: Option<KernelRow>) {
        let Some(row) = row else {
            self.unread += 1;
            return;
        };
        if self.table.rows.len() < MAX_ROWS {
            self.table.rows.push(row);
            return;
        }
        let others = KernelRow { name: OTHERS.to_owned(), family: OTHERS.to_owned(), ..row };
        match self.table.rows.get_mut(MAX_ROWS) {
            Some(known) => known.absorb(&others),
            None => self.table.rows.push(others),
        }
    }

    fn done(mut self) -> KernelTable {
        if self.unread > 0 {
            self.table.notes.push(format!("{} rows could not be read", self.unread));
        }
        self.table
    }
}

/// Reads the output of `nsys stats -f csv`: one table or several, with messages between them.
///
/// A report that was skipped or has only a header is an error, never an empty table.
pub fn read_csv(file: &str, input: impl BufRead) -> Result<Vec<KernelTable>, KernelsError> {
    let mut rows = Rows::new(input);
    let mut tables: Vec<KernelTable> = Vec::new();
    let mut current: Option<Collected> = None;
    let (mut message, mut any) = (None, false);
    while let Some(row) = rows.next_row().map_err(KernelsError::read(file))? {
        if row.is_empty() {
            tables.extend(current.take().map(Collected::done));
            continue;
        }
        any = true;
        if let Some(text) = skipped(row) {
            message.get_or_insert(text);
            continue;
        }
        match &mut current {
            Some(table) => {
                let read = table.header.row(|at| row.get(at).map(Cell::Bytes));
                table.add(read);
            }
            None => current = Header::of(&row.texts()).map(Collected::new),
        }
    }
    tables.extend(current.map(Collected::done));
    finished(file, tables, message, any)
}

/// The message of nsys about a report it skipped.
pub(in crate::kernels) fn skipped(row: Row) -> Option<String> {
    // It may follow a progress message on the same line.
    let first = row.text(0)?;
    let at = first.find("SKIPPED:").filter(|at| *at == 0 || first.starts_with("Processing ["))?;
    Some(row.texts().join(",")[at..].to_owned())
}

fn finished(
    file: &str,
    tables: Vec<KernelTable>,
    message: Option<String>,
    any: bool,
) -> Result<Vec<KernelTable>, KernelsError> {
    let file = file.to_owned();
    let with_rows = tables.iter().any(|table| !table.rows.is_empty());
    match (with_rows, message) {
        (true, message) => {
            let mut tables: Vec<KernelTable> =
                tables.into_iter().filter(|table| !table.rows.is_empty()).collect();
            tables[0].notes.extend(message);
            Ok(tables)
        }
        (false, Some(message)) => Err(KernelsError::Skipped { file, message, remedy: RECORD_KERNELS }),
        (false, None) if !any => Err(KernelsError::Empty { file, remedy: RECORD_KERNELS }),
        (false, None) => match tables.first() {
            Some(table) => {
                let what = format!("the header of a report ({})", table.source);
                Err(KernelsError::NoRows { file, what, remedy: RECORD_KERNELS })
            }
            None => Err(KernelsError::Unknown { file, seen: "no row is the header of a report".to_owned() }),
        },
    }
}

/// Reads the output of `nsys stats -f json`: a list of objects, one in memory at a time.
pub fn read_json(file: &str, input: impl Read) -> Result<Vec<KernelTable>, KernelsError> {
    let mut rows = JsonRows::default();
    if let Err(e) = serde_json::Deserializer::from_reader(input).deserialize_seq(&mut rows) {
        let file = file.to_owned();
        return Err(match e.is_io() {
            true => KernelsError::Read { file, source: e.into() },
            false => KernelsError::Unknown { file, seen: format!("it is not a list of rows ({e})") },
        });
    }
    let tables = rows.tables.into_iter().map(Collected::done).collect();
    finished(file, tables, None, rows.any)
}

#[derive(Default)]
struct JsonRows {
    tables: Vec<Collected>,
    /// The keys of the last table.
    keys: Vec<String>,
    any: bool,
}

impl JsonRows {
    fn add(&mut self, row: Map<String, Value>) {
        self.any = true;
        // All objects of a report have the same keys: its header is made once.
        if !row.keys().eq(&self.keys) {
            let keys: Vec<String> = row.keys().cloned().collect();
            let Some(header) = Header::of(&keys) else { return };
            self.tables.push(Collected::new(header));
            self.keys = keys;
        }
        if let Some(table) = self.tables.last_mut() {
            let cells: Vec<&Value> = row.values().collect();
            let row = table.header.row(|at| cells.get(at).copied().map(Cell::Json));
            table.add(row);
        }
    }
}

impl<'de> Visitor<'de> for &mut JsonRows {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element()? {
            self.add(row);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn csv(text: &str) -> Result<Vec<KernelTable>, KernelsError> {
        read_csv("report.csv", text.as_bytes())
    }

    fn only(text: &str) -> KernelTable {
        let mut tables = csv(text).unwrap();
        assert_eq!(tables.len(), 1, "{tables:?}");
        tables.remove(0)
    }

    #[test]
    fn kernels_with_the_header_of_today() {
        let table = only(
            "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n\
             75.0,3000,3,1000.0,900.0,800,1300,264.6,\"void gemv_kernel<float, 4>(float const*, int)\"\n\
             25.0,1000,1,1000.0,1000.0,1000,1000,0.0,rope_bf16\n",
        );
        assert_eq!((table.kind, table.total(), table.calls()), (Kind::Kernels, Some(4000.0), 4));
        let row = &table.rows[0];
        assert_eq!((row.family.as_str(), row.calls), ("gemv_kernel", 3));
        assert_eq!((row.median_ns, row.stddev_ns, row.grid), (Some(900.0), Some(264.6), None));
    }

    #[test]
    fn kernels_with_the_header_of_2022_and_before() {
        let table = only(
            "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n\
             100.0,2000,2,1000.0,1000.0,900,1100,141.4,   8   14    1, 384    1    1,nvjet_sm90_tst_64x32_64x16_2x4_h_bz_TNT\n",
        );
        assert_eq!((table.rows[0].grid, table.rows[0].block), (Some([8, 14, 1]), Some([384, 1, 1])));
        let older =
            only("Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n50.0,20,2,10.0,9,11,k\n");
        assert_eq!((older.rows[0].mean_ns, older.rows[0].min_ns), (Some(10.0), Some(9.0)));
        assert_eq!(older.rows[0].median_ns, None);
    }

    #[test]
    fn units_of_the_header_count() {
        let table = only("Time (%),Total Time (ms),Instances,Avg (us),Name\n100.0,1.5,2,750,k\n");
        assert_eq!((table.rows[0].total_ns, table.rows[0].mean_ns), (Some(1.5e6), Some(750_000.0)));
        let sizes = only(
            "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation\n\
             12.500,4,3.125,3.0,0.5,6.0,2.0,[CUDA memcpy HtoD]\n",
        );
        assert_eq!((sizes.kind, sizes.total()), (Kind::MemorySize, Some(12.5e6)));
        assert_eq!((sizes.rows[0].total_ns, sizes.rows[0].mean_ns), (None, None));
    }

    #[test]
    fn every_report_is_recognised_by_its_header() {
        for (header, kind) in [
            (
                "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name",
                Kind::ApiCalls,
            ),
            (
                "Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation",
                Kind::MemoryTime,
            ),
            (
                "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Range",
                Kind::Ranges,
            ),
            (
                "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Proj Med (ns),Proj Min (ns),\
                 Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child",
                Kind::Ranges,
            ),
            (
                "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Kernel Name",
                Kind::Kernels,
            ),
        ] {
            let titles: Vec<String> = header.split(',').map(str::to_owned).collect();
            assert_eq!(Header::of(&titles).map(|header| header.kind), Some(kind), "{header}");
        }
        assert!(Header::of(&["a".to_owned(), "b".to_owned()]).is_none());
    }

    #[test]
    fn projections_and_ranges_keep_their_other_columns() {
        let projected = only(
            "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Total GPU Ops\n\
             :decode,PushPop,8000,9000,2,4000,20\n",
        );
        let row = &projected.rows[0];
        assert_eq!((row.name.as_str(), row.total_ns, row.calls), ("decode", Some(8000.0), 2));
        assert_eq!(row.counters.mean("Total Range Time"), Some(9000.0));
        assert_eq!(row.counters.mean("Total GPU Ops"), Some(20.0));
        let kernels = only(
            "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Kernel Name\n\
             llmprof:decode,PushPop,1,1,5,10,500,50,k\n,,,,,3,90,30,k\n",
        );
        assert_eq!(kernels.rows[0].range.as_deref(), Some("llmprof:decode"));
        assert_eq!((kernels.rows[1].range.as_deref(), kernels.rows[1].calls), (None, 3));
    }

    #[test]
    fn several_reports_in_one_stream() {
        let tables = csv(
            "NOTICE: Existing SQLite export found: out.sqlite\nProcessing [out.sqlite] with [x.py]... \n\n\
             Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,10,1,10.0,k\n\n\
             Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,7,1,7.0,cudaLaunchKernel\n",
        )
        .unwrap();
        assert_eq!(
            tables.iter().map(|table| table.kind).collect::<Vec<_>>(),
            [Kind::Kernels, Kind::ApiCalls]
        );
    }

    #[test]
    fn a_file_without_rows_is_an_error() {
        let cases: &[(&str, &str)] = &[
            ("", "report.csv is empty"),
            ("\n\n", "report.csv is empty"),
            ("SKIPPED: out.sqlite does not contain CUDA kernel data.\n", "does not contain CUDA kernel data"),
            ("Processing [a] with [b] to [c]... SKIPPED: no CUDA, at all.\n", "SKIPPED: no CUDA,at all"),
            ("Time (%),Total Time (ns),Instances,Name\n", "no readable row"),
            ("Time (%),Total Time (ns),Instances,Name\n1,2,x,k\n", "no readable row"),
            ("a,b,c\n1,2,3\n", "unknown format"),
        ];
        for (text, words) in cases {
            let e = csv(text).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
        let e = csv(cases[2].0).unwrap_err().to_string();
        assert!(e.contains("nsys profile -t cuda"), "{e}");
    }

    #[test]
    fn json_and_csv_give_the_same_tables() {
        let text = r#"[
          {"Time (%)": 75.0, "Total Time (ns)": 3000, "Instances": 3, "Avg (ns)": 1000.0, "Name": "rope<4>(int)"},
          {"Time (%)": 25.0, "Total Time (ns)": 1000, "Instances": 1, "Avg (ns)": 1000.0, "Name": "k"}
        ]"#;
        let json = read_json("report.json", text.as_bytes()).unwrap();
        let csv = csv(
            "Time (%),Total Time (ns),Instances,Avg (ns),Name\n75.0,3000,3,1000.0,rope<4>(int)\n25.0,1000,1,1000.0,k\n",
        );
        assert_eq!(json, csv.unwrap());
        for (text, words) in [
            ("[]", "is empty"),
            ("{\"a\": 1}", "not a list of rows"),
            ("[{\"a\": 1}]", "no row is the header"),
        ] {
            let e = read_json("report.json", text.as_bytes()).unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_csv("any", bytes.as_slice());
            let _ = read_json("any", bytes.as_slice());
        }

        #[test]
        fn any_rows_below_a_header_are_read_or_rejected(rows in "[0-9a-z,.\"\n()<>:%-]{0,200}") {
            let header = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n";
            if let Ok(tables) = read_csv("any", format!("{header}{rows}").as_bytes()) {
                prop_assert!(tables.iter().all(|table| !table.rows.is_empty()));
            }
        }
    }
}
