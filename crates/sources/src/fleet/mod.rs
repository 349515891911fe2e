//! Many GPUs: read from Prometheus, compared with their peers, recorded: which are slow, since when, and why.

mod answer;
mod client;
mod collect;
mod error;
mod gpu;
mod history;
mod labels;
mod metrics;
mod peers;
mod recording;
mod show;
mod since;
mod verdict;
mod watch;

pub use self::{
    answer::{Answer, AnswerError, Series, read as read_answer},
    client::{Client, Source},
    collect::{Collected, Collector},
    error::FleetError,
    gpu::{Counted, Gpu, GpuErrors, Key, SILENT_S, Since, Snapshot},
    history::{History, from_recording},
    labels::{Matcher, NodeLabel, is_label_name},
    metrics::names,
    peers::{Basis, MIN_PEERS, mad, median},
    recording::{Header, Recorded, Recorder, RecordingError, read as read_recording},
    show::{contains, faults, json, limit_now, since as since_text, summary, table},
    verdict::{Cause, Fault, Fleet, Loss, Measure, Order, Row, State, Totals, limits},
    watch::{Ask, Update, Watch},
};
use crate::server::Login;

/// The login with a token, which must be one line.
pub fn login_of_token(text: &str) -> Option<Login> {
    Login::bearer(text)
}
