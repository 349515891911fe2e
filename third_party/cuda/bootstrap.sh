#!/usr/bin/env bash
# Installs a CUDA toolkit that can compile the kernels (`just kernels`) and build `--features candle-cuda`. Needs no GPU and no root access.
#
#   third_party/cuda/bootstrap.sh [DIR]      (default DIR: target/cuda-toolkit)
#   eval "$(third_party/cuda/bootstrap.sh)"  also sets the environment of this shell
#
# Prints progress to stderr and the exports to stdout. Running it again changes nothing.
# The compiler, headers and libraries are from NVIDIA's packages on PyPI.
# libcuda is part of the driver, not of a package: a stub is created to link against, running needs the driver.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The CUDA version of the toolkit; the binary runs with any driver that supports it.
VERSION=13.0
PACKAGES=(
    "nvidia-cuda-nvcc==$VERSION.*" "nvidia-cuda-runtime==$VERSION.*" "nvidia-cuda-crt==$VERSION.*"
    "nvidia-nvvm==$VERSION.*" "nvidia-cuda-cccl==$VERSION.*" "nvidia-cuda-nvrtc==$VERSION.*"
    "nvidia-cuda-cupti==$VERSION.*" "nvidia-curand<11" "nvidia-cublas<13.2"
)

report() { echo "cuda/bootstrap: $*" >&2; }
fail() { report "$*"; exit 1; }

dir=${1:-target/cuda-toolkit}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
toolkit=$dir/toolkit
complete_marker=$dir/made-$VERSION

if [ ! -e "$complete_marker" ]; then
    command -v python3 >/dev/null || fail "python3 is missing; install it, or a CUDA $VERSION toolkit"
    command -v cc >/dev/null || fail "a C compiler is missing; install gcc"
    report "downloading nvcc, headers and libraries of CUDA $VERSION to $dir (about 1.6 GB)"
    python3 -m venv "$dir/packages" || fail "python3 cannot create a virtual environment; install python3-venv"
    "$dir/packages/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${PACKAGES[@]}" \
        || fail "pip could not download the packages"
    packages=$(echo "$dir"/packages/lib/python3*/site-packages/nvidia/cu13)
    [ -x "$packages/bin/nvcc" ] || fail "the packages have no nvcc at $packages/bin"
    ln -sfn "$packages" "$toolkit"
    ln -sfn lib "$packages/lib64"
    for library in "$packages"/lib/*.so.*; do
        name=${library##*/}
        ln -sf "$name" "$packages/lib/${name%%.so.*}.so"
    done
    report "building a stub of libcuda to link against"
    mkdir -p "$packages/lib/stubs"
    {
        grep -ohE '\bcu[A-Z][A-Za-z0-9]*(_v[0-9]+)?(_ptsz|_ptds)?\b' "$packages/include/cuda.h" | sort -u \
            | sed 's/.*/int &(void) { return 999; }/'
    } > "$dir/libcuda_stub.c"
    cc -shared -fPIC -w -Wl,-soname,libcuda.so.1 -o "$packages/lib/stubs/libcuda.so" "$dir/libcuda_stub.c" \
        || fail "cannot build the stub of libcuda"
    touch "$complete_marker"
fi

report "ready: $("$toolkit/bin/nvcc" --version | grep -o 'release [0-9.]*') in $toolkit"
cat <<EXPORTS
export CUDA_HOME=$toolkit CUDA_PATH=$toolkit CUDA_ROOT=$toolkit
export PATH=$toolkit/bin:\$PATH
export LIBRARY_PATH=$toolkit/lib:$toolkit/lib/stubs\${LIBRARY_PATH:+:\$LIBRARY_PATH}
export CUDA_COMPUTE_CAP=\${CUDA_COMPUTE_CAP:-90}
EXPORTS
