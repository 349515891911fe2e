//! Programs of others: where they are installed, whether they would do, and how they are run.

pub mod nsight;
pub mod process;
mod system;
pub mod under;
pub mod version;

pub use system::System;
