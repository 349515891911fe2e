//! Checkpoints: tiny ones are written and read back, and invalid ones are refused.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use candle_core::{
    DType, Device, Tensor,
    quantized::{
        GgmlDType, QTensor,
        gguf_file::{self, Value as Gguf},
    },
};
use llmprof::{
    base::noise,
    config::Dtype,
    engine::{
        candle::{Decoder, Tensors, stock::StockModel},
        weights::{Checkpoint, SyntheticWeights, Values, WeightError, WeightSource},
    },
    model::{ModelSpec, spec::TensorShape},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const SEED: u64 = 5;

/// Sizes that are multiples of 32, the block size of the quantised types.
fn config(family: &str) -> Value {
    json!({
        "model_type": family, "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": false
    })
}

fn tensor(shape: &TensorShape) -> Tensor {
    SyntheticWeights::new(SEED).tensor(shape, Dtype::F32).unwrap()
}

fn tensors(spec: &ModelSpec) -> HashMap<String, Tensor> {
    spec.tensors().iter().map(|shape| (shape.name.clone(), tensor(shape))).collect()
}

/// A directory with a `config.json` and the files that `save` writes.
fn dir(config: &Value, save: impl FnOnce(&Path, HashMap<String, Tensor>)) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    save(dir.path(), tensors(&ModelSpec::from_hf(config).unwrap()));
    dir
}

fn single(dir: &Path, tensors: HashMap<String, Tensor>) {
    candle_core::safetensors::save(&tensors, dir.join("model.safetensors")).unwrap();
}

/// Writes two shards with alternating tensors.
fn sharded(dir: &Path, tensors: HashMap<String, Tensor>) {
    let mut shards = [HashMap::new(), HashMap::new()];
    let mut map = serde_json::Map::new();
    for (index, (name, tensor)) in tensors.into_iter().enumerate() {
        map.insert(name.clone(), json!(format!("model-{}.safetensors", index % 2)));
        shards[index % 2].insert(name, tensor);
    }
    for (index, shard) in shards.iter().enumerate() {
        candle_core::safetensors::save(shard, dir.join(format!("model-{index}.safetensors"))).unwrap();
    }
    let index = json!({"metadata": {}, "weight_map": map});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn logits(source: &dyn WeightSource, spec: &ModelSpec, dtype: Dtype) -> Vec<Vec<f32>> {
    let decoder = Decoder::new(spec, dtype, source, (1, 16), &Device::Cpu, &mut |_, _, _| true).unwrap();
    let step = |ids: &[u32], position: usize| {
        decoder.forward(ids, position).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    vec![step(&[3, 90, 41, 7, 7], 0), step(&[12], 5), step(&[0], 6)]
}

fn max_diff(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn safetensors_are_read_back() {
    let config = config("qwen2");
    let spec = ModelSpec::from_hf(&config).unwrap();
    let expected = logits(&SyntheticWeights::new(SEED), &spec, Dtype::F32);
    for dir in [dir(&config, single), dir(&config, sharded)] {
        let checkpoint = Checkpoint::open(dir.path(), None).unwrap();
        // The file stores it in 32 bits.
        assert!((checkpoint.spec().rms_eps - spec.rms_eps).abs() < 1e-11);
        assert_eq!(ModelSpec { rms_eps: spec.rms_eps, ..checkpoint.spec().clone() }, spec);
        assert_eq!(checkpoint.weight_bytes(Dtype::Bf16), spec.weight_bytes(Dtype::Bf16));
        assert_eq!(max_diff(&logits(&checkpoint, &spec, Dtype::F32), &expected), 0.0);
    }
    let alone = dir(&config, single);
    let file = alone.path().join("model.safetensors");
    assert_eq!(logits(&Checkpoint::open(&file, None).unwrap(), &spec, Dtype::F32), expected);
}

/// Formats of 4-bit weights in files.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FourBits {
    Awq,
    Gptq,
    /// Zero points are not reduced by one.
    GptqV2,
    /// The columns of a group are not adjacent.
    GptqByActivity,
}

/// The matrices of the layers in 4 bits, packed as the quantisers do, and the same weights unquantised.
fn four_bits(kind: FourBits, plain: HashMap<String, Tensor>) -> [HashMap<String, Tensor>; 2] {
    let (mut packed, mut values) = (HashMap::new(), HashMap::new());
    for (name, tensor) in plain {
        let Some(matrix) = name.strip_suffix("_proj.weight") else {
            packed.insert(name.clone(), tensor.clone());
            values.insert(name, tensor);
            continue;
        };
        let (rows, columns) = tensor.dims2().unwrap();
        let group = 32;
        let number = name.bytes().fold(SEED, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let draw = |what: u64, i: usize| noise::bits(number ^ what << 60, i as u64);
        let group_of = |column: usize| match kind {
            FourBits::GptqByActivity => column % (columns / group),
            _ => column / group,
        };
        let code = |row: usize, column: usize| (draw(1, row * columns + column) % 16) as u32;
        // At least one, as GPTQ stores one less.
        let zero = |row: usize, group: usize| 1 + (draw(2, row * columns + group) % 15) as u32;
        let scale =
            |row: usize, group: usize| 1.0 / 64.0 + (draw(3, row * columns + group) % 64) as f32 / 4096.0;
        let weights: Vec<f32> = (0..rows * columns)
            .map(|i| (i / columns, i % columns))
            .map(|(r, c)| scale(r, group_of(c)) * (code(r, c) as f32 - zero(r, group_of(c)) as f32))
            .collect();
        let groups = columns / group;
        let order = if kind == FourBits::Awq { [0, 2, 4, 6, 1, 3, 5, 7] } else { [0, 1, 2, 3, 4, 5, 6, 7] };
        let stored_zero = |row, group| match kind {
            FourBits::Gptq | FourBits::GptqByActivity => zero(row, group) - 1,
            FourBits::Awq | FourBits::GptqV2 => zero(row, group),
        };
        let word = |nibble: &dyn Fn(usize) -> u32| {
            (0..8).fold(0u32, |word, i| word | nibble(i) << (4 * i)) as i32 as i64
        };
        let across = |first: usize, of: &dyn Fn(usize) -> u32| word(&|i| of(8 * first + order[i]));
        let (codes, shape) = match kind {
            FourBits::Awq => {
                let all = (0..columns).flat_map(|c| (0..rows / 8).map(move |r| (c, r)));
                (all.map(|(c, r)| across(r, &|row| code(row, c))).collect::<Vec<_>>(), (columns, rows / 8))
            }
            _ => {
                let all = (0..columns / 8).flat_map(|c| (0..rows).map(move |r| (c, r)));
                (all.map(|(c, r)| word(&|i| code(r, 8 * c + i))).collect(), (columns / 8, rows))
            }
        };
        let all = (0..groups).flat_map(|g| (0..rows / 8).map(move |r| (g, r)));
        let zeros: Vec<i64> = all.map(|(g, r)| across(r, &|row| stored_zero(row, g))).collect();
        let scales: Vec<f32> = (0..groups * rows).map(|i| scale(i % rows, i / rows)).collect();
        let words = |values: Vec<i64>, shape: (usize, usize)| {
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(DType::I32).unwrap()
        };
        let scales =
            Tensor::from_vec(scales, (groups, rows), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap();
        packed.insert(format!("{matrix}_proj.qweight"), words(codes, shape));
        packed.insert(format!("{matrix}_proj.qzeros"), words(zeros, (groups, rows / 8)));
        packed.insert(format!("{matrix}_proj.scales"), scales);
        if kind != FourBits::Awq {
            let listed = (0..columns).map(|c| group_of(c) as i64).collect();
            packed.insert(format!("{matrix}_proj.g_idx"), words(listed, (1, columns)).flatten_all().unwrap());
        }
        values.insert(name, Tensor::from_vec(weights, (rows, columns), &Device::Cpu).unwrap());
    }
    [packed, values]
}

#[test]
fn awq_and_gptq_are_read() {
    for kind in [FourBits::Awq, FourBits::Gptq, FourBits::GptqV2, FourBits::GptqByActivity] {
        let plain_config = config("qwen2");
        let mut packed_config = plain_config.clone();
        let format = if kind == FourBits::GptqV2 { "gptq_v2" } else { "gptq" };
        packed_config["quantization_config"] =
            json!({"quant_method": "gptq", "bits": 4, "checkpoint_format": format});
        let packed = dir(&packed_config, |dir, tensors| single(dir, four_bits(kind, tensors)[0].clone()));
        let plain = dir(&plain_config, |dir, tensors| single(dir, four_bits(kind, tensors)[1].clone()));
        let plain = Checkpoint::open(plain.path(), None).unwrap();
        let expected = logits(&plain, plain.spec(), Dtype::F32);
        let open = || Checkpoint::open(packed.path(), None).unwrap();
        // Weights that run unquantised are reported so, and take that memory.
        let stays = kind != FourBits::GptqByActivity;
        assert_eq!(open().is_quantised(), stays);
        assert_eq!(open().type_name(Dtype::F32), if stays { "int4" } else { "f32" });
        let (bytes, plain_bytes) = (open().weight_bytes(Dtype::F32), plain.weight_bytes(Dtype::F32));
        assert!(if stays { bytes < plain_bytes / 2 } else { bytes == plain_bytes }, "{kind:?}: {bytes}");
        let values = logits(&open().dequantised(), plain.spec(), Dtype::F32);
        assert!(max_diff(&values, &expected) < 1e-4, "{kind:?}: {}", max_diff(&values, &expected));
        let largest = expected.iter().flatten().fold(0f32, |most, logit| most.max(logit.abs()));
        let quantised = logits(&open(), plain.spec(), Dtype::F32);
        let error = max_diff(&quantised, &expected) / largest;
        assert!(error < 0.05, "{kind:?}: {error}");
        // Codes stay codes only if a block has one group.
        let part = &plain.spec().tensors().into_iter().find(|t| t.name.contains("down_proj")).unwrap();
        let blocks = open().blocks(std::slice::from_ref(part)).unwrap();
        assert_eq!(blocks.is_some(), stays);
    }
    // Inconsistent parts are refused with the name of the matrix.
    let broken = dir(&config("qwen2"), |dir, tensors| {
        let [mut packed, _] = four_bits(FourBits::Awq, tensors);
        let name = "model.layers.1.mlp.up_proj.scales";
        packed.insert(name.to_owned(), Tensor::zeros((7, 96), DType::F16, &Device::Cpu).unwrap());
        single(dir, packed);
    });
    let message = Checkpoint::open(broken.path(), None).unwrap_err().to_string();
    assert!(message.contains("model.layers.1.mlp.up_proj.weight") && message.contains("AWQ"), "{message}");
}

/// The matrices of layers in 8 bits, with scales by block, by matrix or by row, and the same weights unquantised.
fn eight_bits(tensors: HashMap<String, Tensor>) -> [HashMap<String, Tensor>; 2] {
    let (mut packed, mut values) = (HashMap::new(), HashMap::new());
    for (name, tensor) in tensors {
        let layer = name.starts_with("model.layers.") && tensor.dims().len() == 2;
        if !layer {
            packed.insert(name.clone(), tensor.clone());
            values.insert(name, tensor);
            continue;
        }
        let (rows, columns) = tensor.dims2().unwrap();
        let (suffix, shape) = match name.as_str() {
            name if name.contains("down_proj") => ("scale", vec![]),
            name if name.contains("o_proj") => ("scale", vec![rows, 1]),
            _ => ("scale_inv", vec![rows.div_ceil(128), columns.div_ceil(128)]),
        };
        let count: usize = shape.iter().product();
        let scales: Vec<f32> = (0..count).map(|i| 0.002 * (1.0 + i as f32 / 7.0)).collect();
        let codes = (&tensor / 0.002).unwrap().to_dtype(DType::F8E4M3).unwrap();
        let numbers = codes.to_dtype(DType::F32).unwrap();
        let scales = Tensor::from_vec(scales, shape.as_slice(), &Device::Cpu).unwrap();
        // These matrices are smaller than a block.
        let by_row = if shape.len() == 2 && shape[1] == 1 && shape[0] == rows {
            scales.clone()
        } else {
            scales.flatten_all().unwrap().narrow(0, 0, 1).unwrap().reshape((1, 1)).unwrap()
        };
        values.insert(name.clone(), numbers.broadcast_mul(&by_row).unwrap());
        packed.insert(format!("{name}_{suffix}"), scales);
        packed.insert(name, codes);
    }
    [packed, values]
}

#[test]
fn fp8_is_read() {
    let config = config("qwen2");
    let packed = dir(&config, |dir, tensors| single(dir, eight_bits(tensors)[0].clone()));
    let plain = dir(&config, |dir, tensors| single(dir, eight_bits(tensors)[1].clone()));
    let open = || Checkpoint::open(packed.path(), None).unwrap();
    let plain = Checkpoint::open(plain.path(), None).unwrap();
    let expected = logits(&plain, plain.spec(), Dtype::F32);
    assert_eq!(max_diff(&logits(&open(), plain.spec(), Dtype::F32), &expected), 0.0);
    assert!(open().is_fp8() && open().is_quantised() && !open().dequantised().is_fp8());
    assert_eq!((open().type_name(Dtype::Bf16), plain.type_name(Dtype::Bf16)), ("fp8".into(), "bf16".into()));
    assert!(open().weight_bytes(Dtype::F32) < plain.weight_bytes(Dtype::F32) / 2);
    // A device gets the codes of several matrices stacked by rows, and one table of scales.
    let tensors = plain.spec().tensors();
    let named = |part: &str| -> Vec<TensorShape> {
        tensors.iter().filter(|t| t.name.contains("layers.0.") && t.name.contains(part)).cloned().collect()
    };
    let gate_up = [named("gate_proj"), named("up_proj")].concat();
    let rows = open().fp8(&gate_up).unwrap();
    let all: usize = gate_up.iter().map(|part| part.shape[0]).sum();
    assert_eq!((rows.rows, rows.scale_rows, rows.scales.len()), (all, 16, all / 16));
    assert_eq!(open().fp8(&named("o_proj")).unwrap().scale_rows, 1);
    assert!(open().fp8(&tensors[..1]).is_none() && open().dequantised().fp8(&gate_up).is_none());
    // Codes without scales are refused.
    let broken = dir(&config, |dir, tensors| {
        let [mut packed, _] = eight_bits(tensors);
        packed.remove("model.layers.1.mlp.up_proj.weight_scale_inv");
        single(dir, packed);
    });
    let message = Checkpoint::open(broken.path(), None).unwrap_err().to_string();
    assert!(message.contains("model.layers.1.mlp.up_proj.weight") && message.contains("scales"), "{message}");
}

/// A gemma3 checkpoint with a vision encoder stores the decoder under another prefix, in two variants.
#[test]
fn the_decoder_of_a_multimodal_checkpoint_is_found() {
    let mut text = config("gemma3_text");
    text["tie_word_embeddings"] = json!(true);
    text["sliding_window"] = json!(4);
    let spec = ModelSpec::from_hf(&text).unwrap();
    let expected = logits(&SyntheticWeights::new(SEED), &spec, Dtype::F32);
    let multimodal = json!({"model_type": "gemma3", "text_config": text, "vision_config": {}});
    let names: [fn(&str) -> String; 2] =
        [|name| format!("language_model.{name}"), |name| name.replacen("model.", "model.language_model.", 1)];
    for renamed in names {
        let dir = dir(&multimodal, |dir, tensors| {
            let mut tensors: HashMap<_, _> =
                tensors.into_iter().map(|(name, tensor)| (renamed(&name), tensor)).collect();
            let other = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
            tensors.insert("vision_tower.norm.weight".to_owned(), other);
            single(dir, tensors);
        });
        let checkpoint = Checkpoint::open(dir.path(), None).unwrap();
        // The file stores it in 32 bits.
        assert!((checkpoint.spec().rms_eps - spec.rms_eps).abs() < 1e-11);
        assert_eq!(ModelSpec { rms_eps: spec.rms_eps, ..checkpoint.spec().clone() }, spec);
        assert_eq!(logits(&checkpoint, &spec, Dtype::F32), expected);
    }
}

#[test]
fn types_are_converted() {
    let config = config("llama");
    let spec = ModelSpec::from_hf(&config).unwrap();
    for on_disk in [DType::F32, DType::F16, DType::BF16] {
        let dir = dir(&config, |dir, tensors| {
            single(dir, tensors.into_iter().map(|(n, t)| (n, t.to_dtype(on_disk).unwrap())).collect());
        });
        let checkpoint = Checkpoint::open(dir.path(), None).unwrap();
        for (dtype, candle) in
            [(Dtype::F32, DType::F32), (Dtype::F16, DType::F16), (Dtype::Bf16, DType::BF16)]
        {
            let shape = &spec.tensors()[2];
            let found = checkpoint.tensor(shape, dtype).unwrap();
            assert_eq!(found.dtype(), candle);
            let expected = tensor(shape).to_dtype(on_disk).unwrap().to_dtype(candle).unwrap();
            let numbers = |t: Tensor| t.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(numbers(found), numbers(expected), "{on_disk:?} as {dtype:?}");
        }
    }
}

fn refusal(path: &Path) -> String {
    Checkpoint::open(path, None).expect_err("an error").to_string()
}

#[test]
fn invalid_safetensors_are_refused() {
    let config = config("llama");
    let name = "model.layers.1.mlp.up_proj.weight";
    let file = |dir: &TempDir| dir.path().join("model.safetensors").display().to_string();

    let empty = dir(&config, |_, _| {});
    assert!(refusal(empty.path()).starts_with(&format!("{} has no weights", empty.path().display())));
    assert!(refusal(&empty.path().join("nowhere")).starts_with("cannot read"));

    let lacking = dir(&config, |dir, mut tensors| {
        tensors.remove(name);
        single(dir, tensors);
    });
    assert_eq!(refusal(lacking.path()), format!("{} has no tensor {name}", file(&lacking)));

    let wrong_shape = dir(&config, |dir, mut tensors| {
        tensors.insert(name.to_owned(), Tensor::zeros((96, 63), DType::F32, &Device::Cpu).unwrap());
        single(dir, tensors);
    });
    let message = format!("{}: {name} has shape [96, 63], the model needs [96, 64]", file(&wrong_shape));
    assert_eq!(refusal(wrong_shape.path()), message);

    let wrong_type = dir(&config, |dir, mut tensors| {
        tensors.insert(name.to_owned(), Tensor::zeros((96, 64), DType::I64, &Device::Cpu).unwrap());
        single(dir, tensors);
    });
    let message = format!("{}: {name} is i64; f32, f16 and bf16 can be read", file(&wrong_type));
    assert_eq!(refusal(wrong_type.path()), message);

    for len in [1000, 4, 0] {
        let truncated = dir(&config, |dir, tensors| {
            single(dir, tensors);
            let file = dir.join("model.safetensors");
            let bytes = fs::read(&file).unwrap();
            fs::write(&file, &bytes[..len.min(bytes.len())]).unwrap();
        });
        let message = refusal(truncated.path());
        assert!(
            message.starts_with(&format!("{} is not a complete safetensors file", file(&truncated))),
            "{message}"
        );
    }
    // The header is complete, the data is not.
    let truncated = dir(&config, |dir, tensors| {
        single(dir, tensors);
        let file = dir.join("model.safetensors");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 8]).unwrap();
    });
    assert!(
        refusal(truncated.path()).contains("is not a complete safetensors file"),
        "{}",
        refusal(truncated.path())
    );

    let other =
        dir(&config, |dir, _| fs::write(dir.join("model.safetensors"), "GGUF nonsense here").unwrap());
    assert!(
        refusal(other.path()).contains("is not a complete safetensors file"),
        "{}",
        refusal(other.path())
    );

    let without_config = dir(&config, |dir, tensors| {
        single(dir, tensors);
        fs::remove_file(dir.join("config.json")).unwrap();
    });
    assert!(refusal(without_config.path()).contains("config.json"));
}

#[test]
fn invalid_shards_are_refused() {
    let config = config("llama");
    let index = |dir: &TempDir| dir.path().join("model.safetensors.index.json");
    let broken = dir(&config, sharded);
    fs::remove_file(broken.path().join("model-1.safetensors")).unwrap();
    let message = format!("{} names model-1.safetensors, which does not exist", index(&broken).display());
    assert_eq!(refusal(broken.path()), message);

    let empty = dir(&config, sharded);
    fs::write(index(&empty), r#"{"weight_map": {}}"#).unwrap();
    let message = refusal(empty.path());
    assert!(
        message.starts_with(&format!("{} has no tensor model.embed", index(&empty).display())),
        "{message}"
    );

    // The index lists a tensor that its shard does not have.
    let inconsistent = dir(&config, sharded);
    let text = fs::read_to_string(index(&inconsistent)).unwrap();
    fs::write(index(&inconsistent), text.replace("model-1.", "model-0.")).unwrap();
    let message = refusal(inconsistent.path());
    assert!(message.contains("model-0.safetensors has no tensor"), "{message}");

    let corrupt = dir(&config, sharded);
    fs::write(index(&corrupt), "{").unwrap();
    assert!(refusal(corrupt.path()).contains("is not a complete safetensors index file"));
}

/// Reorders the rows of each head as the llama.cpp converter does for interleaved rotary pairs.
fn interleave_halves(w: &Tensor, head_dim: usize) -> Tensor {
    let dims = w.dims().to_vec();
    let heads = dims[0] / head_dim;
    let mut split = vec![heads, 2, head_dim / 2];
    split.extend(&dims[1..]);
    w.reshape(split).unwrap().transpose(1, 2).unwrap().contiguous().unwrap().reshape(dims).unwrap()
}

/// A GGUF file of `config`; `kind` selects the type of a tensor by its GGUF name.
fn gguf(
    config: &Value,
    kind: impl Fn(&str) -> GgmlDType,
    changes: &[(&str, Option<Gguf>)],
) -> (TempDir, PathBuf) {
    let spec = ModelSpec::from_hf(config).unwrap();
    let arch = match config["model_type"].as_str().unwrap() {
        "gemma3_text" => "gemma3",
        "mixtral" => "llama",
        "qwen2_moe" => "qwen2moe",
        "qwen3_moe" => "qwen3moe",
        "gpt_oss" => "gpt-oss",
        other => other,
    };
    let number = |key: &str| Gguf::U32(config[key].as_u64().unwrap() as u32);
    let mut metadata: HashMap<String, Gguf> = [
        ("general.architecture".to_owned(), Gguf::String(arch.to_owned())),
        (format!("{arch}.embedding_length"), number("hidden_size")),
        (format!("{arch}.feed_forward_length"), number("intermediate_size")),
        (format!("{arch}.block_count"), number("num_hidden_layers")),
        (format!("{arch}.attention.head_count"), number("num_attention_heads")),
        (format!("{arch}.attention.head_count_kv"), number("num_key_value_heads")),
        (format!("{arch}.attention.key_length"), number("head_dim")),
        (format!("{arch}.attention.layer_norm_rms_epsilon"), Gguf::F32(1e-5)),
        (format!("{arch}.context_length"), number("max_position_embeddings")),
    ]
    .into();
    for (key, value) in changes {
        match value {
            Some(value) => metadata.insert((*key).to_owned(), value.clone()),
            None => metadata.remove(*key),
        };
    }
    let is_named_so = spec.post_norms || arch == "gpt-oss";
    let after_attention = if is_named_so { "post_attention_norm" } else { "ffn_norm" };
    let renames = [
        ("self_attn.sinks", "attn_sinks.weight"),
        ("mlp.router.", "mlp.gate_inp."),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("gate_up_proj", "up"),
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", after_attention),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.", "attn_"),
        ("shared_expert_gate", "gate_inp_shexp"),
        ("shared_expert.gate_proj", "gate_shexp"),
        ("shared_expert.up_proj", "up_shexp"),
        ("shared_expert.down_proj", "down_shexp"),
        ("block_sparse_moe.", "mlp."),
        ("mlp.gate.", "mlp.gate_inp."),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    let mut saved = Vec::new();
    // All experts of a layer are one tensor.
    let mut experts: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
    for shape in spec.tensors() {
        if let Some((layer, part)) = shape.name.split_once(".experts.") {
            let layer = layer.split('.').nth(2).unwrap();
            let (part, kind) = part.split_once('.').unwrap().1.split_once('.').unwrap();
            let part = match part {
                "gate_proj" | "w1" => "gate",
                "up_proj" | "w3" => "up",
                _ => "down",
            };
            experts.entry(format!("blk.{layer}.ffn_{part}_exps.{kind}")).or_default().push(tensor(&shape));
            continue;
        }
        let name = renames.iter().fold(shape.name.clone(), |name, (from, to)| name.replace(from, to));
        let mut values = tensor(&shape);
        if name.ends_with("norm.weight") {
            values = (values + f64::from(spec.norm_offset)).unwrap();
        }
        if arch == "llama" && (name.contains("attn_q.") || name.contains("attn_k.")) {
            values = interleave_halves(&values, spec.head_dim);
        }
        let dtype = if shape.shape.len() == 1 { GgmlDType::F32 } else { kind(&name) };
        saved.push((name, QTensor::quantize(&values, dtype).unwrap()));
    }
    for (name, all) in experts {
        let dtype = if name.ends_with("bias") { GgmlDType::F32 } else { kind(&name) };
        saved.push((name, QTensor::quantize(&Tensor::stack(&all, 0).unwrap(), dtype).unwrap()));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let saved: Vec<_> = saved.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    gguf_file::write(&mut fs::File::create(&path).unwrap(), &metadata, &saved).unwrap();
    (dir, path)
}

#[test]
fn unquantised_gguf_is_read_back() {
    for family in ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"] {
        let mut config = config(family);
        let mut changes = Vec::new();
        let key = |name: &str| format!("{}.{name}", family.trim_end_matches("_text"));
        let window = key("attention.sliding_window");
        if family.starts_with("gemma") || family == "phi3" {
            config["sliding_window"] = json!(4);
            changes.push((window.as_str(), Some(Gguf::U32(4))));
        }
        if family.starts_with("gemma") {
            config["query_pre_attn_scalar"] = json!(32);
        }
        let (_dir, path) = gguf(&config, |_| GgmlDType::F32, &changes);
        let checkpoint = Checkpoint::open(&path, None).unwrap();
        let spec = ModelSpec::from_hf(&config).unwrap();
        // The file stores it in 32 bits.
        assert!((checkpoint.spec().rms_eps - spec.rms_eps).abs() < 1e-11);
        assert_eq!(ModelSpec { rms_eps: spec.rms_eps, ..checkpoint.spec().clone() }, spec);
        assert_eq!(checkpoint.spec().qk_norm, ["qwen3", "gemma3_text"].contains(&family));
        let expected = logits(&SyntheticWeights::new(SEED), &spec, Dtype::F32);
        let difference = max_diff(&logits(&checkpoint, checkpoint.spec(), Dtype::F32), &expected);
        // Adding and subtracting a norm's offset may change the last bit.
        assert!(difference <= if spec.norm_offset == 0.0 { 0.0 } else { 1e-4 }, "{family}: {difference}");
        assert_eq!(checkpoint.type_name(Dtype::Bf16), "bf16");
    }
}

#[test]
fn experts_of_gguf_are_read_back() {
    for (family, arch) in
        [("mixtral", "llama"), ("qwen2_moe", "qwen2moe"), ("qwen3_moe", "qwen3moe"), ("gpt_oss", "gpt-oss")]
    {
        let mut config = config(family);
        let more = json!({
            "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": family == "qwen3_moe", "sliding_window": null
        });
        let is_gpt_oss = family == "gpt_oss";
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut changes = vec![("expert_count", 6), ("expert_used_count", 2)];
        if is_gpt_oss {
            config["sliding_window"] = json!(3);
            changes.push(("attention.sliding_window", 3));
        } else if family != "mixtral" {
            config["moe_intermediate_size"] = json!(64);
            changes.push(("expert_feed_forward_length", 64));
        }
        if family == "qwen2_moe" {
            config["shared_expert_intermediate_size"] = json!(96);
            changes.push(("expert_shared_feed_forward_length", 96));
        }
        let changes: Vec<(String, u32)> =
            changes.into_iter().map(|(name, value)| (format!("{arch}.{name}"), value)).collect();
        let changes: Vec<_> =
            changes.iter().map(|(name, value)| (name.as_str(), Some(Gguf::U32(*value)))).collect();
        let spec = ModelSpec::from_hf(&config).unwrap();
        let (_dir, path) = gguf(&config, |_| GgmlDType::F32, &changes);
        let checkpoint = Checkpoint::open(&path, None).unwrap();
        assert_eq!(ModelSpec { rms_eps: spec.rms_eps, ..checkpoint.spec().clone() }, spec, "{family}");
        let expected = logits(&SyntheticWeights::new(SEED), &spec, Dtype::F32);
        assert_eq!(max_diff(&logits(&checkpoint, checkpoint.spec(), Dtype::F32), &expected), 0.0, "{family}");
        // Quantised experts; the router stays unquantised.
        let kind = |name: &str| if name.contains("_inp") { GgmlDType::F32 } else { GgmlDType::Q8_0 };
        let (_dir, path) = gguf(&config, kind, &changes);
        let checkpoint = Checkpoint::open(&path, None).unwrap();
        let plain = logits(&Dequantised(&checkpoint), &spec, Dtype::F32);
        let diff = max_diff(&logits(&checkpoint, &spec, Dtype::F32), &plain);
        assert!(diff > 0.0 && diff < 0.2, "{family}: {diff}");
        assert!(checkpoint.weight_bytes(Dtype::F32) < spec.weight_bytes(Dtype::F32) / 3);
    }
}

/// The experts of gpt-oss as in its files: one tensor for all experts of a layer, rows of gate and up interleaved,
/// weights by column.
fn fused_experts(tensors: HashMap<String, Tensor>, experts: usize) -> HashMap<String, Tensor> {
    let stacked = |layer: &str, part: &str, kind: &str| {
        let one = |expert| tensors[&format!("{layer}{expert}.{part}.{kind}")].clone();
        Tensor::stack(&(0..experts).map(one).collect::<Vec<_>>(), 0).unwrap()
    };
    let mut fused = HashMap::new();
    for (name, tensor) in &tensors {
        let Some((before, _)) = name.split_once("experts.") else {
            fused.insert(name.clone(), tensor.clone());
            continue;
        };
        let layer = format!("{before}experts.");
        for (kind, end) in [("weight", ""), ("bias", "_bias")] {
            let both = ["gate_proj", "up_proj"].map(|part| stacked(&layer, part, kind));
            let in_turn = Tensor::stack(&both, 2).unwrap();
            let in_turn = match kind {
                "bias" => in_turn.flatten_from(1).unwrap(),
                _ => in_turn.flatten(1, 2).unwrap().transpose(1, 2).unwrap().contiguous().unwrap(),
            };
            let down = stacked(&layer, "down_proj", kind);
            let down =
                if kind == "bias" { down } else { down.transpose(1, 2).unwrap().contiguous().unwrap() };
            fused.insert(format!("{layer}gate_up_proj{end}"), in_turn);
            fused.insert(format!("{layer}down_proj{end}"), down);
        }
    }
    fused
}

#[test]
fn experts_of_gpt_oss_are_read_from_one_tensor() {
    let mut config = config("gpt_oss");
    config["num_local_experts"] = json!(5);
    config["num_experts_per_tok"] = json!(2);
    let spec = ModelSpec::from_hf(&config).unwrap();
    let expected = logits(&SyntheticWeights::new(SEED), &spec, Dtype::F32);
    let plain = dir(&config, |dir, tensors| single(dir, fused_experts(tensors, 5)));
    let checkpoint = Checkpoint::open(plain.path(), None).unwrap();
    assert!(!checkpoint.is_quantised());
    assert_eq!(max_diff(&logits(&checkpoint, &spec, Dtype::F32), &expected), 0.0);

    // In 4 bits: random codes, and their unquantised values.
    let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let in_four_bits = |dir: &Path, tensors: HashMap<String, Tensor>, as_numbers: bool| {
        let mut all = fused_experts(tensors, 5);
        for layer in 0..2 {
            for (matrix, rows, columns) in [("gate_up_proj", 192, 64), ("down_proj", 64, 96)] {
                let name = format!("model.layers.{layer}.mlp.experts.{matrix}");
                let count = 5 * rows * columns;
                let bits = |i: usize| noise::bits(layer + 3 * rows as u64, i as u64);
                let bytes: Vec<u8> = (0..count / 2).map(|i| bits(i) as u8).collect();
                let exponents: Vec<u8> = (0..count / 32).map(|i| 120 + (bits(count + i) % 4) as u8).collect();
                let weight = |i: usize| {
                    let code = usize::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
                    let size = numbers[code % 8] * 2f32.powi(i32::from(exponents[i / 32]) - 127);
                    if code < 8 { size } else { -size }
                };
                let plain: Vec<f32> = (0..count).map(weight).collect();
                all.remove(&name);
                if as_numbers {
                    let plain = Tensor::from_vec(plain, (5, rows, columns), &Device::Cpu).unwrap();
                    all.insert(name, plain.transpose(1, 2).unwrap().contiguous().unwrap());
                    continue;
                }
                let blocks = Tensor::from_vec(bytes, (5, rows, columns / 32, 16), &Device::Cpu).unwrap();
                let scales = Tensor::from_vec(exponents, (5, rows, columns / 32), &Device::Cpu).unwrap();
                all.insert(format!("{name}_blocks"), blocks);
                all.insert(format!("{name}_scales"), scales);
            }
        }
        single(dir, all);
    };
    let four_bits = dir(&config, |dir, tensors| in_four_bits(dir, tensors, false));
    let as_numbers = dir(&config, |dir, tensors| in_four_bits(dir, tensors, true));
    let checkpoint = Checkpoint::open(four_bits.path(), None).unwrap();
    assert!(checkpoint.is_quantised() && checkpoint.type_name(Dtype::Bf16) == "mxfp4");
    assert!(checkpoint.weight_bytes(Dtype::F32) < spec.weight_bytes(Dtype::F32) / 2);
    let plain = logits(&Checkpoint::open(as_numbers.path(), None).unwrap(), &spec, Dtype::F32);
    assert_eq!(max_diff(&logits(&Dequantised(&checkpoint), &spec, Dtype::F32), &plain), 0.0);
    // GEMMs with quantised blocks round the activations.
    let diff = max_diff(&logits(&checkpoint, &spec, Dtype::F32), &plain);
    assert!(diff > 0.0 && diff < 0.1, "{diff}");

    let without_scales = dir(&config, |dir, tensors| {
        in_four_bits(dir, tensors, false);
        let file = dir.join("model.safetensors");
        let mut all = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
        all.remove("model.layers.1.mlp.experts.down_proj_scales");
        single(dir, all);
    });
    let message = refusal(without_scales.path());
    assert!(message.contains("down_proj_blocks is stored in parts"), "{message}");
}

/// A checkpoint's dequantised weights.
struct Dequantised<'a>(&'a Checkpoint);

impl WeightSource for Dequantised<'_> {
    fn values(&self, parts: &[TensorShape], dtype: Dtype) -> Result<Values, WeightError> {
        self.0.values(parts, dtype)
    }
}

#[test]
fn quantised_blocks_are_multiplied_without_conversion() {
    for family in ["llama", "qwen3"] {
        let config = config(family);
        let spec = ModelSpec::from_hf(&config).unwrap();
        // One type for all; then another type for values, unquantised in one layer.
        let kinds: [fn(&str) -> GgmlDType; 2] = [
            |_| GgmlDType::Q8_0,
            |name| match name {
                "blk.0.attn_v.weight" => GgmlDType::Q5_1,
                "blk.1.attn_v.weight" => GgmlDType::F16,
                _ => GgmlDType::Q8_0,
            },
        ];
        for kind in kinds {
            let (_dir, path) = gguf(&config, kind, &[]);
            let checkpoint = Checkpoint::open(&path, None).unwrap();
            // GEMMs with quantised blocks also quantise the activations.
            let plain = logits(&Dequantised(&checkpoint), &spec, Dtype::F32);
            let diff = max_diff(&logits(&checkpoint, &spec, Dtype::F32), &plain);
            assert!(diff > 0.0 && diff < 0.1, "{family}: {diff}");
            assert_eq!(checkpoint.type_name(Dtype::F32), "q8_0");
            let bytes = checkpoint.weight_bytes(Dtype::F32);
            assert!(bytes < spec.weight_bytes(Dtype::F32) / 3, "{bytes}");
        }
    }
}

/// The types that candle cannot write have blocks of the same size as one that it can.
#[test]
fn types_that_candle_does_not_know_are_read() {
    let config = config("llama");
    let (_dir, path) = gguf(&config, |_| GgmlDType::Q4_0, &[]);
    let mut bytes = fs::read(&path).unwrap();
    // After the name: the number of dimensions, two dimensions, the type.
    let spec = ModelSpec::from_hf(&config).unwrap();
    let retype = |bytes: &mut Vec<u8>, kind: u32| {
        for name in
            bytes.clone().windows(7).enumerate().filter(|(_, part)| part == b".weight").map(|(at, _)| at + 7)
        {
            if bytes[name..name + 4] == 2u32.to_le_bytes() {
                bytes[name + 20..name + 24].copy_from_slice(&kind.to_le_bytes());
            }
        }
    };
    retype(&mut bytes, 20);
    fs::write(&path, &bytes).unwrap();
    let checkpoint = Checkpoint::open(&path, None).unwrap();
    assert_eq!(checkpoint.type_name(Dtype::F32), "iq4_nl");
    let plain = logits(&Dequantised(&checkpoint), &spec, Dtype::F32);
    let found = logits(&checkpoint, &spec, Dtype::F32);
    let size = plain.iter().flatten().fold(0f32, |most, x| most.max(x.abs()));
    let diff = max_diff(&found, &plain);
    assert!(diff > 0.0 && diff < 0.05 * size, "{diff} of {size}");
    let stock = StockModel::open(&path, None).unwrap_err().to_string();
    assert!(stock.contains("iq4_nl") && stock.contains("runtime=candle reads it"), "{stock}");
    retype(&mut bytes, 16);
    fs::write(&path, &bytes).unwrap();
    assert!(refusal(&path).contains("\"iq2_xxs\" is not supported; f32, f16"), "{}", refusal(&path));
}

#[test]
fn invalid_gguf_is_refused() {
    let config = config("llama");
    let text = |text: &str| Some(Gguf::String(text.to_owned()));
    let plain = |_: &str| GgmlDType::F32;
    let table = [
        (
            vec![("general.architecture", text("gemma"))],
            "general.architecture \"gemma\" is not supported; llama, qwen2",
        ),
        (vec![("general.architecture", None)], "has no general.architecture"),
        (vec![("llama.block_count", None)], "has no llama.block_count"),
        (vec![("llama.block_count", Some(Gguf::U32(3)))], "has no tensor blk.2.attn_norm.weight"),
        (vec![("llama.block_count", Some(Gguf::U32(0)))], "num_hidden_layers is zero"),
        (vec![("llama.expert_count", Some(Gguf::U32(8)))], "num_experts_per_tok is missing"),
        (
            vec![("llama.expert_count", Some(Gguf::U32(8))), ("llama.expert_used_count", Some(Gguf::U32(2)))],
            "has no tensor blk.0.ffn_gate_inp.weight",
        ),
        (vec![("llama.rope.dimension_count", Some(Gguf::U32(16)))], "llama.rope.dimension_count \"16\""),
        (vec![("llama.rope.scaling.type", text("dynamic"))], "rope_scaling \"dynamic\" is not supported"),
        (vec![("llama.rope.scaling.type", text("yarn"))], "factor is missing"),
        (
            vec![("llama.feed_forward_length", Some(Gguf::U32(95)))],
            "blk.0.ffn_gate.weight has shape [96, 64], the model needs [95, 64]",
        ),
    ];
    for (changes, message) in table {
        let (_dir, path) = gguf(&config, plain, &changes);
        let found = refusal(&path);
        assert!(found.contains(message) && found.contains("tiny.gguf"), "{found}, not {message}");
    }
    let (_dir, path) = gguf(&config, plain, &[]);
    let bytes = fs::read(&path).unwrap();
    for (bytes, message) in [
        (&bytes[..bytes.len() - 4000], "ends at byte"),
        (&bytes[..300], "tiny.gguf is not a complete GGUF file"),
        (&b"GGML or something else"[..], "does not begin with GGUF"),
        (&b""[..], "tiny.gguf is not a complete GGUF file"),
    ] {
        fs::write(&path, bytes).unwrap();
        let found = refusal(&path);
        assert!(found.contains(message) && found.contains("is not a complete GGUF file"), "{found}");
    }
}

/// A file with any bytes is opened or refused.
#[test]
fn damaged_headers_never_panic() {
    let (_dir, path) = gguf(&config("llama"), |_| GgmlDType::Q4_0, &[]);
    let whole = fs::read(&path).unwrap();
    // The header is a small part of the file.
    let header = whole.windows(4).position(|part| part == [0, 0, 0x80, 0x3f]).unwrap_or(2000).min(4000);
    for round in 0..3000u64 {
        let dice = |n: u64, below: usize| noise::bits(round, n) as usize % below;
        let mut bytes = whole.clone();
        for change in 0..1 + dice(0, 4) as u64 {
            let at = dice(10 + change, header);
            match dice(20 + change, 3) {
                0 => bytes[at] ^= 1 << dice(30 + change, 8),
                1 => bytes[at..at + 8].copy_from_slice(&noise::bits(round, 40 + change).to_le_bytes()),
                _ => bytes[at..at + 8].fill(if dice(30 + change, 2) == 0 { 0 } else { 0xff }),
            }
        }
        if dice(1, 8) == 0 {
            bytes.truncate(dice(2, bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        let _ = Checkpoint::open(&path, None);
        let _ = StockModel::open(&path, None);
    }
}

#[test]
fn gguf_sizes_beyond_the_file_are_refused_by_both_runtimes() {
    let config = config("llama");
    let (_dir, path) = gguf(&config, |_| GgmlDType::F32, &[]);
    let bytes = fs::read(&path).unwrap();
    let name = b"output_norm.weight";
    // The number of dimensions and the first of them follow the name; the offset follows the type.
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len() + 4;
    let changed = |place: usize, value: u64| {
        let mut changed = bytes.clone();
        changed[place..place + 8].copy_from_slice(&value.to_le_bytes());
        changed
    };
    let table = [
        (changed(at, (1 << 63) + 64), "has shape [9223372036854775872], which is too large for a file"),
        (changed(at, 1 << 62), "has shape [4611686018427387904], which is too large for a file"),
        (changed(at, 1 << 40), "ends at byte"),
        (changed(at + 12, u64::MAX - 8), "ends at byte 18446744073709551615"),
    ];
    for (bytes, message) in table {
        fs::write(&path, bytes).unwrap();
        for found in [refusal(&path), StockModel::open(&path, None).unwrap_err().to_string()] {
            assert!(found.contains(message) && found.contains("is not a complete GGUF file"), "{found}");
        }
    }
    let aligned = [("general.alignment", Some(Gguf::U32(0)))];
    let (_dir, path) = gguf(&config, |_| GgmlDType::F32, &aligned);
    for found in [refusal(&path), StockModel::open(&path, None).unwrap_err().to_string()] {
        assert!(found.contains("tensors are aligned to 0 bytes"), "{found}");
    }
}
