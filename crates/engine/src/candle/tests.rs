use serde_json::json;

use super::*;
use crate::speculation::{Draft, Proposer, Speculator};
use llmprof_workload::{
    PrepareStep,
    listener::{Listener, OperatorInstance},
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
        fused_step: true,
        kv_cache: KvCacheDtype::Auto,
        step_positions: 1,
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

/// A model whose layers attend to nine positions, and one in four to all.
fn windowed(window: usize) -> CandleOptions {
    let spec = ModelSpec::from_hf(&json!({
        "model_type": "gemma3_text", "vocab_size": 97, "hidden_size": 64, "intermediate_size": 40,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": 1024, "sliding_window": window, "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    }))
    .unwrap();
    CandleOptions { spec, max_positions: 400, prompt_tokens: 200, batch: 1, ..options() }
}

fn one(n: u32) -> Prompts {
    Prompts { ids: (0..n).map(|i| i * 31 % 97).collect(), batch: 1 }
}

/// Rows of a window are moved and reused; a whole sequence at once keeps them all for a moment.
#[test]
fn windows_free_memory_and_change_nothing() {
    for prompt in [3, 60, 80, 200] {
        let options = windowed(9);
        let mut stepped = engine(&options).unwrap();
        let mut ids = one(prompt).ids;
        ids.extend(stepped.prefill(&one(prompt)).unwrap());
        for _ in 0..180 {
            ids.extend(stepped.decode().unwrap());
        }
        // Each token again, after everything before it in one step.
        for end in [prompt + 1, prompt + 70, prompt + 150, prompt + 180] {
            let (before, next) = ids.split_at(end as usize);
            let whole = CandleOptions { prompt_tokens: end as usize, ..options.clone() };
            let found = engine(&whole).unwrap().prefill(&Prompts { ids: before.to_vec(), batch: 1 }).unwrap();
            assert_eq!(found[0], next[0], "{prompt} and {end}");
        }
    }
    let bytes = |window| windowed(window).kv_shape().bytes(&windowed(window).spec, Dtype::F32);
    assert_eq!(bytes(9), (3 * (9 + 64) + 400) * 2 * 32 * 4);
    assert_eq!(bytes(1000), 4 * 400 * 2 * 32 * 4);
}

/// Eight bits change the logits a little, and the first ones not at all.
#[test]
fn a_cache_of_eight_bits_is_near_a_plain_one() {
    for window in [9, 1000] {
        let plain = windowed(window);
        let ids = one(150).ids;
        let logits = |kv_cache, steps: usize| {
            let options = CandleOptions { kv_cache, ..plain.clone() };
            let engine = engine(&options).unwrap();
            let (prompt, rest) = ids.split_at(150 - steps);
            let mut logits = engine.decoder.forward(prompt, 0).unwrap();
            for (i, id) in rest.iter().enumerate() {
                logits = engine.decoder.forward(&[*id], prompt.len() + i).unwrap();
            }
            logits.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        for (kv_cache, most) in [(KvCacheDtype::Fp8, 0.1), (KvCacheDtype::Q8_0, 0.02)] {
            assert_eq!(logits(kv_cache, 0), logits(KvCacheDtype::Auto, 0));
            let (found, expected) = (logits(kv_cache, 100), logits(KvCacheDtype::Auto, 100));
            let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>();
            let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
            let error = (error / square(&mut expected.iter().copied())).sqrt();
            assert!(error > 1e-5 && error < most, "{kv_cache:?}: {error}");
        }
    }
    let narrow = CandleOptions { kv_cache: KvCacheDtype::Q8_0, ..options() };
    let message = engine(&narrow).err().unwrap().to_string();
    assert!(message.contains("a multiple of 32, and this model's is 8"), "{message}");
}

#[test]
fn proposed_tokens_change_nothing() {
    for (options, prompt) in
        [(windowed(9), 100), (CandleOptions { batch: 1, max_positions: 60, ..options() }, 9)]
    {
        let expected: Vec<u32> = {
            let mut engine = engine(&options).unwrap();
            let first = engine.prefill(&one(prompt)).unwrap();
            first.into_iter().chain((0..47).flat_map(|_| engine.decode().unwrap())).collect()
        };
        for tokens in [1, 4, 15] {
            for proposer in 0..3 {
                let checking = CandleOptions { step_positions: 1 + tokens, ..options.clone() };
                let proposer = match proposer {
                    0 => Proposer::Ngram { longest: 3 },
                    // The same model, and another.
                    n => {
                        let seed = options.seed + n - 1;
                        let draft = CandleOptions { seed, ..checking.clone() };
                        Proposer::Draft(Draft::new(Box::new(engine(&draft).unwrap()), 97))
                    }
                };
                let mut speculator =
                    Speculator::new(Box::new(engine(&checking).unwrap()), proposer, tokens, None);
                let mut found = speculator.prefill(&one(prompt)).unwrap();
                while found.len() < 48 {
                    found.extend(speculator.decode().unwrap());
                }
                assert_eq!(found[..48], expected, "{tokens}");
            }
        }
    }
}
