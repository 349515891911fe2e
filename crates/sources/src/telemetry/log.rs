//! Telemetry logs: the program's own `nvml.csv`, and the output of `nvidia-smi --query-gpu=… --format=csv` and of
//! `nvidia-smi dmon`.

mod columns;
mod gpus;
mod header;
mod lines;

use std::{
    fmt,
    io::{self, Read},
};

use columns::{Column, has_other_unit, is_ambiguous, mask, number, phase_named, says_lost, text};
pub use gpus::IdentifiedBy;
use gpus::{GpuKey, GpuOfRow};
use header::{Clock, Header, LogSample, Rows};
use jiff::civil::DateTime;
use thiserror::Error;

use super::absent::Absence;
use llmprof_analysis::throttle::Ledger;
use llmprof_event::{GpuInfo, GpuLost, GpuSample, GpuSource, Stamp, readings::Reading, reasons};

#[derive(Debug, Error)]
pub enum LogError {
    #[error("cannot read {name}: {source}")]
    Read { name: String, source: io::Error },
    #[error(
        "{name} has no time column (timestamp, ts or t_s): add timestamp to nvidia-smi's --query-gpu, and keep the header \
         (--format=csv, without noheader)"
    )]
    NoTime { name: String },
    #[error("{name} has no column with a known reading; its columns are {columns}")]
    NoReadings { name: String, columns: String },
    #[error("{name} has no row with a valid time{}", .first.as_ref().map_or_else(String::new, |row| format!(": {row}")))]
    Empty { name: String, first: Option<Unreadable> },
    #[error(
        "{name} is UTF-16 without a byte order mark; convert it to UTF-8: iconv -f UTF-16LE -t UTF-8, or write it with \
         nvidia-smi -f FILE"
    )]
    Utf16 { name: String },
    #[error(
        "{name} lists processes, not readings of GPUs: record nvidia-smi dmon, or nvidia-smi --query-gpu=… --format=csv"
    )]
    Processes { name: String },
    #[error(
        "{name} has several rows for the same time and no column that identifies the GPU: add index or uuid to nvidia-smi's \
         --query-gpu"
    )]
    GpusUnnamed { name: String },
    #[error("{name}, line {line}: more than {MAX_GPUS} GPUs: the values do not belong to the header")]
    TooManyGpus { name: String, line: u64 },
    #[error(
        "{name}, line {line}: {values} values for {columns} columns, so their columns are not known. Decimal commas need \
         quotes, or ; between the values: run nvidia-smi with LC_ALL=C"
    )]
    TooManyValues { name: String, line: u64, values: usize, columns: usize },
    #[error("{name}, line {line}: {value:?} in the column {column} {problem}")]
    Value { name: String, line: u64, column: String, value: String, problem: Problem },
}

/// The problem with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Problem {
    #[error(
        "is not a mask of clock event reasons (nvidia-smi writes 0x0000000000000004): the values do not belong to the \
         header"
    )]
    NotAMask,
    #[error("has another unit than the column: the values do not belong to the header")]
    OtherUnit,
    #[error(
        "may have a decimal comma or a separator of thousands: write numbers without separators (LC_ALL=C)"
    )]
    Ambiguous,
}

/// A row that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    Short { line: u64, values: usize, columns: usize },
    Time { line: u64, cell: String },
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::Short { line, values, columns } => {
                write!(f, "line {line} has {values} values for {columns} columns")
            }
            Unreadable::Time { line, cell } => write!(
                f,
                "line {line} has {cell:?}; supported are seconds, 2026/11/15 08:00:00.000 and 15.11.2026 08:00:00"
            ),
        }
    }
}

/// A GPU in a log.
#[derive(Debug, Clone)]
pub struct LoggedGpu {
    pub info: GpuInfo,
    pub ledger: Ledger,
    /// The last value of every reading.
    pub last: GpuSample,
    pub rows: u64,
    pub lost: Option<GpuLost>,
    key: GpuKey,
    last_row: Stamp,
    /// Time under the power cap, if the log has it in percent.
    capped_ns: f64,
}

#[derive(Debug, Clone)]
pub struct TelemetryLog {
    pub gpus: Vec<LoggedGpu>,
    /// Rows without a valid time, or with too few values.
    pub skipped: u64,
    pub identified_by: IdentifiedBy,
    /// Whether the log has no times, so that one second between its polls is assumed.
    pub assumed_interval: bool,
    /// The date and time of the first row, if it has them.
    pub began: Option<DateTime>,
    /// The GPU of the last row.
    last_gpu: usize,
}

/// The number of rows that decide how GPUs are identified.
const FIRST_ROWS: usize = 64;
const MAX_GPUS: usize = 256;

/// Reads a log row by row; cells without a value are ignored.
pub fn read(name: &str, input: impl Read) -> Result<TelemetryLog, LogError> {
    let mut rows = Rows::open(name, input)?;
    let mut first_rows = Vec::new();
    while first_rows.len() < FIRST_ROWS
        && let Some(row) = rows.read_next()?
    {
        first_rows.push(row);
    }
    let gpu_of_row = GpuOfRow::find(name, &rows.header, &first_rows)?;
    let mut log = TelemetryLog {
        gpus: Vec::new(),
        skipped: 0,
        identified_by: gpu_of_row.identified_by(&rows.header),
        assumed_interval: matches!(rows.header.clock, Clock::Polls(_)),
        began: first_rows.first().and_then(|row| rows.header.date_of(row)),
        last_gpu: 0,
    };
    let mut first_rows = first_rows.into_iter();
    // The start of the log's clock, and the time of the last row.
    let (mut start, mut now) = (None, None::<Stamp>);
    while let Some(row) = first_rows.next().map_or_else(|| rows.read_next(), |row| Ok(Some(row)))? {
        let mut t = Stamp::from_secs_f64((row.secs - *start.get_or_insert(row.secs)).max(0.0));
        if let Some(before) = now.filter(|before| *before > t) {
            // The clock was set back: time continues from the last row.
            (start, t) = (Some(row.secs - before.secs()), before);
        }
        now = Some(t);
        log.add_row(name, t, &rows.header, &row, gpu_of_row.key(&row))?;
    }
    log.skipped = rows.skipped;
    log.gpus.sort_by_key(|gpu| gpu.info.index);
    match log.gpus.is_empty() {
        true => Err(LogError::Empty { name: name.to_owned(), first: rows.first_skipped }),
        false => Ok(log),
    }
}

impl TelemetryLog {
    fn add_row(
        &mut self,
        log: &str,
        t: Stamp,
        header: &Header,
        row: &LogSample,
        key: Option<GpuKey>,
    ) -> Result<(), LogError> {
        self.last_gpu = self.position(key);
        if self.gpus.len() > MAX_GPUS {
            return Err(LogError::TooManyGpus { name: log.to_owned(), line: row.line });
        }
        let gpu = &mut self.gpus[self.last_gpu];
        gpu.rows += 1;
        gpu.ledger.unread_reasons = header.unread_reasons();
        if row.cells.iter().any(|cell| says_lost(cell)) {
            gpu.lose(row.line, t);
            return Ok(());
        }
        let mut sample = GpuSample::new(gpu.info.index);
        for (field, cell) in header.fields.iter().zip(&row.cells) {
            let Some(column) = field.column else { continue };
            let problem = |problem| LogError::Value {
                name: log.to_owned(),
                line: row.line,
                column: field.name.clone(),
                value: cell.clone(),
                problem,
            };
            if field.unit.as_ref().is_some_and(|unit| has_other_unit(cell, unit)) {
                return Err(problem(Problem::OtherUnit));
            }
            let value = number(cell);
            if value.is_some() && is_ambiguous(cell) {
                return Err(problem(Problem::Ambiguous));
            }
            let add_reason = |sample: &mut GpuSample, bits: u64| {
                sample.reasons = Some(sample.reasons.unwrap_or(0) | bits);
            };
            match column {
                Column::Name => text(cell).into_iter().for_each(|name| gpu.info.name = name.to_owned()),
                Column::Identity if gpu.info.uuid.is_empty() => {
                    text(cell).into_iter().for_each(|identity| gpu.info.uuid = identity.to_owned());
                }
                Column::Phase => phase_named(cell).into_iter().for_each(|phase| gpu.ledger.phase(t, phase)),
                Column::Mask => {
                    let bits = mask(cell).map_err(|_| problem(Problem::NotAMask))?;
                    bits.into_iter().for_each(|bits| add_reason(&mut sample, bits));
                }
                Column::Bit(bit) => match cell.as_str() {
                    "Active" | "1" => add_reason(&mut sample, bit),
                    "Not Active" | "0" => add_reason(&mut sample, 0),
                    _ => {}
                },
                Column::PowerCapPct => {
                    if let Some(pct) = value {
                        let passed = t.since(gpu.last_row).as_nanos() as f64;
                        gpu.capped_ns += passed * (pct / 100.0).clamp(0.0, 1.0);
                        sample.set(Reading::PowerCapNs, Some(gpu.capped_ns));
                        add_reason(&mut sample, if pct > 0.0 { reasons::SW_POWER_CAP } else { 0 });
                    }
                }
                Column::Reading(reading, scale) => {
                    if let Some(value) = value {
                        sample.set(reading, Some(value * scale));
                    }
                }
                Column::Property(set) => value.into_iter().for_each(|value| set(&mut gpu.info, value)),
                Column::Seconds
                | Column::Date
                | Column::Day
                | Column::TimeOfDay
                | Column::Gpu
                | Column::Identity
                | Column::Process => {}
            }
        }
        // Without instant power, the average is the power.
        if sample.get(Reading::Power).is_none() {
            sample.set(Reading::Power, sample.get(Reading::PowerAverage));
        }
        gpu.info.update(&sample);
        gpu.ledger.sample(t, &sample);
        gpu.last.merge(&sample);
        gpu.last_row = t;
        Ok(())
    }

    /// The GPU of a row, which is added if its key is new. Without a key it is the GPU after that of the last row.
    fn position(&mut self, key: Option<GpuKey>) -> usize {
        let known = self.gpus.len();
        let key = match key {
            None if known > 0 => return (self.last_gpu + 1) % known,
            key => key.unwrap_or(GpuKey::Index(0)),
        };
        self.gpus.iter().position(|gpu| gpu.key == key).unwrap_or_else(|| {
            self.gpus.push(LoggedGpu::new(key, known));
            known
        })
    }
}

impl LoggedGpu {
    fn new(key: GpuKey, position: usize) -> LoggedGpu {
        let index = match &key {
            GpuKey::Index(index) => *index,
            GpuKey::Text(_) => position as u32,
        };
        LoggedGpu {
            info: GpuInfo {
                index,
                name: format!("GPU {index}"),
                source: GpuSource::Log,
                ..GpuInfo::default()
            },
            ledger: Ledger::default(),
            last: GpuSample::new(index),
            rows: 0,
            lost: None,
            key,
            last_row: Stamp::default(),
            capped_ns: 0.0,
        }
    }

    fn lose(&mut self, line: u64, t: Stamp) {
        if self.lost.is_some() {
            return;
        }
        let gpu = self.info.index;
        let detail = format!("GPU {gpu} is lost: line {line} of the log, after {:.1} s", t.secs());
        let absence = Absence::Lost { detail };
        self.lost = Some(GpuLost { gpu, reason: absence.to_string(), remedy: absence.remedy().to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{columns::MIB, *};
    use llmprof_analysis::throttle::GpuActivity;

    #[test]
    fn a_log_of_nvidia_smi_is_read() {
        let text = "\
timestamp, index, name, utilization.gpu [%], clocks.current.sm [MHz], power.draw [W], temperature.gpu, clocks_event_reasons.active, fan.speed [%], memory.used [MiB], power.limit [W]
2026/11/15 08:00:00.000, 0, NVIDIA H200, 99 %, 1440 MHz, 690.10 W, 58, 0x0000000000000004, [N/A], 100 MiB, 700.00 W
2026/11/15 08:00:01.000, 0, NVIDIA H200, 99 %, 1440 MHz, 700.10 W, 58, 0x0000000000000004, [Not Supported], 100 MiB, 700.00 W
2026/11/15 08:00:01.000, 1, NVIDIA H200, 0 %, 345 MHz, 70 W, 30, 0x0000000000000001, 30 %, 0 MiB, 700.00 W
torn li";
        let log = read("smi.csv", text.as_bytes()).unwrap();
        assert_eq!((log.gpus.len(), log.skipped, log.gpus[0].rows), (2, 1, 2));
        let gpu = &log.gpus[0];
        assert_eq!((gpu.info.name.as_str(), gpu.info.power_limit_w), ("NVIDIA H200", Some(700.0)));
        assert_eq!(gpu.last.get(Reading::Fan), None, "an unsupported reading is not zero");
        assert_eq!(gpu.last.get(Reading::MemUsed), Some(100.0 * MIB));
        assert_eq!(gpu.ledger.account(GpuActivity::Busy).time_ns, 1e9);
        assert_eq!(log.gpus[1].last.get(Reading::Fan), Some(30.0));
    }

    #[test]
    fn single_reasons_and_counters() {
        let text = "timestamp,clocks_throttle_reasons.sw_power_cap,clocks_throttle_reasons.hw_slowdown,clocks_event_reasons_counters.sw_power_cap [us]\n\
                    2026/11/15 08:00:00,Active,Not Active,5 us\n2026/11/15 08:00:01,Not Active,[N/A],7 us\n";
        let log = read("x", text.as_bytes()).unwrap();
        assert_eq!(log.gpus[0].last.get(Reading::PowerCapNs), Some(7000.0));
        assert_eq!(log.gpus[0].last.reasons, Some(0));
    }

    #[test]
    fn one_index_of_several_machines_is_several_gpus() {
        let text = "timestamp,index,uuid,clocks.sm\n2026/11/15 08:00:00,0,GPU-a,1980\n2026/11/15 08:00:00,0,GPU-b,1410\n\
                    2026/11/15 08:00:01,0,GPU-a,1980\n2026/11/15 08:00:01,0,GPU-b,1410\n";
        let log = read("x", text.as_bytes()).unwrap();
        let clocks: Vec<_> = log.gpus.iter().map(|gpu| gpu.last.get(Reading::SmClock)).collect();
        assert_eq!(clocks, [Some(1980.0), Some(1410.0)]);
    }

    #[test]
    fn a_column_for_one_limit_does_not_cover_the_others() {
        let unread = |columns: &str| {
            let cells = columns.split(',').map(|_| "Not Active").collect::<Vec<_>>().join(",");
            let text = format!("timestamp,{columns}\n2026/11/15 08:00:00,{cells}\n");
            read("x", text.as_bytes()).unwrap().gpus[0].ledger.unread_reasons
        };
        let (power, thermal) =
            ("clocks_event_reasons.sw_power_cap", "clocks_event_reasons.sw_thermal_slowdown");
        assert_eq!(unread(power), reasons::SW_THERMAL | reasons::HW_SLOWDOWN);
        assert_eq!(unread(&format!("{power},{thermal}")), reasons::HW_SLOWDOWN);
        assert_eq!(unread(&format!("{power},{thermal},clocks_event_reasons.hw_slowdown")), 0);
    }

    #[test]
    fn gpus_are_identified_and_a_clock_that_is_set_back_loses_no_time() {
        let rows = |a: &str, b: &str| {
            format!("timestamp,uuid,clocks.gr,clocks_event_reasons.active,utilization.gpu\n{a}\n{b}\n")
        };
        let two = rows("2026/11/15 08:00:00,GPU-a,1440,0x4,99", "2026/11/15 08:00:00,GPU-b,345,0x1,0");
        let log = read("x", two.as_bytes()).unwrap();
        assert_eq!(log.gpus.iter().map(|gpu| gpu.info.index).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(log.gpus[0].last.get(Reading::SmClock), Some(1440.0));
        let unnamed = "timestamp,temperature.gpu\n2026/11/15 08:00:00,40\n2026/11/15 08:00:00,50\n";
        assert!(read("x", unnamed.as_bytes()).unwrap_err().to_string().contains("add index or uuid"));
        let back = "timestamp,clocks.sm,utilization.gpu\n2026/11/15 08:00:00,1,9\n2026/11/15 08:00:02,1,9\n\
                    2026/11/15 07:00:02,1,9\n2026/11/15 07:00:05,1,9\n";
        assert_eq!(read("x", back.as_bytes()).unwrap().gpus[0].ledger.span_s(), 5.0);
        assert!(read("x", b"t\0i\0m\0e\0".as_slice()).unwrap_err().to_string().contains("UTF-16"));
    }

    #[test]
    fn sparse_samples_represent_the_time_between_them() {
        let mut text = "timestamp,clocks.sm,clocks_event_reasons.active,utilization.gpu\n".to_owned();
        (0..20).for_each(|i| text += &format!("2026/11/15 08:{:02}:{:02},1440,0x4,99\n", i / 6, i % 6 * 10));
        let log = read("x", text.as_bytes()).unwrap();
        assert_eq!(log.gpus[0].ledger.account(GpuActivity::Busy).sampled_ns, 190e9);
    }

    #[test]
    fn other_files_are_rejected_with_a_reason() {
        let refused = |text: &str| read("x.csv", text.as_bytes()).unwrap_err().to_string();
        assert!(refused("a,b\n1,2\n").contains("no time column"));
        assert!(refused("").contains("no time column"));
        assert!(refused("ts,b\n1,2\n").contains("its columns are ts, b"));
        assert!(refused("ts,temp_C\nsoon,2\n").contains("no row"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_rejected(text in "(ts|timestamp|t_s|power.draw|phase|clocks_event_reasons.active|[a-z0-9.,:/ \\[\\]%\"x-]|\n){0,300}") {
            let _ = read("any", text.as_bytes());
        }

        #[test]
        fn any_cells_are_read(cells in prop::collection::vec("[0-9a-fxNA/:. \\[\\]-]{0,24}", 4..40)) {
            let rows: Vec<String> = cells.chunks(4).map(|row| row.join(",")).collect();
            let text = format!("timestamp,utilization.gpu [%],clocks_event_reasons.active,index\n{}", rows.join("\n"));
            let _ = read("any", text.as_bytes());
        }
    }
}
