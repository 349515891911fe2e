//! `config`, and `--cfg` of other commands: the composed configuration.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Failure,
    args::{ConfigArgs, WhichConfig},
    print, print_json,
};
use crate::{
    base::table::aligned,
    config::{Composed, DefaultsItem, Form, yaml_text},
};

#[derive(Debug, Default, Args)]
pub(super) struct PrintArgs {
    /// Print only this part
    #[arg(long, value_name = "KEY")]
    pub(super) package: Option<String>,
    /// Leave ${…} unresolved
    #[arg(long)]
    pub(super) no_resolve: bool,
    /// Print how the configuration was composed instead
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["package", "no_resolve"])]
    pub(super) info: Option<Info>,
    /// Print JSON instead of YAML
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Info {
    /// The files in merge order, with their package and the file or override that selected them
    Defaults,
    /// The directories searched for files
    Searchpath,
}

pub(super) fn run(config: &ConfigArgs, args: &PrintArgs) -> Result<u8, Failure> {
    let composed = config.compose()?;
    match (args.info, config.cfg) {
        (Some(Info::Searchpath), _) if args.json => print_json(&composed.search_path())?,
        (Some(Info::Searchpath), _) => print(&composed.search_path().join("\n"))?,
        (Some(Info::Defaults), _) if args.json => print_json(&defaults_json(&composed))?,
        (Some(Info::Defaults), _) => print(&defaults_table(&composed))?,
        (None, Some(WhichConfig::Hydra)) => print_value(&composed.hydra(), args.json)?,
        (None, _) => {
            let form = if args.no_resolve { Form::AsWritten } else { Form::Resolved };
            let value = composed.package(args.package.as_deref().unwrap_or_default(), form);
            print_value(&value.map_err(Failure::usage)?, args.json)?;
        }
    }
    Ok(0)
}

fn print_value(value: &impl Serialize, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(value),
        false => print(yaml_text(value).trim_end()),
    }
}

fn defaults_json(composed: &Composed) -> Value {
    let item = |item: &DefaultsItem| {
        json!({
            "config": item.config, "package": item.package, "parent": item.parent,
            "self": item.is_self, "from": item.origin.to_string(),
        })
    };
    composed.defaults().iter().map(item).collect()
}

fn defaults_table(composed: &Composed) -> String {
    let mut rows = vec![["CONFIG", "PACKAGE", "SELECTED BY", "FROM"].map(str::to_owned)];
    for item in composed.defaults() {
        let config = if item.is_self { format!("{} (_self_)", item.config) } else { item.config.clone() };
        let package = if item.package.is_empty() { "_global_".into() } else { item.package.clone() };
        let parent = item.parent.clone().unwrap_or_else(|| "-".into());
        rows.push([config, package, parent, item.origin.to_string()]);
    }
    aligned(&rows, |_| false)
}
