//! Hydra-style composition of YAML files and command-line overrides into one typed configuration.
//!
//! A configuration is a tree of YAML files: folders are groups, files are their options, and the defaults list of
//! `config.yaml` selects one option for each group. Overrides select others and change values. The result equals that
//! of Hydra 1.3 and OmegaConf 2.3, which `tests/hydra_oracle.rs` checks.
//!
//! ```
//! use hydra_config::{ComposeContext, ConfTree, HydraConfig, Schema, compose};
//!
//! #[derive(Debug, serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     model: Model,
//!     batch_size: u32,
//!     hydra: HydraConfig,
//! }
//!
//! #[derive(Debug, serde::Deserialize)]
//! struct Model {
//!     layers: u32,
//!     label: String,
//! }
//!
//! impl Schema for Config {}
//!
//! let tree = ConfTree::from_files([
//!     ("config.yaml", "defaults: [{model: small}, _self_]\nbatch_size: 1\n"),
//!     ("model/small.yaml", "layers: 12\nlabel: ${model.layers}x${batch_size}\n"),
//!     ("model/large.yaml", "layers: 48\nlabel: large\n"),
//! ]);
//! let context = ComposeContext::current("train");
//! let overrides = ["batch_size=8".to_owned(), "hydra.run.dir=runs/${hydra:job.name}".to_owned()];
//! let composed = compose::<Config>(&tree, &overrides, &context).unwrap();
//! assert_eq!(composed.config.model.layers, 12);
//! assert_eq!(composed.config.model.label, "12x8");
//! assert_eq!(composed.config.hydra.run.dir, "runs/train");
//!
//! let error = compose::<Config>(&tree, &["batchsize=8".to_owned()], &context).unwrap_err();
//! assert!(error.to_string().starts_with("unknown key \"batchsize\"; did you mean batch_size?"));
//! ```
//!
//! [`ConfTree`] finds files, `defaults` lists the files to merge, `value_tree` merges them, `overrides` and `interpolate`
//! parse the two grammars, `typed` deserialises the result. A [`Composition`] is the result without types,
//! [`Candidates`] completes overrides in a shell, [`expand_sweep`] lists the jobs of a multirun.

mod alias;
mod candidates;
mod compose;
mod composition;
mod conf_tree;
mod defaults;
mod documents;
mod error;
mod hydra_node;
mod interpolate;
mod json;
mod lexeme;
mod overrides;
mod python_text;
mod scalar;
mod schema;
mod typed;
mod value_deserializer;
mod value_tree;
mod yaml;

pub use alias::{Alias, FoundAlias};
pub use candidates::{Candidate, Candidates};
pub use compose::{ComposeContext, Composed, compose, multirun_yaml, yaml_text};
pub use composition::Composition;
pub use conf_tree::ConfTree;
pub use defaults::DefaultsItem;
pub use documents::{DocumentError, parse_yaml, read_yaml, write_yaml};
pub use error::{ConfigError, Names, Origin};
pub use json::{json_value, to_json};
pub use overrides::{Action, Element, Override, OverrideValue, Quote, Sweep, expand_sweep, glob_matches};
pub use schema::{HydraConfig, HydraJob, HydraRun, OutOfRange, Schema, text_or_scalar};
pub use serde_yaml_ng::Value;
