#!/usr/bin/env python3
"""A second client, of the standard library alone: client.py PORT REQUESTS TOKENS PROMPT_TOKENS CONCURRENCY. Prints TTFT, TPOT and ITL."""
import http.client
import json
import statistics
import sys
import threading
import time

port, requests, tokens, prompt, concurrency = map(int, sys.argv[1:6])
model = json.loads((lambda c: (c.request("GET", "/v1/models"), c.getresponse().read())[1])(http.client.HTTPConnection("127.0.0.1", port)))["data"][0]["id"]
ttft, itl, tpot, left, guard = [], [], [], list(range(requests + concurrency)), threading.Lock()


def work() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        with guard:
            if not left:
                return
            n = left.pop(0)
        words = " ".join(f"w{(n * 7919 + i * 31) % 40000 + 3}" for i in range(prompt))
        body = dict(model=model, messages=[dict(role="user", content=words)], max_tokens=tokens, stream=True, temperature=0, ignore_eos=True)
        begin = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        times = []
        while line := answer.readline():
            if line.startswith(b"data: {"):
                choice = (json.loads(line[6:]).get("choices") or [{}])[0]
                if (choice.get("delta") or {}).get("content"):
                    times.append(time.perf_counter())
        with guard:
            if n >= concurrency and times:
                ttft.append(times[0] - begin)
                itl.extend(b - a for a, b in zip(times, times[1:]))
                tpot.append((times[-1] - times[0]) / max(len(times) - 1, 1))


threads = [threading.Thread(target=work) for _ in range(concurrency)]
[t.start() for t in threads], [t.join() for t in threads]
text = lambda v: f"mean {statistics.mean(v) * 1e3:.2f} p50 {statistics.median(v) * 1e3:.2f}"
print(f"second client: {len(ttft)} requests; TTFT {text(ttft)}; TPOT {text(tpot)}; ITL {text(itl)} ms")
