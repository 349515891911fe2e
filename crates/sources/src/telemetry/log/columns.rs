//! The columns of a telemetry log and the values of their cells.

use jiff::{
    SignedDuration,
    civil::{Date, DateTime, Time},
};

use llmprof_event::{GpuInfo, Phase, readings::Reading, reasons};

/// The meaning of a column.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    /// Seconds from any start.
    Seconds,
    /// A date and a time of day.
    Date,
    /// Only a date.
    Day,
    TimeOfDay,
    Gpu,
    Name,
    /// An identifier of the GPU.
    Identity,
    /// A process on a GPU.
    Process,
    Phase,
    Mask,
    /// "Active" or "Not Active", or 1 or 0, for one reason.
    Bit(u64),
    /// Percent of the time since the last row in which the power cap was active.
    PowerCapPct,
    Reading(Reading, f64),
    /// A constant property of the GPU.
    Property(fn(&mut GpuInfo, f64)),
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
pub(super) const MIB: f64 = (1u64 << 20) as f64;
const POWER_LIMIT: Column = Column::Reading(Reading::PowerLimit, 1.0);
const MEM_CLOCK_MAX: Column = Column::Property(|info, mhz| info.mem_clock_max_mhz = Some(mhz as u32));

/// Column names of other programs, without units.
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
    ("serial", Column::Identity),
    ("gpu_serial", Column::Identity),
    ("pid", Column::Process),
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
    ("power.limit", POWER_LIMIT),
    ("enforced.power.limit", POWER_LIMIT),
    ("power.default_limit", Column::Property(|info, w| info.power_limit_default_w = Some(w as f32))),
    ("power.max_limit", Column::Property(|info, w| info.power_limit_max_w = Some(w as f32))),
    ("clocks.max.sm", Column::Reading(Reading::SmClockMax, 1.0)),
    ("clocks.max.graphics", Column::Reading(Reading::SmClockMax, 1.0)),
    ("clocks.max.gr", Column::Reading(Reading::SmClockMax, 1.0)),
    ("clocks.max.memory", MEM_CLOCK_MAX),
    ("clocks.max.mem", MEM_CLOCK_MAX),
    ("pcie.link.width.max", Column::Property(|info, lanes| info.pcie_width_max = Some(lanes as u32))),
    ("pcie.link.gen.max", Column::Property(|info, generation| info.pcie_gen_max = Some(generation as u32))),
    ("viol_power_ns", Column::Reading(Reading::PowerCapNs, 1.0)),
    ("viol_thermal_ns", Column::Reading(Reading::ThermalNs, 1.0)),
    ("gpm_sm_util", Column::Reading(Reading::SmActive, 1.0)),
    ("gpm_sm_occupancy", Column::Reading(Reading::Occupancy, 1.0)),
    ("gpm_any_tensor", Column::Reading(Reading::Tensor, 1.0)),
    ("gpm_dram_bw", Column::Reading(Reading::Dram, 1.0)),
    ("gpm_pcie_tx_mib", Column::Reading(Reading::PcieTx, 1.0)),
    ("gpm_pcie_rx_mib", Column::Reading(Reading::PcieRx, 1.0)),
];

/// Column names of `nvidia-smi dmon`.
const DMON: &[(&str, Column)] = &[
    ("date", Column::Day),
    ("time", Column::TimeOfDay),
    ("pwr", Column::Reading(Reading::PowerAverage, 1.0)),
    ("temp", Column::Reading(Reading::Temp, 1.0)),
    ("gtemp", Column::Reading(Reading::Temp, 1.0)),
    ("mtemp", Column::Reading(Reading::MemTemp, 1.0)),
    ("sm", Column::Reading(Reading::GpuUtil, 1.0)),
    ("mem", Column::Reading(Reading::MemUtil, 1.0)),
    ("mclk", Column::Reading(Reading::MemClock, 1.0)),
    ("pclk", Column::Reading(Reading::SmClock, 1.0)),
    ("fb", Column::Reading(Reading::MemUsed, MIB)),
    ("rxpci", Column::Reading(Reading::PcieRx, 1.0)),
    ("txpci", Column::Reading(Reading::PcieTx, 1.0)),
    ("pviol", Column::PowerCapPct),
    ("tviol", Column::Bit(reasons::SW_THERMAL)),
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

/// nvidia-smi's counters, after `clocks_event_reasons_counters.`, in microseconds.
const COUNTER_COLUMNS: &[(&str, Reading)] = &[
    ("sw_power_cap", Reading::PowerCapNs),
    ("sync_boost", Reading::SyncBoostNs),
    ("sw_thermal_slowdown", Reading::SwThermalNs),
    ("hw_thermal_slowdown", Reading::HwThermalNs),
    ("hw_power_brake_slowdown", Reading::PowerBrakeNs),
];

/// The column with this header, in a log of `nvidia-smi dmon` or in any other; `None` for an unknown one.
pub(super) fn column(header: &str, dmon: bool) -> Option<Column> {
    let name = header.split('[').next().unwrap_or_default().trim().to_lowercase();
    let more: &[(&str, Column)] = if dmon { DMON } else { &[] };
    if let Some((_, column)) = more.iter().chain(ALIASES).find(|(alias, _)| *alias == name) {
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

/// The unit that a header names in brackets.
pub(super) fn unit(header: &str) -> Option<&str> {
    let (_, unit) = header.split_once('[')?;
    unit.strip_suffix(']')
}

/// The number at the start of a cell, which may have a unit and a decimal comma; `None` for `[N/A]` and the like.
pub(super) fn number(cell: &str) -> Option<f64> {
    let value: f64 = cell.split_whitespace().next()?.replace(',', ".").parse().ok()?;
    value.is_finite().then_some(value)
}

/// Whether the comma of a number may be a decimal comma or separate thousands: "1,440".
pub(super) fn is_ambiguous(cell: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = cell.split_whitespace().next().and_then(|number| number.split_once(','));
    number.is_some_and(|(whole, rest)| digits(whole) && whole != "0" && digits(rest) && rest.len() == 3)
}

/// Whether a cell has a number with another unit than its column.
pub(super) fn has_other_unit(cell: &str, unit: &str) -> bool {
    let found = cell.split_once(' ').map(|(_, found)| found.trim());
    number(cell).is_some() && found.is_some_and(|found| found != unit)
}

/// A cell whose number is not a mask of clock event reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotAMask;

/// A mask of clock event reasons: hexadecimal, as nvidia-smi writes it, or decimal with known bits only.
pub(super) fn mask(cell: &str) -> Result<Option<u64>, NotAMask> {
    if let Some(hex) = cell.strip_prefix("0x").or(cell.strip_prefix("0X")) {
        return Ok(u64::from_str_radix(hex, 16).ok());
    }
    match cell.parse::<u64>() {
        Ok(bits) if reasons::unknown(bits) == 0 => Ok(Some(bits)),
        Err(_) if number(cell).is_none() => Ok(None),
        _ => Err(NotAMask),
    }
}

/// Whether nvidia-smi reports in a cell that the GPU no longer responds.
pub(super) fn says_lost(cell: &str) -> bool {
    matches!(cell.trim_matches(['[', ']']), "GPU is lost" | "GPU requires reset")
}

/// The text of a cell; `None` if it is empty or an error in brackets, such as `[N/A]`.
pub(super) fn text(cell: &str) -> Option<&str> {
    Some(cell).filter(|cell| !cell.is_empty() && !cell.starts_with('[') && *cell != "N/A")
}

/// The phase of that name; `None` for an empty cell.
pub(super) fn phase_named(cell: &str) -> Option<Phase> {
    let known = Phase::ALL.into_iter().find(|phase| phase.name() == cell);
    (!cell.is_empty()).then_some(known.unwrap_or(Phase::Idle))
}

/// Seconds of `2026/01/31 12:00:59.123` or `31.01.2026 12:00:59,123` from a fixed start; `None` for anything else.
pub(super) fn seconds_of_date(cell: &str) -> Option<f64> {
    let (day, time) = cell.trim_end_matches('Z').split_once([' ', 'T'])?;
    let date: DateTime = format!("{}T{}", year_first(day), time.trim().replace(',', ".")).parse().ok()?;
    Some(date.duration_since(EPOCH).as_secs_f64())
}

/// The date and time this many seconds after the fixed start.
pub(super) fn date_of_seconds(secs: f64) -> Option<DateTime> {
    EPOCH.checked_add(SignedDuration::try_from_secs_f64(secs).ok()?).ok()
}

/// Seconds of only a date: `20260131`, or as in [`seconds_of_date`].
pub(super) fn seconds_of_day(cell: &str) -> Option<f64> {
    let date: Date = year_first(cell).parse().ok()?;
    Some(date.to_datetime(Time::midnight()).duration_since(EPOCH).as_secs_f64())
}

/// Seconds of `12:00:59` since midnight.
pub(super) fn seconds_of_time(cell: &str) -> Option<f64> {
    let time: Time = cell.replace(',', ".").parse().ok().filter(|_| cell.contains(':'))?;
    Some(time.duration_since(Time::midnight()).as_secs_f64())
}

/// `31.01.2026` and `2026/01/31` as `2026-01-31`.
fn year_first(day: &str) -> String {
    match day.split('.').collect::<Vec<_>>()[..] {
        [day, month, year] if year.len() == 4 => format!("{year}-{month:0>2}-{day:0>2}"),
        _ => day.replace('/', "-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_counted_in_seconds() {
        let seconds = |date: &str| seconds_of_date(date).unwrap();
        let passed = |a: &str, b: &str| seconds(b) - seconds(a);
        assert!((passed("2026/11/15 08:02:29.260", "2026/11/15 08:02:30.010") - 0.75).abs() < 1e-4);
        assert_eq!(passed("2024/02/28 23:59:59", "2024/03/01 00:00:00"), 86_401.0);
        assert_eq!(passed("2025-12-31T23:00:00Z", "2026-01-01T01:00:00Z"), 7200.0);
        assert_eq!(seconds("15.11.2026 08:02:30,250"), seconds("2026/11/15 08:02:30.250"));
        assert_eq!(seconds("5.1.2026 08:02:30"), seconds("2026/01/05 08:02:30"));
        let parts = seconds_of_day("20261115").zip(seconds_of_time("08:02:30"));
        assert_eq!(parts.map(|(day, time)| day + time), Some(seconds("2026/11/15 08:02:30")));
        for text in ["", "soon", "2026/13/01 00:00:00", "2026/01/01", "[N/A]", "11/15/2026 08:02:30"] {
            assert_eq!(seconds_of_date(text), None, "{text}");
        }
    }

    #[test]
    fn masks_are_hexadecimal_or_known_bits() {
        for (cell, expected) in [
            ("0x0000000000000004", Ok(Some(4))),
            ("0x404", Ok(Some(0x404))),
            ("36", Ok(Some(36))),
            ("[N/A]", Ok(None)),
            ("", Ok(None)),
            ("690", Err(NotAMask)),
            ("55 C", Err(NotAMask)),
            ("12.5", Err(NotAMask)),
        ] {
            assert_eq!(mask(cell), expected, "{cell}");
        }
    }

    #[test]
    fn a_comma_may_be_a_decimal_comma() {
        assert_eq!((number("690,10 W"), number("0,125"), number("[N/A]")), (Some(690.1), Some(0.125), None));
        let ambiguous = ["1,440 MHz", "12,500", "690,10 W", "0,125", "1440", "1,2,3"].map(is_ambiguous);
        assert_eq!(ambiguous, [true, true, false, false, false, false]);
    }
}
