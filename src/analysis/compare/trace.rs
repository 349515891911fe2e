//! Gathers requests one by one as a run goes on, in bounded memory, with the cycles and the energy of each.

use super::{blocks::Blocks, sample::RequestSample};
use crate::event::{
    Phase, Stamp,
    readings::{GpuSample, Reading},
};

/// Looks further apart say nothing of the time between.
const LONGEST_GAP_NS: u64 = 5_000_000_000;

/// Completed requests of a stretch of a run. When there are too many, every second one is kept.
#[derive(Debug, Clone)]
pub struct Trace {
    requests: Vec<RequestSample>,
    most: usize,
    /// Every so many-th request is kept.
    stride: u64,
    measured: u64,
    itl_ns: Option<Blocks>,
    meter: Meter,
    /// What the meter said at the first token of the request under way, and at its last.
    first: Option<Reckoned>,
    last: Option<Reckoned>,
    /// The memory clock's looks during decode: their sum and how many there were.
    mem_clock: (f64, u32),
}

impl Trace {
    /// Keeps at most `most` requests and no gaps between tokens.
    pub fn of_requests(most: usize) -> Trace {
        Trace {
            requests: Vec::new(),
            most: most.max(2),
            stride: 1,
            measured: 0,
            itl_ns: None,
            meter: Meter::default(),
            first: None,
            last: None,
            mem_clock: (0.0, 0),
        }
    }

    /// Keeps the distribution of the gaps too.
    pub fn with_gaps(most: usize) -> Trace {
        Trace { itl_ns: Some(Blocks::default()), ..Trace::of_requests(most) }
    }

    /// A stretch ends, and another begins.
    pub fn restart(&mut self) {
        self.requests.clear();
        (self.stride, self.measured, self.mem_clock) = (1, 0, (0.0, 0));
        self.itl_ns = self.itl_ns.as_ref().map(|_| Blocks::default());
    }

    /// A look at the card that the workload runs on.
    pub fn look(&mut self, t: Stamp, phase: Phase, sample: &GpuSample) {
        self.meter.look(t, sample);
        if let Some(mhz) = sample.get(Reading::MemClock).filter(|_| phase == Phase::Decode) {
            self.mem_clock = (self.mem_clock.0 + mhz, self.mem_clock.1 + 1);
        }
    }

    /// A token of a measured request came `gap_ns` after the one before.
    pub fn token(&mut self, t: Stamp, first: bool, gap_ns: u64) {
        let now = self.meter.at(t);
        if first {
            self.first = now;
        } else if let Some(gaps) = &mut self.itl_ns {
            gaps.record(gap_ns as f64);
        }
        self.last = now;
    }

    /// The workload stood still: what the meter says of the request under way is of no use.
    pub fn disturbed(&mut self) {
        (self.first, self.last) = (None, None);
    }

    /// The measured request under way has ended; `None` when it was not completed.
    pub fn ended(&mut self, request: Option<RequestSample>) {
        let (first, last) = (self.first.take(), self.last.take());
        let Some(request) = request else {
            if let Some(gaps) = &mut self.itl_ns {
                gaps.drop_open();
            }
            return;
        };
        if let Some(gaps) = &mut self.itl_ns {
            gaps.close();
        }
        let spent = first.zip(last).and_then(|(first, last)| last.since(first));
        self.measured += 1;
        if !(self.measured - 1).is_multiple_of(self.stride) {
            return;
        }
        if self.requests.len() == self.most {
            let mut nth = 0;
            self.requests.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.stride *= 2;
        }
        let (decode_mcycles, decode_j) = spent.unwrap_or((None, None));
        self.requests.push(RequestSample { decode_mcycles, decode_j, ..request });
    }

    pub fn requests(&self) -> Vec<RequestSample> {
        // The counter tells how far off sampled power was.
        let scale = self.meter.counted_over_sampled().unwrap_or(1.0);
        let scaled = |request: &RequestSample| RequestSample {
            decode_j: request.decode_j.map(|joules| joules * scale),
            ..*request
        };
        self.requests.iter().map(scaled).collect()
    }

    /// How many requests were completed.
    pub fn measured(&self) -> u64 {
        self.measured
    }

    pub fn itl_ns(&self) -> Option<&Blocks> {
        self.itl_ns.as_ref()
    }

    pub fn mem_clock_mhz(&self) -> Option<f64> {
        (self.mem_clock.1 > 0).then(|| self.mem_clock.0 / f64::from(self.mem_clock.1))
    }
}

/// The SM clock and the power, added up over time as the last look found them.
#[derive(Debug, Clone, Default)]
struct Meter {
    seen: Option<Stamp>,
    mhz: Option<f64>,
    watts: Option<f64>,
    mcycles: f64,
    joules: f64,
    /// How often it lost sight of either.
    lost_clock: u32,
    lost_power: u32,
    /// The energy counter at its last reading, with the sum that was sampled by then.
    counter: Option<(f64, f64)>,
    counted_j: f64,
    sampled_j: f64,
}

/// What the meter stood at.
#[derive(Debug, Clone, Copy)]
struct Reckoned {
    mcycles: Option<f64>,
    joules: Option<f64>,
    lost_clock: u32,
    lost_power: u32,
}

impl Reckoned {
    /// What passed since `earlier`, where nothing was lost between.
    fn since(self, earlier: Reckoned) -> Option<(Option<f64>, Option<f64>)> {
        let grown = |now: Option<f64>, then: Option<f64>, same: bool| {
            now.zip(then).filter(|_| same).map(|(now, then)| now - then).filter(|grown| *grown > 0.0)
        };
        Some((
            grown(self.mcycles, earlier.mcycles, self.lost_clock == earlier.lost_clock),
            grown(self.joules, earlier.joules, self.lost_power == earlier.lost_power),
        ))
    }
}

impl Meter {
    fn look(&mut self, t: Stamp, sample: &GpuSample) {
        let (mhz, watts) = (sample.get(Reading::SmClock), sample.get(Reading::Power));
        if mhz.is_none() && watts.is_none() && sample.get(Reading::Energy).is_none() {
            return;
        }
        let secs = self.seen.map(|seen| t.since(seen)).filter(|gap| gap.as_nanos() as u64 <= LONGEST_GAP_NS);
        match secs {
            Some(gap) => {
                let secs = gap.as_secs_f64();
                self.mcycles += self.mhz.unwrap_or(0.0) * secs;
                self.joules += self.watts.unwrap_or(0.0) * secs;
            }
            None => (self.lost_clock, self.lost_power) = (self.lost_clock + 1, self.lost_power + 1),
        }
        self.seen = Some(t);
        // A look that did not read one of them leaves it as it was.
        self.mhz = mhz.filter(|mhz| *mhz > 0.0).or(self.mhz);
        self.watts = watts.or(self.watts);
        if let Some(millijoules) = sample.get(Reading::Energy) {
            let joules = millijoules / 1e3;
            if let Some((counter, sampled)) = self.counter.filter(|(counter, _)| *counter <= joules) {
                self.counted_j += joules - counter;
                self.sampled_j += self.joules - sampled;
            }
            self.counter = Some((joules, self.joules));
        }
    }

    fn at(&self, t: Stamp) -> Option<Reckoned> {
        let gap = t.since(self.seen?);
        if gap.as_nanos() as u64 > LONGEST_GAP_NS {
            return None;
        }
        let secs = gap.as_secs_f64();
        Some(Reckoned {
            mcycles: self.mhz.map(|mhz| self.mcycles + mhz * secs),
            joules: self.watts.map(|watts| self.joules + watts * secs),
            lost_clock: self.lost_clock,
            lost_power: self.lost_power,
        })
    }

    fn counted_over_sampled(&self) -> Option<f64> {
        (self.counted_j > 0.0 && self.sampled_j > 0.0).then(|| self.counted_j / self.sampled_j)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp(ms * 1_000_000)
    }

    fn request(ms: u64) -> RequestSample {
        RequestSample {
            ttft_ns: 1_000_000,
            decode_ns: ms * 1_000_000,
            steps: 10,
            batch: 1,
            prompt_tokens: 8,
            decode_mcycles: None,
            decode_j: None,
        }
    }

    fn look(mhz: f64, watts: f64) -> GpuSample {
        GpuSample::of(0).with(Reading::SmClock, mhz).with(Reading::Power, watts)
    }

    #[test]
    fn cycles_and_energy_are_those_of_the_decode() {
        let mut trace = Trace::with_gaps(8);
        for ms in (0..=1000).step_by(100) {
            let sample = look(if ms < 500 { 2000.0 } else { 1000.0 }, 400.0);
            trace.look(at(ms), Phase::Decode, &sample.with(Reading::Energy, ms as f64 * 500.0));
            match ms {
                200 => trace.token(at(ms), true, 200_000_000),
                300..=800 => trace.token(at(ms), false, 100_000_000),
                _ => {}
            }
        }
        trace.ended(Some(request(600)));
        let kept = trace.requests()[0];
        // 300 ms at 2000 MHz and 300 ms at 1000 MHz.
        assert!((kept.decode_mcycles.unwrap() - 900.0).abs() < 1e-9, "{kept:?}");
        // The counter says 500 W where the samples say 400.
        assert!((kept.decode_j.unwrap() - 300.0).abs() < 1e-9, "{kept:?}");
        assert_eq!(trace.itl_ns().unwrap().n(), 6);
    }

    #[test]
    fn what_was_not_seen_is_not_there() {
        let mut trace = Trace::of_requests(8);
        trace.token(at(0), true, 0);
        trace.token(at(10), false, 10);
        trace.ended(Some(request(10)));
        trace.look(at(20), Phase::Decode, &look(1000.0, 100.0));
        trace.token(at(30), true, 0);
        trace.look(at(20_000), Phase::Decode, &look(1000.0, 100.0));
        trace.token(at(20_010), false, 10);
        trace.ended(Some(request(10)));
        assert!(trace.requests().iter().all(|kept| kept.decode_mcycles.is_none() && kept.decode_j.is_none()));
    }

    #[test]
    fn of_too_many_requests_every_second_is_kept() {
        let mut trace = Trace::of_requests(64);
        for nth in 0..1000 {
            trace.ended(Some(request(nth + 1)));
            trace.ended(None);
        }
        let kept: Vec<u64> = trace.requests().iter().map(|kept| kept.decode_ns / 1_000_000).collect();
        assert_eq!(trace.measured(), 1000);
        assert!((32..=64).contains(&kept.len()), "{}", kept.len());
        let step = kept[1] - kept[0];
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == step), "{kept:?}");
        trace.restart();
        assert_eq!((trace.measured(), trace.requests().len()), (0, 0));
    }
}
