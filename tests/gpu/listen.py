#!/usr/bin/env python3
"""A second reader of the injected library's records, for measurements: listen.py MODES SECONDS OUT -- COMMAND…

MODES are `rest` or `BURST/PERIOD` in milliseconds, separated by commas; each lasts SECONDS, again and again. Starts the command with the library (LIBRARY in the environment), reads its ring, and writes each slot as a line of eight numbers; texts as
lines that begin with `#`.
"""
import array
import mmap
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

SLOTS, RANGES, HEADER, SLOT = 1 << 17, 1 << 14, 4096, 64
MAGIC = 0x6C6C6D70726F6600 + 2


def reader(connection: socket.socket, modes: list[str], seconds: float, out, stop: threading.Event) -> None:
    if not connection.recv(256).startswith(b"llmprof-inject 2 "):
        return
    memory = os.memfd_create("ring")
    os.ftruncate(memory, HEADER + (SLOTS + RANGES) * SLOT)
    ring = mmap.mmap(memory, 0)
    ring[0:8] = struct.pack("=Q", MAGIC)
    socket.send_fds(connection, [b"+"], [memory])
    beat = tail = turn = 0
    switch_at = 0.0
    while True:
        last = stop.is_set()
        if time.time() >= switch_at and not last:
            mode = modes[turn % len(modes)]
            turn += 1
            switch_at = time.time() + seconds
            out.write(f"@ {time.time()} {mode}\n")
            connection.sendall((mode if mode == "rest" else "record " + mode.replace("/", " ")).encode() + b"\n")
        beat += 1
        ring[8:16] = struct.pack("=Q", beat)
        head, dropped = struct.unpack("=2Q", ring[64:80])
        while tail < head:
            at = HEADER + tail % SLOTS * SLOT
            slot = struct.unpack("=8Q", ring[at : at + SLOT])
            tail += 1
            if slot[0] & 0xFF == 16:
                count = (slot[1] + SLOT - 1) // SLOT
                text = b"".join(ring[HEADER + (tail + i) % SLOTS * SLOT :][:SLOT] for i in range(count))[: slot[1]]
                out.write(f"# {slot[0] >> 32} {text.decode(errors='replace')}\n")
                tail += count
            else:
                out.write(" ".join(map(str, slot)) + "\n")
        ring[128:136] = struct.pack("=Q", tail)
        if last:
            out.write(f"# dropped {dropped}\n")
            return
        time.sleep(0.02)


def main() -> None:
    modes, seconds, path = sys.argv[1].split(","), float(sys.argv[2]), sys.argv[3]
    command = sys.argv[sys.argv.index("--") + 1 :]
    directory = tempfile.mkdtemp()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(directory + "/socket")
    listener.listen()
    library = os.environ["LIBRARY"]
    env = dict(os.environ, CUDA_INJECTION64_PATH=library, NVTX_INJECTION64_PATH=library, LLMPROF_ATTACH=directory, LLMPROF_TOKEN="x")
    program = subprocess.Popen(command, env=env)
    stop, threads = threading.Event(), []
    with open(path, "w") as out:
        listener.settimeout(0.1)
        while program.poll() is None:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(2)
            threads.append(threading.Thread(target=reader, args=(connection, modes, seconds, out, stop)))
            threads[-1].start()
        stop.set()
        for thread in threads:
            thread.join()
    shutil.rmtree(directory)
    sys.exit(program.returncode)


main()
