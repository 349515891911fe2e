//! Reading speed of kernel files: a raw page of ncu and the SQLite of nsys.
//!
//! `cargo bench --bench kernels`. If python3 has pandas, it reads the same files for comparison.

use std::{fs, io::Write, path::Path, process::Command, time::Instant};

use llmprof::kernels::{ncu, nsys, open};
use rusqlite::{Connection, params};

const RAW: &str = include_str!("../tests/fixtures/h200_ncu_raw.csv");
const RAW_BYTES: usize = 100 << 20;
const LAUNCHES: i64 = 1_000_000;
const ROUNDS: usize = 5;

/// Requirements: MB of a raw page per second, and launches of a recording per second.
const BARS: (f64, f64) = (150.0, 1e6);

fn main() {
    let raw = repeated(RAW_BYTES);
    let mb = raw.len() as f64 / 1e6;
    let (took, table) = best(|| ncu::read_raw("raw", raw.as_slice()).expect("the fixture can be read"));
    println!("ncu raw CSV: {mb:.0} MB, {} launches in {took:.3} s: {:.0} MB/s", table.calls(), mb / took);
    let mut held = mb / took >= BARS.0;
    let dir = tempfile::tempdir().expect("a folder");
    let csv = dir.path().join("raw.csv");
    fs::File::create(&csv).and_then(|mut file| file.write_all(&raw)).expect("room for the CSV");
    let (took, _) = best(|| open(&csv).expect("the file can be read"));
    println!("  from a file, its kind found out: {:.0} MB/s", mb / took);
    pandas("ncu raw CSV", &csv, "pandas.read_csv(path, thousands=',', skiprows=[1])", mb, "MB/s");
    for with_ranges in [false, true] {
        held &= database(dir.path(), with_ranges) >= BARS.1;
    }
    println!(
        "bars {} MB/s and {} million launches/s: {}",
        BARS.0,
        BARS.1 / 1e6,
        if held { "held" } else { "MISSED" }
    );
    if !held {
        std::process::exit(1);
    }
}

/// Reads a recording; returns launches per second.
fn database(dir: &Path, with_ranges: bool) -> f64 {
    let path = dir.join(format!("recording_{with_ranges}.sqlite"));
    record(&path, with_ranges).expect("a database");
    let (took, tables) = best(|| nsys::read_database(&path).expect("the recording can be read"));
    let what = if with_ranges { "with NVTX ranges and calls" } else { "kernels alone" };
    println!(
        "nsys SQLite, {what}: {} launches in {took:.3} s: {:.2} M launches/s",
        tables[0].calls(),
        LAUNCHES as f64 / took / 1e6
    );
    let sql = "pandas.read_sql('SELECT end - start AS ns, value FROM CUPTI_ACTIVITY_KIND_KERNEL \
               JOIN StringIds ON id = demangledName', sqlite3.connect(path)).groupby('value').ns.sum()";
    pandas("nsys SQLite", &path, sql, LAUNCHES as f64 / 1e6, "M launches/s");
    LAUNCHES as f64 / took
}

/// The least time of some rounds, and the result.
fn best<T>(mut work: impl FnMut() -> T) -> (f64, T) {
    let mut least = f64::INFINITY;
    let mut made = None;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        made = Some(work());
        least = least.min(begun.elapsed().as_secs_f64());
    }
    (least, made.expect("there is at least one round"))
}

/// The fixture with its launches repeated.
fn repeated(bytes: usize) -> Vec<u8> {
    let mut lines = RAW.split_inclusive('\n');
    let header: String = lines.by_ref().take(2).collect();
    let launches: String = lines.collect();
    let mut all = header.into_bytes();
    while all.len() < bytes {
        all.extend_from_slice(launches.as_bytes());
    }
    all
}

/// A recording as nsys exports it: launches of forty kernels, the calls that made them, a range around every hundredth.
fn record(path: &Path, with_ranges: bool) -> rusqlite::Result<()> {
    const PROCESS: i64 = (1 << 48) | (77 << 24);
    let mut database = Connection::open(path)?;
    database.execute_batch(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
         CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, contextId INTEGER,
             streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
             mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER, gridX INTEGER,
             gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER,
             dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, localMemoryTotal INTEGER, gridId INTEGER,
             sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
             globalTid INTEGER, correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
         CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
             globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);",
    )?;
    let all = database.transaction()?;
    for id in 0..40 {
        all.execute(
            "INSERT INTO StringIds VALUES (?1, ?2)",
            params![id, format!("void kernel_{id}<float, 4>(int)")],
        )?;
    }
    all.execute("INSERT INTO StringIds VALUES (100, 'cudaLaunchKernel_v7000')", [])?;
    {
        let mut kernel = all.prepare(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?1, ?2, 0, 1, 7, ?3, ?4, ?5, ?5, ?5, 1, 0, 40, ?6, 1, 1, 256, 1, 1, 0,
             1024, 0, 0, ?3, 32768, NULL, 0)",
        )?;
        let mut call =
            all.prepare("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?1, ?2, 1, ?3, ?4, 100, 0, NULL)")?;
        let mut range =
            all.prepare("INSERT INTO NVTX_EVENTS VALUES (?1, ?2, 59, 'decode_step', ?3, NULL, NULL, 1)")?;
        for i in 0..LAUNCHES {
            let start = i * 10_000;
            let lasts = 2_000 + i % 40 * 100 + i % 7 * 32;
            kernel.execute(params![start, start + lasts, i, PROCESS, i % 40, 8 + i % 40])?;
            if with_ranges {
                call.execute(params![start - 5_000, start - 3_000, PROCESS + 5, i])?;
                if i % 100 == 0 {
                    range.execute(params![start - 6_000, start + 990_000 - 6_500, PROCESS + 5])?;
                }
            }
        }
    }
    all.commit()
}

/// The same with pandas, if it is installed.
fn pandas(what: &str, path: &Path, expression: &str, amount: f64, unit: &str) {
    let script = format!(
        "import sys, time, sqlite3, pandas\npath = sys.argv[1]\nbegun = time.perf_counter()\n{expression}\n\
         print(time.perf_counter() - begun)"
    );
    let done = Command::new("python3").args(["-c", &script]).arg(path).output();
    let seconds = done
        .ok()
        .filter(|done| done.status.success())
        .and_then(|done| String::from_utf8_lossy(&done.stdout).trim().parse::<f64>().ok());
    match seconds {
        Some(seconds) => println!("  pandas: {:.2} {unit}", amount / seconds),
        None => println!("  skipped: {what} by pandas: python3 has none"),
    }
}
