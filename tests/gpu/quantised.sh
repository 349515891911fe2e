#!/usr/bin/env bash
# Our engine on a GPU: the tests of the kernels, and speeds by type. quantised.sh [PART…]: unit, speed, prefill, batches, experts, cache, windows, speculation, memory, file, screen.
# Needs target/gpu/llmprof-tui.xz, and target/gpu/unit.xz (the library's tests) for `unit`. TYPES names the types of `speed`.
P=$(cd "$(dirname "$0")" && pwd); G=$P/../../target/gpu; mkdir -p /tmp/x; cd /tmp/x; export LC_ALL=C.UTF-8
[ -x llmprof-tui ] || [ ! -f $G/llmprof-tui.xz ] || { xz -dk -c $G/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui; }
X=$PWD/llmprof-tui
one() { # label, overrides…
  local label=$1 begin=$SECONDS; shift
  timeout 100 $X run --json output.record=false profiling.cupti.enable=false "$@" > one.json 2> one.err
  python3 -c "
import json
m = json.load(open('one.json')); f = lambda k, q='p50': (m.get(k) or {}).get(q)
r = lambda v: '–' if v is None else f'{v:8.3f}'
print(f'$label'.ljust(28), 'TPOT', r(f('tpot_ms')), 'GPU step', r(f('device_step_ms') or f('device_step_ms', 'mean')), 'TTFT', r(f('ttft_ms')), 'MBU', m.get('mbu') or m.get('decode_mbu'), 'took', $SECONDS - $begin, 's')" || tail -3 one.err
}
unit() { xz -dk -c $(ls $G/unit.xz ${G}2/unit.xz 2>/dev/null | head -1) > unit; chmod +x unit; (cd $P/../..; timeout ${LIMIT:-200} /tmp/x/unit ${TESTS:-quantised} --ignored --test-threads 1 2>&1 | grep -v "^$" | cut -c1-300 | tail -25); }
speed() {
  for round in $(seq ${ROUNDS:-1}); do
    for t in ${TYPES:-bf16 q8_0 q4_k_m}; do for m in ${MODELS:-qwen2_5_7b qwen2_5_0_5b}; do
      one "$m $t" model=$m model.dtype=$t dataset.prompt_tokens=512 infer.max_new_tokens=128 runtime.requests=4
    done; done
  done
}
prefill() { for n in ${PROMPTS:-2048}; do for t in ${TYPES:-bf16 q8_0 q4_k_m}; do one "prefill $n $t" model=${MODEL:-qwen2_5_7b} model.dtype=$t dataset.prompt_tokens=$n infer.max_new_tokens=4 runtime.requests=5; done; done; }
batches() { for b in ${BATCHES:-2 4 8 9 16 32}; do for t in ${TYPES:-bf16 q4_k_m}; do one "batch $b $t" model=qwen2_5_7b model.dtype=$t runtime.batch_size=$b dataset.prompt_tokens=128 infer.max_new_tokens=32 runtime.requests=2; done; done; }
experts() {
  for m in ${MODELS:-qwen3_30b_a3b qwen1_5_moe_a2_7b mixtral_8x7b}; do for t in ${TYPES:-bf16}; do
    one "$m $t" model=$m model.dtype=$t dataset.prompt_tokens=512 infer.max_new_tokens=128 runtime.requests=4
    for b in ${BATCHES:-}; do one "$m $t batch $b" model=$m model.dtype=$t runtime.batch_size=$b dataset.prompt_tokens=128 infer.max_new_tokens=32 runtime.requests=2; done
    [ -z "$PROMPT" ] || one "$m $t prefill $PROMPT" model=$m model.dtype=$t dataset.prompt_tokens=$PROMPT infer.max_new_tokens=4 runtime.requests=3
  done; done
}
# The KV cache in eight bits: a long context.
cache() {
  for round in 1 2; do for c in auto fp8 q8_0; do
    one "$c, context ${PROMPT:-16384}" model=${MODEL:-qwen2_5_7b} model.dtype=bf16 runtime.kv_cache_dtype=$c dataset.prompt_tokens=${PROMPT:-16384} infer.max_new_tokens=64 runtime.requests=2
  done; done
}
# Layers with a window keep its positions alone: what the program takes at two contexts.
windows() {
  for c in 2048 8000; do
    (timeout 60 $X run output.record=false profiling.cupti.enable=false model=gemma2_2b model.dtype=bf16 runtime.batch_size=8 dataset.prompt_tokens=$c infer.max_new_tokens=64 runtime.requests=2 > /dev/null 2> one.err || tail -2 one.err) &
    most=0; while kill -0 $! 2> /dev/null; do now=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -1); [ "$now" -gt $most ] && most=$now; sleep 0.3; done
    echo "gemma2_2b, batch 8, context $c: at most $most MiB in use on the GPU"
  done
}
# Tokens a step by the program, and again from the tokens of its recording.
speculation() {
  S="model=qwen2_5_7b model.dtype=bf16 dataset.prompt_tokens=512 infer.max_new_tokens=256 runtime.requests=3 profiling.cupti.enable=false"
  for how in "none" "draft 0" "draft 0.7" "draft 1" "ngram 0" "ngram 0.7" "ngram 1"; do
    set -- $how; rm -rf runs/spec
    more=""; [ $1 = none ] || more="runtime.speculative.method=$1 runtime.speculative.acceptance=$2"; [ $1 != draft ] || more="$more +model@draft=qwen2_5_0_5b"
    timeout 60 $X run --json $S $more hydra.run.dir=runs/spec > one.json 2> one.err || tail -3 one.err
    python3 -c "
import json
m = json.load(open('one.json')); s = m.get('speculation') or {}
times, last = [], {}
for line in open('runs/spec/events.ndjson'):
    e = json.loads(line); t = e['e'].get('token') if isinstance(e['e'], dict) else None
    if t and t['r'] >= 1: last.setdefault(t['r'], []).append((e['t'], t['i']))
own = [(v[-1][0] - v[0][0]) / (v[-1][1] - v[0][1]) / 1e6 for v in last.values()]
steps = sum(len(v) - 1 for v in last.values())
print('$how'.ljust(12), 'TPOT', round(m['tpot_ms']['mean'], 3), 'by the recording', round(sum(own) / len(own), 3), 'step', round(m['itl_ms']['p50'], 3), 'GPU step', round((m.get('device_step_ms') or {}).get('p50') or 0, 3), 'tokens a step', s.get('tokens_per_step'), 'acceptance', s.get('acceptance'), 'by the recording', round(sum(v[-1][1] - v[0][1] for v in last.values()) / steps, 3), 'MBU', m['mbu'])"
  done
}
# What the GPU's buffers take beyond weights and cache, by type.
memory() {
  for m in ${MODELS:-qwen2_5_7b}; do for t in ${TYPES:-bf16 q8_0 q4_k_m fp8}; do
    timeout 100 $X run --json profiling.cupti.enable=false model=$m model.dtype=$t dataset.prompt_tokens=2048 infer.max_new_tokens=4 runtime.requests=1 hydra.run.dir=runs/memory-$m-$t > one.json 2> one.err || tail -2 one.err
    python3 -c "
import json
events = [json.loads(line)['e'] for line in open('runs/memory-$m-$t/events.ndjson')]
of = lambda kind: [e[kind] for e in events if isinstance(e, dict) and kind in e]
run, peak = of('run_started')[0], max(a['peak_bytes'] for a in of('allocator') if a['allocator'] == 'gpu')
cache, weights = run['kv_bytes_per_position'] * (run['prompt_tokens'] + run['output_tokens']), run['weight_bytes']
print('$m $t'.ljust(28), f'buffers {peak / 1e9:.3f} GB, weights {weights / 1e9:.3f}, cache {cache / 1e9:.3f}, the rest {(peak - weights - cache) / 1e9:.3f} GB')"
  done; done
}
# The tokens of a GGUF file on both devices: FILE names it.
file() {
  for d in cpu cuda; do timeout 60 $X run --json model=local model.name=file model.weights=$FILE model.dtype=f32 dataset.prompt_tokens=8 infer.max_new_tokens=64 runtime.requests=1 runtime.device=$d hydra.run.dir=runs/file-$d > file-$d.json 2> file-$d.err || tail -2 file-$d.err; done
  python3 -c "
import json
ids = [[e['e']['token']['id'] for e in map(json.loads, open(f'runs/file-{d}/events.ndjson')) if isinstance(e.get('e'), dict) and 'token' in e['e']] for d in ('cpu', 'cuda')]
print('tokens', *map(len, ids), 'equal', sum(a == b for a, b in zip(*ids)), json.load(open('file-cuda.json'))['dtype'])"
}
screen() {
  T=${OUT:-/tmp/out}; mkdir -p $T
  tmux new-session -d -s q -x 200 -y 50 "$X --model ${MODEL:-qwen2_5_7b} model.dtype=${TYPE:-q4_k_m} dataset.prompt_tokens=512 infer.max_new_tokens=256 runtime.requests=200 hydra.run.dir=runs/screen-\$RANDOM ${MORE:-}; echo code \$?; sleep 30"
  sleep 12; tmux send-keys -t q K; sleep 4
  for k in 1 4 5; do tmux send-keys -t q $k; sleep 1; tmux capture-pane -e -p -t q > $T/${NAME:-${TYPE:-q4_k_m}}-$k.ansi; done
  tmux send-keys -t q K; sleep 1; tmux send-keys -t q p; sleep 1; tmux send-keys -t q p; sleep 1; tmux send-keys -t q K; sleep 2; tmux send-keys -t q 1; sleep 1; tmux capture-pane -e -p -t q > $T/${NAME:-${TYPE:-q4_k_m}}-again.ansi
  tmux send-keys -t q q; sleep 2; tmux capture-pane -p -t q | tail -4; tmux kill-session -t q
}
for part in ${@:-unit speed prefill batches}; do echo "== $part"; $part; done
