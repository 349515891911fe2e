#!/usr/bin/env bash
# runtime=pytorch on a machine with a GPU, PyTorch and transformers: what it reports beside what a script says of itself.
# pytorch.sh [PART…]: parts are speed, script, against, kernels, vision, trouble, screen. Needs target/gpu/llmprof-tui.xz.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x; cd /tmp/x
[ -x llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui; }
X=$PWD/llmprof-tui
PY="runtime=pytorch runtime.pytorch.python=$(command -v python3)"
row() { # name, directory
  python3 - "$1" "$2" <<'E'
import json, sys, collections
name, d = sys.argv[1:]
try: m = json.load(open(f"{d}/metrics.json"))
except OSError as e: sys.exit(print(name, "no metrics:", e))
f = lambda v, n=3: "-" if v is None else f"{v:.{n}f}"
t = m.get("metrics", m)
g = lambda k, s="p50": f((t.get(k) or {}).get(s) or (t.get(k) or {}).get("mean"))
print(f"{name:28} TTFT {g('ttft_ms')} TPOT {g('tpot_ms')} mean {g('tpot_ms', 'mean')} GPU step {g('device_step_ms')} vision {g('vision_ms')} mbu {f(m.get('mbu'), 3)} mfu {f(m.get('mfu'), 3)} outcome {m.get('outcome')}")
notes = collections.Counter()
for line in open(f"{d}/events.ndjson"):
    e = json.loads(line)["e"]
    if isinstance(e, dict) and "notice" in e and (e["notice"]["level"] != "info" or e["notice"]["source"] == "pytorch"): notes[e["notice"]["text"][:230]] += 1
for text, n in list(notes.items())[:9]: print("    ", n, text)
E
}
one() { # name, arguments
  local name=$1; shift
  timeout 280 $X run --quiet hydra.run.dir=runs/$name "$@" > $name.txt 2> $name.err; local code=$?
  row "$name ($code)" runs/$name; [ $code = 0 ] || tail -3 $name.err | cut -c1-300
}
common="model.dtype=bf16 dataset.prompt_tokens=512 infer.max_new_tokens=${TOKENS:-64}"
speed() {
  python3 -c "import torch, transformers; print('torch', torch.__version__, 'transformers', transformers.__version__)"
  for m in ${MODELS:-qwen2_5_0_5b qwen2_5_7b}; do
    one eager-$m $PY model=$m $common runtime.requests=4
    one compiled-$m $PY model=$m $common runtime.requests=6 runtime.warmup=3 runtime.pytorch.compile=reduce-overhead
  done
}
script() {
  for mode in eager compiled; do
    MODE=$mode one script-$mode $PY runtime.pytorch.script=$P/timed_script.py model=${MODEL:-qwen2_5_7b} $common runtime.requests=6 runtime.warmup=3 profiling.torch.enable=false
    python3 - runs/script-$mode <<'E'
import json, sys
d = sys.argv[1]
own = [json.loads(l.split("own ", 1)[1]) for l in open(f"{d}/program.log") if l.startswith("own ")]
tok, start = {}, {}
warm = set()
for line in open(f"{d}/events.ndjson"):
    v = json.loads(line); e = v["e"]
    if not isinstance(e, dict): continue
    if "request_started" in e:
        start[e["request_started"]["request"]] = v["t"]
    if "token" in e: tok.setdefault(e["token"]["r"], []).append(v["t"])
for r in sorted(tok):
    ts = tok[r]; tpot = (ts[-1] - ts[0]) / (len(ts) - 1) / 1e6; ttft = (ts[0] - start[r]) / 1e6
    print(f"     request {r}: TPOT {tpot:.4f}, own {own[r]['tpot_ms']:.4f} ({(tpot / own[r]['tpot_ms'] - 1) * 100:+.3f} %); TTFT {ttft:.2f}, own {own[r]['ttft_ms']:.2f}")
E
  done
}
against() { # the same model in our engine, and the comparison
  one ours model=qwen2_5_7b $common runtime.requests=6
  [ -d runs/eager-qwen2_5_7b ] || one eager-qwen2_5_7b $PY model=qwen2_5_7b $common runtime.requests=4
  $X compare runs/eager-qwen2_5_7b runs/ours > compare.txt 2>&1; echo "compare: code $?"; cut -c1-170 compare.txt | head -70
}
kernels() {
  one live-eager $PY model=qwen2_5_0_5b $common runtime.requests=6 profiling.cupti.enable=true
  one live-compiled $PY model=qwen2_5_0_5b $common runtime.requests=20 runtime.pytorch.compile=reduce-overhead profiling.cupti.enable=true
  for d in eager-qwen2_5_7b compiled-qwen2_5_7b live-eager live-compiled; do echo "== $d"; head -40 runs/$d/operators.md 2>/dev/null | cut -c1-150; done
}
trouble() {
  one oom $PY model=qwen2_5_72b $common runtime.requests=1
  one oom-batch $PY model=qwen2_5_0_5b model.dtype=bf16 runtime.batch_size=512 dataset.prompt_tokens=8192 runtime.requests=1
  (sleep 14; pkill -9 -f llmprof_worker.py) & one killed $PY model=qwen2_5_0_5b $common runtime.requests=2000 infer.max_new_tokens=400
  (sleep 14; pkill -STOP -f llmprof_worker.py; sleep 12; pkill -9 -f llmprof_worker.py) & one stopped $PY model=qwen2_5_0_5b $common runtime.requests=2000 runtime.pytorch.timeout_s=5
  pkill -9 -f llmprof_worker.py; nvidia-smi --query-compute-apps=pid,used_memory --format=csv | head -3
}
vision() {
  one vl-tiny $PY model=qwen2_5_vl_tiny dataset=pages runtime.requests=4 infer.max_new_tokens=32
  one vl-3b $PY model=qwen2_5_vl_3b model.dtype=bf16 dataset=pages runtime.requests=4 infer.max_new_tokens=64 profiling=full profiling.nsys.enable=false profiling.ncu.enable=false
  one got $PY model=got_ocr2 model.dtype=bf16 dataset=pages runtime.requests=4 infer.max_new_tokens=64
  for d in vl-3b got; do echo "== $d"; grep -A22 "^## vision" runs/$d/operators.md | cut -c1-140; done
}
screen() {
  tmux kill-server 2>/dev/null; tmux -f /dev/null new-session -d -x ${COLUMNS_:-120} -y ${ROWS_:-40} "env COLORTERM=truecolor $X $PY model=${MODEL:-qwen2_5_7b} $common runtime.requests=${REQUESTS:-12} hydra.run.dir=runs/screen ${MORE:-}; echo ended; sleep 100"
  shot() { tmux capture-pane -e -p > $T/$1.ansi; }
  sleep 6; shot load; sleep ${READY:-14}; shot overview; tmux send-keys K; sleep 3; tmux send-keys 4; sleep 4; shot kernels-live
  tmux send-keys p; sleep 2; shot paused; tmux send-keys p; sleep 1; tmux send-keys s; sleep 1; tmux send-keys Enter; sleep 1; tmux send-keys 3; sleep 1; shot tokens
  tmux send-keys K; sleep 1; tmux send-keys K; sleep ${END:-30}; tmux send-keys 4; sleep 1; shot kernels-end; tmux send-keys 5; sleep 1; shot roofline
  tmux send-keys 8; sleep 1; shot log; tmux send-keys 1; sleep 1; shot end
  tmux send-keys r; sleep 16; shot again; tmux send-keys q; sleep 4; shot quit
  tmux kill-server; tail -c 300 runs/screen/program.log
}
sees() { # a model that sees, on the screen
  tmux kill-server 2>/dev/null; tmux -f /dev/null new-session -d -x 120 -y 40 "env COLORTERM=truecolor $X $PY model=qwen2_5_vl_3b model.dtype=bf16 dataset=pages infer.max_new_tokens=48 runtime.requests=8 runtime.warmup=1 hydra.run.dir=runs/sees; sleep 100"
  sleep 30; tmux capture-pane -e -p > $T/sees-overview.ansi; tmux send-keys 3; sleep 1; tmux capture-pane -e -p > $T/sees-tokens.ansi
  sleep 22; tmux send-keys 4; sleep 1; tmux capture-pane -e -p > $T/sees-kernels.ansi; tmux send-keys 5; sleep 1; tmux capture-pane -e -p > $T/sees-roofline.ansi
  tmux send-keys 8; sleep 1; tmux capture-pane -e -p > $T/sees-log.ansi; tmux send-keys q; sleep 2; tmux kill-server
}
tools() {
  timeout 100 $X run --quiet $PY profiling=ncu model=qwen2_5_0_5b model.dtype=bf16 dataset.prompt_tokens=128 infer.max_new_tokens=8 runtime.requests=1 profiling.ncu.top_k=1 hydra.run.dir=runs/ncu > ncu.txt 2>&1
  echo "ncu: code $?"; tail -12 ncu.txt | cut -c1-160; grep -h "nvtx" runs/ncu/ncu/*command.yaml | head -2
}
for part in ${@:-speed script against kernels trouble}; do echo "=== $part"; $part; done 2>&1 | tee $T/table.txt
tar -C /tmp/x -czf $T/runs.tgz --exclude='*.json.gz' --exclude=pages $(ls -d runs/*/{operators.md,ops.csv,metrics.json,report.md,program.log} 2>/dev/null) 2>/dev/null
