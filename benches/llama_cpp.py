"""A GGUF model on the CPU: llama.cpp's server and llmprof-tui in turn, prompt 128, 128 tokens, two threads.

    pip install xllamacpp
    python benches/llama_cpp.py target/release/llmprof-tui MODEL.gguf [ROUNDS] [THREADS]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request

import xllamacpp

PROMPT, TOKENS = 128, 128


def llama(model, threads):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = 512, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = True
    return xllamacpp.Server(params)


def ask(server, seed):
    ids = [(seed * 7919 + i * 104729) % 40000 + 100 for i in range(PROMPT)]
    body = dict(prompt=ids, n_predict=TOKENS, ignore_eos=True, cache_prompt=False, temperature=0)
    request = urllib.request.Request(server.listening_address + "/completion", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    timings = json.load(urllib.request.urlopen(request))["timings"]
    return timings["prompt_per_second"], timings["predicted_per_second"]


def ours(program, model, threads):
    with tempfile.TemporaryDirectory() as directory:
        command = [program, "run", "--quiet", "--json", "profiling=none", "runtime.device=cpu", f"model.weights={model}",
                   f"runtime.threads={threads}", "runtime.warmup=1", "runtime.requests=3", f"dataset.prompt_tokens={PROMPT}",
                   f"infer.max_new_tokens={TOKENS}"]
        printed = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout
        summary = json.loads(printed)
    return summary


def main():
    program, model = map(os.path.abspath, sys.argv[1:3])
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else 2
    server = llama(model, threads)
    ask(server, 0)
    table = []
    for turn in range(rounds):
        prefill, decode = zip(*(ask(server, 1 + turn * 3 + i) for i in range(3)))
        theirs = statistics.median(prefill), statistics.median(decode)
        summary = ours(program, model, threads)
        mine = PROMPT / summary["ttft_ms"]["p50"] * 1000, 1000 / summary["tpot_ms"]["p50"]
        table.append((*theirs, *mine))
        print("llama.cpp %6.1f %6.1f   ours %6.1f %6.1f tokens/s, prefill and decode" % table[-1], flush=True)
    theirs_p, theirs_d, mine_p, mine_d = (statistics.median(column) for column in zip(*table))
    print(f"medians: prefill {mine_p / theirs_p:.2f} x, decode {mine_d / theirs_d:.2f} x llama.cpp")


main()
