//! Resolving `${…}`: keys, keys inside text and inside other keys, and resolvers such as `${oc.env:HOME}`.

mod grammar;
mod resolvers;

use serde_yaml_ng::{Mapping, Value};

use self::grammar::{Argument, Bit, Name, Piece, Reference, parse_text};
use super::compose::Surroundings;
use super::error::{ConfigError, Names};
use super::lexeme::{Lexeme, float_value, int_value};
use super::python_text::str_of;
use super::scalar::whole_number;
use super::value_tree::{MISSING, Origins, child, child_path, keys_to_suggest};

/// How far values and references may nest. It bounds the stack, together and not each for itself.
const MAX_DEPTH: usize = 160;

/// Bytes read and written, plus a flat charge for each node: references to references to lists grow
/// without bound otherwise.
const MAX_WEIGHT: usize = 8 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

/// The key of Hydra's own configuration, which the job's keys reach with `${hydra:…}` alone.
pub(super) const HYDRA: &str = "hydra";

/// A copy of the value at `key` without interpolations. Missing values stay missing.
pub(super) fn resolve(
    root: &Value,
    key: &str,
    surroundings: &Surroundings,
    origins: &Origins,
) -> Result<Value, ConfigError> {
    let parts = key.split('.').filter(|part| !part.is_empty());
    let Some(node) = parts.into_iter().try_fold(root, child) else { return Ok(Value::Null) };
    Resolver::new(root, Some(surroundings), origins).node(node, key)
}

/// Resolves a single text against the keys of `root`.
pub(super) fn resolve_text(text: &str, root: &Value) -> Result<Value, ConfigError> {
    let origins = Origins::default();
    let mut resolver = Resolver::new(root, None, &origins);
    resolver.open(Site { key: "defaults", text })
}

struct Resolver<'a> {
    root: &'a Value,
    /// `None` where only keys can be asked for.
    surroundings: Option<&'a Surroundings>,
    origins: &'a Origins,
    /// Keys whose text is being resolved, the outermost first.
    open: Vec<String>,
    depth: usize,
    weight: usize,
}

/// The text being resolved and the key it stands at: what every error tells.
#[derive(Clone, Copy)]
struct Site<'t> {
    key: &'t str,
    text: &'t str,
}

/// What a reference to a key found.
enum Found {
    Value(Value),
    /// There, but with no value yet.
    Missing,
    Nothing,
}

impl<'a> Resolver<'a> {
    fn new(root: &'a Value, surroundings: Option<&'a Surroundings>, origins: &'a Origins) -> Resolver<'a> {
        Resolver { root, surroundings, origins, open: Vec::new(), depth: 0, weight: 0 }
    }

    fn node(&mut self, node: &Value, key: &str) -> Result<Value, ConfigError> {
        let site = Site { key, text: node.as_str().unwrap_or_default() };
        self.charge(site.text.len(), site)?;
        match node {
            Value::String(text) if text.contains("${") => self.open(site),
            Value::Sequence(items) => self.deeper(site, |this| {
                let item = |(n, item)| this.node(item, &child_path(key, &format!("{n}")));
                items.iter().enumerate().map(item).collect::<Result<_, _>>().map(Value::Sequence)
            }),
            Value::Mapping(entries) => self.deeper(site, |this| {
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

    /// Resolves the text at a key, unless that is already under way.
    fn open(&mut self, site: Site) -> Result<Value, ConfigError> {
        if let Some(start) = self.open.iter().position(|open| open == site.key) {
            let mut path = self.open[start..].to_vec();
            path.push(site.key.to_owned());
            return Err(ConfigError::Cycle { path });
        }
        self.open.push(site.key.to_owned());
        let value = self.deeper(site, |this| {
            let pieces = parse_text(site.text).map_err(|message| this.error(site, message))?;
            this.pieces(&pieces, site)
        });
        self.open.pop();
        value
    }

    /// Pieces put together. A reference that stands alone keeps the type of its value.
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
        self.deeper(site, |this| match reference {
            Reference::Key { up, parts } => {
                let mut key = ".".repeat(*up);
                for (n, part) in parts.iter().enumerate() {
                    if n > 0 {
                        key.push('.');
                    }
                    key.push_str(&this.name(part, site)?);
                }
                match this.lookup(&key, site)? {
                    Found::Value(value) => Ok(value),
                    Found::Missing => Err(this.error(site, format!("{key} has no value yet (???)"))),
                    Found::Nothing => Err(this.no_key(&key, site)),
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
                other => Err(self.error(site, format!("a key is text, not {}", str_of(&other)))),
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
            Argument::Plain(bits) => self.plain(bits, site),
        }
    }

    fn plain(&mut self, bits: &[Bit], site: Site) -> Result<Value, ConfigError> {
        match bits {
            [Bit::Reference(reference)] => return self.reference(reference, site),
            [Bit::Lexeme(lexeme, text)] => {
                return match lexeme {
                    Lexeme::Null => Ok(Value::Null),
                    Lexeme::Bool => Ok(Value::from(text.eq_ignore_ascii_case("true"))),
                    Lexeme::Int => int_value(text)
                        .ok_or_else(|| format!("{text} does not fit in 64 bits"))
                        .and_then(whole_number)
                        .map(Value::Number)
                        .map_err(|message| self.error(site, message)),
                    Lexeme::Float => Ok(Value::from(float_value(text))),
                    _ => Ok(Value::from(text.as_str())),
                };
            }
            _ => {}
        }
        let mut out = String::new();
        for bit in bits {
            match bit {
                Bit::Lexeme(_, text) => out.push_str(text),
                Bit::Reference(reference) => out.push_str(&str_of(&self.reference(reference, site)?)),
            }
        }
        self.charge(out.len(), site)?;
        Ok(Value::from(out))
    }

    /// The resolved value at `key`: absolute, or relative to the site's key (`.sibling`, `..uncle`).
    fn lookup(&mut self, key: &str, site: Site) -> Result<Found, ConfigError> {
        let absolute = self.absolute(key, site)?;
        let in_hydra = |key: &str| key == HYDRA || key.starts_with("hydra.");
        if in_hydra(&absolute) && !in_hydra(site.key) {
            let message = format!("{key} is not part of the job's configuration; write ${{hydra:…}}");
            return Err(self.error(site, message));
        }
        self.at(&absolute, site)
    }

    /// `key` from the top, with list items as parts of it.
    fn absolute(&self, key: &str, site: Site) -> Result<String, ConfigError> {
        let name = key.trim_start_matches('.');
        let absolute = match key.len() - name.len() {
            0 => name.to_owned(),
            up => {
                let parts: Vec<&str> = site.key.split('.').collect();
                let Some(kept) = parts.len().checked_sub(up) else {
                    return Err(self.error(site, format!("{key:?} climbs above the top")));
                };
                child_path(&parts[..kept].join("."), name)
            }
        };
        Ok(absolute.replace("].", ".").replace('[', ".").replace(']', ""))
    }

    fn at(&mut self, absolute: &str, site: Site) -> Result<Found, ConfigError> {
        let root = self.root;
        let mut at = At::Raw(root);
        let mut path = String::new();
        for part in absolute.split('.').filter(|part| !part.is_empty()) {
            // A key on the way may itself be an interpolation.
            if let At::Raw(node @ Value::String(text)) = at {
                if text == MISSING {
                    return Ok(Found::Missing);
                }
                at = At::Resolved(self.node(node, &path)?);
            }
            path = child_path(&path, part);
            let below = match at {
                At::Raw(node) => child(node, part).map(At::Raw),
                At::Resolved(node) => child(&node, part).cloned().map(At::Resolved),
            };
            match below {
                Some(below) => at = below,
                None => return Ok(Found::Nothing),
            }
        }
        match at {
            At::Raw(Value::String(text)) if text == MISSING => Ok(Found::Missing),
            At::Raw(node) => self.deeper(site, |this| this.node(node, &path)).map(Found::Value),
            At::Resolved(node) => Ok(Found::Value(node)),
        }
    }

    fn no_key(&self, key: &str, site: Site) -> ConfigError {
        let absolute = self.absolute(key, site).unwrap_or_else(|_| key.to_owned());
        let names = Names::near_keys(&absolute, &keys_to_suggest(&absolute, self.root));
        self.error(site, format!("there is no key {absolute:?}{names}"))
    }

    fn deeper<T>(
        &mut self,
        site: Site,
        step: impl FnOnce(&mut Self) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(site, "it nests too deep".into()));
        }
        self.depth += 1;
        let outcome = step(self);
        self.depth -= 1;
        outcome
    }

    fn charge(&mut self, bytes: usize, site: Site) -> Result<(), ConfigError> {
        self.weight += NODE_WEIGHT + bytes;
        match self.weight > MAX_WEIGHT {
            true => Err(self.error(site, "references expand to far more than a configuration holds".into())),
            false => Ok(()),
        }
    }

    fn error(&self, site: Site, message: String) -> ConfigError {
        ConfigError::Interpolation {
            key: site.key.to_owned(),
            text: site.text.chars().take(200).collect(),
            message,
            origin: self.origins.of(site.key),
        }
    }
}

/// A place reached on the way to a key: still as written, or inside a resolved value.
enum At<'v> {
    Raw(&'v Value),
    Resolved(Value),
}

#[cfg(test)]
mod tests;
