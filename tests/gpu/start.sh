#!/usr/bin/env bash
# How much later a program with the injected library starts: alone, with the library asleep, followed by exec. Five times each, in turn.
# Needs target/gpu/llmprof-tui.xz, PyTorch and a GPU.
G=$(dirname "$0")/../../target/gpu; mkdir -p /tmp/x
[ -x /tmp/x/llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > /tmp/x/llmprof-tui; chmod +x /tmp/x/llmprof-tui; }
X=/tmp/x/llmprof-tui; cd /tmp/x
cat > start.py <<'P'
import time
begin = time.perf_counter()
import torch
imported = time.perf_counter()
torch.cuda.init(); x = torch.ones(1, device="cuda"); torch.cuda.synchronize()
ready = time.perf_counter()
y = x @ x; torch.cuda.synchronize()
print(f"cuda {1e3 * (ready - imported):.0f} ms, whole {1e3 * (time.perf_counter() - begin):.0f} ms")
P
python3 start.py > /dev/null; python3 start.py > /dev/null
for n in 1 2 3 4 5; do
  echo "alone:   $(python3 start.py)"
  echo "asleep:  $(eval "$($X inject --print-env)"; python3 start.py)"
  echo "exec:    $($X exec --headless output.record=false -- python3 start.py 2>/dev/null | grep cuda)"
done
