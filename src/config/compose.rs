//! The defaults list, the choice of options, the merge, and the overrides on top.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_yaml_ng::{Mapping, Value};

use super::conf_tree::{ConfFile, ConfTree};
use super::defaults::{DefaultsEntry, package_header, picked_option};
use super::error::{ConfigError, Names, Origin};
use super::interpolate::resolve;
use super::overrides::{Action, Override};
use super::run_config::RunConfig;
use super::value_tree::{Origins, child_path, keys_of, merge_at, value_at, value_at_mut};
use super::{typed, yaml};

/// The file every composition starts from.
const PRIMARY: &str = "config";

/// Defaults lists may name files with defaults lists, this deep.
const MAX_DEFAULTS_DEPTH: usize = 16;

/// One composed configuration and how it came about.
#[derive(Debug, Clone)]
pub struct Composed {
    pub config: RunConfig,
    /// The whole configuration, interpolations resolved.
    pub tree: Value,
    /// The option chosen for each group.
    pub choices: BTreeMap<String, String>,
    /// As they were typed.
    pub overrides: Vec<String>,
}

impl Composed {
    /// The resolved configuration as YAML, in the order of the files.
    pub fn to_yaml(&self) -> String {
        // Keys are text and values are plain: there is nothing the writer could refuse.
        serde_yaml_ng::to_string(&self.tree).unwrap_or_default()
    }

    /// The overrides as a YAML list, as they were typed.
    pub fn overrides_yaml(&self) -> String {
        serde_yaml_ng::to_string(&self.overrides).unwrap_or_default()
    }
}

/// What interpolations may ask of the world outside the files.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub now: jiff::Zoned,
    pub cwd: PathBuf,
}

impl Surroundings {
    /// This moment, in this process's working directory.
    pub fn here() -> Surroundings {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        Surroundings { now: jiff::Zoned::now(), cwd }
    }
}

/// Composes `config.yaml`, the options its defaults list names, and `overrides`.
pub fn compose(tree: &ConfTree, overrides: &[String]) -> Result<Composed, ConfigError> {
    compose_in(tree, overrides, &Surroundings::here())
}

/// `compose` at a given time and place.
pub fn compose_in(
    tree: &ConfTree,
    overrides: &[String],
    surroundings: &Surroundings,
) -> Result<Composed, ConfigError> {
    let parsed = overrides.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let (of_groups, of_values): (Vec<_>, Vec<_>) =
        parsed.into_iter().partition(|given| given.key.contains('/') || tree.has_group(&given.key));

    let mut draft = Draft::new(tree);
    draft.choose(of_groups)?;
    for given in &of_values {
        draft.apply(given, surroundings)?;
    }
    let (config, resolved) = draft.finish(surroundings)?;
    Ok(Composed { config, tree: resolved, choices: draft.choices, overrides: overrides.to_vec() })
}

/// What the overrides ask of one group.
struct Pick {
    given: Override,
    used: bool,
}

/// A configuration in the making.
#[derive(Clone)]
struct Draft<'t> {
    tree: &'t ConfTree,
    root: Value,
    origins: Origins,
    choices: BTreeMap<String, String>,
}

impl<'t> Draft<'t> {
    fn new(tree: &'t ConfTree) -> Draft<'t> {
        let root = Value::Mapping(Mapping::new());
        Draft { tree, root, origins: Origins::default(), choices: BTreeMap::new() }
    }

    /// Loads the primary file and everything it names, with the options that `of_groups` ask for.
    fn choose(&mut self, of_groups: Vec<Override>) -> Result<(), ConfigError> {
        let mut added = Vec::new();
        let mut picks = BTreeMap::new();
        for given in of_groups {
            if let Action::Add(_) = given.action {
                added.push(given);
            } else {
                picks.insert(given.key.clone(), Pick { given, used: false });
            }
        }
        let file = self.tree.read(PRIMARY)?.ok_or_else(|| ConfigError::BadDefaults {
            origin: Origin::Composition,
            message: format!("there is no {PRIMARY}.yaml"),
        })?;
        self.load(file, Place { name: PRIMARY, group: "", package: "" }, &mut picks, &mut Vec::new())?;

        for pick in picks.into_values().filter(|pick| !pick.used) {
            let Override { text, key, action } = pick.given;
            if !self.tree.has_group(&key) {
                let names = Names::near(&key, &self.tree.groups()).into();
                return Err(ConfigError::UnknownGroup { group: key, names, origin: Origin::Override(text) });
            }
            match action {
                Action::Put(_) => added.push(Override { text, key, action }),
                Action::Remove(_) => {
                    let message = format!("no option is chosen for the group {key:?}");
                    return Err(ConfigError::BadOverride { text, message });
                }
                _ => {
                    let message =
                        format!("the defaults list has no group {key:?}; to add it, write \"+{text}\"");
                    return Err(ConfigError::BadOverride { text, message });
                }
            }
        }
        for given in added {
            if self.choices.contains_key(&given.key) {
                let message = format!("the group {:?} is chosen already; leave out the +", given.key);
                return Err(ConfigError::BadOverride { text: given.text, message });
            }
            if let Some(option) = picked_option(&given, None)? {
                let package = given.key.replace('/', ".");
                let origin = given.origin();
                self.load_option(
                    &given.key,
                    &option,
                    &package,
                    &origin,
                    &mut BTreeMap::new(),
                    &mut Vec::new(),
                )?;
            }
        }
        Ok(())
    }

    /// Merges one file, and at their places in its defaults list the files that it names.
    fn load(
        &mut self,
        file: ConfFile,
        place: Place<'_>,
        picks: &mut BTreeMap<String, Pick>,
        open: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let bad = |message: String| ConfigError::BadDefaults { origin: file.origin.clone(), message };
        if open.iter().any(|name| name == place.name) {
            return Err(bad(format!("{} → {} names itself", open.join(" → "), place.name)));
        }
        if open.len() == MAX_DEFAULTS_DEPTH {
            return Err(bad("files name files too deep".into()));
        }
        let mut content = match yaml::parse(&file.text, &file.origin)? {
            Value::Mapping(content) => content,
            Value::Null => Mapping::new(),
            other => {
                return Err(ConfigError::WrongType {
                    key: if place.package.is_empty() { "the file".into() } else { place.package.to_owned() },
                    got: typed::described(&other),
                    wants: "keys and values".into(),
                    origin: file.origin,
                });
            }
        };
        let header = package_header(&file.text, place.package);
        let package = header.as_deref().unwrap_or(place.package);
        let mut entries = match content.shift_remove("defaults") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Sequence(entries)) => entries,
            Some(other) => return Err(bad(format!("want a list, got {}", typed::described(&other)))),
        };
        let own = Value::from("_self_");
        match entries.iter().filter(|entry| **entry == own).count() {
            0 => entries.push(own.clone()),
            1 => {}
            _ => return Err(bad("_self_ stands there twice".into())),
        }

        open.push(place.name.to_owned());
        let mut content = Some(Value::Mapping(content));
        for entry in entries {
            if entry == own {
                merge_at(
                    &mut self.root,
                    package,
                    content.take().unwrap_or_default(),
                    &file.origin,
                    &mut self.origins,
                )
                .map_err(bad)?;
                continue;
            }
            match DefaultsEntry::read(&entry, place.group).map_err(bad)? {
                DefaultsEntry::Config { name } => {
                    let named = self.tree.read(&name)?;
                    let named = named.ok_or_else(|| bad(format!("there is no config {name:?}")))?;
                    let group = name.rsplit_once('/').map_or("", |(group, _)| group);
                    self.load(named, Place { name: &name, group, package }, picks, open)?;
                }
                DefaultsEntry::Choice { group, below, options, optional } => {
                    let mut options = options;
                    let mut origin = file.origin.clone();
                    if let Some(pick) = picks.get_mut(&group) {
                        pick.used = true;
                        options = picked_option(&pick.given, options.first())?.into_iter().collect();
                        origin = pick.given.origin();
                    }
                    let package = child_path(package, &below.replace('/', "."));
                    for option in options {
                        if optional && self.tree.read(&format!("{group}/{option}"))?.is_none() {
                            continue;
                        }
                        self.load_option(&group, &option, &package, &origin, picks, open)?;
                    }
                }
            }
        }
        open.pop();
        Ok(())
    }

    fn load_option(
        &mut self,
        group: &str,
        option: &str,
        package: &str,
        asked: &Origin,
        picks: &mut BTreeMap<String, Pick>,
        open: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let file = self.tree.read_option(group, option, asked)?;
        self.choices.insert(group.to_owned(), option.to_owned());
        self.load(file, Place { name: &format!("{group}/{option}"), group, package }, picks, open)
    }

    /// Applies an override of a value.
    fn apply(&mut self, given: &Override, surroundings: &Surroundings) -> Result<(), ConfigError> {
        let bad = |message: String| ConfigError::BadOverride { text: given.text.clone(), message };
        let is_there = value_at(&self.root, &given.key).is_some();
        match &given.action {
            Action::Change(_) | Action::Remove(_) if !is_there => Err(self.unknown_key(given, surroundings)),
            Action::Add(_) if is_there => {
                Err(bad(format!("{} is there already; leave out the + to change it", given.key)))
            }
            Action::Change(value) | Action::Add(value) | Action::Put(value) => {
                merge_at(&mut self.root, &given.key, value.clone(), &given.origin(), &mut self.origins)
                    .map_err(bad)
            }
            Action::Remove(wanted) => {
                let (above, name) = given.key.rsplit_once('.').unwrap_or(("", &given.key));
                if let Some(Value::Mapping(entries)) = value_at_mut(&mut self.root, above) {
                    if wanted.is_some() && entries.get(name) != wanted.as_ref() {
                        return Err(bad(format!("{} has another value", given.key)));
                    }
                    entries.shift_remove(name);
                    self.origins.set(above, &given.origin());
                }
                Ok(())
            }
        }
    }

    /// The error for a key that is not there, with the override that would add it if that were accepted.
    fn unknown_key(&self, given: &Override, surroundings: &Surroundings) -> ConfigError {
        let mut add_with = None;
        if let Action::Change(value) = &given.action {
            let mut trial = self.clone();
            let fits =
                merge_at(&mut trial.root, &given.key, value.clone(), &given.origin(), &mut trial.origins)
                    .is_ok()
                    && !matches!(trial.finish(surroundings), Err(ConfigError::UnknownKey { .. }));
            add_with = fits.then(|| format!("+{}", given.text));
        }
        let mut known = keys_of(&self.root);
        known.extend(self.tree.groups());
        ConfigError::UnknownKey {
            key: given.key.clone(),
            names: Names::near_keys(&given.key, &known).into(),
            origin: given.origin(),
            add_with,
        }
    }

    fn finish(&self, surroundings: &Surroundings) -> Result<(RunConfig, Value), ConfigError> {
        let resolved = resolve(&self.root, surroundings, &self.choices, &self.origins);
        let resolved = resolved.map_err(|error| match typed::typed(&self.root, &self.origins) {
            // A reference into a group that was left out: the group is what is missing.
            Err(missing @ ConfigError::MissingKey { .. }) => missing,
            _ => error,
        })?;
        Ok((typed::typed(&resolved, &self.origins)?, resolved))
    }
}

/// Which file is loaded, and where its content goes.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Path in the tree, without `.yaml`.
    name: &'a str,
    /// The folder that relative names in its defaults list start from.
    group: &'a str,
    /// Dotted key its content goes under; empty is the top.
    package: &'a str,
}
