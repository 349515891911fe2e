//! Writes a run as it happens, and keeps count of what it could not write.

use std::{
    fs::{self, File},
    io::{self, Write},
    time::{Duration, Instant},
};

use super::RunDir;
use crate::{
    chrome_trace::ChromeTrace,
    event::{Envelope, Event, GpuSample, Phase, Prediction, Stamp, readings::Reading},
};

/// The first columns of `nvml.csv`: the readings of the harness this format comes from, after `ts`.
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

/// The readings that come after those of the harness.
fn rest() -> impl Iterator<Item = Reading> {
    Reading::ALL.iter().copied().filter(|reading| !FIRST.contains(reading))
}

fn nvml_header() -> String {
    let first = FIRST.iter().map(|reading| reading.about().column);
    let rest = rest().map(|reading| reading.about().column);
    let ours = ["gpu", "t_s", "phase", "clock_event_reasons"];
    std::iter::once("ts").chain(first).chain(ours).chain(rest).collect::<Vec<_>>().join(",")
}

/// Appends events to `events.ndjson`, GPU samples to `nvml.csv`, predictions to a file that the first one makes, and where it is
/// asked for the run as a trace to `trace.json`. A failing disk never stops the run: lines are lost, counted, and writing is
/// tried again at the next flush.
pub struct Recorder {
    dir: RunDir,
    events: LineFile,
    nvml: LineFile,
    phase: Phase,
    /// The GPU that the phases are of.
    profiled: Option<u32>,
    predictions: Option<LineFile>,
    trace: Option<TraceFile>,
    started_unix_s: f64,
    flush_every: Duration,
    flushed: Instant,
}

struct TraceFile {
    trace: ChromeTrace,
    file: LineFile,
    lines: String,
}

impl TraceFile {
    fn add(&mut self, envelope: &Envelope) {
        self.lines.clear();
        self.trace.add(envelope, &mut self.lines);
        self.file.lines(self.lines.as_bytes());
    }
}

impl Recorder {
    pub fn create(dir: &RunDir, started_unix_ms: u64, flush_every: Duration) -> io::Result<Recorder> {
        let mut nvml = LineFile::create(File::create_new(dir.nvml_csv())?);
        nvml.line(nvml_header().as_bytes());
        Ok(Recorder {
            dir: dir.clone(),
            events: LineFile::create(File::create_new(dir.events())?),
            nvml,
            phase: Phase::default(),
            profiled: None,
            predictions: None,
            trace: None,
            started_unix_s: started_unix_ms as f64 / 1e3,
            flush_every,
            flushed: Instant::now(),
        })
    }

    /// Writes `trace.json` too.
    pub fn with_trace(mut self) -> io::Result<Recorder> {
        let file = LineFile::create(File::create_new(self.dir.trace())?);
        self.trace = Some(TraceFile { trace: ChromeTrace::default(), file, lines: String::new() });
        Ok(self)
    }

    pub fn record(&mut self, envelope: &Envelope) {
        match serde_json::to_vec(envelope) {
            Ok(line) => self.events.line(&line),
            Err(e) => tracing::error!("an event has no recorded form: {e}"),
        }
        if let Some(trace) = &mut self.trace {
            trace.add(envelope);
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

    /// A prediction that has no file of its own is still in `events.ndjson`.
    fn predict(&mut self, prediction: &Prediction) {
        if self.predictions.is_none() {
            let path = self.dir.predictions();
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            match made.and_then(|()| File::create_new(&path)) {
                Ok(file) => self.predictions = Some(LineFile::create(file)),
                Err(e) => tracing::error!("{}: {e}", path.display()),
            }
        }
        if let (Some(file), Ok(line)) = (&mut self.predictions, serde_json::to_vec(prediction)) {
            file.line(&line);
        }
    }

    /// Flushes when it is time to. Call it at least as often as events come.
    pub fn tick(&mut self) {
        if self.flushed.elapsed() >= self.flush_every {
            self.flush();
        }
    }

    pub fn flush(&mut self) {
        self.events.flush();
        self.nvml.flush();
        self.beside_mut().for_each(LineFile::flush);
        self.flushed = Instant::now();
    }

    /// Files that not every run has.
    fn beside(&self) -> impl Iterator<Item = &LineFile> {
        self.predictions.iter().chain(self.trace.iter().map(|trace| &trace.file))
    }

    fn beside_mut(&mut self) -> impl Iterator<Item = &mut LineFile> {
        self.predictions.iter_mut().chain(self.trace.iter_mut().map(|trace| &mut trace.file))
    }

    /// Lines that did not reach the disk.
    pub fn lost(&self) -> u64 {
        self.events.lost + self.nvml.lost + self.beside().map(|file| file.lost).sum::<u64>()
    }

    /// What the disk said last, when it refused.
    pub fn trouble(&self) -> Option<&str> {
        let beside = || self.beside().find_map(|file| file.trouble.as_deref());
        self.events.trouble.as_deref().or(self.nvml.trouble.as_deref()).or_else(beside)
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
    cells.extend(rest().map(cell));
    cells.join(",")
}

/// A file of whole lines. Lines wait in memory until flushed; what can't be written is dropped and counted,
/// and the next line that gets through starts on a line of its own.
struct LineFile<W: Write = File> {
    out: W,
    pending: Vec<u8>,
    lost: u64,
    /// The last thing on disk is half a line.
    torn: bool,
    trouble: Option<String>,
}

const PENDING_BYTES: usize = 1 << 16;

impl<W: Write> LineFile<W> {
    fn create(out: W) -> Self {
        LineFile { out, pending: Vec::with_capacity(PENDING_BYTES), lost: 0, torn: false, trouble: None }
    }

    fn line(&mut self, text: &[u8]) {
        self.append(text, b"\n");
    }

    /// Any number of whole lines.
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
                Ok(0) => self.trouble = Some("the disk took no more bytes".into()),
                Ok(n) => {
                    written += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => self.trouble = Some(e.to_string()),
            }
            break;
        }
        if written > 0 {
            self.torn = self.pending[written - 1] != b'\n';
        }
        // A line break in front ends what is on disk already: it is made up for, and no line of its own.
        let unwritten = &self.pending[written..];
        let unwritten = unwritten.strip_prefix(b"\n").unwrap_or(unwritten);
        self.lost += unwritten.iter().filter(|b| **b == b'\n').count() as u64;
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes, which someone may make room on again.
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
    fn a_full_disk_costs_lines_and_says_so() {
        let mut file = LineFile::create(Disk { room: 10, ..Disk::default() });
        for line in ["first", "second", "third"] {
            file.line(line.as_bytes());
        }
        file.flush();
        assert_eq!((file.lost, file.torn), (2, true));
        assert!(file.trouble.is_some());
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
    fn unread_cells_are_empty() {
        let sample = GpuSample::of(0)
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
