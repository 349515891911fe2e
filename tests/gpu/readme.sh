#!/usr/bin/env bash
# The README's commands that need a GPU, one after the other: exit code, seconds, and the last line of what each prints. Needs llmprof-tui at $X,
# PyTorch and transformers; DW: a directory with Debian's libdw1 and libelf1, which some installations of nsys lack. Files go to $OUT.
# readme.sh [PART…]: parts are models, programs, pytorch, reasons, compare.
P=$(cd "$(dirname "$0")" && pwd); T=${OUT:-/tmp/out}/readme; mkdir -p $T; W=$(mktemp -d); cd $W
n=0
try() { # a line of the README, with fewer requests
  n=$((n + 1)); local begun=$SECONDS
  timeout ${LIMIT:-60} "$X" "$@" > $T/$n.txt 2> $T/$n.err < /dev/null; local code=$?
  printf '%2d code %d %3d s  llmprof-tui %s\n' $n $code $((SECONDS - begun)) "${*:0:9}" | cut -c1-150
  { grep -v '^$' $T/$n.txt; grep -v '^$' $T/$n.err; } | cut -c1-220 | tail -${LINES_OF:-2} | sed 's/^/      /'
}
screen() { # seconds, name, command: the screen after so long, then q
  tmux kill-server 2>/dev/null; sleep 0.3
  tmux new-session -d -s t -x 160 -y 45 "COLORTERM=truecolor $X $3; echo code \$?; sleep 60"
  sleep $1; tmux capture-pane -e -p -t t > $T/$2.ansi; tmux send-keys -t t q; sleep 1; tmux send-keys -t t y; sleep 3
  echo "screen $2: $(tmux capture-pane -p -t t | grep -v '^$' | tail -1)"
}
models() {
  screen 12 default ""
  screen 10 small "--model qwen2_5_0_5b"
  try run --json runtime.requests=20
  try run -m model=smollm2_135m,qwen3_0_6b runtime.batch_size=1,4 runtime.requests=4
  try cost --model qwen2_5_7b --gpu h100
  try doctor
}
programs() {
  try exec --headless -- python3 $P/decode.py 0.5b eager 6 64
  python3 $P/decode.py 0.5b eager 40 64 > /dev/null 2>&1 & local pid=$!; sleep 14
  try attach decode.py --for 6
  kill $pid; wait $pid 2>/dev/null
  try kernels latest --by line
  screen 25 exec "exec -- python3 $P/decode.py 0.5b eager 30 64"
}
pytorch() {
  export LLMPROF_PYTHON=$(command -v python3)
  LIMIT=90 try run runtime=pytorch model=qwen2_5_7b runtime.requests=4 infer.max_new_tokens=64
  LIMIT=90 try run runtime=pytorch model=qwen2_5_vl_3b dataset=pages runtime.requests=3 infer.max_new_tokens=32
  try run runtime=pytorch runtime.pytorch.script=$P/timed_script.py runtime.requests=4
}
reasons() {
  [ -z "$DW" ] || export LD_LIBRARY_PATH=$DW:$LD_LIBRARY_PATH
  try watch --for 3
  try run --model qwen2_5_7b model.dtype=bf16 dataset.prompt_tokens=4096 runtime.requests=12 infer.max_new_tokens=32 hydra.run.dir=runs/long
  try diagnose runs/long
  try diagnose runs/long/nvml.csv
  LIMIT=100 try run profiling=nsys runtime.requests=4
  find . -name '*.sqlite' | head -1
  sqlite=$(find . -name '*.sqlite' | head -1); [ -z "$sqlite" ] || try kernels $sqlite --text -k 3
  LIMIT=100 try run profiling=ncu runtime.requests=2 infer.max_new_tokens=8
  csv=$(find . -path '*ncu*' -name '*raw*.csv' | head -1); [ -z "$csv" ] || try kernels $csv --text -k 3
  LIMIT=120 try run profiling=full runtime.requests=2 infer.max_new_tokens=8
}
compare() {
  LINES_OF=12 try compare --repeat 4 --model qwen2_5_0_5b runtime.requests=6 -- runtime.cuda_graphs=true vs runtime.cuda_graphs=false
  try run --model qwen2_5_0_5b runtime.requests=10
  try baseline save main
  try run --model qwen2_5_0_5b runtime.requests=10
  LINES_OF=10 try compare latest~1 latest
  LINES_OF=6 try compare main latest --gate 'tpot<=+2%' --gate 'ttft<=+5%'
}
for part in ${@:-models programs pytorch reasons compare}; do echo "== $part"; $part; done
rm -rf $W
