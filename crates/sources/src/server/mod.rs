//! Inference servers: load-tests them by the OpenAI protocol, reads their metrics, and reports both as events.

mod arrival;
mod body;
mod client;
mod dcgm;
mod endpoint;
mod exposition;
mod fetch;
mod http;
mod known;
mod load;
mod login;
mod metrics;
mod openai;
mod picture;
mod plan;
mod ready;
mod scrape;
mod sse;
mod timed;
mod tls;
mod trace;
mod watch;
mod words;

/// The parsers of servers' bytes, for tests.
pub mod parts {
    pub use super::{
        body::Body, dcgm::gpus as gpus_of_page, exposition::Exposition, openai::Data, sse::Events,
    };
}

pub use self::{
    arrival::Gaps,
    dcgm::{FIELDS as DCGM_FIELDS, REASONS as DCGM_REASONS, watch_gpus},
    endpoint::{Endpoint, EndpointError},
    fetch::{FetchError, Fetched, fetch},
    http::HttpError,
    known::{KnownServer, Timing},
    load::{LoadError, run},
    login::Login,
    picture::data_url,
    plan::{Arrivals, LoadPlan, MetricsAt, Prompts},
    tls::{Tls, Untrusted},
    trace::{TraceEntry, TraceError, read as read_trace},
    watch::watch,
};
