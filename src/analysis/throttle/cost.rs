//! What a limit cost: measured where the run itself shows it, estimated from the clock where it does not.

use super::{Account, Free, Held, Ledger, Limit, Work};
use crate::base::units::percent;
use crate::event::GpuInfo;

/// What the workload is made of, as far as it tells what it waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    pub batch: u32,
    pub prompt_tokens: u32,
}

/// What a kind of work waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The part of the clock's loss that the work loses: 1 where it follows the clock, 0 where it does not at all.
    pub follows_clock: f64,
    /// Why that is believed.
    pub basis: String,
}

/// Fewer tokens on either side say nothing of a difference.
const ENOUGH_TOKENS: u64 = 30;
/// The same of whole prefills.
const ENOUGH_PREFILLS: u64 = 8;
/// A clock that was free for less than this may have been on its way.
const FREE_NS: f64 = 1e9;
/// A pipe that is busy for less than this is not what the work waits for.
const BUSY_PIPE_PCT: f64 = 40.0;
/// So many rows at once and a multiplication by the weights is bound by compute on any card of today.
const MANY_ROWS: u32 = 256;
/// What is assumed of work that waits for memory where no counter tells.
const ASSUMED_SHARE: f64 = 0.2;

/// What `work` waits for: by activity counters, else by the shape of the workload, else by the use of memory.
pub fn bound(work: Work, account: &Account, workload: Option<Workload>) -> Bound {
    if let (Some(tensor), Some(dram)) = (account.tensor_pct.value(), account.dram_pct.value()) {
        let seen = format!("tensor pipe {}, DRAM {} by activity counters", percent(tensor), percent(dram));
        return match () {
            () if dram > tensor && dram >= BUSY_PIPE_PCT => Bound {
                follows_clock: (1.0 - dram / 100.0).clamp(0.0, 1.0),
                basis: format!("memory-bound ({seen}): it loses with the clock only while memory rests"),
            },
            () if tensor >= BUSY_PIPE_PCT => Bound {
                follows_clock: 1.0,
                basis: format!("compute-bound ({seen}): it loses all that the clock loses"),
            },
            () => Bound {
                follows_clock: 1.0,
                basis: format!("neither pipe is busy ({seen}): it is taken to lose all that the clock loses"),
            },
        };
    }
    let rows = workload.map(|of| match work {
        Work::Prefill => of.batch.saturating_mul(of.prompt_tokens),
        _ => of.batch,
    });
    let by_shape = |rows: u32| match rows >= MANY_ROWS {
        true => Bound {
            follows_clock: 1.0,
            basis: format!(
                "compute-bound by its shape ({rows} tokens at once): it loses all that the clock loses"
            ),
        },
        false if f64::from(rows) > ASSUMED_SHARE * f64::from(MANY_ROWS) => {
            let share = f64::from(rows) / f64::from(MANY_ROWS);
            let basis = format!(
                "between memory- and compute-bound by its shape ({rows} tokens at once): {} of the clock's loss are \
                 assumed",
                percent(100.0 * share)
            );
            Bound { follows_clock: share, basis }
        }
        false => Bound {
            follows_clock: ASSUMED_SHARE,
            basis: format!(
                "memory-bound by its shape ({}): a fifth of the clock's loss is assumed",
                if rows == 1 { "one token at once".to_owned() } else { format!("{rows} tokens at once") }
            ),
        },
    };
    match (rows, work, account.mem_util_pct.value()) {
        (Some(rows), ..) => by_shape(rows),
        (None, Work::Prefill, _) => Bound {
            follows_clock: 1.0,
            basis: "a prefill is taken to be compute-bound: it loses all that the clock loses".to_owned(),
        },
        (None, Work::Decode, _) => Bound {
            follows_clock: ASSUMED_SHARE,
            basis: "a decode is taken to be memory-bound: a fifth of the clock's loss is assumed".to_owned(),
        },
        (None, _, Some(used)) if used >= BUSY_PIPE_PCT => Bound {
            follows_clock: ASSUMED_SHARE,
            basis: format!(
                "memory is used {} of the time: a fifth of the clock's loss is assumed",
                percent(used)
            ),
        },
        _ => Bound {
            follows_clock: 1.0,
            basis: "what it waits for is not known: it is taken to lose all that the clock loses".to_owned(),
        },
    }
}

/// What is compared with: a fault with the time without faults, everything else with the time without anything.
fn without(account: &Account, limit: Limit) -> &Free {
    if limit.fault() == Some(true) { &account.faultless } else { &account.clear }
}

/// The clock without the limit, and where it was seen. One that is below the clock under it was held by something
/// else: it is not taken.
pub fn free_clock(
    ledger: &Ledger,
    work: Work,
    limit: Limit,
    held: &Held,
    info: &GpuInfo,
) -> Option<(f64, String)> {
    let least = held.clock_mhz.value()?;
    let seen = |work: Work| {
        let free = without(ledger.of(work), limit).clock_mhz;
        let mhz = free.value().filter(|mhz| free.weight() >= FREE_NS && *mhz >= 0.995 * least)?;
        Some((mhz, format!("seen in {} without it", work.name())))
    };
    let others = [Work::Decode, Work::Prefill, Work::Busy].into_iter().filter_map(seen);
    let maximum = || {
        let mhz = f64::from(info.sm_clock_max_mhz?);
        (mhz >= least).then(|| (mhz, "the card's maximum".to_owned()))
    };
    seen(work).or_else(|| others.max_by(|a, b| a.0.total_cmp(&b.0))).or_else(maximum)
}

/// A limit's cost to a kind of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// Speed lost while it held, from 0 to 1.
    pub while_held: f64,
    pub basis: String,
}

/// What `limit` takes from `work` while it holds; `None` where nothing tells.
pub fn cost(
    ledger: &Ledger,
    work: Work,
    (limit, held): (Limit, &Held),
    info: &GpuInfo,
    workload: Option<Workload>,
) -> Option<Cost> {
    let account = ledger.of(work);
    let free_tokens = without(account, limit).tokens;
    let enough = if work == Work::Prefill { ENOUGH_PREFILLS } else { ENOUGH_TOKENS };
    if let (Some(with), Some(without)) = (held.tokens.mean_ms(), free_tokens.mean_ms())
        && held.tokens.n.min(free_tokens.n) >= enough
    {
        let what = if work == Work::Prefill { "prefill" } else { "token" };
        let basis = format!(
            "measured: {with:.2} ms a {what} while it held (n={}), {without:.2} ms without (n={})",
            held.tokens.n, free_tokens.n
        );
        return Some(Cost { while_held: (1.0 - without / with).max(0.0), basis });
    }
    let clock = held.clock_mhz.value()?;
    let (free, seen) = free_clock(ledger, work, limit, held, info)?;
    let bound = bound(work, account, workload);
    let longer = bound.follows_clock * (free / clock - 1.0).max(0.0);
    let basis = format!("estimated: {}; the clock without it is {free:.0} MHz, {seen}", bound.basis);
    Some(Cost { while_held: 1.0 - 1.0 / (1.0 + longer), basis })
}

/// The bit that says why a hardware slowdown is there, where it holds at the same time.
pub fn is_explained(account: &Account, limit: Limit) -> bool {
    use crate::event::reasons::{HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL};
    let held = |limit: Limit| {
        account.limits.iter().find(|(of, _)| *of == limit).map_or(0.0, |(_, held)| held.sampled_ns)
    };
    limit == Limit::Bit(HW_SLOWDOWN)
        && held(Limit::Bit(HW_THERMAL)) + held(Limit::Bit(HW_POWER_BRAKE)) >= 0.9 * held(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(tensor: Option<f64>, dram: Option<f64>) -> Account {
        let mut account = Account::default();
        tensor.into_iter().for_each(|pct| account.tensor_pct.add(pct, 1.0));
        dram.into_iter().for_each(|pct| account.dram_pct.add(pct, 1.0));
        account
    }

    #[test]
    fn work_follows_the_clock_as_far_as_it_does_not_wait_for_memory() {
        let follows = |work, account: &Account, workload| bound(work, account, workload).follows_clock;
        let run = Some(Workload { batch: 1, prompt_tokens: 2048 });
        assert_eq!(follows(Work::Prefill, &account(Some(93.0), Some(17.0)), run), 1.0);
        assert!((follows(Work::Decode, &account(Some(3.0), Some(80.0)), run) - 0.2).abs() < 1e-9);
        assert_eq!(follows(Work::Prefill, &account(None, None), run), 1.0);
        assert_eq!(follows(Work::Decode, &account(None, None), run), ASSUMED_SHARE);
        let crowd = Some(Workload { batch: 512, prompt_tokens: 16 });
        assert_eq!(follows(Work::Decode, &account(None, None), crowd), 1.0);
        assert_eq!(follows(Work::Busy, &account(Some(5.0), Some(10.0)), None), 1.0);
    }
}
