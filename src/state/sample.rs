//! What is compared of a run, from its state.

use super::{LiveKernels, RunState};
use crate::{
    analysis::{
        compare::{Clocks, Facts, GpuFacts, KernelProfile, LimitShare, RequestTrace, SAMPLE_SCHEMA, Sample},
        throttle::{Account, Work},
    },
    event::{Outcome, Phase, Stamp, readings::Reading},
};

/// The number of requests that are kept of a run.
pub(super) const MAX_REQUESTS: usize = 1 << 14;
/// Fewer looks at a phase do not tell its clock.
const LEAST_LOOKS: u64 = 20;

impl RunState {
    /// A state that keeps all requests with the gaps between tokens, for [`run_sample`](Self::run_sample).
    pub fn for_comparison() -> RunState {
        RunState { whole: Some(Box::new(RequestTrace::with_gaps(MAX_REQUESTS))), ..RunState::default() }
    }

    /// What came so far is not to be compared: a stretch begins.
    pub fn forget_requests(&mut self) {
        if let Some(whole) = &mut self.whole {
            whole.restart();
        }
        self.tpots_ns.clear();
        self.total.restart(self.now);
    }

    /// The run as it is compared; `None` before its first event, and where requests were not kept.
    pub fn run_sample(&self, name: &str) -> Option<Sample> {
        self.sample_of(name, self.whole.as_deref()?, self.total.from)
    }

    /// The stretch since the last snapshot, which is complete though the run goes on.
    pub(super) fn window_sample(&self, name: &str) -> Option<Sample> {
        let mut sample = self.sample_of(name, &self.trace, self.window.from)?;
        sample.facts.outcome = Some(Outcome::Completed);
        Some(sample)
    }

    fn sample_of(&self, name: &str, trace: &RequestTrace, from: Stamp) -> Option<Sample> {
        let run = self.run.as_ref()?;
        let gpu = self.profiled_gpu();
        let requests = trace.requests();
        let (mcycles, secs) = requests.iter().fold((0.0, 0.0), |(mcycles, secs), request| {
            let known = request.decode_mcycles.map(|cycles| (cycles, request.decode_ns as f64 / 1e9));
            known.map_or((mcycles, secs), |(cycles, s)| (mcycles + cycles, secs + s))
        });
        let by_looks = |work: Work| {
            let account = gpu?.ledger.of(work);
            account.clock_mhz.value().filter(|_| account.looks >= LEAST_LOOKS)
        };
        let memory = match gpu {
            Some(gpu) => gpu.series(Reading::MemUsed),
            None => &self.host.process_rss_bytes,
        };
        let peak = memory.columns(from, self.now, 1)[0].map(|bucket| bucket.max as u64);
        Some(Sample {
            schema: SAMPLE_SCHEMA,
            name: name.to_owned(),
            facts: Facts {
                run: run.clone(),
                gpu: gpu.map(|gpu| GpuFacts {
                    name: gpu.info.name.clone(),
                    driver: gpu.info.driver.clone(),
                    power_limit_w: gpu.info.power_limit_w,
                    sm_clock_application_mhz: gpu.info.sm_clock_application_mhz,
                    mig: gpu.info.mig,
                }),
                cpu: self.host.info.as_ref().map(|host| format!("{}, {} cores", host.cpu, host.cores)),
                outcome: self.finished.as_ref().map(|finished| finished.outcome),
            },
            measured: trace.measured(),
            itl_ns: trace.itl_ns().cloned(),
            clocks: Clocks {
                prefill_sm_mhz: by_looks(Work::Prefill),
                decode_sm_mhz: if secs > 0.0 { Some(mcycles / secs) } else { by_looks(Work::Decode) },
                decode_mem_mhz: trace.mem_clock_mhz(),
            },
            limits: gpu.map_or_else(Vec::new, |gpu| {
                let phases = [(Phase::Prefill, Work::Prefill), (Phase::Decode, Work::Decode)];
                phases.into_iter().flat_map(|(phase, work)| limits(phase, gpu.ledger.of(work))).collect()
            }),
            conditions: self.conditions(from),
            peak_mem_bytes: peak.filter(|bytes| *bytes > 0),
            decode: profile(&self.kernels.decode),
            requests,
        })
    }
}

/// The faults that held a phase, and for how much of it.
fn limits(phase: Phase, account: &Account) -> Vec<LimitShare> {
    let faults = account.limits.iter().filter(|(limit, _)| limit.fault() == Some(true));
    let share = faults.filter_map(|(limit, held)| {
        let share = match held.counted_ns.filter(|_| held.covered_ns > 0.0) {
            Some(counted) => counted / held.covered_ns,
            None => held.sampled_ns / Some(account.seen_ns).filter(|seen| *seen > 0.0)?,
        };
        Some(LimitShare { phase, limit: limit.name(), share: share.clamp(0.0, 1.0) })
    });
    share.collect()
}

/// `None` where no kernel was recorded, or some were lost.
fn profile(kernels: &LiveKernels) -> Option<KernelProfile> {
    if kernels.steps == 0 || kernels.rows.is_empty() || kernels.dropped > 0 {
        return None;
    }
    let mut profile = KernelProfile {
        steps: kernels.steps,
        launches: kernels.launches,
        span_ns: kernels.span_ns as f64,
        busy_ns: kernels.busy_ns as f64,
        between_ns: kernels.between_ns as f64,
        ..KernelProfile::default()
    };
    for row in &kernels.rows {
        let family = if row.family.is_empty() { row.name.clone() } else { row.family.clone() };
        let operator = row.operator.map_or_else(|| family.clone(), |operator| operator.name().to_owned());
        *profile.operators.entry(operator).or_default() += row.total_ns.unwrap_or(0.0);
        *profile.families.entry(family).or_default() += row.calls;
    }
    Some(profile)
}
