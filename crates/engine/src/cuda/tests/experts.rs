//! Experts: their assignment, and the GEMMs of one layer in every type, few rows and many.

use std::cell::OnceCell;

use decoder_ops::{Format, Panels, quantised_rows, random_blocks};
use rayon::prelude::*;

use super::{
    super::{
        experts::{Biases, ExpertLayer, Routed},
        few_rows::Scratch,
        kernels::Norm,
        quantised::Tiles,
    },
    *,
};
use crate::weights::QuantisedRows;
use llm_cost::spec::{ExpertNaming, Experts};

/// The matrices of all experts, and their weights as f32.
fn matrices(
    k: &Kernels,
    draws: &mut Draws,
    format: Option<Format>,
    (count, rows, columns): (usize, usize, usize),
    gated: bool,
) -> (Matrix, Vec<f32>) {
    let (all, spread) = (count * rows, 1.0 / (columns as f32).sqrt());
    let Some(format) = format else {
        let values: Vec<f32> = draws.values(all * columns, Dtype::F32);
        let values: Vec<f32> = values.iter().map(|v| rounded(v * spread, k.dtype)).collect();
        return (matrix(k, &values, all, columns), values);
    };
    let blocks = |expert: usize| random_blocks(format, 31 + expert as u64, rows, columns);
    let ids: Vec<u32> = (0..rows as u32).collect();
    let plain = |expert| {
        flat(&quantised_rows(&ids, &Panels::new(format, &blocks(expert), columns).unwrap()).unwrap())
    };
    let values = (0..count).flat_map(plain).collect();
    let tiles = Tiles::of_experts(&k.gpu, count, columns, gated, &mut |expert| {
        Ok(QuantisedRows { format, bytes: blocks(expert), rows })
    });
    (Matrix { values: Values::Tiles(vec![tiles.unwrap()]), rows: all, columns }, values)
}

/// w (rows, x.len()) · x.
fn product(w: &[f32], x: &[f32]) -> Vec<f32> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn a_layer_of_experts_matches() {
    let mut largest = 0f64;
    // Experts, active experts, intermediate, hidden.
    let sizes = [
        (8, 2, 200, 264),
        (40, 4, 160, 512),
        (128, 8, 96, 256),
        (5, 5, 64, 96),
        (5, 5, 64, 72),
        (8, 1, 64, 64),
        // Longer rows and more experts than the threads of a block take at once.
        (300, 32, 8, 2304),
        (60, 4, 24, 4104),
    ];
    for dtype in TYPES {
        let mut k = kernels(dtype);
        k.scratch = Some(Scratch::new(&k.gpu, 512, (8192, 512), 64 << 20).unwrap());
        for (count, active, intermediate, hidden) in sizes {
            for format in [None, Some(Format::Q8_0), Some(Format::Q4_1), Some(Format::Mxfp4)] {
                let large = hidden > 2048;
                if format.is_some() && (large || intermediate % 32 > 0 || hidden % 32 > 0) {
                    continue;
                }
                // As in gpt-oss, and as in other models.
                let mxfp4 = format == Some(Format::Mxfp4);
                // Rows, whether weights are normalised, whether there are biases. The last number of rows is enough for
                // dequantised weights if there are few experts.
                let of_tiles = [(1, true, mxfp4), (9, true, mxfp4), (40, false, mxfp4), (140, true, mxfp4)];
                let of_one_row = [(1, true, false), (1, false, true), (1, true, true), (1, false, false)];
                let of_more = [
                    (3, true, true),
                    (8, false, false),
                    (9, true, true),
                    (40, false, false),
                    (140, true, false),
                ];
                let of_plain = [&of_one_row[..], &of_more].concat();
                let cases = match format {
                    Some(_) => &of_tiles[..],
                    None if large && dtype == Dtype::F32 => &[],
                    None if large => &of_plain[..2],
                    None => &of_plain,
                };
                for (rows, normalised, biased) in cases.iter().copied() {
                    k.activation = if biased { Activation::SwigluOai } else { Activation::Silu };
                    let experts = Experts {
                        count,
                        active,
                        intermediate,
                        // With a shared expert, the router has a row for its gate.
                        shared_intermediate: if normalised { 0 } else { 8 },
                        normalised,
                        biased,
                        naming: ExpertNaming::Qwen,
                    };
                    let error = layer_error(&k, experts, hidden, format, rows);
                    let allowed = match (format, dtype) {
                        // Activations are rounded to eight bits in GEMMs of few rows.
                        (Some(_), _) if rows <= 8 => 2.5e-2,
                        // Weights are converted to f16.
                        (Some(_), Dtype::F32) => 1e-3,
                        (_, Dtype::F32) => 2e-5,
                        (_, Dtype::F16) => 2e-3,
                        (_, Dtype::Bf16) => 1.2e-2,
                    };
                    assert!(
                        error < allowed,
                        "{experts:?} of {hidden}, {format:?} {dtype:?}, {rows} rows: relative error {error:.2e}"
                    );
                    largest = largest.max(error / allowed);
                }
            }
        }
    }
    println!("largest error {largest:.2} of what is allowed");
}

/// The relative error of what a layer adds to its rows.
fn layer_error(k: &Kernels, experts: Experts, hidden: usize, format: Option<Format>, rows: usize) -> f64 {
    let Experts { count, active, intermediate, .. } = experts;
    let (dtype, mut draws) = (k.dtype, Draws::new(17));
    let stride = count + usize::from(experts.shared_intermediate > 0);
    let router = draws.values(stride * hidden, dtype);
    let (gate_up, gate_up_values) = matrices(k, &mut draws, format, (count, 2 * intermediate, hidden), true);
    let (down, down_values) = matrices(k, &mut draws, format, (count, hidden, intermediate), false);
    let tally = k.gpu.zeros("a test", ExpertLayer::tally_bytes(&experts)).unwrap();
    let of_size = |draws: &mut Draws, n: usize, dtype| match experts.biased {
        true => draws.values(n, dtype),
        false => vec![0.0; n],
    };
    let mut router_bias = of_size(&mut draws, count, Dtype::F32);
    let gate_up_bias = of_size(&mut draws, count * 2 * intermediate, dtype);
    let down_bias = of_size(&mut draws, count * hidden, dtype);
    let biases = experts.biased.then(|| Biases {
        router: put32(k, &router_bias),
        gate_up: put(k, &gate_up_bias),
        down: put(k, &down_bias),
    });
    let layer = ExpertLayer {
        experts,
        router: matrix(k, &router, stride, hidden),
        gate_up,
        down,
        biases,
        shared: None,
        tally,
        blocks_alone: OnceCell::new(),
    };
    router_bias.resize(stride, 0.0);
    let routed = Routed::new(&k.gpu, &experts, hidden, rows, dtype).unwrap();
    let (of_input, before) = (draws.values(rows * hidden, dtype), draws.values(rows * hidden, dtype));
    let (input, to) = (put(k, &of_input), put(k, &before));
    let normed = room(k, rows * hidden);
    let norm_weights: Vec<f32> = draws.values(hidden, Dtype::F32).iter().map(|w| 1.0 + 0.1 * w).collect();
    let norm = put32(k, &norm_weights);
    let within = k.routes_within(&layer, rows);
    assert_eq!(within, rows == 1 && dtype != Dtype::F32 && format.is_none());
    let with_eps = Norm { weight: &norm, eps: 1e-5 };
    let add = |input: &Buffer, to: &Buffer| {
        match rows {
            _ if within => (),
            0..=8 => k.norm_and_route((&normed, input), with_eps, &routed, &layer, rows, true).unwrap(),
            _ => {
                k.rms_norm(&normed, input, &norm, (rows, hidden), 1e-5, (1, 0)).unwrap();
                k.route(&routed, &layer, (&normed).into(), rows, true).unwrap();
            }
        }
        let router_within = within.then_some((input, with_eps));
        k.experts_gated(&routed, &layer, (&normed).into(), rows, true, router_within).unwrap();
        k.experts_down(to.into(), &routed, &layer, rows, None, within).unwrap();
    };
    // No state is left of earlier layers.
    for _ in 0..2 {
        add(&put(k, &draws.values(rows * hidden, dtype)), &room(k, rows * hidden));
    }
    k.gpu.fill(&layer.tally, 0).unwrap();
    add(&input, &to);
    // The norm has a test of its own; here it must be the same for few rows as for many.
    let again = room(k, rows * hidden);
    k.rms_norm(&again, &input, &norm, (rows, hidden), 1e-5, (1, 0)).unwrap();
    let x = get(k, &normed, rows * hidden);
    assert_close(&x, &get(k, &again, rows * hidden), dtype, "the norm");
    let found = get(k, &to, rows * hidden);

    // The assignment, from the scores that it was computed from.
    let all_scores: Vec<f32> = k.gpu.download(&routed.scores, rows * stride).unwrap();
    let ids: Vec<i32> = k.gpu.download(&routed.ids, rows * active).unwrap();
    let weights: Vec<f32> = k.gpu.download(&routed.weights, rows * active).unwrap();
    let mut counts = vec![0u64; count];
    for row in 0..rows {
        let scores = &all_scores[row * stride..][..count];
        let (ids, weights) = (&ids[row * active..][..active], &weights[row * active..][..active]);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let chosen: Vec<usize> = ids.iter().map(|id| *id as usize).collect();
        assert_eq!(chosen, order[..active], "row {row}");
        let share = |expert: usize| f64::from(scores[expert] - scores[order[0]]).exp();
        let sum: f64 = match experts.normalised {
            true => chosen.iter().map(|expert| share(*expert)).sum(),
            false => (0..count).map(share).sum(),
        };
        for (expert, weight) in chosen.iter().zip(weights) {
            assert!((f64::from(*weight) - share(*expert) / sum).abs() < 1e-5, "row {row}, expert {expert}");
            counts[*expert] += 1;
        }
    }
    let tally = layer.tally(&k.gpu).unwrap();
    assert_eq!((&tally.tokens, tally.routed, tally.steps), (&counts, rows as u64, 1));
    assert_eq!(tally.touched, counts.iter().filter(|count| **count > 0).count() as u64);

    let sum_of = |a: Vec<f32>, b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f32>>();
    // The scores of few rows are computed from unrounded rows.
    let unrounded = |x: &[f32]| {
        let squares: f32 = x.iter().map(|x| x * x).sum();
        let factor = (squares / hidden as f32 + 1e-5).sqrt().recip();
        x.iter().zip(&norm_weights).map(|(x, weight)| x * factor * weight).collect::<Vec<f32>>()
    };
    let of_router: Vec<f32> = match rows {
        0..=8 => of_input.chunks(hidden).flat_map(unrounded).collect(),
        _ => x.clone(),
    };
    let exact: Vec<f32> =
        of_router.chunks(hidden).flat_map(|x| sum_of(product(&router, x), &router_bias)).collect();
    assert_close(&all_scores, &exact, Dtype::F16, "the scores");
    let error_of_row = |row: usize| {
        let (mut error, mut size) = (0f64, 0f64);
        let x = &x[row * hidden..][..hidden];
        let mut sums = vec![0f32; hidden];
        for slot in 0..active {
            let expert = ids[row * active + slot] as usize;
            let of = |values: &[f32], rows: usize, columns: usize| {
                values[expert * rows * columns..][..rows * columns].to_vec()
            };
            let wide = product(&of(&gate_up_values, 2 * intermediate, hidden), x);
            let wide = sum_of(wide, &of(&gate_up_bias, 2 * intermediate, 1));
            let gated: Vec<f32> = (0..intermediate)
                .map(|i| {
                    let (gate, up) = (rounded(wide[i], dtype), rounded(wide[intermediate + i], dtype));
                    let value = match experts.biased {
                        true => {
                            let gate = gate.min(7.0);
                            gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
                        }
                        false => gate / (1.0 + (-gate).exp()) * up,
                    };
                    rounded(value, dtype)
                })
                .collect();
            let result = product(&of(&down_values, hidden, intermediate), &gated);
            let result = sum_of(result, &of(&down_bias, hidden, 1));
            let weight = weights[row * active + slot];
            sums.iter_mut().zip(&result).for_each(|(sum, value)| *sum += weight * value);
        }
        for (i, sum) in sums.iter().enumerate() {
            let added = f64::from(found[row * hidden + i]) - f64::from(before[row * hidden + i]);
            // The previous value is rounded together with the sum.
            error += (added - f64::from(*sum)).powi(2);
            size += f64::from(*sum).powi(2) + f64::from(before[row * hidden + i]).powi(2);
        }
        (error, size)
    };
    let (error, size) = (0..rows)
        .into_par_iter()
        .map(error_of_row)
        .reduce(|| (0.0, 0.0), |(error, size), (more, of)| (error + more, size + of));
    (error / size).sqrt()
}
