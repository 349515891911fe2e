//! The start of a server, as stages with their times, from its output.

use std::fmt;

use serde::Serialize;

use llmprof_base::units::three_digits;
use llmprof_event::Stamp;

/// The stages until a server answers, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The interpreter and its modules, and the configuration of the model.
    Imports,
    /// Processes, CUDA and communication.
    Engine,
    Weights,
    Compile,
    /// A trial run, and the size of the KV cache.
    Memory,
    Capture,
    /// Until the first answer.
    Api,
}

impl Stage {
    pub const ALL: [Stage; 7] = [
        Stage::Imports,
        Stage::Engine,
        Stage::Weights,
        Stage::Compile,
        Stage::Memory,
        Stage::Capture,
        Stage::Api,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Stage::Imports => "imports",
            Stage::Engine => "engine start",
            Stage::Weights => "weights",
            Stage::Compile => "compile",
            Stage::Memory => "memory profiling",
            Stage::Capture => "graph capture",
            Stage::Api => "API start",
        }
    }

    /// The stage that begins with a line.
    fn begun_by(line: &str) -> Option<Stage> {
        let line = line.to_ascii_lowercase();
        BEGINS.iter().find(|(text, _)| line.contains(text)).map(|(_, stage)| *stage)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Lines of vLLM and SGLang at the beginning of a stage, in lower case.
const BEGINS: [(&str, Stage); 13] = [
    ("llm engine (v", Stage::Engine),
    ("init torch distributed begin", Stage::Engine),
    ("starting to load model", Stage::Weights),
    ("load weight begin", Stage::Weights),
    ("model loading took", Stage::Compile),
    ("load weight end", Stage::Memory),
    ("torch.compile took", Stage::Memory),
    ("capturing cuda graph", Stage::Capture),
    ("cuda graph begin", Stage::Capture),
    ("graph capturing finished", Stage::Api),
    ("capture cuda graph end", Stage::Api),
    // Prefill has CUDA graphs too, captured earlier.
    ("decode cuda graph end", Stage::Api),
    ("init engine (profile", Stage::Api),
];
/// Lines that end the start.
const READY: [&str; 3] = ["application startup complete", "server is fired up", "server is listening on"];

/// The stages so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Startup {
    begun: Option<(Stage, Stamp)>,
    times: [Option<f64>; Stage::ALL.len()],
    last_line: Option<String>,
    ended: bool,
}

impl Startup {
    /// Begins with the start of the server.
    pub fn begin(&mut self, t: Stamp) {
        self.begun.get_or_insert((Stage::Imports, t));
    }

    pub fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Processes a line of its output. Returns whether the server is ready by that line.
    pub fn line(&mut self, t: Stamp, text: &str) -> bool {
        let Some((stage, since)) = self.begun.filter(|_| !self.ended) else { return false };
        self.last_line = Some(text.to_owned());
        let lower = text.to_ascii_lowercase();
        if READY.iter().any(|ready| lower.contains(ready)) {
            return self.end(t);
        }
        if let Some(next) = Stage::begun_by(text).filter(|next| *next > stage) {
            self.close(stage, since, t);
            self.begun = Some((next, t));
        }
        false
    }

    /// Ends with the first answer. Returns whether that is new.
    pub fn end(&mut self, t: Stamp) -> bool {
        let Some((stage, since)) = self.begun.filter(|_| !self.ended) else { return false };
        self.close(stage, since, t);
        self.ended = true;
        self.last_line = None;
        true
    }

    fn close(&mut self, stage: Stage, since: Stamp, t: Stamp) {
        *self.times[stage as usize].get_or_insert(0.0) += t.since(since).as_secs_f64();
    }

    /// The current stage and its duration; `None` once the server answers.
    pub fn current(&self, now: Stamp) -> Option<(Stage, f64)> {
        let (stage, since) = self.begun.filter(|_| !self.ended)?;
        Some((stage, now.since(since).as_secs_f64()))
    }

    pub fn last_line(&self) -> Option<&str> {
        self.last_line.as_deref()
    }

    /// Stages that have ended, with their seconds.
    pub fn stages(&self) -> impl Iterator<Item = (Stage, f64)> {
        Stage::ALL.into_iter().zip(self.times).filter_map(|(stage, seconds)| Some((stage, seconds?)))
    }

    /// The total, if the server answers and more than one stage was seen.
    pub fn seconds(&self) -> Option<f64> {
        (self.ended && self.stages().count() > 1).then(|| self.stages().map(|(_, seconds)| seconds).sum())
    }

    /// `85.0 s: compile 31.0, graph capture 12.0, …`, the longest first.
    pub fn describe(&self) -> Option<String> {
        let total = self.seconds()?;
        let mut stages: Vec<(Stage, f64)> = self.stages().collect();
        stages.sort_by(|a, b| b.1.total_cmp(&a.1));
        let parts: Vec<String> =
            stages.iter().map(|(stage, seconds)| format!("{stage} {}", three_digits(*seconds))).collect();
        Some(format!("{} s: {}", three_digits(total), parts.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of vLLM 0.24 on an H200, with the seconds since its start.
    const VLLM: [(f64, &str); 11] = [
        (
            17.0,
            "(APIServer pid=1340) INFO 11-18 06:24:32 [model.py:598] Resolved architecture: Qwen2ForCausalLM",
        ),
        (
            38.0,
            "(EngineCore pid=1448) INFO [core.py:114] Initializing a V1 LLM engine (v0.24.0) with config: model='m7'",
        ),
        (40.0, "(EngineCore pid=1448) INFO [gpu_model_runner.py:5160] Starting to load model m7..."),
        (
            42.0,
            "(EngineCore pid=1448) INFO [gpu_model_runner.py:5255] Model loading took 14.29 GiB memory and 0.467904 seconds",
        ),
        (44.0, "(EngineCore pid=1448) INFO [backends.py:1148] Dynamo bytecode transform time: 2.24 s"),
        (46.0, "(EngineCore pid=1448) INFO [monitor.py:53] torch.compile took 3.73 s in total"),
        (57.0, "(EngineCore pid=1448) INFO [kv_cache_utils.py:2146] GPU KV cache size: 1,247,808 tokens"),
        (
            57.5,
            "(EngineCore pid=1448) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/51",
        ),
        (
            62.5,
            "(EngineCore pid=1448) INFO [gpu_model_runner.py:6656] Graph capturing finished in 5 secs, took 0.59 GiB",
        ),
        (66.5, "(APIServer pid=1340) INFO:     Application startup complete."),
        (70.0, "(APIServer pid=1340) INFO:     127.0.0.1:41200 - \"GET /health HTTP/1.1\" 200 OK"),
    ];

    #[test]
    fn the_start_of_vllm_in_stages() {
        let at = |s: f64| Stamp::from_secs_f64(s);
        let mut startup = Startup::default();
        startup.begin(at(0.0));
        for (i, (s, line)) in VLLM.into_iter().enumerate() {
            startup.line(at(s), line);
            if i == 4 {
                assert_eq!(startup.current(at(45.0)), Some((Stage::Compile, 3.0)));
                assert!(startup.last_line().unwrap().contains("Dynamo"));
            }
        }
        assert_eq!(startup.current(at(71.0)), None);
        assert_eq!(
            startup.describe().unwrap(),
            "66.5 s: imports 38.0, memory profiling 11.5, graph capture 5.00, compile 4.00, API start 4.00, \
             engine start 2.00, weights 2.00"
        );
    }

    #[test]
    fn a_silent_server_has_no_stages() {
        let mut startup = Startup::default();
        startup.line(Stamp(5), "Starting to load model");
        assert_eq!((startup.current(Stamp(9)), startup.describe()), (None, None));
        startup.begin(Stamp(0));
        startup.end(Stamp(7));
        assert_eq!(startup.describe(), None);
    }
}
