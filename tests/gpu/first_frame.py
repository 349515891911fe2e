#!/usr/bin/env python3
"""Time from the start of a command to its first frame and to a word on the screen: first_frame.py WORD SECONDS -- COMMAND…

The program runs under a terminal of 120×40. The first frame is the first output in which a name of a pane stands.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

word, limit = sys.argv[1].encode(), float(sys.argv[2])
command = sys.argv[sys.argv.index("--") + 1 :]
begin = time.perf_counter()
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm-256color"
    os.execvp(command[0], command)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
seen, frame, found = b"", None, None
while time.perf_counter() - begin < limit and found is None:
    if not select.select([terminal], [], [], 0.05)[0]:
        continue
    try:
        part = os.read(terminal, 65536)
    except OSError:
        break
    now = time.perf_counter() - begin
    if b"\x1b[6n" in part:
        os.write(terminal, b"\x1b[1;1R")
    seen += part
    plain = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)
    if frame is None and b"Overview" in plain:
        frame = now
    if word in plain:
        found = now
os.write(terminal, b"q")
time.sleep(1)
os.kill(pid, signal.SIGTERM)
show = lambda t: "–" if t is None else f"{t:.3f} s"
print(f"first frame {show(frame)}, {word.decode()!r} {show(found)}")
