//! Chrome's trace events as lines of JSON, written by hand: a long run has a million of them.

use std::fmt::Write;

use crate::event::Stamp;

/// A thread of a process, as the trace counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub process: u64,
    pub thread: u64,
}

/// A value beside a slice.
#[derive(Debug, Clone, Copy)]
pub enum Args<'a> {
    Number(u64),
    Text(&'a str),
}

/// Writes events after one another, with the names of the places when they are first used.
#[derive(Default)]
pub struct Lines {
    begun: bool,
    closed: bool,
    named: Vec<Place>,
    processes: Vec<u64>,
    /// What each counter showed last: it is drawn as it was until it changes.
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

fn thread_name(place: Place) -> &'static str {
    match place {
        super::REQUESTS => "requests",
        super::OPERATORS => "operators",
        super::RANGES => "NVTX llmprof",
        super::MARKS => "notes",
        super::STEPS => "steps",
        super::KERNELS => "kernels",
        _ => "clock event reasons",
    }
}

impl Lines {
    /// Nothing can be added any more.
    pub fn closed(&self) -> bool {
        self.closed
    }

    pub fn close(&mut self, out: &mut String) {
        if !self.begun {
            out.push_str("[\n");
        }
        out.push_str("]\n");
        self.closed = true;
    }

    /// Names a process; only the first name counts.
    pub fn name_process(&mut self, out: &mut String, process: u64, name: &str) {
        if self.processes.contains(&process) {
            return;
        }
        self.processes.push(process);
        self.head(out, "M", Place { process, thread: 0 });
        out.push_str(",\"name\":\"process_name\",\"args\":{\"name\":");
        quoted(out, name);
        out.push_str("}}\n");
        self.head(out, "M", Place { process, thread: 0 });
        out.push_str(",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":");
        number(out, process);
        out.push_str("}}\n");
    }

    fn name(&mut self, out: &mut String, place: Place) {
        if self.named.contains(&place) {
            return;
        }
        self.named.push(place);
        self.name_process(out, place.process, &process_name(place.process));
        self.head(out, "M", place);
        out.push_str(",\"name\":\"thread_name\",\"args\":{\"name\":");
        quoted(out, thread_name(place));
        out.push_str("}}\n");
    }

    /// From here on, until an [`end`](Self::end) of the same place.
    pub fn begin(&mut self, out: &mut String, place: Place, t: Stamp, name: &str, args: &[(&str, Args<'_>)]) {
        self.name(out, place);
        self.head(out, "B", place);
        stamp(out, t);
        rest(out, name, args);
    }

    pub fn end(&mut self, out: &mut String, place: Place, t: Stamp) {
        self.head(out, "E", place);
        stamp(out, t);
        out.push_str("}\n");
    }

    /// A whole slice.
    pub fn slice(
        &mut self,
        out: &mut String,
        place: Place,
        from: Stamp,
        ns: u64,
        name: &str,
        args: &[(&str, Args<'_>)],
    ) {
        self.name(out, place);
        self.head(out, "X", place);
        stamp(out, from);
        out.push_str(",\"dur\":");
        micros(out, ns);
        rest(out, name, args);
    }

    pub fn instant(
        &mut self,
        out: &mut String,
        place: Place,
        t: Stamp,
        name: &str,
        args: &[(&str, Args<'_>)],
    ) {
        self.name(out, place);
        self.head(out, "i", place);
        stamp(out, t);
        out.push_str(",\"s\":\"t\"");
        rest(out, name, args);
    }

    /// A counter of a process, to the thousandth. A value that is no number is not drawn, nor is one that has not changed.
    pub fn counter(
        &mut self,
        out: &mut String,
        process: u64,
        t: Stamp,
        name: &'static str,
        unit: &str,
        value: f64,
    ) {
        let value = (value * 1e3).round() / 1e3;
        let known = self.counters.iter().position(|(of, known, _)| (*of, *known) == (process, name));
        match known {
            _ if !value.is_finite() => return,
            Some(at) if self.counters[at].2 == value => return,
            Some(at) => self.counters[at].2 = value,
            None => self.counters.push((process, name, value)),
        }
        self.name_process(out, process, &process_name(process));
        self.head(out, "C", Place { process, thread: 0 });
        stamp(out, t);
        out.push_str(",\"name\":\"");
        out.push_str(name);
        // Perfetto puts the two together: `power W`.
        out.push_str("\",\"args\":{\"");
        out.push_str(unit);
        let _ = writeln!(out, "\":{value}}}}}");
    }

    /// The beginning of a line up to its place.
    fn head(&mut self, out: &mut String, kind: &str, place: Place) {
        out.push_str(if std::mem::replace(&mut self.begun, true) { "," } else { "[\n" });
        out.push_str("{\"ph\":\"");
        out.push_str(kind);
        out.push_str("\",\"pid\":");
        number(out, place.process);
        out.push_str(",\"tid\":");
        number(out, place.thread);
    }
}

fn stamp(out: &mut String, t: Stamp) {
    out.push_str(",\"ts\":");
    micros(out, t.0);
}

fn rest(out: &mut String, name: &str, args: &[(&str, Args<'_>)]) {
    out.push_str(",\"name\":");
    quoted(out, name);
    if !args.is_empty() {
        for (at, (key, value)) in args.iter().enumerate() {
            out.push_str(if at == 0 { ",\"args\":{" } else { "," });
            quoted(out, key);
            out.push(':');
            match value {
                Args::Number(n) => number(out, *n),
                Args::Text(text) => quoted(out, text),
            }
        }
        out.push('}');
    }
    out.push_str("}\n");
}

/// Microseconds to the nanosecond: the form has no finer unit.
fn micros(out: &mut String, ns: u64) {
    number(out, ns / 1000);
    let rest = ns % 1000;
    if rest > 0 {
        out.push('.');
        out.extend([rest / 100, rest / 10 % 10, rest % 10].map(digit));
    }
}

fn digit(n: u64) -> char {
    char::from(b'0' + n as u8)
}

fn number(out: &mut String, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
