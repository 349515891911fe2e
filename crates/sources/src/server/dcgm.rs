//! Readings of GPUs from NVIDIA's DCGM exporter, if NVML is not available.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::{
    exposition::{Exposition, Sample},
    plan::MetricsAt,
    scrape,
    tls::Tls,
    watch::until_stopped,
};
use llmprof_base::foreign;
use llmprof_event::{
    Event, EventTx, GpuInfo, GpuSample, GpuSource, Level, Query, Refusal, Refused, readings::Reading,
};

const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of GPUs of a page.
const MAX_GPUS: usize = 64;
/// A longer interval is reported; the exporter's default is 30 s.
const SLOW: Duration = Duration::from_secs(5);

/// The exporter's names, the readings, and the factors.
pub const FIELDS: &[(&str, Reading, f64)] = &[
    ("DCGM_FI_DEV_GPU_UTIL", Reading::GpuUtil, 1.0),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Reading::MemUtil, 1.0),
    ("DCGM_FI_DEV_SM_CLOCK", Reading::SmClock, 1.0),
    ("DCGM_FI_DEV_MEM_CLOCK", Reading::MemClock, 1.0),
    ("DCGM_FI_DEV_POWER_USAGE", Reading::Power, 1.0),
    ("DCGM_FI_DEV_GPU_TEMP", Reading::Temp, 1.0),
    ("DCGM_FI_DEV_MEMORY_TEMP", Reading::MemTemp, 1.0),
    ("DCGM_FI_DEV_FB_USED", Reading::MemUsed, MIB),
    ("DCGM_FI_DEV_FB_TOTAL", Reading::MemTotal, MIB),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Reading::Energy, 1.0),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", Reading::PowerLimit, 1.0),
    ("DCGM_FI_DEV_MAX_SM_CLOCK", Reading::SmClockMax, 1.0),
    ("DCGM_FI_DEV_FAN_SPEED", Reading::Fan, 1.0),
    ("DCGM_FI_PROF_SM_ACTIVE", Reading::SmActive, 100.0),
    ("DCGM_FI_PROF_SM_OCCUPANCY", Reading::Occupancy, 100.0),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Reading::Tensor, 100.0),
    ("DCGM_FI_PROF_DRAM_ACTIVE", Reading::Dram, 100.0),
    ("DCGM_FI_DEV_POWER_VIOLATION", Reading::PowerCapNs, 1.0),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", Reading::ThermalNs, 1.0),
    ("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", Reading::SyncBoostNs, 1.0),
    ("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", Reading::BoardLimitNs, 1.0),
    ("DCGM_FI_DEV_RELIABILITY_VIOLATION", Reading::ReliabilityNs, 1.0),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Reading::EccCorrected, 1.0),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Reading::EccUncorrected, 1.0),
];
const MIB: f64 = 1024.0 * 1024.0;
/// The mask of NVML, under its older and its newer name.
pub const REASONS: [&str; 2] = ["DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"];

/// The GPUs of a page, by their labels.
pub fn gpus(page: &Exposition) -> BTreeMap<u32, (GpuInfo, GpuSample)> {
    let mut gpus: BTreeMap<u32, (GpuInfo, GpuSample)> = BTreeMap::new();
    let index = |sample: &Sample| sample.label("gpu").and_then(|gpu| gpu.parse::<u32>().ok());
    for (name, reading, factor) in FIELDS {
        for one in page.all(name) {
            // MIG slices have their own readings.
            let Some(gpu) = index(one).filter(|_| one.label("GPU_I_ID").is_none_or(str::is_empty)) else {
                continue;
            };
            if gpus.len() >= MAX_GPUS && !gpus.contains_key(&gpu) {
                continue;
            }
            let (_, sample) = gpus.entry(gpu).or_insert_with(|| (info(gpu, one), GpuSample::new(gpu)));
            sample.set(*reading, Some(one.value * factor).filter(|value| *value >= 0.0));
        }
    }
    for one in REASONS.iter().flat_map(|name| page.all(name)) {
        if let Some((_, sample)) = index(one).and_then(|gpu| gpus.get_mut(&gpu)) {
            sample.reasons = Some(one.value as u64);
        }
    }
    for (info, sample) in gpus.values_mut() {
        let free = page.all("DCGM_FI_DEV_FB_FREE").iter().find(|one| index(one) == Some(info.index));
        let total = sample.get(Reading::MemTotal);
        let sum = free.zip(sample.get(Reading::MemUsed)).map(|(free, used)| used + free.value * MIB);
        sample.set(Reading::MemTotal, total.or(sum));
        info.mem_total_bytes = sample.get(Reading::MemTotal).map(|bytes| bytes as u64);
        info.update(sample);
        if sample.reasons.is_none() {
            info.refused = vec![Refused::new(Query::ClockEventReasons, Refusal::Unsupported)];
        }
    }
    gpus
}

fn info(index: u32, sample: &Sample) -> GpuInfo {
    let label = |name: &str| sample.label(name).map(|text| foreign::line(text, 100)).unwrap_or_default();
    GpuInfo {
        index,
        name: label("modelName"),
        uuid: label("UUID"),
        driver: label("DCGM_FI_DRIVER_VERSION"),
        source: GpuSource::Dcgm,
        ..GpuInfo::default()
    }
}

/// Reads the GPUs of the exporter at `at` until `stop` is set; waits for an exporter that does not answer yet.
pub fn watch_gpus(at: MetricsAt, tx: EventTx, stop: Arc<AtomicBool>) {
    until_stopped(&stop, |tls| read(at, tls, tx));
}

async fn read(at: MetricsAt, tls: Tls, tx: EventTx) {
    let path = at.path.clone().unwrap_or_else(|| "/metrics".to_owned());
    let mut known: BTreeMap<u32, GpuSample> = BTreeMap::new();
    let mut was_there = None;
    let mut changed = Instant::now();
    let mut said_slow = false;
    let mut due = Instant::now();
    loop {
        let page = scrape::page(&at.endpoint, &path, None, &tls).await.ok();
        let found = page.as_ref().map(gpus).unwrap_or_default();
        if was_there != Some(!found.is_empty()) {
            let text = match (found.len(), page.is_some()) {
                (0, false) => format!("{}{path} does not answer; it is retried once per second", at.endpoint),
                (0, true) => format!("{}{path} has no GPU metrics of the DCGM exporter", at.endpoint),
                (n, _) => format!("{n} GPUs are read from {}{path}", at.endpoint),
            };
            tx.notice(if found.is_empty() { Level::Warn } else { Level::Info }, "telemetry", text);
            was_there = Some(!found.is_empty());
        }
        let mut is_new = false;
        for (gpu, (info, sample)) in found {
            if !known.contains_key(&gpu) {
                // Another page could name further GPUs endlessly.
                if known.len() >= MAX_GPUS {
                    continue;
                }
                tx.send(Event::GpuFound(Box::new(info)));
            }
            is_new |= known.insert(gpu, sample) != Some(sample);
            tx.send(Event::GpuSample(Box::new(sample)));
        }
        if is_new {
            let pause = changed.elapsed();
            changed = Instant::now();
            if pause > SLOW && !std::mem::replace(&mut said_slow, true) {
                let text = format!(
                    "the exporter has new readings every {:.0} s: too slow for tokens; start it with --collect-interval 1000",
                    pause.as_secs_f64()
                );
                tx.notice(Level::Warn, "telemetry", text);
            }
        }
        due = (due + INTERVAL).max(Instant::now());
        sleep_until(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA H200",Hostname="n1"} 1410
DCGM_FI_DEV_SM_CLOCK{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="NVIDIA H200",Hostname="n1"} 1980
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 699.5
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 3072
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 0.82
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0",UUID="GPU-aa",modelName="NVIDIA H200"} 4
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-aa",GPU_I_ID="7",modelName="NVIDIA H200"} 5
DCGM_FI_DEV_GPU_TEMP{gpu="x"} 5
DCGM_FI_DEV_GPU_TEMP{gpu="1"} NaN
"#;

    #[test]
    fn the_gpus_of_a_page_are_read() {
        let gpus = gpus(&Exposition::read(PAGE));
        assert_eq!(gpus.len(), 2);
        let (info, sample) = &gpus[&0];
        assert_eq!((info.name.as_str(), info.uuid.as_str()), ("NVIDIA H200", "GPU-aa"));
        let get = |reading| sample.get(reading);
        assert_eq!((get(Reading::SmClock), get(Reading::Power)), (Some(1410.0), Some(699.5)));
        assert_eq!(get(Reading::MemTotal), Some(4096.0 * MIB));
        assert_eq!((get(Reading::Dram), sample.reasons), (Some(82.0), Some(4)));
        let (other, sample) = &gpus[&1];
        assert_eq!(
            (sample.reasons, sample.get(Reading::Temp), sample.get(Reading::Power)),
            (None, None, None)
        );
        assert_eq!(other.refused.len(), 1);
    }

    proptest::proptest! {
        #[test]
        fn any_page_is_read(text in "(DCGM_FI_DEV_SM_CLOCK\\{gpu=\"[0-9]{0,12}\"[a-z=\",]{0,20}\\}? [0-9eE.+-]{0,8}\n){0,8}") {
            let _ = gpus(&Exposition::read(&text));
        }
    }
}
