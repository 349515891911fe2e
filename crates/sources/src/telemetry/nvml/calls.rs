//! The calls of a sample: the readings of each, the tier, and the overhead.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::device::SampleValue,
    error::{Bits, NvmlError},
    structs::device::FieldId,
};

use super::{
    gpm::Gpm,
    trouble::{is_lost, is_refusal, refusal},
};
use crate::telemetry::Tier;
use llmprof_analysis::distribution::Distribution;
use llmprof_event::{CallCost, GpuInfo, GpuSample, Query, Refusal, Refused, readings::Reading};

/// Field ids of NVML 12; the wrapper translates them for drivers with other numbers.
const INSTANT: [(FieldId, Reading); 3] =
    [(FieldId(186), Reading::Power), (FieldId(82), Reading::MemTemp), (FieldId(74), Reading::PowerCapNs)];
const LIMIT_COUNTERS: [(FieldId, Reading); 4] = [
    (FieldId(75), Reading::ThermalNs),
    (FieldId(76), Reading::SyncBoostNs),
    (FieldId(77), Reading::BoardLimitNs),
    (FieldId(79), Reading::ReliabilityNs),
];
const SLOWDOWN_COUNTERS: [(FieldId, Reading); 3] = [
    (FieldId(251), Reading::SwThermalNs),
    (FieldId(252), Reading::HwThermalNs),
    (FieldId(253), Reading::PowerBrakeNs),
];

/// One kind of call, or a few cheap ones that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Utilisation,
    Memory,
    Clocks,
    Instant,
    AveragePower,
    Temperature,
    Reasons,
    Gpm,
    LimitCounters,
    SlowdownCounters,
    Energy,
    Health,
}

/// Every kind of call with its name and its tier.
const CALLS: [(CallKind, &str, Tier); 12] = [
    (CallKind::Utilisation, "utilisation", Tier::Fast),
    (CallKind::Memory, "memory", Tier::Fast),
    (CallKind::Clocks, "clocks", Tier::Fast),
    (CallKind::Instant, "instant power, cap", Tier::Fast),
    (CallKind::AveragePower, "average power", Tier::Fast),
    (CallKind::Temperature, "temperature", Tier::Fast),
    (CallKind::Reasons, "clock event reasons", Tier::Fast),
    (CallKind::Gpm, "GPM", Tier::Gpm),
    (CallKind::LimitCounters, "limit counters", Tier::Slow),
    (CallKind::SlowdownCounters, "slowdown counters", Tier::Slow),
    (CallKind::Energy, "energy", Tier::Slow),
    (CallKind::Health, "limits, fan, PCIe, ECC", Tier::Slow),
];

/// A call and its durations on one GPU.
struct Call {
    kind: CallKind,
    name: &'static str,
    tier: Tier,
    durations: Distribution,
    /// The number of consecutive calls that took too long for the tier.
    too_long: u32,
}

/// After this many consecutive long calls, a call moves to a slower tier.
const MAX_TOO_LONG: u32 = 5;

/// The maximum duration of a call in a tier.
fn allowance(tier: Tier) -> Duration {
    match tier {
        Tier::Fast | Tier::Gpm => Duration::from_millis(3),
        Tier::Slow => Duration::from_millis(30),
        Tier::Rare => Duration::MAX,
    }
}

/// The time range of the utilisation by a process.
const PROCESS_WINDOW: Duration = Duration::from_secs(1);

/// All calls on one GPU.
pub(super) struct Calls {
    calls: Vec<Call>,
    gpm: Gpm,
    /// Durations of listing processes.
    listing: Distribution,
    spent: Duration,
    remarks: Vec<String>,
}

impl Calls {
    pub(super) fn new() -> Calls {
        let call =
            |(kind, name, tier)| Call { kind, name, tier, durations: Distribution::default(), too_long: 0 };
        Calls {
            calls: CALLS.map(call).into(),
            gpm: Gpm::default(),
            listing: Distribution::default(),
            spent: Duration::ZERO,
            remarks: Vec::new(),
        }
    }

    /// Accounts for a listing of processes.
    pub(super) fn listed(&mut self, took: Duration) {
        self.spent += took;
        self.listing.record(took.as_nanos() as u64);
    }

    /// Drops the durations of the first round, which includes initialisation.
    pub(super) fn reset(self) -> Calls {
        Calls { gpm: self.gpm, ..Calls::new() }
    }

    /// The number of calls in `tier`.
    pub(super) fn count(&self, tier: Tier) -> usize {
        self.calls.iter().filter(|call| call.tier == tier).count()
    }

    /// Makes the calls of `tier` and adds their readings to `sample`; with `only`, just the call at that index.
    pub(super) fn make(
        &mut self,
        tier: Tier,
        only: Option<usize>,
        session: &mut QuerySession<'_>,
        sample: &mut GpuSample,
    ) {
        let due: Vec<usize> = (0..self.calls.len()).filter(|i| self.calls[*i].tier == tier).collect();
        let selected = match only {
            Some(index) => due.get(index % due.len().max(1)).into_iter().copied().collect(),
            None => due,
        };
        for i in selected {
            let started = Instant::now();
            session.call(self.calls[i].kind, &mut self.gpm, sample);
            self.account(i, started.elapsed());
        }
    }

    fn account(&mut self, i: usize, took: Duration) {
        self.spent += took;
        let call = &mut self.calls[i];
        call.durations.record(took.as_nanos() as u64);
        call.too_long = if took > allowance(call.tier) { call.too_long + 1 } else { 0 };
        if call.too_long >= MAX_TOO_LONG {
            let slower = call.tier.slower();
            self.remarks.push(format!(
                "reading {} takes {:.1} ms: it moves from the {} tier to the {} tier",
                call.name,
                took.as_secs_f64() * 1e3,
                call.tier.name(),
                slower.name()
            ));
            (call.tier, call.too_long) = (slower, 0);
        }
    }

    pub(super) fn costs(&self) -> Vec<CallCost> {
        let micros = |ms: Option<f64>| ms.map(|ms| (ms * 1e3) as f32);
        let cost = |(name, tier, durations): (&str, Tier, &Distribution)| CallCost {
            call: name.to_owned(),
            tier: tier.name().to_owned(),
            n: durations.n(),
            p50_us: micros(durations.percentile_ms(50.0)),
            p99_us: micros(durations.percentile_ms(99.0)),
        };
        let calls = self.calls.iter().map(|call| (call.name, call.tier, &call.durations));
        calls
            .chain([("processes", Tier::Slow, &self.listing)])
            .filter(|(.., durations)| durations.n() > 0)
            .map(cost)
            .collect()
    }

    /// Time spent in calls since the last request.
    pub(super) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    /// Remarks since the last request.
    pub(super) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }
}

/// Queries a device, and does not repeat refused queries.
pub(super) struct QuerySession<'a> {
    pub(super) nvml: &'static Nvml,
    pub(super) device: Device<'static>,
    pub(super) info: &'a mut GpuInfo,
    pub(super) wsl: bool,
    /// The most severe error that was not a refusal.
    pub(super) failure: Option<NvmlError>,
}

impl QuerySession<'_> {
    pub(super) fn query<T>(
        &mut self,
        query: impl Into<Query>,
        call: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        let query = query.into();
        if self.is_lost() || self.has_refused(query.clone()) {
            return None;
        }
        let answer = call(&self.device);
        self.accept(query, answer)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.failure.as_ref().is_some_and(is_lost)
    }

    fn has_refused(&self, query: impl Into<Query>) -> bool {
        self.info.refusal(query).is_some()
    }

    fn refuse(&mut self, query: impl Into<Query>, reason: Refusal) {
        self.info.refused.push(Refused::new(query, reason));
    }

    fn accept<T>(&mut self, query: impl Into<Query>, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) if is_refusal(&error) => {
                self.refuse(query, refusal(&error, self.info, self.wsl));
                None
            }
            Err(error) => {
                if !self.is_lost() {
                    self.failure = Some(error);
                }
                None
            }
        }
    }

    fn read<T: Into<f64>>(
        &mut self,
        sample: &mut GpuSample,
        reading: Reading,
        call: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) {
        let value = self.query(reading, call);
        sample.set(reading, value.map(Into::into));
    }

    /// The second reading of a call is refused with the first.
    fn refuse_alike(&mut self, first: Reading, second: Reading) {
        let refused = self.info.refusal(first).cloned();
        if let Some(refused) = refused.filter(|_| !self.has_refused(second)) {
            self.info.refused.push(Refused { reading: second.into(), ..refused });
        }
    }

    fn call(&mut self, kind: CallKind, gpm: &mut Gpm, sample: &mut GpuSample) {
        match kind {
            CallKind::Utilisation => {
                let rates = self.query(Reading::GpuUtil, |device| device.utilization_rates());
                self.refuse_alike(Reading::GpuUtil, Reading::MemUtil);
                sample.set(Reading::GpuUtil, rates.as_ref().map(|rates| f64::from(rates.gpu)));
                sample.set(Reading::MemUtil, rates.as_ref().map(|rates| f64::from(rates.memory)));
            }
            CallKind::Memory => {
                let memory = self.query(Reading::MemUsed, |device| device.memory_info());
                sample.set(Reading::MemUsed, memory.as_ref().map(|memory| memory.used as f64));
                sample.set(Reading::MemTotal, memory.as_ref().map(|memory| memory.total as f64));
            }
            CallKind::Clocks => {
                self.read(sample, Reading::SmClock, |device| device.clock_info(Clock::SM));
                self.read(sample, Reading::MemClock, |device| device.clock_info(Clock::Memory));
            }
            CallKind::Instant => self.fields(&INSTANT, sample),
            CallKind::AveragePower => {
                let watts = |device: &Device<'_>| device.power_usage().map(|mw| f64::from(mw) / 1e3);
                self.read(sample, Reading::PowerAverage, watts);
                // Without instant power, the average is the power.
                if sample.get(Reading::Power).is_none() && self.has_refused(Reading::Power) {
                    sample.set(Reading::Power, sample.get(Reading::PowerAverage));
                }
            }
            CallKind::Temperature => {
                self.read(sample, Reading::Temp, |device| device.temperature(TemperatureSensor::Gpu));
            }
            CallKind::Reasons => sample.reasons = self.query(Query::ClockEventReasons, reason_bits),
            CallKind::Gpm => self.gpm(gpm, sample),
            CallKind::LimitCounters => self.fields(&LIMIT_COUNTERS, sample),
            CallKind::SlowdownCounters => self.fields(&SLOWDOWN_COUNTERS, sample),
            CallKind::Energy => {
                let millijoules = |device: &Device<'_>| device.total_energy_consumption().map(|mj| mj as f64);
                self.read(sample, Reading::Energy, millijoules);
            }
            CallKind::Health => {
                let limit = |device: &Device<'_>| device.enforced_power_limit().map(|mw| f64::from(mw) / 1e3);
                self.read(sample, Reading::PowerLimit, limit);
                // Constant, and an expensive call: it was queried once.
                sample.set(Reading::SmClockMax, self.info.sm_clock_max_mhz.map(f64::from));
                self.read(sample, Reading::Fan, |device| device.fan_speed(0));
                self.read(sample, Reading::FanRpm, |device| device.fan_speed_rpm(0));
                self.read(sample, Reading::PcieGen, |device| device.current_pcie_link_gen());
                self.read(sample, Reading::PcieWidth, |device| device.current_pcie_link_width());
                let errors = |kind| {
                    move |device: &Device<'_>| {
                        device.total_ecc_errors(kind, EccCounter::Volatile).map(|n| n as f64)
                    }
                };
                self.read(sample, Reading::EccCorrected, errors(MemoryError::Corrected));
                self.read(sample, Reading::EccUncorrected, errors(MemoryError::Uncorrected));
            }
        }
    }

    /// The mean use of the SMs by each process in percent; absent if the GPU does not report it. Idle processes may be
    /// missing.
    pub(super) fn process_utilisation(&mut self) -> Option<HashMap<u32, u32>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since = now.saturating_sub(PROCESS_WINDOW).as_micros() as u64;
        let samples = self.query(Query::ProcessUtilisation, |device| {
            match device.process_utilization_stats(since) {
                // No process was busy.
                Err(NvmlError::NotFound) => Ok(Vec::new()),
                answer => answer,
            }
        })?;
        let mut samples: Vec<_> = samples.into_iter().filter(|sample| sample.sm_util <= 100).collect();
        samples.sort_by_key(|sample| sample.timestamp);
        Some(samples.into_iter().map(|sample| (sample.pid, sample.sm_util)).collect())
    }

    /// Several fields in one call, each with its own refusal.
    fn fields(&mut self, fields: &[(FieldId, Reading)], sample: &mut GpuSample) {
        let wanted: Vec<_> = fields.iter().filter(|(_, reading)| !self.has_refused(*reading)).collect();
        if wanted.is_empty() || self.is_lost() {
            return;
        }
        let ids: Vec<FieldId> = wanted.iter().map(|(id, _)| FieldId(id.0)).collect();
        match self.device.field_values_for(&ids) {
            // The wrapper returns translated ids, so answers are matched by their order.
            Ok(answers) => {
                for ((_, reading), answer) in wanted.into_iter().zip(answers) {
                    let value = answer.and_then(|answer| answer.value).map(|value| number(&value));
                    let value = self.accept(*reading, value);
                    let scale = if *reading == Reading::Power { 1e-3 } else { 1.0 };
                    sample.set(*reading, value.map(|value| value * scale));
                }
            }
            Err(error) if is_refusal(&error) => {
                let reason = refusal(&error, self.info, self.wsl);
                wanted.into_iter().for_each(|(_, reading)| self.refuse(*reading, reason.clone()));
            }
            Err(error) => {
                self.accept::<()>("fields", Err(error));
            }
        }
    }

    fn gpm(&mut self, gpm: &mut Gpm, sample: &mut GpuSample) {
        if self.is_lost() || self.has_refused(Query::Gpm) {
            return;
        }
        match gpm.sample(self.nvml, &self.device) {
            Ok(values) => {
                for (reading, value) in values {
                    if !self.has_refused(reading) {
                        let value = self.accept(reading, value);
                        sample.set(reading, value);
                    }
                }
            }
            Err(error) if is_refusal(&error) => {
                let reason = match (&error, self.info.mig, &self.info.virtualization) {
                    (NvmlError::NotSupported, None | Some(false), None) => Refusal::NoGpm,
                    _ => refusal(&error, self.info, self.wsl),
                };
                self.refuse(Query::Gpm, reason.clone());
                Reading::GPM.into_iter().for_each(|reading| self.refuse(reading, reason.clone()));
            }
            Err(error) => {
                self.accept::<()>(Query::Gpm, Err(error));
            }
        }
    }
}

fn number(value: &SampleValue) -> f64 {
    match value {
        SampleValue::U32(value) => f64::from(*value),
        SampleValue::U64(value) => *value as f64,
        SampleValue::I64(value) => *value as f64,
        SampleValue::F64(value) => *value,
    }
}

/// The mask including bits that the wrapper does not know: its lenient call drops them, its strict one fails but has the
/// full mask in the error.
fn reason_bits(device: &Device<'_>) -> Result<u64, NvmlError> {
    match device.current_throttle_reasons_strict() {
        Ok(reasons) => Ok(reasons.bits()),
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => Ok(bits),
        Err(error) => Err(error),
    }
}
