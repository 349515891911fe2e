//! A mixture of experts: the router's choice, and the gated MLPs of those that are chosen.

use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Result, Tensor};
use decoder_ops::{Activation, gated, gated_step_by_step};

use super::matrix::Matrix;
use crate::routing::Tally;
use llm_cost::{Operator, spec};
use llmprof_workload::listener::Listeners;

/// The experts of one layer.
pub(super) struct Experts {
    pub spec: spec::Experts,
    pub router: Matrix,
    pub router_bias: Option<Tensor>,
    pub all: Vec<Mlp>,
    pub shared: Option<Shared>,
    /// The expert assignments in steps of one position.
    pub tally: Mutex<Tally>,
}

/// Gate and up in one GEMM, and down.
pub(super) struct Mlp {
    pub gate_up: Matrix,
    pub gate_up_bias: Option<Tensor>,
    pub down: Matrix,
    pub down_bias: Option<Tensor>,
}

/// The expert of all tokens, and the row whose dot product with a token decides how much it counts.
pub(super) struct Shared {
    pub mlp: Mlp,
    pub gate: Matrix,
}

/// How experts are computed.
pub(super) struct Mode<'a> {
    pub listeners: &'a Listeners,
    pub layer: usize,
    pub activation: Activation,
    pub step_by_step: bool,
}

/// Rows of one expert, and the weight of its result in each.
#[derive(Default)]
struct Share {
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl Experts {
    /// The sum of the chosen experts' results for x (b, t, hidden), each times its weight.
    pub fn forward(&self, x: &Tensor, mode: &Mode<'_>) -> Result<Tensor> {
        let (b, t, hidden) = x.dims3()?;
        let operator = |operator, work: &mut dyn FnMut() -> Result<()>| {
            mode.listeners.operator(operator, Some(mode.layer), work)
        };
        let (mut shares, mut shared_weights) = (Vec::new(), Vec::new());
        operator(Operator::Router, &mut || {
            let scores = self.router.linear(x, self.router_bias.as_ref())?.flatten_all()?.to_vec1::<f32>()?;
            shares = self.shares(&scores);
            if t == 1 {
                self.tally().count(b, shares.iter().map(|share| share.rows.len()));
            }
            if let Some(shared) = &self.shared {
                let gates = shared.gate.linear(x, None)?.flatten_all()?.to_vec1::<f32>()?;
                shared_weights = gates.iter().map(|gate| 1.0 / (1.0 + (-gate).exp())).collect();
            }
            Ok(())
        })?;
        let rows = x.reshape((b * t, hidden))?;
        let used: Vec<(&Mlp, &Share)> =
            self.all.iter().zip(&shares).filter(|(_, share)| !share.rows.is_empty()).collect();
        let mut wide: Vec<Tensor> = Vec::new();
        operator(Operator::GateUp, &mut || {
            for (mlp, share) in &used {
                let ids = Tensor::from_slice(&share.rows, share.rows.len(), &Device::Cpu)?;
                let x = rows.index_select(&ids, 0)?.unsqueeze(0)?;
                wide.push(mlp.gate_up.linear(&x, mlp.gate_up_bias.as_ref())?);
            }
            if let Some(shared) = &self.shared {
                wide.push(shared.mlp.gate_up.linear(&rows.unsqueeze(0)?, None)?);
            }
            Ok(())
        })?;
        let activate = if mode.step_by_step { gated_step_by_step } else { gated };
        operator(Operator::Activation, &mut || {
            for wide in &mut wide {
                *wide = activate(wide, mode.activation)?;
            }
            Ok(())
        })?;
        let mut sums = vec![0f32; b * t * hidden];
        operator(Operator::Down, &mut || {
            let mut add = |mlp: &Mlp, x: &Tensor, share: &Share| -> Result<()> {
                let results = mlp.down.linear(x, mlp.down_bias.as_ref())?.flatten_all()?.to_vec1::<f32>()?;
                let results = results.chunks_exact(hidden);
                for ((row, weight), result) in share.rows.iter().zip(&share.weights).zip(results) {
                    let to = &mut sums[*row as usize * hidden..][..hidden];
                    to.iter_mut().zip(result).for_each(|(to, value)| *to += weight * value);
                }
                Ok(())
            };
            for ((mlp, share), wide) in used.iter().zip(&wide) {
                add(mlp, wide, share)?;
            }
            match (&self.shared, wide.last()) {
                (Some(shared), Some(wide)) => {
                    let rows = (0..(b * t) as u32).collect();
                    add(&shared.mlp, wide, &Share { rows, weights: std::mem::take(&mut shared_weights) })
                }
                _ => Ok(()),
            }
        })?;
        Tensor::from_vec(sums, (b, t, hidden), x.device())
    }

    /// Which rows each expert gets, from the scores of all experts for each row.
    fn shares(&self, scores: &[f32]) -> Vec<Share> {
        let mut shares: Vec<Share> = (0..self.spec.count).map(|_| Share::default()).collect();
        for (row, scores) in scores.chunks_exact(self.spec.count).enumerate() {
            for (expert, weight) in choose(scores, &self.spec) {
                shares[expert].rows.push(row as u32);
                shares[expert].weights.push(weight);
            }
        }
        shares
    }

    pub fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The experts with the highest scores, and their weights: their share of the softmax of all scores, or of its sum over the chosen ones. Of
/// equal scores the first is chosen.
fn choose(scores: &[f32], experts: &spec::Experts) -> Vec<(usize, f32)> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = scores.iter().map(|score| (score - highest).exp()).collect();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(experts.active);
    let sum: f32 = match experts.normalised {
        true => order.iter().map(|expert| exponentials[*expert]).sum(),
        false => exponentials.iter().sum(),
    };
    order.into_iter().map(|expert| (expert, exponentials[expert] / sum)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llm_cost::spec::ExpertNaming;

    #[test]
    fn the_highest_scores_are_chosen() {
        let experts = |normalised| spec::Experts {
            count: 4,
            active: 2,
            intermediate: 8,
            shared_intermediate: 0,
            normalised,
            biased: false,
            naming: ExpertNaming::Qwen,
        };
        // Exponentials 1, 4, 1, 2.
        let scores = [0.0, 4f32.ln(), 0.0, 2f32.ln()];
        let chosen = |normalised| choose(&scores, &experts(normalised));
        let close = |found: Vec<(usize, f32)>, wanted: [(usize, f32); 2]| {
            assert_eq!(found.len(), 2);
            for ((expert, weight), (wanted, share)) in found.into_iter().zip(wanted) {
                assert!(expert == wanted && (weight - share).abs() < 1e-6, "{expert} {weight}");
            }
        };
        close(chosen(false), [(1, 0.5), (3, 0.25)]);
        close(chosen(true), [(1, 2.0 / 3.0), (3, 1.0 / 3.0)]);
        close(choose(&[1.0; 4], &experts(true)), [(0, 0.5), (1, 0.5)]);
    }
}
