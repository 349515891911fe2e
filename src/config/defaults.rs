//! The entries of a defaults list, and what an override makes of them.

use serde_yaml_ng::Value;

use super::error::ConfigError;
use super::interpolate::scalar_text;
use super::overrides::{Action, Override};
use super::typed;

/// One entry of a defaults list.
pub(super) enum DefaultsEntry {
    /// Another config, merged where the naming file's content goes.
    Config { name: String },
    /// Options of a group; `below` is the group as written, which names the key they go under.
    Choice { group: String, below: String, options: Vec<String>, optional: bool },
}

impl DefaultsEntry {
    pub(super) fn read(entry: &Value, group: &str) -> Result<DefaultsEntry, String> {
        let inside = |name: &str| match name.strip_prefix('/') {
            Some(absolute) => absolute.to_owned(),
            None if group.is_empty() => name.to_owned(),
            None => format!("{group}/{name}"),
        };
        if let Some(name) = entry.as_str() {
            return Ok(DefaultsEntry::Config { name: inside(name) });
        }
        let single =
            entry.as_mapping().filter(|entries| entries.len() == 1).and_then(|entries| entries.iter().next());
        let Some((Value::String(written), value)) = single else {
            return Err(format!("want `group: option` or a name, got {}", typed::described(entry)));
        };
        let (optional, written) = match written.strip_prefix("optional ") {
            Some(rest) => (true, rest.trim()),
            None => (false, written.as_str()),
        };
        if written.starts_with("override ") || written.contains('@') {
            return Err(format!("`override` and packages (group@package) are not understood: {written:?}"));
        }
        let one = |option: &Value| match scalar_text(option) {
            Some(name) if name == "???" => Err(format!("choose an option for {written:?} ({written}=…)")),
            Some(name) => Ok(name),
            None => Err(format!("an option of {written:?} is {}, not a name", typed::described(option))),
        };
        let options = match value {
            Value::Null => Vec::new(),
            Value::Sequence(options) => options.iter().map(one).collect::<Result<_, _>>()?,
            option => vec![one(option)?],
        };
        let below = written.trim_start_matches('/').to_owned();
        Ok(DefaultsEntry::Choice { group: inside(written), below, options, optional })
    }
}

/// The option an override chooses in place of `default`; `None` leaves the group out.
pub(super) fn picked_option(
    given: &Override,
    default: Option<&String>,
) -> Result<Option<String>, ConfigError> {
    let bad = |message: String| ConfigError::BadOverride { text: given.text.clone(), message };
    match &given.action {
        Action::Change(Value::Null) | Action::Add(Value::Null) | Action::Put(Value::Null) => Ok(None),
        Action::Change(value) | Action::Add(value) | Action::Put(value) => match scalar_text(value) {
            Some(option) if !option.is_empty() => Ok(Some(option)),
            _ => Err(bad(format!("the group {:?} takes the name of one option", given.key))),
        },
        Action::Remove(None) => Ok(None),
        Action::Remove(Some(wanted)) if scalar_text(wanted).as_ref() == default => Ok(None),
        Action::Remove(Some(_)) => Err(bad(format!("another option is chosen for {:?}", given.key))),
    }
}

/// The package a `# @package` line at the head of a file asks for.
pub(super) fn package_header(text: &str, by_group: &str) -> Option<String> {
    let head = text.lines().take_while(|line| line.trim().is_empty() || line.starts_with('#'));
    let asked =
        head.filter_map(|line| line.trim_start_matches('#').trim().strip_prefix("@package ")).next()?;
    Some(match asked.trim() {
        "_global_" => String::new(),
        "_group_" => by_group.to_owned(),
        other => other.to_owned(),
    })
}
