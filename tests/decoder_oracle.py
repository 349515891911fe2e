"""Logits of tiny models by Hugging Face transformers, for tests/decoder_oracle.rs.

    pip install torch transformers
    python tests/decoder_oracle.py > tests/fixtures/transformers_logits.json
    python tests/decoder_oracle.py experts > tests/fixtures/transformers_experts.json

The weights are those of `SyntheticWeights`: a value is a function of seed, name, row and column.
"""

import json
import sys

import numpy
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

SEED = 42
MASK = (1 << 64) - 1


def mix64(value):
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def values(name, shape, norm_middle):
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    key = mix64(key ^ mix64(SEED))
    columns = shape[-1]
    rows = [mix64((key + row) & MASK) for row in range(shape[0] if len(shape) == 2 else 1)]
    low = numpy.array([row & 0xFFFFFFFF for row in rows], dtype=numpy.uint32)[:, None]
    high = numpy.array([row >> 32 for row in rows], dtype=numpy.uint32)[:, None]
    with numpy.errstate(over="ignore"):
        h = numpy.arange(columns, dtype=numpy.uint32)[None, :] * numpy.uint32(0x9E3779B9) ^ low
        h = (h ^ (h >> numpy.uint32(16))) * numpy.uint32(0x7FEB352D)
        h = ((h ^ (h >> numpy.uint32(15))) + high) * numpy.uint32(0x846CA68B)
        h ^= h >> numpy.uint32(16)
    unit = ((h >> numpy.uint32(8)).astype(numpy.int64) - (1 << 23)).astype(numpy.float32) / numpy.float32(1 << 23)
    if len(shape) == 2:
        offset, spread = 0.0, numpy.sqrt(numpy.float32(3.0) / numpy.float32(columns))
    elif name.endswith("bias"):
        offset, spread = 0.0, 0.05
    else:
        offset, spread = norm_middle, 0.1
    return (numpy.float32(offset) + numpy.float32(spread) * unit).reshape(shape)


def ids(n, salt):
    return [(i * 37 + salt * 11 + i * i) % 101 for i in range(n)]


def config(model_type, **more):
    return {
        "model_type": model_type, "vocab_size": 101, "hidden_size": 48, "intermediate_size": 50,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "pad_token_id": 0, **more,
    }


GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9}
DIVISORS = {"short_factor": [1.0, 1.02, 1.3, 2.1], "long_factor": [1.08, 1.6, 17.7, 64.8]}
PHI3 = {
    "tie_word_embeddings": False, "sliding_window": None, "original_max_position_embeddings": 32,
    "rope_theta": 10000.0, "rope_scaling": {"type": "longrope", **DIVISORS},
}
# Name, config, length of the prompt.
CASES = [
    ("gemma2", config("gemma2", **GEMMA, query_pre_attn_scalar=13), 30),
    ("gemma2, hard caps", config("gemma2", **GEMMA, query_pre_attn_scalar=2, attn_logit_softcapping=1.5,
                                 final_logit_softcapping=2.0), 30),
    ("gemma3", config("gemma3_text", **GEMMA, num_hidden_layers=7, query_pre_attn_scalar=13), 30),
    ("gemma3, stretched, every second layer global",
     config("gemma3_text", **GEMMA, query_pre_attn_scalar=8, rope_scaling={"rope_type": "linear", "factor": 8.0},
            layer_types=["sliding_attention", "full_attention"] * 2), 150),
    ("gemma3 with biases", config("gemma3_text", **GEMMA, query_pre_attn_scalar=8, attention_bias=True), 12),
    ("phi3, within the original context", config("phi3", **PHI3), 20),
    ("phi3, beyond the original context", config("phi3", **PHI3), 60),
    ("mistral with a window", config("mistral", sliding_window=9, rope_theta=10000.0, tie_word_embeddings=False), 30),
    ("llama with GELU", config("llama", hidden_act="gelu", rope_theta=10000.0, tie_word_embeddings=False), 12),
]
FEW = {"intermediate_size": 52, "rope_theta": 10000.0, "tie_word_embeddings": False, "num_experts_per_tok": 2}
QWEN_MOE = {**FEW, "num_experts": 8, "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": []}
GPT_OSS = {**FEW, "rope_theta": 150000.0, "intermediate_size": 24, "num_local_experts": 8, "sliding_window": 9,
           "layer_types": ["sliding_attention", "full_attention"] * 2, "swiglu_limit": 7.0, "attention_bias": True}
YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 32}
EXPERTS = [
    ("mixtral", config("mixtral", **FEW, num_local_experts=8), 20),
    ("qwen2_moe", config("qwen2_moe", **QWEN_MOE, shared_expert_intermediate_size=40, norm_topk_prob=False), 20),
    ("qwen2_moe, dense layers between", config("qwen2_moe", **{**QWEN_MOE, "decoder_sparse_step": 2}, shared_expert_intermediate_size=40, norm_topk_prob=True), 20),
    ("qwen3_moe", config("qwen3_moe", **QWEN_MOE, norm_topk_prob=True), 20),
    ("gpt_oss", config("gpt_oss", **GPT_OSS, rope_parameters={"rope_type": "default", "rope_theta": 150000.0}), 30),
    ("gpt_oss, stretched", config("gpt_oss", **GPT_OSS, initial_context_length=32, rope_parameters=YARN), 70),
]
STEPS = 4


def of_gpt_oss(block, name, shape):
    """The parameters of all experts are one: weights by column, and those of gate and up in turn."""
    kind = "bias" if name.endswith("bias") else "weight"

    def of(expert, part, rows):
        one = values(f"{block}.{expert}.{part}.{kind}", (rows,) if kind == "bias" else (rows, shape[1]), 1.0)
        return one if kind == "bias" else one.T

    if "down_proj" in name:
        return numpy.stack([of(expert, "down_proj", shape[-1]) for expert in range(shape[0])])
    both = [[of(expert, part, shape[-1] // 2) for part in ("gate_proj", "up_proj")] for expert in range(shape[0])]
    return numpy.stack([numpy.stack(pair, axis=-1).reshape(shape[1:]) for pair in both])


def tensor(name, shape, norm_middle, model_type):
    """A parameter. Those of all experts may be one, and mixtral's have names of their own in files."""
    mixtral, gpt_oss = model_type == "mixtral", model_type == "gpt_oss"
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if ".experts." not in name or len(shape) == 2 and not gpt_oss:
        return values(name, shape, norm_middle)
    block = name[: name.index(".experts.")] + ".experts"
    if gpt_oss:
        return of_gpt_oss(block, name, shape)
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    of = lambda expert, part, rows: values(f"{block}.{expert}.{part}.weight", (rows, shape[2]), norm_middle)
    if name.endswith("down_proj"):
        return numpy.stack([of(expert, down, shape[1]) for expert in range(shape[0])])
    half = shape[1] // 2
    return numpy.stack([numpy.concatenate([of(expert, gate, half), of(expert, up, half)]) for expert in range(shape[0])])


def logits_of(case, prompt):
    parsed = AutoConfig.for_model(**case)
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager").eval().float()
    norm_middle = 0.0 if case["model_type"].startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(tensor(name, tuple(parameter.shape), norm_middle, case["model_type"]).copy()))
        cache, rows, next_ids = None, [], ids(prompt, 1)
        for step in range(STEPS + 1):
            out = model(torch.tensor([next_ids]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            rows.append([round(float(x), 5) for x in out.logits[0, -1]])
            next_ids = [(step * 29 + 3) % 101]
    return rows


print(json.dumps({
    "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}",
    "cases": [
        {"name": name, "config": case, "prompt": prompt, "logits": logits_of(case, prompt)}
        for name, case, prompt in (EXPERTS if sys.argv[1:] == ["experts"] else CASES)
    ],
}))
