#!/usr/bin/env python3
"""A small server with the OpenAI protocol: serve.py PORT DIR [static]. One request at a time, the others wait; `/metrics` has vLLM's names.
The standard library, PyTorch and transformers."""
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

port, folder = int(sys.argv[1]), sys.argv[2]
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
turn, counts = threading.Lock(), dict(waiting=0, running=0, prompt=0, generated=0, requests=0, queue=0.0, prefill=0.0, decode=0.0)


@torch.inference_mode()
def generate(ids, limit):
    cache = DynamicCache(config=model.config)
    step = torch.tensor([ids], device=device)
    for _ in range(limit):
        logits = model(step, past_key_values=cache, use_cache=True).logits
        step = logits[:, -1:].argmax(-1)
        yield int(step)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def text(self, text, kind="application/json"):
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/metrics":
            c, label = counts, '{model_name="random",engine="0"}'
            lines = [f"vllm:num_requests_running{label} {c['running']}", f"vllm:num_requests_waiting{label} {c['waiting']}",
                     f"vllm:prompt_tokens_total{label} {c['prompt']}", f"vllm:generation_tokens_total{label} {c['generated']}"]
            for name in ("queue", "prefill", "decode"):
                lines += [f"vllm:request_{name}_time_seconds_sum{label} {c[name]}", f"vllm:request_{name}_time_seconds_count{label} {c['requests']}"]
            self.text("\n".join(lines) + "\n", "text/plain; version=0.0.4")
        else:
            self.text(json.dumps(dict(object="list", data=[dict(id="random", object="model", owned_by="here")])))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body.get("prompt") or " ".join(m["content"] for m in body["messages"])
        ids = tokenizer(prompt)["input_ids"] or [0]
        chat, limit = "messages" in body, int(body.get("max_tokens") or 16)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(value):
            data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        asked = time.perf_counter()
        counts["waiting"] += 1
        with turn:
            counts["waiting"] -= 1
            counts["running"] += 1
            begin = first = time.perf_counter()
            for n, token in enumerate(generate(ids, limit)):
                if n == 0:
                    first = time.perf_counter()
                text = tokenizer.decode([token]) + " "
                send(dict(choices=[dict(index=0, delta=dict(content=text)) if chat else dict(index=0, text=text)]))
                counts["generated"] += 1
            end = time.perf_counter()
            counts["running"] -= 1
        times = dict(queue=begin - asked, prefill=first - begin, decode=end - first)
        for name, value in times.items():
            counts[name] += value
        counts["requests"] += 1
        counts["prompt"] += len(ids)
        send(dict(choices=[], usage=dict(prompt_tokens=len(ids), completion_tokens=limit, total_tokens=len(ids) + limit),
                  metrics=dict(queue_time_ms=times["queue"] * 1e3, time_to_first_token_ms=(times["queue"] + times["prefill"]) * 1e3,
                               generation_time_ms=times["decode"] * 1e3)))
        send(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
