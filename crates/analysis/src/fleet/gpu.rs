//! A GPU as Prometheus knows it, and all GPUs at one moment.

use serde::{Deserialize, Serialize};

use llmprof_event::{GpuSample, readings::Reading};

/// The identity of a GPU: its UUID, else its node and index; with its MIG slice.
pub type Key = String;

/// A count, and its increase within the window, if its earlier value is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    pub total: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recent: Option<f64>,
}

impl Counted {
    /// A counter that is smaller than before was reset.
    pub fn since(total: f64, before: Option<f64>) -> Counted {
        let recent = before.map(|before| if total >= before { total - before } else { total });
        Counted { total, recent }
    }

    /// Whether it increased; without an earlier value, whether it is above zero.
    pub fn is_new(self) -> bool {
        self.recent.unwrap_or(self.total) > 0.0
    }
}

/// Errors since the driver was loaded. `None` if not exported.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuErrors {
    /// The last Xid; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// Whether the last Xid was a different one at the beginning of the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid_is_new: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_remapped: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_remapped_uncorrectable: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_remap_failure: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_replays: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_crc: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_replays: Option<Counted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_recoveries: Option<Counted>,
}

/// The time since when a GPU is slow, in seconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Since {
    pub unix_s: f64,
    /// Whether it was already slow at the beginning of the window.
    pub or_earlier: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub key: Key,
    pub node: String,
    /// Its index on the node.
    pub gpu: String,
    /// Its MIG slice.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mig: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mig_profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pci_bus_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub driver: Option<String>,
    /// Its work, if a label reports it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub work: Option<String>,
    /// Its readings; empty if its exporter is no longer scraped.
    pub sample: GpuSample,
    #[serde(default)]
    pub errors: GpuErrors,
    /// The time of its last scrape, in seconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seen_unix_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slow_since: Option<Since>,
    /// The PromQL selector of its series.
    #[serde(default)]
    pub selector: String,
}

impl Gpu {
    pub fn get(&self, reading: Reading) -> Option<f64> {
        self.sample.get(reading)
    }

    /// `0`, or `0/7` for a MIG slice.
    pub fn index(&self) -> String {
        match &self.mig {
            Some(mig) => format!("{}/{mig}", self.gpu),
            None => self.gpu.clone(),
        }
    }

    /// The model without the vendor.
    pub fn short_model(&self) -> &str {
        let model = self.model.as_deref().unwrap_or("unknown model");
        model.trim_start_matches("NVIDIA ").trim_start_matches("GeForce ")
    }
}

/// All GPUs at one moment. A line of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Prometheus' time, in seconds of Unix time.
    pub unix_s: f64,
    /// The duration of the queries.
    pub took_ms: f64,
    /// The time range for "new", "since" and counters.
    pub window_s: f64,
    pub gpus: Vec<Gpu>,
    /// Messages about problems with the data.
    #[serde(default)]
    pub remarks: Vec<String>,
}

/// A GPU that was not scraped for this long is silent. Scrapes are at most a minute apart.
pub const SILENT_S: f64 = 120.0;

impl Snapshot {
    /// Seconds since a GPU was last scraped.
    pub fn age_s(&self, gpu: &Gpu) -> Option<f64> {
        gpu.seen_unix_s.map(|seen| (self.unix_s - seen).max(0.0))
    }

    /// Whether its exporter is no longer scraped, so that its values are old.
    pub fn is_silent(&self, gpu: &Gpu) -> bool {
        gpu.sample.is_empty() || self.age_s(gpu).is_some_and(|age| age > SILENT_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_began_again_are_counted_from_zero() {
        assert_eq!(Counted::since(7.0, Some(5.0)).recent, Some(2.0));
        assert_eq!(Counted::since(3.0, Some(5.0)).recent, Some(3.0));
        assert_eq!(Counted::since(3.0, None), Counted { total: 3.0, recent: None });
        assert!(Counted::since(3.0, None).is_new() && !Counted::since(3.0, Some(3.0)).is_new());
    }
}
