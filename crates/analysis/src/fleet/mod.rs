//! Many GPUs, compared with their peers: which are slow, since when, and why.

mod gpu;
mod history;
mod peers;
mod show;
mod since;
mod verdict;

pub use gpu::{Counted, Gpu, GpuErrors, Key, SILENT_S, Since, Snapshot};
pub use history::{History, from_recording};
pub use peers::{Basis, MIN_PEERS, mad, median};
pub use show::{contains, faults, limit_now, since as since_text, summary, table};
pub use since::{Matrix, since};
pub use verdict::{Cause, Fault, Fleet, GpuVerdict, Loss, Measure, Order, State, Totals, limits};
