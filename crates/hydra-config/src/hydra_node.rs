//! Hydra's own configuration, the `hydra:` node next to that of the job: names and directories of runs.

use serde_yaml_ng::{Mapping, Value};

use crate::conf_tree::ConfTree;
use crate::context::ComposeContext;
use crate::error::{ConfigError, Names, Origin};
use crate::interpolate::HYDRA;
use crate::overrides::Override;
use crate::typed::described;
use crate::value_tree::{Keys, ValueTree, child_path, value_at};
use crate::yaml;

/// The defaults of Hydra 1.3. Empty maps accept any key; the program does not read them.
const BASE: &str = "\
run:
  dir: outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}
sweep:
  dir: multirun/${now:%Y-%m-%d}/${now:%H-%M-%S}
  subdir: ${hydra.job.num}
launcher: {}
sweeper: {}
help: {}
hydra_help: {}
hydra_logging: {}
job_logging: {}
env: {}
mode: RUN
searchpath: []
callbacks: {}
output_subdir: .hydra
overrides:
  hydra: []
  task: []
job:
  name: ???
  chdir: null
  override_dirname: ''
  id: ???
  num: ???
  config_name: config
  env_set: {}
  env_copy: []
  config:
    override_dirname:
      kv_sep: '='
      item_sep: ','
      exclude_keys: []
runtime:
  version: 1.3.0
  version_base: '1.3'
  cwd: ???
  config_sources: []
  output_dir: ???
  choices: {}
verbose: false
";

/// Adds the defaults to `tree`, before any file is merged.
pub(crate) fn insert_defaults(tree: &mut ValueTree, context: &ComposeContext) -> Result<(), ConfigError> {
    let origin = base_origin();
    tree.merge_document(HYDRA, &yaml::parse(BASE, &origin)?, &origin)?;
    tree.update("hydra.job.name", Value::from(context.job_name.as_str()), Keys::Closed, &origin)
}

/// Refuses keys that Hydra does not have, after all files are merged.
pub(crate) fn check(tree: &ValueTree) -> Result<(), ConfigError> {
    let base = yaml::parse(BASE, &base_origin())?.value;
    let node = value_at(&tree.root, HYDRA).unwrap_or(&Value::Null);
    check_closed(node, &base, HYDRA, tree)?;
    let key = "hydra.searchpath";
    match value_at(&tree.root, key) {
        Some(Value::Sequence(paths)) if paths.is_empty() => Ok(()),
        Some(other) => Err(ConfigError::WrongType {
            key: key.to_owned(),
            got: described(other),
            expected: "an empty list (use --conf-dir to search another directory)".into(),
            origin: tree.origins.get(key),
        }),
        None => Ok(()),
    }
}

fn check_closed(node: &Value, base: &Value, path: &str, tree: &ValueTree) -> Result<(), ConfigError> {
    let Some(known) = base.as_mapping().filter(|known| !known.is_empty()) else { return Ok(()) };
    let Value::Mapping(entries) = node else {
        return Err(ConfigError::WrongType {
            key: path.to_owned(),
            got: described(node),
            expected: "keys and values".into(),
            origin: tree.origins.get(path),
        });
    };
    for (name, value) in entries {
        let name = name.as_str().unwrap_or_default();
        let key = child_path(path, name);
        match known.get(name) {
            Some(base) => check_closed(value, base, &key, tree)?,
            None => {
                let all: Vec<String> =
                    known.keys().filter_map(|name| name.as_str().map(str::to_owned)).collect();
                let (names, origin) = (Names::near(name, &all).into(), tree.origins.get(&key));
                return Err(ConfigError::UnknownKey { key, names, origin, add_with: None });
            }
        }
    }
    Ok(())
}

/// Fills in the overrides, the choices and the directories after the composition.
pub(crate) fn finish(
    tree: &mut ValueTree,
    overrides: &[Override],
    choices: impl Iterator<Item = (String, Option<String>)>,
    conf: &ConfTree,
    context: &ComposeContext,
) -> Result<(), ConfigError> {
    let (of_hydra, of_job): (Vec<_>, Vec<_>) = overrides.iter().partition(|given| given.is_hydra());
    let texts = |given: &[&Override]| {
        Value::Sequence(given.iter().map(|given| Value::from(given.text.as_str())).collect())
    };
    let choices: Mapping =
        choices.map(|(key, option)| (Value::from(key), option.map_or(Value::Null, Value::from))).collect();
    let sources = conf.search_path().into_iter().map(Value::from).collect();
    let dirname = override_dirname(tree, &of_job);
    let mut known = vec![
        ("overrides.hydra", texts(&of_hydra)),
        ("overrides.task", texts(&of_job)),
        ("runtime.choices", Value::Mapping(choices)),
        ("runtime.cwd", Value::from(context.cwd.display().to_string())),
        ("runtime.config_sources", Value::Sequence(sources)),
        ("job.override_dirname", Value::from(dirname)),
    ];
    if let Some(num) = context.job {
        known.push(("job.num", Value::from(num)));
        known.push(("job.id", Value::from(num.to_string())));
        known.push(("mode", Value::from("MULTIRUN")));
    }
    for (key, value) in known {
        tree.update(&format!("{HYDRA}.{key}"), value, Keys::Open, &Origin::Composition)?;
    }
    Ok(())
}

/// The job's overrides on one line, for use in directory names.
fn override_dirname(tree: &ValueTree, of_job: &[&Override]) -> String {
    let setting = |name: &str| value_at(&tree.root, &format!("hydra.job.config.override_dirname.{name}"));
    let text = |name: &str| setting(name).and_then(Value::as_str).unwrap_or_default();
    let excluded: Vec<&str> = setting("exclude_keys")
        .and_then(Value::as_sequence)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let kept = of_job.iter().filter(|given| !excluded.contains(&given.key.as_str()));
    let mut lines: Vec<&str> = kept.map(|given| given.text.as_str()).collect();
    lines.sort_unstable();
    lines.join(text("item_sep")).replace('=', text("kv_sep"))
}

fn base_origin() -> Origin {
    Origin::BuiltIn { path: "hydra".into(), line: 1 }
}
