//! Asks before settings of `./conf` start programs, connect or choose what is sent: another user may have written them.

use std::{fs, path::Path};

use super::{Failure, ask::ask};
use llmprof_base::{
    foreign::{MAX_LINE, line},
    process::eprint_lines,
    user_data::{keep_file, user_data_dir},
};
use llmprof_config::RiskySetting;

/// The file with the settings that the user agreed to, one per line.
const AGREED: &str = "agreed_settings";
/// Maximum number of entries; older ones are dropped.
const MAX_AGREED: usize = 1000;

/// Whether a question may be asked on the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MayAsk {
    Yes,
    /// A screen is open.
    No,
}

/// Returns whether the user agreed, now or before. `dir` is the configuration directory.
pub(super) fn confirm(dir: &Path, mut settings: Vec<RiskySetting>, may_ask: MayAsk) -> Result<(), Failure> {
    settings.sort();
    settings.dedup();
    if settings.is_empty() || is_agreed(&agreement(dir, &settings)) {
        return Ok(());
    }
    let list: String =
        settings.iter().map(|setting| format!("\n  {}", line(&setting.to_string(), MAX_LINE))).collect();
    let what = format!(
        "The configuration in {} starts programs, connects, listens or chooses what is sent to a server:{list}",
        dir.display()
    );
    let remedy = "review it, then pass --conf-dir conf to allow its settings";
    if may_ask == MayAsk::No {
        return Err(Failure::usage(format_args!("{what}\n{remedy}")));
    }
    eprint_lines(&what);
    match ask("Allow these settings of this directory from now on?") {
        Ok(true) => {
            agree(&agreement(dir, &settings));
            Ok(())
        }
        Ok(false) => Err(Failure::work("not started: the settings were not allowed")),
        Err(_) => Err(Failure::usage(format_args!("not started: there is no terminal to ask on; {remedy}"))),
    }
}

/// The directory and the values on one line, so that a changed value is asked for again.
fn agreement(dir: &Path, settings: &[RiskySetting]) -> String {
    let dir = fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    let values = settings.iter().map(|setting| format!("{}={}", setting.key, setting.value));
    let all: Vec<String> = [dir.display().to_string()].into_iter().chain(values).collect();
    serde_json::to_string(&all).unwrap_or_default()
}

fn agreed() -> String {
    let file = user_data_dir().map(|dir| dir.join(AGREED));
    file.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default()
}

fn is_agreed(agreement: &str) -> bool {
    agreed().lines().any(|line| line == agreement)
}

/// If it cannot be stored, it is asked for again.
fn agree(agreement: &str) {
    let before = agreed();
    let mut lines: Vec<&str> = before.lines().collect();
    lines.drain(..lines.len().saturating_sub(MAX_AGREED - 1));
    lines.push(agreement);
    if let Some(dir) = user_data_dir() {
        let _ = keep_file(&dir, AGREED, format!("{}\n", lines.join("\n")).as_bytes(), 0o600);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_value_is_another_question() {
        let setting =
            |value: &str| RiskySetting { key: "k".into(), value: value.into(), origin: String::new() };
        let dir = Path::new("/nowhere");
        assert_eq!(agreement(dir, &[setting("a")]), agreement(dir, &[setting("a")]));
        assert_ne!(agreement(dir, &[setting("a")]), agreement(dir, &[setting("b")]));
        assert_ne!(agreement(dir, &[setting("a")]), agreement(Path::new("/elsewhere"), &[setting("a")]));
        let error = confirm(dir, vec![setting("\u{1b}[2J")], MayAsk::No).unwrap_err().to_string();
        assert!(error.contains("--conf-dir conf") && !error.contains('\u{1b}'), "{error}");
        assert!(confirm(dir, Vec::new(), MayAsk::No).is_ok());
    }
}
