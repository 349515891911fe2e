#![doc = include_str!("../README.md")]

mod elf;
mod frame;
mod layout;
mod lines;
mod maps;
mod memory;
mod permission;
mod python;
mod refusal;
mod sampler;
mod source;
mod state;
mod system_call;
mod task;
mod text;
mod wait;

pub use frame::{Frame, fold_to_user, shorten};
pub use layout::FrameLayout;
pub use refusal::{Cause, Refusal};
pub use sampler::{Sampler, ThreadSample};
pub use state::State;
pub use system_call::SystemCall;
