#!/usr/bin/env bash
# Makes a CUDA toolkit that is enough to build `--features cuda`, on a machine that has none: no GPU, no root.
#
#   third_party/cuda/bootstrap.sh [DIR]      (DIR: target/cuda-toolkit)
#   eval "$(third_party/cuda/bootstrap.sh)"  puts it into the environment of this shell
#
# Progress goes to stderr, the exports to stdout. Running it again changes nothing.
# It takes the compiler, headers and libraries from NVIDIA's own packages on PyPI and lays them out as a toolkit.
# libcuda belongs to the driver and is in no package: linking gets a stub of it, running needs the real one.
set -euo pipefail
cd "$(dirname "$0")/../.."

# What is built against; the binary runs with any driver that knows this version.
VERSION=13.0
PACKAGES=(
    "nvidia-cuda-nvcc==$VERSION.*" "nvidia-cuda-runtime==$VERSION.*" "nvidia-cuda-crt==$VERSION.*"
    "nvidia-nvvm==$VERSION.*" "nvidia-cuda-cccl==$VERSION.*" "nvidia-cuda-nvrtc==$VERSION.*"
    "nvidia-cuda-cupti==$VERSION.*" "nvidia-curand<11" "nvidia-cublas<13.2"
)

say() { echo "cuda/bootstrap: $*" >&2; }
fail() { say "$*"; exit 1; }

dir=${1:-target/cuda-toolkit}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
toolkit=$dir/toolkit
done_mark=$dir/made-$VERSION

if [ ! -e "$done_mark" ]; then
    command -v python3 >/dev/null || fail "python3 is missing; install it, or a CUDA $VERSION toolkit"
    command -v cc >/dev/null || fail "a C compiler is missing; install gcc"
    say "fetching nvcc, headers and libraries of CUDA $VERSION into $dir (about 1.6 GB)"
    python3 -m venv "$dir/packages" || fail "python3 cannot make a virtual environment; install python3-venv"
    "$dir/packages/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${PACKAGES[@]}" \
        || fail "the packages could not be fetched"
    made=$(echo "$dir"/packages/lib/python3*/site-packages/nvidia/cu13)
    [ -x "$made/bin/nvcc" ] || fail "the packages have no nvcc at $made/bin"
    ln -sfn "$made" "$toolkit"
    ln -sfn lib "$made/lib64"
    for library in "$made"/lib/*.so.*; do
        name=${library##*/}
        ln -sf "$name" "$made/lib/${name%%.so.*}.so"
    done
    say "making a stub of libcuda to link against"
    mkdir -p "$made/lib/stubs"
    {
        grep -ohE '\bcu[A-Z][A-Za-z0-9]*(_v[0-9]+)?(_ptsz|_ptds)?\b' "$made/include/cuda.h" | sort -u \
            | sed 's/.*/int &(void) { return 999; }/'
    } > "$dir/libcuda_stub.c"
    cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$made/lib/stubs/libcuda.so" "$dir/libcuda_stub.c" \
        || fail "the stub of libcuda could not be built"
    touch "$done_mark"
fi

say "ready: $("$toolkit/bin/nvcc" --version | grep -o 'release [0-9.]*') in $toolkit"
cat <<EXPORTS
export CUDA_HOME=$toolkit CUDA_PATH=$toolkit CUDA_ROOT=$toolkit
export PATH=$toolkit/bin:\$PATH
export LIBRARY_PATH=$toolkit/lib:$toolkit/lib/stubs\${LIBRARY_PATH:+:\$LIBRARY_PATH}
export CUDA_COMPUTE_CAP=\${CUDA_COMPUTE_CAP:-90}
EXPORTS
