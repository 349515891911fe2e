//! candle-transformers' models as an engine: every row of its tables generates tokens, and the same ones as the
//! built-in decoder if that has the family.

use std::{collections::HashMap, fs, path::PathBuf, sync::Arc};

use candle_core::{
    D, DType, Device, Tensor,
    quantized::{GgmlDType, QTensor, gguf_file, gguf_file::Value as Gguf},
};
use llmprof::{
    config::{Dtype, KvCacheDtype, built_in, compose},
    engine::{
        candle::{
            CandleEngine, CandleOptions, Decoder, Tensors,
            stock::{StockEngine, StockModel, StockOptions, model_types},
        },
        sampling::Sampling,
        weights::{Checkpoint, SyntheticWeights},
    },
    event,
    model::{ModelSpec, Operator, SpecError, Step, spec::TensorShape},
    run::{
        inputs::{Inputs, Model},
        plan::Plan,
        work::kind_of,
    },
    workload::{Engine, EngineError, PrepareStep, Prompts},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const VOCAB: u32 = 96;

#[test]
fn the_cost_is_computed_from_the_created_tensors() {
    let mut reckoned = Vec::new();
    for model_type in model_types() {
        let model = StockModel::synthetic(&config(model_type)).unwrap();
        let Some(shape) = model.shape(Dtype::F32) else { continue };
        assert_eq!(shape.parameters(), model.parameters(), "{model_type}");
        assert_eq!(shape.weight_bytes, model.weight_bytes(Dtype::F32), "{model_type}");
        assert_eq!(shape.kv_bytes_per_position(), model.kv_bytes_per_position(Dtype::F32), "{model_type}");
        let cost = shape.cost(Step::decode(1, 8));
        let looked_up = cost.operator(Operator::Embedding).unwrap().all.weight_bytes;
        let read = cost.total().weight_bytes - looked_up;
        let wanted = model.step_weight_bytes(Dtype::F32, 1).unwrap() as f64;
        assert!((read / wanted - 1.0).abs() < 1e-9, "{model_type}: {read} {wanted}");
        reckoned.push(model_type);
    }
    let wanted = ["llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "phi3"];
    for model_type in wanted.into_iter().chain(["gemma", "gemma2", "olmo2", "granite", "glm4"]) {
        assert!(reckoned.contains(&model_type), "{reckoned:?}");
    }
}

/// A small `config.json` of `model_type`, with the keys that checkpoints of that family have.
fn config(model_type: &str) -> Value {
    let mut config = json!({
        "model_type": model_type, "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false
    });
    let moe = json!({
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true,
        "decoder_sparse_step": 1, "shared_expert_intermediate_size": 24
    });
    let gemma = json!({
        "head_dim": 8, "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "attention_bias": false,
        "query_pre_attn_scalar": 8, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
        "sliding_window": 16, "tie_word_embeddings": null
    });
    let more = match model_type {
        "mixtral" => json!({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": null}),
        "qwen2_moe" => moe,
        "qwen3" => json!({"head_dim": 8, "attention_bias": false}),
        "qwen3_moe" => {
            let mut moe = moe;
            moe["head_dim"] = json!(8);
            moe
        }
        "gemma" | "gemma2" | "gemma3_text" => gemma,
        "phi" => json!({
            "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
            "qk_layernorm": false, "num_key_value_heads": null
        }),
        "falcon" => json!({
            "layer_norm_epsilon": 1e-5, "multi_query": true, "parallel_attn": true, "bias": false,
            "alibi": false, "new_decoder_architecture": false, "num_key_value_heads": null
        }),
        "starcoder2" => json!({"norm_epsilon": 1e-5, "use_bias": true, "hidden_act": "gelu_pytorch_tanh"}),
        "stablelm" => json!({"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "use_qkv_bias": true}),
        "glm4" => json!({"head_dim": 8, "partial_rotary_factor": 0.5, "eos_token_id": [3, 4]}),
        "helium" => json!({"head_dim": 8, "mlp_bias": false, "attention_bias": false}),
        "deepseek_v2" => json!({
            "moe_intermediate_size": 16, "n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": null, "kv_lora_rank": 16,
            "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "topk_method": "greedy",
            "scoring_func": "softmax"
        }),
        "mamba" => json!({"state_size": 16, "conv_kernel": 4, "expand": 2}),
        "mamba2" => json!({"state_size": 16, "expand": 2, "head_dim": 8, "n_groups": 1, "chunk_size": 4}),
        _ => json!({}),
    };
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn options(model: StockModel, batch: usize, positions: usize) -> StockOptions {
    StockOptions {
        model: Arc::new(model),
        name: "tiny".to_owned(),
        dtype: Dtype::F32,
        device: event::Device::Cpu,
        threads: Some(1),
        batch,
        max_positions: positions,
        prompt_tokens: positions / 2,
        seed: 7,
        sampling: Sampling::greedy(),
    }
}

fn engine(model: StockModel, batch: usize) -> StockEngine {
    StockEngine::new(&options(model, batch, 128), &mut |_, _, _| true).unwrap()
}

fn prompt(n: u32, salt: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + salt * 11 + i * i) % VOCAB).collect()
}

/// `steps` tokens for each sequence; each row of the result is one step.
fn generate(engine: &mut dyn Engine, prompts: &[Vec<u32>], steps: usize) -> Vec<Vec<u32>> {
    let mut all = vec![engine.prefill(&Prompts { ids: prompts.concat(), batch: prompts.len() }).unwrap()];
    for _ in 1..steps {
        all.push(engine.decode().unwrap());
    }
    all
}

fn stock(model_type: &str) -> StockModel {
    StockModel::synthetic(&config(model_type)).unwrap_or_else(|e| panic!("{model_type}: {e}"))
}

fn ids(tokens: &[u32]) -> Tensor {
    Tensor::from_slice(tokens, (1, tokens.len()), &Device::Cpu).unwrap()
}

fn numbers(logits: &Tensor) -> Vec<f32> {
    logits.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn every_family_generates_finite_tokens_and_the_same_after_a_reset() {
    for model_type in model_types() {
        let mut engine = engine(stock(model_type), 1);
        let first = generate(&mut engine, &[prompt(6, 1)], 8);
        let other = generate(&mut engine, &[prompt(6, 2)], 8);
        engine.reset().unwrap();
        assert!(
            matches!(engine.decode(), Err(EngineError::Backend(words)) if words.contains("before prefill"))
        );
        assert_eq!(generate(&mut engine, &[prompt(6, 1)], 8), first, "{model_type}");
        assert_ne!(first, other, "{model_type}: the prompt does not matter");
        assert!(first.iter().flatten().all(|&token| token < VOCAB), "{model_type}");

        let device = Device::Cpu;
        let mut model = stock(model_type).make(Dtype::F32, 7, 1, &device, &mut |_, _, _| true).unwrap();
        let mut logits = numbers(&model.forward(&ids(&prompt(6, 1)), 0).unwrap());
        for (step, token) in first.iter().enumerate() {
            assert!(logits.iter().all(|x| x.is_finite() && x.abs() < 1e3), "{model_type}, step {step}");
            let spread = logits.iter().fold(0f32, |most, x| most.max((x - logits[0]).abs()));
            assert!(spread > 1e-3, "{model_type}, step {step}: all logits are alike");
            logits = numbers(&model.forward(&ids(token), 6 + step).unwrap());
        }
    }
}

#[test]
fn a_prompt_read_at_once_equals_one_read_token_by_token() {
    for model_type in model_types() {
        let make = || stock(model_type).make(Dtype::F32, 7, 1, &Device::Cpu, &mut |_, _, _| true).unwrap();
        let (mut at_once, mut stepped) = (make(), make());
        let prompt = prompt(11, 3);
        let whole = numbers(&at_once.forward(&ids(&prompt), 0).unwrap());
        let mut last = Vec::new();
        for (position, &token) in prompt.iter().enumerate() {
            last = numbers(&stepped.forward(&ids(&[token]), position).unwrap());
        }
        let diff = whole.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(diff < 2e-3, "{model_type}: {diff}");
    }
}

#[test]
fn a_batch_equals_its_single_sequences_or_is_refused() {
    let mut alone_only = Vec::new();
    for model_type in model_types() {
        let batched = options(stock(model_type), 2, 64);
        if let Err(error) = batched.check_within(u64::MAX, None) {
            let words = format!("{model_type} takes one sequence at a time; use runtime.batch_size=1");
            assert!(error.to_string().contains(&words), "{error}");
            assert!(StockEngine::new(&batched, &mut |_, _, _| true).is_err());
            alone_only.push(model_type);
            continue;
        }
        let prompts = [prompt(6, 4), prompt(6, 9)];
        let together = generate(&mut engine(stock(model_type), 2), &prompts, 6);
        for (row, prompt) in prompts.iter().enumerate() {
            let alone = generate(&mut engine(stock(model_type), 1), std::slice::from_ref(prompt), 6);
            let together: Vec<u32> = together.iter().map(|step| step[row]).collect();
            assert_eq!(together, alone.concat(), "{model_type}, row {row}");
        }
    }
    assert_eq!(alone_only, ["falcon", "glm4", "mamba"]);
}

#[test]
fn greedy_tokens_equal_those_of_the_built_in_decoder() {
    let families = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"];
    for model_type in families.into_iter().chain(["mixtral", "qwen2_moe", "qwen3_moe"]) {
        for tied in [false, true] {
            // candle ties the embeddings of some families never and of gemma always.
            if tied && ["mistral", "mixtral", "qwen2_moe"].contains(&model_type)
                || !tied && model_type.starts_with("gemma")
            {
                continue;
            }
            let mut config = config(model_type);
            config["tie_word_embeddings"] = json!(tied);
            if model_type == "gemma2" {
                // candle's has no window in decode steps.
                config["sliding_window"] = json!(null);
            }
            let model = StockModel::synthetic(&config).unwrap();
            let spec = ModelSpec::from_hf(&config).unwrap();
            assert_eq!(model.parameters(), spec.parameters(), "{model_type}");
            assert_eq!(
                model.step_weight_bytes(Dtype::Bf16, 1),
                Some(spec.step_bytes(1, |tensor| 2 * tensor.elements())),
                "{model_type}"
            );
            assert_eq!(
                model.kv_bytes_per_position(Dtype::F16),
                spec.kv_bytes_per_position(Dtype::F16, KvCacheDtype::Auto)
            );
            let ours = CandleOptions {
                spec,
                model: "tiny".to_owned(),
                dtype: Dtype::F32,
                threads: Some(1),
                batch: 2,
                max_positions: 128,
                prompt_tokens: 9,
                seed: 7,
                checkpoint: None,
                scheme: None,
                sampling: Sampling::greedy(),
                cuda_graphs: true,
                cublas: true,
                fused_step: true,
                kv_cache: KvCacheDtype::Auto,
                step_positions: 1,
            };
            let prompts = [prompt(9, 1), prompt(9, 2)];
            let mut ours = CandleEngine::new(&ours, &mut |_, _, _| true).unwrap();
            let found = generate(&mut engine(model, 2), &prompts, 64);
            assert_eq!(found, generate(&mut ours, &prompts, 64), "{model_type}, tied {tied}");
        }
    }
}

#[test]
fn sampled_tokens_follow_from_the_seed() {
    let sampling = |seed| Sampling { temperature: 1.5, do_sample: true, seed, ..Sampling::greedy() };
    let draw = |seed| {
        let options = StockOptions { sampling: sampling(seed), ..options(stock("olmo2"), 1, 64) };
        generate(&mut StockEngine::new(&options, &mut |_, _, _| true).unwrap(), &[prompt(5, 1)], 12)
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

#[test]
fn half_precision_runs() {
    for model_type in ["llama", "qwen3_moe", "gemma2"] {
        let options = StockOptions { dtype: Dtype::Bf16, ..options(stock(model_type), 1, 64) };
        let mut engine = StockEngine::new(&options, &mut |_, _, _| true).unwrap();
        assert_eq!(generate(&mut engine, &[prompt(5, 1)], 4).len(), 4, "{model_type}");
    }
}

#[test]
fn experts_count_by_how_many_are_read() {
    let model = stock("qwen3_moe");
    let (one, all) = (model.step_weight_bytes(Dtype::F32, 1).unwrap(), model.weight_bytes(Dtype::F32));
    let (experts, table) = (3 * 6 * 3 * 16 * 32 * 4, u64::from(VOCAB) * 32 * 4);
    assert_eq!(one, all - table - experts + experts / 6 * 2);
    assert_eq!(model.step_weight_bytes(Dtype::F32, 2), None, "two tokens may choose four experts, or two");
    assert_eq!(stock("mamba").kv_bytes_per_position(Dtype::F32), 0, "a state does not grow");
    assert_eq!(stock("mamba").max_positions(), Some(128), "as its config says");
}

#[test]
fn unsupported_models_are_reported() {
    let refused = |config: &Value| StockModel::synthetic(config).expect_err("refused").to_string();
    let unknown = refused(&json!({"model_type": "bloom"}));
    assert!(
        unknown.starts_with("unknown model_type \"bloom\"; candle-transformers has llama, mistral"),
        "{unknown}"
    );
    assert!(model_types().all(|known| unknown.contains(known)), "{unknown}");
    assert_eq!(refused(&json!({})), "model_type is missing");
    let changed = |model_type: &str, key: &str, value: Value| {
        let mut config = config(model_type);
        config[key] = value;
        refused(&config)
    };
    let table = [
        ("olmo", "vocab_size", json!(null), "cannot build this olmo: vocab_size is missing"),
        ("olmo", "intermediate_size", json!(null), "missing field `intermediate_size`"),
        ("phi3", "num_attention_heads", json!(0), "num_attention_heads 0 is not between"),
        (
            "granite",
            "num_hidden_layers",
            json!(1_000_000),
            "num_hidden_layers 1000000 is not between 1 and 4096",
        ),
        ("llama", "head_dim", json!(16), "it computes a head dimension of 8, but head_dim is 16"),
        ("llama", "attention_bias", json!(true), "it has no model.layers.0.self_attn.q_proj.bias"),
        ("mistral", "tie_word_embeddings", json!(true), "it also needs lm_head.weight"),
        ("falcon", "alibi", json!(true), "alibi is not supported"),
        ("falcon", "multi_query", json!(false), "multi_query false is not supported"),
    ];
    for (model_type, key, value, words) in table {
        let found = changed(model_type, key, value);
        assert!(found.contains(words), "{model_type} {key}: {found}");
    }
}

#[test]
fn memory_and_length_are_checked_before_a_model_is_created() {
    // Mixtral 8x7B, whose 93 GB as bf16 are never allocated here.
    let mixtral = json!({
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": null,
        "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": false
    });
    let model = StockModel::synthetic(&mixtral).unwrap();
    assert_eq!(model.parameters(), 46_702_792_704);
    let options = StockOptions { dtype: Dtype::Bf16, ..options(model, 1, 160) };
    let refusal = options.check_within(20_000_000_000, None).unwrap_err().to_string();
    assert!(refusal.starts_with("tiny needs 9") && refusal.contains("20.0 GB free; try model="), "{refusal}");
    let on_gpu = options.check_within(20_000_000_000, Some("a GPU")).unwrap_err().to_string();
    assert!(on_gpu.contains("20.0 GB on a GPU free") && !on_gpu.contains("NVIDIA GPU"), "{on_gpu}");
    options.check_within(100_000_000_000, None).unwrap();
    let absurd = StockOptions { prompt_tokens: usize::MAX, batch: usize::MAX, ..options.clone() };
    assert!(matches!(absurd.check_within(u64::MAX - 1, None), Err(EngineError::OutOfMemory { .. })));
    let long = StockOptions { max_positions: 40_000, ..options.clone() };
    assert!(matches!(long.check(), Err(EngineError::ContextTooLong { capacity: 32768, asked: 40_000 })));

    let mut short = self::options(stock("gemma"), 1, 8);
    short.prompt_tokens = 7;
    let mut engine = StockEngine::new(&short, &mut |_, _, _| true).unwrap();
    generate(&mut engine, &[prompt(7, 0)], 2);
    assert!(matches!(engine.decode(), Err(EngineError::ContextTooLong { capacity: 8, asked: 9 })));
}

#[test]
fn creating_a_model_can_be_stopped() {
    for model_type in ["llama", "granite", "stablelm", "mamba2"] {
        let mut reports = 0;
        let mut stop = |_: PrepareStep<'_>, done: u64, total: u64| {
            assert!(done < total);
            reports += 1;
            reports < 5
        };
        let made = StockEngine::new(&options(stock(model_type), 1, 16), &mut stop);
        assert!(matches!(made, Err(EngineError::Cancelled)), "{model_type}");
        assert_eq!(reports, 5, "{model_type}");
    }
}

/// A checkpoint in safetensors with the tensors that a constructor of `model_type` reads.
fn checkpoint(config: &Value, tensors: &[TensorShape]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let source = SyntheticWeights::new(7);
    let saved: HashMap<String, Tensor> =
        tensors.iter().map(|t| (t.name.clone(), source.tensor(t, Dtype::F32).unwrap())).collect();
    candle_core::safetensors::save(&saved, dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn trained_weights_give_the_tokens_of_the_same_values_and_missing_ones_are_named() {
    for (model_type, tied) in [("llama", false), ("qwen2", true), ("qwen3", false)] {
        let mut config = config(model_type);
        config["tie_word_embeddings"] = json!(tied);
        let tensors = ModelSpec::from_hf(&config).unwrap().tensors();
        let dir = checkpoint(&config, &tensors);
        let saved = StockModel::open(dir.path(), None).unwrap();
        assert_eq!(saved.path(), Some(dir.path()));
        let drawn = StockModel::synthetic(&config).unwrap();
        let prompts = [prompt(6, 1)];
        let found = generate(&mut engine(saved, 1), &prompts, 8);
        assert_eq!(found, generate(&mut engine(drawn, 1), &prompts, 8), "{model_type}");

        let dir = checkpoint(&config, &tensors[..tensors.len() - 2]);
        let refusal = StockModel::open(dir.path(), None).unwrap_err().to_string();
        assert!(refusal.contains("model.safetensors has no tensor"), "{refusal}");
    }
}

/// A tiny GGUF file of `arch`, the matrices in blocks.
fn gguf(arch: &str) -> (TempDir, PathBuf) {
    gguf_of(arch, GgmlDType::Q8_0)
}

fn gguf_of(arch: &str, matrices: GgmlDType) -> (TempDir, PathBuf) {
    let (hidden, ffn, heads, kv_heads, head_dim) = (32, 64, 4, 2, 8);
    let number = |key: &str, n: usize| (format!("{arch}.{key}"), Gguf::U32(n as u32));
    let metadata = [
        ("general.architecture".to_owned(), Gguf::String(arch.to_owned())),
        number("embedding_length", hidden),
        number("feed_forward_length", ffn),
        number("block_count", 2),
        number("attention.head_count", heads),
        number("attention.head_count_kv", kv_heads),
        number("attention.key_length", head_dim),
        number("attention.value_length", head_dim),
        // candle's quantised phi3 has no window, its gemma3 none in decode: the test must not depend on it.
        number("attention.sliding_window", 128),
        number("rope.dimension_count", head_dim),
        number("context_length", 128),
        (format!("{arch}.attention.layer_norm_rms_epsilon"), Gguf::F32(1e-5)),
        (format!("{arch}.rope.freq_base"), Gguf::F32(10_000.0)),
    ];
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("token_embd.weight".into(), vec![VOCAB as usize, hidden]),
        ("output_norm.weight".into(), vec![hidden]),
        ("output.weight".into(), vec![VOCAB as usize, hidden]),
    ];
    for layer in 0..2 {
        let mut push =
            |name: &str, shape: &[usize]| shapes.push((format!("blk.{layer}.{name}"), shape.to_vec()));
        push("attn_norm.weight", &[hidden]);
        push("ffn_norm.weight", &[hidden]);
        push("attn_output.weight", &[hidden, q]);
        push("ffn_down.weight", &[hidden, ffn]);
        if arch == "phi3" {
            push("attn_qkv.weight", &[q + 2 * kv, hidden]);
            push("ffn_up.weight", &[2 * ffn, hidden]);
            continue;
        }
        push("ffn_up.weight", &[ffn, hidden]);
        push("ffn_gate.weight", &[ffn, hidden]);
        for (name, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
            push(&format!("{name}.weight"), &[rows, hidden]);
            if arch == "qwen2" {
                push(&format!("{name}.bias"), &[rows]);
            }
        }
        if arch == "qwen3" || arch == "gemma3" {
            push("attn_q_norm.weight", &[head_dim]);
            push("attn_k_norm.weight", &[head_dim]);
        }
        if arch == "gemma3" {
            push("post_attention_norm.weight", &[hidden]);
            push("post_ffw_norm.weight", &[hidden]);
        }
    }
    let source = SyntheticWeights::new(7);
    let saved: Vec<(String, QTensor)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let kind = if shape.len() == 1 { GgmlDType::F32 } else { matrices };
            let values = source.tensor(&TensorShape { name: name.clone(), shape }, Dtype::F32).unwrap();
            (name, QTensor::quantize(&values, kind).unwrap())
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let saved: Vec<_> = saved.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut fs::File::create(&path).unwrap(), &metadata, &saved).unwrap();
    (dir, path)
}

#[test]
fn quantised_models_generate_the_same_tokens_after_a_reset() {
    for arch in ["llama", "qwen2", "qwen3", "phi3", "gemma3"] {
        let (_dir, path) = gguf(arch);
        let open = || StockModel::open(&path, None).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let model = open();
        assert_eq!((model.vocab(), model.type_name(Dtype::F32)), (VOCAB as usize, "q8_0".to_owned()));
        assert_eq!(model.kv_bytes_per_position(Dtype::Bf16), 2 * 2 * 2 * 8 * 4, "candle caches f32 here");
        // A block of 32 is 34 bytes; the table is stored once more unquantised, and so are norms.
        let table = u64::from(VOCAB) * 32;
        let step = model.step_weight_bytes(Dtype::F32, 1).unwrap();
        assert_eq!(model.weight_bytes(Dtype::F32) - step, 4 * table, "{arch}");
        assert!(
            step > (model.parameters() - table) * 34 / 32 && step < (model.parameters() - table) * 2,
            "{arch}"
        );
        let mut engine = engine(model, 1);
        let first = generate(&mut engine, &[prompt(6, 1)], 8);
        assert_ne!(generate(&mut engine, &[prompt(6, 2)], 8), first, "{arch}");
        assert_eq!(generate(&mut engine, &[prompt(6, 1)], 8), first, "{arch}");
        let refusal = options(open(), 2, 64).check_within(u64::MAX, None).unwrap_err().to_string();
        assert!(refusal.contains(&format!("{arch} takes one sequence at a time")), "{refusal}");

        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 64]).unwrap();
        let torn = StockModel::open(&path, None).unwrap_err().to_string();
        assert!(torn.contains("tiny.gguf is not a complete GGUF file"), "{torn}");
    }
    let (_dir, path) = gguf("bert");
    let refusal = StockModel::open(&path, None).unwrap_err().to_string();
    assert!(
        refusal.contains("\"bert\" is unknown; candle-transformers has quantised llama, qwen2"),
        "{refusal}"
    );
}

#[test]
fn the_built_in_decoder_reads_the_same_gguf_files_alike() {
    // Not gemma3: candle's quantised one has SiLU, the model has GELU.
    for arch in ["llama", "qwen2", "qwen3", "phi3"] {
        let (_dir, path) = gguf_of(arch, GgmlDType::F32);
        let checkpoint = Checkpoint::open(&path, None).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let decoder = Decoder::new(
            checkpoint.spec(),
            Dtype::F32,
            &checkpoint,
            (1, 64),
            &Device::Cpu,
            &mut |_, _, _| true,
        );
        let decoder = decoder.unwrap();
        let mut theirs = engine(StockModel::open(&path, None).unwrap(), 1);
        for length in [6, 24] {
            let mut next = prompt(length, 1);
            let expected: Vec<u32> = generate(&mut theirs, &[next.clone()], 16).concat();
            let mut position = 0;
            let found: Vec<u32> = (0..16)
                .map(|_| {
                    let logits = decoder.forward(&next, position).unwrap();
                    position += next.len();
                    next = logits.argmax(D::Minus1).unwrap().to_vec1().unwrap();
                    next[0]
                })
                .collect();
            assert_eq!(found, expected, "{arch}, {length} positions");
        }
    }
}

fn plan(overrides: &[String]) -> Result<Plan, String> {
    let composed = compose(&built_in(), overrides).map_err(|e| e.to_string())?;
    Plan::new(composed).map_err(|e| e.to_string())
}

#[test]
fn a_run_takes_a_family_of_its_own_from_a_config_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    fs::write(&file, config("mamba").to_string()).unwrap();
    let of = |more: &str| -> Vec<String> {
        let mut all = vec![format!("model.config_json={}", file.display())];
        all.extend(
            "dataset.prompt_tokens=8 infer.max_new_tokens=8 model.name=mine".split(' ').map(str::to_owned),
        );
        all.extend(more.split_whitespace().map(str::to_owned));
        all
    };
    let refusal = plan(&of("runtime=candle")).unwrap_err();
    assert_eq!(
        refusal,
        "this program's decoder does not support mamba, candle-transformers does: use runtime=candle_stock"
    );
    let stocked = plan(&of("runtime=candle_stock runtime.device=cpu")).unwrap();
    stocked.check_machine().unwrap();
    assert!(stocked.engine_options().is_none());
    let batched = plan(&of("runtime=candle_stock runtime.device=cpu runtime.batch_size=2")).unwrap();
    let refusal = batched.check_machine().unwrap_err().to_string();
    assert!(refusal.contains("mamba takes one sequence at a time"), "{refusal}");
    let refusal = plan(&of("runtime=candle_stock model.dequantize=true")).unwrap_err();
    assert!(refusal.contains("use model.dequantize=false"), "{refusal}");
    let refusal = plan(&of("runtime=candle_stock infer.max_new_tokens=500")).unwrap_err();
    assert!(refusal.contains("exceed the 128 positions"), "{refusal}");
}

#[test]
fn every_model_of_conf_is_the_same_for_both_runtimes() {
    let tree = built_in();
    for option in tree.options("model").into_iter().filter(|option| option != "local") {
        let arch = compose(&tree, &[format!("model={option}")]).unwrap().config.model.arch;
        if !model_types().any(|name| arch["model_type"] == name)
            || matches!(ModelSpec::from_hf(&arch), Err(SpecError::CostOnly { .. }))
        {
            continue;
        }
        let open = |runtime: &str| {
            let overrides = [format!("model={option}"), format!("runtime={runtime}")];
            let config = compose(&tree, &overrides).unwrap().config;
            Inputs::open(&config, &kind_of(config.runtime.name))
                .unwrap_or_else(|e| panic!("{option}: {e}"))
                .model
        };
        let (ours, stock) = (open("candle"), open("candle_stock"));
        assert!(matches!(ours, Model::Own { .. }) && matches!(stock, Model::Stock(_)));
        assert_eq!(ours.parameters(), stock.parameters(), "{option}");
        assert_eq!(
            ours.kv_bytes_per_position(Dtype::Bf16, KvCacheDtype::Auto),
            stock.kv_bytes_per_position(Dtype::Bf16, KvCacheDtype::Auto),
            "{option}"
        );
        assert_eq!(ours.max_positions(), stock.max_positions(), "{option}");
        let step = |model: &Model| model.step_weight_bytes(Dtype::Bf16, 1).unwrap();
        assert!(step(&ours).abs_diff(step(&stock)) < 1024, "{option}: {} and {}", step(&ours), step(&stock));
    }
}
