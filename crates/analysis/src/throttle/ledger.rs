//! Accounts of the GPU's time: for each kind of work, how long each limit was active and the clock.

use super::{
    Account, COUNTERS, GpuActivity, Limit, LimitTime,
    counter::LimitCounter,
    observation::{Maxima, Observation},
};
use crate::energy::EnergyMeter;
use llmprof_event::{
    Phase, Stamp,
    readings::{GpuSample, Reading},
    reasons,
};

/// An activity counter is attributed to a phase that covers this share of its window.
const ONE_PHASE: f64 = 0.8;
/// Samples further apart than this, and than the usual interval, do not represent the time between them.
const MAX_GAP_NS: f64 = 5e9;
/// The same while the usual interval is not known.
const FIRST_MAX_GAP_NS: f64 = 60e9;
/// With more changes of phase since the last sample, sampling has stopped.
const MAX_PHASES: usize = 4096;

/// A clock below this share of its maximum at full load has a cause, even if the driver reports none. Many GPUs stay some
/// percent below their maximum.
pub(super) const FAR_BELOW: f64 = 0.75;

/// Limits that were active for this share of some work's time, at unknown times, may be disregarded.
const MAX_UNATTRIBUTED: f64 = 0.01;

/// A pure fold of samples, phases and tokens. Its memory does not grow with the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    phase: Phase,
    phase_since: Stamp,
    /// Whether a phase was entered: then time between phases is idle, not external load.
    has_phases: bool,
    /// Whether work may run outside of the known phases; samples decide.
    pub works_outside_phases: bool,
    /// Limits that the samples cannot show, although they show others: a log may have columns for only some of them.
    pub unread_reasons: u64,
    /// Changes of phase since the last sample.
    changes: Vec<(Stamp, Phase)>,
    /// When activity counters were last read.
    activity_read: Option<Stamp>,
    last_sample: Option<Observation>,
    accounts: [Account; GpuActivity::ALL.len()],
    counters: [LimitCounter; COUNTERS.len()],
    energy: EnergyMeter<{ GpuActivity::ALL.len() }>,
    usual_gap_ns: Option<f64>,
    /// The highest PCIe generation under load.
    pcie_gen: Option<f64>,
    maxima: Maxima,
    /// The highest SM clock at full load.
    highest_mhz: f64,
    /// Generated tokens of all sequences, including first ones and warm-up.
    output_tokens: u64,
    first: Option<Stamp>,
    last: Stamp,
}

impl Ledger {
    pub fn account(&self, work: GpuActivity) -> &Account {
        &self.accounts[work as usize]
    }

    /// The time between the first sample and the last.
    pub fn span_s(&self) -> f64 {
        self.first.map_or(0.0, |first| self.last.since(first).as_secs_f64())
    }

    /// Whether the phases of a workload are known.
    pub fn has_phases(&self) -> bool {
        self.has_phases
    }

    /// Whether the GPU has reported clock event reasons.
    pub fn has_reasons(&self) -> bool {
        self.accounts.iter().any(|account| account.sampled_ns > 0.0)
    }

    /// Whether the limits of `work` are known: from `min_samples` samples in it, or from counters that did not
    /// increase. An increase alone does not show in which work a limit was active.
    pub fn knows_limits(&self, work: GpuActivity, min_samples: u64) -> bool {
        let account = self.account(work);
        if account.sampled_ns > 0.0 && account.samples >= min_samples {
            return true;
        }
        let covered = |counter: &LimitCounter| counter.covered[work as usize] > 0.5 * account.time_ns;
        let counted: f64 =
            self.accounts.iter().flat_map(|of| &of.limits).filter_map(|(_, time)| time.counted_ns).sum();
        account.time_ns > 0.0
            && self.counters.iter().any(covered)
            && counted <= MAX_UNATTRIBUTED * account.time_ns
    }

    /// Whether samples have clock event reasons but are too far apart to represent the time between them.
    pub fn is_too_sparse(&self) -> bool {
        !self.has_reasons() && self.last_sample.is_some_and(|sample| sample.reasons.is_some())
    }

    /// The faults in the last sample.
    pub fn current_faults(&self) -> u64 {
        self.last_sample.and_then(|sample| sample.reasons).map_or(0, reasons::faults)
    }

    /// Whether the counters of power cap, thermal slowdown and power brake were read and did not increase.
    pub fn counters_stand_still(&self) -> bool {
        let limits =
            [reasons::SW_POWER_CAP, reasons::SW_THERMAL, reasons::HW_THERMAL, reasons::HW_POWER_BRAKE];
        limits.into_iter().all(|bit| {
            let counters =
                self.counters.iter().zip(COUNTERS).filter(|(_, (limit, _))| *limit == Limit::Bit(bit));
            let grown: Vec<f64> = counters.filter_map(|(counter, _)| counter.grown()).collect();
            !grown.is_empty() && grown.iter().all(|ns| *ns <= 0.0)
        })
    }

    /// The PCIe generation under load, if it was read: an idle link uses a lower one to save power.
    pub fn pcie_gen_under_load(&self) -> Option<f64> {
        self.pcie_gen
    }

    pub fn energy(&self) -> &EnergyMeter<{ GpuActivity::ALL.len() }> {
        &self.energy
    }

    pub fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    /// A step generated `tokens`, in all sequences.
    pub fn generated(&mut self, tokens: u64) {
        self.output_tokens += tokens;
    }

    /// Whether the GPU was under load at the last sample.
    pub fn is_loaded(&self) -> bool {
        self.last_sample.is_some_and(|sample| sample.work.is_load())
    }

    /// The workload is in `phase` from `t` on.
    pub fn phase(&mut self, t: Stamp, phase: Phase) {
        if phase != self.phase {
            (self.phase, self.phase_since) = (phase, t);
            self.has_phases = true;
            if self.last_sample.is_some() {
                self.changes.push((t, phase));
            }
            if self.changes.len() > MAX_PHASES {
                (self.last_sample, self.changes) = (None, Vec::new());
            }
        }
    }

    /// A token arrived `step_ns` after the previous one, or after the start of its request if it is the first. `tokens` were
    /// processed with it, in all sequences. `context` is the length before it, if the duration is to be compared with others.
    pub fn token(&mut self, t: Stamp, first: bool, step_ns: u64, tokens: u64, context: Option<u64>) {
        let work = if first { GpuActivity::Prefill } else { GpuActivity::Decode };
        let account = &mut self.accounts[work as usize];
        account.tokens += tokens;
        let Some(context) = context else { return };
        // A prefill needs its own sample, not one of the previous prefill.
        let represents =
            |sample: &Observation| sample.work == work && (!first || sample.t.0 + step_ns >= t.0);
        if let Some(bits) = self.last_sample.filter(represents).and_then(|sample| sample.reasons) {
            account.add_step(bits, context, step_ns);
        }
    }

    pub fn sample(&mut self, t: Stamp, sample: &GpuSample) {
        if self.last_sample.is_some_and(|last| t < last.t) {
            // The clock was set back, so the elapsed time is not known.
            return;
        }
        self.first.get_or_insert(t);
        self.last = self.last.max(t);
        self.maxima.update(sample);
        if sample.reasons.is_some() || sample.get(Reading::SmClock).is_some() {
            self.observe(t, sample);
        }
        self.add_activity(t, sample);
        for (i, (limit, reading)) in COUNTERS.into_iter().enumerate() {
            if let Some(value) = sample.get(reading) {
                // This counter covers both thermal limits.
                let hardware = reading == Reading::ThermalNs && self.only_hardware_thermal();
                let limit = if hardware { Limit::Bit(reasons::HW_THERMAL) } else { limit };
                self.read_counter(i, limit, value);
            }
        }
        if let Some(millijoules) = sample.get(Reading::Energy) {
            self.energy.read_counter(millijoules / 1e3);
        }
        if let Some(generation) = sample.get(Reading::PcieGen).filter(|_| self.is_loaded()) {
            self.pcie_gen = Some(self.pcie_gen.map_or(generation, |best| best.max(generation)));
        }
    }

    /// Activity counters cover the time since they were last read: they are attributed if that was one phase.
    fn add_activity(&mut self, t: Stamp, sample: &GpuSample) {
        let work = self.last_sample.map_or(GpuActivity::Idle, |last| last.work);
        if let Some(value) = sample.get(Reading::MemUtil) {
            self.accounts[work as usize].mem_util_pct.add(value, 1.0);
        }
        let (tensor, dram) = (sample.get(Reading::Tensor), sample.get(Reading::Dram));
        if tensor.is_none() && dram.is_none() {
            return;
        }
        // The window of the first reading is not known.
        let Some(before) = self.activity_read.replace(t) else { return };
        let window = t.since(before).as_secs_f64();
        let within = t.since(before.max(self.phase_since)).as_secs_f64();
        if within < ONE_PHASE * window {
            return;
        }
        let account = &mut self.accounts[work as usize];
        tensor.into_iter().for_each(|pct| account.tensor_pct.add(pct, within));
        dram.into_iter().for_each(|pct| account.dram_pct.add(pct, within));
    }

    /// Accounts for the time since the last sample, phase by phase.
    fn observe(&mut self, t: Stamp, sample: &GpuSample) {
        let is_between = self.has_phases && !self.works_outside_phases;
        let idle = is_between || self.maxima.is_idle(sample);
        let now = Observation::new(t, GpuActivity::from_phase(self.phase, idle), sample);
        let changes = std::mem::take(&mut self.changes);
        if let Some(before) = self.last_sample {
            let gap = t.since(before.t).as_nanos() as f64;
            if gap > self.max_gap_ns() {
                // The increase of counters belongs to an unknown time.
                self.counters.iter_mut().for_each(LimitCounter::restart);
                self.energy.restart();
                self.activity_read = None;
            } else {
                let usual = self.usual_gap_ns.get_or_insert(gap);
                *usual += (gap - *usual) / 8.0;
                let mut from = before.t;
                // Until the first change, the work is that of the previous sample.
                let mut work = before.work;
                for (change, phase) in changes {
                    self.spend(work, from, change, &before, &now);
                    (from, work) = (change.max(from), GpuActivity::from_phase(phase, idle));
                }
                self.spend(work, from, t, &before, &now);
            }
        }
        self.accounts[now.work as usize].samples += 1;
        self.last_sample = Some(now);
    }

    /// The longest time between samples that they represent. A long sampling interval is accepted if it is the usual
    /// one.
    fn max_gap_ns(&self) -> f64 {
        self.usual_gap_ns.map_or(FIRST_MAX_GAP_NS, |usual| MAX_GAP_NS.max(3.0 * usual))
    }

    /// The time `from..to` was `work`. The samples before and after represent it if they were taken in the same work.
    fn spend(
        &mut self,
        work: GpuActivity,
        from: Stamp,
        to: Stamp,
        before: &Observation,
        after: &Observation,
    ) {
        let ns = to.since(from).as_nanos() as f64;
        if ns <= 0.0 {
            return;
        }
        self.accounts[work as usize].time_ns += ns;
        self.counters.iter_mut().for_each(|counter| counter.add_time(work, ns));
        let representative: Vec<&Observation> =
            [before, after].into_iter().filter(|sample| sample.work == work).collect();
        let part = ns / representative.len().max(1) as f64;
        for sample in &representative {
            self.add_sampled(work, sample, part);
        }
        // Power changes slowly enough to use the samples of other work if there are none of this one.
        let samples = if representative.is_empty() { vec![before, after] } else { representative };
        let powers: Vec<f64> = samples.into_iter().filter_map(|sample| sample.power_w).collect();
        if !powers.is_empty() {
            let watts = powers.iter().sum::<f64>() / powers.len() as f64;
            self.accounts[work as usize].power_w.add(watts, ns);
            self.energy.add(work as usize, watts, ns / 1e9);
        }
    }

    /// The sample represents `ns` of `work`.
    fn add_sampled(&mut self, work: GpuActivity, sample: &Observation, ns: f64) {
        let account = &mut self.accounts[work as usize];
        if let Some(mhz) = sample.clock_mhz {
            account.clock_mhz.add(mhz, ns);
        }
        if let Some(mhz) = sample.mem_clock_mhz.filter(|_| sample.full_load) {
            account.full_load_mem_mhz.add(mhz, ns);
        }
        let Some(bits) = sample.reasons else { return };
        account.add_sampled(bits, sample, ns);
        if let Some(mhz) = sample.clock_mhz.filter(|_| sample.full_load && bits == 0) {
            account.full_load_mhz.add(mhz, ns);
            self.highest_mhz = self.highest_mhz.max(mhz);
            if mhz < FAR_BELOW * self.highest_mhz {
                account.low_mhz.add(mhz, ns);
            }
        }
        for (counter, (limit, _)) in self.counters.iter_mut().zip(COUNTERS) {
            counter.add_sampled(limit, work, bits, ns);
        }
    }

    /// Whether samples found the hardware's thermal slowdown and never the driver's.
    fn only_hardware_thermal(&self) -> bool {
        let found = |bit| self.accounts.iter().any(|account| account.limit(Limit::Bit(bit)).is_some());
        found(reasons::HW_THERMAL) && !found(reasons::SW_THERMAL)
    }

    fn read_counter(&mut self, i: usize, limit: Limit, value: f64) {
        // The second counter of a limit is used only if the first is absent.
        let first = COUNTERS[..i].iter().position(|(of, _)| *of == limit);
        if first.is_some_and(|first| self.counters[first].is_read()) {
            return;
        }
        let prior_share = |work: GpuActivity| {
            let account = &self.accounts[work as usize];
            account.limit(limit).map_or(0.0, |time| time.sampled_ns) / account.sampled_ns.max(1.0)
        };
        let Some(counted) = self.counters[i].read(value, prior_share) else { return };
        for (w, account) in self.accounts.iter_mut().enumerate() {
            if counted[w] > 0.0 || account.limit(limit).is_some() {
                let LimitTime { counted_ns, covered_ns, .. } = account.limit_mut(limit);
                *counted_ns.get_or_insert(0.0) += counted[w];
                *covered_ns = self.counters[i].covered[w];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    fn sample(bits: u64, mhz: f64) -> GpuSample {
        GpuSample::new(0)
            .with(Reading::SmClock, mhz)
            .with(Reading::Power, 500.0)
            .with(Reading::GpuUtil, 90.0)
            .with_reasons(bits)
    }

    #[test]
    fn time_is_attributed_to_its_phase() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Prefill);
        for ms in [0, 100, 200] {
            ledger.sample(at(ms), &sample(0x4, 1440.0));
        }
        ledger.phase(at(250), Phase::Decode);
        for ms in [300, 400] {
            ledger.sample(at(ms), &sample(0, 1980.0));
        }
        let prefill = ledger.account(GpuActivity::Prefill);
        assert_eq!((prefill.time_ns, prefill.sampled_ns), (250e6, 250e6));
        let (limit, time) = prefill.limits[0].clone();
        assert_eq!((limit, time.sampled_ns), (Limit::Bit(0x4), 250e6));
        assert_eq!((time.clock_mhz.value(), prefill.unlimited.clock_mhz.value()), (Some(1440.0), None));
        let decode = ledger.account(GpuActivity::Decode);
        assert_eq!((decode.time_ns, decode.limits.len()), (150e6, 0));
        assert_eq!(decode.unlimited.clock_mhz.value(), Some(1980.0));
    }

    #[test]
    fn a_phase_between_two_samples_has_time_but_no_limits() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Decode);
        ledger.sample(at(0), &sample(0, 1980.0));
        ledger.phase(at(10), Phase::Prefill);
        ledger.phase(at(60), Phase::Decode);
        ledger.sample(at(100), &sample(0, 1980.0));
        let prefill = ledger.account(GpuActivity::Prefill);
        assert_eq!((prefill.time_ns, prefill.sampled_ns), (50e6, 0.0));
        assert_eq!(ledger.account(GpuActivity::Decode).sampled_ns, 50e6);
    }

    #[test]
    fn a_counter_is_divided_by_the_samples_that_found_the_limit() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Prefill);
        ledger.sample(at(0), &sample(0x4, 1440.0).with(Reading::PowerCapNs, 7e9));
        ledger.sample(at(100), &sample(0x4, 1440.0));
        ledger.phase(at(100), Phase::Decode);
        ledger.sample(at(200), &sample(0, 1980.0).with(Reading::PowerCapNs, 7e9 + 90e6));
        let counted = |work| ledger.account(work).limits.iter().find_map(|(_, time)| time.counted_ns);
        assert_eq!((counted(GpuActivity::Prefill), counted(GpuActivity::Decode)), (Some(90e6), None));
    }

    #[test]
    fn load_without_phases_is_recognised_by_utilisation() {
        let mut ledger = Ledger::default();
        ledger.sample(at(0), &sample(0, 1980.0));
        ledger.sample(at(100), &sample(0, 1980.0));
        ledger.sample(at(200), &sample(0x1, 345.0).with(Reading::GpuUtil, 0.0));
        ledger.sample(at(300), &sample(0x1, 345.0).with(Reading::GpuUtil, 0.0));
        assert_eq!(
            (ledger.account(GpuActivity::Busy).time_ns, ledger.account(GpuActivity::Idle).time_ns),
            (200e6, 100e6)
        );
    }

    #[test]
    fn energy_comes_from_the_counter_once_there_is_one() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Decode);
        for ms in (0..=2000).step_by(100) {
            let mut sample = sample(0, 1980.0);
            if ms % 1000 == 0 {
                sample = sample.with(Reading::Energy, 600.0 * ms as f64);
            }
            ledger.sample(at(ms), &sample);
        }
        assert!(ledger.energy().is_counted());
        let joules = ledger.energy().joules(GpuActivity::Decode as usize);
        assert!((joules - 1200.0).abs() < 1e-6, "{joules}");
    }

    proptest! {
        /// Time is never counted twice, a limit is never active for longer than the work, and counters add up.
        #[test]
        fn nothing_is_counted_twice(
            steps in prop::collection::vec((1u64..400, 0u8..4, any::<bool>(), 0u64..0x200, any::<bool>()), 1..80)
        ) {
            let mut ledger = Ledger::default();
            let (mut ms, mut cap_ns) = (0, 0.0);
            let mut first_cap = None;
            for (after_ms, phase, is_phase, bits, with_counter) in steps {
                ms += after_ms;
                if is_phase {
                    ledger.phase(at(ms), Phase::ALL[usize::from(phase)]);
                } else {
                    let mut sample = sample(bits, 1500.0);
                    if bits & 0x4 != 0 {
                        cap_ns += 1e6 * after_ms as f64 / 2.0;
                    }
                    if with_counter {
                        first_cap.get_or_insert(cap_ns);
                        sample = sample.with(Reading::PowerCapNs, cap_ns);
                    }
                    ledger.sample(at(ms), &sample);
                }
            }
            let spent: f64 = GpuActivity::ALL.iter().map(|work| ledger.account(*work).time_ns).sum();
            prop_assert!(spent <= ledger.span_s() * 1e9 + 1.0);
            let mut counted = 0.0;
            for work in GpuActivity::ALL {
                let account = ledger.account(work);
                prop_assert!(account.sampled_ns <= account.time_ns + 1.0);
                for (limit, time) in &account.limits {
                    prop_assert!(time.sampled_ns <= account.sampled_ns + 1.0);
                    if *limit == Limit::Bit(0x4) {
                        counted += time.counted_ns.unwrap_or(0.0);
                    }
                }
            }
            prop_assert!(counted <= cap_ns - first_cap.unwrap_or(cap_ns) + 1.0);
        }
    }
}
