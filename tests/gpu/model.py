#!/usr/bin/env python3
"""A model directory with random weights and a tokenizer of its own: model.py DIR [0.5b|7b]. Needs PyTorch, transformers and tokenizers."""
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SHAPES = {
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True),
    "7b": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, vocab_size=152064),
}
TEMPLATE = "{% for m in messages %}{{ m['content'] if m['content'] is string else m['content'][0]['text'] }} {% endfor %}"


def main() -> None:
    folder, size = sys.argv[1], (sys.argv[2:] or ["0.5b"])[0]
    config = Qwen2Config(**SHAPES[size], bos_token_id=0, eos_token_id=1, pad_token_id=1)
    # Every token of the model has a text, so that every token that it chooses is a chunk.
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2} | {f"w{n}": n for n in range(3, config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)


main()
