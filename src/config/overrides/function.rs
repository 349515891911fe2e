//! The functions of the override grammar: casts, and the sweeps that name their values.

use super::element::{Element, Quote};
use super::sweep::{Bound, Sweep};
use crate::config::error::Names;
use crate::config::python_text::float_text;

/// What a call, or any other value, comes to.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    One(Element),
    Many(Sweep),
}

impl Outcome {
    /// The single value, where a sweep makes no sense.
    pub(super) fn one(self, inside: &str) -> Result<Element, String> {
        match self {
            Outcome::One(element) => Ok(element),
            Outcome::Many(_) => Err(format!("a sweep cannot stand inside {inside}")),
        }
    }
}

/// A function and its arguments.
pub(super) struct Call<'t> {
    pub(super) name: &'t str,
    pub(super) positional: Vec<Outcome>,
    pub(super) named: Vec<(&'t str, Outcome)>,
}

const FUNCTIONS: [&str; 8] = ["bool", "choice", "float", "glob", "int", "json_str", "range", "str"];

pub(super) fn evaluate(call: Call<'_>) -> Result<Outcome, String> {
    let name = call.name;
    let explained = |message: String| format!("{name}: {message}");
    match name {
        "int" => cast(call, to_int).map_err(explained),
        "float" => cast(call, to_float).map_err(explained),
        "str" => cast(call, to_str).map_err(explained),
        "bool" => cast(call, to_bool).map_err(explained),
        "json_str" => {
            let value = call.arguments(&["value"])?.remove(0).ok_or("json_str wants a value")?;
            let value = value.one("json_str")?.to_value()?;
            let json = serde_json::to_string(&value).map_err(|error| explained(error.to_string()))?;
            Ok(Outcome::One(Element::Quoted(json, Quote::Single)))
        }
        "choice" => choice(call).map(Outcome::Many),
        "range" => range(call).map(Outcome::Many).map_err(explained),
        "glob" => glob(call).map(Outcome::Many).map_err(explained),
        "interval" => Err("interval(…) has no end of values; give a list, a choice(…) or a range(…)".into()),
        "shuffle" => Err("shuffle(…) is not supported: runs keep the order they were asked for in".into()),
        "sort" | "tag" => Err(format!("{name}(…) is not supported: write the values in the order you want")),
        _ => {
            let known = FUNCTIONS.map(str::to_owned);
            Err(format!("unknown function {name:?}{}", Names::near(name, &known)))
        }
    }
}

impl Call<'_> {
    /// The arguments in the order of `names`, whether they were named or not.
    fn arguments(self, names: &[&str]) -> Result<Vec<Option<Outcome>>, String> {
        if self.positional.len() > names.len() {
            return Err(format!("{} takes {} arguments at most", self.name, names.len()));
        }
        let mut found: Vec<Option<Outcome>> = self.positional.into_iter().map(Some).collect();
        found.resize_with(names.len(), || None);
        for (name, value) in self.named {
            let place = names.iter().position(|known| *known == name);
            let place = place.ok_or_else(|| format!("{} has no argument {name:?}", self.name))?;
            if found[place].replace(value).is_some() {
                return Err(format!("{} got {name} twice", self.name));
            }
        }
        Ok(found)
    }
}

/// Casts a value, each item of a list, each value of a map, or each value of a sweep.
fn cast(call: Call<'_>, to: fn(&Element) -> Result<Element, String>) -> Result<Outcome, String> {
    let several = call.positional.len() > 1;
    if several && call.named.is_empty() {
        let items = call.positional.into_iter().map(|value| value.one("a cast"));
        let items = items.map(|item| within(&item?, to)).collect::<Result<_, _>>()?;
        return Ok(Outcome::Many(Sweep::Choice { items, simple: true }));
    }
    match call.arguments(&["value"])?.remove(0) {
        None => Err("it wants a value".into()),
        Some(Outcome::One(element)) => within(&element, to).map(Outcome::One),
        Some(Outcome::Many(sweep)) => sweep.cast(&|element| within(element, to)).map(Outcome::Many),
    }
}

fn within(element: &Element, to: fn(&Element) -> Result<Element, String>) -> Result<Element, String> {
    match element {
        Element::List(items) => {
            items.iter().map(|item| within(item, to)).collect::<Result<_, _>>().map(Element::List)
        }
        Element::Dict(entries) => entries
            .iter()
            .map(|(key, value)| Ok((key.clone(), within(value, to)?)))
            .collect::<Result<_, _>>()
            .map(Element::Dict),
        scalar => to(scalar),
    }
}

fn to_int(element: &Element) -> Result<Element, String> {
    match element {
        Element::Bool(flag) => Ok(Element::Int(i128::from(*flag))),
        Element::Int(whole) => Ok(Element::Int(*whole)),
        Element::Float(real) if real.is_finite() && real.abs() < 1e30 => Ok(Element::Int(*real as i128)),
        Element::Text(text) | Element::Quoted(text, _) => {
            let digits = text.trim().replace('_', "");
            digits.parse().map(Element::Int).map_err(|_| format!("{text:?} is not a whole number"))
        }
        other => Err(format!("{} cannot become a whole number", other.to_text())),
    }
}

fn to_float(element: &Element) -> Result<Element, String> {
    match element {
        Element::Bool(flag) => Ok(Element::Float(f64::from(u8::from(*flag)))),
        Element::Int(whole) => Ok(Element::Float(*whole as f64)),
        Element::Float(real) => Ok(Element::Float(*real)),
        Element::Text(text) | Element::Quoted(text, _) => {
            let digits = text.trim().replace('_', "");
            digits.parse().map(Element::Float).map_err(|_| format!("{text:?} is not a number"))
        }
        other => Err(format!("{} cannot become a number", other.to_text())),
    }
}

fn to_str(element: &Element) -> Result<Element, String> {
    let text = match element {
        Element::Bool(flag) => flag.to_string(),
        Element::Int(whole) => whole.to_string(),
        Element::Float(real) => float_text(*real),
        Element::Text(text) | Element::Quoted(text, _) => text.clone(),
        other => return Err(format!("{} cannot become text", other.to_text())),
    };
    Ok(Element::Text(text))
}

fn to_bool(element: &Element) -> Result<Element, String> {
    let flag = match element {
        Element::Null => false,
        Element::Bool(flag) => *flag,
        Element::Int(whole) => *whole != 0,
        Element::Float(real) => *real != 0.0,
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
    let alone = call.positional.len() == 1;
    let mut items = Vec::new();
    for value in call.positional {
        match value {
            Outcome::One(Element::Quoted(text, _)) => items.push(Element::Text(text)),
            Outcome::One(Element::Null) => {
                return Err("choice takes no null; write it without choice: a,null".into());
            }
            Outcome::One(element) => items.push(element),
            Outcome::Many(Sweep::Choice { items, simple: true }) if alone => {
                return Ok(Sweep::Choice { items, simple: false });
            }
            Outcome::Many(_) => return Err("a choice cannot stand inside a choice".into()),
        }
    }
    match items.is_empty() {
        true => Err("choice wants at least one value".into()),
        false => Ok(Sweep::Choice { items, simple: false }),
    }
}

fn range(call: Call<'_>) -> Result<Sweep, String> {
    let mut bounds = Vec::new();
    for argument in call.arguments(&["start", "stop", "step"])? {
        bounds.push(match argument {
            None => None,
            Some(Outcome::One(Element::Int(whole))) => Some(Bound::Whole(whole)),
            Some(Outcome::One(Element::Float(real))) => Some(Bound::Real(real)),
            Some(_) => return Err("it wants numbers".into()),
        });
    }
    let zero = Bound::Whole(0);
    let (start, stop) = match (bounds[0], bounds[1]) {
        (None, _) => return Err("it wants a start".into()),
        (Some(stop), None) => (zero, stop),
        (Some(start), Some(stop)) => (start, stop),
    };
    let step = bounds[2].unwrap_or(Bound::Whole(1));
    if step.is_zero() {
        return Err("the step is 0".into());
    }
    Ok(Sweep::Range { start, stop, step })
}

fn glob(call: Call<'_>) -> Result<Sweep, String> {
    let mut arguments = call.arguments(&["include", "exclude"])?.into_iter().map(|argument| {
        let Some(argument) = argument else { return Ok(Vec::new()) };
        let patterns = match argument.one("glob")? {
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
        true => Err("it wants a pattern".into()),
        false => Ok(Sweep::Glob { include, exclude }),
    }
}
