#!/usr/bin/env python3
"""experts.py FROM TO: config of the shape of Qwen3-30B-A3B in TO, with the tokenizer of the model in FROM."""
import json, os, shutil, sys

source, out = sys.argv[1:3]
shutil.copytree(source, out)
vocabulary = json.load(open(os.path.join(source, "config.json")))["vocab_size"]
json.dump(dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_act="silu", hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768,
    num_experts=128, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], num_hidden_layers=48, num_attention_heads=32,
    num_key_value_heads=4, head_dim=128, vocab_size=vocabulary, tie_word_embeddings=False, max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=1e6,
    torch_dtype="bfloat16", use_cache=True, use_sliding_window=False, bos_token_id=1, eos_token_id=2, attention_bias=False, attention_dropout=0.0,
    initializer_range=0.02, router_aux_loss_coef=0.001), open(os.path.join(out, "config.json"), "w"))
