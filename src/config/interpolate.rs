//! Resolving `${…}`: keys, keys inside text and inside other keys, `${now:…}` and `${hydra:…}`.

use std::collections::BTreeMap;

use serde_yaml_ng::{Mapping, Value};

use super::compose::Surroundings;
use super::error::{ConfigError, Names};
use super::typed::described;
use super::value_tree::{Origins, child_path, keys_of};

/// How far values and references may nest. It bounds the stack, together and not each for itself.
const MAX_DEPTH: usize = 160;

/// Bytes read and written, plus a flat charge for each node: references to references to lists grow
/// without bound otherwise.
const MAX_WEIGHT: usize = 8 * 1024 * 1024;
const NODE_WEIGHT: usize = 64;

const RESOLVERS: [&str; 2] = ["hydra", "now"];

/// A copy of `root` without interpolations.
pub(super) fn resolve(
    root: &Value,
    surroundings: &Surroundings,
    choices: &BTreeMap<String, String>,
    origins: &Origins,
) -> Result<Value, ConfigError> {
    let mut resolver =
        Resolver { root, surroundings, choices, origins, open: Vec::new(), depth: 0, weight: 0 };
    resolver.node(root, "")
}

struct Resolver<'a> {
    root: &'a Value,
    surroundings: &'a Surroundings,
    choices: &'a BTreeMap<String, String>,
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

impl Resolver<'_> {
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
        let value = self.deeper(site, |this| this.text(site.text, site));
        self.open.pop();
        value
    }

    /// `text` with its interpolations replaced. One that is the whole text keeps the type of its value.
    fn text(&mut self, text: &str, site: Site) -> Result<Value, ConfigError> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            if let Some(escaped) = rest[..start].strip_suffix('\\') {
                out.push_str(escaped);
                out.push_str("${");
                rest = &rest[start + 2..];
                continue;
            }
            out.push_str(&rest[..start]);
            let inner = &rest[start + 2..];
            let end = closing(inner).ok_or_else(|| self.error(site, "a ${ without its }".into()))?;
            let value = self.deeper(site, |this| this.expression(&inner[..end], site))?;
            rest = &inner[end + 1..];
            if out.is_empty() && start == 0 && rest.is_empty() && inner.len() + 2 == text.len() {
                return Ok(value);
            }
            let piece = scalar_text(&value).ok_or_else(|| {
                let name = &inner[..end];
                self.error(site, format!("{name} is {} and cannot stand inside text", described(&value)))
            })?;
            self.charge(piece.len(), site)?;
            out.push_str(&piece);
        }
        out.push_str(rest);
        Ok(Value::from(out))
    }

    /// What stands between `${` and `}`.
    fn expression(&mut self, raw: &str, site: Site) -> Result<Value, ConfigError> {
        self.charge(raw.len(), site)?;
        let expression = match raw.contains("${") {
            true => scalar_text(&self.text(raw, site)?).unwrap_or_default(),
            false => raw.to_owned(),
        };
        match expression.split_once(':') {
            None => self.lookup(expression.trim(), site),
            Some(("now", format)) => jiff::fmt::strtime::format(format, &self.surroundings.now)
                .map(Value::from)
                .map_err(|error| self.error(site, format!("bad time format {format:?}: {error}"))),
            Some(("hydra", "runtime.cwd")) => Ok(Value::from(self.surroundings.cwd.display().to_string())),
            Some(("hydra", key)) => match key.strip_prefix("runtime.choices.") {
                Some(group) => match self.choices.get(group) {
                    Some(option) => Ok(Value::from(option.as_str())),
                    None => Err(self.error(site, format!("no option was chosen for a group {group:?}"))),
                },
                None => self.lookup(&format!("hydra.{key}"), site),
            },
            Some((name, _)) => {
                let known = RESOLVERS.map(str::to_owned);
                Err(self.error(site, format!("unknown resolver {name:?}{}", Names::near(name, &known))))
            }
        }
    }

    /// The resolved value at `key`: absolute, or relative to the site's key (`.sibling`, `..uncle`).
    fn lookup(&mut self, key: &str, site: Site) -> Result<Value, ConfigError> {
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
        let absolute = absolute.replace('[', ".").replace(']', "");
        let root = self.root;
        let mut at = At::Raw(root);
        let mut path = String::new();
        for part in absolute.split('.') {
            // A key on the way may itself be an interpolation.
            if let At::Raw(node @ Value::String(_)) = at {
                at = At::Resolved(self.node(node, &path)?);
            }
            path = child_path(&path, part);
            let below = match at {
                At::Raw(node) => child(node, part).map(At::Raw),
                At::Resolved(node) => child(&node, part).cloned().map(At::Resolved),
            };
            at = below.ok_or_else(|| {
                let names = Names::near_keys(&absolute, &keys_of(root));
                self.error(site, format!("there is no key {absolute:?}{names}"))
            })?;
        }
        match at {
            At::Raw(node) => self.deeper(site, |this| this.node(node, &path)),
            At::Resolved(node) => Ok(node),
        }
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

fn child<'v>(node: &'v Value, part: &str) -> Option<&'v Value> {
    match node {
        Value::Mapping(entries) => entries.get(part),
        Value::Sequence(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Where the `}` that closes an expression stands, past those of the expressions inside it.
fn closing(inner: &str) -> Option<usize> {
    let bytes = inner.as_bytes();
    let mut depth = 0usize;
    for (n, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' if n > 0 && bytes[n - 1] == b'$' => depth += 1,
            b'}' if depth == 0 => return Some(n),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// A scalar as it reads inside text; `None` for lists and maps.
pub(super) fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null => Some("null".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolved(yaml: &str) -> Result<Value, ConfigError> {
        let root: Value = serde_yaml_ng::from_str(yaml).unwrap();
        let choices = BTreeMap::from([("model".to_owned(), "tiny".to_owned())]);
        let surroundings =
            Surroundings { now: "2024-02-03T04:05:06[UTC]".parse().unwrap(), cwd: "/work dir".into() };
        resolve(&root, &surroundings, &choices, &Origins::default())
    }

    #[test]
    fn values_take_the_place_of_references() {
        let table = [
            ("{a: 1, b: '${a}'}", "b", "1"),
            ("{a: {x: [1, 2]}, b: '${a.x}'}", "b", "[1, 2]"),
            ("{a: {x: [1, 2]}, b: '${a.x[1]}-${a.x.0}'}", "b", "2-1"),
            ("{a: 1, b: 'n${a}/${a}m'}", "b", "n1/1m"),
            ("{a: null, b: '${a}', c: 'x${a}'}", "c", "xnull"),
            ("{a: {k: 7}, which: k, b: '${a.${which}}'}", "b", "7"),
            ("{a: '${b}', b: '${c}', c: 3}", "a", "3"),
            ("{a: '${b}', b: {x: 5}, c: '${a.x}'}", "c", "5"),
            ("{a: {x: 1, y: '${.x}'}, b: '${a.y}'}", "b", "1"),
            ("{t: 4, a: {y: '${..t}'}, b: '${a.y}'}", "b", "4"),
            (r"{a: 1, b: '\${a} ${a}'}", "b", "${a} 1"),
            ("{b: '${now:%Y-%m-%d_%H-%M-%S}'}", "b", "2024-02-03_04-05-06"),
            ("{b: '${hydra:runtime.cwd}/x'}", "b", "/work dir/x"),
            ("{b: '${hydra:runtime.choices.model}'}", "b", "tiny"),
            ("{hydra: {job: {name: j}}, b: '${hydra:job.name}'}", "b", "j"),
            ("{b: 'ä${c}ö', c: 'ü'}", "b", "äüö"),
            ("{b: $, c: '$ {x}'}", "c", "$ {x}"),
        ];
        for (yaml, key, wanted) in table {
            let value = resolved(yaml).unwrap_or_else(|error| panic!("{yaml}: {error}"));
            assert_eq!(value[key], serde_yaml_ng::from_str::<Value>(wanted).unwrap(), "{yaml}");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        let table = [
            ("{a: '${b}', b: '${c}', c: 'x${a}'}", "interpolation cycle: a → b → c → a"),
            ("{a: '${a}'}", "interpolation cycle: a → a"),
            ("{a: {b: '${a}'}}", "interpolation cycle: a.b → a.b"),
            ("{a: {b: '${nope}'}}", "at a.b: there is no key \"nope\""),
            ("{model: {name: x}, b: '${model.nmae}'}", "did you mean model.name?"),
            ("{a: '${b'}", "a ${ without its }"),
            ("{a: '${}'}", "there is no key \"\""),
            ("{a: '${.....b}'}", "climbs above the top"),
            ("{a: '${noww:%Y}'}", "unknown resolver \"noww\"; did you mean now?"),
            ("{a: '${now:%!}'}", "bad time format"),
            ("{a: 'x${b}', b: [1]}", "b is a list of 1 and cannot stand inside text"),
            ("{b: '${hydra:runtime.choices.x}'}", "no option was chosen for a group \"x\""),
        ];
        for (yaml, wanted) in table {
            let message = resolved(yaml).unwrap_err().to_string();
            assert!(message.contains(wanted), "{yaml}: {message}");
        }
    }

    #[test]
    fn growth_and_depth_are_bounded() {
        let doubling = |leaf: &str, wrap: fn(usize) -> String| {
            let mut yaml: String = (0..40).map(|n| format!("a{n}: {}\n", wrap(n + 1))).collect();
            yaml.push_str(&format!("a40: {leaf}\n"));
            yaml
        };
        let chain: String = (0..2000).map(|n| format!("a{n}: ${{a{}}}\n", n + 1)).collect();
        let table = [
            doubling("''", |n| format!("'${{a{n}}}${{a{n}}}'")),
            doubling("x", |n| format!("'${{a{n}}}${{a{n}}}'")),
            doubling("x", |n| format!("['${{a{n}}}', '${{a{n}}}']")),
            chain,
            format!("a: '{}'", "${".repeat(20_000)),
            format!("a: '{}{}'", "${".repeat(20_000), "}".repeat(20_000)),
        ];
        for yaml in table {
            assert!(matches!(resolved(&yaml), Err(ConfigError::Interpolation { .. })), "{}…", &yaml[..40]);
        }
    }

    proptest! {
        #[test]
        fn any_text_resolves_or_is_refused(text in any::<String>()) {
            let root = Value::Mapping([(Value::from("a"), Value::from(text.as_str()))].into_iter().collect());
            let surroundings = Surroundings::here();
            let outcome = resolve(&root, &surroundings, &BTreeMap::new(), &Origins::default());
            if !text.contains("${") {
                prop_assert_eq!(outcome.unwrap(), root);
            }
        }

        #[test]
        fn text_near_the_grammar(a in r"(\$\{|\}|\\|[abc.:\[\]0]|now:%Y|hydra:){0,12}",
                                 b in r"(\$\{|\}|[abc.]){0,8}") {
            let entries = [("a", Value::from(a)), ("b", Value::from(b)), ("c", Value::from(1))];
            let root = entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect();
            let _ = resolve(&Value::Mapping(root), &Surroundings::here(), &BTreeMap::new(), &Origins::default());
        }
    }
}
