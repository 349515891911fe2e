//! Tokenizers, chat templates and prompt files.

mod chat;
pub mod prompts;
mod vocabulary;

use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;
pub use vocabulary::Vocabulary;

use chat::ChatTemplate;

use llmprof_base::{
    process::crash::contained,
    read::{self, MAX_DOCUMENT},
};

/// The largest published `tokenizer.json` has 35 MB.
const MAX_TOKENIZER: u64 = 512_000_000;

#[derive(Debug, Error)]
pub enum TextError {
    #[error("cannot read {}: {cause}", file.display())]
    Unreadable { file: PathBuf, cause: std::io::Error },
    #[error("{} is not a valid {what}: {cause}", file.display())]
    Corrupt { file: PathBuf, what: &'static str, cause: String },
    #[error("unknown {what} {found:?}; supported: {known}")]
    Unknown { what: &'static str, found: String, known: &'static str },
    #[error("invalid vocabulary: {0}")]
    Vocabulary(String),
    #[error("the chat template failed: {0}")]
    Template(String),
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    #[error("{}, line {line}: {cause}", file.display())]
    Prompt { file: PathBuf, line: usize, cause: String },
    #[error("{}, entry {number}: {cause}", file.display())]
    Entry { file: PathBuf, number: usize, cause: String },
    #[error("{} has no prompts", file.display())]
    NoPrompts { file: PathBuf },
}

/// The tokenizer of a model, with its chat template and stop tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    chat: Option<ChatTemplate>,
    stop_ids: Vec<u32>,
}

impl Tokenizer {
    /// Reads a checkpoint's directory: `tokenizer.json`, and if they exist `tokenizer_config.json`,
    /// `chat_template.jinja`, `generation_config.json` and `config.json`.
    pub fn from_dir(dir: &Path) -> Result<Tokenizer, TextError> {
        let file = dir.join("tokenizer.json");
        let text = read(&file, MAX_TOKENIZER)?;
        // The crate panics on certain contradictions in a file.
        let inner = contained(|| text.parse::<tokenizers::Tokenizer>().map_err(|e| e.to_string()))
            .flatten()
            .map_err(|cause| TextError::Corrupt { file, what: "tokenizer", cause })?;
        let config = optional_json(&dir.join("tokenizer_config.json"))?;
        let token = |name: &str| token_text(&config[name]);
        let template = match dir.join("chat_template.jinja") {
            file if file.exists() => Some(read(&file, MAX_DOCUMENT)?),
            _ => template_of(&config["chat_template"]),
        };
        let (bos, eos) = (token("bos_token"), token("eos_token"));
        let mut stop_ids = Vec::new();
        for name in ["generation_config.json", "config.json"] {
            if stop_ids.is_empty() {
                stop_ids = ids_of(&optional_json(&dir.join(name))?["eos_token_id"]);
            }
        }
        if stop_ids.is_empty() {
            stop_ids.extend(eos.as_deref().and_then(|eos| inner.token_to_id(eos)));
        }
        let chat = template.map(|template| ChatTemplate::new(template, bos, eos)).transpose()?;
        Ok(Tokenizer { inner, chat, stop_ids })
    }

    /// The tokenizer of a GGUF file.
    pub fn from_vocabulary(vocabulary: &Vocabulary) -> Result<Tokenizer, TextError> {
        let token = |id: Option<u32>| vocabulary.tokens.get(id? as usize).cloned();
        let (bos, eos) = (token(vocabulary.bos), token(vocabulary.stop_ids.first().copied()));
        let template = vocabulary.chat_template.clone();
        Ok(Tokenizer {
            inner: contained(|| vocabulary.tokenizer()).map_err(TextError::Vocabulary).flatten()?,
            chat: template.map(|template| ChatTemplate::new(template, bos, eos)).transpose()?,
            stop_ids: vocabulary.stop_ids.clone(),
        })
    }

    /// The token ids of a prompt. With `chat` and a chat template, the prompt is the message of a user, and the ids end at
    /// the start of the assistant's answer.
    pub fn prompt_ids(&self, prompt: &str, chat: bool) -> Result<Vec<u32>, TextError> {
        let (text, special) = match &self.chat {
            // The template contains the special tokens.
            Some(template) if chat => (template.user_message(prompt)?, false),
            _ => (prompt.to_owned(), true),
        };
        guarded(|| Ok(self.inner.encode(text, special)?.get_ids().to_vec()))
    }

    /// The number of tokens of a text.
    pub fn count(&self, text: &str) -> Result<u32, TextError> {
        guarded(|| Ok(self.inner.encode(text, false)?.len() as u32))
    }

    /// The text of `ids`, without special tokens.
    pub fn text(&self, ids: &[u32]) -> Result<String, TextError> {
        guarded(|| self.inner.decode(ids, true))
    }

    /// Tokens that end a text.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }
}

/// Calls a tokenizer, which may panic if its file contradicts itself.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TextError> {
    contained(|| call().map_err(|e| e.to_string())).flatten().map_err(TextError::Tokenizer)
}

fn read(file: &Path, limit: u64) -> Result<String, TextError> {
    read::text(file, limit).map_err(|cause| TextError::Unreadable { file: file.to_owned(), cause })
}

/// The content of a JSON file; null if it does not exist.
fn optional_json(file: &Path) -> Result<Value, TextError> {
    if !file.exists() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&read(file, MAX_DOCUMENT)?).map_err(|e| TextError::Corrupt {
        file: file.to_owned(),
        what: "JSON file",
        cause: e.to_string(),
    })
}

/// The text of a token, which is a string or an object with the key `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// The template, or the one named `default` in a list.
fn template_of(value: &Value) -> Option<String> {
    let named = |list: &Vec<Value>| {
        let default = list.iter().find(|entry| entry["name"] == "default")?;
        default["template"].as_str().map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| value.as_array().and_then(named))
}

fn ids_of(value: &Value) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(ids) => ids.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
