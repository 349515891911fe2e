//! Turns series into GPUs by their labels, whatever the labels' names are.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    answer::Series,
    labels::{self, Identity, MAX_ASKED, Matcher, NodeLabel, shown},
    metrics::{ErrorKind, Meaning, is_blank, known},
};
use llmprof_analysis::fleet::{Counted, Gpu, GpuErrors, Key};
use llmprof_event::{GpuSample, readings::Reading};

/// Maximum GPUs: an answer may name any number.
pub const MAX_GPUS: usize = 20_000;
/// Maximum names of labels that are kept for the message about a missing one.
const MAX_LABEL_NAMES: usize = 60;
/// The number of series whose label names are kept.
const SAMPLED_SERIES: usize = 500;
const MIB: f64 = 1024.0 * 1024.0;

/// Folds series into GPUs.
#[derive(Debug)]
pub struct Collector {
    node_label: NodeLabel,
    work_label: Option<String>,
    /// By the GPU, then by the exporter that reports it.
    found: BTreeMap<Key, BTreeMap<String, ExportedGpu>>,
    /// Names of all labels, for messages.
    pub label_names: BTreeSet<String>,
    series: usize,
    without_node: usize,
    without_gpu: usize,
    left_out: BTreeSet<Key>,
}

/// A GPU as one exporter reports it.
#[derive(Debug)]
struct ExportedGpu {
    identity: Identity,
    model: Option<String>,
    mig_profile: Option<String>,
    pci_bus_id: Option<String>,
    driver: Option<String>,
    work: Option<String>,
    sample: GpuSample,
    engine_active: Option<f64>,
    memory_free: Option<f64>,
    xid: Option<u32>,
    xid_before: Option<u32>,
    counts: Vec<(&'static str, ErrorKind, f64)>,
    before: Vec<(&'static str, f64)>,
    seen: Option<f64>,
}

/// The GPUs, and the problems with their series.
#[derive(Debug, Default)]
pub struct Collected {
    pub gpus: Vec<Gpu>,
    pub remarks: Vec<String>,
}

impl Collector {
    pub fn new(node_label: NodeLabel, work_label: Option<String>) -> Collector {
        Collector {
            node_label,
            work_label,
            found: BTreeMap::new(),
            label_names: BTreeSet::new(),
            series: 0,
            without_node: 0,
            without_gpu: 0,
            left_out: BTreeSet::new(),
        }
    }

    /// The GPU of a series. `None` if it belongs to no GPU.
    fn find(&mut self, series: &Series<'_>) -> Option<&mut ExportedGpu> {
        self.series += 1;
        if self.series < SAMPLED_SERIES && self.label_names.len() < MAX_LABEL_NAMES {
            self.label_names.extend(series.labels.iter().map(|(name, _)| shown(name)));
        }
        let Some(identity) = Identity::from_labels(series, &self.node_label) else {
            self.without_gpu += 1;
            return None;
        };
        if identity.node.0.is_empty() {
            self.without_node += 1;
        }
        let key = key(&identity);
        if self.found.len() >= MAX_GPUS && !self.found.contains_key(&key) {
            self.left_out.insert(key);
            return None;
        }
        let by_exporter = self.found.entry(key).or_default();
        let exporter = labels::exporter(series);
        if !by_exporter.contains_key(&exporter) && by_exporter.len() >= 8 {
            return None;
        }
        let work_label = self.work_label.as_deref();
        // All series of a GPU and an exporter have the same labels.
        Some(by_exporter.entry(exporter).or_insert_with(|| {
            let mut found = ExportedGpu::new(identity);
            found.describe(series, work_label);
            found
        }))
    }

    /// A current value.
    pub fn now(&mut self, series: &Series<'_>) {
        let Some((name, meaning)) = known(series.name()) else { return };
        let number = series.label("xid").or(series.label("err_code")).and_then(|xid| xid.parse::<u32>().ok());
        let Some(value) = series.last().filter(|value| !is_blank(*value) && *value >= 0.0) else {
            // It exists, without a value.
            self.find(series);
            return;
        };
        let Some(found) = self.find(series) else { return };
        match meaning {
            Meaning::Reading(reading, factor) => found.sample.set(reading, Some(value * factor)),
            Meaning::EngineActive => found.engine_active = Some(100.0 * value),
            Meaning::MemoryFree => found.memory_free = Some(value * MIB),
            Meaning::Reasons => found.sample.reasons = Some(value as u64),
            Meaning::LastXid => found.xid = Some(value as u32),
            Meaning::XidCount => {
                if let Some(number) = number.filter(|_| value > 0.0) {
                    found.xid = Some(found.xid.filter(|xid| *xid > 0).unwrap_or(number));
                }
            }
            Meaning::Error(kind) => {
                match kind {
                    ErrorKind::EccCorrected => found.sample.set(Reading::EccCorrected, Some(value)),
                    ErrorKind::EccUncorrected => found.sample.set(Reading::EccUncorrected, Some(value)),
                    _ => {}
                }
                found.counts.retain(|(known, ..)| *known != name);
                found.counts.push((name, kind, value));
            }
        }
    }

    /// A counter at the beginning of the window. GPUs that no longer exist are skipped.
    pub fn before(&mut self, series: &Series<'_>) {
        let (Some((name, meaning)), Some(value)) = (known(series.name()), series.last()) else { return };
        let Some(identity) = Identity::from_labels(series, &self.node_label) else { return };
        let Some(by_exporter) = self.found.get_mut(&key(&identity)) else { return };
        // A restarted exporter may have a different address.
        let exporter = labels::exporter(series);
        let is_known = by_exporter.contains_key(&exporter);
        for (_, found) in by_exporter.iter_mut().filter(|(of, _)| !is_known || **of == exporter) {
            match meaning {
                Meaning::LastXid => found.xid_before = Some(value as u32),
                _ => found.before.push((name, value)),
            }
        }
    }

    /// The time of a GPU's last scrape, which is the value.
    pub fn seen(&mut self, series: &Series<'_>) {
        let Some(unix_s) = series.last() else { return };
        if let Some(found) = self.find(series) {
            found.seen = Some(found.seen.map_or(unix_s, |seen| seen.max(unix_s)));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether any series has the label that names nodes.
    pub fn has_nodes(&self) -> bool {
        self.found.values().flat_map(BTreeMap::values).any(|found| !found.identity.node.0.is_empty())
    }

    pub fn finish(self) -> Collected {
        let mut remarks = Vec::new();
        let mut doubled = Vec::new();
        let mut gpus = Vec::with_capacity(self.found.len());
        for (key, by_exporter) in self.found {
            // Readings of two exporters belong to two moments: those of the newest, else of the one with the most
            // readings, are used.
            let rank = |found: &ExportedGpu| (found.seen.unwrap_or(0.0), found.sample.readings().count());
            let exporters: Vec<String> = by_exporter.keys().map(|name| shown(name)).collect();
            let live = by_exporter.values().filter(|found| !found.sample.is_empty()).count();
            let mut all: Vec<ExportedGpu> = by_exporter.into_values().collect();
            all.sort_by(|a, b| {
                let (a, b) = (rank(a), rank(b));
                b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
            });
            let Some(gpu) = all.into_iter().next().map(|found| found.gpu(key)) else { continue };
            if live > 1 {
                doubled.push(format!("{} GPU {} ({})", gpu.node, gpu.index(), exporters.join(" and ")));
            }
            gpus.push(gpu);
        }
        gpus.sort_by(|a: &Gpu, b: &Gpu| {
            natural(&a.node, &b.node).then_with(|| natural(&a.index(), &b.index()))
        });
        if let Some(first) = doubled.first() {
            remarks.push(format!(
                "{} GPUs are reported by two exporters or scraped twice, e.g. {first}: the newest values are used; \
                 remove one of the scrapes",
                doubled.len()
            ));
        }
        if self.without_node > 0 && gpus.iter().any(|gpu| gpu.node.is_empty()) {
            remarks.push(format!(
                "{} series have no label that names a node: name one with --node-label (there are {})",
                self.without_node,
                some(&self.label_names)
            ));
        }
        if self.without_gpu > 0 {
            remarks.push(format!(
                "{} series have no label that names a GPU (gpu or UUID) and are left out",
                self.without_gpu
            ));
        }
        if !self.left_out.is_empty() {
            remarks.push(format!("only the first {MAX_GPUS} GPUs are shown; select some with --match"));
        }
        Collected { gpus, remarks }
    }
}

/// The names of labels for a message.
pub fn some(names: &BTreeSet<String>) -> String {
    let names: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| *name != "__name__").take(30).collect();
    names.join(", ")
}

/// The GPU of a series.
pub fn key_of(series: &Series<'_>, node_label: &NodeLabel) -> Option<Key> {
    Identity::from_labels(series, node_label).map(|identity| key(&identity))
}

fn key(identity: &Identity) -> Key {
    let gpu = match &identity.uuid {
        Some((_, uuid)) => uuid.clone(),
        None => format!("{}/{}", identity.node.1, identity.gpu.1),
    };
    let key = match &identity.mig {
        Some(mig) => format!("{gpu}/{mig}"),
        None => gpu,
    };
    if key.len() <= MAX_ASKED { key } else { key.chars().take(MAX_ASKED).collect() }
}

impl ExportedGpu {
    fn new(identity: Identity) -> ExportedGpu {
        ExportedGpu {
            identity,
            model: None,
            mig_profile: None,
            pci_bus_id: None,
            driver: None,
            work: None,
            sample: GpuSample::default(),
            engine_active: None,
            memory_free: None,
            xid: None,
            xid_before: None,
            counts: Vec::new(),
            before: Vec::new(),
            seen: None,
        }
    }

    fn describe(&mut self, series: &Series<'_>, work_label: Option<&str>) {
        let label = |name: &str| series.label(name).map(shown);
        self.model = self.model.take().or_else(|| labels::model(series));
        self.mig_profile = self.mig_profile.take().or_else(|| label("GPU_I_PROFILE"));
        self.pci_bus_id = self.pci_bus_id.take().or_else(|| label("pci_bus_id"));
        self.driver = self.driver.take().or_else(|| label("DCGM_FI_DRIVER_VERSION"));
        self.work = self.work.take().or_else(|| labels::work(series, work_label));
    }

    fn gpu(mut self, key: Key) -> Gpu {
        if self.sample.get(Reading::GpuUtil).is_none() {
            self.sample.set(Reading::GpuUtil, self.engine_active);
        }
        if self.sample.get(Reading::MemTotal).is_none() {
            let total =
                self.sample.get(Reading::MemUsed).zip(self.memory_free).map(|(used, free)| used + free);
            self.sample.set(Reading::MemTotal, total);
        }
        let mut errors = GpuErrors {
            xid: self.xid,
            xid_is_new: self.xid.zip(self.xid_before).map(|(now, before)| now != before),
            ..GpuErrors::default()
        };
        for (name, kind, total) in &self.counts {
            let before = self.before.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
            let counted = Counted::since(*total, before);
            let slot = kind.counter(&mut errors);
            *slot = Some(match *slot {
                None => counted,
                Some(other) => Counted {
                    total: other.total + counted.total,
                    recent: other.recent.zip(counted.recent).map(|(a, b)| a + b),
                },
            });
        }
        let selector = self.identity.selector().iter().map(Matcher::to_string).collect::<Vec<_>>().join(",");
        let Identity { node: (name, node), gpu, uuid, mig } = self.identity;
        Gpu {
            key,
            node: NodeLabel::shown(&name, &node),
            gpu: shown(&gpu.1),
            mig: mig.as_deref().map(shown),
            mig_profile: self.mig_profile,
            uuid: uuid.map(|(_, uuid)| shown(&uuid)),
            pci_bus_id: self.pci_bus_id,
            model: self.model,
            driver: self.driver,
            work: self.work,
            sample: self.sample,
            errors,
            seen_unix_s: self.seen,
            slow_since: None,
            selector,
        }
    }
}

/// Numbers in names are compared as numbers: `node9` comes before `node10`.
fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let parts = |text: &str| {
        let mut parts: Vec<(String, u64)> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(digits);
            let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            parts.push((word.to_owned(), after[..end].parse().unwrap_or(u64::MAX)));
            rest = &after[end..];
        }
        parts
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series<'a>(text: &'a str, value: f64) -> Series<'a> {
        let labels = text.split(',').map(|label| {
            let (name, value) = label.split_once('=').unwrap();
            (name.into(), value.into())
        });
        Series { labels: labels.collect(), values: vec![(0.0, value)] }
    }

    fn collect(all: &[(&str, f64)]) -> Collected {
        let mut collector = Collector::new(NodeLabel::Usual, None);
        all.iter().for_each(|(labels, value)| collector.now(&series(labels, *value)));
        collector.finish()
    }

    #[test]
    fn series_of_one_gpu_are_put_together() {
        let gpus = collect(&[
            ("__name__=DCGM_FI_DEV_SM_CLOCK,gpu=0,UUID=GPU-a,Hostname=n10,modelName=NVIDIA H200", 1410.0),
            ("__name__=DCGM_FI_DEV_FB_USED,gpu=0,UUID=GPU-a,Hostname=n10", 1024.0),
            ("__name__=DCGM_FI_DEV_FB_FREE,gpu=0,UUID=GPU-a,Hostname=n10", 3072.0),
            ("__name__=DCGM_FI_PROF_GR_ENGINE_ACTIVE,gpu=0,UUID=GPU-a,Hostname=n10", 0.5),
            ("__name__=DCGM_FI_DEV_CLOCK_THROTTLE_REASONS,gpu=0,UUID=GPU-a,Hostname=n10", 4.0),
            ("__name__=DCGM_FI_DEV_SM_CLOCK,gpu=0,UUID=GPU-a,Hostname=n10,GPU_I_ID=7,GPU_I_PROFILE=1g.10gb", 5.0),
            ("__name__=llmprof_gpu_sm_clock_hertz,gpu=0,name=NVIDIA L4,instance=n9:9464", 2.04e9),
            ("__name__=up,instance=n9", 1.0),
        ])
        .gpus;
        let names: Vec<String> = gpus.iter().map(|gpu| format!("{} {}", gpu.node, gpu.index())).collect();
        assert_eq!(names, ["n9 0", "n10 0", "n10 0/7"]);
        let gpu = &gpus[1];
        assert_eq!((gpu.get(Reading::SmClock), gpu.sample.reasons), (Some(1410.0), Some(4)));
        assert_eq!((gpu.get(Reading::GpuUtil), gpu.get(Reading::MemTotal)), (Some(50.0), Some(4096.0 * MIB)));
        assert_eq!((gpu.short_model(), gpus[2].mig_profile.as_deref()), ("H200", Some("1g.10gb")));
        assert_eq!((gpus[0].get(Reading::SmClock), gpus[0].short_model()), (Some(2040.0), "L4"));
    }

    #[test]
    fn values_that_are_not_numbers_are_absent() {
        for value in [f64::NAN, f64::INFINITY, -1.0, 9_223_372_036_854_775_792.0] {
            let gpus = collect(&[("__name__=DCGM_FI_DEV_GPU_TEMP,gpu=0,Hostname=n", value)]).gpus;
            assert_eq!((gpus.len(), gpus[0].get(Reading::Temp)), (1, None), "{value}");
        }
    }

    #[test]
    fn two_exporters_of_one_gpu_are_one_gpu() {
        let mut collector = Collector::new(NodeLabel::Usual, None);
        let of = |job: &str, name: &str| {
            format!("__name__={name},gpu=0,UUID=GPU-a,Hostname=n,job={job},instance=n:9400")
        };
        let (a, b) = (of("a", "DCGM_FI_DEV_SM_CLOCK"), of("b", "DCGM_FI_DEV_SM_CLOCK"));
        collector.now(&series(&a, 1410.0));
        collector.now(&series(&b, 1980.0));
        collector.seen(&series(&a, 100.0));
        collector.seen(&series(&b, 160.0));
        let Collected { gpus, remarks } = collector.finish();
        assert_eq!((gpus.len(), gpus[0].get(Reading::SmClock)), (1, Some(1980.0)));
        assert!(remarks[0].contains("a n:9400 and b n:9400"), "{remarks:?}");
    }

    #[test]
    fn errors_are_counted_within_the_window() {
        let mut collector = Collector::new(NodeLabel::Usual, None);
        let of = |name: &str| format!("__name__={name},gpu=0,Hostname=n");
        for (name, now, before) in [
            ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 90.0, 40.0),
            ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 7.0, 7.0),
            ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 3.0, 1.0),
            ("DCGM_FI_DEV_XID_ERRORS", 79.0, 0.0),
        ] {
            collector.now(&series(&of(name), now));
            collector.before(&series(&of(name), before));
        }
        collector.now(&series(&of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), 2.0));
        let errors = collector.finish().gpus[0].errors;
        assert_eq!(errors.pcie_replays, Some(Counted { total: 90.0, recent: Some(50.0) }));
        assert_eq!(errors.nvlink_crc, Some(Counted { total: 10.0, recent: Some(2.0) }));
        assert_eq!(errors.ecc_uncorrected, Some(Counted { total: 2.0, recent: None }));
        assert_eq!((errors.xid, errors.xid_is_new, errors.nvlink_replays), (Some(79), Some(true), None));
    }

    #[test]
    fn untrusted_labels_are_sanitised() {
        let gpus = collect(&[(
            "__name__=DCGM_FI_DEV_SM_CLOCK,gpu=0,Hostname=n\u{1b}]0;x\u{7},modelName=a\u{202e}b",
            1.0,
        )])
        .gpus;
        let text = format!("{} {:?}", gpus[0].node, gpus[0].model);
        assert!(!text.contains(llmprof_base::foreign::is_hidden), "{text}");
        assert!(gpus[0].selector.contains('\u{1b}'), "it is asked for as it is");
    }

    proptest! {
        #[test]
        fn any_series_are_collected(all in prop::collection::vec((prop::sample::select(super::super::metrics::names().collect::<Vec<_>>()),
            "[a-z0-9:.-]{0,6}", "[0-9]{0,3}", any::<f64>()), 0..30)) {
            let mut collector = Collector::new(NodeLabel::Usual, None);
            for (name, node, gpu, value) in &all {
                let one = Series { labels: vec![("__name__".into(), (*name).into()), ("instance".into(), node.into()), ("gpu".into(), gpu.into())],
                    values: vec![(0.0, *value)] };
                collector.now(&one);
                collector.before(&one);
                collector.seen(&one);
            }
            for gpu in collector.finish().gpus {
                prop_assert!(gpu.sample.readings().all(|(_, value)| value.is_finite() && value >= 0.0));
            }
        }
    }
}
