//! Takes samples when they are due, on a thread of its own or wherever a simulation calls it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{
    GpuProbe, HostProbe, ProbeError,
    absent::Absence,
    host::HostReader,
    nvml::NvmlProbe,
    sim::{SimHost, SimProbe},
};
use crate::{
    config::{Probe, RunConfig, Runtime, SamplerConfig},
    event::{Activity, Event, EventTx, GpuInfo, Level, Stamp},
    scenario::{Scenario, UnknownScenario},
};

/// The longest that a stop waits when nobody unparks the thread.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Owns the probes and knows when each is due.
pub struct Sampler {
    gpu: Result<GpuWatch, Absence>,
    host: Option<HostWatch>,
}

struct GpuWatch {
    probe: Box<dyn GpuProbe>,
    gpus: Vec<Watched>,
    due: Due,
}

struct Watched {
    info: GpuInfo,
    lost: bool,
    complained: bool,
}

struct HostWatch {
    probe: Box<dyn HostProbe>,
    due: Due,
}

/// A grid of moments; those that were slept through are skipped.
struct Due {
    next: Stamp,
    every: Duration,
}

impl Due {
    fn new(config: &SamplerConfig) -> Due {
        Due { next: Stamp::default(), every: Duration::from_millis(u64::from(config.interval_ms.max(1))) }
    }

    /// Whether it is time; if so, moves on to the first moment after `now`.
    fn take(&mut self, now: Stamp) -> bool {
        if now < self.next {
            return false;
        }
        let missed = now.since(self.next).as_nanos() / self.every.as_nanos();
        self.next = self.next + self.every * u32::try_from(missed + 1).unwrap_or(u32::MAX);
        true
    }
}

impl Sampler {
    /// The probes that `config` asks for. `activity` is what the workload is doing; `weight_bytes` is what a
    /// simulated card holds.
    pub fn for_config(
        config: &RunConfig,
        activity: &Activity,
        weight_bytes: u64,
    ) -> Result<Sampler, UnknownScenario> {
        let simulated_run = config.runtime.name == Runtime::Sim;
        let seed = config.runtime.seed;
        let simulated = |setting: &Option<String>| -> Result<Box<dyn GpuProbe>, UnknownScenario> {
            let scenario = Scenario::named(setting.as_ref().unwrap_or(&config.runtime.sim.scenario))?;
            Ok(Box::new(SimProbe::new(scenario.with_seed(seed), activity.clone(), seed, weight_bytes)))
        };
        let probe: Result<Box<dyn GpuProbe>, Absence> = match config.telemetry.probe {
            _ if !config.profiling.nvml.enable => {
                Err(Absence::TurnedOff { setting: "profiling.nvml.enable=false" })
            }
            Probe::None => Err(Absence::TurnedOff { setting: "telemetry.probe=none" }),
            Probe::Sim => Ok(simulated(&config.telemetry.scenario)?),
            Probe::Auto if simulated_run => Ok(simulated(&config.telemetry.scenario)?),
            Probe::Auto | Probe::Nvml => {
                NvmlProbe::open(profiled_gpu(config)).map(|probe| Box::new(probe) as _)
            }
        };
        let host = config.profiling.host.enable.then(|| -> Box<dyn HostProbe> {
            // A real host beside simulated time would make every recording another.
            if simulated_run {
                Box::new(SimHost::new(activity.clone(), seed, weight_bytes))
            } else {
                Box::new(HostReader::open())
            }
        });
        Ok(Sampler::new(probe, &config.profiling.nvml, host, &config.profiling.host))
    }

    pub fn new(
        gpu: Result<Box<dyn GpuProbe>, Absence>,
        gpu_interval: &SamplerConfig,
        host: Option<Box<dyn HostProbe>>,
        host_interval: &SamplerConfig,
    ) -> Sampler {
        let gpu = gpu.map(|probe| {
            let gpus = probe
                .gpus()
                .into_iter()
                .map(|info| Watched { info, lost: false, complained: false })
                .collect();
            GpuWatch { probe, gpus, due: Due::new(gpu_interval) }
        });
        let host = host.map(|probe| {
            let mut due = Due::new(host_interval);
            // Host readings are rates: the first needs an interval behind it.
            due.next = due.next + due.every;
            HostWatch { probe, due }
        });
        Sampler { gpu, host }
    }

    /// Says what there is to look at, and why the rest is not there.
    pub fn announce(&self, tx: &EventTx) {
        match &self.gpu {
            Ok(watch) => {
                for watched in &watch.gpus {
                    tx.send(Event::GpuFound(Box::new(watched.info.clone())));
                }
            }
            Err(absence) => {
                tx.send(Event::GpuAbsent(absence.into()));
            }
        }
        if let Some(host) = &self.host {
            tx.send(Event::HostFound(Box::new(host.probe.info())));
        }
    }

    /// Sends what is due at `now` and answers when to come again; `None` when nothing will ever be due.
    pub fn sample_due(&mut self, now: Stamp, tx: &EventTx) -> Option<Stamp> {
        if let Ok(watch) = &mut self.gpu
            && watch.due.take(now)
            && let Err(absence) = watch.sample(now, tx)
        {
            tx.send(Event::GpuAbsent((&absence).into()));
            if watch.gpus.iter().all(|watched| watched.lost) {
                self.gpu = Err(absence);
            }
        }
        if let Some(host) = &mut self.host
            && host.due.take(now)
        {
            tx.send(Event::HostSample(Box::new(host.probe.sample(now))));
        }
        let gpu_next = self.gpu.as_ref().ok().map(|watch| watch.due.next);
        let host_next = self.host.as_ref().map(|host| host.due.next);
        gpu_next.into_iter().chain(host_next).min()
    }

    /// Samples on the calling thread, by a wall clock, until `stop` is set. Unparking the thread makes it look
    /// at once; it looks by itself within 50 ms.
    pub fn run(&mut self, tx: &EventTx, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let now = tx.clock().now();
            let Some(next) = self.sample_due(now, tx) else { return };
            while !stop.load(Ordering::Acquire) {
                let left = next.since(tx.clock().now());
                if left.is_zero() {
                    break;
                }
                std::thread::park_timeout(left.min(STOP_CHECK));
            }
        }
    }
}

impl GpuWatch {
    /// Fails when the GPU that matters, or the last one, has gone in this round.
    fn sample(&mut self, now: Stamp, tx: &EventTx) -> Result<(), Absence> {
        let mut gone = None;
        for watched in self.gpus.iter_mut().filter(|watched| !watched.lost) {
            match self.probe.sample(watched.info.index, now) {
                Ok(sample) => {
                    tx.send(Event::GpuSample(Box::new(sample)));
                }
                Err(error @ ProbeError::Unreadable { .. }) => {
                    if !std::mem::replace(&mut watched.complained, true) {
                        tx.notice(Level::Warn, "gpu", error.to_string());
                    }
                }
                Err(error @ ProbeError::Lost { .. }) => {
                    watched.lost = true;
                    tx.notice(Level::Error, "gpu", error.to_string());
                    if watched.info.profiled || gone.is_none() {
                        gone = Some((watched.info.profiled, error.to_string()));
                    }
                }
            }
        }
        match gone {
            Some((profiled, detail)) if profiled || self.gpus.iter().all(|watched| watched.lost) => {
                Err(Absence::Lost { detail })
            }
            _ => Ok(()),
        }
    }
}

/// The NVML index of the GPU that the workload runs on.
fn profiled_gpu(config: &RunConfig) -> Option<u32> {
    (config.runtime.device != "cpu").then_some(config.hardware.device_index)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use super::*;
    use crate::{
        config::{
            DatasetConfig, Dtype, HardwareConfig, HydraConfig, HydraJob, HydraRun, InferConfig, ModelConfig,
            OutputConfig, ProfilingConfig, RuntimeConfig, SimConfig, TelemetryConfig, ThemeName, TuiConfig,
            Weights,
        },
        event::{Clock, EventRx, GpuSample, HostInfo, HostSample, Phase, channel},
    };

    /// Two GPUs that answer as scripted, sample by sample; the last answer stays.
    struct Scripted {
        answers: [Vec<Result<(), ProbeError>>; 2],
    }

    impl GpuProbe for Scripted {
        fn gpus(&self) -> Vec<GpuInfo> {
            [0, 1].map(|index| GpuInfo { index, profiled: index == 0, ..GpuInfo::default() }).into()
        }

        fn sample(&mut self, gpu: u32, _now: Stamp) -> Result<GpuSample, ProbeError> {
            let answers = &mut self.answers[gpu as usize];
            let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
            answer.map(|()| GpuSample { gpu, ..GpuSample::default() })
        }
    }

    struct FixedHost;

    impl HostProbe for FixedHost {
        fn info(&self) -> HostInfo {
            HostInfo::default()
        }

        fn sample(&mut self, _now: Stamp) -> HostSample {
            HostSample::default()
        }
    }

    fn every_ms(interval_ms: u32) -> SamplerConfig {
        SamplerConfig { enable: true, interval_ms }
    }

    fn scripted(answers: [Vec<Result<(), ProbeError>>; 2]) -> Sampler {
        Sampler::new(
            Ok(Box::new(Scripted { answers })),
            &every_ms(100),
            Some(Box::new(FixedHost)),
            &every_ms(250),
        )
    }

    fn lost(gpu: u32) -> Result<(), ProbeError> {
        Err(ProbeError::Lost { gpu, reason: "fell off the bus".to_owned() })
    }

    fn unreadable(gpu: u32) -> Result<(), ProbeError> {
        Err(ProbeError::Unreadable { gpu, reason: "timeout".to_owned() })
    }

    /// One letter an event: g, h samples; G, H found; A absent; N notice.
    fn letters(rx: &mut EventRx) -> String {
        let mut letters = String::new();
        while let Ok(envelope) = rx.try_recv() {
            letters.push(match envelope.event {
                Event::GpuSample(_) => 'g',
                Event::HostSample(_) => 'h',
                Event::GpuFound(_) => 'G',
                Event::HostFound(_) => 'H',
                Event::GpuAbsent(_) => 'A',
                Event::Notice(_) => 'N',
                _ => '?',
            });
        }
        letters
    }

    /// Drives the sampler from due moment to due moment, `rounds` times.
    fn drive(mut sampler: Sampler, rounds: usize) -> (String, Option<Stamp>) {
        let clock = Clock::virtual_clock();
        let (tx, mut rx) = channel(clock.clone());
        let mut next = Some(Stamp::default());
        for _ in 0..rounds {
            let Some(due) = next else { break };
            clock.advance(due.since(clock.now()));
            next = sampler.sample_due(due, &tx);
        }
        (letters(&mut rx), next)
    }

    #[test]
    fn failures_are_told_once_and_never_end_the_sampling() {
        let ok = || Ok(());
        let cases = [
            ("all well", [vec![ok()], vec![ok()]], "gggggghgggg"),
            ("one failing", [vec![ok(), unreadable(0)], vec![ok()]], "ggNgghgg"),
            (
                "failing and well again",
                [vec![unreadable(0), ok(), unreadable(0), ok()], vec![ok()]],
                "Ngggghgggg",
            ),
            ("the other one gone", [vec![ok()], vec![lost(1)]], "gNgghgg"),
            ("the profiled one gone", [vec![ok(), lost(0)], vec![ok()]], "ggNgAghgg"),
            ("both gone", [vec![lost(0)], vec![lost(1)]], "NNAhhhhh"),
        ];
        for (what, answers, expected) in cases {
            let (seen, next) = drive(scripted(answers), 6);
            assert_eq!(seen, expected, "{what}");
            assert!(next.is_some(), "{what}: the host goes on");
        }
    }

    #[test]
    fn moments_lie_on_a_grid_and_missed_ones_are_skipped() {
        let mut due = Due::new(&every_ms(100));
        let ms = |ms: u64| Stamp(ms * 1_000_000);
        for (now, taken, next) in
            [(0, true, 100), (99, false, 100), (100, true, 200), (555, true, 600), (600, true, 700)]
        {
            assert_eq!((due.take(ms(now)), due.next), (taken, ms(next)), "at {now}");
        }
    }

    #[test]
    fn nothing_to_sample_is_said_and_asks_for_no_visit() {
        let off = Err(Absence::TurnedOff { setting: "telemetry.probe=none" });
        let mut sampler = Sampler::new(off, &every_ms(100), None, &every_ms(100));
        let (tx, mut rx) = channel(Clock::virtual_clock());
        sampler.announce(&tx);
        assert_eq!(letters(&mut rx), "A");
        assert_eq!(sampler.sample_due(Stamp(0), &tx), None);
    }

    #[test]
    fn a_thread_samples_by_the_wall_clock_and_stops_at_once() {
        let (tx, mut rx) = channel(Clock::wall());
        let stop = Arc::new(AtomicBool::new(false));
        let worker = std::thread::spawn({
            let (tx, stop) = (tx.clone(), stop.clone());
            let mut sampler = Sampler::new(
                Ok(Box::new(Scripted { answers: [vec![Ok(())], vec![Ok(())]] })),
                &every_ms(20),
                None,
                &every_ms(1),
            );
            move || sampler.run(&tx, &stop)
        });
        std::thread::sleep(Duration::from_millis(210));
        let stopped = Instant::now();
        stop.store(true, Ordering::Release);
        worker.thread().unpark();
        worker.join().unwrap();
        assert!(stopped.elapsed() < Duration::from_millis(50), "{:?}", stopped.elapsed());
        let samples = letters(&mut rx).len() / 2;
        assert!((5..=12).contains(&samples), "{samples}");
    }

    fn config(runtime: Runtime, probe: Probe) -> RunConfig {
        RunConfig {
            experiment: "test".to_owned(),
            model: ModelConfig {
                name: "tiny".to_owned(),
                hub: None,
                dtype: Dtype::Bf16,
                weights: Weights::Synthetic,
                config_json: None,
                arch: serde_json::Value::Null,
            },
            dataset: DatasetConfig { name: "random".to_owned(), prompt_tokens: 16 },
            runtime: RuntimeConfig {
                name: runtime,
                device: "auto".to_owned(),
                threads: None,
                batch_size: 1,
                warmup: 0,
                requests: 1,
                seed: 1,
                sim: SimConfig {
                    prefill_tok_s: 1e4,
                    itl_ms: 4.0,
                    jitter: 0.0,
                    speed: 0.0,
                    scenario: "mixed".to_owned(),
                },
            },
            infer: InferConfig { max_new_tokens: 8 },
            hardware: HardwareConfig { device_index: 0 },
            telemetry: TelemetryConfig { probe, scenario: None },
            profiling: ProfilingConfig { nvml: every_ms(100), host: every_ms(1000) },
            output: OutputConfig {
                record: false,
                flush_ms: 100,
                tui: TuiConfig { fps: 10, theme: ThemeName::Dark, ascii: None, mouse: false },
            },
            hydra: HydraConfig {
                run: HydraRun { dir: "runs".to_owned() },
                job: HydraJob { name: "test".to_owned() },
            },
        }
    }

    /// What the sampler of `config` announces about GPUs: the source, or the reason for there being none.
    fn announced(config: &RunConfig) -> Vec<String> {
        let sampler = Sampler::for_config(config, &Activity::default(), 0).unwrap();
        let (tx, mut rx) = channel(Clock::virtual_clock());
        sampler.announce(&tx);
        let mut seen = Vec::new();
        while let Ok(envelope) = rx.try_recv() {
            match envelope.event {
                Event::GpuFound(info) => seen.push(info.source),
                Event::GpuAbsent(absent) => seen.push(absent.reason),
                Event::HostFound(info) => seen.push(format!("host {}", info.os == "simulated")),
                other => panic!("{other:?}"),
            }
        }
        seen
    }

    #[test]
    fn the_config_chooses_the_probes() {
        assert_eq!(announced(&config(Runtime::Sim, Probe::Auto)), ["sim", "host true"]);
        assert_eq!(announced(&config(Runtime::Candle, Probe::Sim)), ["sim", "host false"]);
        let off = announced(&config(Runtime::Candle, Probe::None));
        assert_eq!(off, ["telemetry.probe=none turns GPU telemetry off", "host false"]);
        let mut quiet = config(Runtime::Sim, Probe::Auto);
        quiet.profiling.nvml.enable = false;
        quiet.profiling.host.enable = false;
        assert_eq!(announced(&quiet), ["profiling.nvml.enable=false turns GPU telemetry off"]);
        let real = announced(&config(Runtime::Candle, Probe::Auto));
        assert!(real[0] == "nvml" || real[0].starts_with("NVML ") || real[0].contains("driver"), "{real:?}");
    }

    #[test]
    fn the_probe_may_follow_a_script_of_its_own() {
        let mut config = config(Runtime::Sim, Probe::Auto);
        config.telemetry.scenario = Some("sunny".to_owned());
        assert!(Sampler::for_config(&config, &Activity::default(), 0).is_err());
        config.telemetry.scenario = Some("steady".to_owned());
        let activity = Activity::default();
        activity.set(Phase::Prefill);
        let mut sampler = Sampler::for_config(&config, &activity, 0).unwrap();
        let (tx, mut rx) = channel(Clock::virtual_clock());
        sampler.sample_due(Stamp(0), &tx);
        match rx.try_recv().unwrap().event {
            Event::GpuSample(sample) => assert_eq!(sample.reasons, Some(0), "steady has no power cap"),
            other => panic!("{other:?}"),
        }
    }
}
