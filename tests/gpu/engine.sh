#!/usr/bin/env bash
# A real vLLM or SGLang on a machine with a GPU: our records beside the engine's own torch.profiler, its metrics and its log.
# engine.sh vllm|sglang|llamacpp|transformers PART…: parts are records, screen, joined, bars. Needs the engine's site and model in $E, which is /tmp/e unless set (pack-engine), and
# target/gpu/llmprof-tui.xz. Files go to $OUT. EXPERTS=1: a mixture of experts (the shape of Qwen3-30B-A3B) instead of the dense 7B.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu
E=${E:-/tmp/e}; T=${OUT:-/tmp/out}; mkdir -p $T $E; cd $E
[ $G/llmprof-tui.xz -nt llmprof-tui ] && { xz -dk -c $G/llmprof-tui.xz > new && chmod +x new && mv new llmprof-tui; }
X=$PWD/llmprof-tui
[ -d site ] || { cat $G/part.* | xz -dc | tar xf -; }
cp -n $G/env.sh $G/model.py . 2>/dev/null
. ./env.sh
[ -d m7 ] || python3 model.py 7b m7
engine=$1; shift
[ -n "$EXPERTS" ] && { [ -d m30 ] || python3 $P/experts.py m7 m30; VLLM=${VLLM/serve m7/serve m30}; SGLANG=${SGLANG/path m7/path m30}; }
case $engine in
vllm) command="$VLLM"; url=http://127.0.0.1:8001; profiled=(--profiler-config '{"profiler":"torch","torch_profiler_dir":"'$E'/prof"}') ;;
llamacpp) command="$E/llama/build/bin/llama-server -m $E/big.gguf -ngl 99 -np 16 -c 131072 --host 127.0.0.1 --port 8004 --metrics"; url=http://127.0.0.1:8004; profiled=() ;;
# `transformers serve`, of PyTorch and transformers alone: the 0.5B shape with random weights.
transformers)
  [ -d w05 ] || python3 $P/model.py w05
  command="python3 -m transformers.cli.transformers serve --host 127.0.0.1 --port 8005 --device cuda --dtype bfloat16 --continuous-batching $E/w05"
  url=http://127.0.0.1:8005; profiled=(); options="runtime.server.api=chat runtime.server.model=$E/w05" ;;
sglang) command="$SGLANG"; url=http://127.0.0.1:8002; profiled=(); export SGLANG_TORCH_PROFILER_DIR=$E/prof ;;
esac
command_of_load() { # at a time, requests
  echo exec $X run --quiet --json runtime=openai runtime.server.url=$url runtime.load.concurrency=$1 runtime.requests=$2 runtime.warmup=0 \
    dataset.prompt_tokens=512 infer.max_new_tokens=${TOKENS:-128} telemetry=none profiling=none output.record=false $options
}
load() { # at a time, requests, more options
  $(command_of_load $1 $2 | sed 's/^exec //') runtime.warmup=4 "${@:3}" 2>/dev/null
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
    [ -n "$PREFIX" ] && load $n $((n * 8)) runtime.load.shared_prefix=0.9 > $T/$name.prefix.json && figures "$name with a shared prefix:" < $T/$name.prefix.json
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
# Steps and kernels beside the engine's own counter and profiler, by every way: see bars.py.
bars() { COMMAND="$command" URL=$url ENGINE=$engine X=$X OUT=$T python3 $P/bars.py "$@"; }
# The screens while a run starts the engine and puts load on it: name, requests at a time, options of the engine. Recording is switched
# off and on, the load paused, the window resized, an incident opened, all while it runs.
screen() {
  local name=$1 at=$2; shift 2; rm -rf runs/$name
  printf '#!/bin/sh\nexec %s %s\n' "$command" "$*" > serve.sh; chmod +x serve.sh
  tmux kill-server 2>/dev/null; sleep 1
  tmux new-session -d -s t -x 200 -y 50 "COLORTERM=truecolor $X --model qwen2_5_7b model.dtype=bf16 runtime=$engine runtime.server.url=$url runtime.server.command=$E/serve.sh runtime.load.concurrency=$at runtime.requests=4000 dataset.prompt_tokens=512 infer.max_new_tokens=128 hydra.run.dir=runs/$name 2> $T/$name.err; echo code \$?; sleep 600"
  take() { tmux capture-pane -e -p -t t > $T/$name-$1.ansi; }
  press() { for k in "$@"; do tmux send-keys -t t $k; sleep 1; done; }
  SECONDS=0; sleep 20; take start20; until curl -sf $url/health > /dev/null || [ $SECONDS -gt 220 ]; do sleep 1; [ $((SECONDS % 30)) = 0 ] && take start$SECONDS; done
  echo "$name: ready after $SECONDS s"; sleep 15
  for k in 1 2 3 4 5 6 8 9; do press $k; take $k; done
  press 3 Enter; take 3-incident; press Enter ']' ']'; take 3-zoom; press 9 ']'; take 9-zoom; press v; take v; press v
  press 4 Enter; take 4-detail; press Enter K; sleep 2; take 4-off; press K; sleep 3; take 4-on; press 1 p; sleep 2; take 1-paused; press p; sleep 3; take 1-resumed
  tmux resize-window -t t -x 120 -y 40; sleep 1; for k in 1 2 3 4 5 8 9; do press $k; take 120x40-$k; done
  tmux resize-window -t t -x 80 -y 24; sleep 1; for k in 1 3 9; do press $k; take 80x24-$k; done
  tmux resize-window -t t -x 200 -y 50; sleep 3; for k in 1 4 5; do press $k; take late-$k; done
  press q; sleep 1; press y; sleep 12; take end; tmux capture-pane -p -t t | tail -4
  pkill -f vllm.entrypoints; pkill -f sglang.launch; pkill -f llama-server; for f in report.md metrics.json program.log; do cp runs/$name/$f $T/$name.$f; done; gzip -c runs/$name/events.ndjson > $T/$name.events.gz; head -30 $T/$name.report.md | cut -c1-400
}
# attach to the running engine, and what it costs, in turn with bursts and without: name, "at a time:rounds …". PROFILE: then the records
# and the engine's own profiler with so many requests at a time, in steps of the whole batch. BENCH=1: before that vLLM's own load.
joined() {
  local name=$1 costs=$2; shift 2
  set -a; eval "$($X inject --print-env)"; set +a
  $command "${profiled[@]}" "$@" > $T/$name.log 2>&1 & local pid=$!
  unset CUDA_INJECTION64_PATH NVTX_INJECTION64_PATH LLMPROF_ATTACH LLMPROF_TOKEN
  SECONDS=0; ready $url; sleep 2; echo "$name: ready after $SECONDS s"; local worker=$(pgrep -f 'EngineCore|sglang::scheduler' | head -1); worker=${worker:-$pid}
  load 16 64 | figures "$name first:"
  for n in ${AT:-16 64}; do
    (load $n $((n * 24)) | figures "$name load at $n:") & local l=$!
    sleep 2; python3 $P/counter.py $url 8 > $T/$name$n.counter & local c=$!
    timeout 60 $X attach $worker --for 8 --json profiling.cupti.records=true hydra.run.dir=runs/$name$n > $T/$name$n.json 2> $T/$name$n.err; echo "attach at $n: code $?"; wait $c; wait $l
    python3 $P/counter.py compare $T/$name$n.counter runs/$name$n/events.ndjson $T/$name$n.json
    cp runs/$name$n/report.md $T/$name$n.report.md; cp runs/$name$n/records-*.tsv.gz $T/; gzip -c runs/$name$n/events.ndjson > $T/$name$n.events.gz
  done
  for cost in $costs; do
    # Long answers: after the prompts every step decodes the whole batch.
    local at=${cost%:*} TOKENS=7000
    echo "$name, $at at a time: $(python3 $P/cost.py $url "$(command_of_load $at $at) dataset.prompt_tokens=128" ${cost#*:} 9 3 $X attach $worker --for 600 --json output.record=false 2> $T/$name$at.cost)"
  done
  # The result file of vLLM's own load.
  [ -z "$BENCH" ] || python3 -m vllm.entrypoints.cli.main bench serve --backend openai --base-url $url --model m7 --tokenizer m7 --dataset-name random \
    --random-input-len 512 --random-output-len 64 --ignore-eos --num-prompts 64 --max-concurrency 16 --save-result --result-dir $T --result-filename vllm_bench.json > $T/bench.log 2>&1
  for n in $PROFILE; do
    (TOKENS=3000 eval "$(TOKENS=3000 command_of_load $n $n | sed 's/^exec //')" > /dev/null 2>&1) & local l=$!
    sleep 5; timeout 60 $X attach $worker --for 4 --json profiling.cupti.records=true hydra.run.dir=runs/$name.p$n > $T/$name.p$n.json 2> $T/$name.p$n.err; echo "attach: code $?"
    curl -s -X POST $url/start_profile > /dev/null; sleep 1.2; curl -s -X POST $url/stop_profile > /dev/null; wait $l
    python3 $P/torch_table.py prof > $T/$name.p$n.torch.tsv 2> $T/torch.err; tail -1 $T/torch.err
    cp runs/$name.p$n/records-$worker.tsv.gz $T/$name.p$n.tsv.gz; gzip -c runs/$name.p$n/events.ndjson > $T/$name.p$n.events.gz
  done
  pkill -f vllm.entrypoints; pkill -f sglang.launch; pkill -f llama-server; wait $pid
}
"$@"
