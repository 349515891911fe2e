//! Chrome's trace events as lines of JSON.

use serde::{Serialize, Serializer};

use llmprof_base::foreign::visible;
use llmprof_event::Stamp;

/// A thread of a process of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackId {
    pub process: u64,
    pub thread: u64,
}

/// A value in the arguments of an event.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
pub enum Arg<'a> {
    Number(u64),
    Value(f64),
    Text(&'a str),
}

pub type Args<'a> = &'a [(&'a str, Arg<'a>)];

/// An event, with Chrome's field names.
#[derive(Serialize, Default)]
struct TraceEvent<'a> {
    ph: &'static str,
    pid: u64,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// The scope of an instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "as_map")]
    args: Args<'a>,
}

fn as_map<S: Serializer>(args: &Args<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(args.iter().copied())
}

impl<'a> TraceEvent<'a> {
    fn new(ph: &'static str, track: TrackId) -> TraceEvent<'a> {
        TraceEvent { ph, pid: track.process, tid: track.thread, ..TraceEvent::default() }
    }
}

/// Chrome counts in microseconds. A double is exact to the nanosecond for a hundred days.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Writes events one after another, and the names of tracks at their first use.
#[derive(Default)]
pub struct Lines {
    /// The lines that have not been taken yet.
    pub text: String,
    begun: bool,
    closed: bool,
    named: Vec<TrackId>,
    processes: Vec<u64>,
    /// The last value of each counter. A value holds until it changes.
    counters: Vec<(u64, &'static str, f64)>,
}

fn process_name(process: u64) -> String {
    match process {
        1 => "engine (host)".to_owned(),
        2 => "GPU work".to_owned(),
        3 => "host".to_owned(),
        other => format!("GPU {}", other.saturating_sub(super::FIRST_GPU)),
    }
}

fn thread_name(track: TrackId) -> &'static str {
    match track {
        super::REQUESTS => "requests",
        super::OPERATORS => "operators",
        super::RANGES => "NVTX llmprof",
        super::MARKS => "notes",
        super::RECORDING => "recording of kernels",
        super::STEPS => "steps",
        super::KERNELS => "kernels",
        _ => "clock event reasons",
    }
}

impl Lines {
    /// Whether the array is closed, so that no events can be added.
    pub fn closed(&self) -> bool {
        self.closed
    }

    pub fn close(&mut self) {
        self.text.push_str(if self.begun { "]\n" } else { "[\n]\n" });
        self.closed = true;
    }

    fn push(&mut self, event: &TraceEvent<'_>) {
        self.text.push_str(if std::mem::replace(&mut self.begun, true) { "," } else { "[\n" });
        let json = serde_json::to_string(event).unwrap_or_default();
        // The writer has escaped the controls below 0x20. Nearly all lines are ASCII: every token's line takes this
        // path.
        match json.is_ascii() && !json.contains('\u{7f}') {
            true => self.text.push_str(&json),
            false => self.text.push_str(&visible(&json)),
        }
        self.text.push('\n');
    }

    fn push_metadata(&mut self, track: TrackId, name: &str, args: Args<'_>) {
        self.push(&TraceEvent { name: Some(name), args, ..TraceEvent::new("M", track) });
    }

    /// Names a process. Only the first name is used.
    pub fn name_process(&mut self, process: u64, name: &str) {
        if self.processes.contains(&process) {
            return;
        }
        self.processes.push(process);
        let track = TrackId { process, thread: 0 };
        self.push_metadata(track, "process_name", &[("name", Arg::Text(name))]);
        self.push_metadata(track, "process_sort_index", &[("sort_index", Arg::Number(process))]);
    }

    fn name_track(&mut self, track: TrackId) {
        if self.named.contains(&track) {
            return;
        }
        self.named.push(track);
        self.name_process(track.process, &process_name(track.process));
        self.push_metadata(track, "thread_name", &[("name", Arg::Text(thread_name(track)))]);
    }

    /// Begins a slice that lasts until an [`end`](Self::end) on the same track.
    pub fn begin(&mut self, track: TrackId, t: Stamp, name: &str, args: Args<'_>) {
        self.name_track(track);
        let ts = Some(micros(t.0));
        self.push(&TraceEvent { ts, name: Some(name), args, ..TraceEvent::new("B", track) });
    }

    pub fn end(&mut self, track: TrackId, t: Stamp) {
        self.push(&TraceEvent { ts: Some(micros(t.0)), ..TraceEvent::new("E", track) });
    }

    /// A complete slice.
    pub fn slice(&mut self, track: TrackId, from: Stamp, ns: u64, name: &str, args: Args<'_>) {
        self.name_track(track);
        let (ts, dur) = (Some(micros(from.0)), Some(micros(ns)));
        self.push(&TraceEvent { ts, dur, name: Some(name), args, ..TraceEvent::new("X", track) });
    }

    pub fn instant(&mut self, track: TrackId, t: Stamp, name: &str, args: Args<'_>) {
        self.name_track(track);
        let (ts, s) = (Some(micros(t.0)), Some("t"));
        self.push(&TraceEvent { ts, s, name: Some(name), args, ..TraceEvent::new("i", track) });
    }

    /// A counter of a process, to three decimals. A value that is not finite or has not changed is left out.
    pub fn counter(&mut self, process: u64, t: Stamp, name: &'static str, unit: &str, value: f64) {
        let value = (value * 1e3).round() / 1e3;
        let known = self.counters.iter().position(|(of, known, _)| (*of, *known) == (process, name));
        match known {
            _ if !value.is_finite() => return,
            Some(index) if self.counters[index].2 == value => return,
            Some(index) => self.counters[index].2 = value,
            None => self.counters.push((process, name, value)),
        }
        self.name_process(process, &process_name(process));
        let (track, ts) = (TrackId { process, thread: 0 }, Some(micros(t.0)));
        // Perfetto shows name and unit together: `power W`.
        let args = &[(unit, Arg::Value(value))];
        self.push(&TraceEvent { ts, name: Some(name), args, ..TraceEvent::new("C", track) });
    }
}
