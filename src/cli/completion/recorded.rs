//! Completion of recorded runs and baselines.

use std::path::{Path, PathBuf};

use super::paths;
use crate::cli::args::runs_root;
use llmprof_config::{Candidate, ConfTree, Override, compose};
use llmprof_record::rundir::{LATEST, list_runs};
use llmprof_run::compare::baseline_names;

/// Maximum number of runs to offer.
const MAX_RUNS: usize = 20;

/// `latest` and the newest runs; paths if no run begins with `partial`.
pub(super) fn runs(partial: &str, tree: &ConfTree, cwd: &Path) -> Vec<Candidate> {
    or_paths(recorded(partial, tree, cwd), partial, cwd)
}

/// The same and the baselines.
pub(super) fn runs_and_baselines(partial: &str, tree: &ConfTree, cwd: &Path) -> Vec<Candidate> {
    let names = baseline_names(cwd).into_iter().filter(|name| name.starts_with(partial));
    let mut found: Vec<Candidate> = names.map(|name| Candidate::complete(name, "baseline")).collect();
    found.extend(recorded(partial, tree, cwd));
    or_paths(found, partial, cwd)
}

fn or_paths(found: Vec<Candidate>, partial: &str, cwd: &Path) -> Vec<Candidate> {
    if found.is_empty() { paths::beginning_with(partial, cwd) } else { found }
}

fn recorded(partial: &str, tree: &ConfTree, cwd: &Path) -> Vec<Candidate> {
    let root =
        compose(tree, Override::NONE).map_or_else(|_| PathBuf::from("runs"), |composed| runs_root(&composed));
    let runs = list_runs(&cwd.join(&root));
    let latest = !runs.is_empty() && LATEST.starts_with(partial);
    let mut found: Vec<Candidate> =
        latest.then(|| Candidate::complete(LATEST, "the newest run")).into_iter().collect();
    for run in runs.iter().filter(|run| run.answers) {
        // As the user would type it: relative if the directory of the runs is relative.
        let path = run.dir.path();
        let path = if root.is_relative() { path.strip_prefix(cwd).unwrap_or(path) } else { path };
        let Some(text) = path.to_str().filter(|text| text.starts_with(partial)) else { continue };
        let kind = if run.simulated() { ", simulated" } else { "" };
        found.push(Candidate::complete(text, format!("{}{kind}", run.model)));
        if found.len() == MAX_RUNS {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use llmprof_config::built_in;

    #[test]
    fn runs_and_baselines_are_offered_before_paths() {
        let dir = tempfile::tempdir().unwrap();
        let cwd = dir.path();
        for path in ["runs/base/tiny/01/events.ndjson", "baselines/main.json", "baselines/odd.txt"] {
            fs::create_dir_all(cwd.join(path).parent().unwrap()).unwrap();
            fs::write(cwd.join(path), "").unwrap();
        }
        let tree = built_in();
        let texts = |found: Vec<Candidate>| found.into_iter().map(|one| one.text).collect::<Vec<_>>();
        assert_eq!(texts(runs("", &tree, cwd)), ["latest", "runs/base/tiny/01"]);
        assert_eq!(texts(runs("ru", &tree, cwd)), ["runs/base/tiny/01"]);
        assert_eq!(texts(runs_and_baselines("", &tree, cwd)), ["main", "latest", "runs/base/tiny/01"]);
        assert_eq!(texts(runs_and_baselines("m", &tree, cwd)), ["main"]);
        assert_eq!(texts(runs("runs/base/tiny/01/", &tree, cwd)), ["runs/base/tiny/01/events.ndjson"]);
        assert_eq!(texts(runs("base", &tree, cwd)), ["baselines/"]);
    }
}
