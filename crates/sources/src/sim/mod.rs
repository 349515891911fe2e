//! A simulated engine, its kernels and its telemetry, driven by one script and one seed.

pub mod card;
mod engine;
mod kernels;
pub mod scenario;
pub mod telemetry;
mod timing;

pub use engine::{SimEngine, Tick};
pub use kernels::{SimKernels, SimSteps, sim_kernels};
pub use timing::SimTiming;
