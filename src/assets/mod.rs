//! Models, datasets and reference sources on disk: locations, downloads, links and samples.

mod archive;
mod bootstrap;
pub mod commands;
mod dataset;
mod digest;
mod error;
mod fetch;
mod git;
mod hub;
mod manifest;
mod paths;
mod progress;
pub mod sampling;
mod third_party;

pub use digest::sha256_hex;
pub use error::AssetError;
