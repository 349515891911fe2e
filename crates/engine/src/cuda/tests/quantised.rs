//! Quantised weights: every format against its definition, and tokens against the CPU.

use decoder_ops::{Format, Panels, quantised_rows, random_blocks};

use super::{
    super::{
        few_rows::{MOST_ROWS, Scratch},
        kernels::{Input, Norm},
        quantised::Tiles,
    },
    *,
};
use crate::{candle::Decoder, weights::QuantisedRows};
use llmprof_config::Scheme;

/// A matrix and its weights as f32.
fn random(k: &Kernels, runs: &[(Format, usize)], columns: usize, gated: bool) -> (Matrix, Tensor) {
    let (mut tiles, mut weights) = (Vec::new(), Vec::new());
    for (i, &(format, rows)) in runs.iter().enumerate() {
        let bytes = random_blocks(format, 11 + i as u64, rows, columns);
        let ids: Vec<u32> = (0..rows as u32).collect();
        weights.push(quantised_rows(&ids, &Panels::new(format, &bytes, columns).unwrap()).unwrap());
        tiles.push(Tiles::new(&k.gpu, &QuantisedRows { format, bytes, rows }, columns, gated).unwrap());
    }
    let rows = runs.iter().map(|(_, rows)| rows).sum();
    (Matrix { values: Values::Tiles(tiles), rows, columns }, Tensor::cat(&weights, 0).unwrap())
}

/// Rounded as GEMMs round one row of activations: to eight bits, with a scale for each 32.
fn in_eight_bits(x: &[f32]) -> Vec<f32> {
    let group = |x: &[f32]| -> Vec<f32> {
        let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        let (scale, inverse) = (most / 127.0, if most > 0.0 { 127.0 / most } else { 0.0 });
        x.iter().map(|x| (x.mul_add(inverse, 12_582_912.0) - 12_582_912.0) * scale).collect()
    };
    x.chunks(32).flat_map(group).collect()
}

/// The type that determines the precision of a GEMM with m rows: several rows are multiplied in f16.
fn as_halves(m: usize, dtype: Dtype) -> Dtype {
    if m > 1 && dtype == Dtype::F32 { Dtype::F16 } else { dtype }
}

/// rms(x) · weight, row by row.
fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let row = |row: &[f32]| -> Vec<f32> {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / row.len() as f64;
        let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
        row.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

fn kernels_for(dtype: Dtype, columns: usize, rows: usize) -> Kernels {
    let mut k = kernels(dtype);
    k.scratch = Some(Scratch::new(&k.gpu, columns, (0, 0), rows * columns * dtype.bytes() as usize).unwrap());
    k
}

fn columns_of(format: Format) -> [usize; 3] {
    if format.weights() == 32 { [32, 416, 1952] } else { [256, 512, 2816] }
}

#[test]
#[ignore = "needs a GPU"]
fn every_format_matches_its_definition() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels_for(dtype, 2816, 300), Draws::new(21));
        for format in Format::ALL {
            for columns in columns_of(format) {
                for (m, n) in [(1, 40), (1, 257), (3, 16), (8, 75), (17, 64), (43, 30), (70, 33)] {
                    let (w, weights) = random(&k, &[(format, n)], columns, false);
                    let x = draws.values(m * columns, dtype);
                    let (bias, before) = (draws.values(n, dtype), draws.values(m * n, dtype));
                    // For many rows, the weights are dequantised to the model's type.
                    let (used, weights) = match m {
                        1 => (in_eight_bits(&x), weights),
                        2..=MOST_ROWS => (x.clone(), weights),
                        _ => {
                            let rounded: Vec<f32> =
                                flat(&weights).iter().map(|w| rounded(*w, dtype)).collect();
                            (x.clone(), tensor(&rounded, &[n, columns]))
                        }
                    };
                    let allowed = as_halves(m, dtype);
                    let product = tensor(&used, &[m, columns]).matmul(&weights.t().unwrap()).unwrap();
                    let what = format!("{format:?}, {m}×{columns} by {n}");
                    let (x, y) = (put(&k, &x), room(&k, m * n));
                    k.linear(&y, &x, &w, m, None, false).unwrap();
                    assert_close(&get(&k, &y, m * n), &flat(&product), allowed, &what);
                    let y = put(&k, &before);
                    k.linear(&y, &x, &w, m, Some(&put(&k, &bias)), true).unwrap();
                    let sum = product.broadcast_add(&tensor(&bias, &[n])).unwrap();
                    let sum = (sum + tensor(&before, &[m, n])).unwrap();
                    assert_close(&get(&k, &y, m * n), &flat(&sum), allowed, &format!("{what}, added"));
                    if m <= MOST_ROWS {
                        let weight = draws.values(columns, Dtype::F32);
                        let plain = get(&k, &x, m * columns);
                        let input = normed(&plain, &weight, 1e-5);
                        let input = if m == 1 { in_eight_bits(&input) } else { input };
                        let expected = tensor(&input, &[m, columns]).matmul(&weights.t().unwrap()).unwrap();
                        let weight = put32(&k, &weight);
                        let input = Input { norm: Some(Norm { weight: &weight, eps: 1e-5 }), ..(&x).into() };
                        let y = room(&k, m * n);
                        k.linear(&y, input, &w, m, None, false).unwrap();
                        // A number may be rounded to the adjacent 8-bit value.
                        let allowed = if dtype == Dtype::F32 { Dtype::F16 } else { dtype };
                        assert_close(
                            &get(&k, &y, m * n),
                            &flat(&expected),
                            allowed,
                            &format!("{what}, normed"),
                        );
                        let logits = k.gpu.alloc("a test", m * n * 4).unwrap();
                        k.logits(&logits, &x, &w, m).unwrap();
                        let found: Vec<f32> = k.gpu.download(&logits, m * n).unwrap();
                        let allowed = as_halves(m, Dtype::F32);
                        assert_close(&found, &flat(&product), allowed, &format!("{what}, logits"));
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gates_tables_and_stacks_match() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels_for(dtype, 2816, 300), Draws::new(22));
        for format in Format::ALL {
            let columns = columns_of(format)[1];
            for (m, n) in [(1, 44), (5, 44), (12, 44), (66, 44)] {
                let (w, weights) = random(&k, &[(format, 2 * n)], columns, true);
                let x = draws.values(m * columns, dtype);
                let used = if m == 1 { in_eight_bits(&x) } else { x.clone() };
                let both = tensor(&used, &[m, columns]).matmul(&weights.t().unwrap()).unwrap();
                let gate = both.narrow(1, 0, n).unwrap().silu().unwrap();
                let expected = (gate * both.narrow(1, n, n).unwrap()).unwrap();
                let (x, out, wide) = (put(&k, &x), room(&k, m * n), room(&k, m * 2 * n));
                k.gated(&out, &wide, &x, &w, m).unwrap();
                let allowed = if m <= MOST_ROWS { as_halves(m, dtype) } else { Dtype::Bf16 };
                assert_close(
                    &get(&k, &out, m * n),
                    &flat(&expected),
                    allowed,
                    &format!("{format:?}, {m} gated"),
                );
            }
            let (w, weights) = random(&k, &[(format, 50)], columns, false);
            let ids = [49u32, 0, 17, 8, 31];
            let out = room(&k, ids.len() * columns);
            // SAFETY: the ids are below the 50 rows.
            unsafe { k.embed(&out, &w, &put32(&k, &ids), ids.len(), 2.0) }.unwrap();
            let expected =
                (weights.index_select(&Tensor::new(&ids, &Device::Cpu).unwrap(), 0).unwrap() * 2.0).unwrap();
            assert_close(
                &get(&k, &out, ids.len() * columns),
                &flat(&expected),
                dtype,
                &format!("{format:?} rows"),
            );
        }
        for (m, others) in [(1, 3), (4, 3), (20, 3), (80, 3)] {
            let runs = [(Format::Q4K, 96), (Format::Q6K, 32 + others), (Format::Q8_0, 24)];
            let (w, weights) = random(&k, &runs, 512, false);
            let x = draws.values(m * 512, dtype);
            let used = if m == 1 { in_eight_bits(&x) } else { x.clone() };
            let expected = tensor(&used, &[m, 512]).matmul(&weights.t().unwrap()).unwrap();
            let (x, y) = (put(&k, &x), room(&k, m * w.rows));
            k.linear(&y, &x, &w, m, None, false).unwrap();
            let allowed = if m <= MOST_ROWS { as_halves(m, dtype) } else { Dtype::Bf16 };
            assert_close(
                &get(&k, &y, m * w.rows),
                &flat(&expected),
                allowed,
                &format!("{m} of three formats"),
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn quantised_logits_equal_those_of_the_cpu() {
    let mut largest = 0f64;
    let spec = |more: serde_json::Value| {
        let mut config = serde_json::json!({
            "vocab_size": 331, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 9,
            "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ModelSpec::from_hf(&config).unwrap()
    };
    let models = [
        ("qwen2", spec(serde_json::json!({"model_type": "qwen2", "tie_word_embeddings": true}))),
        ("llama", spec(serde_json::json!({"model_type": "llama", "attention_bias": true}))),
        (
            "qwen2 of 0.5B's widths",
            spec(serde_json::json!({"model_type": "qwen2", "hidden_size": 224, "head_dim": 32})),
        ),
        ("phi3", spec(serde_json::json!({"model_type": "phi3"}))),
        (
            "gemma3",
            spec(serde_json::json!({"model_type": "gemma3_text", "head_dim": 64, "sliding_window": 12})),
        ),
        (
            "gpt_oss",
            spec(serde_json::json!({
                "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 8, "head_dim": 64, "sliding_window": 12
            })),
        ),
    ];
    let schemes = [
        Scheme::Q4_0,
        Scheme::Q4_1,
        Scheme::Q5_0,
        Scheme::Q5_1,
        Scheme::Q8_0,
        Scheme::Q2K,
        Scheme::Q3KM,
        Scheme::Q4KM,
        Scheme::Q5KM,
        Scheme::Q6K,
        Scheme::Iq4Nl,
        Scheme::Iq4Xs,
        Scheme::Mxfp4,
    ];
    for (name, spec) in models {
        for scheme in schemes {
            // One row is multiplied as on the CPU, several more exactly.
            for (batch, prompt) in [(1, 1), (1, 8), (2, 4)] {
                let options =
                    CandleOptions { scheme: Some(scheme), ..options(&spec, Dtype::F32, batch, prompt, 2) };
                let ids: Vec<u32> =
                    (0..batch * prompt).map(|i| (noise::bits(4, i as u64) % 331) as u32).collect();
                let cpu = Decoder::new(
                    &spec,
                    Dtype::F32,
                    &options.synthetic(),
                    (batch, prompt),
                    &Device::Cpu,
                    &mut |_, _, _| true,
                )
                .unwrap();
                let expected = flat(&cpu.forward(&ids, 0).unwrap());
                let mut gpu = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
                gpu.prefill(&Prompts { ids, batch }).unwrap();
                let logits = &gpu.decoder.sampling.logits;
                let found: Vec<f32> = gpu.decoder.kernels.gpu.download(logits, batch * spec.vocab).unwrap();
                let square =
                    |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
                let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
                let error = (error / square(&mut expected.iter().copied())).sqrt();
                // The activation of one backend may be rounded up and that of the other down, and later ones differ
                // more.
                assert!(
                    error < 0.05,
                    "{name} in {}, {batch}×{prompt}: relative error {error}",
                    scheme.name()
                );
                largest = largest.max(error);
            }
        }
    }
    println!("largest relative error {largest:.1e}");
}

#[test]
#[ignore = "needs a GPU"]
fn fp8_matches() {
    use super::super::fp8::Fp8Matrix;
    use crate::weights::fp8::{Fp8Rows, SCALED, number};
    for dtype in TYPES {
        for (n, columns, scale_rows) in [
            (48, 144, 16),
            (200, 2064, 1),
            (96, 3584, 16),
            (34, 16, 1),
            (512, 4864, 16),
            (8192, 3584, 16),
            (96, 18944, 16),
        ] {
            let k = kernels_for(dtype, columns, n);
            let mut draws = Draws::new(23);
            // All codes except NaN.
            let codes: Vec<u8> = (0..n * columns)
                .map(|i| noise::bits(9, i as u64) as u8)
                .map(|code| if code & 0x7f == 0x7f { 0x3f } else { code })
                .collect();
            let table = n.div_ceil(scale_rows) * columns.div_ceil(SCALED);
            let scales: Vec<f32> =
                draws.values(table, Dtype::F32).iter().map(|s| 0.01 + s.abs() * 0.01).collect();
            let weights: Vec<f32> = (0..n * columns)
                .map(|i| {
                    let scale = (i / columns) / scale_rows * columns.div_ceil(SCALED) + i % columns / SCALED;
                    number(codes[i]) * scales[scale]
                })
                .collect();
            let rows = Fp8Rows { codes, rows: n, scales, scale_rows };
            let [w, gate_up] = [false, true].map(|gated| {
                let matrix = Fp8Matrix::new(&k, &rows, columns, gated).unwrap();
                Matrix { values: Values::Fp8(Box::new(matrix)), rows: n, columns }
            });
            let of_matrix = tensor(&weights, &[n, columns]);
            for m in [1, 3, 8, 20, 43, 70] {
                let (x, before) = (draws.values(m * columns, dtype), draws.values(m * n, dtype));
                let bias = draws.values(n, dtype);
                let product = tensor(&x, &[m, columns]).matmul(&of_matrix.t().unwrap()).unwrap();
                let (x, what) = (put(&k, &x), format!("{m}×{columns} by {n}"));
                let y = room(&k, m * n);
                k.linear(&y, &x, &w, m, None, false).unwrap();
                assert_close(&get(&k, &y, m * n), &flat(&product), dtype, &what);
                let y = put(&k, &before);
                k.linear(&y, &x, &w, m, Some(&put(&k, &bias)), true).unwrap();
                let sum = product.broadcast_add(&tensor(&bias, &[n])).unwrap();
                let sum = (sum + tensor(&before, &[m, n])).unwrap();
                assert_close(&get(&k, &y, m * n), &flat(&sum), dtype, &format!("{what}, added"));
                let (out, wide) = (room(&k, m * n / 2), room(&k, m * n));
                k.gated(&out, &wide, &x, &gate_up, m).unwrap();
                let values = flat(&product);
                let expected: Vec<f32> = (0..m * n / 2)
                    .map(|i| {
                        let (row, at) = (i / (n / 2), i % (n / 2));
                        let (gate, up) = (values[row * n + at], values[row * n + n / 2 + at]);
                        let (gate, up) = (rounded(gate, dtype), rounded(up, dtype));
                        gate / (1.0 + (-gate).exp()) * up
                    })
                    .collect();
                // Products of gate and up beyond the range of f16 are not finite.
                if dtype != Dtype::F16 {
                    assert_close(&get(&k, &out, m * n / 2), &expected, dtype, &format!("{what}, gated"));
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn random_fp8_weights_are_near_unquantised_ones() {
    let (_, spec) = tiny_models().into_iter().find(|(name, _)| *name == "qwen2").unwrap();
    let ids: Vec<u32> = (0..12).map(|i| (noise::bits(4, i) % 331) as u32).collect();
    let logits = |scheme| {
        let options = CandleOptions { scheme, ..options(&spec, Dtype::F32, 1, 12, 2) };
        let mut gpu = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
        gpu.prefill(&Prompts { ids: ids.clone(), batch: 1 }).unwrap();
        gpu.decoder.kernels.gpu.download::<f32>(&gpu.decoder.sampling.logits, spec.vocab).unwrap()
    };
    let (plain, rounded) = (logits(None), logits(Some(Scheme::Fp8)));
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let error =
        square(&mut plain.iter().zip(&rounded).map(|(a, b)| a - b)) / square(&mut plain.iter().copied());
    println!("relative error {:.3}", error.sqrt());
    assert!(error.sqrt() > 1e-3 && error.sqrt() < 0.15, "relative error {}", error.sqrt());
}
