//! The verdict on each GPU: slow among peers, limited, with errors, silent; the loss, and why.

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use serde::{Serialize, Serializer};

use super::{
    gpu::{Counted, Gpu, Snapshot},
    peers::{Basis, MIN_PEERS, groups, is_busy, median},
};
use crate::peaks::GpuPeaks;
use llmprof_base::units::{grouped, percent, rough_seconds};
use llmprof_event::{
    readings::Reading,
    reasons::{self, ActiveReason, ClockLimit},
};

/// The number of PCIe replays within the window that is reported: a few happen on good links.
const MANY_REPLAYS: f64 = 10.0;
/// The same for CRC errors of NVLink, which are corrected.
const MANY_CRC: f64 = 100.0;
/// A GPU with this utilisation has no capacity for more work.
const FULL_LOAD_PCT: f64 = 90.0;
/// Many GPUs stay some percent below the clock of their model.
const BELOW_OWN_PCT: f64 = 10.0;

/// The most important fact about a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its clock is far below that of its peers.
    Slow,
    Errors,
    /// Its exporter is no longer scraped.
    Silent,
    /// A limit is active, or its clock is far below that of its model; its peers are as slow.
    Limited,
    Working,
    /// It cannot be judged: its clock or its utilisation is not exported.
    Unknown,
    Idle,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Slow => "slow",
            State::Errors => "errors",
            State::Silent => "silent",
            State::Limited => "limited",
            State::Working => "working",
            State::Unknown => "unknown",
            State::Idle => "idle",
        })
    }
}

/// Why a GPU is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Limit(&'static ClockLimit),
    /// No limit is reported.
    NoneReported,
    /// The exporter does not export clock event reasons.
    NotExported,
}

impl Cause {
    fn from_reasons(reasons: Option<u64>) -> Cause {
        let Some(bits) = reasons else { return Cause::NotExported };
        // The most specific first.
        let order = [
            reasons::HW_THERMAL,
            reasons::SW_THERMAL,
            reasons::HW_POWER_BRAKE,
            reasons::HW_SLOWDOWN,
            reasons::SW_POWER_CAP,
            reasons::SYNC_BOOST,
            reasons::APPLICATION_CLOCKS,
        ];
        match order.into_iter().find(|bit| bits & bit != 0).map(reasons::named) {
            Some(ActiveReason::Known(limit)) => Cause::Limit(limit),
            _ => Cause::NoneReported,
        }
    }

    /// Whether it is one of the limits in `bits`.
    fn is_any(self, bits: u64) -> bool {
        matches!(self, Cause::Limit(limit) if limit.bit & bits != 0)
    }

    fn key(self) -> &'static str {
        match self {
            Cause::Limit(limit) => limit.key,
            Cause::NoneReported => "none_reported",
            Cause::NotExported => "not_exported",
        }
    }

    /// A sentence without its full stop.
    pub fn remedy(self) -> &'static str {
        match self {
            Cause::Limit(limit) if limit.bit == reasons::SW_POWER_CAP => {
                "Compare its power limit with that of its peers (nvidia-smi -q -d POWER), and raise it with nvidia-smi -pl"
            }
            Cause::Limit(limit) => limit.remedy,
            Cause::NoneReported => {
                "Compare it with a peer (nvidia-smi -q -d CLOCK,PERFORMANCE): locked clocks are not reported as a limit"
            }
            Cause::NotExported => {
                "Add DCGM_FI_DEV_CLOCKS_EVENT_REASONS to the counters of the exporter to see its limit"
            }
        }
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.key())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::Limit(limit) => limit.name,
            Cause::NoneReported => "no limit is reported",
            Cause::NotExported => "its limit is not exported",
        })
    }
}

/// The clock that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    SmClock,
    MemoryClock,
}

impl Measure {
    pub const ALL: [Measure; 2] = [Measure::SmClock, Measure::MemoryClock];

    pub fn reading(self) -> Reading {
        match self {
            Measure::SmClock => Reading::SmClock,
            Measure::MemoryClock => Reading::MemClock,
        }
    }
}

/// The estimated loss of a slow GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Loss {
    pub measure: Measure,
    pub clock_mhz: f64,
    /// The loss of speed in percent, if speed is proportional to the clock: an upper bound.
    pub lost_pct: f64,
    pub cause: Cause,
    /// Medians of its peers.
    pub equals_temp_c: Option<f64>,
    pub equals_power_w: Option<f64>,
    #[serde(flatten)]
    pub basis: Basis,
}

/// A GPU at full load is also compared with the clock of its model, because its peers may be as slow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BelowOwnClock {
    pub clock_mhz: f64,
    pub own_mhz: f64,
    pub basis: OwnClock,
    pub below_pct: f64,
    pub cause: Cause,
}

/// The source of a model's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnClock {
    /// The maximum from the exporter.
    Maximum,
    /// The vendor's boost clock of this model.
    Boost,
}

impl fmt::Display for OwnClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            OwnClock::Maximum => "maximum",
            OwnClock::Boost => "stated boost clock",
        })
    }
}

impl BelowOwnClock {
    /// `None` for a GPU near its clock, and if the clock of its model is not known.
    fn measure(gpu: &Gpu) -> Option<BelowOwnClock> {
        let is_limited = gpu.sample.reasons.is_some_and(|bits| reasons::faults(bits) != 0);
        let is_at_full_load = gpu.get(Reading::GpuUtil).is_some_and(|pct| pct >= FULL_LOAD_PCT);
        if !is_limited && !is_at_full_load {
            return None;
        }
        let exported = gpu.get(Reading::SmClockMax).map(|mhz| (mhz, OwnClock::Maximum));
        let stated = || {
            let peaks = GpuPeaks::named(gpu.model.as_deref()?)?;
            Some((peaks.core_mhz()?, OwnClock::Boost))
        };
        let (own_mhz, basis) = exported.or_else(stated).filter(|(mhz, _)| *mhz > 0.0)?;
        let clock_mhz = gpu.get(Reading::SmClock)?;
        let below_pct = 100.0 * (1.0 - clock_mhz / own_mhz);
        let cause = Cause::from_reasons(gpu.sample.reasons);
        (below_pct >= BELOW_OWN_PCT).then_some(BelowOwnClock { clock_mhz, own_mhz, basis, below_pct, cause })
    }
}

/// An error of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    Xid { number: u32, is_new: Option<bool> },
    EccUncorrected(Counted),
    RowRemapFailure,
    RowsRemapped(Counted),
    EccCorrected(Counted),
    NvlinkRecoveries(Counted),
    NvlinkReplays(Counted),
    NvlinkCrc(Counted),
    PcieReplays(Counted),
}

impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Fault {
    /// All errors of a GPU, the most severe first.
    fn all(gpu: &Gpu) -> Vec<Fault> {
        let errors = &gpu.errors;
        let some = |counted: Option<Counted>| counted.filter(|counted| counted.total > 0.0);
        let grown = |counted: Option<Counted>| counted.filter(|counted| counted.is_new());
        let xid = errors.xid.filter(|number| *number > 0);
        let mut all: Vec<Fault> =
            xid.map(|number| Fault::Xid { number, is_new: errors.xid_is_new }).into_iter().collect();
        all.extend(some(errors.ecc_uncorrected).map(Fault::EccUncorrected));
        all.extend(some(errors.row_remap_failure).map(|_| Fault::RowRemapFailure));
        all.extend(some(errors.rows_remapped_uncorrectable).map(Fault::RowsRemapped));
        all.extend(grown(errors.nvlink_recoveries).map(Fault::NvlinkRecoveries));
        all.extend(grown(errors.nvlink_replays).map(Fault::NvlinkReplays));
        all.extend(grown(errors.nvlink_crc).map(Fault::NvlinkCrc));
        all.extend(grown(errors.pcie_replays).map(Fault::PcieReplays));
        all.extend(grown(errors.ecc_corrected).map(Fault::EccCorrected));
        all
    }

    /// Whether it is new, or of a kind that persists, and therefore needs attention.
    pub fn matters(self) -> bool {
        match self {
            // An Xid of a program ends with the program.
            Fault::Xid { number, is_new } => !is_of_program(number) || is_new != Some(false),
            Fault::EccUncorrected(_) | Fault::RowRemapFailure => true,
            Fault::RowsRemapped(counted) => counted.is_new(),
            Fault::EccCorrected(_) => false,
            Fault::NvlinkRecoveries(counted) | Fault::NvlinkReplays(counted) => {
                counted.recent.is_some_and(|n| n > 0.0)
            }
            Fault::NvlinkCrc(counted) => counted.recent.is_some_and(|n| n >= MANY_CRC),
            Fault::PcieReplays(counted) => counted.recent.is_some_and(|n| n >= MANY_REPLAYS),
        }
    }

    pub fn remedy(self) -> &'static str {
        match self {
            Fault::Xid { number, .. } => xid_remedy(number),
            Fault::EccUncorrected(_) | Fault::RowsRemapped(_) => {
                "reset the GPU so that bad rows are remapped; replace it if errors recur"
            }
            Fault::RowRemapFailure => "its memory can no longer be repaired: replace the GPU",
            Fault::EccCorrected(_) => "corrected: no data is lost",
            Fault::NvlinkRecoveries(_) | Fault::NvlinkReplays(_) | Fault::NvlinkCrc(_) => {
                "reseat the bridge or the tray; check nvidia-smi nvlink -e"
            }
            Fault::PcieReplays(_) => {
                "reseat the GPU or its riser; check the width and generation of its link"
            }
        }
    }
}

fn is_of_program(xid: u32) -> bool {
    matches!(xid, 13 | 31 | 43 | 45 | 68 | 69 | 109)
}

/// NVIDIA's names for the frequent Xids.
fn xid_words(xid: u32) -> &'static str {
    match xid {
        13 => "graphics engine exception",
        31 => "memory page fault of a program",
        43 | 45 => "a program was ended",
        48 => "uncorrected memory error",
        61 | 62 => "microcontroller halted",
        63 => "row remapped",
        64 => "row remap failed",
        68 | 69 => "engine exception of a program",
        74 => "NVLink error",
        79 => "GPU has fallen off the bus",
        92 => "many corrected memory errors",
        94 => "contained memory error",
        95 => "uncontained memory error",
        109 => "context switch timed out",
        119 | 120 => "GSP does not answer",
        _ => "see NVIDIA's list of Xids",
    }
}

fn xid_remedy(xid: u32) -> &'static str {
    match xid {
        48 | 63 | 64 | 92 | 94 | 95 => "drain the node and reset the GPU; replace it if errors recur",
        74 => "check nvidia-smi nvlink -e; reseat the bridge or the tray",
        79 => "drain the node and restart it; check power and PCIe seating",
        61 | 62 | 119 | 120 => "drain the node and reset the GPU; update the driver",
        xid if is_of_program(xid) => "find the program that failed: dmesg names its process",
        _ => "read the full message in dmesg on the node",
    }
}

/// `n`, and the number within the window.
struct Count(Counted);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |value: f64| grouped(value as i64);
        match self.0.recent {
            Some(recent) if recent > 0.0 => write!(f, "+{}", whole(recent)),
            _ => f.write_str(&whole(self.0.total)),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Xid { number, .. } => write!(f, "Xid {number}"),
            Fault::EccUncorrected(n) => write!(f, "ECC {} uncorrected", Count(*n)),
            Fault::RowRemapFailure => f.write_str("row remap failed"),
            Fault::RowsRemapped(n) => write!(f, "rows {} remapped", Count(*n)),
            Fault::EccCorrected(n) => write!(f, "ECC {} corrected", Count(*n)),
            Fault::NvlinkRecoveries(n) => write!(f, "NVLink {} recoveries", Count(*n)),
            Fault::NvlinkReplays(n) => write!(f, "NVLink {} replays", Count(*n)),
            Fault::NvlinkCrc(n) => write!(f, "NVLink {} CRC", Count(*n)),
            Fault::PcieReplays(n) => write!(f, "PCIe {} replays", Count(*n)),
        }
    }
}

/// Why a busy GPU was not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NotCompared {
    NoUtilisation,
    NoClock,
    OtherWork,
    FewEquals(usize),
}

impl fmt::Display for NotCompared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotCompared::NoUtilisation => f.write_str("its utilisation is not exported"),
            NotCompared::NoClock => f.write_str("its clock is not exported"),
            NotCompared::OtherWork => f.write_str("its work differs from that of most GPUs of its model"),
            NotCompared::FewEquals(n) => {
                write!(f, "it has {n} peers including itself, and {MIN_PEERS} are needed")
            }
        }
    }
}

/// A GPU with its verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuVerdict {
    /// Its index in the snapshot.
    pub at: usize,
    pub state: State,
    pub loss: Option<Loss>,
    pub below_own_clock: Option<BelowOwnClock>,
    pub not_compared: Option<NotCompared>,
    pub faults: Vec<Fault>,
    /// Seconds since it was last scraped.
    pub age_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    pub nodes: usize,
    pub gpus: usize,
    pub slow: usize,
    pub errors: usize,
    pub silent: usize,
    pub limited: usize,
    pub working: usize,
    pub unknown: usize,
    pub idle: usize,
}

/// The order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Lost,
    Node,
    Temperature,
    Power,
    Clock,
    Utilisation,
}

impl Order {
    pub const ALL: [Order; 6] =
        [Order::Lost, Order::Node, Order::Temperature, Order::Power, Order::Clock, Order::Utilisation];

    pub fn next(self) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL[(at + 1) % Order::ALL.len()]
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::Lost => "loss",
            Order::Node => "node",
            Order::Temperature => "temperature",
            Order::Power => "power",
            Order::Clock => "clock",
            Order::Utilisation => "utilisation",
        })
    }
}

/// A snapshot with verdicts.
#[derive(Debug, Clone, PartialEq)]
pub struct Fleet {
    pub snapshot: Snapshot,
    /// By loss.
    pub rows: Vec<GpuVerdict>,
    pub totals: Totals,
    pub remarks: Vec<String>,
}

impl Fleet {
    pub fn new(snapshot: Snapshot) -> Fleet {
        let gpus = &snapshot.gpus;
        let losses = losses(&snapshot);
        let mut rows: Vec<GpuVerdict> = (0..gpus.len()).map(|at| row(&snapshot, at, &losses)).collect();
        rows.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| lost(b).total_cmp(&lost(a))));
        let mut totals = Totals { gpus: gpus.len(), ..Totals::default() };
        for row in &rows {
            *match row.state {
                State::Slow => &mut totals.slow,
                State::Errors => &mut totals.errors,
                State::Silent => &mut totals.silent,
                State::Limited => &mut totals.limited,
                State::Working => &mut totals.working,
                State::Unknown => &mut totals.unknown,
                State::Idle => &mut totals.idle,
            } += 1;
        }
        let mut nodes: Vec<&str> = gpus.iter().map(|gpu| gpu.node.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        totals.nodes = nodes.len();
        let mut remarks = snapshot.remarks.clone();
        remarks.extend(common_limits(&snapshot));
        remarks.extend(below_own_clocks(&snapshot, &rows));
        remarks.extend(without_reasons(gpus));
        Fleet { snapshot, rows, totals, remarks }
    }

    pub fn gpu(&self, row: &GpuVerdict) -> &Gpu {
        &self.snapshot.gpus[row.at]
    }

    /// The rows in another order, or its reverse, as indexes into `rows`. Missing values come last in both.
    pub fn sorted(&self, order: Order, reversed: bool) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.rows.len()).collect();
        let reading = match order {
            Order::Lost | Order::Node => None,
            Order::Temperature => Some(Reading::Temp),
            Order::Power => Some(Reading::Power),
            Order::Clock => Some(Reading::SmClock),
            Order::Utilisation => Some(Reading::GpuUtil),
        };
        let Some(reading) = reading else {
            if order == Order::Node {
                all.sort_by_key(|i| self.rows[*i].at);
            }
            if reversed {
                all.reverse();
            }
            return all;
        };
        // Clocks begin with the lowest.
        let descending = (order != Order::Clock) != reversed;
        let value = |i: &usize| self.gpu(&self.rows[*i]).get(reading);
        all.sort_by(|a, b| match (value(a), value(b)) {
            (Some(a), Some(b)) if descending => b.total_cmp(&a),
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
        all
    }

    /// The GPUs that are slow, with the keys of their peers.
    pub fn slow_with_equals(&self) -> Vec<(&GpuVerdict, Vec<&str>)> {
        let groups = groups(&self.snapshot);
        let equals = |at: usize| {
            let group = groups.iter().find(|group| group.contains(&at)).map_or(&[][..], Vec::as_slice);
            group.iter().map(|i| self.snapshot.gpus[*i].key.as_str()).collect()
        };
        self.rows.iter().filter(|row| row.loss.is_some()).map(|row| (row, equals(row.at))).collect()
    }

    /// The findings about a GPU, in sentences.
    pub fn sentence(&self, row: &GpuVerdict) -> String {
        let gpu = self.gpu(row);
        let mut parts = Vec::new();
        if let Some(loss) = &row.loss {
            parts.push(self.slow_words(gpu, loss));
        }
        let matters: Vec<&Fault> = row.faults.iter().filter(|fault| fault.matters()).collect();
        for fault in matters.iter().take(2) {
            let words = match fault {
                Fault::Xid { number, is_new } => {
                    let when = match is_new {
                        Some(true) => format!(", within the last {}", rough_seconds(self.snapshot.window_s)),
                        Some(false) => format!(", more than {} ago", rough_seconds(self.snapshot.window_s)),
                        None => String::new(),
                    };
                    format!("{fault}{when}: {}", xid_words(*number))
                }
                _ => format!("{fault}"),
            };
            parts.push(format!("{words}; {}.", fault.remedy()));
        }
        if row.state == State::Silent {
            let age =
                row.age_s.map_or_else(String::new, |age| format!("last scrape {} ago", rough_seconds(age)));
            parts.push(format!(
                "Silent: {age}. Is its exporter running, and can Prometheus reach it (Status, Targets)?"
            ));
        }
        if parts.is_empty() {
            parts.push(match (row.state, row.not_compared) {
                (State::Idle, _) => "Idle: not compared.".to_owned(),
                (State::Limited, _) if row.below_own_clock.is_some() => {
                    row.below_own_clock.map_or_else(String::new, |below| below_own_words(gpu, &below))
                }
                (State::Limited, _) => {
                    format!("Limited by {}, like its peers.", limits(gpu).unwrap_or_default())
                }
                (_, Some(why)) => format!("Not compared: {why}."),
                _ => "As fast as its peers.".to_owned(),
            });
        }
        parts.join(" ")
    }

    fn slow_words(&self, gpu: &Gpu, loss: &Loss) -> String {
        let Loss { basis, cause, .. } = loss;
        let which = match loss.measure {
            Measure::SmClock => "SM clock",
            Measure::MemoryClock => "memory clock",
        };
        let since = match gpu.slow_since {
            Some(since) => {
                let ago = rough_seconds((self.snapshot.unix_s - since.unix_s).max(0.0));
                if since.or_earlier { format!(" for {ago} or longer") } else { format!(" for {ago}") }
            }
            None => String::new(),
        };
        let compared = |value: Option<f64>, equals: Option<f64>, unit: &str| {
            let equals = equals.map_or_else(String::new, |equals| format!(" (peers {equals:.0})"));
            value.map(|value| format!("{value:.0} {unit}{equals}"))
        };
        let temp =
            || compared(gpu.get(Reading::Temp), loss.equals_temp_c, "°C").map(|temp| format!(" at {temp}"));
        let power = || compared(gpu.get(Reading::Power), loss.equals_power_w, "W");
        let detail = if cause.is_any(reasons::THERMAL) {
            temp()
        } else if cause.is_any(reasons::SW_POWER_CAP) {
            power().map(|power| format!(" at {power}"))
        } else {
            power().map(|power| format!(", it draws {power}"))
        };
        let why = format!("{cause}{}", detail.unwrap_or_default());
        let equals = match basis.measured_by < basis.equals {
            true => format!("the faster {} of {} peers", basis.measured_by, basis.equals),
            false => format!("{} peers", basis.equals),
        };
        format!(
            "Slow{since}: up to {} lost (estimate: {which} {:.0} MHz, median {:.0} and MAD {:.0} of {equals}). Why: {why}. {}.",
            percent(loss.lost_pct),
            loss.clock_mhz,
            basis.median_mhz,
            basis.mad_mhz,
            cause.remedy()
        )
    }
}

/// "Limited: SM clock 1410 MHz, 29 % below its maximum of 1980 MHz. Why: thermal slowdown at 91 °C. Improve the cooling …"
fn below_own_words(gpu: &Gpu, below: &BelowOwnClock) -> String {
    let BelowOwnClock { clock_mhz, own_mhz, basis, below_pct, cause } = below;
    let temp = gpu.get(Reading::Temp).filter(|_| cause.is_any(reasons::THERMAL));
    let temp = temp.map_or_else(String::new, |temp| format!(" at {temp:.0} °C"));
    format!(
        "Limited: SM clock {clock_mhz:.0} MHz, {} below its {basis} of {own_mhz:.0} MHz. Why: {cause}{temp}. {}.",
        percent(*below_pct),
        cause.remedy()
    )
}

/// The limits that slow a GPU down, as text; `None` for an exporter without them.
pub fn limits(gpu: &Gpu) -> Option<String> {
    let bits = gpu.sample.reasons?;
    let faults: Vec<_> = reasons::active(reasons::faults(bits)).map(ActiveReason::name).collect();
    if !faults.is_empty() {
        return Some(faults.join(", "));
    }
    let harmless: Vec<_> = reasons::active(bits).map(ActiveReason::name).collect();
    Some(if harmless.is_empty() { "none".to_owned() } else { harmless.join(", ") })
}

fn lost(row: &GpuVerdict) -> f64 {
    let below_own = row.below_own_clock.map_or(0.0, |below| below.below_pct);
    row.loss.map_or(below_own, |loss| loss.lost_pct)
}

/// Slow GPUs first, because their loss is known. Then those with errors, the most severe first.
fn rank(row: &GpuVerdict) -> (State, Reverse<usize>) {
    (row.state, Reverse(row.faults.iter().filter(|fault| fault.matters()).count()))
}

/// The result of comparing each GPU with its peers: the loss of a slow one, or why it was not compared.
fn losses(snapshot: &Snapshot) -> BTreeMap<usize, Result<Option<Loss>, NotCompared>> {
    let gpus = &snapshot.gpus;
    let mut found = BTreeMap::new();
    for group in groups(snapshot) {
        let bases = Measure::ALL.map(|measure| {
            let clocks: Vec<f64> = group.iter().filter_map(|i| gpus[*i].get(measure.reading())).collect();
            (measure, Basis::from_clocks(&clocks), clocks.len())
        });
        let centre = |reading| {
            let values: Vec<f64> = group.iter().filter_map(|i| gpus[*i].get(reading)).collect();
            median(&values)
        };
        let (equals_temp_c, equals_power_w) = (centre(Reading::Temp), centre(Reading::Power));
        for at in &group {
            let gpu = &gpus[*at];
            let compared = if gpu.get(Reading::SmClock).is_none() {
                Err(NotCompared::NoClock)
            } else if bases[0].1.is_none() {
                Err(NotCompared::FewEquals(bases[0].2))
            } else {
                let loss = bases.iter().filter_map(|(measure, basis, _)| {
                    let (basis, mhz) = ((*basis)?, gpu.get(measure.reading())?);
                    basis.is_slow(mhz).then(|| Loss {
                        measure: *measure,
                        clock_mhz: mhz,
                        lost_pct: basis.lost_pct(mhz),
                        cause: Cause::from_reasons(gpu.sample.reasons),
                        equals_temp_c,
                        equals_power_w,
                        basis,
                    })
                });
                Ok(loss.max_by(|a, b| a.lost_pct.total_cmp(&b.lost_pct)))
            };
            found.insert(*at, compared);
        }
    }
    found
}

fn row(
    snapshot: &Snapshot,
    at: usize,
    losses: &BTreeMap<usize, Result<Option<Loss>, NotCompared>>,
) -> GpuVerdict {
    let gpu = &snapshot.gpus[at];
    let age_s = snapshot.age_s(gpu);
    let faults = Fault::all(gpu);
    let is_silent = snapshot.is_silent(gpu);
    let busy = is_busy(gpu);
    let (loss, not_compared) = match (is_silent, busy, losses.get(&at)) {
        (true, ..) | (_, Some(false), _) => (None, None),
        (_, None, _) => (None, Some(NotCompared::NoUtilisation)),
        (_, _, Some(Ok(loss))) => (*loss, None),
        (_, _, Some(Err(why))) => (None, Some(*why)),
        (_, _, None) => (None, Some(NotCompared::OtherWork)),
    };
    let is_limited = gpu.sample.reasons.is_some_and(|bits| reasons::faults(bits) != 0);
    let below_own_clock = BelowOwnClock::measure(gpu).filter(|_| busy == Some(true) && !is_silent);
    let state = match (busy, not_compared) {
        _ if loss.is_some() => State::Slow,
        _ if is_silent => State::Silent,
        _ if faults.iter().any(|fault| fault.matters()) => State::Errors,
        (Some(false), _) => State::Idle,
        _ if is_limited || below_own_clock.is_some() => State::Limited,
        (None, _) | (_, Some(NotCompared::NoClock)) => State::Unknown,
        (Some(true), _) => State::Working,
    };
    GpuVerdict { at, state, loss, below_own_clock, not_compared, faults, age_s }
}

/// Limits that most GPUs of a model have, so that their median is that of a limited clock.
fn common_limits(snapshot: &Snapshot) -> Vec<String> {
    let gpus = &snapshot.gpus;
    let mut remarks = Vec::new();
    for group in groups(snapshot).iter().filter(|group| group.len() >= MIN_PEERS) {
        let limited = |bit: u64| {
            group
                .iter()
                .filter(|i| gpus[**i].sample.reasons.is_some_and(|bits| reasons::faults(bits) & bit != 0))
                .count()
        };
        for reason in reasons::REASONS.iter().filter(|reason| reason.fault) {
            let n = limited(reason.bit);
            if 2 * n > group.len() {
                remarks.push(format!(
                    "{n} of {} {} are limited by {}: their median is limited too",
                    group.len(),
                    gpus[group[0]].short_model(),
                    reason.name
                ));
            }
        }
    }
    remarks
}

/// Models with so many GPUs far below their own clock that their median says little.
fn below_own_clocks(snapshot: &Snapshot, rows: &[GpuVerdict]) -> Vec<String> {
    let gpus = &snapshot.gpus;
    let remark = |group: &Vec<usize>| {
        let below: Vec<BelowOwnClock> =
            rows.iter().filter(|row| group.contains(&row.at)).filter_map(|row| row.below_own_clock).collect();
        let clocks: Vec<f64> = below.iter().map(|below| below.clock_mhz).collect();
        let (first, median) = (below.first()?, median(&clocks)?);
        (3 * below.len() >= group.len() && group.len() >= MIN_PEERS).then(|| {
            format!(
                "{} of {} {} run at {median:.0} MHz (median), far below their {} of {:.0} MHz",
                below.len(),
                group.len(),
                gpus[group[0]].short_model(),
                first.basis,
                first.own_mhz
            )
        })
    };
    groups(snapshot).iter().filter_map(remark).collect()
}

fn without_reasons(gpus: &[Gpu]) -> Option<String> {
    let there = gpus.iter().filter(|gpu| !gpu.sample.is_empty());
    let (all, without) = there
        .fold((0, 0), |(all, without), gpu| (all + 1, without + usize::from(gpu.sample.reasons.is_none())));
    (without > 0).then(|| {
        format!(
            "{without} of {all} GPUs export no clock event reasons: add DCGM_FI_DEV_CLOCKS_EVENT_REASONS to the counters of the exporter (before DCGM 3.3: DCGM_FI_DEV_CLOCK_THROTTLE_REASONS)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::GpuSample;

    fn gpu(i: usize, clock: f64, util: f64, reasons: Option<u64>) -> Gpu {
        let mut sample = GpuSample::new(0)
            .with(Reading::SmClock, clock)
            .with(Reading::GpuUtil, util)
            .with(Reading::Power, 650.0)
            .with(Reading::Temp, 60.0);
        sample.reasons = reasons;
        Gpu {
            key: format!("GPU-{i}"),
            node: format!("n{}", i / 8),
            gpu: (i % 8).to_string(),
            mig: None,
            mig_profile: None,
            uuid: Some(format!("GPU-{i}")),
            pci_bus_id: None,
            model: Some("NVIDIA H100 80GB HBM3".into()),
            driver: None,
            work: None,
            sample,
            errors: Default::default(),
            seen_unix_s: Some(995.0),
            slow_since: None,
            selector: String::new(),
        }
    }

    fn fleet(gpus: Vec<Gpu>) -> Fleet {
        Fleet::new(Snapshot { unix_s: 1000.0, took_ms: 1.0, window_s: 3600.0, gpus, remarks: Vec::new() })
    }

    #[test]
    fn the_slow_one_comes_first_with_its_reason() {
        let mut gpus: Vec<Gpu> = (0..16).map(|i| gpu(i, 1980.0, 98.0, Some(0))).collect();
        gpus[5].sample = gpus[5].sample.with(Reading::SmClock, 1410.0).with_reasons(reasons::SW_POWER_CAP);
        gpus[9].sample = gpus[9]
            .sample
            .with(Reading::SmClock, 1200.0)
            .with(Reading::Temp, 91.0)
            .with_reasons(reasons::SW_THERMAL);
        gpus[12].errors.xid = Some(79);
        gpus[13].sample =
            gpus[13].sample.with(Reading::SmClock, 345.0).with(Reading::GpuUtil, 0.0).with_reasons(1);
        let fleet = fleet(gpus);
        let order: Vec<(usize, State)> = fleet.rows.iter().map(|row| (row.at, row.state)).take(3).collect();
        assert_eq!(order, [(9, State::Slow), (5, State::Slow), (12, State::Errors)]);
        assert_eq!(fleet.rows.last().map(|row| (row.at, row.state)), Some((13, State::Idle)));
        let loss = fleet.rows[1].loss.unwrap();
        assert!((loss.lost_pct - 28.787_878_8).abs() < 1e-6, "{loss:?}");
        assert_eq!((loss.cause.key(), loss.basis.equals), ("power_cap", 15));
        let words = fleet.sentence(&fleet.rows[0]);
        assert!(
            words.contains("thermal slowdown at 91 °C (peers 60)") && words.contains("estimate"),
            "{words}"
        );
        assert!(fleet.sentence(&fleet.rows[2]).contains("fallen off the bus"));
        assert_eq!(
            (fleet.totals.slow, fleet.totals.errors, fleet.totals.idle, fleet.totals.nodes),
            (2, 1, 1, 2)
        );
    }

    #[test]
    fn idle_silent_and_single_gpus_are_not_called_slow() {
        let mut gpus: Vec<Gpu> = (0..8).map(|i| gpu(i, 1980.0, 98.0, None)).collect();
        gpus[1].sample = gpus[1].sample.with(Reading::SmClock, 345.0).with(Reading::GpuUtil, 2.0);
        gpus[2].sample = GpuSample::default();
        gpus[2].seen_unix_s = Some(820.0);
        gpus[3].model = Some("NVIDIA L4".into());
        gpus[3].sample = gpus[3].sample.with(Reading::SmClock, 2000.0);
        // Half of the others' utilisation is other work.
        gpus[4].sample = gpus[4].sample.with(Reading::SmClock, 1400.0).with(Reading::GpuUtil, 40.0);
        let fleet = fleet(gpus);
        let state = |at: usize| fleet.rows.iter().find(|row| row.at == at).unwrap();
        assert_eq!(state(1).state, State::Idle);
        assert_eq!((state(2).state, state(2).age_s), (State::Silent, Some(180.0)));
        assert!(fleet.sentence(state(2)).contains("last scrape 3 min ago"));
        assert_eq!(
            (state(3).state, state(3).not_compared),
            (State::Working, Some(NotCompared::FewEquals(1)))
        );
        assert_eq!(state(4).not_compared, Some(NotCompared::OtherWork));
        assert_eq!(fleet.totals.slow, 0);
        assert!(
            fleet.remarks.iter().any(|remark| remark.contains("7 of 7 GPUs export no clock event reasons"))
        );
    }

    /// Their clocks are spread out without a gap between two groups: peers alone call none of them slow.
    #[test]
    fn hot_gpus_are_named_by_the_clock_of_their_model() {
        let hot = |i: usize| i.is_multiple_of(2);
        let spread = |with_reasons: bool, max_mhz: Option<f64>| {
            let gpus = (0..16).map(|i| {
                let clock = if hot(i) { 1200.0 + 40.0 * i as f64 } else { 1980.0 - 8.0 * i as f64 };
                let bits = if hot(i) { reasons::SW_THERMAL } else { 0 };
                let mut gpu = gpu(i, clock, 98.0, with_reasons.then_some(bits));
                gpu.sample.set(Reading::SmClockMax, max_mhz);
                gpu
            });
            fleet(gpus.collect())
        };
        for fleet in [spread(true, None), spread(false, None), spread(true, Some(1980.0))] {
            for row in &fleet.rows {
                let named = matches!(row.state, State::Slow | State::Limited);
                assert_eq!(named, hot(row.at), "{}: {}", row.at, fleet.sentence(row));
            }
            let remark = "8 of 16 H100 80GB HBM3 run at 1480 MHz (median), far below their";
            assert!(fleet.remarks.iter().any(|text| text.starts_with(remark)), "{:?}", fleet.remarks);
        }
        let fleet = spread(true, Some(1980.0));
        let limited = fleet.rows.iter().find(|row| row.state == State::Limited).unwrap();
        let text = fleet.sentence(limited);
        assert!(
            text.starts_with("Limited: SM clock 1200 MHz, 39 % below its maximum of 1980 MHz."),
            "{text}"
        );
        assert!(text.contains("Why: thermal slowdown at 60 °C. Improve the cooling"), "{text}");
    }

    #[test]
    fn the_clock_of_its_model_tells_a_gpu_without_peers() {
        let mut alone = gpu(0, 900.0, 98.0, None);
        alone.model = Some("NVIDIA L4".into());
        let state = |gpu: Gpu| fleet(vec![gpu]).rows[0].state;
        assert_eq!(state(alone.clone()), State::Limited);
        alone.sample = alone.sample.with(Reading::GpuUtil, 40.0);
        assert_eq!(state(alone.clone()), State::Working, "it may rest between two programs");
        alone.model = Some("GPU of another maker".into());
        alone.sample = alone.sample.with(Reading::GpuUtil, 98.0);
        assert_eq!(state(alone), State::Working, "its clock is not known");
    }

    #[test]
    fn jobs_are_compared_with_themselves() {
        let mut gpus: Vec<Gpu> = (0..16).map(|i| gpu(i, 1980.0, 98.0, Some(0))).collect();
        for gpu in &mut gpus[8..] {
            gpu.work = Some("train".into());
            gpu.sample = gpu.sample.with(Reading::SmClock, 1400.0).with_reasons(reasons::SW_POWER_CAP);
        }
        let fleet = fleet(gpus);
        assert_eq!(
            (fleet.totals.slow, fleet.totals.limited),
            (0, 8),
            "a job that is limited as a whole has no slow GPU"
        );
        assert!(
            fleet.remarks[0].contains("8 of 8 H100 80GB HBM3 are limited by power cap"),
            "{:?}",
            fleet.remarks
        );
    }

    #[test]
    fn orders_put_missing_values_last() {
        let mut gpus: Vec<Gpu> = (0..4).map(|i| gpu(i, 1900.0 + i as f64, 98.0, Some(0))).collect();
        gpus[0].sample.set(Reading::SmClock, None);
        let fleet = fleet(gpus);
        let in_order = |order, reversed| {
            fleet.sorted(order, reversed).into_iter().map(|i| fleet.rows[i].at).collect::<Vec<_>>()
        };
        assert_eq!(in_order(Order::Clock, false), [1, 2, 3, 0]);
        assert_eq!(in_order(Order::Clock, true), [3, 2, 1, 0]);
        assert_eq!(in_order(Order::Node, false), [0, 1, 2, 3]);
        assert_eq!(in_order(Order::Node, true), [3, 2, 1, 0]);
        for order in Order::ALL {
            assert_eq!(in_order(order, false).len(), 4, "{order}");
        }
    }
}
