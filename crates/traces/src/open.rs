//! Opens a file of any known format, recognised by its content.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom},
    path::Path,
};

use super::{
    cells::{Row, Rows},
    convert::{self, Report},
    cublas,
    dialect::{BEGINNING, DELIMITERS},
    error::{KernelsError, RECORD_KERNELS},
    ncu, nsys,
    ranks::RankTrace,
    tensorrt, torch,
};
use llmprof_analysis::ranks::{NcclLog, is_nccl_line};
use llmprof_base::{gz, read, tools::System};
use llmprof_event::kernels::{KernelRow, KernelTable, Kind};

const BUFFER: usize = 1 << 18;

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    NsysCsv,
    /// Columns or a grid, for a reader.
    NsysLayout,
    NsysJson,
    NsysDatabase,
    NcuRaw,
    NcuDetails,
    CublasLog,
    NcclLog,
    /// A trace of PyTorch's profiler.
    Trace,
    CompressedTrace,
    TensorRtProfile,
    TensorRtLayers,
    /// Only the profiler that wrote it can read it.
    Report(Report),
}

/// Reads a kernel file of any known format. Reports of profilers are converted by the profiler, if it is installed.
///
/// There is at least one table, no table is empty, and the most important one is first.
pub fn open(path: &Path) -> Result<Vec<KernelTable>, KernelsError> {
    open_on(path, &System::here())
}

/// Like [`open`], on another system.
pub fn open_on(path: &Path, system: &System) -> Result<Vec<KernelTable>, KernelsError> {
    Ok(open_all_on(path, system)?.tables)
}

/// All that a file has.
#[derive(Debug, Default)]
pub struct Opened {
    /// None of a log of NCCL.
    pub tables: Vec<KernelTable>,
    /// Its GPUs over time, where it has times.
    pub ranks: Option<RankTrace>,
    pub nccl: Option<NcclLog>,
}

/// Like [`open`], with the GPUs of a program side by side and what NCCL printed.
pub fn open_all(path: &Path) -> Result<Opened, KernelsError> {
    open_all_on(path, &System::here())
}

fn open_all_on(path: &Path, system: &System) -> Result<Opened, KernelsError> {
    let file = path.display().to_string();
    let opened = match read::open(path) {
        Err(e) if e.kind() == ErrorKind::IsADirectory => {
            let seen = "it is a directory; pass the files in it".to_owned();
            return Err(KernelsError::Unknown { file, seen });
        }
        opened => opened.map_err(KernelsError::read(&file))?,
    };
    let mut input = BufReader::with_capacity(BUFFER, opened);
    let format = format_of(path, &mut input).map_err(|reason| unknown(&file, reason))?;
    input.seek(SeekFrom::Start(0)).map_err(KernelsError::read(&file))?;
    let mut ranks = None;
    let mut tables = match format {
        Format::NsysCsv => nsys::read_csv(&file, input),
        Format::NsysLayout => nsys::read_layout(&file, input),
        Format::NsysJson => nsys::read_json(&file, input),
        Format::NsysDatabase => {
            ranks = nsys::read_ranks(path).ok();
            nsys::read_database(path)
        }
        Format::NcclLog => {
            let log = read_nccl_log(input).map_err(KernelsError::read(&file))?;
            return Ok(Opened { nccl: Some(log), ..Opened::default() });
        }
        Format::NcuRaw => ncu::read_raw(&file, input).map(|table| vec![table]),
        Format::NcuDetails => ncu::read_details(&file, input).map(|table| vec![table]),
        Format::CublasLog => cublas::read_log(&file, input).map(|table| vec![table]),
        Format::Trace => torch::read_trace_and_ranks(&file, input).map(|(tables, trace)| {
            ranks = Some(trace);
            tables
        }),
        Format::CompressedTrace => torch::read_compressed(&file, input).map(|(tables, trace)| {
            ranks = Some(trace);
            tables
        }),
        Format::TensorRtProfile => tensorrt::read_profile(&file, input).map(|table| vec![table]),
        Format::TensorRtLayers => tensorrt::read_layer_info(&file, input).map(|table| vec![table]),
        Format::Report(report) => convert::convert(path, report, system),
    }?;
    mark_graphs(&mut tables);
    Ok(Opened { tables, ranks, nccl: None })
}

/// A line is at most this long; the rest of it is another.
const MAX_LINE: u64 = 4096;
/// Logs of days have gigabytes: what is read beyond this adds nothing new.
const MAX_LOG: u64 = 1 << 30;

fn read_nccl_log(input: impl BufRead) -> std::io::Result<NcclLog> {
    let mut log = NcclLog::default();
    let mut input = input.take(MAX_LOG);
    let mut line = Vec::new();
    while input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        log.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(log)
}

/// Calls that launch CUDA graphs are a fact about the kernels.
fn mark_graphs(tables: &mut [KernelTable]) {
    let launches_graph = |row: &KernelRow| nsys::is_graph_launch(&row.name);
    let calls = tables.iter().filter(|table| table.kind == Kind::ApiCalls);
    let known = calls.map(|table| table.rows.iter().any(launches_graph)).max();
    let kernels = tables.iter_mut().filter(|table| table.kind == Kind::Kernels);
    kernels.for_each(|table| table.graphs = table.graphs.max(known));
}

/// Why a format was not recognised.
enum Unrecognised {
    Empty,
    Unreadable(std::io::Error),
    Other(String),
}

fn unknown(file: &str, reason: Unrecognised) -> KernelsError {
    let file = file.to_owned();
    match reason {
        Unrecognised::Empty => KernelsError::Empty { file, remedy: RECORD_KERNELS },
        Unrecognised::Unreadable(source) => KernelsError::Read { file, source },
        Unrecognised::Other(seen) => KernelsError::Unknown { file, seen },
    }
}

fn format_of(path: &Path, input: &mut impl BufRead) -> Result<Format, Unrecognised> {
    let head = input.fill_buf().map_err(Unrecognised::Unreadable)?;
    if head.trim_ascii().is_empty() && head.len() < BUFFER {
        return Err(Unrecognised::Empty);
    }
    if head.starts_with(b"SQLite format 3\0") {
        return Ok(Format::NsysDatabase);
    }
    if head.starts_with(b"NVIDIA Tegra Profiler Report") {
        return Ok(Format::Report(Report::Nsys));
    }
    if head.get(8..).is_some_and(|rest| rest.starts_with(b"NVIDIA Nsight Systems St")) {
        return Ok(Format::Report(Report::Qdstrm));
    }
    if head.starts_with(b"NVR\0") {
        return Ok(Format::Report(Report::Ncu));
    }
    if head.starts_with(&gz::SIGNATURE) {
        return Ok(Format::CompressedTrace);
    }
    if head.contains(&0) {
        return binary(path, head);
    }
    if tensorrt::is_profile(head) {
        return Ok(Format::TensorRtProfile);
    }
    if tensorrt::is_layer_info(head) {
        return Ok(Format::TensorRtLayers);
    }
    match head.trim_ascii_start() {
        // A program under ncu may print JSON before the page.
        [b'{', ..] => Ok(text_format(input).unwrap_or(Format::Trace)),
        [b'[', b'\n' | b'\r' | b' ' | b'{' | b']', ..] if torch::is_list_of_events(head) => Ok(Format::Trace),
        [b'[', b'\n' | b'\r' | b' ' | b'{' | b']', ..] => Ok(Format::NsysJson),
        _ => text_format(input),
    }
}

/// Reports of profilers have no signature that all versions share: they are recognised by extension.
fn binary(path: &Path, head: &[u8]) -> Result<Format, Unrecognised> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension {
        "nsys-rep" | "qdrep" => Ok(Format::Report(Report::Nsys)),
        "qdstrm" => Ok(Format::Report(Report::Qdstrm)),
        "ncu-rep" | "nsight-cuprof-report" => Ok(Format::Report(Report::Ncu)),
        _ if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) => {
            let remedy = "it is text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8";
            Err(Unrecognised::Other(remedy.to_owned()))
        }
        _ => Err(Unrecognised::Other("it is neither text nor a database".to_owned())),
    }
}

/// Searches for the first row that identifies the format, with every delimiter.
fn text_format(input: &mut impl BufRead) -> Result<Format, Unrecognised> {
    let mut beginning = Vec::new();
    input.take(BEGINNING).read_to_end(&mut beginning).map_err(Unrecognised::Unreadable)?;
    if nsys::is_layout(&beginning) {
        return Ok(Format::NsysLayout);
    }
    for delimiter in DELIMITERS {
        let mut rows = Rows::new(beginning.as_slice(), delimiter);
        while let Ok(Some(row)) = rows.next_row() {
            if let Some(format) = format_of_row(row) {
                return Ok(format);
            }
        }
    }
    if beginning.split(|byte| *byte == b'\n').any(|line| is_nccl_line(&String::from_utf8_lossy(line))) {
        return Ok(Format::NcclLog);
    }
    let lines = || beginning.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    // An error of ncu explains why there is nothing else.
    if lines().any(|line| line.starts_with(b"==ERROR==") || line.starts_with(b"==WARNING==")) {
        return Ok(Format::NcuRaw);
    }
    let first = lines().find(|line| !line.is_empty()).ok_or(Unrecognised::Empty)?;
    let first: String = String::from_utf8_lossy(first).chars().take(60).collect();
    Err(Unrecognised::Other(format!("it starts with {first:?}")))
}

fn format_of_row(row: Row) -> Option<Format> {
    let beginning = row.text(0)?;
    let has = |title: &[u8]| row.iter().any(|cell| cell.trim_ascii() == title);
    if beginning.starts_with("I! cuBLAS") || beginning.contains("[cublasLt]") {
        return Some(Format::CublasLog);
    }
    if has(b"Metric Name") && has(b"Kernel Name") {
        return Some(Format::NcuDetails);
    }
    if has(b"Kernel Name") && has(b"ID") {
        return Some(Format::NcuRaw);
    }
    nsys::is_report(row).then_some(Format::NsysCsv)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(name: &str, content: &[u8]) -> Option<Format> {
        format_of(Path::new(name), &mut BufReader::with_capacity(BUFFER, content)).ok()
    }

    #[test]
    fn formats_are_recognised_by_content() {
        let raw = "hello from the program\n==PROF== Connected\n\"ID\",\"Process ID\",\"Kernel Name\",\"x__y.sum\"\n";
        let details = "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Value\"\n";
        let kernels = "Processing [x]\n\nTime (%),Total Time (ns),Instances,Name\n";
        let by_range = "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Kernel Name\n";
        for (content, wanted) in [
            (raw.as_bytes(), Some(Format::NcuRaw)),
            (details.as_bytes(), Some(Format::NcuDetails)),
            (kernels.as_bytes(), Some(Format::NsysCsv)),
            (by_range.as_bytes(), Some(Format::NsysCsv)),
            (b"SKIPPED: x.sqlite does not contain CUDA kernel data.", Some(Format::NsysCsv)),
            (b"[\n  {\"Name\": 1}]", Some(Format::NsysJson)),
            (b"[\n{\"ph\": \"X\"}]", Some(Format::Trace)),
            (b"\n  {\"schemaVersion\": 1, \"traceEvents\": [", Some(Format::Trace)),
            (b"{\"loss\": 1}\n\"ID\",\"Kernel Name\",\"x__y.sum\"\n", Some(Format::NcuRaw)),
            (b"\x1f\x8b\x08\0", Some(Format::CompressedTrace)),
            (b" Total Time (ns)  Instances  Name\n ---  ---  ---\n", None),
            (
                b" Total Time (ns)  Instances  Name\n ---------------  ---------  ----\n",
                Some(Format::NsysLayout),
            ),
            (b"Total Time (ns);Instances;Name\n", Some(Format::NsysCsv)),
            (b"ID;Kernel Name;x__y.sum\n", Some(Format::NcuRaw)),
            (b"I! cuBLAS (v13.4.1) function cublasStatus_t x() called:", Some(Format::CublasLog)),
            (b"[2026-05-04 15:08:47][cublasLt][5][Trace][cublasLtMatmul] A=0", Some(Format::CublasLog)),
            (b"SQLite format 3\0...", Some(Format::NsysDatabase)),
            (b"NVIDIA Tegra Profiler Report 1.\n", Some(Format::Report(Report::Nsys))),
            (b"U3w[END]NVIDIA Nsight Systems Stream", Some(Format::Report(Report::Qdstrm))),
            (b"==ERROR== ERR_NVGPUCTRPERM", Some(Format::NcuRaw)),
            (b"hello\nhost:1:2 [0] NCCL INFO Bootstrap: Using lo\n", Some(Format::NcclLog)),
            (b"", None),
            (b"\n\n", None),
            (b"timestamp,index\n1,2\n", None),
            (b"\0\x01\x02", None),
        ] {
            assert_eq!(format("any.txt", content), wanted, "{}", String::from_utf8_lossy(content));
        }
        assert_eq!(format("x.qdstrm", b"\0\x01"), Some(Format::Report(Report::Qdstrm)));
        assert_eq!(format("x.ncu-rep", b"\0\x01"), Some(Format::Report(Report::Ncu)));
    }

    #[test]
    fn unknown_formats_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.csv");
        std::fs::write(&path, "timestamp, index\n").unwrap();
        let e = open(&path).unwrap_err().to_string();
        assert!(e.contains("gpu.csv") && e.contains("timestamp") && e.contains("ncu --csv"), "{e}");
        assert!(open(dir.path()).unwrap_err().to_string().contains("directory"));
        let e = open(&dir.path().join("nowhere.csv")).unwrap_err().to_string();
        assert!(e.contains("nowhere.csv") && e.contains("No such file"), "{e}");
    }
}
