//! The differences between two runs other than their results, whether they are intended, and which of them block a
//! comparison.

use serde::Serialize;

use super::sample::Facts;
use llmprof_base::units::three_digits;

/// [`Difference::what`] of an override; anything else is the name of a fact.
pub const OVERRIDE: &str = "override";
/// The name of the fact.
pub const BATCH: &str = "batch";
/// Given on the command line of the comparison.
const MEANT: &str = "--meant";

/// A fact that differs between the sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: &'static str,
    pub a: String,
    pub b: String,
    /// The overrides that cause it, or `--meant`; `None` if it is not intended.
    pub meant: Option<String>,
    /// Whether it blocks the verdict unless it is intended.
    pub forbids: bool,
}

impl Difference {
    pub fn blocks(&self) -> bool {
        self.forbids && self.meant.is_none()
    }

    /// Whether it makes the runs two workloads, intended or not.
    pub fn changes_workload(&self) -> bool {
        self.forbids && self.meant.is_some()
    }

    /// Whether the user wants it to be ignored.
    pub fn is_ignored(&self) -> bool {
        self.meant.as_deref() == Some(MEANT)
    }
}

/// A fact: its name, whether it must be equal, the keys of overrides that change it, and its value. A key with `=` is
/// the selection of a config group without the keys below it.
type Fact = (&'static str, bool, &'static [&'static str], fn(&Facts) -> Option<String>);

const FACTS: [Fact; 21] = [
    ("model", true, &["model"], |f| Some(f.run.model.clone())),
    ("parameters", true, &["model"], |f| Some(f.run.parameters.to_string())),
    ("dtype", true, &["model"], |f| Some(f.run.dtype.clone())),
    ("weights", true, &["model"], |f| {
        Some(if f.run.synthetic_weights { "synthetic" } else { "trained" }.to_owned())
    }),
    ("engine", true, &["runtime=", "runtime.device"], |f| Some(f.run.kind.to_string())),
    ("device", false, &["runtime=", "runtime.device", "hardware"], |f| Some(f.run.device.to_string())),
    (BATCH, true, &["runtime.batch_size", "runtime="], |f| Some(f.run.batch.to_string())),
    ("prompt tokens", true, &["dataset"], |f| Some(f.run.prompt_tokens.to_string())),
    ("output tokens", true, &["infer"], |f| Some(f.run.output_tokens.to_string())),
    ("simulated", true, &[], |f| Some(if f.run.simulated { "yes" } else { "no" }.to_owned())),
    ("requests", false, &["runtime.requests", "runtime=", "dataset"], |f| Some(f.run.requests.to_string())),
    ("warm-up", false, &["runtime.warmup", "runtime="], |f| Some(f.run.warmup.to_string())),
    ("seed", false, &["runtime.seed", "runtime="], |f| Some(f.run.seed.to_string())),
    ("gpu", true, &["hardware", "runtime.device"], |f| {
        Some(f.gpu.as_ref().map_or_else(|| "none seen".to_owned(), |gpu| gpu.name.clone()))
    }),
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
    ("command", false, &[], |f| f.run.command.clone()),
];

/// The names of all facts, as `--meant` takes them.
pub fn fact_names() -> Vec<&'static str> {
    FACTS.iter().map(|(what, ..)| *what).collect()
}

/// All differences: first the overrides, then the facts. Facts named in `intended` are intended to differ.
pub fn differences(a: &Facts, b: &Facts, intended: &[String]) -> Vec<Difference> {
    let overrides = changed_overrides(&a.run.overrides, &b.run.overrides);
    let mut found: Vec<Difference> = Vec::new();
    for (what, forbids, keys, value) in FACTS {
        // A fact that is known on one side only is not a difference.
        let Some((value_a, value_b)) = value(a).zip(value(b)).filter(|(a, b)| a != b) else { continue };
        let affects = |change: &&Change| keys.iter().any(|key| is_part(&change.key, key));
        let causes: Vec<&str> = overrides.iter().filter(affects).map(|c| c.key.as_str()).collect();
        let meant = match (intended.iter().any(|name| name == what), causes.is_empty()) {
            (true, _) => Some(MEANT.to_owned()),
            (false, false) => Some(causes.join(", ")),
            (false, true) => None,
        };
        found.push(Difference { what, a: value_a, b: value_b, meant, forbids });
    }
    let of_override = |change: Change| Difference {
        what: OVERRIDE,
        a: change.a,
        b: change.b,
        meant: Some(change.key),
        forbids: false,
    };
    overrides.into_iter().map(of_override).chain(found).collect()
}

/// Whether both are runs of one workload, on similar machines.
pub fn same_workload(a: &Facts, b: &Facts) -> bool {
    let matters = |difference: &Difference| {
        difference.forbids
            || (difference.what == OVERRIDE && difference.meant.as_deref() != Some("runtime.seed"))
    };
    a.cpu == b.cpu && !differences(a, b, &[]).iter().any(matters)
}

struct Change {
    key: String,
    a: String,
    b: String,
}

/// `key` is `of` or below it; `of` with `=` matches the selection of that group only.
fn is_part(key: &str, of: &str) -> bool {
    if let Some(group) = of.strip_suffix('=') {
        return key == group;
    }
    key == of || key.strip_prefix(of).is_some_and(|rest| rest.starts_with(['.', '@']))
}

/// The overrides that differ, without those for the output of a run.
fn changed_overrides(a: &[String], b: &[String]) -> Vec<Change> {
    let split = |text: &String| {
        let (key, value) = text.split_once('=').unwrap_or((text, "(removed)"));
        (key.trim_start_matches(['+', '~']).to_owned(), value.to_owned())
    };
    let (a, b): (Vec<_>, Vec<_>) = (a.iter().map(split).collect(), b.iter().map(split).collect());
    // If a key has several overrides, the last one applies.
    let value = |list: &[(String, String)], key: &str| {
        list.iter().rev().find(|(of, _)| of == key).map_or_else(|| "(default)".to_owned(), |(_, v)| v.clone())
    };
    let mut changes: Vec<Change> = Vec::new();
    for (key, _) in a.iter().chain(&b) {
        let (value_a, value_b) = (value(&a, key), value(&b, key));
        let matters = !["hydra", "output", "experiment"].iter().any(|part| is_part(key, part));
        if value_a != value_b && matters && !changes.iter().any(|change| change.key == *key) {
            changes.push(Change { key: key.clone(), a: value_a, b: value_b });
        }
    }
    changes
}
