//! The commands about assets: `bootstrap`, `fetch`, `third-party` and `dataset`.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::bootstrap::{self, Kind, Outcome};
use super::dataset::{self, Wish};
use super::error::AssetError;
use super::fetch;
use super::hub::Hub;
use super::third_party::{self, Move, Pins, State};
use crate::base::units;
use crate::config::ConfTree;

const BOOTSTRAP: &str = "\
Reads models/bootstrap.yaml and datasets/*/bootstrap.yaml. Models are looked for under $HF_SNAPSHOTS_ROOT,
$MODELS_ROOT or the hub's cache (~/.cache/huggingface/hub), datasets under $DATASETS_ROOT (~/datasets).

Examples:
  llmprof-tui bootstrap --dry-run
  llmprof-tui bootstrap models qwen2_5_7b
  DATASETS_ROOT=/mnt/datasets llmprof-tui bootstrap datasets --yes";

const FETCH: &str = "\
Reads HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE and HF_TOKEN as other clients of the hub do. What is
broken off is continued by the same command; sizes and hashes are checked.

Examples:
  llmprof-tui fetch qwen2_5_0_5b
  llmprof-tui fetch Qwen/Qwen2.5-0.5B --revision main
  llmprof-tui fetch deepseek-ai/DeepSeek-OCR --source-only";

const THIRD_PARTY: &str = "\
Examples:
  llmprof-tui third-party status
  llmprof-tui third-party update                        bring all pins to disk
  llmprof-tui third-party update transformers --latest  move a pin to the tip of its branch
  llmprof-tui third-party update transformers --dry-run print the git commands";

const DATASET: &str = "\
Examples:
  llmprof-tui dataset list
  llmprof-tui dataset prepare openwebtext --variant subset-1k --num-samples 1000";

#[derive(Debug, Subcommand)]
pub enum AssetCommand {
    /// Link models and datasets from where they lie
    #[command(after_help = BOOTSTRAP)]
    Bootstrap(BootstrapArgs),
    /// Get a model, or its sources alone, from the Hugging Face hub
    #[command(after_help = FETCH)]
    Fetch(FetchArgs),
    /// Reference sources: what is pinned, what is there
    #[command(after_help = THIRD_PARTY, subcommand)]
    ThirdParty(ThirdPartyCommand),
    /// Datasets and their variants
    #[command(after_help = DATASET, subcommand)]
    Dataset(DatasetCommand),
}

#[derive(Debug, Clone, Args)]
pub struct Root {
    /// The project's directory, where models/, datasets/ and third_party/ are
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
}

#[derive(Debug, Args)]
pub struct BootstrapArgs {
    /// Only these (default: datasets, then models)
    kind: Option<Kind>,
    /// Only the ones with these names
    #[arg(requires = "kind")]
    names: Vec<String>,
    /// Replace links without asking
    #[arg(long, short)]
    yes: bool,
    /// Say what would be done and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Root,
}

#[derive(Debug, Args)]
pub struct FetchArgs {
    /// An option of conf/model, or a repository of the hub (org/name)
    model: String,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main")]
    revision: String,
    /// Only *.py, config.json and LICENSE*, to third_party/hf/, with the commit pinned
    #[arg(long, conflicts_with = "all")]
    source_only: bool,
    /// Everything the repository holds, not only what a run needs
    #[arg(long)]
    all: bool,
    /// No progress on stderr
    #[arg(long, short)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Take model options from this directory before the built-in ones (default: ./conf, if it is there)
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    #[command(flatten)]
    at: Root,
}

#[derive(Debug, Subcommand)]
pub enum ThirdPartyCommand {
    /// Compare the pins with what is on disk (exit code 1 where they differ)
    Status {
        name: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: Root,
    },
    /// Bring the pins to disk, after moving them if asked to
    Update {
        name: Option<String>,
        /// Move the pin to this commit or tag
        #[arg(long, requires = "name")]
        revision: Option<String>,
        /// Move the pins to the tips of their branches
        #[arg(long, conflicts_with = "revision")]
        latest: bool,
        /// Print the commands and do nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        at: Root,
    },
}

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Every dataset, whether its data is linked, and its variants
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: Root,
    },
    /// Make a variant: a seeded random sample of the JSONL and text files under source-data
    Prepare {
        name: String,
        /// The variant's name, such as subset-1k
        #[arg(long)]
        variant: String,
        /// How many samples; all, if there are fewer
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
        num_samples: u64,
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Only the files this list names, one on each line
        #[arg(long, value_name = "FILE")]
        subset_filelist: Option<PathBuf>,
        /// Replace a variant of that name
        #[arg(long)]
        force: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: Root,
    },
}

/// What a command has to say on stdout, and its exit code.
#[derive(Debug)]
pub struct Done {
    pub text: String,
    pub code: u8,
}

/// Does what the command says.
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
    let items = bootstrap::plan(&args.at.root, args.kind, &args.names, &|name| env::var_os(name))?;
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
        text += &format!("{:<14}{}", outcome.state.word(), outcome.link.display());
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

/// Asks on the terminal; elsewhere nobody could answer, and that is said.
fn ask(question: &str) -> Result<bool, AssetError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(AssetError::Failed(format!("{question} Nobody is here to say so; --yes does")));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    let read = io::stderr().flush().and_then(|()| io::stdin().read_line(&mut answer));
    read.map_err(|e| AssetError::Failed(format!("the answer cannot be read: {e}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn run_fetch(args: &FetchArgs) -> Result<Done, AssetError> {
    let cwd = env::current_dir().map_err(AssetError::io("look at", Path::new(".")))?;
    let tree = ConfTree::find(args.conf_dir.as_deref(), &cwd)?;
    let repo = fetch::repository(&args.model, &tree)?;
    let hub = Hub::from_env()?;
    let fetched = if args.source_only {
        // The pins are read first: a file that is wrong should not be found out after the download.
        let root = &args.at.root;
        let mut pins = Pins::read_or_none(root)?;
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
        "{} at {}: {} files, {} ({cached} were there)\n{}",
        fetched.repo,
        fetched.commit,
        fetched.files.len(),
        units::bytes(bytes),
        fetched.dir.display()
    )))
}

fn run_third_party(command: ThirdPartyCommand) -> Result<Done, AssetError> {
    match command {
        ThirdPartyCommand::Status { name, json, at } => {
            let all = Pins::read(&at.root)?.status(&at.root, name.as_deref())?;
            let code = u8::from(all.iter().any(|s| !matches!(s.state, State::InPlace | State::Absent)));
            if json {
                let text = json_of(&serde_json::json!({ "schema": 1, "pins": all }))?;
                return Ok(Done { text, code });
            }
            let mut text = String::new();
            for status in &all {
                text += &format!("{:<10}{:<32}pinned at {}", status.state.word(), status.name, status.pinned);
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
        ThirdPartyCommand::Update { name, revision, latest, dry_run, at } => {
            let to = match (revision, latest) {
                (Some(revision), _) => Move::To(revision),
                (None, true) => Move::Latest,
                (None, false) => Move::Stay,
            };
            let mut text = String::new();
            let mut tell = |line: String| text += &format!("{line}\n");
            third_party::update(&at.root, name.as_deref(), &to, dry_run, &mut tell)?;
            Ok(done(text))
        }
    }
}

fn run_dataset(command: DatasetCommand) -> Result<Done, AssetError> {
    match command {
        DatasetCommand::List { json, at } => {
            let all = dataset::list(&at.root)?;
            if json {
                return Ok(done(json_of(&serde_json::json!({ "schema": 1, "datasets": all }))?));
            }
            let mut text = String::new();
            for one in &all {
                let place = match &one.source_data {
                    Some(path) => path.display().to_string(),
                    None => "not linked".to_owned(),
                };
                text += &format!("{:<20}{place}\n", one.name);
                for variant in &one.variants {
                    let made = &variant.provenance;
                    text += &format!("  {:<18}{}: {}\n", variant.name, made.created, made.transform);
                }
            }
            Ok(done(text))
        }
        DatasetCommand::Prepare { name, variant, num_samples, seed, subset_filelist, force, json, at } => {
            let wish = Wish {
                dataset: &name,
                variant: &variant,
                samples: num_samples,
                seed,
                filelist: subset_filelist.as_deref(),
                force,
            };
            let made = dataset::prepare(&at.root, &wish)?;
            if made.provenance.size.samples < num_samples {
                eprintln!("note: {num_samples} samples were asked for, and there are {}", made.of);
            }
            if json {
                return Ok(done(json_of(&made)?));
            }
            Ok(done(format!("{}: {}", made.dir.display(), made.provenance.transform)))
        }
    }
}
