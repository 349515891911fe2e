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
mod metrics;
mod openai;
mod picture;
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
    fetch::{FetchError, Fetched, Login, fetch},
    http::HttpError,
    known::{KnownServer, Timing},
    load::{Arrivals, LoadError, LoadPlan, Prompts, run},
    picture::data_url,
    scrape::MetricsAt,
    tls::{Tls, Untrusted},
    trace::{TraceEntry, TraceError, read as read_trace},
    watch::watch,
};
