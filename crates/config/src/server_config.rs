//! Configuration of load-tested servers.

use serde::{Deserialize, Serialize};

use super::numbers::{above_zero, optional_above_zero, probability_or_zero, seconds};

/// The address of a server or the command that starts it, and its protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Its address; null with `command`: http://127.0.0.1:8000.
    pub url: Option<String>,
    /// The command that starts the server; it is ended with the run.
    pub command: Option<String>,
    pub api: Api,
    /// The name of the model on the server; null for the first it lists.
    pub model: Option<String>,
    /// A directory with `tokenizer.json`, which counts output tokens if the server does not.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// The environment variable with a key; not an error if it is not set.
    pub key_env: Option<String>,
    /// `auto`, `none`, or the URL of its metrics.
    pub metrics: String,
    /// Maximum wait for the first answer.
    #[serde(deserialize_with = "seconds")]
    pub ready_s: f64,
    /// Maximum duration of a request.
    #[serde(deserialize_with = "above_zero")]
    pub timeout_s: f64,
    /// Additional certificates to trust (PEM).
    pub ca_file: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/completions`: the prompt unchanged.
    Completions,
    /// `/v1/chat/completions`: the server applies its chat template.
    Chat,
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
        }
    }
}

/// When requests are sent, and their content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadConfig {
    pub arrivals: ArrivalKind,
    /// Concurrent requests in a closed loop; their maximum in an open one, null for no limit.
    pub concurrency: Option<u32>,
    /// Requests per second of an open loop.
    #[serde(deserialize_with = "optional_above_zero")]
    pub rate: Option<f64>,
    /// The shape of gamma gaps: below 1 burstier than Poisson, above 1 more even.
    #[serde(deserialize_with = "above_zero")]
    pub burstiness: f64,
    /// Seconds in which the rate grows from a tenth to its value.
    #[serde(deserialize_with = "seconds")]
    pub ramp_s: f64,
    /// A file of requests with their times: Mooncake's JSON lines, or `events.ndjson` of a run.
    pub trace: Option<String>,
    /// The speed of a trace relative to its recorded times.
    #[serde(deserialize_with = "above_zero")]
    pub speed: f64,
    /// The share of a synthetic prompt that all requests have in common.
    #[serde(deserialize_with = "probability_or_zero")]
    pub shared_prefix: f64,
    /// Synthetic prompts differ from those of all earlier runs, so that no prefix cache contains them.
    pub nonce: bool,
    /// Turns of a conversation; each is a request with all previous turns.
    pub turns: u32,
    /// Pause between two turns.
    #[serde(deserialize_with = "seconds")]
    pub think_s: f64,
    /// The run fails if a larger share of its requests fails.
    #[serde(deserialize_with = "probability_or_zero")]
    pub max_failures: f64,
    /// The run fails if the server refuses connections for this long.
    #[serde(deserialize_with = "seconds")]
    pub gives_up_s: f64,
    /// Width and height of a synthetic image in each request; null for none.
    pub image_pixels: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalKind {
    /// The next request when one has ended.
    Closed,
    /// At equal gaps.
    Constant,
    /// At random, like independent users.
    Poisson,
    /// At random, with more or less burstiness than Poisson.
    Gamma,
    /// At recorded times.
    Trace,
}

/// SLOs. A request that keeps all that are set is good.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SloConfig {
    pub ttft_p99_ms: Option<f64>,
    pub tpot_p99_ms: Option<f64>,
    pub e2e_p99_ms: Option<f64>,
}
