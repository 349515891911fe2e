//! The messages between this program and the worker, one JSON object per line.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A line to the worker.
#[derive(Debug, Serialize)]
#[serde(tag = "c", rename_all = "snake_case")]
pub enum Order<'a> {
    /// The first line.
    Config(&'a Setup),
    Run(&'a RunOrder),
    Profile(&'a ProfileOrder),
    Pause,
    Resume,
    End,
}

impl Order<'_> {
    pub fn line(&self) -> Vec<u8> {
        // Orders have no maps with keys other than strings, so that writing cannot fail.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// The settings of the worker.
#[derive(Debug, Clone, Serialize)]
pub struct Setup {
    /// `cpu` or `cuda:N`.
    pub device: String,
    pub threads: Option<u32>,
    /// torch's name: `bfloat16`.
    pub dtype: &'static str,
    pub script: Option<String>,
    /// A checkpoint's directory; `None` for random weights.
    pub weights: Option<String>,
    pub model: String,
    /// The shape, with the keys of a `config.json`.
    pub arch: Value,
    pub trust_remote_code: bool,
    pub attention: String,
    pub compile: &'static str,
    pub static_cache: Option<bool>,
    pub device_map: Option<String>,
    pub infer: Value,
    pub preprocess: Value,
    pub seed: u64,
    pub batch_size: u32,
    pub max_new_tokens: u32,
    /// Positions of the longest sequence.
    pub max_positions: u32,
    /// `phase`, `layer` or `op`.
    pub nvtx: &'static str,
    /// The directory for images with the boxes of answers; `None` for none.
    pub visualizations: Option<String>,
}

/// A request.
#[derive(Debug, Clone, Serialize)]
pub struct RunOrder {
    #[serde(rename = "r")]
    pub request: u32,
    pub warmup: bool,
    /// One row per sequence.
    pub ids: Vec<Vec<u32>>,
    pub text: String,
    /// Paths of images.
    pub images: Vec<String>,
    /// Maximum tokens of each sequence.
    pub output: u32,
    /// Tokens that end a sequence.
    pub stops: Vec<u32>,
    pub ignore_eos: bool,
    /// Whether its answers are reported.
    pub answers: bool,
}

/// The operator profile.
#[derive(Debug, Clone, Serialize)]
pub struct ProfileOrder {
    pub steps: u32,
    pub shapes: bool,
    pub memory: bool,
    pub stack: bool,
    /// The path of the trace.
    pub file: String,
    /// Set by the worker's thread.
    pub prompt: Option<RunOrder>,
}

/// A line from the worker. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Report {
    Progress {
        step: String,
        done: u64,
        total: u64,
    },
    Hello(Hello),
    Ready(Facts),
    Request {
        t: u64,
        r: u32,
    },
    /// Tokens of each sequence's prompt, if images are part of it.
    Length {
        r: u32,
        tokens: u32,
    },
    Vision {
        t: u64,
        r: u32,
        images: u32,
        tokens: u32,
        #[serde(default)]
        sizes: Vec<(u32, u32)>,
        #[serde(default)]
        patches: Option<u64>,
        #[serde(default)]
        d: Option<u64>,
    },
    Token {
        t: u64,
        r: u32,
        i: u32,
        id: u32,
        #[serde(default)]
        d: Option<u64>,
    },
    Finished {
        t: u64,
        r: u32,
        complete: bool,
        #[serde(default)]
        ids: Vec<Vec<u32>>,
        #[serde(default)]
        texts: Vec<String>,
    },
    Paused {
        t: u64,
    },
    Resumed {
        t: u64,
    },
    Memory {
        live: u64,
        peak: u64,
        reserved: u64,
    },
    Operators(Timed),
    Profiling {
        doing: String,
        share: f64,
    },
    Profiled {
        file: String,
    },
    NotProfiled(Failure),
    Log {
        level: String,
        text: String,
    },
    Failed(Failure),
    Done,
}

/// The environment of the worker.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Hello {
    pub python: String,
    pub torch: String,
    pub transformers: Option<String>,
    pub cuda: Option<String>,
    pub gpu: Option<String>,
    pub executable: String,
    pub pid: u32,
}

/// The facts about the loaded model.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    pub ms: f64,
    /// The name of its class.
    pub model: String,
    pub parameters: Option<u64>,
    pub weight_bytes: Option<u64>,
    pub attention: Option<String>,
    pub compile: Option<String>,
    pub static_cache: Option<bool>,
}

/// Operators of a phase on the host.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Timed {
    pub phase: String,
    pub steps: u64,
    pub ns: u64,
    /// Operator, calls, time without the operators within it, shortest and longest call.
    pub rows: Vec<(String, u64, u64, u64, u64)>,
}

/// A failure and its cause.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// `environment`, `load` or `run`.
    pub doing: String,
    pub kind: String,
    /// The last line of the error.
    pub error: String,
    /// The whole traceback.
    pub trace: String,
}

/// Maximum length of a line: the ids of a large batch of long answers.
pub const MAX_LINE: usize = 16 << 20;

/// A line of the worker; `None` if it does not belong to this protocol.
pub fn parse(line: &[u8]) -> Option<Report> {
    if line.len() > MAX_LINE || line.first() != Some(&b'{') {
        return None;
    }
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reports_are_lines_of_json() {
        for (line, expected) in [
            (
                r#"{"m":"token","t":12,"r":3,"i":4,"id":5,"d":6}"#,
                Some(Report::Token { t: 12, r: 3, i: 4, id: 5, d: Some(6) }),
            ),
            (
                r#"{"m":"token","t":12,"r":3,"i":4,"id":5}"#,
                Some(Report::Token { t: 12, r: 3, i: 4, id: 5, d: None }),
            ),
            (r#"{"m":"done"}"#, Some(Report::Done)),
            (r#"{"m":"paused","t":1}"#, Some(Report::Paused { t: 1 })),
            (r#"{"m":"token","t":-12,"r":3,"i":4,"id":5}"#, None),
            (r#"{"m":"unheard of"}"#, None),
            ("loading…", None),
            ("", None),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn orders_are_lines() {
        assert_eq!(Order::Pause.line(), b"{\"c\":\"pause\"}\n");
        let order = RunOrder {
            request: 2,
            warmup: true,
            ids: vec![vec![1, 2]],
            text: "a\nb".to_owned(),
            images: Vec::new(),
            output: 3,
            stops: vec![7],
            ignore_eos: false,
            answers: true,
        };
        let line = String::from_utf8(Order::Run(&order).line()).unwrap();
        assert_eq!(
            line,
            "{\"c\":\"run\",\"r\":2,\"warmup\":true,\"ids\":[[1,2]],\"text\":\"a\\nb\",\"images\":[],\"output\":3,\
             \"stops\":[7],\"ignore_eos\":false,\"answers\":true}\n"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(line in prop::collection::vec(any::<u8>(), 0..300)) {
            parse(&line);
        }

        #[test]
        fn any_json_can_be_read(m in "[a-z]{0,12}", t in any::<f64>(), r in any::<i64>(), text in ".{0,40}") {
            parse(serde_json::json!({"m": m, "t": t, "r": r, "text": text, "rows": [[text, r]]}).to_string().as_bytes());
        }
    }
}
