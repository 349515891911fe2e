//! Many GPUs: read from Prometheus, and recorded.

mod answer;
mod client;
mod collect;
mod error;
mod json;
mod labels;
mod metrics;
mod recording;
mod watch;

pub use self::{
    answer::{Answer, AnswerError, Series, read as read_answer},
    client::{Client, Source},
    collect::{Collected, Collector},
    error::FleetError,
    json::json,
    labels::{Matcher, NodeLabel, is_label_name},
    metrics::names,
    recording::{Header, Recorded, Recorder, RecordingError, read as read_recording},
    watch::{Ask, Update, Watch},
};
use crate::server::Login;

/// The login with a token, which must be one line.
pub fn login_of_token(text: &str) -> Option<Login> {
    Login::bearer(text)
}
