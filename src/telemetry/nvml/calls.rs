//! The calls that a look is made of: what each reads, how often it is made, what it costs.

use std::time::{Duration, Instant};

use nvml_wrapper::{
    Device, Nvml,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::device::SampleValue,
    error::{Bits, NvmlError},
    structs::device::FieldId,
};

use super::{
    gpm::{self, Gpm},
    trouble::{explained, is_lost, is_refusal},
};
use crate::{
    analysis::distribution::Distribution,
    event::{CallCost, GpuInfo, GpuSample, Refused, readings::Reading},
    telemetry::Tier,
};

/// Field ids as NVML 12 numbers them; the wrapper translates them for a driver that numbers otherwise.
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
pub(super) enum What {
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

impl What {
    const ALL: [What; 12] = [
        What::Utilisation,
        What::Memory,
        What::Clocks,
        What::Instant,
        What::AveragePower,
        What::Temperature,
        What::Reasons,
        What::Gpm,
        What::LimitCounters,
        What::SlowdownCounters,
        What::Energy,
        What::Health,
    ];

    fn name(self) -> &'static str {
        match self {
            What::Utilisation => "utilisation",
            What::Memory => "memory",
            What::Clocks => "clocks",
            What::Instant => "instant power, cap",
            What::AveragePower => "average power",
            What::Temperature => "temperature",
            What::Reasons => "clock event reasons",
            What::Gpm => "GPM",
            What::LimitCounters => "limit counters",
            What::SlowdownCounters => "slowdown counters",
            What::Energy => "energy",
            What::Health => "limits, fan, PCIe, ECC",
        }
    }

    fn tier(self) -> Tier {
        match self {
            What::Gpm => Tier::Gpm,
            What::LimitCounters | What::SlowdownCounters | What::Energy | What::Health => Tier::Slow,
            _ => Tier::Fast,
        }
    }
}

/// A call and how it has fared on one card.
struct Call {
    what: What,
    tier: Tier,
    took: Distribution,
    /// Times in a row that it took too long for its tier.
    too_long: u32,
}

/// So many times in a row, and a call moves to a slower tier.
const PATIENCE: u32 = 5;

/// The longest that a call of this tier may take.
fn allowance(tier: Tier) -> Duration {
    match tier {
        Tier::Fast | Tier::Gpm => Duration::from_millis(3),
        Tier::Slow => Duration::from_millis(30),
        Tier::Rare => Duration::MAX,
    }
}

/// Every call on one card.
pub(super) struct Calls {
    calls: Vec<Call>,
    gpm: Gpm,
    /// Processes are asked for by whoever wants them.
    listing: Distribution,
    spent: Duration,
    remarks: Vec<String>,
}

impl Calls {
    pub(super) fn new() -> Calls {
        let call = |what: What| Call { what, tier: what.tier(), took: Distribution::default(), too_long: 0 };
        Calls {
            calls: What::ALL.map(call).into(),
            gpm: Gpm::default(),
            listing: Distribution::default(),
            spent: Duration::ZERO,
            remarks: Vec::new(),
        }
    }

    /// A listing of processes took so long.
    pub(super) fn listed(&mut self, took: Duration) {
        self.spent += took;
        self.listing.record(took.as_nanos() as u64);
    }

    /// The same calls without what the first round cost: it loads and starts things.
    pub(super) fn afresh(self) -> Calls {
        Calls { gpm: self.gpm, ..Calls::new() }
    }

    /// How many calls `tier` has now.
    pub(super) fn count(&self, tier: Tier) -> usize {
        self.calls.iter().filter(|call| call.tier == tier).count()
    }

    /// Makes the calls of `tier` into `sample`; with `only`, the one at that place among them.
    pub(super) fn make(
        &mut self,
        tier: Tier,
        only: Option<usize>,
        card: &mut Asking<'_>,
        sample: &mut GpuSample,
    ) {
        let due: Vec<usize> = (0..self.calls.len()).filter(|i| self.calls[*i].tier == tier).collect();
        let chosen = match only {
            Some(place) => due.get(place % due.len().max(1)).into_iter().copied().collect(),
            None => due,
        };
        for i in chosen {
            let started = Instant::now();
            card.call(self.calls[i].what, &mut self.gpm, sample);
            self.account(i, started.elapsed());
        }
    }

    fn account(&mut self, i: usize, took: Duration) {
        self.spent += took;
        let call = &mut self.calls[i];
        call.took.record(took.as_nanos() as u64);
        call.too_long = if took > allowance(call.tier) { call.too_long + 1 } else { 0 };
        if call.too_long >= PATIENCE {
            let slower = call.tier.slower();
            self.remarks.push(format!(
                "reading {} takes {:.1} ms now: it is read in the {} tier from here on, not in the {} one",
                call.what.name(),
                took.as_secs_f64() * 1e3,
                slower.name(),
                call.tier.name()
            ));
            (call.tier, call.too_long) = (slower, 0);
        }
    }

    pub(super) fn costs(&self) -> Vec<CallCost> {
        let micros = |ms: Option<f64>| ms.map(|ms| (ms * 1e3) as f32);
        let cost = |(name, tier, took): (&str, Tier, &Distribution)| CallCost {
            call: name.to_owned(),
            tier: tier.name().to_owned(),
            n: took.n(),
            p50_us: micros(took.percentile_ms(50.0)),
            p99_us: micros(took.percentile_ms(99.0)),
        };
        let calls = self.calls.iter().map(|call| (call.what.name(), call.tier, &call.took));
        calls
            .chain([("processes", Tier::Slow, &self.listing)])
            .filter(|(.., took)| took.n() > 0)
            .map(cost)
            .collect()
    }

    /// Time in calls since it was asked last.
    pub(super) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    /// What is to be said since it was asked last.
    pub(super) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }
}

/// Asks a device, and never again for what it has refused.
pub(super) struct Asking<'a> {
    pub(super) nvml: &'static Nvml,
    pub(super) device: Device<'static>,
    pub(super) info: &'a mut GpuInfo,
    pub(super) wsl: bool,
    /// The worst error that was no refusal.
    pub(super) failure: Option<NvmlError>,
}

impl Asking<'_> {
    pub(super) fn ask<T>(
        &mut self,
        reading: &str,
        call: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Option<T> {
        if self.is_lost() || self.has_refused(reading) {
            return None;
        }
        let answer = call(&self.device);
        self.take(reading, answer)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.failure.as_ref().is_some_and(is_lost)
    }

    fn has_refused(&self, reading: &str) -> bool {
        self.info.refused.iter().any(|refused| refused.reading == reading)
    }

    fn take<T>(&mut self, reading: &str, answer: Result<T, NvmlError>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) if is_refusal(&error) => {
                let (reason, remedy) = explained(&error, self.info, self.wsl);
                let remedy = remedy.map(str::to_owned);
                self.info.refused.push(Refused { reading: reading.to_owned(), reason, remedy });
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
        let value = self.ask(reading.label(), call);
        sample.set(reading, value.map(Into::into));
    }

    /// What is read in one call is refused in one.
    fn refuse_alike(&mut self, first: Reading, second: Reading) {
        let refused = self.info.refused.iter().find(|refused| refused.reading == first.label()).cloned();
        if let Some(refused) = refused.filter(|_| !self.has_refused(second.label())) {
            self.info.refused.push(Refused { reading: second.label().to_owned(), ..refused });
        }
    }

    fn call(&mut self, what: What, gpm: &mut Gpm, sample: &mut GpuSample) {
        match what {
            What::Utilisation => {
                let rates = self.ask(Reading::GpuUtil.label(), |device| device.utilization_rates());
                self.refuse_alike(Reading::GpuUtil, Reading::MemUtil);
                sample.set(Reading::GpuUtil, rates.as_ref().map(|rates| f64::from(rates.gpu)));
                sample.set(Reading::MemUtil, rates.as_ref().map(|rates| f64::from(rates.memory)));
            }
            What::Memory => {
                let memory = self.ask(Reading::MemUsed.label(), |device| device.memory_info());
                sample.set(Reading::MemUsed, memory.as_ref().map(|memory| memory.used as f64));
                sample.set(Reading::MemTotal, memory.as_ref().map(|memory| memory.total as f64));
            }
            What::Clocks => {
                self.read(sample, Reading::SmClock, |device| device.clock_info(Clock::SM));
                self.read(sample, Reading::MemClock, |device| device.clock_info(Clock::Memory));
            }
            What::Instant => self.fields(&INSTANT, sample),
            What::AveragePower => {
                let watts = |device: &Device<'_>| device.power_usage().map(|mw| f64::from(mw) / 1e3);
                self.read(sample, Reading::PowerAverage, watts);
                // Where there is no instant power, the average is the power.
                if sample.get(Reading::Power).is_none() && self.has_refused(Reading::Power.label()) {
                    sample.set(Reading::Power, sample.get(Reading::PowerAverage));
                }
            }
            What::Temperature => {
                self.read(sample, Reading::Temp, |device| device.temperature(TemperatureSensor::Gpu));
            }
            What::Reasons => sample.reasons = self.ask("clock event reasons", reason_bits),
            What::Gpm => self.gpm(gpm, sample),
            What::LimitCounters => self.fields(&LIMIT_COUNTERS, sample),
            What::SlowdownCounters => self.fields(&SLOWDOWN_COUNTERS, sample),
            What::Energy => {
                let millijoules = |device: &Device<'_>| device.total_energy_consumption().map(|mj| mj as f64);
                self.read(sample, Reading::Energy, millijoules);
            }
            What::Health => {
                let limit = |device: &Device<'_>| device.enforced_power_limit().map(|mw| f64::from(mw) / 1e3);
                self.read(sample, Reading::PowerLimit, limit);
                // Asked once: it is a dear call, and never says anything else.
                sample.set(Reading::SmClockMax, self.info.sm_clock_max_mhz.map(f64::from));
                self.read(sample, Reading::Fan, |device| device.fan_speed(0));
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

    /// Several fields in one call, each refused by itself.
    fn fields(&mut self, fields: &[(FieldId, Reading)], sample: &mut GpuSample) {
        let wanted: Vec<_> =
            fields.iter().filter(|(_, reading)| !self.has_refused(reading.label())).collect();
        if wanted.is_empty() || self.is_lost() {
            return;
        }
        let ids: Vec<FieldId> = wanted.iter().map(|(id, _)| FieldId(id.0)).collect();
        match self.device.field_values_for(&ids) {
            // The wrapper hands back translated ids, so an answer is known by its place alone.
            Ok(answers) => {
                for ((_, reading), answer) in wanted.into_iter().zip(answers) {
                    let value = answer.and_then(|answer| answer.value).map(|value| number(&value));
                    let value = self.take(reading.label(), value);
                    let scale = if *reading == Reading::Power { 1e-3 } else { 1.0 };
                    sample.set(*reading, value.map(|value| value * scale));
                }
            }
            Err(error) if is_refusal(&error) => {
                for (_, reading) in wanted {
                    self.take::<()>(reading.label(), Err(like(&error)));
                }
            }
            Err(error) => {
                self.take::<()>("fields", Err(error));
            }
        }
    }

    fn gpm(&mut self, gpm: &mut Gpm, sample: &mut GpuSample) {
        if self.is_lost() || self.has_refused("GPM") {
            return;
        }
        match gpm.look(self.nvml, &self.device) {
            Ok(values) => {
                for (reading, value) in values {
                    if !self.has_refused(reading.label()) {
                        let value = self.take(reading.label(), value);
                        sample.set(reading, value);
                    }
                }
            }
            Err(error) if is_refusal(&error) => {
                let (reason, remedy) = match (&error, self.info.mig, &self.info.virtualization) {
                    (NvmlError::NotSupported, None | Some(false), None) => (
                        "GPM needs a data centre GPU, Hopper or newer; ncu reads these counters on any"
                            .to_owned(),
                        None,
                    ),
                    _ => {
                        let (reason, remedy) = explained(&error, self.info, self.wsl);
                        (reason, remedy.map(str::to_owned))
                    }
                };
                let labels = std::iter::once("GPM").chain(gpm::readings().map(Reading::label));
                self.info.refused.extend(labels.map(|label| Refused {
                    reading: label.to_owned(),
                    reason: reason.clone(),
                    remedy: remedy.clone(),
                }));
            }
            Err(error) => {
                self.take::<()>("GPM", Err(error));
            }
        }
    }
}

/// The same refusal for another reading: the wrapper's errors cannot be cloned.
fn like(error: &NvmlError) -> NvmlError {
    match error {
        NvmlError::NoPermission => NvmlError::NoPermission,
        NvmlError::FunctionNotFound | NvmlError::FailedToLoadSymbol(_) => NvmlError::FunctionNotFound,
        _ => NvmlError::NotSupported,
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

/// The mask with the bits that the wrapper has no name for: its lenient call drops them, its strict one
/// refuses them but hands the whole mask over in the error.
fn reason_bits(device: &Device<'_>) -> Result<u64, NvmlError> {
    match device.current_throttle_reasons_strict() {
        Ok(reasons) => Ok(reasons.bits()),
        Err(NvmlError::IncorrectBits(Bits::U64(bits))) => Ok(bits),
        Err(error) => Err(error),
    }
}
