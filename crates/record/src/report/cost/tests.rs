use super::*;
use llmprof_analysis::peaks::{GpuPeaks, MemoryBasis, peaks};
use llmprof_config::{built_in, compose};
use llmprof_event::{GivenPeaks, GpuInfo};

fn query(overrides: &[&str], gpu: Option<&str>) -> CostQuery {
    let overrides: Vec<String> = overrides.iter().map(|text| (*text).to_owned()).collect();
    let config = compose(&built_in(), &overrides).unwrap().config;
    let shape = Shape::from_hf(&config.model.arch, config.model.nominal_dtype()).unwrap();
    CostQuery {
        model: config.model.name.clone(),
        batch: 1,
        prompt_tokens: 2048,
        images: Vec::new(),
        preprocess: config.model.preprocess.clone(),
        output_tokens: 0,
        gpu: gpu.map(|name| GpuPeaks::named(name).unwrap().into()),
        peaks: peaks(gpu, &shape.dtype, GivenPeaks::default()),
        narrow_flops: None,
        shape,
    }
}

#[test]
fn a_7b_on_an_h200_matches_the_estimate_by_hand() {
    let estimate = CostEstimate::new(query(&["model=qwen2_5_7b", "model.dtype=bf16"], Some("h200")));
    let json = estimate.json();
    // 14.14 GB of weights and 117 MB of cache at 4.8 TB/s; at the measured 4.5 TB/s, 3.17 ms.
    let tpot = json["lower_bounds"]["tpot_ms"].as_f64().unwrap();
    assert!((tpot - 2.9706).abs() < 0.001, "{tpot}");
    let tpot = json["lower_bounds_as_measured"]["tpot_ms"].as_f64().unwrap();
    assert!((tpot - 3.17).abs() < 0.01, "{tpot}");
    // 27.6 TFLOP at 989 TFLOP/s.
    let ttft = json["lower_bounds"]["ttft_ms"].as_f64().unwrap();
    assert!((ttft - 27.9).abs() < 0.1, "{ttft}");
    assert_eq!(json["lower_bounds"]["tpot_bound"], "memory");
    assert_eq!(json["lower_bounds"]["ttft_bound"], "compute");
    assert_eq!(json["parameters"], 7_615_616_512u64);
    assert_eq!(json["fits"], true);
    assert_eq!(json["largest_context"], 131_072);
    assert_eq!(json["decode"]["operators"].as_array().unwrap().len(), 12);
    let text = estimate.text();
    for expected in [
        "7,615,616,512 parameters",
        "gate_up",
        "Lower bounds: TTFT 27.9 ms (compute), TPOT 2.97 ms",
        "4.50 TB/s",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(estimate.markdown().contains("| operator | calls |"));
}

#[test]
fn without_a_gpu_the_known_ones_are_listed() {
    let query = query(&["model=llama3_1_8b"], None);
    let estimate = CostEstimate::new(query.clone());
    assert!(estimate.text().contains("pass --gpu: ") && estimate.text().contains("h100_pcie"));
    assert_eq!(estimate.json()["lower_bounds"], Value::Null);
    let given_peaks = GivenPeaks { flops: Some(1e12), bytes_per_s: Some(1e11) };
    let peaks = peaks(None, "f32", given_peaks);
    let given = CostEstimate::new(CostQuery { peaks, ..query });
    assert!(given.text().contains("(given: hardware.peaks)"));
}

#[test]
fn positions_beyond_the_models_maximum_are_reported() {
    let text = |prompt_tokens| {
        CostEstimate::new(CostQuery { prompt_tokens, ..query(&["model=llama3_1_8b"], None) }).text()
    };
    let expected = "200,000 positions exceed the model's maximum of 131,072";
    assert!(text(200_000).contains(expected), "{}", text(200_000));
    assert!(!text(2000).contains("exceed"));
}

#[test]
fn there_is_one_lower_bound() {
    let mut query = query(&["model=smollm2_135m", "model.dtype=bf16"], Some("h100"));
    query.prompt_tokens = 16_384;
    let text = CostEstimate::new(query).text();
    assert!(text.contains("unfused") && !text.contains("at least"), "{text}");
    // The rows add up to the total, which is not below the bound.
    let ms = |line: &str| -> f64 {
        let cells: Vec<&str> = line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
        let cell = cells[cells.len() - 2];
        let (number, unit) = cell.split_once(' ').unwrap();
        number.parse::<f64>().unwrap() * if unit == "µs" { 1e-3 } else { 1.0 }
    };
    let prefill: Vec<&str> =
        text.split("Prefill of").nth(1).unwrap().split("Decode step").next().unwrap().lines().collect();
    let total = prefill.iter().position(|line| line.trim_start().starts_with("total")).unwrap();
    let sum: f64 = prefill[2..total].iter().map(|line| ms(line)).sum();
    assert!((sum / ms(prefill[total]) - 1.0).abs() < 0.02, "{text}");
}

#[test]
fn an_h200_holds_a_70b_in_bf16() {
    let mut query = query(&["model=llama3_1_70b", "model.dtype=bf16"], Some("h200"));
    query.prompt_tokens = 512;
    let estimate = CostEstimate::new(query);
    assert_eq!(estimate.json()["fits"], true);
    assert_eq!(estimate.json()["gpu_memory_bytes"], 150_754_820_096u64);
    assert_eq!(estimate.json()["gpu_memory_basis"], "nvidia_smi");
}

#[test]
fn the_memory_of_an_installed_gpu_comes_from_its_driver() {
    let info =
        GpuInfo { name: "NVIDIA A40".to_owned(), mem_total_bytes: Some(49_140 << 20), ..GpuInfo::default() };
    let gpu = CostGpu::reported(&info);
    assert_eq!(gpu, CostGpu { name: "a40".to_owned(), memory: Some((49_140 << 20, MemoryBasis::Driver)) });
}

#[test]
fn a_model_that_does_not_fit_is_reported() {
    let query = query(&["model=llama3_1_70b", "model.dtype=bf16"], Some("h100"));
    let estimate = CostEstimate::new(query.clone());
    assert_eq!(estimate.json()["fits"], false);
    assert_eq!(estimate.json()["largest_batch"], Value::Null);
    let expected = "Does not fit into 85.5 GB of GPU memory (h100, as nvidia-smi shows it for such a GPU): no batch with";
    assert!(estimate.text().contains(expected), "{}", estimate.text());
    let small = CostEstimate::new(CostQuery { shape: query.shape.clone().quantised(4.5), ..query });
    assert_eq!(small.json()["fits"], true);
    assert!(small.text().contains("(4.50 bits per weight)"), "{}", small.text());
}

#[test]
fn images_are_encoded_before_the_prefill() {
    let mut query = query(&["model=qwen2_5_vl_7b"], Some("h200"));
    query.images = vec![(1240, 1754)];
    query.prompt_tokens = 100;
    let estimate = CostEstimate::new(query.clone());
    let (json, text) = (estimate.json(), estimate.text());
    assert_eq!(json["vision"]["encoded"]["tokens"], 2772);
    assert_eq!(json["workload"]["prompt_tokens"], 2872);
    assert_eq!(json["workload"]["image_tokens"], 2772);
    assert_eq!(json["parameters"], 7_615_616_512u64);
    assert_eq!(json["vision"]["parameters"], 676_550_144);
    assert_eq!(json["memory"]["weight_bytes"], 2 * 8_292_166_656u64);
    // 17 TFLOP at 989 TFLOP/s, before the prefill.
    let ms = |key: &str| json["lower_bounds"][key].as_f64().unwrap();
    assert!((ms("vision_ms") - 17.3).abs() < 0.3, "{}", ms("vision_ms"));
    let without =
        CostEstimate::new(CostQuery { images: Vec::new(), prompt_tokens: 2872, ..query.clone() }).json();
    assert_eq!(without["vision"], Value::Null);
    let prefill = without["lower_bounds"]["ttft_ms"].as_f64().unwrap();
    assert!((ms("ttft_ms") - ms("vision_ms") - prefill).abs() < 1e-9);
    for expected in [
        "7,615,616,512 parameters, 676,550,144 more in the vision encoder, 16.6 GB of weights",
        "Batch 1, 100 prompt tokens of text and 2772 of images",
        "Vision, 1 picture of 1240 × 1754, 1 view, 11,088 patches, 2,772 tokens: ",
        "projector",
        "Prefill of 2872 tokens",
        "Lower bounds: vision 17.",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("Vision by part"), "one encoder: {text}");
    query.images.push((640, 480));
    query.batch = 3;
    let text = CostEstimate::new(query).text();
    let expected =
        "Vision, 2 pictures for each of 3 sequences, 2 views, 12,652 patches, 3,163 tokens (2,772, 391): ";
    assert!(text.contains(expected), "{text}");
    let mut query = self::query(&["model=deepseek_ocr"], None);
    query.images = vec![(1240, 1754)];
    let text = CostEstimate::new(query).text();
    assert!(text.contains("\nVision by part: sam 2.95 TFLOP and 95,569,152 parameters, clip "), "{text}");
}
