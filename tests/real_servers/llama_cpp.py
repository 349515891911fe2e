#!/usr/bin/env python3
"""llama.cpp's server on a tiny random model: llama_cpp.py PORT. Needs xllamacpp, gguf and numpy from PyPI."""
import os
import sys
import tempfile
import time

import gguf
import numpy
import xllamacpp

HIDDEN, FEED, LAYERS, HEADS, CONTEXT = 128, 256, 2, 4, 8192


def make_model(path: str) -> None:
    """A llama with byte tokens: no tokenizer has to be trained."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = numpy.random.default_rng(0)
    weights = lambda *shape: (random.standard_normal(shape) * 0.05).astype(numpy.float32)
    writer.add_tensor("token_embd.weight", weights(len(tokens), HIDDEN))
    # Only printable bytes are ever the most likely: others make no text.
    output = weights(len(tokens), HIDDEN)
    output[[i for i in range(len(tokens)) if not 32 <= i - 3 < 127]] = 0
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", numpy.ones(HIDDEN, numpy.float32))
    for layer in range(LAYERS):
        name = lambda part: f"blk.{layer}.{part}.weight"
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(name(norm), numpy.ones(HIDDEN, numpy.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(name(part), weights(HIDDEN, HIDDEN))
        writer.add_tensor(name("ffn_gate"), weights(FEED, HIDDEN))
        writer.add_tensor(name("ffn_up"), weights(FEED, HIDDEN))
        writer.add_tensor(name("ffn_down"), weights(HIDDEN, FEED))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


with tempfile.TemporaryDirectory() as directory:
    model = os.path.join(directory, "tiny.gguf")
    make_model(model)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_parallel = 4
    parameters.n_ctx = CONTEXT
    parameters.port = int(sys.argv[1])
    parameters.endpoint_metrics = True
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(1)
