#!/usr/bin/env bash
# Starts the llmprof-tui in the directory of this script, with the CUDA libraries of this machine: of a toolkit, of Python
# packages, or of the loader path.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
missing() { ldd "$here/llmprof-tui" | sed -n 's/^[[:space:]]*\(lib[^ ]*\) => not found.*/\1/p'; }

for library in $(missing); do
    for root in "${CUDA_HOME:-}" /usr/local/cuda /opt /usr/lib /usr/local "${VIRTUAL_ENV:-}" "$HOME/.local/lib"; do
        [ -d "$root" ] || continue
        found=$(find -L "$root" -name "$library" -print -quit 2>/dev/null || true)
        [ -n "$found" ] || continue
        export LD_LIBRARY_PATH="$(dirname "$found")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        break
    done
done
if [ -n "$(missing)" ]; then
    echo "not found: $(missing | tr '\n' ' ')" >&2
    echo "libcuda.so.1 is part of the NVIDIA driver; the others are part of CUDA 13 and of the PyPI packages" >&2
    echo "nvidia-cublas, nvidia-curand, nvidia-cuda-runtime and nvidia-cuda-nvrtc" >&2
    exit 1
fi
exec "$here/llmprof-tui" "$@"
