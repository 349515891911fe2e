#!/usr/bin/env bash
# exec on a machine with a GPU, PyTorch and transformers: what it says beside what the program says.
# Needs target/gpu/llmprof-tui.xz; with target/gpu/unit.xz also the GPU's unit tests.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x; cd /tmp/x
xz -dk -c $G/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui
X=./llmprof-tui
if [ -f $G/unit.xz ]; then
  xz -dk -c $G/unit.xz > unit; chmod +x unit; (cd $P/../..; timeout 150 /tmp/x/unit cuda --ignored --test-threads 1 2>&1 | tail -4)
  for m in qwen2_5_7b gemma2_2b; do
    $X run --quiet --json model=$m model.dtype=bf16 dataset.prompt_tokens=512 infer.max_new_tokens=128 runtime.requests=5 output.record=false |
      python3 -c "import json,sys; m=json.load(sys.stdin); print('$m', {k: m[k]['mean'] for k in ('tpot_ms','ttft_ms')})"
  done
fi
one() { # name, options, arguments of decode.py
  local name=$1 options=$2; shift 2
  timeout 130 $X exec --headless hydra.run.dir=runs/$name $options -- python3 $P/decode.py "$@" > $name.json 2> $name.err
  echo "$name: code $?"
  python3 $P/facts.py runs/$name $name.json || tail -5 $name.err
}
one compiled "" 0.5b compiled 60 128
one profiled "" 0.5b profiled 6 48
python3 $P/decode.py 0.5b profiled 4 48 > alone.json 2>/dev/null; tail -c 120 alone.json
one compiled7 "--model qwen2_5_7b model.dtype=bf16" 7b compiled 16 128
tail -14 compiled7.err
tmux new-session -d -s t -x 200 -y 50 "$X exec --model qwen2_5_7b model.dtype=bf16 hydra.run.dir=runs/screen -- python3 $P/decode.py 7b eager 6 96; echo code \$?; sleep 60"
sleep 34
for k in 1 4 5 8; do tmux send-keys -t t $k; sleep 1; tmux capture-pane -e -p -t t > $T/eager7-$k.ansi; done
tmux send-keys -t t K; sleep 3; tmux send-keys -t t 1; sleep 0.5; tmux capture-pane -e -p -t t > $T/eager7-K.ansi
tmux resize-window -t t -x 80 -y 24; sleep 1; tmux capture-pane -e -p -t t > $T/eager7-small.ansi; tmux send-keys -t t q; sleep 3; tmux capture-pane -p -t t | tail -4
$X compare runs/eager7 runs/compiled7 > $T/compare.txt 2>&1; $X compare runs/screen runs/compiled7 > $T/compare2.txt 2>&1
LIBRARY=$(ls ~/.local/share/llmprof/*.so | tail -1) timeout 100 python3 $P/listen.py rest,200/5000,200/2000 4 cost.slots -- python3 $P/decode.py 7b compiled 36 128 > cost.json 2> cost.err; python3 $P/by_mode.py cost.slots cost.json
tar cJf $T/runs.tar.xz --exclude trace.json runs *.json
head -30 $T/compare2.txt | cut -c1-220
