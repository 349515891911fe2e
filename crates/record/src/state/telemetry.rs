//! Telemetry of the GPUs and the host over time.

use std::{sync::LazyLock, time::Duration};

use super::Series;
use llmprof_analysis::{
    heat::{Heat, HeatSoak},
    throttle::Ledger,
};
use llmprof_event::{
    GpuInfo, GpuLost, GpuProcess, GpuSample, HostInfo, HostSample, Stamp,
    readings::{self, Kind, Reading},
    reasons::{self, ActiveReason},
};

/// One GPU: its properties, last readings and history.
#[derive(Debug, Clone)]
pub struct GpuState {
    pub info: GpuInfo,
    /// The last value of every reading, with its time.
    latest: [Option<(Stamp, f64)>; readings::COUNT],
    pub reasons_now: Option<(Stamp, u64)>,
    series: Vec<(Reading, Series)>,
    /// NVML's reason bits over time, for the throttle lanes.
    pub reasons: Vec<(u64, Series)>,
    pub lost: Option<(Stamp, GpuLost)>,
    /// The processes on it now.
    pub processes: Vec<GpuProcess>,
    /// All processes of other programs so far, each with the time of its first listing.
    pub processes_seen: Vec<(Stamp, GpuProcess)>,
    pub ledger: Ledger,
    /// Two ledgers, one of which restarts every [`RECENT`]: the older one covers the last one to two periods.
    recent: [Ledger; 2],
    recent_since: Option<Stamp>,
    pub(super) heat: HeatSoak,
}

const RECENT: Duration = Duration::from_secs(60);

/// Maximum number of other processes.
const KEPT_PROCESSES: usize = 32;

impl GpuState {
    pub(super) fn new(info: GpuInfo) -> Self {
        GpuState {
            info,
            latest: [None; readings::COUNT],
            reasons_now: None,
            series: Vec::new(),
            reasons: Vec::new(),
            lost: None,
            processes: Vec::new(),
            processes_seen: Vec::new(),
            ledger: Ledger::default(),
            recent: Default::default(),
            recent_since: None,
            heat: HeatSoak::default(),
        }
    }

    /// The last value of a reading.
    pub fn value(&self, reading: Reading) -> Option<f64> {
        self.latest[reading as usize].map(|(_, value)| value)
    }

    /// The age of that value at `now`.
    pub fn age(&self, reading: Reading, now: Stamp) -> Option<Duration> {
        self.latest[reading as usize].map(|(at, _)| now.since(at))
    }

    /// The time of the last sample.
    pub fn last_read(&self) -> Option<Stamp> {
        let readings = self.latest.iter().flatten().map(|(at, _)| *at);
        readings.chain(self.reasons_now.map(|(at, _)| at)).max()
    }

    /// The history of a reading; empty for counters.
    pub fn series(&self, reading: Reading) -> &Series {
        static EMPTY: LazyLock<Series> = LazyLock::new(Series::default);
        self.series.iter().find(|(of, _)| *of == reading).map_or(&EMPTY, |(_, series)| series)
    }

    /// The thermal state, once it is under load.
    pub fn heat(&self) -> Option<Heat> {
        self.heat.heat(self.slowdown_temp_ahead_c())
    }

    /// The temperature at which the hardware slows down; `None` while a thermal limit is active, which may have its own
    /// threshold.
    pub fn slowdown_temp_ahead_c(&self) -> Option<u32> {
        let limited = self.reasons_now.is_some_and(|(_, bits)| bits & reasons::THERMAL != 0);
        self.info.slowdown_temp_c.filter(|_| !limited)
    }

    pub(super) fn record(&mut self, t: Stamp, sample: &GpuSample) {
        for (reading, value) in sample.readings() {
            self.latest[reading as usize] = Some((t, value));
            if reading.about().kind == Kind::Gauge {
                self.series_mut(reading).push(t, value as f32);
            }
        }
        if let Some(bits) = sample.reasons {
            self.reasons_now = Some((t, bits));
            self.record_reasons(t, bits);
        }
        self.info.update(sample);
        self.ledger.sample(t, sample);
        self.rotate_recent(t);
        self.recent.iter_mut().for_each(|ledger| ledger.sample(t, sample));
        let loaded = self.ledger.is_loaded();
        self.heat.sample(t, sample.get(Reading::Temp), sample.get(Reading::SmClock), loaded);
    }

    /// The ledger of the last minute or two.
    pub fn recent_ledger(&self) -> &Ledger {
        let [older, newer] = &self.recent;
        if older.span_s() > 0.0 { older } else { newer }
    }

    fn rotate_recent(&mut self, t: Stamp) {
        let since = *self.recent_since.get_or_insert(t);
        if t.since(since) >= RECENT {
            self.recent = [std::mem::take(&mut self.recent[1]), Ledger::default()];
            self.recent_since = Some(t);
        }
    }

    pub(super) fn record_processes(&mut self, t: Stamp, processes: &[GpuProcess]) {
        self.processes = processes.to_vec();
        for process in processes.iter().filter(|process| !process.own) {
            let known = self.processes_seen.iter().any(|(_, seen)| seen.pid == process.pid);
            if !known && self.processes_seen.len() < KEPT_PROCESSES {
                self.processes_seen.push((t, process.clone()));
            }
        }
    }

    fn series_mut(&mut self, reading: Reading) -> &mut Series {
        let index = self.series.iter().position(|(of, _)| *of == reading).unwrap_or_else(|| {
            self.series.push((reading, Series::default()));
            self.series.len() - 1
        });
        &mut self.series[index].1
    }

    /// Every bit that was ever set has a lane: 1 while active, else 0.
    fn record_reasons(&mut self, t: Stamp, bits: u64) {
        for bit in reasons::active(bits).map(ActiveReason::bit) {
            if let Err(index) = self.reasons.binary_search_by_key(&bit, |(known, _)| *known) {
                self.reasons.insert(index, (bit, Series::default()));
            }
        }
        for (bit, series) in &mut self.reasons {
            series.push(t, if bits & *bit != 0 { 1.0 } else { 0.0 });
        }
    }
}

/// The host of the workload.
#[derive(Debug, Clone, Default)]
pub struct HostState {
    pub info: Option<HostInfo>,
    pub latest: Option<(Stamp, HostSample)>,
    /// Mean over all cores.
    pub cpu_pct: Series,
    pub freq_mhz: Series,
    pub mem_used_bytes: Series,
    pub process_pct: Series,
    pub process_rss_bytes: Series,
    pub package_power_w: Series,
}

impl HostState {
    /// Share of the CPU that other processes used between two times.
    pub fn taken_by_others(&self, from: Stamp, to: Stamp) -> Option<f32> {
        let mean = |series: &Series| series.columns(from, to, 1)[0].map(|b| b.mean());
        let cores = self.latest.as_ref().map(|(_, s)| s.core_pct.len()).filter(|n| *n > 0)?;
        let taken = mean(&self.cpu_pct)? - mean(&self.process_pct)? / cores as f32;
        Some((taken / 100.0).clamp(0.0, 1.0))
    }

    pub(super) fn found(&mut self, _: Stamp, info: &HostInfo) {
        self.info = Some(info.clone());
    }

    pub(super) fn record(&mut self, t: Stamp, sample: &HostSample) {
        let cores = sample.core_pct.len();
        let mean = (cores > 0).then(|| sample.core_pct.iter().sum::<f32>() / cores as f32);
        let readings = [
            (&mut self.cpu_pct, mean),
            (&mut self.freq_mhz, sample.freq_mhz),
            (&mut self.mem_used_bytes, sample.mem_used_bytes.map(|v| v as f32)),
            (&mut self.process_pct, sample.process_pct),
            (&mut self.process_rss_bytes, sample.process_rss_bytes.map(|v| v as f32)),
            (&mut self.package_power_w, sample.package_power_w),
        ];
        for (series, reading) in readings {
            if let Some(value) = reading {
                series.push(t, value);
            }
        }
        self.latest = Some((t, sample.clone()));
    }
}
