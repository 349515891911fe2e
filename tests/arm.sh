#!/usr/bin/env bash
# Tests the CPU's matrix products on emulated aarch64, then runs the program there and compares its tokens with those of the host. Speed is
# not measured.
#
#   tests/arm.sh [products]
#
# Needs `rustup target add aarch64-unknown-linux-gnu`, and Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user-static.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=aarch64-unknown-linux-gnu

not_checked() {
    echo "NOT CHECKED: $1" >&2
    exit 0
}
[ -d "$(rustc --print sysroot)/lib/rustlib/$triple/lib" ] || not_checked "this Rust has no standard library for $triple"
for tool in aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v $tool >/dev/null || not_checked "$tool is not installed"
done
[ -e /usr/aarch64-linux-gnu/lib/crt1.o ] || not_checked "libc6-dev-arm64-cross is not installed"

# Libraries of Debian's arm64 packages if they are installed, else those of the compiler: a mixture of both hangs.
qemu=qemu-aarch64-static
[ -e /lib/ld-linux-aarch64.so.1 ] || qemu="$qemu -L /usr/aarch64-linux-gnu"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$qemu

# With all instructions that qemu has, and on a processor without `sdot`, which candle's own product needs.
products() {
    echo "products on $1"
    QEMU_CPU=$1 cargo test --locked --target-dir target/arm --target $triple -p decoder-ops -- "${@:2}"
}
products max
products cortex-a53 --skip differs_from_candles_product
[ "${1:-all}" = all ] || exit 0

cargo build --locked
cargo build --locked --target-dir target/arm --target $triple
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/tiny.json" <<'JSON'
{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "vocab_size": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
 "max_position_embeddings": 256}
JSON

# tokens DTYPE DIRECTORY PROGRAM…: the ids of greedy tokens, 64 of the warm-up and 64 of the request.
tokens() {
    local dtype=$1 dir=$2
    shift 2
    "$@" run --json runtime.device=cpu telemetry=none profiling=none model.config_json="$work/tiny.json" model.dtype="$dtype" \
        dataset.prompt_tokens=16 infer.max_new_tokens=64 runtime.requests=1 hydra.run.dir="$dir" >"$dir.json" 2>"$dir.log" ||
        { cat "$dir.log" >&2; return 1; }
    sed -n 's/.*"token":{"r":[0-9]*,"i":[0-9]*,"id":\([0-9]*\).*/\1/p' "$dir/events.ndjson" | tr '\n' ' '
}
$qemu target/arm/$triple/debug/llmprof-tui doctor >"$work/doctor" || [ $? = 1 ]
grep "pass.*cpu_engine" "$work/doctor"
for dtype in f32 bf16 q8_0 q4_k_m iq4_xs; do
    here=$(tokens $dtype "$work/here-$dtype" target/debug/llmprof-tui)
    there=$(tokens $dtype "$work/there-$dtype" $qemu target/arm/$triple/debug/llmprof-tui)
    [ "$(wc -w <<<"$here")" -ge 64 ] || { echo "$dtype: fewer than 64 tokens" >&2; exit 1; }
    [ "$here" = "$there" ] || { echo "$dtype: tokens differ: $here | $there" >&2; exit 1; }
    echo "$dtype: $(wc -w <<<"$here") tokens are equal"
done
