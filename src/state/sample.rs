//! What of a run is held against another, drawn from its state.

use super::{LiveKernels, RunState};
use crate::{
    analysis::{
        compare::{Clocks, Facts, GpuFacts, KernelProfile, LimitShare, SAMPLE_SCHEMA, Sample, Trace},
        throttle::{Account, Work},
    },
    event::{KernelWindow, Outcome, Phase, Stamp, readings::Reading},
};

/// Of a whole run so many requests are kept at most.
const MOST_REQUESTS: usize = 1 << 14;
/// Fewer looks at a phase do not tell its clock.
const LEAST_LOOKS: u64 = 20;

impl RunState {
    /// A state that keeps all requests with the gaps between tokens, for [`whole_sample`](Self::whole_sample).
    pub fn for_comparison() -> RunState {
        RunState { whole: Some(Box::new(Trace::with_gaps(MOST_REQUESTS))), ..RunState::default() }
    }

    /// What came so far is not to be compared: a stretch begins.
    pub fn forget_requests(&mut self) {
        if let Some(whole) = &mut self.whole {
            whole.restart();
        }
        self.total.restart(self.now);
    }

    /// The run as it is compared; `None` before its first event, and where requests were not kept.
    pub fn whole_sample(&self, name: &str) -> Option<Sample> {
        self.sample_of(name, self.whole.as_deref()?, self.total.from)
    }

    /// The stretch since the last snapshot, which is complete though the run goes on.
    pub(super) fn window_sample(&self, name: &str) -> Option<Sample> {
        let mut sample = self.sample_of(name, &self.trace, self.window.from)?;
        sample.facts.outcome = Some(Outcome::Completed);
        Some(sample)
    }

    fn sample_of(&self, name: &str, trace: &Trace, from: Stamp) -> Option<Sample> {
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
                let phases = [Work::Prefill, Work::Decode];
                phases.iter().flat_map(|work| limits(*work, gpu.ledger.of(*work))).collect()
            }),
            others: gpu.map_or(0, |gpu| gpu.processes_seen.len() as u32),
            cpu_taken: self.host.taken_by_others(from, self.now).filter(|_| run.device.is_cpu()),
            events_lost: self.observer.map_or(0, |observer| observer.lost),
            peak_mem_bytes: peak.filter(|bytes| *bytes > 0),
            decode: profile(Phase::Decode, &self.kernels.decode),
            prefill: profile(Phase::Prefill, &self.kernels.prefill),
            requests,
        })
    }
}

/// The faults that held a phase, and for how much of it.
fn limits(work: Work, account: &Account) -> Vec<LimitShare> {
    let faults = account.limits.iter().filter(|(limit, _)| limit.fault() == Some(true));
    let share = faults.filter_map(|(limit, held)| {
        let share = match held.counted_ns.filter(|_| held.covered_ns > 0.0) {
            Some(counted) => counted / held.covered_ns,
            None => held.sampled_ns / Some(account.seen_ns).filter(|seen| *seen > 0.0)?,
        };
        let (phase, limit) = (work.name().to_owned(), limit.name());
        Some(LimitShare { phase, limit, share: share.clamp(0.0, 1.0) })
    });
    share.collect()
}

fn profile(phase: Phase, live: &LiveKernels) -> Option<KernelProfile> {
    KernelProfile::of(&KernelWindow {
        phase,
        steps: live.steps,
        span_ns: live.span_ns,
        busy_ns: live.busy_ns,
        between_ns: live.between_ns,
        launches: live.launches,
        graph_launches: live.graph_launches,
        dropped: live.dropped,
        rows: live.rows.clone(),
    })
}
