#!/usr/bin/env bash
# Quantised weights and experts on a GPU: the tests of the kernels, and speeds by type. quantised.sh [PART…]: unit, speed, prefill, batches, experts, memory, file, screen.
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
unit() { xz -dk -c $G/unit.xz > unit; chmod +x unit; (cd $P/../..; timeout 200 /tmp/x/unit ${TESTS:-quantised} --ignored --test-threads 1 2>&1 | grep -v "^$" | cut -c1-300 | tail -25); }
speed() {
  for round in $(seq ${ROUNDS:-1}); do
    for t in ${TYPES:-bf16 q8_0 q4_k_m}; do for m in ${MODELS:-qwen2_5_7b qwen2_5_0_5b}; do
      one "$m $t" model=$m model.dtype=$t dataset.prompt_tokens=512 infer.max_new_tokens=128 runtime.requests=4
    done; done
  done
}
prefill() { for t in ${TYPES:-bf16 q8_0 q4_k_m}; do one "prefill 2048 $t" model=qwen2_5_7b model.dtype=$t dataset.prompt_tokens=2048 infer.max_new_tokens=4 runtime.requests=5; done; }
batches() { for b in ${BATCHES:-2 4 8 9 16 32}; do for t in ${TYPES:-bf16 q4_k_m}; do one "batch $b $t" model=qwen2_5_7b model.dtype=$t runtime.batch_size=$b dataset.prompt_tokens=128 infer.max_new_tokens=32 runtime.requests=2; done; done; }
experts() {
  for m in ${MODELS:-qwen3_30b_a3b qwen1_5_moe_a2_7b mixtral_8x7b}; do for t in ${TYPES:-bf16}; do
    one "$m $t" model=$m model.dtype=$t dataset.prompt_tokens=512 infer.max_new_tokens=128 runtime.requests=4
    for b in ${BATCHES:-}; do one "$m $t batch $b" model=$m model.dtype=$t runtime.batch_size=$b dataset.prompt_tokens=128 infer.max_new_tokens=32 runtime.requests=2; done
    [ -z "$PROMPT" ] || one "$m $t prefill $PROMPT" model=$m model.dtype=$t dataset.prompt_tokens=$PROMPT infer.max_new_tokens=4 runtime.requests=3
  done; done
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
cache = run['kv_bytes_per_position'] * (run['prompt_tokens'] + run['output_tokens'])
print('$m $t'.ljust(28), f'buffers {peak / 1e9:.3f} GB, weights {run[\'weight_bytes\'] / 1e9:.3f}, cache {cache / 1e9:.3f}, the rest {(peak - run[\'weight_bytes\'] - cache) / 1e9:.3f} GB')"
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
  tmux new-session -d -s q -x 200 -y 50 "$X --model ${MODEL:-qwen2_5_7b} model.dtype=${TYPE:-q4_k_m} dataset.prompt_tokens=512 infer.max_new_tokens=256 runtime.requests=200 hydra.run.dir=runs/screen; echo code \$?; sleep 30"
  sleep 14
  for k in 1 4 5; do tmux send-keys -t q $k; sleep 1; tmux capture-pane -e -p -t q > $T/${TYPE:-q4_k_m}-$k.ansi; done
  tmux send-keys -t q K; sleep 1; tmux send-keys -t q p; sleep 1; tmux send-keys -t q p; sleep 1; tmux send-keys -t q K; sleep 2; tmux send-keys -t q 1; sleep 1; tmux capture-pane -e -p -t q > $T/${TYPE:-q4_k_m}-again.ansi
  tmux send-keys -t q q; sleep 2; tmux capture-pane -p -t q | tail -4
}
for part in ${@:-unit speed prefill batches}; do echo "== $part"; $part; done
