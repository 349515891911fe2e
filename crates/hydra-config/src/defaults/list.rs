//! Builds the list of files to merge from the primary file and the overrides, by Hydra's rules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use serde_yaml_ng::{Mapping, Value};

use super::entry::{Choice, Entry, Target, package_header};
use crate::conf_tree::ConfTree;
use crate::context::ComposeContext;
use crate::error::{ConfigError, Names, Origin};
use crate::interpolate::resolve_text;
use crate::overrides::{Action, Override, OverrideValue};
use crate::typed;
use crate::value_tree::MISSING;
use crate::yaml::{self, Document};

/// Maximum nesting of defaults lists and total number of files.
const MAX_DEPTH: usize = 32;
const MAX_ITEMS: usize = 2_000;

/// A file of the composition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultsItem {
    /// Path in the tree, without `.yaml`.
    pub config: String,
    /// Dotted key of its content; empty for the root.
    pub package: String,
    /// The file whose defaults list names it.
    pub parent: Option<String>,
    /// Whether it is the `_self_` of a file that has a defaults list.
    pub is_self: bool,
    /// The list entry or override that selects it.
    pub origin: Origin,
    choice_key: Option<String>,
}

/// The files to merge in order, and the selected options.
pub(crate) struct DefaultsList {
    pub(crate) items: Vec<DefaultsItem>,
    /// The selected option of each group by its override key; `None` if no option is selected.
    pub(crate) choices: BTreeMap<String, Option<String>>,
    pub(crate) files: Files,
}

/// A parsed file.
#[derive(Debug)]
pub(crate) struct LoadedFile {
    pub(crate) origin: Origin,
    /// Its content without the defaults list.
    pub(crate) document: Document,
    entries: Vec<Entry>,
    header: Option<String>,
}

/// The group of launchers, and the option that Hydra selects by itself.
const LAUNCHER: (&str, &str) = ("hydra/launcher", "basic");

/// The parsed files by their path in the tree; `None` for a file that does not exist.
pub(crate) type Files = HashMap<String, Option<Rc<LoadedFile>>>;

/// Lists the files that `primary` and the overrides of groups select.
pub(crate) fn defaults_list(
    tree: &ConfTree,
    primary: &str,
    group_overrides: &[&Override],
    context: &ComposeContext,
) -> Result<DefaultsList, ConfigError> {
    let mut builder = Builder::new(tree, context);
    builder.add_overrides(group_overrides)?;
    let mut root = Entry::new(Target::Config(primary.to_owned()), None, Origin::Composition);
    root.primary = true;
    let node = builder.expand(root, None, false, &mut Vec::new())?;
    let mut items = Vec::new();
    flatten(&node, None, None, &mut items);

    let mut keys = BTreeSet::new();
    for item in &items {
        if let Some(key) = item.choice_key.as_ref().filter(|key| !keys.insert((*key).clone())) {
            let message = format!("the group {key} is listed more than once");
            return Err(ConfigError::BadDefaults { origin: item.origin.clone(), message });
        }
    }
    builder.ensure_all_used()?;
    let choices = builder.choices.into_iter().collect();
    Ok(DefaultsList { items, choices, files: builder.files })
}

/// A choice that replaces that of a defaults list.
struct Replacement {
    choice: Choice,
    origin: Origin,
    used: bool,
    /// The override, if the replacement is from the command line.
    given: Option<Override>,
}

struct Deletion {
    option: Option<String>,
    given: Override,
    used: bool,
}

/// An entry and the entries of its file's defaults list.
struct Node {
    entry: Entry,
    children: Vec<Node>,
}

struct Builder<'t> {
    tree: &'t ConfTree,
    context: &'t ComposeContext,
    files: Files,
    replacements: BTreeMap<String, Replacement>,
    deletions: BTreeMap<String, Deletion>,
    added: Vec<Entry>,
    /// The selected options in the order of expansion.
    choices: Vec<(String, Option<String>)>,
    keys_of_group: BTreeMap<String, BTreeSet<String>>,
    /// Keys of choices added with `+`.
    added_keys: BTreeSet<String>,
    count: usize,
}

impl<'t> Builder<'t> {
    fn new(tree: &'t ConfTree, context: &'t ComposeContext) -> Builder<'t> {
        Builder {
            tree,
            context,
            files: HashMap::new(),
            replacements: BTreeMap::new(),
            deletions: BTreeMap::new(),
            added: Vec::new(),
            choices: Vec::new(),
            keys_of_group: BTreeMap::new(),
            added_keys: BTreeSet::new(),
            count: 0,
        }
    }

    fn add_overrides(&mut self, group_overrides: &[&Override]) -> Result<(), ConfigError> {
        for given in group_overrides {
            let key = given.choice_key();
            let value = match &given.value {
                None => Value::Null,
                Some(OverrideValue::Single(element)) => {
                    element.to_value().map_err(|message| given.bad(message))?
                }
                Some(OverrideValue::Sweep(_)) => {
                    return Err(given.bad("several options need --multirun (-m)"));
                }
            };
            let choice = |value: &Value| match value {
                Value::String(name) if !name.is_empty() => Choice::read(value),
                Value::Sequence(_) => Choice::read(value),
                other => Err(format!(
                    "the group {:?} expects the name of an option or a list of names, not {}; write ~{key} to remove it",
                    given.key,
                    typed::described(other)
                )),
            };
            match given.action {
                Action::Put => {
                    return Err(given.bad(format!("++ cannot select an option; write {key}=… or +{key}=…")));
                }
                Action::Remove => {
                    let option = match value {
                        Value::Null => None,
                        Value::String(name) => Some(name),
                        other => {
                            return Err(given
                                .bad(format!("an option must be a name, not {}", typed::described(&other))));
                        }
                    };
                    self.deletions.insert(key, Deletion { option, given: (*given).clone(), used: false });
                }
                Action::Add => {
                    let choice = choice(&value).map_err(|message| given.bad(message))?;
                    let target = Target::Group { group: given.key.clone(), choice };
                    let mut entry = Entry::new(target, given.package.clone(), given.origin());
                    entry.added = true;
                    self.added.push(entry);
                }
                Action::Change => {
                    let choice = choice(&value).map_err(|message| given.bad(message))?;
                    let (origin, given) = (given.origin(), Some((*given).clone()));
                    self.replacements.insert(key, Replacement { choice, origin, used: false, given });
                }
            }
        }
        Ok(())
    }

    fn load(&mut self, path: &str) -> Result<Option<Rc<LoadedFile>>, ConfigError> {
        if let Some(known) = self.files.get(path) {
            return Ok(known.clone());
        }
        let loaded = self.read(path)?.map(Rc::new);
        self.files.insert(path.to_owned(), loaded.clone());
        Ok(loaded)
    }

    fn read(&self, path: &str) -> Result<Option<LoadedFile>, ConfigError> {
        let Some(file) = self.tree.read(path)? else { return Ok(None) };
        let mut document = yaml::parse(&file.text, &file.origin)?;
        let bad = |line: usize, message: String| ConfigError::BadDefaults {
            origin: file.origin.at_line(line),
            message,
        };
        let content = match &mut document.value {
            value @ Value::Null => {
                *value = Value::Mapping(Mapping::new());
                None
            }
            Value::Mapping(content) => content.shift_remove("defaults"),
            other => {
                return Err(ConfigError::WrongType {
                    key: path.to_owned(),
                    got: typed::described(other),
                    expected: "keys and values".into(),
                    origin: file.origin,
                });
            }
        };
        let items = match content {
            None => Vec::new(),
            Some(Value::Sequence(items)) => items,
            Some(other) => {
                let message = format!("expected a list, got {}", typed::described(&other));
                return Err(bad(document.line_of("defaults"), message));
            }
        };
        let mut entries = Vec::new();
        for (n, item) in items.iter().enumerate() {
            // The line of `group: option` is known; that of a plain name is the line of the list.
            let name = item.as_mapping().and_then(|entry| entry.keys().next()?.as_str()).unwrap_or_default();
            let line = document.line_of(&format!("defaults.{n}.{name}"));
            let entry = Entry::read(item, file.origin.at_line(line)).map_err(|message| bad(line, message))?;
            entries.push(entry);
        }
        let header = package_header(&file.text).map_err(|message| bad(1, message))?;
        Ok(Some(LoadedFile { origin: file.origin, document, entries, header }))
    }

    /// Expands an entry with the defaults list of its file.
    fn expand(
        &mut self,
        mut entry: Entry,
        parent: Option<&Origin>,
        interpolated: bool,
        open: &mut Vec<String>,
    ) -> Result<Node, ConfigError> {
        let fail = |message: String| ConfigError::BadDefaults {
            origin: parent.unwrap_or(&Origin::Composition).clone(),
            message,
        };
        self.count += 1;
        if self.count > MAX_ITEMS {
            return Err(fail(format!("the defaults lists name more than {MAX_ITEMS} files")));
        }
        let path = entry.config_path();
        let is_missing = entry.name() == Some(MISSING);
        let is_group = matches!(entry.target, Target::Group { .. });
        if entry.name().is_some() && !is_missing {
            entry.header = self.load(&path)?.and_then(|loaded| loaded.header.clone());
        }
        let leaf = |entry: Entry| Ok(Node { entry, children: Vec::new() });
        if is_group {
            let key = entry.choice_key();
            let deletion = self.deletions.get_mut(&key);
            let selected = |option: &Option<String>| option.is_none() || option.as_deref() == entry.name();
            if let Some(deletion) = deletion.filter(|deletion| selected(&deletion.option)) {
                deletion.used = true;
                entry.deleted = true;
                return leaf(entry);
            }
            self.record_choice(&key, &entry)?;
        }
        if entry.name().is_none() {
            return leaf(entry);
        }
        if is_missing {
            let (group, key) = (entry.group_path(), entry.choice_key());
            let all = self.tree.options(&group).join(", ");
            return Err(fail(format!("select an option for {group:?} with {key}=…; the options are {all}")));
        }
        let Some(loaded) = self.load(&path)? else {
            if entry.optional {
                entry.deleted = true;
                return leaf(entry);
            }
            return Err(self.not_found(&entry));
        };
        if open.contains(&path) {
            return Err(fail(format!("cycle: {} → {path}", open.join(" → "))));
        }
        if open.len() == MAX_DEPTH {
            return Err(fail("the defaults lists are nested too deep".into()));
        }

        let mut entries = loaded.entries.clone();
        let adds = entry.primary && !self.added.is_empty();
        if !entries.is_empty() || adds {
            let named = entries.iter().any(|entry| !entry.overrides);
            match entries.iter().filter(|entry| entry.is_own()).count() {
                0 if named || entries.is_empty() => {
                    entries.push(Entry::new(Target::Own, None, loaded.origin.clone()));
                }
                0 | 1 => {}
                _ => {
                    let message = "_self_ is listed twice".into();
                    return Err(ConfigError::BadDefaults { origin: loaded.origin.clone(), message });
                }
            }
        }
        if entry.primary {
            entries.append(&mut self.added);
            // Hydra's own configuration selects it, so files and overrides replace it.
            if self.tree.options(LAUNCHER.0).iter().any(|option| option == LAUNCHER.1) {
                if entries.is_empty() {
                    entries.push(Entry::new(Target::Own, None, loaded.origin.clone()));
                }
                let (group, choice) = (LAUNCHER.0.to_owned(), Choice::One(LAUNCHER.1.to_owned()));
                entries.insert(0, Entry::new(Target::Group { group, choice }, None, Origin::Composition));
            }
        }
        let (group, package) = (entry.group_path(), entry.final_package());
        for entry in entries.iter_mut().filter(|entry| !entry.is_own()) {
            entry.set_parent(&group, &package);
        }
        self.take_replacements(&entries, interpolated)?;

        open.push(path);
        let children = self.children(entries, &loaded.origin, interpolated, open)?;
        open.pop();
        Ok(Node { entry, children })
    }

    /// Expands entries in reverse order, so that the replacements of later entries apply to earlier ones.
    fn children(
        &mut self,
        entries: Vec<Entry>,
        file: &Origin,
        interpolated: bool,
        open: &mut Vec<String>,
    ) -> Result<Vec<Node>, ConfigError> {
        let mut children = Vec::new();
        for mut entry in entries.into_iter().rev().filter(|entry| !entry.overrides) {
            if entry.is_own() {
                children.push(Ok(Node { entry, children: Vec::new() }));
                continue;
            }
            if let Target::Group { .. } = entry.target {
                let key = entry.choice_key();
                if let Some(replacement) = self.replacements.get_mut(&key) {
                    replacement.used = true;
                    entry.origin = replacement.origin.clone();
                    let replaced = replacement.choice.clone();
                    if let Target::Group { choice, .. } = &mut entry.target {
                        *choice = replaced;
                    }
                }
            }
            match &entry.target {
                Target::Group { group, choice: Choice::Several(options) } => {
                    for option in options.iter().rev() {
                        if option.contains("${") {
                            return Err(ConfigError::BadDefaults {
                                origin: entry.origin.clone(),
                                message: format!(
                                    "{option:?}: a list of options cannot contain interpolations"
                                ),
                            });
                        }
                        let one = entry.with_option(group, option);
                        children.push(Ok(self.expand(one, Some(file), interpolated, open)?));
                    }
                }
                // Entries with ${…} are expanded after the other choices are known.
                _ if interpolated_text(&entry).contains("${") => children.push(Err(entry)),
                _ => children.push(Ok(self.expand(entry, Some(file), interpolated, open)?)),
            }
        }
        let choice = |(key, option): &(String, Option<String>)| {
            (Value::from(key.as_str()), option.as_deref().map_or(Value::Null, Value::from))
        };
        let known = Value::Mapping(self.choices.iter().map(choice).collect());
        let mut expanded = Vec::new();
        for child in children {
            expanded.push(match child {
                Ok(node) => node,
                Err(mut entry) => {
                    resolve_entry(&mut entry, &known, self.context)?;
                    self.expand(entry, Some(file), true, open)?
                }
            });
        }
        expanded.reverse();
        Ok(expanded)
    }

    /// Records the replacements of the `override` entries of a list; the first one of a group wins.
    fn take_replacements(&mut self, entries: &[Entry], interpolated: bool) -> Result<(), ConfigError> {
        let mut last_override: Option<&Entry> = None;
        for entry in entries.iter().filter(|entry| !entry.is_own()) {
            let fail = |message: String| ConfigError::BadDefaults { origin: entry.origin.clone(), message };
            if let Some(before) = last_override.filter(|_| !entry.overrides && !entry.added) {
                let key = before.choice_key();
                return Err(fail(format!(
                    "`override {key}` is listed before {}; put overrides last",
                    entry.choice_key()
                )));
            }
            let Target::Group { choice, .. } = &entry.target else { continue };
            if !entry.overrides {
                continue;
            }
            last_override = Some(entry);
            let key = entry.choice_key();
            if interpolated {
                return Err(fail(format!("`override {key}` is not allowed in a file selected with ${{…}}")));
            }
            let replacement = Replacement {
                choice: choice.clone(),
                origin: entry.origin.clone(),
                used: false,
                given: None,
            };
            self.replacements.entry(key).or_insert(replacement);
        }
        Ok(())
    }

    fn record_choice(&mut self, key: &str, entry: &Entry) -> Result<(), ConfigError> {
        let option = entry.name().map(str::to_owned);
        if entry.added {
            self.added_keys.insert(key.to_owned());
        }
        match self.choices.iter().find(|(known, _)| known == key) {
            None => self.choices.push((key.to_owned(), option)),
            Some((_, before)) if *before == option => {}
            Some((_, before)) => {
                let before = before.as_deref().unwrap_or("null");
                let now = option.as_deref().unwrap_or("null");
                let hint = match self.added_keys.contains(key) {
                    true => "remove the + to change it",
                    false => "write `override` before the entry that must win",
                };
                return Err(ConfigError::BadDefaults {
                    origin: entry.origin.clone(),
                    message: format!(
                        "the group {key:?} is already selected ({now} here, {before} elsewhere); {hint}"
                    ),
                });
            }
        }
        self.keys_of_group.entry(entry.group_path()).or_default().insert(key.to_owned());
        Ok(())
    }

    fn not_found(&self, entry: &Entry) -> ConfigError {
        let (group, origin) = (entry.group_path(), entry.origin.clone());
        let name = entry.name().unwrap_or_default();
        if entry.primary {
            let message = format!("there is no {name}.yaml");
            return ConfigError::BadDefaults { origin, message };
        }
        if group.is_empty() {
            return ConfigError::BadDefaults { origin, message: format!("there is no config {name:?}") };
        }
        if !self.tree.has_group(&group) {
            let names = Names::near(&group, &self.tree.groups()).into();
            return ConfigError::UnknownGroup { group, names, origin };
        }
        let names = Names::near(name, &self.tree.options(&group)).into();
        ConfigError::UnknownOption { group, option: name.to_owned(), names, origin }
    }

    fn ensure_all_used(&self) -> Result<(), ConfigError> {
        if let Some((key, replacement)) = self.replacements.iter().find(|(_, replacement)| !replacement.used)
        {
            let group = key.split('@').next().unwrap_or_default();
            let near = self.keys_of_group.get(group).into_iter().flatten().cloned().collect::<Vec<_>>();
            let mut message = format!("the defaults list has no group {key:?}");
            if !near.is_empty() {
                message += &format!("; did you mean {}?", near.join(", "));
            }
            return Err(match &replacement.given {
                Some(given) => given.bad(format!("{message}; to add it, write \"+{}\"", given.text)),
                None => ConfigError::BadDefaults { origin: replacement.origin.clone(), message },
            });
        }
        match self.deletions.iter().find(|(_, deletion)| !deletion.used) {
            None => Ok(()),
            Some((key, Deletion { option: Some(_), given, .. }))
                if self.choices.iter().any(|(k, _)| k == key) =>
            {
                Err(given.bad(format!("another option is selected for {key:?}")))
            }
            Some((key, deletion)) => {
                Err(deletion.given.bad(format!("no option is selected for the group {key:?}")))
            }
        }
    }
}

/// The part of an entry that can contain `${…}`.
fn interpolated_text(entry: &Entry) -> &str {
    match &entry.target {
        Target::Config(path) => path,
        Target::Group { choice: Choice::One(name), .. } => name,
        _ => "",
    }
}

fn resolve_entry(entry: &mut Entry, known: &Value, context: &ComposeContext) -> Result<(), ConfigError> {
    let fail = |message: String| ConfigError::BadDefaults { origin: entry.origin.clone(), message };
    let text = interpolated_text(entry).to_owned();
    let resolved = match resolve_text(&text, known, context) {
        Ok(Value::String(resolved)) => resolved,
        Ok(other) => return Err(fail(format!("{text:?} is {}, not a name", typed::described(&other)))),
        Err(error) => {
            let keys: Vec<&str> =
                known.as_mapping().into_iter().flatten().filter_map(|(key, _)| key.as_str()).collect();
            return Err(fail(format!("{error}; known choices: {}", keys.join(", "))));
        }
    };
    match &mut entry.target {
        Target::Config(path) => *path = resolved,
        Target::Group { choice, .. } => *choice = Choice::One(resolved),
        Target::Own => {}
    }
    Ok(())
}

fn flatten(node: &Node, parent: Option<&Entry>, grandparent: Option<&Entry>, items: &mut Vec<DefaultsItem>) {
    let entry = &node.entry;
    if !node.children.is_empty() {
        for child in &node.children {
            flatten(child, Some(entry), parent, items);
        }
        return;
    }
    if entry.deleted {
        return;
    }
    let (file, above) = match (entry.is_own(), parent) {
        (true, Some(file)) => (file, grandparent),
        (true, None) => return,
        (false, above) => (entry, above),
    };
    if file.name().is_none() {
        return;
    }
    let is_group = matches!(entry.target, Target::Group { .. });
    items.push(DefaultsItem {
        config: file.config_path(),
        package: file.final_package(),
        parent: above.map(Entry::config_path),
        is_self: entry.is_own(),
        origin: file.origin.clone(),
        choice_key: is_group.then(|| entry.choice_key()),
    });
}
