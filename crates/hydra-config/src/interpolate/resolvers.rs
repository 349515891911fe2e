//! The resolvers by name: `oc.env`, `oc.select`, `oc.decode`, `oc.create`, `oc.dict.*`, `now`, `hydra`.

use serde_yaml_ng::Value;

use super::grammar::parse_argument;
use super::{HYDRA, Lookup, Resolver, Site};
use crate::error::{ConfigError, Names};
use crate::python_text::str_of;
use crate::typed::described;

const RESOLVERS: [&str; 8] =
    ["hydra", "now", "oc.create", "oc.decode", "oc.dict.keys", "oc.dict.values", "oc.env", "oc.select"];

pub(super) fn call(
    resolver: &mut Resolver<'_>,
    name: &str,
    arguments: Vec<Value>,
    site: Site<'_>,
) -> Result<Value, ConfigError> {
    let (min, max) = match name {
        "oc.env" | "oc.select" => (1, 2),
        _ if RESOLVERS.contains(&name) => (1, 1),
        _ => {
            let known = RESOLVERS.map(str::to_owned);
            let message = format!("unknown resolver {name:?}{}", Names::near(name, &known));
            return Err(resolver.error(site, message));
        }
    };
    if arguments.len() < min || arguments.len() > max {
        let message = format!("{name} takes {max} argument(s), got {}", arguments.len());
        return Err(resolver.error(site, message));
    }
    let mut arguments = arguments.into_iter();
    let first = arguments.next().unwrap_or_default();
    let default = arguments.next();
    if name == "oc.create" {
        return create(resolver, &first, site);
    }
    if name == "oc.decode" && first.is_null() {
        return Ok(Value::Null);
    }
    let Value::String(first) = first else {
        let message = format!("{name} expects text, got {}", described(&first));
        return Err(resolver.error(site, message));
    };
    match name {
        "oc.env" => match (std::env::var(&first), default) {
            (Ok(value), _) => Ok(Value::from(value)),
            (Err(_), Some(Value::Null)) => Ok(Value::Null),
            (Err(_), Some(default)) => Ok(Value::from(str_of(&default))),
            (Err(_), None) => {
                Err(resolver.error(site, format!("the environment variable {first} is not set")))
            }
        },
        "oc.select" => match resolver.lookup(&first, site)? {
            Lookup::Value(value) => Ok(value),
            Lookup::Missing | Lookup::Absent => Ok(default.unwrap_or_default()),
        },
        "oc.decode" => {
            let argument = parse_argument(&first)
                .map_err(|message| resolver.error(site, format!("{first:?}: {message}")))?;
            resolver.nested(site, |resolver| resolver.argument(&argument, site))
        }
        "oc.dict.keys" | "oc.dict.values" => {
            let entries = match resolver.lookup(&first, site)? {
                Lookup::Value(Value::Mapping(entries)) => entries,
                Lookup::Value(other) => {
                    let message = format!("{name} expects a map, but {first} is {}", described(&other));
                    return Err(resolver.error(site, message));
                }
                Lookup::Missing | Lookup::Absent => return Err(resolver.unknown_key(&first, site)),
            };
            let part = |(key, value)| if name == "oc.dict.keys" { key } else { value };
            Ok(Value::Sequence(entries.into_iter().map(part).collect()))
        }
        "now" => jiff::fmt::strtime::format(&first, &resolver.context.now)
            .map(Value::from)
            .map_err(|error| resolver.error(site, format!("bad time format {first:?}: {error}"))),
        _ => match resolver.lookup_absolute(&format!("{HYDRA}.{first}"), site)? {
            Lookup::Value(value) => Ok(value),
            Lookup::Missing => Err(resolver.error(site, format!("hydra.{first} has no value yet"))),
            Lookup::Absent => Err(resolver.error(site, format!("hydra has no key {first:?}"))),
        },
    }
}

/// `oc.create`: a list or a map, whose text can contain references.
fn create(resolver: &mut Resolver<'_>, value: &Value, site: Site<'_>) -> Result<Value, ConfigError> {
    match value {
        Value::Sequence(_) | Value::Mapping(_) => {
            resolver.nested(site, |resolver| resolver.node(value, site.key))
        }
        Value::Null => Ok(Value::Null),
        other => {
            let message = format!("oc.create expects a list or a map, got {}", described(other));
            Err(resolver.error(site, message))
        }
    }
}
