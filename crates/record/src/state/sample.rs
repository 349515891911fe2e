//! The sample of a run that is compared with others, from its state.

use super::{GpuState, HostOperators, RunState, Split, idle::Idle};
use llmprof_analysis::{
    account::OwnerTimes,
    compare::{
        Clocks, Facts, GpuFacts, KernelProfile, LimitShare, RequestTrace, SAMPLE_SCHEMA, Sample, Thinned,
    },
    metrics::Metrics,
    throttle::{Account, GpuActivity},
};
use llmprof_event::{KernelWindow, Outcome, Phase, RunStarted, Stamp, readings::Reading};

/// Maximum number of requests of a run that are kept.
const MAX_REQUESTS: usize = 1 << 14;
/// The clock of a phase is not known with fewer samples.
const MIN_SAMPLES: u64 = 20;
/// Throttling of the GPU in a phase is not known with fewer samples, unless the GPU has a counter.
const MIN_LIMIT_SAMPLES: u64 = 5;

impl RunState {
    /// A state that keeps all requests with the gaps between tokens, for [`run_sample`](Self::run_sample).
    pub fn for_comparison() -> RunState {
        let trace = || RequestTrace::with_gaps(MAX_REQUESTS);
        let full_trace = Some(Box::new(Split { without: trace(), with: trace() }));
        RunState { full_trace, ..RunState::default() }
    }

    /// Starts the compared window here; earlier requests are discarded.
    pub fn forget_requests(&mut self) {
        if let Some(trace) = &mut self.full_trace {
            trace.both_mut().into_iter().for_each(RequestTrace::restart);
        }
        self.tpots_ns.both_mut().into_iter().for_each(Thinned::clear);
        self.kernels.forget();
        self.operators.forget();
        let now = self.now;
        self.counted_to = self.counted_to.map(|_| now);
        self.idle = Idle::default();
        self.bill.restart();
        self.total.both_mut().into_iter().for_each(|metrics| metrics.restart(now));
    }

    /// The sample of the run; `None` before its first event, and if requests were not kept.
    pub fn run_sample(&self, name: &str) -> Option<Sample> {
        let mut sample = self.sample_of(name, self.full_trace.as_deref()?, &self.total)?;
        sample.kept_slos = self.server.kept_slos().cloned();
        sample.decode = profile(&self.kernels.decode.total);
        sample.decode_on_cpu = self.operators_on_cpu(Phase::Decode).and_then(host_profile);
        sample.owners = self.decode_account().as_ref().map(OwnerTimes::from).unwrap_or_default();
        Some(sample)
    }

    /// The sample of the window since the last snapshot, which is complete even while the run continues.
    pub(super) fn window_sample(&self, name: &str) -> Option<Sample> {
        let mut sample = self.sample_of(name, &self.trace, &self.window)?;
        sample.facts.outcome = Some(Outcome::Completed);
        sample.decode = profile(&self.kernels.decode.window);
        let on_cpu = self.operators_on_cpu(Phase::Decode).and(self.operators.window_of(Phase::Decode));
        sample.decode_on_cpu = on_cpu.and_then(host_profile);
        Some(sample)
    }

    /// Without operators.
    fn sample_of(&self, name: &str, trace: &Split<RequestTrace>, metrics: &Split<Metrics>) -> Option<Sample> {
        let from = metrics.from;
        let run = self.run.as_ref()?;
        let gpu = self.profiled_gpu();
        let phases = [(Phase::Prefill, GpuActivity::Prefill), (Phase::Decode, GpuActivity::Decode)];
        let knows_limits =
            |work: GpuActivity| gpu.is_some_and(|gpu| gpu.ledger.knows_limits(work, MIN_LIMIT_SAMPLES));
        Some(Sample {
            schema: SAMPLE_SCHEMA,
            name: name.to_owned(),
            facts: self.facts(run),
            measured: trace.measured(),
            itl_ns: trace.itl_ns().cloned(),
            kept_slos: None,
            itl: (metrics.itl.n() > 0).then(|| metrics.itl.counts()),
            token_blocks: trace.token_blocks().clone(),
            clocks: clocks(gpu, trace),
            limits_known_in: phases.iter().filter(|(_, work)| knows_limits(*work)).map(|(p, _)| *p).collect(),
            limits: gpu.map_or_else(Vec::new, |gpu| {
                phases.into_iter().flat_map(|(phase, work)| limits(phase, gpu.ledger.account(work))).collect()
            }),
            conditions: self.conditions(from, trace.is_recorded().then(|| metrics.recorded_share())),
            peak_mem_bytes: self.peak_mem_bytes(from),
            decode: None,
            decode_on_cpu: None,
            owners: OwnerTimes::new(),
            requests: trace.requests(),
        })
    }

    fn facts(&self, run: &RunStarted) -> Facts {
        Facts {
            run: run.clone(),
            gpu: self.profiled_gpu().map(|gpu| GpuFacts {
                name: gpu.info.name.clone(),
                driver: gpu.info.driver.clone(),
                power_limit_w: gpu.info.power_limit_w,
                sm_clock_application_mhz: gpu.info.sm_clock_application_mhz,
                mig: gpu.info.mig,
            }),
            cpu: self.host.info.as_ref().map(|host| format!("{}, {} cores", host.cpu, host.cores)),
            outcome: self.finished.as_ref().map(|finished| finished.outcome),
        }
    }

    /// The memory that the GPU, or else this process, had in use since `from`.
    fn peak_mem_bytes(&self, from: Stamp) -> Option<u64> {
        let memory = match self.profiled_gpu() {
            Some(gpu) => gpu.series(Reading::MemUsed),
            None => &self.host.process_rss_bytes,
        };
        let peak = memory.columns(from, self.now, 1)[0].map(|bucket| bucket.max as u64);
        // For a server, the peak would be the client's.
        peak.filter(|bytes| *bytes > 0 && self.load_tested().is_none())
    }
}

/// The clocks by phase; those of decode by the requests if enough samples were taken during them.
fn clocks(gpu: Option<&GpuState>, trace: &RequestTrace) -> Clocks {
    let requests = trace.requests();
    let known = requests.iter().filter_map(|request| Some((request.decode_mcycles?, request.decode_ns)));
    let (mcycles, secs) =
        known.fold((0.0, 0.0), |(mcycles, secs), (cycles, ns)| (mcycles + cycles, secs + ns as f64 / 1e9));
    let by_samples = |work: GpuActivity| {
        let account = gpu?.ledger.account(work);
        account.clock_mhz.value().filter(|_| account.samples >= MIN_SAMPLES)
    };
    let by_requests =
        (secs > 0.0 && trace.decode_clock_samples() >= MIN_LIMIT_SAMPLES).then(|| mcycles / secs);
    Clocks {
        prefill_sm_mhz: by_samples(GpuActivity::Prefill),
        decode_sm_mhz: by_requests.or_else(|| by_samples(GpuActivity::Decode)),
        decode_mem_mhz: trace.mem_clock_mhz(),
    }
}

/// The faults that were active in a phase, with their shares of its time.
fn limits(phase: Phase, account: &Account) -> Vec<LimitShare> {
    let faults = account.limits.iter().filter(|(limit, _)| limit.fault() == Some(true));
    faults
        .map(|(limit, time)| LimitShare {
            phase,
            limit: limit.name().into_owned(),
            share: account.active_share(time).0,
        })
        .collect()
}

/// `None` if no kernel was recorded, or some were lost.
fn profile(kernels: &KernelWindow) -> Option<KernelProfile> {
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

/// `None` if no step was timed.
fn host_profile(host: &HostOperators) -> Option<KernelProfile> {
    let span_ns = host.attributed_ns() as f64;
    (host.attributed_steps() > 0).then(|| KernelProfile {
        steps: host.attributed_steps(),
        span_ns,
        busy_ns: span_ns - host.self_ns() as f64,
        operators: host.times.iter().map(|time| (time.operator.name().to_owned(), time.ns as f64)).collect(),
        ..KernelProfile::default()
    })
}
