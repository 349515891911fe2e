//! Hydra-style composition of `conf/` and the command line's overrides into one typed `RunConfig`.
//!
//! [`ConfTree`] finds files, `defaults` lists the files to merge, `value_tree` merges them, `overrides` and `interpolate`
//! parse the two grammars, `typed` deserialises the result. The result equals that of Hydra 1.3 and OmegaConf 2.3, which
//! `tests/hydra_oracle.rs` checks.

mod candidates;
mod compose;
mod composition;
mod conf_tree;
mod defaults;
mod documents;
mod error;
mod hydra_node;
mod interpolate;
mod lexeme;
mod overrides;
mod python_text;
mod run_config;
mod scalar;
mod tool_config;
mod typed;
mod value_deserializer;
mod value_tree;
mod yaml;

pub use candidates::{Candidate, Candidates};
pub use compose::{ComposeContext, Composed, Form, compose, compose_in, multirun_yaml, yaml_text};
pub use composition::Composition;
pub use conf_tree::ConfTree;
pub use defaults::DefaultsItem;
pub use documents::{DocumentError, parse_yaml, read_yaml, write_yaml};
pub use error::{ConfigError, Names, Origin};
pub use overrides::{Action, Element, Override, OverrideValue, Quote, Sweep, expand_sweep, glob_matches};
pub use run_config::*;
pub use tool_config::{ClockControl, NcuConfig, NsysConfig, Replay, ToolPhase};
