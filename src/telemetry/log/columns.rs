//! The columns of a telemetry log and the values of their cells.

use jiff::civil::DateTime;

use crate::event::{GpuInfo, Phase, readings::Reading, reasons};

/// The meaning of a column.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    /// Seconds from any start.
    Seconds,
    /// A date and a time of day.
    Date,
    Gpu,
    Name,
    /// An identifier of the GPU.
    Identity,
    Phase,
    Mask,
    /// "Active" or "Not Active" for one reason.
    Bit(u64),
    Reading(Reading, f64),
    /// A constant property of the GPU.
    Property(fn(&mut GpuInfo, f64)),
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
pub(super) const MIB: f64 = (1u64 << 20) as f64;
const POWER_LIMIT: Column = Column::Property(|info, w| info.power_limit_w = Some(w as f32));
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
    ("clocks.max.sm", Column::Property(|info, mhz| info.sm_clock_max_mhz = Some(mhz as u32))),
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

/// The column with this header; `None` for an unknown one.
pub(super) fn column(header: &str) -> Option<Column> {
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

/// The number at the start of a cell, which may have a unit; `None` for `[N/A]` and the like.
pub(super) fn number(cell: &str) -> Option<f64> {
    let value: f64 = cell.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(value)
}

/// A mask of clock event reasons, hexadecimal or decimal.
pub(super) fn mask(cell: &str) -> Option<u64> {
    match cell.strip_prefix("0x").or(cell.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => cell.parse().ok(),
    }
}

/// The phase of that name; `None` for an empty cell.
pub(super) fn phase_named(cell: &str) -> Option<Phase> {
    let known = Phase::ALL.into_iter().find(|phase| phase.name() == cell);
    (!cell.is_empty()).then_some(known.unwrap_or(Phase::Idle))
}

/// Seconds of `2026/01/31 12:00:59.123` from a fixed start; `None` for anything else.
pub(super) fn seconds_of_date(cell: &str) -> Option<f64> {
    let date: DateTime = cell.trim_end_matches('Z').replace('/', "-").parse().ok()?;
    // A date alone is no time.
    cell.contains(':').then(|| date.duration_since(EPOCH).as_secs_f64())
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
        for text in ["", "soon", "2026/13/01 00:00:00", "2026/01/01", "[N/A]"] {
            assert_eq!(seconds_of_date(text), None, "{text}");
        }
    }
}
