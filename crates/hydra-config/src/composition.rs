//! An untyped composition: merged files and applied overrides, with interpolations as written.

use std::collections::BTreeMap;

use serde_yaml_ng::Value;

use crate::alias::{self, Alias, FoundAlias};
use crate::conf_tree::ConfTree;
use crate::context::ComposeContext;
use crate::defaults::{DefaultsItem, defaults_list};
use crate::error::{ConfigError, Names, Origin};
use crate::hydra_node;
use crate::interpolate::{HYDRA, resolve};
use crate::overrides::{Action, AsOverride, Element, Override, OverrideValue, parsed};
use crate::schema::Schema;
use crate::typed::described;
use crate::value_tree::{Keys, MISSING, ValueTree, child_path, keys_of, keys_to_suggest, value_at};

/// The file every composition starts from.
const PRIMARY: &str = "config";

/// Files and overrides composed by Hydra's rules, with any keys.
#[derive(Debug, Clone)]
pub struct Composition {
    pub(crate) tree: ValueTree,
    context: ComposeContext,
    /// The selected option of each group by its override key; `None` if no option is selected.
    pub choices: BTreeMap<String, Option<String>>,
    /// The merged files in order.
    pub defaults: Vec<DefaultsItem>,
    /// The directories searched for files, in order.
    pub search_path: Vec<String>,
    /// Keys that are read under another name.
    pub aliases: Vec<FoundAlias>,
    overrides: Vec<Override>,
}

impl Composition {
    /// Composes `config.yaml`, the files its defaults list names, and `overrides`.
    pub fn new(
        conf: &ConfTree,
        overrides: &[impl AsOverride],
        context: &ComposeContext,
    ) -> Result<Composition, ConfigError> {
        Composition::with_schema::<Value>(conf, overrides, context)
    }

    /// [`new`](Self::new) with the aliases of `C`.
    pub fn with_schema<C: Schema>(
        conf: &ConfTree,
        overrides: &[impl AsOverride],
        context: &ComposeContext,
    ) -> Result<Composition, ConfigError> {
        let overrides = parsed(overrides)?;
        for given in &overrides {
            refuse_sweep(given)?;
        }
        let (group_overrides, value_overrides): (Vec<&Override>, Vec<&Override>) =
            overrides.iter().partition(|given| selects_option(given, conf));

        let list = defaults_list(conf, PRIMARY, &group_overrides, context)?;
        let mut tree = ValueTree::default();
        hydra_node::insert_defaults(&mut tree, context)?;
        for item in &list.items {
            if let Some(Some(loaded)) = list.files.get(&item.config) {
                tree.merge_document(&item.package, &loaded.document, &loaded.origin)?;
            }
        }
        hydra_node::check(&tree)?;
        let mut composition = Composition {
            tree,
            context: context.clone(),
            choices: list.choices,
            defaults: list.items,
            search_path: conf.search_path(),
            aliases: Vec::new(),
            overrides: Vec::new(),
        };
        for given in value_overrides {
            composition.apply(given, conf, C::ALIASES)?;
        }
        composition.aliases = alias::apply(&mut composition.tree, C::ALIASES)?;
        let choices = composition.choices.clone().into_iter();
        hydra_node::finish(&mut composition.tree, &overrides, choices, conf, context)?;
        composition.overrides = overrides;
        Ok(composition)
    }

    /// Applies an override of a value.
    fn apply(&mut self, given: &Override, conf: &ConfTree, aliases: &[Alias]) -> Result<(), ConfigError> {
        if given.key.contains('/') || given.package.is_some() {
            let names = Names::near(&given.key, &conf.groups()).into();
            return Err(ConfigError::UnknownGroup {
                group: given.key.clone(),
                names,
                origin: given.origin(),
            });
        }
        let value = match &given.value {
            Some(OverrideValue::Single(element)) => {
                Some(element.to_value().map_err(|message| given.bad(message))?)
            }
            _ => None,
        };
        let (key, origin) = (given.key.as_str(), given.origin());
        let new_value = value.clone().unwrap_or_default();
        match given.action {
            Action::Change if aliases.iter().any(|alias| alias.name == key) => {
                self.tree.update(key, new_value, Keys::Open, &origin)
            }
            Action::Change => {
                self.tree.update(key, new_value, Keys::Closed, &origin).map_err(|error| match error {
                    ConfigError::UnknownKey { key: unknown, origin, .. } => {
                        let mut known = keys_to_suggest(&unknown, &self.tree.root);
                        known.extend(conf.groups());
                        let names = Names::near_keys(&unknown, &known).into();
                        let add_with = Some(format!("+{}", given.text));
                        ConfigError::UnknownKey { key: unknown, names, origin, add_with }
                    }
                    other => other,
                })
            }
            Action::Put => self.tree.update(key, new_value, Keys::Open, &origin),
            Action::Add => {
                let is_container = matches!(new_value, Value::Mapping(_) | Value::Sequence(_));
                if !is_container && self.selected(key)?.is_some() {
                    return Err(given.bad(format!("{key} already exists; remove the + to change it")));
                }
                self.tree.update(key, new_value, Keys::Open, &origin)
            }
            Action::Remove => {
                let Some(found) = self.selected(key)? else {
                    return Err(match value_at(&self.tree.root, key) {
                        // As in Hydra, null counts as absent.
                        Some(null) => given.bad(format!("{key} is {}; nothing to remove", described(null))),
                        None => self.tree.unknown_key(key, &origin),
                    });
                };
                if value.as_ref().is_some_and(|value| !value.is_null() && *value != found) {
                    return Err(given.bad(format!("{key} has another value: {}", described(&found))));
                }
                match self.tree.remove(key, &origin) {
                    true => Ok(()),
                    false => Err(given.bad(format!("{key} is a list item and cannot be removed"))),
                }
            }
        }
    }

    /// The resolved value at `key`; `None` if it is absent, null or `???`.
    fn selected(&self, key: &str) -> Result<Option<Value>, ConfigError> {
        if value_at(&self.tree.root, key).is_none() {
            return Ok(None);
        }
        let value = self.resolve(key)?;
        Ok(Some(value).filter(|value| !value.is_null() && value.as_str() != Some(MISSING)))
    }

    /// The resolved value at `key`; null if absent.
    pub fn resolved(&self, key: &str) -> Result<Value, ConfigError> {
        self.selected(key).map(Option::unwrap_or_default)
    }

    /// The origin of the value at `key`, or of a part of it, if that is a file of the configuration directory rather
    /// than of the program.
    pub fn file_origin(&self, key: &str) -> Option<Origin> {
        self.tree.origins.at_and_below(key).find(|origin| matches!(origin, Origin::File { .. }))
    }

    pub(crate) fn resolve(&self, key: &str) -> Result<Value, ConfigError> {
        resolve(&self.tree.root, key, &self.context, &self.tree.origins)
    }

    /// The job's configuration as it was written, without Hydra's own.
    pub fn job(&self) -> Value {
        let entries = self.tree.root.as_mapping().into_iter().flatten();
        let job = entries.filter(|(name, _)| name.as_str() != Some(HYDRA));
        Value::Mapping(job.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// The part of the job's configuration at a dotted path (`runtime.sim`), as it was written.
    pub fn package(&self, path: &str) -> Result<Value, ConfigError> {
        package(&self.job(), path)
    }

    /// The job's configuration with interpolations resolved.
    pub fn resolved_job(&self) -> Result<Value, ConfigError> {
        let mut job = serde_yaml_ng::Mapping::new();
        for (name, _) in self.tree.root.as_mapping().into_iter().flatten() {
            let key = name.as_str().unwrap_or_default();
            if key != HYDRA {
                job.insert(name.clone(), self.resolve(key)?);
            }
        }
        Ok(Value::Mapping(job))
    }

    /// Hydra's own configuration as it was written.
    pub fn hydra(&self) -> Value {
        value_at(&self.tree.root, HYDRA).cloned().unwrap_or_default()
    }

    /// The resolved value at `key` of Hydra's own configuration (`run.dir`); null if absent.
    pub fn resolved_hydra(&self, key: &str) -> Result<Value, ConfigError> {
        self.resolve(&child_path(HYDRA, key))
    }

    pub fn overrides(&self) -> &[Override] {
        &self.overrides
    }

    /// The overrides of the job as they were typed, without those of Hydra itself.
    pub fn job_overrides(&self) -> Vec<String> {
        let of_job = self.overrides.iter().filter(|given| !given.is_hydra());
        of_job.map(|given| given.text.clone()).collect()
    }
}

/// The part of `job` at a dotted path.
pub(crate) fn package(job: &Value, path: &str) -> Result<Value, ConfigError> {
    value_at(job, path).cloned().ok_or_else(|| ConfigError::UnknownPackage {
        names: Names::near_keys(path, &keys_of(job)).into(),
        package: path.to_owned(),
    })
}

/// Whether an override selects an option of a group. With a map as its value it changes the keys of the group instead.
fn selects_option(given: &Override, conf: &ConfTree) -> bool {
    let is_dict = matches!(&given.value, Some(OverrideValue::Single(Element::Dict(_))));
    !is_dict && conf.has_group(&given.key)
}

fn refuse_sweep(given: &Override) -> Result<(), ConfigError> {
    let Some(OverrideValue::Sweep(_)) = given.value else { return Ok(()) };
    let ((key, values), prefix) = (given.key_and_value(), given.action.prefix());
    Err(given.bad(format!(
        "several values need --multirun (-m); for a list write {prefix}{key}=[{values}], for text add quotes"
    )))
}
