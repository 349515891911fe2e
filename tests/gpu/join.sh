#!/usr/bin/env bash
# Joins programs that were started without preparation, again and again, while they work: join.sh torch|vllm|sglang CYCLES [SECONDS]
# Needs $X (the program) and, for a server, its site and model in $E. Files go to $OUT; the table comes last. SERVER: the process of a
# server that runs already. LAST: a command while the load is still there.
cd "$(dirname "$0")"
P=$PWD; T=${OUT:-/tmp/out}; mkdir -p $T; what=$1; cycles=$2; seconds=${3:-2}
facts() { # of the joined process: memory, descriptors, threads, and its GPU memory
  echo "$1: $(awk '/VmRSS/ {printf "rss %.0f MB", $2 / 1024}' /proc/$worker/status), $(ls /proc/$worker/fd | wc -l) descriptors, $(ls /proc/$worker/task | wc -l) threads, $(wc -l < /proc/$worker/maps) mappings, GPU $(nvidia-smi --query-gpu=memory.used --format=csv,noheader)"
}
case $what in
torch)
  python3 $P/loop.py $T/steps.txt > $T/loop.log 2>&1 & worker=$!; target=$worker
  until [ -s $T/steps.txt ]; do sleep 0.5; kill -0 $worker || { cat $T/loop.log; exit 1; }; done ;;
vllm | sglang)
  cd $E; . ./env.sh; [ -d m7 ] || python3 model.py 7b m7
  [ $what = vllm ] && { command=$VLLM; url=http://127.0.0.1:8001; } || { command=$SGLANG; url=http://127.0.0.1:8002; }
  server=$SERVER; [ -n "$server" ] || { $command > $T/$what.log 2>&1 & server=$!; }
  SECONDS=0; ready $url || { tail -5 $T/$what.log; exit 1; }; echo "$what: ready after $SECONDS s"
  target=$server; worker=$(pgrep -f 'EngineCore|sglang::scheduler' | head -1)
  $X run --quiet --json runtime=openai runtime.server.url=$url runtime.load.concurrency=${AT:-16} runtime.requests=100000 runtime.warmup=8 \
    dataset.prompt_tokens=512 infer.max_new_tokens=128 telemetry=none profiling=none hydra.run.dir=$T/load > $T/load.json 2> $T/load.err & load=$!
  sleep 15 ;;
esac
sleep 5; facts "before"; date +%s.%N > $T/begin
bad=0; rm -f $T/stops
for n in $(seq $cycles); do
  timeout 60 $X attach $target --for $seconds --json output.record=false > $T/cycle.json 2> $T/cycle.err || { bad=$((bad + 1)); head -c 400 $T/cycle.err; }
  grep -o 'was stopped for [0-9.]* [mµ]*s' $T/cycle.err >> $T/stops
  echo "$(date +%s.%N) end" >> $T/begin
  kill -0 $worker 2> /dev/null || { echo "the program is gone after $n cycles"; tail -5 $T/$what.log $T/loop.log 2> /dev/null; break; }
  [ $n = 1 ] && { facts "after 1 cycle"; cp $T/cycle.json $T/first.json; cat $T/cycle.err; }
  sleep ${PAUSE:-1}
done
facts "after $n cycles"; sort $T/stops | uniq -c | head -4; echo "$bad of $n attaches failed"
if [ $what = torch ]; then
  # With every kernel and its line, and the program's own profiler at the end.
  timeout 60 $X attach $target --for 6 --json profiling.cupti.duty=0.5 hydra.run.dir=$T/lines > $T/lines.json 2> $T/lines.err; echo "code $?"
  $X kernels $T/lines --by line --text -k 12; $X kernels $T/lines --by line --json > $T/by_line.json
  kill -USR1 $worker; sleep 6; tail -3 $T/loop.log; kill -TERM $worker; wait $worker; echo "the program ended with $?"
  python3 $P/loop.py table $T/steps.txt
else
  [ -n "$LAST" ] && eval "$LAST"
  kill -INT $load; wait $load
  [ -n "$SERVER" ] || { pkill -f vllm.entrypoints; pkill -f sglang.launch; wait $server; echo "the server ended with $?"; }
  python3 -c "
import json
m = json.load(open('$T/load.json')); print('requests', m.get('requests'), 'failed', m.get('failed'))
for k in ('ttft_ms', 'tpot_ms', 'itl_ms'): print(k, m.get(k))" | cut -c1-300
fi
