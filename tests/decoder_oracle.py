"""Logits of tiny models by Hugging Face transformers, for tests/decoder_oracle.rs.

    pip install torch transformers
    python tests/decoder_oracle.py > tests/fixtures/transformers_logits.json

The weights are those of `SyntheticWeights`: a value is a function of seed, name, row and column.
"""

import json

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
STEPS = 4


def logits_of(case, prompt):
    parsed = AutoConfig.for_model(**case)
    model = AutoModelForCausalLM.from_config(parsed, attn_implementation="eager").eval().float()
    norm_middle = 0.0 if case["model_type"].startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(values(name, tuple(parameter.shape), norm_middle)))
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
        for name, case, prompt in CASES
    ],
}))
