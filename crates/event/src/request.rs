//! Requests and their tokens.

use serde::{Deserialize, Serialize};

use super::Served;

/// A request is one batch of sequences of equal length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestStarted {
    pub request: u32,
    pub warmup: bool,
    pub batch: u32,
    pub prompt_tokens: u32,
    /// 0 if it is not known.
    pub output_tokens: u32,
    /// Sent during cool-down, which keeps a server under load until the measured requests have ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cooldown: bool,
    /// Its beginning was not seen, so it has no TTFT.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub joined: bool,
    /// The images of all sequences.
    #[serde(default, skip_serializing_if = "is_none")]
    pub images: u32,
}

fn is_none(images: &u32) -> bool {
    *images == 0
}

/// The images of a request are embeddings: its vision phase has ended, its prefill begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImagesEncoded {
    pub request: u32,
    /// The images of all sequences.
    pub images: u32,
    /// Positions of the prompts that the images fill.
    pub tokens: u32,
    /// Width and height of each image of a sequence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<(u32, u32)>,
    /// Patches that the encoder computed, if they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patches: Option<u64>,
    /// Duration by the device's own clock, in nanoseconds, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_ns: Option<u64>,
}

/// One step's token ids have reached the host. `id` is that of the first sequence; the other `batch - 1` ids arrived with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    #[serde(rename = "r")]
    pub request: u32,
    #[serde(rename = "i")]
    pub index: u32,
    pub id: u32,
    /// Duration of the step by the device's own clock, in nanoseconds, if it has one.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub device_ns: Option<u64>,
    /// The draft tokens of the step, if there were any; this token is the last one of the step.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
}

/// Draft tokens of one step, and those that the model accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speculation {
    #[serde(rename = "p")]
    pub proposed: u32,
    #[serde(rename = "a")]
    pub accepted: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestFinished {
    pub request: u32,
    /// False if it was cancelled or failed.
    pub complete: bool,
    /// Details of a request to a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Box<Served>>,
}

impl RequestStarted {
    /// It counts in all statistics.
    pub fn is_measured(&self) -> bool {
        !self.warmup && !self.cooldown
    }
}

/// One sequence of a measured request, as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Counted without warm-up.
    pub request: u32,
    pub sequence: u32,
    pub prompt: String,
    pub text: String,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub ending: Ending,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The model produced a stop token.
    Stop,
    /// It reached the maximum length.
    Length,
}
