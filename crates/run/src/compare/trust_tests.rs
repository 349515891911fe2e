//! The trust on the screen and in the reports agrees with the refusals of `compare`.

use serde_json::json;

use llmprof_analysis::{
    compare::{HEADLINE, Options, compare},
    trust::{MAX_SCORE, Severity},
};
use llmprof_base::noise;
use llmprof_event::{
    Envelope, Event, GpuInfo, GpuProcess, GpuProcesses, HostSample, ObserverSample, Outcome, RequestFinished,
    RequestStarted, RunFinished, Stamp, Token,
};
use llmprof_record::state::RunState;

/// A run and its conditions.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    seed: u64,
    requests: u32,
    on_gpu: bool,
    /// Noise of TPOT from request to request, and its change over the run, as shares.
    noise: f64,
    drift: f64,
    external_cpu_share: f32,
    gpu_processes: u32,
    lost: u64,
    unreadable_lines: u64,
    tool: Option<&'static str>,
    outcome: Option<Outcome>,
}

const STEADY: Scenario = Scenario {
    seed: 0,
    requests: 20,
    on_gpu: false,
    noise: 0.01,
    drift: 0.0,
    external_cpu_share: 0.05,
    gpu_processes: 0,
    lost: 0,
    unreadable_lines: 0,
    tool: None,
    outcome: Some(Outcome::Completed),
};

impl Scenario {
    /// A random scenario; most have few issues.
    fn random(seed: u64) -> Scenario {
        let pick = |stream: u64, n: u64| (noise::bits(noise::bits(31, seed), stream) % n) as usize;
        Scenario {
            seed,
            requests: [2, 5, 9, 10, 12, 30, 60][pick(0, 7)],
            on_gpu: pick(1, 2) == 0,
            noise: [0.0, 0.005, 0.01, 0.04, 0.1, 0.4][pick(2, 6)],
            drift: [0.0, 0.0, 0.0, 0.02, 0.1, -0.3][pick(3, 6)],
            external_cpu_share: [0.0, 0.1, 0.19, 0.21, 0.7][pick(4, 5)],
            gpu_processes: [0, 0, 0, 1, 3][pick(5, 5)],
            lost: [0, 0, 0, 0, 2][pick(6, 5)],
            unreadable_lines: [0, 0, 0, 0, 1][pick(7, 5)],
            tool: [None, None, None, None, Some("nsys")][pick(8, 5)],
            outcome: [None, Some(Outcome::Completed), Some(Outcome::Interrupted), Some(Outcome::Failed)]
                [pick(9, 4)],
        }
    }

    fn state(self) -> RunState {
        const STEPS: u32 = 8;
        let mut state = RunState::for_comparison();
        let mut now_ns = 0;
        let mut apply = |now_ns: u64, event: Event| state.apply(&Envelope { t: Stamp(now_ns), event });
        let run = json!({
            "schema": 1, "program": "llmprof-tui", "started_unix_ms": 0, "experiment": "baseline",
            "model": "qwen2_5_7b", "dtype": "bf16", "engine": "candle",
            "device": if self.on_gpu { "cuda:0" } else { "cpu" },
            "synthetic_weights": true, "simulated": false, "parameters": 1, "weight_bytes": 2,
            "kv_bytes_per_position": 1, "requests": self.requests, "warmup": 0, "batch": 1,
            "prompt_tokens": 16, "output_tokens": STEPS + 1, "seed": 0, "overrides": [],
            "perturbed": self.tool,
        });
        apply(0, Event::RunStarted(serde_json::from_value(run).unwrap()));
        if self.on_gpu {
            let info = GpuInfo { name: "NVIDIA H200".into(), profiled: true, ..GpuInfo::default() };
            apply(0, Event::GpuFound(Box::new(info)));
            let processes = (0..self.gpu_processes).map(|pid| GpuProcess { pid, ..GpuProcess::default() });
            let processes = GpuProcesses { gpu: 0, processes: processes.collect() };
            apply(0, Event::GpuProcesses(Box::new(processes)));
        }
        for request in 0..self.requests {
            let started = RequestStarted {
                request,
                warmup: false,
                batch: 1,
                prompt_tokens: 16,
                output_tokens: STEPS + 1,
                cooldown: false,
                joined: false,
                images: 0,
            };
            apply(now_ns, Event::RequestStarted(started));
            let core_pct = vec![100.0 * self.external_cpu_share; 4];
            let host = HostSample { core_pct, process_pct: Some(0.0), ..HostSample::default() };
            apply(now_ns, Event::HostSample(Box::new(host)));
            let share_done = f64::from(request) / f64::from(self.requests);
            let deviation = self.noise * noise::bell(self.seed, u64::from(request)) + self.drift * share_done;
            for index in 0..=STEPS {
                now_ns += (4e6 * (1.0 + deviation)).max(1e5) as u64;
                apply(
                    now_ns,
                    Event::Token(Token { request, index, id: 7, device_ns: None, speculation: None }),
                );
            }
            apply(now_ns, Event::RequestFinished(RequestFinished { request, complete: true, served: None }));
        }
        apply(now_ns, Event::Observer(ObserverSample { lost: self.lost, ..ObserverSample::default() }));
        if let Some(outcome) = self.outcome {
            apply(now_ns, Event::RunFinished(RunFinished { outcome, cause: None }));
        }
        state.unreadable_lines = self.unreadable_lines;
        state
    }
}

#[test]
fn the_score_agrees_with_what_compare_refuses() {
    let (mut trusted, mut lowered, mut refused) = (0, 0, 0);
    for seed in 0..400 {
        let scenario = Scenario::random(seed);
        let state = scenario.state();
        let trust = state.trust().unwrap();
        let sample = state.run_sample("b").unwrap();
        assert_eq!(trust, sample.trust(false), "{scenario:?}");

        let reference = Scenario { on_gpu: scenario.on_gpu, ..STEADY }.state().run_sample("a").unwrap();
        // These two are facts that differ between the runs, not issues of one of them.
        let meant = vec!["requests".to_owned(), "seed".to_owned()];
        let options = Options { metrics: vec![HEADLINE], meant, ..Options::default() };
        let comparison = compare(&reference, &sample, &options);
        let row = comparison.row(HEADLINE).unwrap();
        assert_eq!(trust.blocks_comparison(), !comparison.b.blocking_issues.is_empty(), "{scenario:?}");
        assert_eq!(trust.blocks_comparison(), trust.score == 0, "{scenario:?}");
        match trust.severity {
            None => {
                trusted += 1;
                assert_eq!(trust.score, MAX_SCORE, "{scenario:?}");
                assert!(!row.blocked, "{scenario:?}: {}", comparison.sentence);
            }
            Some(Severity::LowersTrust) => {
                lowered += 1;
                assert!((1..MAX_SCORE).contains(&trust.score), "{scenario:?}");
            }
            Some(Severity::BlocksComparison) => {
                refused += 1;
                assert!(row.blocked, "{scenario:?}: {}", comparison.sentence);
            }
        }
        if row.blocked {
            assert!(trust.score < MAX_SCORE, "{scenario:?}: {}", comparison.sentence);
        }
    }
    assert!(trusted > 8 && lowered > 8 && refused > 80, "{trusted}, {lowered}, {refused}");
}

#[test]
fn external_load_that_compare_refuses_is_not_trusted() {
    let loaded = Scenario { external_cpu_share: 0.7, ..STEADY };
    let trust = loaded.state().trust().unwrap();
    assert_eq!((trust.score, trust.severity), (0, Some(Severity::BlocksComparison)));
    let issues: Vec<String> = trust.issues.iter().map(ToString::to_string).collect();
    assert_eq!(issues, ["external load: other processes used 70 % of the CPU"]);
    // On a GPU the load of the CPU does not count.
    assert_eq!(Scenario { on_gpu: true, ..loaded }.state().trust().unwrap().score, MAX_SCORE);
}
