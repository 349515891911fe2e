//! In what two runs differ besides their numbers, what of that was meant, and what forbids to compare them.

use serde::Serialize;

use super::sample::Facts;
use crate::base::units::three_digits;

/// Something that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: &'static str,
    pub a: String,
    pub b: String,
    /// The overrides that say so, or the word of whoever compares; `None` where nobody did.
    pub meant: Option<String>,
    /// As long as it was not meant, no verdict is given.
    pub forbids: bool,
}

impl Difference {
    pub fn blocks(&self) -> bool {
        self.forbids && self.meant.is_none()
    }
}

/// A fact: its name, whether it has to be the same, the keys of overrides that change it, and its value. A key with `=` is the
/// choice of a group, and nothing below it.
type Fact = (&'static str, bool, &'static [&'static str], fn(&Facts) -> Option<String>);

const FACTS: [Fact; 20] = [
    ("model", true, &["model"], |f| Some(f.run.model.clone())),
    ("parameters", true, &["model"], |f| Some(f.run.parameters.to_string())),
    ("dtype", true, &["model"], |f| Some(f.run.dtype.clone())),
    ("weights", true, &["model"], |f| {
        Some(if f.run.synthetic_weights { "synthetic" } else { "trained" }.to_owned())
    }),
    ("engine", true, &["runtime=", "runtime.device"], |f| Some(f.run.engine.to_string())),
    ("device", false, &["runtime=", "runtime.device", "hardware"], |f| Some(f.run.device.to_string())),
    ("batch", true, &["runtime.batch_size", "runtime="], |f| Some(f.run.batch.to_string())),
    ("prompt tokens", true, &["dataset"], |f| Some(f.run.prompt_tokens.to_string())),
    ("output tokens", true, &["infer"], |f| Some(f.run.output_tokens.to_string())),
    ("simulated", true, &[], |f| Some(if f.run.simulated { "yes" } else { "no" }.to_owned())),
    ("requests", false, &["runtime.requests", "runtime=", "dataset"], |f| Some(f.run.requests.to_string())),
    ("warm-up", false, &["runtime.warmup", "runtime="], |f| Some(f.run.warmup.to_string())),
    ("seed", false, &["runtime.seed", "runtime="], |f| Some(f.run.seed.to_string())),
    ("gpu", true, &["hardware", "runtime.device"], |f| f.gpu.as_ref().map(|gpu| gpu.name.clone())),
    ("driver", false, &[], |f| f.gpu.as_ref().map(|gpu| gpu.driver.clone())),
    ("power limit", false, &[], |f| {
        f.gpu
            .as_ref()
            .and_then(|gpu| gpu.power_limit_w)
            .map(|watts| format!("{} W", three_digits(watts.into())))
    }),
    ("application clock", false, &[], |f| {
        f.gpu.as_ref().and_then(|gpu| gpu.sm_clock_application_mhz).map(|mhz| format!("{mhz} MHz"))
    }),
    ("mig", true, &[], |f| {
        f.gpu.as_ref().and_then(|gpu| gpu.mig).map(|mig| if mig { "on" } else { "off" }.to_owned())
    }),
    ("cpu", true, &[], |f| f.cpu.clone().filter(|_| f.gpu.is_none() && f.run.device.is_cpu())),
    ("program", false, &[], |f| Some(f.run.program.clone())),
];

/// The names of all facts, for whoever says that one was meant to differ.
pub fn names() -> Vec<&'static str> {
    FACTS.iter().map(|(what, ..)| *what).collect()
}

/// What differs: first what the overrides say, then what else is not the same. `said` are facts that were meant by word.
pub fn differences(a: &Facts, b: &Facts, said: &[String]) -> Vec<Difference> {
    let overrides = changed_overrides(&a.run.overrides, &b.run.overrides);
    let mut found: Vec<Difference> = Vec::new();
    for (what, forbids, keys, value) in FACTS {
        // Whether something is there on one side alone is no difference in itself, but for the GPU.
        let (x, y) = match (value(a), value(b)) {
            (Some(x), Some(y)) => (x, y),
            (None, Some(y)) if what == "gpu" => ("none seen".to_owned(), y),
            (Some(x), None) if what == "gpu" => (x, "none seen".to_owned()),
            _ => continue,
        };
        if x == y {
            continue;
        }
        let touches = |change: &&Change| keys.iter().any(|key| is_part(&change.key, key));
        let by_override: Vec<String> = overrides.iter().filter(touches).map(|c| c.key.clone()).collect();
        let meant = match (said.iter().any(|name| name == what), by_override.is_empty()) {
            (true, _) => Some("said so".to_owned()),
            (false, false) => Some(by_override.join(", ")),
            (false, true) => None,
        };
        found.push(Difference { what, a: x, b: y, meant, forbids });
    }
    let told = |change: Change| Difference {
        what: "override",
        a: change.a,
        b: change.b,
        meant: Some(change.key),
        forbids: false,
    };
    overrides.into_iter().map(told).chain(found).collect()
}

struct Change {
    key: String,
    a: String,
    b: String,
}

/// `key` is `of` or lies below it; of a group's choice it is that choice.
fn is_part(key: &str, of: &str) -> bool {
    if let Some(group) = of.strip_suffix('=') {
        return key == group;
    }
    key == of || key.strip_prefix(of).is_some_and(|rest| rest.starts_with(['.', '@']))
}

/// The overrides that are not the same; where a run goes to is none of them.
fn changed_overrides(a: &[String], b: &[String]) -> Vec<Change> {
    let split = |text: &String| {
        let (key, value) = text.split_once('=').unwrap_or((text, "(removed)"));
        (key.trim_start_matches(['+', '~']).to_owned(), value.to_owned())
    };
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().map(split).collect(), b.iter().map(split).collect());
    // Of several for one key the last one holds.
    let of = |list: &[(String, String)], key: &str| {
        list.iter().rev().find(|(of, _)| of == key).map_or_else(|| "(default)".to_owned(), |(_, v)| v.clone())
    };
    let mut changes: Vec<Change> = Vec::new();
    for (key, _) in a.iter().chain(&b) {
        let (x, y) = (of(&a, key), of(&b, key));
        let matters = !["hydra", "output", "experiment"].iter().any(|part| is_part(key, part));
        if x != y && matters && !changes.iter().any(|change| change.key == *key) {
            changes.push(Change { key: key.clone(), a: x, b: y });
        }
    }
    changes
}
