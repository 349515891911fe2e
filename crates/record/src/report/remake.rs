//! `report RUN`: writes the documents of a recorded run again, from its events.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use thiserror::Error;

use super::{documents, metrics::outcome};
use crate::{
    chrome_trace::ChromeTrace,
    rundir::{EventReader, Next, ReadError, RunDir},
    state::RunState,
};
use llmprof_base::{
    dir::{Dir, Replacement},
    units::three_digits,
};
use llmprof_event::Envelope;

#[derive(Debug, Error)]
pub enum ReportError {
    #[error(transparent)]
    Run(#[from] ReadError),
    #[error("cannot write {path}: {source}; pass --out DIR to write the reports elsewhere")]
    Write { path: PathBuf, source: io::Error },
}

/// The documents that were written.
#[derive(Debug)]
pub struct Remade {
    pub dir: PathBuf,
    pub files: Vec<&'static str>,
    pub outcome: String,
    /// The limitations of the recording.
    pub remarks: Vec<String>,
}

/// Events between two calls of `progress`.
const PROGRESS_STEP: usize = 4096;

/// Reads the run at `path` and writes its documents into `out`, or next to the events. `progress` receives the share
/// that has been read.
pub fn remake(path: &Path, out: Option<&Path>, progress: &mut dyn FnMut(f64)) -> Result<Remade, ReportError> {
    let run = RunDir::open(path);
    let mut reader = EventReader::open(&run.events())?;
    let total = fs::metadata(run.events()).map_or(0, |metadata| metadata.len());
    let dir = out.unwrap_or(run.path()).to_owned();
    let failed = |path: PathBuf| move |source| ReportError::Write { path, source };
    let opened = Dir::open_or_create(&dir).map_err(failed(dir.clone()))?;
    let mut state = RunState::default();
    let trace_failed = || failed(dir.join(TRACE));
    let mut trace = TraceWriter::create(&opened).map_err(trace_failed())?;
    let mut read = 0_usize;
    while let Next::Event(envelope) = reader.read_next()? {
        if read.is_multiple_of(PROGRESS_STEP) {
            progress(reader.offset() as f64 / total.max(1) as f64);
        }
        read += 1;
        state.apply(&envelope);
        trace.add(&envelope).map_err(trace_failed())?;
    }
    state.unreadable_lines = reader.skipped();
    if state.finished.is_some() || !opened.has(TRACE) {
        trace.file.finish().map_err(trace_failed())?;
    }
    let mut files = Vec::new();
    for document in documents(&state) {
        opened.write(document.name, document.content).map_err(failed(dir.join(document.name)))?;
        files.push(document.name);
    }
    files.push(TRACE);
    let remarks = remarks(&state, reader.skipped(), reader.is_torn());
    Ok(Remade { dir, files, outcome: outcome(&state), remarks })
}

/// The trace for Chrome and Perfetto, made from the events themselves and not from the final state.
const TRACE: &str = "trace.json";

/// An existing trace of a run without an end is not replaced: the run may still be writing it.
struct TraceWriter {
    file: Replacement,
    trace: ChromeTrace,
}

impl TraceWriter {
    fn create(dir: &Dir) -> io::Result<TraceWriter> {
        Ok(TraceWriter { file: dir.replace(TRACE)?, trace: ChromeTrace::default() })
    }

    fn add(&mut self, envelope: &Envelope) -> io::Result<()> {
        self.file.write_all(self.trace.lines_of(envelope).as_bytes())
    }
}

fn remarks(state: &RunState, skipped: u64, torn: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    if state.finished.is_none() {
        remarks.push(format!(
            "the recording has no end: the run is still being recorded, or was interrupted; these reports cover its first {} s",
            three_digits(state.now.secs())
        ));
    }
    if state.total.output_tokens == 0 && state.kind().has_workload() {
        remarks.push("nothing was measured".to_owned());
    }
    if skipped > 0 {
        remarks.push(format!("{skipped} unreadable lines of the recording were skipped"));
    }
    if torn {
        remarks.push("the recording ends in the middle of a line, which was skipped".to_owned());
    }
    remarks
}

impl Remade {
    pub fn text(&self) -> String {
        format!("{}\n  {}", self.dir.display(), self.files.join("\n  "))
    }

    pub fn json(&self) -> Value {
        json!({
            "schema": 1,
            "dir": self.dir,
            "files": self.files,
            "outcome": self.outcome,
            "remarks": self.remarks,
        })
    }
}
