#!/usr/bin/env bash
# A short program under exec, again and again: its output and its code must be those of the program.
G=$(dirname "$0")/../../target/gpu; mkdir -p /tmp/x
[ -x /tmp/x/llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > /tmp/x/llmprof-tui; chmod +x /tmp/x/llmprof-tui; }
cd /tmp/x
cat > short.py <<'P'
import sys, torch
x = torch.ones(1, device="cuda"); y = x @ x; torch.cuda.synchronize()
print("done"); sys.exit(3)
P
for n in $(seq ${1:-10}); do
  /tmp/x/llmprof-tui exec --headless output.record=false -- python3 short.py > short.out 2> short.err; code=$?
  [ "$code $(grep done short.out)" = "3 done" ] && echo -n "ok " || { echo "code $code: $(head -c 300 short.out) | $(tail -3 short.err)"; }
done; echo
