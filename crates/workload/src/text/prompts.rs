//! Prompt files: one JSON object per line, or one list of objects in a `.json` file.
//!
//! | key of the object | prompt |
//! |---|---|
//! | `prompt`, `text` | its value |
//! | `messages` (`role`, `content`), `conversations` (`from`, `value`) | the first message of the user or human |
//! | `layout_dets` | the text of each block, in reading order |

use std::path::Path;

use serde_json::Value;

use crate::text::{TextError, read};

/// The built-in prompts, used if the configured file does not exist.
const BUILT_IN: (&str, &str) =
    ("datasets/prompts/prompts.jsonl", include_str!("../../../../datasets/prompts/prompts.jsonl"));

/// All prompts are kept in memory.
const MAX_PROMPTS: u64 = 4_000_000_000;

/// A prompt and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// `id`, `name`, `source` or the path of the page image, if the object has one.
    pub name: Option<String>,
    pub text: String,
}

/// The prompts of `file`, at least one. Empty lines, conversations without a user message and pages without text are
/// skipped.
pub fn load(file: &Path) -> Result<Vec<Sample>, TextError> {
    if file == Path::new(BUILT_IN.0) && !file.exists() {
        return parse(file, BUILT_IN.1);
    }
    parse(file, &read(file, MAX_PROMPTS)?)
}

fn parse(file: &Path, text: &str) -> Result<Vec<Sample>, TextError> {
    let bad =
        |index: usize, cause: String| TextError::Prompt { file: file.to_owned(), line: index + 1, cause };
    let mut samples = Vec::new();
    if file.extension().is_some_and(|extension| extension == "json") {
        let corrupt = |e: serde_json::Error| TextError::Corrupt {
            file: file.to_owned(),
            what: "list of prompts",
            cause: e.to_string(),
        };
        let list: Vec<Value> = serde_json::from_str(text).map_err(corrupt)?;
        for (index, object) in list.iter().enumerate() {
            let entry = |cause| TextError::Entry { file: file.to_owned(), number: index + 1, cause };
            samples.extend(sample(object).map_err(entry)?);
        }
    } else {
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let object = serde_json::from_str::<Value>(line).map_err(|e| bad(index, e.to_string()))?;
            samples.extend(sample(&object).map_err(|cause| bad(index, cause))?);
        }
    }
    match samples.is_empty() {
        true => Err(TextError::NoPrompts { file: file.to_owned() }),
        false => Ok(samples),
    }
}

/// The prompt of one object; `None` for a conversation without a user message and for a page without text.
fn sample(object: &Value) -> Result<Option<Sample>, String> {
    let text = match object.as_object() {
        None => return Err("not a JSON object".into()),
        Some(keys) => {
            let known = |key: &&str| keys.contains_key(*key);
            match ["prompt", "text", "messages", "conversations", "layout_dets"].into_iter().find(known) {
                Some(key @ ("prompt" | "text")) => {
                    Some(object[key].as_str().ok_or(format!("{key} is not text"))?.to_owned())
                }
                Some(key @ "messages") => first_user_message(&object[key], "role", "content"),
                Some(key @ "conversations") => first_user_message(&object[key], "from", "value"),
                Some(_) => Some(page_text(&object["layout_dets"])).filter(|text| !text.is_empty()),
                None => {
                    return Err("expected a key prompt, text, messages, conversations or layout_dets".into());
                }
            }
        }
    };
    match text {
        Some(text) if text.is_empty() => Err("the prompt is empty".into()),
        text => Ok(text.map(|text| Sample { name: name_of(object), text })),
    }
}

/// The first user message that is not empty.
fn first_user_message(turns: &Value, role: &str, content: &str) -> Option<String> {
    let is_user = |turn: &&Value| matches!(turn[role].as_str(), Some("user" | "human"));
    let mut messages = turns.as_array()?.iter().filter(is_user).map(|turn| match &turn[content] {
        // A message can consist of parts; only text parts are used.
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        text => text.as_str().unwrap_or_default().to_owned(),
    });
    messages.find(|text: &String| !text.trim().is_empty())
}

/// The texts of a page's blocks, in reading order if it is given.
fn page_text(blocks: &Value) -> String {
    let mut blocks: Vec<&Value> = blocks.as_array().into_iter().flatten().collect();
    blocks.sort_by_key(|block| block["order"].as_i64().unwrap_or(i64::MAX));
    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
    texts.filter(|text| !text.trim().is_empty()).collect::<Vec<_>>().join("\n\n")
}

fn name_of(object: &Value) -> Option<String> {
    let keys = [&object["id"], &object["name"], &object["source"], &object["page_info"]["image_path"]];
    keys.into_iter().find_map(|name| match name {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::text::prompts::*;

    fn texts(file: &str, text: &str) -> Vec<String> {
        parse(Path::new(file), text).unwrap().into_iter().map(|sample| sample.text).collect()
    }

    #[test]
    fn errors_name_the_line_or_the_entry() {
        let two = "{\"prompt\": \"a\\nb\", \"answer\": 4}\n\n{\"text\":\"c\"}\n";
        assert_eq!(texts("p.jsonl", two), ["a\nb", "c"]);
        let table = [
            ("p.jsonl", "", "p.jsonl has no prompts"),
            ("p.jsonl", "{\"prompt\":\"a\"}\nnonsense", "p.jsonl, line 2: expected ident"),
            (
                "p.jsonl",
                "{\"answer\":\"a\"}",
                "p.jsonl, line 1: expected a key prompt, text, messages, conversations or",
            ),
            ("p.jsonl", "{\"prompt\":7}", "p.jsonl, line 1: prompt is not text"),
            ("p.jsonl", "[1]", "p.jsonl, line 1: not a JSON object"),
            ("p.jsonl", "{\"prompt\":\"\"}", "p.jsonl, line 1: the prompt is empty"),
            ("p.jsonl", "{\"messages\":[]}", "p.jsonl has no prompts"),
            ("p.json", "{\"prompt\":\"a\"}", "p.json is not a valid list of prompts: invalid type: map"),
            ("p.json", "[{\"prompt\":\"a\"}, {}]", "p.json, entry 2: expected a key prompt, text,"),
        ];
        for (file, text, message) in table {
            let error = parse(Path::new(file), text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        assert!(load(Path::new("no/such.jsonl")).unwrap_err().to_string().contains("no/such.jsonl"));
    }

    #[test]
    fn the_prompt_of_a_conversation_is_the_first_user_message() {
        let table = [
            (
                json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}),
                Some("a"),
            ),
            (
                json!({"conversations": [{"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]}),
                Some("c"),
            ),
            (
                json!({"conversations": [{"from": "human", "value": " "}, {"from": "user", "value": "d"}]}),
                Some("d"),
            ),
            (json!({"conversations": []}), None),
            (
                json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "e"}]}),
                Some("e"),
            ),
            (
                json!({"messages": [{"role": "user", "content": [
                    {"type": "image_url"}, {"type": "text", "text": "f"}, {"type": "text", "text": "g"}
                ]}]}),
                Some("fg"),
            ),
            (json!({"messages": [{"role": "assistant", "content": "h"}]}), None),
        ];
        for (object, expected) in table {
            let found = sample(&object).unwrap().map(|sample| sample.text);
            assert_eq!(found.as_deref(), expected, "{object}");
        }
        let list = json!([
            {"id": "x_0", "conversations": []},
            {"id": "x_1", "conversations": [{"from": "human", "value": "a"}]},
            {"id": 7, "prompt": "b"},
        ]);
        let samples = parse(Path::new("s.json"), &list.to_string()).unwrap();
        let names: Vec<_> = samples.iter().map(|sample| sample.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["x_1", "7"]);
    }

    #[test]
    fn the_prompt_of_a_page_is_its_text_in_reading_order() {
        let page = json!({
            "layout_dets": [
                {"category_type": "figure"},
                {"text": "second", "order": 2},
                {"text": "first", "order": 1},
                {"text": "", "order": 3},
                {"text": "abandoned", "order": null},
            ],
            "page_info": {"image_path": "a.png"},
        });
        let expected = Sample { name: Some("a.png".into()), text: "first\n\nsecond\n\nabandoned".into() };
        assert_eq!(sample(&page).unwrap().unwrap(), expected);
    }

    #[test]
    fn the_built_in_prompts_are_valid() {
        assert!(parse(Path::new(BUILT_IN.0), BUILT_IN.1).unwrap().len() >= 10);
    }
}
