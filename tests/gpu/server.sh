#!/usr/bin/env bash
# Load on servers on a machine with a GPU: the small server beside this, started by us; `transformers serve` where its packages are there; a second client
# beside ours. Needs target/gpu/llmprof-tui.xz. server.sh [PART…]: ours, transformers, screen.
P=$(cd "$(dirname "$0")" && pwd); G=$P/../../target/gpu; T=${OUT:-/tmp/out}; mkdir -p /tmp/x $T
[ -x /tmp/x/llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > /tmp/x/llmprof-tui; chmod +x /tmp/x/llmprof-tui; }
X=/tmp/x/llmprof-tui; cd /tmp/x
[ -d model ] || python3 $P/model.py model 0.5b 2>&1 | tail -1
say() { python3 -c "
import json,sys
m = json.load(open('$1')); s = m['server']
f = lambda k: {q: round(v, 2) for q, v in (m.get(k) or {}).items() if q in ('mean', 'p50', 'p99') and v is not None}
print('$1', 'TTFT', f('ttft_ms'), 'TPOT', f('tpot_ms'), 'ITL', f('itl_ms'))
print('  ', {k: v for k, v in s.items() if k in ('requests', 'failed', 'ttft_parts_ms', 'client', 'tokens_per_chunk')})
print('   program', {k: v for k, v in (m.get('program') or {}).items() if not isinstance(v, (list, dict))})
print('  ', (m.get('verdict') or m.get('diagnosis') or '') if not isinstance(m.get('verdict'), dict) else m['verdict'])"; }
load() { echo runtime.load.concurrency=$1 runtime.requests=$2 runtime.warmup=2 infer.max_new_tokens=64 dataset.prompt_tokens=256; }
ours() {
  for c in 1 4; do
    timeout 200 $X run --json runtime=vllm --model qwen2_5_0_5b "runtime.server.command=python3 $P/serve.py 8123 model" runtime.server.url=http://127.0.0.1:8123 $(load $c 12) hydra.run.dir=runs/ours$c > ours$c.json 2> ours$c.err; echo "ours, $c at a time: code $?"; say ours$c.json; tail -12 ours$c.err | cut -c1-220
  done
  python3 $P/serve.py 8124 model > /dev/null 2>&1 & local pid=$!
  for i in $(seq 60); do curl -s localhost:8124/v1/models > /dev/null && break; sleep 1; done
  for n in 1 2; do
    $X run --json runtime=vllm --model qwen2_5_0_5b runtime.server.url=http://127.0.0.1:8124 $(load 1 12) hydra.run.dir=runs/plain$n > plain$n.json 2>/dev/null; say plain$n.json
    python3 $P/client.py 8124 12 64 256 1
  done
  $X run --json runtime=vllm --model qwen2_5_0_5b runtime.server.url=http://127.0.0.1:8124 $(load 4 12) hydra.run.dir=runs/plain4 > plain4.json 2>/dev/null; say plain4.json
  kill $pid
}
transformers() {
  python3 -c "import fastapi, uvicorn; print('fastapi', fastapi.__version__)" || return
  (timeout 150 transformers serve --port 8125 > serve.log 2>&1 || timeout 150 python3 -m transformers.cli.transformers serve --port 8125 >> serve.log 2>&1) &
  for i in $(seq 60); do curl -s localhost:8125/v1/models > /dev/null && break; sleep 1; done
  $X run --json runtime=openai runtime.server.url=http://127.0.0.1:8125 runtime.server.model=/tmp/x/model $(load 1 6) hydra.run.dir=runs/tf > tf.json 2> tf.err; echo "transformers serve: code $?"; say tf.json || { tail -5 tf.err; tail -5 serve.log; }
}
screen() {
  tmux new-session -d -s s -x 200 -y 50 "$X runtime=vllm --model qwen2_5_0_5b 'runtime.server.command=python3 $P/serve.py 8126 model' runtime.server.url=http://127.0.0.1:8126 $(load 4 60) hydra.run.dir=runs/screen; echo code \$?; sleep 60"
  sleep 45
  for k in 1 2 3 4 9; do tmux send-keys -t s $k; sleep 1; tmux capture-pane -e -p -t s > $T/server-$k.ansi; done
  tmux send-keys -t s p; sleep 2; tmux send-keys -t s p; sleep 1; tmux send-keys -t s K; sleep 2; tmux send-keys -t s K; sleep 3; tmux capture-pane -e -p -t s > $T/server-after.ansi
  tmux resize-window -t s -x 80 -y 24; sleep 1; tmux capture-pane -e -p -t s > $T/server-small.ansi; tmux send-keys -t s q; sleep 4; tmux capture-pane -p -t s | tail -4
}
for part in ${@:-ours transformers screen}; do echo "== $part"; $part; done
