#!/usr/bin/env bash
# exec on a machine with a GPU, PyTorch and transformers: what it says beside what the program says.
cd "$(dirname "$0")"
P=$PWD
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x; cd /tmp/x
xz -dk -c $P/../../target/gpu/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui
X=./llmprof-tui
one() { # name, options, arguments of decode.py
  local name=$1 options=$2; shift 2
  timeout 130 $X exec --headless hydra.run.dir=runs/$name $options -- python3 $P/decode.py "$@" > $name.json 2> $name.err
  echo "$name: code $?"
  python3 $P/facts.py runs/$name $name.json || tail -5 $name.err
}
one eager "" 0.5b eager 12 96
one generate "" 0.5b generate 5 96
one all "profiling.cupti.duty=1.0" 0.5b profiled 4 48
one compiled "" 0.5b compiled 60 128
one compiled7 "--model qwen2_5_7b model.dtype=bf16" 7b compiled 12 128
one eager7 "--model qwen2_5_7b model.dtype=bf16" 7b eager 8 96
one workers "" 0.5b workers 4 48
tail -22 compiled7.err > $T/compiled7.txt; tail -22 eager7.err > $T/eager7.txt
$X compare runs/eager7 runs/compiled7 > $T/compare.txt 2>&1
tar cJf $T/runs.tar.xz --exclude trace.json runs *.json
cat $T/compare.txt | head -60; cat $T/compiled7.txt
