//! Other programs: starts them with the library of `crates/inject`, or joins them, and turns its records into events.
//!
//! The library connects to a socket and writes records into shared memory. Everything in that memory is untrusted: it
//! is copied, then checked.

mod connection;
mod descendants;
mod door;
mod follow;
mod followed;
mod launches;
mod library;
mod load;
mod private_dir;
mod process_info;
mod program;
mod ranks;
mod requests;
mod ring;
mod socket;
mod stacks;
mod transcript;

pub use follow::{Follower, ProgramControl, Role, Target};
pub use followed::device_work;
pub use library::library_file;
pub use load::{Joined, NotJoined, join};
pub use private_dir::print_environment;
pub use process_info::{ProcessInfo, find_processes};
pub use program::{OutputTo, Pipes};
pub use transcript::{Message, RunClock, Transcript};

/// Maximum number of processes that are followed at a time.
const MAX_PROCESSES: usize = 64;
