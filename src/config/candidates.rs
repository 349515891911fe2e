//! What an override may go on with: groups, options, keys and values that begin as its word does.

use serde_yaml_ng::Value;

use super::compose::Surroundings;
use super::composition::Composition;
use super::conf_tree::ConfTree;
use super::overrides::Action;
use super::typed;
use super::value_tree::{child_path, value_at};

/// A word that could stand on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub text: String,
    /// What it is, in a few words; empty where there is nothing to say.
    pub note: String,
    /// Whether the word ends here; else more is to follow (`model=`, `runtime.`).
    pub whole: bool,
}

impl Candidate {
    pub fn whole(text: impl Into<String>, note: impl Into<String>) -> Candidate {
        Candidate { text: text.into(), note: note.into(), whole: true }
    }

    pub fn open(text: impl Into<String>, note: impl Into<String>) -> Candidate {
        Candidate { text: text.into(), note: note.into(), whole: false }
    }
}

/// What there is to choose from, given the files and the overrides that stand on the line already.
///
/// It answers whatever it is asked: files or overrides that do not compose are left out, and then it knows less.
#[derive(Debug)]
pub struct Candidates<'t> {
    tree: &'t ConfTree,
    groups: Vec<String>,
    chosen: Vec<String>,
    keys: Value,
}

impl<'t> Candidates<'t> {
    pub fn new(tree: &'t ConfTree, earlier: &[String]) -> Candidates<'t> {
        let surroundings = Surroundings::here();
        let compose = |overrides: &[String]| Composition::new(tree, overrides, &surroundings).ok();
        // One bad word must not hide what the others did.
        let composition = compose(earlier).or_else(|| {
            let alone = |given: &&String| compose(std::slice::from_ref(*given)).is_some();
            compose(&earlier.iter().filter(alone).cloned().collect::<Vec<_>>()).or_else(|| compose(&[]))
        });
        let mut candidates = Candidates {
            tree,
            groups: tree.groups(),
            chosen: Vec::new(),
            keys: Value::Mapping(Default::default()),
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

    /// The overrides that `word` is the beginning of, sorted; a key and its value are two steps.
    pub fn overrides(&self, word: &str) -> Vec<Candidate> {
        let (action, rest) = Action::of_prefix(word);
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

    /// The options of `group` that begin with `partial`.
    pub fn options(&self, group: &str, partial: &str) -> Vec<Candidate> {
        let mut options = self.tree.options(group);
        options.retain(|option| option.starts_with(partial));
        options.into_iter().map(|option| Candidate::whole(&option, self.about(group, &option))).collect()
    }

    /// The dotted keys of the job one step on from `partial`: those with keys of their own twice, to stop or go on.
    pub fn packages(&self, partial: &str) -> Vec<Candidate> {
        let keys = self.children(partial).into_iter().filter(|(key, _)| !key.starts_with("hydra"));
        keys.flat_map(|(key, value)| {
            let below = value.is_mapping().then(|| Candidate::open(format!("{key}."), ""));
            [Some(Candidate::whole(key, "")), below].into_iter().flatten()
        })
        .collect()
    }

    /// What may stand before the `=`.
    fn names(&self, action: Action, partial: &str) -> Vec<Candidate> {
        let mut found = Vec::new();
        for group in self.groups.iter().filter(|group| group.starts_with(partial)) {
            let next = group[partial.len()..].find('/').map(|at| &group[..partial.len() + at]);
            let is_chosen = self.chosen.contains(group);
            match (next, action) {
                (Some(above), _) => found.push(Candidate::open(format!("{above}/"), "group")),
                (None, Action::Remove) if is_chosen => found.push(Candidate::whole(group, "group")),
                (None, Action::Remove) => {}
                (None, Action::Add) if is_chosen => {}
                (None, _) if self.tree.options(group).is_empty() => {}
                (None, _) => found.push(Candidate::open(format!("{group}="), "group")),
            }
        }
        for (key, value) in self.children(partial) {
            let is_map = value.is_mapping();
            if is_map {
                found.push(Candidate::open(format!("{key}."), "keys"));
            }
            match action {
                // What is there cannot be added; what is below it may not be there.
                Action::Add => {}
                Action::Remove if is_map && !key.contains('.') => {}
                Action::Remove => found.push(Candidate::whole(key, shown(value).unwrap_or_default())),
                Action::Change | Action::Put if is_map => {}
                Action::Change | Action::Put => {
                    let note = shown(value).map(|value| format!("now {value}"));
                    found.push(Candidate::open(format!("{key}="), note.unwrap_or_default()));
                }
            }
        }
        found
    }

    /// The keys that begin with `partial` and go one step on from its last dot.
    fn children(&self, partial: &str) -> Vec<(String, &Value)> {
        let (above, begun) = partial.rsplit_once('.').unwrap_or(("", partial));
        if begun.contains('/') {
            return Vec::new();
        }
        let entries = value_at(&self.keys, above).and_then(Value::as_mapping).into_iter().flatten();
        let named = entries.filter_map(|(name, value)| Some((name.as_str()?, value)));
        named
            .filter(|(name, _)| name.starts_with(begun))
            .map(|(name, value)| (child_path(above, name), value))
            .collect()
    }

    /// What may stand after the `=` of `key`.
    fn values(&self, key: &str, partial: &str) -> Vec<Candidate> {
        let group = key.split('@').next().unwrap_or(key);
        if self.groups.iter().any(|known| known == group) {
            return self.options(group, partial);
        }
        let mut values: Vec<(String, &str)> =
            typed::allowed_values(key, &self.keys).into_iter().map(|value| (value, "")).collect();
        if let Some(now) = value_at(&self.keys, key).and_then(shown) {
            match values.iter_mut().find(|(value, _)| *value == now) {
                Some((_, note)) => *note = "now",
                None => values.push((now, "now")),
            }
        }
        values.retain(|(value, _)| value.starts_with(partial));
        values.into_iter().map(|(value, note)| Candidate::whole(value, note)).collect()
    }

    /// The first comment of an option's file.
    fn about(&self, group: &str, option: &str) -> String {
        let file = self.tree.read(&format!("{group}/{option}")).ok().flatten();
        let first = file.as_ref().and_then(|file| file.text.lines().next()?.strip_prefix("# "));
        first.filter(|line| !line.starts_with("@package")).unwrap_or_default().to_owned()
    }
}

/// The values before the last of a list (`a,b,`), and the last. A comma within brackets or quotes divides nothing.
fn split_list(values: &str) -> (&str, &str) {
    let (mut depth, mut quote, mut at) = (0u32, None, 0);
    for (place, c) in values.char_indices() {
        match (c, quote) {
            (_, Some(open)) => quote = (c != open).then_some(open),
            ('\'' | '"', None) => quote = Some(c),
            ('[' | '{' | '(', None) => depth += 1,
            (']' | '}' | ')', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => at = place + 1,
            _ => {}
        }
    }
    values.split_at(at)
}

/// A value as an override spells it; `None` for what would need quotes there, in a shell, or is no single value.
fn shown(value: &Value) -> Option<String> {
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
        ConfTree::of_files([
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

    fn texts(word: &str, earlier: &[&str]) -> Vec<String> {
        let earlier: Vec<String> = earlier.iter().map(|text| text.to_string()).collect();
        let tree = tree();
        let found = Candidates::new(&tree, &earlier).overrides(word);
        found.into_iter().map(|one| if one.whole { one.text + "|" } else { one.text }).collect()
    }

    #[test]
    fn one_step_at_a_time() {
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
        for (word, wanted) in table {
            assert_eq!(texts(word, &[]), *wanted, "{word}");
        }
    }

    #[test]
    fn what_stands_on_the_line_counts_and_what_is_wrong_there_does_not() {
        assert_eq!(texts("model.", &["model=b"]), ["model.depth=", "model.width="]);
        assert_eq!(texts("model.d", &["model=b", "nope=1", "model.width=", "["]), ["model.depth="]);
        assert_eq!(texts("model.depth=", &["model=b"]), ["model.depth=null|"]);
        assert!(texts("~mo", &["~model"]).iter().all(|text| text != "~model|"));
    }

    #[test]
    fn broken_files_leave_the_groups() {
        let tree = ConfTree::of_files([("config.yaml", "a: ["), ("g/x.yaml", "# About x.\n")]);
        let candidates = Candidates::new(&tree, &[]);
        assert_eq!(candidates.overrides(""), [Candidate::open("g=", "group")]);
        assert_eq!(candidates.overrides("g="), [Candidate::whole("g=x", "About x.")]);
    }

    #[test]
    fn typed_keys_know_their_values() {
        let tree = ConfTree::built_in();
        let candidates = Candidates::new(&tree, &[]);
        let values = |word: &str| -> Vec<String> {
            candidates.overrides(word).into_iter().map(|one| one.text[word.len()..].to_owned()).collect()
        };
        assert_eq!(values("model.dtype="), ["bf16", "f16", "f32"]);
        assert_eq!(values("output.record="), ["false", "true"]);
        assert_eq!(values("output.tui.ascii="), ["false", "null", "true"]);
        assert_eq!(values("output.tui.theme=li"), ["ght"]);
        assert_eq!(values("telemetry.probe="), ["auto", "none", "nvml", "sim"]);
        assert_eq!(values("model.dtype=f32,"), ["bf16", "f16"]);
        assert_eq!(values("runtime.seed="), ["0"]);
        let notes = candidates.overrides("model=smollm2_135m");
        assert_eq!(notes[0].note, "SmolLM2 135M: small enough for any laptop, and the default.");
    }

    #[test]
    fn packages_stop_or_go_on() {
        let tree = tree();
        let found = Candidates::new(&tree, &[]).packages("m");
        let texts: Vec<_> = found.iter().map(|one| (one.text.as_str(), one.whole)).collect();
        assert_eq!(texts, [("model", true), ("model.", false), ("map", true), ("map.", false)]);
    }
}
