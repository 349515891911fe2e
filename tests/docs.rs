//! The documents agree with the program.

use std::{env, fs};

use llmprof::{cli, tui::keys};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/keys.md");

/// The part of `file` between its comments for `section` is `expected`; with UPDATE_DOCS=1 it is written.
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
    assert_eq!(shown, expected, "{file} is outdated; run UPDATE_DOCS=1 cargo test --test docs");
}

#[test]
fn the_keys_are_listed() {
    assert_generated(KEYS, "keys", "the key table", &keys::markdown());
}

#[test]
fn the_commands_are_listed() {
    assert_generated(README, "commands", "the command line", &cli::commands_markdown());
}

#[test]
fn the_readme_is_short() {
    assert!(fs::read_to_string(README).unwrap().lines().count() <= 220);
}

#[test]
fn every_picture_of_the_readme_exists() {
    let text = fs::read_to_string(README).unwrap();
    let pictures: Vec<&str> = text
        .match_indices("](docs/pictures/")
        .map(|(at, _)| text[at + 2..].split(')').next().unwrap())
        .collect();
    assert!(pictures.len() >= 3);
    for picture in pictures {
        assert!(
            fs::metadata(format!("{}/{picture}", env!("CARGO_MANIFEST_DIR"))).is_ok(),
            "{picture} does not exist"
        );
    }
}
