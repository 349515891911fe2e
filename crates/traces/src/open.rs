//! Opens a file of any known format, recognised by its content.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom},
    path::Path,
};

use super::{
    cells::Rows,
    dialect::{BEGINNING, DELIMITERS},
    error::{KernelsError, RECORD_KERNELS},
    format::{FORMATS, Format, Sign, Source},
    nsys,
    ranks::RankTrace,
};
use llmprof_analysis::ranks::NcclLog;
use llmprof_base::{read, tools::System};
use llmprof_event::kernels::{KernelRow, KernelTable, Kind};

const BUFFER: usize = 1 << 18;

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

/// The content of a file.
#[derive(Debug, Default)]
pub struct Opened {
    /// Empty for a log of NCCL.
    pub tables: Vec<KernelTable>,
    /// Its GPUs over time, if it has times.
    pub ranks: Option<RankTrace>,
    pub nccl: Option<NcclLog>,
}

/// Like [`open`], with the GPUs of a program side by side and the log of NCCL.
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
    let mut opened = (format.read)(Source { path, file: &file, input, system })?;
    mark_graphs(&mut opened.tables);
    Ok(opened)
}

/// Calls that launch CUDA graphs also mark the tables of kernels.
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

fn format_of(path: &Path, input: &mut impl BufRead) -> Result<&'static Format, Unrecognised> {
    let head = input.fill_buf().map_err(Unrecognised::Unreadable)?;
    if head.trim_ascii().is_empty() && head.len() < BUFFER {
        return Err(Unrecognised::Empty);
    }
    if let Some(format) = with_sign(|sign| matches!(sign, Sign::Head(is_it) if is_it(head))) {
        return Ok(format);
    }
    if head.contains(&0) {
        return binary(path, head);
    }
    let otherwise = with_sign(|sign| matches!(sign, Sign::Otherwise(is_it) if is_it(head)));
    text_format(input).or_else(|reason| otherwise.ok_or(reason))
}

fn with_sign(is_it: impl Fn(&Sign) -> bool) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.signs.iter().any(&is_it))
}

fn binary(path: &Path, head: &[u8]) -> Result<&'static Format, Unrecognised> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if let Some(format) =
        with_sign(|sign| matches!(sign, Sign::Extension(known) if known.contains(&extension)))
    {
        return Ok(format);
    }
    let reason = match head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
        true => "it is text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
        false => "it is neither text nor a database",
    };
    Err(Unrecognised::Other(reason.to_owned()))
}

/// Searches the beginning of a text for the sign of a format: a row with every delimiter, then a line.
fn text_format(input: &mut impl BufRead) -> Result<&'static Format, Unrecognised> {
    let mut beginning = Vec::new();
    input.take(BEGINNING).read_to_end(&mut beginning).map_err(Unrecognised::Unreadable)?;
    if let Some(format) = with_sign(|sign| matches!(sign, Sign::Text(is_it) if is_it(&beginning))) {
        return Ok(format);
    }
    for delimiter in DELIMITERS {
        let mut rows = Rows::new(beginning.as_slice(), delimiter);
        while let Ok(Some(row)) = rows.next_row() {
            if let Some(format) = with_sign(|sign| matches!(sign, Sign::Row(is_it) if is_it(row))) {
                return Ok(format);
            }
        }
    }
    let lines = || beginning.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let has_line = |sign: &Sign| matches!(sign, Sign::Line(is_it) if lines().any(is_it));
    if let Some(format) = with_sign(has_line) {
        return Ok(format);
    }
    let first = lines().find(|line| !line.is_empty()).ok_or(Unrecognised::Empty)?;
    let first: String = String::from_utf8_lossy(first).chars().take(60).collect();
    Err(Unrecognised::Other(format!("it starts with {first:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(name: &str, content: &[u8]) -> Option<(&'static str, &'static str)> {
        let found = format_of(Path::new(name), &mut BufReader::with_capacity(BUFFER, content)).ok()?;
        Some((found.maker, found.name))
    }

    #[test]
    fn formats_are_recognised_by_content() {
        let raw = "hello from the program\n==PROF== Connected\n\"ID\",\"Process ID\",\"Kernel Name\",\"x__y.sum\"\n";
        let details = "\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Value\"\n";
        let kernels = "Processing [x]\n\nTime (%),Total Time (ns),Instances,Name\n";
        let by_range = "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Kernel Name\n";
        for (content, wanted) in [
            (raw.as_bytes(), Some(("Nsight Compute", "page raw (CSV)"))),
            (details.as_bytes(), Some(("Nsight Compute", "page details (CSV)"))),
            (kernels.as_bytes(), Some(("Nsight Systems", "CSV and TSV"))),
            (by_range.as_bytes(), Some(("Nsight Systems", "CSV and TSV"))),
            (
                b"SKIPPED: x.sqlite does not contain CUDA kernel data.",
                Some(("Nsight Systems", "CSV and TSV")),
            ),
            (b"[\n  {\"Name\": 1}]", Some(("Nsight Systems", "JSON"))),
            (b"[\n{\"ph\": \"X\"}]", Some(("PyTorch", "trace (.json)"))),
            (b"\n  {\"schemaVersion\": 1, \"traceEvents\": [", Some(("PyTorch", "trace (.json)"))),
            (
                b"{\"loss\": 1}\n\"ID\",\"Kernel Name\",\"x__y.sum\"\n",
                Some(("Nsight Compute", "page raw (CSV)")),
            ),
            (b"\x1f\x8b\x08\0", Some(("PyTorch", "trace (.json.gz)"))),
            (b" Total Time (ns)  Instances  Name\n ---  ---  ---\n", None),
            (
                b" Total Time (ns)  Instances  Name\n ---------------  ---------  ----\n",
                Some(("Nsight Systems", "columns and tables")),
            ),
            (b"Total Time (ns);Instances;Name\n", Some(("Nsight Systems", "CSV and TSV"))),
            (b"ID;Kernel Name;x__y.sum\n", Some(("Nsight Compute", "page raw (CSV)"))),
            (
                b"I! cuBLAS (v13.4.1) function cublasStatus_t x() called:",
                Some(("cuBLAS", "logs of cuBLAS and cublasLt")),
            ),
            (
                b"[2026-05-04 15:08:47][cublasLt][5][Trace][cublasLtMatmul] A=0",
                Some(("cuBLAS", "logs of cuBLAS and cublasLt")),
            ),
            (b"SQLite format 3\0...", Some(("Nsight Systems", "SQLite"))),
            (b"NVIDIA Tegra Profiler Report 1.\n", Some(("Nsight Systems", ".nsys-rep"))),
            (b"U3w[END]NVIDIA Nsight Systems Stream", Some(("Nsight Systems", ".qdstrm"))),
            (
                b"\"Kind\",\"Agent_Id\",\"Kernel_Name\",\"Start_Timestamp\",\"End_Timestamp\"\n",
                Some(("ROCm", "kernel trace (CSV)")),
            ),
            (b"==ERROR== ERR_NVGPUCTRPERM", Some(("Nsight Compute", "page raw (CSV)"))),
            (b"hello\nhost:1:2 [0] NCCL INFO Bootstrap: Using lo\n", Some(("NCCL", "logs"))),
            (b"", None),
            (b"\n\n", None),
            (b"timestamp,index\n1,2\n", None),
            (b"\0\x01\x02", None),
        ] {
            assert_eq!(format("any.txt", content), wanted, "{}", String::from_utf8_lossy(content));
        }
        assert_eq!(format("x.qdstrm", b"\0\x01"), Some(("Nsight Systems", ".qdstrm")));
        assert_eq!(format("x.ncu-rep", b"\0\x01"), Some(("Nsight Compute", ".ncu-rep")));
    }

    #[test]
    fn unknown_formats_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpu.csv");
        std::fs::write(&path, "timestamp, index\n").unwrap();
        let e = open(&path).unwrap_err().to_string();
        assert!(e.contains("gpu.csv") && e.contains("timestamp") && e.contains("Nsight Compute ("), "{e}");
        assert!(open(dir.path()).unwrap_err().to_string().contains("directory"));
        let e = open(&dir.path().join("nowhere.csv")).unwrap_err().to_string();
        assert!(e.contains("nowhere.csv") && e.contains("No such file"), "{e}");
    }
}
