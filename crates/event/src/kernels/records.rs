//! Records of device work as text, as the library in another program wrote them, for tests and bug reports.
//!
//! A line has the kind, the start since the previous line, the duration, the correlation id since the previous line,
//! the stream and the graph; then grid, block and the number of the name (followed by the name at its first use), or
//! direction and bytes. Other kinds of lines: `on` and `off` with the time when recording of kernels was switched,
//! `burst` with both, `range` with times, thread, domain and text, `dropped` with a count.

use std::{
    collections::HashMap,
    io::{self, Write},
};

use super::{
    Extent,
    work::{DeviceActivity, Direction, KernelLaunch, NameId, WorkKind},
};

/// Maximum records of one file: 20 million are about 150 MB compressed.
const MAX_RECORDS: u64 = 20_000_000;

/// An entry that a program's library reported.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry<'a> {
    /// The start or the end of recording kernels.
    Switch {
        at_ns: u64,
        on: bool,
    },
    Work(DeviceActivity),
    Range {
        start_ns: u64,
        end_ns: u64,
        thread: u64,
        domain: &'a str,
        text: &'a str,
    },
    Dropped(u64),
}

/// Writes entries, up to a limit.
pub struct Writer<W: Write> {
    out: W,
    start_ns: u64,
    correlation: u32,
    names: HashMap<NameId, usize>,
    left: u64,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Writer<W> {
        Writer { out, start_ns: 1, correlation: 0, names: HashMap::new(), left: MAX_RECORDS }
    }

    /// `name` is the name of a kernel.
    pub fn write(&mut self, entry: &Entry<'_>, name: &str) -> io::Result<()> {
        self.left = match self.left {
            0 => return Ok(()),
            left => left - 1,
        };
        match entry {
            Entry::Switch { at_ns, on } => {
                writeln!(self.out, "{}\t{at_ns}", if *on { "on" } else { "off" })
            }
            Entry::Dropped(records) => writeln!(self.out, "dropped\t{records}"),
            Entry::Range { start_ns, end_ns, thread, domain, text } => {
                let plain = |text: &str| text.replace(['\t', '\n'], " ");
                let (domain, text) = (plain(domain), plain(text));
                writeln!(self.out, "range\t{start_ns}\t{end_ns}\t{thread}\t{domain}\t{text}")
            }
            Entry::Work(work) => self.work(work, name),
        }
    }

    fn work(&mut self, work: &DeviceActivity, name: &str) -> io::Result<()> {
        let since = work.start_ns.wrapping_sub(self.start_ns) as i64;
        let calls = work.correlation.wrapping_sub(self.correlation) as i32;
        (self.start_ns, self.correlation) = (work.start_ns, work.correlation);
        let duration = work.end_ns.wrapping_sub(work.start_ns) as i64;
        let (stream, graph) = (work.stream, work.graph.unwrap_or(0));
        let letter = match work.kind {
            WorkKind::Kernel { .. } => 'k',
            WorkKind::Copy { .. } => 'c',
            WorkKind::Memset { .. } => 'm',
            WorkKind::Graph { .. } => 'g',
            WorkKind::Sync => 's',
        };
        let graph = if let WorkKind::Graph { graph } = work.kind { graph } else { graph };
        write!(self.out, "{letter}\t{since}\t{duration}\t{calls}\t{stream}\t{graph}")?;
        match work.kind {
            WorkKind::Kernel { name: id, launch } => {
                let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
                let next = self.names.len();
                let number = *self.names.entry(id).or_insert(next);
                write!(self.out, "\t{gx}x{gy}x{gz}\t{bx}x{by}x{bz}\t{number}")?;
                if number == next {
                    write!(self.out, "\t{}", name.replace(['\t', '\n'], " "))?;
                }
                writeln!(self.out)
            }
            WorkKind::Copy { direction, bytes } => writeln!(self.out, "\t{}\t{bytes}", direction.as_cupti()),
            WorkKind::Memset { bytes } => writeln!(self.out, "\t0\t{bytes}"),
            WorkKind::Graph { .. } | WorkKind::Sync => writeln!(self.out),
        }
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads the text that [`Writer`] wrote; `name` numbers the names of kernels. Invalid lines are skipped.
pub fn read<'a>(text: &'a str, mut name: impl FnMut(&str) -> NameId, mut each: impl FnMut(Entry<'a>)) {
    let mut names: Vec<NameId> = Vec::new();
    let (mut start_ns, mut correlation) = (1u64, 0u32);
    for line in text.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| cells.get(at)?.parse::<u64>().ok();
        let switch = |at: usize, on: bool| number(at).map(|at_ns| Entry::Switch { at_ns, on });
        match cells[0] {
            "burst" => [switch(1, true), switch(2, false)].into_iter().flatten().for_each(&mut each),
            "on" | "off" => switch(1, cells[0] == "on").into_iter().for_each(&mut each),
            "dropped" => number(1).map(Entry::Dropped).into_iter().for_each(&mut each),
            "range" => {
                if let (Some(start_ns), Some(end_ns), Some(thread)) = (number(1), number(2), number(3))
                    && let [domain, text] = cells[4..]
                {
                    each(Entry::Range { start_ns, end_ns, thread, domain, text });
                }
            }
            _ => {
                let Some(line) = WorkLine::parse(&cells) else { continue };
                start_ns = start_ns.wrapping_add_signed(line.since);
                correlation = correlation.wrapping_add_signed(line.calls);
                if let Some(text) = cells.get(9).filter(|_| cells[0] == "k") {
                    names.push(name(text));
                }
                if let Some(kind) = line.kind(&cells, &names) {
                    let graph = (line.graph > 0 && cells[0] != "g").then_some(line.graph);
                    let end_ns = start_ns.wrapping_add_signed(line.duration);
                    let stream = line.stream;
                    each(Entry::Work(DeviceActivity {
                        start_ns,
                        end_ns,
                        stream,
                        device: 0,
                        correlation,
                        graph,
                        kind,
                    }));
                }
            }
        }
    }
}

/// The first cells of a line with work.
struct WorkLine {
    since: i64,
    duration: i64,
    calls: i32,
    stream: u32,
    graph: u32,
}

impl WorkLine {
    fn parse(cells: &[&str]) -> Option<WorkLine> {
        let [_, since, duration, calls, stream, graph, ..] = cells else { return None };
        Some(WorkLine {
            since: since.parse().ok()?,
            duration: duration.parse().ok()?,
            calls: calls.parse().ok()?,
            stream: stream.parse().ok()?,
            graph: graph.parse().ok()?,
        })
    }

    fn kind(&self, cells: &[&str], names: &[NameId]) -> Option<WorkKind> {
        let number = |at: usize| cells.get(at)?.parse::<u64>().ok();
        let extent = |at: usize| -> Option<Extent> {
            let mut parts = cells.get(at)?.split('x').map(|part| part.parse().ok());
            Some([parts.next()??, parts.next().unwrap_or(Some(1))?, parts.next().unwrap_or(Some(1))?])
        };
        match cells[0] {
            "k" => {
                let launch =
                    KernelLaunch { grid: extent(6)?, block: extent(7)?, registers: 0, shared_bytes: 0 };
                Some(WorkKind::Kernel { name: *names.get(number(8)? as usize)?, launch })
            }
            "c" => {
                let direction = Direction::of_cupti(u8::try_from(number(6)?).ok()?);
                Some(WorkKind::Copy { direction, bytes: number(7)? })
            }
            "m" => Some(WorkKind::Memset { bytes: number(7)? }),
            "g" => Some(WorkKind::Graph { graph: self.graph }),
            "s" => Some(WorkKind::Sync),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::work::Names, *};

    #[test]
    fn records_round_trip() {
        let mut names = Names::default();
        let launch = KernelLaunch { grid: [3, 2, 1], block: [64, 1, 1], registers: 0, shared_bytes: 0 };
        let (a, b) = (names.number("alpha"), names.number("beta"));
        let work = |start_ns, correlation, graph, kind| {
            let end_ns = start_ns + 5;
            Entry::Work(DeviceActivity { start_ns, end_ns, stream: 7, device: 0, correlation, graph, kind })
        };
        let kernel = |name| WorkKind::Kernel { name, launch };
        let entries = [
            Entry::Switch { at_ns: 10, on: true },
            work(20, 4, None, kernel(a)),
            work(15, 3, Some(9), kernel(b)),
            work(30, 5, Some(9), kernel(a)),
            work(40, 5, None, WorkKind::Copy { direction: Direction::DeviceToHost, bytes: 4 }),
            work(41, 6, None, WorkKind::Memset { bytes: 8 }),
            work(42, 7, None, WorkKind::Graph { graph: 3 }),
            work(43, 8, None, WorkKind::Sync),
            Entry::Range { start_ns: 1, end_ns: 9, thread: 2, domain: "NCCL", text: "ncclAllReduce" },
            Entry::Dropped(3),
            Entry::Switch { at_ns: 50, on: false },
        ];
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        for entry in &entries {
            let name = match entry {
                Entry::Work(DeviceActivity { kind: WorkKind::Kernel { name, .. }, .. }) => names.text(*name),
                _ => "",
            };
            writer.write(entry, name).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let mut found = Vec::new();
        read(&text, |name| names.number(name), |entry| found.push(entry));
        assert_eq!(found, entries);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "([kcmgs\t0-9x-]|burst\t|range\t|\n){0,200}") {
            read(&text, |_| NameId(1), |_| {});
        }
    }
}
