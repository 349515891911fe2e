"""A workload of your own for llmprof-tui:

    llmprof-tui run runtime=pytorch runtime.pytorch.script=examples/pytorch_workload.py

Two functions make any Python code a workload. The profiler sends the prompts, takes the time of each token when `on_token` is
called, and shows the run in the same screens as its own engine. This one is a small transformer without any library but torch.
"""

import torch


class Tiny(torch.nn.Module):
    def __init__(self, vocabulary, width=256, layers=4, heads=4):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.norm = torch.nn.LayerNorm(width)
        self.lm_head = torch.nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.lm_head(self.norm(x[:, -1]))


def load(config):
    """Makes the model. `config` has device, dtype, weights, arch, seed, batch_size, max_new_tokens and the other settings."""
    torch.manual_seed(config["seed"])
    vocabulary = config["arch"].get("vocab_size", 32000)
    return Tiny(vocabulary).to(config["device"], getattr(torch, config["dtype"])).eval()


@torch.inference_mode()
def generate(model, prompt, on_token):
    """Answers one prompt. `prompt` has ids (one row for each sequence), text, images (paths) and output (tokens to generate).

    `on_token(ids)` reports the ids of one step, once they are on the host. It waits while the run is paused, and ends the
    request when it is cancelled. Where images are encoded first, `on_token.vision(images=1, tokens=256)` ends that phase.
    """
    ids = torch.tensor(prompt["ids"], device=next(model.parameters()).device)
    for _ in range(prompt["output"]):
        chosen = model(ids).argmax(-1)
        on_token(chosen.tolist())
        ids = torch.cat([ids, chosen[:, None]], 1)
