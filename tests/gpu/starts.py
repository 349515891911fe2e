#!/usr/bin/env python3
"""Starts two ranks at a time, again and again: each makes its context, reduces once, works for 0.6 s and ends. Prints how they ended.

starts.py SECONDS [PAIRS]: so many pairs side by side.
"""
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist


def rank(number: int, meeting: str) -> None:
    os.environ["NCCL_HOSTID"] = f"rank{number}"
    since = time.time()
    torch.cuda.init()
    ready = time.time()
    torch.cuda.set_device(0)
    a = torch.randn(512, 512, device="cuda")
    if number == 0:
        os.write(1, b"own init %.3f context %.3f\n" % (ready - since, time.time() - ready))
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=number, world_size=2)
    dist.all_reduce(a @ a)
    until = time.time() + 0.6
    while time.time() < until:
        a @ a
        torch.cuda.synchronize()


def wait(pids: set, ends: dict) -> None:
    deadline = time.time() + 40
    while pids and time.time() < deadline:
        for pid in list(pids):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                pids.discard(pid)
                code = os.waitstatus_to_exitcode(status)
                ends[code] = ends.get(code, 0) + 1
                if code:  # the other one waits for it
                    deadline = min(deadline, time.time() + 3)
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        ends["left alone"] = ends.get("left alone", 0) + 1


until, pairs, ends = time.time() + float(sys.argv[1]), int((sys.argv[2:] or [1])[0]), {}
while time.time() < until:
    started = set()
    for _ in range(pairs):
        meeting = tempfile.mktemp()
        for number in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    rank(number, meeting)
                    os._exit(0)
                except BaseException as e:
                    os.write(2, f"{e}\n".encode())
                    os._exit(3)
            started.add(pid)
    wait(started, ends)
print("own ends by code:", ends, flush=True)
