//! Sweeps: several values for one key, and the runs of all combinations.

use super::element::Element;
use super::{AsOverride, Override, OverrideValue, parsed};
use crate::conf_tree::ConfTree;
use crate::error::ConfigError;
use crate::python_text::float_text;

/// Maximum number of values of one key and of runs of one sweep. More are most likely a mistake.
const MAX_VALUES: usize = 10_000;
const MAX_RUNS: usize = 100_000;

/// The values of one swept override.
#[derive(Debug, Clone, PartialEq)]
pub enum Sweep {
    /// `a,b,c`, or `choice(a,b,c)` if it is not `simple`.
    Choice { items: Vec<Element>, simple: bool },
    /// `range(start,stop,step)`; `stop` is excluded.
    Range { start: Bound, stop: Bound, step: Bound },
    /// `glob(…)`: options of a group by pattern.
    Glob { include: Vec<String>, exclude: Vec<String> },
}

/// A start, stop or step of a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    Int(i128),
    Float(f64),
}

impl Bound {
    pub(super) fn is_zero(self) -> bool {
        match self {
            Bound::Int(value) => value == 0,
            Bound::Float(value) => value == 0.0,
        }
    }

    fn element(self) -> Element {
        match self {
            Bound::Int(value) => Element::Int(value),
            Bound::Float(value) => Element::Float(value),
        }
    }

    fn parse(element: Element) -> Result<Bound, String> {
        match element {
            Element::Int(value) => Ok(Bound::Int(value)),
            Element::Float(value) => Ok(Bound::Float(value)),
            _ => Err("a range can only be cast to int or float".into()),
        }
    }
}

impl Sweep {
    pub(super) fn cast(self, to: &dyn Fn(&Element) -> Result<Element, String>) -> Result<Sweep, String> {
        match self {
            Sweep::Choice { items, simple } => {
                Ok(Sweep::Choice { items: items.iter().map(to).collect::<Result<_, _>>()?, simple })
            }
            Sweep::Range { start, stop, step } => {
                let bound = |bound: Bound| Bound::parse(to(&bound.element())?);
                Ok(Sweep::Range { start: bound(start)?, stop: bound(stop)?, step: bound(step)? })
            }
            Sweep::Glob { .. } => Err("a glob cannot be cast".into()),
        }
    }

    /// The values as overrides write them. A glob selects options of `group`.
    fn texts(&self, tree: &ConfTree, group: &str) -> Result<Vec<String>, String> {
        match self {
            Sweep::Choice { items, .. } => Ok(items.iter().map(Element::to_text).collect()),
            Sweep::Range { start, stop, step } => range_texts(*start, *stop, *step),
            Sweep::Glob { include, exclude } => {
                if !tree.has_group(group) {
                    return Err(format!("glob selects options, but {group:?} is not a group"));
                }
                let any = |patterns: &[String], name: &str| patterns.iter().any(|p| glob_matches(p, name));
                let mut options = tree.options(group);
                options.retain(|name| any(include, name) && !any(exclude, name));
                Ok(options)
            }
        }
    }
}

fn range_texts(start: Bound, stop: Bound, step: Bound) -> Result<Vec<String>, String> {
    if step.is_zero() {
        return Err("the step of the range is 0".into());
    }
    if let (Bound::Int(start), Bound::Int(stop), Bound::Int(step)) = (start, stop, step) {
        return step_texts(start, stop, step, |value| value.to_string());
    }
    // Decimal steps as in Hydra: ten steps of 0.1 are 1.0.
    let fixed = |bound: Bound| fixed_point(bound).ok_or_else(|| "the range is too wide".to_owned());
    step_texts(fixed(start)?, fixed(stop)?, fixed(step)?, |value| float_text(from_fixed(value)))
}

/// The texts of the values from `start` by `step` up to, but without, `stop`.
fn step_texts(
    start: i128,
    stop: i128,
    step: i128,
    text: impl Fn(i128) -> String,
) -> Result<Vec<String>, String> {
    let in_range = |value: i128| if step > 0 { value < stop } else { value > stop };
    let mut texts = Vec::new();
    let mut next = Some(start);
    while let Some(value) = next.filter(|value| in_range(*value)) {
        if texts.len() == MAX_VALUES {
            return Err(format!("the range has more than {MAX_VALUES} values"));
        }
        texts.push(text(value));
        next = value.checked_add(step);
    }
    Ok(texts)
}

const FIXED_DIGITS: usize = 24;

/// A number times 10²⁴, rounded from its decimal digits.
fn fixed_point(bound: Bound) -> Option<i128> {
    match bound {
        Bound::Int(value) => value.checked_mul(10i128.pow(FIXED_DIGITS as u32)),
        Bound::Float(value) if value.is_finite() && value.abs() < 1e13 => {
            format!("{value:.FIXED_DIGITS$}").replace('.', "").parse().ok()
        }
        Bound::Float(_) => None,
    }
}

fn from_fixed(fixed: i128) -> f64 {
    let digits = format!("{:0width$}", fixed.unsigned_abs(), width = FIXED_DIGITS + 1);
    let (integer, fraction) = digits.split_at(digits.len() - FIXED_DIGITS);
    let sign = if fixed < 0 { "-" } else { "" };
    format!("{sign}{integer}.{fraction}").parse().unwrap_or_default()
}

/// Whether `name` matches a shell pattern with `*`, `?`, `[a-c]` and `[!a]`.
pub fn glob_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // The position after the last `*`, and the number of characters before its next attempt.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => match char_class(&pattern[p..], name[n]) {
                Some((true, len)) => Some(p + len),
                Some((false, _)) => None,
                None => (name[n] == '[').then_some(p + 1),
            },
            Some(&c) => (c == name[n]).then_some(p + 1),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = (next, n + 1),
            (None, Some((after, taken))) => {
                star = Some((after, taken + 1));
                (p, n) = (after, taken + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Whether `c` is in the class at the start of `pattern`, and the length of the class.
fn char_class(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let negated = pattern.get(1) == Some(&'!');
    let start = 1 + usize::from(negated);
    let end = start + 1 + pattern.get(start + 1..)?.iter().position(|&c| c == ']')?;
    let members = &pattern[start..end];
    let mut found = false;
    let mut index = 0;
    while index < members.len() {
        if members.get(index + 1) == Some(&'-') && index + 2 < members.len() {
            found |= (members[index]..=members[index + 2]).contains(&c);
            index += 3;
        } else {
            found |= members[index] == c;
            index += 1;
        }
    }
    Some((found != negated, end + 1))
}

/// The overrides of each run of a sweep: all combinations, with the last key varying fastest.
///
/// As in Hydra, values are normalised, and the later of two overrides of one key wins.
pub fn expand_sweep(
    tree: &ConfTree,
    overrides: &[impl AsOverride],
) -> Result<Vec<Vec<Override>>, ConfigError> {
    let mut axes: Vec<(String, Vec<Override>)> = Vec::new();
    for given in parsed(overrides)? {
        let key = format!("{}{}", given.action.prefix(), given.choice_key());
        let values = match &given.value {
            Some(OverrideValue::Single(element)) => vec![element.to_text()],
            Some(OverrideValue::Sweep(_)) if given.is_hydra() => {
                return Err(given.bad("a sweep over Hydra's own configuration is not supported"));
            }
            Some(OverrideValue::Sweep(sweep)) => {
                sweep.texts(tree, &given.key).map_err(|message| given.bad(message))?
            }
            None => vec!["null".to_owned()],
        };
        let values = values.iter().map(|value| Override::parse(&format!("{key}={value}")));
        let values = values.collect::<Result<_, _>>()?;
        match axes.iter_mut().find(|(known, _)| *known == key) {
            Some(axis) => axis.1 = values,
            None => axes.push((key, values)),
        }
        let runs = axes.iter().try_fold(1usize, |runs, (_, values)| runs.checked_mul(values.len()));
        if runs.is_none_or(|runs| runs > MAX_RUNS) {
            return Err(given.bad(format!("the sweep has more than {MAX_RUNS} runs")));
        }
    }
    let mut runs = vec![Vec::new()];
    for (_, values) in &axes {
        runs = runs
            .iter()
            .flat_map(|run: &Vec<Override>| {
                values.iter().map(move |value| run.iter().cloned().chain([value.clone()]).collect())
            })
            .collect();
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> ConfTree {
        ConfTree::from_files([
            ("config.yaml", ""),
            ("model/qwen_a.yaml", ""),
            ("model/qwen_b.yaml", ""),
            ("model/llama.yaml", ""),
        ])
    }

    fn runs(overrides: &[&str]) -> Result<Vec<String>, ConfigError> {
        let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
        let words = |run: Vec<Override>| run.into_iter().map(|given| given.text).collect::<Vec<_>>();
        Ok(expand_sweep(&tree(), &overrides)?.into_iter().map(|run| words(run).join(" ")).collect())
    }

    #[test]
    fn sweeps_expand_to_all_combinations() {
        let table: &[(&[&str], &[&str])] = &[
            (&[], &[""]),
            (&["a=1"], &["a=1"]),
            (&["a=1,2", "b=x,y"], &["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]),
            (&["a=1,2", "a=3"], &["a=3"]),
            (
                &["a=choice('x y',[1, 2])", "b=null,1"],
                &[r"a=x\ y b=null", r"a=x\ y b=1", "a=[1,2] b=null", "a=[1,2] b=1"],
            ),
            (&["a='x y',z"], &["a='x y'", "a=z"]),
            (&["a=range(3)"], &["a=0", "a=1", "a=2"]),
            (&["a=range(3,0,-2)"], &["a=3", "a=1"]),
            (&["a=range(0,0.4,0.1)"], &["a=0.0", "a=0.1", "a=0.2", "a=0.3"]),
            (&["a=float(range(1,3))"], &["a=1.0", "a=2.0"]),
            (&["a=str(1,2)"], &["a=1", "a=2"]),
            (&["model=glob(qwen*)"], &["model=qwen_a", "model=qwen_b"]),
            (&["model=glob(*,exclude=qwen_?)"], &["model=llama"]),
            (&["model=glob([l*,*_a])"], &["model=llama", "model=qwen_a"]),
            (&["~a", "+b=1,2"], &["~a=null +b=1", "~a=null +b=2"]),
        ];
        for (overrides, expected) in table {
            assert_eq!(runs(overrides).unwrap(), *expected, "{overrides:?}");
        }
    }

    #[test]
    fn invalid_sweeps_are_refused() {
        let table = [
            ("a=glob(*)", "is not a group"),
            ("a=range(1000000)", "more than 10000 values"),
            ("hydra.run.dir=a,b", "Hydra's own configuration"),
            ("a=interval(0,1)", "interval"),
        ];
        for (text, expected) in table {
            let message = runs(&[text]).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let message = runs(&["a=range(1000)", "b=range(1000)"]).unwrap_err().to_string();
        assert!(message.contains("more than 100000 runs"), "{message}");
    }

    #[test]
    fn shell_patterns() {
        let table = [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "abd", false),
            ("a?", "ab", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("**a*b", "xaxxb", true),
            ("*.py", "a.py", true),
            ("*.py", "a.pyc", false),
            ("LICENSE*", "LICENSE.txt", true),
            ("model-*-of-*.safetensors", "model-1-of-2.safetensors", true),
            ("a*a", "a", false),
            ("config.json", "config.json", true),
        ];
        for (pattern, name, expected) in table {
            assert_eq!(glob_matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
