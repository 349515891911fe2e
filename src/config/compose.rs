//! From files and overrides to one typed configuration, and the texts that tell how it came about.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_yaml_ng::{Mapping, Value};

use super::composition::Composition;
use super::conf_tree::ConfTree;
use super::defaults::DefaultsItem;
use super::error::{ConfigError, Names};
use super::interpolate::HYDRA;
use super::overrides::{Given, Override};
use super::python_text::str_of;
use super::run_config::RunConfig;
use super::typed;
use super::value_tree::{keys_of, value_at};

/// One composed configuration and how it came about.
#[derive(Debug, Clone)]
pub struct Composed {
    pub config: RunConfig,
    /// The job's configuration, interpolations resolved, without Hydra's own.
    pub tree: Value,
    /// The option chosen for each group.
    pub choices: BTreeMap<String, String>,
    /// As they were typed.
    pub overrides: Vec<String>,
    composition: Composition,
}

/// Whether interpolations are shown or what they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Resolved,
    AsWritten,
}

impl Composed {
    /// The resolved configuration as YAML, in the order of the files.
    pub fn to_yaml(&self) -> String {
        yaml_text(&self.tree)
    }

    /// The job's configuration in either form.
    pub fn job(&self, form: Form) -> Value {
        match form {
            Form::Resolved => self.tree.clone(),
            Form::AsWritten => self.composition.job(),
        }
    }

    /// The sub-tree at a dotted path (`runtime.sim`).
    pub fn package(&self, path: &str, form: Form) -> Result<Value, ConfigError> {
        let job = self.job(form);
        value_at(&job, path).cloned().ok_or_else(|| ConfigError::UnknownPackage {
            names: Names::near_keys(path, &keys_of(&job)).into(),
            package: path.to_owned(),
        })
    }

    /// The files in the order of merging, with where each one goes and what asked for it.
    pub fn defaults(&self) -> &[DefaultsItem] {
        &self.composition.defaults
    }

    /// Where files were looked for, the first place first.
    pub fn search_path(&self) -> &[String] {
        &self.composition.search_path
    }

    /// Hydra's own configuration as it was written.
    pub fn hydra(&self) -> Value {
        self.composition.hydra()
    }

    /// Where the jobs of a sweep are kept, and this job below that; as `hydra.sweep` says.
    pub fn sweep_places(&self) -> Result<(String, String), ConfigError> {
        let text = |key: &str| Ok(str_of(&self.composition.resolved_hydra(key)?));
        Ok((text("sweep.dir")?, text("sweep.subdir")?))
    }

    /// The overrides of the job as a YAML list, as they were typed.
    pub fn overrides_yaml(&self) -> String {
        serde_yaml_ng::to_string(&self.composition.job_overrides()).unwrap_or_default()
    }

    /// Hydra's own configuration as YAML, as it was written.
    pub fn hydra_yaml(&self) -> String {
        yaml_text(&Value::Mapping([(Value::from(HYDRA), self.hydra())].into_iter().collect()))
    }

    /// The files that Hydra keeps in a run's `.hydra/` directory: name and content.
    pub fn hydra_files(&self) -> [(&'static str, String); 3] {
        [
            ("config.yaml", yaml_text(&self.job(Form::AsWritten))),
            ("hydra.yaml", self.hydra_yaml()),
            ("overrides.yaml", self.overrides_yaml()),
        ]
    }
}

/// `value` as YAML text.
pub fn yaml_text(value: &impl serde::Serialize) -> String {
    // Keys are text and values are plain: there is nothing the writer could refuse.
    serde_yaml_ng::to_string(value).unwrap_or_default()
}

/// What interpolations may ask of the world outside the files.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub now: jiff::Zoned,
    pub cwd: PathBuf,
    /// The place of the job in its sweep, from 0; `None` for a single run.
    pub job: Option<usize>,
}

impl Surroundings {
    /// This moment, in this process's working directory.
    pub fn here() -> Surroundings {
        let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        Surroundings { now: jiff::Zoned::now(), cwd, job: None }
    }
}

/// Composes `config.yaml`, the options its defaults list names, and `overrides`.
pub fn compose(tree: &ConfTree, overrides: &[String]) -> Result<Composed, ConfigError> {
    compose_in(tree, overrides, &Surroundings::here())
}

/// `compose` at a given time and place.
pub fn compose_in(
    tree: &ConfTree,
    overrides: &[String],
    surroundings: &Surroundings,
) -> Result<Composed, ConfigError> {
    match typed_composition(tree, overrides, surroundings) {
        Err(ConfigError::UnknownKey { key, names, origin, add_with: Some(plus) }) => {
            // The + helps only where the key then has a place in the typed configuration.
            let added: Vec<String> = overrides
                .iter()
                .map(|text| if plus == format!("+{text}") { plus.clone() } else { text.clone() })
                .collect();
            let still_unknown = matches!(
                typed_composition(tree, &added, surroundings),
                Err(ConfigError::UnknownKey { add_with: None, .. } | ConfigError::BadMerge { .. })
            );
            let add_with = Some(plus).filter(|_| !still_unknown);
            Err(ConfigError::UnknownKey { key, names, origin, add_with })
        }
        outcome => outcome,
    }
}

fn typed_composition(
    tree: &ConfTree,
    overrides: &[String],
    surroundings: &Surroundings,
) -> Result<Composed, ConfigError> {
    let composition = Composition::new(tree, overrides, surroundings)?;
    let origins = &composition.tree.origins;
    let resolved = composition.resolved_job().and_then(|job| {
        let whole = with_hydra(&job, |key| composition.resolved_hydra(key))?;
        Ok((job, whole))
    });
    let (job, whole) = resolved.map_err(|error| {
        // A reference to what was left out, or has no value: that is what is missing.
        let as_written = with_hydra(&composition.job(), |key| Ok(Value::from(key)));
        match as_written.and_then(|whole| typed::typed(&whole, origins)) {
            Err(missing @ (ConfigError::MissingKey { .. } | ConfigError::MissingValue { .. })) => missing,
            _ => error,
        }
    })?;
    let config = typed::typed(&whole, origins)?;
    let chosen = |(key, option): (&String, &Option<String>)| Some((key.clone(), option.clone()?));
    let choices = composition.choices.iter().filter_map(chosen).collect();
    Ok(Composed { config, tree: job, choices, overrides: overrides.to_vec(), composition })
}

/// What Hydra keeps of a sweep as `multirun.yaml`: the configuration without the keys that are swept, as written.
///
/// `jobs` are what `overrides` expand to. Where nothing composes without a swept key, the first job stands for all.
pub fn multirun_yaml(
    tree: &ConfTree,
    overrides: &[String],
    jobs: &[Vec<String>],
    surroundings: &Surroundings,
) -> Result<String, ConfigError> {
    let parsed = overrides.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let single: Vec<String> = parsed
        .iter()
        .filter(|given| !matches!(given.value, Some(Given::Many(_))))
        .map(|given| given.text.to_string())
        .collect();
    let of_first = || jobs.first().cloned().unwrap_or_default();
    let composition = Composition::new(tree, &single, surroundings)
        .or_else(|_| Composition::new(tree, &of_first(), surroundings))?;
    let mut hydra = composition.hydra();
    let typed = parsed.iter().filter(|given| !given.is_of_hydra());
    let typed: Vec<Value> = typed.map(|given| Value::from(given.text.to_string())).collect();
    if let Some(task) = hydra.get_mut("overrides").and_then(|overrides| overrides.get_mut("task")) {
        *task = Value::Sequence(typed);
    }
    if let Some(mode) = hydra.get_mut("mode") {
        *mode = Value::from("MULTIRUN");
    }
    let mut whole = Mapping::new();
    whole.insert(Value::from(HYDRA), hydra);
    if let Value::Mapping(job) = composition.job() {
        whole.extend(job);
    }
    Ok(yaml_text(&whole))
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
    let mut whole = job.clone();
    if let Value::Mapping(entries) = &mut whole {
        entries.insert(Value::from(HYDRA), Value::Mapping(hydra));
    }
    Ok(whole)
}
