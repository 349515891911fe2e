//! Decode speed of SmolLM2-135M's shape on the CPU: llmprof-tui, and candle-transformers' llama with the same weights.
//!
//! The two are interleaved (A B B A …), so that external load affects both alike.

use std::{hint::black_box, time::Instant};

use candle_core::{D, DType, Device, Result, Shape, Tensor};
use candle_nn::{VarBuilder, var_builder::SimpleBackend};
use candle_transformers::models::llama;
use llmprof::{
    config::{Dtype, KvCacheDtype},
    engine::{
        candle::{CandleEngine, CandleOptions, Tensors},
        sampling::Sampling,
        weights::SyntheticWeights,
    },
    model::ModelSpec,
    workload::{Engine, Prompts},
};
use rayon::prelude::*;
use serde_json::{Value, json};

const PROMPT: usize = 128;
const STEPS: usize = 32;
const ROUNDS: usize = 8;
const SEED: u64 = 1;

fn smollm2_135m() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0, "tie_word_embeddings": true, "max_position_embeddings": 8192
    })
}

/// The synthetic weights as a checkpoint.
struct Checkpoint(ModelSpec);

impl SimpleBackend for Checkpoint {
    fn get(&self, _: Shape, name: &str, _: candle_nn::Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        self.get_unchecked(name, dtype, dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        let tensor = self.0.tensors().into_iter().find(|t| t.name == name).expect("a tensor of the model");
        SyntheticWeights::new(SEED).tensor(&tensor, Dtype::F32).map_err(candle_core::Error::wrap)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.tensors().iter().any(|t| t.name == name)
    }
}

/// Prefill tokens/s and decode tokens/s of one request.
#[derive(Clone, Copy)]
struct Speed {
    prefill: f64,
    decode: f64,
}

fn timed(prefill: impl FnOnce(), mut step: impl FnMut()) -> Speed {
    let start = Instant::now();
    prefill();
    let prefill = PROMPT as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    (0..STEPS).for_each(|_| step());
    Speed { prefill, decode: STEPS as f64 / start.elapsed().as_secs_f64() }
}

fn ours(engine: &mut CandleEngine, prompts: &Prompts) -> Speed {
    let engine = std::cell::RefCell::new(engine);
    timed(
        || {
            engine.borrow_mut().prefill(prompts).expect("prefill");
        },
        || {
            engine.borrow_mut().decode().expect("decode");
        },
    )
}

fn theirs(model: &llama::Llama, config: &llama::Config, prompts: &Prompts) -> Speed {
    let mut cache = llama::Cache::new(true, DType::F32, config, &Device::Cpu).expect("cache");
    let next = |ids: &[u32], position: usize, cache: &mut llama::Cache| -> Result<u32> {
        let ids = Tensor::from_slice(ids, (1, ids.len()), &Device::Cpu)?;
        // candle's own pool, as its documentation advises for the many short operations of a forward pass.
        Device::Cpu.with_context(|| {
            model.forward(&ids, position, cache)?.squeeze(0)?.argmax(D::Minus1)?.to_scalar::<u32>()
        })
    };
    let state = std::cell::RefCell::new((0u32, PROMPT));
    let cache = std::cell::RefCell::new(&mut cache);
    timed(
        || state.borrow_mut().0 = next(&prompts.ids, 0, &mut cache.borrow_mut()).expect("prefill"),
        || {
            let (last, position) = *state.borrow();
            let id = next(&[last], position, &mut cache.borrow_mut()).expect("decode");
            *state.borrow_mut() = (id, position + 1);
        },
    )
}

/// Bytes/s of a plain sum over as many floats as the model has, on the default pool.
fn read_bandwidth(floats: usize) -> f64 {
    let data = vec![1f32; floats];
    let lanes = |chunk: &[f32]| -> f32 {
        let mut lanes = [0f32; 64];
        for block in chunk.as_chunks::<64>().0 {
            lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += x);
        }
        lanes.iter().sum()
    };
    let mut seconds: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            black_box(data.par_chunks(16 * 1024).map(lanes).sum::<f32>());
            start.elapsed().as_secs_f64()
        })
        .collect();
    4.0 * floats as f64 / median(&mut seconds)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}

fn main() {
    let spec = ModelSpec::from_hf(&smollm2_135m()).expect("a good config");
    let engine = |dtype| {
        let options = CandleOptions {
            spec: spec.clone(),
            model: "smollm2_135m".to_owned(),
            dtype,
            threads: None,
            batch: 1,
            max_positions: PROMPT + STEPS + 1,
            prompt_tokens: PROMPT,
            seed: SEED,
            checkpoint: None,
            scheme: None,
            sampling: Sampling::greedy(),
            cuda_graphs: true,
            cublas: true,
            fused_step: true,
            kv_cache: KvCacheDtype::Auto,
            step_positions: 1,
        };
        let start = Instant::now();
        let engine = CandleEngine::new(&options, &mut |_, _, _| true).expect("an engine");
        println!("{} weights made in {:.2} s", dtype.name(), start.elapsed().as_secs_f64());
        engine
    };
    let mut f32_engine = engine(Dtype::F32);
    let mut bf16_engine = engine(Dtype::Bf16);
    let mut f16_engine = engine(Dtype::F16);
    let config: llama::LlamaConfig = serde_json::from_value(smollm2_135m()).expect("candle's config");
    let config = config.into_config(false);
    let vb = VarBuilder::from_backend(Box::new(Checkpoint(spec.clone())), DType::F32, Device::Cpu);
    let model = llama::Llama::load(vb, &config).expect("candle's llama");
    let ids = (0..PROMPT as u32).map(|i| i * 7919 % 49152).collect();
    let prompts = Prompts { ids, batch: 1 };

    let mut runs: [Vec<Speed>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let order: &[usize] = if round % 2 == 0 { &[0, 1, 2, 3] } else { &[3, 2, 1, 0] };
        for &which in order {
            let speed = match which {
                0 => ours(&mut f32_engine, &prompts),
                1 => theirs(&model, &config, &prompts),
                2 => ours(&mut bf16_engine, &prompts),
                _ => ours(&mut f16_engine, &prompts),
            };
            // The first round warms up.
            if round > 0 {
                runs[which].push(speed);
            }
        }
    }

    let bandwidth = read_bandwidth(spec.parameters() as usize);
    println!("\nsmollm2_135m, prompt {PROMPT}, {STEPS} decode steps, median of {ROUNDS} interleaved rounds");
    println!(
        "plain sum over {:.0} MB: {:.1} GB/s",
        spec.weight_bytes(Dtype::F32) as f64 / 1e6,
        bandwidth / 1e9
    );
    println!("{:<28}{:>12}{:>12}{:>10}{:>12}", "", "prefill", "decode", "GB/s", "of sum");
    let names = [("ours f32", 4.0), ("candle-transformers f32", 4.0), ("ours bf16", 2.0), ("ours f16", 2.0)];
    let mut decode = Vec::new();
    for ((name, bytes), speeds) in names.iter().zip(&runs) {
        let prefill = median(&mut speeds.iter().map(|s| s.prefill).collect::<Vec<_>>());
        let tokens = median(&mut speeds.iter().map(|s| s.decode).collect::<Vec<_>>());
        let rate = tokens * bytes * spec.parameters() as f64;
        let (gb, share) = (rate / 1e9, 100.0 * rate / bandwidth);
        println!("{name:<28}{prefill:>6.0} tok/s{tokens:>6.1} tok/s{gb:>10.1}{share:>10.0} %");
        decode.push(tokens);
    }
    println!("ratio ours / candle-transformers, f32: {:.2}", decode[0] / decode[1]);
    println!("ratio ours bf16 / ours f32: {:.2}", decode[2] / decode[0]);
}
