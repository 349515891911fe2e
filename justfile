# Recipes of this project; `just` lists them.

default:
    @just --list

# Profile the default model
run *OVERRIDES:
    cargo run --release -- {{OVERRIDES}}

# Run all tests
test:
    cargo test

# Run all tests 20 times, ten of them with a load on every core, and print the failures by test
stress-tests *OPTIONS:
    tests/stress.py {{OPTIONS}}

# Formatting and lints
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Print the figures of docs/performance.md
bench:
    cargo bench --bench compose
    cargo bench --bench decode
    cargo bench --bench kernels
    cargo bench --bench observer
    cargo bench --bench operators
    cargo bench --bench state

# Update the generated tables of the documents, the manual page and the screenshots
docs:
    UPDATE_DOCS=1 cargo test --test suite docs::
    cargo run --example pictures

# Record the demo again (needs tmux)
demo-recording: build
    assets/demo/make.sh target/release/llmprof-tui

build:
    cargo build --release

# Make the archive and the Debian package in target/dist, for glibc 2.28 and later
dist:
    dist/make.sh

# Compile everything for aarch64, without running it
check-arm:
    dist/check-arm.sh

# Licences, versions and sources of the dependencies; advisories if cargo-deny is installed
deny:
    python3 .ci/dependencies.py
    if command -v cargo-deny >/dev/null; then cargo deny check; else echo "advisories not checked: cargo-deny is not installed"; fi

# Compile changed CUDA kernels into target/kernels, which builds then use. Without nvcc on the PATH a toolkit is created under target/. Needs no GPU
kernels *OPTIONS:
    #!/usr/bin/env bash
    set -euo pipefail
    command -v nvcc >/dev/null || eval "$(third_party/cuda/bootstrap.sh)"
    third_party/cuda/kernels.py {{OPTIONS}}

# Compile the CUDA kernels into assets/kernels, to be committed with a release
release-kernels: (kernels "--release")

# Build with candle's own CUDA kernels, for runtime=candle_stock on a GPU
candle-cuda *ARGS:
    #!/usr/bin/env bash
    set -euo pipefail
    command -v nvcc >/dev/null || eval "$(third_party/cuda/bootstrap.sh)"
    cargo build --release --features candle-cuda {{ARGS}}

# Compare every kernel with candle on the CPU and test live kernels; needs a GPU
gpu-test:
    cargo test --release -p llmprof-engine -p llmprof-run --lib cuda -- --ignored --test-threads 1

# Random kills, signals, stalls and full disks over simulated runs
chaos SECONDS="600":
    LLMPROF_CHAOS_SECONDS={{SECONDS}} cargo test --test suite chaos:: -- --nocapture

# Fuzz one parser (ls fuzz/fuzz_targets)
fuzz TARGET SECONDS="120":
    fuzz/build.sh {{TARGET}}
    fuzz/run.sh {{TARGET}} {{SECONDS}}
