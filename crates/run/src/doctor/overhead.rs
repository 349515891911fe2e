//! Profiler overhead: TPOT with and without sampling, interleaved on one engine.

mod switch;

use std::{
    fmt, thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use thiserror::Error;

use switch::SamplerSwitch;

use crate::{
    plan::{Plan, PlanError},
    probes,
    work::kind_of,
};
use llmprof_analysis::interval::{ConfidenceInterval, MIN_VALUES};
use llmprof_base::{
    cells,
    table::{Column, Table},
    units::{Unit, millis, percent, percent_change},
};
use llmprof_config::{Composed, NvtxDetail};
use llmprof_engine::profile::nvtx_ranges;
use llmprof_event as event;
use llmprof_event::{
    CallCost, Clock, Event, EventRx, EventTx, GpuAbsent, GpuInfo, GpuSource, RunStarted, Stamp, WorkKind,
};
use llmprof_sources::sim::scenario::UnknownScenario;
use llmprof_workload::{Control, Driver, Engine, EngineError, PrepareStep, Workload};

/// Minimum tokens of a request, so that one slow step does not dominate its TPOT.
const MIN_TOKENS: u32 = 64;
/// Fewer pairs give a wide interval.
const GOOD_PAIRS: usize = 8;
/// Delay between switching the sampler on and the request, so that the first round of samples is over.
const SETTLE: Duration = Duration::from_millis(60);

#[derive(Debug, Error)]
pub enum OverheadError {
    #[error("a simulated run has a simulated clock, so there is no overhead to measure; remove runtime=sim")]
    Simulated,
    #[error("runtime=watch runs no workload, so there is no overhead to measure; remove it")]
    NoWorkload,
    #[error(
        "the model runs in another process, which sampling does not stop; measure the overhead with runtime=candle"
    )]
    OtherProcess,
    #[error(
        "nothing is sampled in this configuration, so there is no overhead to measure; remove profiling=none"
    )]
    NothingSampled,
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Scenario(#[from] UnknownScenario),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the sampler thread has ended: a bug in this program")]
    SamplerEnded,
}

/// TPOT of two consecutive requests, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    pub on_ms: f64,
    pub off_ms: f64,
}

/// The result of the measurement.
#[derive(Debug, Clone)]
pub struct Overhead {
    pub run: RunStarted,
    pub pairs: Vec<Pair>,
    pub duration: Duration,
    /// The change of TPOT by sampling, in percent; `None` with too few pairs.
    pub change_pct: Option<ConfidenceInterval>,
    pub sampled: Sampled,
    /// Share of the time in which a GPU was read while the sampler was on; `None` without a GPU.
    pub duty_pct: Option<f64>,
    /// CPU time of the sampler in percent of one core.
    pub cpu_pct: Option<f64>,
}

/// The samples that the sampler sent.
#[derive(Debug, Clone, Default)]
pub struct Sampled {
    pub gpus: Vec<GpuInfo>,
    /// The reason why no GPU was sampled.
    pub gpu_absent: Option<GpuAbsent>,
    pub host: bool,
    pub read_time: Duration,
    /// Cost of each kind of call; empty without a GPU, or if the time was too short to count them.
    pub calls: Vec<CallCost>,
}

/// The progress of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    Preparing { step: String, done: u64, total: u64 },
    WarmUp { request: u32 },
    Pair { n: usize, elapsed: Duration, limit: Duration, pair: Pair },
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Progress::Preparing { step, done, total } => {
                write!(f, "preparing: {step} {} %", 100 * done / (*total).max(1))
            }
            Progress::WarmUp { request } => write!(f, "warm-up {request}"),
            Progress::Pair { n, elapsed, limit, pair } => write!(
                f,
                "pair {n}, {:.0} of {:.0} s: TPOT {} with sampling, {} without",
                elapsed.as_secs_f64(),
                limit.as_secs_f64(),
                millis(pair.on_ms),
                millis(pair.off_ms)
            ),
        }
    }
}

type ProgressFn<'a> = dyn FnMut(Progress) + Send + 'a;

/// The run to measure: as configured, but long enough and without an early end. Refuses a run without sampling.
pub fn plan(mut composed: Composed) -> Result<Plan, OverheadError> {
    let config = &mut composed.config;
    match kind_of(config.runtime.name) {
        WorkKind::Sim => return Err(OverheadError::Simulated),
        WorkKind::Watch | WorkKind::Program | WorkKind::Server => return Err(OverheadError::NoWorkload),
        WorkKind::Python => return Err(OverheadError::OtherProcess),
        WorkKind::Model(_) => {}
    }
    if !config.profiling.nvml.enable && !config.profiling.host.enable {
        return Err(OverheadError::NothingSampled);
    }
    config.infer.max_new_tokens = config.infer.max_new_tokens.max(MIN_TOKENS);
    config.infer.ignore_eos = true;
    Ok(Plan::new(composed)?)
}

/// Creates the engine, then measures pairs of requests until `limit` is over; the current pair is completed.
pub fn measure(
    plan: &Plan,
    limit: Duration,
    control: &Control,
    progress: &mut ProgressFn<'_>,
) -> Result<Overhead, OverheadError> {
    let (tx, rx) = event::channel(Clock::wall());
    let sampler = probes::sampler_for(plan, tx.activity())?;
    sampler.announce(&tx);
    let switch = SamplerSwitch::new(sampler, tx.clone());

    let mut engine = plan.make_engine(&mut |step: PrepareStep<'_>, done: u64, total: u64| {
        progress(Progress::Preparing { step: step.to_string(), done, total });
        !control.is_cancelled()
    })?;
    let workload = Workload { requests: 1, warmup: 0, ..plan.workload().clone() };
    let mut bench = Bench { workload, control, tx, rx, switch, sampled: Sampled::default() };

    for warmup in 0..plan.workload().warmup.max(1) {
        progress(Progress::WarmUp { request: warmup + 1 });
        bench.request(engine.as_mut(), warmup % 2 == 0)?;
    }
    bench.sampled.read_time = Duration::ZERO;
    bench.switch.reset();
    let (pairs, duration) = bench.pairs(engine.as_mut(), limit, progress)?;
    Ok(bench.result(plan, pairs, duration))
}

/// Requests on one engine, with the sampler on or off.
struct Bench<'a> {
    workload: Workload,
    control: &'a Control,
    tx: EventTx,
    rx: EventRx,
    switch: SamplerSwitch,
    sampled: Sampled,
}

impl Sampled {
    fn apply(&mut self, event: Event) {
        match event {
            Event::GpuFound(info) => {
                self.gpus.retain(|known| known.index != info.index);
                self.gpus.push(*info);
            }
            Event::GpuAbsent(absent) => self.gpu_absent = Some(absent),
            Event::HostFound(_) => self.host = true,
            Event::GpuSample(sample) => {
                self.read_time += Duration::from_micros(sample.read_us.unwrap_or_default().into());
            }
            Event::SamplerCost(cost) => self.calls = cost.calls,
            _ => {}
        }
    }
}

impl Bench<'_> {
    fn pairs(
        &mut self,
        engine: &mut dyn Engine,
        limit: Duration,
        progress: &mut ProgressFn<'_>,
    ) -> Result<(Vec<Pair>, Duration), OverheadError> {
        let begun = Instant::now();
        let mut pairs: Vec<Pair> = Vec::new();
        while begun.elapsed() < limit {
            // on off, off on, …: drift favours neither.
            let on_first = pairs.len().is_multiple_of(2);
            let first = self.request(engine, on_first)?;
            let second = self.request(engine, !on_first)?;
            let (on_ms, off_ms) = if on_first { (first, second) } else { (second, first) };
            let pair = Pair { on_ms, off_ms };
            pairs.push(pair);
            progress(Progress::Pair { n: pairs.len(), elapsed: begun.elapsed(), limit, pair });
        }
        Ok((pairs, begun.elapsed()))
    }

    /// Runs one request and returns its TPOT in milliseconds.
    fn request(&mut self, engine: &mut dyn Engine, sampling: bool) -> Result<f64, OverheadError> {
        if sampling {
            self.switch.on()?;
        }
        thread::sleep(SETTLE);
        let done = Driver {
            workload: &self.workload,
            control: self.control,
            listeners: &nvtx_ranges::listener(NvtxDetail::Phase).into_iter().collect(),
            tx: &self.tx,
            predictions: None,
        }
        .run(engine);
        if sampling {
            self.switch.off()?;
        }
        done?;
        let mut tokens: Vec<Stamp> = Vec::new();
        while let Ok(envelope) = self.rx.try_recv() {
            match envelope.event {
                Event::Token(_) => tokens.push(envelope.t),
                event => self.sampled.apply(event),
            }
        }
        Ok(tpot_ms(&tokens)
            .ok_or_else(|| EngineError::Backend("a request gave fewer than two tokens".to_owned()))?)
    }

    fn result(self, plan: &Plan, pairs: Vec<Pair>, duration: Duration) -> Overhead {
        let Bench { sampled, switch, .. } = self;
        let (on, cpu) = switch.usage();
        let share = |part: Duration| (!on.is_zero()).then(|| 100.0 * part.as_secs_f64() / on.as_secs_f64());
        Overhead {
            run: plan.started(),
            change_pct: change_pct(&pairs, plan.composed.config.runtime.seed),
            pairs,
            duration,
            duty_pct: share(sampled.read_time).filter(|_| !sampled.gpus.is_empty()),
            cpu_pct: share(cpu),
            sampled,
        }
    }
}

/// (last − first) / (tokens − 1).
fn tpot_ms(tokens: &[Stamp]) -> Option<f64> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    (tokens.len() > 1).then(|| last.since(*first).as_secs_f64() * 1e3 / (tokens.len() - 1) as f64)
}

fn change_pct(pairs: &[Pair], seed: u64) -> Option<ConfidenceInterval> {
    let pairs: Vec<(f64, f64)> = pairs.iter().map(|pair| (pair.on_ms, pair.off_ms)).collect();
    ConfidenceInterval::of_change_pct(&pairs, seed)
}

impl Overhead {
    /// Geometric means with and without sampling: their ratio is the estimate of the change.
    pub fn tpot_ms(&self) -> Option<(f64, f64)> {
        let n = self.pairs.len() as f64;
        let mean =
            |of: fn(&Pair) -> f64| (self.pairs.iter().map(|pair| of(pair).ln()).sum::<f64>() / n).exp();
        (!self.pairs.is_empty()).then(|| (mean(|pair| pair.on_ms), mean(|pair| pair.off_ms)))
    }

    /// 1 if there is no estimate, else 0.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.change_pct.is_none())
    }

    /// The samples while the sampler was on.
    fn sampled_text(&self) -> String {
        let Sampled { gpus, gpu_absent, host, .. } = &self.sampled;
        let names = gpus.iter().map(|gpu| {
            let simulated = if gpu.source == GpuSource::Sim { ", simulated" } else { "" };
            format!("GPU {} ({}{simulated})", gpu.index, gpu.name)
        });
        let host = host.then(|| "the host".to_owned());
        let mut sampled = names.chain(host).collect::<Vec<_>>().join(", ");
        if sampled.is_empty() {
            sampled = "nothing".to_owned();
        }
        match gpu_absent {
            Some(absent) if gpus.is_empty() => format!("{sampled}; no GPU: {}", absent.reason),
            _ => sampled,
        }
    }

    /// The result in a sentence.
    pub fn verdict(&self) -> String {
        let n = self.pairs.len();
        let Some(change) = self.change_pct else {
            let pair_s = self.duration.as_secs_f64() / n.max(1) as f64;
            return format!(
                "Too few pairs of requests: {n} of at least {MIN_VALUES}. Pass --seconds {:.0} for {GOOD_PAIRS}.",
                (pair_s * (GOOD_PAIRS + 1) as f64).ceil()
            );
        };
        let range = format!("{} to {}", percent_change(change.low), percent_change(change.high));
        let few = if n < GOOD_PAIRS { " Few pairs: increase --seconds for a narrower interval." } else { "" };
        match () {
            () if change.contains(0.0) => {
                format!("No measurable overhead: TPOT changes by {range} with sampling.{few}")
            }
            () if change.low > 0.0 => format!("Sampling increases TPOT by {range}.{few}"),
            () => format!(
                "TPOT changes by {range} with sampling, which cannot make it faster: something else changed. Measure \
                 again.{few}"
            ),
        }
    }

    pub fn text(&self) -> String {
        let RunStarted { model, dtype, device, kind, batch, prompt_tokens, output_tokens, .. } = &self.run;
        let mut out = format!(
            "{model}, {dtype}, on {device} ({kind}), batch {batch}, {prompt_tokens} prompt and {output_tokens} output tokens\n"
        );
        out += &format!("sampled: {}\n\n", self.sampled_text());
        if let Some((on, off)) = self.tpot_ms() {
            out += &format!(
                "TPOT with sampling     {:>10}\nTPOT without sampling  {:>10}\n",
                tpot_text(on),
                tpot_text(off)
            );
        }
        if let Some(change) = &self.change_pct {
            out += &format!(
                "change                 {:>10}  (95 % confidence interval {} to {})\n",
                percent_change(change.estimate),
                percent_change(change.low),
                percent_change(change.high)
            );
        }
        out += &format!(
            "{} interleaved pairs of requests in {:.0} s; geometric means, bootstrap over pairs\n",
            self.pairs.len(),
            self.duration.as_secs_f64()
        );
        out += &format!("\n{}\n\n{}", self.verdict(), self.usage_text());
        out
    }

    pub fn json(&self) -> Value {
        let run = &self.run;
        let tpot = self.tpot_ms();
        let gpu = |gpu: &GpuInfo| json!({"index": gpu.index, "name": gpu.name, "source": gpu.source});
        json!({
            "schema": 1,
            "program": run.program,
            "model": run.model, "dtype": run.dtype, "device": run.device, "engine": run.kind,
            "batch": run.batch, "prompt_tokens": run.prompt_tokens, "output_tokens": run.output_tokens,
            "seconds": self.duration.as_secs_f64(),
            "sampled": {
                "gpus": self.sampled.gpus.iter().map(gpu).collect::<Vec<_>>(),
                "gpu_absent": self.sampled.gpu_absent.as_ref().map(|absent| &absent.reason),
                "host": self.sampled.host,
            },
            "pairs": self.pairs.len(),
            "tpot_on_ms": tpot.map(|(on, _)| on),
            "tpot_off_ms": tpot.map(|(_, off)| off),
            "difference_pct": self.change_pct,
            "seen": self.change_pct.map(|change| !change.contains(0.0)),
            "verdict": self.verdict(),
            "sampler": {"duty_pct": self.duty_pct, "cpu_pct": self.cpu_pct, "calls": self.sampled.calls},
        })
    }

    /// The time that the sampler used, and the duration of its calls.
    fn usage_text(&self) -> String {
        let cpu = self.cpu_pct.map_or_else(|| "–".to_owned(), percent);
        let mut out = format!("the sampler used {cpu} of one core");
        if let Some(duty) = self.duty_pct {
            out += &format!("; GPU reads took {} of the time", percent(duty));
        }
        out += "\n";
        if self.sampled.calls.is_empty() {
            return out;
        }
        let number = |title, unit| Column::number(title).unit(unit);
        let mut table = Table::new([
            Column::text("call"),
            Column::text("tier"),
            number("n", Unit::Count),
            number("p50", Unit::Of("µs")),
            number("p99", Unit::Of("µs")),
        ]);
        for cost in &self.sampled.calls {
            let [p50, p99] = [cost.p50_us, cost.p99_us].map(|us| us.map(f64::from));
            table.push(cells![cost.call.to_string(), cost.tier.to_string(), cost.n, p50, p99]);
        }
        format!("{out}\n{}\n", table.text())
    }
}

/// Enough digits to show a difference of 0.1 %.
fn tpot_text(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.3} ms") } else { format!("{ms:.1} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llmprof_base::noise;
    use llmprof_config::{Override, built_in, compose};

    fn overhead(slower: f64, pairs: usize) -> Overhead {
        let noise = |i: usize, seed| 1.0 + 0.001 * noise::bell(seed, i as u64);
        let pairs: Vec<Pair> = (0..pairs)
            .map(|i| Pair { on_ms: 5.0 * slower * noise(i, 1), off_ms: 5.0 * noise(i, 2) })
            .collect();
        let composed = compose(&built_in(), Override::NONE).unwrap();
        Overhead {
            run: plan(composed).unwrap().started(),
            change_pct: change_pct(&pairs, 0),
            pairs,
            duration: Duration::from_secs(12),
            sampled: Sampled {
                gpu_absent: Some(GpuAbsent { reason: "NVML is not installed".into(), remedy: String::new() }),
                host: true,
                ..Sampled::default()
            },
            duty_pct: None,
            cpu_pct: Some(0.4),
        }
    }

    #[test]
    fn verdicts() {
        let none = overhead(1.0, 12);
        assert!(
            none.verdict().starts_with("No measurable overhead: TPOT changes by -0."),
            "{}",
            none.verdict()
        );
        assert_eq!((none.exit_code(), &none.json()["seen"]), (0, &Value::Bool(false)));
        let slower = overhead(1.02, 12);
        assert!(slower.verdict().starts_with("Sampling increases TPOT by +1."), "{}", slower.verdict());
        let (on, off) = slower.tpot_ms().unwrap();
        assert!(((on / off - 1.0) * 100.0 - slower.change_pct.unwrap().estimate).abs() < 1e-9);
        assert!(overhead(0.98, 12).verdict().contains("Measure again"));
        assert!(
            overhead(1.0, 6).verdict().ends_with("Few pairs: increase --seconds for a narrower interval.")
        );
    }

    #[test]
    fn too_few_pairs_give_no_estimate_but_a_remedy() {
        let few = overhead(1.0, 3);
        assert_eq!(few.exit_code(), 1);
        assert_eq!(few.json()["difference_pct"], Value::Null);
        assert!(
            few.verdict().contains("3 of at least 5") && few.verdict().contains("--seconds 36"),
            "{}",
            few.verdict()
        );
    }

    #[test]
    fn text() {
        let mut overhead = overhead(1.0, 12);
        let text = overhead.text();
        assert!(text.contains("sampled: the host; no GPU: NVML is not installed"), "{text}");
        assert!(text.contains("the sampler used 0.40 % of one core\n"), "{text}");
        overhead.duty_pct = Some(0.91);
        overhead.sampled.calls = vec![CallCost {
            call: "energy".into(),
            tier: "slow".into(),
            n: 30,
            p50_us: Some(4216.0),
            p99_us: None,
        }];
        let usage = overhead.usage_text();
        assert!(usage.contains("GPU reads took 0.91 % of the time"), "{usage}");
        assert!(usage.contains("energy  slow  30  4,216 µs    –"), "{usage}");
    }

    #[test]
    fn progress_names_its_stage() {
        let preparing = Progress::Preparing { step: "weights".into(), done: 1, total: 4 };
        assert_eq!(preparing.to_string(), "preparing: weights 25 %");
        let (elapsed, limit) = (Duration::from_secs(3), Duration::from_secs(60));
        let pair = Progress::Pair { n: 2, elapsed, limit, pair: Pair { on_ms: 5.0, off_ms: 4.0 } };
        assert_eq!(pair.to_string(), "pair 2, 3 of 60 s: TPOT 5.00 ms with sampling, 4.00 ms without");
    }

    #[test]
    fn a_run_without_overhead_is_refused() {
        let planned = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
            plan(compose(&built_in(), &overrides).unwrap())
        };
        assert!(matches!(planned(&["runtime=sim"]), Err(OverheadError::Simulated)));
        assert!(matches!(planned(&["runtime=watch"]), Err(OverheadError::NoWorkload)));
        assert!(matches!(planned(&["profiling=none"]), Err(OverheadError::NothingSampled)));
        let short = planned(&["infer=short", "infer.ignore_eos=false"]).unwrap();
        assert_eq!((short.workload().output_tokens, short.workload().stop_ids.len()), (64, 0));
    }
}
