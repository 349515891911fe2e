//! `third-party`: the pinned reference sources.

use clap::Subcommand;
use serde_json::json;

use super::{Failure, args::ProjectArgs, print, print_json};
use llmprof_run::assets::third_party::{self, PinUpdate, Pins, State, Status};

pub(super) const EXAMPLES: &str = "\
Examples:
  llmprof-tui third-party status
  llmprof-tui third-party update                        check out every pinned commit
  llmprof-tui third-party update transformers --latest  move a pin to the tip of its branch
  llmprof-tui third-party update transformers --dry-run print the git commands";

#[derive(Debug, Subcommand)]
pub(super) enum ThirdPartyCommand {
    /// Compare the pins with the files on disk (exit code 1 if they differ)
    Status {
        /// Check only the pin with this name (default: all)
        name: Option<String>,
        /// Print one JSON object on stdout instead of text
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        project: ProjectArgs,
    },
    /// Check out the pinned commits, after moving the pins if requested
    Update {
        /// Update only the pin with this name (default: all)
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
        project: ProjectArgs,
    },
}

pub(super) fn run(command: ThirdPartyCommand) -> Result<u8, Failure> {
    match command {
        ThirdPartyCommand::Status { name, json, project } => {
            let pins = Pins::read(&project.root)?.status(&project.root, name.as_deref())?;
            match json {
                true => print_json(&json!({ "schema": 1, "pins": pins }))?,
                false => print(status_text(&pins).trim_end())?,
            }
            Ok(u8::from(pins.iter().any(|pin| !matches!(pin.state, State::InPlace | State::Absent))))
        }
        ThirdPartyCommand::Update { name, revision, latest, dry_run, project } => {
            let to = match (revision, latest) {
                (Some(revision), _) => PinUpdate::To(revision),
                (None, true) => PinUpdate::Latest,
                (None, false) => PinUpdate::Keep,
            };
            let mut lines = Vec::new();
            let mut step = |line: String| lines.push(line);
            third_party::update(&project.root, name.as_deref(), &to, dry_run, &mut step)?;
            print(&lines.join("\n"))?;
            Ok(0)
        }
    }
}

fn status_text(pins: &[Status]) -> String {
    if pins.is_empty() {
        return "nothing is pinned".to_owned();
    }
    let mut text = String::new();
    for pin in pins {
        text += &format!("{:<10}{:<32}pinned at {}", pin.state.label(), pin.name, pin.pinned);
        if let Some(found) = pin.found.as_ref().filter(|found| **found != pin.pinned) {
            text += &format!(", on disk {found}");
        }
        if let Some(note) = &pin.note {
            text += &format!(": {note}");
        }
        text.push('\n');
    }
    text
}
