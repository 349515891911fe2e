//! `dataset`: datasets and their variants.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::{Failure, args::ProjectArgs, print, print_json};
use llmprof_base::process::eprint_line;
use llmprof_run::assets::dataset::{self, DatasetInfo, VariantSpec};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui dataset list
  llmprof-tui dataset prepare openwebtext --variant subset-1k --num-samples 1000";

#[derive(Debug, Subcommand)]
pub(super) enum DatasetCommand {
    /// List every dataset, where its data is, and its variants
    List {
        /// Print one JSON object on stdout instead of text
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        project: ProjectArgs,
    },
    /// Create a variant: a seeded random sample of the JSONL and text files in source-data
    Prepare {
        /// Name of the dataset, as `dataset list` prints it
        name: String,
        /// Name of the variant, e.g. subset-1k
        #[arg(long)]
        variant: String,
        /// Take N samples, or all if there are fewer
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
        num_samples: u64,
        /// Set the seed of the random sample
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Sample only the files listed in FILE, one per line
        #[arg(long, value_name = "FILE")]
        subset_filelist: Option<PathBuf>,
        /// Replace an existing variant
        #[arg(long)]
        force: bool,
        /// Print one JSON object on stdout instead of text
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        project: ProjectArgs,
    },
}

pub(super) fn run(command: DatasetCommand) -> Result<u8, Failure> {
    match command {
        DatasetCommand::List { json, project } => {
            let datasets = dataset::list(&project.root)?;
            match json {
                true => print_json(&json!({ "schema": 1, "datasets": datasets }))?,
                false => print(list_text(&datasets).trim_end())?,
            }
        }
        DatasetCommand::Prepare {
            name,
            variant,
            num_samples,
            seed,
            subset_filelist,
            force,
            json,
            project,
        } => {
            let spec = VariantSpec {
                dataset: &name,
                variant: &variant,
                samples: num_samples,
                seed,
                filelist: subset_filelist.as_deref(),
                force,
            };
            let prepared = dataset::prepare(&project.root, &spec)?;
            if prepared.provenance.size.samples < num_samples {
                eprint_line(format_args!("note: {num_samples} samples requested, {} available", prepared.of));
            }
            match json {
                true => print_json(&prepared)?,
                false => print(&format!("{}: {}", prepared.dir.display(), prepared.provenance.transform))?,
            }
        }
    }
    Ok(0)
}

fn list_text(datasets: &[DatasetInfo]) -> String {
    let mut text = String::new();
    for one in datasets {
        let source = one
            .source_data
            .as_ref()
            .map_or_else(|| "not linked".to_owned(), |path| path.display().to_string());
        text += &format!("{:<20}{source}\n", one.name);
        for variant in &one.variants {
            let provenance = &variant.provenance;
            text += &format!("  {:<18}{}: {}\n", variant.name, provenance.created, provenance.transform);
        }
    }
    text
}
