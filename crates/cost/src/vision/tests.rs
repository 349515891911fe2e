use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Dtype, Operator, Shape, Step, built_in::model, cost::Amounts};

fn shape(name: &str) -> Shape {
    Shape::from_hf(&model(name).arch, Dtype::Bf16).unwrap()
}

fn vision(name: &str) -> VisionShape {
    shape(name).vision.unwrap()
}

/// What `FlopCounterMode` of PyTorch counts: matrix products, convolutions and attention.
fn counted(amounts: &Amounts) -> f64 {
    amounts.matmul_flops + amounts.attention_flops
}

/// Counted by transformers 5.22 for models on the device "meta", as `AutoConfig.for_model(model_type, **arch)` describes them:
/// `sum(p.numel() for p in AutoModelForImageTextToText.from_config(config).parameters())`, all and those outside of
/// `model.language_model` and `lm_head`. DeepSeek-OCR is the sum of its published tensors: its SAM and CLIP are those of
/// transformers (95,569,152 and 303,179,776 less the norm at the end of CLIP), with a projector of 2,048 × 1,280.
#[test]
fn parameters_are_those_of_transformers() {
    for (name, decoder, encoders) in [
        ("qwen2_5_vl_3b", 3_085_938_688, 668_684_288),
        ("qwen2_5_vl_7b", 7_615_616_512, 676_550_144),
        ("qwen2_5_vl_tiny", 139_840, 83_616),
        ("got_ocr2", 463_909_888, 96_618_752),
        ("got_ocr2_tiny", 115_392, 81_312),
        ("deepseek_ocr", 2_934_734_080, 401_372_160),
        ("deepseek_ocr2", 2_934_734_080, 454_385_280),
    ] {
        let shape = shape(name);
        let vision = shape.vision.clone().unwrap();
        assert_eq!((shape.parameters(), vision.parameters()), (decoder, encoders), "{name}");
        assert_eq!((shape.weight_bytes, vision.weight_bytes), (2 * decoder, 2 * encoders), "{name}");
        assert_eq!(shape.memory(1, 64, 64).weight_bytes, 2 * (decoder + encoders), "{name}");
        // A step of the decoder reads its own weights.
        assert_eq!(shape.cost(Step::decode(1, 64)).total().parameters, decoder as f64, "{name}");
        let encoded = vision.encoded(&[(1240, 1754), (640, 480)], None);
        let cost = shape.vision_cost(&encoded).unwrap();
        assert_eq!(cost.total().parameters, encoders as f64, "{name}");
        let parts: Amounts = cost.parts.iter().map(|part| part.all).sum();
        assert!((parts.flops() / cost.total().flops() - 1.0).abs() < 1e-12, "{name}");
        let half = shape.clone().quantised(8.0);
        assert_eq!(half.memory(1, 64, 64).weight_bytes, decoder + encoders, "{name}");
        let text = serde_json::to_string(&shape).unwrap();
        assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape, "{name}");
    }
    // The published config.json of Qwen2-VL-7B, flat as Qwen's are.
    let qwen2 = json!({
        "model_type": "qwen2_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152_064, "tie_word_embeddings": false,
        "max_position_embeddings": 32768, "use_sliding_window": false,
        "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16,
            "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2}
    });
    let shape = Shape::from_hf(&qwen2, Dtype::Bf16).unwrap();
    assert_eq!(shape.parameters() + shape.vision.unwrap().parameters(), 8_291_375_616);
}

/// The hub has DeepSeek-OCR 2 with the keys of its own code as well.
#[test]
fn deepseek_ocr2_as_published_is_the_converted_one() {
    let mut published = model("deepseek_ocr").arch;
    published["architectures"] = json!(["DeepseekOCR2ForCausalLM"]);
    published["projector_config"]["input_dim"] = json!(896);
    let widths = published["vision_config"]["width"].as_object_mut().unwrap();
    widths.remove("clip-l-14-224");
    widths.insert("qwen2-0-5b".to_owned(), json!({"dim": 896}));
    assert_eq!(Shape::from_hf(&published, Dtype::Bf16).unwrap(), shape("deepseek_ocr2"));
}

const SIZES: [(u32, u32); 12] = [
    (1240, 1754),
    (640, 480),
    (640, 640),
    (1700, 2200),
    (2000, 300),
    (56, 40),
    (20, 900),
    (4000, 3000),
    (641, 10),
    (3508, 4961),
    (960, 1280),
    (1, 150),
];

/// `Qwen2VLImageProcessorPil().get_number_of_image_patches(height, width)` of transformers 5.22, with its own limits and with the published
/// `min_pixels=3136, max_pixels=12845056`.
#[test]
fn pictures_of_qwen_are_scaled_as_in_transformers() {
    let vision = vision("qwen2_5_vl_7b");
    let published = model("qwen2_5_vl_7b").preprocess;
    let own = [5040, 1564, 2116, 4960, 3124, 24, 128, 4920, 68, 5040, 4920, 100];
    let large = [11_088, 1564, 2116, 19_276, 3124, 24, 128, 61_204, 68, 65_056, 6256, 100];
    for (preprocess, patches) in [(None, own), (published.as_ref(), large)] {
        for (size, patches) in SIZES.into_iter().zip(patches) {
            let encoded = vision.encoded(&[size], preprocess);
            assert_eq!((encoded.patches, encoded.tokens), (patches, patches / 4), "{size:?}");
            assert_eq!((encoded.images, encoded.views), (1, 1));
        }
    }
    // `process(images=[page])["image_grid_thw"]` is [1, 84, 60].
    let page = vision.encoded(&[SIZES[0]], None);
    assert_eq!(page.sizes, [View { count: 1, width: 60 * 14, height: 84 * 14 }]);
    let off = PreprocessConfig { enable: Some(false), ..published.unwrap() };
    assert_eq!(vision.encoded(&[SIZES[0]], Some(&off)), page);
}

/// Views and tokens of DeepSeek-OCR (`get_optimal_tiled_canvas((h, w), (640, 640), 2, 9)` of transformers 5.22, and the rows of tokens
/// of its published code), of DeepSeek-OCR 2 (`DeepseekOcr2ImageProcessorPil()(images=[…])["num_local_patches"]`, and
/// `DeepseekOcr2Processor.replace_image_token`), and views of GOT-OCR 2
/// (`GotOcr2ImageProcessorPil(size=1024)(images=[…], crop_to_patches=True)["num_patches"]`).
#[test]
fn tiles_are_chosen_as_in_transformers() {
    let ocr = [
        (7, 903),
        (1, 273),
        (1, 273),
        (7, 903),
        (8, 983),
        (1, 273),
        (10, 1263),
        (7, 893),
        (10, 1183),
        (7, 903),
        (7, 903),
        (1, 273),
    ];
    let ocr2 = [7, 1, 1, 7, 7, 1, 7, 7, 1, 7, 7, 1];
    let got = [7, 13, 1, 13, 8, 13, 13, 13, 13, 7, 13, 13];
    let (first, second, third) = (vision("deepseek_ocr"), vision("deepseek_ocr2"), vision("got_ocr2"));
    let crop = PreprocessConfig { crop_mode: Some(true), ..PreprocessConfig::default() };
    for (at, size) in SIZES.into_iter().enumerate() {
        let preprocess = model("deepseek_ocr").preprocess;
        for preprocess in [None, preprocess.as_ref()] {
            let encoded = first.encoded(&[size], preprocess);
            assert_eq!((encoded.views, encoded.tokens), ocr[at], "{size:?}");
            assert_eq!(encoded.patches, 4096 + (encoded.views - 1) * 1600);
        }
        let encoded = second.encoded(&[size], model("deepseek_ocr2").preprocess.as_ref());
        assert_eq!((encoded.views, encoded.tokens), (ocr2[at], 257 + (ocr2[at] - 1) * 144), "{size:?}");
        let encoded = third.encoded(&[size], Some(&crop));
        assert_eq!((encoded.views, encoded.tokens), (got[at], got[at] * 256), "{size:?}");
        assert_eq!(third.encoded(&[size], None).tokens, 256);
    }
    let all = first.encoded(&SIZES[..2], None);
    assert_eq!((all.images, all.views, all.tokens), (2, 8, 903 + 273));
    assert_eq!(all.tokens_of_images, [903, 273]);
    let tile = View { count: 6, width: 640, height: 640 };
    assert_eq!(all.sizes, [tile, View { count: 2, width: 1024, height: 1024 }]);
    // Tiny, Small, Base and Large of DeepSeek-OCR, without tiles: 64, 100, 256 and 400 tokens of the image.
    for (side, tokens) in [(512, 64 + 8), (640, 100 + 10), (1024, 256 + 16), (1280, 400 + 20)] {
        let whole = PreprocessConfig {
            base_size: Some(side),
            image_size: Some(side),
            crop_mode: Some(false),
            ..PreprocessConfig::default()
        };
        assert_eq!(first.encoded(&[SIZES[0]], Some(&whole)).tokens, tokens + 1);
    }
}

/// `torch.utils.flop_counter.FlopCounterMode` over `model.visual` of Qwen, and over `get_image_features` of the others, of the shapes
/// of `conf/model` on the device "meta" (PyTorch 2.15, transformers 5.22).
#[test]
fn flops_are_those_that_pytorch_counts() {
    let view = |width, height| View { count: 1, width, height };
    let (page, small) = (view(1232, 1764), view(252, 364));
    for (name, views, flops) in [
        ("qwen2_5_vl_tiny", vec![page], 17_251_491_840.0),
        ("qwen2_5_vl_tiny", vec![small], 91_490_304.0),
        ("qwen2_5_vl_tiny", vec![view(112, 112)], 9_273_344.0),
        ("qwen2_5_vl_7b", vec![page], 16_868_955_586_560.0),
        ("qwen2_5_vl_7b", vec![small], 609_678_704_640.0),
        ("qwen2_5_vl_3b", vec![page], 16_825_355_796_480.0),
        ("got_ocr2_tiny", vec![view(256, 256)], 34_935_808.0),
        ("got_ocr2", vec![view(1024, 1024)], 977_446_043_648.0),
    ] {
        assert_eq!(counted(&vision(name).cost_of(&views).total()), flops, "{name} {views:?}");
    }
}

/// The image encoders of transformers over one view: `DeepseekOcr2SamVisionEncoder` with 512 and 1,024 channels, and `CLIPVisionModel`
/// without its embedding of pixels. The projector is one matrix.
#[test]
fn flops_of_deepseek_ocr_are_those_of_its_parts() {
    for (side, sam, clip, tokens) in [
        (1024, 976_909_172_736.0, 161_715_683_328.0, 256.0),
        (640, 325_620_793_344.0, 62_004_756_480.0, 100.0),
    ] {
        let cost = vision("deepseek_ocr").cost_of(&[View { count: 1, width: side, height: side }]);
        let parts: Vec<(&str, f64)> = cost.parts.iter().map(|part| (part.part, counted(&part.all))).collect();
        let projector = 2.0 * tokens * 2048.0 * 1280.0;
        assert_eq!(parts, [("sam", sam), ("clip", clip), ("projector", projector)], "{side}");
    }
}

/// PyTorch counts every pair of positions in the second encoder of DeepSeek-OCR 2; we count those that its mask leaves.
#[test]
fn queries_attend_to_patches_and_earlier_queries() {
    let vision = vision("deepseek_ocr2");
    for (page, flops) in [((640, 480), 1_366_157_361_152.0), ((1240, 1754), 5_734_290_096_128.0)] {
        let encoded = vision.encoded(&[page], None);
        let masked: f64 = encoded
            .sizes
            .iter()
            .map(|view| {
                let n = ((view.width / 64) * (view.height / 64)) as f64;
                view.count as f64 * (4.0 * n * n - (2.0 * n * n + n * (n + 1.0) / 2.0))
            })
            .sum();
        let counted = counted(&vision.cost_of(&encoded.sizes).total());
        assert_eq!(counted + 24.0 * 4.0 * masked * 896.0, flops);
        assert!((counted / flops - 1.0).abs() < 0.02, "{counted} {flops}");
    }
}

#[test]
fn operators_are_in_order_and_read_weights_once() {
    for (name, expected) in
        [("qwen2_5_vl_7b", 10), ("got_ocr2", 9), ("deepseek_ocr", 9), ("deepseek_ocr2", 11)]
    {
        let shape = shape(name);
        let vision = shape.vision.clone().unwrap();
        let one = vision.encoded(&[(1240, 1754)], None);
        let cost = shape.vision_cost(&one).unwrap();
        let order: Vec<Operator> = cost.operators.iter().map(|cost| cost.operator).collect();
        assert!(order.is_sorted() && order.contains(&Operator::Projector), "{name}: {order:?}");
        assert_eq!(order.len(), expected, "{name}: {order:?}");
        let four = shape.vision_cost(&one.of_batch(4)).unwrap();
        let (one, four) = (cost.total(), four.total());
        assert!((four.flops() / one.flops() - 4.0).abs() < 1e-9, "{name}");
        assert_eq!(four.weight_bytes, one.weight_bytes, "{name}");
        // All but the tables and matrices that are not used.
        let read = one.weight_bytes / vision.weight_bytes as f64;
        assert!((0.99..=1.0 + 1e-9).contains(&read), "{name}: {read}");
    }
    let none = shape("qwen2_5_vl_7b").vision_cost(&Encoded::default()).unwrap();
    assert_eq!(none.total(), Amounts::default());
    assert_eq!(shape("qwen2_5_7b").vision_cost(&Encoded::default()), None);
}

#[test]
fn windows_are_those_of_the_layers() {
    let groups = |name: &str| vision(name).encoders.remove(0).layers;
    let group = |count, window| EncoderLayers { count, window };
    assert_eq!(groups("qwen2_5_vl_7b"), [group(28, Some(8)), group(4, None)]);
    assert_eq!(groups("deepseek_ocr"), [group(8, Some(14)), group(4, None)]);
    // Ragged windows of 8 patches: 60 columns are seven and a half, 84 rows ten and a half.
    let cost = vision("qwen2_5_vl_7b").cost_of(&[View { count: 1, width: 60 * 14, height: 84 * 14 }]);
    let windowed = (7.0 * 64.0 + 16.0) * (10.0 * 64.0 + 16.0);
    let pairs = 28.0 * windowed + 4.0 * 5040.0 * 5040.0;
    assert_eq!(cost.operator(Operator::Attention).unwrap().all.attention_flops, 4.0 * pairs * 1280.0);
}

#[test]
fn decoders_of_models_with_vision() {
    // The model card has 570 million active parameters, without the table of which a token reads one row.
    let ocr = shape("deepseek_ocr");
    assert_eq!(ocr.active_parameters() - ocr.vocab * ocr.hidden, 574_127_360);
    assert_eq!((ocr.latent, ocr.head_dim, ocr.layer_count()), (None, 128, 12));
    let dense: Vec<(u64, bool)> = ocr.layers.iter().map(|group| (group.count, group.has_experts)).collect();
    assert_eq!(dense, [(1, false), (11, true)]);
    // Newer configs state beside the parts whether the head is the embedding.
    let mut arch = model("got_ocr2").arch;
    arch["text_config"].as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(Shape::from_hf(&arch, Dtype::Bf16).unwrap().tied_embeddings);
    // An encoder that is not known is left out, not guessed.
    for (model_type, key) in [("deepseek_vl_hybrid", "text_config"), ("deepseek_vl_v2", "language_config")] {
        let mut text = model("llama3_2_1b").arch;
        text["model_type"] = json!("llama");
        let config = json!({"model_type": model_type, key: text, "vision_config": {"width": 1152}});
        assert_eq!(Shape::from_hf(&config, Dtype::Bf16).unwrap().vision, None);
    }
}

#[test]
fn errors_name_the_key() {
    for (name, pointer, value, expected) in [
        ("qwen2_5_vl_7b", "/vision_config", json!(3), "vision_config must be an object, not 3"),
        ("qwen2_5_vl_7b", "/vision_config/depth", json!("x"), "depth must be a positive integer"),
        ("qwen2_5_vl_7b", "/vision_config/depth", json!(1u64 << 40), "depth"),
        (
            "qwen2_5_vl_7b",
            "/vision_config/num_heads",
            json!(7),
            "hidden_size 1280 is not divisible by num_heads 7",
        ),
        ("qwen2_5_vl_7b", "/vision_config/window_size", json!(20), "window_size / patch_size"),
        ("got_ocr2", "/vision_config/patch_size", json!(0), "patch_size is zero"),
        ("got_ocr2", "/vision_config/mlp_dim", json!(u32::MAX), "mlp_dim 4294967295 is too large"),
        ("deepseek_ocr", "/vision_config/width/sam_vit_b/width", Value::Null, "width is missing"),
        (
            "deepseek_ocr2",
            "/text_config/mlp_layer_types",
            json!(["dense"]),
            "mlp_layer_types must have 12 items",
        ),
    ] {
        let mut arch = model(name).arch;
        *arch.pointer_mut(pointer).unwrap() = value;
        let error = Shape::from_hf(&arch, Dtype::Bf16).unwrap_err().to_string();
        assert!(error.contains(expected), "{pointer}: {error}");
    }
}

/// The paths of all values below `value`.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(keys) => {
            keys.iter().for_each(|(key, value)| pointers(value, &format!("{at}/{key}"), found))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| pointers(value, &format!("{at}/{i}"), found));
        }
        _ => {}
    }
}

fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<u64>().prop_map(Value::from),
        (0u64..100_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!([])),
        Just(json!([1, "x", u64::MAX])),
        Just(json!({})),
        "[a-z]{0,4}".prop_map(Value::from),
    ]
}

proptest! {
    #[test]
    fn arbitrary_configs_and_recordings_never_panic(
        base in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), replacement()), 1..4),
        page in (1u32.., 1u32..),
    ) {
        let name = ["qwen2_5_vl_tiny", "got_ocr2", "deepseek_ocr", "deepseek_ocr2"][base];
        let arch = model(name).arch;
        let recorded = serde_json::to_value(vision(name)).unwrap();
        let changed = |mut value: Value| {
            for (at, new) in &changes {
                let mut found = Vec::new();
                pointers(&value, "", &mut found);
                *value.pointer_mut(&found[at.index(found.len())]).unwrap() = new.clone();
            }
            value
        };
        let read = Shape::from_hf(&changed(arch), Dtype::F32).ok().and_then(|shape| shape.vision);
        let replayed = serde_json::from_value::<VisionShape>(changed(recorded)).ok();
        for vision in read.into_iter().chain(replayed) {
            let encoded = vision.encoded(&[page, (1, 1)], None).of_batch(3);
            let total = vision.cost_of(&encoded.sizes).total();
            prop_assert!(total.flops() >= 0.0 && total.bytes() >= 0.0, "{total:?}");
            vision.parameters();
        }
    }
}
