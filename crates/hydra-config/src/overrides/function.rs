//! The functions of the override grammar: casts and sweeps.

use super::OverrideValue;
use super::element::{Element, Quote};
use super::sweep::{Bound, Sweep};
use crate::error::Names;
use crate::python_text::float_text;

/// A function and its arguments.
pub(super) struct Call<'t> {
    pub(super) name: &'t str,
    pub(super) positional: Vec<OverrideValue>,
    pub(super) named: Vec<(&'t str, OverrideValue)>,
}

const FUNCTIONS: [&str; 8] = ["bool", "choice", "float", "glob", "int", "json_str", "range", "str"];

pub(super) fn evaluate(call: Call<'_>) -> Result<OverrideValue, String> {
    let name = call.name;
    let explained = |message: String| format!("{name}: {message}");
    match name {
        "int" => cast(call, to_int).map_err(explained),
        "float" => cast(call, to_float).map_err(explained),
        "str" => cast(call, to_str).map_err(explained),
        "bool" => cast(call, to_bool).map_err(explained),
        "json_str" => {
            let value = call.arguments(&["value"])?.remove(0).ok_or("json_str: missing value")?;
            let value = value.single("json_str")?.to_value()?;
            let json = serde_json::to_string(&value).map_err(|error| explained(error.to_string()))?;
            Ok(OverrideValue::Single(Element::Quoted(json, Quote::Single)))
        }
        "choice" => choice(call).map(OverrideValue::Sweep),
        "range" => range(call).map(OverrideValue::Sweep).map_err(explained),
        "glob" => glob(call).map(OverrideValue::Sweep).map_err(explained),
        "interval" => Err("interval(…) has infinitely many values; use a list, choice(…) or range(…)".into()),
        "shuffle" => Err("shuffle(…) is not supported: runs keep the given order".into()),
        "sort" | "tag" => Err(format!("{name}(…) is not supported: write the values in the order you want")),
        _ => {
            let known = FUNCTIONS.map(str::to_owned);
            Err(format!("unknown function {name:?}{}", Names::near(name, &known)))
        }
    }
}

impl Call<'_> {
    /// The positional and named arguments in the order of `names`.
    fn arguments(self, names: &[&str]) -> Result<Vec<Option<OverrideValue>>, String> {
        if self.positional.len() > names.len() {
            return Err(format!("{} takes at most {} arguments", self.name, names.len()));
        }
        let mut found: Vec<Option<OverrideValue>> = self.positional.into_iter().map(Some).collect();
        found.resize_with(names.len(), || None);
        for (name, value) in self.named {
            let index = names.iter().position(|known| *known == name);
            let index = index.ok_or_else(|| format!("{} has no argument {name:?}", self.name))?;
            if found[index].replace(value).is_some() {
                return Err(format!("{} got {name} twice", self.name));
            }
        }
        Ok(found)
    }
}

/// Casts a value, each item of a list, each value of a map, or each value of a sweep.
fn cast(call: Call<'_>, to: fn(&Element) -> Result<Element, String>) -> Result<OverrideValue, String> {
    let several = call.positional.len() > 1;
    if several && call.named.is_empty() {
        let items = call.positional.into_iter().map(|value| value.single("a cast"));
        let items = items.map(|item| cast_element(&item?, to)).collect::<Result<_, _>>()?;
        return Ok(OverrideValue::Sweep(Sweep::Choice { items, simple: true }));
    }
    match call.arguments(&["value"])?.remove(0) {
        None => Err("missing value".into()),
        Some(OverrideValue::Single(element)) => cast_element(&element, to).map(OverrideValue::Single),
        Some(OverrideValue::Sweep(sweep)) => {
            sweep.cast(&|element| cast_element(element, to)).map(OverrideValue::Sweep)
        }
    }
}

fn cast_element(element: &Element, to: fn(&Element) -> Result<Element, String>) -> Result<Element, String> {
    match element {
        Element::List(items) => {
            items.iter().map(|item| cast_element(item, to)).collect::<Result<_, _>>().map(Element::List)
        }
        Element::Dict(entries) => entries
            .iter()
            .map(|(key, value)| Ok((key.clone(), cast_element(value, to)?)))
            .collect::<Result<_, _>>()
            .map(Element::Dict),
        scalar => to(scalar),
    }
}

fn to_int(element: &Element) -> Result<Element, String> {
    match element {
        Element::Bool(flag) => Ok(Element::Int(i128::from(*flag))),
        Element::Int(value) => Ok(Element::Int(*value)),
        Element::Float(value) if value.is_finite() && value.abs() < 1e30 => Ok(Element::Int(*value as i128)),
        Element::Text(text) | Element::Quoted(text, _) => {
            let digits = text.trim().replace('_', "");
            digits.parse().map(Element::Int).map_err(|_| format!("{text:?} is not an integer"))
        }
        other => Err(format!("{} cannot be converted to an integer", other.to_text())),
    }
}

fn to_float(element: &Element) -> Result<Element, String> {
    match element {
        Element::Bool(flag) => Ok(Element::Float(f64::from(u8::from(*flag)))),
        Element::Int(value) => Ok(Element::Float(*value as f64)),
        Element::Float(value) => Ok(Element::Float(*value)),
        Element::Text(text) | Element::Quoted(text, _) => {
            let digits = text.trim().replace('_', "");
            digits.parse().map(Element::Float).map_err(|_| format!("{text:?} is not a number"))
        }
        other => Err(format!("{} cannot be converted to a number", other.to_text())),
    }
}

fn to_str(element: &Element) -> Result<Element, String> {
    let text = match element {
        Element::Bool(flag) => flag.to_string(),
        Element::Int(value) => value.to_string(),
        Element::Float(value) => float_text(*value),
        Element::Text(text) | Element::Quoted(text, _) => text.clone(),
        other => return Err(format!("{} cannot be converted to text", other.to_text())),
    };
    Ok(Element::Text(text))
}

fn to_bool(element: &Element) -> Result<Element, String> {
    let flag = match element {
        Element::Null => false,
        Element::Bool(flag) => *flag,
        Element::Int(value) => *value != 0,
        Element::Float(value) => *value != 0.0,
        Element::Text(text) | Element::Quoted(text, _) if text.eq_ignore_ascii_case("true") => true,
        Element::Text(text) | Element::Quoted(text, _) if text.eq_ignore_ascii_case("false") => false,
        other => return Err(format!("{} is neither true nor false", other.to_text())),
    };
    Ok(Element::Bool(flag))
}

fn choice(call: Call<'_>) -> Result<Sweep, String> {
    if let Some((name, _)) = call.named.first() {
        return Err(format!("choice has no argument {name:?}"));
    }
    let single = call.positional.len() == 1;
    let mut items = Vec::new();
    for value in call.positional {
        match value {
            OverrideValue::Single(Element::Quoted(text, _)) => items.push(Element::Text(text)),
            OverrideValue::Single(Element::Null) => {
                return Err("choice does not accept null; write a,null without choice".into());
            }
            OverrideValue::Single(element) => items.push(element),
            OverrideValue::Sweep(Sweep::Choice { items, simple: true }) if single => {
                return Ok(Sweep::Choice { items, simple: false });
            }
            OverrideValue::Sweep(_) => return Err("a choice is not allowed inside a choice".into()),
        }
    }
    match items.is_empty() {
        true => Err("choice needs at least one value".into()),
        false => Ok(Sweep::Choice { items, simple: false }),
    }
}

fn range(call: Call<'_>) -> Result<Sweep, String> {
    let mut bounds = Vec::new();
    for argument in call.arguments(&["start", "stop", "step"])? {
        bounds.push(match argument {
            None => None,
            Some(OverrideValue::Single(Element::Int(value))) => Some(Bound::Int(value)),
            Some(OverrideValue::Single(Element::Float(value))) => Some(Bound::Float(value)),
            Some(_) => return Err("expected numbers".into()),
        });
    }
    let zero = Bound::Int(0);
    let (start, stop) = match (bounds[0], bounds[1]) {
        (None, _) => return Err("missing start".into()),
        (Some(stop), None) => (zero, stop),
        (Some(start), Some(stop)) => (start, stop),
    };
    let step = bounds[2].unwrap_or(Bound::Int(1));
    if step.is_zero() {
        return Err("the step is 0".into());
    }
    Ok(Sweep::Range { start, stop, step })
}

fn glob(call: Call<'_>) -> Result<Sweep, String> {
    let mut arguments = call.arguments(&["include", "exclude"])?.into_iter().map(|argument| {
        let Some(argument) = argument else { return Ok(Vec::new()) };
        let patterns = match argument.single("glob")? {
            Element::List(items) => items,
            pattern => vec![pattern],
        };
        let text = |pattern: Element| match pattern.as_text() {
            Some(text) => Ok(text.to_owned()),
            None => Err(format!("{} is not a pattern", pattern.to_text())),
        };
        patterns.into_iter().map(text).collect::<Result<Vec<_>, String>>()
    });
    let include = arguments.next().unwrap_or_else(|| Ok(Vec::new()))?;
    let exclude = arguments.next().unwrap_or_else(|| Ok(Vec::new()))?;
    match include.is_empty() {
        true => Err("missing pattern".into()),
        false => Ok(Sweep::Glob { include, exclude }),
    }
}
