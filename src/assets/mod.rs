//! Models, datasets and reference sources on disk: where they lie, how they get there, what they are made of.

pub mod archive;
mod bootstrap;
pub mod commands;
mod dataset;
mod digest;
mod error;
mod fetch;
mod git;
mod hub;
mod manifest;
pub mod paths;
mod progress;
pub mod sampling;
mod third_party;

pub use digest::sha256_hex;
pub use error::AssetError;
