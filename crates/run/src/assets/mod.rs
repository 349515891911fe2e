//! Models, datasets and reference sources on disk: links, downloads, archives, pins and variants.

mod archive;
pub mod bootstrap;
pub mod dataset;
mod digest;
mod error;
pub mod fetch;
mod git;
pub mod hub;
mod manifest;
mod paths;
mod progress;
pub mod sampling;
pub mod third_party;

pub use archive::Limits;
pub use digest::sha256_hex;
pub use error::AssetError;
pub use third_party::pinned_names;
