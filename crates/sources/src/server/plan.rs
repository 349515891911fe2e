//! What a load test sends, when, and to which server.

use std::{sync::Arc, time::Duration};

use super::{
    arrival::Gaps,
    endpoint::{Endpoint, EndpointError},
    trace::TraceEntry,
};
use llmprof_base::secret::Secret;
use llmprof_config::Api;
use llmprof_event::{OfferedLoad, ServerKind};
use llmprof_workload::text::Tokenizer;

/// When requests are sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// `concurrency` requests at a time; the next when one has ended.
    Closed { concurrency: u32 },
    /// At a rate, whatever the server does; at most `concurrency` at a time if that is set.
    Open { gaps: Gaps, rate: f64, ramp_s: f64, concurrency: Option<u32> },
    /// At recorded times, faster by a factor.
    Trace { entries: Arc<[TraceEntry]>, speed: f64 },
}

impl Arrivals {
    /// `None` for a recorded trace.
    pub fn offered(&self) -> Option<OfferedLoad> {
        Some(match self {
            Arrivals::Closed { concurrency } => {
                OfferedLoad { rate: None, burstiness: Some(1.0), concurrency: Some(*concurrency) }
            }
            Arrivals::Open { gaps, rate, concurrency, .. } => {
                OfferedLoad { rate: Some(*rate), burstiness: gaps.burstiness(), concurrency: *concurrency }
            }
            Arrivals::Trace { .. } => return None,
        })
    }
}

/// The prompts of the requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompts {
    /// Words. A part of every prompt is shared by all, the rest is new; without a nonce, prompts with equal indexes are
    /// equal in all runs with one seed.
    Synthetic {
        tokens: u32,
        shared: f64,
        nonce: bool,
    },
    Given(Arc<[String]>),
}

#[derive(Debug, Clone)]
pub struct LoadPlan {
    pub endpoint: Endpoint,
    pub kind: ServerKind,
    pub api: Api,
    pub model: Option<String>,
    pub key: Option<Secret>,
    /// Additional certificates to trust (PEM).
    pub authorities: Vec<u8>,
    pub timeout: Duration,
    pub ready: Duration,
    pub metrics: Option<MetricsAt>,
    pub arrivals: Arrivals,
    pub warmup: u32,
    pub requests: u32,
    pub prompts: Prompts,
    pub images: Arc<[String]>,
    pub max_tokens: u32,
    pub ignore_eos: bool,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub continuous_usage: bool,
    pub turns: u32,
    pub think: Duration,
    /// The maximum share of failed requests.
    pub max_failures: f64,
    /// The time after which a server that refuses connections is given up.
    pub gives_up: Duration,
    pub seed: u64,
    pub predictions: bool,
    /// Counts output tokens if the server does not.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

/// A page of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsAt {
    pub endpoint: Endpoint,
    /// `None` for the usual path of this kind of server.
    pub path: Option<String>,
}

impl MetricsAt {
    /// The metrics at a URL: at its path if it has one, else at the usual path of the server.
    pub fn read(url: &str) -> Result<MetricsAt, EndpointError> {
        let at = Endpoint::read(url)?;
        let path = Some(at.base.clone()).filter(|path| !path.is_empty());
        Ok(MetricsAt { endpoint: Endpoint { base: String::new(), ..at }, path })
    }
}
