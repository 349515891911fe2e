#!/usr/bin/env bash
# Records the demo: a simulated run at four times real time, with a snapshot before and one during the thermal slowdown.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-$here/../../target/release/llmprof-tui}
program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program")
work=$(mktemp -d)
trap 'tmux kill-session -t llmprof-demo 2>/dev/null || true; rm -rf "$work"' EXIT
overrides=(experiment=demo model=qwen2_5_7b model.dtype=bf16 runtime=sim runtime.sim.speed=4 runtime.sim.itl_ms=14
  runtime.sim.prefill_tok_s=9000 runtime.requests=26 dataset.prompt_tokens=1024 infer.max_new_tokens=256
  hydra.run.dir=run)
tmux new-session -d -s llmprof-demo -x 120 -y 40 -c "$work" "$program ${overrides[*]}; sleep 5"
name() { tmux send-keys -t llmprof-demo s C-u; tmux send-keys -t llmprof-demo -l "$1"; tmux send-keys -t llmprof-demo Enter; }
sleep 14
name cool
sleep 1.5
name warming
sleep 5
name hot
until grep -q run_finished "$work/run/events.ndjson"; do sleep 0.2; done
sleep 0.5
cp "$work/run/events.ndjson" "$here/events.ndjson"
wc -lc "$here/events.ndjson"
