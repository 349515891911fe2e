//! The images that vision encoders processed, over the measured requests.

use std::fmt;

use llm_cost::{
    Shape, Step,
    cost::{OperatorCost, StepCost},
};
use llmprof_base::units::{grouped, three_digits};
use llmprof_event::ImagesEncoded;

/// Images and the positions that they fill.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VisionTally {
    pub requests: u64,
    pub images: u64,
    /// Positions of prompts.
    pub tokens: u64,
    /// Known only if every request reports them.
    patches: Option<u64>,
    /// The cost of all requests, by operator; `None` if the cost of one is not known.
    cost: Option<Vec<OperatorCost>>,
    /// Width and height of the images of the last request.
    pub sizes: Vec<(u32, u32)>,
}

impl VisionTally {
    /// Adds the images of a request of `batch` sequences.
    pub(super) fn add(&mut self, encoded: &ImagesEncoded, batch: u32, shape: Option<&Shape>) {
        let is_first = self.requests == 0;
        self.patches = match (is_first, self.patches, encoded.patches) {
            (true, _, patches) => patches,
            (_, Some(sum), Some(patches)) => Some(sum.saturating_add(patches)),
            _ => None,
        };
        let cost = shape.and_then(|shape| cost_of(shape, encoded, batch));
        self.cost = match (is_first, self.cost.take(), cost) {
            (true, _, cost) => cost,
            (_, Some(sum), Some(cost)) => Some(sum_of(sum, &cost)),
            _ => None,
        };
        self.requests += 1;
        self.images = self.images.saturating_add(u64::from(encoded.images));
        self.tokens = self.tokens.saturating_add(u64::from(encoded.tokens));
        self.sizes.clone_from(&encoded.sizes);
    }

    /// Mean positions per image.
    pub fn tokens_per_image(&self) -> Option<f64> {
        (self.images > 0).then(|| self.tokens as f64 / self.images as f64)
    }

    pub fn patches_per_image(&self) -> Option<f64> {
        (self.images > 0).then_some(self.patches? as f64 / self.images as f64)
    }

    /// The cost of the images of a mean request.
    pub(super) fn step_cost(&self, batch: u64) -> Option<StepCost> {
        let requests = self.requests.max(1);
        let mean = |cost: &OperatorCost| OperatorCost {
            calls: cost.calls / requests,
            all: cost.all.times(1.0 / requests as f64),
            ..*cost
        };
        let operators = self.cost.as_ref()?.iter().map(mean).collect();
        let new = self.patches.unwrap_or(self.tokens) / requests / batch.max(1);
        Some(StepCost { step: Step { batch, new, past: 0 }, operators, layers: Vec::new() })
    }
}

/// By operator, if the encoders of the shape give the observed number of tokens: otherwise images were prepared in a
/// different way.
fn cost_of(shape: &Shape, encoded: &ImagesEncoded, batch: u32) -> Option<Vec<OperatorCost>> {
    let expected = shape.vision.as_ref()?.encoded(&encoded.sizes, None).of_batch(u64::from(batch));
    let is_alike = !encoded.sizes.is_empty() && expected.tokens == u64::from(encoded.tokens);
    Some(shape.vision_cost(&expected).filter(|_| is_alike)?.operators)
}

fn sum_of(mut sum: Vec<OperatorCost>, more: &[OperatorCost]) -> Vec<OperatorCost> {
    for cost in more {
        match sum.iter_mut().find(|known| known.operator == cost.operator) {
            Some(known) => {
                known.calls = known.calls.saturating_add(cost.calls);
                known.all = known.all + cost.all;
            }
            None => sum.push(*cost),
        }
    }
    sum
}

impl fmt::Display for VisionTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let images = grouped(i64::try_from(self.images).unwrap_or(i64::MAX));
        let noun = if self.images == 1 { "image" } else { "images" };
        write!(f, "{images} {noun}")?;
        if let Some(tokens) = self.tokens_per_image() {
            write!(f, ", {} tokens each", three_digits(tokens))?;
        }
        match self.patches_per_image() {
            Some(patches) => write!(f, " from {} patches", three_digits(patches)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use llmprof_config::Dtype;

    fn encoded(tokens: u32, patches: Option<u64>, sizes: &[(u32, u32)]) -> ImagesEncoded {
        ImagesEncoded { request: 0, images: 2, tokens, patches, device_ns: None, sizes: sizes.to_vec() }
    }

    #[test]
    fn patches_are_known_if_all_requests_report_them() {
        let mut tally = VisionTally::default();
        assert_eq!(tally.tokens_per_image(), None);
        tally.add(&encoded(10, Some(40), &[]), 1, None);
        tally.add(&encoded(10, Some(20), &[]), 1, None);
        assert_eq!((tally.tokens_per_image(), tally.patches_per_image()), (Some(5.0), Some(15.0)));
        assert_eq!(tally.to_string(), "4 images, 5.00 tokens each from 15.0 patches");
        tally.add(&encoded(10, None, &[]), 1, None);
        assert_eq!(tally.to_string(), "6 images, 5.00 tokens each");
    }

    #[test]
    fn the_cost_is_that_of_the_encoded_images() {
        let arch = json!({
            "model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 4096,
            "vision_config": {
                "model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
                "in_channels": 3, "out_hidden_size": 64, "patch_size": 14, "spatial_merge_size": 2,
                "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [1]
            }
        });
        let shape = Shape::from_hf(&arch, Dtype::F32).unwrap();
        let pictures = [(280, 280), (280, 280)];
        let tokens = shape.vision.as_ref().unwrap().encoded(&pictures, None).tokens as u32;
        let mut tally = VisionTally::default();
        for _ in 0..3 {
            tally.add(&encoded(tokens, None, &pictures), 1, Some(&shape));
        }
        let one = shape.vision_cost(&shape.vision.as_ref().unwrap().encoded(&pictures, None)).unwrap();
        let mean = tally.step_cost(1).unwrap();
        assert!((mean.total().flops() / one.total().flops() - 1.0).abs() < 1e-12);
        assert_eq!(mean.operators.len(), one.operators.len());
        // A different number of tokens: the images were prepared in a different way.
        tally.add(&encoded(tokens + 1, None, &pictures), 1, Some(&shape));
        assert_eq!(tally.step_cost(1), None);
    }
}
