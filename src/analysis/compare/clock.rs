//! Code or heat? What a different clock may have done to a difference in time.

use serde::Serialize;

use super::{
    metric::Bound,
    sample::{LimitShare, Sample},
};
use crate::analysis::interval::Interval;
use crate::base::units::percent;

/// Times that the clocks alone may have multiplied B's by: anything between not at all and in full. A step that waits for
/// memory does not follow the SM clock, one that computes does, and which of them it is nobody has to know.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Heat {
    pub least: f64,
    pub most: f64,
}

impl Heat {
    pub const NONE: Heat = Heat { least: 1.0, most: 1.0 };

    /// What is left of a ratio of times, whatever of it the clocks have done. Of a ratio of rates the other way round.
    ///
    /// Where the clocks differ by more than half the margin, the interval is taken twice as wide first and the margin added
    /// to it: that heat be called code once in twenty times is too often.
    pub fn taken_out_of(self, ratio: Interval, of_rates: bool, margin: f64) -> Interval {
        let (least, most) =
            if of_rates { (1.0 / self.most, 1.0 / self.least) } else { (self.least, self.most) };
        let (low, high) = match self.most / self.least > 1.0 + margin / 2.0 {
            true => {
                let twice = |end: f64| end * end / ratio.estimate;
                (twice(ratio.low) / (1.0 + margin), twice(ratio.high) * (1.0 + margin))
            }
            false => (ratio.low, ratio.high),
        };
        Interval { estimate: ratio.estimate, low: low / most, high: high / least }
    }
}

/// What is known of the clocks in the work that decides a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clock {
    /// It decides nothing, or there is no card.
    Irrelevant,
    Known {
        a_mhz: f64,
        b_mhz: f64,
        heat: Heat,
    },
    /// Not read, or too seldom.
    Unknown,
}

/// Limits that held for so much more of one run than of the other are a reason by themselves.
const APART: f64 = 0.1;

/// Cycles of one kind of card say nothing of another's.
pub fn same_card(a: &Sample, b: &Sample) -> bool {
    let name = |sample: &Sample| sample.facts.gpu.as_ref().map(|gpu| gpu.name.clone());
    name(a) == name(b)
}

pub fn clock(a: &Sample, b: &Sample, bound: Bound) -> Clock {
    let known = match bound {
        Bound::Nothing => return Clock::Irrelevant,
        _ if !same_card(a, b) => return Clock::Irrelevant,
        _ if a.facts.gpu.is_none() && b.facts.gpu.is_none() => return Clock::Irrelevant,
        // Where prefills were too short to be seen, the clock of the decode is the best there is.
        Bound::Prefill => {
            let seen = a.clocks.prefill_sm_mhz.zip(b.clocks.prefill_sm_mhz);
            seen.or_else(|| a.clocks.decode_sm_mhz.zip(b.clocks.decode_sm_mhz))
        }
        Bound::Decode => a.clocks.decode_sm_mhz.zip(b.clocks.decode_sm_mhz),
    };
    let Some((a_mhz, b_mhz)) = known else { return Clock::Unknown };
    let memory = match bound {
        Bound::Decode => a.clocks.decode_mem_mhz.zip(b.clocks.decode_mem_mhz).map_or(1.0, |(x, y)| x / y),
        _ => 1.0,
    };
    let sm = a_mhz / b_mhz;
    let heat = Heat { least: sm.min(memory).min(1.0), most: sm.max(memory).max(1.0) };
    Clock::Known { a_mhz, b_mhz, heat }
}

/// "power cap 41 % against 3 %": the limit whose shares of the phase are furthest apart, B's first.
pub fn limits_apart(a: &Sample, b: &Sample, bound: Bound) -> Option<String> {
    let phase = match bound {
        Bound::Prefill => "prefill",
        Bound::Decode => "decode",
        Bound::Nothing => return None,
    };
    let share = |sample: &Sample, name: &str| {
        let of = |limit: &&LimitShare| limit.phase == phase && limit.limit == name;
        sample.limits.iter().find(of).map_or(0.0, |limit| limit.share)
    };
    let names =
        a.limits.iter().chain(&b.limits).filter(|limit| limit.phase == phase).map(|limit| &limit.limit);
    let apart = names.map(|name| (name, share(a, name), share(b, name)));
    let (name, x, y) = apart.max_by(|l, r| (l.1 - l.2).abs().total_cmp(&(r.1 - r.2).abs()))?;
    ((x - y).abs() > APART).then(|| format!("{name} {} against {}", percent(100.0 * y), percent(100.0 * x)))
}
