//! The SQLite of `nsys export`: every launch, call and range.
//!
//! A table exists only if something was recorded for it, and columns differ between versions; missing ones are skipped.
//! Kernels are assigned to ranges through the calls that launched them: a launch and its call share a correlation id
//! within a process, and the call was made on a thread within that thread's ranges.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use rusqlite::{Connection, OpenFlags, OptionalExtension, config::DbConfig, limits::Limit, types::ValueRef};

use super::ranges::{OUTSIDE, PathId, Ranges, range_table};
use crate::{
    busy::BusyTime,
    error::{KernelsError, RECORD_KERNELS},
    gpu::filled,
    ranks::{Gathered, RankTrace},
    tally::{Durations, Scope, Tally},
};
use llmprof_analysis::ranks::Operation;
use llmprof_event::{
    kernels::{KernelRow, KernelTable, Kind, OTHERS, names},
    ranks::Collective,
};

const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const CALLS: &str = "CUPTI_ACTIVITY_KIND_RUNTIME";
const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
const COPIES: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
const MEMSETS: &str = "CUPTI_ACTIVITY_KIND_MEMSET";
const RANGES: &str = "NVTX_EVENTS";
/// The largest value or row that SQLite may read, in bytes.
const MAX_VALUE_BYTES: i32 = 16 << 20;
/// Maximum operations of SQLite's virtual machine for reading a file.
const FEW_OPERATIONS: u64 = 1_000_000_000;
const OPERATIONS_PER_BYTE: u64 = 100;
const OPERATIONS_AT_A_TIME: u64 = 1_000_000;
/// More than a machine has.
const MAX_GPUS: usize = 256;
/// Maximum names of kernels whose collective is remembered.
const MAX_NAMES: usize = 1 << 16;
const PUSH_POP: i64 = 59;
const START_END: i64 = 60;

/// Reads a recording: the kernels of each GPU, then ranges, CUDA calls and memory operations, as far as they were recorded.
///
/// The file is opened read-only. A recording without any of them is an error.
pub fn read_database(path: &Path) -> Result<Vec<KernelTable>, KernelsError> {
    let file = path.display().to_string();
    match read(path) {
        Err(source) => Err(KernelsError::Database { file, source }),
        Ok(tables) if tables.is_empty() => Err(KernelsError::NothingRecorded {
            file,
            missing: "no rows in CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME and NVTX_EVENTS",
            remedy: RECORD_KERNELS,
        }),
        Ok(tables) => Ok(tables),
    }
}

/// The work of the recording's GPUs over time.
pub fn read_ranks(path: &Path) -> rusqlite::Result<RankTrace> {
    let database = Database::open(path)?;
    let gathered = database.works()?;
    let begin = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME LIMIT 1";
    let base_ns = database.connection.query_row(begin, [], |row| row.get::<_, i64>(0)).unwrap_or(0);
    Ok(gathered.trace(&path.display().to_string(), None, base_ns))
}

fn read(path: &Path) -> rusqlite::Result<Vec<KernelTable>> {
    let database = Database::open(path)?;
    let mut ranges = database.ranges()?;
    let mut by_path: Vec<(Durations, u64)> = Vec::new();
    ranges.resolve(|path, lasted| {
        let path = path as usize;
        by_path.resize_with(by_path.len().max(path + 1), Default::default);
        by_path[path].1 += 1;
        if let Some(ns) = lasted {
            by_path[path].0.add(ns as f64);
        }
    });
    let (calls, links) = database.calls(&mut ranges)?;
    let mut launched: Vec<(u64, f64)> = Vec::new();
    let mut tables = database.kernels(&ranges, &links, &mut launched)?;
    let without_kernels = tables.is_empty();
    let source = "nsys SQLite, NVTX ranges on the host";
    tables.extend(range_table(source, &ranges.paths, by_path, &launched));
    tables.extend(calls);
    tables.extend(database.memory()?);
    if let Some(first) = tables.first_mut().filter(|_| without_kernels) {
        first.notes.push(format!("no kernels were recorded; {RECORD_KERNELS}"));
    }
    Ok(tables)
}

/// The number that a call and its launches share: the process, and the correlation id within it.
fn link(process_or_thread: i64, correlation: i64) -> u64 {
    // Bits 24 to 47 are the process, the bits below are the thread.
    let process = (process_or_thread as u64 >> 24) & 0xff_ffff;
    process << 40 | (correlation as u64 & 0xff_ffff_ffff)
}

/// Calls by number, each with its ranges.
#[derive(Debug, Default)]
struct Links(Vec<(u64, PathId)>);

impl Links {
    fn sort(&mut self) {
        if !self.0.is_sorted() {
            self.0.sort_unstable();
        }
    }

    /// `hint` is the position of the last result: launches are in about the order of their calls.
    fn find(&self, number: u64, hint: &mut usize) -> PathId {
        let near = *hint..(*hint + 4).min(self.0.len());
        if let Some(at) = near.clone().find(|at| self.0[*at].0 == number) {
            *hint = at;
            return self.0[at].1;
        }
        match self.0.binary_search_by_key(&number, |(number, _)| *number) {
            Ok(at) => {
                *hint = at;
                self.0[at].1
            }
            Err(_) => OUTSIDE,
        }
    }
}

/// The number of a GPU; `None` if the recording does not have it.
type Device = Option<i64>;

/// The key of launches that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LaunchKey {
    device: Device,
    name: i64,
    grid: [u32; 3],
    block: [u32; 3],
    path: PathId,
}

/// The launches with one key.
#[derive(Debug)]
struct Launches {
    key: LaunchKey,
    scope: Scope,
    /// The row of one launch, for values that all of them share.
    example: i64,
    in_graphs: u64,
    durations: Durations,
}

/// Streams that are followed; launches of others count whole.
const MAX_STREAMS: usize = 1 << 12;

/// A stream of a process on a GPU.
type Stream = (Device, Option<i64>, Option<i64>);

/// Kernels that begin before the preceding one of their stream has ended: they wait for it.
#[derive(Debug, Default)]
struct Waits {
    /// The last start and the last end.
    reached: HashMap<Stream, (i64, i64)>,
    launches: u64,
}

impl Waits {
    /// When a kernel began to run. Rows that are not in the order of their start are taken as they are.
    fn begin(&mut self, stream: Stream, start: i64, end: i64) -> i64 {
        if stream.2.is_none() || (self.reached.len() >= MAX_STREAMS && !self.reached.contains_key(&stream)) {
            return start;
        }
        let (last_start, last_end) = self.reached.entry(stream).or_insert((start, start));
        let waits = start >= *last_start && start < *last_end;
        self.launches += u64::from(waits);
        let begin = if waits { (*last_end).min(end.max(start)) } else { start };
        (*last_start, *last_end) = (start, end.max(*last_end));
        begin
    }
}

struct Database {
    connection: Connection,
}

/// The integer in a column; `None` for any other value.
fn integer(row: &rusqlite::Row, column: usize) -> rusqlite::Result<Option<i64>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Integer(value) => Some(value),
        _ => None,
    })
}

/// Start and end, from the first two columns.
fn span(row: &rusqlite::Row) -> rusqlite::Result<Option<(i64, i64)>> {
    Ok(integer(row, 0)?.zip(integer(row, 1)?))
}

fn duration_ns((start, end): (i64, i64)) -> f64 {
    end.saturating_sub(start).max(0) as f64
}

/// A row whose family is its name.
fn simple_row(name: String) -> KernelRow {
    KernelRow { family: name.clone(), name, ..KernelRow::default() }
}

impl Database {
    fn open(path: &Path) -> rusqlite::Result<Database> {
        let bytes = path.metadata().map_or(0, |file| file.len());
        Database::open_within(path, FEW_OPERATIONS + OPERATIONS_PER_BYTE * bytes)
    }

    /// Opens a file whose reading may take at most `operations` of SQLite's virtual machine; beyond that it ends with
    /// an error.
    fn open_within(path: &Path, operations: u64) -> rusqlite::Result<Database> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
        // Code in a schema is untrusted: it is limited like the rest of the file.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        let at_a_time = operations.clamp(1, OPERATIONS_AT_A_TIME);
        let mut left = operations;
        connection.progress_handler(
            at_a_time as i32,
            Some(move || {
                left = left.saturating_sub(at_a_time);
                left == 0
            }),
        )?;
        Ok(Database { connection })
    }

    /// Kernels, copies and memsets of each process and GPU.
    fn works(&self) -> rusqlite::Result<Gathered> {
        let mut gathered = Gathered::default();
        let place = |row: &rusqlite::Row| -> rusqlite::Result<_> {
            let pid = integer(row, 3)?.map(|process| (process as u64 >> 24 & 0xff_ffff) as u32);
            Ok((pid, integer(row, 2)?.unwrap_or(0)))
        };
        let columns = self.columns(KERNELS)?;
        let names = ["demangledName", "shortName", "mangledName"];
        let name = names.into_iter().find(|name| columns.iter().any(|column| column == name));
        let mut collectives: HashMap<i64, Option<Collective>> = HashMap::new();
        let wanted = ["start", "end", "deviceId", "globalPid", name.unwrap_or("demangledName")];
        self.each(KERNELS, &wanted, "", |row| {
            let (Some((start, end)), Some(name)) = (span(row)?, integer(row, 4)?) else { return Ok(()) };
            let collective = match collectives.get(&name) {
                Some(known) => *known,
                None => {
                    let text = self.string(name)?.unwrap_or_default();
                    let found = gathered.collective(&names::demangled(&text));
                    if collectives.len() < MAX_NAMES {
                        collectives.insert(name, found);
                    }
                    found
                }
            };
            let (place, ns) = (place(row)?, duration_ns((start, end)));
            match collective {
                Some(kind) => gathered.operation(place, start, ns, Operation::new(kind)),
                None => gathered.compute(place, start, ns),
            }
            Ok(())
        })?;
        for table in [COPIES, MEMSETS] {
            self.each(table, &["start", "end", "deviceId", "globalPid"], "", |row| {
                if let Some((start, end)) = span(row)? {
                    gathered.copy(place(row)?, start, duration_ns((start, end)));
                }
                Ok(())
            })?;
        }
        Ok(gathered)
    }

    /// The columns of a table; none if it does not exist, or if it is a view or computed, which is not stored in the
    /// file.
    fn columns(&self, table: &str) -> rusqlite::Result<Vec<String>> {
        let mut ask = self.connection.prepare(
            "SELECT name FROM pragma_table_info(?1) WHERE EXISTS \
             (SELECT 1 FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name = ?1)",
        )?;
        let names = ask.query_map([table], |row| row.get(0))?;
        names.collect()
    }

    /// Reads the rows of a table. A missing column reads as NULL. Returns false if the table does not exist.
    fn each(
        &self,
        table: &str,
        wanted: &[&str],
        condition: &str,
        mut row_of: impl FnMut(&rusqlite::Row) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<bool> {
        let existing = self.columns(table)?;
        if existing.is_empty() {
            return Ok(false);
        }
        let has = |name: &str| existing.iter().any(|column| column == name);
        let column = |name: &&str| match *name {
            "rowid" => "rowid".to_owned(),
            name if has(name) => format!("\"{name}\""),
            _ => "NULL".to_owned(),
        };
        let columns = wanted.iter().map(column).collect::<Vec<_>>().join(", ");
        let mut ask = self.connection.prepare(&format!("SELECT {columns} FROM \"{table}\" {condition}"))?;
        let mut rows = ask.query([])?;
        while let Some(row) = rows.next()? {
            row_of(row)?;
        }
        Ok(true)
    }

    /// The text of an id, if it has one.
    fn string(&self, id: i64) -> rusqlite::Result<Option<String>> {
        if self.columns("StringIds")?.is_empty() {
            return Ok(None);
        }
        let mut ask = self.connection.prepare_cached("SELECT value FROM StringIds WHERE id = ?1")?;
        ask.query_row([id], |row| row.get(0)).optional()
    }

    /// The name of a GPU, with its number if the recording has several.
    fn device(&self, device: Device, several: bool) -> Option<String> {
        let of_number = "SELECT name FROM TARGET_INFO_GPU WHERE id = ?1";
        // If numbers are missing, GPUs of the same name cannot be confused.
        let same = "SELECT name FROM TARGET_INFO_GPU HAVING min(name) = max(name)";
        let ask = |sql: &str, values: &[Option<i64>]| {
            let values = rusqlite::params_from_iter(values);
            self.connection.query_row(sql, values, |row| row.get::<_, String>(0)).ok()
        };
        let name = ask(of_number, &[device]).or_else(|| ask(same, &[]));
        match device.filter(|_| several) {
            Some(number) => {
                Some(name.map_or(format!("GPU {number}"), |name| format!("{name} (GPU {number})")))
            }
            None => name,
        }
    }

    fn ranges(&self) -> rusqlite::Result<Ranges> {
        let mut ranges = Ranges::default();
        let mut texts: HashMap<i64, String> = HashMap::new();
        let wanted = ["start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "text"];
        self.each(RANGES, &wanted, "", |row| {
            let number = |at| integer(row, at);
            if !matches!(number(2)?, Some(PUSH_POP | START_END)) {
                return Ok(());
            }
            let (Some(start), Some(thread)) = (number(0)?, number(3)?) else { return Ok(()) };
            // A range that ends on another thread encloses no calls of either thread.
            if number(4)?.is_some_and(|end| end != thread) {
                return Ok(());
            }
            let end = number(1)?;
            match number(5)? {
                Some(id) => {
                    if let std::collections::hash_map::Entry::Vacant(vacant) = texts.entry(id) {
                        vacant.insert(self.string(id)?.unwrap_or_else(|| format!("range {id}")));
                    }
                    ranges.add(thread, start, end, &texts[&id]);
                }
                None => {
                    let text = row.get_ref(6)?.as_bytes_or_null().ok().flatten().unwrap_or(b"(unnamed)");
                    ranges.add(thread, start, end, &String::from_utf8_lossy(text));
                }
            }
            Ok(())
        })?;
        Ok(ranges)
    }

    /// The CUDA calls as a table, and those within ranges by number.
    fn calls(&self, ranges: &mut Ranges) -> rusqlite::Result<(Option<KernelTable>, Links)> {
        let mut links = Links::default();
        let mut by_name: HashMap<i64, Durations> = HashMap::new();
        let with_ranges = !ranges.is_empty();
        self.each(CALLS, &["start", "end", "nameId", "correlationId", "globalTid"], "", |row| {
            let number = |at| integer(row, at);
            let Some((start, end)) = span(row)? else { return Ok(()) };
            by_name.entry(number(2)?.unwrap_or(-1)).or_default().add(duration_ns((start, end)));
            if !with_ranges {
                return Ok(());
            }
            if let (Some(correlation), Some(thread)) = (number(3)?, number(4)?) {
                let path = ranges.enclosing(thread, start, end);
                if path != OUTSIDE {
                    links.0.push((link(thread, correlation), path));
                }
            }
            Ok(())
        })?;
        links.sort();
        let mut rows = Vec::new();
        for (id, durations) in by_name {
            let name = self.string(id)?.unwrap_or_else(|| format!("call {id}"));
            rows.push(durations.into_row(simple_row(without_version(&name).to_owned())));
        }
        Ok((filled("nsys SQLite, CUDA calls", Kind::ApiCalls, rows, None), links))
    }

    /// The kernels of each GPU. `launched` receives the number of launches and their time for each nesting of ranges.
    fn kernels(
        &self,
        ranges: &Ranges,
        links: &Links,
        launched: &mut Vec<(u64, f64)>,
    ) -> rusqlite::Result<Vec<KernelTable>> {
        launched.resize(ranges.paths.len(), (0, 0.0));
        let columns = self.columns(KERNELS)?;
        let has = |name: &str| columns.iter().any(|column| column == name);
        let name = ["demangledName", "shortName", "mangledName"].into_iter().find(|name| has(name));
        let mut tally: Tally<LaunchKey, Launches> = Tally::default();
        let mut busy: BTreeMap<Device, BusyTime> = BTreeMap::new();
        let mut waits = Waits::default();
        let (mut unread, mut hint, mut outside) = (0u64, 0, 0u64);
        let mut wanted = vec![
            "rowid",
            "start",
            "end",
            name.unwrap_or("demangledName"),
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "graphNodeId",
            "deviceId",
            "globalPid",
            "streamId",
        ];
        if !links.0.is_empty() {
            wanted.push("correlationId");
        }
        self.each(KERNELS, &wanted, "", |row| {
            let number = |at| integer(row, at);
            let (Some(start), Some(end), Some(name)) = (number(1)?, number(2)?, number(3)?) else {
                unread += 1;
                return Ok(());
            };
            let path = match links.0.is_empty() {
                true => OUTSIDE,
                false => match (number(14)?, number(12)?) {
                    (Some(correlation), Some(process)) => links.find(link(process, correlation), &mut hint),
                    _ => OUTSIDE,
                },
            };
            let size = |at| number(at).map(|n| n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0));
            let device = number(11)?;
            // GPUs beyond the limit are counted as one.
            let known = busy.len() < MAX_GPUS || busy.contains_key(&device);
            let device = device.filter(|_| known);
            busy.entry(device).or_default().add(start, end);
            let key = LaunchKey {
                device,
                name,
                grid: [size(4)?, size(5)?, size(6)?],
                block: [size(7)?, size(8)?, size(9)?],
                path,
            };
            let example = number(0)?.unwrap_or(-1);
            let mut named = [0; 16];
            named[..8].copy_from_slice(&name.to_le_bytes());
            named[8..].copy_from_slice(&device.unwrap_or(-1).to_le_bytes());
            let launches = tally.row(&key, &named, |scope| Launches {
                key,
                scope,
                example,
                in_graphs: 0,
                durations: Durations::default(),
            });
            let from = waits.begin((device, number(12)?, number(13)?), start, end);
            let ns = duration_ns((from, end));
            launches.in_graphs += u64::from(number(10)?.is_some());
            launches.durations.add(ns);
            let (calls, total) = &mut launched[path as usize];
            *calls += 1;
            *total += ns;
            outside += u64::from(path == OUTSIDE);
            Ok(())
        })?;
        let note = tally.note();
        let mut by_device: BTreeMap<Device, Vec<KernelRow>> = BTreeMap::new();
        for (device, row) in self.rows_of(tally.into_rows(), ranges)? {
            by_device.entry(device).or_default().push(row);
        }
        let graphs = self.graphs(&mut busy)?;
        let unresolved: u64 = graphs.iter().map(|(_, row)| row.calls).sum();
        graphs.into_iter().for_each(|(device, row)| by_device.entry(device).or_default().push(row));
        let several = by_device.len() > 1;
        let copying = self.copying()?;
        let mut tables = Vec::new();
        for (device, rows) in by_device {
            let name = self.device(device, several);
            let mut table = filled("nsys SQLite, kernels", Kind::Kernels, rows, name.as_deref());
            if let Some(table) = &mut table {
                table.busy = busy.get(&device).and_then(BusyTime::total);
                table.copying = copying.get(&device).and_then(BusyTime::total);
            }
            tables.extend(table);
        }
        let Some(table) = tables.first_mut() else { return Ok(tables) };
        table.notes.extend(note);
        if waits.launches > 0 {
            table.notes.push(format!(
                "{} launches began before the preceding kernel of their stream had ended (programmatic dependent launch, or parallel branches of a graph): their time counts from its end",
                waits.launches
            ));
        }
        if unread > 0 {
            table.notes.push(format!("{unread} launches could not be read"));
        }
        if unresolved > 0 {
            table.notes.push(format!(
                "{unresolved} launches of CUDA graphs were recorded without their kernels; use nsys profile --cuda-graph-trace=node"
            ));
        }
        if !ranges.is_empty() && outside > 0 {
            table.notes.push(format!("{outside} launches were made outside all NVTX ranges"));
        }
        Ok(tables)
    }

    fn rows_of(&self, all: Vec<Launches>, ranges: &Ranges) -> rusqlite::Result<Vec<(Device, KernelRow)>> {
        let wanted = ["registersPerThread", "staticSharedMemory", "dynamicSharedMemory"];
        let mut rows = Vec::with_capacity(all.len());
        for Launches { key, scope, example, in_graphs, durations } in all {
            let name = match scope {
                Scope::Others => OTHERS.to_owned(),
                _ => {
                    let text = self.string(key.name)?.unwrap_or_else(|| format!("kernel {}", key.name));
                    names::demangled(&text).into_owned()
                }
            };
            let row = KernelRow { graph_calls: Some(in_graphs), ..KernelRow::named(name) };
            let mut row = durations.into_row(row);
            if scope == Scope::Launch {
                let known = |extent: [u32; 3]| (extent != [0; 3]).then_some(extent);
                (row.grid, row.block) = (known(key.grid), known(key.block));
                row.range = ranges.paths.text(key.path).map(str::to_owned);
                self.each(KERNELS, &wanted, &format!("WHERE rowid = {example}"), |one| {
                    let number = |at| integer(one, at);
                    row.registers = number(0)?.and_then(|n| u32::try_from(n).ok());
                    row.shared_bytes =
                        number(1)?.zip(number(2)?).and_then(|(a, b)| u64::try_from(a.checked_add(b)?).ok());
                    Ok(())
                })?;
            }
            rows.push((key.device, row));
        }
        Ok(rows)
    }

    /// Graphs that were recorded without their nodes.
    fn graphs(&self, busy: &mut BTreeMap<Device, BusyTime>) -> rusqlite::Result<Vec<(Device, KernelRow)>> {
        let mut by_graph: HashMap<(Device, Option<i64>), Durations> = HashMap::new();
        self.each(GRAPHS, &["start", "end", "graphId", "deviceId"], "", |row| {
            if let Some((start, end)) = span(row)? {
                let device = integer(row, 3)?;
                by_graph.entry((device, integer(row, 2)?)).or_default().add(duration_ns((start, end)));
                busy.entry(device).or_default().add(start, end);
            }
            Ok(())
        })?;
        let row = |((device, graph), durations): ((Device, Option<i64>), Durations)| {
            let family = "[CUDA graph]".to_owned();
            let name = graph.map_or(family.clone(), |id| format!("[CUDA graph {id}]"));
            let row = durations.into_row(KernelRow { family, name, ..KernelRow::default() });
            (device, KernelRow { graph_calls: Some(row.calls), ..row })
        };
        Ok(by_graph.into_iter().map(row).collect())
    }

    /// The time in which copies and memsets ran on each GPU.
    fn copying(&self) -> rusqlite::Result<BTreeMap<Device, BusyTime>> {
        let mut copying: BTreeMap<Device, BusyTime> = BTreeMap::new();
        for table in [COPIES, MEMSETS] {
            self.each(table, &["start", "end", "deviceId"], "", |row| {
                if let Some((start, end)) = span(row)? {
                    let device = integer(row, 2)?;
                    let known = copying.len() < MAX_GPUS || copying.contains_key(&device);
                    copying.entry(device.filter(|_| known)).or_default().add(start, end);
                }
                Ok(())
            })?;
        }
        Ok(copying)
    }

    /// Copies and memsets of each GPU.
    fn memory(&self) -> rusqlite::Result<Vec<KernelTable>> {
        let mut by_device: BTreeMap<Device, HashMap<String, (f64, Durations)>> = BTreeMap::new();
        for (table, kind) in [(COPIES, "copyKind"), (MEMSETS, "")] {
            self.each(table, &["start", "end", "bytes", "deviceId", kind], "", |row| {
                let Some(span) = span(row)? else { return Ok(()) };
                let name =
                    if table == COPIES { copy_name(integer(row, 4)?) } else { "[CUDA memset]".to_owned() };
                let device = integer(row, 3)?;
                let known = by_device.len() < MAX_GPUS || by_device.contains_key(&device);
                let device = device.filter(|_| known);
                let (bytes, durations) = by_device.entry(device).or_default().entry(name).or_default();
                *bytes += integer(row, 2)?.unwrap_or(0) as f64;
                durations.add(duration_ns(span));
                Ok(())
            })?;
        }
        let row = |(name, (bytes, durations)): (String, (f64, Durations))| {
            durations.into_row(KernelRow { bytes: Some(bytes), ..simple_row(name) })
        };
        let several = by_device.len() > 1;
        let tables = by_device.into_iter().filter_map(|(device, by_name)| {
            let name = self.device(device, several).filter(|_| several);
            let rows = by_name.into_iter().map(row).collect();
            filled("nsys SQLite, memory operations", Kind::MemoryTime, rows, name.as_deref())
        });
        Ok(tables.collect())
    }
}

/// `cudaLaunchKernel` of `cudaLaunchKernel_v7000`.
fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((bare, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => bare,
        _ => name,
    }
}

fn copy_name(kind: Option<i64>) -> String {
    let between = match kind {
        Some(1) => "Host-to-Device",
        Some(2) => "Device-to-Host",
        Some(3) => "Host-to-Array",
        Some(4) => "Array-to-Host",
        Some(8) => "Device-to-Device",
        Some(9) => "Host-to-Host",
        Some(10) => "Peer-to-Peer",
        Some(11) => "Unified Host-to-Device",
        Some(12) => "Unified Device-to-Host",
        _ => "(other)",
    };
    format!("[CUDA memcpy {between}]")
}

#[cfg(test)]
mod tests;
