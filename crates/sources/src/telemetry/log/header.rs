//! The header of a log, and the rows below it.

use std::io::Read;

use jiff::civil::DateTime;

use super::{
    LogError, Unreadable,
    columns::{
        self, Column, column, date_of_seconds, number, seconds_of_date, seconds_of_day, seconds_of_time,
    },
    lines::{Lines, Separator},
};
use llmprof_event::{readings::Reading, reasons};

/// The default interval of `nvidia-smi dmon`.
const DMON_INTERVAL_S: f64 = 1.0;

/// A column of the log.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) column: Option<Column>,
    pub(super) unit: Option<String>,
}

/// The source of a row's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    Seconds(usize),
    Date(usize),
    TimeOfDay {
        day: Option<usize>,
        time: usize,
    },
    /// Not in the log: polls are [`DMON_INTERVAL_S`] apart. The column is that of the GPU.
    Polls(usize),
}

pub(super) struct Header {
    line: String,
    separator: Separator,
    dmon: bool,
    pub(super) fields: Vec<Field>,
    pub(super) clock: Clock,
}

impl Header {
    /// The date and time of a row.
    pub(super) fn date_of(&self, row: &LogSample) -> Option<DateTime> {
        let has_date = matches!(self.clock, Clock::Date(_) | Clock::TimeOfDay { day: Some(_), .. });
        has_date.then(|| date_of_seconds(row.secs)).flatten()
    }

    /// The limits without a column, if some limit has one. The causes of a hardware slowdown are covered by its column.
    pub(super) fn unread_reasons(&self) -> u64 {
        let hardware = reasons::HW_THERMAL | reasons::HW_POWER_BRAKE;
        let seen = self.fields.iter().filter_map(|field| {
            Some(match field.column.as_ref()? {
                Column::Mask => u64::MAX,
                Column::PowerCapPct | Column::Reading(Reading::PowerCapNs, _) => reasons::SW_POWER_CAP,
                // dmon's thermal violations include those of the hardware.
                Column::Bit(_) if self.dmon => reasons::SW_THERMAL | reasons::HW_SLOWDOWN,
                Column::Bit(bit) => *bit,
                Column::Reading(Reading::SwThermalNs, _) => reasons::SW_THERMAL,
                Column::Reading(Reading::HwThermalNs, _) => reasons::HW_THERMAL,
                Column::Reading(Reading::PowerBrakeNs, _) => reasons::HW_POWER_BRAKE,
                _ => return None,
            })
        });
        let Some(mut seen) = seen.reduce(|all, more| all | more) else { return 0 };
        if seen & hardware == hardware {
            seen |= reasons::HW_SLOWDOWN;
        }
        (reasons::SW_POWER_CAP | reasons::SW_THERMAL | reasons::HW_SLOWDOWN) & !seen
    }

    fn parse(name: &str, line: &str) -> Result<Header, LogError> {
        let name = name.to_owned();
        // Every second byte of such a text is zero.
        if 3 * line.matches('\0').count() > line.chars().count() {
            return Err(LogError::Utf16 { name });
        }
        let dmon = line.trim_start().starts_with('#');
        let text = line.trim_start().trim_start_matches('#');
        let separator = Separator::detect(text);
        let mut cells = separator.split(text);
        while cells.last().is_some_and(String::is_empty) {
            cells.pop();
        }
        let field = |cell: String| Field {
            column: column(&cell, dmon),
            unit: columns::unit(&cell).map(str::to_owned),
            name: cell,
        };
        let fields: Vec<Field> = cells.into_iter().map(field).collect();
        let has =
            |wanted: fn(&Column) -> bool| fields.iter().rposition(|f| f.column.as_ref().is_some_and(wanted));
        if has(|column| matches!(column, Column::Process)).is_some() {
            return Err(LogError::Processes { name });
        }
        let clock = match has(|column| matches!(column, Column::Seconds | Column::Date)) {
            // The program's own logs have two time columns; the one that starts with the run is more precise.
            Some(time) if matches!(fields[time].column, Some(Column::Date)) => Some(Clock::Date(time)),
            Some(time) => Some(Clock::Seconds(time)),
            None => {
                let day = has(|column| matches!(column, Column::Day));
                let time = has(|column| matches!(column, Column::TimeOfDay));
                let gpu = has(|column| matches!(column, Column::Gpu)).filter(|_| dmon);
                time.map(|time| Clock::TimeOfDay { day, time }).or(gpu.map(Clock::Polls))
            }
        };
        let Some(clock) = clock else { return Err(LogError::NoTime { name }) };
        let is_reading = |column: &Column| {
            matches!(column, Column::Reading(..) | Column::Mask | Column::Bit(_) | Column::PowerCapPct)
        };
        if has(is_reading).is_none() {
            let columns = fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(LogError::NoReadings { name, columns });
        }
        Ok(Header { line: line.trim().to_owned(), separator, dmon, fields, clock })
    }

    /// A header in the middle of the log: dmon repeats its own, and a log may have been continued.
    fn is_repeated(&self, line: &str) -> bool {
        let line = line.trim();
        line == self.line || self.dmon && line.starts_with('#')
    }
}

/// A row with a valid time.
pub(super) struct LogSample {
    pub(super) line: u64,
    /// Its index among all rows, readable or not.
    pub(super) number: u64,
    pub(super) secs: f64,
    pub(super) cells: Vec<String>,
}

pub(super) struct Rows<R> {
    name: String,
    lines: Lines<R>,
    pub(super) header: Header,
    number: u64,
    /// The polls so far, and the GPU of the last row, if the log has no time.
    polls: (u64, Option<f64>),
    pub(super) skipped: u64,
    pub(super) first_skipped: Option<Unreadable>,
}

impl<R: Read> Rows<R> {
    pub(super) fn open(name: &str, input: R) -> Result<Rows<R>, LogError> {
        let unreadable = |source| LogError::Read { name: name.to_owned(), source };
        let mut lines = Lines::open(input).map_err(unreadable)?;
        let (_, line) = lines.read_next().map_err(unreadable)?.unwrap_or_default();
        let header = Header::parse(name, &line)?;
        Ok(Rows {
            name: name.to_owned(),
            lines,
            header,
            number: 0,
            polls: (0, None),
            skipped: 0,
            first_skipped: None,
        })
    }

    /// The next row with a value for every column and a valid time. A row with more values is an error, because they
    /// cannot be assigned to columns.
    pub(super) fn read_next(&mut self) -> Result<Option<LogSample>, LogError> {
        loop {
            let next = self.lines.read_next();
            let next = next.map_err(|source| LogError::Read { name: self.name.clone(), source })?;
            let Some((line, text)) = next else { return Ok(None) };
            if self.header.is_repeated(&text) {
                continue;
            }
            self.number += 1;
            let cells = self.header.separator.split(&text);
            let columns = self.header.fields.len();
            if cells.iter().skip(columns).any(|cell| !cell.is_empty()) {
                return Err(LogError::TooManyValues {
                    name: self.name.clone(),
                    line,
                    values: cells.len(),
                    columns,
                });
            }
            let skipped = if cells.len() < columns {
                Unreadable::Short { line, values: cells.len(), columns }
            } else if let Some(secs) = self.seconds(&cells) {
                return Ok(Some(LogSample { line, number: self.number - 1, secs, cells }));
            } else {
                Unreadable::Time { line, cell: self.time_cell(&cells).to_owned() }
            };
            self.skipped += 1;
            self.first_skipped.get_or_insert(skipped);
        }
    }

    fn seconds(&mut self, cells: &[String]) -> Option<f64> {
        match self.header.clock {
            Clock::Seconds(column) => number(&cells[column]),
            Clock::Date(column) => seconds_of_date(&cells[column]),
            Clock::TimeOfDay { day: Some(day), time } => {
                Some(seconds_of_day(&cells[day])? + seconds_of_time(&cells[time])?)
            }
            Clock::TimeOfDay { day: None, time } => seconds_of_time(&cells[time]),
            Clock::Polls(gpu) => {
                let gpu = number(&cells[gpu])?;
                let (polls, last) = self.polls;
                // The first GPU again, so a new poll.
                let polls = if last.is_some_and(|last| gpu <= last) { polls + 1 } else { polls };
                self.polls = (polls, Some(gpu));
                Some(polls as f64 * DMON_INTERVAL_S)
            }
        }
    }

    fn time_cell<'a>(&self, cells: &'a [String]) -> &'a str {
        let (Clock::Seconds(column)
        | Clock::Date(column)
        | Clock::TimeOfDay { time: column, .. }
        | Clock::Polls(column)) = self.header.clock;
        &cells[column]
    }
}
