//! The simulated engine: a seed, a scenario and a virtual clock. It has the cost of a model, not its weights.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{card::SimCard, kernels::SimKernels, timing::SimTiming};
use crate::sim::scenario::{Fault, Scenario, UnknownScenario};
use llm_cost::Step;
use llmprof_base::noise;
use llmprof_config::SimConfig;
use llmprof_event::{Clock, Phase, Stamp};
use llmprof_workload::{Engine, EngineError, Prompts};

/// Called when simulated time reaches the time it requested last; returns the next one.
pub type Tick = Box<dyn FnMut(Stamp) -> Option<Stamp> + Send>;

/// Used if neither the configuration nor a model's cost gives the duration of steps.
const PREFILL_TOK_S: f64 = 47_000.0;
const ITL_MS: f64 = 3.8;

/// The relative cost of one more position of context in a decode step of a configured duration.
const COST_PER_POSITION: f64 = 1.0e-5;

/// The longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(20);

/// If simulated time is behind by more than this, it does not catch up: the machine was suspended or the workload was
/// paused.
const CATCH_UP_LIMIT: Duration = Duration::from_millis(250);

/// An [`Engine`] whose steps take the time that follows from a model's cost or from [`SimConfig`], and from its
/// scenario.
pub struct SimEngine {
    config: SimConfig,
    scenario: Scenario,
    clock: Clock,
    seed: u64,
    vocab: u32,
    stop: Arc<AtomicBool>,
    tick: Option<Tick>,
    tick_due: Option<Stamp>,
    timing: Option<SimTiming>,
    kernels: Option<SimKernels>,
    pace: Option<Pace>,
    batch: usize,
    context: usize,
    draws: u64,
}

impl SimEngine {
    /// Advances `clock`, which should be a virtual one. Once `stop` is set, the running step ends with
    /// [`EngineError::Cancelled`] within 100 ms.
    pub fn new(
        config: &SimConfig,
        seed: u64,
        vocab: u32,
        clock: Clock,
        stop: Arc<AtomicBool>,
    ) -> Result<SimEngine, UnknownScenario> {
        Ok(SimEngine {
            scenario: Scenario::named(&config.scenario)?.with_seed(seed),
            config: config.clone(),
            clock,
            seed,
            vocab: vocab.max(1),
            stop,
            tick: None,
            tick_due: None,
            timing: None,
            kernels: None,
            pace: None,
            batch: 1,
            context: 0,
            draws: 0,
        })
    }

    /// Calls `tick` within steps, at exactly the times it requests.
    pub fn with_tick(mut self, tick: Tick) -> SimEngine {
        self.tick_due = Some(self.clock.now());
        self.tick = Some(tick);
        self
    }

    /// The GPU it runs on.
    pub fn card(&self) -> &'static SimCard {
        self.scenario.card().model()
    }

    /// Takes durations that are not configured from `timing`.
    pub fn with_timing(mut self, timing: SimTiming) -> SimEngine {
        self.timing = Some(timing);
        self
    }

    /// The undisturbed duration of a prefill.
    fn prefill_s(&self) -> f64 {
        let (batch, prompt) = (self.batch as u64, self.context as u64);
        match (self.config.prefill_tok_s, &self.timing) {
            (None, Some(timing)) => timing.prefill_s(batch, prompt),
            (configured, _) => (batch * prompt) as f64 / configured.unwrap_or(PREFILL_TOK_S),
        }
    }

    /// The undisturbed duration of a decode step.
    fn decode_s(&mut self) -> f64 {
        let (batch, context) = (self.batch as u64, self.context as u64);
        match (self.config.itl_ms, &mut self.timing) {
            (None, Some(timing)) => timing.decode_s(batch, context),
            (configured, _) => {
                let growth = 1.0 + COST_PER_POSITION * (context * batch) as f64;
                configured.unwrap_or(ITL_MS) / 1e3 * growth
            }
        }
    }

    /// Sends the kernels of the steps through `kernels`.
    pub fn with_kernels(mut self, kernels: SimKernels) -> SimEngine {
        self.kernels = Some(kernels);
        self
    }

    /// The overhead of recording its kernels.
    fn overhead_s(&mut self, phase: Phase, nominal_s: f64) -> f64 {
        self.kernels.as_mut().map_or(0.0, |kernels| kernels.overhead_s(phase, nominal_s))
    }

    /// Sends the kernels of a step of `phase` that began at `start`.
    fn send_kernels(&mut self, phase: Phase, step: Step, start: Stamp) {
        let took = self.clock.now().since(start);
        if let Some(kernels) = &mut self.kernels {
            kernels.step(phase, step, start, took.as_nanos() as u64);
        }
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        self.draws
    }

    /// `nominal_s` with the noise of this step.
    fn jittered(&mut self, nominal_s: f64) -> f64 {
        let noise = noise::bell(self.seed, self.draw());
        nominal_s * (1.0 + self.config.jitter * noise).max(0.1)
    }

    fn token_ids(&mut self) -> Vec<u32> {
        (0..self.batch)
            .map(|_| (noise::bits(self.seed, self.draw()) % u64::from(self.vocab)) as u32)
            .collect()
    }

    fn strike_faults(&self) -> Result<(), EngineError> {
        match self.scenario.fault(self.clock.now()) {
            Some(Fault::EnginePanic) => panic!("scenario {:?}: the engine panics here", self.scenario.name()),
            Some(Fault::EngineError) => Err(EngineError::Backend(format!(
                "scenario {:?}: the engine fails here",
                self.scenario.name()
            ))),
            None => Ok(()),
        }
    }

    /// Advances simulated time by `secs`.
    fn spend(&mut self, secs: f64) -> Result<(), EngineError> {
        let end = self.clock.now() + bounded(secs);
        loop {
            let now = self.clock.now();
            if let (Some(tick), Some(due)) = (&mut self.tick, self.tick_due)
                && due <= now
            {
                self.tick_due = tick(now).map(|next| next.max(Stamp(now.0 + 1)));
            }
            if now >= end {
                return Ok(());
            }
            let next = self.tick_due.map_or(end, |due| due.min(end));
            self.wait_for(next)?;
            self.clock.advance(next.since(now));
        }
    }

    /// Sleeps until simulated `t` is reached at the configured speed.
    fn wait_for(&mut self, t: Stamp) -> Result<(), EngineError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(EngineError::Cancelled);
            }
            if self.config.speed <= 0.0 {
                return Ok(());
            }
            let (now, real_now) = (self.clock.now(), Instant::now());
            let pace = self.pace.get_or_insert(Pace { real: real_now, simulated: now });
            let due = pace.due(t, self.config.speed, real_now);
            match due.checked_duration_since(real_now) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(SLICE)),
                _ => return Ok(()),
            }
        }
    }
}

/// A duration from any configured number: zero for NaN, at most 11 days.
fn bounded(secs: f64) -> Duration {
    if secs.is_nan() { Duration::ZERO } else { Duration::from_secs_f64(secs.clamp(0.0, 1e6)) }
}

/// A moment at which real and simulated time were equal.
struct Pace {
    real: Instant,
    simulated: Stamp,
}

impl Pace {
    /// The real time of simulated `t`. With absolute times, the next steps make up for an oversleep; a delay that is
    /// too long is given up.
    fn due(&mut self, t: Stamp, speed: f64, now: Instant) -> Instant {
        let due = self.real + bounded(t.since(self.simulated).as_secs_f64() / speed);
        if now.saturating_duration_since(due) > CATCH_UP_LIMIT {
            *self = Pace { real: now, simulated: t };
        }
        due
    }
}

impl Engine for SimEngine {
    fn prefill(&mut self, prompts: &Prompts) -> Result<Vec<u32>, EngineError> {
        self.context = prompts.validate(prompts.batch, self.vocab as usize)?;
        self.batch = prompts.batch;
        let start = self.clock.now();
        let factor = self.scenario.at(start, Phase::Prefill).time_factor;
        let nominal_s = self.prefill_s();
        let secs = self.jittered(nominal_s) * factor + self.overhead_s(Phase::Prefill, nominal_s);
        self.spend(secs)?;
        self.strike_faults()?;
        self.send_kernels(Phase::Prefill, Step::prefill(self.batch as u64, self.context as u64), start);
        Ok(self.token_ids())
    }

    fn decode(&mut self) -> Result<Vec<u32>, EngineError> {
        let start = self.clock.now();
        let factor = self.scenario.at(start, Phase::Decode).time_factor;
        let nominal_s = self.decode_s();
        let step_s = self.jittered(nominal_s) * factor + self.overhead_s(Phase::Decode, nominal_s);
        let spike_steps = self.scenario.spike_steps(start, start + bounded(step_s));
        self.spend(step_s + spike_steps * nominal_s)?;
        self.strike_faults()?;
        self.send_kernels(Phase::Decode, Step::decode(self.batch as u64, self.context as u64), start);
        self.context += 1;
        Ok(self.token_ids())
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        if let Some(kernels) = &mut self.kernels {
            kernels.finish();
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), EngineError> {
        self.context = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn config(scenario: &str) -> SimConfig {
        SimConfig {
            prefill_tok_s: Some(50_000.0),
            itl_ms: Some(4.0),
            jitter: 0.02,
            speed: 0.0,
            scenario: scenario.to_owned(),
        }
    }

    fn engine(config: &SimConfig, seed: u64) -> SimEngine {
        SimEngine::new(config, seed, 1000, Clock::virtual_clock(), Arc::default()).unwrap()
    }

    fn prompts(len: usize, batch: usize) -> Prompts {
        Prompts { ids: vec![1; len * batch], batch }
    }

    /// Every stamp and id of a short run.
    fn trace(config: &SimConfig, seed: u64) -> Vec<(Stamp, Vec<u32>)> {
        let mut engine = engine(config, seed);
        let first = engine.prefill(&prompts(500, 2)).unwrap();
        let mut trace = vec![(engine.clock.now(), first)];
        for _ in 0..200 {
            let ids = engine.decode().unwrap();
            trace.push((engine.clock.now(), ids));
        }
        trace
    }

    #[test]
    fn a_seed_decides_everything() {
        let mixed = config("mixed");
        assert_eq!(trace(&mixed, 1), trace(&mixed, 1));
        assert_ne!(trace(&mixed, 1), trace(&mixed, 2));
        assert!(trace(&mixed, 1).iter().all(|(_, ids)| ids.len() == 2 && ids.iter().all(|&id| id < 1000)));
    }

    #[test]
    fn durations_are_the_configured_ones() {
        let trace = trace(&config("steady"), 3);
        let ttft_s = trace[0].0.secs();
        assert!((ttft_s - 0.020).abs() < 0.002, "{ttft_s}");
        let tpot_s = trace[200].0.since(trace[0].0).as_secs_f64() / 200.0;
        assert!((tpot_s - 0.004).abs() < 0.0001, "{tpot_s}");
        let longest = trace.windows(2).map(|w| w[1].0.since(w[0].0)).max().unwrap();
        assert!(longest < Duration::from_micros(4500), "{longest:?}");
    }

    #[test]
    fn the_power_cap_slows_only_prefill() {
        let (steady, capped) = (trace(&config("steady"), 3), trace(&config("power_cap"), 3));
        let ratio = capped[0].0.secs() / steady[0].0.secs();
        assert!((ratio - 1.375).abs() < 1e-3, "{ratio}");
        let decode = |trace: &[(Stamp, Vec<u32>)]| trace[200].0.since(trace[0].0).as_micros();
        assert!(decode(&steady).abs_diff(decode(&capped)) < 2);
    }

    #[test]
    fn odd_numbers_do_not_panic() {
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX] {
            let config = SimConfig {
                prefill_tok_s: Some(odd),
                itl_ms: Some(odd),
                jitter: odd,
                ..config("itl_spikes")
            };
            let mut engine = engine(&config, 1);
            engine.prefill(&prompts(4, 1)).unwrap();
            engine.decode().unwrap();
        }
    }

    #[test]
    fn spikes_are_late_tokens() {
        let mut engine = engine(&config("itl_spikes"), 5);
        engine.prefill(&prompts(10, 1)).unwrap();
        let mut late = 0;
        while engine.clock.now().secs() < 30.0 {
            let before = engine.clock.now();
            engine.decode().unwrap();
            late += u32::from(engine.clock.now().since(before) > Duration::from_millis(8));
        }
        assert!((9..=10).contains(&late), "{late}");
    }

    #[test]
    fn a_tick_sees_the_stamps_it_asked_for_even_inside_a_long_prefill() {
        let (tx, rx) = mpsc::channel();
        let mut engine =
            engine(&SimConfig { prefill_tok_s: Some(1000.0), jitter: 0.0, ..config("steady") }, 1).with_tick(
                Box::new(move |now| {
                    tx.send(now).unwrap();
                    Some(now + Duration::from_millis(100))
                }),
            );
        engine.prefill(&prompts(450, 1)).unwrap();
        let seen: Vec<u64> = rx.try_iter().map(|stamp| stamp.0 / 1_000_000).collect();
        assert_eq!(seen, [0, 100, 200, 300, 400]);
    }

    #[test]
    fn faults_end_the_run_as_scripted() {
        let mut failing = engine(&SimConfig { prefill_tok_s: Some(100.0), ..config("fail") }, 1);
        assert!(failing.prefill(&prompts(100, 1)).is_ok());
        assert!(
            matches!(failing.prefill(&prompts(300, 1)), Err(EngineError::Backend(text)) if text.contains("fail"))
        );
        let mut panicking = engine(&SimConfig { prefill_tok_s: Some(100.0), ..config("panic") }, 1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            panicking.prefill(&prompts(400, 1))
        }));
        assert!(caught.is_err());
    }

    /// Steps of 0.1 ms, which a sleep overshoots by half: due times relative to the start make up for that.
    #[test]
    fn pacing_counts_from_the_start_and_gives_up_a_long_delay() {
        let start = Instant::now();
        let at = |real_us: u64| start + Duration::from_micros(real_us);
        let mut pace = Pace { real: start, simulated: Stamp(0) };
        let mut overslept_us = 0;
        for step in 1..=2000u64 {
            // At 40 times the speed, steps of 4 ms.
            let due = pace.due(Stamp(step * 4_000_000), 40.0, at(100 * (step - 1) + overslept_us));
            assert_eq!(due, at(100 * step), "step {step}");
            overslept_us = 50;
        }
        let limit_us = CATCH_UP_LIMIT.as_micros() as u64;
        let now = at(100 * 2001 + limit_us + 1000);
        pace.due(Stamp(2001 * 4_000_000), 40.0, now);
        assert_eq!(pace.due(Stamp(2002 * 4_000_000), 40.0, now), now + Duration::from_micros(100));
    }

    #[test]
    fn no_step_ends_before_its_time() {
        const SPEED: f64 = 40.0;
        let mut engine = engine(&SimConfig { speed: SPEED, jitter: 0.0, ..config("steady") }, 1);
        // The pace begins within the prefill. Steps make up for a late wake-up, so only the time since then has a lower
        // bound.
        let (real, simulated) = (Instant::now(), engine.clock.now());
        engine.prefill(&prompts(1, 1)).unwrap();
        for _ in 0..500 {
            engine.decode().unwrap();
        }
        let elapsed = real.elapsed();
        let simulated_s = engine.clock.now().since(simulated).as_secs_f64();
        let due = bounded(simulated_s / SPEED);
        assert!(elapsed >= due, "{elapsed:?} < {due:?}");
    }

    #[test]
    fn a_stop_is_noticed_in_the_middle_of_a_slow_step() {
        let stop = Arc::new(AtomicBool::new(false));
        // A step of days.
        let slow = SimConfig { speed: 1e-9, ..config("steady") };
        let stopper = stop.clone();
        let mut engine = SimEngine::new(&slow, 1, 10, Clock::virtual_clock(), stop).unwrap().with_tick(
            Box::new(move |_| {
                stopper.store(true, Ordering::Relaxed);
                None
            }),
        );
        assert!(matches!(engine.prefill(&prompts(500, 1)), Err(EngineError::Cancelled)));
    }
}
