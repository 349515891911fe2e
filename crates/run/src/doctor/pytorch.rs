//! Whether `runtime=pytorch` finds a Python with torch and transformers.

use std::path::{self, Path, PathBuf};

use super::{Context, Finding};
use llmprof_sources::pytorch::Interpreter;

/// Prints the versions of Python, torch and transformers, one per line and empty if missing. Nothing is imported,
/// because that takes seconds.
const VERSIONS: &str = "\
import platform
from importlib import metadata
print(platform.python_version())
for name in ('torch', 'transformers'):
    try:
        print(metadata.version(name))
    except metadata.PackageNotFoundError:
        print()
";
const NEEDED: &str = "runtime=pytorch needs it; other runtimes do not";

/// An environment may be in the working directory.
fn absolute(path: &Path) -> PathBuf {
    path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

pub(super) fn pytorch(context: &Context) -> Finding {
    let python =
        Interpreter::find_with(None, |name| context.machine.variable(name).map(Into::into), &|path| {
            context.machine.has(absolute(path))
        });
    // A name without a directory is searched for in PATH.
    let in_path = || {
        let places = context.machine.folders("PATH").into_iter().map(|folder| folder.join(&python.path));
        places.into_iter().find(|path| context.machine.has(path))
    };
    let is_name = python.path.components().count() == 1;
    let Some(path) = (if is_name { in_path() } else { Some(absolute(&python.path)) }) else {
        return Finding::skip(format!("no Python: {NEEDED}"));
    };
    let Ok(text) = context.machine.output(&path, &["-c", VERSIONS], context.deadline) else {
        return Finding::skip(format!("{} does not run: {NEEDED}", path.display()));
    };
    let path = path.display();
    let mut lines = text.lines();
    let version = |line: Option<&str>| {
        let is_version = |line: &&str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || ".+-".contains(c);
            !line.is_empty() && line.len() < 40 && line.chars().all(allowed)
        };
        line.filter(is_version).map(str::to_owned)
    };
    let Some(of_python) = version(lines.next()) else {
        return Finding::skip(format!("{path} is not a Python interpreter: {NEEDED}"));
    };
    let (torch, transformers) = (version(lines.next()), version(lines.next()));
    let missing: Vec<&str> = [("torch", &torch), ("transformers", &transformers)]
        .into_iter()
        .filter_map(|(name, version)| version.is_none().then_some(name))
        .collect();
    match (torch, transformers) {
        (Some(torch), Some(transformers)) => Finding::pass(format!(
            "torch {torch} and transformers {transformers}, Python {of_python} ({path})"
        )),
        _ => Finding::skip(format!(
            "Python {of_python} ({path}) has no {}: {NEEDED}. {path} -m pip install {} adds it",
            missing.join(" and no "),
            missing.join(" ")
        )),
    }
}
