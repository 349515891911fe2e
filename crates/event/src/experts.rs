//! Expert assignments of a model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The expert assignments in all decode steps since the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExpertUse {
    /// Experts of a layer.
    pub experts: u32,
    /// Layers with experts.
    pub layers: u32,
    /// Tokens that were routed, in each layer.
    pub tokens: u64,
    pub steps: u64,
    /// Experts with a token, summed over layers and steps.
    pub touched: u64,
    /// Load imbalance: tokens of a layer's busiest expert over the mean of its experts; the mean of the layers.
    pub imbalance: f64,
    pub hottest: HottestExpert,
    /// Experts of all layers to which no token was assigned.
    pub never: u64,
}

/// The busiest expert of all layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HottestExpert {
    pub layer: u32,
    pub expert: u32,
    /// Its tokens over the mean of its layer's experts.
    pub times_mean: f64,
}

impl ExpertUse {
    /// Experts that a layer reads in a step, on average; `None` before the first.
    pub fn touched_per_layer(&self) -> Option<f64> {
        let steps = self.steps as f64 * f64::from(self.layers);
        (steps > 0.0).then(|| self.touched as f64 / steps)
    }
}

impl fmt::Display for ExpertUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExpertUse { experts, tokens, imbalance, hottest, never, layers, .. } = self;
        let all = u64::from(*experts) * u64::from(*layers);
        match self.touched_per_layer() {
            Some(touched) => write!(f, "{touched:.1} of {experts} experts read per layer and step")?,
            None => write!(f, "{experts} experts")?,
        }
        write!(
            f,
            "; the busiest expert of a layer gets {imbalance:.1} × the mean ({:.1} × at most: layer {}, expert {}); \
             {never} of {all} were never selected in {tokens} tokens",
            hottest.times_mean, hottest.layer, hottest.expert
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_the_busiest_expert() {
        let hottest = HottestExpert { layer: 17, expert: 93, times_mean: 4.25 };
        let experts = ExpertUse {
            experts: 128,
            layers: 48,
            tokens: 500,
            steps: 500,
            touched: 500 * 48 * 8,
            imbalance: 2.5,
            hottest,
            never: 3,
        };
        assert_eq!(
            experts.to_string(),
            "8.0 of 128 experts read per layer and step; the busiest expert of a layer gets 2.5 × the mean (4.2 × at \
             most: layer 17, expert 93); 3 of 6144 were never selected in 500 tokens"
        );
    }
}
