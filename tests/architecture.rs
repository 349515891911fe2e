//! The modules (rooms) of each crate, what each may use, and where each vendor crate is used.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The rooms of a crate, each with those that it may use.
type Rooms = &'static [(&'static str, &'static [&'static str])];

/// The rooms of the crates that have several, each with the other rooms of its crate that its code may use. Code in no
/// listed room belongs to the room with the name of the crate. The crates that a crate may use are in its `Cargo.toml`.
const ROOMS: [(&str, Rooms); 6] = [
    ("base", &[("base", &[]), ("process", &["base"]), ("tools", &["base"])]),
    ("workload", &[("text", &[]), ("workload", &["text"])]),
    ("engine", &[("weights", &[]), ("profile", &[]), ("engine", &["weights"])]),
    (
        "sources",
        &[
            ("attach", &[]),
            ("telemetry", &[]),
            ("server", &[]),
            ("pytorch", &["attach"]),
            ("sim", &["telemetry"]),
            ("fleet", &["server"]),
        ],
    ),
    (
        "record",
        &[
            ("state", &[]),
            ("chrome_trace", &[]),
            ("rundir", &["state", "chrome_trace"]),
            ("sweep", &["state", "rundir"]),
            ("report", &["state", "chrome_trace", "rundir"]),
        ],
    ),
    (
        "run",
        &[
            ("slurm", &[]),
            ("assets", &[]),
            ("run", &["slurm", "assets"]),
            ("compare", &["run"]),
            ("doctor", &["run"]),
            ("remote", &["run"]),
        ],
    ),
];

/// Vendor crates, and the place where each is used; candle's tensors in two.
const VENDORS: [(&str, &str); 30] = [
    ("candle_core", "engine/candle engine/weights"),
    ("candle_nn", "engine/candle"),
    ("candle_transformers", "engine/candle"),
    ("cudarc", "engine/cuda"),
    ("nvml_wrapper", "sources/telemetry/nvml"),
    ("ratatui", "screen app"),
    ("crossterm", "screen app"),
    ("hydra_config", "config"),
    ("tokenizers", "workload/text"),
    ("minijinja", "workload/text"),
    ("minijinja_contrib", "workload/text"),
    ("hdrhistogram", "analysis/distribution.rs"),
    ("hf_hub", "run/assets/hub"),
    ("ureq", "run/assets/hub"),
    ("pulldown_cmark", "base/markup.rs"),
    ("zip", "run/assets/archive"),
    ("tar", "run/assets/archive"),
    ("flate2", "base/gz.rs"),
    ("rusqlite", "traces"),
    ("cpp_demangle", "event/kernels/names.rs"),
    ("plotters", "record/report/plots"),
    ("sha1", "run/assets/digest.rs"),
    ("sha2", "run/assets/digest.rs"),
    ("signal_hook", "base/process"),
    ("httparse", "sources/server"),
    ("rustls", "sources/server"),
    ("tokio_rustls", "sources/server/http.rs"),
    ("base64", "sources/server"),
    ("url", "sources/server/endpoint.rs"),
    ("webpki_roots", "sources/server/tls.rs"),
];

/// The files that start programs. Their command lines contain nothing from an unvalidated file (SECURITY.md).
const STARTS_PROGRAMS: [&str; 10] = [
    "base/process/browser.rs",
    "base/tools/process.rs",
    "run/assets/git.rs",
    "run/child.rs",
    "run/remote/host.rs",
    "run/remote/relay.rs",
    "run/rerun/child.rs",
    "run/slurm/commands.rs",
    "run/sweep/launch/local.rs",
    "sources/attach/program.rs",
];

/// The crates of the program itself, bottom to top; the others depend on none of them.
const CRATES: [&str; 13] = [
    "base", "cost", "config", "event", "analysis", "traces", "workload", "engine", "sources", "record",
    "run", "screen", "app",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every production source file: its path, below `src` or as `crate/path` below the crate's `src`, and its code.
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
    let below = |name: &str, src: PathBuf| {
        let mut paths = Vec::new();
        collect(&src, &mut paths);
        let file = |path: PathBuf| {
            let name = Path::new(name).join(path.strip_prefix(&src).unwrap());
            (name.to_string_lossy().into_owned(), code(&fs::read_to_string(&path).unwrap()))
        };
        paths.into_iter().map(file).collect::<Vec<_>>()
    };
    let of_crates = CRATES.iter().flat_map(|name| below(name, root().join("crates").join(name).join("src")));
    let tests =
        |name: &str| name.ends_with("tests.rs") || name.contains("/tests/") || name == "cost/built_in.rs";
    of_crates.chain(below("", root().join("src"))).filter(|(name, _)| !tests(name)).collect()
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

/// Top-level modules used in `text`, the source of a module at `depth` below the crate's root: by `crate::`, or by the
/// corresponding number of `super::`.
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

/// The number of modules between the root of its crate and the items of this file.
fn depth(file: &str) -> usize {
    match file.trim_end_matches(".rs").split('/').count() - 1 {
        _ if file.ends_with("/lib.rs") => 0,
        parts if file.ends_with("/mod.rs") => parts - 1,
        parts => parts,
    }
}

#[test]
fn src_is_the_program() {
    let names = fs::read_dir(root().join("src")).unwrap().flatten();
    let names: BTreeSet<String> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["cli", "lib.rs", "main.rs"].map(String::from)));
}

#[test]
fn rooms_of_a_crate_use_what_they_may_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, rooms) in ROOMS {
        let room_of =
            |module: &str| rooms.iter().map(|(room, _)| *room).find(|room| *room == module).unwrap_or(name);
        let mut used_by: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (file, text) in sources() {
            let Some(path) = file.strip_prefix(&format!("{name}/")).filter(|path| *path != "lib.rs") else {
                continue;
            };
            let room = room_of(path.split('/').next().unwrap().trim_end_matches(".rs"));
            for module in modules_used(&text, depth(&file)) {
                let used = room_of(&module);
                let is_room = rooms.iter().any(|(one, _)| *one == used);
                if used == room || !is_room {
                    continue;
                }
                let (_, may_use) = rooms.iter().find(|(one, _)| *one == room).expect("every room is listed");
                if !may_use.contains(&used) {
                    wrong.push(format!("crates/{file} uses {used}"));
                }
                used_by.entry(room).or_default().insert(used);
            }
        }
        for (index, (room, may_use)) in rooms.iter().enumerate() {
            for used in *may_use {
                let below = rooms[..index].iter().any(|(one, _)| one == used);
                assert!(below, "{name}: {room} may use {used}, which does not stand before it");
                if !used_by.get(room).is_some_and(|found| found.contains(used)) {
                    wrong.push(format!("{name}: {room} no longer uses {used}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The workspace's crates that a crate depends on, by their directories.
fn uses(name: &str) -> Vec<String> {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let directory = |package: &str| {
        let line = workspace.lines().find(|line| line.starts_with(&format!("{package} = ")))?;
        Some(line.split_once("path = \"crates/")?.1.split('"').next()?.to_owned())
    };
    let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
    let dependencies = manifest.split_once("\n[dependencies]\n").unwrap().1;
    let dependencies = dependencies.split("\n[").next().unwrap();
    let packages = dependencies.lines().filter_map(|line| line.strip_suffix(".workspace = true"));
    packages.filter_map(directory).collect()
}

#[test]
fn architecture_md_lists_what_each_crate_uses() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for name in CRATES {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        let listed = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let mut listed: Vec<String> =
            listed.split(", ").filter(|name| *name != "–").map(|name| name.to_owned()).collect();
        let mut used = uses(name);
        listed.sort();
        used.sort();
        assert_eq!(listed, used, "ARCHITECTURE.md on {name}");
    }
    for (name, rooms) in ROOMS {
        for (room, _) in rooms.iter().filter(|(room, _)| *room != name) {
            assert!(text.contains(&format!("`{room}`")), "ARCHITECTURE.md does not name {name}'s {room}");
        }
    }
}

#[test]
fn vendor_crates_stay_in_their_place() {
    for (file, text) in sources() {
        for (vendor, place) in VENDORS {
            let allowed = place.split(' ').any(|place| file.starts_with(place));
            let path = format!("{vendor}::");
            let is_name = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let uses = text.match_indices(&path).any(|(index, _)| !is_name(&text[..index]));
            assert!(!uses || allowed, "{file} uses {vendor}");
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
    assert_eq!((depth("run/lib.rs"), depth("run/plan.rs"), depth("run/sweep/jobs.rs")), (0, 1, 2));
    assert_eq!((depth("sources/sim/mod.rs"), depth("sources/sim/probe.rs")), (1, 2));
    assert_eq!(code("a\n// crate::tui\n#[cfg(test)]\nmod tests {\n    use crate::cli;\n}\n"), "a\n");
}
