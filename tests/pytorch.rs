//! Workloads in Python: a worker without torch, one with a stand-in for it, and their failures. With `LLMPROF_PYTHON`
//! and `--ignored` also the real torch and transformers.
#![cfg(unix)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::common::{ProgramOutput, program, said};
use llmprof::event::Event;
use tempfile::TempDir;

/// A workload that takes a millisecond per token.
const SCRIPT: &str = r#"
import time

def load(config):
    print("loading", config["model"])
    return config

def generate(model, prompt, on_token):
    if prompt["images"]:
        on_token.vision(images=len(prompt["images"]), tokens=7)
    for step in range(prompt["output"]):
        time.sleep(0.001)
        on_token([step % 100 for _ in prompt["ids"]])
    return "an answer"
"#;

struct Bench {
    dir: TempDir,
    python: PathBuf,
}

impl Bench {
    /// With the stand-in for torch.
    fn new() -> Bench {
        let torch = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standins");
        Bench::with(&format!("exec env PYTHONPATH={} python3 -S \"$@\"", torch.display()))
    }

    /// With a shell script of these lines as Python.
    fn with(lines: &str) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let python = dir.path().join("python");
        crate::common::script(&python, lines);
        Bench { dir, python }
    }

    fn script(&self, text: &str) -> String {
        let path = self.dir.path().join("workload.py");
        fs::write(&path, text).unwrap();
        format!("runtime.pytorch.script={}", path.display())
    }

    fn run(&self, overrides: &[&str]) -> ProgramOutput {
        let python = format!("runtime.pytorch.python={}", self.python.display());
        self.run_on("runtime=pytorch", &[&[python.as_str()], overrides].concat())
    }

    fn run_on(&self, runtime: &str, overrides: &[&str]) -> ProgramOutput {
        let mut command = program(self.dir.path());
        command.env("XDG_DATA_HOME", self.dir.path().join("data"));
        command.args(["run", "--json", runtime, "runtime.device=cpu", "profiling.torch.enable=false"]);
        command.args([
            "hydra.run.dir=out",
            "runtime.requests=3",
            "runtime.warmup=1",
            "infer.max_new_tokens=8",
        ]);
        said(command.args(overrides).output().unwrap())
    }

    fn events(&self) -> Vec<Event> {
        crate::common::events(&self.dir.path().join("out"))
            .into_iter()
            .map(|envelope| envelope.event)
            .collect()
    }
}

#[test]
fn a_script_is_a_workload_like_any_other() {
    let bench = Bench::new();
    let script = bench.script(SCRIPT);
    let ran = bench.run(&[&script, "runtime.batch_size=2", "output.predictions.enable=true", "model=local"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((json["engine"].as_str(), json["outcome"].as_str()), (Some("pytorch"), Some("completed")));
    let tpot = json["tpot_ms"]["mean"].as_f64().unwrap();
    // Its script sleeps for a millisecond per token; the total depends on the machine.
    assert!(tpot >= 1.0, "{tpot}");
    assert_eq!(json["ttft_ms"]["n"], 3);
    let events = bench.events();
    let tokens = events.iter().filter(|event| matches!(event, Event::Token(_))).count();
    assert_eq!(tokens, 4 * 8, "of the warm-up too");
    let answers: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Prediction(prediction) => Some(prediction.text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(answers.len(), 3 * 2);
    assert!(answers.contains(&"an answer"), "{answers:?}");
    let log = fs::read_to_string(bench.dir.path().join("out/program.log")).unwrap();
    assert!(log.contains("loading local"), "what a script prints is no report: {log}");
}

#[test]
fn images_are_a_phase_before_the_prefill() {
    let bench = Bench::new();
    let script = bench.script(SCRIPT);
    let ran = bench.run(&[
        &script,
        "model=qwen2_5_vl_tiny",
        "dataset=pages",
        "dataset.images.width=64",
        "dataset.images.height=90",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["vision"]["images"], 3);
    assert_eq!(json["vision"]["tokens_per_image"], 7.0);
    assert!(bench.dir.path().join("out/pages/page-000.png").is_file());
    let trace = fs::read_to_string(bench.dir.path().join("out/trace.json")).unwrap();
    assert!(trace.contains("\"vision\"") && trace.contains("\"prefill\""));
}

/// A failure of the worker is a message with a remedy.
#[test]
fn failures_have_a_message_and_a_remedy() {
    let standin = Bench::new;
    for (bench, script, more, expected) in [
        (
            Bench::with("exec python3 -S \"$@\""),
            None,
            &[][..],
            "has no torch; install it (pip install torch)",
        ),
        (standin(), None, &[], "has no transformers; install it (pip install transformers)"),
        (
            Bench::with(
                &fs::read_to_string(standin().python)
                    .unwrap()
                    .replace("exec env", "exec env STANDIN_TORCH=1.13.1"),
            ),
            None,
            &[],
            "torch 1.13.1 of",
        ),
        (
            standin(),
            Some("def load(config): pass"),
            &[],
            "the script has no generate; it needs load(config) and generate(",
        ),
        (standin(), Some("def load(config:"), &[], "loading the model failed: SyntaxError"),
        (standin(), Some("import no_such_package"), &[], "a module is not installed in"),
        (
            standin(),
            Some(
                "def load(config): return 1\ndef generate(model, prompt, on_token): raise KeyError('heads')",
            ),
            &[],
            "a request failed: KeyError: 'heads'; the traceback is in Log",
        ),
        (
            standin(),
            Some(
                "import torch\ndef load(config): raise torch.OutOfMemoryError('CUDA out of memory. Tried 9 GiB')\ndef generate(a, b, c): pass",
            ),
            &[],
            "out of memory: CUDA out of memory. Tried 9 GiB; use a smaller runtime.batch_size",
        ),
        (
            Bench::with("echo '\u{1b}[31mgarbage'; echo '{\"m\":\"token\"}'; exit 3"),
            None,
            &[],
            "the worker ended before the run with exit code 3",
        ),
        (Bench::with("kill -9 $$"), None, &[], "the worker ended before the run, killed by signal 9"),
        (
            Bench::with("exec sleep 600"),
            None,
            &["runtime.pytorch.timeout_s=1"],
            "the worker has been silent for 1 s while loading the model",
        ),
        (
            Bench::with(
                "echo '{\"m\":\"ready\"}'; echo '{\"m\":\"token\",\"t\":1,\"r\":7,\"i\":0,\"id\":1}'; exec sleep 600",
            ),
            None,
            &[],
            "sent an unexpected message: a token of another request",
        ),
        (
            Bench::with(
                "echo '{\"m\":\"failed\",\"kind\":\"error\",\"error\":\"\\u001b[2Jx\"}'; exec sleep 600",
            ),
            None,
            &[],
            "a request failed: \\u001b[2Jx;",
        ),
    ] {
        let script = script.map(|text| bench.script(text));
        let overrides: Vec<&str> = script.as_deref().into_iter().chain(more.iter().copied()).collect();
        let begun = Instant::now();
        let ran = bench.run(&overrides);
        assert_eq!(ran.code, 1, "{expected}: {}", ran.err);
        assert!(ran.err.contains(expected), "{expected}\n{}", ran.err);
        assert!(!ran.err.contains('\u{1b}'), "{:?}", ran.err);
        assert!(begun.elapsed() < Duration::from_secs(600), "{expected}: it waited for the process");
    }
}

#[test]
fn settings_are_checked_before_a_process_is_started() {
    let bench = Bench::new();
    for (setting, expected) in [
        ("runtime.pytorch.script=no/such.py", "runtime.pytorch.script=no/such.py does not exist"),
        ("runtime.pytorch.python=no/such/python", "runtime.pytorch.python=no/such/python does not exist"),
        ("runtime.pytorch.compile=fast", "runtime.pytorch.compile"),
        ("model.dtype=q4_k_m", "model.dtype=q4_k_m is for runtime=candle"),
        ("runtime.pytorch.timeout_s=0", "runtime.pytorch.timeout_s"),
    ] {
        let ran = bench.run(&[setting]);
        assert_eq!(ran.code, 2, "{setting}: {}", ran.err);
        assert!(ran.err.contains(expected), "{setting}: {}", ran.err);
    }
}

/// A worker that writes an endless line is neither kept in memory nor waited for.
#[test]
fn a_line_without_end_is_bounded() {
    let bench = Bench::with("head -c 20000000 /dev/zero | tr '\\0' x; exit 0");
    let ran = bench.run(&[]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("the worker ended before the run"), "{}", ran.err);
    let size = fs::metadata(bench.dir.path().join("out/events.ndjson")).unwrap().len();
    assert!(size < 1_000_000, "{size}");
}

/// Ranges around layers and operators do not change the results; functions of NVTX return numbers.
const RANGES: &str = r#"
import importlib.util, sys, types, torch
from transformers import Qwen2Config, Qwen2ForCausalLM
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=64)
model = Qwen2ForCausalLM(Qwen2Config(**sizes)).eval()
ids = torch.arange(8)[None]
plain = model(ids).logits
opened, depth = [], 0
class Nvtx:
    def range_push(self, name):
        global depth
        depth += 1
        opened.append(name)
        return depth
    def range_pop(self):
        global depth
        depth -= 1
        return depth
for detail, expected in [("layer", "layer 1"), ("op", "gate_up")]:
    workload = types.SimpleNamespace(nvtx=Nvtx(), config={"device": "cpu"}, reports=None)
    worker.nvtx_ranges(workload, types.SimpleNamespace(module=model), detail)
    assert torch.equal(model(ids).logits, plain) and depth == 0 and expected in opened, (detail, depth, opened)
"#;

#[test]
#[ignore = "needs LLMPROF_PYTHON, a Python with torch and transformers"]
fn ranges_change_nothing() {
    let python = std::env::var("LLMPROF_PYTHON").expect("LLMPROF_PYTHON");
    let worker = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/sources/src/pytorch/worker.py");
    let done = std::process::Command::new(&python).args(["-c", RANGES, worker]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The real torch and transformers: the same greedy tokens as the built-in engine, and a vision-language model.
#[test]
#[ignore = "needs LLMPROF_PYTHON, a Python with torch and transformers"]
fn tokens_of_torch_equal_those_of_the_built_in_engine() {
    let python = std::env::var("LLMPROF_PYTHON").expect("LLMPROF_PYTHON");
    let bench = Bench::with(&format!("exec {python} \"$@\""));
    let models = bench.dir.path().join("models");
    let made = std::process::Command::new(&python)
        .args(["-c", MAKE_MODELS, &models.display().to_string()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for family in ["llama", "qwen2", "qwen3", "mistral", "phi3"] {
        let weights = format!("model.weights={}", models.join(family).display());
        let common = [
            "model=local",
            &weights,
            "model.dtype=f32",
            "runtime.batch_size=2",
            "dataset.prompt_tokens=40",
            "infer.max_new_tokens=64",
        ];
        let ids = |runtime: &str, overrides: &[&str]| {
            let ran = bench.run_on(runtime, &[&common[..], overrides].concat());
            assert_eq!(ran.code, 0, "{family}: {}", ran.err);
            let ids: Vec<u32> = bench
                .events()
                .iter()
                .filter_map(|event| match event {
                    Event::Token(token) => Some(token.id),
                    _ => None,
                })
                .collect();
            fs::remove_dir_all(bench.dir.path().join("out")).unwrap();
            ids
        };
        let python = format!("runtime.pytorch.python={python}");
        let theirs = ids("runtime=pytorch", &[&python, "runtime.pytorch.attention=eager"]);
        assert_eq!(theirs.len(), 4 * 64);
        let ours = ids("runtime=candle", &[]);
        assert_eq!(theirs, ours, "{family}");
    }
}

const MAKE_MODELS: &str = r#"
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
base = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, max_position_embeddings=512)
for kind in ("llama", "qwen2", "qwen3", "mistral", "phi3"):
    torch.manual_seed(1)
    more = dict(pad_token_id=0) if kind == "phi3" else dict(head_dim=16) if kind == "qwen3" else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **base, **more))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1: p.normal_(0, 0.2)
    model.float().save_pretrained(f"{sys.argv[1]}/{kind}")
"#;
