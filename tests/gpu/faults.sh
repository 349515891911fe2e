#!/usr/bin/env bash
# Planted faults of known cost in real programs on a GPU, and the account's answer to each.
# faults.sh PART…: torch (PyTorch alone), own (our engine), vllm (a server in $E, see engine.sh), kv (a second server, with a small KV cache; after
# vllm, or alone). Needs llmprof-tui at $X. Results go to $OUT/faults/PART/NAME, the table to
# $OUT/faults/PART.txt. SECONDS_EACH: the duration of a PyTorch program (5).
T=$(realpath -m "${OUT:-/tmp/out}/faults"); X=$(realpath "${X:?the path of llmprof-tui}"); P=$(cd "$(dirname "$0")" && pwd)
W=$(mktemp -d); PY=${PYTHON:-python3}; url=http://127.0.0.1:8001
mkdir -p $T; trap 'rm -rf $W' EXIT
# The end of a part: no program is started after it.
ends_by=0
one() { # part-name, command with options; its results are kept
  local name=$1 d=$T/$1; shift; rm -rf $d; mkdir -p $d
  [ $SECONDS -lt $ends_by ] || { echo "$name: not run, the time is over"; return 1; }
  local begun=$SECONDS
  timeout ${LIMIT:-40} "$@" > $d/run.json 2> $d/stderr; local code=$?
  cp $W/run/{metrics.json,report.md,nvml.csv} $d/ 2>/dev/null; rm -rf $W/run
  echo "$name: code $code, $((SECONDS - begun)) s"; [ $code = 0 ] || tail -2 $d/stderr | cut -c1-300
}
table() { $PY $P/faults_table.py $T/$1 $1 | tee $T/$1.txt; }
decode() { # name, FAULT of faults.py
  one torch/$1 $X exec --headless --json hydra.run.dir=$W/run profiling.cupti.duty=0.2 -- $PY $P/faults.py decode $2 ${SECONDS_EACH:-5} $W/own.json
  mv $W/own.json $T/torch/$1/ 2>/dev/null
}
torch() {
  ends_by=$((SECONDS + 120)) LIMIT=30
  for fault in none sleep copy eager gil item context zeros clock; do decode $fault $fault; done
  [ $SECONDS -lt $ends_by ] || { table torch; return; }
  $PY $P/faults.py matmul & local matmul=$!
  decode other none; kill $matmul; wait $matmul 2>/dev/null
  table torch
}
engine() { # name, prompt, tokens, requests
  one own/$1 $X run --quiet --json --model qwen2_5_7b model.dtype=bf16 hydra.run.dir=$W/run profiling.cupti.enable=true \
    dataset.prompt_tokens=$2 infer.max_new_tokens=$3 runtime.requests=$4
}
own() {
  ends_by=$((SECONDS + 120))
  engine rest 512 256 6; engine context 16384 128 4; engine prefill 8192 2 30
  table own
}
serve() { # more options of the server. SERVER: the process of one that runs already, with --max-num-seqs 32
  [ -z "$SERVER" ] || { server=$SERVER; return; }
  setsid $VLLM --max-num-seqs 32 "$@" > $W/server 2>&1 & server=$!
  local begun=$SECONDS; ready $url || { tail -5 $W/server; end; return 1; }; echo "server: ready after $((SECONDS - begun)) s"
}
end() { [ -z "$SERVER" ] || return 0; kill -INT $server; for _ in 1 2 3 4 5 6 7 8; do kill -0 $server 2>/dev/null || break; sleep 1; done; kill -KILL -- -$server 2>/dev/null; wait $server 2>/dev/null; cp $W/server $T/vllm/server.$server; }
load() { # name, options
  local name=$1 d=$T/vllm/$1; shift; rm -rf $d
  $PY $P/faults_client.py counters $url > $W/before
  one vllm/$name $X run --quiet --json --model qwen2_5_7b model.dtype=bf16 runtime=vllm runtime.server.url=$url runtime.warmup=1 hydra.run.dir=$W/run \
    dataset.prompt_tokens=512 infer.max_new_tokens=128 "$@"
  mv $W/before $d/before.json; $PY $P/faults_client.py counters $url > $d/after.json
}
at16() { load $1 runtime.load.concurrency=16 runtime.requests=96 "${@:2}"; }
# A trace has no requests after the measured ones: the server's clock counts the same requests.
traced() { $PY $P/faults_client.py trace $2 > $W/trace; load $1 runtime.load.arrivals=trace runtime.load.trace=$W/trace runtime.requests=null; }
beside() { # command beside the load, command of the load
  $1 & local pid=$!; "${@:2}"; kill $pid; wait $pid 2>/dev/null
}
prompts() { exec $PY $P/faults_client.py prompts $url; }
slow() { exec $PY $P/faults_client.py slow $url; }
# The engine stops for 0.1 s of every second.
pause() {
  local core; core=$(pgrep -s $server -f EngineCore | head -1); core=${core:-$server}
  trap 'kill -CONT $core; exit' TERM
  while sleep 0.9; do kill -STOP $core; sleep 0.1; kill -CONT $core; done
}
prepared() {
  mkdir -p $T/vllm; cd ${E:-/tmp/e} || return 1; . ./env.sh; [ -d m7 ] || python3 $P/model.py 7b m7
}
vllm() {
  prepared && serve || return 1
  ends_by=$((SECONDS + 260))
  at16 first
  for n in 1 2 3 4 5; do at16 same$n; done
  traced calm calm; traced prompts prompts; beside prompts traced strangers calm
  beside slow at16 slow; beside pause at16 pause
  traced rate 8; traced queue 60
  at16 long infer.max_new_tokens=512 runtime.requests=48
  end; table vllm
}
kv() { # 520 blocks of 16 tokens for 16 sequences of up to 1,024
  prepared && serve --num-gpu-blocks-override 520 --no-enable-prefix-caching || return 1
  ends_by=$((SECONDS + 90))
  [ -f $T/vllm/long/run.json ] || echo "kv: without the run 'long' of the part vllm there is nothing to compare with"
  at16 kv infer.max_new_tokens=512 runtime.requests=48
  end; table vllm
}
for part in "$@"; do echo "=== $part"; begun_part=$SECONDS; $part; echo "$part: $((SECONDS - begun_part)) s"; done
