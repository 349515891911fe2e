#!/usr/bin/env python3
"""Whether CUPTI can be left entirely (cuptiFinalize) by a thread of its own while a program launches kernels, again and again.

finalize.py MODE SECONDS: MODE eager, graph or streams (two of them). Prints the cycles, the records and the step with and without.
"""
import ctypes
import glob
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

import torch

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <stdatomic.h>
static int (*next)(uint8_t *, size_t, uint8_t **);
_Atomic long records, bytes;
void set_next(void *function) { next = function; }
void requested(uint8_t **buffer, size_t *size, size_t *records) { *size = 1 << 18; *buffer = aligned_alloc(8, *size); *records = 0; }
void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    uint8_t *record = 0;
    while (valid && next(buffer, valid, &record) == 0) records++;
    bytes += valid; free(buffer);
}
long count(void) { return records; }
"""


def main() -> None:
    mode, seconds = sys.argv[1], float(sys.argv[2])
    waits = len(sys.argv) > 3
    x = torch.randn(64, 1024, device="cuda")
    w = torch.randn(1024, 1024, device="cuda") * 0.03
    side = torch.cuda.Stream()

    def work() -> torch.Tensor:
        y = x
        for _ in range(60):
            y = torch.tanh(y @ w) + x
        return y

    expected = work().sum().item()
    if mode == "graph":
        with torch.cuda.stream(side):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = work()

    paths = glob.glob(sysconfig.get_paths()["purelib"] + "/nvidia/**/libcupti.so*", recursive=True)
    cupti = ctypes.CDLL(sorted(paths)[0])
    folder = tempfile.mkdtemp()
    open(folder + "/b.c", "w").write(SOURCE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", folder + "/b.so", folder + "/b.c"], check=True)
    buffers = ctypes.CDLL(folder + "/b.so")
    buffers.set_next.argtypes = [ctypes.c_void_p]
    buffers.set_next(ctypes.cast(cupti.cuptiActivityGetNextRecord, ctypes.c_void_p))
    stop = threading.Event()
    state = ["without"]
    cycles = [0]
    results: dict[str, int] = {}
    worst = [0.0]

    def switch() -> None:
        def note(name: str, result: int) -> None:
            if result:
                results[f"{name} {result}"] = results.get(f"{name} {result}", 0) + 1
        while not stop.is_set():
            note("register", cupti.cuptiActivityRegisterCallbacks(buffers.requested, buffers.completed))
            for kind in [10, 1, 2] + [38] * waits:
                note(f"enable {kind}", cupti.cuptiActivityEnable(kind))
            state[0] = "on"
            time.sleep(0.04)
            state[0] = "between"
            for kind in [38] * waits + [2, 1, 10]:
                note(f"disable {kind}", cupti.cuptiActivityDisable(kind))
            note("flush", cupti.cuptiActivityFlushAll(1))
            begin = time.perf_counter()
            note("finalize", cupti.cuptiFinalize())
            worst[0] = max(worst[0], time.perf_counter() - begin)
            state[0] = "without"
            cycles[0] += 1
            time.sleep(0.04)

    thread = threading.Thread(target=switch)
    thread.start()
    times: dict[str, list[float]] = {}
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end:
        before = state[0]
        begin = time.perf_counter()
        if mode == "graph":
            graph.replay()
            value = out.sum().item()
        elif mode == "streams":
            with torch.cuda.stream(side):
                work()
            value = work().sum().item()
        else:
            value = work().sum().item()
        took = (time.perf_counter() - begin) * 1e3
        assert abs(value - expected) < 1e-3 * abs(expected) + 1, (value, expected)
        times.setdefault(before if before == state[0] else "switching", []).append(took)
        steps += 1
    stop.set()
    thread.join()
    print(mode, f"{cycles[0]} cycles, {steps} steps, {buffers.count()} records, finalize at most {worst[0] * 1e3:.1f} ms, errors {results}", {k: round(statistics.median(v), 3) for k, v in times.items()})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(2):
            work()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    print("  torch.profiler afterwards:", len(events), "device events")


main()
