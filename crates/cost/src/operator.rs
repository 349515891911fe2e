//! The named operators of a decoder, used by engines, kernel tables and cost estimates.

use serde::{Deserialize, Serialize};

macro_rules! operators {
    ($($(#[$doc:meta])* $operator:ident $name:literal;)*) => {
        /// An operator of a step.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Operator {
            $($(#[$doc])* #[serde(rename = $name)] $operator,)*
        }

        impl Operator {
            /// All operators in execution order.
            pub const ALL: &[Operator] = &[$(Operator::$operator,)*];

            pub fn name(self) -> &'static str {
                match self { $(Operator::$operator => $name,)* }
            }
        }
    };
}

operators! {
    Embedding "embedding";
    AttentionNorm "attn_norm";
    /// Projections of queries, keys and values.
    Qkv "qkv";
    /// Bias, norms and rotary embedding of queries and keys, and the write to the KV cache.
    Rope "rope";
    /// Scores, softmax and the weighted sum of values.
    Attention "attention";
    AttentionOutput "attn_out";
    PostAttentionNorm "post_attn_norm";
    MlpNorm "mlp_norm";
    /// The scores of experts and the choice among them.
    Router "router";
    /// Gate and up projections, with the activation if it is fused.
    GateUp "gate_up";
    Activation "activation";
    Down "down";
    PostMlpNorm "post_mlp_norm";
    /// All layers of a decode step as one kernel.
    Layers "layers";
    FinalNorm "final_norm";
    /// From a vision encoder to the decoder's rows: fewer patches, the decoder's width.
    Projector "projector";
    LmHead "lm_head";
    Sampling "sampling";
    /// The draft tokens that a smaller model gives before the step.
    Draft "draft";
}

/// An operator, and the layer it belongs to if it belongs to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperatorInstance {
    pub operator: Operator,
    pub layer: Option<u16>,
}

/// The kind of work of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperatorKind {
    /// A matrix product with weights.
    Matmul,
    Attention,
    /// Norms, rotary embedding, activations.
    Pointwise,
    /// Embedding lookup, sampling, and draft tokens.
    Ends,
}

impl Operator {
    pub fn kind(self) -> OperatorKind {
        use Operator as O;
        match self {
            O::Qkv | O::AttentionOutput | O::Router | O::GateUp | O::Down => OperatorKind::Matmul,
            O::Layers | O::Projector | O::LmHead => OperatorKind::Matmul,
            O::Attention => OperatorKind::Attention,
            O::AttentionNorm | O::Rope | O::PostAttentionNorm | O::MlpNorm => OperatorKind::Pointwise,
            O::Activation | O::PostMlpNorm | O::FinalNorm => OperatorKind::Pointwise,
            O::Embedding | O::Sampling | O::Draft => OperatorKind::Ends,
        }
    }

    pub fn named(name: &str) -> Option<Operator> {
        Operator::ALL.iter().copied().find(|operator| operator.name() == name)
    }
}

impl std::fmt::Display for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, operator) in Operator::ALL.iter().enumerate() {
            assert_eq!(*operator as usize, i);
            assert_eq!(Operator::named(operator.name()), Some(*operator));
            assert_eq!(serde_json::to_value(operator).unwrap(), operator.name());
        }
        assert_eq!(Operator::named("softmax"), None);
    }
}
