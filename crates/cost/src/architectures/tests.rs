use serde_json::{Value, json};

use super::*;
use crate::{Dtype, ModelSpec, Operator, Shape, Step, built_in};

/// Keys that most configs have, changed by `changes`.
fn config(model_type: &str, changes: Value) -> Value {
    let mut config = json!({"model_type": model_type, "max_position_embeddings": 131_072});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Vocabulary, hidden size, intermediate size, layers, heads, key/value heads, head size.
fn dense(model_type: &str, sizes: [u64; 7], changes: Value) -> Value {
    let keys = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ];
    let mut config = config(model_type, changes);
    for (key, size) in keys.into_iter().zip(sizes) {
        config[key] = json!(size);
    }
    config
}

fn deepseek_v3() -> Value {
    config(
        "deepseek_v3",
        json!({
            "vocab_size": 129_280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
            "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "attention_bias": false, "tie_word_embeddings": false
        }),
    )
}

fn deepseek_v2_lite() -> Value {
    config(
        "deepseek_v2",
        json!({
            "vocab_size": 102_400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2,
            "n_routed_experts": 64, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "q_lora_rank": null,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128
        }),
    )
}

fn gpt_oss(layers: u64, experts: u64) -> Value {
    let types: Vec<&str> = (0..layers)
        .map(|layer| if layer % 2 == 0 { "sliding_attention" } else { "full_attention" })
        .collect();
    let sizes = [201_088, 2880, 2880, layers, 64, 8, 64];
    let changes = json!({
        "num_local_experts": experts, "num_experts_per_tok": 4, "attention_bias": true, "sliding_window": 128,
        "layer_types": types, "tie_word_embeddings": false,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert":
            ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    });
    dense("gpt_oss", sizes, changes)
}

fn qwen3_next() -> Value {
    dense(
        "qwen3_next",
        [151_936, 2048, 5120, 48, 16, 2, 256],
        json!({
            "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
            "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "partial_rotary_factor": 0.25
        }),
    )
}

fn llama4(experts: u64, step: u64) -> Value {
    let text = dense(
        "llama4_text",
        [202_048, 5120, 8192, 48, 40, 8, 128],
        json!({
            "intermediate_size_mlp": 16384, "num_local_experts": experts, "num_experts_per_tok": 1,
            "interleave_moe_layer_step": step, "attention_chunk_size": 8192, "attention_bias": false
        }),
    );
    json!({"model_type": "llama4", "text_config": text})
}

#[test]
fn parameters_are_the_published_ones() {
    let mistral3 = json!({"model_type": "mistral3", "text_config":
        dense("mistral", [131_072, 5120, 32768, 40, 32, 8, 128], json!({"sliding_window": null}))});
    let glm_air = dense(
        "glm4_moe",
        [151_552, 4096, 10944, 46, 96, 8, 128],
        json!({
            "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "first_k_dense_replace": 1, "attention_bias": true, "use_qk_norm": false
        }),
    );
    let phi4_mini = json!({"tie_word_embeddings": true, "partial_rotary_factor": 0.75, "sliding_window": 262_144,
        "rope_scaling": {"type": "longrope"}});
    // Counted from the tensors of the checkpoints; the text decoder without multi-token prediction.
    for (name, config, all, active) in [
        ("DeepSeek-V3, 671B and 37B", deepseek_v3(), 671_026_419_200, 37_552_297_472),
        ("DeepSeek-V2-Lite, 15.7B", deepseek_v2_lite(), 15_706_484_224, 2_661_150_208),
        ("gpt-oss-20b, 20.9B", gpt_oss(24, 32), 20_914_757_184, 4_187_440_704),
        ("gpt-oss-120b, 116.8B", gpt_oss(36, 128), 116_829_156_672, 5_711_982_912),
        ("Llama-4-Scout, 109B with vision, 17B", llama4(16, 1), 107_769_861_120, 17_172_894_720),
        ("Llama-4-Maverick, 400B, 17B", llama4(128, 2), 400_711_848_960, 17_184_691_200),
        ("Qwen3-Next-80B-A3B", qwen3_next(), 79_674_391_296, 3_874_929_408),
        ("GLM-4.5-Air, 106B", glm_air, 106_852_251_264, 13_424_129_664),
        (
            "Qwen2.5-VL-7B, the decoder of Qwen2.5-7B",
            dense("qwen2_5_vl", [152_064, 3584, 18944, 28, 28, 4, 128], json!({"use_sliding_window": false})),
            7_615_616_512,
            7_615_616_512,
        ),
        (
            "Gemma-7B, 8.54B",
            dense("gemma", [256_000, 3072, 24576, 28, 16, 16, 256], json!({})),
            8_537_680_896,
            8_537_680_896,
        ),
        (
            "OLMo-2-7B, 7.3B",
            dense("olmo2", [100_352, 4096, 11008, 32, 32, 32, 128], json!({})),
            7_298_617_344,
            7_298_617_344,
        ),
        (
            "granite-3.1-8b, 8.17B",
            dense("granite", [49_155, 4096, 12800, 40, 32, 8, 128], json!({"tie_word_embeddings": true})),
            8_170_848_256,
            8_170_848_256,
        ),
        (
            "GLM-4-9B, 9.4B",
            dense("glm4", [151_552, 4096, 13696, 40, 32, 2, 128], json!({"attention_bias": true})),
            9_400_279_040,
            9_400_279_040,
        ),
        ("Mistral-Small-3.1-24B", mistral3, 23_572_403_200, 23_572_403_200),
        (
            "Phi-4-mini, 3.8B",
            dense("phi3", [200_064, 3072, 8192, 32, 24, 8, 128], phi4_mini),
            3_836_021_760,
            3_836_021_760,
        ),
        (
            "Phi-4, 14.7B",
            dense("phi3", [100_352, 5120, 17920, 40, 40, 10, 128], json!({"sliding_window": null})),
            14_659_507_200,
            14_659_507_200,
        ),
    ] {
        let shape = Shape::from_hf(&config, Dtype::Bf16).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((shape.parameters(), shape.active_parameters()), (all, active), "{name}");
        for step in [Step::decode(1, 64), Step::prefill(2, 64)] {
            let cost = shape.cost(step);
            assert_eq!(cost.total().parameters, all as f64, "{name}");
            assert!(!shape.operand_shapes(Operator::Attention, step).is_empty());
        }
    }
}

#[test]
fn parameters_of_older_decoders_are_the_published_ones() {
    for (name, config, parameters) in [
        (
            "GPT-2, 124M",
            json!({"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12,
                "n_positions": 1024, "n_inner": null}),
            124_439_808,
        ),
        (
            "Pythia-6.9B",
            json!({"model_type": "gpt_neox", "vocab_size": 50_432, "hidden_size": 4096, "num_hidden_layers": 32,
                "num_attention_heads": 32, "intermediate_size": 16384, "max_position_embeddings": 2048,
                "tie_word_embeddings": false}),
            6_857_302_016,
        ),
        (
            "OPT-125M",
            json!({"model_type": "opt", "vocab_size": 50_272, "hidden_size": 768, "num_hidden_layers": 12,
                "num_attention_heads": 12, "ffn_dim": 3072, "max_position_embeddings": 2048}),
            125_239_296,
        ),
        (
            "Phi-2, 2.78B",
            json!({"model_type": "phi", "vocab_size": 51_200, "hidden_size": 2560, "num_hidden_layers": 32,
                "num_attention_heads": 32, "intermediate_size": 10240, "max_position_embeddings": 2048}),
            2_779_683_840,
        ),
        (
            "Falcon-7B",
            json!({"model_type": "falcon", "vocab_size": 65_024, "hidden_size": 4544, "num_hidden_layers": 32,
                "num_attention_heads": 71, "multi_query": true, "parallel_attn": true, "bias": false}),
            6_921_720_704,
        ),
        (
            "Falcon-40B",
            json!({"model_type": "falcon", "vocab_size": 65_024, "hidden_size": 8192, "num_hidden_layers": 60,
                "num_attention_heads": 128, "num_kv_heads": 8, "new_decoder_architecture": true,
                "parallel_attn": true, "bias": false}),
            41_303_293_952,
        ),
        (
            "StarCoder2-3B",
            json!({"model_type": "starcoder2", "vocab_size": 49_152, "hidden_size": 3072,
                "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
                "intermediate_size": 12288, "max_position_embeddings": 16384, "sliding_window": 4096}),
            3_030_371_328,
        ),
        (
            "StarCoder, 15.5B",
            json!({"model_type": "gpt_bigcode", "vocab_size": 49_152, "n_embd": 6144, "n_layer": 40,
                "n_head": 48, "n_positions": 8192, "n_inner": 24576, "multi_query": true}),
            15_517_456_384,
        ),
        (
            "Command-R, 35B",
            json!({"model_type": "cohere", "vocab_size": 256_000, "hidden_size": 8192, "num_hidden_layers": 40,
                "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 22528,
                "max_position_embeddings": 8192, "use_qk_norm": false}),
            34_980_831_232,
        ),
        (
            "Command-R7B",
            json!({"model_type": "cohere2", "vocab_size": 256_000, "hidden_size": 4096, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
                "max_position_embeddings": 8192, "sliding_window": 4096, "sliding_window_pattern": 4}),
            8_028_033_024,
        ),
    ] {
        let shape = Shape::from_hf(&config, Dtype::Bf16).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(shape.parameters(), parameters, "{name}");
        assert_eq!(shape.cost(Step::decode(1, 64)).total().parameters, parameters as f64, "{name}");
        let text = serde_json::to_string(&shape).unwrap();
        assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape, "{name}");
    }
}

#[test]
fn an_mlp_without_a_gate_has_two_products() {
    let gpt2 = json!({"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "n_positions": 1024});
    let shape = Shape::from_hf(&gpt2, Dtype::Bf16).unwrap();
    let up = shape.cost(Step::decode(1, 64)).operator(Operator::GateUp).unwrap().each();
    assert_eq!(up.matmul_flops, 2.0 * 768.0 * 3072.0);
    assert_eq!(shape.operand_shapes(Operator::GateUp, Step::decode(1, 64)), "[1×768]·[768×3072]");
}

#[test]
fn latent_attention_caches_one_short_row() {
    let shape = Shape::from_hf(&deepseek_v3(), Dtype::Bf16).unwrap();
    // 512 + 64 numbers in each of 61 layers: 70 KB per token, as published.
    assert_eq!(shape.kv_bytes_per_position(), 61 * 576 * 2);
    let step = Step::decode(1, 1000);
    let attention = shape.cost(step).operator(Operator::Attention).unwrap().all;
    assert_eq!(attention.kv_read_bytes, 1001.0 * (61 * 576 * 2) as f64);
    // The heads attend to the cached rows: scores over 576, values over 512 numbers.
    assert_eq!(attention.attention_flops, 61.0 * 1001.0 * 2.0 * 128.0 * (576.0 + 512.0));
    // In a prefill keys and values are made for each head: 192 and 128 numbers.
    let prefill = shape.cost(Step::prefill(1, 1000)).operator(Operator::Attention).unwrap().all;
    assert_eq!(prefill.attention_flops, 61.0 * 500_500.0 * 2.0 * 128.0 * (192.0 + 128.0));
}

#[test]
fn linear_attention_has_a_state_instead_of_a_cache() {
    let shape = Shape::from_hf(&qwen3_next(), Dtype::Bf16).unwrap();
    let counts: Vec<_> = shape.layers.iter().map(|group| (group.count, group.is_linear)).collect();
    assert_eq!(counts, [(36, true), (12, false)]);
    assert_eq!(shape.kv_bytes_per_position(), 12 * 2 * 2 * 256 * 2);
    // 32 heads of 128 × 128, and three positions of the convolution's 8,192 channels, in f32.
    let state = 36 * (32 * 128 * 128 + 3 * 8192) * 4;
    assert_eq!(shape.state_bytes(), state);
    let (near, far) = (Step::decode(1, 100), Step::decode(1, 100_000));
    let read = |step| shape.cost(step).total().kv_read_bytes;
    assert_eq!(read(far) - read(near), 99_900.0 * (12 * 2 * 2 * 256 * 2) as f64);
    assert_eq!(shape.memory(3, 0, 0).kv_bytes, 3 * state);
}

#[test]
fn windows_and_experts_of_layers() {
    let oss = Shape::from_hf(&gpt_oss(24, 32), Dtype::Bf16).unwrap();
    let counts: Vec<_> = oss.layers.iter().map(|group| (group.count, group.window)).collect();
    assert_eq!(counts, [(12, Some(128)), (12, None)]);
    let maverick = Shape::from_hf(&llama4(128, 2), Dtype::Bf16).unwrap();
    let with_experts: u64 = maverick.layers.iter().filter(|g| g.has_experts).map(|g| g.count).sum();
    let chunked: u64 = maverick.layers.iter().filter(|g| g.window.is_some()).map(|g| g.count).sum();
    assert_eq!((with_experts, chunked), (24, 36));
    let deepseek = Shape::from_hf(&deepseek_v3(), Dtype::Bf16).unwrap();
    assert_eq!(deepseek.layers.iter().filter(|g| g.has_experts).map(|g| g.count).sum::<u64>(), 58);
}

#[test]
fn quantised_checkpoints_have_their_published_size() {
    // The total_size of openai/gpt-oss-20b on the hub: experts in 4.25 bits, all else in bf16.
    let oss = Shape::from_hf(&gpt_oss(24, 32), Dtype::Bf16).unwrap();
    assert_eq!(oss.weight_bytes, 13_761_264_768);
    // The AWQ checkpoint of Llama-3.1-8B is 5.73 GB: 128,256 × 4,096 in f16 twice, the layers in 4.16 bits.
    let mut llama = dense("llama", [128_256, 4096, 14336, 32, 32, 8, 128], json!({}));
    llama["quantization_config"] = json!({"quant_method": "awq", "bits": 4, "group_size": 128});
    let awq = Shape::from_hf(&llama, Dtype::F16).unwrap();
    assert!((awq.weight_bytes as f64 / 5.73e9 - 1.0).abs() < 0.005, "{}", awq.weight_bytes);
    // A decode step reads all but the embedding table, and the LM head in f16.
    let read = awq.cost(Step::decode(1, 0)).total().weight_bytes;
    let table = (128_256 * 4096 * 2) as f64;
    assert!((read / (awq.weight_bytes as f64 - table) - 1.0).abs() < 1e-4);
    let head = awq.cost(Step::decode(1, 0)).operator(Operator::LmHead).unwrap().all.weight_bytes;
    assert_eq!(head, table);
    // DeepSeek-V3 in fp8 blocks, by hand: 1 byte for each of 671.0 G, and another for tables, norms and routers.
    let mut deepseek = deepseek_v3();
    deepseek["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let fp8 = Shape::from_hf(&deepseek, Dtype::Bf16).unwrap();
    assert!((fp8.weight_bytes as f64 / 673.2e9 - 1.0).abs() < 0.005, "{}", fp8.weight_bytes);
}

#[test]
fn the_engine_and_the_cost_read_the_same_shape() {
    // For every built-in model that the engine runs, the table and the engine read the same shape.
    for model in built_in::names() {
        let arch = built_in::model(&model).arch;
        let Ok(spec) = ModelSpec::from_hf(&arch) else {
            // That of a model in local files is not known here.
            assert!(model == "local" || cost_only().any(|name| arch["model_type"] == name), "{model}");
            continue;
        };
        let shape = Shape::from_hf(&arch, Dtype::Bf16).unwrap();
        assert_eq!(shape, Shape::new(&spec, Dtype::Bf16, spec.weight_bytes(Dtype::Bf16)), "{model}");
    }
}

#[test]
fn errors_list_every_model_type() {
    let unknown = Shape::from_hf(&config("mamba", json!({})), Dtype::F32).unwrap_err().to_string();
    for name in runnable().chain(cost_only()) {
        assert!(unknown.contains(name), "{name}: {unknown}");
    }
    let error = ModelSpec::from_hf(&deepseek_v3()).unwrap_err().to_string();
    for expected in ["cannot run", "deepseek_v3", "llama, mistral, qwen2", "llmprof-tui cost"] {
        assert!(error.contains(expected), "{error}");
    }
    for (model_type, key) in [("deepseek_v3", "kv_lora_rank"), ("qwen3_next", "linear_num_key_heads")] {
        let mut broken = if model_type == "deepseek_v3" { deepseek_v3() } else { qwen3_next() };
        broken[key] = json!(1u64 << 40);
        let error = Shape::from_hf(&broken, Dtype::F32).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}
