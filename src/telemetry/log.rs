//! Telemetry that someone has written down before: our `nvml.csv`, or what `nvidia-smi --query-gpu=… --format=csv` wrote.

use std::io::{BufRead, BufReader, Read};

use csv::StringRecord;
use thiserror::Error;

use crate::{
    analysis::throttle::Ledger,
    event::{GpuInfo, GpuSample, Phase, Stamp, readings::Reading, reasons},
};

#[derive(Debug, Error)]
pub enum LogError {
    #[error("{name} can't be read as CSV: {source}; nvml.csv and logs of nvidia-smi --format=csv can")]
    Csv { name: String, source: csv::Error },
    #[error(
        "{name} has no column that tells the time (timestamp, ts or t_s): add timestamp to nvidia-smi's --query-gpu, \
         and keep the header (--format=csv, without noheader)"
    )]
    NoTime { name: String },
    #[error("{name} has no column with a reading that is known here; its columns are {columns}")]
    NoReadings { name: String, columns: String },
    #[error("{name} has no row whose time can be read")]
    Empty { name: String },
    #[error(
        "{name} is UTF-16, as PowerShell's > writes it; write it as UTF-8: nvidia-smi -f FILE, or | Out-File -Encoding utf8"
    )]
    Utf16 { name: String },
    #[error(
        "{name} has several rows for the same moment and nothing that tells the GPUs apart: add index or uuid to \
         nvidia-smi's --query-gpu"
    )]
    GpusUnnamed { name: String },
}

/// A card as a log tells of it.
#[derive(Debug, Clone)]
pub struct LoggedGpu {
    pub info: GpuInfo,
    pub ledger: Ledger,
    /// The last value of everything that was read.
    pub last: GpuSample,
    pub rows: u64,
}

#[derive(Debug, Clone)]
pub struct TelemetryLog {
    pub gpus: Vec<LoggedGpu>,
    /// Rows whose time could not be read.
    pub skipped: u64,
}

/// What a column is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    /// Seconds, from wherever they count.
    Seconds,
    /// A date and a time of day.
    Date,
    Gpu,
    Name,
    /// What tells one card from another.
    Identity,
    Phase,
    Mask,
    /// "Active" or "Not Active" for one reason.
    Bit(u64),
    Reading(Reading, f64),
    /// Something that stays as it is.
    Fixed(Fixed),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fixed {
    PowerLimit,
    PowerLimitDefault,
    PowerLimitMax,
    SmClockMax,
    MemClockMax,
    PcieWidthMax,
    PcieGenMax,
}

const MIB: f64 = (1u64 << 20) as f64;

/// Names that other programs give to columns, without their units.
const ALIASES: &[(&str, Column)] = &[
    ("ts", Column::Seconds),
    ("t_s", Column::Seconds),
    ("timestamp", Column::Date),
    ("index", Column::Gpu),
    ("gpu", Column::Gpu),
    ("name", Column::Name),
    ("gpu_name", Column::Name),
    ("uuid", Column::Identity),
    ("gpu_uuid", Column::Identity),
    ("pci.bus_id", Column::Identity),
    ("gpu_bus_id", Column::Identity),
    ("phase", Column::Phase),
    ("clock_event_reasons", Column::Mask),
    ("clocks_event_reasons", Column::Mask),
    ("clocks_event_reasons.active", Column::Mask),
    ("clocks_throttle_reasons.active", Column::Mask),
    ("utilization.gpu", Column::Reading(Reading::GpuUtil, 1.0)),
    ("utilization.memory", Column::Reading(Reading::MemUtil, 1.0)),
    ("clocks.sm", Column::Reading(Reading::SmClock, 1.0)),
    ("clocks.current.sm", Column::Reading(Reading::SmClock, 1.0)),
    ("clocks.gr", Column::Reading(Reading::SmClock, 1.0)),
    ("clocks.current.graphics", Column::Reading(Reading::SmClock, 1.0)),
    ("clocks.mem", Column::Reading(Reading::MemClock, 1.0)),
    ("clocks.current.memory", Column::Reading(Reading::MemClock, 1.0)),
    ("power.draw.instant", Column::Reading(Reading::Power, 1.0)),
    ("power.draw", Column::Reading(Reading::PowerAverage, 1.0)),
    ("power.draw.average", Column::Reading(Reading::PowerAverage, 1.0)),
    ("power_instant_mw", Column::Reading(Reading::Power, 1e-3)),
    ("power_avg_mw", Column::Reading(Reading::PowerAverage, 1e-3)),
    ("temperature.gpu", Column::Reading(Reading::Temp, 1.0)),
    ("temperature.memory", Column::Reading(Reading::MemTemp, 1.0)),
    ("memory.used", Column::Reading(Reading::MemUsed, MIB)),
    ("memory.total", Column::Reading(Reading::MemTotal, MIB)),
    ("mem_used_b", Column::Reading(Reading::MemUsed, 1.0)),
    ("fan.speed", Column::Reading(Reading::Fan, 1.0)),
    ("pcie.link.gen.current", Column::Reading(Reading::PcieGen, 1.0)),
    ("pcie.link.gen.gpucurrent", Column::Reading(Reading::PcieGen, 1.0)),
    ("pcie.link.width.current", Column::Reading(Reading::PcieWidth, 1.0)),
    ("power.limit", Column::Fixed(Fixed::PowerLimit)),
    ("enforced.power.limit", Column::Fixed(Fixed::PowerLimit)),
    ("power.default_limit", Column::Fixed(Fixed::PowerLimitDefault)),
    ("power.max_limit", Column::Fixed(Fixed::PowerLimitMax)),
    ("clocks.max.sm", Column::Fixed(Fixed::SmClockMax)),
    ("clocks.max.memory", Column::Fixed(Fixed::MemClockMax)),
    ("clocks.max.mem", Column::Fixed(Fixed::MemClockMax)),
    ("pcie.link.width.max", Column::Fixed(Fixed::PcieWidthMax)),
    ("pcie.link.gen.max", Column::Fixed(Fixed::PcieGenMax)),
    ("viol_power_ns", Column::Reading(Reading::PowerCapNs, 1.0)),
    ("viol_thermal_ns", Column::Reading(Reading::ThermalNs, 1.0)),
    ("gpm_sm_util", Column::Reading(Reading::SmActive, 1.0)),
    ("gpm_sm_occupancy", Column::Reading(Reading::Occupancy, 1.0)),
    ("gpm_any_tensor", Column::Reading(Reading::Tensor, 1.0)),
    ("gpm_dram_bw", Column::Reading(Reading::Dram, 1.0)),
    ("gpm_pcie_tx_mib", Column::Reading(Reading::PcieTx, 1.0)),
    ("gpm_pcie_rx_mib", Column::Reading(Reading::PcieRx, 1.0)),
];

/// nvidia-smi's names of single reasons, after `clocks_event_reasons.` or `clocks_throttle_reasons.`.
const REASON_COLUMNS: &[(&str, u64)] = &[
    ("gpu_idle", reasons::GPU_IDLE),
    ("applications_clocks_setting", reasons::APPLICATION_CLOCKS),
    ("sw_power_cap", reasons::SW_POWER_CAP),
    ("hw_slowdown", reasons::HW_SLOWDOWN),
    ("sync_boost", reasons::SYNC_BOOST),
    ("sw_thermal_slowdown", reasons::SW_THERMAL),
    ("hw_thermal_slowdown", reasons::HW_THERMAL),
    ("hw_power_brake_slowdown", reasons::HW_POWER_BRAKE),
];

/// nvidia-smi's counters, after `clocks_event_reasons_counters.`; they count microseconds.
const COUNTER_COLUMNS: &[(&str, Reading)] = &[
    ("sw_power_cap", Reading::PowerCapNs),
    ("sync_boost", Reading::SyncBoostNs),
    ("sw_thermal_slowdown", Reading::SwThermalNs),
    ("hw_thermal_slowdown", Reading::HwThermalNs),
    ("hw_power_brake_slowdown", Reading::PowerBrakeNs),
];

fn column(header: &str) -> Option<Column> {
    let name =
        header.split('[').next().unwrap_or_default().trim().trim_start_matches('\u{feff}').to_lowercase();
    if let Some((_, column)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
        return Some(*column);
    }
    if let Some(counter) = name.strip_prefix("clocks_event_reasons_counters.") {
        let (_, reading) = COUNTER_COLUMNS.iter().find(|(of, _)| *of == counter)?;
        return Some(Column::Reading(*reading, 1e3));
    }
    let reason = name.strip_prefix("clocks_event_reasons.").or(name.strip_prefix("clocks_throttle_reasons."));
    if let Some(reason) = reason {
        return REASON_COLUMNS.iter().find(|(of, _)| *of == reason).map(|(_, bit)| Column::Bit(*bit));
    }
    let ours =
        Reading::ALL.iter().find(|r| r.about().column.to_lowercase() == name || r.about().key == name)?;
    let scale = if name.ends_with("_mib") { MIB } else { 1.0 };
    Some(Column::Reading(*ours, scale))
}

/// Reads a log row by row; what a cell does not tell is left out.
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
    // Our own logs have two columns of time; the one that begins with the run is finer.
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
    // Where the log's own clock and ours began, and where they stand.
    let (mut began, mut now) = (None, None::<(f64, Stamp)>);
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
        let mut t = Stamp::from_secs_f64((secs - *began.get_or_insert(secs)).max(0.0));
        if let Some((_, before)) = now.filter(|(_, before)| *before > t) {
            // A clock that was set back goes on from where it was.
            (began, t) = (Some(secs - before.secs()), before);
        }
        let again = now.is_some_and(|(before, _)| before == secs);
        if !named && again && matches!(columns[time], Some(Column::Date)) {
            return Err(LogError::GpusUnnamed { name });
        }
        now = Some((secs, t));
        log.take(t, &columns, &record);
    }
    if log.gpus.is_empty() { Err(LogError::Empty { name }) } else { Ok(log) }
}

impl TelemetryLog {
    fn take(&mut self, t: Stamp, columns: &[Option<Column>], record: &StringRecord) {
        let mut sample = GpuSample::default();
        let mut phase = None;
        let (mut card, mut identity, mut index) = (None, None, None);
        let mut fixed = Vec::new();
        for (column, cell) in columns.iter().zip(record.iter()).filter_map(|(c, cell)| Some(((*c)?, cell))) {
            match column {
                Column::Gpu => index = number(cell).map(|index| index as u32),
                Column::Name => card = Some(cell),
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
                Column::Fixed(what) => fixed.extend(number(cell).map(|value| (what, value))),
                Column::Seconds | Column::Date => {}
            }
        }
        // Where there is no instant power, the average is the power.
        if sample.get(Reading::Power).is_none() {
            sample.set(Reading::Power, sample.get(Reading::PowerAverage));
        }
        let gpu = self.gpu(index, identity.unwrap_or_default());
        sample.gpu = gpu.info.index;
        gpu.rows += 1;
        if let Some(card) = card.filter(|card| !card.is_empty()) {
            gpu.info.name = card.to_owned();
        }
        for (what, value) in fixed {
            gpu.fix(what, value);
        }
        if let Some(watts) = sample.get(Reading::PowerLimit) {
            gpu.info.power_limit_w = Some(watts as f32);
        }
        if let Some(mhz) = sample.get(Reading::SmClockMax) {
            gpu.info.sm_clock_max_mhz = Some(mhz as u32);
        }
        if let Some(phase) = phase {
            gpu.ledger.phase(t, phase);
        }
        gpu.ledger.sample(t, &sample);
        gpu.last.merge(&sample);
    }

    /// The card of that index, or of that name where there is no index.
    fn gpu(&mut self, index: Option<u32>, identity: &str) -> &mut LoggedGpu {
        let same = |gpu: &LoggedGpu| match index {
            Some(index) => gpu.info.index == index,
            None => gpu.info.uuid == identity,
        };
        let at = match self.gpus.iter().position(same) {
            Some(at) => at,
            None => {
                let index = index.unwrap_or(self.gpus.len() as u32);
                self.gpus.push(LoggedGpu {
                    info: GpuInfo {
                        index,
                        name: format!("GPU {index}"),
                        uuid: identity.to_owned(),
                        source: "log".to_owned(),
                        ..GpuInfo::default()
                    },
                    ledger: Ledger::default(),
                    last: GpuSample::of(index),
                    rows: 0,
                });
                self.gpus.len() - 1
            }
        };
        &mut self.gpus[at]
    }
}

impl LoggedGpu {
    fn fix(&mut self, what: Fixed, value: f64) {
        let info = &mut self.info;
        match what {
            Fixed::PowerLimit => info.power_limit_w = Some(value as f32),
            Fixed::PowerLimitDefault => info.power_limit_default_w = Some(value as f32),
            Fixed::PowerLimitMax => info.power_limit_max_w = Some(value as f32),
            Fixed::SmClockMax => info.sm_clock_max_mhz = Some(value as u32),
            Fixed::MemClockMax => info.mem_clock_max_mhz = Some(value as u32),
            Fixed::PcieWidthMax => info.pcie_width_max = Some(value as u32),
            Fixed::PcieGenMax => info.pcie_gen_max = Some(value as u32),
        }
    }
}

/// The number at the beginning of a cell, which may have a unit; `[N/A]` and its like are none.
fn number(cell: &str) -> Option<f64> {
    let value: f64 = cell.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(value)
}

fn mask(cell: &str) -> Option<u64> {
    match cell.strip_prefix("0x").or(cell.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => cell.parse().ok(),
    }
}

/// The phase of that name; an empty cell tells none.
fn phase_named(cell: &str) -> Option<Phase> {
    let known =
        [Phase::Preparing, Phase::Prefill, Phase::Decode].into_iter().find(|phase| phase.name() == cell);
    (!cell.is_empty()).then_some(known.unwrap_or(Phase::Idle))
}

/// Seconds of `2026/01/31 12:00:59.123`, from wherever; `None` for what is no such date.
fn seconds_of_date(cell: &str) -> Option<f64> {
    let (date, time) = cell.split_once([' ', 'T'])?;
    let mut date = date.split(['/', '-']).map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.trim().split(':');
    let (hour, minute): (f64, f64) = (time.next()?.parse().ok()?, time.next()?.parse().ok()?);
    let second: f64 = time.next()?.trim_end_matches('Z').parse().ok()?;
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since the year 0 of a calendar that begins in March, so that a leap day is a year's last.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some(days as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::analysis::throttle::Work;

    #[test]
    fn dates_are_counted_in_seconds() {
        let seconds = |date: &str| seconds_of_date(date).unwrap();
        let passed = |a: &str, b: &str| seconds(b) - seconds(a);
        assert!((passed("2026/11/15 08:02:29.260", "2026/11/15 08:02:30.010") - 0.75).abs() < 1e-4);
        assert_eq!(passed("2024/02/28 23:59:59", "2024/03/01 00:00:00"), 86_401.0);
        assert_eq!(passed("2025-12-31T23:00:00Z", "2026-01-01T01:00:00Z"), 7200.0);
        for text in ["", "soon", "2026/13/01 00:00:00", "2026/01/01", "[N/A]"] {
            assert_eq!(seconds_of_date(text), None, "{text}");
        }
    }

    #[test]
    fn what_nvidia_smi_writes() {
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
        assert_eq!(gpu.last.get(Reading::Fan), None, "what is not supported is not zero");
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
    fn cards_are_told_apart_and_a_clock_that_is_set_back_loses_no_time() {
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
    fn rare_looks_stand_for_the_time_between_them() {
        let mut text = "timestamp,clocks.sm,clocks_event_reasons.active,utilization.gpu\n".to_owned();
        (0..20).for_each(|i| text += &format!("2026/11/15 08:{:02}:{:02},1440,0x4,99\n", i / 6, i % 6 * 10));
        let log = read("x", text.as_bytes()).unwrap();
        assert_eq!(log.gpus[0].ledger.of(Work::Busy).seen_ns, 190e9);
    }

    #[test]
    fn what_is_no_log_is_refused_with_a_word() {
        let refused = |text: &str| read("x.csv", text.as_bytes()).unwrap_err().to_string();
        assert!(refused("a,b\n1,2\n").contains("tells the time"));
        assert!(refused("").contains("tells the time"));
        assert!(refused("ts,b\n1,2\n").contains("its columns are ts, b"));
        assert!(refused("ts,temp_C\nsoon,2\n").contains("no row"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(ts|timestamp|t_s|power.draw|phase|clocks_event_reasons.active|[a-z0-9.,:/ \\[\\]%\"x-]|\n){0,300}") {
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
