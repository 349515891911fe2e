//! Composition of the built-in `conf/` and of small trees, as a command sees it.

use std::path::Path;

use llmprof::config::{
    ComposeContext, Composed, ConfTree, ConfigError, Dtype, DtypeChoice, Override, Probe, Runtime, ThemeName,
    Weights, built_in, compose, compose_in, over_built_in,
};
use llmprof::model::{ModelSpec, Shape, spec::RopeScaling};
use proptest::prelude::*;

fn context() -> ComposeContext {
    ComposeContext {
        now: "2024-02-03T04:05:06[UTC]".parse().unwrap(),
        cwd: "/here".into(),
        job_name: "app".into(),
        job: None,
    }
}

fn composed(overrides: &[&str]) -> Result<Composed, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
    compose_in(&built_in(), &overrides, &context())
}

fn refusal(overrides: &[&str]) -> String {
    match composed(overrides) {
        Ok(_) => panic!("{overrides:?} was accepted"),
        Err(error) => error.to_string(),
    }
}

/// The built-in tree with replaced or added files.
fn tree_with(files: &[(&str, &str)]) -> (tempfile::TempDir, ConfTree) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let tree = over_built_in(dir.path()).unwrap();
    (dir, tree)
}

#[test]
fn defaults() {
    let run = composed(&[]).unwrap();
    assert_eq!(run.config.experiment, "baseline");
    assert_eq!(run.config.model.name, "smollm2_135m");
    assert_eq!(run.config.model.dtype, DtypeChoice::Auto);
    assert_eq!(run.config.runtime.name, Runtime::Candle);
    assert_eq!(run.config.telemetry.probe, Probe::Auto);
    assert_eq!(run.config.output.tui.theme, ThemeName::Dark);
    assert_eq!(run.config.hydra.run.dir, "runs/baseline/smollm2_135m/2024-02-03_04-05-06");
    assert_eq!(run.config.hydra.job.name, "baseline");
    assert_eq!(run.choices["model"], "smollm2_135m");
    assert_eq!(run.choices["hydra/launcher"], "basic");
    assert_eq!(run.choices.len(), 10);
    let again =
        compose(&ConfTree::from_files([("config.yaml", run.to_yaml().as_str())]), Override::NONE).unwrap();
    assert_eq!(again.tree, run.tree);
    assert!(run.tree.get("hydra").is_none(), "Hydra's own configuration is not the job's");
}

#[test]
fn packages_files_and_defaults_of_a_composition() {
    let run = composed(&["experiment=${model.name}", "infer=long", "hydra.job.name=j"]).unwrap();
    assert_eq!(run.package("experiment").unwrap(), "smollm2_135m");
    assert_eq!(run.composition.package("experiment").unwrap(), "${model.name}");
    assert_eq!(run.package("model.arch.vocab_size").unwrap(), 49152);
    let message = run.package("model.arhc").unwrap_err().to_string();
    assert!(message.contains("did you mean model.arch?"), "{message}");

    let [(_, config), (_, hydra), (_, overrides)] = run.hydra_files();
    assert!(config.contains("experiment: ${model.name}\n") && !config.contains("hydra:"), "{config}");
    assert!(hydra.starts_with("hydra:\n") && hydra.contains("infer: long\n"), "{hydra}");
    assert_eq!(overrides, "- experiment=${model.name}\n- infer=long\n");
    assert_eq!(run.overrides.len(), 3);

    let infer = run.composition.defaults.iter().find(|item| item.config == "infer/long").unwrap();
    assert_eq!((infer.package.as_str(), infer.parent.as_deref()), ("infer", Some("config")));
    assert_eq!(infer.origin.to_string(), "the override \"infer=long\"");
    let own = run.composition.defaults.last().unwrap();
    assert_eq!((own.config.as_str(), own.is_self), ("config", true));
    assert_eq!(run.composition.search_path, ["the files built into the program"]);
}

#[test]
fn every_option_of_every_group_composes() {
    let tree = built_in();
    let groups = tree.groups();
    assert_eq!(
        groups,
        [
            "dataset",
            "hardware",
            "hydra",
            "hydra/launcher",
            "infer",
            "model",
            "output",
            "profiling",
            "runtime",
            "telemetry"
        ]
    );
    // The number of files in the repository, to detect files that are not built in.
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    for group in groups {
        let files = std::fs::read_dir(conf.join(&group)).unwrap().flatten();
        let files = files.filter(|entry| entry.path().is_file()).count();
        assert_eq!(tree.options(&group).len(), files, "{group}");
        for option in tree.options(&group) {
            let run = composed(&[&format!("{group}={option}")])
                .unwrap_or_else(|error| panic!("{group}={option}: {error}"));
            assert_eq!(run.choices[&group], option);
        }
    }
}

/// The values of the published config.json of each model (`hub`) that the parameter count does not verify: rope_theta,
/// rms_norm_eps, max_position_embeddings, tie_word_embeddings, head_dim, the RoPE scaling (see [`scaling_text`]) and the
/// sliding window.
#[test]
fn shapes_equal_the_published_ones() {
    const YARN: &str = "yarn 32, 32 to 1, from 4096, by 1.347";
    struct Published(&'static str, &'static str, f64, f64, usize, bool, usize, &'static str, Option<usize>);
    let table = [
        Published("smollm2_135m", "HuggingFaceTB/SmolLM2-135M", 1e5, 1e-5, 8192, true, 64, "", None),
        Published("smollm2_360m", "HuggingFaceTB/SmolLM2-360M", 1e5, 1e-5, 8192, true, 64, "", None),
        Published("smollm2_1_7b", "HuggingFaceTB/SmolLM2-1.7B", 1.3e5, 1e-5, 8192, true, 64, "", None),
        Published("qwen2_5_0_5b", "Qwen/Qwen2.5-0.5B", 1e6, 1e-6, 32768, true, 64, "", None),
        Published("qwen2_5_1_5b", "Qwen/Qwen2.5-1.5B", 1e6, 1e-6, 131072, true, 128, "", None),
        Published("qwen2_5_7b", "Qwen/Qwen2.5-7B", 1e6, 1e-6, 131072, false, 128, "", None),
        Published("qwen2_5_14b", "Qwen/Qwen2.5-14B", 1e6, 1e-5, 131072, false, 128, "", None),
        Published("qwen2_5_32b", "Qwen/Qwen2.5-32B", 1e6, 1e-5, 131072, false, 128, "", None),
        Published("qwen2_5_72b", "Qwen/Qwen2.5-72B", 1e6, 1e-5, 131072, false, 128, "", None),
        Published("qwen3_0_6b", "Qwen/Qwen3-0.6B", 1e6, 1e-6, 40960, true, 128, "", None),
        Published("qwen3_4b", "Qwen/Qwen3-4B", 1e6, 1e-6, 40960, true, 128, "", None),
        Published("qwen3_8b", "Qwen/Qwen3-8B", 1e6, 1e-6, 40960, false, 128, "", None),
        Published("qwen3_32b", "Qwen/Qwen3-32B", 1e6, 1e-6, 40960, false, 128, "", None),
        Published("qwen3_30b_a3b", "Qwen/Qwen3-30B-A3B", 1e6, 1e-6, 40960, false, 128, "", None),
        Published("qwen1_5_moe_a2_7b", "Qwen/Qwen1.5-MoE-A2.7B-Chat", 1e6, 1e-6, 8192, false, 128, "", None),
        Published(
            "mixtral_8x7b",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            1e6,
            1e-5,
            32768,
            false,
            128,
            "",
            None,
        ),
        Published(
            "llama3_1_8b",
            "meta-llama/Llama-3.1-8B",
            5e5,
            1e-5,
            131072,
            false,
            128,
            "llama3 8, 1 to 4, from 8192",
            None,
        ),
        Published(
            "llama3_1_70b",
            "meta-llama/Llama-3.1-70B",
            5e5,
            1e-5,
            131072,
            false,
            128,
            "llama3 8, 1 to 4, from 8192",
            None,
        ),
        Published(
            "llama3_2_1b",
            "meta-llama/Llama-3.2-1B",
            5e5,
            1e-5,
            131072,
            true,
            64,
            "llama3 32, 1 to 4, from 8192",
            None,
        ),
        Published("mistral_7b", "mistralai/Mistral-7B-v0.1", 1e4, 1e-5, 32768, false, 128, "", Some(4096)),
        Published(
            "tinyllama_1_1b",
            "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
            1e4,
            1e-5,
            2048,
            false,
            64,
            "",
            None,
        ),
        Published("gemma2_2b", "unsloth/gemma-2-2b", 1e4, 1e-6, 8192, true, 256, "", Some(4096)),
        Published("gemma3_1b", "unsloth/gemma-3-1b-pt", 1e6, 1e-6, 32768, true, 256, "", Some(512)),
        Published("gemma3_4b", "unsloth/gemma-3-4b-pt", 1e6, 1e-6, 131072, true, 256, "linear 8", Some(1024)),
        Published(
            "phi3_5_mini",
            "microsoft/Phi-3.5-mini-instruct",
            1e4,
            1e-5,
            131072,
            false,
            96,
            "longrope 1.00 to 2.84 and 1.08 to 64.84, from 4096, by 1.190",
            Some(262_144),
        ),
        Published(
            "seed_oss_36b",
            "ByteDance-Seed/Seed-OSS-36B-Instruct",
            1e7,
            1e-6,
            524_288,
            false,
            128,
            "",
            None,
        ),
        Published("gpt_oss_20b", "openai/gpt-oss-20b", 1.5e5, 1e-5, 131072, false, 64, YARN, Some(128)),
        Published("gpt_oss_120b", "openai/gpt-oss-120b", 1.5e5, 1e-5, 131072, false, 64, YARN, Some(128)),
    ];
    // The shape of `local` comes from its weights.
    assert_eq!(built_in().options("model").len(), table.len() + WITH_VISION.len() + 1);
    for Published(name, hub, theta, eps, positions, tied, head_dim, scaling, window) in table {
        let model = composed(&[&format!("model={name}")]).unwrap().config.model;
        assert_eq!(model.hub.as_deref(), Some(hub));
        let spec = ModelSpec::from_hf(&model.arch).unwrap();
        let found = (spec.rope_theta, spec.rms_eps, spec.max_positions, spec.tied_embeddings, spec.head_dim);
        assert_eq!(found, (theta, eps, positions, tied, head_dim), "{name}");
        assert_eq!(scaling_text(spec.rope_scaling.as_ref()), scaling, "{name}");
        assert_eq!(spec.sliding_window, window, "{name}");
    }
}

/// The vision-language models: repository, and parameters of decoder and vision encoders together as transformers
/// counts them. The engine does not run them; reduced shapes have no repository.
const WITH_VISION: [(&str, Option<&str>, u64); 7] = [
    ("qwen2_5_vl_3b", Some("Qwen/Qwen2.5-VL-3B-Instruct"), 3_754_622_976),
    ("qwen2_5_vl_7b", Some("Qwen/Qwen2.5-VL-7B-Instruct"), 8_292_166_656),
    ("qwen2_5_vl_tiny", None, 223_456),
    ("got_ocr2", Some("stepfun-ai/GOT-OCR-2.0-hf"), 560_528_640),
    ("got_ocr2_tiny", None, 196_704),
    ("deepseek_ocr", Some("deepseek-ai/DeepSeek-OCR"), 3_336_106_240),
    ("deepseek_ocr2", Some("deepseek-community/DeepSeek-OCR-2"), 3_389_119_360),
];

#[test]
fn models_with_vision_have_the_published_parameter_counts() {
    for (name, hub, published) in WITH_VISION {
        let model = composed(&[&format!("model={name}")]).unwrap().config.model;
        assert_eq!((model.name.as_str(), model.hub.as_deref()), (name, hub));
        let shape = Shape::from_hf(&model.arch, model.nominal_dtype()).unwrap();
        let vision = shape.vision.as_ref().unwrap();
        assert_eq!(shape.parameters() + vision.parameters(), published, "{name}");
        let error = ModelSpec::from_hf(&model.arch).unwrap_err().to_string();
        assert!(error.contains("`llmprof-tui cost` estimates it"), "{error}");
    }
}

#[test]
fn preprocessing_has_the_keys_of_published_harnesses() {
    let run = composed(&[
        "model=deepseek_ocr",
        "model.preprocess.image_size=768",
        "+model.preprocess.max_pixels=1000",
    ])
    .unwrap();
    let preprocess = run.config.model.preprocess.unwrap();
    assert_eq!((preprocess.base_size, preprocess.image_size), (Some(1024), Some(768)));
    assert_eq!((preprocess.crop_mode, preprocess.max_pixels), (Some(true), Some(1000)));
    let message = refusal(&["model=deepseek_ocr", "model.preprocess.base_size=0"]);
    assert!(message.contains("model.preprocess.base_size: got 0, expected null or 1 to 16384"), "{message}");
    let message = refusal(&["model=deepseek_ocr", "+model.preprocess.size=3"]);
    assert!(message.contains("model.preprocess.size"), "{message}");
    // Written by hand for any model.
    let added = "+model.preprocess={enable: true, base_size: 1024, image_size: 640, crop_mode: true, patch_size: 16, \
                 downsample_ratio: 4}";
    let text_only = composed(&["model=qwen2_5_7b", added]).unwrap().config.model.preprocess.unwrap();
    assert_eq!(text_only.downsample_ratio, Some(4));
}

/// A short description of a RoPE scaling.
fn scaling_text(scaling: Option<&RopeScaling>) -> String {
    let ends = |list: &[f64]| format!("{:.2} to {:.2}", list[0], list[list.len() - 1]);
    match scaling {
        None => String::new(),
        Some(RopeScaling::Linear { factor }) => format!("linear {factor}"),
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions }) => {
            format!("llama3 {factor}, {low_freq_factor} to {high_freq_factor}, from {original_max_positions}")
        }
        Some(RopeScaling::LongRope { short, long, original_max_positions, attention_factor }) => {
            let (short, long) = (ends(short), ends(long));
            format!("longrope {short} and {long}, from {original_max_positions}, by {attention_factor:.3}")
        }
        Some(RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_max_positions,
            truncate,
            attention_factor,
        }) => {
            let whole = if *truncate { ", whole" } else { "" };
            format!(
                "yarn {factor}, {beta_fast} to {beta_slow}{whole}, from {original_max_positions}, by {attention_factor:.3}"
            )
        }
    }
}

#[test]
fn built_in_files_equal_those_of_the_repository() {
    let compiled = built_in();
    let on_disk = over_built_in(Path::new(env!("CARGO_MANIFEST_DIR")).join("conf")).unwrap();
    assert_eq!(compiled.groups(), on_disk.groups());
    for group in compiled.groups() {
        assert_eq!(compiled.options(&group), on_disk.options(&group));
    }
}

/// The parameter count of a decoder with this shape, computed independently of `ModelSpec`.
fn parameters(arch: &serde_json::Value) -> u64 {
    let number = |key: &str| arch[key].as_u64();
    let hidden = number("hidden_size").unwrap();
    let heads = number("num_attention_heads").unwrap();
    let kv_heads = number("num_key_value_heads").unwrap();
    let head_dim = number("head_dim").unwrap_or(hidden / heads);
    let attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim;
    let extra = match arch["model_type"].as_str().unwrap() {
        "qwen2" | "qwen2_moe" | "seed_oss" => (heads + 2 * kv_heads) * head_dim,
        "qwen3" | "qwen3_moe" => 2 * head_dim,
        // Norms after attention and MLP, and norms of the heads.
        "gemma2" => 2 * hidden,
        "gemma3_text" => 2 * hidden + 2 * head_dim,
        // Biases of all matrices, and attention sinks.
        "gpt_oss" => {
            let wide = number("intermediate_size").unwrap();
            let experts = number("num_local_experts").unwrap();
            (heads + 2 * kv_heads) * head_dim + hidden + heads + experts * (1 + 2 * wide + hidden)
        }
        _ => 0,
    };
    let intermediate = number("moe_intermediate_size").or(number("intermediate_size")).unwrap();
    let mlp = match number("num_experts").or(number("num_local_experts")) {
        Some(experts) => {
            let shared =
                number("shared_expert_intermediate_size").map_or(0, |wide| 3 * hidden * wide + hidden);
            experts * (3 * hidden * intermediate + hidden) + shared
        }
        None => 3 * hidden * intermediate,
    };
    let layer = attention + extra + mlp + 2 * hidden;
    let embeddings = if arch["tie_word_embeddings"] == true { 1 } else { 2 };
    layer * number("num_hidden_layers").unwrap()
        + hidden
        + embeddings * hidden * number("vocab_size").unwrap()
}

#[test]
fn shapes_have_the_published_parameter_counts() {
    let table = [
        ("smollm2_135m", 134_515_008),
        ("smollm2_360m", 361_821_120),
        ("smollm2_1_7b", 1_711_376_384),
        ("qwen2_5_0_5b", 494_032_768),
        ("qwen2_5_1_5b", 1_543_714_304),
        ("qwen2_5_7b", 7_615_616_512),
        ("qwen2_5_14b", 14_770_033_664),
        ("qwen2_5_32b", 32_763_876_352),
        ("qwen2_5_72b", 72_706_203_648),
        ("qwen3_0_6b", 596_049_920),
        ("qwen3_4b", 4_022_468_096),
        ("qwen3_8b", 8_190_735_360),
        ("qwen3_32b", 32_762_123_264),
        ("qwen3_30b_a3b", 30_532_122_624),
        ("qwen1_5_moe_a2_7b", 14_315_784_192),
        ("mixtral_8x7b", 46_702_792_704),
        ("llama3_1_8b", 8_030_261_248),
        ("llama3_1_70b", 70_553_706_496),
        ("llama3_2_1b", 1_235_814_400),
        ("mistral_7b", 7_241_732_096),
        ("tinyllama_1_1b", 1_100_048_384),
        ("gemma2_2b", 2_614_341_888),
        ("gemma3_1b", 999_885_952),
        ("gemma3_4b", 3_880_263_168),
        ("phi3_5_mini", 3_821_079_552),
        ("seed_oss_36b", 36_151_104_512),
        ("gpt_oss_20b", 20_914_757_184),
        ("gpt_oss_120b", 116_829_156_672),
    ];
    let mut models: Vec<_> = table.iter().map(|(name, _)| name.to_string()).collect();
    models.extend(WITH_VISION.iter().map(|(name, ..)| name.to_string()));
    // The shape of `local` comes from its weights.
    models.push("local".to_owned());
    models.sort();
    assert_eq!(built_in().options("model"), models);
    for (name, published) in table {
        let model = composed(&[&format!("model={name}")]).unwrap().config.model;
        assert_eq!(model.name, name);
        assert_eq!(parameters(&model.arch), published, "{name}");
        assert_eq!(ModelSpec::from_hf(&model.arch).unwrap().parameters(), published, "{name}");
    }
}

#[test]
fn overrides_change_their_keys() {
    let run = composed(&[
        "model=qwen2_5_7b",
        "model.dtype=bf16",
        "runtime=sim",
        "runtime.sim.speed=0",
        "runtime.batch_size=4",
        "telemetry=none",
        "profiling.nvml={enable: false, interval_ms: 50}",
        "+model.arch.extra=[1, 2]",
        "++runtime.threads=2",
        "experiment=42",
        "output.tui.theme=no-colour",
    ])
    .unwrap();
    let config = &run.config;
    assert_eq!(config.model.dtype, DtypeChoice::Unquantised(Dtype::Bf16));
    assert_eq!(config.runtime.name, Runtime::Sim);
    assert_eq!(config.runtime.sim.speed, 0.0);
    assert_eq!(config.runtime.requests, Some(200));
    assert_eq!(config.runtime.batch_size, 4);
    assert_eq!(config.runtime.threads, Some(2));
    assert_eq!(config.telemetry.probe, Probe::None);
    assert!(!config.profiling.nvml.enable);
    assert_eq!(config.profiling.nvml.interval_ms, 50);
    assert_eq!(config.model.arch["extra"], serde_json::json!([1, 2]));
    assert_eq!(config.experiment, "42");
    assert!(config.hydra.run.dir.starts_with("runs/42/qwen2_5_7b/"));
    assert_eq!(config.output.tui.theme, ThemeName::NoColour);
    assert_eq!(run.overrides.len(), 11);

    assert!(
        composed(&["~model.arch.attention_bias"]).unwrap().config.model.arch.get("attention_bias").is_none()
    );
    let elsewhere = composed(&["hydra.run.dir=${hydra:runtime.cwd}/x"]).unwrap();
    assert_eq!(elsewhere.config.hydra.run.dir, "/here/x");
}

#[test]
fn refusals_name_the_cause_and_a_remedy() {
    let table: &[(&[&str], &[&str])] = &[
        (
            &["model=qwen"],
            &[
                "unknown option \"qwen\" for group \"model\"; did you mean qwen3_4b, qwen3_8b, ",
                "from the override \"model=qwen\"",
            ],
        ),
        (&["model=../../x"], &["unknown option \"../../x\""]),
        (&["modle=qwen2_5_7b"], &["unknown key \"modle\"; did you mean model?", "the override \"modle="]),
        (&["model/qwen=x"], &["unknown group \"model/qwen\"; did you mean model?"]),
        (&["runtime.batchsize=2"], &["unknown key \"runtime.batchsize\"; did you mean runtime.batch_size?"]),
        (&["batch_size=2"], &["did you mean runtime.batch_size?"]),
        (
            &["model.arch.new=2"],
            &["unknown key \"model.arch.new\"", "to add it, write \"+model.arch.new=2\""],
        ),
        (
            &["~runtime.seed", "runtime.seed=2"],
            &["unknown key \"runtime.seed\"", "to add it, write \"+runtime.seed=2\""],
        ),
        (
            &["+runtime.batchsize=2"],
            &["unknown key \"runtime.batchsize\"; did you mean batch_size?", "the override"],
        ),
        (&["+runtime.seed=2"], &["runtime.seed already exists; remove the +"]),
        (&["+runtime.seed.x=2"], &["runtime.seed: got keys and values, expected an integer"]),
        (&["~runtime.threads"], &["runtime.threads is null; nothing to remove"]),
        (&["~runtime.nope"], &["unknown key \"runtime.nope\""]),
        (&["~runtime.seed=9"], &["runtime.seed has another value"]),
        (&["~runtime.seed"], &["missing key \"runtime.seed\"", "the override \"~runtime.seed\""]),
        (&["~model"], &["missing key \"model\""]),
        (
            &["model=null"],
            &["the group \"model\" expects the name of an option", "write ~model to remove it"],
        ),
        (&["~model=qwen2_5_7b"], &["another option is selected for \"model\""]),
        (&["+model=qwen2_5_7b"], &["the group \"model\" is already selected", "remove the +"]),
        (&["model=[a,b]"], &["unknown option \"b\" for group \"model\""]),
        (&["model=a,b"], &["several values need --multirun (-m); for a list write model=[a,b]"]),
        (&["model="], &["the group \"model\" expects the name of an option"]),
        (
            &["runtime.batch_size=many"],
            &[
                "runtime.batch_size: got the text \"many\", expected an integer",
                "the override \"runtime.batch_size=many\"",
            ],
        ),
        (&["runtime.batch_size=-1"], &["runtime.batch_size: got -1, expected an integer"]),
        (&["runtime.batch_size=2.5"], &["runtime.batch_size: got 2.5, expected an integer"]),
        (&["runtime.batch_size=99999999999"], &["got 99999999999, expected an integer from 0 to 4294967295"]),
        (&["runtime.batch_size=null"], &["runtime.batch_size: got null, expected an integer"]),
        (&["runtime.threads=x"], &["runtime.threads: got the text \"x\", expected an integer"]),
        (&["output.record=yes"], &["output.record: got the text \"yes\", expected true or false"]),
        (&["model.dtype=f64"], &["model.dtype: got the text \"f64\", expected one of auto, f32, f16, bf16"]),
        (&["model.dtype=32"], &["model.dtype: got 32, expected one of auto, f32, f16, bf16"]),
        (&["model.name=[a]"], &["model.name: got a list of 1, expected text"]),
        (&["dataset.name=[a]"], &["dataset.name: got a list of 1, expected text"]),
        (&["runtime.sim=3"], &["runtime.sim: got 3, expected keys and values"]),
        (&["experiment=${nope}"], &["cannot resolve \"${nope}\" at experiment", "the override"]),
        (
            &["experiment=${hydra:job.name}"],
            &["interpolation cycle: experiment → hydra.job.name → experiment"],
        ),
        (&["experiment=???"], &["experiment has no value yet (???); set it with experiment=…"]),
        (
            &["experiment=${hydra.job.name}"],
            &["hydra.job.name is not part of the job's configuration; write ${hydra:…}"],
        ),
    ];
    for (overrides, expected) in table {
        let message = refusal(overrides);
        for expected in *expected {
            assert!(message.contains(expected), "{overrides:?}: {message}\nexpected: {expected}");
        }
    }
    assert!(!refusal(&["runtime.batchsize=2"]).contains("to add it"));
}

#[test]
fn ranges_are_checked_by_name() {
    let table = [
        ("runtime.batch_size=0", "at least 1"),
        ("runtime.requests=0", "null or at least 1"),
        ("hardware.expected_power_limit_w=0", "null or a finite number above 0"),
        ("hardware.peaks.flops=0", "null or a finite number above 0"),
        ("hardware.peaks.bytes_per_s=inf", "null or a finite number above 0"),
        ("hardware.isolation.max_other_cpu_pct=nan", "a finite number, 0 or more"),
        ("runtime.threads=0", "null or 1 to 4096"),
        ("infer.max_new_tokens=0", "at least 1"),
        ("dataset.prompt_tokens=0", "at least 1"),
        ("output.tui.fps=0", "1 to 60"),
        ("output.tui.fps=61", "1 to 60"),
        ("output.flush_ms=0", "1 to 60000"),
        ("profiling.nvml.interval_ms=9", "at least 10"),
        ("profiling.host.interval_ms=0", "at least 10"),
        ("profiling.nsys.requests=0", "1 to 100"),
        ("profiling.ncu.top_k=0", "1 to 100"),
        ("profiling.ncu.launch_count=0", "1 to 100000"),
        ("runtime.sim.speed=-1", "a finite number, 0 or more"),
        ("runtime.sim.speed=inf", "a finite number, 0 or more"),
        ("runtime.sim.itl_ms=nan", "null or a finite number, 0 or more"),
        ("runtime.sim.jitter=-0.5", "a finite number, 0 or more"),
        ("runtime.sim.prefill_tok_s=0", "null or a finite number above 0"),
        ("experiment=", "text that is not empty"),
        ("hydra.run.dir=' '", "text that is not empty"),
        ("model.arch=null", "keys and values, or a model.config_json"),
    ];
    for (text, expected) in table {
        let key = text.split('=').next().unwrap();
        let message = refusal(&[text]);
        assert!(message.starts_with(&format!("value out of range for {key}: got ")), "{message}");
        assert!(message.contains(&format!("expected {expected}; from the override {text:?}")), "{message}");
    }
    for text in ["output.tui.fps=1", "output.tui.fps=60", "runtime.sim.speed=0", "runtime.warmup=0"] {
        assert!(composed(&[text]).is_ok(), "{text}");
    }
}

#[test]
fn errors_name_the_files_of_a_directory() {
    let table = [
        ("model/smollm2_135m.yaml", "name: [a", "bad YAML in ", "line 2, column 1"),
        (
            "model/smollm2_135m.yaml",
            "- a\n",
            "wrong value for model/smollm2_135m: got a list of 1",
            "expected keys and values",
        ),
        (
            "infer/default.yaml",
            "max_new_tokens: x\n",
            "infer.max_new_tokens: got the text \"x\"",
            "expected an integer",
        ),
        (
            "infer/default.yaml",
            "max_new_token: 3\n",
            "unknown key \"infer.max_new_token\"",
            "did you mean max_new_tokens?",
        ),
        ("infer/default.yaml", "", "missing key \"infer.max_new_tokens\" in ", "default.yaml"),
        (
            "infer/default.yaml",
            "max_new_tokens: ${x}\n",
            "cannot resolve \"${x}\" at infer.max_new_tokens",
            "no key \"x\"",
        ),
        (
            "config.yaml",
            "defaults: [{model: nope}]\n",
            "unknown option \"nope\" for group \"model\"",
            "all: ",
        ),
        (
            "config.yaml",
            "defaults: [{modell: nope}]\n",
            "unknown group \"modell\"; did you mean model?",
            "all: ",
        ),
        ("config.yaml", "defaults: 3\n", "bad defaults list in ", "expected a list, got 3"),
        ("config.yaml", "defaults: [nope]\n", "bad defaults list in ", "there is no config \"nope\""),
        ("config.yaml", "defaults: [config]\n", "bad defaults list in ", "cycle: config → config"),
        (
            "config.yaml",
            "defaults: [{model: '???'}]\n",
            "bad defaults list in ",
            "select an option for \"model\" with model=…",
        ),
        (
            "config.yaml",
            "defaults: [{override /model: x}]\n",
            "bad defaults list in ",
            "the defaults list has no group \"model\"",
        ),
        (
            "config.yaml",
            "defaults:\n  - infer: default\n  - {infer: long}\n",
            "config.yaml, line 2",
            "is already selected",
        ),
        (
            "infer/default.yaml",
            "max_new_tokens: 1\nnope: 2\n",
            "unknown key \"infer.nope\"",
            "default.yaml, line 2",
        ),
        (
            "infer/default.yaml",
            "# comment\nmax_new_tokens: [1]\n",
            "infer.max_new_tokens",
            "default.yaml, line 2",
        ),
        ("config.yaml", "defaults: [_self_, _self_]\n", "bad defaults list in ", "_self_ is listed twice"),
    ];
    for (path, text, error, detail) in table {
        let (_dir, tree) = tree_with(&[(path, text)]);
        let message = compose_in(&tree, Override::NONE, &context()).unwrap_err().to_string();
        for expected in [error, detail, path] {
            assert!(message.contains(expected), "{path} {text:?}: {message}\nexpected: {expected}");
        }
    }
}

#[test]
fn user_keys_are_kept_at_the_top() {
    let (_dir, tree) = tree_with(&[
        ("paths/default.yaml", "root: /data\nlater: ???\n"),
        ("model/mine.yaml", "defaults: [smollm2_135m, _self_]\nname: mine\nweights: ${paths.root}/mine\n"),
    ]);
    let given =
        |overrides: &[&str]| -> Vec<String> { overrides.iter().map(|text| text.to_string()).collect() };
    let run = compose(&tree, &given(&["+paths=default", "model=mine", "+note=a b", "+data.x=1"])).unwrap();
    assert_eq!(run.config.model.weights, Weights::Path("/data/mine".into()));
    assert_eq!(run.package("paths.root").unwrap(), "/data");
    assert!(run.to_yaml().contains("note: a b\n"), "{}", run.to_yaml());

    let unknown = |text: &str| compose(&tree, &given(&[text])).unwrap_err().to_string();
    for (text, expected) in [
        ("+modle.x=1", "unknown key \"modle\"; did you mean model?"),
        ("+experimnets=1", "unknown key \"experimnets\"; did you mean experiment?"),
        ("+runtime.note=1", "unknown key \"runtime.note\""),
        ("+model.sub.note=1", "unknown key \"model.sub\""),
        ("note=1", "to add it, write \"+note=1\""),
    ] {
        let message = unknown(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn other_names_of_keys_are_understood() {
    let (dir, tree) = tree_with(&[
        ("runtime/pytorch.yaml", "defaults: [candle, _self_]\nnum_new_tokens: 9\n"),
        ("model/mine.yaml", "name: mine\ndtype: bf16\npath: ${hydra:runtime.cwd}/models/mine\n"),
    ]);
    let run = |overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
        compose_in(&tree, &overrides, &context()).unwrap()
    };
    let remarks =
        |run: &Composed| -> Vec<String> { run.composition.aliases.iter().map(ToString::to_string).collect() };
    let file = dir.path().join("runtime/pytorch.yaml").display().to_string();
    let both = run(&["runtime=pytorch", "model=mine", "experiment=${infer.max_new_tokens}"]);
    assert_eq!(both.config.infer.max_new_tokens, 9);
    assert_eq!(both.config.experiment, "9");
    assert_eq!(both.config.model.weights, Weights::Path("/here/models/mine".into()));
    let remark = format!("runtime.num_new_tokens is read as infer.max_new_tokens; from {file}, line 2");
    assert_eq!(remarks(&both)[0], remark);
    assert!(
        remarks(&both)[1].starts_with("model.path is read as model.weights; from "),
        "{:?}",
        remarks(&both)
    );

    // Keys set explicitly, and overrides on the command line, have precedence.
    let given = run(&["runtime=pytorch", "infer.max_new_tokens=5"]);
    assert_eq!(given.config.infer.max_new_tokens, 5);
    assert!(remarks(&given)[0].contains("is ignored, because infer.max_new_tokens comes from the override"));
    for text in ["runtime.num_new_tokens=7", "+runtime.num_new_tokens=7", "++runtime.num_new_tokens=7"] {
        assert_eq!(run(&[text]).config.infer.max_new_tokens, 7, "{text}");
    }
    assert!(remarks(&run(&[])).is_empty());
    let wrong = compose(&tree, &["runtime.num_new_tokens=few".to_owned()]).unwrap_err().to_string();
    assert!(wrong.contains("infer.max_new_tokens: got the text \"few\""), "{wrong}");
    assert!(wrong.contains("the override \"runtime.num_new_tokens=few\""), "{wrong}");
}

#[test]
fn numbers_out_of_range_are_refused() {
    for text in ["runtime.sim.itl_ms=nan", "runtime.sim.speed=inf", "runtime.seed=1e400"] {
        let error = refusal(&[text]);
        assert!(error.contains(text.split('=').next().unwrap()), "{error}");
    }
}

#[test]
fn the_position_of_self_decides_which_value_wins() {
    let groups = "{model: smollm2_135m}, {dataset: synthetic}, {runtime: candle}, {hardware: single_gpu}, \
                  {telemetry: auto}, {profiling: minimal}, {output: default}, {hydra: default}, {infer: default}";
    let own = "experiment: e\ninfer: {max_new_tokens: 7}\n";
    let table = [
        (format!("defaults: [{groups}, _self_]\n{own}"), 7),
        (format!("defaults: [_self_, {groups}]\n{own}"), 64),
        (format!("defaults: [{groups}]\n{own}"), 7),
    ];
    for (text, expected) in table {
        let (_dir, tree) = tree_with(&[("config.yaml", &text)]);
        let run = compose(&tree, Override::NONE).unwrap();
        assert_eq!(run.config.infer.max_new_tokens, expected, "{text}");
    }
}

#[test]
fn a_file_can_extend_others() {
    let (_dir, tree) = tree_with(&[
        ("model/mine.yaml", "defaults: [smollm2_135m, _self_]\nname: mine\narch: {vocab_size: 9}\n"),
        ("experiment_notes/long.yaml", "# @package _global_\ninfer: {max_new_tokens: 99}\n"),
    ]);
    let overrides = ["model=mine".to_owned(), "+experiment_notes=long".to_owned()];
    let run = compose(&tree, &overrides).unwrap();
    assert_eq!(run.config.model.name, "mine");
    assert_eq!(run.config.model.arch["vocab_size"], 9);
    assert_eq!(run.config.model.arch["hidden_size"], 576);
    assert_eq!(run.config.infer.max_new_tokens, 99);
    assert_eq!(run.choices["experiment_notes"], "long");

    let unlisted = compose(&tree, &["experiment_notes=long".to_owned()]).unwrap_err().to_string();
    assert!(unlisted.contains("to add it, write \"+experiment_notes=long\""), "{unlisted}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_overrides_never_panic(overrides in prop::collection::vec(
        r"[+~]{0,2}(model|runtime|runtime\.seed|experiment|a|hydra\.run|model\.arch)(\.[a-c]){0,2}=?[\[\]{}':, 0-9a-e$_.]{0,12}", 0..4)) {
        let _ = compose_in(&built_in(), &overrides, &context());
    }

    #[test]
    fn garbage_files_never_panic(text in r"(defaults: |- |a: |model: |\$\{|\}|\[|\]|\n|  |_self_|&x |\*x|<<: |[a-c]|:){0,24}") {
        let tree = ConfTree::from_files([("config.yaml", text.as_str()), ("model/a.yaml", text.as_str())]);
        let _ = compose_in(&tree, Override::NONE, &context());
    }
}
