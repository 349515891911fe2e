//! Collects the individual requests of a run, in bounded memory, with the cycles and the energy of each.

use std::time::Duration;

use super::{blocks::BlockHistogram, sample::RequestSample, thinned::Thinned, token_blocks::TokenBlocks};
use crate::energy::EnergyMeter;
use llmprof_event::{
    Phase, Stamp,
    readings::{GpuSample, Reading},
};

/// Samples of the GPU that are further apart do not represent the time between them.
const MAX_SAMPLE_GAP: Duration = Duration::from_secs(5);

/// Completed requests of a window of a run.
#[derive(Debug, Clone)]
pub struct RequestTrace {
    requests: Thinned<RequestSample>,
    itl_ns: Option<BlockHistogram>,
    token_blocks: TokenBlocks,
    meter: Meter,
    /// The meter at the first and at the last token of the active request.
    first: Option<MeterReading>,
    last: Option<MeterReading>,
    /// Samples of the memory clock during decode: their sum and their number.
    mem_clock: (f64, u32),
}

impl Default for RequestTrace {
    /// Keeps the requests of a snapshot.
    fn default() -> RequestTrace {
        RequestTrace::of_requests(256)
    }
}

impl RequestTrace {
    /// Keeps at most `capacity` requests and no gaps between tokens.
    pub fn of_requests(capacity: usize) -> RequestTrace {
        RequestTrace {
            requests: Thinned::new(capacity),
            itl_ns: None,
            token_blocks: TokenBlocks::default(),
            meter: Meter::default(),
            first: None,
            last: None,
            mem_clock: (0.0, 0),
        }
    }

    /// Keeps the distribution of the gaps too.
    pub fn with_gaps(capacity: usize) -> RequestTrace {
        RequestTrace { itl_ns: Some(BlockHistogram::default()), ..RequestTrace::of_requests(capacity) }
    }

    /// Starts a new window.
    pub fn restart(&mut self) {
        self.requests.clear();
        self.mem_clock = (0.0, 0);
        self.meter.decode_samples = 0;
        self.token_blocks = TokenBlocks::default();
        self.itl_ns = self.itl_ns.as_ref().map(|_| BlockHistogram::default());
    }

    /// A sample of the GPU that the workload runs on.
    pub fn gpu_sample(&mut self, t: Stamp, phase: Phase, sample: &GpuSample) {
        self.meter.gpu_sample(t, phase, sample);
        if let Some(mhz) = sample.get(Reading::MemClock).filter(|_| phase == Phase::Decode) {
            self.mem_clock = (self.mem_clock.0 + mhz, self.mem_clock.1 + 1);
        }
    }

    /// A token of a measured request, `gap_ns` after the previous one.
    pub fn token(&mut self, t: Stamp, first: bool, gap_ns: u64) {
        let now = self.meter.read(t);
        if first {
            self.first = now;
        } else {
            self.token_blocks.token(gap_ns);
            if let Some(gaps) = &mut self.itl_ns {
                gaps.record(gap_ns as f64);
            }
        }
        self.last = now;
    }

    /// After a pause of the workload, cycles and energy of the active request are not known.
    pub fn paused(&mut self) {
        (self.first, self.last) = (None, None);
    }

    /// The active request has ended; `None` if it is incomplete.
    pub fn request_ended(&mut self, request: Option<RequestSample>) {
        let (first, last) = (self.first.take(), self.last.take());
        self.token_blocks.close();
        let Some(request) = request else {
            if let Some(gaps) = &mut self.itl_ns {
                gaps.discard_open();
            }
            return;
        };
        if let Some(gaps) = &mut self.itl_ns {
            gaps.close();
        }
        let (decode_mcycles, decode_j) =
            first.zip(last).map_or((None, None), |(first, last)| last.since(first));
        self.requests.push(RequestSample { decode_mcycles, decode_j, ..request });
    }

    pub fn requests(&self) -> Vec<RequestSample> {
        // Sampled power is corrected by the energy counter.
        let scale = self.meter.energy.correction().unwrap_or(1.0);
        let scaled = |request: &RequestSample| RequestSample {
            decode_j: request.decode_j.map(|joules| joules * scale),
            ..*request
        };
        self.requests.values().iter().map(scaled).collect()
    }

    /// The number of completed requests.
    pub fn measured(&self) -> u64 {
        self.requests.pushed()
    }

    pub fn itl_ns(&self) -> Option<&BlockHistogram> {
        self.itl_ns.as_ref()
    }

    pub fn token_blocks(&self) -> &TokenBlocks {
        &self.token_blocks
    }

    /// The number of samples of the SM clock in decode.
    pub fn decode_clock_samples(&self) -> u64 {
        self.meter.decode_samples
    }

    pub fn mem_clock_mhz(&self) -> Option<f64> {
        (self.mem_clock.1 > 0).then(|| self.mem_clock.0 / f64::from(self.mem_clock.1))
    }
}

/// The SM clock in decode and the power, integrated over time from the last sample of each.
#[derive(Debug, Clone, Default)]
struct Meter {
    sampled_at: Option<Stamp>,
    /// The clock at the last sample in decode; samples in prefill do not count.
    mhz: Option<f64>,
    decode_samples: u64,
    watts: Option<f64>,
    mcycles: f64,
    joules: f64,
    /// The number of pairs of samples that were too far apart.
    gaps: u32,
    /// Relates sampled energy to the energy counter.
    energy: EnergyMeter<1>,
}

#[derive(Debug, Clone, Copy)]
struct MeterReading {
    mcycles: Option<f64>,
    joules: Option<f64>,
    gaps: u32,
}

impl MeterReading {
    /// Cycles and energy since `earlier`, if there is no gap between.
    fn since(self, earlier: MeterReading) -> (Option<f64>, Option<f64>) {
        let difference = |now: Option<f64>, then: Option<f64>| {
            let difference = now.zip(then).map(|(now, then)| now - then)?;
            (self.gaps == earlier.gaps && difference > 0.0).then_some(difference)
        };
        (difference(self.mcycles, earlier.mcycles), difference(self.joules, earlier.joules))
    }
}

impl Meter {
    fn gpu_sample(&mut self, t: Stamp, phase: Phase, sample: &GpuSample) {
        let (mhz, watts) = (sample.get(Reading::SmClock), sample.get(Reading::Power));
        if mhz.is_none() && watts.is_none() && sample.get(Reading::Energy).is_none() {
            return;
        }
        match self.secs_since_sample(t) {
            Some(secs) => {
                let watts = self.watts.unwrap_or(0.0);
                self.mcycles += self.mhz.unwrap_or(0.0) * secs;
                self.joules += watts * secs;
                self.energy.add(0, watts, secs);
            }
            None => {
                self.gaps += 1;
                self.energy.restart();
            }
        }
        self.sampled_at = Some(t);
        // A sample without one of them leaves it unchanged.
        if let Some(mhz) = mhz.filter(|mhz| *mhz > 0.0 && phase == Phase::Decode) {
            self.mhz = Some(mhz);
            self.decode_samples += 1;
        }
        self.watts = watts.or(self.watts);
        if let Some(millijoules) = sample.get(Reading::Energy) {
            self.energy.read_counter(millijoules / 1e3);
        }
    }

    fn secs_since_sample(&self, t: Stamp) -> Option<f64> {
        let gap = t.since(self.sampled_at?);
        (gap <= MAX_SAMPLE_GAP).then_some(gap.as_secs_f64())
    }

    fn read(&self, t: Stamp) -> Option<MeterReading> {
        let secs = self.secs_since_sample(t)?;
        Some(MeterReading {
            mcycles: self.mhz.map(|mhz| self.mcycles + mhz * secs),
            joules: self.watts.map(|watts| self.joules + watts * secs),
            gaps: self.gaps,
        })
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
            ttft_ns: Some(1_000_000),
            decode_ns: ms * 1_000_000,
            steps: 10,
            batch: 1,
            prompt_tokens: 8,
            decode_mcycles: None,
            decode_j: None,
        }
    }

    fn gpu(mhz: f64, watts: f64) -> GpuSample {
        GpuSample::new(0).with(Reading::SmClock, mhz).with(Reading::Power, watts)
    }

    #[test]
    fn cycles_and_energy_are_those_of_the_decode() {
        let mut trace = RequestTrace::with_gaps(8);
        for ms in (0..=1000).step_by(100) {
            let sample = gpu(if ms < 500 { 2000.0 } else { 1000.0 }, 400.0);
            trace.gpu_sample(at(ms), Phase::Decode, &sample.with(Reading::Energy, ms as f64 * 500.0));
            match ms {
                200 => trace.token(at(ms), true, 200_000_000),
                300..=800 => trace.token(at(ms), false, 100_000_000),
                _ => {}
            }
        }
        trace.request_ended(Some(request(600)));
        let kept = trace.requests()[0];
        // 300 ms at 2000 MHz and 300 ms at 1000 MHz.
        assert!((kept.decode_mcycles.unwrap() - 900.0).abs() < 1e-9, "{kept:?}");
        // The counter gives 500 W if the samples give 400 W.
        assert!((kept.decode_j.unwrap() - 300.0).abs() < 1e-9, "{kept:?}");
        assert_eq!(trace.itl_ns().unwrap().n(), 6);
    }

    #[test]
    fn the_clock_of_a_prefill_is_not_that_of_the_decode() {
        let mut trace = RequestTrace::of_requests(8);
        for (from, decode_sample) in [(0, true), (1000, false)] {
            trace.gpu_sample(at(from + 10), Phase::Prefill, &gpu(1440.0, 700.0));
            if decode_sample {
                trace.gpu_sample(at(from + 90), Phase::Decode, &gpu(1980.0, 500.0));
            }
            trace.token(at(from + 100), true, 0);
            trace.token(at(from + 200), false, 100_000_000);
            trace.request_ended(Some(request(100)));
        }
        let mcycles: Vec<f64> = trace.requests().iter().filter_map(|kept| kept.decode_mcycles).collect();
        assert!(mcycles.iter().all(|mcycles| (mcycles - 198.0).abs() < 1e-9), "{mcycles:?}");
        assert_eq!((mcycles.len(), trace.decode_clock_samples()), (2, 1));
    }

    #[test]
    fn cycles_and_energy_are_none_where_samples_are_missing() {
        let mut trace = RequestTrace::of_requests(8);
        trace.token(at(0), true, 0);
        trace.token(at(10), false, 10);
        trace.request_ended(Some(request(10)));
        trace.gpu_sample(at(20), Phase::Decode, &gpu(1000.0, 100.0));
        trace.token(at(30), true, 0);
        trace.gpu_sample(at(20_000), Phase::Decode, &gpu(1000.0, 100.0));
        trace.token(at(20_010), false, 10);
        trace.request_ended(Some(request(10)));
        assert!(trace.requests().iter().all(|kept| kept.decode_mcycles.is_none() && kept.decode_j.is_none()));
    }

    #[test]
    fn requests_beyond_the_limit_are_thinned() {
        let mut trace = RequestTrace::of_requests(64);
        for nth in 0..1000 {
            trace.request_ended(Some(request(nth + 1)));
            trace.request_ended(None);
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
