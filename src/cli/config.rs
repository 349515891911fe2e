//! `config`, and `--cfg` of other commands: the composed configuration.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{
    Failure,
    args::{ConfigRequest, WhichConfig},
    print, print_data, print_json,
};
use llmprof_base::{
    process::eprint_line,
    table::{Column, Table},
};
use llmprof_config::{Composition, DefaultsItem, FoundAlias, YamlValue, to_json, yaml_text};

#[derive(Debug, Default, Args)]
pub(super) struct PrintArgs {
    /// Print only this part of the configuration
    #[arg(long, value_name = "KEY")]
    pub(super) package: Option<String>,
    /// Print ${…} unresolved, without checking values
    #[arg(long)]
    pub(super) no_resolve: bool,
    /// Print how the configuration was composed
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["package", "no_resolve"])]
    pub(super) info: Option<Info>,
    /// Print JSON instead of YAML; infinite numbers and NaN become the strings inf, -inf and nan
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

pub(super) fn run(request: &ConfigRequest, which: WhichConfig, args: &PrintArgs) -> Result<u8, Failure> {
    if args.info.is_none() && which == WhichConfig::Job && !args.no_resolve {
        let composed = request.compose()?;
        note_aliases(&composed.composition.aliases);
        let value = composed.package(args.package.as_deref().unwrap_or_default());
        print_value(&value.map_err(Failure::usage)?, args.json)?;
        return Ok(0);
    }
    let composition = request.compose_untyped()?;
    match args.info {
        Some(Info::Searchpath) if args.json => print_json(&composition.search_path)?,
        Some(Info::Searchpath) => print(&composition.search_path.join("\n"))?,
        Some(Info::Defaults) if args.json => print_json(&defaults_json(&composition))?,
        Some(Info::Defaults) => print(&defaults_table(&composition))?,
        None if which == WhichConfig::Hydra => print_value(&composition.hydra(), args.json)?,
        None => {
            note_aliases(&composition.aliases);
            let value = composition.package(args.package.as_deref().unwrap_or_default());
            print_value(&value.map_err(Failure::usage)?, args.json)?;
        }
    }
    Ok(0)
}

fn note_aliases(aliases: &[FoundAlias]) {
    aliases.iter().for_each(|alias| eprint_line(format_args!("note: {alias}")));
}

fn print_value(value: &YamlValue, json: bool) -> Result<(), Failure> {
    match json {
        true => print_json(&to_json(value)),
        false => print_data(yaml_text(value).trim_end()),
    }
}

fn defaults_json(composition: &Composition) -> Value {
    let item = |item: &DefaultsItem| {
        json!({
            "config": item.config, "package": item.package, "parent": item.parent,
            "self": item.is_self, "from": item.origin.to_string(),
        })
    };
    composition.defaults.iter().map(item).collect()
}

fn defaults_table(composition: &Composition) -> String {
    let mut table = Table::new(["CONFIG", "PACKAGE", "SELECTED BY", "FROM"].map(Column::text));
    for item in &composition.defaults {
        let config = if item.is_self { format!("{} (_self_)", item.config) } else { item.config.clone() };
        let package = if item.package.is_empty() { "_global_".into() } else { item.package.clone() };
        let parent = item.parent.clone().unwrap_or_else(|| "-".into());
        table.push([config, package, parent, item.origin.to_string()]);
    }
    table.text()
}
