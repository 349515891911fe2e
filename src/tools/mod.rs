//! External programs: finds Nsight Systems and Nsight Compute, checks them, and runs programs with a time limit.

pub mod nsight;
pub mod process;
mod system;
pub mod under;
pub mod version;

pub use system::System;
