//! Causal attention over the cache: blocks of queries for prefill, one fused pass for a decode step.

use candle_core::{CpuStorage, CustomOp3, InplaceOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use crate::{
    gemv::contiguous,
    ops::{softcapped_step_by_step, widen},
    simd::{Stored, accumulate, dot, softmax, tanh, vectorised},
};

/// Queries of one prefill block. Bounds the scores to `heads · QUERY_BLOCK · context` at a time.
pub const QUERY_BLOCK: usize = 128;

/// The mask of a layer, and the computation of attention weights from scores.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// A query attends to itself and earlier positions, at most this many.
    pub window: Option<usize>,
    /// Scores are divided by the square root of this.
    pub scalar: f64,
    /// Scores are capped to ± this.
    pub softcap: Option<f32>,
}

impl Sight {
    /// The positions that the query at `position` attends to.
    fn at(&self, position: usize) -> std::ops::Range<usize> {
        let from = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        from..position + 1
    }

    fn scale(&self) -> f32 {
        1.0 / (self.scalar as f32).sqrt()
    }

    /// Softmax of the scores, in place; a `sink` takes a share that belongs to no position.
    #[inline(always)]
    fn shares(&self, scores: &mut [f32], sink: Option<f32>) {
        let scale = self.scale();
        let Some(cap) = self.softcap else { return softmax(scores, scale, sink) };
        for score in scores.iter_mut() {
            *score = cap * tanh(*score * scale / cap);
        }
        softmax(scores, 1.0, sink);
    }
}

/// Attention of `q` (b, heads, t, d), whose first query is at `position`, over keys and values (b, kv heads, capacity,
/// d) that are filled up to `position + t`. `sinks`: one score per head that belongs to no position. Returns (b, t,
/// heads · d).
pub fn attention(
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    position: usize,
    sight: Sight,
    sinks: Option<&[f32]>,
) -> Result<Tensor> {
    let (b, heads, t, d) = q.dims4()?;
    let kv_heads = keys.dim(1)?;
    if t == 1 && q.device().is_cpu() {
        let op = DecodeAttention { span: sight.at(position), sight, sinks };
        return q.apply_op3_no_bwd(keys, values, &op);
    }
    let mut blocks = Vec::with_capacity(t.div_ceil(QUERY_BLOCK));
    for start in (0..t).step_by(QUERY_BLOCK) {
        let rows = QUERY_BLOCK.min(t - start);
        let first_query = position + start;
        // The block's first query has the earliest start of its window, the last one the latest end.
        let from = sight.at(first_query).start;
        let to = first_query + rows;
        // Query heads of a group are adjacent in memory: as rows of one product they share their keys without a copy.
        let queries = q.narrow(2, start, rows)?.contiguous()?.reshape((b, kv_heads, (), d))?;
        let keys = filled(keys, from, to)?;
        let scores = queries.matmul(&keys.transpose(2, 3)?)?;
        let softmax = CausalSoftmax { rows, first_query, first_key: from, sight, sinks };
        let shares = softmax.apply(scores)?;
        let out = shares.matmul(&filled(values, from, to)?)?;
        blocks.push(out.reshape((b, heads, rows, d))?.transpose(1, 2)?.reshape((b, rows, heads * d))?);
    }
    match blocks.as_slice() {
        [one] => Ok(one.clone()),
        many => Tensor::cat(many, 1),
    }
}

/// Like [`attention`], with candle's own operations and in candle-transformers' order: keys and values are repeated for
/// each query head, and a head's rows are interleaved rotary pairs, which determines the order of the sums of the
/// scores.
pub fn attention_step_by_step(
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    position: usize,
    sight: Sight,
    sinks: Option<&[f32]>,
) -> Result<Tensor> {
    let (b, heads, t, d) = q.dims4()?;
    let (kv_heads, to) = (keys.dim(1)?, position + t);
    let paired = |x: &Tensor| {
        let (b, heads, t, d) = x.dims4()?;
        x.reshape((b, heads, t, 2, d / 2))?.transpose(3, 4)?.contiguous()?.reshape((b, heads, t, d))
    };
    let repeated = |x: &Tensor| {
        let many = vec![x; heads / kv_heads];
        Tensor::cat(&many, 2)?.reshape((b, heads, to, d))
    };
    let keys = repeated(&paired(&filled(keys, 0, to)?.contiguous()?)?)?;
    let values = repeated(&filled(values, 0, to)?.contiguous()?)?;
    let mut scores = (paired(q)?.matmul(&keys.t()?)? / sight.scalar.sqrt())?;
    if let Some(cap) = sight.softcap {
        scores = softcapped_step_by_step(&scores, cap)?;
    }
    let mask: Vec<f32> = (0..t)
        .flat_map(|row| {
            let seen = sight.at(position + row);
            (0..to).map(move |key| if seen.contains(&key) { 0.0 } else { f32::NEG_INFINITY })
        })
        .collect();
    let scores = scores.broadcast_add(&Tensor::from_vec(mask, (t, to), q.device())?)?;
    let out = softmax_with_sinks(&scores, sinks)?.matmul(&values)?;
    out.transpose(1, 2)?.reshape((b, t, heads * d))
}

/// Softmax of scores (b, heads, rows, keys), with a column for the sinks that is left out of the result.
fn softmax_with_sinks(scores: &Tensor, sinks: Option<&[f32]>) -> Result<Tensor> {
    let Some(sinks) = sinks else { return candle_nn::ops::softmax_last_dim(scores) };
    let (b, heads, rows, keys) = scores.dims4()?;
    let sinks = Tensor::from_slice(sinks, (1, heads, 1, 1), scores.device())?;
    let all = Tensor::cat(&[scores, &sinks.broadcast_as((b, heads, rows, 1))?.contiguous()?], 3)?;
    candle_nn::ops::softmax_last_dim(&all)?.narrow(3, 0, keys)?.contiguous()
}

/// Positions `from..to` of a cache, ready for a product with f32.
fn filled(cache: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    let part = cache.narrow(2, from, to - from)?;
    match cache.dtype() {
        candle_core::DType::F32 => Ok(part),
        _ => widen(&part.contiguous()?),
    }
}

/// Softmax over the last dimension of (…, group · rows, keys), with masked positions at zero.
struct CausalSoftmax<'a> {
    rows: usize,
    first_query: usize,
    first_key: usize,
    sight: Sight,
    sinks: Option<&'a [f32]>,
}

impl CausalSoftmax<'_> {
    fn apply(&self, scores: Tensor) -> Result<Tensor> {
        if scores.device().is_cpu() {
            scores.inplace_op1(self)?;
            return Ok(scores);
        }
        self.by_mask(&scores)
    }

    /// The same with candle's own operations, for devices without the fused loop.
    fn by_mask(&self, scores: &Tensor) -> Result<Tensor> {
        let (b, kv_heads, grouped, keys) = scores.dims4()?;
        let mask: Vec<f32> = (0..self.rows)
            .flat_map(|row| {
                let seen = self.seen(row);
                (0..keys).map(move |key| if seen.contains(&key) { 0.0 } else { f32::NEG_INFINITY })
            })
            .collect();
        let mask = Tensor::from_vec(mask, (self.rows, keys), scores.device())?;
        let mut scores = (scores.reshape((b, (), self.rows, keys))? * f64::from(self.sight.scale()))?;
        if let Some(cap) = self.sight.softcap {
            scores = softcapped_step_by_step(&scores, cap)?;
        }
        let scores = scores.broadcast_add(&mask)?;
        softmax_with_sinks(&scores, self.sinks)?.reshape((b, kv_heads, grouped, keys))
    }

    /// The columns that row `row` of a block attends to.
    fn seen(&self, row: usize) -> std::ops::Range<usize> {
        let seen = self.sight.at(self.first_query + row);
        seen.start.saturating_sub(self.first_key)..seen.end - self.first_key
    }
}

impl InplaceOp1 for CausalSoftmax<'_> {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, scores: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (_, _, _, keys) = layout.shape().dims4()?;
        let CpuStorage::F32(scores) = scores else { bail!("causal-softmax: expected f32") };
        let Some((from, to)) = layout.contiguous_offsets() else { bail!("causal-softmax: not contiguous") };
        // A block is a head of a sequence.
        scores[from..to].par_chunks_mut(self.rows * keys).enumerate().for_each(|(i, block)| {
            let sink = self.sinks.map(|sinks| sinks[i % sinks.len()]);
            vectorised(
                #[inline(always)]
                || {
                    for (row, scores) in block.chunks_exact_mut(keys).enumerate() {
                        let seen = self.seen(row);
                        scores[..seen.start].fill(0.0);
                        scores[seen.end..].fill(0.0);
                        self.sight.shares(&mut scores[seen], sink);
                    }
                },
            );
        });
        Ok(())
    }
}

/// One query per head over the cache in its storage type: no view, no copy, no widened keys.
struct DecodeAttention<'a> {
    span: std::ops::Range<usize>,
    sight: Sight,
    sinks: Option<&'a [f32]>,
}

impl CustomOp3 for DecodeAttention<'_> {
    fn name(&self) -> &'static str {
        "decode-attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (b, heads, _, d) = q_l.shape().dims4()?;
        let (_, kv_heads, capacity, _) = k_l.shape().dims4()?;
        let q = contiguous(q.as_slice::<f32>()?, q_l)?;
        let group = heads / kv_heads * d;
        let out = match (k, v) {
            (CpuStorage::F32(k), CpuStorage::F32(v)) => {
                self.all_heads(q, contiguous(k, k_l)?, contiguous(v, v_l)?, group, capacity, d)
            }
            (CpuStorage::BF16(k), CpuStorage::BF16(v)) => {
                self.all_heads(q, contiguous(k, k_l)?, contiguous(v, v_l)?, group, capacity, d)
            }
            (CpuStorage::F16(k), CpuStorage::F16(v)) => {
                self.all_heads(q, contiguous(k, k_l)?, contiguous(v, v_l)?, group, capacity, d)
            }
            _ => bail!("decode-attention: keys and values must both be f32, bf16 or f16"),
        };
        Ok((CpuStorage::F32(out), (b, 1, heads * d).into()))
    }
}

impl DecodeAttention<'_> {
    /// `group` counts the floats of all queries that share one key/value head.
    fn all_heads<T: Stored>(
        &self,
        q: &[f32],
        k: &[T],
        v: &[T],
        group: usize,
        capacity: usize,
        d: usize,
    ) -> Vec<f32> {
        let mut out = vec![0f32; q.len()];
        let heads = out.par_chunks_mut(group).zip(q.par_chunks(group)).enumerate();
        heads.for_each(|(head, (out, q))| {
            let span = (head * capacity + self.span.start) * d..(head * capacity + self.span.end) * d;
            vectorised(
                #[inline(always)]
                || self.one_head(out, q, &k[span.clone()], &v[span.clone()], (d, head * group / d)),
            );
        });
        out
    }

    #[inline(always)]
    fn one_head<T: Stored>(&self, out: &mut [f32], q: &[f32], k: &[T], v: &[T], (d, first): (usize, usize)) {
        let mut scores = vec![0f32; self.span.len()];
        for (i, (out, q)) in out.chunks_exact_mut(d).zip(q.chunks_exact(d)).enumerate() {
            for (score, k) in scores.iter_mut().zip(k.chunks_exact(d)) {
                *score = dot(k, q);
            }
            self.sight.shares(&mut scores, self.sinks.map(|sinks| sinks[(first + i) % sinks.len()]));
            for (&share, v) in scores.iter().zip(v.chunks_exact(d)) {
                accumulate(out, v, share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn randn(dims: &[usize]) -> Tensor {
        Tensor::randn(0f32, 1.0, dims, &Device::Cpu).unwrap()
    }

    fn max_diff(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    /// The definition, query by query and head by head.
    fn by_definition(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        position: usize,
        sight: Sight,
        sinks: Option<&[f32]>,
    ) -> Vec<f32> {
        let (b, heads, t, d) = q.dims4().unwrap();
        let group = heads / k.dim(1).unwrap();
        let at = |x: &Tensor, b: usize, h: usize, t: usize| -> Vec<f32> {
            x.get(b).unwrap().get(h).unwrap().get(t).unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
        };
        let mut out = Vec::new();
        for (b, t, h) in (0..b).flat_map(|b| (0..t).flat_map(move |t| (0..heads).map(move |h| (b, t, h)))) {
            let query = at(q, b, h, t);
            let seen = sight.at(position + t);
            let scores: Vec<f64> = seen
                .clone()
                .map(|s| {
                    at(k, b, h / group, s).iter().zip(&query).map(|(a, b)| f64::from(a * b)).sum::<f64>()
                })
                .map(|dot| dot / sight.scalar.sqrt())
                .map(|score| {
                    sight.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                })
                .map(f64::exp)
                .collect();
            let of_sink = sinks.map_or(0.0, |sinks| f64::from(sinks[h]).exp());
            let total = scores.iter().sum::<f64>() + of_sink;
            let mut sum = vec![0f64; d];
            for (s, share) in seen.zip(&scores) {
                for (sum, v) in sum.iter_mut().zip(at(v, b, h / group, s)) {
                    *sum += share / total * f64::from(v);
                }
            }
            out.extend(sum.into_iter().map(|x| x as f32));
        }
        out
    }

    #[test]
    fn equals_the_definition() {
        // batch, heads, kv heads, queries, position, window, softcap
        let table = [
            (1, 3, 1, 1, 0, None, None),
            (2, 6, 2, 1, 9, None, None),
            (1, 4, 4, 1, 9, Some(3), None),
            (1, 4, 2, 1, 9, Some(3), Some(1.5)),
            (2, 6, 3, 5, 0, None, None),
            (1, 2, 1, 5, 4, Some(2), None),
            (1, 2, 2, 140, 3, Some(20), Some(2.0)),
            (1, 2, 1, 131, 0, None, None),
        ];
        for (b, heads, kv_heads, t, position, window, softcap) in table {
            let sight = Sight { window, scalar: if softcap.is_some() { 3.0 } else { 8.0 }, softcap };
            let q = randn(&[b, heads, t, 8]);
            let (k, v) =
                (randn(&[b, kv_heads, position + t + 3, 8]), randn(&[b, kv_heads, position + t + 3, 8]));
            let of_heads: Vec<f32> = (0..heads).map(|head| head as f32 - 1.0).collect();
            for (dtype, sinks) in [DType::F32, DType::BF16, DType::F16]
                .into_iter()
                .flat_map(|dtype| [(dtype, None), (dtype, Some(of_heads.as_slice()))])
            {
                let (k, v) = (k.to_dtype(dtype).unwrap(), v.to_dtype(dtype).unwrap());
                let out = attention(&q, &k, &v, position, sight, sinks).unwrap();
                let expected = by_definition(&q, &k, &v, position, sight, sinks);
                let expected = Tensor::from_vec(expected, (b, t, heads * 8), &Device::Cpu).unwrap();
                let diff = max_diff(&out, &expected);
                assert!(
                    diff < 1e-4,
                    "{heads}/{kv_heads} heads, {t} at {position}, {sight:?}, {dtype:?}: {diff}"
                );
                let by_steps = attention_step_by_step(&q, &k, &v, position, sight, sinks).unwrap();
                let diff = max_diff(&by_steps, &expected);
                assert!(diff < 1e-4, "{heads}/{kv_heads} heads step by step, {t} at {position}: {diff}");
            }
        }
    }

    #[test]
    fn the_mask_equals_the_loop() {
        for (window, first_query, first_key, softcap) in
            [(None, 0, 0, None), (None, 7, 0, Some(0.4)), (Some(3), 7, 5, None), (Some(40), 7, 0, None)]
        {
            let sight = Sight { window, scalar: 10.0, softcap };
            let keys = first_query + 6 - first_key;
            let scores = randn(&[2, 3, 2 * 6, keys]);
            for sinks in [None, Some([0.5, -3.0, 2.0, 0.0, 1.0, -1.0].as_slice())] {
                let op = CausalSoftmax { rows: 6, first_query, first_key, sight, sinks };
                let by_mask = op.by_mask(&scores).unwrap();
                let looped = op.apply(scores.copy().unwrap()).unwrap();
                assert!(max_diff(&looped, &by_mask) < 1e-6, "{window:?} {first_query}");
            }
        }
    }
}
