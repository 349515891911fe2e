//! Keys that are read under another name.

use std::fmt;

use serde_yaml_ng::Value;

use crate::error::{ConfigError, Origin};
use crate::value_tree::{Keys, ValueTree, value_at};

/// A key of another program's files, and the key of the same meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alias {
    pub name: &'static str,
    pub key: &'static str,
}

/// An alias that was found in a file or an override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAlias {
    pub alias: Alias,
    pub origin: Origin,
    /// The origin of the key's own value, if that has precedence.
    pub overruled_by: Option<Origin>,
}

impl fmt::Display for FoundAlias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alias { name, key } = self.alias;
        match &self.overruled_by {
            None => write!(f, "{name} is read as {key}; from {}", self.origin),
            Some(by) => write!(f, "{name} is ignored, because {key} comes from {by}; from {}", self.origin),
        }
    }
}

/// Makes the key of each alias in `tree` a reference to the alias. A key that is set with the same or a higher
/// precedence keeps its value: overrides precede files, files precede those compiled into the program.
pub(crate) fn apply(tree: &mut ValueTree, aliases: &[Alias]) -> Result<Vec<FoundAlias>, ConfigError> {
    let mut found = Vec::new();
    for &alias in aliases {
        if value_at(&tree.root, alias.name).is_none() {
            continue;
        }
        let origin = tree.origins.get(alias.name);
        let set_by = value_at(&tree.root, alias.key).map(|_| tree.origins.get(alias.key));
        let overruled_by = set_by.filter(|by| precedence(by) >= precedence(&origin));
        if overruled_by.is_none() {
            let reference = Value::from(format!("${{{}}}", alias.name));
            tree.update(alias.key, reference, Keys::Open, &origin)?;
        }
        found.push(FoundAlias { alias, origin, overruled_by });
    }
    Ok(found)
}

fn precedence(origin: &Origin) -> u8 {
    match origin {
        Origin::BuiltIn { .. } | Origin::Composition => 0,
        Origin::File { .. } => 1,
        Origin::Override(_) => 2,
    }
}
