#!/usr/bin/env bash
# A real vLLM or SGLang on a machine with a GPU: our records beside the engine's own torch.profiler, its metrics and its log.
# engine.sh vllm|sglang PART…: parts are records, screen, joined. Needs the engine's site and model in /tmp/e (pack-engine), and
# target/gpu/llmprof-tui.xz. Files go to $OUT.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/e; cd /tmp/e
[ $G/llmprof-tui.xz -nt llmprof-tui ] && { xz -dk -c $G/llmprof-tui.xz > new && chmod +x new && mv new llmprof-tui; }
X=$PWD/llmprof-tui
[ -d site ] || { cat $G/part.* | xz -dc | tar xf -; }
cp -n $G/env.sh $G/model.py . 2>/dev/null
. ./env.sh
[ -d m7 ] || python3 model.py 7b m7
engine=$1; shift
case $engine in
vllm) command="$VLLM"; url=http://127.0.0.1:8001; profiled=(--profiler-config '{"profiler":"torch","torch_profiler_dir":"/tmp/e/prof"}') ;;
sglang) command="$SGLANG"; url=http://127.0.0.1:8002; profiled=(); export SGLANG_TORCH_PROFILER_DIR=/tmp/e/prof ;;
esac
load() { # at a time, requests, more options
  $X run --quiet --json runtime=openai runtime.server.url=$url runtime.load.concurrency=$1 runtime.requests=$2 runtime.warmup=4 \
    dataset.prompt_tokens=512 infer.max_new_tokens=${TOKENS:-128} telemetry=none profiling=none output.record=false "${@:3}" 2>/dev/null
}
figures() { python3 -c "
import json, sys; m = json.load(sys.stdin); s = m.get('server') or {}
one = lambda k, q: (m.get(k) or {}).get(q)
print('$1', {k: [round(v, 3) if v else v for v in (one(k, 'mean'), one(k, 'p50'), one(k, 'p99'))] for k in ('ttft_ms', 'tpot_ms', 'itl_ms')}, 'output tok/s', m.get('output_tok_s') or s.get('output_tok_s'))"; }
# The engine under exec: bursts while it serves, then its own profiler with the same load.
records() { # name, concurrencies, options of the engine
  local name=$1 at=$2; shift 2; rm -rf prof runs/$name
  $X exec --headless hydra.run.dir=runs/$name profiling.cupti.records=true -- $command "${profiled[@]}" "$@" > $T/$name.log 2>&1 & local pid=$!
  SECONDS=0; ready $url || { tail -5 $T/$name.log; kill $pid; return 1; }; echo "$name: ready after $SECONDS s"
  curl -s $url/metrics > $T/$name.metrics.before
  for n in $at; do
    load $n $((n * 8 > 40 ? n * 8 : 40)) | figures "$name at $n:"
    (load $n $((n * 4 > 24 ? n * 4 : 24)) > /dev/null) & local l=$!
    sleep 2; curl -s -X POST $url/start_profile > /dev/null; sleep 1.2; curl -s -X POST $url/stop_profile > /dev/null; wait $l
    mkdir -p $T/$name.$n; python3 $P/torch_table.py prof > $T/$name.$n/torch.tsv 2> $T/$name.$n/torch.err; tail -1 $T/$name.$n/torch.err
    rm -rf prof
  done
  curl -s $url/metrics > $T/$name.metrics.after
  kill -INT $(pgrep -P $pid | head -1) 2>/dev/null; kill -INT $pid; wait $pid; echo "$name: code $?"
  cp runs/$name/records-*.tsv.gz runs/$name/report.md $T/ 2>/dev/null; gzip -c runs/$name/events.ndjson > $T/$name.events.gz
  for f in $T/records-*.tsv.gz; do mv $f $T/$name.$(basename $f); done; ls -l $T | grep $name | awk '{print $5, $9}'
}
# The screens while a run starts the engine and puts load on it: name, requests at a time, options of the engine.
screen() {
  local name=$1 at=$2; shift 2; rm -rf runs/$name
  printf '#!/bin/sh\nexec %s %s\n' "$command" "$*" > serve.sh; chmod +x serve.sh
  tmux kill-server 2>/dev/null
  tmux new-session -d -s t -x 200 -y 50 "$X --model qwen2_5_7b model.dtype=bf16 runtime=$engine runtime.server.url=$url runtime.server.command=/tmp/e/serve.sh runtime.load.concurrency=$at runtime.requests=4000 dataset.prompt_tokens=512 infer.max_new_tokens=128 hydra.run.dir=runs/$name; echo code \$?; sleep 600"
  take() { tmux capture-pane -e -p -t t > $T/$name-$1.ansi; }
  SECONDS=0; sleep 25; take start25; until curl -sf $url/health > /dev/null || [ $SECONDS -gt 200 ]; do sleep 1; [ $((SECONDS % 30)) = 0 ] && take start$SECONDS; done
  echo "$name: ready after $SECONDS s"; sleep 20
  for k in 1 2 3 4 5 8 9; do tmux send-keys -t t $k; sleep 1; take $k; done
  tmux send-keys -t t K; sleep 4; tmux send-keys -t t 4; sleep 1; take K
  tmux send-keys -t t 1; tmux resize-window -t t -x 120 -y 40; sleep 2; take 120x40; tmux send-keys -t t 4; sleep 1; take 120x40-4
  tmux resize-window -t t -x 200 -y 50; sleep 8; for k in 1 4 5; do tmux send-keys -t t $k; sleep 1; take late-$k; done
  tmux send-keys -t t q; sleep 2; tmux send-keys -t t y; sleep 12; tmux capture-pane -p -t t | tail -4
  pkill -f vllm.entrypoints; pkill -f sglang.launch; cp runs/$name/report.md $T/$name.report.md; cp runs/$name/metrics.json $T/$name.metrics.json; cp runs/$name/program.log $T/$name.program.log; gzip -c runs/$name/events.ndjson > $T/$name.events.gz; head -40 $T/$name.report.md | cut -c1-300
}
# exec and attach with 16 at a time: what each says, beside the client's own figures.
joined() {
  local name=$1; shift
  eval "$($X inject --print-env)"
  $command "$@" > $T/$name.log 2>&1 & local pid=$!
  unset CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH LLMPROF_ATTACH LLMPROF_TOKEN
  ready $url; sleep 2; local worker=$(pgrep -f EngineCore | head -1); worker=${worker:-$pid}
  for n in 1 2; do
    (load 16 160 | figures "$name load $n:") & local l=$!
    sleep 2; timeout 60 $X attach $worker --for 9 --json hydra.run.dir=runs/$name$n > $T/$name$n.json 2> $T/$name$n.err; echo "attach $n: code $?"; wait $l
    python3 -c "
import json; m = json.load(open('$T/$name$n.json')); p = m['program']; d = p.get('decode') or {}
print({k: d.get(k) for k in ('steps', 'launches', 'busy_ns', 'span_ns', 'between_ns', 'dropped', 'unmeasured')}); print(m.get('verdict')); print(d.get('remarks'))" || tail -3 $T/$name$n.err
  done
  # Cost: pairs in turn, with bursts and without.
  for n in 1 2 3 4 5 6 7 8 9 10; do
    load 16 48 | figures "without $n:"
    timeout 60 $X attach $worker --for 30 --json output.record=false > /dev/null 2>&1 & local a=$!; sleep 1.5
    load 16 48 | figures "with $n:"; kill -INT $a; wait $a
  done
  kill $pid; wait $pid
}
"$@"
