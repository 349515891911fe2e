//! The documents agree with the program.

use std::{env, fs};

use llmprof::tui::keys;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/keys.md");
const BEGIN: &str = "<!-- keys: generated from the key table; `just docs` updates it -->\n";
const END: &str = "<!-- /keys -->";

#[test]
fn the_documents_list_all_keys() {
    let text = fs::read_to_string(KEYS).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("docs/keys.md has a start marker");
    let (shown, after) = rest.split_once(END).expect("docs/keys.md has an end marker");
    let wanted = keys::markdown();
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(KEYS, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, wanted, "docs/keys.md is out of date; run UPDATE_DOCS=1 cargo test --test docs");
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
