use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Dtype, KvCacheDtype, ModelSpec, built_in, spec::TensorShape};

fn qwen2_5_7b() -> Value {
    json!({
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "max_position_embeddings": 131072
    })
}

fn llama3_1_8b() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072
    })
}

fn shape(config: &Value) -> Shape {
    Shape::from_hf(config, Dtype::Bf16).unwrap()
}

#[test]
fn cost_of_qwen2_5_7b_equals_the_manual_calculation() {
    let shape = shape(&qwen2_5_7b());
    assert_eq!(shape.parameters(), 7_615_616_512);
    // A layer: QKV 3,584 × 4,608, output 3,584², gate and up 2 × 3,584 × 18,944, down 18,944 × 3,584.
    // 28 layers for each of 2,048 rows, and the LM head for the last row, two FLOPs each.
    let prefill = shape.cost(Step::prefill(1, 2048)).total();
    assert_eq!(prefill.matmul_flops, 26_728_671_477_760.0);
    // 2,048 × 2,049 / 2 pairs, 28 heads of 128, scores and values, 28 layers.
    assert_eq!(prefill.attention_flops, 842_224_631_808.0);
    assert_eq!(prefill.kv_write_bytes, 2048.0 * 57_344.0);

    let decode = shape.cost(Step::decode(1, 512)).total();
    assert_eq!(decode.matmul_flops, 14_140_571_648.0);
    // All weights except the embedding table, of which one row is read.
    assert_eq!(decode.weight_bytes, 14_141_238_272.0 + 3584.0 * 2.0);
    assert_eq!(decode.kv_read_bytes, 513.0 * 57_344.0);
    assert_eq!(decode.kv_write_bytes, 57_344.0);
    let intensity = decode.intensity().unwrap();
    assert!((0.99..1.02).contains(&intensity), "{intensity}");
}

#[test]
fn cost_of_llama3_1_8b_equals_the_manual_calculation() {
    let shape = shape(&llama3_1_8b());
    assert_eq!(shape.parameters(), 8_030_261_248);
    let prefill = shape.cost(Step::prefill(1, 2048)).total();
    assert_eq!(prefill.matmul_flops, 28_588_352_995_328.0);
    assert_eq!(prefill.attention_flops, 1_100_048_498_688.0);
    assert_eq!(shape.kv_bytes_per_position(), 131_072);
    let memory = shape.memory(4, 1024, 8192);
    assert_eq!(memory.weight_bytes, 16_060_522_496);
    assert_eq!(memory.kv_bytes, 4 * 8192 * 131_072);
}

#[test]
fn operators_are_in_order_and_sum_up() {
    let gemma = json!({
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26
    });
    for (config, expected) in [(qwen2_5_7b(), 12), (gemma, 14)] {
        let shape = shape(&config);
        let cost = shape.cost(Step::decode(4, 100));
        let order: Vec<Operator> = cost.operators.iter().map(|cost| cost.operator).collect();
        assert!(order.is_sorted(), "{order:?}");
        assert_eq!(order.len(), expected, "{order:?}");
        assert_eq!(cost.total().parameters, shape.parameters() as f64);
        assert_eq!(cost.operator(Operator::Qkv).unwrap().calls, shape.layer_count());
        assert_eq!(cost.operator(Operator::LmHead).unwrap().calls, 1);
        assert_eq!(cost.operator(Operator::Activation), None);
        // All layers as one operator are the sum of what is in them.
        let layers = cost.operator(Operator::Layers).unwrap();
        let outside = [Operator::Embedding, Operator::FinalNorm, Operator::LmHead, Operator::Sampling];
        let outside: Amounts = outside.iter().map(|operator| cost.operator(*operator).unwrap().all).sum();
        assert_eq!((layers.calls, (layers.all + outside).bytes()), (1, cost.total().bytes()));
        assert_eq!((layers.all + outside).flops(), cost.total().flops());
    }
}

#[test]
fn costs_of_all_built_in_models_sum_up() {
    let mut models = 0;
    for model in built_in::names() {
        let arch = built_in::model(&model).arch;
        let Ok(spec) = ModelSpec::from_hf(&arch) else { continue };
        let shape = Shape::new(&spec, Dtype::Bf16, spec.weight_bytes(Dtype::Bf16));
        assert_eq!(shape.parameters(), spec.parameters(), "{model}");
        let cost = shape.cost(Step::decode(1, 16));
        assert_eq!(cost.total().parameters, spec.parameters() as f64, "{model}");
        assert_eq!(
            shape.kv_bytes_per_position(),
            spec.kv_bytes_per_position(Dtype::Bf16, KvCacheDtype::Auto),
            "{model}"
        );
        let row = (shape.hidden * 2) as f64;
        // With tied embeddings, the LM head reads the full table.
        let looked_up = cost.operator(Operator::Embedding).unwrap().all.weight_bytes;
        assert_eq!(looked_up, row, "{model}");
        let read = cost.total().weight_bytes - looked_up;
        assert!(
            (read / spec.step_bytes(1, |tensor| 2 * tensor.elements()) as f64 - 1.0).abs() < 1e-9,
            "{model}"
        );
        // Parts of different sizes: what a step reads of each counts with its own.
        let bytes = |tensor: &TensorShape| match tensor.name.as_str() {
            _ if tensor.is_router() => tensor.elements(),
            name if name.contains(".experts.") || name.contains(".mlp.") => tensor.elements() / 2,
            _ => tensor.elements(),
        };
        let mixed = shape.stored_as(&spec.tensors(), bytes);
        assert_eq!(mixed.weight_bytes, spec.tensors().iter().map(bytes).sum::<u64>(), "{model}");
        let read = mixed.cost(Step::decode(1, 16)).total().weight_bytes;
        assert!((read / spec.step_bytes(1, bytes) as f64 - 1.0).abs() < 2e-3, "{model}");
        models += 1;
    }
    assert!(models > 20, "{models}");
}

#[test]
fn a_window_limits_the_attended_positions() {
    for (step, window, pairs, attended) in [
        (Step::prefill(1, 4), None, 10.0, 4.0),
        (Step::prefill(1, 4), Some(2), 7.0, 4.0),
        (Step::prefill(1, 4), Some(9), 10.0, 4.0),
        (Step::decode(1, 100), None, 101.0, 101.0),
        (Step::decode(1, 100), Some(16), 16.0, 16.0),
        (Step::decode(1, 3), Some(16), 4.0, 4.0),
        (Step { batch: 1, new: 3, past: 2 }, Some(4), 3.0 + 4.0 + 4.0, 5.0),
        (Step { batch: 1, new: 2, past: 8 }, Some(4), 8.0, 5.0),
    ] {
        assert_eq!(step.pairs(window), pairs, "{step:?} {window:?}");
        assert_eq!(step.attended(window), attended, "{step:?} {window:?}");
    }
}

#[test]
fn only_active_experts_are_read() {
    let mixtral = json!({
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "sliding_window": null, "num_local_experts": 8, "num_experts_per_tok": 2
    });
    let shape = shape(&mixtral);
    let one = shape.cost(Step::decode(1, 0)).total();
    let table = (shape.vocab * shape.hidden) as f64;
    assert_eq!(one.weight_bytes, 2.0 * (shape.active_parameters() as f64 - table + 4096.0));
    let many = shape.cost(Step::prefill(1, 4096)).total();
    let all = 2.0 * (shape.parameters() as f64 - table + 4096.0 * 4096.0);
    assert!((many.weight_bytes / all - 1.0).abs() < 1e-9);
    assert_eq!(one.parameters, shape.parameters() as f64);
    // Each sequence of a batch selects its own experts, and some select the same.
    let four = shape.cost(Step::decode(4, 0)).total().weight_bytes;
    assert!(four > one.weight_bytes * 2.0 && four < one.weight_bytes * 4.0);
}

#[test]
fn quantised_weights_have_fewer_bytes_and_equal_flops() {
    let plain = shape(&qwen2_5_7b());
    let small = plain.clone().quantised(4.5);
    let (a, b) = (plain.cost(Step::decode(1, 64)).total(), small.cost(Step::decode(1, 64)).total());
    assert_eq!(a.flops(), b.flops());
    assert!((b.weight_bytes / a.weight_bytes - 4.5 / 16.0).abs() < 1e-6);
    assert_eq!(a.kv_read_bytes, b.kv_read_bytes);
}

#[test]
fn the_largest_batch_fits_and_one_more_does_not() {
    let shape = shape(&qwen2_5_7b());
    let free = 80_000_000_000;
    let batch = shape.largest_batch(1024, 1024, free).unwrap();
    assert!(shape.memory(batch, 1024, 2048).total() <= free);
    assert!(shape.memory(batch + 1, 1024, 2048).total() > free);
    assert_eq!(shape.largest_batch(1024, 1024, 10_000_000_000), None);
    assert_eq!(shape.largest_context(1, 256, free), Some(131_072), "limited by the model");
    let context = shape.largest_context(64, 256, free).unwrap();
    assert!(shape.memory(64, context - 256, context).total() <= free);
    assert!(shape.memory(64, context - 255, context + 1).total() > free);
}

proptest! {
    #[test]
    fn costs_are_finite_for_any_step(
        batch in 0u64..=u64::MAX, new in 0u64..=u64::MAX, past in 0u64..=u64::MAX, window in proptest::option::of(1u64..),
    ) {
        let mut shape = shape(&qwen2_5_7b());
        shape.layers[0].window = window;
        let total = shape.cost(Step { batch, new, past }).total();
        prop_assert!(total.flops().is_finite() && total.flops() >= 0.0);
        prop_assert!(total.bytes().is_finite() && total.bytes() >= 0.0);
        shape.memory(batch, new, past).total();
    }

    #[test]
    fn a_prefill_in_two_parts_has_the_same_cost(first in 1u64..600, second in 1u64..600, window in proptest::option::of(1u64..700)) {
        let total = Step::prefill(1, first + second).pairs(window);
        let parts = Step::prefill(1, first).pairs(window) + Step { batch: 1, new: second, past: first }.pairs(window);
        prop_assert!((total - parts).abs() < 1e-6, "{total} {parts}");
    }
}
