//! Which tensor has which type: in the files that llama.cpp makes, by the name of the mix, and in FP8
//! checkpoints.

use decoder_ops::Format;

use llm_cost::spec::TensorShape;
use llmprof_config::Scheme;

/// The facts on which a scheme's choice of types depends.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    pub layers: usize,
    pub group: usize,
    pub tied: bool,
    /// Experts per layer.
    pub experts: usize,
}

/// The type of a tensor; `None` for norms and biases, which stay unquantised.
pub(super) fn format_of(scheme: Scheme, of: &Architecture, tensor: &TensorShape) -> Option<Format> {
    let &[_, columns] = tensor.shape.as_slice() else { return None };
    let name = tensor.name.as_str();
    if tensor.is_router() {
        return None;
    }
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
    let mixed = if name == "lm_head.weight" || (of.tied && name == "model.embed_tokens.weight") {
        match scheme {
            Scheme::Q8_0 | Scheme::Mxfp4 => Format::Q8_0,
            Scheme::Fp8 => return None,
            _ => Format::Q6K,
        }
    } else {
        of_layer(scheme, of, name, layer.unwrap_or(0))?
    };
    if columns.is_multiple_of(mixed.weights()) {
        return Some(mixed);
    }
    // Rows that are no multiple of 256.
    let smaller = match mixed {
        Format::Q2K | Format::Q3K | Format::Iq4Xs => Format::Iq4Nl,
        Format::Q4K => Format::Q5_0,
        Format::Q5K => Format::Q5_1,
        Format::Q6K => Format::Q8_0,
        other => other,
    };
    columns.is_multiple_of(smaller.weights()).then_some(smaller)
}

fn of_layer(scheme: Scheme, of: &Architecture, name: &str, i: usize) -> Option<Format> {
    let n = of.layers;
    // The first and the last eighth, and each third between.
    let is_important = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    let has = |part: &str| name.contains(part);
    let (values, down, output) = (has(".v_proj"), has(".down_proj") || has(".w2."), has(".o_proj"));
    // Phi-3's, in one matrix.
    let all = has(".qkv_proj");
    if of.experts == 8 {
        // Attention is small beside the experts.
        match scheme {
            _ if values || has(".k_proj") => return Some(Format::Q8_0),
            Scheme::Q2K | Scheme::Q3KM | Scheme::Q4KM | Scheme::Iq4Nl | Scheme::Iq4Xs if output => {
                return Some(Format::Q5K);
            }
            _ => {}
        }
    }
    Some(match scheme {
        Scheme::Fp8 => return None,
        Scheme::Q4_0 => Format::Q4_0,
        Scheme::Q4_1 => Format::Q4_1,
        Scheme::Q5_0 => Format::Q5_0,
        Scheme::Q5_1 => Format::Q5_1,
        Scheme::Q8_0 => Format::Q8_0,
        Scheme::Q6K => Format::Q6K,
        Scheme::Mxfp4 if has(".mlp.") || has(".block_sparse_moe.") => Format::Mxfp4,
        Scheme::Mxfp4 => Format::Q8_0,
        Scheme::Iq4Nl if down && i < n / 8 => Format::Q5K,
        Scheme::Iq4Nl => Format::Iq4Nl,
        Scheme::Iq4Xs if (values && of.group >= 4) || (down && i < n / 8) => Format::Q5K,
        Scheme::Iq4Xs => Format::Iq4Xs,
        Scheme::Q4KM if (values || down) && is_important => Format::Q6K,
        Scheme::Q4KM if all => Format::Q5K,
        Scheme::Q4KM => Format::Q4K,
        Scheme::Q5KM if (values || down) && is_important || all => Format::Q6K,
        Scheme::Q5KM => Format::Q5K,
        Scheme::Q3KM if values && i < 2 => Format::Q5K,
        Scheme::Q3KM if values || all => Format::Q4K,
        Scheme::Q3KM if down && i < n / 16 => Format::Q5K,
        Scheme::Q3KM if down && is_important => Format::Q4K,
        Scheme::Q3KM if output => Format::Q4K,
        Scheme::Q3KM => Format::Q3K,
        Scheme::Q2K if values && of.group >= 4 => Format::Q4K,
        Scheme::Q2K if values || down || output => Format::Q3K,
        Scheme::Q2K => Format::Q2K,
    })
}

/// Whether matrices of this name are kept in FP8 (e4m3), where a checkpoint or a scheme has that.
pub(super) fn stays_fp8(tensor: &TensorShape) -> bool {
    let name = tensor.name.as_str();
    // Tables and heads are published unquantised; GEMMs with experts need unquantised weights.
    let is_plain = tensor.is_router() || name.contains(".experts.");
    tensor.shape.len() == 2
        && tensor.shape[1].is_multiple_of(16)
        && name.starts_with("model.layers.")
        && !is_plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes() {
        let of = Architecture { layers: 28, group: 7, tied: false, experts: 0 };
        let mixtral = Architecture { layers: 32, group: 4, experts: 8, ..of };
        let small = Architecture { tied: true, ..of };
        let table = [
            (Scheme::Q4KM, "model.layers.0.self_attn.q_proj.weight", 3584, &of, Format::Q4K),
            (Scheme::Q4KM, "model.layers.0.mlp.down_proj.weight", 18944, &of, Format::Q6K),
            (Scheme::Q4KM, "model.layers.3.mlp.down_proj.weight", 18944, &of, Format::Q4K),
            (Scheme::Q4KM, "model.layers.5.self_attn.v_proj.weight", 3584, &of, Format::Q6K),
            (Scheme::Q4KM, "model.embed_tokens.weight", 3584, &of, Format::Q4K),
            (Scheme::Q4KM, "lm_head.weight", 3584, &of, Format::Q6K),
            (Scheme::Q4KM, "model.layers.0.self_attn.qkv_proj.weight", 3072, &of, Format::Q5K),
            (Scheme::Q3KM, "model.layers.1.self_attn.v_proj.weight", 3584, &of, Format::Q5K),
            (Scheme::Q3KM, "model.layers.9.self_attn.v_proj.weight", 3584, &of, Format::Q4K),
            (Scheme::Q4KM, "model.layers.3.mlp.up_proj.weight", 896, &small, Format::Q5_0),
            (Scheme::Q4KM, "model.embed_tokens.weight", 896, &small, Format::Q8_0),
            (Scheme::Q8_0, "lm_head.weight", 3584, &of, Format::Q8_0),
            (Scheme::Iq4Xs, "model.layers.9.self_attn.v_proj.weight", 3584, &of, Format::Q5K),
            (Scheme::Q2K, "model.layers.9.mlp.gate_proj.weight", 3584, &of, Format::Q2K),
            (
                Scheme::Q4KM,
                "model.layers.9.block_sparse_moe.experts.3.w1.weight",
                4096,
                &mixtral,
                Format::Q4K,
            ),
            (
                Scheme::Q4KM,
                "model.layers.0.block_sparse_moe.experts.3.w2.weight",
                14336,
                &mixtral,
                Format::Q6K,
            ),
            (Scheme::Q4KM, "model.layers.9.self_attn.k_proj.weight", 4096, &mixtral, Format::Q8_0),
            (Scheme::Q4KM, "model.layers.9.self_attn.o_proj.weight", 4096, &mixtral, Format::Q5K),
        ];
        for (scheme, name, columns, architecture, format) in table {
            let tensor = TensorShape { name: name.to_owned(), shape: vec![64, columns] };
            assert_eq!(format_of(scheme, architecture, &tensor), Some(format), "{scheme:?} {name}");
        }
        let norm = TensorShape { name: "model.norm.weight".to_owned(), shape: vec![3584] };
        assert_eq!(format_of(Scheme::Q4KM, &of, &norm), None);
        let router =
            TensorShape { name: "model.layers.1.mlp.gate.weight".to_owned(), shape: vec![128, 2048] };
        assert_eq!(format_of(Scheme::Q4KM, &of, &router), None);
    }
}
