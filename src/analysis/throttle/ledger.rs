//! Where the time went: per kind of work, how long each limit held and what the clock did meanwhile.

use crate::event::{
    Phase, Stamp,
    readings::{GpuSample, Reading},
    reasons,
};

/// What the card was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Work {
    Idle,
    Preparing,
    Prefill,
    Decode,
    /// Someone else's work, or work that no phase was told of.
    Busy,
}

impl Work {
    pub const ALL: [Work; 5] = [Work::Idle, Work::Preparing, Work::Prefill, Work::Decode, Work::Busy];

    pub fn name(self) -> &'static str {
        match self {
            Work::Idle => "idle",
            Work::Preparing => "preparing",
            Work::Prefill => "prefill",
            Work::Decode => "decode",
            Work::Busy => "the work",
        }
    }

    /// Something that a limit could slow down.
    pub fn is_load(self) -> bool {
        matches!(self, Work::Prefill | Work::Decode | Work::Busy)
    }
}

/// Less use than this is no work.
const BUSY_PCT: f64 = 5.0;
/// So much of a window has to lie in one phase to tell of it.
const ONE_PHASE: f64 = 0.8;
/// Looks that lie further apart than this, and than is usual, say nothing of the time between.
const LONGEST_GAP_NS: f64 = 5e9;
/// The same while it is not known what is usual.
const FIRST_GAP_NS: f64 = 60e9;
/// More phases than this between two looks, and nobody looks any more.
const MOST_PHASES: usize = 4096;

/// What holds the clock down: a bit of NVML's mask, or a limit that only has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    Bit(u64),
    Board,
    Reliability,
}

impl Limit {
    pub fn name(self) -> String {
        match self {
            Limit::Bit(bit) => reasons::named(bit).name().into_owned(),
            Limit::Board => "board limit".to_owned(),
            Limit::Reliability => "reliability limit".to_owned(),
        }
    }

    /// Whether it takes speed away that the card was set up to have; `None` where that is not known.
    pub fn fault(self) -> Option<bool> {
        match self {
            Limit::Bit(bit) => match reasons::named(bit) {
                reasons::Found::Known(reason) => Some(reason.fault),
                reasons::Found::Unknown { .. } => None,
            },
            Limit::Board | Limit::Reliability => Some(true),
        }
    }
}

/// The counter of each limit that has one. Of two for the same limit the earlier is taken.
pub const COUNTERS: [(Limit, Reading); 8] = [
    (Limit::Bit(reasons::SW_POWER_CAP), Reading::PowerCapNs),
    (Limit::Bit(reasons::SYNC_BOOST), Reading::SyncBoostNs),
    (Limit::Bit(reasons::SW_THERMAL), Reading::SwThermalNs),
    (Limit::Bit(reasons::HW_THERMAL), Reading::HwThermalNs),
    (Limit::Bit(reasons::HW_POWER_BRAKE), Reading::PowerBrakeNs),
    (Limit::Board, Reading::BoardLimitNs),
    (Limit::Reliability, Reading::ReliabilityNs),
    (Limit::Bit(reasons::SW_THERMAL), Reading::ThermalNs),
];

/// A mean weighted by time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    pub fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }

    pub fn value(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }

    /// What it rests on.
    pub fn weight(self) -> f64 {
        self.weight
    }
}

/// Tokens and the time between them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Tokens {
    pub n: u64,
    pub ns: u64,
}

impl Tokens {
    fn add(&mut self, gap_ns: u64) {
        self.n += 1;
        self.ns += gap_ns;
    }

    pub fn mean_ms(self) -> Option<f64> {
        (self.n > 0).then(|| self.ns as f64 / self.n as f64 / 1e6)
    }
}

/// How long a limit held during one kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Held {
    /// By the looks that found it.
    pub sampled_ns: f64,
    /// By the card's own counter, where it has one, and the time that the counter was read over.
    pub counted_ns: Option<f64>,
    pub covered_ns: f64,
    pub clock_mhz: Mean,
    /// Steps that ended while it held: of a decode, or whole prefills.
    pub tokens: Tokens,
}

/// The work while something did not hold it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Free {
    pub clock_mhz: Mean,
    pub tokens: Tokens,
}

/// One kind of work: its time, and what limited it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Account {
    pub time_ns: f64,
    /// The part of it that a look in the same phase stands for.
    pub seen_ns: f64,
    pub looks: u64,
    pub limits: Vec<(Limit, Held)>,
    /// While no fault held it; clocks that someone set, and what is not known, may have.
    pub faultless: Free,
    /// While nothing held it at all.
    pub clear: Free,
    pub clock_mhz: Mean,
    /// Measured by activity counters, in percent.
    pub tensor_pct: Mean,
    pub dram_pct: Mean,
    pub mem_util_pct: Mean,
    pub power_w: Mean,
    /// What the energy counter said, or the integral of power where there is none.
    pub energy_j: f64,
    /// Tokens of all sequences that went through this work: those of the prompts, or those that came out.
    pub tokens: u64,
}

impl Account {
    /// What is known of `limit` here, to be added to.
    fn held(&mut self, limit: Limit) -> &mut Held {
        let at = match self.limits.iter().position(|(of, _)| *of == limit) {
            Some(at) => at,
            None => {
                self.limits.push((limit, Held::default()));
                self.limits.sort_by_key(|(limit, _)| *limit);
                self.limits.iter().position(|(of, _)| *of == limit).unwrap_or(0)
            }
        };
        &mut self.limits[at].1
    }
}

/// The state at the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    at: Stamp,
    work: Work,
    bits: Option<u64>,
    clock_mhz: Option<f64>,
    power_w: Option<f64>,
}

/// A counter and what happened since it was read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counter {
    last: Option<f64>,
    /// What happened since, per kind of work: the limit was found, there was a look, time passed.
    found: [f64; Work::ALL.len()],
    seen: [f64; Work::ALL.len()],
    time: [f64; Work::ALL.len()],
    /// All the time that it was read over.
    covered: [f64; Work::ALL.len()],
}

/// The energy counter, and the energy that sampled power gives since it was read, per kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct EnergyCounter {
    last: Option<f64>,
    since: [f64; Work::ALL.len()],
}

/// A pure fold of looks, phases and tokens. Its memory does not grow with the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    phase: Phase,
    /// Since when.
    phase_since: Stamp,
    /// When activity counters were read last.
    activity_read: Option<Stamp>,
    /// Some phase was told: what lies between phases is rest, not someone's work.
    phases_told: bool,
    /// The phases since the last look, with their beginnings.
    phases: Vec<(Stamp, Phase)>,
    seen: Option<Seen>,
    accounts: [Account; Work::ALL.len()],
    counters: [Counter; COUNTERS.len()],
    energy: EnergyCounter,
    energy_counted: bool,
    /// How far apart looks are, as a rule.
    usual_gap_ns: Option<f64>,
    /// The best PCIe generation that was seen under load.
    pcie_gen: Option<f64>,
    first: Option<Stamp>,
    last: Stamp,
}

impl Ledger {
    pub fn of(&self, work: Work) -> &Account {
        &self.accounts[work as usize]
    }

    /// The time between the first look and the last.
    pub fn span_s(&self) -> f64 {
        self.first.map_or(0.0, |first| self.last.since(first).as_secs_f64())
    }

    /// Whether the card ever told why its clock is what it is.
    pub fn told_reasons(&self) -> bool {
        self.accounts.iter().any(|account| account.seen_ns > 0.0)
    }

    /// Whether looks told reasons but lie too far apart to stand for the time between.
    pub fn looked_in_vain(&self) -> bool {
        !self.told_reasons() && self.seen.is_some_and(|seen| seen.bits.is_some())
    }

    /// The faults that the last look found.
    pub fn faults_now(&self) -> u64 {
        self.seen.and_then(|seen| seen.bits).map_or(0, reasons::faults)
    }

    /// The PCIe generation under load, where it was told: an idle link saves power in a slower one.
    pub fn pcie_gen_under_load(&self) -> Option<f64> {
        self.pcie_gen
    }

    /// The energy of `work`: as counted, and by sampled power since the counter was read.
    pub fn energy_j(&self, work: Work) -> f64 {
        let tail = if self.energy_counted { self.energy.since[work as usize] } else { 0.0 };
        self.of(work).energy_j + tail
    }

    /// Whether the last look found the card at work.
    pub fn is_loaded(&self) -> bool {
        self.seen.is_some_and(|seen| seen.work.is_load())
    }

    /// Energy comes from the card's counter rather than from sampled power.
    pub fn energy_is_counted(&self) -> bool {
        self.energy_counted
    }

    /// The workload is in `phase` from `t` on.
    pub fn phase(&mut self, t: Stamp, phase: Phase) {
        if phase != self.phase {
            (self.phase, self.phase_since) = (phase, t);
            self.phases_told = true;
            if self.seen.is_some() {
                self.phases.push((t, phase));
            }
            if self.phases.len() > MOST_PHASES {
                // Nobody looks any more.
                (self.seen, self.phases) = (None, Vec::new());
            }
        }
    }

    /// A token came `gap_ns` after the one before, or after the beginning of its request if it is the first. With it
    /// `tokens` were worked on, in all sequences.
    pub fn token(&mut self, t: Stamp, first: bool, gap_ns: u64, tokens: u64, warmup: bool) {
        let work = if first { Work::Prefill } else { Work::Decode };
        let account = &mut self.accounts[work as usize];
        account.tokens += tokens;
        if warmup {
            return;
        }
        // A prefill is judged by a look at itself, not by one at the prefill before.
        let fresh = |seen: &Seen| seen.work == work && (!first || seen.at.0 + gap_ns >= t.0);
        let Some(bits) = self.seen.filter(fresh).and_then(|seen| seen.bits) else {
            return;
        };
        if is_faultless(bits) {
            account.faultless.tokens.add(gap_ns);
        }
        if bits == 0 {
            account.clear.tokens.add(gap_ns);
        }
        for found in reasons::found(bits) {
            account.held(Limit::Bit(found.bit())).tokens.add(gap_ns);
        }
    }

    pub fn sample(&mut self, t: Stamp, sample: &GpuSample) {
        if self.seen.is_some_and(|seen| t < seen.at) {
            // A clock that goes back tells of no time that passed.
            return;
        }
        self.first.get_or_insert(t);
        self.last = self.last.max(t);
        let looked = sample.reasons.is_some() || sample.get(Reading::SmClock).is_some();
        if looked {
            self.look(t, sample);
        }
        self.activity(t, sample);
        for (i, (limit, reading)) in COUNTERS.into_iter().enumerate() {
            if let Some(value) = sample.get(reading) {
                self.count(i, limit, value);
            }
        }
        if let Some(millijoules) = sample.get(Reading::Energy) {
            self.count_energy(millijoules / 1e3);
        }
        if let Some(generation) = sample.get(Reading::PcieGen).filter(|_| self.is_loaded()) {
            self.pcie_gen = Some(self.pcie_gen.map_or(generation, |best| best.max(generation)));
        }
    }

    /// Activity counters tell of the time since they were read last: they count where that was one phase.
    fn activity(&mut self, t: Stamp, sample: &GpuSample) {
        let work = self.seen.map_or(Work::Idle, |seen| seen.work);
        if let Some(value) = sample.get(Reading::MemUtil) {
            self.accounts[work as usize].mem_util_pct.add(value, 1.0);
        }
        let (tensor, dram) = (sample.get(Reading::Tensor), sample.get(Reading::Dram));
        if tensor.is_none() && dram.is_none() {
            return;
        }
        // Of the first one it is not known how far back it reaches.
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

    /// Takes the time since the look before into account, phase by phase.
    fn look(&mut self, t: Stamp, sample: &GpuSample) {
        let idle = self.phases_told || sample.get(Reading::GpuUtil).is_some_and(|pct| pct < BUSY_PCT);
        let work = work_of(self.phase, idle);
        let now = Seen {
            at: t,
            work,
            bits: sample.reasons,
            clock_mhz: sample.get(Reading::SmClock).filter(|mhz| *mhz > 0.0),
            power_w: sample.get(Reading::Power),
        };
        let phases = std::mem::take(&mut self.phases);
        let gap_ns = self.seen.map(|before| t.since(before.at).as_nanos() as f64);
        let too_long = gap_ns.is_some_and(|gap| gap > self.longest_gap_ns());
        if let Some(gap) = gap_ns.filter(|_| !too_long) {
            let usual = self.usual_gap_ns.get_or_insert(gap);
            *usual += (gap - *usual) / 8.0;
        }
        if too_long {
            // What counters grew by meanwhile belongs to a time that is not known.
            for counter in &mut self.counters {
                *counter = Counter { covered: counter.covered, ..Counter::default() };
            }
            (self.energy, self.activity_read) = Default::default();
        }
        if let Some(before) = self.seen.filter(|_| !too_long) {
            let mut from = before.at;
            // What no phase was told of is what the card looked like at its beginning.
            let mut part = before.work;
            for (at, phase) in phases {
                self.spend(part, from, at, &before, &now);
                (from, part) = (at.max(from), work_of(phase, true));
            }
            self.spend(part, from, t, &before, &now);
        }
        self.accounts[work as usize].looks += 1;
        self.seen = Some(now);
    }

    /// Longer without a look, nothing is known of the time between. Whoever looks rarely does so all the time.
    fn longest_gap_ns(&self) -> f64 {
        self.usual_gap_ns.map_or(FIRST_GAP_NS, |usual| LONGEST_GAP_NS.max(3.0 * usual))
    }

    /// The stretch `from..to` was `work`; the looks around it stand for it where they were taken in the same work.
    fn spend(&mut self, work: Work, from: Stamp, to: Stamp, before: &Seen, after: &Seen) {
        let ns = to.since(from).as_nanos() as f64;
        if ns <= 0.0 {
            return;
        }
        let w = work as usize;
        self.accounts[w].time_ns += ns;
        for counter in self.counters.iter_mut() {
            counter.time[w] += ns;
        }
        let witnesses: Vec<&Seen> = [before, after].into_iter().filter(|seen| seen.work == work).collect();
        let part = ns / witnesses.len().max(1) as f64;
        for seen in &witnesses {
            self.witness(w, seen, part);
        }
        // Power moves slowly enough to be taken from whichever look there is.
        let powers: Vec<f64> = if witnesses.is_empty() { vec![before, after] } else { witnesses }
            .into_iter()
            .filter_map(|seen| seen.power_w)
            .collect();
        if !powers.is_empty() {
            let watts = powers.iter().sum::<f64>() / powers.len() as f64;
            self.accounts[w].power_w.add(watts, ns);
            let joules = watts * ns / 1e9;
            self.energy.since[w] += joules;
            if !self.energy_counted {
                self.accounts[w].energy_j += joules;
            }
        }
    }

    fn witness(&mut self, w: usize, seen: &Seen, ns: f64) {
        let account = &mut self.accounts[w];
        if let Some(mhz) = seen.clock_mhz {
            account.clock_mhz.add(mhz, ns);
        }
        let Some(bits) = seen.bits else { return };
        account.seen_ns += ns;
        for (free, holds) in [(&mut account.faultless, is_faultless(bits)), (&mut account.clear, bits == 0)] {
            if let Some(mhz) = seen.clock_mhz.filter(|_| holds) {
                free.clock_mhz.add(mhz, ns);
            }
        }
        for found in reasons::found(bits) {
            let held = account.held(Limit::Bit(found.bit()));
            held.sampled_ns += ns;
            if let Some(mhz) = seen.clock_mhz {
                held.clock_mhz.add(mhz, ns);
            }
        }
        for (counter, (limit, _)) in self.counters.iter_mut().zip(COUNTERS) {
            counter.seen[w] += ns;
            if matches!(limit, Limit::Bit(bit) if bits & bit != 0) {
                counter.found[w] += ns;
            }
        }
    }

    /// A counter stands at `value`: what it grew by is divided over the work since, as the looks found the limit.
    fn count(&mut self, i: usize, limit: Limit, value: f64) {
        // The second counter of a limit only counts where the first is not there.
        let doubled = COUNTERS[..i].iter().position(|(of, _)| *of == limit);
        if doubled.is_some_and(|first| self.counters[first].last.is_some()) {
            return;
        }
        let Some(last) = self.counters[i].last else {
            self.counters[i] =
                Counter { last: Some(value), covered: self.counters[i].covered, ..Counter::default() };
            return;
        };
        let grown = value - last;
        let shares = self.shares(i, limit);
        let total: f64 = shares.iter().sum();
        if grown > 0.0 && total <= 0.0 {
            // No time has passed for it yet: it stays to be divided.
            return;
        }
        let covered = self.counters[i].time;
        self.counters[i] =
            Counter { last: Some(value), covered: self.counters[i].covered, ..Counter::default() };
        if grown < 0.0 {
            return;
        }
        for w in 0..Work::ALL.len() {
            self.counters[i].covered[w] += covered[w];
            let account = &mut self.accounts[w];
            let known = account.limits.iter().any(|(of, _)| *of == limit);
            let counted = if total > 0.0 { grown * shares[w] / total } else { 0.0 };
            if counted > 0.0 || known {
                let held = account.held(limit);
                *held.counted_ns.get_or_insert(0.0) += counted;
                held.covered_ns = self.counters[i].covered[w];
            }
        }
    }

    /// How long the limit is believed to have held in each kind of work since its counter was read.
    fn shares(&self, i: usize, limit: Limit) -> [f64; Work::ALL.len()] {
        let counter = &self.counters[i];
        let believed = |work: Work| {
            let (w, account) = (work as usize, self.of(work));
            let share = match counter.seen[w] > 0.0 {
                true => counter.found[w] / counter.seen[w],
                // Not seen lately: as it was before.
                false => {
                    let before = account.limits.iter().find(|(of, _)| *of == limit);
                    before.map_or(0.0, |(_, held)| held.sampled_ns) / account.seen_ns.max(1.0)
                }
            };
            share * counter.time[w]
        };
        let shares = Work::ALL.map(believed);
        if shares.iter().sum::<f64>() > 0.0 {
            return shares;
        }
        // No look has found it: it lies wherever there was work, or else wherever there was time.
        let load = Work::ALL.map(|work| if work.is_load() { counter.time[work as usize] } else { 0.0 });
        if load.iter().sum::<f64>() > 0.0 { load } else { counter.time }
    }

    fn count_energy(&mut self, joules: f64) {
        let Some(last) = self.energy.last.replace(joules) else {
            self.energy.since = Default::default();
            return;
        };
        let grown = joules - last;
        let total: f64 = self.energy.since.iter().sum();
        if grown < 0.0 {
            // It began anew.
            self.energy.since = Default::default();
            return;
        }
        if total <= 0.0 {
            self.energy.last = Some(last);
            return;
        }
        if !self.energy_counted {
            // From here on the counter is believed; what was integrated before it began stays as it is.
            self.energy_counted = true;
            for (account, since) in self.accounts.iter_mut().zip(self.energy.since) {
                account.energy_j -= since;
            }
        }
        for (account, since) in self.accounts.iter_mut().zip(std::mem::take(&mut self.energy.since)) {
            account.energy_j += grown * since / total;
        }
    }
}

/// No fault holds the clock, and it is not at rest.
fn is_faultless(bits: u64) -> bool {
    reasons::faults(bits) == 0 && bits & reasons::GPU_IDLE == 0
}

/// What the card does in `phase`; where there is none, `idle` tells work from rest.
fn work_of(phase: Phase, idle: bool) -> Work {
    match phase {
        Phase::Preparing => Work::Preparing,
        Phase::Prefill => Work::Prefill,
        Phase::Decode => Work::Decode,
        Phase::Idle if idle => Work::Idle,
        Phase::Idle => Work::Busy,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    fn look(bits: u64, mhz: f64) -> GpuSample {
        GpuSample::of(0)
            .with(Reading::SmClock, mhz)
            .with(Reading::Power, 500.0)
            .with(Reading::GpuUtil, 90.0)
            .with_reasons(bits)
    }

    #[test]
    fn time_goes_to_the_phase_it_was_spent_in() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Prefill);
        for ms in [0, 100, 200] {
            ledger.sample(at(ms), &look(0x4, 1440.0));
        }
        ledger.phase(at(250), Phase::Decode);
        for ms in [300, 400] {
            ledger.sample(at(ms), &look(0, 1980.0));
        }
        let prefill = ledger.of(Work::Prefill);
        assert_eq!((prefill.time_ns, prefill.seen_ns), (250e6, 250e6));
        let (limit, held) = prefill.limits[0];
        assert_eq!((limit, held.sampled_ns), (Limit::Bit(0x4), 250e6));
        assert_eq!((held.clock_mhz.value(), prefill.clear.clock_mhz.value()), (Some(1440.0), None));
        let decode = ledger.of(Work::Decode);
        assert_eq!((decode.time_ns, decode.limits.len()), (150e6, 0));
        assert_eq!(decode.clear.clock_mhz.value(), Some(1980.0));
    }

    #[test]
    fn a_phase_between_two_looks_is_timed_but_not_judged() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Decode);
        ledger.sample(at(0), &look(0, 1980.0));
        ledger.phase(at(10), Phase::Prefill);
        ledger.phase(at(60), Phase::Decode);
        ledger.sample(at(100), &look(0, 1980.0));
        let prefill = ledger.of(Work::Prefill);
        assert_eq!((prefill.time_ns, prefill.seen_ns), (50e6, 0.0));
        assert_eq!(ledger.of(Work::Decode).seen_ns, 50e6);
    }

    #[test]
    fn a_counter_is_divided_as_the_looks_found_the_limit() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Prefill);
        ledger.sample(at(0), &look(0x4, 1440.0).with(Reading::PowerCapNs, 7e9));
        ledger.sample(at(100), &look(0x4, 1440.0));
        ledger.phase(at(100), Phase::Decode);
        ledger.sample(at(200), &look(0, 1980.0).with(Reading::PowerCapNs, 7e9 + 90e6));
        let counted = |work| ledger.of(work).limits.iter().find_map(|(_, held)| held.counted_ns);
        assert_eq!((counted(Work::Prefill), counted(Work::Decode)), (Some(90e6), None));
    }

    #[test]
    fn work_without_phases_is_told_from_rest_by_its_use() {
        let mut ledger = Ledger::default();
        ledger.sample(at(0), &look(0, 1980.0));
        ledger.sample(at(100), &look(0, 1980.0));
        ledger.sample(at(200), &look(0x1, 345.0).with(Reading::GpuUtil, 0.0));
        ledger.sample(at(300), &look(0x1, 345.0).with(Reading::GpuUtil, 0.0));
        assert_eq!((ledger.of(Work::Busy).time_ns, ledger.of(Work::Idle).time_ns), (200e6, 100e6));
    }

    #[test]
    fn energy_comes_from_the_counter_once_there_is_one() {
        let mut ledger = Ledger::default();
        ledger.phase(at(0), Phase::Decode);
        for ms in (0..=2000).step_by(100) {
            let mut sample = look(0, 1980.0);
            if ms % 1000 == 0 {
                sample = sample.with(Reading::Energy, 600.0 * ms as f64);
            }
            ledger.sample(at(ms), &sample);
        }
        assert!(ledger.energy_is_counted());
        assert!((ledger.energy_j(Work::Decode) - 1200.0).abs() < 1e-6, "{}", ledger.energy_j(Work::Decode));
    }

    proptest! {
        /// Whatever comes: time is never spent twice, a limit never holds longer than the work, counters add up.
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
                    let phase = [Phase::Idle, Phase::Preparing, Phase::Prefill, Phase::Decode][usize::from(phase)];
                    ledger.phase(at(ms), phase);
                } else {
                    let mut sample = look(bits, 1500.0);
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
            let spent: f64 = Work::ALL.iter().map(|work| ledger.of(*work).time_ns).sum();
            prop_assert!(spent <= ledger.span_s() * 1e9 + 1.0);
            let mut counted = 0.0;
            for work in Work::ALL {
                let account = ledger.of(work);
                prop_assert!(account.seen_ns <= account.time_ns + 1.0);
                for (limit, held) in &account.limits {
                    prop_assert!(held.sampled_ns <= account.seen_ns + 1.0);
                    if *limit == Limit::Bit(0x4) {
                        counted += held.counted_ns.unwrap_or(0.0);
                    }
                }
            }
            prop_assert!(counted <= cap_ns - first_cap.unwrap_or(cap_ns) + 1.0);
        }
    }
}
