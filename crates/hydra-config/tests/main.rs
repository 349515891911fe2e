//! All tests of this crate from outside, as one program.

mod hostile_config;
mod hydra_oracle;
