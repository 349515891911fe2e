//! Hydra-style composition of `conf/` and the command line's overrides into one typed `RunConfig`.

mod compose;
mod conf_tree;
mod defaults;
mod documents;
mod error;
mod interpolate;
mod overrides;
mod run_config;
mod typed;
mod value_tree;
mod yaml;

pub use compose::{Composed, Surroundings, compose, compose_in};
pub use conf_tree::ConfTree;
pub use documents::{DocumentError, parse_yaml, read_yaml, write_yaml};
pub use error::{ConfigError, Names, Origin};
pub use overrides::{Action, Override};
pub use run_config::*;
