//! Composes files and overrides into one typed configuration, and writes it as the YAML files that Hydra keeps.

use std::collections::BTreeMap;

use serde_yaml_ng::{Mapping, Value};

use crate::composition::{Composition, package};
use crate::conf_tree::ConfTree;
use crate::context::ComposeContext;
use crate::error::ConfigError;
use crate::interpolate::HYDRA;
use crate::overrides::{Action, AsOverride, Override, OverrideValue, parsed};
use crate::python_text::str_of;
use crate::schema::Schema;
use crate::typed;

/// A composed configuration and the files and overrides it was made from.
#[derive(Debug, Clone)]
pub struct Composed<C> {
    pub config: C,
    /// The job's configuration, interpolations resolved, without Hydra's own.
    pub tree: Value,
    /// The option chosen for each group.
    pub choices: BTreeMap<String, String>,
    /// As they were typed.
    pub overrides: Vec<String>,
    /// The same as it was written.
    pub composition: Composition,
}

impl<C> Composed<C> {
    /// The resolved configuration as YAML, in the order of the files.
    pub fn to_yaml(&self) -> String {
        yaml_text(&self.tree)
    }

    /// The part of the resolved configuration at a dotted path (`runtime.sim`).
    pub fn package(&self, path: &str) -> Result<Value, ConfigError> {
        package(&self.tree, path)
    }

    /// The directory of the sweep and the subdirectory of this job, from `hydra.sweep`.
    pub fn sweep_dirs(&self) -> Result<(String, String), ConfigError> {
        let text = |key: &str| Ok(str_of(&self.composition.resolved_hydra(key)?));
        Ok((text("sweep.dir")?, text("sweep.subdir")?))
    }

    /// A part of Hydra's own configuration (`launcher`), typed: `T` has it at `hydra.<part>`.
    pub fn hydra_part<T: Schema>(&self, part: &str) -> Result<T, ConfigError> {
        let entry = |name: &str, value: Value| -> Value {
            Value::Mapping([(Value::from(name), value)].into_iter().collect())
        };
        let value = self.composition.resolved_hydra(part)?;
        typed::typed(&entry(HYDRA, entry(part, value)), &self.composition.tree.origins)
    }

    /// The overrides of the job as a YAML list, as they were typed.
    pub fn overrides_yaml(&self) -> String {
        yaml_text(&self.composition.job_overrides())
    }

    /// Hydra's own configuration as YAML, as it was written.
    pub fn hydra_yaml(&self) -> String {
        yaml_text(&Value::Mapping([(Value::from(HYDRA), self.composition.hydra())].into_iter().collect()))
    }

    /// The name and content of each file in a run's `.hydra/` directory.
    pub fn hydra_files(&self) -> [(&'static str, String); 3] {
        [
            ("config.yaml", yaml_text(&self.composition.job())),
            ("hydra.yaml", self.hydra_yaml()),
            ("overrides.yaml", self.overrides_yaml()),
        ]
    }
}

/// `value` as YAML text.
pub fn yaml_text(value: &impl serde::Serialize) -> String {
    // Cannot fail: keys are strings and values are plain.
    serde_yaml_ng::to_string(value).unwrap_or_default()
}

/// Composes `config.yaml`, the options its defaults list names, and `overrides`.
pub fn compose<C: Schema>(
    tree: &ConfTree,
    overrides: &[impl AsOverride],
    context: &ComposeContext,
) -> Result<Composed<C>, ConfigError> {
    let overrides = parsed(overrides)?;
    match typed_composition(tree, &overrides, context) {
        Err(ConfigError::UnknownKey { key, names, origin, add_with: Some(plus) }) => {
            // Suggest the + only if the typed configuration has the key.
            let added: Vec<Override> = overrides
                .into_iter()
                .map(|given| match plus == format!("+{}", given.text) {
                    true => Override { text: plus.clone(), action: Action::Add, ..given },
                    false => given,
                })
                .collect();
            let still_unknown = matches!(
                typed_composition::<C>(tree, &added, context),
                Err(ConfigError::UnknownKey { add_with: None, .. } | ConfigError::BadMerge { .. })
            );
            let add_with = Some(plus).filter(|_| !still_unknown);
            Err(ConfigError::UnknownKey { key, names, origin, add_with })
        }
        outcome => outcome,
    }
}

fn typed_composition<C: Schema>(
    tree: &ConfTree,
    overrides: &[Override],
    context: &ComposeContext,
) -> Result<Composed<C>, ConfigError> {
    let composition = Composition::with_schema::<C>(tree, overrides, context)?;
    let origins = &composition.tree.origins;
    let resolved = composition.resolved_job().and_then(|job| {
        let full = with_hydra(&job, |key| composition.resolved_hydra(key))?;
        Ok((job, full))
    });
    let (job, full) = resolved.map_err(|error| {
        // If the unresolved reference is to a missing key, report that key instead.
        let as_written = with_hydra(&composition.job(), |key| Ok(Value::from(key)));
        match as_written.and_then(|full| typed::typed::<C>(&full, origins)) {
            Err(missing @ (ConfigError::MissingKey { .. } | ConfigError::MissingValue { .. })) => missing,
            _ => error,
        }
    })?;
    let config = typed::typed(&full, origins)?;
    let chosen = |(key, option): (&String, &Option<String>)| Some((key.clone(), option.clone()?));
    let choices = composition.choices.iter().filter_map(chosen).collect();
    let overrides = Override::texts(overrides);
    Ok(Composed { config, tree: job, choices, overrides, composition })
}

/// The content of a sweep's `multirun.yaml`: the configuration as written, without the swept overrides.
///
/// `jobs` is the expansion of `overrides`. If nothing composes without the swept overrides, the first job is written.
pub fn multirun_yaml<C: Schema>(
    tree: &ConfTree,
    overrides: &[Override],
    jobs: &[Vec<Override>],
    context: &ComposeContext,
) -> Result<String, ConfigError> {
    let is_single = |given: &&Override| !matches!(given.value, Some(OverrideValue::Sweep(_)));
    let single: Vec<Override> = overrides.iter().filter(is_single).cloned().collect();
    let first_job = || jobs.first().cloned().unwrap_or_default();
    let composition = Composition::with_schema::<C>(tree, &single, context)
        .or_else(|_| Composition::with_schema::<C>(tree, &first_job(), context))?;
    let mut hydra = composition.hydra();
    let job_overrides = overrides.iter().filter(|given| !given.is_hydra());
    let job_overrides = job_overrides.map(|given| Value::from(given.text.as_str())).collect();
    if let Some(task) = hydra.get_mut("overrides").and_then(|overrides| overrides.get_mut("task")) {
        *task = Value::Sequence(job_overrides);
    }
    if let Some(mode) = hydra.get_mut("mode") {
        *mode = Value::from("MULTIRUN");
    }
    let mut full = Mapping::new();
    full.insert(Value::from(HYDRA), hydra);
    if let Value::Mapping(job) = composition.job() {
        full.extend(job);
    }
    Ok(yaml_text(&full))
}

/// The job's configuration and the part of Hydra's that a run reads.
fn with_hydra(
    job: &Value,
    hydra_at: impl Fn(&str) -> Result<Value, ConfigError>,
) -> Result<Value, ConfigError> {
    let mut hydra = Mapping::new();
    for (section, name) in [("run", "dir"), ("job", "name")] {
        let value = hydra_at(&format!("{section}.{name}"))?;
        let entry: Mapping = [(Value::from(name), value)].into_iter().collect();
        hydra.insert(Value::from(section), Value::Mapping(entry));
    }
    let mut full = job.clone();
    if let Value::Mapping(entries) = &mut full {
        entries.insert(Value::from(HYDRA), Value::Mapping(hydra));
    }
    Ok(full)
}
