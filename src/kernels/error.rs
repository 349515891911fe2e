//! What can be wrong with a file of kernels.

use std::io;

use thiserror::Error;

/// Each names the file, and what to do.
#[derive(Debug, Error)]
pub enum KernelsError {
    #[error("{file} can't be read: {source}")]
    Read { file: String, source: io::Error },
    #[error("{file} is empty: the tool had nothing to report; {remedy}")]
    Empty { file: String, remedy: &'static str },
    #[error("{file} has no data: nsys says \"{said}\"; {remedy}")]
    Skipped { file: String, said: String, remedy: &'static str },
    #[error("{file} has {what} and not one row that can be read; {remedy}")]
    NoRows { file: String, what: String, remedy: &'static str },
    #[error("{file} is not known here: {seen}. Known are {KNOWN}")]
    Unknown { file: String, seen: String },
    #[error("{file} can't be read as a database: {source}; make it anew with nsys export --type sqlite")]
    Database { file: String, source: rusqlite::Error },
    #[error("{file} has neither kernels nor ranges ({missing}); {remedy}")]
    NothingRecorded { file: String, missing: &'static str, remedy: &'static str },
    #[error("{file} needs {tool} to be read: {what}; {remedy}")]
    Tool { file: String, tool: &'static str, what: String, remedy: String },
}

/// What can be read.
const KNOWN: &str = "reports of nsys stats as CSV or JSON (cuda_gpu_kern_sum, cuda_api_sum, cuda_gpu_mem_time_sum, \
                     cuda_gpu_mem_size_sum, nvtx_gpu_proj_sum, nvtx_kern_sum, nvtx_pushpop_sum), SQLite of nsys export, \
                     ncu --csv of the pages raw and details, logs of cuBLAS and cublasLt, .nsys-rep, .qdstrm and .ncu-rep";

/// For reports that nsys left out or empty.
pub const RECORD_KERNELS: &str = "record with nsys profile -t cuda,nvtx, with an nsys as new as the driver, and a range that is reached \
     where the capture is gated (llmprof-tui doctor looks at the tool)";

impl KernelsError {
    /// The same error, of the file that the user named rather than of one made from it.
    pub(super) fn of_file(self, name: &str) -> KernelsError {
        let name = name.to_owned();
        match self {
            KernelsError::Database { source, .. } => KernelsError::Database { file: name, source },
            KernelsError::NothingRecorded { missing, remedy, .. } => {
                KernelsError::NothingRecorded { file: name, missing, remedy }
            }
            other => other,
        }
    }

    pub fn read(file: &str) -> impl FnOnce(io::Error) -> KernelsError + '_ {
        move |source| KernelsError::Read { file: file.to_owned(), source }
    }
}
