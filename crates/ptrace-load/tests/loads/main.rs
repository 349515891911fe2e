//! Loads into real processes. Programs in C are compiled with `cc`.

#[cfg(target_arch = "x86_64")]
mod loads;
#[cfg(target_arch = "x86_64")]
mod namespaces;
#[cfg(target_arch = "x86_64")]
mod programs;
#[cfg(target_arch = "x86_64")]
mod refusals;
