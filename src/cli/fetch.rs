//! `fetch`: downloads from the Hugging Face hub.

use std::path::PathBuf;

use clap::Args;

use super::{
    Failure,
    args::{ConfigRequest, ProjectArgs},
    print, print_json,
};
use llmprof_base::units::bytes;
use llmprof_run::assets::{
    fetch,
    hub::Hub,
    third_party::{self, Pins},
};

pub(super) const EXAMPLES: &str = "\
Reads HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN and SSL_CERT_FILE, as other
clients of the hub do. The same command resumes an interrupted download. Sizes and hashes are
verified.

Examples:
  llmprof-tui fetch qwen2_5_0_5b
  llmprof-tui fetch Qwen/Qwen2.5-0.5B --revision main
  llmprof-tui fetch deepseek-ai/DeepSeek-OCR --source-only";

#[derive(Debug, Args)]
pub(super) struct FetchArgs {
    /// Option of conf/model, or repository on the hub (org/name)
    model: String,
    /// Download this branch, tag or commit
    #[arg(long, default_value = "main")]
    revision: String,
    /// Download only *.py, config.json and LICENSE* to third_party/hf/, and pin the commit
    #[arg(long, conflicts_with = "all")]
    source_only: bool,
    /// Download every file of the repository, not only the files that a run needs
    #[arg(long)]
    all: bool,
    /// Print no progress on stderr
    #[arg(long, short)]
    quiet: bool,
    /// Print one JSON object on stdout instead of text
    #[arg(long)]
    json: bool,
    /// Search DIR for model options before the built-in ones (default: ./conf, if it exists)
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    #[command(flatten)]
    project: ProjectArgs,
}

pub(super) fn run(args: &FetchArgs) -> Result<u8, Failure> {
    let tree = ConfigRequest { conf_dir: args.conf_dir.clone(), ..ConfigRequest::default() }.tree()?;
    let repo = fetch::repository(&args.model, &tree)?;
    let hub = Hub::from_env()?;
    let fetched = if args.source_only {
        // Reads the pins first, to report an invalid file before the download.
        let root = &args.project.root;
        let mut pins = Pins::read_or_default(root)?;
        let dir = third_party::hub_dir(root, &repo)?;
        let commit = hub.resolve(&repo, &args.revision)?;
        let fetched = fetch::sources(&hub, &repo, &commit, &dir, args.quiet)?;
        pins.pin_hub(&repo, &commit);
        pins.write(root)?;
        fetched
    } else {
        fetch::model(&hub, &repo, &args.revision, args.all, args.quiet)?
    };
    if args.json {
        print_json(&fetched)?;
        return Ok(0);
    }
    let total: u64 = fetched.files.iter().map(|file| file.bytes).sum();
    let cached = fetched.files.iter().filter(|file| file.cached).count();
    print(&format!(
        "{} at {}: {} files, {} ({cached} cached)\n{}",
        fetched.repo,
        fetched.commit,
        fetched.files.len(),
        bytes(total),
        fetched.dir.display()
    ))?;
    Ok(0)
}
