//! The phase before a prefill in which images become embeddings.

use serde_json::{Value, json};

use super::{Bound, CostQuery, lower_bound, operators, with_sums};
use llm_cost::{
    Shape,
    vision::{Encoded, PartCost, VisionCost},
};
use llmprof_analysis::roofline::Roof;
use llmprof_base::units::{grouped, scaled};

/// The images of a query and their cost.
pub(super) struct Vision {
    images: Vec<(u32, u32)>,
    /// The images of one prompt, as input of the encoders.
    encoded: Encoded,
    batch: u64,
    /// The cost of the whole batch.
    pub(super) cost: VisionCost,
}

impl Vision {
    /// `None` without images, or if the model has no known encoders.
    pub(super) fn from_query(query: &CostQuery) -> Option<Vision> {
        let shape = query.shape.vision.as_ref().filter(|_| !query.images.is_empty())?;
        let encoded = shape.encoded(&query.images, query.preprocess.as_ref());
        let cost = query.shape.vision_cost(&encoded.of_batch(query.batch))?;
        Some(Vision { images: query.images.clone(), encoded, batch: query.batch, cost })
    }

    /// Positions in each prompt.
    pub(super) fn tokens(&self) -> u64 {
        self.encoded.tokens
    }

    /// The shortest possible time.
    pub(super) fn bound(&self, roof: &Roof) -> Bound {
        let total = self.cost.total();
        lower_bound(roof, total.flops(), total.certain_bytes())
    }

    pub(super) fn title(&self) -> String {
        let Encoded { images, views, patches, tokens, .. } = &self.encoded;
        let count = |n: u64, one: &str, many: &str| {
            format!("{} {}", grouped(n as i64), if n == 1 { one } else { many })
        };
        let size = match self.images.as_slice() {
            [(width, height)] => format!(" of {width} × {height}"),
            _ => String::new(),
        };
        let of_batch = match self.batch {
            1 => String::new(),
            batch => format!(" for each of {batch} sequences"),
        };
        let each = match images {
            1 => String::new(),
            _ => {
                let each = self.encoded.tokens_of_images.iter().take(MAX_LISTED);
                let each: Vec<String> = each.map(|tokens| grouped(*tokens as i64)).collect();
                let more = if self.images.len() > MAX_LISTED { ", …" } else { "" };
                format!(" ({}{more})", each.join(", "))
            }
        };
        format!(
            "Vision, {}{size}{of_batch}, {}, {}, {}{each}",
            count(*images, "picture", "pictures"),
            count(*views, "view", "views"),
            count(*patches, "patch", "patches"),
            count(*tokens, "token", "tokens"),
        )
    }

    /// The encoders and the projector, if there is more than one encoder.
    pub(super) fn parts(&self) -> Option<String> {
        let of = |part: &PartCost| {
            let (flops, parameters) = (scaled(part.all.flops(), "FLOP"), grouped(part.all.parameters as i64));
            format!("{} {flops} and {parameters} parameters", part.part)
        };
        let parts: Vec<String> = self.cost.parts.iter().map(of).collect();
        (parts.len() > 2).then(|| format!("Vision by part: {}.", parts.join(", ")))
    }

    pub(super) fn json(&self, shape: &Shape) -> Value {
        let part = |part: &PartCost| {
            let mut object = with_sums(&part.all);
            object["part"] = json!(part.part);
            object
        };
        json!({
            "images": self.images,
            "encoded": self.encoded,
            "parameters": shape.vision.as_ref().map(|vision| vision.parameters()),
            "weight_bytes": shape.vision.as_ref().map(|vision| vision.weight_bytes),
            "total": with_sums(&self.cost.total()),
            "operators": operators(&self.cost.operators),
            "parts": self.cost.parts.iter().map(part).collect::<Vec<_>>(),
        })
    }
}

/// Maximum number of images whose tokens are listed.
const MAX_LISTED: usize = 8;
