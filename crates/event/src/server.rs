//! Load-tested or monitored servers: their identity, their requests, and their own metrics.

use std::fmt;

use llmprof_base::units::three_digits;
use serde::{Deserialize, Serialize};

use super::text_enum::text_enum;

text_enum! {
    /// The program behind a URL.
    ServerKind {
        Vllm = "vllm",
        Sglang = "sglang",
        TensorRtLlm = "tensorrtllm",
        Triton = "triton",
        LlamaCpp = "llamacpp",
        Tgi = "tgi",
        /// Any server with the OpenAI protocol.
        OpenAi = "openai",
    }
}

/// A server that answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerFound {
    /// Its index among the monitored servers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub server: u32,
    pub url: String,
    pub kind: ServerKind,
    /// The name of its model; `None` if it was not requested.
    pub model: Option<String>,
    /// The URL of its metrics; `None` if it has none.
    pub metrics: Option<String>,
    /// `None` if it is only monitored, or if requests are sent as recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<OfferedLoad>,
}

/// How requests are sent to a server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OfferedLoad {
    /// Requests per second; `None` in a closed loop.
    pub rate: Option<f64>,
    /// The shape of gamma gaps, 1 for a Poisson process; `None` for equal gaps.
    pub burstiness: Option<f64>,
    /// Maximum concurrent requests; `None` for no limit.
    pub concurrency: Option<u32>,
}

/// Latencies that a service must keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_p99_ms: Option<f64>,
}

/// A step of a request, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpStep {
    Resolve,
    Connect,
    Tls,
    Send,
    Head,
    Body,
}

impl fmt::Display for HttpStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HttpStep::Resolve => "resolving the name",
            HttpStep::Connect => "connecting",
            HttpStep::Tls => "the TLS handshake",
            HttpStep::Send => "sending the request",
            HttpStep::Head => "waiting for the answer",
            HttpStep::Body => "reading the answer",
        })
    }
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestFailure {
    /// An HTTP status other than 200.
    Status(u16),
    /// The server redirects; redirects are not followed.
    Redirect(u16),
    Timeout(HttpStep),
    /// The connection could not be made, or broke.
    Broken(HttpStep),
    /// The server closed the connection before the answer was complete.
    Closed(HttpStep),
    NotHttp,
    /// The stream contains an error of the server.
    ServerError,
    /// The stream contains something that is not JSON.
    Garbage,
    /// The answer has no text.
    Empty,
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestFailure::Status(429) => f.write_str("HTTP 429: too many requests"),
            RequestFailure::Status(code) => write!(f, "HTTP {code}"),
            RequestFailure::Redirect(code) => write!(f, "HTTP {code}: a redirect, which is not followed"),
            RequestFailure::Timeout(step) => write!(f, "timeout while {step}"),
            RequestFailure::Broken(step) => write!(f, "the connection failed while {step}"),
            RequestFailure::Closed(step) => write!(f, "the server closed the connection while {step}"),
            RequestFailure::NotHttp => f.write_str("the answer is not HTTP"),
            RequestFailure::ServerError => f.write_str("an error in the stream"),
            RequestFailure::Garbage => f.write_str("a line of the stream that is not JSON"),
            RequestFailure::Empty => f.write_str("an answer without text"),
        }
    }
}

/// Times of one request by the server's own clock, if it reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerTimes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_tokens: Option<u32>,
}

impl ServerTimes {
    pub fn is_empty(&self) -> bool {
        *self == ServerTimes::default()
    }
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The durations of a new connection's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connecting {
    pub resolve_ns: u64,
    pub tcp_ns: u64,
    /// 0 without TLS.
    pub tls_ns: u64,
}

impl Connecting {
    pub fn total_ns(self) -> u64 {
        self.resolve_ns.saturating_add(self.tcp_ns).saturating_add(self.tls_ns)
    }
}

/// A request to a server after its end, as the client and the server know it. It starts when the client begins with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// From the planned moment to the start: the client's delay.
    pub late_ns: u64,
    /// From the start until the connection is ready; `None` if an open one was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connecting: Option<Connecting>,
    /// From then until the request was written.
    pub send_ns: u64,
    /// From then to the first byte of the answer; `None` if there was none.
    pub head_ns: Option<u64>,
    /// Chunks with text.
    pub chunks: u32,
    /// Chunks that arrived together with an earlier one, and so have no gap before them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub together: u32,
    /// As counted by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// The output tokens were counted by the model's tokenizer, because the server does not count them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tokenized: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "ServerTimes::is_empty")]
    pub server: ServerTimes,
    /// The open connection was closed by the server, and the request was sent again on a new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconnected: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RequestFailure>,
}

/// The delay of the client itself, once per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClientSample {
    pub streams: u32,
    /// Delay of a timer in the client's loop, by which every chunk may be stamped too late.
    pub lag_p50_us: u32,
    pub lag_p99_us: u32,
    pub lag_max_us: u32,
}

/// Why a server's metrics cannot be read: connection refused, HTTP 503.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSilent {
    #[serde(default, skip_serializing_if = "is_zero")]
    pub server: u32,
    /// The URL of a server that has never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// It answers, without metrics that this program knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answers: bool,
    pub why: String,
}

/// An alert became true, or is no longer true.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlertChanged {
    /// The condition, e.g. "ttft_ms>500".
    pub alert: String,
    /// The server or the GPU.
    pub of: String,
    pub value: f64,
    pub crossed: bool,
}

impl fmt::Display for AlertChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AlertChanged { alert, of, value, crossed } = self;
        let now = if *crossed { "alert" } else { "no longer" };
        write!(f, "{now} {alert}: {} ({of})", three_digits(*value))
    }
}

/// The metrics that a server reports about itself, about once per second. Absent is not 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerSample {
    #[serde(skip_serializing_if = "is_zero")]
    pub server: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<f64>,
    /// Share of the KV cache in use, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_used: Option<f64>,
    /// Since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<f64>,
    /// Share of prompt tokens found in the prefix cache, since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix_hits: Option<f64>,
    /// Per second since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tok_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tok_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_s: Option<f64>,
    /// Sequences in a step, and tokens in a step, on average since the last sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_tokens: Option<f64>,
    /// Means over the requests that ended since the last sample. Queue and prefill are known for `timed_requests` of
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_requests: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    /// Acceptance rate of draft tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<f64>,
    /// The duration of the scrape.
    pub scrape_ms: f64,
}
