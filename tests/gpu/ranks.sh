#!/usr/bin/env bash
# Several ranks under exec, on a machine with PyTorch and one GPU or more: what it shows beside what the program says of itself.
# ranks.sh [PART…]: parts are plain, slow, traces, screen, starts. RANKS=2 by default. On one GPU the ranks share it: by NCCL 2.30
# (target/gpu/libnccl.so.2.xz, where it is there), or else over sockets. Needs target/gpu/llmprof-tui.xz.
cd "$(dirname "$0")"
P=$PWD; G=$P/../../target/gpu; N=${RANKS:-2}
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x; cd /tmp/x
[ -x llmprof-tui ] || { xz -dk -c $G/llmprof-tui.xz > llmprof-tui; chmod +x llmprof-tui; }
X=$PWD/llmprof-tui
PYTHON=${PYTHON:-/opt/torch/.venv/bin/python}; [ -x $PYTHON ] || PYTHON=python3
gpus=$(nvidia-smi -L | wc -l)
if [ $gpus -lt $N ]; then
  export NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2
  if [ -f $G/libnccl.so.2.xz ]; then
    [ -f libnccl.so.2 ] || xz -dc $G/libnccl.so.2.xz > libnccl.so.2; export LD_PRELOAD_NCCL=$PWD/libnccl.so.2
  else # an older NCCL takes the ranks for machines of their own, over sockets
    export HOST_FOR_EACH_RANK=1 NCCL_SOCKET_IFNAME=lo
  fi
  # Without MPS the ranks take turns on the GPU, some milliseconds each.
  if [ -z "$NO_MPS" ] && command -v nvidia-cuda-mps-control > /dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/x/mps CUDA_MPS_LOG_DIRECTORY=/tmp/x/mps-log; mkdir -p mps mps-log
    nvidia-cuda-mps-control -d && echo "MPS is on"
  fi
fi
RUN="env ${LD_PRELOAD_NCCL:+LD_PRELOAD=$LD_PRELOAD_NCCL} NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING,ENV $PYTHON -m torch.distributed.run --nproc-per-node $N"
$PYTHON -c "import torch; print('torch', torch.__version__, 'NCCL', torch.cuda.nccl.version(), 'CUDA', torch.version.cuda)"
alone() { # the program without us
  timeout 120 $RUN $P/tensor_parallel.py "$@" > alone.txt 2>&1; echo "alone $*: code $?"; grep -h '^own ' alone.txt | cut -c1-400 || tail -5 alone.txt
}
one() { # name, options of exec, arguments of the program
  local name=$1 options=$2; shift 2
  timeout 150 $X exec --headless hydra.run.dir=runs/$name $options -- $RUN $P/tensor_parallel.py "$@" > $name.out 2> $name.err; echo "== $name: code $?"
  grep -h '^own ' $name.out | cut -c1-400
  grep -v '^own \|NCCL INFO' $name.err | tail -${LINES_:-30} | cut -c1-180
  mkdir -p $T/$name; cp runs/$name/{report.md,metrics.json} $T/$name/ 2>/dev/null; gzip -c runs/$name/events.ndjson > $T/$name/events.ndjson.gz
  grep -h 'NCCL' $name.out $name.err > $T/$name/nccl.log
}
plain() { alone --steps 300; one plain "" --steps 600; one everything "profiling.cupti.duty=1.0" --steps 300; }
slow() { one slow-host "profiling.cupti.duty=0.5" --steps 400 --slow 1 --by host; one slow-work "profiling.cupti.duty=0.5" --steps 400 --slow 1 --by work; }
traces() {
  timeout 150 $RUN $P/tensor_parallel.py --steps 20 --slow 1 --by work --trace traces > traces.txt 2>&1; echo "== traces: code $?"
  for f in traces/*.json; do gzip -c $f > $T/$(basename $f).gz; done
  $X kernels traces --text -k 6 2>&1 | cut -c1-180 | head -70
  one traced "" --steps 600 --trace traced
}
screen() {
  tmux kill-server 2>/dev/null; tmux -f /dev/null new-session -d -x 200 -y 50 "env COLORTERM=truecolor $X exec profiling.cupti.duty=0.3 hydra.run.dir=runs/screen -- $RUN $P/tensor_parallel.py --steps 4000 --slow 1 --by work; sleep 60"
  sleep 40; tmux send-keys 4; sleep 1; tmux capture-pane -e -p > $T/kernels.ansi
  tmux send-keys 0; sleep 3; tmux capture-pane -e -p > $T/ranks.ansi; tmux resize-window -x 80 -y 24; sleep 2; tmux capture-pane -e -p > $T/ranks-small.ansi
  tmux resize-window -x 200 -y 50; tmux send-keys 2; sleep 1; tmux capture-pane -e -p > $T/gpu.ansi; tmux send-keys 8; sleep 1; tmux capture-pane -e -p > $T/log.ansi; tmux send-keys q; sleep 4; tmux kill-server
}
# Hundreds of ranks that start: none may crash.
starts() {
  export NCCL_SOCKET_IFNAME=lo
  for n in 1 5; do
    timeout 150 $PYTHON $P/starts.py 12 $n > starts.txt 2>&1; echo "alone, $n at a time: $(grep -h 'own ends' starts.txt) $(median starts.txt)"
    timeout 200 $X exec --headless hydra.run.dir=runs/starts$n -- $PYTHON $P/starts.py ${SECONDS_:-60} $n > starts.txt 2> starts.err; echo "exec, $n at a time: $(grep -h 'own ends' starts.txt) $(median starts.txt)"
  done
}
median() { grep -h 'own init' $1 | sort -k3 -n | awk '{v[NR]=$3} END {print "init " v[int((NR+1)/2)] " s"}'; }
for part in ${@:-plain slow traces screen starts}; do echo "=== $part"; $part; done 2>&1 | tee $T/table.txt
[ -n "$CUDA_MPS_PIPE_DIRECTORY" ] && echo quit | nvidia-cuda-mps-control
