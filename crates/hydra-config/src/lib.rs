#![doc = include_str!("../README.md")]

mod alias;
mod candidates;
mod compose;
mod composition;
mod conf_tree;
mod context;
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
pub use compose::{Composed, compose, multirun_yaml, yaml_text};
pub use composition::Composition;
pub use conf_tree::ConfTree;
pub use context::ComposeContext;
pub use defaults::DefaultsItem;
pub use documents::{DocumentError, parse_yaml, read_yaml, write_yaml};
pub use error::{ConfigError, Names, Origin};
pub use json::{json_value, to_json};
pub use overrides::{
    Action, AsOverride, Element, Override, OverrideValue, Quote, Sweep, expand_sweep, glob_matches,
};
pub use schema::{HydraConfig, HydraJob, HydraRun, OutOfRange, Schema, text_or_scalar};
pub use serde_yaml_ng::Value;
