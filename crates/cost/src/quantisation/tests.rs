use serde_json::json;

use super::*;

fn read(config: Value) -> Result<Option<Quantisation>, SpecError> {
    let whole = json!({ "quantization_config": config });
    Quantisation::from_hf(whole.as_object().unwrap(), 4)
}

#[test]
fn bits_include_scales_and_zero_points() {
    let group = |weights: Value, activations: Value| {
        let groups = json!({"group_0": {
            "targets": ["Linear"], "weights": weights, "input_activations": activations
        }});
        json!({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]})
    };
    let fp8 = json!({"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true});
    let w4 = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": true});
    for (config, bits, arithmetic) in [
        (json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true}), 4.15625, None),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 128}), 4.15625, None),
        (json!({"quant_method": "gptq", "bits": 8, "group_size": -1}), 8.0, None),
        (json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), 8.001953125, Some("fp8")),
        (json!({"quant_method": "bitsandbytes", "load_in_4bit": true}), 4.5, None),
        (
            json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_use_double_quant": true}),
            4.126953125,
            None,
        ),
        (json!({"load_in_4bit": false, "load_in_8bit": true}), 8.0, Some("int8")),
        (json!({"quant_method": "mxfp4"}), 4.25, None),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), 4.5, None),
        (group(fp8.clone(), json!({"num_bits": 8, "type": "float", "dynamic": true})), 8.0, Some("fp8")),
        (group(fp8, Value::Null), 8.0, None),
        (group(w4, Value::Null), 4.125, None),
    ] {
        let found = read(config.clone()).unwrap().unwrap();
        assert_eq!((found.bits(), found.arithmetic.as_deref()), (bits, arithmetic), "{config}");
        assert_eq!((found.attention_layers, found.mlp_layers, found.lm_head), (4, 4, false), "{config}");
    }
}

#[test]
fn modules_that_are_not_quantised() {
    for (modules, attention, mlp) in [
        (json!(["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]), 0, 4),
        (json!(["re:.*self_attn.*", "re:.*mlp.gate$"]), 0, 4),
        (json!(["language_model.model.layers.0.self_attn.o_proj", "model.layers.1.mlp"]), 3, 3),
        (json!(["gate", "mlp.gate", "vision_tower"]), 4, 4),
        (json!(["model.layers.1"]), 3, 3),
    ] {
        let config = json!({"quant_method": "mxfp4", "modules_to_not_convert": modules});
        let found = read(config).unwrap().unwrap();
        assert_eq!((found.attention_layers, found.mlp_layers), (attention, mlp), "{modules}");
    }
}

#[test]
fn the_cache_may_be_quantised() {
    let scheme = json!({"num_bits": 8, "type": "float"});
    let groups = json!({"group_0": {"weights": {"num_bits": 8, "type": "float"}}});
    let config = json!({
        "quant_method": "compressed-tensors", "config_groups": groups, "kv_cache_scheme": scheme
    });
    let found = read(config).unwrap().unwrap();
    assert_eq!(found.kv_bits, Some(8));
    assert!(found.to_string().ends_with("the KV cache has 8 bits per number"), "{found}");
    assert_eq!(read(json!({"quant_method": "mxfp4"})).unwrap().unwrap().kv_bits, None);
}

#[test]
fn unknown_methods_are_refused() {
    let error = read(json!({"quant_method": "aqlm"})).unwrap_err().to_string();
    assert!(error.contains("aqlm") && error.contains("--weight-bits"), "{error}");
    assert!(read(json!({"quant_method": "awq"})).is_err());
    assert!(read(json!({"quant_method": "awq", "bits": 4, "group_size": 0})).is_err());
    assert_eq!(read(Value::Null).unwrap(), None);
}
