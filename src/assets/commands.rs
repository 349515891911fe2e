//! The asset commands: `bootstrap`, `fetch`, `third-party` and `dataset`.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::bootstrap::{self, Kind, Outcome};
use super::dataset::{self, VariantRequest};
use super::error::AssetError;
use super::fetch;
use super::hub::Hub;
use super::third_party::{self, PinUpdate, Pins, State};
use crate::base::units;
use crate::config::ConfTree;

const BOOTSTRAP: &str = "\
Reads models/bootstrap.yaml and datasets/*/bootstrap.yaml. Models are searched under $HF_SNAPSHOTS_ROOT,
$MODELS_ROOT or the hub's cache (~/.cache/huggingface/hub), datasets under $DATASETS_ROOT (~/datasets).

Examples:
  llmprof-tui bootstrap --dry-run
  llmprof-tui bootstrap models qwen2_5_7b
  DATASETS_ROOT=/mnt/datasets llmprof-tui bootstrap datasets --yes";

const FETCH: &str = "\
Reads HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and SSL_CERT_FILE as other clients of the hub do.
The same command resumes an interrupted download. Sizes and hashes are verified.

Examples:
  llmprof-tui fetch qwen2_5_0_5b
  llmprof-tui fetch Qwen/Qwen2.5-0.5B --revision main
  llmprof-tui fetch deepseek-ai/DeepSeek-OCR --source-only";

const THIRD_PARTY: &str = "\
Examples:
  llmprof-tui third-party status
  llmprof-tui third-party update                        fetch all pinned sources
  llmprof-tui third-party update transformers --latest  move a pin to the tip of its branch
  llmprof-tui third-party update transformers --dry-run print the git commands";

const DATASET: &str = "\
Examples:
  llmprof-tui dataset list
  llmprof-tui dataset prepare openwebtext --variant subset-1k --num-samples 1000";

#[derive(Debug, Subcommand)]
pub enum AssetCommand {
    /// Create links to models and datasets on disk
    #[command(after_help = BOOTSTRAP)]
    Bootstrap(BootstrapArgs),
    /// Download a model, or only its sources, from the Hugging Face hub
    #[command(after_help = FETCH)]
    Fetch(FetchArgs),
    /// Check and fetch the pinned reference sources
    #[command(after_help = THIRD_PARTY, subcommand)]
    ThirdParty(ThirdPartyCommand),
    /// List datasets and create variants of them
    #[command(after_help = DATASET, subcommand)]
    Dataset(DatasetCommand),
}

#[derive(Debug, Clone, Args)]
pub struct Project {
    /// The project directory, with models/, datasets/ and third_party/
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

#[derive(Debug, Args)]
pub struct BootstrapArgs {
    /// Only this kind (default: datasets and models)
    kind: Option<Kind>,
    /// Only these names
    #[arg(requires = "kind")]
    names: Vec<String>,
    /// Replace links without asking
    #[arg(long, short)]
    yes: bool,
    /// Print what would be done, without changes
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    project: Project,
}

#[derive(Debug, Args)]
pub struct FetchArgs {
    /// An option of conf/model, or a repository of the hub (org/name)
    model: String,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main")]
    revision: String,
    /// Download only *.py, config.json and LICENSE* to third_party/hf/ and pin the commit
    #[arg(long, conflicts_with = "all")]
    source_only: bool,
    /// Download all files of the repository, not only those that a run needs
    #[arg(long)]
    all: bool,
    /// Do not print progress on stderr
    #[arg(long, short)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Directory of model options, used before the built-in ones (default: ./conf, if it exists)
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    #[command(flatten)]
    project: Project,
}

#[derive(Debug, Subcommand)]
pub enum ThirdPartyCommand {
    /// Compare the pins with the files on disk (exit code 1 if they differ)
    Status {
        /// Only the pin with this name
        name: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        project: Project,
    },
    /// Fetch the pinned sources, optionally at a new revision
    Update {
        /// Only the pin with this name
        name: Option<String>,
        /// Move the pin to this commit or tag
        #[arg(long, requires = "name")]
        revision: Option<String>,
        /// Move the pins to the tips of their branches
        #[arg(long, conflicts_with = "revision")]
        latest: bool,
        /// Print the commands without running them
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        project: Project,
    },
}

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// List the datasets, their links and their variants
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        project: Project,
    },
    /// Create a variant: a seeded random sample of the JSONL and text files under source-data
    Prepare {
        /// Name of the dataset
        name: String,
        /// Name of the variant, such as subset-1k
        #[arg(long)]
        variant: String,
        /// Number of samples; all, if there are fewer
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
        num_samples: u64,
        /// Seed of the random sample
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Use only the files in this list, one per line
        #[arg(long, value_name = "FILE")]
        subset_filelist: Option<PathBuf>,
        /// Replace an existing variant
        #[arg(long)]
        force: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        project: Project,
    },
}

/// The output of a command on stdout and its exit code.
#[derive(Debug)]
pub struct Done {
    pub text: String,
    pub code: u8,
}

/// Runs a command.
pub fn run(command: AssetCommand) -> Result<Done, AssetError> {
    match command {
        AssetCommand::Bootstrap(args) => run_bootstrap(&args),
        AssetCommand::Fetch(args) => run_fetch(&args),
        AssetCommand::ThirdParty(command) => run_third_party(command),
        AssetCommand::Dataset(command) => run_dataset(command),
    }
}

fn done(text: String) -> Done {
    Done { text: text.trim_end().to_owned(), code: 0 }
}

fn json_of(value: &impl Serialize) -> Result<String, AssetError> {
    serde_json::to_string_pretty(value).map_err(|e| AssetError::Failed(e.to_string()))
}

fn run_bootstrap(args: &BootstrapArgs) -> Result<Done, AssetError> {
    let items = bootstrap::plan(&args.project.root, args.kind, &args.names, &|name| env::var_os(name))?;
    let mut confirm = |question: &str| if args.yes { Ok(true) } else { ask(question) };
    let outcomes: Vec<Outcome> = items.iter().map(|item| item.apply(args.dry_run, &mut confirm)).collect();
    let code = u8::from(outcomes.iter().any(|outcome| outcome.failed));
    if args.json {
        let text = json_of(&serde_json::json!({ "schema": 1, "dry_run": args.dry_run, "items": outcomes }))?;
        return Ok(Done { text, code });
    }
    let mut text = String::new();
    for outcome in &outcomes {
        for archive in &outcome.extracted {
            let verb = if args.dry_run { "would extract" } else { "extracted" };
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
    Ok(Done { code, ..done(text) })
}

/// Asks on the terminal; an error without one.
fn ask(question: &str) -> Result<bool, AssetError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(AssetError::Failed(format!("{question} Not a terminal: pass --yes")));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = io::stderr().flush().and_then(|()| io::stdin().read_line(&mut answer));
    read.map_err(|e| AssetError::Failed(format!("cannot read the answer: {e}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn run_fetch(args: &FetchArgs) -> Result<Done, AssetError> {
    let cwd = env::current_dir().map_err(AssetError::io("access", Path::new(".")))?;
    let tree = ConfTree::find(args.conf_dir.as_deref(), &cwd)?;
    let repo = fetch::repository(&args.model, &tree)?;
    let hub = Hub::from_env()?;
    let fetched = if args.source_only {
        // Reads the pins first, to report an invalid file before the download.
        let root = &args.project.root;
        let mut pins = Pins::read_or_default(root)?;
        let commit = hub.resolve(&repo, &args.revision)?;
        let fetched = fetch::sources(&hub, &repo, &commit, &third_party::hub_dir(root, &repo), args.quiet)?;
        pins.pin_hub(&repo, &commit);
        pins.write(root)?;
        fetched
    } else {
        fetch::model(&hub, &repo, &args.revision, args.all, args.quiet)?
    };
    if args.json {
        return Ok(done(json_of(&fetched)?));
    }
    let bytes: u64 = fetched.files.iter().map(|file| file.bytes).sum();
    let cached = fetched.files.iter().filter(|file| file.cached).count();
    Ok(done(format!(
        "{} at {}: {} files, {} ({cached} cached)\n{}",
        fetched.repo,
        fetched.commit,
        fetched.files.len(),
        units::bytes(bytes),
        fetched.dir.display()
    )))
}

fn run_third_party(command: ThirdPartyCommand) -> Result<Done, AssetError> {
    match command {
        ThirdPartyCommand::Status { name, json, project } => {
            let all = Pins::read(&project.root)?.status(&project.root, name.as_deref())?;
            let code = u8::from(all.iter().any(|s| !matches!(s.state, State::InPlace | State::Absent)));
            if json {
                let text = json_of(&serde_json::json!({ "schema": 1, "pins": all }))?;
                return Ok(Done { text, code });
            }
            let mut text = String::new();
            for status in &all {
                text +=
                    &format!("{:<10}{:<32}pinned at {}", status.state.label(), status.name, status.pinned);
                if let Some(found) = status.found.as_ref().filter(|found| **found != status.pinned) {
                    text += &format!(", on disk {found}");
                }
                if let Some(note) = &status.note {
                    text += &format!(": {note}");
                }
                text.push('\n');
            }
            if all.is_empty() {
                text += "nothing is pinned";
            }
            Ok(Done { code, ..done(text) })
        }
        ThirdPartyCommand::Update { name, revision, latest, dry_run, project } => {
            let to = match (revision, latest) {
                (Some(revision), _) => PinUpdate::To(revision),
                (None, true) => PinUpdate::Latest,
                (None, false) => PinUpdate::Keep,
            };
            let mut text = String::new();
            let mut report = |line: String| text += &format!("{line}\n");
            third_party::update(&project.root, name.as_deref(), &to, dry_run, &mut report)?;
            Ok(done(text))
        }
    }
}

fn run_dataset(command: DatasetCommand) -> Result<Done, AssetError> {
    match command {
        DatasetCommand::List { json, project } => {
            let all = dataset::list(&project.root)?;
            if json {
                return Ok(done(json_of(&serde_json::json!({ "schema": 1, "datasets": all }))?));
            }
            let mut text = String::new();
            for one in &all {
                let location = match &one.source_data {
                    Some(path) => path.display().to_string(),
                    None => "not linked".to_owned(),
                };
                text += &format!("{:<20}{location}\n", one.name);
                for variant in &one.variants {
                    let provenance = &variant.provenance;
                    text +=
                        &format!("  {:<18}{}: {}\n", variant.name, provenance.created, provenance.transform);
                }
            }
            Ok(done(text))
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
            let request = VariantRequest {
                dataset: &name,
                variant: &variant,
                samples: num_samples,
                seed,
                filelist: subset_filelist.as_deref(),
                force,
            };
            let prepared = dataset::prepare(&project.root, &request)?;
            if prepared.provenance.size.samples < num_samples {
                eprintln!(
                    "note: the source has {} samples, fewer than the requested {num_samples}",
                    prepared.of
                );
            }
            if json {
                return Ok(done(json_of(&prepared)?));
            }
            Ok(done(format!("{}: {}", prepared.dir.display(), prepared.provenance.transform)))
        }
    }
}
