//! An entry of a defaults list, with its group, package and key relative to the file that contains it.

use serde_yaml_ng::Value;

use crate::error::Origin;
use crate::typed;

/// The target of an entry.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// `_self_`: the file that contains the list.
    Own,
    /// A file by its path.
    Config(String),
    /// Options of a group.
    Group { group: String, choice: Choice },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Choice {
    Nothing,
    One(String),
    Several(Vec<String>),
}

impl Choice {
    pub(super) fn read(value: &Value) -> Result<Choice, String> {
        let one = |option: &Value| match option {
            Value::String(name) => Ok(name.clone()),
            other => Err(format!(
                "an option must be a name, not {}; if it is a name, add quotes",
                typed::described(other)
            )),
        };
        Ok(match value {
            Value::Null => Choice::Nothing,
            Value::Sequence(options) => Choice::Several(options.iter().map(one).collect::<Result<_, _>>()?),
            option => Choice::One(one(option)?),
        })
    }
}

/// An entry of a file.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) target: Target,
    /// The package after `@`.
    package: Option<String>,
    /// The package in the `# @package` header of the named file.
    pub(super) header: Option<String>,
    pub(super) optional: bool,
    pub(super) overrides: bool,
    /// Added by an override (`+group=option`).
    pub(super) added: bool,
    pub(super) deleted: bool,
    pub(super) primary: bool,
    /// The group and the package of the file that contains the entry.
    parent_group: String,
    parent_package: String,
    pub(super) origin: Origin,
}

impl Entry {
    pub(super) fn new(target: Target, package: Option<String>, origin: Origin) -> Entry {
        Entry {
            target,
            // `_here_` is the package of the file that contains the entry.
            package: package.map(|package| if package == "_here_" { String::new() } else { package }),
            header: None,
            optional: false,
            overrides: false,
            added: false,
            deleted: false,
            primary: false,
            parent_group: String::new(),
            parent_package: String::new(),
            origin,
        }
    }

    /// Parses one item of a `defaults:` list.
    pub(super) fn read(item: &Value, origin: Origin) -> Result<Entry, String> {
        if let Value::String(written) = item {
            let (path, package) = split_package(written)?;
            if path == "_self_" {
                return match package {
                    Some(_) => Err("_self_ cannot have a package".into()),
                    None => Ok(Entry::new(Target::Own, None, origin)),
                };
            }
            return Ok(Entry::new(Target::Config(path.to_owned()), package, origin));
        }
        let single = item.as_mapping().filter(|entries| entries.len() == 1);
        let Some((Value::String(written), value)) = single.and_then(|entries| entries.iter().next()) else {
            return Err(format!("expected `group: option` or a name, got {}", typed::described(item)));
        };
        let (text, package) = split_package(written)?;
        let mut keywords: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let group = keywords.pop().unwrap_or_default();
        if let Some(odd) = keywords.iter().find(|word| !["optional", "override"].contains(word)) {
            return Err(format!("{odd:?} in {written:?} is neither `optional` nor `override`"));
        }
        if group.trim_start_matches('/').is_empty() {
            return Err(format!("{written:?} has no group"));
        }
        let choice = Choice::read(value).map_err(|message| format!("{written:?}: {message}"))?;
        let mut entry = Entry::new(Target::Group { group: group.to_owned(), choice }, package, origin);
        entry.optional = keywords.contains(&"optional");
        entry.overrides = keywords.contains(&"override");
        Ok(entry)
    }

    /// Sets the group and the package of the file that contains the entry.
    pub(super) fn set_parent(&mut self, group: &str, package: &str) {
        self.parent_group = group.to_owned();
        self.parent_package = package.to_owned();
        if let Some(written) = self.package.as_ref().filter(|written| written.contains("_group_")) {
            let resolved = written.replace("_group_", &self.default_package());
            self.package = Some(format!("_global_.{resolved}"));
        }
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self.target, Target::Own)
    }

    /// The path of the entry, absolute or relative to the group of its file.
    fn written_path(&self) -> &str {
        match &self.target {
            Target::Own => "",
            Target::Config(path) => path,
            Target::Group { group, .. } => group,
        }
    }

    fn absolute(&self, relative: &str) -> String {
        match (self.written_path().starts_with('/'), self.parent_group.as_str()) {
            (true, _) | (_, "") => relative.to_owned(),
            (false, parent) if relative.is_empty() => parent.to_owned(),
            (false, parent) => format!("{parent}/{relative}"),
        }
    }

    /// The group as written, without the slash that makes it absolute.
    fn relative_group(&self) -> &str {
        let path = self.written_path().trim_start_matches('/');
        match self.target {
            Target::Config(_) => path.rsplit_once('/').map_or("", |(group, _)| group),
            _ => path,
        }
    }

    /// The group of the named file.
    pub(super) fn group_path(&self) -> String {
        self.absolute(self.relative_group())
    }

    /// The name of the selected option; `None` if no option is selected.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.target {
            Target::Own => None,
            Target::Config(path) => Some(path.rsplit_once('/').map_or(path.as_str(), |(_, name)| name)),
            Target::Group { choice: Choice::One(name), .. } => Some(name),
            Target::Group { .. } => None,
        }
    }

    /// The path of the named file in the tree, without `.yaml`.
    pub(super) fn config_path(&self) -> String {
        match &self.target {
            Target::Config(path) => self.absolute(path.trim_start_matches('/')),
            _ => format!("{}/{}", self.group_path(), self.name().unwrap_or_default()),
        }
    }

    fn default_package(&self) -> String {
        self.group_path().replace('/', ".")
    }

    /// The package of the named file's content.
    pub(super) fn final_package(&self) -> String {
        self.package_with(self.package.as_deref().or(self.header.as_deref()))
    }

    fn package_with(&self, written: Option<&str>) -> String {
        let relative = written.map_or_else(|| self.relative_group().replace('/', "."), str::to_owned);
        let package = match (self.parent_package.as_str(), relative.as_str()) {
            ("", relative) => relative.to_owned(),
            (parent, "") => parent.to_owned(),
            (parent, relative) => format!("{parent}.{relative}"),
        };
        match package.rfind("_global_") {
            Some(start) => package.get(start + "_global_".len() + 1..).unwrap_or_default().to_owned(),
            None => package,
        }
    }

    /// The override key of this choice: its group, with the package if it is not the default one.
    pub(super) fn choice_key(&self) -> String {
        let (group, package) = (self.group_path(), self.package_with(self.package.as_deref()));
        match package.as_str() {
            package if package == self.default_package() => group,
            "" => format!("{group}@_global_"),
            package => format!("{group}@{package}"),
        }
    }

    /// This entry with one of its options.
    pub(super) fn with_option(&self, group: &str, option: &str) -> Entry {
        let mut entry = self.clone();
        entry.target = Target::Config(format!("{group}/{option}"));
        entry
    }
}

fn split_package(written: &str) -> Result<(&str, Option<String>), String> {
    match written.split_once('@') {
        None => Ok((written, None)),
        Some((_, package)) if package.contains(':') => {
            Err(format!("{written:?} renames a package, which Hydra no longer supports; write group@package"))
        }
        Some((path, package)) => Ok((path, Some(package.to_owned()))),
    }
}

/// The absolute package of a `# @package` line at the start of a file.
pub(super) fn package_header(text: &str) -> Result<Option<String>, String> {
    let mut package = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // The header consists of `# @…` lines only; any other comment ends it.
        let Some(comment) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim_start())
        else {
            break;
        };
        let Some(comment) = comment.strip_prefix('@') else { break };
        match comment.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["package", name] => package = Some((*name).to_owned()),
            [_, _] => {}
            _ => return Err(format!("expected `# @package NAME`, got {line:?}")),
        }
    }
    Ok(package.and_then(|name| match name.as_str() {
        // The package of the group is the default.
        "_group_" => None,
        "_global_" => Some(name),
        other if other.starts_with("_global_.") => Some(name),
        other => Some(format!("_global_.{other}")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let table = [
            ("a: 1", None),
            ("# @package _global_\na: 1", Some("_global_")),
            ("\n#@package a.b\n", Some("_global_.a.b")),
            ("# comment first\n# @package a\n", None),
            ("# @package _group_\n", None),
            ("# @other x\n# @package a\n", Some("_global_.a")),
        ];
        for (text, expected) in table {
            assert_eq!(package_header(text).unwrap().as_deref(), expected, "{text:?}");
        }
        assert!(package_header("# @package a b").is_err());
    }

    #[test]
    fn packages() {
        let table = [
            ("{db: mysql}", "", "", "db/mysql", "db", "db"),
            ("{db: mysql}", "server", "server", "server/db/mysql", "server.db", "server/db"),
            ("{/db: mysql}", "server", "server", "db/mysql", "server.db", "db@server.db"),
            ("{/db@_global_.x: mysql}", "server", "server", "db/mysql", "x", "db@x"),
            ("{db@_here_: mysql}", "server", "server", "server/db/mysql", "server", "server/db@server"),
            ("{db@_global_: mysql}", "", "", "db/mysql", "", "db@_global_"),
            ("{db@_group_.x: mysql}", "", "", "db/mysql", "db.x", "db@db.x"),
            (
                "{profiling/nsys@pipeline.nsys: a}",
                "",
                "",
                "profiling/nsys/a",
                "pipeline.nsys",
                "profiling/nsys@pipeline.nsys",
            ),
            ("/db/mysql", "server", "server", "db/mysql", "server.db", "db@server.db"),
            ("mysql", "db", "db", "db/mysql", "db", "db"),
        ];
        for (item, group, package, path, expected, key) in table {
            let item: Value = serde_yaml_ng::from_str(item).unwrap();
            let mut entry = Entry::read(&item, Origin::Composition).unwrap();
            entry.set_parent(group, package);
            assert_eq!(entry.config_path(), path, "{item:?}");
            assert_eq!(entry.final_package(), expected, "{item:?}");
            assert_eq!(entry.choice_key(), key, "{item:?}");
        }
    }
}
