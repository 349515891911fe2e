#!/usr/bin/env bash
cd "$(dirname "$0")"
export LIBRARY=$PWD/../../target/gpu/libllmprof_inject.so
T=${OUT:-/tmp/out}; mkdir -p $T /tmp/x
M="rest,0/1000,200/2000,1000/1000"
python3 decode.py 0.5b eager 1 8 > /tmp/x/bare.json 2>/tmp/x/bare.err; tail -c 300 /tmp/x/bare.err; cat /tmp/x/bare.json
timeout 150 python3 listen.py $M 5 /tmp/x/eager.slots -- python3 decode.py 0.5b eager 40 64 > /tmp/x/eager.json 2>/tmp/x/eager.err; tail -c 200 /tmp/x/eager.err
timeout 200 python3 listen.py $M 3 /tmp/x/compiled.slots -- python3 decode.py 0.5b compiled 120 128 > /tmp/x/compiled.json 2>/tmp/x/compiled.err; tail -c 200 /tmp/x/compiled.err
timeout 100 python3 listen.py 200/2000 100 /tmp/x/profiled.slots -- python3 decode.py 0.5b profiled 6 32 > /tmp/x/profiled.json 2>/tmp/x/profiled.err; tail -c 600 /tmp/x/profiled.err
timeout 60 python3 decode.py 0.5b profiled 6 32 > /tmp/x/alone.json 2>/tmp/x/alone.err
timeout 100 python3 listen.py 200/1000 100 /tmp/x/generate.slots -- python3 decode.py 0.5b generate 4 64 > /tmp/x/generate.json 2>/tmp/x/generate.err; tail -c 300 /tmp/x/generate.err
for n in eager compiled profiled generate; do
  python3 by_mode.py /tmp/x/$n.slots /tmp/x/$n.json
  awk -v n=$n '/^[0-9]/{t=$1%256; c[t]++; if (t==17) m[int($1/4294967296)]++; if (t==18) o[$1" "$2]++} /dropped/{print n, $0} END{for(k in c) printf "%s tag %s: %d\n", n, k, c[k]; for(k in m) printf "%s mode %s: %d\n", n, k, m[k]; for (k in o) print n, "obstacle", k, o[k]}' /tmp/x/$n.slots
done
tail -c 400 /tmp/x/alone.json
for n in eager compiled generate; do xz -2 -T8 -c /tmp/x/$n.slots > $T/$n.slots.xz; cp /tmp/x/$n.json $T/; done; cp /tmp/x/profiled.json $T
ls -la $T
