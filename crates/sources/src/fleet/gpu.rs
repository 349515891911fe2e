//! A GPU as Prometheus knows it, and all of them at one moment.

use serde::{Deserialize, Serialize};

use llmprof_event::{GpuSample, readings::Reading};

/// What tells a GPU from all others: its UUID, else its node and index; and the part of it (MIG).
pub type Key = String;

/// A count, and by how much it grew within the window, if its earlier value is known.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    pub total: f64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recent: Option<f64>,
}

impl Counted {
    /// A counter that is smaller than before began again.
    pub fn since(total: f64, before: Option<f64>) -> Counted {
        let recent = before.map(|before| if total >= before { total - before } else { total });
        Counted { total, recent }
    }

    /// Whether it grew; without an earlier value, whether it is above zero.
    pub fn is_new(self) -> bool {
        self.recent.unwrap_or(self.total) > 0.0
    }
}

/// Errors since the driver was loaded. What is not exported is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuErrors {
    /// The last Xid; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// The last Xid was another one at the beginning of the window.
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

/// Since when a GPU is slow, in seconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Since {
    pub unix_s: f64,
    /// It was slow at the beginning of the window too.
    pub or_earlier: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    pub key: Key,
    pub node: String,
    /// Its index on the node.
    pub gpu: String,
    /// The part of it (MIG).
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
    /// What it works on, if a label reports it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub work: Option<String>,
    /// Its readings; empty if its exporter is not scraped any more.
    pub sample: GpuSample,
    #[serde(default)]
    pub errors: GpuErrors,
    /// When it was last scraped, in seconds of Unix time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seen_unix_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub slow_since: Option<Since>,
    /// What selects its series in PromQL.
    #[serde(default)]
    pub selector: String,
}

impl Gpu {
    pub fn get(&self, reading: Reading) -> Option<f64> {
        self.sample.get(reading)
    }

    /// `0`, or `0/7` for a part of it.
    pub fn index(&self) -> String {
        match &self.mig {
            Some(mig) => format!("{}/{mig}", self.gpu),
            None => self.gpu.clone(),
        }
    }

    /// The model without its maker.
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
    /// How long the queries took.
    pub took_ms: f64,
    /// What is new, slow or counted is so within this time.
    pub window_s: f64,
    pub gpus: Vec<Gpu>,
    /// Messages about what is wrong with the data.
    #[serde(default)]
    pub remarks: Vec<String>,
}

/// A GPU that was not scraped for so long is silent. Scrapes are at most a minute apart.
pub const SILENT_S: f64 = 120.0;

impl Snapshot {
    /// Seconds since a GPU was last scraped.
    pub fn age_s(&self, gpu: &Gpu) -> Option<f64> {
        gpu.seen_unix_s.map(|seen| (self.unix_s - seen).max(0.0))
    }

    /// Its exporter is not scraped any more: what is known of it is old.
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
