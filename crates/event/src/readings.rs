//! The readings of a GPU: their names, units and sources.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{IgnoredAny, MapAccess, Visitor},
    ser::SerializeMap,
};

/// How a reading behaves over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A current value, or the mean of a window.
    Gauge,
    /// Grows with time; only differences have a meaning.
    Counter,
}

/// The description of a reading.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Name in recordings.
    pub key: &'static str,
    /// Name in `nvml.csv`.
    pub column: &'static str,
    /// Name on screens and in reports.
    pub label: &'static str,
    pub unit: &'static str,
    pub kind: Kind,
    /// The call or counter that provides it.
    pub source: &'static str,
    /// The time that one value covers.
    pub window: &'static str,
}

macro_rules! readings {
    ($($name:ident = $key:literal, $column:literal, $label:literal, $unit:literal, $kind:ident, $source:literal, $window:literal;)*) => {
        /// One reading of a GPU.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Reading { $($name),* }

        impl Reading {
            pub const ALL: &'static [Reading] = &[$(Reading::$name),*];

            pub fn about(self) -> &'static About {
                const ABOUT: &[About] = &[$(About {
                    key: $key, column: $column, label: $label, unit: $unit, kind: Kind::$kind, source: $source, window: $window,
                }),*];
                &ABOUT[self as usize]
            }
        }
    };
}

readings! {
    GpuUtil = "gpu_util_pct", "gpu_util_pct", "GPU utilisation", "%", Gauge, "NVML utilisation", "last 1/6 to 1 s";
    MemUtil = "mem_util_pct", "mem_util_pct", "memory utilisation", "%", Gauge, "NVML utilisation", "last 1/6 to 1 s";
    SmClock = "sm_clock_mhz", "sm_clock_MHz", "SM clock", "MHz", Gauge, "NVML clock", "now";
    MemClock = "mem_clock_mhz", "mem_clock_MHz", "memory clock", "MHz", Gauge, "NVML clock", "now";
    Power = "power_w", "power_W", "power", "W", Gauge, "NVML field 186", "now (updated every 0.1 s)";
    Temp = "temp_c", "temp_C", "temperature", "°C", Gauge, "NVML temperature", "now";
    MemUsed = "mem_used_bytes", "mem_used_MiB", "memory", "B", Gauge, "NVML memory", "now";
    MemTotal = "mem_total_bytes", "mem_total_MiB", "total memory", "B", Gauge, "NVML memory", "constant";
    PowerAverage = "power_avg_w", "power_avg_W", "average power", "W", Gauge, "NVML power usage", "last 1 s";
    MemTemp = "mem_temp_c", "mem_temp_C", "memory temperature", "°C", Gauge, "NVML field 82", "now";
    SmActive = "sm_active_pct", "gpm_sm_active_pct", "SM active", "%", Gauge, "GPM", "between two samples";
    Occupancy = "sm_occupancy_pct", "gpm_sm_occupancy_pct", "occupancy", "%", Gauge, "GPM", "between two samples";
    Tensor = "tensor_pct", "gpm_tensor_pct", "tensor pipe", "%", Gauge, "GPM", "between two samples";
    Dram = "dram_pct", "gpm_dram_pct", "DRAM bandwidth", "%", Gauge, "GPM", "between two samples";
    PcieTx = "pcie_tx_mib_s", "gpm_pcie_tx_MiB_s", "PCIe sent", "MiB/s", Gauge, "GPM", "between two samples";
    PcieRx = "pcie_rx_mib_s", "gpm_pcie_rx_MiB_s", "PCIe received", "MiB/s", Gauge, "GPM", "between two samples";
    NvlinkTx = "nvlink_tx_mib_s", "gpm_nvlink_tx_MiB_s", "NVLink sent", "MiB/s", Gauge, "GPM", "between two samples";
    NvlinkRx = "nvlink_rx_mib_s", "gpm_nvlink_rx_MiB_s", "NVLink received", "MiB/s", Gauge, "GPM", "between two samples";
    PowerCapNs = "power_cap_ns", "power_cap_ns", "time under the power cap", "ns", Counter, "NVML field 74", "since driver load, in 0.1 s steps";
    ThermalNs = "thermal_ns", "thermal_ns", "time at the thermal limit", "ns", Counter, "NVML field 75", "since driver load";
    SyncBoostNs = "sync_boost_ns", "sync_boost_ns", "time in sync boost", "ns", Counter, "NVML field 76", "since driver load";
    BoardLimitNs = "board_limit_ns", "board_limit_ns", "time at the board limit", "ns", Counter, "NVML field 77", "since driver load";
    ReliabilityNs = "reliability_ns", "reliability_ns", "time at the reliability limit", "ns", Counter, "NVML field 79", "since driver load";
    SwThermalNs = "sw_thermal_ns", "sw_thermal_ns", "time in thermal slowdown", "ns", Counter, "NVML clock event counter", "since driver load";
    HwThermalNs = "hw_thermal_ns", "hw_thermal_ns", "time in hardware thermal slowdown", "ns", Counter, "NVML clock event counter", "since driver load";
    PowerBrakeNs = "power_brake_ns", "power_brake_ns", "time under the power brake", "ns", Counter, "NVML clock event counter", "since driver load";
    Energy = "energy_mj", "energy_mJ", "energy", "mJ", Counter, "NVML energy counter", "since driver load";
    PowerLimit = "power_limit_w", "power_limit_W", "power limit", "W", Gauge, "NVML enforced power limit", "now";
    SmClockMax = "sm_clock_max_mhz", "sm_clock_max_MHz", "max SM clock", "MHz", Gauge, "NVML max clock", "constant";
    Fan = "fan_pct", "fan_pct", "fan", "%", Gauge, "NVML fan speed", "now (requested speed)";
    FanRpm = "fan_rpm", "fan_rpm", "fan speed", "rpm", Gauge, "NVML fan speed", "now (requested speed)";
    PcieGen = "pcie_gen", "pcie_gen", "PCIe generation", "", Gauge, "NVML PCIe link", "now";
    PcieWidth = "pcie_width", "pcie_width", "PCIe lanes", "", Gauge, "NVML PCIe link", "now";
    EccCorrected = "ecc_corrected", "ecc_corrected", "corrected memory errors", "", Counter, "NVML ECC", "since driver load";
    EccUncorrected = "ecc_uncorrected", "ecc_uncorrected", "uncorrected memory errors", "", Counter, "NVML ECC", "since driver load";
}

/// The readings that a run serves to Prometheus: their names there, and the factor to base units.
pub const PROMETHEUS: [(Reading, &str, f64, &str); 6] = [
    (Reading::Power, "llmprof_gpu_power_watts", 1.0, "Power."),
    (Reading::SmClock, "llmprof_gpu_sm_clock_hertz", 1e6, "SM clock."),
    (Reading::Temp, "llmprof_gpu_temperature_celsius", 1.0, "Temperature."),
    (Reading::GpuUtil, "llmprof_gpu_utilization_ratio", 0.01, "Share of time with a kernel."),
    (Reading::MemUsed, "llmprof_gpu_memory_used_bytes", 1.0, "Memory in use."),
    (Reading::Dram, "llmprof_gpu_dram_bandwidth_ratio", 0.01, "Share of the memory bandwidth."),
];

/// The number of readings.
pub const COUNT: usize = Reading::ALL.len();

impl Reading {
    /// The activity counters of Hopper and newer.
    pub const GPM: [Reading; 8] = [
        Reading::SmActive,
        Reading::Occupancy,
        Reading::Tensor,
        Reading::Dram,
        Reading::PcieTx,
        Reading::PcieRx,
        Reading::NvlinkTx,
        Reading::NvlinkRx,
    ];

    pub fn with_key(key: &str) -> Option<Reading> {
        Reading::ALL.iter().copied().find(|reading| reading.about().key == key)
    }

    pub fn with_label(label: &str) -> Option<Reading> {
        Reading::ALL.iter().copied().find(|reading| reading.label() == label)
    }

    pub fn label(self) -> &'static str {
        self.about().label
    }
}

/// One sample of a GPU: readings, and the reasons that limit its clock. Values that were not read are `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuSample {
    pub gpu: u32,
    values: [Option<f64>; COUNT],
    /// NVML's clock event reason bits.
    pub reasons: Option<u64>,
    /// The duration of the calls.
    pub read_us: Option<u32>,
}

impl Default for GpuSample {
    fn default() -> GpuSample {
        GpuSample { gpu: 0, values: [None; COUNT], reasons: None, read_us: None }
    }
}

impl GpuSample {
    pub fn new(gpu: u32) -> GpuSample {
        GpuSample { gpu, ..GpuSample::default() }
    }

    pub fn get(&self, reading: Reading) -> Option<f64> {
        self.values[reading as usize]
    }

    /// Sets a reading, rounded to thousandths. A value that is not finite is `None`.
    pub fn set(&mut self, reading: Reading, value: Option<f64>) {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        self.values[reading as usize] = value.map(rounded).filter(|value| value.is_finite());
    }

    pub fn with(mut self, reading: Reading, value: f64) -> GpuSample {
        self.set(reading, Some(value));
        self
    }

    pub fn with_reasons(self, bits: u64) -> GpuSample {
        GpuSample { reasons: Some(bits), ..self }
    }

    /// Adds the readings of `other`.
    pub fn merge(&mut self, other: &GpuSample) {
        for (mine, theirs) in self.values.iter_mut().zip(other.values) {
            *mine = theirs.or(*mine);
        }
        self.reasons = other.reasons.or(self.reasons);
        self.read_us = match (self.read_us, other.read_us) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }

    /// All readings that are present.
    pub fn readings(&self) -> impl Iterator<Item = (Reading, f64)> + '_ {
        Reading::ALL.iter().filter_map(|reading| Some((*reading, self.get(*reading)?)))
    }

    /// Nothing was read.
    pub fn is_empty(&self) -> bool {
        self.reasons.is_none() && self.values.iter().all(Option::is_none)
    }
}

impl Serialize for GpuSample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("gpu", &self.gpu)?;
        for (reading, value) in self.readings() {
            let key = reading.about().key;
            // Most are integers and are written as such.
            match value {
                v if v.fract() == 0.0 && v.abs() < 9e15 => map.serialize_entry(key, &(v as i64))?,
                v => map.serialize_entry(key, &v)?,
            }
        }
        if let Some(reasons) = self.reasons {
            map.serialize_entry("reasons", &reasons)?;
        }
        if let Some(read_us) = self.read_us {
            map.serialize_entry("read_us", &read_us)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for GpuSample {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GpuSample, D::Error> {
        struct Readings;

        impl<'de> Visitor<'de> for Readings {
            type Value = GpuSample;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("readings of a GPU")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<GpuSample, A::Error> {
                let mut sample = GpuSample::default();
                while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    match key.as_ref() {
                        "gpu" => sample.gpu = map.next_value()?,
                        "reasons" => sample.reasons = map.next_value()?,
                        "read_us" => sample.read_us = map.next_value()?,
                        key => match Reading::with_key(key) {
                            Some(reading) => sample.set(reading, map.next_value()?),
                            // A reading of a later version.
                            None => drop(map.next_value::<IgnoredAny>()?),
                        },
                    }
                }
                Ok(sample)
            }
        }

        deserializer.deserialize_map(Readings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct() {
        for name in [|r: &Reading| r.about().key, |r: &Reading| r.about().column, |r: &Reading| r.label()] {
            let mut names: Vec<_> = Reading::ALL.iter().map(name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), COUNT);
        }
    }

    #[test]
    fn a_sample_is_written_with_its_readings_only() {
        let sample = GpuSample::new(1).with(Reading::SmClock, 1980.0).with(Reading::Power, 612.4567);
        let text = serde_json::to_string(&sample.with_reasons(1 << 63 | 1)).unwrap();
        assert_eq!(text, r#"{"gpu":1,"sm_clock_mhz":1980,"power_w":612.457,"reasons":9223372036854775809}"#);
        assert_eq!(serde_json::from_str::<GpuSample>(&text).unwrap(), sample.with_reasons(1 << 63 | 1));
    }

    #[test]
    fn unknown_keys_and_invalid_numbers_are_ignored() {
        let sample: GpuSample =
            serde_json::from_str(r#"{"gpu":0,"temp_c":null,"from_the_future":[1,{}],"fan_pct":40}"#).unwrap();
        assert_eq!(sample.readings().collect::<Vec<_>>(), [(Reading::Fan, 40.0)]);
        assert!(GpuSample::new(0).with(Reading::Temp, f64::NAN).is_empty());
    }
}
