//! Weights, tokenizer and prompts are validated before a run starts.

use std::{collections::HashMap, fs, path::Path};

use llmprof::{
    assets::sampling::Sampling,
    config::{Dtype, RunConfig, Weights, built_in, compose},
    engine::{candle::Tensors, weights::SyntheticWeights},
    model::ModelSpec,
    run::{inputs::Inputs, work::kind_of},
    workload::PromptSet,
};
use serde_json::json;
use tempfile::TempDir;

fn composed(overrides: &[String]) -> Result<RunConfig, String> {
    let composed = compose(&built_in(), overrides);
    composed.map(|composed| composed.config).map_err(|e| e.to_string())
}

fn open(overrides: &[String]) -> Result<Inputs, String> {
    let config = composed(overrides)?;
    Inputs::open(&config, &kind_of(config.runtime.name)).map_err(|e| e.to_string())
}

fn split(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A checkpoint with a tokenizer of four tokens.
fn tiny() -> TempDir {
    let config = json!({
        "model_type": "llama", "vocab_size": 4, "hidden_size": 8, "intermediate_size": 8, "eos_token_id": 3,
        "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 64
    });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "hello": 1, "world": 2, "end": 3}}
    });
    let dir = tempfile::tempdir().unwrap();
    let spec = ModelSpec::from_hf(&config).unwrap();
    let source = SyntheticWeights::new(1);
    let tensors: HashMap<_, _> =
        spec.tensors().iter().map(|t| (t.name.clone(), source.tensor(t, Dtype::F32).unwrap())).collect();
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
    write(dir.path(), "config.json", &config.to_string());
    write(dir.path(), "tokenizer.json", &tokenizer.to_string());
    dir
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    fs::write(dir.join(name), text).unwrap();
    dir.join(name).display().to_string()
}

/// Overrides for the tiny checkpoint, and `more`.
fn with(dir: &TempDir, more: &str) -> Vec<String> {
    let mut all = split("model=local infer.max_new_tokens=4 dataset.prompt_tokens=4");
    all.push(format!("model.weights={}", dir.path().display()));
    all.extend(split(more));
    all
}

#[test]
fn by_default_weights_are_synthetic_and_there_is_no_text() {
    let inputs = open(&[]).unwrap();
    assert!(inputs.model.weights_path().is_none() && inputs.tokenizer.is_none());
    assert_eq!(inputs.workload.prompts, PromptSet::Random { tokens: 128, vocab: 49152 });
    assert!(inputs.workload.stop_ids.is_empty());
}

#[test]
fn weights_have_their_shape_and_tokenizer() {
    let dir = tiny();
    let inputs = open(&with(&dir, "")).unwrap();
    assert_eq!(inputs.model.vocab(), 4);
    assert!(inputs.model.weights_path().is_some() && inputs.tokenizer.is_none(), "no setting needs text");
    let file = write(dir.path(), "p.jsonl", "{\"prompt\": \"hello world\"}\n{\"prompt\": \"hello you\"}\n");
    let more = format!("dataset=prompts dataset.prompts.file={file} infer.ignore_eos=false");
    let inputs = open(&with(&dir, &more)).unwrap();
    assert_eq!(inputs.workload.prompt_tokens(), 2);
    assert_eq!(inputs.workload.prompts(2).ids, [1, 0]);
    assert_eq!(inputs.workload.stop_ids, [3]);
}

#[test]
fn missing_inputs_are_refused_by_name() {
    let no_tokenizer = "needs a tokenizer; trained weights have one: model.weights=";
    for more in ["dataset=prompts", "output.predictions.enable=true", "infer=answer", "infer=sampled"] {
        let message = open(&split(more)).unwrap_err();
        assert!(message.contains(no_tokenizer), "{more}: {message}");
    }
    let dir = tiny();
    let other = format!("model.weights={}", dir.path().display());
    let message = open(&[other]).unwrap_err();
    assert!(message.ends_with(
        "is not smollm2_135m: its vocab_size is 4, not 49152; use model=local and your own model.name"
    ));
    let long = write(dir.path(), "long.jsonl", "{\"prompt\": \"hello\"}\n{\"prompt\": \"a b c d e\"}\n");
    let prompts = |file: &str| format!("dataset=prompts dataset.prompt_tokens=4 dataset.prompts.file={file}");
    let message = open(&with(&dir, &prompts(&long))).unwrap_err();
    assert!(message.ends_with("prompt 2: 5 tokens exceed dataset.prompt_tokens=4"), "{message}");
    let message = open(&with(&dir, &prompts("nowhere.jsonl"))).unwrap_err();
    assert!(message.starts_with("cannot read nowhere.jsonl"), "{message}");
    let message = open(&with(&dir, "dataset.prompt_tokens=61")).unwrap_err();
    assert!(message.contains("61 prompt tokens and 4 output tokens exceed the 64 positions"), "{message}");
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let message = open(&with(&dir, "output.predictions.enable=true")).unwrap_err();
    assert!(message.starts_with("cannot read") && message.contains("tokenizer.json"), "{message}");
}

#[test]
fn keys_are_checked() {
    let table = [
        ("infer.temperature=0", "infer.temperature: got 0, expected a number above 0"),
        ("infer.top_p=1.5", "infer.top_p: got 1.5, expected a number above 0, at most 1"),
        ("infer.top_k=0", "infer.top_k: got 0, expected an integer from 1 to 4294967295"),
        ("model.weights=''", "synthetic or a path"),
    ];
    for (change, message) in table {
        let found = composed(&split(change)).unwrap_err();
        assert!(found.contains(message), "{change}: {found}");
    }
    let config = composed(&split("model.weights=models/x infer.top_k=3")).unwrap();
    assert_eq!(config.model.weights, Weights::Path("models/x".into()));
    assert_eq!(serde_json::to_value(&config).unwrap()["model"]["weights"], "models/x");
}

/// The prompts of the measured requests, in order.
fn prompts_of(overrides: &[String]) -> Vec<String> {
    let workload = open(overrides).unwrap().workload;
    let measured = workload.warmup..workload.warmup + workload.requests;
    measured.map(|request| workload.text(request).unwrap().to_owned()).collect()
}

#[test]
fn sampling_selects_prompts_and_their_order() {
    let dir = tiny();
    let lines: String =
        (0..10).map(|n| format!("{{\"id\": \"s{n}\", \"prompt\": \"hello {n}\"}}\n")).collect();
    let file = write(dir.path(), "p.jsonl", &lines);
    let list = write(dir.path(), "list.txt", "# these\ns7\ns2\ns4\n");
    let with = |more: &str| {
        let common = format!(
            "dataset=prompts dataset.prompt_tokens=4 dataset.prompts.file={file} runtime.requests=null"
        );
        with(&dir, &format!("{common} {more}"))
    };
    let hello = |numbers: &[u64]| numbers.iter().map(|n| format!("hello {n}")).collect::<Vec<_>>();

    assert_eq!(prompts_of(&with("")), hello(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    let few = "dataset.sampling.num_samples_per_epoch=2 dataset.sampling.num_epochs=2";
    assert_eq!(prompts_of(&with(few)), hello(&[0, 1, 0, 1]));
    assert_eq!(prompts_of(&with(&format!("{few} runtime.requests=5"))), hello(&[0, 1, 0, 1, 0]));

    let drawn = |seed: u64| {
        let sampling = Sampling { num_epochs: 2, num_samples_per_epoch: Some(3), randomize: true };
        hello(&sampling.indexes(10, seed).concat())
    };
    let random = "dataset.sampling.num_samples_per_epoch=3 dataset.sampling.num_epochs=2 dataset.sampling.randomize=true";
    assert_eq!(prompts_of(&with(random)), drawn(0));
    assert_eq!(prompts_of(&with(&format!("{random} runtime.seed=5"))), drawn(5));
    assert_ne!(drawn(0), drawn(5));

    let subset = format!("dataset.sampling.subset_filelist={list}");
    assert_eq!(prompts_of(&with(&subset)), hello(&[7, 2, 4]));

    let nameless = write(dir.path(), "n.jsonl", "{\"prompt\": \"hello\"}\n");
    let wrong = write(dir.path(), "wrong.txt", "s1\ns11\n");
    let table = [
        (
            format!("dataset.sampling.subset_filelist={wrong}"),
            "line 2: \"s11\" is not in the dataset; did you mean s1",
        ),
        ("dataset.sampling.subset_filelist=no.txt".into(), "subset_filelist: cannot read no.txt"),
        (format!("{subset} dataset.prompts.file={nameless}"), "sample 1 of "),
        ("dataset.sampling.num_epochs=200000".into(), "more than the limit of 1000000 requests"),
    ];
    for (more, wanted) in table {
        let message = open(&with(&more)).unwrap_err();
        assert!(message.contains(wanted), "{more}: {message}");
    }
    for (more, wanted) in [
        (
            "+dataset.sampling={num_epochs:1,num_samples_per_epoch:null,randomize:false,subset_filelist:null}",
            "use dataset=prompts",
        ),
        ("runtime.requests=null", "there are no texts; give a number"),
    ] {
        let message = open(&split(more)).unwrap_err();
        assert!(message.contains(wanted), "{more}: {message}");
    }
}

#[test]
fn long_prompts_are_cut_on_request() {
    let dir = tiny();
    let file = write(
        dir.path(),
        "p.jsonl",
        "{\"text\": \"hello world hello world hello world\"}\n{\"text\": \"end\"}\n",
    );
    let common =
        format!("dataset=prompts dataset.prompt_tokens=4 dataset.prompts.file={file} runtime.requests=null");
    assert!(open(&with(&dir, &common)).unwrap_err().contains("prompt 1: 6 tokens exceed"));
    let cut = with(&dir, &format!("{common} dataset.prompts.truncate=true"));
    assert_eq!(prompts_of(&cut), ["hello world hello world", "end"]);
    assert_eq!(open(&cut).unwrap().workload.prompt_tokens(), 4);
}

#[test]
fn missing_datasets_name_the_command_that_creates_them() {
    let dir = tiny();
    let elsewhere = tempfile::tempdir().unwrap();
    for (dataset, wanted) in [
        ("openwebtext", "llmprof-tui dataset prepare openwebtext --variant subset-1k"),
        ("omnidocbench", "llmprof-tui bootstrap datasets omnidocbench"),
        ("sharegpt", "llmprof-tui bootstrap datasets sharegpt"),
    ] {
        let mut run = assert_cmd::Command::cargo_bin("llmprof-tui").unwrap();
        let run =
            run.current_dir(elsewhere.path()).arg("run").args(with(&dir, &format!("dataset={dataset}")));
        let stderr = run.assert().code(2).get_output().stderr.clone();
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        assert!(stderr.contains("create it with: ") && stderr.contains(wanted), "{stderr}");
    }
}

#[test]
fn only_quantised_weights_are_dequantised() {
    let dir = tiny();
    for overrides in [split("model.dequantize=true"), with(&dir, "model.dequantize=true")] {
        let message = open(&overrides).unwrap_err();
        assert!(message.starts_with("model.dequantize=true is for GGUF files"), "{message}");
    }
}
