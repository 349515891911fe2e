//! Writes the files of a run during the run, and counts lines that could not be written.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    time::{Duration, Instant},
};

use super::{Loss, RunDir, recorded};
use crate::chrome_trace::ChromeTrace;
use llmprof_base::dir::Dir;
use llmprof_event::{Envelope, Event, GpuSample, Phase, Prediction, Stamp, readings::Reading};

/// The first columns of `nvml.csv` after `ts`: those of the format that it extends.
const FIRST: [Reading; 8] = [
    Reading::GpuUtil,
    Reading::MemUtil,
    Reading::SmClock,
    Reading::MemClock,
    Reading::Power,
    Reading::Temp,
    Reading::MemUsed,
    Reading::MemTotal,
];

/// From the start of a recording.
const FLUSHED_AT_ONCE: Duration = Duration::from_secs(1);

/// The readings after the first columns.
fn other_readings() -> impl Iterator<Item = Reading> {
    Reading::ALL.iter().copied().filter(|reading| !FIRST.contains(reading))
}

fn nvml_header() -> String {
    let first = FIRST.iter().map(|reading| reading.about().column);
    let others = other_readings().map(|reading| reading.about().column);
    let added = ["gpu", "t_s", "phase", "clock_event_reasons"];
    std::iter::once("ts").chain(first).chain(added).chain(others).collect::<Vec<_>>().join(",")
}

/// Appends events to `events.ndjson`, GPU samples to `nvml.csv`, predictions to a file that the first one creates, and
/// optionally the trace to `trace.json`. A failing disk never stops the run: lines are lost and counted, and writing is
/// tried again at the next flush.
pub struct Recorder {
    dir: RunDir,
    /// The directory as it was opened at the start.
    opened: Dir,
    events: LineFile,
    nvml: LineFile,
    phase: Phase,
    /// The GPU of the workload.
    profiled: Option<u32>,
    predictions: Option<LineFile>,
    trace: Option<(ChromeTrace, LineFile)>,
    started_unix_s: f64,
    flush_every: Duration,
    created: Instant,
    flushed: Instant,
    /// A document that could not be written.
    unwritten: Option<String>,
    /// Whether the recording is no longer at its path.
    displaced: bool,
}

impl Recorder {
    pub fn create(dir: &RunDir, started_unix_ms: u64, flush_every: Duration) -> io::Result<Recorder> {
        let opened = Dir::open(dir.path())?;
        let create = |path: &Path| opened.create_new(dir.below(path)).map(LineFile::create);
        let mut nvml = create(&dir.nvml_csv())?;
        nvml.line(nvml_header().as_bytes());
        let events = create(&dir.events())?;
        recorded::lock(&events.out);
        Ok(Recorder {
            dir: dir.clone(),
            events,
            nvml,
            phase: Phase::default(),
            profiled: None,
            predictions: None,
            trace: None,
            started_unix_s: started_unix_ms as f64 / 1e3,
            flush_every,
            created: Instant::now(),
            flushed: Instant::now(),
            unwritten: None,
            displaced: false,
            opened,
        })
    }

    fn create_new(&self, path: &Path) -> io::Result<LineFile> {
        self.opened.create_new(self.dir.below(path)).map(LineFile::create)
    }

    /// Also writes `trace.json`.
    pub fn with_trace(mut self) -> io::Result<Recorder> {
        let file = self.create_new(&self.dir.trace())?;
        self.trace = Some((ChromeTrace::default(), file));
        Ok(self)
    }

    pub fn record(&mut self, envelope: &Envelope) {
        match serde_json::to_vec(envelope) {
            Ok(line) => self.events.line(&line),
            Err(e) => tracing::error!("an event cannot be serialised: {e}"),
        }
        if let Some((trace, file)) = &mut self.trace {
            file.lines(trace.lines_of(envelope).as_bytes());
        }
        self.phase = self.phase.after(&envelope.event);
        match &envelope.event {
            Event::GpuSample(sample) => {
                let phase = (self.profiled == Some(sample.gpu)).then_some(self.phase);
                let row = nvml_row(self.started_unix_s, envelope.t, phase, sample);
                self.nvml.line(row.as_bytes());
            }
            Event::GpuFound(info) if info.profiled => self.profiled = Some(info.index),
            Event::Prediction(prediction) => self.predict(prediction),
            _ => {}
        }
    }

    /// Without this file the prediction is still in `events.ndjson`.
    fn predict(&mut self, prediction: &Prediction) {
        if self.predictions.is_none() {
            let path = self.dir.predictions();
            match self.create_new(&path) {
                Ok(file) => self.predictions = Some(file),
                Err(e) => tracing::error!("{}: {e}", path.display()),
            }
        }
        if let (Some(file), Ok(line)) = (&mut self.predictions, serde_json::to_vec(prediction)) {
            file.line(&line);
        }
    }

    /// Flushes at the end of each interval, and always in the first second, so that the start of a run is on disk if it
    /// is killed early. Call it at least as often as events arrive.
    pub fn tick(&mut self) {
        if self.created.elapsed() < FLUSHED_AT_ONCE || self.flushed.elapsed() >= self.flush_every {
            self.flush();
        }
    }

    pub fn flush(&mut self) {
        let trace = self.trace.as_mut().map(|(_, file)| file);
        let files = [&mut self.events, &mut self.nvml].into_iter().chain(&mut self.predictions).chain(trace);
        files.for_each(LineFile::flush);
        self.displaced = matches!(self.dir.events().try_exists(), Ok(false));
        self.flushed = Instant::now();
    }

    fn files(&self) -> impl Iterator<Item = &LineFile> {
        let trace = self.trace.as_ref().map(|(_, file)| file);
        [&self.events, &self.nvml].into_iter().chain(&self.predictions).chain(trace)
    }

    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// Writes a document into the directory or one below it.
    pub fn write(&mut self, path: &Path, content: impl AsRef<[u8]>) {
        let written = self.opened.write(self.dir.below(path), content);
        self.check(path, written);
    }

    /// A new file in the directory; `None`, which is remembered, if it could not be created.
    pub fn create_file(&mut self, path: &Path) -> Option<File> {
        let created = self.opened.create_new(self.dir.below(path));
        self.check(path, created)
    }

    /// Remembers that `path` could not be written.
    fn check<T>(&mut self, path: &Path, written: io::Result<T>) -> Option<T> {
        match written {
            Ok(written) => Some(written),
            Err(e) => {
                tracing::error!("{}: {e}", path.display());
                self.unwritten = Some(format!("{}: {e}", path.display()));
                None
            }
        }
    }

    /// Lines that did not reach the disk.
    pub fn lost(&self) -> u64 {
        self.files().map(|file| file.lost).sum()
    }

    /// The losses of the recording.
    pub fn loss(&self) -> Option<Loss> {
        if self.displaced {
            return Some(Loss::Displaced { dir: self.dir.path().to_owned() });
        }
        let unwritten = || self.unwritten.clone().map(|reason| Loss::File { reason });
        match self.lost() {
            0 => unwritten(),
            lost => {
                let reason = self.files().find_map(|file| file.error.clone()).unwrap_or_default();
                Some(Loss::Lines { lost, reason })
            }
        }
    }
}

fn nvml_row(started_unix_s: f64, t: Stamp, phase: Option<Phase>, sample: &GpuSample) -> String {
    let cell = |reading: Reading| match (sample.get(reading), reading) {
        (None, _) => String::new(),
        (Some(bytes), Reading::MemUsed | Reading::MemTotal) => (bytes as u64 / (1 << 20)).to_string(),
        (Some(value), _) => value.to_string(),
    };
    let mut cells = vec![format!("{:.6}", started_unix_s + t.secs())];
    cells.extend(FIRST.map(cell));
    cells.extend([sample.gpu.to_string(), format!("{:.6}", t.secs())]);
    cells.push(phase.map_or("", Phase::name).to_owned());
    cells.push(sample.reasons.map_or_else(String::new, |bits| format!("{bits:#x}")));
    cells.extend(other_readings().map(cell));
    cells.join(",")
}

/// A file of lines. They are buffered until flushed. Lines that cannot be written are dropped and counted; the next one
/// that is written starts on a new line.
struct LineFile<W: Write = File> {
    out: W,
    pending: Vec<u8>,
    lost: u64,
    /// The file ends within a line.
    torn: bool,
    error: Option<String>,
}

const PENDING_BYTES: usize = 1 << 16;

impl<W: Write> LineFile<W> {
    fn create(out: W) -> Self {
        LineFile { out, pending: Vec::with_capacity(PENDING_BYTES), lost: 0, torn: false, error: None }
    }

    fn line(&mut self, text: &[u8]) {
        self.append(text, b"\n");
    }

    /// Any number of complete lines.
    fn lines(&mut self, text: &[u8]) {
        if !text.is_empty() {
            self.append(text, b"");
        }
    }

    fn append(&mut self, text: &[u8], end: &[u8]) {
        if self.torn && self.pending.is_empty() {
            self.pending.push(b'\n');
        }
        self.pending.extend_from_slice(text);
        self.pending.extend_from_slice(end);
        if self.pending.len() >= PENDING_BYTES - 1024 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut written = 0;
        while written < self.pending.len() {
            match self.out.write(&self.pending[written..]) {
                Ok(0) => self.error = Some("no more bytes were accepted".into()),
                Ok(n) => {
                    written += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => self.error = Some(e.to_string()),
            }
            break;
        }
        if written > 0 {
            self.torn = self.pending[written - 1] != b'\n';
        }
        // A leading line break that ends the torn line in the file does not count as a line.
        let unwritten = &self.pending[written..];
        let unwritten = unwritten.strip_prefix(b"\n").unwrap_or(unwritten);
        self.lost += unwritten.iter().filter(|b| **b == b'\n').count() as u64;
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with `room` bytes of free space.
    #[derive(Default)]
    struct Disk {
        content: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let n = buf.len().min(self.room);
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            self.room -= n;
            self.content.extend_from_slice(&buf[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_lines_and_counts_them() {
        let mut file = LineFile::create(Disk { room: 10, ..Disk::default() });
        for line in ["first", "second", "third"] {
            file.line(line.as_bytes());
        }
        file.flush();
        assert_eq!((file.lost, file.torn), (2, true));
        assert!(file.error.is_some());
        file.line(b"still full");
        file.flush();
        assert_eq!((file.lost, file.torn), (3, true));
        file.out.room = 100;
        file.line(b"fourth");
        file.flush();
        assert_eq!(String::from_utf8_lossy(&file.out.content), "first\nseco\nfourth\n");
        assert_eq!((file.lost, file.torn), (3, false));
    }

    #[test]
    fn missing_readings_are_empty_cells() {
        let sample = GpuSample::new(0)
            .with(Reading::Power, 612.5)
            .with(Reading::MemUsed, f64::from(3 << 20))
            .with(Reading::Dram, 78.5);
        let row = nvml_row(1000.0, Stamp(1_500_000_000), Some(Phase::Decode), &sample);
        assert!(row.starts_with("1001.500000,,,,,612.5,,3,,0,1.500000,decode,,"), "{row}");
        let header = nvml_header();
        let names = "ts,gpu_util_pct,mem_util_pct,sm_clock_MHz,mem_clock_MHz,power_W,temp_C,mem_used_MiB,mem_total_MiB,";
        assert!(header.starts_with(names), "{header}");
        let dram = header.split(',').position(|name| name == "gpm_dram_pct").unwrap();
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!((cells[dram], cells.len()), ("78.5", header.split(',').count()));
    }
}
