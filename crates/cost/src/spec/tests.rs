use proptest::prelude::*;
use serde_json::json;

use super::*;

fn smollm2_135m() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "vocab_size": 49152, "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5, "rope_theta": 100000, "rope_scaling": null, "tie_word_embeddings": true,
        "max_position_embeddings": 8192, "attention_bias": false
    })
}

fn qwen2_5_7b() -> Value {
    json!({
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "tie_word_embeddings": false, "max_position_embeddings": 131072,
        "sliding_window": 131072, "use_sliding_window": false, "max_window_layers": 28
    })
}

fn qwen3_0_6b() -> Value {
    json!({
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": true,
        "max_position_embeddings": 40960, "attention_bias": false, "sliding_window": null
    })
}

/// microsoft/Phi-3-mini-4k-instruct.
fn phi3_mini() -> Value {
    json!({
        "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null, "sliding_window": 2047,
        "tie_word_embeddings": false, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096
    })
}

fn llama3_2_1b() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true,
        "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}
    })
}

fn mistral_7b() -> Value {
    json!({
        "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 4096, "max_position_embeddings": 32768,
        "tie_word_embeddings": false
    })
}

/// google/gemma-2-2b.
fn gemma2_2b() -> Value {
    json!({
        "model_type": "gemma2", "attention_bias": false, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
        "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "sliding_window": 4096, "vocab_size": 256000
    })
}

/// google/gemma-3-1b-pt.
fn gemma3_1b() -> Value {
    json!({
        "model_type": "gemma3_text", "attention_bias": false, "attn_logit_softcapping": null,
        "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "vocab_size": 262144
    })
}

/// google/gemma-3-4b-pt: the text decoder is nested, with most keys at their defaults.
fn gemma3_4b() -> Value {
    json!({
        "model_type": "gemma3", "mm_tokens_per_image": 256, "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024
        }
    })
}

/// `base` with some keys replaced.
fn with(base: Value, changes: Value) -> Value {
    let mut base = base;
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

#[test]
fn published_parameter_counts() {
    let table = [
        ("SmolLM2-135M", smollm2_135m(), 134_515_008),
        ("Qwen2.5-7B", qwen2_5_7b(), 7_615_616_512),
        ("Qwen3-0.6B", qwen3_0_6b(), 596_049_920),
        ("Llama-3.2-1B", llama3_2_1b(), 1_235_814_400),
        ("Phi-3-mini-4k", phi3_mini(), 3_821_079_552),
        ("Mistral-7B-v0.1", mistral_7b(), 7_241_732_096),
        ("gemma-2-2b", gemma2_2b(), 2_614_341_888),
        ("gemma-3-1b", gemma3_1b(), 999_885_952),
        ("gemma-3-4b, text decoder", gemma3_4b(), 3_880_263_168),
    ];
    for (name, config, parameters) in table {
        let spec = ModelSpec::from_hf(&config).unwrap();
        assert_eq!(spec.parameters(), parameters, "{name}");
        let listed: u64 = spec.tensors().iter().map(|t| t.shape.iter().product::<usize>() as u64).sum();
        assert_eq!(listed, parameters, "{name}: sum of the tensors");
        assert_eq!(spec.weight_bytes(Dtype::Bf16), 2 * parameters, "{name}");
    }
}

#[test]
fn cache_bytes() {
    let spec = ModelSpec::from_hf(&qwen2_5_7b()).unwrap();
    assert_eq!(spec.kv_bytes_per_position(Dtype::Bf16, KvCacheDtype::Auto), 57_344);
    assert_eq!(spec.kv_bytes_per_position(Dtype::F32, KvCacheDtype::Auto), 114_688);
}

#[test]
fn tensor_names_equal_those_of_checkpoints() {
    let names = |config: &Value| -> Vec<String> {
        let spec = ModelSpec::from_hf(config).unwrap();
        spec.tensors().into_iter().map(|t| t.name).collect()
    };
    let qwen2 = names(&qwen2_5_7b());
    assert_eq!(qwen2.len(), 339);
    for name in ["model.embed_tokens.weight", "model.layers.27.self_attn.k_proj.bias", "lm_head.weight"] {
        assert!(qwen2.iter().any(|n| n == name), "{name}");
    }
    assert!(!qwen2.iter().any(|n| n == "model.layers.0.self_attn.o_proj.bias"));
    let qwen3 = names(&qwen3_0_6b());
    assert!(qwen3.iter().any(|n| n == "model.layers.0.self_attn.q_norm.weight"));
    assert!(!qwen3.iter().any(|n| n == "lm_head.weight"));
    assert_eq!(names(&smollm2_135m()).len(), 272);
}

#[test]
fn features_of_gemma() {
    let gemma2 = ModelSpec::from_hf(&gemma2_2b()).unwrap();
    assert_eq!(gemma2.activation, Activation::GeluTanh);
    assert!(gemma2.tied_embeddings && gemma2.post_norms && !gemma2.qk_norm);
    assert_eq!((gemma2.norm_offset, gemma2.score_scalar), (1.0, 256.0));
    assert_eq!((gemma2.score_softcap, gemma2.logit_softcap), (Some(50.0), Some(30.0)));
    assert_eq!(gemma2.local_rope_theta, None);
    let windows: Vec<_> = (0..4).map(|layer| gemma2.window_of_layer(layer)).collect();
    assert_eq!(windows, [Some(4096), None, Some(4096), None]);
    let names: Vec<String> = gemma2.tensors().into_iter().map(|t| t.name).collect();
    for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
        assert!(names.contains(&format!("model.layers.25.{norm}_layernorm.weight")), "{norm}");
    }
    // An absent key is the default, null is none.
    let changes = json!({"attn_logit_softcapping": null, "query_pre_attn_scalar": 144});
    let mut other = with(gemma2_2b(), changes);
    other.as_object_mut().unwrap().remove("final_logit_softcapping");
    let other = ModelSpec::from_hf(&other).unwrap();
    assert_eq!((other.score_softcap, other.logit_softcap, other.score_scalar), (None, Some(30.0), 144.0));

    let gemma3 = ModelSpec::from_hf(&gemma3_4b()).unwrap();
    assert!(gemma3.tied_embeddings && gemma3.post_norms && gemma3.qk_norm);
    assert_eq!((gemma3.score_softcap, gemma3.logit_softcap), (None, None));
    assert_eq!((gemma3.rope_theta, gemma3.local_rope_theta), (1e6, Some(1e4)));
    assert_eq!(gemma3.rope_scaling, Some(RopeScaling::Linear { factor: 8.0 }));
    assert_eq!((gemma3.head_dim, gemma3.heads, gemma3.kv_heads), (256, 8, 4));
    assert_eq!((gemma3.max_positions, gemma3.vocab), (131_072, 262_208));
    for layer in 0..34 {
        let global = [5, 11, 17, 23, 29].contains(&layer);
        assert_eq!(gemma3.window_of_layer(layer), if global { None } else { Some(1024) }, "{layer}");
        assert_eq!(gemma3.is_local(layer), !global, "{layer}");
    }
    // The square root of 2560 is 50.596; the nearest bf16 is 50.5.
    assert_eq!(gemma3.embedding_scale(Dtype::Bf16), 50.5);
    assert!((gemma3.embedding_scale(Dtype::F32) - 50.596_44).abs() < 1e-4);
    assert_eq!(ModelSpec::from_hf(&smollm2_135m()).unwrap().embedding_scale(Dtype::F32), 1.0);

    // Newer configs have other keys.
    let mut newer = gemma3_4b()["text_config"].clone();
    newer["rope_scaling"] = json!(null);
    newer["rope_parameters"] = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
    });
    let kind = |layer| if (layer + 1) % 6 == 0 { "full_attention" } else { "sliding_attention" };
    newer["layer_types"] = (0..34).map(kind).collect();
    assert_eq!(ModelSpec::from_hf(&newer).unwrap(), gemma3);
}

#[test]
fn windows() {
    let window = |config| {
        let spec = ModelSpec::from_hf(&config).unwrap();
        (spec.window_of_layer(0), spec.window_of_layer(spec.layers - 1))
    };
    assert_eq!(window(mistral_7b()), (Some(4096), Some(4096)));
    assert_eq!(window(with(mistral_7b(), json!({"sliding_window": null}))), (None, None));
    assert_eq!(window(qwen2_5_7b()), (None, None));
    let used = json!({"use_sliding_window": true, "max_window_layers": 21});
    assert_eq!(window(with(qwen2_5_7b(), used)), (None, Some(131_072)));
    let listed = json!({"use_sliding_window": true, "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(window(with(qwen2_5_7b(), listed)), (Some(131_072), None));
}

#[test]
fn rope_of_old_and_new_configs() {
    let old = ModelSpec::from_hf(&llama3_2_1b()).unwrap();
    let mut parameters = llama3_2_1b()["rope_scaling"].clone();
    parameters["rope_theta"] = json!(500000.0);
    let changes = json!({"rope_theta": null, "rope_scaling": null, "rope_parameters": parameters});
    assert_eq!(ModelSpec::from_hf(&with(llama3_2_1b(), changes)).unwrap(), old);
    assert!(matches!(old.rope_scaling, Some(RopeScaling::Llama3 { original_max_positions: 8192, .. })));
}

#[test]
fn the_number_of_experts_is_limited() {
    let config = |experts: u64| {
        json!({
            "model_type": "qwen3_moe", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 64,
            "num_attention_heads": 1, "max_position_embeddings": 8, "num_experts": experts, "num_experts_per_tok": 1
        })
    };
    assert!(ModelSpec::from_hf(&config(1024)).is_ok());
    let message = ModelSpec::from_hf(&config(1 << 23)).unwrap_err().to_string();
    assert_eq!(message, "num_experts × layers 536870912 is too large; the maximum is 65536");
}

#[test]
fn refusals_name_the_key() {
    let table = [
        (json!({"model_type": null}), "model_type is missing"),
        (json!({"hidden_size": null}), "hidden_size is missing"),
        (json!({"hidden_size": "576"}), "hidden_size must be a positive integer, not \"576\""),
        (json!({"hidden_size": -1}), "hidden_size must be a positive integer, not -1"),
        (json!({"vocab_size": [1]}), "vocab_size must be a positive integer, not a list"),
        (json!({"hidden_size": 577}), "hidden_size 577 is not divisible by num_attention_heads 9"),
        (
            json!({"num_key_value_heads": 2}),
            "num_attention_heads 9 is not divisible by num_key_value_heads 2",
        ),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers is zero"),
        (json!({"head_dim": 63}), "head_dim 63 is odd; rotary embedding needs an even size"),
        (json!({"num_hidden_layers": 100000}), "num_hidden_layers 100000 is too large; the maximum is 4096"),
        (
            json!({"hidden_size": 5_000_000_000u64}),
            "hidden_size 5000000000 is too large; the maximum is 4294967295",
        ),
        (
            json!({"vocab_size": 4_000_000_000u64, "hidden_size": 3_600_000_000u64}),
            "the model has more than 1000000000000000 parameters; check its sizes",
        ),
        (
            json!({"num_attention_heads": 4_294_967_295u64, "num_key_value_heads": 1, "head_dim": 4_294_967_294u64}),
            "the model has more than 1000000000000000 parameters; check its sizes",
        ),
        (
            json!({"rope_scaling": {"rope_type": "dynamic"}}),
            "rope_scaling \"dynamic\" is not supported; supported: linear, llama3, yarn or longrope",
        ),
        (json!({"rope_scaling": {"rope_type": "longrope"}}), "original_max_position_embeddings is missing"),
        (
            json!({"original_max_position_embeddings": 4096,
                "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.5]}}),
            "short_factor must have 32 items, not 2",
        ),
        (json!({"rope_scaling": {"rope_type": "yarn"}}), "factor is missing"),
        (json!({"rope_scaling": {"type": "llama3"}}), "factor is missing"),
        (
            json!({"hidden_act": "relu"}),
            "hidden_act \"relu\" is not supported; supported: silu, gelu_pytorch_tanh or gelu",
        ),
        (json!({"rms_norm_eps": 0}), "rms_norm_eps must be a positive number, not 0"),
        (json!({"tie_word_embeddings": 1}), "tie_word_embeddings must be true or false, not 1"),
    ];
    let unknown = with(smollm2_135m(), json!({"model_type": "mamba"}));
    let unknown = ModelSpec::from_hf(&unknown).unwrap_err().to_string();
    assert!(unknown.starts_with("unknown model_type \"mamba\"; the engine runs llama, mistral"), "{unknown}");
    assert!(unknown.contains("; cost also knows qwen3_next, "), "{unknown}");
    for (changes, message) in table {
        let error = ModelSpec::from_hf(&with(smollm2_135m(), changes.clone())).unwrap_err();
        assert_eq!(error.to_string(), message, "{changes}");
    }
    assert_eq!(
        ModelSpec::from_hf(&json!([])).unwrap_err().to_string(),
        "a model config must be an object, not a list"
    );
}

#[test]
fn files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let error = ModelSpec::from_config_json(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot read {}", path.display())), "{error}");
    std::fs::write(&path, "{\n  \"model_type\": llama\n}").unwrap();
    let error = ModelSpec::from_config_json(&path).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{} is not JSON: line 2, column", path.display())), "{error}");
    std::fs::write(&path, smollm2_135m().to_string()).unwrap();
    assert_eq!(ModelSpec::from_config_json(&path).unwrap().layers, 30);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..2000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z0-9]{0,8}".prop_map(Value::from),
        Just(Value::from("llama3")),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{1,10}", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_json_never_panics(value in any_json()) {
        let _ = ModelSpec::from_hf(&value);
    }

    /// A valid config with a few keys replaced reaches more of the code than random values.
    #[test]
    fn arbitrary_changes_never_panic(
        base in 0usize..8,
        changes in prop::collection::vec((0usize..20, any_json()), 0..4),
    ) {
        let bases = [
            smollm2_135m(), qwen2_5_7b(), qwen3_0_6b(), llama3_2_1b(), mistral_7b(), gemma2_2b(), gemma3_1b(),
            gemma3_4b(),
        ];
        let mut config = bases[base].clone();
        let keys: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        for (key, value) in changes {
            config[&keys[key % keys.len()]] = value;
        }
        if let Ok(spec) = ModelSpec::from_hf(&config) {
            prop_assert!(spec.parameters() > 0);
            spec.kv_bytes_per_position(Dtype::F32, KvCacheDtype::Auto);
        }
    }
}
