//! Reports of `nsys stats` in any format: rows below a header become tables.

use super::{
    header::{Cell, Column, Header, Placed},
    trace::Trace,
};
use crate::{
    error::{KernelsError, RECORD_KERNELS},
    tally::MAX_ROWS,
};
use llmprof_event::kernels::{KernelRow, KernelTable, OTHERS};

/// One report, counted while it is read.
pub enum Report {
    Summary(Summary),
    Trace(Box<Trace>),
    /// Calls of the operating system (`osrt_sum`), with the same header as calls of CUDA.
    System,
}

impl Report {
    /// `None` for a row that is not the header of a report.
    pub fn from_titles(titles: &[String]) -> Option<Report> {
        let trace = Trace::from_titles(titles).map(|trace| Report::Trace(Box::new(trace)));
        trace.or_else(|| Header::from_titles(titles).map(|header| Report::Summary(Summary::new(header))))
    }

    /// Whether a column has numbers.
    pub fn is_number(&self, column: usize) -> bool {
        match self {
            Report::Summary(summary) => summary.header.is_number(column),
            Report::Trace(trace) => trace.is_number(column),
            Report::System => false,
        }
    }

    pub fn add<'c>(&mut self, cell: impl Fn(usize) -> Option<Cell<'c>>) {
        match self {
            Report::Summary(summary) => summary.add(cell),
            Report::Trace(trace) => trace.add(cell),
            Report::System => {}
        }
    }

    /// The tables; a report without rows gives one table without rows.
    fn done(self) -> Vec<KernelTable> {
        match self {
            Report::Summary(summary) => summary.done(),
            Report::Trace(trace) => trace.done(),
            Report::System => Vec::new(),
        }
    }
}

/// A summary of bounded size.
pub struct Summary {
    header: Header,
    tables: Vec<KernelTable>,
    unread: u64,
}

impl Summary {
    fn new(header: Header) -> Summary {
        Summary { header, tables: Vec::new(), unread: 0 }
    }

    fn add<'c>(&mut self, cell: impl Fn(usize) -> Option<Cell<'c>>) {
        let Some(Placed { kind, device, row }) = self.header.row(cell) else {
            self.unread += 1;
            return;
        };
        let same = |table: &KernelTable| table.kind == kind && table.device == device;
        let full = (self.tables.len() >= MAX_TABLES).then(|| self.tables.len() - 1);
        let at = self.tables.iter().position(same).or(full).unwrap_or_else(|| {
            let mut table = KernelTable { device, ..KernelTable::new(self.header.source, kind) };
            table.nested |= self.header.columns.contains(&Column::Range);
            self.tables.push(table);
            self.tables.len() - 1
        });
        let table = &mut self.tables[at];
        if table.rows.len() < MAX_ROWS {
            table.rows.push(row);
            return;
        }
        let others = KernelRow { name: OTHERS.to_owned(), family: OTHERS.to_owned(), ..row };
        match table.rows.get_mut(MAX_ROWS) {
            Some(known) => known.absorb(&others),
            None => table.rows.push(others),
        }
    }

    fn done(mut self) -> Vec<KernelTable> {
        if self.tables.is_empty() {
            self.tables.push(KernelTable::new(self.header.source, self.header.kind));
        }
        if self.unread > 0 {
            self.tables[0].notes.push(format!("{} rows could not be read", self.unread));
        }
        self.tables
    }
}

/// The reports of a file, read one after another.
pub struct Reports {
    tables: Vec<KernelTable>,
    current: Option<Report>,
    /// Why nsys skipped a report.
    skipped: Option<String>,
    /// The next report is about calls of the operating system.
    of_system: bool,
    left_out: bool,
    any: bool,
}

impl Reports {
    pub fn new(file: &str) -> Reports {
        Reports {
            tables: Vec::new(),
            current: None,
            skipped: None,
            of_system: is_of_system(file),
            left_out: false,
            any: false,
        }
    }

    pub fn is_within(&self) -> bool {
        self.current.is_some()
    }

    /// Reads a line that is neither blank nor a row of a report: it may announce the next one.
    pub fn line(&mut self, text: &str) {
        self.any = true;
        self.of_system = is_of_system(text);
        if let Some(at) = skipped(text) {
            self.skipped.get_or_insert_with(|| text[at..].to_owned());
        }
    }

    /// Begins a report.
    pub fn begin(&mut self, report: Report) {
        self.end();
        self.any = true;
        self.left_out |= self.of_system;
        self.current = Some(if self.of_system { Report::System } else { report });
    }

    pub fn add<'c>(&mut self, cell: impl Fn(usize) -> Option<Cell<'c>>) {
        if let Some(report) = &mut self.current {
            report.add(cell);
        }
    }

    /// Ends the report, if there is one.
    pub fn end(&mut self) {
        self.tables.extend(self.current.take().map(Report::done).into_iter().flatten());
    }

    /// The tables with rows. A report that was skipped or has only a header is an error, never an empty table.
    pub fn finish(mut self, file: &str) -> Result<Vec<KernelTable>, KernelsError> {
        self.end();
        let file = file.to_owned();
        let no_rows =
            |what: String| KernelsError::NoRows { file: file.clone(), what, remedy: RECORD_KERNELS };
        let header = self.tables.first().map(|table| format!("the header of a report ({})", table.source));
        self.tables.retain(|table| !table.rows.is_empty());
        let Some(first) = self.tables.first_mut() else {
            return Err(match (self.skipped, header) {
                (Some(message), _) => KernelsError::Skipped { file, message, remedy: RECORD_KERNELS },
                (None, _) if !self.any => KernelsError::Empty { file, remedy: RECORD_KERNELS },
                (None, _) if self.left_out => no_rows("calls of the operating system (osrt_sum)".to_owned()),
                (None, Some(header)) => no_rows(header),
                (None, None) => {
                    KernelsError::Unknown { file, seen: "no row is the header of a report".to_owned() }
                }
            });
        };
        first.notes.extend(self.skipped);
        if self.left_out {
            first.notes.push("calls of the operating system (osrt_sum) are not shown".to_owned());
        }
        Ok(self.tables)
    }
}

/// More tables than a machine has GPUs, for each kind.
const MAX_TABLES: usize = 1024;

/// The position of the message about a skipped report, which may follow a progress message on the same line.
pub fn skipped(line: &str) -> Option<usize> {
    line.find("SKIPPED:").filter(|at| *at == 0 || line.starts_with("Processing ["))
}

fn is_of_system(text: &str) -> bool {
    text.contains("osrt_sum") || text.contains("osrtsum")
}
