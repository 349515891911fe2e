//! Files of prompts: one JSON object a line, with the text under `prompt`.

use std::path::Path;

use serde::Deserialize;

use super::{TextError, read};

/// The set that comes with the program, for when its file is not beside it.
const SHIPPED: (&str, &str) =
    ("datasets/prompts/prompts.jsonl", include_str!("../../datasets/prompts/prompts.jsonl"));

/// Other keys are allowed: datasets carry answers and names beside their prompts.
#[derive(Deserialize)]
struct Line {
    prompt: String,
}

/// The prompts of `file`, at least one. Empty lines are skipped.
pub fn load(file: &Path) -> Result<Vec<String>, TextError> {
    if file == Path::new(SHIPPED.0) && !file.exists() {
        return parse(file, SHIPPED.1);
    }
    parse(file, &read(file)?)
}

fn parse(file: &Path, text: &str) -> Result<Vec<String>, TextError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts = lines.map(|(at, line)| {
        match serde_json::from_str::<Line>(line) {
            Ok(line) if line.prompt.is_empty() => Err("the prompt is empty".to_owned()),
            Ok(line) => Ok(line.prompt),
            Err(e) => Err(e.to_string()),
        }
        .map_err(|cause| TextError::Prompt { file: file.to_owned(), line: at + 1, cause })
    });
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    match prompts.is_empty() {
        true => Err(TextError::NoPrompts { file: file.to_owned() }),
        false => Ok(prompts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts_and_bad_ones_are_named() {
        let file = Path::new("p.jsonl");
        let two = "{\"prompt\": \"a\\nb\", \"answer\": 4}\n\n{\"prompt\":\"c\"}\n";
        assert_eq!(parse(file, two).unwrap(), ["a\nb", "c"]);
        let table = [
            ("", "p.jsonl has no prompts"),
            ("{\"prompt\":\"a\"}\nnonsense", "p.jsonl, line 2: expected ident"),
            ("{\"text\":\"a\"}", "p.jsonl, line 1: missing field `prompt`"),
            ("{\"prompt\":\"\"}", "p.jsonl, line 1: the prompt is empty"),
        ];
        for (text, message) in table {
            let error = parse(file, text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        assert!(load(Path::new("no/such.jsonl")).unwrap_err().to_string().contains("no/such.jsonl"));
    }

    #[test]
    fn the_shipped_set_is_whole() {
        assert!(parse(Path::new(SHIPPED.0), SHIPPED.1).unwrap().len() >= 10);
    }
}
