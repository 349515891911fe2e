//! The OpenAI protocol: requests, and the content of a chunk of an answer.

use std::borrow::Cow;

use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use llmprof_config::Api;
use llmprof_event::ServerTimes;

/// The parameters of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask<'a> {
    pub api: Api,
    pub model: &'a str,
    pub messages: &'a [Message],
    pub max_tokens: u32,
    pub ignore_eos: bool,
    /// `None` for greedy decoding.
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub seed: u64,
    /// Requests the usage after each chunk; strict servers refuse it.
    pub continuous_usage: bool,
}

/// A turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub text: String,
    /// Data URLs of images before the text.
    pub images: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
}

impl Message {
    #[cfg(test)]
    pub fn user(text: String) -> Message {
        Message { role: Role::User, text, images: Vec::new() }
    }

    fn json(&self) -> Value {
        let role = match self.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        if self.images.is_empty() {
            return json!({"role": role, "content": self.text});
        }
        let images = self.images.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}}));
        let content: Vec<Value> = images.chain([json!({"type": "text", "text": self.text})]).collect();
        json!({"role": role, "content": content})
    }
}

impl Ask<'_> {
    pub fn body(&self) -> Vec<u8> {
        let mut body = json!({
            "model": self.model,
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": self.max_tokens,
            "temperature": self.temperature.unwrap_or(0.0),
            "seed": self.seed,
        });
        match self.api {
            Api::Completions => {
                let texts: Vec<&str> = self.messages.iter().map(|message| message.text.as_str()).collect();
                body["prompt"] = texts.join("\n\n").into();
            }
            Api::Chat => body["messages"] = self.messages.iter().map(Message::json).collect(),
        }
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        if let Some(top_p) = self.top_p {
            body["top_p"] = top_p.into();
        }
        if self.continuous_usage {
            body["stream_options"]["continuous_usage_stats"] = true.into();
        }
        body.to_string().into_bytes()
    }
}

/// The content of one event of a stream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunk<'a> {
    /// Whether it has text, including reasoning. A chunk with only a role has none.
    pub has_content: bool,
    pub is_finished: bool,
    pub usage: Option<Usage>,
    pub error: Option<String>,
    pub server: Option<ServerTimes>,
    pub text: Cow<'a, str>,
}

/// Tokens as counted by the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: Option<u32>,
}

/// A text that borrows from the event, unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct RawChunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<RawChoice<'a>>,
    #[serde(default)]
    usage: Option<RawUsage>,
    #[serde(default)]
    error: Option<Value>,
    #[serde(default)]
    timings: Option<RawTimings>,
    #[serde(default)]
    metrics: Option<RawMetrics>,
}

#[derive(Deserialize)]
struct RawChoice<'a> {
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    delta: Option<RawDelta<'a>>,
    /// Replaces `delta` in a response that is not a stream.
    #[serde(borrow, default)]
    message: Option<RawDelta<'a>>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct RawDelta<'a> {
    #[serde(borrow, default)]
    content: Option<Text<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Text<'a>>,
    #[serde(borrow, default)]
    reasoning: Option<Text<'a>>,
    #[serde(default)]
    tool_calls: Option<Value>,
}

#[derive(Deserialize)]
struct RawUsage {
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<RawDetails>,
}

#[derive(Deserialize)]
struct RawDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

/// llama.cpp.
#[derive(Deserialize)]
struct RawTimings {
    prompt_ms: Option<f64>,
    predicted_ms: Option<f64>,
    draft_n: Option<u32>,
    draft_n_accepted: Option<u32>,
}

/// vLLM.
#[derive(Deserialize)]
struct RawMetrics {
    queue_time_ms: Option<f64>,
    time_to_first_token_ms: Option<f64>,
    generation_time_ms: Option<f64>,
}

/// The data of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Data<'a> {
    Done,
    Chunk(Chunk<'a>),
    /// Neither JSON nor the end.
    Garbage,
}

impl<'a> Data<'a> {
    pub fn read(data: &'a [u8]) -> Data<'a> {
        if data.trim_ascii() == b"[DONE]" {
            return Data::Done;
        }
        let Ok(raw) = serde_json::from_slice::<RawChunk>(data) else { return Data::Garbage };
        let mut chunk = Chunk { error: raw.error.map(|error| error_text(&error)), ..Chunk::default() };
        for choice in raw.choices {
            let delta = choice.delta.into_iter().chain(choice.message).flat_map(|delta| {
                chunk.has_content |= delta
                    .tool_calls
                    .is_some_and(|calls| calls.as_array().is_some_and(|calls| !calls.is_empty()));
                [delta.content, delta.reasoning_content, delta.reasoning]
            });
            for Text(text) in delta.chain([choice.text]).flatten() {
                if chunk.text.is_empty() {
                    chunk.text = text;
                } else {
                    chunk.text.to_mut().push_str(&text);
                }
            }
            chunk.is_finished |= choice.finish_reason.is_some();
        }
        chunk.has_content |= !chunk.text.is_empty();
        chunk.usage = raw.usage.and_then(|usage| {
            Some(Usage {
                prompt_tokens: usage.prompt_tokens?,
                completion_tokens: usage.completion_tokens?,
                cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
            })
        });
        let sane = |ms: Option<f64>| ms.filter(|ms| ms.is_finite() && (0.0..1e9).contains(ms));
        if let Some(timings) = raw.timings {
            chunk.server = Some(ServerTimes {
                queue_ms: None,
                prefill_ms: sane(timings.prompt_ms),
                decode_ms: sane(timings.predicted_ms),
                draft_tokens: timings.draft_n,
                accepted_tokens: timings.draft_n_accepted,
            });
        }
        if let Some(metrics) = raw.metrics {
            let (queue, first) = (sane(metrics.queue_time_ms), sane(metrics.time_to_first_token_ms));
            chunk.server = Some(ServerTimes {
                queue_ms: queue,
                // The time to the first token includes the queue.
                prefill_ms: first.map(|first| (first - queue.unwrap_or(0.0)).max(0.0)),
                decode_ms: sane(metrics.generation_time_ms),
                ..ServerTimes::default()
            });
        }
        Data::Chunk(chunk)
    }
}

/// The message of an error object in any of its formats.
pub fn error_text(error: &Value) -> String {
    let message = error.get("message").unwrap_or(error);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Chunk<'_> {
        match Data::read(text.as_bytes()) {
            Data::Chunk(chunk) => chunk,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn content_decides_not_choices() {
        assert!(!chunk(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#).has_content);
        assert!(chunk(r#"{"choices":[{"delta":{"content":"a"}}]}"#).has_content);
        assert!(chunk(r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#).has_content);
        assert!(chunk(r#"{"choices":[{"text":" b","finish_reason":null}]}"#).has_content);
        let last = chunk(
            r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        );
        assert_eq!(
            last.usage,
            Some(Usage { prompt_tokens: 5, completion_tokens: 7, cached_tokens: Some(4) })
        );
        assert!(!last.has_content);
    }

    #[test]
    fn times_of_servers_are_read() {
        let llama = chunk(
            r#"{"choices":[{"text":""}],"timings":{"prompt_n":4,"prompt_ms":12.5,"predicted_n":3,"predicted_ms":30.0}}"#,
        );
        assert_eq!(llama.server.unwrap().prefill_ms, Some(12.5));
        let vllm = chunk(
            r#"{"choices":[],"metrics":{"queue_time_ms":2.0,"time_to_first_token_ms":12.0,"generation_time_ms":40}}"#,
        );
        assert_eq!(vllm.server.unwrap().prefill_ms, Some(10.0));
    }

    #[test]
    fn errors_and_garbage_are_distinguished() {
        assert_eq!(
            chunk(r#"{"error":{"message":"too long","code":400}}"#).error.as_deref(),
            Some("too long")
        );
        assert_eq!(Data::read(b"{\"choices\":"), Data::Garbage);
        assert_eq!(Data::read(b" [DONE] "), Data::Done);
    }

    #[test]
    fn requests_are_what_servers_expect() {
        let messages = [Message {
            role: Role::User,
            text: "hi".to_owned(),
            images: vec!["data:image/png;base64,AA".to_owned()],
        }];
        let ask = Ask {
            api: Api::Chat,
            model: "m",
            messages: &messages,
            max_tokens: 4,
            ignore_eos: true,
            temperature: None,
            top_p: None,
            seed: 1,
            continuous_usage: false,
        };
        let body: Value = serde_json::from_slice(&ask.body()).unwrap();
        assert_eq!(body["messages"][0]["content"][0]["image_url"]["url"], "data:image/png;base64,AA");
        assert_eq!((body["ignore_eos"].as_bool(), body["temperature"].as_f64()), (Some(true), Some(0.0)));
        let ask = Ask { api: Api::Completions, messages: &[Message::user("a".to_owned())], ..ask };
        let body: Value = serde_json::from_slice(&ask.body()).unwrap();
        assert_eq!(body["prompt"], "a");
    }
}
