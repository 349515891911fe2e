//! External programs and libraries: finds Nsight Systems, Nsight Compute and CUDA's libraries, checks them, and runs programs
//! with a time limit.

pub mod libraries;
pub mod nsight;
pub mod process;
mod system;
pub mod under;
pub mod version;

pub use system::System;
