//! The list of formats. Its rows have everything that other files need to know about a format: how a file is recognised
//! and read, and its text in messages and documents.

use std::{fs::File, io::BufReader, path::Path};

use llmprof_analysis::ranks::is_nccl_line;
use llmprof_base::{gz, tools::System};
use llmprof_event::kernels::KernelTable;

use super::{
    cells::CsvRow,
    convert::{self, Report},
    cublas, nccl, ncu, nsys,
    open::Opened,
    rocprof, tensorrt, torch,
};
use crate::KernelsError;

/// A file whose format is known.
pub(super) struct Source<'a> {
    pub path: &'a Path,
    /// Its name in messages.
    pub file: &'a str,
    pub input: BufReader<File>,
    pub system: &'a System,
}

/// The sign that identifies a format. The kinds are tried in this order, and within a kind the formats in the order of
/// the list.
pub(super) enum Sign {
    /// The beginning of the file.
    Head(fn(&[u8]) -> bool),
    /// The name of a binary file: not all versions of a report share a signature.
    Extension(&'static [&'static str]),
    /// The beginning of a text, after any output of the program.
    Text(fn(&[u8]) -> bool),
    /// A row of such a text, with any delimiter.
    Row(fn(CsvRow<'_>) -> bool),
    /// A line of a text without such a row.
    Line(fn(&[u8]) -> bool),
    /// The beginning of a text that has no other sign.
    Otherwise(fn(&[u8]) -> bool),
}

pub(super) struct Format {
    /// The profiler, or the library that writes the file.
    pub maker: &'static str,
    pub name: &'static str,
    /// The command or setting that writes such a file.
    pub written_by: &'static str,
    /// The tables that are read from it.
    pub tables: &'static str,
    pub signs: &'static [Sign],
    pub read: fn(Source<'_>) -> Result<Opened, KernelsError>,
}

fn one(table: KernelTable) -> Opened {
    vec![table].into()
}

impl From<Vec<KernelTable>> for Opened {
    fn from(tables: Vec<KernelTable>) -> Opened {
        Opened { tables, ..Opened::default() }
    }
}

fn converted(source: Source<'_>, report: Report) -> Result<Opened, KernelsError> {
    convert::convert(source.path, report, source.system).map(Opened::from)
}

/// Whether it is a list in JSON; a line of a log begins with a bracket as well.
fn is_list(head: &[u8]) -> bool {
    matches!(head.trim_ascii_start(), [b'[', b'\n' | b'\r' | b' ' | b'{' | b']', ..])
}

fn has_titles(row: CsvRow<'_>, titles: &[&[u8]]) -> bool {
    titles.iter().all(|title| row.iter().any(|cell| cell.trim_ascii() == *title))
}

pub(super) const FORMATS: &[Format] = &[
    Format {
        maker: "Nsight Systems",
        name: "SQLite",
        written_by: "nsys export --type sqlite",
        tables: "kernels of each GPU by NVTX range and grid, ranges, CUDA calls, copies of each GPU; only ranges or calls if no kernels were recorded",
        signs: &[Sign::Head(|head| head.starts_with(b"SQLite format 3\0"))],
        read: |source| {
            let ranks = nsys::read_ranks(source.path).ok();
            Ok(Opened { ranks, ..nsys::read_database(source.path)?.into() })
        },
    },
    Format {
        maker: "Nsight Systems",
        name: ".nsys-rep",
        written_by: "nsys profile",
        tables: "those of its SQLite: the installed nsys converts it",
        signs: &[
            Sign::Head(|head| head.starts_with(b"NVIDIA Tegra Profiler Report")),
            Sign::Extension(&["nsys-rep", "qdrep"]),
        ],
        read: |source| converted(source, Report::Nsys),
    },
    Format {
        maker: "Nsight Systems",
        name: ".qdstrm",
        written_by: "nsys profile (its importer is missing)",
        tables: "those of its SQLite: the installed nsys converts it",
        signs: &[
            Sign::Head(|head| {
                head.get(8..).is_some_and(|rest| rest.starts_with(b"NVIDIA Nsight Systems St"))
            }),
            Sign::Extension(&["qdstrm"]),
        ],
        read: |source| converted(source, Report::Qdstrm),
    },
    Format {
        maker: "Nsight Compute",
        name: ".ncu-rep",
        written_by: "ncu -o",
        tables: "those of its page raw: the installed ncu converts it",
        signs: &[
            Sign::Head(|head| head.starts_with(b"NVR\0")),
            Sign::Extension(&["ncu-rep", "nsight-cuprof-report"]),
        ],
        read: |source| converted(source, Report::Ncu),
    },
    Format {
        maker: "PyTorch",
        name: "trace (.json.gz)",
        written_by: "torch.profiler, TensorBoard's handler",
        tables: "see [Traces of PyTorch](#traces-of-pytorch)",
        signs: &[Sign::Head(|head| head.starts_with(&gz::SIGNATURE))],
        read: |source| {
            let (tables, trace) = torch::read_compressed(source.file, source.input)?;
            Ok(Opened { ranks: Some(trace), ..tables.into() })
        },
    },
    Format {
        maker: "TensorRT",
        name: "profile (JSON)",
        written_by: "trtexec --dumpProfile --exportProfile",
        tables: "layers of a TensorRT engine with their times",
        signs: &[Sign::Head(tensorrt::is_profile)],
        read: |source| tensorrt::read_profile(source.file, source.input).map(one),
    },
    Format {
        maker: "TensorRT",
        name: "layer information (JSON)",
        written_by: "trtexec --exportLayerInfo",
        tables: "layers of a TensorRT engine",
        signs: &[Sign::Head(tensorrt::is_layer_info)],
        read: |source| tensorrt::read_layer_info(source.file, source.input).map(one),
    },
    Format {
        maker: "PyTorch",
        name: "trace (.json)",
        written_by: "torch.profiler, export_chrome_trace, NCCL's profiler plugin",
        tables: "see [Traces of PyTorch](#traces-of-pytorch); operations of NCCL's profiler plugin by category",
        signs: &[
            Sign::Head(|head| is_list(head) && torch::is_list_of_events(head)),
            // A program under ncu may print JSON before the page.
            Sign::Otherwise(|head| head.trim_ascii_start().starts_with(b"{")),
        ],
        read: |source| {
            let (tables, trace) = torch::read_trace_and_ranks(source.file, source.input)?;
            Ok(Opened { ranks: Some(trace), ..tables.into() })
        },
    },
    Format {
        maker: "Nsight Systems",
        name: "JSON",
        written_by: "nsys stats -f json",
        tables: "as CSV",
        signs: &[Sign::Head(is_list)],
        read: |source| nsys::read_json(source.file, source.input).map(Opened::from),
    },
    Format {
        maker: "Nsight Systems",
        name: "columns and tables",
        written_by: "nsys stats -f column, table; nsys profile --stats=true",
        tables: "as CSV",
        signs: &[Sign::Text(nsys::is_layout)],
        read: |source| nsys::read_layout(source.file, source.input).map(Opened::from),
    },
    Format {
        maker: "cuBLAS",
        name: "logs of cuBLAS and cublasLt",
        written_by: "CUBLAS_LOGINFO_DBG=1, CUBLASLT_LOG_LEVEL=2",
        tables: "GEMMs by shape",
        signs: &[Sign::Row(|row| {
            let beginning = row.text(0).unwrap_or_default();
            beginning.starts_with("I! cuBLAS") || beginning.contains("[cublasLt]")
        })],
        read: |source| cublas::read_log(source.file, source.input).map(one),
    },
    Format {
        maker: "Nsight Compute",
        name: "page details (CSV)",
        written_by: "ncu --csv",
        tables: "counters of launches, ncu's advice",
        signs: &[Sign::Row(|row| has_titles(row, &[b"Metric Name", b"Kernel Name"]))],
        read: |source| ncu::read_details(source.file, source.input).map(one),
    },
    Format {
        maker: "Nsight Compute",
        name: "page raw (CSV)",
        written_by: "ncu --csv --page raw",
        tables: "counters of launches",
        signs: &[
            Sign::Row(|row| has_titles(row, &[b"Kernel Name", b"ID"])),
            // An error of ncu explains why there is nothing else.
            Sign::Line(|line| line.starts_with(b"==ERROR==") || line.starts_with(b"==WARNING==")),
        ],
        read: |source| ncu::read_raw(source.file, source.input).map(one),
    },
    Format {
        maker: "Nsight Systems",
        name: "CSV and TSV",
        written_by: "nsys stats -f csv, tsv",
        tables: "`cuda_gpu_kern_sum`, `cuda_kern_exec_sum` (also the call and the wait in the queue), `cuda_gpu_sum`, `cuda_api_sum`, `cuda_api_gpu_sum`, `cuda_gpu_mem_time_sum`, `cuda_gpu_mem_size_sum`, `nvtx_kern_sum`, `nvtx_pushpop_sum`, `nvtx_gpu_proj_sum`; `cuda_gpu_trace` and `cuda_api_trace`, counted; the names of 2021 and 2022 too",
        signs: &[Sign::Row(nsys::is_report)],
        read: |source| nsys::read_csv(source.file, source.input).map(Opened::from),
    },
    Format {
        maker: "ROCm",
        name: "kernel trace (CSV)",
        written_by: "rocprofv3 --kernel-trace --output-format csv, rocpd2csv",
        tables: "kernels of each GPU by grid",
        signs: &[Sign::Row(rocprof::is_header)],
        read: |source| rocprof::read_kernel_trace(source.file, source.input).map(Opened::from),
    },
    Format {
        maker: "NCCL",
        name: "logs",
        written_by: "NCCL_DEBUG=INFO",
        tables: "rings, channels, trees, transports, algorithms, warnings ([cluster-ranks.md](cluster-ranks.md))",
        signs: &[Sign::Line(|line| is_nccl_line(&String::from_utf8_lossy(line)))],
        read: |source| {
            let log = nccl::read_log(source.input).map_err(KernelsError::read(source.file))?;
            Ok(Opened { nccl: Some(log), ..Opened::default() })
        },
    },
];

/// The formats, in a sentence: each maker with the names of its formats.
pub(super) fn known() -> String {
    let mut makers: Vec<(&str, Vec<&str>)> = Vec::new();
    for format in FORMATS {
        match makers.iter_mut().find(|(maker, _)| *maker == format.maker) {
            Some((_, names)) => names.push(format.name),
            None => makers.push((format.maker, vec![format.name])),
        }
    }
    let of_maker = |(maker, names): &(&str, Vec<&str>)| format!("{maker} ({})", names.join(", "));
    makers.iter().map(of_maker).collect::<Vec<_>>().join(", ")
}

/// The formats as a table, for documents.
pub fn formats_markdown() -> String {
    let row = |format: &Format| {
        let Format { maker, name, written_by, tables, .. } = format;
        format!("| {maker} | {name} | `{written_by}` | {tables} |\n")
    };
    let mut formats: Vec<&Format> = FORMATS.iter().collect();
    formats.sort_by_key(|format| format.maker);
    let head = "| program | file | written by | tables |\n|---|---|---|---|\n";
    head.to_owned() + &formats.into_iter().map(row).collect::<String>()
}
