//! Where events come from besides the engine: other programs, servers, PyTorch, the GPUs and the host, a simulation,
//! and the GPUs of a fleet.

pub mod attach;
pub mod fleet;
pub mod pytorch;
pub mod server;
pub mod sim;
pub mod telemetry;
