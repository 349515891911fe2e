//! Recordings made for one case each.

use super::*;

const THREAD: i64 = (1 << 48) | (77 << 24) | 5;
const PROCESS: i64 = (1 << 48) | (77 << 24);

fn made(sql: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.sqlite");
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    (dir, path)
}

fn recording() -> String {
    format!(
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
         INSERT INTO StringIds VALUES (1, 'void gemv<4>(int)'), (2, 'rope'), (3, 'cudaLaunchKernel_v7000'), (4, 'step');
         CREATE TABLE {KERNELS} (start, end, correlationId, globalPid, demangledName, shortName, gridX, gridY, gridZ,
             blockX, blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory, graphNodeId);
         INSERT INTO {KERNELS} VALUES
             (1000, 1100, 10, {PROCESS}, 1, 1, 8, 1, 1, 32, 1, 1, 40, 16, 1024, NULL),
             (1200, 1400, 11, {PROCESS}, 1, 1, 8, 1, 1, 32, 1, 1, 40, 16, 1024, NULL),
             (1500, 1550, 11, {PROCESS}, 2, 2, 4, 1, 1, 32, 1, 1, 20, 0, 0, 99),
             (1600, 1700, 12, {PROCESS}, 1, 1, 8, 1, 1, 32, 1, 1, 40, 16, 1024, NULL),
             (1600, 1700, 10, {PROCESS} + (1 << 24), 2, 2, 4, 1, 1, 32, 1, 1, 20, 0, 0, NULL),
             (NULL, 'x', 12, 0, NULL, 1, 8, 1, 1, 32, 1, 1, 40, 16, 1024, NULL);
         CREATE TABLE {CALLS} (start, end, globalTid, correlationId, nameId);
         INSERT INTO {CALLS} VALUES (110, 115, {THREAD}, 10, 3), (150, 155, {THREAD}, 11, 3), (500, 505, {THREAD}, 12, 3);
         CREATE TABLE {RANGES} (start, end, eventType, text, globalTid, endGlobalTid, textId, domainId);
         INSERT INTO {RANGES} VALUES
             (100, 200, 59, 'decode', {THREAD}, NULL, NULL, 1), (140, 160, 60, NULL, {THREAD}, NULL, 4, 1),
             (0, 900, 59, 'elsewhere', {THREAD} + 1, NULL, NULL, 1), (50, NULL, 34, 'mark', {THREAD}, NULL, NULL, 0),
             (0, 900, 60, 'crossing', {THREAD}, {THREAD} + 1, NULL, 0);
         CREATE TABLE {COPIES} (start, end, bytes, copyKind);
         INSERT INTO {COPIES} VALUES (1, 5, 4096, 1), (6, 9, 4096, 1);"
    )
}

#[test]
fn kernels_are_assigned_to_their_ranges() {
    let (_dir, path) = made(&recording());
    let tables = read_database(&path).unwrap();
    let kinds: Vec<Kind> = tables.iter().map(|table| table.kind).collect();
    assert_eq!(kinds, [Kind::Kernels, Kind::Ranges, Kind::ApiCalls, Kind::MemoryTime]);
    let kernels = &tables[0];
    let of = |name: &str, range: Option<&str>| {
        kernels
            .rows
            .iter()
            .find(|row| row.family == name && row.range.as_deref() == range)
            .unwrap_or_else(|| panic!("no {name} in {range:?}: {:#?}", kernels.rows))
    };
    assert_eq!(of("gemv", Some("decode")).total_ns, Some(100.0));
    let step = of("gemv", Some("decode/step"));
    assert_eq!((step.total_ns, step.registers, step.shared_bytes), (Some(200.0), Some(40), Some(1040)));
    assert_eq!((step.grid, step.block), (Some([8, 1, 1]), Some([32, 1, 1])));
    assert_eq!(of("gemv", None).calls, 1);
    assert_eq!(of("rope", Some("decode/step")).graph_calls, Some(1));
    // The same correlation id in another process is another call.
    assert_eq!(of("rope", None).graph_calls, Some(0));
    assert!(kernels.notes.iter().any(|note| note.starts_with("1 launches could not be read")));
    assert!(kernels.notes.iter().any(|note| note.starts_with("2 launches were made outside all")));
    let decode = tables[1].rows.iter().find(|row| row.name == "decode").unwrap();
    assert_eq!((decode.total_ns, decode.calls), (Some(100.0), 1));
    assert_eq!(decode.counters.mean("kernel time"), Some(350.0));
    assert_eq!(decode.counters.mean("kernels"), Some(3.0));
    assert_eq!((tables[2].rows[0].name.as_str(), tables[2].rows[0].calls), ("cudaLaunchKernel", 3));
    assert_eq!((tables[3].rows[0].bytes, tables[3].rows[0].total_ns), (Some(8192.0), Some(7.0)));
}

#[test]
fn tables_and_columns_may_be_missing() {
    let (_dir, path) = made(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'k');
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, shortName);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 10, 1), (20, 40, 1);",
    );
    let tables = read_database(&path).unwrap();
    assert_eq!(tables.len(), 1);
    let row = &tables[0].rows[0];
    assert_eq!((row.name.as_str(), row.calls, row.total_ns), ("k", 2, Some(30.0)));
    assert_eq!((row.grid, row.registers, row.range.as_deref()), (None, None, None));
}

#[test]
fn graphs_without_nodes_are_reported() {
    let (_dir, path) = made(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, graphId);
         INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (0, 10, 7), (20, 40, 7);",
    );
    let table = read_database(&path).unwrap().remove(0);
    assert_eq!((table.rows[0].name.as_str(), table.rows[0].calls), ("[CUDA graph 7]", 2));
    assert!(table.notes[0].contains("--cuda-graph-trace=node"), "{:?}", table.notes);
    assert_eq!(table.has_graphs(), Some(true));
}

#[test]
fn calls_without_kernels_are_shown_with_a_note() {
    let (_dir, path) = made(&format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'cudaMalloc_v3020');
         CREATE TABLE {CALLS} (start, end, globalTid, correlationId, nameId);
         INSERT INTO {CALLS} VALUES (0, 10, {THREAD}, 1, 1), (20, 25, {THREAD}, 2, 1);"
    ));
    let tables = read_database(&path).unwrap();
    assert_eq!((tables.len(), tables[0].kind), (1, Kind::ApiCalls));
    assert_eq!((tables[0].rows[0].name.as_str(), tables[0].rows[0].total_ns), ("cudaMalloc", Some(15.0)));
    assert!(tables[0].notes[0].contains("no kernels were recorded"), "{:?}", tables[0].notes);
}

#[test]
fn two_gpus_are_shown_apart_with_their_busy_time() {
    let (_dir, path) = made(&format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'k');
         CREATE TABLE TARGET_INFO_GPU (id, name);
         INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200'), (1, 'NVIDIA H200');
         CREATE TABLE {KERNELS} (start, end, deviceId, shortName);
         INSERT INTO {KERNELS} VALUES (0, 10, 0, 1), (5, 20, 0, 1), (60, 80, 0, 1), (0, 40, 1, 1);
         CREATE TABLE {COPIES} (start, end, bytes, copyKind, deviceId);
         INSERT INTO {COPIES} VALUES (1, 5, 4096, 1, 0), (6, 9, 4096, 1, 1);"
    ));
    let tables = read_database(&path).unwrap();
    let of: Vec<(Kind, &str, u64)> =
        tables.iter().map(|table| (table.kind, table.device.as_deref().unwrap(), table.calls())).collect();
    assert_eq!(
        of,
        [
            (Kind::Kernels, "NVIDIA H200 (GPU 0)", 3),
            (Kind::Kernels, "NVIDIA H200 (GPU 1)", 1),
            (Kind::MemoryTime, "NVIDIA H200 (GPU 0)", 1),
            (Kind::MemoryTime, "NVIDIA H200 (GPU 1)", 1),
        ]
    );
    let busy = |at: usize| tables[at].busy.map(|busy| (busy.busy_ns, busy.span_ns));
    assert_eq!((busy(0), busy(1), busy(2)), (Some((40.0, 80.0)), Some((40.0, 40.0)), None));
}

#[test]
fn nothing_recorded_and_no_database_are_errors() {
    let (_dir, path) = made("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);");
    let e = read_database(&path).unwrap_err().to_string();
    assert!(e.contains("x.sqlite has neither kernels nor ranges nor calls") && e.contains("-t cuda"), "{e}");
    std::fs::write(&path, "SQLite format 3\0 and then something else entirely").unwrap();
    let e = read_database(&path).unwrap_err().to_string();
    assert!(e.contains("x.sqlite") && e.contains("nsys export"), "{e}");
}

/// A view could compute without end: only stored tables are read.
#[test]
fn views_are_no_recordings() {
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x + 1 AS end, x AS correlationId, \
                   x AS globalPid, 1 AS demangledName FROM n";
    let (_dir, path) =
        made(&format!("CREATE VIEW {KERNELS} AS {endless}; CREATE VIEW {CALLS} AS {endless};"));
    assert!(matches!(read_database(&path), Err(KernelsError::NothingRecorded { .. })));
    let kernels = format!(
        "CREATE TABLE {KERNELS} (start, end, demangledName); INSERT INTO {KERNELS} VALUES (1, 2, 1);"
    );
    let long = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value AS (zeroblob(100000000)))";
    let (_dir, path) = made(&format!("{kernels} {long}; INSERT INTO StringIds (id) VALUES (1);"));
    assert!(read_database(&path).is_err(), "a value of 100 MB");
}

#[test]
fn the_time_of_copies_is_that_of_their_gpu() {
    let (_dir, path) = made(&format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         INSERT INTO StringIds VALUES (1, 'k');
         CREATE TABLE {KERNELS} (start, end, deviceId, shortName);
         INSERT INTO {KERNELS} VALUES (0, 10, 0, 1), (0, 10, 1, 1);
         CREATE TABLE {COPIES} (start, end, bytes, copyKind, deviceId);
         INSERT INTO {COPIES} VALUES (100, 1100, 4096, 1, 0), (1150, 2100, 4096, 2, 0);"
    ));
    let tables = read_database(&path).unwrap();
    assert_eq!((tables[0].kind, tables[1].kind), (Kind::Kernels, Kind::Kernels));
    let copying = tables[0].copying.expect("the first GPU copies");
    assert_eq!((copying.busy_ns, copying.span_ns), (1950.0, 2000.0));
    assert!(copying.share().is_some_and(|share| share > 0.9), "{copying:?}");
    assert_eq!(tables[1].copying, None, "the second GPU copies nothing");
}

/// Reading ends, whatever a file makes SQLite compute.
#[test]
fn a_file_that_takes_too_many_operations_is_an_error() {
    let (_dir, path) = made(&format!(
        "CREATE TABLE {KERNELS} (start, end, shortName);
         WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 10000)
         INSERT INTO {KERNELS} SELECT 10 * x, 10 * x + 5, 1 FROM n;"
    ));
    let works_within = |operations: u64| {
        Database::open_within(&path, operations).and_then(|database| database.works()).map(drop)
    };
    assert_eq!(works_within(FEW_OPERATIONS), Ok(()));
    // Each row takes several operations.
    let error = works_within(10_000).unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::OperationInterrupted), "{error}");
}

/// With programmatic dependent launch a kernel starts early and waits for the preceding one.
#[test]
fn the_wait_for_the_preceding_kernel_of_a_stream_is_not_counted() {
    let (_dir, path) = made(&format!(
        "CREATE TABLE {KERNELS} (start, end, deviceId, globalPid, streamId, shortName);
         CREATE TABLE StringIds (id, value);
         INSERT INTO StringIds VALUES (1, 'gemv'), (2, 'norm'), (3, 'copy');
         INSERT INTO {KERNELS} VALUES
             (0, 100, 0, 1, 7, 1), (10, 120, 0, 1, 7, 2), (20, 90, 0, 1, 8, 3), (130, 150, 0, 1, 7, 1), (30, 40, 0, 1, 7, 2);"
    ));
    let tables = read_database(&path).unwrap();
    let total = |name: &str| tables[0].rows.iter().find(|row| row.name == name).unwrap().total_ns.unwrap();
    assert_eq!((total("gemv"), total("copy")), (120.0, 70.0), "another stream runs in parallel");
    assert_eq!(total("norm"), 20.0 + 10.0, "a row that is not in order is taken as it is");
    assert!(tables[0].notes[0].starts_with("1 launches began before"), "{:?}", tables[0].notes);
}
