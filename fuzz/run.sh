#!/usr/bin/env bash
# Runs one fuzz target: fuzz/run.sh TARGET [SECONDS [OPTIONS OF LIBFUZZER…]]
set -euo pipefail
cd "$(dirname "$0")"
target=$1 seconds=${2:-60}
shift $(($# < 2 ? $# : 2))
mkdir -p "corpus/$target" "artifacts/$target"
# Some targets have no seeds.
seeds=(); [ ! -d "seeds/$target" ] || seeds=("$PWD/seeds/$target")
"${CARGO_TARGET_DIR:-target}"/*/debug/"$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$PWD/artifacts/$target/" "$@" "$PWD/corpus/$target" "${seeds[@]}" &
trap 'rm -rf "/dev/shm/llmprof-fuzz-$!"' EXIT
wait $!
