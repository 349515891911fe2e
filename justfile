# What is done with this project; `just` lists it.

default:
    @just --list

# Profile the default model
run *OVERRIDES:
    cargo run --release -- {{OVERRIDES}}

# Everything that has to hold before a change lands
test:
    cargo test

# Formatting and lints
lint:
    cargo fmt --check
    cargo clippy --all-targets -- -D warnings

# The figures of docs/performance.md
bench:
    cargo bench --bench compose
    cargo bench --bench decode
    cargo bench --bench observer
    cargo bench --bench state

# Write the generated parts of the README and the pictures anew
docs:
    UPDATE_DOCS=1 cargo test --test docs
    cargo run --example pictures

# Record the demo anew (needs tmux)
demo-recording: build
    assets/demo/make.sh target/release/llmprof-tui

build:
    cargo build --release

# Licences and advisories of the dependencies (needs cargo-deny)
deny:
    cargo deny check
