#!/usr/bin/env python3
"""What is beside the load of a server in faults.sh: the standard library alone.

faults_client.py counters URL: prints sums and counts of the server's own latencies. trace KIND: prints a trace of 16 streams (calm), with
long prompts that arrive meanwhile (prompts), or of arrivals at a rate for 5 s (a number). prompts URL: long prompts of another client. slow URL: one client that reads 16 bytes every 50 ms, and one that reads
nothing. The last two run until they are ended.
"""
import json
import random
import re
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request

LATENCY = re.compile(r"^vllm:(inter_token_latency|time_to_first_token|request_queue_time)_seconds_(sum|count)\{?.*? ([0-9.e+-]+)$", re.M)
LONG_PROMPT = 6000


def counters(url: str) -> None:
    page = urllib.request.urlopen(url + "/metrics", timeout=5).read().decode()
    sums = {}
    for figure, part, value in LATENCY.findall(page):
        sums[f"{figure}_{part}"] = sums.get(f"{figure}_{part}", 0.0) + float(value)
    print(json.dumps(sums))


def trace(kind: str) -> None:
    # The first is the warm-up too.
    requests = [(0, 512, 8)] + [(0, 512, 800)] * 16
    if kind == "prompts":
        requests += [(1000 + 400 * n, LONG_PROMPT, 2) for n in range(10)]
    elif kind.isdigit():
        requests = [(random.random() * 5000, 512, 128) for _ in range(5 * int(kind))]
    for at, prompt, output in requests:
        # Equal blocks would be in the prefix cache.
        blocks = [random.randrange(1 << 48) for _ in range(prompt // 512 + 1)]
        print(json.dumps(dict(timestamp=at, input_length=prompt, output_length=output, hash_ids=blocks)))


def body(model: str, tokens: int, prompt: int) -> bytes:
    ids = [random.randrange(10, 20000) for _ in range(prompt)]
    return json.dumps(dict(model=model, prompt=ids, max_tokens=tokens, stream=True, ignore_eos=True)).encode()


def prompts(url: str, model: str) -> None:
    while True:
        begin = time.monotonic()
        request = urllib.request.Request(url + "/v1/completions", body(model, 1, LONG_PROMPT), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).read()
        time.sleep(max(0.0, begin + 0.4 - time.monotonic()))


def slow(url: str, model: str, pause_s: float) -> None:
    address = urllib.parse.urlsplit(url)
    client, content = socket.socket(), body(model, 4000, 64)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((address.hostname, address.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.hostname}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    client.sendall(head.encode() + content)
    while pause_s == float("inf") or client.recv(16):
        time.sleep(min(pause_s, 3600))


def main() -> None:
    what, argument = sys.argv[1:3]
    if what == "counters":
        return counters(argument)
    if what == "trace":
        return trace(argument)
    model = json.load(urllib.request.urlopen(argument + "/v1/models", timeout=5))["data"][0]["id"]
    if what == "prompts":
        return prompts(argument, model)
    threads = [threading.Thread(target=slow, args=(argument, model, pause)) for pause in (0.05, float("inf"))]
    [thread.start() for thread in threads]


main()
