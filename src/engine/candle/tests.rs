use serde_json::json;

use super::*;
use crate::{
    engine::PrepareStep,
    profile::listener::{Listener, OperatorInstance},
};

fn options() -> CandleOptions {
    let spec = ModelSpec::from_hf(&json!({
        "model_type": "qwen3", "vocab_size": 97, "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64
    }))
    .unwrap();
    CandleOptions {
        spec,
        model: "tiny".to_owned(),
        dtype: Dtype::F32,
        threads: Some(1),
        batch: 2,
        max_positions: 12,
        prompt_tokens: 10,
        seed: 1,
        checkpoint: None,
        scheme: None,
        sampling: Sampling::greedy(),
        cuda_graphs: true,
        cublas: true,
    }
}

fn engine(options: &CandleOptions) -> Result<CandleEngine, EngineError> {
    CandleEngine::with_free_memory(options, 1 << 30, &mut |_, _, _| true)
}

fn prompts(n: u32) -> Prompts {
    Prompts { ids: (0..2 * n).map(|i| i * 31 % 97).collect(), batch: 2 }
}

/// The tokens of `steps` decode steps after a prefill.
fn run(engine: &mut CandleEngine, n: u32, steps: usize) -> Vec<Vec<u32>> {
    let first = engine.prefill(&prompts(n)).unwrap();
    std::iter::once(first).chain((0..steps).map(|_| engine.decode().unwrap())).collect()
}

#[test]
fn quantised_synthetic_weights_run_and_are_smaller() {
    let spec = ModelSpec::from_hf(&json!({
        "model_type": "qwen2", "vocab_size": 97, "hidden_size": 256, "intermediate_size": 288,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64
    }))
    .unwrap();
    let plain = CandleOptions { spec, ..options() };
    for scheme in [Scheme::Q4_0, Scheme::Q8_0, Scheme::Q2K, Scheme::Q4KM, Scheme::Iq4Xs] {
        let quantised = CandleOptions { scheme: Some(scheme), ..plain.clone() };
        assert!(quantised.is_quantised() && !plain.is_quantised());
        assert!(quantised.weight_bytes(Dtype::F32) < plain.weight_bytes(Dtype::F32) / 3, "{scheme:?}");
        let tokens = run(&mut engine(&quantised).unwrap(), 5, 6);
        assert_eq!(tokens, run(&mut engine(&quantised).unwrap(), 5, 6), "{scheme:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_tokens_on_any_number_of_threads() {
    let expected = run(&mut engine(&options()).unwrap(), 5, 7);
    assert!(expected.iter().all(|ids| ids.len() == 2 && ids.iter().all(|&id| id < 97)));
    let mut three = engine(&CandleOptions { threads: Some(3), ..options() }).unwrap();
    assert_eq!(run(&mut three, 5, 7), expected);
    // A second request does not see the first.
    run(&mut three, 8, 2);
    three.reset().unwrap();
    assert_eq!(run(&mut three, 5, 7), expected);
}

#[test]
fn every_dtype_runs() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let mut engine = engine(&CandleOptions { dtype, ..options() }).unwrap();
        assert_eq!(run(&mut engine, 6, 4).len(), 5, "{dtype:?}");
    }
}

#[test]
fn draws_follow_the_seed_and_greedy_on_the_host_is_greedy_on_the_device() {
    let sampled = |sampling| run(&mut engine(&CandleOptions { sampling, ..options() }).unwrap(), 5, 7);
    let draw = |seed| sampled(Sampling { do_sample: true, seed, ..Sampling::greedy() });
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    // Longer than anything that could repeat: the host chooses, and nothing is forbidden.
    let host = Sampling { no_repeat_ngram_size: 100, ..Sampling::greedy() };
    assert_eq!(sampled(host), sampled(Sampling::greedy()));
}

#[test]
fn the_cache_has_an_end() {
    let mut engine = engine(&options()).unwrap();
    run(&mut engine, 10, 2);
    let error = engine.decode().unwrap_err();
    assert!(matches!(error, EngineError::ContextTooLong { capacity: 12, asked: 13 }), "{error}");
    assert!(matches!(engine.prefill(&prompts(13)), Err(EngineError::ContextTooLong { asked: 13, .. })));
}

#[test]
fn refusals() {
    let table = [
        (CandleOptions { batch: 0, ..options() }, "batch and length must be at least one"),
        (
            CandleOptions { max_positions: 65, ..options() },
            "the KV cache has 64 positions, and 65 are needed; \
             reduce dataset.prompt_tokens or infer.max_new_tokens",
        ),
    ];
    for (options, message) in table {
        assert_eq!(engine(&options).err().unwrap().to_string(), message);
    }
    let error = CandleEngine::with_free_memory(&options(), 1000, &mut |_, _, _| true).err().unwrap();
    let message = "tiny needs 0 MB as f32, 0 MB free; try model=smollm2_135m or an NVIDIA GPU";
    assert_eq!(error.to_string(), message);
}

#[test]
fn requests_that_make_no_sense() {
    let mut engine = engine(&options()).unwrap();
    assert!(engine.decode().unwrap_err().to_string().contains("before prefill"));
    let table = [
        Prompts { ids: vec![1, 2, 3], batch: 3 },
        Prompts { ids: vec![1, 2, 3], batch: 2 },
        Prompts { ids: vec![], batch: 2 },
        Prompts { ids: vec![1, 97], batch: 2 },
    ];
    for prompts in table {
        assert!(matches!(engine.prefill(&prompts), Err(EngineError::Backend(_))), "{prompts:?}");
    }
}

#[test]
fn preparing_reports_every_tensor_and_can_be_stopped() {
    let options = options();
    let mut heard = Vec::new();
    CandleEngine::with_free_memory(&options, 1 << 30, &mut |step, done, total| {
        let PrepareStep::Weights(tensor) = step else { panic!("{step}") };
        heard.push((tensor.to_owned(), done, total));
        true
    })
    .unwrap();
    let tensors = options.spec.tensors();
    assert_eq!(heard.len(), tensors.len());
    let mut done = 0;
    for (name, reported, total) in &heard {
        assert_eq!((*reported, *total), (done, options.spec.parameters()), "{name}");
        done += tensors.iter().find(|tensor| tensor.name == *name).unwrap().elements();
    }
    assert_eq!(done, options.spec.parameters());
    let stopped = CandleEngine::with_free_memory(&options, 1 << 30, &mut |_, done, _| done == 0);
    assert!(matches!(stopped, Err(EngineError::Cancelled)));
}

/// Writes down what it hears.
#[derive(Default)]
struct Heard(std::sync::Mutex<Vec<String>>);

impl Listener for Heard {
    fn begins(&self, span: Span) {
        self.0.lock().unwrap().push(match span {
            Span::Step(phase) => phase.name().to_owned(),
            Span::Operator(OperatorInstance { operator, layer: Some(layer) }) => {
                format!("{layer} {operator}")
            }
            Span::Operator(OperatorInstance { operator, layer: None }) => operator.to_string(),
            other => panic!("{other:?}"),
        });
    }

    fn ends(&self, span: Span) {
        let end = if matches!(span, Span::Step(_)) { "end" } else { "." };
        self.0.lock().unwrap().push(end.to_owned());
    }
}

#[test]
fn listeners_hear_of_every_operator_and_change_nothing() {
    let expected = run(&mut engine(&options()).unwrap(), 5, 2);
    let mut told = engine(&CandleOptions { threads: Some(2), ..options() }).unwrap();
    let heard = Arc::new(Heard::default());
    let mut listeners = Listeners::default();
    listeners.add(heard.clone());
    told.set_listeners(listeners);
    assert_eq!(run(&mut told, 5, 2), expected);
    let heard = heard.0.lock().unwrap();
    let mut step = vec!["embedding".to_owned()];
    for layer in 0..3 {
        let parts = [
            "attn_norm",
            "qkv",
            "rope",
            "attention",
            "attn_out",
            "mlp_norm",
            "gate_up",
            "activation",
            "down",
        ];
        step.extend(parts.map(|part| format!("{layer} {part}")));
    }
    step.extend(["final_norm", "lm_head", "sampling"].map(str::to_owned));
    let mut wanted = Vec::new();
    for phase in ["prefill", "decode", "decode"] {
        wanted.push(phase.to_owned());
        wanted.extend(step.iter().flat_map(|part| [part.clone(), ".".to_owned()]));
        wanted.push("end".to_owned());
    }
    assert_eq!(*heard, wanted);
}
