//! Other programs: starts them with the library of `crates/inject`, or joins them, and turns what it sends into events.
//!
//! The library connects to our socket and writes records into memory that we give it. Everything in that memory was written by
//! somebody else: it is copied, then checked.

mod descendants;
mod follow;
mod guest;
mod library;
mod process_info;
mod program;
mod ranks;
mod requests;
mod ring;
mod socket;
mod transcript;

pub use follow::{Follower, ProgramControl, Role, Target, device_work};
pub use library::library_file;
pub use process_info::{ProcessInfo, find_processes};
pub use program::{OutputTo, Pipes};
pub use socket::print_environment;
pub use transcript::{RunClock, Said, Transcript};
