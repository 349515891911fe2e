//! The cost of a limit: measured if the run itself shows it, otherwise estimated from the clock.

use super::{
    Account, Basis, ClockSensitivity, Cost, FreeClock, GpuActivity, Ledger, Limit, LimitTime, Unlimited,
    basis::BUSY_PIPE_PCT,
};
use crate::peaks::GpuPeaks;
use llmprof_event::{GpuInfo, reasons::GPU_IDLE};

/// The shape of the workload, which determines what it is bound by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    pub batch: u32,
    pub prompt_tokens: u32,
}

/// Fewer tokens with or without a limit do not show a difference.
const MIN_TOKENS: u64 = 30;
/// The same for prefills.
const MIN_PREFILLS: u64 = 8;
/// A shorter time without a limit may not have reached its clock.
const MIN_FREE_NS: f64 = 1e9;

/// How strongly `work` follows the clock: by activity counters, else by the shape of the workload, else by memory
/// utilisation.
pub fn clock_sensitivity(
    work: GpuActivity,
    account: &Account,
    workload: Option<Workload>,
) -> ClockSensitivity {
    if let (Some(tensor), Some(dram)) = (account.tensor_pct.value(), account.dram_pct.value()) {
        return ClockSensitivity::Counters { tensor, dram };
    }
    match (workload, work, account.mem_util_pct.value()) {
        (Some(Workload { batch, prompt_tokens }), GpuActivity::Prefill, _) => {
            ClockSensitivity::Shape { tokens: batch.saturating_mul(prompt_tokens) }
        }
        (Some(Workload { batch, .. }), ..) => ClockSensitivity::Shape { tokens: batch },
        (None, GpuActivity::Prefill, _) => ClockSensitivity::AssumedPrefill,
        (None, GpuActivity::Decode, _) => ClockSensitivity::AssumedDecode,
        (None, _, Some(pct)) if pct >= BUSY_PIPE_PCT => ClockSensitivity::MemoryUtilisation(pct),
        _ => ClockSensitivity::Unknown,
    }
}

/// The reference for a limit: for a fault the time without faults, otherwise the time without any reason.
fn without(account: &Account, limit: Limit) -> &Unlimited {
    if limit.fault() == Some(true) { &account.faultless } else { &account.unlimited }
}

/// The clock without the limit: sampled, else bounded by the GPU's own clocks. A reference below the clock with the
/// limit had another limit and is not used.
pub fn free_clock(
    ledger: &Ledger,
    work: GpuActivity,
    (limit, time): (Limit, &LimitTime),
    info: &GpuInfo,
) -> Option<FreeClock> {
    let limited = time.clock_mhz.value()?;
    let sampled = |work: GpuActivity| {
        let free = without(ledger.account(work), limit).clock_mhz;
        let mhz = free.value().filter(|mhz| free.weight() >= MIN_FREE_NS && *mhz >= 0.995 * limited)?;
        Some((mhz, work))
    };
    let others =
        [GpuActivity::Decode, GpuActivity::Prefill, GpuActivity::Busy].into_iter().filter_map(sampled);
    if let Some((mhz, work)) = sampled(work).or_else(|| others.max_by(|a, b| a.0.total_cmp(&b.0))) {
        return Some(FreeClock::Sampled { mhz, work });
    }
    let max_mhz = info.sm_clock_max_mhz.map(f64::from).filter(|max| *max >= limited)?;
    // A GPU that was sampled at its maximum without load is assumed to reach it.
    let at_maximum = |(mhz, _): &(f64, GpuActivity)| *mhz >= 0.99 * max_mhz;
    let without_load =
        [GpuActivity::Preparing, GpuActivity::Idle].into_iter().filter_map(sampled).find(at_maximum);
    let stated_mhz = GpuPeaks::named(&info.name).and_then(GpuPeaks::core_mhz);
    Some(match without_load {
        Some((mhz, work)) => FreeClock::Sampled { mhz, work },
        None => FreeClock::Bounded { stated_mhz, max_mhz },
    })
}

/// The loss of `work` while the limit is active, and the basis.
pub fn cost(
    ledger: &Ledger,
    work: GpuActivity,
    (limit, time): (Limit, &LimitTime),
    info: &GpuInfo,
    workload: Option<Workload>,
) -> (Option<Cost>, Basis) {
    if !work.is_load() || limit == Limit::Bit(GPU_IDLE) {
        return (None, Basis::NoLoad);
    }
    let account = ledger.account(work);
    let free = &without(account, limit).steps;
    let enough = if work == GpuActivity::Prefill { MIN_PREFILLS } else { MIN_TOKENS };
    let free_clock = free_clock(ledger, work, (limit, time), info);
    // A lower clock costs at most its own loss; the rest has another cause.
    let most = time.clock_mhz.value().zip(free_clock).map(|(limited_mhz, free)| {
        let (_, free_mhz) = free.range(limited_mhz);
        (1.0 - limited_mhz / free_mhz).max(0.0)
    });
    if let Some([(limited_n, limited_ms), (free_n, free_ms)]) = time.steps.compared(free)
        && limited_n.min(free_n) >= enough
    {
        let basis = Basis::Measured { work, limited_ms, limited_n, free_ms, free_n };
        let slower = (1.0 - free_ms / limited_ms).max(0.0);
        return (Some(Cost::exactly(most.map_or(slower, |most| slower.min(most)))), basis);
    }
    let (Some(limited_mhz), Some(free_clock)) = (time.clock_mhz.value(), free_clock) else {
        return (None, Basis::Unknown);
    };
    let sensitivity = clock_sensitivity(work, account, workload);
    let lost = |free_mhz: f64| {
        let longer = sensitivity.share() * (free_mhz / limited_mhz - 1.0).max(0.0);
        1.0 - 1.0 / (1.0 + longer)
    };
    let (least_mhz, most_mhz) = free_clock.range(limited_mhz);
    let cost = Cost { least: lost(least_mhz), most: lost(most_mhz) };
    (Some(cost), Basis::Estimated { sensitivity, free_clock })
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_event::{
        Phase, Stamp,
        readings::{GpuSample, Reading},
        reasons::SW_POWER_CAP,
    };

    fn account(tensor: Option<f64>, dram: Option<f64>) -> Account {
        let mut account = Account::default();
        tensor.into_iter().for_each(|pct| account.tensor_pct.add(pct, 1.0));
        dram.into_iter().for_each(|pct| account.dram_pct.add(pct, 1.0));
        account
    }

    #[test]
    fn work_follows_the_clock_as_far_as_it_is_not_memory_bound() {
        let share = |work, account: &Account, workload| clock_sensitivity(work, account, workload).share();
        let run = Some(Workload { batch: 1, prompt_tokens: 2048 });
        assert_eq!(share(GpuActivity::Prefill, &account(Some(93.0), Some(17.0)), run), 1.0);
        assert!((share(GpuActivity::Decode, &account(Some(3.0), Some(80.0)), run) - 0.2).abs() < 1e-9);
        assert_eq!(share(GpuActivity::Prefill, &account(None, None), run), 1.0);
        assert_eq!(share(GpuActivity::Decode, &account(None, None), run), 0.2);
        let large = Some(Workload { batch: 512, prompt_tokens: 16 });
        assert_eq!(share(GpuActivity::Decode, &account(None, None), large), 1.0);
        assert_eq!(share(GpuActivity::Busy, &account(Some(5.0), Some(10.0)), None), 1.0);
    }

    /// Decode steps of 4 ms at 1980 MHz, then of 5 ms at `capped_mhz` under a power cap, all with the same context: the
    /// loss of speed under the cap.
    fn measured_cost(capped_mhz: f64) -> f64 {
        let mut ledger = Ledger::default();
        ledger.phase(Stamp(0), Phase::Decode);
        for nth in 0..100 {
            let (bits, mhz, step_ns) =
                if nth < 50 { (0, 1980.0, 4_000_000) } else { (SW_POWER_CAP, capped_mhz, 5_000_000) };
            let t = Stamp(nth * 100_000_000);
            ledger.sample(t, &GpuSample::new(0).with(Reading::SmClock, mhz).with_reasons(bits));
            ledger.token(t, false, step_ns, 1, Some(512));
        }
        let limit = Limit::Bit(SW_POWER_CAP);
        let time = ledger.account(GpuActivity::Decode).limit(limit).unwrap();
        let (cost, basis) = cost(&ledger, GpuActivity::Decode, (limit, time), &GpuInfo::default(), None);
        let Basis::Measured { limited_ms, limited_n, free_ms, free_n, .. } = basis else {
            panic!("not measured: {basis}")
        };
        assert_eq!((limited_n, free_n), (50, 50));
        assert!((limited_ms - 5.0).abs() < 1e-9 && (free_ms - 4.0).abs() < 1e-9, "{basis}");
        let cost = cost.unwrap();
        assert_eq!(cost.least, cost.most, "a measured cost is one value");
        cost.most
    }

    #[test]
    fn a_measured_cost_is_at_most_the_loss_of_clock() {
        // Steps of 5 ms instead of 4 ms are a loss of 20 %. A clock that is 0 or 10 % lower does not explain all of it.
        for (capped_mhz, expected) in [(1980.0, 0.0), (1782.0, 0.1), (990.0, 0.2)] {
            let cost = measured_cost(capped_mhz);
            assert!((cost - expected).abs() < 1e-9, "{capped_mhz} MHz: {cost}, not {expected}");
        }
    }
}
