#!/usr/bin/env bash
# All layers of a decode step as one kernel (runtime.fused_step) beside the kernels of each operator, on a machine with a GPU.
# fused.sh [PART…]: parts are speed [MODELS= ROUNDS= PROMPTS=], odd, screen. Needs target/gpu/llmprof-tui.xz.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x; cd /tmp/x
[ -x llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui; }
X=$PWD/llmprof-tui
one() { timeout 60 $X run --quiet --json model.dtype=bf16 infer.max_new_tokens=128 runtime.requests=4 output.trace=false "$@" 2> err.txt || { echo "failed: $*"; tail -2 err.txt; }; }
mean() { python3 -c "import json,sys; m=json.loads(sys.stdin.read() or '{}'); print(' '.join(f\"{(m.get(k) or {}).get('mean') or 0:.4f}\" for k in ('tpot_ms','ttft_ms')), round(m.get('mbu') or 0, 3))"; }
speed() {
  for m in ${MODELS:-qwen2_5_0_5b llama3_2_1b qwen3_0_6b tinyllama_1_1b smollm2_360m smollm2_135m}; do for p in ${PROMPTS:-512}; do
    for r in $(seq ${ROUNDS:-3}); do for f in true false; do
      echo "$m $p fused=$f $(one model=$m dataset.prompt_tokens=$p runtime.fused_step=$f output.record=false | mean)"
    done; done
  done; done
}
odd() {
  for f in true false; do one model=qwen2_5_0_5b dataset.prompt_tokens=300 runtime.fused_step=$f hydra.run.dir=runs/same-$f > /dev/null; done
  python3 - <<'E'
import json
def ids(d): return [json.loads(l)["e"]["token"]["id"] for l in open(f"runs/same-{d}/events.ndjson") if '"token"' in l]
a, b = ids("true"), ids("false")
first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
print("tokens", len(a), len(b), "first difference", first, "of random weights")
E
  echo "without graphs: $(one model=qwen2_5_0_5b dataset.prompt_tokens=512 runtime.cuda_graphs=false output.record=false | mean)"
  echo "recorded kernels: $(one model=qwen2_5_0_5b dataset.prompt_tokens=512 profiling.cupti.enable=true hydra.run.dir=runs/cupti | mean)"
  head -24 runs/cupti/operators.md | cut -c1-150
}
screen() {
  tmux kill-server 2>/dev/null; tmux -f /dev/null new-session -d -x 120 -y 40 "env COLORTERM=truecolor $X model=qwen2_5_0_5b model.dtype=bf16 dataset.prompt_tokens=512 infer.max_new_tokens=512 runtime.requests=100 hydra.run.dir=runs/screen; sleep 100"
  shot() { tmux capture-pane -e -p > $T/$1.ansi; }
  sleep 6; shot fused-overview; for n in 1 2 3; do tmux send-keys K; sleep 2; done; tmux send-keys 4; sleep 2; shot fused-kernels; tmux send-keys K; sleep 1; tmux send-keys p; sleep 1; tmux send-keys p; sleep 1; tmux send-keys K
  sleep 3; shot fused-kernels-2; tmux send-keys 5; sleep 1; shot fused-roofline; tmux send-keys q; sleep 2; tmux kill-server
}
for part in ${@:-speed odd screen}; do echo "=== $part"; $part; done 2>&1 | tee $T/fused.txt
