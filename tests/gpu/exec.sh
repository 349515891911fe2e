#!/usr/bin/env bash
# exec and attach on a machine with a GPU, PyTorch and transformers: what they say beside what the program says.
# exec.sh [PART…]: parts are engine, steps, eager, attach, compare, screen, cost; all of them without an argument.
# Needs target/gpu/llmprof-tui.xz; `engine` uses target/gpu/unit.xz (the library's tests) where it is there.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x; cd /tmp/x
[ -x llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui; }
X=$PWD/llmprof-tui
one() { # name, options, arguments of decode.py
  local name=$1 options=$2; shift 2
  timeout 150 $X exec --headless hydra.run.dir=runs/$name $options -- python3 $P/decode.py "$@" > $name.json 2> $name.err
  echo "$name: code $?"
  python3 $P/facts.py runs/$name $name.json || tail -5 $name.err
}
tpot() { python3 -c "import json,sys; m=json.load(sys.stdin); print('$1', {k: (m.get(k) or {}).get('mean') for k in ('tpot_ms','ttft_ms')})"; }
engine() {
  for m in qwen2_5_7b gemma2_2b; do
    $X run --quiet --json model=$m model.dtype=bf16 dataset.prompt_tokens=512 infer.max_new_tokens=128 runtime.requests=5 output.record=false | tpot $m
  done
  for n in 1 2; do
    python3 $P/first_frame.py 'tok/s' 12 -- $X --model qwen2_5_7b model.dtype=bf16 hydra.run.dir=runs/frame$n
    python3 -c "
import json
for line in open('runs/frame$n/events.ndjson'):
    e = json.loads(line)
    if isinstance(e.get('e'), dict) and 'ready' in e['e']: print('  ready', e['t'] / 1e9, 's after the start of the run')"
  done
  rm -rf ~/.nv/ComputeCache
  for n in cold warm; do
    CUDA_FORCE_PTX_JIT=1 python3 $P/first_frame.py 'tok/s' 40 -- $X --model qwen2_5_7b model.dtype=bf16 output.record=false | sed "s/^/PTX $n: /"
  done
  timeout 100 $X run --quiet profiling=ncu model=qwen2_5_0_5b model.dtype=bf16 dataset.prompt_tokens=128 infer.max_new_tokens=16 runtime.requests=2 hydra.run.dir=runs/ncu > ncu.txt 2>&1
  echo "ncu: code $?"; tail -4 ncu.txt | cut -c1-200; grep -h "nvtx" runs/ncu/ncu/*command.yaml | head -3
  if [ -f $G/unit.xz ]; then
    xz -dk -c $G/unit.xz > unit; chmod +x unit; (cd $P/../..; timeout 150 /tmp/x/unit cuda --ignored --test-threads 1 2>&1 | tail -4)
  fi
}
steps() {
  one compiled "" 0.5b compiled 60 128
  one generate "" 0.5b generate 12 64
}
# Eager programs with us and without us, in turn.
eager() {
  for n in 1 2; do
    python3 $P/decode.py 0.5b eager 10 64 2>/dev/null | python3 -c "import json,sys; print('without us:', ' '.join(f\"{r['tpot_ms']:.2f}\" for r in json.load(sys.stdin)['rounds']))"
    one eager$n "" 0.5b eager 10 64
  done
}
attach() {
  eval "$($X inject --print-env)"
  python3 $P/decode.py 0.5b eager 24 64 > attached.json 2> attached.err & local pid=$!
  unset CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH LLMPROF_ATTACH LLMPROF_TOKEN
  sleep 14
  $X watch --for 2 --record hydra.run.dir=runs/watch > watch.txt 2>&1; grep -h '"notice"' runs/watch/events.ndjson | cut -c1-300 | tail -3
  for n in 1 2; do
    timeout 30 $X attach $pid --for 6 --json hydra.run.dir=runs/attach$n > attach$n.json 2> attach$n.err; echo "attach $n: code $?"
    python3 -c "
import json; m = json.load(open('attach$n.json')); p = m['program']
print({k: p[k] for k in p if not isinstance(p[k], (list, dict))}, {k: (m.get(k) or {}).get('mean') for k in ('tpot_ms',)}, p.get('decode', {}).get('launches'))" || tail -3 attach$n.err
  done
  wait $pid; echo "program: code $?"; python3 -c "
import json; p = json.load(open('attached.json')); print([round(r['tpot_ms'], 1) for r in p['rounds']])"
  python3 -c "import torch, time; x = torch.ones(1, device='cuda'); time.sleep(6)" & sleep 4
  $X attach $! --for 1 2>&1 | head -4 | cut -c1-250; wait
}
compare() {
  one eager7 "--model qwen2_5_7b model.dtype=bf16" 7b eager 8 96
  one compiled7 "--model qwen2_5_7b model.dtype=bf16" 7b compiled 30 128
  $X compare runs/eager7 runs/compiled7 > $T/compare.txt 2>&1; echo "compare: code $?"
  tail -16 compiled7.err | cut -c1-220
  head -30 $T/compare.txt | cut -c1-200
}
screen() {
  tmux new-session -d -s t -x 200 -y 50 "$X exec --model qwen2_5_7b model.dtype=bf16 hydra.run.dir=runs/screen -- python3 $P/decode.py 7b compiled 40 128; echo code \$?; sleep 60"
  sleep ${1:-75}
  for k in 1 2 3 4 5; do tmux send-keys -t t $k; sleep 1; tmux capture-pane -e -p -t t > $T/compiled7-$k.ansi; done
  tmux send-keys -t t K; sleep 3; tmux send-keys -t t 1; sleep 0.5; tmux capture-pane -e -p -t t > $T/compiled7-K.ansi
  tmux resize-window -t t -x 80 -y 24; sleep 1; tmux capture-pane -e -p -t t > $T/compiled7-small.ansi; tmux send-keys -t t q; sleep 3; tmux capture-pane -p -t t | tail -4
}
cost() {
  LIBRARY=$(ls ~/.local/share/llmprof/*.so | tail -1) timeout 170 python3 $P/listen.py rest,200/5000,200/2000 4 cost.slots -- python3 $P/decode.py 7b compiled 90 128 > cost.json 2> cost.err; python3 $P/by_mode.py cost.slots cost.json
}
for part in ${@:-engine steps eager attach compare screen cost}; do echo "== $part"; $part; done
