//! Why a server is slow, in sentences with numbers and a remedy.

use std::fmt;

use crate::{
    interval::ConfidenceInterval,
    late::{FULL_CACHE, LateCause},
};
use llmprof_base::units::{grouped, millis, percent, three_digits};
use llmprof_event::{RequestFailure, ServerKind};

/// The minimum share of TTFT for reporting a part of it.
const LARGE_PART: f64 = 0.3;
/// The minimum share of the time for reporting late chunks.
const LATE_SHARE: f64 = 0.02;
/// If a larger share of chunks arrives together, the answer is not streamed.
pub const NOT_STREAMED: f64 = 0.8;
/// With a higher mean of queued requests, the server is saturated.
const QUEUED: f64 = 0.5;

/// The known facts about a load-tested server. Times are means in milliseconds; absent is not 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerFacts {
    pub kind: Option<ServerKind>,
    pub requests: u64,
    pub failed: u64,
    pub worst_failure: Option<(RequestFailure, u64)>,
    pub ttft_ms: Option<f64>,
    pub connect_ms: Option<f64>,
    pub queue_ms: Option<f64>,
    pub prefill_ms: Option<f64>,
    pub prompt_tokens: Option<f64>,
    pub itl_ms: Option<f64>,
    pub client_lag_ms: Option<f64>,
    pub running: Option<f64>,
    pub queued: Option<f64>,
    pub kv_used: Option<f64>,
    pub preemptions_per_min: Option<f64>,
    pub prefix_hits: Option<f64>,
    pub tokens_per_chunk: Option<f64>,
    /// The share of chunks that arrived together with an earlier one.
    pub together: Option<f64>,
    /// Whether the server does not report token counts.
    pub chunks_for_tokens: bool,
    /// Whether the model's tokenizer has counted the tokens instead.
    pub tokenized: bool,
    /// The share of the time between chunks lost to late ones, and the causes with their shares of it, the largest
    /// first.
    pub late: Option<(f64, Vec<(LateCause, f64)>)>,
    pub good: Option<Goodput>,
}

/// Requests that met the SLOs: their rate, and their share of all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goodput {
    pub per_s: f64,
    pub share: ConfidenceInterval,
}

/// A finding; the first is the most important.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerRemark {
    /// The client itself is late, so latencies say nothing about the server.
    ClientLate {
        lag_ms: f64,
    },
    Failures {
        failed: u64,
        of: u64,
        most: Option<(RequestFailure, u64)>,
    },
    /// Preempted requests lose their cache and are computed again.
    Preemptions {
        kv_used: Option<f64>,
        per_min: f64,
        remedy: &'static str,
    },
    FullCache {
        kv_used: f64,
        remedy: &'static str,
    },
    Queue {
        ms: Option<f64>,
        share: Option<f64>,
        queued: Option<f64>,
        running: Option<f64>,
    },
    Prefill {
        ms: f64,
        share: f64,
        prompt_tokens: Option<f64>,
        prefix_hits: Option<f64>,
    },
    Connecting {
        ms: f64,
        share: f64,
    },
    LateChunks {
        share: f64,
        causes: Vec<(LateCause, f64)>,
        remedy: Option<&'static str>,
    },
    Goodput(Goodput),
    /// Tokens were counted by the model's tokenizer.
    Tokenized,
    /// Chunks count as tokens.
    NoTokenCounts,
    /// A buffer delays the stream.
    NotStreamed {
        together: f64,
    },
    /// The gaps between chunks are not ITL.
    SeveralTokens {
        per_chunk: f64,
    },
}

impl ServerFacts {
    pub fn remarks(&self) -> Vec<ServerRemark> {
        let share = |ms: Option<f64>| Some(ms? / self.ttft_ms.filter(|ttft| *ttft > 0.0)?);
        let large = |ms: Option<f64>| share(ms).filter(|share| *share >= LARGE_PART);
        let mut remarks = Vec::new();
        if self.failed > 0 {
            remarks.push(ServerRemark::Failures {
                failed: self.failed,
                of: self.failed + self.requests,
                most: self.worst_failure,
            });
        }
        if let Some(together) = self.together.filter(|share| *share >= NOT_STREAMED) {
            remarks.push(ServerRemark::NotStreamed { together });
        }
        if self.chunks_for_tokens {
            remarks.push(ServerRemark::NoTokenCounts);
        }
        if self.tokenized {
            remarks.push(ServerRemark::Tokenized);
        }
        if let Some(lag_ms) = self.late_client_ms() {
            remarks.push(ServerRemark::ClientLate { lag_ms });
            return remarks;
        }
        let remedy = self.cache_remedy();
        match (self.preemptions_per_min.filter(|n| *n > 0.0), self.kv_used) {
            (Some(per_min), kv_used) => remarks.push(ServerRemark::Preemptions { kv_used, per_min, remedy }),
            (None, Some(kv_used)) if kv_used >= FULL_CACHE => {
                remarks.push(ServerRemark::FullCache { kv_used, remedy });
            }
            _ => {}
        }
        let queued = self.queued.filter(|queued| *queued >= QUEUED);
        if large(self.queue_ms).is_some() || (self.queue_ms.is_none() && queued.is_some()) {
            let (ms, share) = (self.queue_ms, share(self.queue_ms));
            remarks.push(ServerRemark::Queue { ms, share, queued, running: self.running });
        }
        if let (Some(ms), Some(share)) = (self.prefill_ms, large(self.prefill_ms)) {
            let (prompt_tokens, prefix_hits) = (self.prompt_tokens, self.prefix_hits);
            remarks.push(ServerRemark::Prefill { ms, share, prompt_tokens, prefix_hits });
        }
        if let (Some(ms), Some(share)) = (self.connect_ms, large(self.connect_ms)) {
            remarks.push(ServerRemark::Connecting { ms, share });
        }
        if let Some((share, causes)) = self.late.clone().filter(|(share, _)| *share >= LATE_SHARE) {
            let remedy = causes.first().and_then(|(cause, _)| self.late_remedy(*cause));
            remarks.push(ServerRemark::LateChunks { share, causes, remedy });
        }
        remarks.extend(self.good.map(ServerRemark::Goodput));
        if let Some(per_chunk) = self.tokens_per_chunk.filter(|tokens| *tokens > 1.02) {
            remarks.push(ServerRemark::SeveralTokens { per_chunk });
        }
        remarks
    }

    /// The client's delay, if it is large compared with the measured latencies.
    pub fn late_client_ms(&self) -> Option<f64> {
        self.client_lag_ms.filter(|lag| self.is_late(*lag))
    }

    /// Whether the client's delay is large compared with the measured latencies. Its timer has a resolution of 1 ms.
    pub fn is_late(&self, lag_ms: f64) -> bool {
        lag_ms > 5.0 && self.itl_ms.is_none_or(|itl| lag_ms > itl / 4.0)
    }

    fn late_remedy(&self, cause: LateCause) -> Option<&'static str> {
        match (cause, &self.kind) {
            (LateCause::Prefill, Some(ServerKind::Vllm)) => {
                Some("A smaller --max-num-batched-tokens makes each stop shorter")
            }
            (LateCause::Prefill, Some(ServerKind::Sglang)) => {
                Some("A smaller --chunked-prefill-size makes each stop shorter")
            }
            (LateCause::Prefill, Some(ServerKind::LlamaCpp)) => {
                Some("A smaller --ubatch-size makes each stop shorter")
            }
            (LateCause::Prefill, _) => Some("Prefill in smaller parts makes each stop shorter"),
            (LateCause::Throttling, _) => Some("The GPU pane has the reasons"),
            (LateCause::BatchGrowth, _) => Some("Allow fewer requests at a time"),
            (LateCause::ClientLag, _) => Some("Run the client on another machine"),
            (LateCause::Preemption | LateCause::KvPressure | LateCause::Unknown, _) => None,
        }
    }

    fn cache_remedy(&self) -> &'static str {
        match self.kind {
            Some(ServerKind::Vllm) => "raise --gpu-memory-utilization or lower --max-num-seqs",
            Some(ServerKind::Sglang) => "raise --mem-fraction-static or lower --max-running-requests",
            Some(ServerKind::TensorRtLlm) => "raise free_gpu_memory_fraction or lower max_batch_size",
            Some(ServerKind::LlamaCpp) => "raise --ctx-size or lower --parallel",
            _ => "give the cache more memory, or allow fewer requests at a time",
        }
    }
}

impl fmt::Display for ServerRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = |share: f64| percent(100.0 * share);
        match self {
            ServerRemark::ClientLate { lag_ms } => write!(
                f,
                "The client is {} late (p99), so its latencies are unreliable: run it on another machine than the \
                 server, or lower the load.",
                millis(*lag_ms)
            ),
            ServerRemark::Failures { failed, of, most } => {
                write!(f, "{} of {} requests failed", grouped(*failed as i64), grouped(*of as i64))?;
                match most {
                    Some((failure, n)) => write!(f, ", {} by: {failure}.", grouped(*n as i64)),
                    None => f.write_str("."),
                }
            }
            ServerRemark::NoTokenCounts => f.write_str(
                "The server reports no token counts (usage): each chunk counts as one token, so TPOT and tok/s are those of chunks. runtime.server.tokenizer names a directory whose tokenizer counts them.",
            ),
            ServerRemark::Tokenized => f.write_str(
                "The server reports no token counts (usage): output tokens are counted by the model's tokenizer.",
            ),
            ServerRemark::NotStreamed { together } => write!(
                f,
                "The answers are not streamed: {} of the chunks arrive together, so TTFT is nearly the time of the whole answer and the gaps between tokens are not known. A proxy may hold them back.",
                pct(*together)
            ),
            ServerRemark::Preemptions { kv_used, per_min, remedy } => {
                if let Some(kv_used) = kv_used {
                    write!(f, "KV cache {}, ", pct(*kv_used))?;
                }
                write!(f, "{} preemptions per minute: {remedy}.", three_digits(*per_min))
            }
            ServerRemark::FullCache { kv_used, remedy } => {
                write!(f, "The KV cache is {} full: {remedy}.", pct(*kv_used))
            }
            ServerRemark::Queue { ms, share, queued, running } => {
                match (ms, share) {
                    (Some(ms), Some(share)) => {
                        write!(f, "Requests wait {} in the queue, {} of TTFT", millis(*ms), pct(*share))?;
                    }
                    _ => write!(f, "Requests wait in the queue")?,
                }
                let counts = [(queued, "queued"), (running, "running")];
                let counts = counts
                    .into_iter()
                    .filter_map(|(n, word)| Some(format!("{} {word}", three_digits((*n)?))));
                let counts: Vec<String> = counts.collect();
                if !counts.is_empty() {
                    write!(f, " ({})", counts.join(", "))?;
                }
                f.write_str(
                    ": the server is saturated. Lower the rate, allow larger batches, or add a replica.",
                )
            }
            ServerRemark::Prefill { ms, share, prompt_tokens, prefix_hits } => {
                write!(f, "Prefill takes {}, {} of TTFT", millis(*ms), pct(*share))?;
                if let Some(tokens) = prompt_tokens {
                    write!(f, ", for prompts of {} tokens", grouped(*tokens as i64))?;
                }
                match prefix_hits {
                    Some(hits) if *hits > 0.005 => {
                        write!(f, "; the prefix cache has {} of them.", pct(*hits))
                    }
                    _ => f.write_str("."),
                }
            }
            ServerRemark::Connecting { ms, share } => write!(
                f,
                "Connecting takes {}, {} of TTFT: the server closes connections, or is far away.",
                millis(*ms),
                pct(*share)
            ),
            ServerRemark::LateChunks { share, causes, remedy } => {
                let causes: Vec<String> = causes
                    .iter()
                    .filter(|(_, share)| *share >= 0.05)
                    .map(|(cause, share)| format!("{cause} {}", pct(*share)))
                    .collect();
                write!(
                    f,
                    "Late chunks cost {} of the time between chunks: {}.",
                    pct(*share),
                    causes.join(", ")
                )?;
                remedy.map_or(Ok(()), |remedy| write!(f, " {remedy}."))
            }
            ServerRemark::Goodput(Goodput { per_s, share }) => write!(
                f,
                "{} of the requests meet the SLOs (95 % CI: {} to {}): {} good requests/s.",
                pct(share.estimate),
                pct(share.low),
                pct(share.high),
                three_digits(*per_s)
            ),
            ServerRemark::SeveralTokens { per_chunk } => write!(
                f,
                "A chunk has {} tokens on average: the gaps between chunks are not ITL.",
                three_digits(*per_chunk)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(facts: ServerFacts) -> Vec<String> {
        facts.remarks().iter().map(ToString::to_string).collect()
    }

    fn base() -> ServerFacts {
        ServerFacts { requests: 100, ttft_ms: Some(200.0), itl_ms: Some(10.0), ..ServerFacts::default() }
    }

    #[test]
    fn each_cause_has_a_text() {
        let vllm = Some(ServerKind::Vllm);
        for (facts, words) in [
            (
                ServerFacts {
                    kind: vllm.clone(),
                    kv_used: Some(0.98),
                    preemptions_per_min: Some(14.0),
                    ..base()
                },
                "KV cache 98 %, 14.0 preemptions per minute: raise --gpu-memory-utilization or lower --max-num-seqs.",
            ),
            (
                ServerFacts { kv_used: Some(0.97), ..base() },
                "The KV cache is 97 % full: give the cache more memory, or allow fewer requests at a time.",
            ),
            (
                ServerFacts { queue_ms: Some(120.0), queued: Some(4.0), running: Some(8.0), ..base() },
                "Requests wait 120 ms in the queue, 60 % of TTFT (4.00 queued, 8.00 running): the server is saturated. Lower the rate, \
                 allow larger batches, or add a replica.",
            ),
            (
                ServerFacts {
                    prefill_ms: Some(150.0),
                    prompt_tokens: Some(2048.0),
                    prefix_hits: Some(0.5),
                    ..base()
                },
                "Prefill takes 150 ms, 75 % of TTFT, for prompts of 2,048 tokens; the prefix cache has 50 % of them.",
            ),
            (
                ServerFacts { connect_ms: Some(100.0), ..base() },
                "Connecting takes 100 ms, 50 % of TTFT: the server closes connections, or is far away.",
            ),
            (
                ServerFacts { failed: 3, worst_failure: Some((RequestFailure::Status(429), 2)), ..base() },
                "3 of 103 requests failed, 2 by: HTTP 429: too many requests.",
            ),
            (
                ServerFacts { tokens_per_chunk: Some(3.0), ..base() },
                "A chunk has 3.00 tokens on average: the gaps between chunks are not ITL.",
            ),
            (
                ServerFacts {
                    kind: vllm,
                    late: Some((
                        0.12,
                        vec![
                            (LateCause::Prefill, 0.7),
                            (LateCause::Unknown, 0.27),
                            (LateCause::Throttling, 0.03),
                        ],
                    )),
                    ..base()
                },
                "Late chunks cost 12 % of the time between chunks: prefill of another request 70 %, unknown 27 %. A smaller \
                 --max-num-batched-tokens makes each stop shorter.",
            ),
            (
                ServerFacts {
                    good: Some(Goodput {
                        per_s: 4.0,
                        share: ConfidenceInterval { estimate: 0.5, low: 0.4, high: 0.6 },
                    }),
                    ..base()
                },
                "50 % of the requests meet the SLOs (95 % CI: 40 % to 60 %): 4.00 good requests/s.",
            ),
        ] {
            assert_eq!(said(facts), [words]);
        }
        assert_eq!(said(base()), Vec::<String>::new());
    }

    #[test]
    fn latencies_of_a_late_client_are_not_judged() {
        let late = ServerFacts { client_lag_ms: Some(30.0), kv_used: Some(1.0), ..base() };
        assert_eq!(late.remarks(), [ServerRemark::ClientLate { lag_ms: 30.0 }]);
        let refused = ServerFacts { failed: 50, requests: 30, ..late };
        let [first, second] = &said(refused)[..] else { panic!() };
        assert!(first.starts_with("50 of 80 requests failed") && second.starts_with("The client is"));
        let fine = ServerFacts { client_lag_ms: Some(1.2), ..base() };
        assert_eq!(fine.remarks(), []);
    }
}
