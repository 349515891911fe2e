#![doc = include_str!("../README.md")]

// The library's, for their tests.
#[cfg(test)]
#[allow(unsafe_code, dead_code)]
mod c;
#[cfg(test)]
#[allow(unsafe_code, dead_code)]
mod descriptor;

pub mod functions;
pub mod layout;
pub mod wire;

/// The library, as a file for the dynamic loader.
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libllmprof_inject.so"));
