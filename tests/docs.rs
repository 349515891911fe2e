//! The documents agree with the program.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use llmprof::{
    analysis::peaks,
    cli, config,
    tui::{fleet, keys},
};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const RUNTIMES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runtimes.md");
const GPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/gpus.md");
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tools.md");
const MANUAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dist/llmprof-tui.1");
const FLEET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cluster-fleet.md");
const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kernels.md");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/keys.md");
const SECURITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/SECURITY.md");

/// Checks that the part of `file` between the comments of `section` is `expected`; with UPDATE_DOCS=1 writes it.
fn assert_generated(file: &str, section: &str, source: &str, expected: &str) {
    let begin = format!("<!-- {section}: generated from {source}; `just docs` updates it -->\n");
    let end = format!("<!-- /{section} -->");
    let text = fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin:?} in {file}"));
    let (shown, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end:?} in {file}"));
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(file, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, expected, "{file} is outdated; run UPDATE_DOCS=1 cargo test --test suite docs::");
}

#[test]
fn the_keys_are_listed() {
    assert_generated(KEYS, "keys", "the key table", &keys::markdown());
}

#[test]
fn the_keys_of_the_fleet_are_listed() {
    assert_generated(FLEET, "keys", "the key table", &fleet::keys::markdown());
}

#[test]
fn the_model_families_are_listed() {
    assert_generated(
        RUNTIMES,
        "families",
        "the table of decoders",
        &llmprof::model::architectures::markdown(),
    );
}

#[test]
fn the_gpus_are_listed() {
    assert_generated(GPUS, "gpus", "the table of GPUs", &peaks::markdown());
}

#[test]
fn the_options_of_tools_are_listed() {
    assert_generated(TOOLS, "options", "the table of options", &config::tool_options_markdown());
}

#[test]
fn the_formats_of_other_profilers_are_listed() {
    assert_generated(KERNELS, "formats", "the list of formats", &llmprof::kernels::formats_markdown());
}

#[test]
fn the_commands_are_listed() {
    assert_generated(README, "commands", "the command line", &cli::commands_markdown());
}

#[test]
fn the_manual_page_has_every_command() {
    let page = crate::common::manual::page(cli::command());
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(MANUAL, page).unwrap();
        return;
    }
    let shown = fs::read_to_string(MANUAL).unwrap();
    assert!(shown == page, "{MANUAL} is outdated; run UPDATE_DOCS=1 cargo test --test suite docs::");
}

#[test]
fn every_setting_that_needs_consent_is_listed() {
    let text = fs::read_to_string(SECURITY).unwrap();
    for key in config::RISKY_KEYS {
        assert!(text.contains(&format!("`{key}`")), "{SECURITY} does not name {key}");
    }
}

#[test]
fn the_readme_is_short() {
    assert!(fs::read_to_string(README).unwrap().lines().count() <= 220);
}

/// Every file below `dir` that ends in one of `endings`.
fn files(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, endings, found);
        } else if endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
            found.push(path);
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
            .iter()
            .map(|name| root.join(name))
            .collect();
    files(&root.join("docs"), &[".md"], &mut found);
    found
}

#[test]
fn every_link_leads_to_a_file() {
    let mut links = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', '#']).next().unwrap();
            if !target.is_empty() && !target.starts_with("http") {
                links += 1;
                let path = document.parent().unwrap().join(target);
                assert!(path.exists(), "{}: {target} does not exist", document.display());
            }
        }
    }
    assert!(links > 40, "{links} links");
}

#[test]
fn the_readme_has_pictures() {
    let pictures = fs::read_to_string(README).unwrap().matches("](docs/pictures/").count();
    assert!(pictures >= 3, "{pictures}");
}

/// The source files and directories that a document names, as `steps/cut.rs` or `fuzz/seeds/`.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    const ENDINGS: [&str; 8] = [".rs", ".py", ".sh", ".cu", ".yaml", ".toml", ".md", "/"];
    let is_name = |name: &&str| {
        ENDINGS.iter().any(|ending| name.ends_with(ending))
            && !name.contains(['*', ' ', '{', '…'])
            && !name.contains("NAME")
    };
    text.split('`').skip(1).step_by(2).filter(is_name)
}

#[test]
fn the_named_source_files_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = Vec::new();
    for dir in [
        "src",
        "crates",
        "conf",
        "tests",
        "docs",
        "fuzz/fuzz_targets",
        "fuzz/seeds",
        "assets",
        "dist",
        "third_party",
    ] {
        files(&root.join(dir), &[""], &mut known);
    }
    let known: Vec<String> =
        known.iter().map(|path| format!("/{}", path.strip_prefix(root).unwrap().display())).collect();
    let exists = |name: &str| {
        let (tail, within) = (format!("/{name}"), name.ends_with('/'));
        root.join(name).exists()
            || known.iter().any(|path| if within { path.contains(&tail) } else { path.ends_with(&tail) })
    };
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let missing: Vec<&str> = named_files(&text).filter(|name| !exists(name)).collect();
        assert!(missing.is_empty(), "{document} names files that do not exist: {missing:?}");
        let wide = text.lines().filter(|line| !line.starts_with('|')).find(|line| line.chars().count() > 120);
        assert_eq!(wide, None, "{document} has a line of more than 120 columns");
    }
}
