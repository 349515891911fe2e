//! Who may use whom, and where each vendor crate lives.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Rooms and what they must not know.
const MUST_NOT_USE: [(&str, &[&str]); 25] = [
    (
        "chrome_trace",
        &["config", "engine", "telemetry", "state", "rundir", "report", "session", "tui", "analysis", "cli"],
    ),
    (
        "heap.rs",
        &["config", "engine", "telemetry", "state", "rundir", "session", "tui", "analysis", "cli", "model"],
    ),
    (
        "operator_clock.rs",
        &["config", "engine", "telemetry", "state", "rundir", "session", "tui", "analysis", "cli", "kernels"],
    ),
    ("event", &["config", "engine", "telemetry", "state", "rundir", "session", "tui", "analysis", "cli"]),
    ("assets", &["engine", "telemetry", "state", "rundir", "session", "tui", "cli", "model", "event"]),
    (
        "config",
        &["assets", "engine", "telemetry", "state", "rundir", "session", "tui", "analysis", "cli", "model"],
    ),
    ("model", &["engine", "telemetry", "state", "rundir", "session", "tui", "cli"]),
    ("engine", &["telemetry", "state", "rundir", "session", "tui", "cli"]),
    ("telemetry", &["engine", "state", "rundir", "session", "tui", "cli"]),
    ("analysis", &["engine", "telemetry", "state", "rundir", "session", "tui", "config", "cli"]),
    ("state", &["engine", "telemetry", "report", "rundir", "session", "tui", "config", "cli"]),
    ("rundir", &["engine", "telemetry", "report", "session", "tui", "cli"]),
    ("report", &["engine", "telemetry", "plan", "session", "sweep", "headless", "doctor", "tui", "cli"]),
    ("plan.rs", &["telemetry", "state", "rundir", "session", "sweep", "tui", "analysis", "cli"]),
    ("session.rs", &["sweep", "tui", "cli"]),
    ("cost.rs", &["engine", "telemetry", "state", "rundir", "session", "sweep", "tui", "cli"]),
    ("session", &["sweep", "tui", "cli"]),
    ("rerun", &["engine", "telemetry", "plan", "session", "sweep", "doctor", "headless", "tui", "cli"]),
    ("doctor", &["state", "rundir", "session", "sweep", "headless", "tui", "cli"]),
    ("sweep", &["engine", "tui", "headless", "cli"]),
    ("compare", &["engine", "telemetry", "doctor", "sweep", "tui", "cli"]),
    (
        "kernels",
        &[
            "config",
            "engine",
            "telemetry",
            "state",
            "rundir",
            "session",
            "sweep",
            "doctor",
            "headless",
            "tui",
            "cli",
        ],
    ),
    (
        "tools",
        &[
            "config",
            "model",
            "engine",
            "telemetry",
            "state",
            "rundir",
            "session",
            "sweep",
            "doctor",
            "kernels",
            "headless",
            "tui",
            "cli",
            "analysis",
            "event",
        ],
    ),
    (
        "text",
        &["config", "model", "engine", "telemetry", "state", "rundir", "session", "tui", "analysis", "cli"],
    ),
    ("inputs.rs", &["telemetry", "state", "rundir", "session", "tui", "analysis", "cli"]),
];

/// Vendor crates and the one room of each.
const ROOMS: [(&str, &str); 23] = [
    ("candle_core", "engine/candle"),
    ("candle_nn", "engine/candle"),
    ("candle_transformers", "engine/candle"),
    ("cudarc", "engine/cuda"),
    ("nvtx", "profile/nvtx_ranges.rs"),
    ("nvml_wrapper", "telemetry/nvml"),
    ("ratatui", "tui"),
    ("crossterm", "tui"),
    ("saphyr_parser", "config/yaml.rs"),
    ("serde_yaml_ng", "config"),
    ("tokenizers", "text"),
    ("minijinja", "text"),
    ("minijinja_contrib", "text"),
    ("hdrhistogram", "analysis/distribution.rs"),
    ("hf_hub", "assets/hub"),
    ("zip", "assets/archive"),
    ("tar", "assets/archive"),
    ("flate2", "assets/archive"),
    ("rusqlite", "kernels"),
    ("cpp_demangle", "kernels/names.rs"),
    ("plotters", "report/plots"),
    ("sha1", "assets/digest.rs"),
    ("sha2", "assets/digest.rs"),
];

fn sources() -> Vec<(String, String)> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => collect(&path, found),
                false if path.extension().is_some_and(|e| e == "rs") => found.push(path),
                false => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    collect(&root, &mut paths);
    paths
        .into_iter()
        .map(|p| {
            (
                p.strip_prefix(&root).unwrap().to_string_lossy().into_owned(),
                code(&fs::read_to_string(&p).unwrap()),
            )
        })
        .collect()
}

/// The text without its comments: a link in a doc comment is no use.
fn code(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Names right after `crate::`, also within braces at the first level.
fn crate_uses(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let name = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut item = String::new();
            for c in list.chars() {
                match c {
                    '}' if depth == 0 => break,
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => names.push(name(std::mem::take(&mut item).trim())),
                    c if depth == 0 => item.push(c),
                    _ => {}
                }
            }
            names.push(name(item.trim()));
        } else {
            names.push(name(rest));
        }
    }
    names
}

#[test]
fn rooms_know_only_whom_they_may() {
    for (file, text) in sources() {
        for (room, forbidden) in MUST_NOT_USE {
            if file.starts_with(room) {
                let used = crate_uses(&text);
                let bad: Vec<&&str> = forbidden.iter().filter(|f| used.iter().any(|u| u == **f)).collect();
                assert!(bad.is_empty(), "src/{file} must not use {bad:?}");
            }
        }
    }
}

#[test]
fn vendor_crates_stay_in_their_rooms() {
    for (file, text) in sources() {
        for (vendor, room) in ROOMS {
            // The GPU's kernels are held against candle's operations.
            let at_home =
                file.starts_with(room) || (file == "engine/cuda/tests.rs" && vendor.starts_with("candle"));
            assert!(!text.contains(&format!("{vendor}::")) || at_home, "src/{file} uses {vendor}");
        }
    }
}

#[test]
fn the_scanner_sees_what_is_used() {
    let text =
        "use crate::{\n    event::{Event, Stamp},\n    state::RunState,\n};\nlet x = crate::tui::run();";
    assert_eq!(crate_uses(text), ["event", "state", "", "tui"]);
}
