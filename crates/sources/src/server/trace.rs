//! Requests that were recorded elsewhere: Mooncake's JSON lines, and recordings of this program.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::words::words;
use llmprof_base::noise;

/// Tokens of a block of Mooncake's traces.
const BLOCK_TOKENS: u32 = 512;
const MAX_ENTRIES: usize = 1_000_000;
const MAX_TOKENS: u32 = 4_000_000;

/// A request of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceEntry {
    pub at: Duration,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Equal blocks have equal text, so that a prefix cache has the same hits.
    pub blocks: Vec<u64>,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    #[error("line {line}: {cause}")]
    Line { line: usize, cause: String },
    #[error("there is no request in it")]
    Empty,
}

#[derive(Deserialize)]
struct MooncakeLine {
    /// Milliseconds.
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

#[derive(Deserialize)]
struct RecordedLine {
    t: u64,
    e: serde_json::Value,
}

impl TraceEntry {
    /// Its prompt: blocks of words, the last one truncated to its length. Blocks without an id have text that no other
    /// `request` has.
    pub fn text(&self, request: u32, seed: u64, words_per_token: f64) -> String {
        let mut left = self.prompt_tokens;
        let mut text = String::new();
        let unnamed = u64::MAX ^ u64::from(request) << 24;
        for n in 0.. {
            if left == 0 {
                break;
            }
            let id = self.blocks.get(n).copied().unwrap_or(unnamed - n as u64);
            let tokens = left.min(BLOCK_TOKENS);
            let count = ((f64::from(tokens) * words_per_token).round() as usize).max(1);
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&words(noise::bits(seed, id), count));
            left -= tokens;
        }
        text
    }
}

/// Reads a trace; its first request is at 0.
pub fn read(text: &str) -> Result<Vec<TraceEntry>, TraceError> {
    let mut entries = Vec::new();
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).take(MAX_ENTRIES) {
        let wrong = |cause: String| TraceError::Line { line: n + 1, cause };
        if line.starts_with("{\"t\":") {
            let recorded: RecordedLine = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
            let Some(started) = recorded.e.get("request_started") else { continue };
            let number = |key: &str| started[key].as_u64().unwrap_or(0).min(u64::from(MAX_TOKENS)) as u32;
            if started["warmup"] == true || started["cooldown"] == true {
                continue;
            }
            entries.push(TraceEntry {
                at: Duration::from_nanos(recorded.t),
                prompt_tokens: number("prompt_tokens").max(1),
                output_tokens: number("output_tokens").max(1),
                blocks: Vec::new(),
            });
            continue;
        }
        let entry: MooncakeLine = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
        if !(0.0..1e12).contains(&entry.timestamp)
            || entry.input_length > MAX_TOKENS
            || entry.output_length > MAX_TOKENS
        {
            return Err(wrong("a number is out of range".to_owned()));
        }
        entries.push(TraceEntry {
            at: Duration::from_secs_f64(entry.timestamp / 1e3),
            prompt_tokens: entry.input_length.max(1),
            output_tokens: entry.output_length.max(1),
            blocks: entry.hash_ids,
        });
    }
    entries.sort_by_key(|entry| entry.at);
    let first = entries.first().ok_or(TraceError::Empty)?.at;
    entries.iter_mut().for_each(|entry| entry.at -= first);
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mooncake_traces_share_prefixes() {
        let text = "{\"timestamp\": 3000, \"input_length\": 1200, \"output_length\": 5, \"hash_ids\": [1, 2, 9]}\n\
                    {\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [1, 4]}\n";
        let entries = read(text).unwrap();
        assert_eq!(entries[0].at, Duration::ZERO);
        assert_eq!((entries[1].at, entries[1].output_tokens), (Duration::from_secs(2), 5));
        let (a, b) = (entries[0].text(0, 7, 1.0), entries[1].text(1, 7, 1.0));
        assert_eq!(a.split(' ').count(), 600);
        let common = a.split(' ').zip(b.split(' ')).take_while(|(x, y)| x == y).count();
        assert!((512..530).contains(&common), "{common}");
    }

    #[test]
    fn prompts_without_ids_have_no_common_prefix() {
        let text = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5}\n".repeat(2);
        let entries = read(&text).unwrap();
        let texts = [entries[0].text(0, 7, 1.0), entries[1].text(1, 7, 1.0)];
        assert_ne!(
            texts[0].split(' ').take(4).collect::<Vec<_>>(),
            texts[1].split(' ').take(4).collect::<Vec<_>>()
        );
        assert_eq!(texts[0], entries[0].text(0, 7, 1.0), "the same in each run");
    }

    #[test]
    fn recordings_are_traces() {
        let text = "{\"t\":0,\"e\":{\"run_started\":{}}}\n\
                    {\"t\":5000000,\"e\":{\"request_started\":{\"request\":0,\"warmup\":true,\"prompt_tokens\":9,\"output_tokens\":3}}}\n\
                    {\"t\":9000000,\"e\":{\"request_started\":{\"request\":1,\"warmup\":false,\"prompt_tokens\":12,\"output_tokens\":3}}}\n";
        let entries = read(text).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].prompt_tokens, entries[0].at), (12, Duration::ZERO));
    }

    #[test]
    fn wrong_lines_are_named() {
        assert!(matches!(read("{}\n"), Err(TraceError::Line { line: 1, .. })));
        assert_eq!(read("\n"), Err(TraceError::Empty));
        assert!(read("{\"timestamp\": 1e300, \"input_length\": 1, \"output_length\": 1}").is_err());
    }
}
