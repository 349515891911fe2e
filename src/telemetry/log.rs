//! Telemetry logs: our `nvml.csv`, or the output of `nvidia-smi --query-gpu=… --format=csv`.

mod columns;

use std::io::{BufRead, BufReader, Read};

use columns::{Column, column, mask, number, phase_named, seconds_of_date};
use csv::StringRecord;
use thiserror::Error;

use crate::{
    analysis::throttle::Ledger,
    event::{GpuInfo, GpuSample, GpuSource, Stamp, readings::Reading},
};

#[derive(Debug, Error)]
pub enum LogError {
    #[error(
        "cannot read {name} as CSV: {source}; supported are nvml.csv and logs of nvidia-smi --format=csv"
    )]
    Csv { name: String, source: csv::Error },
    #[error(
        "{name} has no time column (timestamp, ts or t_s): add timestamp to nvidia-smi's --query-gpu, and keep the header \
         (--format=csv, without noheader)"
    )]
    NoTime { name: String },
    #[error("{name} has no column with a known reading; its columns are {columns}")]
    NoReadings { name: String, columns: String },
    #[error("{name} has no row with a valid time")]
    Empty { name: String },
    #[error(
        "{name} is UTF-16, as PowerShell's > writes it; use UTF-8: nvidia-smi -f FILE, or | Out-File -Encoding utf8"
    )]
    Utf16 { name: String },
    #[error(
        "{name} has several rows for the same time and no column that identifies the GPU: add index or uuid to nvidia-smi's \
         --query-gpu"
    )]
    GpusUnnamed { name: String },
}

/// A GPU in a log.
#[derive(Debug, Clone)]
pub struct LoggedGpu {
    pub info: GpuInfo,
    pub ledger: Ledger,
    /// The last value of every reading.
    pub last: GpuSample,
    pub rows: u64,
}

#[derive(Debug, Clone)]
pub struct TelemetryLog {
    pub gpus: Vec<LoggedGpu>,
    /// Rows without a valid time.
    pub skipped: u64,
}

/// Reads a log row by row; cells without a value are ignored.
pub fn read(name: &str, input: impl Read) -> Result<TelemetryLog, LogError> {
    let name = name.to_owned();
    let broken = |source| LogError::Csv { name: name.clone(), source };
    let mut input = BufReader::new(input);
    let start = input.fill_buf().map_err(|source| broken(source.into()))?;
    if start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]) {
        return Err(LogError::Utf16 { name });
    }
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(input);
    let header = reader.headers().map_err(broken)?.clone();
    let columns: Vec<Option<Column>> = header.iter().map(column).collect();
    // Our own logs have two time columns; the one that starts with the run is more precise.
    let is_time = |column: &Column| matches!(column, Column::Seconds | Column::Date);
    let time = columns.iter().rposition(|column| column.as_ref().is_some_and(is_time));
    let Some(time) = time else { return Err(LogError::NoTime { name }) };
    if !columns
        .iter()
        .flatten()
        .any(|column| matches!(column, Column::Reading(..) | Column::Mask | Column::Bit(_)))
    {
        return Err(LogError::NoReadings { name, columns: header.iter().collect::<Vec<_>>().join(", ") });
    }
    let named = columns.iter().flatten().any(|column| matches!(column, Column::Gpu | Column::Identity));
    let mut log = TelemetryLog { gpus: Vec::new(), skipped: 0 };
    // The start of the log's clock, and the last row by both clocks.
    let (mut start, mut now) = (None, None::<(f64, Stamp)>);
    let mut record = StringRecord::new();
    loop {
        match reader.read_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(source) if source.is_io_error() => return Err(broken(source)),
            Err(_) => {
                log.skipped += 1;
                continue;
            }
        }
        let secs = record.get(time).and_then(|cell| match columns[time] {
            Some(Column::Date) => seconds_of_date(cell),
            _ => number(cell),
        });
        let Some(secs) = secs.filter(|secs| secs.is_finite()) else {
            log.skipped += 1;
            continue;
        };
        let mut t = Stamp::from_secs_f64((secs - *start.get_or_insert(secs)).max(0.0));
        if let Some((_, before)) = now.filter(|(_, before)| *before > t) {
            // The clock was set back: time continues from the last row.
            (start, t) = (Some(secs - before.secs()), before);
        }
        let same_time = now.is_some_and(|(before, _)| before == secs);
        if !named && same_time && matches!(columns[time], Some(Column::Date)) {
            return Err(LogError::GpusUnnamed { name });
        }
        now = Some((secs, t));
        log.add_row(t, &columns, &record);
    }
    if log.gpus.is_empty() { Err(LogError::Empty { name }) } else { Ok(log) }
}

impl TelemetryLog {
    fn add_row(&mut self, t: Stamp, columns: &[Option<Column>], record: &StringRecord) {
        let mut sample = GpuSample::default();
        let mut phase = None;
        let (mut name, mut identity, mut index) = (None, None, None);
        let mut properties = Vec::new();
        for (column, cell) in columns.iter().zip(record.iter()).filter_map(|(c, cell)| Some(((*c)?, cell))) {
            match column {
                Column::Gpu => index = number(cell).map(|index| index as u32),
                Column::Name => name = Some(cell),
                Column::Identity => identity = identity.or(Some(cell)),
                Column::Phase => phase = phase_named(cell),
                Column::Mask => sample.reasons = mask(cell),
                Column::Bit(bit) => match cell {
                    "Active" => sample.reasons = Some(sample.reasons.unwrap_or(0) | bit),
                    "Not Active" => sample.reasons = Some(sample.reasons.unwrap_or(0)),
                    _ => {}
                },
                Column::Reading(reading, scale) => {
                    if let Some(value) = number(cell) {
                        sample.set(reading, Some(value * scale));
                    }
                }
                Column::Property(set) => properties.extend(number(cell).map(|value| (set, value))),
                Column::Seconds | Column::Date => {}
            }
        }
        // Without instant power, the average is the power.
        if sample.get(Reading::Power).is_none() {
            sample.set(Reading::Power, sample.get(Reading::PowerAverage));
        }
        let gpu = self.gpu(index, identity.unwrap_or_default());
        sample.gpu = gpu.info.index;
        gpu.rows += 1;
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            gpu.info.name = name.to_owned();
        }
        for (set, value) in properties {
            set(&mut gpu.info, value);
        }
        gpu.info.update(&sample);
        if let Some(phase) = phase {
            gpu.ledger.phase(t, phase);
        }
        gpu.ledger.sample(t, &sample);
        gpu.last.merge(&sample);
    }

    /// The GPU with that index, or with that identifier where there is no index.
    fn gpu(&mut self, index: Option<u32>, identity: &str) -> &mut LoggedGpu {
        let same = |gpu: &LoggedGpu| match index {
            Some(index) => gpu.info.index == index,
            None => gpu.info.uuid == identity,
        };
        let position = self.gpus.iter().position(same).unwrap_or_else(|| {
            let index = index.unwrap_or(self.gpus.len() as u32);
            self.gpus.push(LoggedGpu {
                info: GpuInfo {
                    index,
                    name: format!("GPU {index}"),
                    uuid: identity.to_owned(),
                    source: GpuSource::Log,
                    ..GpuInfo::default()
                },
                ledger: Ledger::default(),
                last: GpuSample::of(index),
                rows: 0,
            });
            self.gpus.len() - 1
        });
        &mut self.gpus[position]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{columns::MIB, *};
    use crate::analysis::throttle::Work;

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
        assert_eq!(gpu.ledger.of(Work::Busy).time_ns, 1e9);
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
        assert!(read("x", [0xff, 0xfe, b't', 0].as_slice()).unwrap_err().to_string().contains("UTF-16"));
    }

    #[test]
    fn sparse_samples_represent_the_time_between_them() {
        let mut text = "timestamp,clocks.sm,clocks_event_reasons.active,utilization.gpu\n".to_owned();
        (0..20).for_each(|i| text += &format!("2026/11/15 08:{:02}:{:02},1440,0x4,99\n", i / 6, i % 6 * 10));
        let log = read("x", text.as_bytes()).unwrap();
        assert_eq!(log.gpus[0].ledger.of(Work::Busy).sampled_ns, 190e9);
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
