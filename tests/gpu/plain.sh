#!/usr/bin/env bash
# Programs that are no servers of the usual kind, on a machine with a GPU: a loop of products under exec, a program without CUDA, the
# key n (nsys) to its end, transformers' own server. Needs target/gpu/llmprof-tui.xz, PyTorch and transformers; target/gpu/dw has
# Debian's libdw1 and libelf1, which nsys's importer needs. Files go to $OUT.
cd "$(dirname "$0")"; P=$PWD; G=$P/../../target/gpu
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/e; cd /tmp/e
[ $G/llmprof-tui.xz -nt llmprof-tui ] && { xz -dk -c $G/llmprof-tui.xz > new && chmod +x new && mv new llmprof-tui; }
X=$PWD/llmprof-tui
products() {
  cat > products.py <<'E2'
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); b = torch.randn_like(a); c = torch.randn(1 << 26, device="cuda"); h = torch.empty(1 << 24, pin_memory=True)
torch.cuda.synchronize(); begun = time.perf_counter()
while time.perf_counter() - begun < 8:
    for _ in range(20): d = a @ b; e = c * 2.0
    h.copy_(c[: 1 << 24]); torch.cuda.synchronize()
E2
  $X exec --headless hydra.run.dir=runs/products -- python3 products.py > $T/products.txt 2>&1; echo "products: code $?"; tail -25 $T/products.txt
  cp runs/products/report.md $T/products.md; ls runs/products
  $X exec --headless hydra.run.dir=runs/nothing -- python3 -c 'import time; time.sleep(2)' > $T/nothing.txt 2>&1; echo "nothing: code $?"; tail -5 $T/nothing.txt
}
# A program of nvcc, which does not load CUPTI itself: its end is that of the program, with the library asleep and followed.
nvcc_program() {
  cat > loop.cu <<'E2'
#include <cstdio>
#include <unistd.h>
__global__ void twice(float *x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }
int main(int argc, char **argv) {
  float *x, y; cudaMalloc(&x, 1 << 24); cudaMemset(x, 0, 1 << 24);
  for (int i = 0; i < 3000; i++) { twice<<<16384, 256>>>(x, 1 << 22); cudaMemcpy(&y, x, 4, cudaMemcpyDeviceToHost); usleep(1000); }
  puts("done"); return 3;
}
E2
  nvcc -o loop loop.cu
  for n in 1 2 3; do $X exec --headless hydra.run.dir=runs/loop$n -- ./loop > $T/loop.txt 2>&1; echo "nvcc program $n: code $?, $(grep -c done $T/loop.txt) done"; done
  (eval "$($X inject --print-env)"; ./loop > /dev/null; echo "asleep: code $?"; ./loop > /dev/null & l=$!; sleep 1; timeout 20 $X attach $l --for 1 --json > /dev/null 2>&1; echo "attach: code $?"; wait $l; echo "after attach: code $?"
   ./loop > /dev/null & l=$!; sleep 1; timeout 20 $X attach $l --json > /dev/null 2>&1; echo "attached until the end: code $?"; wait $l; echo "code $?")
  tail -20 $T/loop.txt
}
nsys_key() {
  export LD_LIBRARY_PATH=$G/dw:$LD_LIBRARY_PATH
  tmux kill-server 2>/dev/null; sleep 1
  tmux new-session -d -s t -x 200 -y 50 "COLORTERM=truecolor $X --model qwen2_5_0_5b model.dtype=bf16 runtime.requests=400 hydra.run.dir=runs/key 2> $T/key.err; echo code \$?; sleep 600"
  sleep 8; tmux send-keys -t t 4; sleep 1; tmux send-keys -t t n
  SECONDS=0; until ls runs/key/*/ 2>/dev/null | grep -q sqlite || [ $SECONDS -gt 75 ]; do sleep 1; [ $((SECONDS % 10)) = 0 ] && tmux capture-pane -e -p -t t > $T/key-$SECONDS.ansi; done
  sleep 4; tmux capture-pane -e -p -t t > $T/key-live.ansi; tmux send-keys -t t Right; sleep 2; tmux capture-pane -e -p -t t > $T/key-nsys.ansi
  tmux capture-pane -p -t t | head -30; find runs/key | head -20
  tmux send-keys -t t q; sleep 1; tmux send-keys -t t y; sleep 5; tmux kill-server
}
transformers_serve() {
  mkdir -p ~/.cache/huggingface/hub; . ./env.sh; [ -d m05 ] || { python3 model.py 0.5b m05; python3 -c "
import torch; from transformers import AutoConfig, AutoModelForCausalLM
torch.set_default_dtype(torch.bfloat16); m = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained('m05')); m.save_pretrained('m05')" 2>&1 | tail -1; }
  $X exec --headless hydra.run.dir=runs/transformers -- transformers serve /tmp/e/m05 --port 8003 > $T/transformers.log 2>&1 & local pid=$!
  SECONDS=0; until curl -sf http://127.0.0.1:8003/health > /dev/null || curl -sf http://127.0.0.1:8003/v1/models > /dev/null || [ $SECONDS -gt 60 ]; do sleep 1; done; echo "transformers: $SECONDS s"; sleep 2
  $X run --quiet --json runtime=openai runtime.server.url=http://127.0.0.1:8003 runtime.server.model=/tmp/e/m05 runtime.load.concurrency=2 runtime.requests=12 dataset.prompt_tokens=256 infer.max_new_tokens=64 \
    telemetry=none profiling=none output.record=false > $T/transformers.json 2> $T/transformers.err; echo "code $?"; tail -3 $T/transformers.err
  python3 -c "
import json; m = json.load(open('$T/transformers.json')); print({k: (m.get(k) or {}).get('p50') for k in ('ttft_ms', 'tpot_ms', 'itl_ms')}, m.get('verdict'))"
  kill -INT $pid; wait $pid; echo "code $?"; cp runs/transformers/report.md $T/transformers.md; head -40 $T/transformers.md | cut -c1-300
}
for part in "$@"; do $part; done
