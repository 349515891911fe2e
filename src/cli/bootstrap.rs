//! `bootstrap`: links from the project to stored models and datasets.

use std::env;

use clap::Args;
use serde_json::json;

use super::{Failure, args::ProjectArgs, ask::ask, print, print_json};
use llmprof_run::assets::{
    AssetError, Limits,
    bootstrap::{self, Kind, Outcome},
};

pub(super) const EXAMPLES: &str = "\
Reads models/bootstrap.yaml and datasets/*/bootstrap.yaml. Searches for models in
$HF_SNAPSHOTS_ROOT, $MODELS_ROOT or the hub's cache (~/.cache/huggingface/hub), and for datasets in
$DATASETS_ROOT (~/datasets).

Examples:
  llmprof-tui bootstrap --dry-run
  llmprof-tui bootstrap models qwen2_5_7b
  DATASETS_ROOT=/mnt/datasets llmprof-tui bootstrap datasets --yes";

#[derive(Debug, Args)]
pub(super) struct BootstrapArgs {
    /// Link only this kind (default: datasets, then models)
    kind: Option<Kind>,
    /// Link only entries with these names
    #[arg(requires = "kind")]
    names: Vec<String>,
    /// Replace links without asking
    #[arg(long, short)]
    yes: bool,
    /// Extract archives of any size (default limits: 500 GB, 200 times the archive, a million entries)
    #[arg(long)]
    no_archive_limits: bool,
    /// Print what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    project: ProjectArgs,
}

pub(super) fn run(args: &BootstrapArgs) -> Result<u8, Failure> {
    let items = bootstrap::plan(&args.project.root, args.kind, &args.names, &|name| env::var_os(name))?;
    let mut confirm = |question: &str| match args.yes {
        true => Ok(true),
        false => ask(question).map_err(|e| AssetError::Failed(format!("{question} {e}"))),
    };
    let limits = if args.no_archive_limits { Limits::NONE } else { Limits::DEFAULT };
    let outcomes: Vec<Outcome> =
        items.iter().map(|item| item.apply(args.dry_run, limits, &mut confirm)).collect();
    match args.json {
        true => print_json(&json!({ "schema": 1, "dry_run": args.dry_run, "items": outcomes }))?,
        false => print(text(&outcomes, args.dry_run).trim_end())?,
    }
    Ok(u8::from(outcomes.iter().any(|outcome| outcome.failed)))
}

fn text(outcomes: &[Outcome], dry_run: bool) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        for archive in &outcome.extracted {
            let verb = if dry_run { "would extract" } else { "extracted" };
            text += &format!("{verb:<14}{}\n", archive.display());
        }
        text += &format!("{:<14}{}", outcome.state.label(), outcome.link.display());
        if let Some(target) = &outcome.target {
            text += &format!(" -> {}", target.display());
        }
        if let Some(note) = &outcome.note {
            text += &format!(": {note}");
        }
        text.push('\n');
    }
    text
}
