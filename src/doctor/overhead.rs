//! What looking costs: TPOT with the sampler and without it, in turn, on one engine.

mod switch;

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use thiserror::Error;

use switch::SamplerSwitch;

use crate::{
    analysis::interval::{self, Interval, LEAST_VALUES},
    base::table::aligned,
    base::units::{grouped, millis, percent, percent_change, three_digits},
    config::{Composed, Runtime},
    engine::{
        Engine, EngineError,
        driver::{Control, Driver},
        ranges,
        workload::Workload,
    },
    event::{
        self, Activity, CallCost, Clock, Event, EventRx, EventTx, GpuAbsent, GpuInfo, Phase, RunStarted,
        Stamp,
    },
    run::{
        plan::{Plan, PlanError},
        probes,
    },
    sim::scenario::UnknownScenario,
};

/// A request has at least so many tokens, so that one slow step is not all of its TPOT.
const LEAST_TOKENS: u32 = 64;
/// Fewer pairs give an interval, and a word that it is wide.
const WANTED_PAIRS: usize = 8;
/// Between a turn of the switch and the request: what is due at once when the sampler begins is over by then.
const SETTLE: Duration = Duration::from_millis(60);

#[derive(Debug, Error)]
pub enum OverheadError {
    #[error(
        "a simulated run has a clock of its own, so nothing can be measured on it; leave runtime=sim out"
    )]
    Simulated,
    #[error("nothing runs in this configuration, so nothing can be slower; leave runtime=watch out")]
    NothingRuns,
    #[error(
        "nothing is sampled in this configuration, so there is no cost to measure; leave profiling=none out"
    )]
    NothingSampled,
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Scenario(#[from] UnknownScenario),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the sampler's thread has gone: a fault of this program")]
    SamplerGone,
}

/// TPOT of two requests that were made one after the other, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    pub on_ms: f64,
    pub off_ms: f64,
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct Overhead {
    pub run: RunStarted,
    pub pairs: Vec<Pair>,
    pub took: Duration,
    /// How much greater TPOT is with the sampler, in percent; `None` where there are too few pairs to say.
    pub change_pct: Option<Interval>,
    pub gpus: Vec<GpuInfo>,
    /// Why no GPU was sampled.
    pub gpu_absent: Option<GpuAbsent>,
    pub host_sampled: bool,
    pub sampler: SamplerShare,
}

/// What the sampler itself took while it was on.
#[derive(Debug, Clone, Default)]
pub struct SamplerShare {
    /// The part of the time in which a GPU was being read; `None` without one.
    pub duty_pct: Option<f64>,
    /// CPU time in percent of one core.
    pub cpu_pct: Option<f64>,
    /// Each kind of call; none without a GPU, or where there was no time to count them.
    pub calls: Vec<CallCost>,
}

/// The run to measure on: as configured, but long enough and without an early end. Refuses what has no cost to measure.
pub fn plan(mut composed: Composed) -> Result<Plan, OverheadError> {
    let config = &mut composed.config;
    match config.runtime.name {
        Runtime::Sim => return Err(OverheadError::Simulated),
        Runtime::Watch => return Err(OverheadError::NothingRuns),
        Runtime::Candle | Runtime::CandleStock => {}
    }
    if !config.profiling.nvml.enable && !config.profiling.host.enable {
        return Err(OverheadError::NothingSampled);
    }
    config.infer.max_new_tokens = config.infer.max_new_tokens.max(LEAST_TOKENS);
    config.infer.ignore_eos = true;
    Ok(Plan::new(composed)?)
}

/// Makes the engine, then measures pairs of requests until `limit` is over; the pair under way is finished. `tell` hears
/// how far it is.
pub fn measure(
    plan: &Plan,
    limit: Duration,
    control: &Control,
    tell: &mut (dyn FnMut(&str) + Send),
) -> Result<Overhead, OverheadError> {
    let (tx, rx) = event::channel(Clock::wall());
    let activity = Activity::default();
    let mut config = plan.composed.config.clone();
    config.runtime.device = plan.device.to_string();
    let sampler = probes::sampler(&config, &activity, plan.weight_bytes(), plan.gpu_uuid().as_deref())?;
    sampler.announce(&tx);
    let switch = SamplerSwitch::new(sampler, tx.clone());

    activity.set(Phase::Preparing);
    let mut progress = |step: &str, done: u64, total: u64| {
        tell(&format!("preparing: {step} {} %", 100 * done / total.max(1)));
        !control.is_cancelled()
    };
    let mut engine = plan.make_engine(&mut progress)?;
    let workload = Workload { requests: 1, warmup: 0, ..plan.workload().clone() };
    let mut bench = Bench { workload, control, activity, tx, rx, switch, heard: Heard::default() };

    for warmup in 0..plan.workload().warmup.max(1) {
        tell(&format!("warm-up {}", warmup + 1));
        bench.request(engine.as_mut(), warmup % 2 == 0)?;
    }
    bench.heard.reading = Duration::ZERO;
    bench.switch.forget();
    let (pairs, took) = bench.pairs(engine.as_mut(), limit, tell)?;
    Ok(bench.summed_up(plan, pairs, took))
}

/// One engine's requests, with the sampler on or off.
struct Bench<'a> {
    workload: Workload,
    control: &'a Control,
    activity: Activity,
    tx: EventTx,
    rx: EventRx,
    switch: SamplerSwitch,
    heard: Heard,
}

/// What came in besides tokens.
#[derive(Debug, Default)]
struct Heard {
    gpus: Vec<GpuInfo>,
    gpu_absent: Option<GpuAbsent>,
    host: bool,
    reading: Duration,
    calls: Vec<CallCost>,
}

impl Heard {
    fn take(&mut self, event: Event) {
        match event {
            Event::GpuFound(info) => {
                self.gpus.retain(|known| known.index != info.index);
                self.gpus.push(*info);
            }
            Event::GpuAbsent(absent) => self.gpu_absent = Some(absent),
            Event::HostFound(_) => self.host = true,
            Event::GpuSample(sample) => {
                self.reading += Duration::from_micros(sample.read_us.unwrap_or_default().into());
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
        tell: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(Vec<Pair>, Duration), OverheadError> {
        let begun = Instant::now();
        let mut pairs: Vec<Pair> = Vec::new();
        while begun.elapsed() < limit {
            // on off, off on, …: whatever drifts is in neither's favour.
            let on_first = pairs.len().is_multiple_of(2);
            let first = self.request(engine, on_first)?;
            let second = self.request(engine, !on_first)?;
            let (on_ms, off_ms) = if on_first { (first, second) } else { (second, first) };
            pairs.push(Pair { on_ms, off_ms });
            tell(&format!(
                "pair {}, {:.0} of {:.0} s: TPOT {} with the sampler, {} without",
                pairs.len(),
                begun.elapsed().as_secs_f64(),
                limit.as_secs_f64(),
                millis(on_ms),
                millis(off_ms)
            ));
        }
        Ok((pairs, begun.elapsed()))
    }

    /// One request; its TPOT in milliseconds.
    fn request(&mut self, engine: &mut dyn Engine, sampled: bool) -> Result<f64, OverheadError> {
        if sampled {
            self.switch.on()?;
        }
        thread::sleep(SETTLE);
        let done = Driver {
            workload: &self.workload,
            control: self.control,
            ranges: &mut *ranges::for_tools(),
            tx: &self.tx,
            activity: &self.activity,
            predictions: None,
        }
        .run(engine);
        if sampled {
            self.switch.off()?;
        }
        done?;
        let mut tokens: Vec<Stamp> = Vec::new();
        while let Ok(envelope) = self.rx.try_recv() {
            match envelope.event {
                Event::Token(_) => tokens.push(envelope.t),
                event => self.heard.take(event),
            }
        }
        Ok(tpot_ms(&tokens)
            .ok_or_else(|| EngineError::Backend("a request gave fewer than two tokens".to_owned()))?)
    }

    fn summed_up(self, plan: &Plan, pairs: Vec<Pair>, took: Duration) -> Overhead {
        let Bench { heard, switch, .. } = self;
        let (on, cpu) = switch.spent();
        let share = |part: Duration| (!on.is_zero()).then(|| 100.0 * part.as_secs_f64() / on.as_secs_f64());
        let measured: Vec<(f64, f64)> = pairs.iter().map(|pair| (pair.on_ms, pair.off_ms)).collect();
        Overhead {
            run: plan.started(),
            change_pct: interval::of_change_pct(&measured, plan.composed.config.runtime.seed),
            pairs,
            took,
            sampler: SamplerShare {
                duty_pct: share(heard.reading).filter(|_| !heard.gpus.is_empty()),
                cpu_pct: share(cpu),
                calls: heard.calls,
            },
            gpus: heard.gpus,
            gpu_absent: heard.gpu_absent,
            host_sampled: heard.host,
        }
    }
}

/// (last − first) / (tokens − 1).
fn tpot_ms(tokens: &[Stamp]) -> Option<f64> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    (tokens.len() > 1).then(|| last.since(*first).as_secs_f64() * 1e3 / (tokens.len() - 1) as f64)
}

impl Overhead {
    /// Geometric means with the sampler and without: their ratio is the estimate of the change.
    pub fn tpot_ms(&self) -> Option<(f64, f64)> {
        let n = self.pairs.len() as f64;
        let mean =
            |of: fn(&Pair) -> f64| (self.pairs.iter().map(|pair| of(pair).ln()).sum::<f64>() / n).exp();
        (!self.pairs.is_empty()).then(|| (mean(|pair| pair.on_ms), mean(|pair| pair.off_ms)))
    }

    /// 1 where nothing could be told.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.change_pct.is_none())
    }

    /// What was looked at while the sampler was on.
    fn sampled(&self) -> String {
        let gpus: Vec<String> = self
            .gpus
            .iter()
            .map(|gpu| {
                let simulated = if gpu.source == "sim" { ", simulated" } else { "" };
                format!("GPU {} ({}{simulated})", gpu.index, gpu.name)
            })
            .collect();
        match (gpus.is_empty(), self.host_sampled, &self.gpu_absent) {
            (false, true, _) => format!("{} and the host", gpus.join(", ")),
            (false, false, _) => gpus.join(", "),
            (true, true, Some(absent)) => format!("the host alone; no GPU: {}", absent.reason),
            (true, true, None) => "the host alone".to_owned(),
            (true, false, Some(absent)) => format!("nothing; no GPU: {}", absent.reason),
            (true, false, None) => "nothing".to_owned(),
        }
    }

    /// The outcome in a sentence.
    pub fn verdict(&self) -> String {
        let Some(change) = self.change_pct else {
            let n = self.pairs.len();
            let each = self.took.as_secs_f64() / n.max(1) as f64;
            return format!(
                "Nothing can be said from {n} pairs of requests, {LEAST_VALUES} are needed: --seconds {:.0} gives {WANTED_PAIRS}.",
                (each * (WANTED_PAIRS + 1) as f64).ceil()
            );
        };
        let between = format!("between {} and {}", percent_change(change.low), percent_change(change.high));
        let few = if self.pairs.len() < WANTED_PAIRS { " Few pairs: more --seconds narrow it." } else { "" };
        match () {
            () if change.contains(0.0) => format!("No difference can be seen: {between}.{few}"),
            () if change.low > 0.0 => format!("Sampling makes a token slower, by {between}.{few}"),
            () => format!(
                "Requests with the sampler were faster, {between}, which sampling cannot do: something else changed with it; measure again.{few}"
            ),
        }
    }

    pub fn text(&self) -> String {
        let RunStarted { model, dtype, device, engine, batch, prompt_tokens, output_tokens, .. } = &self.run;
        let mut out = format!(
            "{model} as {dtype} on {device} ({engine}), batch {batch}, {prompt_tokens} prompt and {output_tokens} output tokens\n"
        );
        out += &format!("sampled: {}\n\n", self.sampled());
        if let Some((on, off)) = self.tpot_ms() {
            out += &format!(
                "TPOT with the sampler  {:>10}\nTPOT without it        {:>10}\n",
                fine(on),
                fine(off)
            );
        }
        if let Some(change) = &self.change_pct {
            out += &format!(
                "difference             {:>10}  (95 % interval {} to {})\n",
                percent_change(change.estimate),
                percent_change(change.low),
                percent_change(change.high)
            );
        }
        out += &format!(
            "from {} pairs of requests in {:.0} s, with and without in turn; geometric means, bootstrap over pairs\n",
            self.pairs.len(),
            self.took.as_secs_f64()
        );
        out += &format!("\n{}\n\n{}", self.verdict(), self.sampler.text());
        out
    }

    pub fn json(&self) -> Value {
        let run = &self.run;
        let tpot = self.tpot_ms();
        json!({
            "schema": 1,
            "program": run.program,
            "model": run.model, "dtype": run.dtype, "device": run.device, "engine": run.engine,
            "batch": run.batch, "prompt_tokens": run.prompt_tokens, "output_tokens": run.output_tokens,
            "seconds": self.took.as_secs_f64(),
            "sampled": {
                "gpus": self.gpus.iter().map(|gpu| json!({"index": gpu.index, "name": gpu.name, "source": gpu.source})).collect::<Vec<_>>(),
                "gpu_absent": self.gpu_absent.as_ref().map(|absent| &absent.reason),
                "host": self.host_sampled,
            },
            "pairs": self.pairs.len(),
            "tpot_on_ms": tpot.map(|(on, _)| on),
            "tpot_off_ms": tpot.map(|(_, off)| off),
            "difference_pct": self.change_pct,
            "seen": self.change_pct.map(|change| !change.contains(0.0)),
            "verdict": self.verdict(),
            "sampler": {
                "duty_pct": self.sampler.duty_pct,
                "cpu_pct": self.sampler.cpu_pct,
                "calls": self.sampler.calls,
            },
        })
    }
}

impl SamplerShare {
    fn text(&self) -> String {
        let share = |part: Option<f64>| part.map_or_else(|| "–".to_owned(), percent);
        let mut out = format!("the sampler took {} of one core", share(self.cpu_pct));
        if self.duty_pct.is_some() {
            out += &format!("; a GPU was being read {} of the time", share(self.duty_pct));
        }
        out += "\n";
        if self.calls.is_empty() {
            return out;
        }
        let micros = |us: Option<f32>| {
            us.map_or_else(|| "–".to_owned(), |us| format!("{} µs", three_digits(us.into())))
        };
        let mut rows = vec![["call", "tier", "n", "p50", "p99"].map(str::to_owned)];
        for cost in &self.calls {
            let n = grouped(cost.n as i64);
            let tier = cost.tier.to_string();
            rows.push([cost.call.to_string(), tier, n, micros(cost.p50_us), micros(cost.p99_us)]);
        }
        out += &format!("\n{}\n", aligned(&rows, |column| column > 1));
        out
    }
}

/// Enough digits to see a difference of a thousandth.
fn fine(ms: f64) -> String {
    if ms < 100.0 { format!("{ms:.3} ms") } else { format!("{ms:.1} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overhead(slower: f64, pairs: usize) -> Overhead {
        let noise = |i: usize, seed| 1.0 + 0.001 * crate::base::noise::bell(seed, i as u64);
        let pairs: Vec<Pair> = (0..pairs)
            .map(|i| Pair { on_ms: 5.0 * slower * noise(i, 1), off_ms: 5.0 * noise(i, 2) })
            .collect();
        let measured: Vec<(f64, f64)> = pairs.iter().map(|pair| (pair.on_ms, pair.off_ms)).collect();
        let composed = crate::config::compose(&crate::config::ConfTree::built_in(), &[]).unwrap();
        Overhead {
            run: plan(composed).unwrap().started(),
            change_pct: interval::of_change_pct(&measured, 0),
            pairs,
            took: Duration::from_secs(12),
            gpus: Vec::new(),
            gpu_absent: Some(GpuAbsent { reason: "NVML is not installed".into(), remedy: String::new() }),
            host_sampled: true,
            sampler: SamplerShare { duty_pct: None, cpu_pct: Some(0.4), calls: Vec::new() },
        }
    }

    #[test]
    fn what_is_seen_and_what_is_not() {
        let none = overhead(1.0, 12);
        assert!(none.verdict().starts_with("No difference can be seen: between −0."), "{}", none.verdict());
        assert_eq!((none.exit_code(), &none.json()["seen"]), (0, &Value::Bool(false)));
        let slower = overhead(1.02, 12);
        assert!(
            slower.verdict().starts_with("Sampling makes a token slower, by between +1."),
            "{}",
            slower.verdict()
        );
        let (on, off) = slower.tpot_ms().unwrap();
        assert!(((on / off - 1.0) * 100.0 - slower.change_pct.unwrap().estimate).abs() < 1e-9);
        assert!(overhead(0.98, 12).verdict().contains("measure again"));
        assert!(overhead(1.0, 6).verdict().ends_with("Few pairs: more --seconds narrow it."));
    }

    #[test]
    fn too_few_pairs_say_nothing_but_how_to_get_more() {
        let few = overhead(1.0, 3);
        assert_eq!(few.exit_code(), 1);
        assert_eq!(few.json()["difference_pct"], Value::Null);
        assert!(
            few.verdict().contains("from 3 pairs") && few.verdict().contains("--seconds 36"),
            "{}",
            few.verdict()
        );
    }

    #[test]
    fn words() {
        let text = overhead(1.0, 12).text();
        assert!(text.contains("sampled: the host alone; no GPU: NVML is not installed"), "{text}");
        assert!(text.contains("the sampler took 0.40 % of one core\n"), "{text}");
        let calls = vec![CallCost {
            call: "energy".into(),
            tier: "slow".into(),
            n: 30,
            p50_us: Some(4216.0),
            p99_us: None,
        }];
        let share = SamplerShare { duty_pct: Some(0.91), cpu_pct: None, calls }.text();
        assert!(share.contains("a GPU was being read 0.91 % of the time"), "{share}");
        assert!(share.contains("energy  slow       30    4,216 µs           –"), "{share}");
    }

    #[test]
    fn what_has_no_cost_is_refused_with_a_word() {
        let planned = |overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
            plan(crate::config::compose(&crate::config::ConfTree::built_in(), &overrides).unwrap())
        };
        assert!(matches!(planned(&["runtime=sim"]), Err(OverheadError::Simulated)));
        assert!(matches!(planned(&["runtime=watch"]), Err(OverheadError::NothingRuns)));
        assert!(matches!(planned(&["profiling=none"]), Err(OverheadError::NothingSampled)));
        let short = planned(&["infer=short", "infer.ignore_eos=false"]).unwrap();
        assert_eq!((short.workload().output_tokens, short.workload().stop_ids.len()), (64, 0));
    }
}
