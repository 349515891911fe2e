#![doc = include_str!("../README.md")]

mod compose;
mod consent;
mod dtype_choice;
mod launcher_config;
mod numbers;
mod pytorch_config;
mod run_config;
mod schema;
mod server_config;
mod tool_config;
mod tool_options;

pub use compose::{
    built_in, compose, compose_in, compose_untyped, current_context, find_tree, multirun_yaml, over_built_in,
};
pub use consent::{RISKY_KEYS, RiskySetting};
pub use dtype_choice::DtypeChoice;
pub use hydra_config::{
    Action, AsOverride, Candidate, ComposeContext, Composition, ConfTree, ConfigError, DefaultsItem,
    DocumentError, Element, FoundAlias, HydraConfig, HydraJob, HydraRun, Names, Origin, Override,
    OverrideValue, Quote, Sweep, Value as YamlValue, expand_sweep, glob_matches, parse_yaml, read_yaml,
    to_json, write_yaml, yaml_text,
};
pub use launcher_config::{Gpus, Launcher, LocalLauncher, SlurmLauncher, Text, launcher};
pub use llm_cost::{Dtype, KvCacheDtype, PreprocessConfig, Scheme};
pub use pytorch_config::{Compile, ImagesConfig, PytorchConfig, TorchConfig};
pub use run_config::*;
pub use server_config::{Api, ArrivalKind, LoadConfig, ServerConfig, SloConfig};
pub use tool_config::{ClockControl, NcuConfig, NsysConfig, Replay, ToolPhase};
pub use tool_options::tool_options_markdown;

/// A composed run.
pub type Composed = hydra_config::Composed<RunConfig>;

/// Completion of overrides of a run.
pub type Candidates<'t> = hydra_config::Candidates<'t, RunConfig>;
