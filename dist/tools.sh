#!/usr/bin/env bash
# Installs zig and cargo-zigbuild from PyPI. They link against the symbols of an old glibc, and compile C for another processor, without
# a container or a cross compiler of the system. Needs Python and no root access.
#
#   eval "$(dist/tools.sh)"    puts cargo-zigbuild on the PATH of this shell
#
# Prints progress to stderr. Running it again changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(cargo-zigbuild==0.24.0 ziglang==0.17.0)

fail() { echo "dist/tools: $*" >&2; exit 1; }

dir=${CARGO_TARGET_DIR:-target}/dist-tools
marker=$dir/$(IFS=,; echo "${PACKAGES[*]}")
if [ ! -e "$marker" ]; then
    echo "dist/tools: installing ${PACKAGES[*]} to $dir (about 110 MB)" >&2
    python3 -m venv "$dir" || fail "python3 cannot create a virtual environment; install python3-venv"
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "${PACKAGES[@]}" >&2 \
        || fail "pip could not install ${PACKAGES[*]}"
    touch "$marker"
fi
echo "export PATH=$(cd "$dir/bin" && pwd):\$PATH"
