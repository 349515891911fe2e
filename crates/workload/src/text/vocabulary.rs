//! The tokenizer in the metadata of a GGUF file.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
    models::bpe::BPE,
};

use crate::text::TextError;

/// The tokenizer keys in the metadata of a GGUF file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vocabulary {
    /// `gpt2` for byte-level BPE with a list of merges, `llama` for SentencePiece with scores.
    pub kind: String,
    /// The pre-tokenizer of `gpt2`.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    pub merges: Vec<String>,
    pub scores: Vec<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<u32>,
    pub bos: Option<u32>,
    pub unknown: Option<u32>,
    /// Tokens that end a text, the default one first.
    pub stop_ids: Vec<u32>,
    pub add_bos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub chat_template: Option<String>,
}

/// The pre-tokenizer of Qwen2, with single digits.
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pre-tokenizer of Llama 3, with up to three digits.
const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const CONTROL: u32 = 3;
const USER_DEFINED: u32 = 4;

impl Vocabulary {
    /// A tokenizer equal to the `tokenizer.json` of the original model.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer, TextError> {
        let mut tokenizer = match self.kind.as_str() {
            "gpt2" => self.byte_level()?,
            "llama" => self.sentence_piece()?,
            other => {
                let (what, found) = ("tokenizer model", other.to_owned());
                return Err(TextError::Unknown { what, found, known: "gpt2, llama" });
            }
        };
        let of_type = |expected: u32, special: bool| {
            let typed = self.tokens.iter().zip(&self.types).filter(move |(_, kind)| **kind == expected);
            typed.map(move |(token, _)| AddedToken::from(token.clone(), special).normalized(false))
        };
        tokenizer.add_special_tokens(of_type(CONTROL, true).collect::<Vec<_>>()).map_err(invalid)?;
        tokenizer.add_tokens(of_type(USER_DEFINED, false).collect::<Vec<_>>()).map_err(invalid)?;
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

    /// The token at the start of every text, if there is one.
    fn leading_token(&self) -> Option<(u32, &str)> {
        // The default of SentencePiece models is true.
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
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |pattern: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                bytes(false),
            ]})
        };
        let pre_tokenizer = match pre {
            "gpt-2" | "default" => bytes(true),
            "smollm" => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true}, bytes(true),
            ]}),
            "qwen2" => split(QWEN2_PATTERN),
            "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => split(LLAMA3_PATTERN),
            other => {
                let known = "default, gpt-2, llama-bpe, qwen2, smaug-bpe, smollm";
                return Err(TextError::Unknown { what: "pre-tokenizer", found: other.to_owned(), known });
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
            // Llama 3 does not apply merges to a word that is a token.
            .ignore_merges(pre.starts_with("llama"))
            .build()
            .map_err(invalid)?;
        let mut tokenizer = Tokenizer::new(model);
        if pre == "qwen2" {
            let normalizer: NormalizerWrapper = part(json!({"type": "NFC"}))?;
            tokenizer.with_normalizer(Some(normalizer)).map_err(invalid)?;
        }
        tokenizer.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(pre_tokenizer)?));
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
        let mut tokenizer = Tokenizer::new(builder.build().map_err(invalid)?);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prefix = self.add_space_prefix.unwrap_or(true);
        let steps = match prefix {
            true => vec![json!({"type": "Prepend", "prepend": "▁"}), spaces],
            false => vec![spaces],
        };
        let normalizer: NormalizerWrapper = part(json!({"type": "Sequence", "normalizers": steps}))?;
        tokenizer.with_normalizer(Some(normalizer)).map_err(invalid)?;
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

    /// Merges equivalent to the scores of SentencePiece, which merges the adjacent pair with the highest score first.
    fn merges_by_score(&self, ids: &HashMap<String, u32>) -> Vec<(String, String)> {
        let mut merges = Vec::new();
        for (token, &score) in self.tokens.iter().zip(&self.scores) {
            let mut splits: Vec<_> = token
                .char_indices()
                .skip(1)
                .map(|(index, _)| token.split_at(index))
                .filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?, left, right)))
                .collect();
            splits.sort_unstable();
            merges.extend(splits.into_iter().map(|(_, _, left, right)| (score, left, right)));
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0));
        merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
    }
}

/// A part of a tokenizer, described as in a `tokenizer.json`.
fn part<T: serde::de::DeserializeOwned>(description: Value) -> Result<T, TextError> {
    serde_json::from_value(description).map_err(|e| TextError::Vocabulary(e.to_string()))
}

fn invalid(error: impl std::fmt::Display) -> TextError {
    TextError::Vocabulary(error.to_string())
}
