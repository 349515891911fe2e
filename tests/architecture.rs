//! The rooms of `src`, what each may use, and where each vendor crate is used.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Every room with the rooms its code may use, bottom to top: a room uses only rooms that stand before it, so there
/// are no cycles. Tests may use any room.
const ROOMS: [(&str, &[&str]); 29] = [
    ("base", &[]),
    ("process", &["base"]),
    ("tools", &[]),
    ("config", &[]),
    ("slurm", &["base", "tools", "config"]),
    ("text", &["base", "process"]),
    ("model", &["base", "config"]),
    ("event", &["model"]),
    ("analysis", &["base", "event", "model"]),
    ("kernels", &["base", "tools", "event", "analysis"]),
    ("profile", &["tools", "config", "model", "event"]),
    ("attach", &["base", "event", "analysis"]),
    ("telemetry", &["base", "tools", "config", "event", "analysis", "profile"]),
    ("engine", &["base", "process", "tools", "config", "text", "model", "event", "profile"]),
    ("server", &["base", "config", "text", "event", "analysis", "engine"]),
    ("pytorch", &["base", "text", "model", "event", "kernels", "attach", "engine"]),
    ("sim", &["base", "config", "model", "event", "analysis", "telemetry", "engine"]),
    ("state", &["base", "model", "event", "analysis"]),
    ("chrome_trace", &["base", "event"]),
    ("rundir", &["base", "event", "analysis", "state", "chrome_trace"]),
    (
        "report",
        &["base", "config", "model", "event", "analysis", "kernels", "state", "chrome_trace", "rundir"],
    ),
    ("assets", &["base", "config"]),
    ("fleet", &["base", "event", "analysis", "server"]),
    (
        "run",
        &[
            "base",
            "process",
            "tools",
            "config",
            "text",
            "model",
            "event",
            "analysis",
            "kernels",
            "profile",
            "attach",
            "telemetry",
            "engine",
            "server",
            "pytorch",
            "sim",
            "slurm",
            "state",
            "rundir",
            "report",
            "assets",
        ],
    ),
    ("compare", &["base", "process", "event", "analysis", "state", "rundir", "run"]),
    (
        "doctor",
        &[
            "base",
            "tools",
            "config",
            "model",
            "event",
            "analysis",
            "profile",
            "telemetry",
            "engine",
            "server",
            "pytorch",
            "sim",
            "run",
        ],
    ),
    ("remote", &["base", "process", "event", "state", "rundir", "run"]),
    (
        "tui",
        &[
            "base", "process", "config", "model", "event", "analysis", "kernels", "state", "rundir", "run",
            "compare", "remote", "fleet",
        ],
    ),
    (
        "cli",
        &[
            "base",
            "process",
            "config",
            "model",
            "event",
            "analysis",
            "kernels",
            "attach",
            "telemetry",
            "engine",
            "sim",
            "state",
            "rundir",
            "report",
            "assets",
            "run",
            "compare",
            "doctor",
            "remote",
            "tui",
            "fleet",
        ],
    ),
];

/// Vendor crates and the one place of each.
const VENDORS: [(&str, &str); 30] = [
    ("candle_core", "engine/candle"),
    ("candle_nn", "engine/candle"),
    ("candle_transformers", "engine/candle"),
    ("cudarc", "engine/cuda"),
    ("nvml_wrapper", "telemetry/nvml"),
    ("ratatui", "tui"),
    ("crossterm", "tui"),
    ("hydra_config", "config"),
    ("tokenizers", "text"),
    ("minijinja", "text"),
    ("minijinja_contrib", "text"),
    ("hdrhistogram", "analysis/distribution.rs"),
    ("hf_hub", "assets/hub"),
    ("ureq", "assets/hub"),
    ("pulldown_cmark", "base/markup.rs"),
    ("zip", "assets/archive"),
    ("tar", "assets/archive"),
    ("flate2", "base/gz.rs"),
    ("rusqlite", "kernels"),
    ("cpp_demangle", "event/kernels/names.rs"),
    ("plotters", "report/plots"),
    ("sha1", "assets/digest.rs"),
    ("sha2", "assets/digest.rs"),
    ("signal_hook", "process"),
    ("httparse", "server"),
    ("rustls", "server"),
    ("tokio_rustls", "server/http.rs"),
    ("base64", "server"),
    ("url", "server/endpoint.rs"),
    ("webpki_roots", "server/tls.rs"),
];

/// The files that start programs. Their command lines hold no word of a file that is not validated (SECURITY.md).
const STARTS_PROGRAMS: [&str; 10] = [
    "assets/git.rs",
    "attach/program.rs",
    "process/browser.rs",
    "remote/host.rs",
    "remote/relay.rs",
    "run/child.rs",
    "run/rerun/child.rs",
    "run/sweep/launch/local.rs",
    "slurm/commands.rs",
    "tools/process.rs",
];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every production source file: its path below `src` and its code.
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
    let mut paths = Vec::new();
    collect(&src(), &mut paths);
    let file = |path: PathBuf| {
        let name = path.strip_prefix(src()).unwrap().to_string_lossy().into_owned();
        (name, code(&fs::read_to_string(&path).unwrap()))
    };
    let tests = |name: &str| name.ends_with("tests.rs") || name.contains("/tests/");
    paths.into_iter().map(file).filter(|(name, _)| !tests(name)).collect()
}

/// The text without comments and without its inline test module.
fn code(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let text = lines.join("\n");
    match text.find("#[cfg(test)]\nmod tests {") {
        Some(tests) => text[..tests].to_owned(),
        None => text,
    }
}

/// Top-level modules that `text` names, where it is the module at `depth` below the crate's root: by `crate::`, or by
/// as many `super::` as lead there.
fn modules_used(text: &str, depth: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let to_root = "super::".repeat(depth);
    let roots = [Some("crate::"), (depth > 0).then_some(to_root.as_str())];
    for root in roots.into_iter().flatten() {
        for (at, _) in text.match_indices(root) {
            let longer = text[..at].ends_with("super::") || text[at + root.len()..].starts_with("super::");
            if !longer {
                names.extend(first_segments(&text[at + root.len()..]));
            }
        }
    }
    names
}

/// First segments of the paths in a use tree: one, or those within braces.
fn first_segments(tree: &str) -> Vec<String> {
    let segment = |path: &str| -> String {
        path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(list) = tree.strip_prefix('{') else { return vec![segment(tree)] };
    let mut depth = 0;
    let mut items = vec![String::new()];
    for c in list.chars() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => items.push(String::new()),
            c if depth == 0 => items.last_mut().unwrap().push(c),
            _ => {}
        }
    }
    items.iter().map(|item| segment(item)).filter(|name| !name.is_empty()).collect()
}

/// How many modules lie between the crate's root and the items of this file.
fn depth(file: &str) -> usize {
    let parts = file.trim_end_matches(".rs").split('/').count();
    if file.ends_with("/mod.rs") { parts - 1 } else { parts }
}

#[test]
fn src_holds_rooms_only() {
    let mut rooms = BTreeSet::new();
    for entry in fs::read_dir(src()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => assert!(rooms.insert(name)),
            false => {
                assert!(["lib.rs", "main.rs"].contains(&name.as_str()), "src/{name} belongs into a room")
            }
        }
    }
    assert_eq!(rooms, ROOMS.iter().map(|(room, _)| (*room).to_owned()).collect());
}

#[test]
fn rooms_use_only_rooms_below_them() {
    for (index, (room, may_use)) in ROOMS.iter().enumerate() {
        let below: Vec<&str> = ROOMS[..index].iter().map(|(name, _)| *name).collect();
        for used in *may_use {
            assert!(below.contains(used), "{room} may use {used}, which does not stand before it");
        }
    }
}

#[test]
fn rooms_use_what_they_may_and_nothing_else() {
    let mut wrong = Vec::new();
    let mut used_by = vec![BTreeSet::new(); ROOMS.len()];
    for (file, text) in sources() {
        let Some((room, _)) = file.split_once('/') else { continue };
        let index = ROOMS.iter().position(|(name, _)| *name == room).expect("every room is listed");
        for used in modules_used(&text, depth(&file)) {
            let is_room = ROOMS.iter().any(|(name, _)| *name == used);
            if is_room && used != room {
                if !ROOMS[index].1.contains(&used.as_str()) {
                    wrong.push(format!("src/{file} uses {used}"));
                }
                used_by[index].insert(used);
            }
        }
    }
    assert!(wrong.is_empty(), "not allowed:\n{}", wrong.join("\n"));
    let mut unused = Vec::new();
    for (index, (room, may_use)) in ROOMS.iter().enumerate() {
        let not_used = may_use.iter().filter(|name| !used_by[index].contains(**name));
        unused.extend(not_used.map(|name| format!("{room} no longer uses {name}")));
    }
    assert!(unused.is_empty(), "remove from the list:\n{}", unused.join("\n"));
}

#[test]
fn architecture_md_names_every_room() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();
    for (room, may_use) in ROOMS {
        let uses = if may_use.is_empty() { "–".to_owned() } else { may_use.join(", ") };
        let row = text.lines().find(|line| line.starts_with(&format!("| `{room}` |")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {room}"));
        assert!(row.ends_with(&format!("| {uses} |")), "ARCHITECTURE.md on {room}: it uses {uses}");
    }
}

#[test]
fn vendor_crates_stay_in_their_place() {
    for (file, text) in sources() {
        for (vendor, place) in VENDORS {
            let allowed = file.starts_with(place);
            let path = format!("{vendor}::");
            let is_name = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let uses = text.match_indices(&path).any(|(index, _)| !is_name(&text[..index]));
            assert!(!uses || allowed, "src/{file} uses {vendor}");
        }
    }
}

#[test]
fn programs_are_started_in_few_places() {
    let starts = sources().into_iter().filter(|(_, text)| text.contains("Command::new("));
    let mut files: Vec<String> = starts.map(|(file, _)| file).collect();
    files.sort();
    assert_eq!(files, STARTS_PROGRAMS);
}

#[test]
fn the_scanner_finds_every_form_of_use() {
    let text =
        "use crate::{\n    event::{Event, Stamp},\n    state::RunState,\n};\nlet x = crate::tui::run();";
    assert_eq!(modules_used(text, 2).into_iter().collect::<Vec<_>>(), ["event", "state", "tui"]);
    let text = "use super::super::{event, run::plan};\nuse super::sibling;\nuse super::super::super::beyond;";
    assert_eq!(modules_used(text, 2).into_iter().collect::<Vec<_>>(), ["event", "run"]);
    assert_eq!((depth("run/mod.rs"), depth("run/plan.rs"), depth("run/sweep/jobs.rs")), (1, 2, 3));
    assert_eq!(code("a\n// crate::tui\n#[cfg(test)]\nmod tests {\n    use crate::cli;\n}\n"), "a\n");
}
