//! Simulated runs with known true values, for tests of the statistics.

use super::*;
use crate::trust::Conditions;
use llmprof_base::noise;
use llmprof_event::{ModelEngine, Outcome, Phase, RunStarted, WorkKind};

pub(super) fn facts(overrides: &[&str], gpu: bool) -> Facts {
    let run = RunStarted {
        schema: 1,
        program: "llmprof-tui".into(),
        started_unix_ms: 0,
        experiment: "baseline".into(),
        model: "qwen2_5_7b".into(),
        dtype: "bf16".into(),
        kind: WorkKind::Model(ModelEngine::Cuda),
        device: "cuda:0".into(),
        synthetic_weights: true,
        simulated: false,
        parameters: 7_600_000_000,
        weight_bytes: 15_200_000_000,
        step_weight_bytes: None,
        kv_bytes_per_position: 57_344,
        requests: 20,
        warmup: 1,
        batch: 1,
        prompt_tokens: 512,
        output_tokens: 64,
        seed: 0,
        overrides: overrides.iter().map(|text| (*text).to_owned()).collect(),
        shape: None,
        peaks: Default::default(),
        command: None,
        slo: None,
        gpu_hour: None,
        perturbed: None,
    };
    let gpu = gpu.then(|| GpuFacts {
        name: "NVIDIA H200".into(),
        driver: "580.159.04".into(),
        power_limit_w: Some(700.0),
        sm_clock_application_mhz: None,
        mig: Some(false),
    });
    Facts { run, gpu, cpu: None, outcome: Some(Outcome::Completed) }
}

/// A simulated run: its true values, and its noise.
#[derive(Clone, Copy)]
pub(super) struct SimulatedRun {
    pub seed: u64,
    pub requests: u64,
    pub steps: u32,
    pub itl_ms: f64,
    /// From run to run, from request to request, and from token to token, as shares.
    pub run_noise: f64,
    pub request_noise: f64,
    pub token_noise: f64,
    /// The lag-1 autocorrelation of the requests.
    pub autocorrelation: f64,
    /// The share of the requests that are slower by a factor.
    pub slow_mode: (f64, f64),
    pub sm_mhz: f64,
    /// The compute-bound share of the time, 0 to 1; the rest is memory-bound.
    pub clock_bound: f64,
    pub gpu: bool,
}

pub(super) const BASE_RUN: SimulatedRun = SimulatedRun {
    seed: 0,
    requests: 20,
    steps: 63,
    itl_ms: 3.8,
    run_noise: 0.0,
    request_noise: 0.01,
    token_noise: 0.02,
    autocorrelation: 0.0,
    slow_mode: (0.0, 1.0),
    sm_mhz: 1980.0,
    clock_bound: 1.0,
    gpu: true,
};

impl SimulatedRun {
    pub(super) fn sample(self, gaps: bool) -> Sample {
        let seed = |stream: u64| noise::bits(noise::bits(77, self.seed), stream);
        let of_run = 1.0 + self.run_noise * noise::bell(seed(4), 0);
        let slower = of_run * (1.0 + self.clock_bound * (1980.0 / self.sm_mhz - 1.0));
        let mut deviation = 0.0;
        let mut trace = match gaps {
            true => RequestTrace::with_gaps(1 << 14),
            false => RequestTrace::of_requests(1 << 14),
        };
        for nth in 0..self.requests {
            let rho = self.autocorrelation;
            deviation = rho * deviation + (1.0 - rho * rho).sqrt() * noise::bell(seed(1), nth);
            let (slow_share, factor) = self.slow_mode;
            let mode = if noise::unit(seed(5), nth) < slow_share { factor } else { 1.0 };
            let mean_ns = self.itl_ms * 1e6 * slower * mode * (1.0 + self.request_noise * deviation);
            let mut decode_ns = 0;
            for step in 0..self.steps {
                let token_deviation = noise::bell(seed(2), nth * u64::from(self.steps) + u64::from(step));
                let gap_ns = (mean_ns * (1.0 + self.token_noise * token_deviation)) as u64;
                decode_ns += gap_ns;
                if gaps {
                    trace.token(llmprof_event::Stamp(0), false, gap_ns);
                }
            }
            let ttft_ns = (43e6 * slower * (1.0 + self.request_noise * noise::bell(seed(3), nth))) as u64;
            trace.request_ended(Some(RequestSample {
                ttft_ns: Some(ttft_ns),
                decode_ns,
                steps: self.steps,
                batch: 1,
                prompt_tokens: 512,
                decode_mcycles: None,
                decode_j: None,
            }));
        }
        let cycles = |request: &RequestSample| RequestSample {
            decode_mcycles: self.gpu.then(|| request.decode_ns as f64 / 1e9 * self.sm_mhz),
            ..*request
        };
        let mhz = Some(self.sm_mhz).filter(|_| self.gpu);
        Sample {
            kept_slos: None,
            schema: SAMPLE_SCHEMA,
            name: "simulated".into(),
            facts: facts(&[], self.gpu),
            requests: trace.requests().iter().map(cycles).collect(),
            measured: self.requests,
            itl_ns: trace.itl_ns().cloned(),
            itl: None,
            token_blocks: trace.token_blocks().clone(),
            clocks: Clocks { prefill_sm_mhz: mhz, decode_sm_mhz: mhz, decode_mem_mhz: Some(3201.0) },
            limits: Vec::new(),
            limits_known_in: vec![Phase::Prefill, Phase::Decode],
            conditions: Conditions::default(),
            peak_mem_bytes: Some(16 << 30),
            decode: None,
            decode_on_cpu: None,
            owners: Vec::new(),
        }
    }
}
