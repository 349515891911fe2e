//! GPUs: their properties, the readings they refuse, the processes on them, and the overhead of sampling them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    readings::{GpuSample, Reading},
    text_enum::text_enum,
};

/// A sampled GPU. Sent again when more of its properties are known.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInfo {
    pub index: u32,
    pub name: String,
    pub uuid: String,
    pub driver: String,
    pub source: GpuSource,
    /// The workload runs on it.
    pub profiled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_capability: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total_bytes: Option<u64>,
    /// f32 cores of all SMs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bus_bits: Option<u32>,
    /// The limit in force; the other two are the default and the maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_w: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_default_w: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_max_w: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_max_mhz: Option<u32>,
    /// The application clock, if one is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_application_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_clock_max_mhz: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_temp_c: Option<u32>,
    /// The maximum that GPU and slot support together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_gen_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_width_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    /// The kind of virtual GPU, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtualization: Option<String>,
    /// The queries that this GPU refuses, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

impl GpuInfo {
    /// The refusal of a query, if the GPU refuses it.
    pub fn refusal(&self, query: impl Into<Query>) -> Option<&Refused> {
        let query = query.into();
        self.refused.iter().find(|refused| refused.reading == query)
    }

    /// Adopts the properties that `sample` has read again.
    pub fn update(&mut self, sample: &GpuSample) {
        self.power_limit_w = sample.get(Reading::PowerLimit).map(|watts| watts as f32).or(self.power_limit_w);
        let sm_clock_max_mhz = sample.get(Reading::SmClockMax).map(|mhz| mhz as u32);
        self.sm_clock_max_mhz = sm_clock_max_mhz.or(self.sm_clock_max_mhz);
    }
}

text_enum! {
    /// The source of a GPU's readings.
    GpuSource {
        Nvml = "nvml",
        Sim = "sim",
        /// A CSV file.
        Log = "log",
        /// NVIDIA's DCGM exporter.
        Dcgm = "dcgm",
    }
}

impl Default for GpuSource {
    fn default() -> GpuSource {
        GpuSource::Other(String::new())
    }
}

/// A query to a GPU. Recorded by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Query {
    Reading(Reading),
    ClockEventReasons,
    /// The activity counters as a whole.
    Gpm,
    /// The use of the SMs by each process.
    ProcessUtilisation,
    /// A property of the GPU, or a reading of another version.
    Other(String),
}

impl From<Reading> for Query {
    fn from(reading: Reading) -> Query {
        Query::Reading(reading)
    }
}

impl From<&str> for Query {
    fn from(name: &str) -> Query {
        match name {
            "clock event reasons" => Query::ClockEventReasons,
            "GPM" => Query::Gpm,
            "process utilisation" => Query::ProcessUtilisation,
            _ => Reading::with_label(name).map_or_else(|| Query::Other(name.to_owned()), Query::Reading),
        }
    }
}

impl From<String> for Query {
    fn from(name: String) -> Query {
        name.as_str().into()
    }
}

impl From<Query> for String {
    fn from(query: Query) -> String {
        query.to_string()
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Query::Reading(reading) => reading.label(),
            Query::ClockEventReasons => "clock event reasons",
            Query::Gpm => "GPM",
            Query::ProcessUtilisation => "process utilisation",
            Query::Other(name) => name,
        })
    }
}

/// A query that a GPU refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub reading: Query,
    pub reason: Refusal,
    /// The remedy, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

text_enum! {
    /// The reason of a refusal. The text after `or` is that of earlier versions: it is only read, from old recordings.
    Refusal {
        Unsupported = "not reported by this GPU" or "this card does not tell it",
        Wsl = "not reported under WSL" or "not told under WSL",
        Mig = "not reported in MIG mode" or "not told while the card is split (MIG)",
        /// NVML answers about the whole GPU, and the process may use a slice of it.
        MigPermission = "permission denied: only a part of this GPU (MIG) can be used here",
        VirtualGpu = "not reported for a virtual GPU" or "not told of a virtual GPU",
        PermissionDenied = "permission denied",
        OldDriver = "not supported by this driver",
        /// The GPU is older than its activity counters.
        NoGpm = "GPM needs a data centre GPU, Hopper or newer; ncu reads these counters on any" or "GPM needs Hopper or newer",
    }
}

impl Refusal {
    fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Refusal::Wsl => "read it on Windows, or on Linux without WSL",
            Refusal::Mig => "turn MIG mode off",
            Refusal::MigPermission => "read it on the host, or turn MIG mode off",
            Refusal::VirtualGpu => "read it on the host of the GPU",
            Refusal::PermissionDenied => {
                "run as a user with access to it; in a container, pass the host's device files"
            }
            Refusal::OldDriver => "update the driver",
            Refusal::Unsupported | Refusal::NoGpm | Refusal::Other(_) => return None,
        })
    }
}

impl Refused {
    pub fn new(reading: impl Into<Query>, reason: Refusal) -> Refused {
        Refused { reading: reading.into(), remedy: reason.remedy().map(str::to_owned), reason }
    }
}

/// Why no GPU is sampled, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAbsent {
    pub reason: String,
    pub remedy: String,
}

/// The processes that use a GPU. Sent when they change. Older recordings have no processes of the run itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuProcesses {
    pub gpu: u32,
    pub processes: Vec<GpuProcess>,
}

/// A process on the GPU. Fields are absent if they are not reported, or in older recordings.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuProcess {
    pub pid: u32,
    /// Absent for a process outside of this container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The name of its owner, or the user id if it has no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bytes: Option<u64>,
    /// Its use of the SMs in the last second, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_pct: Option<u32>,
    /// It belongs to this run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
}

impl fmt::Display for GpuProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mem = self.mem_bytes.map(|bytes| format!("{} MiB", bytes >> 20));
        match (&self.name, mem) {
            (Some(name), Some(mem)) => write!(f, "{name} (pid {}, {mem})", self.pid),
            (Some(name), None) => write!(f, "{name} (pid {})", self.pid),
            (None, Some(mem)) => write!(f, "pid {} ({mem})", self.pid),
            (None, None) => write!(f, "pid {}", self.pid),
        }
    }
}

/// A GPU stopped responding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLost {
    pub gpu: u32,
    pub reason: String,
    pub remedy: String,
}

/// Overhead of sampling the GPUs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SamplerCost {
    /// Percent of the time since the last message that was spent in calls.
    pub duty_pct: f32,
    /// CPU time of the sampler's thread in percent of one core, since the last message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_pct: Option<f32>,
    pub calls: Vec<CallCost>,
}

/// One kind of call over the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    pub call: String,
    /// The tier: "fast", "gpm", "slow", "rare".
    pub tier: String,
    pub n: u64,
    /// Absent while there are too few calls for a percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_older_recordings_have_no_user_and_no_use() {
        let recorded = r#"{"gpu":0,"processes":[{"pid":7,"name":"vllm","mem_bytes":1024}]}"#;
        let listed: GpuProcesses = serde_json::from_str(recorded).unwrap();
        let wanted =
            GpuProcess { pid: 7, name: Some("vllm".into()), mem_bytes: Some(1024), ..GpuProcess::default() };
        assert_eq!(listed.processes, [wanted]);
        assert_eq!(serde_json::to_string(&listed).unwrap(), recorded, "what is absent is not written");
    }

    #[test]
    fn names_in_recordings_of_any_version_are_kept() {
        let recorded = r#"[{"reading":"fan","reason":"this card does not tell it"},
            {"reading":"clock event reasons","reason":"not reported by this GPU"},
            {"reading":"GPU use","reason":"driver 1 does not know the call","remedy":"update the driver"},
            {"reading":"MIG mode","reason":"permission denied"}]"#;
        let refused: Vec<Refused> = serde_json::from_str(recorded).unwrap();
        assert_eq!(refused[0], Refused::new(Reading::Fan, Refusal::Unsupported));
        assert_eq!(refused[1], Refused::new("clock event reasons", Refusal::Unsupported));
        assert_eq!(refused[2].reading, Query::Other("GPU use".into()));
        assert_eq!(refused[2].reason.to_string(), "driver 1 does not know the call");
        assert_eq!(refused[3].reading, Query::Other("MIG mode".into()));
        let text = serde_json::to_string(&refused).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Refused>>(&text).unwrap(), refused);
        for (source, text) in [
            (GpuSource::Sim, r#""sim""#),
            (GpuSource::Nvml, r#""nvml""#),
            (GpuSource::Other("new".into()), r#""new""#),
        ] {
            assert_eq!(serde_json::to_string(&source).unwrap(), text);
            assert_eq!(serde_json::from_str::<GpuSource>(text).unwrap(), source);
        }
    }
}
