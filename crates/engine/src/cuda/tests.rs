//! Compares every kernel with candle's operations in f32 on the CPU, on random shapes. Needs a GPU: `just gpu-test`.

// Reason: some kernels rely on values in device memory, which each test sets.
#![allow(unsafe_code)]

mod experts;
mod layers;
mod quantised;

use candle_core::{D, DType, Device, IndexOp, Tensor};
use decoder_ops::{EightBitRows, EightBits};
use half::{bf16, f16};

use super::{
    gpu::{Buffer, Gpu, Number},
    kernels::{
        AttentionSplits, HeadTransform, Kernels, KvCache, Matrix, SamplingBuffers, SamplingParameters, Values,
    },
    *,
};
use crate::{
    candle::{CandleEngine, Tensors, rope},
    kv::SPARE_POSITIONS,
    launch::Heads,
    speculation::{Draft, Proposer, Speculator},
    weights::SyntheticWeights,
};
use llm_cost::{
    ModelSpec,
    spec::{Activation, TensorShape},
};
use llmprof_base::noise;
use llmprof_config::{Dtype, KvCacheDtype};

const TYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

fn kernels(dtype: Dtype) -> Kernels {
    kernels_with(dtype, true)
}

fn kernels_with(dtype: Dtype, cublas: bool) -> Kernels {
    let mut gpu = Gpu::open(0, cublas).unwrap();
    assert!(
        gpu.load_kernels(
            dtype,
            Needs { quantised: true, experts: true, fp8: true, eight_bit_cache: true, layers: false },
            &mut |_, _| true
        )
        .unwrap()
    );
    Kernels { gpu, dtype, activation: Activation::Silu, scratch: None }
}

/// Keys and values of all positions, unquantised.
fn plain_cache<'a>([keys, values]: [&'a Buffer; 2], window: Option<usize>, h: &Heads) -> KvCache<'a> {
    KvCache { keys, values, window, slots: h.capacity, dtype: KvCacheDtype::Auto, sinks: None }
}

/// The random draws of one test, the same in every run.
struct Draws(u64, u64);

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws(seed, 0)
    }

    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        (noise::bits(self.0, self.1) % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Values near a standard normal distribution that `dtype` represents exactly.
    fn values(&mut self, n: usize, dtype: Dtype) -> Vec<f32> {
        self.1 += 1;
        let seed = noise::bits(self.0, self.1);
        (0..n as u64).map(|i| rounded(noise::bell(seed, i) as f32, dtype)).collect()
    }
}

fn rounded(x: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::F16 => f16::from_f32(x).to_f32(),
        Dtype::Bf16 => bf16::from_f32(x).to_f32(),
    }
}

fn put(k: &Kernels, values: &[f32]) -> Buffer {
    let buffer = k.gpu.alloc("a test", values.len() * k.dtype.bytes() as usize).unwrap();
    match k.dtype {
        Dtype::F32 => k.gpu.upload(&buffer, values),
        Dtype::F16 => k.gpu.upload(&buffer, &values.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
        Dtype::Bf16 => k.gpu.upload(&buffer, &values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()),
    }
    .unwrap();
    buffer
}

fn put32<T: Number>(k: &Kernels, values: &[T]) -> Buffer {
    let buffer = k.gpu.alloc("a test", size_of_val(values)).unwrap();
    k.gpu.upload(&buffer, values).unwrap();
    buffer
}

/// A buffer for `n` results, filled with NaN.
fn room(k: &Kernels, n: usize) -> Buffer {
    let buffer = k.gpu.alloc("a test", n * k.dtype.bytes() as usize).unwrap();
    k.gpu.fill(&buffer, 0xff).unwrap();
    buffer
}

fn get(k: &Kernels, buffer: &Buffer, n: usize) -> Vec<f32> {
    match k.dtype {
        Dtype::F32 => k.gpu.download::<f32>(buffer, n).unwrap(),
        Dtype::F16 => k.gpu.download::<f16>(buffer, n).unwrap().into_iter().map(f16::to_f32).collect(),
        Dtype::Bf16 => k.gpu.download::<bf16>(buffer, n).unwrap().into_iter().map(bf16::to_f32).collect(),
    }
}

fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// ‖found − expected‖ / ‖expected‖ must be within the rounding error of the type. NaN never passes.
fn assert_close(found: &[f32], expected: &[f32], dtype: Dtype, what: &str) {
    assert_within(found, expected, dtype, 1.0, what);
}

/// As [`assert_close`], with `times` that error.
fn assert_within(found: &[f32], expected: &[f32], dtype: Dtype, times: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let error = norm(&mut found.iter().zip(expected).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = norm(&mut expected.iter().map(|&b| f64::from(b))).max(1e-6);
    let allowed = match dtype {
        Dtype::F32 => 2e-5,
        Dtype::F16 => 2e-3,
        Dtype::Bf16 => 1.2e-2,
    };
    assert!(error / size < allowed * times, "{what} {dtype:?}: relative error {:.2e}", error / size);
}

fn matrix(k: &Kernels, values: &[f32], rows: usize, columns: usize) -> Matrix {
    Matrix { values: Values::Plain(put(k, values)), rows, columns }
}

/// A GEMM of random numbers: stored, added to y with a bias, and as logits.
fn assert_product_matches(k: &Kernels, draws: &mut Draws, (rows, n, columns): (usize, usize, usize)) {
    let dtype = k.dtype;
    let (x, w) = (draws.values(rows * columns, dtype), draws.values(n * columns, dtype));
    let (bias, before) = (draws.values(n, dtype), draws.values(rows * n, dtype));
    let product = tensor(&x, &[rows, columns]).matmul(&tensor(&w, &[n, columns]).t().unwrap()).unwrap();
    let (x, w) = (put(k, &x), matrix(k, &w, n, columns));
    let what = format!("{rows}×{columns} by {n}");

    let y = room(k, rows * n);
    k.linear(&y, &x, &w, rows, None, false).unwrap();
    assert_close(&get(k, &y, rows * n), &flat(&product), dtype, &what);

    let y = put(k, &before);
    k.linear(&y, &x, &w, rows, Some(&put(k, &bias)), true).unwrap();
    let sum = product.broadcast_add(&tensor(&bias, &[n])).unwrap();
    let sum = (sum + tensor(&before, &[rows, n])).unwrap();
    assert_close(&get(k, &y, rows * n), &flat(&sum), dtype, &format!("{what}, added"));

    let logits = k.gpu.alloc("a test", rows * n * 4).unwrap();
    k.gpu.fill(&logits, 0xff).unwrap();
    k.logits(&logits, &x, &w, rows).unwrap();
    let found: Vec<f32> = k.gpu.download(&logits, rows * n).unwrap();
    assert_close(&found, &flat(&product), dtype, &format!("{what}, logits"));
}

#[test]
#[ignore = "needs a GPU"]
fn gemms_match() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels(dtype), Draws::new(1));
        for case in 0..60 {
            let (rows, n) = (1 + draws.below(17), 1 + draws.below(300));
            let columns = match case % 3 {
                0 => 8 * (1 + draws.below(40)),
                1 => 256 * (1 + draws.below(20)),
                // Not divisible by eight: cuBLAS computes it instead of the built-in GEMM.
                _ => 2 * (1 + draws.below(200)),
            };
            assert_product_matches(&k, &mut draws, (rows, n, columns));
        }
    }
}

/// Many rows, without cuBLAS: partial tiles in every direction, columns that are not divisible by eight or by two.
#[test]
#[ignore = "needs a GPU"]
fn built_in_gemms_match() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels_with(dtype, false), Draws::new(7));
        assert!(k.gpu.without_cublas().is_some());
        for case in 0..40 {
            let (rows, n) = (18 + draws.below(400), 1 + draws.below(700));
            let columns = match case % 4 {
                3 => 1 + draws.below(300),
                _ => 8 * (1 + draws.below(80)),
            };
            assert_product_matches(&k, &mut draws, (rows, n, columns));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gated_gemms_match() {
    for dtype in TYPES {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::SwigluOai] {
            let (k, mut draws) = (Kernels { activation, ..kernels(dtype) }, Draws::new(2));
            for _ in 0..30 {
                let (rows, n, columns) =
                    (1 + draws.below(17), 1 + draws.below(200), 8 * (1 + draws.below(60)));
                let x = draws.values(rows * columns, dtype);
                let scale = 1.0 / (columns as f32).sqrt();
                let w: Vec<f32> =
                    draws.values(2 * n * columns, dtype).iter().map(|v| rounded(v * scale, dtype)).collect();
                let both =
                    tensor(&x, &[rows, columns]).matmul(&tensor(&w, &[2 * n, columns]).t().unwrap()).unwrap();
                let of_ops = match activation {
                    Activation::Silu => decoder_ops::Activation::Silu,
                    Activation::GeluTanh => decoder_ops::Activation::GeluTanh,
                    Activation::Gelu => decoder_ops::Activation::Gelu,
                    Activation::SwigluOai => decoder_ops::Activation::SwigluOai,
                };
                let expected = decoder_ops::gated_step_by_step(&both, of_ops).unwrap();
                let (x, w) = (put(&k, &x), matrix(&k, &w, 2 * n, columns));
                let (out, wide) = (room(&k, rows * n), room(&k, rows * 2 * n));
                k.gated(&out, &wide, &x, &w, rows).unwrap();
                let what = format!("{activation:?} of {rows}×{columns} by {n}");
                assert_close(&get(&k, &out, rows * n), &flat(&expected), dtype, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn norms_and_lookups_match() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels(dtype), Draws::new(3));
        for case in 0..40 {
            let rows = 1 + draws.below(9);
            let n = if case % 2 == 0 { 8 * (1 + draws.below(1200)) } else { 1 + draws.below(700) };
            let every = 1 + draws.below(3);
            let first = draws.below(every);
            let (x, weight) = (draws.values(rows * every * n, dtype), draws.values(n, Dtype::F32));
            let taken: Vec<f32> =
                (0..rows).flat_map(|row| x[(row * every + first) * n..][..n].to_vec()).collect();
            let expected =
                candle_nn::ops::rms_norm(&tensor(&taken, &[rows, n]), &tensor(&weight, &[n]), 1e-5).unwrap();
            let out = room(&k, rows * n);
            k.rms_norm(&out, &put(&k, &x), &put32(&k, &weight), (rows, n), 1e-5, (every, first)).unwrap();
            assert_close(&get(&k, &out, rows * n), &flat(&expected), dtype, &format!("norm of {rows}×{n}"));

            let before = draws.values(rows * n, dtype);
            let sum = (expected + tensor(&before, &[rows, n])).unwrap();
            let to = put(&k, &before);
            k.add_normed(&to, &put(&k, &taken), &put32(&k, &weight), (rows, n), 1e-5).unwrap();
            assert_close(&get(&k, &to, rows * n), &flat(&sum), dtype, &format!("norm of {rows}×{n}, added"));

            let ids: Vec<u32> = (0..5).map(|_| draws.below(rows * every) as u32).collect();
            let out = room(&k, 5 * n);
            let (table, id_buffer) = (matrix(&k, &x, rows * every, n), put32(&k, &ids));
            // SAFETY: the ids are below the table's rows.
            unsafe { k.embed(&out, &table, &id_buffer, 5, 1.0) }.unwrap();
            let expected: Vec<f32> = ids.iter().flat_map(|&id| x[id as usize * n..][..n].to_vec()).collect();
            assert_eq!(get(&k, &out, 5 * n), expected);
            // SAFETY: as above.
            unsafe { k.embed(&out, &table, &id_buffer, 5, 50.5) }.unwrap();
            let expected: Vec<f32> = expected.iter().map(|v| rounded(v * 50.5, dtype)).collect();
            assert_eq!(get(&k, &out, 5 * n), expected);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn logits_are_soft_capped() {
    let (k, mut draws) = (kernels(Dtype::F32), Draws::new(8));
    for (count, cap) in [(1, 30.0), (1000, 0.5), (3 * 256_000, 30.0), (7 * 40_013, 2.0)] {
        let x: Vec<f32> = draws.values(count, Dtype::F32).iter().map(|v| v * 20.0).collect();
        let expected = (tensor(&x, &[count]) / f64::from(cap)).unwrap().tanh().unwrap();
        let expected = (expected * f64::from(cap)).unwrap();
        let buffer = put32(&k, &x);
        k.softcap(&buffer, count, cap).unwrap();
        let found = k.gpu.download::<f32>(&buffer, count).unwrap();
        assert_close(&found, &flat(&expected), Dtype::F32, &format!("{count} in ±{cap}"));
    }
}

/// Head groups of every kind: 1, odd, as many as a block has, and more.
fn heads(draws: &mut Draws, capacity: usize) -> Heads {
    let (group, kv_heads) = (draws.pick(&[1, 2, 3, 7, 8, 12]), 1 + draws.below(2));
    let dim = draws.pick(&[64, 80, 96, 128, 256, 40]);
    let softcap = draws.pick(&[0.0, 0.0, 20.0]);
    let scale = 1.0 / (dim as f32).sqrt();
    Heads { heads: group * kv_heads, kv_heads, dim, batch: 1 + draws.below(2), capacity, scale, softcap }
}

/// Attention of `length` queries at the end of `context` keys, in unfused operations. q: (batch, length, heads, dim);
/// keys and values: (batch, kv_heads, capacity, dim).
fn attention(
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    context: usize,
    (window, sinks): (Option<usize>, Option<&[f32]>),
    h: &Heads,
) -> Tensor {
    let (batch, length, _, dim) = q.dims4().unwrap();
    let group = h.heads / h.kv_heads;
    let expand = |t: &Tensor| {
        let t = t.narrow(2, 0, context).unwrap().unsqueeze(2).unwrap();
        let t = t.broadcast_as((batch, h.kv_heads, group, context, dim)).unwrap();
        t.reshape((batch, h.heads, context, dim)).unwrap()
    };
    let q = q.transpose(1, 2).unwrap().contiguous().unwrap();
    let mut scores = (q.matmul(&expand(keys).t().unwrap()).unwrap() * f64::from(h.scale)).unwrap();
    if h.softcap > 0.0 {
        let cap = f64::from(h.softcap);
        scores = ((scores / cap).unwrap().tanh().unwrap() * cap).unwrap();
    }
    let first = context - length;
    let seen = |row: usize, key: usize| key <= first + row && window.is_none_or(|w| key + w > first + row);
    let mask: Vec<f32> = (0..length)
        .flat_map(|row| (0..context).map(move |key| if seen(row, key) { 0.0 } else { f32::NEG_INFINITY }))
        .collect();
    let scores = scores.broadcast_add(&tensor(&mask, &[length, context])).unwrap();
    let sinks = sinks.map_or_else(|| vec![f32::NEG_INFINITY; h.heads], <[f32]>::to_vec);
    let sinks = tensor(&sinks, &[1, h.heads, 1, 1]).broadcast_as((batch, h.heads, length, 1)).unwrap();
    let scores = Tensor::cat(&[scores, sinks.contiguous().unwrap()], 3).unwrap();
    let shares = candle_nn::ops::softmax(&scores, D::Minus1).unwrap();
    let shares = shares.narrow(3, 0, context).unwrap().contiguous().unwrap();
    shares.matmul(&expand(values)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn prefill_attention_matches() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels(dtype), Draws::new(4));
        for case in 0..36 {
            let length = if case == 0 { 2500 } else { 1 + draws.below(400) };
            let capacity = length + draws.below(50);
            let h = match case {
                0 => Heads { heads: 2, kv_heads: 1, dim: 64, batch: 1, capacity, scale: 0.125, softcap: 0.0 },
                _ => heads(&mut draws, capacity),
            };
            let window = draws.pick(&[None, None, Some(1), Some(70), Some(200)]);
            let qkv = draws.values(h.batch * length * h.columns(), dtype);
            let cache = h.batch * h.kv_heads * capacity * h.dim;
            let (keys, values) = (draws.values(cache, dtype), draws.values(cache, dtype));
            let sinks = draws.values(h.heads, Dtype::F32);
            let cache_shape = [h.batch, h.kv_heads, capacity, h.dim];
            let all = tensor(&qkv, &[h.batch, length, h.heads + 2 * h.kv_heads, h.dim]);
            let q = all.narrow(2, 0, h.heads).unwrap();
            let expected = attention(
                &q,
                &tensor(&keys, &cache_shape),
                &tensor(&values, &cache_shape),
                length,
                (window, Some(sinks.as_slice()).filter(|_| case % 2 > 0)),
                &h,
            );
            let n = h.batch * length * h.heads * h.dim;
            let out = room(&k, n);
            let (keys, values, sinks) = (put(&k, &keys), put(&k, &values), put32(&k, &sinks));
            let cache = plain_cache([&keys, &values], window, &h);
            let cache = KvCache { sinks: Some(&sinks).filter(|_| case % 2 > 0), ..cache };
            k.prefill_attention(&out, &put(&k, &qkv), &cache, length, &h).unwrap();
            assert_close(
                &get(&k, &out, n),
                &flat(&expected),
                dtype,
                &format!("length {length}, window {window:?}, {h:?}"),
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn decode_attention_matches() {
    for dtype in TYPES {
        let (k, mut draws) = (kernels(dtype), Draws::new(5));
        for case in 0..48 {
            let context = match case {
                0 => 1,
                1 => 9000,
                2..8 => 1 + draws.below(9000),
                _ => 1 + draws.below(700),
            };
            let capacity = context + draws.below(300);
            // The more sequences, the fewer blocks share one.
            let batch = match case {
                0..8 => 1,
                45.. => 30 * (case - 44),
                _ => 1 + draws.below(17),
            };
            let h = Heads { batch, ..heads(&mut draws, capacity) };
            let window = draws.pick(&[None, None, Some(1), Some(70), Some(1000)]);
            let qkv = draws.values(h.batch * h.columns(), dtype);
            let cache_len = h.batch * h.kv_heads * capacity * h.dim;
            let (keys, values) = (draws.values(cache_len, dtype), draws.values(cache_len, dtype));
            let sinks = draws.values(h.heads, Dtype::F32);
            let table = |draws: &mut Draws| put32(&k, &draws.values(capacity * h.dim / 2, Dtype::F32));
            let (cosines, sines) = (table(&mut draws), table(&mut draws));
            let bias = put(&k, &draws.values(h.columns(), dtype));
            let norm = put32(&k, &draws.values(h.dim, Dtype::F32));
            let transform = HeadTransform {
                bias: Some(&bias).filter(|_| case % 2 == 0),
                query_norm: Some(&norm).filter(|_| case % 3 == 0),
                key_norm: Some(&norm).filter(|_| case % 3 == 0),
                eps: 1e-5,
                cosines: &cosines,
                sines: &sines,
            };
            let progress = put32(&k, &[context as i32 - 1, 0]);
            // Rotated by a separate kernel.
            let apart = (put(&k, &qkv), put(&k, &keys), put(&k, &values));
            let cache = plain_cache([&apart.1, &apart.2], window, &h);
            // SAFETY: the position is `context` - 1, below the capacity.
            unsafe { k.rope(&apart.0, &cache, &transform, &progress, 1, &h) }.unwrap();
            let cache_shape = [h.batch, h.kv_heads, capacity, h.dim];
            let rotated = get(&k, &apart.0, h.batch * h.columns());
            let (all_keys, all_values) = (get(&k, &apart.1, cache_len), get(&k, &apart.2, cache_len));
            let q = tensor(&rotated, &[h.batch, 1, h.heads + 2 * h.kv_heads, h.dim])
                .narrow(2, 0, h.heads)
                .unwrap();
            let expected = attention(
                &q,
                &tensor(&all_keys, &cache_shape),
                &tensor(&all_values, &cache_shape),
                context,
                (window, Some(sinks.as_slice()).filter(|_| case % 4 > 1)),
                &h,
            );
            let sinks = put32(&k, &sinks);
            let splits = AttentionSplits::new(&k.gpu, &h, 1).unwrap();
            let within = (put(&k, &qkv), put(&k, &keys), put(&k, &values));
            let (qkv, keys, values) = if k.rotates_in_attention(&h, &cache) { within } else { apart };
            let cache = plain_cache([&keys, &values], window, &h);
            let cache = KvCache { sinks: Some(&sinks).filter(|_| case % 4 > 1), ..cache };
            let n = h.batch * h.heads * h.dim;
            // Twice: the counters must be zero again after the first.
            for _ in 0..2 {
                let out = room(&k, n);
                // SAFETY: as above.
                let transform = Some(&transform).filter(|_| k.rotates_in_attention(&h, &cache));
                unsafe { k.decode_attention(&out, &qkv, &cache, transform, &splits, &progress, 1, &h) }
                    .unwrap();
                let what = format!("context {context}, window {window:?}, {h:?}");
                assert_close(&get(&k, &out, n), &flat(&expected), dtype, &what);
                assert!(
                    get(&k, &keys, cache_len) == all_keys && get(&k, &values, cache_len) == all_values,
                    "{what}"
                );
            }
        }
    }
}

/// A prompt is kept and new positions are added, in every type of cache, with and without windows that free memory.
#[test]
#[ignore = "needs a GPU"]
fn cached_rows_match() {
    for (dtype, kind) in TYPES.into_iter().flat_map(|dtype| {
        [KvCacheDtype::Auto, KvCacheDtype::Fp8, KvCacheDtype::Q8_0].map(|kind| (dtype, kind))
    }) {
        let (k, mut draws) = (kernels(dtype), Draws::new(15));
        for case in 0..24 {
            let dim = draws.pick(match kind {
                KvCacheDtype::Q8_0 => &[64, 128, 256],
                _ => &[64, 96, 128, 80],
            });
            let (prompt, length) = (1 + draws.below(600), [1, 1, 3, 8][case % 4]);
            let (context, kv_heads) = (prompt + length, draws.pick(&[1, 2]));
            let capacity = context + draws.below(60);
            let (batch, heads) = (1 + draws.below(3), kv_heads * draws.pick(&[1, 4, 7, 9]));
            let h = Heads { heads, kv_heads, dim, batch, capacity, scale: 0.1, softcap: 0.0 };
            let window = draws.pick(&[None, Some(1), Some(70), Some(200)]);
            let slots = window.map_or(capacity, |window: usize| capacity.min(window + SPARE_POSITIONS));
            let count = batch * kv_heads * prompt * dim;
            let fresh = [draws.values(count, dtype), draws.values(count, dtype)];
            let of_prompt = fresh.clone().map(|values| put(&k, &values));
            let bytes = h.cache_bytes(slots, kind, dtype.bytes() as usize);
            let kept = [(); 2].map(|()| k.gpu.zeros("a test", bytes).unwrap());
            let cache = KvCache { keys: &kept[0], values: &kept[1], window, slots, dtype: kind, sinks: None };
            let own = Heads { capacity: prompt, ..h };
            k.keep(&cache, &plain_cache([&of_prompt[0], &of_prompt[1]], window, &own), prompt, &h).unwrap();
            // The new rows, kept unquantised too.
            let qkv = draws.values(batch * length * h.columns(), dtype);
            let table = |draws: &mut Draws| put32(&k, &draws.values(capacity * dim / 2, Dtype::F32));
            let (cosines, sines) = (table(&mut draws), table(&mut draws));
            let transform = HeadTransform {
                bias: None,
                query_norm: None,
                key_norm: None,
                eps: 1e-5,
                cosines: &cosines,
                sines: &sines,
            };
            let progress = put32(&k, &[prompt as i32, 0]);
            let all = batch * kv_heads * capacity * dim;
            let plain = [room(&k, all), room(&k, all)];
            let rotated = put(&k, &qkv);
            let plainly = plain_cache([&plain[0], &plain[1]], window, &h);
            // SAFETY: the position is `prompt`, and the capacity at least `context`.
            unsafe { k.rope(&rotated, &plainly, &transform, &progress, length, &h) }.unwrap();
            // The contents of the cache: prompt and new rows, each number rounded as the cache stores it.
            let rows: Vec<Tensor> = fresh
                .iter()
                .zip(&plain)
                .map(|(fresh, plain)| {
                    let fresh = tensor(fresh, &[batch, kv_heads, prompt, dim]);
                    let plain = tensor(&get(&k, plain, all), &[batch, kv_heads, capacity, dim]);
                    let rows = Tensor::cat(&[fresh, plain.narrow(2, prompt, length).unwrap()], 2).unwrap();
                    let eight_bits = match kind {
                        KvCacheDtype::Auto => return rows,
                        KvCacheDtype::Fp8 => EightBits::Fp8,
                        KvCacheDtype::Q8_0 => EightBits::Q8_0,
                    };
                    let mut kept = EightBitRows::new(eight_bits, (batch, kv_heads), context, dim);
                    kept.write(&rows, 0).unwrap();
                    kept.read(0..context).unwrap()
                })
                .collect();
            let q = tensor(
                &get(&k, &rotated, batch * length * h.columns()),
                &[batch, length, heads + 2 * kv_heads, dim],
            );
            let q = q.narrow(2, 0, heads).unwrap();
            let of_context = Heads { capacity: context, ..h };
            let sinks = Draws::new(case as u64).values(heads, Dtype::F32);
            let has_sinks = case % 2 > 0;
            let of_rows = (window, Some(sinks.as_slice()).filter(|_| has_sinks));
            let expected = attention(&q, &rows[0], &rows[1], context, of_rows, &of_context);
            let sinks = put32(&k, &sinks);
            let cache = KvCache { sinks: Some(&sinks).filter(|_| has_sinks), ..cache };
            let splits = AttentionSplits::new(&k.gpu, &h, length).unwrap();
            let n = batch * length * heads * dim;
            let what = format!("{kind:?}, {length} after {prompt}, window {window:?}, {h:?}");
            for _ in 0..2 {
                let (out, qkv) = (room(&k, n), put(&k, &qkv));
                let within = length == 1 && k.rotates_in_attention(&h, &cache);
                // SAFETY: as above.
                unsafe {
                    if !within {
                        k.rope(&qkv, &cache, &transform, &progress, length, &h).unwrap();
                    }
                    let transform = Some(&transform).filter(|_| within);
                    k.decode_attention(&out, &qkv, &cache, transform, &splits, &progress, length, &h)
                        .unwrap();
                }
                // New keys are rounded from f32 in the kernel, and from the model's type here: a few round differently.
                // With sinks, a new key determines how large the result is.
                let allowed = match kind {
                    KvCacheDtype::Auto => 1.0,
                    _ if has_sinks => 6.0,
                    _ => 2.0,
                };
                assert_within(&get(&k, &out, n), &flat(&expected), dtype, allowed, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn rotation_matches_and_fills_the_cache() {
    let spec = |dim: usize| {
        ModelSpec::from_hf(&serde_json::json!({
            "model_type": "qwen3", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "head_dim": dim,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 16000, "rope_theta": 1_000_000.0
        }))
        .unwrap()
    };
    for dtype in TYPES {
        let (k, mut draws) = (kernels(dtype), Draws::new(6));
        for case in 0..24 {
            let (length, start) = (1 + draws.below(20), draws.pick(&[0, 7, 900, 9000]));
            let capacity = start + length + draws.below(9);
            let h = Heads { softcap: 0.0, ..heads(&mut draws, capacity) };
            let (normed, biased) = (case % 2 == 0, case % 3 == 0);
            let (cosines, sines) = rope::tables(&spec(h.dim), None, capacity).unwrap();
            let half = h.dim / 2;
            let all_heads = h.heads + 2 * h.kv_heads;
            let rows = h.batch * length;
            let qkv = draws.values(rows * h.columns(), dtype);
            let bias = draws.values(h.columns(), dtype);
            let norms = [draws.values(h.dim, Dtype::F32), draws.values(h.dim, Dtype::F32)];

            let mut t = tensor(&qkv, &[h.batch, length, all_heads, h.dim]);
            if biased {
                t = t.broadcast_add(&tensor(&bias, &[all_heads, h.dim])).unwrap();
            }
            let part = |from: usize, count: usize| t.narrow(2, from, count).unwrap().contiguous().unwrap();
            let norm = |t: Tensor, weight: &[f32]| match normed {
                true => candle_nn::ops::rms_norm(&t, &tensor(weight, &[h.dim]), 1e-6).unwrap(),
                false => t,
            };
            let turn = |t: Tensor| {
                let t = t.transpose(1, 2).unwrap().contiguous().unwrap();
                let table =
                    |all: &[f32]| tensor(&all[start * half..(start + length) * half], &[length, half]);
                candle_nn::rotary_emb::rope(&t, &table(&cosines), &table(&sines)).unwrap()
            };
            let q = turn(norm(part(0, h.heads), &norms[0])).transpose(1, 2).unwrap().contiguous().unwrap();
            let new_keys = turn(norm(part(h.heads, h.kv_heads), &norms[1]));
            let new_values = part(h.heads + h.kv_heads, h.kv_heads).transpose(1, 2).unwrap();

            let buffer = put(&k, &qkv);
            let cache = h.batch * h.kv_heads * capacity * h.dim;
            let (keys, values) = (room(&k, cache), room(&k, cache));
            let (bias, norms) = (put(&k, &bias), norms.map(|n| put32(&k, &n)));
            let (cosines, sines) = (put32(&k, &cosines), put32(&k, &sines));
            let progress = put32(&k, &[start as i32, 0]);
            let transform = HeadTransform {
                bias: biased.then_some(&bias),
                query_norm: normed.then_some(&norms[0]),
                key_norm: normed.then_some(&norms[1]),
                eps: 1e-6,
                cosines: &cosines,
                sines: &sines,
            };
            let cache_of = plain_cache([&keys, &values], None, &h);
            // SAFETY: the position is `start`, and the capacity at least `start` + `length`.
            unsafe { k.rope(&buffer, &cache_of, &transform, &progress, length, &h) }.unwrap();
            let what = format!("length {length} from {start}, {h:?}");
            let found = tensor(&get(&k, &buffer, rows * h.columns()), &[h.batch, length, all_heads, h.dim]);
            assert_close(&flat(&found.narrow(2, 0, h.heads).unwrap()), &flat(&q), dtype, &what);
            for (found, expected) in [(&keys, &new_keys), (&values, &new_values)] {
                let found = tensor(&get(&k, found, cache), &[h.batch, h.kv_heads, capacity, h.dim]);
                assert_close(&flat(&found.narrow(2, start, length).unwrap()), &flat(expected), dtype, &what);
                assert!(
                    start == 0 || flat(&found.i((0, 0, start - 1)).unwrap())[0].is_nan(),
                    "{what}: written before the first position"
                );
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn random_weights_equal_those_of_the_cpu() {
    let weights = SyntheticWeights::new(9);
    for dtype in TYPES {
        let k = kernels(dtype);
        for (name, shape) in
            [("a.weight", vec![37, 301]), ("b.bias", vec![1, 777]), ("norm.weight", vec![1, 64])]
        {
            let shape = TensorShape { name: name.to_owned(), shape };
            let (rows, columns) = (shape.shape[0], shape.shape[1]);
            let (key, spread) = weights.recipe(&shape);
            let out = room(&k, rows * columns);
            k.synthetic((&out).into(), key, (rows, columns), spread).unwrap();
            let expected = weights.tensor(&shape, dtype).unwrap();
            assert_eq!(get(&k, &out, rows * columns), flat(&expected), "{name} {dtype:?}");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn tokens_are_sampled_by_argmax_and_by_random_draw() {
    let k = kernels(Dtype::F32);
    let (batch, vocab) = (5, 40_013);
    let buffers = SamplingBuffers::new(&k.gpu, batch, vocab).unwrap();
    let ring = k.gpu.ring(4, batch).unwrap();
    let mut logits = Draws::new(7).values(batch * vocab, Dtype::F32);
    // The maximum occurs twice in one row: the first counts.
    (logits[100], logits[30_000]) = (50.0, 50.0);
    k.gpu.upload(&buffers.logits, &logits).unwrap();
    k.argmax(&buffers, &ring, 3).unwrap();
    let likeliest =
        |row: &[f32]| (0..vocab).reduce(|a, b| if row[b] > row[a] { b } else { a }).unwrap() as u32;
    let expected: Vec<u32> = logits.chunks(vocab).map(likeliest).collect();
    assert_eq!(k.gpu.wait(&ring, 1).unwrap(), expected);
    assert_eq!(expected[0], 100);
    assert_eq!(k.gpu.download::<u32>(&buffers.tokens, batch).unwrap(), expected);
    assert_eq!(k.gpu.download::<i32>(&buffers.progress, 2).unwrap(), [3, 1], "position and count advance");

    // Odds 8 : 4 : 2 : 1 among four tokens, and almost zero for the rest.
    let mut row = vec![-40.0; vocab];
    for (at, odds) in [(11, 2f32), (17, 8.0), (30_001, 1.0), (7, 4.0)] {
        row[at] = odds.ln();
    }
    k.gpu.upload(&buffers.logits, &row.repeat(batch)).unwrap();
    let shares = |temperature: f32, top_k: usize, top_p: f32| {
        let parameters = SamplingParameters { temperature, top_k, top_p, seed: 5 };
        let mut counts = [0u32; 4];
        for _ in 0..2000 {
            k.sample(&buffers, &ring, 0, &parameters).unwrap();
            for id in k.gpu.download::<u32>(&buffers.tokens, batch).unwrap() {
                let at = [11, 17, 30_001, 7].iter().position(|&known| known == id).expect("a likely token");
                counts[at] += 1;
            }
        }
        counts.map(|n| (n + 50) / 100)
    };
    let table = [
        ((1.0, 0, 1.0), [13, 53, 7, 27]),
        ((1.0, 2, 1.0), [0, 67, 0, 33]),
        ((1.0, 0, 0.5), [0, 100, 0, 0]),
        ((1.0, 0, 0.6), [0, 67, 0, 33]),
        ((1.0, 3, 0.9), [14, 57, 0, 29]),
        ((0.5, 0, 1.0), [5, 75, 1, 19]),
    ];
    for ((temperature, top_k, top_p), expected) in table {
        let found = shares(temperature, top_k, top_p);
        let near = found.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 2);
        assert!(near, "{found:?}, not {expected:?}: temperature {temperature}, top_k {top_k}, top_p {top_p}");
    }
}

/// Tiny models of every family, with its features.
fn tiny_models() -> Vec<(&'static str, ModelSpec)> {
    let spec = |more: serde_json::Value| {
        let mut config = serde_json::json!({
            "vocab_size": 331, "hidden_size": 192, "intermediate_size": 296, "num_hidden_layers": 3,
            "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ModelSpec::from_hf(&config).unwrap()
    };
    let scaling = serde_json::json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    });
    let yarn = serde_json::json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128});
    let divisors = |step: f64| (0..16).map(|i| 1.0 + step * f64::from(i)).collect::<Vec<_>>();
    let longrope = serde_json::json!({
        "type": "longrope", "short_factor": divisors(0.1), "long_factor": divisors(4.0),
        "original_max_position_embeddings": 90
    });
    let linear = serde_json::json!({"rope_type": "linear", "factor": 8.0});
    vec![
        ("llama", spec(serde_json::json!({"model_type": "llama", "rope_scaling": scaling}))),
        ("llama with biases", spec(serde_json::json!({"model_type": "llama", "attention_bias": true}))),
        ("mistral", spec(serde_json::json!({"model_type": "mistral", "sliding_window": 20}))),
        ("qwen2", spec(serde_json::json!({"model_type": "qwen2", "tie_word_embeddings": true}))),
        ("qwen3", spec(serde_json::json!({"model_type": "qwen3", "head_dim": 64}))),
        ("phi3", spec(serde_json::json!({"model_type": "phi3", "sliding_window": 30}))),
        ("qwen2 with yarn", spec(serde_json::json!({"model_type": "qwen2", "rope_scaling": yarn}))),
        // Prompts of 37 and 45 with their 64 tokens are beyond the original context, shorter ones within it.
        ("phi3 with longrope", spec(serde_json::json!({"model_type": "phi3", "rope_scaling": longrope}))),
        (
            "gemma2",
            spec(serde_json::json!({
                "model_type": "gemma2", "head_dim": 64, "sliding_window": 12, "query_pre_attn_scalar": 48,
                "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0
            })),
        ),
        (
            "gemma3",
            spec(serde_json::json!({
                "model_type": "gemma3_text", "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1,
                "num_hidden_layers": 4, "sliding_window": 12, "sliding_window_pattern": 3,
                "rope_local_base_freq": 500.0, "rope_scaling": linear
            })),
        ),
        (
            "mixtral",
            spec(serde_json::json!({
                "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null
            })),
        ),
        (
            "qwen2_moe",
            spec(serde_json::json!({
                "model_type": "qwen2_moe", "num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 72,
                "shared_expert_intermediate_size": 144, "decoder_sparse_step": 2
            })),
        ),
        (
            "qwen3_moe",
            spec(serde_json::json!({
                "model_type": "qwen3_moe", "num_experts": 40, "num_experts_per_tok": 8, "moe_intermediate_size": 64,
                "norm_topk_prob": true, "head_dim": 64
            })),
        ),
        (
            "gpt_oss",
            spec(serde_json::json!({
                "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 96,
                "head_dim": 64, "sliding_window": 20, "attention_bias": true, "rope_scaling": {
                    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": false
                }
            })),
        ),
        ("llama with GELU", spec(serde_json::json!({"model_type": "llama", "hidden_act": "gelu"}))),
    ]
}

fn options(spec: &ModelSpec, dtype: Dtype, batch: usize, prompt: usize, steps: usize) -> CandleOptions {
    CandleOptions {
        spec: spec.clone(),
        model: "tiny".to_owned(),
        dtype,
        threads: None,
        batch,
        max_positions: prompt + steps,
        prompt_tokens: prompt,
        seed: 3,
        checkpoint: None,
        scheme: None,
        sampling: Sampling::greedy(),
        cuda_graphs: true,
        cublas: true,
        fused_step: true,
        kv_cache: KvCacheDtype::Auto,
        step_positions: 1,
    }
}

fn generate(engine: &mut dyn Engine, prompts: &Prompts, steps: usize) -> Vec<Vec<u32>> {
    let first = engine.prefill(prompts).unwrap();
    std::iter::once(first).chain((1..steps).map(|_| engine.decode().unwrap())).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn tokens_equal_those_of_the_cpu() {
    for (name, spec) in tiny_models() {
        for (batch, prompt) in [(1, 37), (3, 1), (3, 45), (11, 20)] {
            let options = options(&spec, Dtype::F32, batch, prompt, 64);
            let ids = (0..batch * prompt).map(|i| (noise::bits(4, i as u64) % 331) as u32).collect();
            let prompts = Prompts { ids, batch };
            let mut cpu = CandleEngine::new(&options, &mut |_, _, _| true).unwrap();
            let mut gpu = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
            let expected = generate(&mut cpu, &prompts, 64);
            assert_eq!(generate(&mut gpu, &prompts, 64), expected, "{name}, batch {batch}, prompt {prompt}");
            // Again, after an early end: steps queued ahead have no effect.
            gpu.prefill(&prompts).unwrap();
            gpu.decode().unwrap();
            assert_eq!(generate(&mut gpu, &prompts, 64), expected, "{name}, again");
            // The last token has a position in the cache, and there is none for another.
            gpu.decode().unwrap();
            assert!(gpu.decode().is_err(), "past the capacity");
        }
    }
}

/// Kernels that wait for each other's results within a step produce the same tokens in every run, with and without a
/// graph.
#[test]
#[ignore = "needs a GPU"]
fn tokens_of_experts_are_the_same_in_every_run() {
    for (name, spec) in tiny_models().into_iter().filter(|(_, spec)| spec.experts.is_some()) {
        let prompts = Prompts { ids: (0..45).map(|i| (noise::bits(4, i) % 331) as u32).collect(), batch: 1 };
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let tokens = |cuda_graphs| {
                let options = CandleOptions { cuda_graphs, ..options(&spec, dtype, 1, 45, 64) };
                let mut engine = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
                [(); 3].map(|()| generate(&mut engine, &prompts, 64))
            };
            let [first, again, last] = tokens(true);
            assert_eq!((&again, &last), (&first, &first), "{name}, {dtype:?}");
            assert_eq!(
                tokens(false),
                [first.clone(), first.clone(), first],
                "{name}, {dtype:?}, kernel by kernel"
            );
        }
    }
}

/// The same in an 8-bit cache, and with draft tokens of another model or found in the text.
#[test]
#[ignore = "needs a GPU"]
fn cached_and_speculated_tokens_equal_those_of_the_cpu() {
    for (name, spec) in tiny_models() {
        let prompts = Prompts { ids: (0..45).map(|i| (noise::bits(4, i) % 331) as u32).collect(), batch: 1 };
        let plain = options(&spec, Dtype::F32, 1, 45, 64);
        for kv_cache in [KvCacheDtype::Fp8, KvCacheDtype::Q8_0] {
            let options = CandleOptions { kv_cache, ..plain.clone() };
            if options.kv_shape().check(&spec, Q8_0_STEP).is_err() {
                continue;
            }
            let mut cpu = CandleEngine::new(&options, &mut |_, _, _| true).unwrap();
            let mut gpu = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
            let expected = generate(&mut cpu, &prompts, 32);
            assert_eq!(generate(&mut gpu, &prompts, 32), expected, "{name}, {kv_cache:?}");
        }
        let engine =
            |options: &CandleOptions| Box::new(CudaEngine::new(options, 0, &mut |_, _, _| true).unwrap());
        let expected = generate(&mut CandleEngine::new(&plain, &mut |_, _, _| true).unwrap(), &prompts, 64);
        for (tokens, graphs) in [(1, true), (4, true), (7, false)] {
            let checking = CandleOptions { step_positions: 1 + tokens, cuda_graphs: graphs, ..plain.clone() };
            // A draft model that agrees, one that does not, and none.
            let drafts = [Some(plain.seed), Some(plain.seed + 1), None].map(|seed| match seed {
                Some(seed) => {
                    let options = CandleOptions { seed, ..checking.clone() };
                    Proposer::Draft(Draft::new(engine(&options), spec.vocab))
                }
                None => Proposer::Ngram { longest: 3 },
            });
            for (draft, proposer) in drafts.into_iter().enumerate() {
                let mut speculator = Speculator::new(engine(&checking), proposer, tokens, None);
                for again in 0..2 {
                    let mut found = speculator.prefill(&prompts).unwrap();
                    let mut accepted = 0;
                    while found.len() < 64 {
                        found.extend(speculator.decode().unwrap());
                        accepted += speculator.speculation().unwrap().accepted;
                    }
                    let expected: Vec<u32> = expected.iter().flatten().copied().collect();
                    assert_eq!(found[..64], expected, "{name}, {tokens} of draft {draft}, {again}");
                    assert!(
                        draft != 0 || accepted as usize * 8 > 64 * tokens / (tokens + 1) * 7,
                        "{accepted}"
                    );
                }
            }
        }
    }
}

/// Needs candle's own kernels.
#[cfg(feature = "candle-cuda")]
mod against_stock {
    use super::*;
    use crate::candle::stock::StockModel;

    /// Logits of a prompt by candle-transformers on the same weights.
    fn stock_logits(config: &serde_json::Value, dtype: Dtype, ids: &[u32]) -> Vec<f32> {
        let device = Device::new_cuda(0).unwrap();
        let mut model =
            StockModel::synthetic(config).unwrap().make(dtype, 3, 1, &device, &mut |_, _, _| true).unwrap();
        let ids = Tensor::from_slice(ids, (1, ids.len()), &device).unwrap();
        flat(&model.forward(&ids, 0).unwrap().to_device(&Device::Cpu).unwrap())
    }

    #[test]
    #[ignore = "needs a GPU with 32 GB free"]
    fn half_precision_is_as_accurate_as_stock() {
        // The shape of Qwen2.5-7B.
        assert_as_accurate_as_stock(&serde_json::json!({
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
            "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_act": "silu",
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "max_position_embeddings": 131072,
            "tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 131072, "max_window_layers": 28
        }));
    }

    #[test]
    #[ignore = "needs a GPU with 16 GB free"]
    fn half_precision_of_gemma_is_as_accurate_as_stock() {
        // The shape of gemma-2-2b: heads of 256 and soft caps on the tensor cores.
        assert_as_accurate_as_stock(&serde_json::json!({
            "model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
            "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
            "max_position_embeddings": 8192, "sliding_window": 4096, "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "attention_bias": false
        }));
    }

    /// The built-in logits in bf16 have no larger error than candle-transformers' in bf16, compared with its logits in
    /// f32.
    fn assert_as_accurate_as_stock(config: &serde_json::Value) {
        let spec = ModelSpec::from_hf(config).unwrap();
        let ids: Vec<u32> = (0..96).map(|i| (noise::bits(4, i) % spec.vocab as u64) as u32).collect();
        let reference = stock_logits(config, Dtype::F32, &ids);
        let stock = stock_logits(config, Dtype::Bf16, &ids);
        let mut engine =
            CudaEngine::new(&options(&spec, Dtype::Bf16, 1, ids.len(), 4), 0, &mut |_, _, _| true).unwrap();
        engine.prefill(&Prompts { ids: ids.clone(), batch: 1 }).unwrap();
        let ours: Vec<f32> =
            engine.decoder.kernels.gpu.download(&engine.decoder.sampling.logits, spec.vocab).unwrap();
        let error = |found: &[f32]| {
            let norm = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
            };
            norm(&mut found.iter().zip(&reference).map(|(a, b)| a - b)) / norm(&mut reference.iter().copied())
        };
        let (ours, stock) = (error(&ours), error(&stock));
        println!("relative error of the logits in bf16: ours {ours:.4}, candle-transformers {stock:.4}");
        assert!(ours < 1.2 * stock && ours < 0.1, "ours {ours:.4}, candle-transformers {stock:.4}");
    }
}

/// Random weights preserve the scale of activations: after 80 layers the logits are finite and not flat.
#[test]
#[ignore = "needs a GPU"]
fn activations_keep_their_scale_over_80_layers() {
    for dtype in TYPES {
        let spec = ModelSpec::from_hf(&serde_json::json!({
            "model_type": "llama", "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024,
            "num_hidden_layers": 80, "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64
        }))
        .unwrap();
        let mut engine = CudaEngine::new(&options(&spec, dtype, 1, 16, 4), 0, &mut |_, _, _| true).unwrap();
        engine.prefill(&Prompts { ids: (0..16).collect(), batch: 1 }).unwrap();
        let logits: Vec<f32> =
            engine.decoder.kernels.gpu.download(&engine.decoder.sampling.logits, 1000).unwrap();
        let deviation = (logits.iter().map(|v| v * v).sum::<f32>() / 1000.0).sqrt();
        assert!(
            logits.iter().all(|v| v.is_finite()) && (0.3..3.0).contains(&deviation),
            "{dtype:?}: {deviation}"
        );
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_host_prevents_repetition() {
    let (_, spec) = tiny_models().remove(3);
    let sampling = Sampling { no_repeat_ngram_size: 2, ..Sampling::greedy() };
    let options = CandleOptions { sampling, ..options(&spec, Dtype::F32, 2, 9, 40) };
    let prompts = Prompts { ids: (0..18).map(|i| i * 7).collect(), batch: 2 };
    let mut cpu = CandleEngine::new(&options, &mut |_, _, _| true).unwrap();
    let mut gpu = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
    assert_eq!(generate(&mut gpu, &prompts, 40), generate(&mut cpu, &prompts, 40));
}

#[test]
#[ignore = "needs a GPU"]
fn errors_name_the_problem() {
    let (_, spec) = tiny_models().remove(0);
    let refused = |options: &CandleOptions, index| match CudaEngine::new(options, index, &mut |_, _, _| true)
    {
        Ok(_) => panic!("accepted"),
        Err(e) => e.to_string(),
    };
    let none = refused(&options(&spec, Dtype::F32, 1, 8, 8), 99);
    assert!(none.contains("there is no cuda:99"), "{none}");
    let huge = CandleOptions { batch: 1 << 21, ..options(&spec, Dtype::F32, 1, 256, 8) };
    let huge = refused(&huge, 0);
    assert!(huge.contains("tiny needs") && huge.contains("GB on NVIDIA"), "{huge}");
    // The device still works.
    CudaEngine::new(&options(&spec, Dtype::F32, 1, 8, 8), 0, &mut |_, _, _| true).unwrap();

    let gpu = Gpu::open(0, true).unwrap();
    let free = gpu.free_bytes().unwrap();
    let error = gpu.alloc("a test", free as usize + (1 << 30)).err().expect("more than is free").to_string();
    assert!(error.contains("a test needs") && error.contains("are free"), "{error}");
    gpu.alloc("a test", 1 << 20).unwrap();
}

/// Set in the process that loses its context, so that no other test runs in it.
const STOPS_THE_GPU: &str = "LLMPROF_TEST_STOPS_THE_GPU";

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_stopped_gpu_is_reported_with_the_remedy() {
    if std::env::var_os(STOPS_THE_GPU).is_none() {
        let name = "engine::cuda::tests::a_stopped_gpu_is_reported_with_the_remedy";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", name])
            .env(STOPS_THE_GPU, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        // This process is not affected.
        Gpu::open(0, true).unwrap();
        return;
    }
    let (_, spec) = tiny_models().remove(0);
    let options = options(&spec, Dtype::F32, 1, 8, 8);
    let mut engine = CudaEngine::new(&options, 0, &mut |_, _, _| true).unwrap();
    let prompts = Prompts { ids: vec![1; 8], batch: 1 };
    engine.decoder.kernels.gpu.inject_fault().unwrap();
    let error = engine.prefill(&prompts).and_then(|_| engine.decode()).expect_err("the GPU has stopped");
    let is_reported = |error: &EngineError| {
        let message = error.to_string();
        message.contains("the GPU stopped: an illegal memory access")
            && message.contains("start the program again")
    };
    assert!(is_reported(&error), "{error}");
    drop(engine);
    let again = CudaEngine::new(&options, 0, &mut |_, _, _| true).err().expect("no second context");
    assert!(is_reported(&again), "{again}");
}

/// A launch that does not fit its buffers is refused before it reaches the device, which still works afterwards.
#[test]
#[ignore = "needs a GPU"]
fn launches_beyond_their_buffers_are_refused() {
    let k = kernels(Dtype::Bf16);
    let (x, w) = (room(&k, 4 * 64), matrix(&k, &vec![0.5; 32 * 64], 32, 64));
    let y = room(&k, 4 * 32);
    k.linear(&y, &x, &w, 4, None, false).unwrap();
    let heads = Heads { heads: 4, kv_heads: 2, dim: 64, batch: 1, capacity: 8, scale: 0.125, softcap: 0.0 };
    let (out, qkv, keys) = (room(&k, 8 * 4 * 64), room(&k, 8 * heads.columns()), room(&k, 2 * 8 * 64));
    let cache = plain_cache([&keys, &keys], None, &heads);
    let buffers = SamplingBuffers::new(&k.gpu, 2, 100).unwrap();
    let other_ring = k.gpu.ring(4, 3).unwrap();
    let prefill = match k.gpu.runs_hopper_kernels() {
        true => "prefill_attention_hopper_64_bf16",
        false => "prefill_attention_64_bf16",
    };
    let refused = [
        ("skinny_8_bf16", "y has 256 bytes", k.linear(&y, &x, &w, 5, None, false)),
        ("the GEMM", "y has 256 bytes", k.linear(&y, &x, &w, 100, None, false)),
        ("skinny_8_bf16", "the bias has 256 bytes", {
            let wide = matrix(&k, &vec![0.5; 256 * 64], 256, 64);
            k.linear(&room(&k, 256), &x, &wide, 1, Some(&y), false)
        }),
        ("rms_norm_bf16", "x has 512 bytes", k.rms_norm(&out, &x, &out, (4, 64), 1e-5, (2, 1))),
        ("softcap", "x has 256 bytes", k.softcap(&y, 65, 1.0)),
        (prefill, "9 positions", k.prefill_attention(&out, &qkv, &cache, 9, &heads)),
        (prefill, "the key cache", {
            let larger = Heads { capacity: 9, ..heads };
            k.prefill_attention(&out, &qkv, &KvCache { slots: 9, ..cache }, 8, &larger)
        }),
        ("pick_likeliest", "the ring has 3 tokens", k.argmax(&buffers, &other_ring, 1)),
        ("synthetic_bf16", "the output has 0 bytes", {
            k.synthetic(y.slice_from(1 << 20), 1, (1, 1), (0.0, 1.0))
        }),
    ];
    for (kernel, problem, result) in refused {
        let message = result.expect_err(kernel).to_string();
        assert!(message.contains(&format!("kernel {kernel} ")) && message.contains(problem), "{message}");
    }
    k.linear(&y, &x, &w, 4, None, false).unwrap();
    k.gpu.synchronize().unwrap();
}
