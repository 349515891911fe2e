//! Resolves `${…}`: keys, keys inside text and inside other keys, and resolvers such as `${oc.env:HOME}`.

mod grammar;
mod resolvers;

use serde_yaml_ng::{Mapping, Value};

use self::grammar::{Argument, Fragment, Name, Piece, Reference, parse_text};
use crate::context::ComposeContext;
use crate::error::{ConfigError, Names};
use crate::lexeme::{Lexeme, float_value, int_value};
use crate::python_text::str_of;
use crate::scalar::integer;
use crate::value_tree::{MISSING, Origins, child, child_path, keys_to_suggest};

/// Maximum nesting of values and references together, which limits the recursion depth.
const MAX_DEPTH: usize = 160;

/// Maximum size of the result: bytes read and written, plus a constant for each node. References to references to lists
/// could grow without bound otherwise.
const MAX_WEIGHT: usize = 8 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

/// The key of Hydra's own configuration. Keys of the job can refer to it with `${hydra:…}` only.
pub(crate) const HYDRA: &str = "hydra";

/// A copy of the value at `key` without interpolations. Missing values stay missing.
pub(crate) fn resolve(
    root: &Value,
    key: &str,
    context: &ComposeContext,
    origins: &Origins,
) -> Result<Value, ConfigError> {
    let parts = key.split('.').filter(|part| !part.is_empty());
    let Some(node) = parts.into_iter().try_fold(root, child) else { return Ok(Value::Null) };
    Resolver::new(root, context, origins).node(node, key)
}

/// Resolves one text with the keys of `root`.
pub(crate) fn resolve_text(text: &str, root: &Value, context: &ComposeContext) -> Result<Value, ConfigError> {
    let origins = Origins::default();
    let mut resolver = Resolver::new(root, context, &origins);
    resolver.text(Site { key: "defaults", text })
}

struct Resolver<'a> {
    root: &'a Value,
    context: &'a ComposeContext,
    origins: &'a Origins,
    /// Keys whose text is being resolved, outermost first.
    active: Vec<String>,
    depth: usize,
    weight: usize,
}

/// The text being resolved and its key, for error messages.
#[derive(Clone, Copy)]
struct Site<'t> {
    key: &'t str,
    text: &'t str,
}

/// The result of a lookup.
enum Lookup {
    Value(Value),
    /// The key exists with the value `???`.
    Missing,
    Absent,
}

impl<'a> Resolver<'a> {
    fn new(root: &'a Value, context: &'a ComposeContext, origins: &'a Origins) -> Resolver<'a> {
        Resolver { root, context, origins, active: Vec::new(), depth: 0, weight: 0 }
    }

    fn node(&mut self, node: &Value, key: &str) -> Result<Value, ConfigError> {
        let site = Site { key, text: node.as_str().unwrap_or_default() };
        self.charge(site.text.len(), site)?;
        match node {
            Value::String(text) if text.contains("${") => self.text(site),
            Value::Sequence(items) => self.nested(site, |this| {
                let item = |(n, item)| this.node(item, &child_path(key, &format!("{n}")));
                items.iter().enumerate().map(item).collect::<Result<_, _>>().map(Value::Sequence)
            }),
            Value::Mapping(entries) => self.nested(site, |this| {
                let mut resolved = Mapping::new();
                for (name, value) in entries {
                    let path = child_path(key, name.as_str().unwrap_or_default());
                    resolved.insert(name.clone(), this.node(value, &path)?);
                }
                Ok(Value::Mapping(resolved))
            }),
            other => Ok(other.clone()),
        }
    }

    /// Resolves the text at a key. A key that is being resolved already is a cycle.
    fn text(&mut self, site: Site) -> Result<Value, ConfigError> {
        if let Some(start) = self.active.iter().position(|active| active == site.key) {
            let mut path = self.active[start..].to_vec();
            path.push(site.key.to_owned());
            return Err(ConfigError::Cycle { path });
        }
        self.active.push(site.key.to_owned());
        let value = self.nested(site, |this| {
            let pieces = parse_text(site.text).map_err(|message| this.error(site, message))?;
            this.pieces(&pieces, site)
        });
        self.active.pop();
        value
    }

    /// The concatenation of the pieces. A single reference keeps the type of its value.
    fn pieces(&mut self, pieces: &[Piece], site: Site) -> Result<Value, ConfigError> {
        if let [Piece::Reference(reference)] = pieces {
            return self.reference(reference, site);
        }
        let mut out = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Reference(reference) => {
                    let text = str_of(&self.reference(reference, site)?);
                    self.charge(text.len(), site)?;
                    out.push_str(&text);
                }
            }
        }
        Ok(Value::from(out))
    }

    fn reference(&mut self, reference: &Reference, site: Site) -> Result<Value, ConfigError> {
        self.charge(0, site)?;
        self.nested(site, |this| match reference {
            Reference::Key { up, parts } => {
                let mut key = ".".repeat(*up);
                for (n, part) in parts.iter().enumerate() {
                    if n > 0 {
                        key.push('.');
                    }
                    key.push_str(&this.name(part, site)?);
                }
                match this.lookup(&key, site)? {
                    Lookup::Value(value) => Ok(value),
                    Lookup::Missing => Err(this.error(site, format!("{key} has no value yet (???)"))),
                    Lookup::Absent => Err(this.unknown_key(&key, site)),
                }
            }
            Reference::Call { name, arguments } => {
                let name = name.iter().map(|part| this.name(part, site)).collect::<Result<Vec<_>, _>>()?;
                let arguments = arguments
                    .iter()
                    .map(|argument| this.argument(argument, site))
                    .collect::<Result<_, _>>()?;
                resolvers::call(this, &name.join("."), arguments, site)
            }
        })
    }

    fn name(&mut self, name: &Name, site: Site) -> Result<String, ConfigError> {
        match name {
            Name::Plain(text) => Ok(text.clone()),
            Name::Reference(reference) => match self.reference(reference, site)? {
                Value::String(text) => Ok(text),
                other => Err(self.error(site, format!("a key must be text, not {}", str_of(&other)))),
            },
        }
    }

    fn argument(&mut self, argument: &Argument, site: Site) -> Result<Value, ConfigError> {
        match argument {
            Argument::Quoted(pieces) => Ok(Value::from(str_of(&self.pieces(pieces, site)?))),
            Argument::List(items) => {
                let items = items.iter().map(|item| self.argument(item, site));
                items.collect::<Result<_, _>>().map(Value::Sequence)
            }
            Argument::Dict(entries) => {
                let mut mapping = Mapping::new();
                for (key, value) in entries {
                    let key = str_of(&self.argument(key, site)?);
                    mapping.insert(Value::from(key), self.argument(value, site)?);
                }
                Ok(Value::Mapping(mapping))
            }
            Argument::Plain(fragments) => self.plain(fragments, site),
        }
    }

    fn plain(&mut self, fragments: &[Fragment], site: Site) -> Result<Value, ConfigError> {
        match fragments {
            [Fragment::Reference(reference)] => return self.reference(reference, site),
            [Fragment::Lexeme(lexeme, text)] => {
                return match lexeme {
                    Lexeme::Null => Ok(Value::Null),
                    Lexeme::Bool => Ok(Value::from(text.eq_ignore_ascii_case("true"))),
                    Lexeme::Int => int_value(text)
                        .ok_or_else(|| format!("{text} does not fit in 64 fragments"))
                        .and_then(integer)
                        .map(Value::Number)
                        .map_err(|message| self.error(site, message)),
                    Lexeme::Float => Ok(Value::from(float_value(text))),
                    _ => Ok(Value::from(text.as_str())),
                };
            }
            _ => {}
        }
        let mut out = String::new();
        for fragment in fragments {
            match fragment {
                Fragment::Lexeme(_, text) => out.push_str(text),
                Fragment::Reference(reference) => out.push_str(&str_of(&self.reference(reference, site)?)),
            }
        }
        self.charge(out.len(), site)?;
        Ok(Value::from(out))
    }

    /// The resolved value at `key`, which is absolute or relative to the key of the site (`.sibling`, `..uncle`).
    fn lookup(&mut self, key: &str, site: Site) -> Result<Lookup, ConfigError> {
        let absolute = self.absolute(key, site)?;
        let in_hydra = |key: &str| key == HYDRA || key.starts_with("hydra.");
        if in_hydra(&absolute) && !in_hydra(site.key) {
            let message = format!("{key} is not part of the job's configuration; write ${{hydra:…}}");
            return Err(self.error(site, message));
        }
        self.lookup_absolute(&absolute, site)
    }

    /// `key` relative to the root, with list indices as parts.
    fn absolute(&self, key: &str, site: Site) -> Result<String, ConfigError> {
        let name = key.trim_start_matches('.');
        let absolute = match key.len() - name.len() {
            0 => name.to_owned(),
            up => {
                let parts: Vec<&str> = site.key.split('.').collect();
                let Some(kept) = parts.len().checked_sub(up) else {
                    return Err(self.error(site, format!("{key:?} refers to a parent of the root")));
                };
                child_path(&parts[..kept].join("."), name)
            }
        };
        Ok(absolute.replace("].", ".").replace('[', ".").replace(']', ""))
    }

    fn lookup_absolute(&mut self, key: &str, site: Site) -> Result<Lookup, ConfigError> {
        let mut current = Node::Raw(self.root);
        let mut path = String::new();
        for part in key.split('.').filter(|part| !part.is_empty()) {
            // A parent of the key may be an interpolation.
            if let Node::Raw(node @ Value::String(text)) = current {
                if text == MISSING {
                    return Ok(Lookup::Missing);
                }
                current = Node::Resolved(self.node(node, &path)?);
            }
            path = child_path(&path, part);
            let child = match current {
                Node::Raw(node) => child(node, part).map(Node::Raw),
                Node::Resolved(node) => child(&node, part).cloned().map(Node::Resolved),
            };
            match child {
                Some(child) => current = child,
                None => return Ok(Lookup::Absent),
            }
        }
        match current {
            Node::Raw(Value::String(text)) if text == MISSING => Ok(Lookup::Missing),
            Node::Raw(node) => self.nested(site, |this| this.node(node, &path)).map(Lookup::Value),
            Node::Resolved(node) => Ok(Lookup::Value(node)),
        }
    }

    fn unknown_key(&self, key: &str, site: Site) -> ConfigError {
        let absolute = self.absolute(key, site).unwrap_or_else(|_| key.to_owned());
        let names = Names::near_keys(&absolute, &keys_to_suggest(&absolute, self.root));
        self.error(site, format!("there is no key {absolute:?}{names}"))
    }

    fn nested<T>(
        &mut self,
        site: Site,
        step: impl FnOnce(&mut Self) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(site, "nested too deep".into()));
        }
        self.depth += 1;
        let outcome = step(self);
        self.depth -= 1;
        outcome
    }

    fn charge(&mut self, bytes: usize, site: Site) -> Result<(), ConfigError> {
        self.weight += NODE_WEIGHT + bytes;
        match self.weight > MAX_WEIGHT {
            true => Err(self.error(site, "the expanded size exceeds the limit".into())),
            false => Ok(()),
        }
    }

    fn error(&self, site: Site, message: String) -> ConfigError {
        ConfigError::Interpolation {
            key: site.key.to_owned(),
            text: site.text.chars().take(200).collect(),
            message,
            origin: self.origins.get(site.key),
        }
    }
}

/// A node on the path to a key: as written, or inside a resolved value.
enum Node<'v> {
    Raw(&'v Value),
    Resolved(Value),
}

#[cfg(test)]
mod tests;
