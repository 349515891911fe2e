//! A tokenizer from what a GGUF file says about it.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
    models::bpe::BPE,
};

use super::TextError;

/// The tokenizer in a GGUF file's metadata, key by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `gpt2` joins bytes by a list of merges, `llama` pieces of text by their scores.
    pub kind: String,
    /// How `gpt2` cuts text into words first.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    pub merges: Vec<String>,
    pub scores: Vec<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<u32>,
    pub bos: Option<u32>,
    pub unknown: Option<u32>,
    /// Tokens that end a text, the ordinary one first.
    pub stop_ids: Vec<u32>,
    pub add_bos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
}

/// Words for qwen2: single digits.
const QWEN2_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words for llama 3: digits by threes.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;

impl Vocabulary {
    /// The same tokenizer as the `tokenizer.json` of the model the file was made from.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer, TextError> {
        let mut tokenizer = match self.kind.as_str() {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_piece()?,
            other => {
                let (what, found) = ("model", other.to_owned());
                return Err(TextError::Unknown { what, found, known: "gpt2 and llama" });
            }
        };
        let of_type = |wanted: u32, special: bool| {
            let typed = self.tokens.iter().zip(&self.types).filter(move |(_, kind)| **kind == wanted);
            typed.map(move |(token, _)| AddedToken::from(token.clone(), special).normalized(false))
        };
        tokenizer.add_special_tokens(of_type(CONTROL, true).collect::<Vec<_>>()).map_err(refused)?;
        tokenizer.add_tokens(of_type(USER_DEFINED, false).collect::<Vec<_>>()).map_err(refused)?;
        if let Some(bos) = self.leading_token() {
            let (id, token) = bos;
            let special = |id: u32| json!({"id": token, "ids": [id], "tokens": [token]});
            let one = json!({"SpecialToken": {"id": token, "type_id": 0}});
            let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
            let template: PostProcessorWrapper = part(json!({
                "type": "TemplateProcessing",
                "single": [one, text("A")], "pair": [one, text("A"), text("B")],
                "special_tokens": {token: special(id)},
            }))?;
            tokenizer.with_post_processor(Some(template));
        }
        Ok(tokenizer)
    }

    /// The token every text begins with, when there is one.
    fn leading_token(&self) -> Option<(u32, &str)> {
        // SentencePiece models begin with it unless they say otherwise.
        if !self.add_bos.unwrap_or(self.kind == "llama") {
            return None;
        }
        self.bos.and_then(|id| Some((id, self.tokens.get(id as usize)?.as_str())))
    }

    fn ids(&self) -> HashMap<String, u32> {
        self.tokens.iter().enumerate().map(|(id, token)| (token.clone(), id as u32)).collect()
    }

    fn byte_level(&self) -> Result<Tokenizer, TextError> {
        let pre = self.pre.as_deref().unwrap_or("gpt-2");
        let bytes = |words: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words});
        let split = |words: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": false},
                bytes(false),
            ]})
        };
        let words = match pre {
            "gpt-2" | "default" => bytes(true),
            "smollm" => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true}, bytes(true),
            ]}),
            "qwen2" => split(QWEN2_WORDS),
            "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => split(LLAMA3_WORDS),
            other => {
                let known = "default, gpt-2, llama-bpe, qwen2, smaug-bpe and smollm";
                return Err(TextError::Unknown { what: "way to cut words", found: other.to_owned(), known });
            }
        };
        let merges = self.merges.iter().map(|merge| {
            let (left, right) = merge
                .split_once(' ')
                .ok_or_else(|| TextError::Vocabulary(format!("the merge {merge:?} is not two tokens")))?;
            Ok((left.to_owned(), right.to_owned()))
        });
        let merges = merges.collect::<Result<Vec<_>, TextError>>()?;
        let model = BPE::builder()
            .vocab_and_merges(self.ids().into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
            // Llama 3 takes a word that is a token as it is, whatever the merges would make of it.
            .ignore_merges(pre.starts_with("llama"))
            .build()
            .map_err(refused)?;
        let mut tokenizer = Tokenizer::new(model);
        if pre == "qwen2" {
            let normalizer: NormalizerWrapper = part(json!({"type": "NFC"}))?;
            tokenizer.with_normalizer(Some(normalizer)).map_err(refused)?;
        }
        tokenizer.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(words)?));
        tokenizer.with_decoder(Some(part::<DecoderWrapper>(bytes(true))?));
        Ok(tokenizer)
    }

    fn sentence_piece(&self) -> Result<Tokenizer, TextError> {
        if self.scores.len() != self.tokens.len() {
            let (scores, tokens) = (self.scores.len(), self.tokens.len());
            return Err(TextError::Vocabulary(format!("{scores} scores for {tokens} tokens")));
        }
        let ids = self.ids();
        let merges = self.merges_by_score(&ids);
        let mut builder = BPE::builder()
            .vocab_and_merges(ids.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = self.unknown.and_then(|id| self.tokens.get(id as usize)) {
            builder = builder.unk_token(unknown.clone());
        }
        let mut tokenizer = Tokenizer::new(builder.build().map_err(refused)?);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prefix = self.add_space_prefix.unwrap_or(true);
        let steps = match prefix {
            true => vec![json!({"type": "Prepend", "prepend": "▁"}), spaces],
            false => vec![spaces],
        };
        let normalizer: NormalizerWrapper = part(json!({"type": "Sequence", "normalizers": steps}))?;
        tokenizer.with_normalizer(Some(normalizer)).map_err(refused)?;
        let mut steps = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if prefix {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        let decoder: DecoderWrapper = part(json!({"type": "Sequence", "decoders": steps}))?;
        tokenizer.with_decoder(Some(decoder));
        Ok(tokenizer)
    }

    /// Merges that do what SentencePiece does with scores: of all neighbours that make a token, the one with the
    /// best score is joined first.
    fn merges_by_score(&self, ids: &HashMap<String, u32>) -> Vec<(String, String)> {
        let mut merges = Vec::new();
        for (token, &score) in self.tokens.iter().zip(&self.scores) {
            let mut ways: Vec<_> = token
                .char_indices()
                .skip(1)
                .map(|(at, _)| token.split_at(at))
                .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right)))
                .collect();
            ways.sort_unstable();
            merges.extend(ways.into_iter().map(|(_, _, left, right)| (score, left, right)));
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0));
        merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
    }
}

/// A part of a tokenizer, in the words of a `tokenizer.json`.
fn part<T: serde::de::DeserializeOwned>(description: Value) -> Result<T, TextError> {
    serde_json::from_value(description).map_err(|e| TextError::Vocabulary(e.to_string()))
}

fn refused(error: impl std::fmt::Display) -> TextError {
    TextError::Vocabulary(error.to_string())
}
