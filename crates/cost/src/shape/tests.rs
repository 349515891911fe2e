use serde_json::{Value, json};

use super::*;

fn base(model_type: &str) -> Value {
    json!({
        "model_type": model_type, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "sliding_window": null
    })
}

fn with(mut base: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

#[test]
fn parameter_counts_of_models_with_experts() {
    let mixtral = with(base("mixtral"), json!({"num_local_experts": 8, "num_experts_per_tok": 2}));
    let qwen3 = json!({
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "max_position_embeddings": 40960, "decoder_sparse_step": 1, "mlp_only_layers": []
    });
    let qwen2 = json!({
        "model_type": "qwen2_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "max_position_embeddings": 8192, "decoder_sparse_step": 1
    });
    // Counts of the checkpoints of Mixtral-8x7B-v0.1, Qwen3-30B-A3B and Qwen1.5-MoE-A2.7B.
    for (name, config, all, active) in [
        ("mixtral", mixtral, 46_702_792_704, 12_879_925_248),
        ("qwen3_moe", qwen3, 30_532_122_624, 3_353_032_704),
        ("qwen2_moe", qwen2, 14_315_784_192, 2_689_173_504),
    ] {
        let shape = Shape::from_hf(&config, Dtype::Bf16).unwrap();
        assert_eq!(shape.parameters(), all, "{name}");
        assert_eq!(shape.active_parameters(), active, "{name}");
        assert_eq!(shape.weight_bytes, 2 * all, "{name}");
    }
}

#[test]
fn layers_are_grouped_by_cost() {
    let gemma = json!({
        "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "sliding_window": 512, "sliding_window_pattern": 6
    });
    let shape = Shape::from_hf(&gemma, Dtype::F32).unwrap();
    let counts: Vec<_> = shape.layers.iter().map(|group| (group.count, group.window)).collect();
    assert_eq!(counts, [(22, Some(512)), (4, None)]);
    let sparse = json!({"num_local_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 2});
    let shape = Shape::from_hf(&with(base("mixtral"), sparse), Dtype::F32).unwrap();
    assert_eq!(shape.layers.iter().filter(|group| group.has_experts).map(|g| g.count).sum::<u64>(), 16);
}

#[test]
fn shapes_are_serialised_and_parsed_back() {
    let shape = Shape::from_hf(&base("mistral"), Dtype::Bf16).unwrap().quantised(4.5);
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
    assert!((shape.bytes_per_weight() - 4.5 / 8.0).abs() < 1e-9);
}

#[test]
fn errors_name_the_key() {
    for (changes, expected) in [
        (json!({}), "num_experts is missing"),
        (json!({"num_local_experts": 8}), "num_experts_per_tok is missing"),
        (json!({"num_local_experts": "8"}), "num_local_experts must be a positive integer"),
    ] {
        let error = Shape::from_hf(&with(base("mixtral"), changes), Dtype::F32).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(Shape::from_hf(&json!([]), Dtype::F32).is_err());
    assert!(Shape::from_hf(&base("mamba"), Dtype::F32).is_err());
}
