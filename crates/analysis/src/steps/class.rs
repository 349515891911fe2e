//! The class of a kernel by its name: what frameworks and libraries call their kernels.

use std::fmt;

use serde::Serialize;

pub use llmprof_event::ranks::Collective;

/// The class of a kernel, as far as its name shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// A collective operation of NCCL.
    Collective(Collective),
    /// An all-reduce of the engine itself.
    CustomAllReduce,
    MoeRouter,
    MoePermute,
    MoeProduct,
    AttentionDecode,
    AttentionPrefill,
    /// Attention whose name does not show the phase.
    Attention,
    /// Combines partial results of attention.
    AttentionCombine,
    KvWrite,
    Rope,
    NormRope,
    Norm,
    Activation,
    /// Converts operands to another number format.
    Quantise,
    QuantisedProduct,
    GgmlProduct,
    Product,
    /// Adds up the parts of a GEMM before it.
    ProductReduction,
    /// Fused by TorchInductor; the operators are in the name.
    Inductor(Fused),
    Sampling,
    /// In attention or before sampling.
    Softmax,
    StateSpace,
    Embedding,
    Elementwise,
    Copy,
    /// In convolutional networks.
    Convolution,
    /// Backward passes and optimisers.
    Training,
    Other,
}

/// Operators in the name of a fused kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
pub struct Fused(u8);

impl Fused {
    pub const EMBEDDING: Fused = Fused(1);
    pub const NORM: Fused = Fused(2);
    pub const ROPE: Fused = Fused(4);
    pub const ACTIVATION: Fused = Fused(8);
    pub const KV_WRITE: Fused = Fused(16);
    pub const SOFTMAX: Fused = Fused(32);
    pub const SAMPLING: Fused = Fused(64);

    const NAMED: [(Fused, &str); 7] = [
        (Fused::EMBEDDING, "embedding"),
        (Fused::NORM, "norm"),
        (Fused::ROPE, "RoPE"),
        (Fused::ACTIVATION, "activation"),
        (Fused::KV_WRITE, "KV write"),
        (Fused::SOFTMAX, "softmax"),
        (Fused::SAMPLING, "sampling"),
    ];

    pub fn has(self, other: Fused) -> bool {
        self.0 & other.0 == other.0
    }

    /// By the operators in an Inductor kernel's name, in lower case.
    fn in_name(name: &str) -> Fused {
        let words: Vec<&str> = name.split('_').collect();
        let has = |word: &str| words.contains(&word);
        let mut fused = 0;
        let mut add = |present: bool, what: Fused| fused |= if present { what.0 } else { 0 };
        add(has("embedding"), Fused::EMBEDDING);
        add(
            has("rsqrt") || has("mean") || name.contains("layer_norm") || name.contains("rms_norm"),
            Fused::NORM,
        );
        add(has("cos") || has("sin") || has("neg"), Fused::ROPE);
        add(has("silu") || has("gelu") || has("sigmoid") || has("relu"), Fused::ACTIVATION);
        add(has("index") && (has("put") || has("copy")), Fused::KV_WRITE);
        add(has("softmax"), Fused::SOFTMAX);
        add(has("argmax") || has("multinomial") || has("topk") || has("exponential"), Fused::SAMPLING);
        Fused(fused)
    }
}

/// Parts of names in lower case, the first match decides. `^` matches where a word begins, `*` any text.
const TABLE: &[(Class, &[&str])] = &[
    (
        Class::CustomAllReduce,
        &[
            "cross_device_reduce",
            "allreduce_fusion",
            "allreducefusion",
            "oneshotallreduce",
            "twoshotallreduce",
            "oneshot_allreduce",
            "all_reduce_one_shot",
            "all_reduce_two_shot",
            "one_shot_all_reduce",
            "two_shot_all_reduce",
            "multimem",
            "userbuffers",
        ],
    ),
    // The preparations of a server for a step.
    (
        Class::Elementwise,
        &[
            "prepare_varlen",
            "slot_mapping",
            "prepare_inputs",
            "prepare_pos_seq",
            "kv_indices_triton",
            "kv_splits_triton",
        ],
    ),
    (
        Class::StateSpace,
        &[
            "selective_scan",
            "causal_conv1d",
            "^ssm_",
            "gated_delta",
            "selective_state_update",
            "chunk_scan_fwd",
            "chunk_state_fwd",
            "state_passing_fwd",
            "^wkv",
        ],
    ),
    (
        Class::Training,
        &[
            "backward",
            "^bwd",
            "_bwd",
            "flashattnbwd",
            "dgrad",
            "wgrad",
            "multi_tensor_apply*optimizer",
            "multi_tensor_apply*adam",
            "multi_tensor_apply*addcdiv",
            "^adam",
            "grad_input",
            "gradinput",
        ],
    ),
    (
        Class::MoeRouter,
        &[
            "topkgating",
            "moetopk",
            "grouped_topk",
            "moe_topk",
            "moe_fused_gate",
            "topk_moe",
            "routingindices",
            "routing::",
            "custommoerouting",
        ],
    ),
    (
        Class::MoePermute,
        &[
            "moe_align",
            "expandinputrows",
            "finalizemoe",
            "shuffleinputrows",
            "moe_sum",
            "count_and_sort_expert",
            "moe_permute",
            "moe_unpermute",
            "moe::dev::permute",
            "moe::dev::finalize",
            "ep_scatter",
            "ep_gather",
            "buildexpertmaps",
            "computestrides",
        ],
    ),
    (
        Class::MoeProduct,
        &[
            "fused_moe_kernel",
            "groupproblemshape",
            "group_gemm",
            "grouped_gemm",
            "groupgemm",
            "moe_wna16",
            "matmul_ogs",
            "moe_gemm",
            "moegemm",
            "mul_mat_id",
        ],
    ),
    (
        Class::AttentionCombine,
        &[
            "mergestate",
            "merge_attn",
            "flash_attn_combine",
            "splitkv_combine",
            "fwdcombine",
            "fwd_combine",
            "mla_combine",
            "flash_attn_stream_k_fixup",
            "paged_attention_v2_reduce",
            "reduce_segments",
            "_fwd_kernel_stage2",
            "fmhareduction",
            "lean_reduction",
        ],
    ),
    (
        Class::KvWrite,
        &[
            "reshape_and_cache",
            "concat_and_cache",
            "appendpagedkv",
            "k_set_rows",
            "set_rows",
            "store_kv",
            "set_kv_buffer",
            "set_mla_kv_buffer",
            "updatekvcache",
            "index_copy_kernel",
        ],
    ),
    (
        Class::AttentionDecode,
        &[
            "paged_attention",
            "batchdecode",
            "singledecode",
            "flash_attn_ext_vec",
            "flash_attn_vec_ext",
            "mmha",
            "masked_multihead_attention",
            "^xqa",
            "kernel_mha",
            "_fwd_grouped_kernel_stage1",
            "_fwd_kernel_stage1",
            "attentiondecode",
        ],
    ),
    (
        Class::AttentionPrefill,
        // The last is that of SGLang's and vLLM's Triton backends.
        &[
            "batchprefill",
            "singleprefill",
            "prefillwithkv",
            "context_fmha",
            "context_attention",
            "^_fwd_kernel",
        ],
    ),
    (
        Class::Attention,
        &[
            "flash_fwd",
            "flashattn",
            "flash_attn_",
            "fmha",
            "unified_attention",
            "^mla",
            "flashmla",
            "flash_fprop",
            "^sdpa",
            "batchattention",
            "flex_attention",
            "_attn_fwd",
            "pytorch_flash::",
            "attention",
        ],
    ),
    // A GEMM with the activation in its epilogue is a GEMM.
    (
        Class::Convolution,
        &[
            "implicit_gemm",
            "winograd",
            "convolve",
            "^conv2d",
            "^conv3d",
            "nchwtonhwc",
            "nhwctonchw",
            "im2col",
            "group_norm",
            "batch_norm",
            "bn_fw",
        ],
    ),
    (
        Class::QuantisedProduct,
        &[
            "marlin",
            "machete",
            "gemm_half_q",
            "^awq*gemm",
            "gemm_awq",
            "deep_gemm",
            "gptq",
            "dequantize_gemm",
            "weight_only*gemm",
            "weight_only*gemv",
            "fpa_intb",
        ],
    ),
    (Class::ProductReduction, &["splitkreduce", "splitk_reduce", "reduce_1block_kernel", "stream_k_fixup"]),
    (Class::GgmlProduct, &["mul_mat_q", "mul_mat_vec", "mul_mat_f"]),
    (Class::Embedding, &["k_get_rows"]),
    (
        Class::Product,
        &[
            "^nvjet_",
            "^bmm_",
            "xmma_gemm",
            "tensorop_*gemm",
            "s16816gemm",
            "s1688gemm",
            "_sgemm_",
            "tensorop_gemm",
        ],
    ),
    (Class::Rope, &["^rope_norm", "^rope_neox", "^rope_multi", "^rope_vision"]),
    (Class::NormRope, &["norm*^rope", "norm*rotary", "qknormrope"]),
    (Class::Rope, &["rotary", "^rope", "cos_kernel_cuda", "sin_kernel_cuda", "neg_kernel_cuda"]),
    (
        Class::Norm,
        &[
            "rms_norm",
            "rmsnorm",
            "layer_norm",
            "layernorm",
            "^l2_norm",
            "l2norm",
            "qknorm",
            "^norm_f32",
            "meanops",
            "rsqrt_kernel_cuda",
        ],
    ),
    (
        Class::Activation,
        &[
            "act_and_mul",
            "silu",
            "swiglu",
            "gelu",
            "unary_gated",
            "doactivation",
            "dogatedactivation",
            "relu_kernel",
        ],
    ),
    (
        Class::Quantise,
        &["quantize", "_quant_", "^quant_", "cvt_fp16_to_fp4", "fp8_quant", "scaled_fp4_quant", "^awq"],
    ),
    (Class::Product, &["cutlass", "gemv", "gemm", "matmul", "cublaslt::", "dot_kernel"]),
    (
        Class::Sampling,
        &[
            "sampling",
            "argmax",
            "sbtopk",
            "mbtopk",
            "gathertopk",
            "^topk",
            "^topp",
            "^top_k",
            "^top_p",
            "multinomial",
            "penalt",
            "exponential",
            "gumbel",
            "renormprob",
            "sampledtoken",
        ],
    ),
    (Class::Softmax, &["softmax", "soft_max"]),
    (
        Class::Embedding,
        &["indexselect", "embedding", "get_rows", "vectorized_gather", "lookup_kernel", "lookupkernel"],
    ),
    (Class::Copy, &["direct_copy_kernel", "memcpy", "^cpy_", "copy_kernel", "transpose", "^concat_"]),
    (
        Class::Elementwise,
        &[
            "elementwise",
            "catarray",
            "k_bin_bcast",
            "reduce_kernel",
            "^scale_f32",
            "^add_f32",
            "fillfunctor",
            "unary_op_kernel",
            "bcast",
        ],
    ),
];

impl Class {
    /// The class of a kernel's demangled name.
    pub fn from_name(name: &str) -> Class {
        let name = without_parameters(name.trim());
        let lower = name.to_ascii_lowercase();
        let lower = lower.as_str();
        if lower.contains("nccldevkernel")
            || lower.contains("ncclsymkdevkernel")
            || lower.starts_with("ncclkernel")
        {
            return Class::Collective(Collective::in_name(lower));
        }
        if let Some(fused) = lower.strip_prefix("triton_") {
            return Class::of_inductor(fused);
        }
        let name = name.as_bytes();
        let fits = |pattern: &&&str| matches(name, lower.as_bytes(), pattern.as_bytes());
        TABLE
            .iter()
            .find(|(_, patterns)| patterns.iter().any(|pattern| fits(&pattern)))
            .map_or(Class::Other, |(class, _)| *class)
    }

    /// `poi` is pointwise, `red` and `per` are reductions, `tem` is a template: a matrix product or flex attention.
    fn of_inductor(name: &str) -> Class {
        let kinds = ["poi_fused", "red_fused", "per_fused", "tem_fused", "for_fused", "spl_fused"];
        let Some(kind) = kinds.into_iter().find(|kind| name.starts_with(kind)) else {
            return Class::from_name(name);
        };
        let ops = &name[kind.len()..];
        match kind {
            _ if ops.contains("backward") => Class::Training,
            "tem_fused" if ops.contains("flex_attention") || ops.contains("dot_product") => Class::Attention,
            "tem_fused" if ops.contains("convolution") => Class::Convolution,
            "tem_fused" => Class::Product,
            _ => {
                let fused = Fused::in_name(ops);
                let quantises = ops.contains("scaled_mm") || ops.contains("to_copy_abs_clamp");
                if quantises && fused == Fused::default() { Class::Quantise } else { Class::Inductor(fused) }
            }
        }
    }

    pub fn is_attention(self) -> bool {
        matches!(self, Class::AttentionDecode | Class::AttentionPrefill | Class::Attention)
    }

    /// A matrix product with weights, or a part of attention that was not fused.
    pub fn is_product(self) -> bool {
        matches!(self, Class::Product | Class::QuantisedProduct | Class::GgmlProduct | Class::MoeProduct)
    }

    pub fn is_sampling(self) -> bool {
        match self {
            Class::Sampling => true,
            Class::Inductor(fused) => fused.has(Fused::SAMPLING),
            _ => false,
        }
    }

    pub fn is_embedding(self) -> bool {
        match self {
            Class::Embedding => true,
            Class::Inductor(fused) => fused.has(Fused::EMBEDDING),
            _ => false,
        }
    }

    pub fn is_norm(self) -> bool {
        match self {
            Class::Norm => true,
            Class::Inductor(fused) => fused.has(Fused::NORM),
            _ => false,
        }
    }

    pub fn is_activation(self) -> bool {
        match self {
            Class::Activation => true,
            Class::Inductor(fused) => fused.has(Fused::ACTIVATION),
            _ => false,
        }
    }

    pub fn is_softmax(self) -> bool {
        match self {
            Class::Softmax => true,
            Class::Inductor(fused) => fused.has(Fused::SOFTMAX),
            _ => false,
        }
    }

    pub fn is_communication(self) -> bool {
        matches!(self, Class::Collective(_) | Class::CustomAllReduce)
    }

    /// Its number of blocks is proportional to the number of rows: the tokens of a step.
    pub fn is_row_wise(self) -> bool {
        matches!(self, Class::Norm | Class::NormRope | Class::Rope | Class::Activation | Class::Inductor(_))
    }
}

/// A demangled name without the types of its parameters, which are not what it does.
fn without_parameters(name: &str) -> &str {
    let mut depth = 0;
    for (at, byte) in name.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ if depth == 0 => return name,
            _ => {}
        }
        if depth == 0 {
            return if at > 0 { &name[..at] } else { name };
        }
    }
    name
}

/// Whether `pattern` occurs in `lower`, the lower-case form of `name`.
fn matches(name: &[u8], lower: &[u8], pattern: &[u8]) -> bool {
    let mut from = 0;
    for part in pattern.split(|byte| *byte == b'*') {
        let (part, at_word) = match part.strip_prefix(b"^") {
            Some(part) => (part, true),
            None => (part, false),
        };
        let found = (from..(lower.len() + 1).saturating_sub(part.len()))
            .find(|at| lower[*at..].starts_with(part) && (!at_word || begins_word(name, *at)));
        match found {
            Some(at) => from = at + part.len(),
            None => return false,
        }
    }
    true
}

/// After a character that is no letter, or a capital after a small one.
fn begins_word(name: &[u8], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|at| name[at]) else { return true };
    !before.is_ascii_alphabetic() || (name[at].is_ascii_uppercase() && before.is_ascii_lowercase())
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Class::Collective(Collective::Unknown) => "NCCL",
            Class::Collective(collective) => return write!(f, "NCCL {collective}"),
            Class::Inductor(fused) => {
                f.write_str("Inductor")?;
                let named = Fused::NAMED.iter().filter(|(op, _)| fused.has(*op));
                for (i, (_, name)) in named.enumerate() {
                    write!(f, "{}{name}", if i == 0 { ": " } else { ", " })?;
                }
                return Ok(());
            }
            Class::CustomAllReduce => "custom all-reduce",
            Class::MoeRouter => "MoE router",
            Class::MoePermute => "MoE permute",
            Class::MoeProduct => "MoE product",
            Class::AttentionDecode => "attention, decode",
            Class::AttentionPrefill => "attention, prefill",
            Class::Attention => "attention",
            Class::AttentionCombine => "attention, combine",
            Class::KvWrite => "KV write",
            Class::Rope => "RoPE",
            Class::NormRope => "norm + RoPE",
            Class::Norm => "norm",
            Class::Activation => "activation",
            Class::Quantise => "quantise",
            Class::QuantisedProduct => "quantised product",
            Class::GgmlProduct => "ggml product",
            Class::Product => "product",
            Class::ProductReduction => "product, reduction",
            Class::Sampling => "sampling",
            Class::Softmax => "softmax",
            Class::StateSpace => "state space",
            Class::Embedding => "embedding",
            Class::Elementwise => "elementwise",
            Class::Copy => "copy",
            Class::Convolution => "convolution",
            Class::Training => "training",
            Class::Other => "other",
        };
        f.write_str(text)
    }
}
