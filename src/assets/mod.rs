//! Models, datasets and reference sources on disk: links, downloads, archives, pins and variants.

mod archive;
pub(crate) mod bootstrap;
pub(crate) mod dataset;
mod digest;
mod error;
pub(crate) mod fetch;
mod git;
pub(crate) mod hub;
mod manifest;
mod paths;
mod progress;
pub mod sampling;
pub(crate) mod third_party;

pub(crate) use archive::Limits;
pub use digest::sha256_hex;
pub use error::AssetError;
pub use third_party::pinned_names;
