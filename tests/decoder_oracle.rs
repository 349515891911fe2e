//! Compares the decoder's logits with those of candle-transformers' models and of Hugging Face's, on the same random
//! weights.

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{VarBuilder, var_builder::SimpleBackend};
use candle_transformers::models::{
    gemma2, gemma3, llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe,
};
use llmprof::{
    config::Dtype,
    engine::{
        candle::{Decoder, Tensors},
        weights::{SyntheticWeights, Values, WeightError, WeightSource},
    },
    model::{ModelSpec, spec::TensorShape},
};
use serde_json::{Value, json};

const SEED: u64 = 42;
const TOLERANCE: f32 = 1e-3;

/// The synthetic weights as a checkpoint.
struct Checkpoint(ModelSpec);

impl SimpleBackend for Checkpoint {
    fn get(&self, shape: Shape, name: &str, _: candle_nn::Init, _: DType, dev: &Device) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, DType::F32, dev)?;
        assert_eq!(tensor.shape(), &shape, "{name}");
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        let tensors = self.0.tensors();
        let tensor = tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no tensor {name}"));
        SyntheticWeights::new(SEED)
            .for_model(&self.0)
            .tensor(tensor, Dtype::F32)
            .map_err(candle_core::Error::wrap)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.tensors().iter().any(|t| t.name == name)
    }
}

/// candle-transformers' model of the same family.
enum Oracle {
    Llama(Box<llama::Llama>, Box<llama::Cache>),
    Mistral(Box<mistral::Model>),
    Qwen2(Box<qwen2::ModelForCausalLM>),
    Qwen3(Box<qwen3::ModelForCausalLM>),
    Mixtral(Box<mixtral::Model>),
    Qwen2Moe(Box<qwen2_moe::Model>),
    Qwen3Moe(Box<qwen3_moe::ModelForCausalLM>),
    Phi3(Box<phi3::Model>),
    Gemma2(Box<gemma2::Model>),
    Gemma3(Box<gemma3::Model>),
}

impl Oracle {
    fn new(config: &Value) -> Oracle {
        let spec = ModelSpec::from_hf(config).unwrap();
        let vb = || VarBuilder::from_backend(Box::new(Checkpoint(spec.clone())), DType::F32, Device::Cpu);
        let parsed = config.clone();
        match config["model_type"].as_str().unwrap() {
            "llama" => {
                let config: llama::LlamaConfig = serde_json::from_value(parsed).unwrap();
                let config = config.into_config(false);
                let cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu).unwrap();
                Oracle::Llama(Box::new(llama::Llama::load(vb(), &config).unwrap()), Box::new(cache))
            }
            "mistral" => {
                let mut config: mistral::Config = serde_json::from_value(parsed).unwrap();
                // In candle a position attends to the window and to itself; a checkpoint's window includes the
                // position.
                config.sliding_window = config.sliding_window.map(|window| window - 1);
                Oracle::Mistral(Box::new(mistral::Model::new(&config, vb()).unwrap()))
            }
            // Qwen2's decoder, if queries, keys and values have biases and the output has none.
            "qwen2" | "seed_oss" => {
                let config: qwen2::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Qwen2(Box::new(qwen2::ModelForCausalLM::new(&config, vb()).unwrap()))
            }
            "qwen3" => {
                let config: qwen3::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Qwen3(Box::new(qwen3::ModelForCausalLM::new(&config, vb()).unwrap()))
            }
            "mixtral" => {
                let config: mixtral::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Mixtral(Box::new(mixtral::Model::new(&config, vb()).unwrap()))
            }
            "qwen2_moe" => {
                let config: qwen2_moe::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Qwen2Moe(Box::new(qwen2_moe::Model::new(&config, vb()).unwrap()))
            }
            "qwen3_moe" => {
                let config: qwen3_moe::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Qwen3Moe(Box::new(qwen3_moe::ModelForCausalLM::new(&config, vb()).unwrap()))
            }
            "phi3" => {
                let config: phi3::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Phi3(Box::new(phi3::Model::new(&config, vb()).unwrap()))
            }
            "gemma2" => {
                let config: gemma2::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Gemma2(Box::new(gemma2::Model::new(false, &config, vb()).unwrap()))
            }
            "gemma3_text" => {
                let config: gemma3::Config = serde_json::from_value(parsed).unwrap();
                Oracle::Gemma3(Box::new(gemma3::Model::new(false, &config, vb()).unwrap()))
            }
            other => panic!("no oracle for {other}"),
        }
    }

    fn logits(&mut self, ids: &[u32], batch: usize, position: usize) -> Vec<f32> {
        let ids = Tensor::from_slice(ids, (batch, ids.len() / batch), &Device::Cpu).unwrap();
        let logits = match self {
            Oracle::Llama(model, cache) => model.forward(&ids, position, cache),
            Oracle::Mistral(model) => model.forward(&ids, position),
            Oracle::Qwen2(model) => model.forward(&ids, position),
            Oracle::Qwen3(model) => model.forward(&ids, position),
            Oracle::Mixtral(model) => model.forward(&ids, position),
            Oracle::Qwen2Moe(model) => model.forward(&ids, position),
            Oracle::Qwen3Moe(model) => model.forward(&ids, position),
            Oracle::Phi3(model) => model.forward(&ids, position),
            Oracle::Gemma2(model) => model.forward(&ids, position),
            Oracle::Gemma3(model) => model.forward(&ids, position),
        };
        logits.unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }
}

fn decoder(config: &Value, dtype: Dtype, batch: usize) -> Decoder {
    decoder_for(config, dtype, batch, 200)
}

fn decoder_for(config: &Value, dtype: Dtype, batch: usize, capacity: usize) -> Decoder {
    let spec = ModelSpec::from_hf(config).unwrap();
    let source = SyntheticWeights::new(SEED).for_model(&spec);
    Decoder::new(&spec, dtype, &source, (batch, capacity), &Device::Cpu, &mut |_, _, _| true).unwrap()
}

fn logits(decoder: &Decoder, ids: &[u32], position: usize) -> Vec<f32> {
    decoder.forward(ids, position).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn ids(n: usize, salt: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + salt * 11 + i * i) % 101).collect()
}

fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().chain(b).all(|x| x.is_finite()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A tiny config of `family` with `heads` query heads over `kv_heads`.
fn config(family: &str, heads: usize, kv_heads: usize, changes: Value) -> Value {
    let mut config = json!({
        "model_type": family, "hidden_act": "silu", "vocab_size": 101, "hidden_size": 8 * heads,
        "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 256, "tie_word_embeddings": false, "head_dim": 8, "attention_bias": false,
        "sliding_window": 256, "use_sliding_window": false, "max_window_layers": 3
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Like [`config`], for the gemma families. candle divides scores by the root of a head's size and ignores
/// `query_pre_attn_scalar`, so here the two are equal; and its gemma3 reads a prompt of several tokens only if there is
/// one key/value head.
fn gemma(family: &str, heads: usize, kv_heads: usize, changes: Value) -> Value {
    let mut gemma = json!({
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "tie_word_embeddings": true,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0, "rope_local_base_freq": 300.0,
        "sliding_window_pattern": 2
    });
    for (key, value) in changes.as_object().unwrap() {
        gemma[key] = value.clone();
    }
    config(family, heads, kv_heads, gemma)
}

/// Like [`config`], with six experts of which two are active.
fn experts(family: &str, heads: usize, kv_heads: usize, changes: Value) -> Value {
    let mut experts = json!({
        "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 30, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_flash_attn": false
    });
    for (key, value) in changes.as_object().unwrap() {
        experts[key] = value.clone();
    }
    config(family, heads, kv_heads, experts)
}

fn shapes() -> Vec<Value> {
    let tied = json!({"tie_word_embeddings": true});
    let scaled = json!({"tie_word_embeddings": true, "rope_theta": 500000.0, "rope_scaling": {
        "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_type": "llama3"}});
    vec![
        config("llama", 4, 4, json!({})),
        config("llama", 9, 3, tied.clone()),
        config("llama", 7, 1, scaled),
        config("mistral", 6, 2, json!({"sliding_window": null})),
        config("qwen2", 4, 4, json!({})),
        config("qwen2", 7, 1, tied.clone()),
        config("qwen2", 14, 2, json!({"rope_theta": 1000000.0})),
        config("seed_oss", 6, 2, json!({"attention_bias": true})),
        config("qwen3", 3, 3, json!({})),
        config("qwen3", 6, 2, tied),
        config("qwen3", 7, 1, json!({"head_dim": 8})),
        config("phi3", 4, 4, json!({"sliding_window": null})),
        config("phi3", 6, 2, json!({"sliding_window": null})),
        gemma("gemma2", 4, 4, json!({"attn_logit_softcapping": null, "final_logit_softcapping": null})),
        gemma("gemma2", 6, 2, json!({})),
        gemma("gemma3_text", 7, 1, json!({"attn_logit_softcapping": null, "final_logit_softcapping": null})),
        gemma("gemma3_text", 4, 1, json!({"attention_bias": true})),
        experts("mixtral", 6, 2, json!({})),
        experts("qwen2_moe", 6, 2, json!({})),
        experts("qwen2_moe", 4, 4, json!({"norm_topk_prob": false, "decoder_sparse_step": 2})),
        experts("qwen3_moe", 6, 2, json!({})),
        experts(
            "qwen3_moe",
            4,
            1,
            json!({"norm_topk_prob": false, "decoder_sparse_step": 2, "num_experts_per_tok": 6}),
        ),
    ]
}

#[test]
fn prefill_and_decode_equal_the_oracle() {
    for config in shapes() {
        for prompt in [1, 5, 150] {
            let ours = decoder(&config, Dtype::F32, 1);
            let mut oracle = Oracle::new(&config);
            let (mut next, mut position) = (ids(prompt, 1), 0);
            for step in 0..=16 {
                let found = logits(&ours, &next, position);
                let diff = max_diff(&found, &oracle.logits(&next, 1, position));
                assert!(diff <= TOLERANCE, "prompt {prompt}, step {step}: {diff} for {config}");
                position += next.len();
                next = vec![(step * 29 + 3) % 101];
            }
        }
    }
}

#[test]
fn a_sliding_window_equals_the_oracles_prefill() {
    let config = config("mistral", 6, 2, json!({"sliding_window": 9}));
    let all = ids(150, 2);
    let ours = decoder(&config, Dtype::F32, 1);
    let unlimited = decoder(&self::config("mistral", 6, 2, json!({"sliding_window": null})), Dtype::F32, 1);
    // This decoder continues step by step; candle's window is right only if a whole prompt is read at once.
    for n in [4, 9, 10, 11, 30, 140, 141, 142] {
        let whole = logits(&decoder(&config, Dtype::F32, 1), &all[..n], 0);
        let diff = max_diff(&whole, &Oracle::new(&config).logits(&all[..n], 1, 0));
        assert!(diff <= TOLERANCE, "prefill of {n}: {diff}");
        logits(&ours, &all[..n - 2], 0);
        logits(&ours, &all[n - 2..n - 1], n - 2);
        let diff = max_diff(&whole, &logits(&ours, &all[n - 1..n], n - 1));
        assert!(diff <= TOLERANCE, "decode at {n}: {diff}");
        let seen = max_diff(&whole, &logits(&unlimited, &all[..n], 0));
        assert_eq!(seen > TOLERANCE, n > 9, "the window matters from its own length on: {n}, {seen}");
    }
}

#[test]
fn a_batch_equals_its_single_sequences() {
    for config in shapes() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let together = decoder(&config, dtype, 3);
            let alone: Vec<_> = (0..3).map(|_| decoder(&config, dtype, 1)).collect();
            let (mut length, mut position) = (6, 0);
            for step in 0..4 {
                let rows: Vec<_> = (0..3).map(|row| ids(length, row + 7 * step)).collect();
                let found = logits(&together, &rows.concat(), position);
                let expected: Vec<f32> =
                    alone.iter().zip(&rows).flat_map(|(one, row)| logits(one, row, position)).collect();
                let diff = max_diff(&found, &expected);
                // Half-precision caches may round differently in the last bit of a differently ordered sum.
                let tolerance = if dtype == Dtype::F32 { TOLERANCE } else { 0.03 };
                assert!(diff <= tolerance, "step {step} {dtype:?}: {diff} for {config}");
                position += length;
                length = 1;
            }
        }
    }
}

#[test]
fn prefill_then_decode_equals_one_longer_prefill() {
    for config in shapes() {
        for n in [1, 2, 127, 128, 129] {
            let all = ids(n + 1, 5);
            let ours = decoder(&config, Dtype::F32, 1);
            logits(&ours, &all[..n], 0);
            let stepped = logits(&ours, &all[n..], n);
            let whole = logits(&decoder(&config, Dtype::F32, 1), &all, 0);
            let diff = max_diff(&stepped, &whole);
            assert!(diff <= TOLERANCE, "{n}: {diff} for {config}");
        }
    }
}

#[test]
fn a_prompt_may_come_in_parts() {
    let config = config("qwen2", 6, 2, json!({}));
    let all = ids(160, 3);
    let ours = decoder(&config, Dtype::F32, 1);
    logits(&ours, &all[..70], 0);
    let diff = max_diff(&logits(&ours, &all[70..], 70), &Oracle::new(&config).logits(&all, 1, 0));
    assert!(diff <= TOLERANCE, "{diff}");
}

#[test]
fn half_precision_stays_near_the_same_rounded_weights_in_f32() {
    /// The weights rounded to `dtype`, as f32.
    struct Rounded(Dtype);
    impl WeightSource for Rounded {
        fn values(&self, parts: &[TensorShape], _: Dtype) -> std::result::Result<Values, WeightError> {
            Ok(Values::F32(SyntheticWeights::new(SEED).values(parts, self.0)?.widened()))
        }
    }
    let config = config("qwen2", 6, 2, json!({}));
    let spec = ModelSpec::from_hf(&config).unwrap();
    let all = ids(40, 4);
    for (dtype, tolerance) in [(Dtype::Bf16, 0.05), (Dtype::F16, 0.01)] {
        let wide =
            Decoder::new(&spec, Dtype::F32, &Rounded(dtype), (1, 64), &Device::Cpu, &mut |_, _, _| true);
        let (wide, half) = (wide.unwrap(), decoder(&config, dtype, 1));
        for (from, to) in [(0, 39), (39, 40)] {
            let (wide, half) = (logits(&wide, &all[from..to], from), logits(&half, &all[from..to], from));
            let diff = max_diff(&wide, &half);
            assert!(diff > 0.0 && diff < tolerance, "{dtype:?} {from}: {diff}");
        }
    }
}

#[test]
fn activations_stay_finite_through_any_depth() {
    let depth = json!({"num_hidden_layers": 200});
    for deep in [
        config("llama", 4, 2, depth.clone()),
        gemma("gemma2", 4, 2, depth.clone()),
        gemma("gemma3_text", 4, 2, depth),
    ] {
        for dtype in [Dtype::F32, Dtype::F16] {
            let logits = logits(&decoder(&deep, dtype, 1), &ids(4, 0), 0);
            let family = &deep["model_type"];
            assert!(logits.iter().all(|x| x.is_finite() && x.abs() < 100.0), "{family} {dtype:?}");
        }
    }
}

/// In candle a prompt's positions attend to the window and themselves, so its prefill gets a window that is one less.
/// In gemma2 candle gives every layer the window; by definition every second layer has it.
#[test]
fn gemmas_windows_equal_the_oracles_prefill() {
    let all = ids(150, 2);
    let every_layer = json!(["sliding_attention", "sliding_attention", "sliding_attention"]);
    for (family, changes) in [("gemma2", json!({"layer_types": every_layer})), ("gemma3_text", json!({}))] {
        let of = |window: usize| {
            let mut changes = changes.clone();
            changes["sliding_window"] = json!(window);
            gemma(family, 6, if family == "gemma2" { 2 } else { 1 }, changes)
        };
        for n in [4, 9, 10, 30, 141] {
            let found = logits(&decoder(&of(9), Dtype::F32, 1), &all[..n], 0);
            let diff = max_diff(&found, &Oracle::new(&of(8)).logits(&all[..n], 1, 0));
            assert!(diff <= TOLERANCE, "{family}, prefill of {n}: {diff}");
            let unlimited = logits(&decoder(&of(256), Dtype::F32, 1), &all[..n], 0);
            assert_eq!(max_diff(&found, &unlimited) > TOLERANCE, n > 9, "{family}, prefill of {n}");
        }
    }
}

/// candle's gemma3 keeps as many positions as the window has and attends to all of them: read token by token, it
/// matches the definition, and this decoder's result for a whole prompt and the steps after it.
#[test]
fn gemma3s_window_equals_the_oracles_steps() {
    for (pattern, batch) in [(2, 1), (3, 3), (6, 1)] {
        let changes = json!({"sliding_window": 9, "sliding_window_pattern": pattern});
        let config = gemma("gemma3_text", 6, 2, changes);
        let (ours, mut oracle) = (decoder(&config, Dtype::F32, batch), Oracle::new(&config));
        let rows: Vec<_> = (0..batch as u32).map(|row| ids(60, row)).collect();
        let columns = |from: usize, to: usize| -> Vec<u32> {
            rows.iter().flat_map(|row| &row[from..to]).copied().collect()
        };
        for at in 0..39 {
            oracle.logits(&columns(at, at + 1), batch, at);
        }
        for at in 39..60 {
            let found = match at {
                39 => logits(&ours, &columns(0, 40), 0),
                _ => logits(&ours, &columns(at, at + 1), at),
            };
            let diff = max_diff(&found, &oracle.logits(&columns(at, at + 1), batch, at));
            assert!(diff <= TOLERANCE, "pattern {pattern}, batch {batch}, position {at}: {diff}");
        }
    }
}

/// Logits of Hugging Face's models (`decoder_oracle.py`), for cases in which candle does not follow the definition:
/// gemma2's window in every second layer, `query_pre_attn_scalar`, scaled RoPE in global layers, longrope; and for
/// experts.
#[test]
fn logits_are_those_of_transformers() {
    let cases = |name: &str| -> Vec<Value> {
        let file = format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
        let file: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        file["cases"].as_array().unwrap().clone()
    };
    let all = [cases("transformers_logits.json"), cases("transformers_experts.json")].concat();
    assert_eq!(all.len(), 15);
    for case in &all {
        let prompt = case["prompt"].as_u64().unwrap() as usize;
        let expected: Vec<Vec<f32>> = serde_json::from_value(case["logits"].clone()).unwrap();
        let ours = decoder_for(&case["config"], Dtype::F32, 1, prompt + expected.len() - 1);
        let (mut next, mut position) = (ids(prompt, 1), 0);
        for (step, expected) in expected.iter().enumerate() {
            let diff = max_diff(&logits(&ours, &next, position), expected);
            // Near enough to distinguish the two forms of GELU.
            assert!(diff <= 1e-4, "{}, step {step}: {diff}", case["name"]);
            position += next.len();
            next = vec![(step as u32 * 29 + 3) % 101];
        }
    }
}
