//! A remote run over ssh: started on the remote host, shown locally. The remote end is this program too: a relay that
//! uses the pipe, and the run itself, which continues without it.

mod connection;
mod files;
mod host;
mod install;
mod lag;
mod mirror;
mod protocol;
mod relay;
mod remote_run;
mod served_dir;
mod trouble;
mod wire;
mod worker;

pub use connection::{Connection, Incoming, Patience};
pub use host::{Host, HostError};
pub use install::{Machine, install, remote_machine};
pub use mirror::Copies;
pub use protocol::{Ended, Frame, Listed, Order, RemoteRequest, Request};
pub use relay::serve;
pub use remote_run::{RemoteMessage, RemoteRun, Start};
pub use served_dir::ServedDir;
pub use trouble::SshError;
pub use worker::{Refusal, work};
