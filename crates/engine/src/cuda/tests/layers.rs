//! The layers of a step as one kernel, compared with the separate kernels, at the shapes of all models that have one.

use super::*;

/// The models with a kernel for all layers, each with a smaller vocabulary.
fn models() -> Vec<(&'static str, ModelSpec)> {
    let tree = llmprof_config::built_in();
    super::super::layers::MODELS
        .iter()
        .map(|name| {
            let composed = llmprof_config::compose(&tree, &[format!("model={name}")]).unwrap();
            let spec = ModelSpec::from_hf(&composed.config.model.arch).unwrap();
            (*name, ModelSpec { vocab: 4001, ..spec })
        })
        .collect()
}

/// Whether this GPU has such kernels.
fn has_kernels() -> bool {
    Gpu::open(0, false).unwrap().runs_hopper_kernels()
}

fn engine(options: &CandleOptions, fused: bool) -> CudaEngine {
    let options = CandleOptions { fused_step: fused, ..options.clone() };
    let engine = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
    assert_eq!(engine.decoder.is_fused(), fused && options.dtype == Dtype::Bf16);
    engine
}

fn prompts(length: usize) -> Prompts {
    Prompts { ids: (0..length).map(|i| (noise::bits(4, i as u64) % 4001) as u32).collect(), batch: 1 }
}

fn tokens(engine: &mut CudaEngine, length: usize, steps: usize) -> Vec<u32> {
    generate(engine, &prompts(length), steps).concat()
}

/// The logits of each step after a prompt, if the tokens are given.
fn logits(engine: &mut CudaEngine, length: usize, given: &[u32]) -> Vec<Vec<f32>> {
    engine.prefill(&prompts(length)).unwrap();
    let step = |id: &u32| {
        engine.propose(&[*id], 1).unwrap();
        engine.decoder.kernels.gpu.download(&engine.decoder.sampling.logits, 4001).unwrap()
    };
    given.iter().map(step).collect()
}

/// ‖found − expected‖ / ‖expected‖.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// The logits are as near to those in f32 as those of the separate kernels are; the most likely token is the same or
/// almost as likely.
#[test]
#[ignore = "needs an H100 or H200"]
fn fused_layers_are_as_accurate() {
    if !has_kernels() {
        return;
    }
    for (name, spec) in models() {
        let options = options(&spec, Dtype::Bf16, 1, 700, 64);
        let wide = CandleOptions { dtype: Dtype::F32, ..options.clone() };
        let mut engines = [engine(&options, false), engine(&options, true), engine(&wide, false)];
        for (length, steps) in [(1, 40), (15, 8), (16, 8), (37, 64), (128, 8), (511, 8), (700, 64)] {
            let given = tokens(&mut engines[0], length, steps);
            let [plain, fused, reference] =
                engines.each_mut().map(|engine| logits(engine, length, &given[..steps - 1]));
            let mut worst = (0.0_f64, 0.0_f64);
            for (step, expected) in reference.iter().enumerate() {
                let errors = (error(&plain[step], expected), error(&fused[step], expected));
                worst = (worst.0.max(errors.0), worst.1.max(errors.1));
                let top =
                    |logits: &[f32]| (0..4001).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
                let (a, b) = (top(&plain[step]), top(&fused[step]));
                let gap = plain[step][a] - plain[step][b];
                let size = (expected.iter().map(|v| v * v).sum::<f32>() / 4001.0).sqrt();
                assert!(
                    gap < 0.1 * size,
                    "{name}, prompt {length}, step {step}: {a} and {b}, {gap} of {size}"
                );
            }
            println!("{name}, prompt {length}: error {:.4}, of other kernels {:.4}", worst.1, worst.0);
            assert!(worst.1 < 1.2 * worst.0 + 1e-3, "{name}, prompt {length}: {worst:?}");
        }
    }
}

/// The same tokens every time: with and without a graph, after prompts of other lengths, after an early end, next to an
/// engine with other kernels.
#[test]
#[ignore = "needs an H100 or H200"]
fn fused_layers_repeat_their_tokens() {
    if !has_kernels() {
        return;
    }
    for (name, spec) in models() {
        let options = options(&spec, Dtype::Bf16, 1, 300, 66);
        let mut fused = engine(&options, true);
        let expected: Vec<Vec<u32>> =
            [300, 1, 37].iter().map(|length| tokens(&mut fused, *length, 64)).collect();
        let mut eager = engine(&CandleOptions { cuda_graphs: false, ..options.clone() }, true);
        let mut plain = engine(&options, false);
        for (length, expected) in [300, 1, 37].into_iter().zip(&expected) {
            assert_eq!(&tokens(&mut eager, length, 64), expected, "{name}, prompt {length}, without a graph");
            fused.prefill(&prompts(50)).unwrap();
            fused.decode().unwrap();
            fused.reset().unwrap();
            let other = tokens(&mut plain, length, 64);
            assert_eq!(&tokens(&mut fused, length, 64), expected, "{name}, prompt {length}, again");
            let same = expected.iter().zip(&other).take_while(|(a, b)| a == b).count();
            println!("{name}, prompt {length}: the first {same} of 64 tokens are those of other kernels");
        }
        // Up to the last position of the cache.
        let all = tokens(&mut fused, 300, 67);
        assert_eq!((all.len(), &all[..64]), (67, &expected[0][..]), "{name}");
        assert!(fused.decode().is_err(), "past the capacity");
    }
}

/// The longest context that the kernel is used for.
#[test]
#[ignore = "needs an H100 or H200"]
fn fused_layers_attend_to_long_contexts() {
    if !has_kernels() {
        return;
    }
    let (name, spec) = models().remove(0);
    let options = options(&spec, Dtype::Bf16, 1, 8160, 32);
    let mut engines = [engine(&options, false), engine(&options, true)];
    let given = tokens(&mut engines[0], 8160, 32);
    let [plain, fused] = engines.each_mut().map(|engine| logits(engine, 8160, &given[..31]));
    for (step, (plain, fused)) in plain.iter().zip(&fused).enumerate() {
        let error = error(fused, plain);
        assert!(error < 0.05, "{name}, step {step}: {error}");
    }
}
