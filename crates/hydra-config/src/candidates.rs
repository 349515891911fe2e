//! Completion of an override: the groups, options, keys and values that start with a given prefix.

use std::marker::PhantomData;

use serde_yaml_ng::Value;

use crate::composition::Composition;
use crate::conf_tree::ConfTree;
use crate::context::ComposeContext;
use crate::overrides::Action;
use crate::schema::Schema;
use crate::typed;
use crate::value_tree::{child_path, value_at};

/// A possible word of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub text: String,
    /// A short description; may be empty.
    pub note: String,
    /// False if the word continues after `text`, as in `model=` and `runtime.`.
    pub complete: bool,
}

impl Candidate {
    pub fn complete(text: impl Into<String>, note: impl Into<String>) -> Candidate {
        Candidate { text: text.into(), note: note.into(), complete: true }
    }

    pub fn partial(text: impl Into<String>, note: impl Into<String>) -> Candidate {
        Candidate { text: text.into(), note: note.into(), complete: false }
    }
}

/// The possible overrides, given the files and the overrides before them on the command line.
///
/// Files and overrides that do not compose are ignored: the list is then shorter.
#[derive(Debug)]
pub struct Candidates<'t, C> {
    tree: &'t ConfTree,
    groups: Vec<String>,
    chosen: Vec<String>,
    keys: Value,
    schema: PhantomData<fn() -> C>,
}

impl<'t, C: Schema> Candidates<'t, C> {
    pub fn new(tree: &'t ConfTree, previous: &[String]) -> Candidates<'t, C> {
        let context = ComposeContext::current("");
        let compose = |overrides: &[String]| Composition::with_schema::<C>(tree, overrides, &context).ok();
        // One invalid override must not hide the effect of the others.
        let composition = compose(previous).or_else(|| {
            let is_valid = |text: &&String| compose(std::slice::from_ref(*text)).is_some();
            compose(&previous.iter().filter(is_valid).cloned().collect::<Vec<_>>()).or_else(|| compose(&[]))
        });
        let mut candidates = Candidates {
            tree,
            groups: tree.groups(),
            chosen: Vec::new(),
            keys: Value::Mapping(Default::default()),
            schema: PhantomData,
        };
        if let Some(composition) = composition {
            let chosen = composition.choices.iter().filter(|(_, option)| option.is_some());
            candidates.chosen = chosen.map(|(key, _)| key.clone()).collect();
            candidates.keys = composition.resolved_job().unwrap_or_else(|_| composition.job());
            if let Value::Mapping(entries) = &mut candidates.keys {
                entries.insert(Value::from("hydra"), composition.hydra());
            }
        }
        candidates
    }

    /// The overrides that start with `word`, sorted. The key is completed first, then its value.
    pub fn overrides(&self, word: &str) -> Vec<Candidate> {
        let (action, rest) = Action::split_prefix(word);
        let prefix = &word[..word.len() - rest.len()];
        let mut found = match rest.split_once('=') {
            Some((key, values)) => {
                let (head, value) = split_list(values);
                let taken: Vec<&str> = head.split(',').collect();
                let mut found = self.values(key, value);
                found.retain(|one| !taken.contains(&one.text.as_str()));
                found.iter_mut().for_each(|one| one.text = format!("{key}={head}{}", one.text));
                found
            }
            None => self.names(action, rest),
        };
        found.iter_mut().for_each(|one| one.text.insert_str(0, prefix));
        found.sort_by(|a, b| a.text.cmp(&b.text));
        found.dedup_by(|a, b| a.text == b.text);
        found
    }

    /// The options of `group` that start with `partial`.
    pub fn options(&self, group: &str, partial: &str) -> Vec<Candidate> {
        let mut options = self.tree.options(group);
        options.retain(|option| option.starts_with(partial));
        options
            .into_iter()
            .map(|option| Candidate::complete(&option, self.description(group, &option)))
            .collect()
    }

    /// The dotted keys of the job that start with `partial`, one level at a time. A map is listed twice: as `key` and `key.`.
    pub fn packages(&self, partial: &str) -> Vec<Candidate> {
        let keys = self.children(partial).into_iter().filter(|(key, _)| !key.starts_with("hydra"));
        keys.flat_map(|(key, value)| {
            let children = value.is_mapping().then(|| Candidate::partial(format!("{key}."), ""));
            [Some(Candidate::complete(key, "")), children].into_iter().flatten()
        })
        .collect()
    }

    /// Completions of the part before the `=`.
    fn names(&self, action: Action, partial: &str) -> Vec<Candidate> {
        let mut found = Vec::new();
        for group in self.groups.iter().filter(|group| group.starts_with(partial)) {
            let parent = group[partial.len()..].find('/').map(|index| &group[..partial.len() + index]);
            let is_chosen = self.chosen.contains(group);
            match (parent, action) {
                (Some(parent), _) => found.push(Candidate::partial(format!("{parent}/"), "group")),
                (None, Action::Remove) if is_chosen => found.push(Candidate::complete(group, "group")),
                (None, Action::Remove) => {}
                (None, Action::Add) if is_chosen => {}
                (None, _) if self.tree.options(group).is_empty() => {}
                (None, _) => found.push(Candidate::partial(format!("{group}="), "group")),
            }
        }
        for (key, value) in self.children(partial) {
            let is_map = value.is_mapping();
            if is_map {
                found.push(Candidate::partial(format!("{key}."), "keys"));
            }
            match action {
                // An existing key cannot be added, but a key below it can.
                Action::Add => {}
                Action::Remove if is_map && !key.contains('.') => {}
                Action::Remove => {
                    found.push(Candidate::complete(key, unquoted_text(value).unwrap_or_default()))
                }
                Action::Change | Action::Put if is_map => {}
                Action::Change | Action::Put => {
                    let note = unquoted_text(value).map(|value| format!("now {value}"));
                    found.push(Candidate::partial(format!("{key}="), note.unwrap_or_default()));
                }
            }
        }
        found
    }

    /// The keys that start with `partial`, one level below its last dot.
    fn children(&self, partial: &str) -> Vec<(String, &Value)> {
        let (parent, prefix) = partial.rsplit_once('.').unwrap_or(("", partial));
        if prefix.contains('/') {
            return Vec::new();
        }
        let entries = value_at(&self.keys, parent).and_then(Value::as_mapping).into_iter().flatten();
        let named = entries.filter_map(|(name, value)| Some((name.as_str()?, value)));
        named
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (child_path(parent, name), value))
            .collect()
    }

    /// Completions of the part after the `=` of `key`.
    fn values(&self, key: &str, partial: &str) -> Vec<Candidate> {
        let group = key.split('@').next().unwrap_or(key);
        if self.groups.iter().any(|known| known == group) {
            return self.options(group, partial);
        }
        let mut values: Vec<(String, &str)> =
            typed::allowed_values::<C>(key, &self.keys).into_iter().map(|value| (value, "")).collect();
        if let Some(now) = value_at(&self.keys, key).and_then(unquoted_text) {
            match values.iter_mut().find(|(value, _)| *value == now) {
                Some((_, note)) => *note = "now",
                None => values.push((now, "now")),
            }
        }
        values.retain(|(value, _)| value.starts_with(partial));
        values.into_iter().map(|(value, note)| Candidate::complete(value, note)).collect()
    }

    /// The first line of an option's file, if it is a comment.
    fn description(&self, group: &str, option: &str) -> String {
        let file = self.tree.read(&format!("{group}/{option}")).ok().flatten();
        let first = file.as_ref().and_then(|file| file.text.lines().next()?.strip_prefix("# "));
        first.filter(|line| !line.starts_with("@package")).unwrap_or_default().to_owned()
    }
}

/// Splits a list before its last value (`a,b,` and `c`). A comma within brackets or quotes is not a separator.
fn split_list(values: &str) -> (&str, &str) {
    let (mut depth, mut quote, mut last_start) = (0u32, None, 0);
    for (index, c) in values.char_indices() {
        match (c, quote) {
            (_, Some(open)) => quote = (c != open).then_some(open),
            ('\'' | '"', None) => quote = Some(c),
            ('[' | '{' | '(', None) => depth += 1,
            (']' | '}' | ')', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => last_start = index + 1,
            _ => {}
        }
    }
    values.split_at(last_start)
}

/// A scalar as an override writes it. `None` for lists, maps, and text that needs quotes in an override or in a shell.
fn unquoted_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:+".contains(c);
    Some(text).filter(|text| !text.is_empty() && text.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> ConfTree {
        ConfTree::from_files([
            (
                "config.yaml",
                "defaults:\n  - model: a\n  - _self_\nseed: 3\nname: 'x y'\nmap: {deep: {leaf: 1}}\n",
            ),
            ("model/a.yaml", "# The first.\nwidth: 1\n"),
            ("model/b.yaml", "width: 2\ndepth: null\n"),
            ("model/part/c.yaml", "# @package _global_\nx: 1\n"),
            ("extra/d.yaml", "y: 1\n"),
        ])
    }

    fn texts(word: &str, previous: &[&str]) -> Vec<String> {
        let previous: Vec<String> = previous.iter().map(|text| text.to_string()).collect();
        let tree = tree();
        let found = Candidates::<Value>::new(&tree, &previous).overrides(word);
        found.into_iter().map(|one| if one.complete { one.text + "|" } else { one.text }).collect()
    }

    #[test]
    fn overrides_complete_step_by_step() {
        let table: &[(&str, &[&str])] = &[
            ("mo", &["model.", "model/", "model="]),
            ("model=", &["model=a|", "model=b|"]),
            ("model=b", &["model=b|"]),
            ("model=a,", &["model=a,b|"]),
            ("model=a,b,", &[]),
            ("model=[a,", &[]),
            ("model@p=", &["model@p=a|", "model@p=b|"]),
            ("model/", &["model/part="]),
            ("model/part=", &["model/part=c|"]),
            ("model.", &["model.width="]),
            ("seed=", &["seed=3|"]),
            ("seed=4", &[]),
            ("name=", &[]),
            ("map", &["map."]),
            ("map.d", &["map.deep."]),
            ("map.deep.", &["map.deep.leaf="]),
            ("ex", &["extra="]),
            ("+", &["+extra=", "+hydra.", "+map.", "+model.", "+model/"]),
            ("+extra=", &["+extra=d|"]),
            ("++se", &["++seed="]),
            ("++seed=", &["++seed=3|"]),
            ("~", &["~hydra.", "~map.", "~model|", "~model.", "~model/", "~name|", "~seed|"]),
            ("~map.", &["~map.deep|", "~map.deep."]),
            ("nothing", &[]),
            ("a.b/c", &[]),
            ("=", &[]),
            ("é=ü,", &[]),
        ];
        for (word, expected) in table {
            assert_eq!(texts(word, &[]), *expected, "{word}");
        }
    }

    #[test]
    fn previous_overrides_apply_and_invalid_ones_are_ignored() {
        assert_eq!(texts("model.", &["model=b"]), ["model.depth=", "model.width="]);
        assert_eq!(texts("model.d", &["model=b", "nope=1", "model.width=", "["]), ["model.depth="]);
        assert_eq!(texts("model.depth=", &["model=b"]), ["model.depth=null|"]);
        assert_eq!(texts("~mo", &["~model"]), ["~model/"]);
    }

    #[test]
    fn groups_complete_even_if_a_file_is_invalid() {
        let tree = ConfTree::from_files([("config.yaml", "a: ["), ("g/x.yaml", "# About x.\n")]);
        let candidates = Candidates::<Value>::new(&tree, &[]);
        assert_eq!(candidates.overrides(""), [Candidate::partial("g=", "group")]);
        assert_eq!(candidates.overrides("g="), [Candidate::complete("g=x", "About x.")]);
    }

    #[test]
    fn typed_keys_complete_their_values() {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind {
            Dense,
            MixtureOfExperts,
        }

        #[derive(serde::Deserialize)]
        struct Model {
            #[allow(dead_code)]
            kind: Kind,
            #[allow(dead_code)]
            fast: Option<bool>,
        }

        impl Schema for Model {}

        let tree = ConfTree::from_files([("config.yaml", "kind: dense\nfast: null\n")]);
        let candidates = Candidates::<Model>::new(&tree, &[]);
        let values = |word: &str| -> Vec<String> {
            candidates.overrides(word).into_iter().map(|one| one.text[word.len()..].to_owned()).collect()
        };
        assert_eq!(values("kind="), ["dense", "mixture_of_experts"]);
        assert_eq!(values("fast="), ["false", "null", "true"]);
    }

    #[test]
    fn packages_complete_with_and_without_a_dot() {
        let tree = tree();
        let found = Candidates::<Value>::new(&tree, &[]).packages("m");
        let texts: Vec<_> = found.iter().map(|one| (one.text.as_str(), one.complete)).collect();
        assert_eq!(texts, [("model", true), ("model.", false), ("map", true), ("map.", false)]);
    }
}
