//! Hostile or corrupt configuration ends with a clear error. An expansion that is not refused early would not end.

use std::fs;
use std::path::Path;

use hydra_config::{ComposeContext, Composition, ConfTree, ConfigError, Override, expand_sweep};
use proptest::prelude::*;

/// The error message of composing `files`.
fn refusal(files: &[(&str, &str)], overrides: &[&str]) -> String {
    let tree = ConfTree::from_files(files.iter().copied());
    outcome(&tree, overrides).expect_err("accepted").to_string()
}

fn outcome(tree: &ConfTree, overrides: &[&str]) -> Result<(), ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
    let composition = Composition::new(tree, &overrides, &ComposeContext::current("app"))?;
    composition.resolved_job()?;
    composition.resolved_hydra("run.dir").map(|_| ())
}

#[test]
fn expanding_files_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..20 {
        let nine = vec![format!("*a{}", n - 1); 9].join(", ");
        bomb += &format!("a{n}: &a{n} [{nine}]\n");
    }
    let nesting = "[".repeat(10 << 20);
    let table = [
        (bomb.as_str(), "the expanded size exceeds the limit"),
        (nesting.as_str(), "the maximum is 65536"),
        (&nesting[..60_000], "bad YAML"),
        ("a: 1\na: 2\n", "duplicate key \"a\""),
        ("a:\n\tb: 1\n", "line 2"),
        ("a: \u{0}\n", "bad YAML"),
    ];
    for (text, expected) in table {
        let message = refusal(&[("config.yaml", text)], &[]);
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("config.yaml"), "{message}");
    }
}

#[test]
fn cyclic_defaults_lists_are_refused() {
    let doubling: Vec<(String, String)> = (0..30)
        .map(|n| (format!("c{n}.yaml"), format!("defaults: [c{}, c{}]\n", n + 1, n + 1)))
        .chain([("config.yaml".into(), "defaults: [c0]\n".into()), ("c30.yaml".into(), "x: 1\n".into())])
        .collect();
    let doubling: Vec<(&str, &str)> =
        doubling.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let table: &[(&[(&str, &str)], &str)] = &[
        (&[("config.yaml", "defaults: [config]\n")], "cycle: config → config"),
        (
            &[
                ("config.yaml", "defaults: [a]\n"),
                ("a.yaml", "defaults: [b]\n"),
                ("b.yaml", "defaults: [a]\n"),
            ],
            "cycle: config → a → b → a",
        ),
        (
            &[("config.yaml", "defaults: [{g: a}, {g: b}]\n"), ("g/a.yaml", ""), ("g/b.yaml", "")],
            "the group \"g\" is already selected",
        ),
        (&doubling, "more than 2000 files"),
    ];
    for (files, expected) in table {
        let message = refusal(files, &[]);
        assert!(message.contains(expected), "{message}");
    }
    let files = [("config.yaml", "defaults: [{g: a}]\n"), ("g/a.yaml", ""), ("g/b.yaml", "")];
    let twice = ["g=a".to_owned(), "g=b".to_owned()];
    let composition =
        Composition::new(&ConfTree::from_files(files), &twice, &ComposeContext::current("app")).unwrap();
    assert_eq!(composition.choices["g"].as_deref(), Some("b"), "the last override wins, as in Hydra");
}

#[test]
fn expanding_references_are_refused() {
    let mut text: String = (0..40).map(|n| format!("a{n}: '${{a{}}}${{a{}}}'\n", n + 1, n + 1)).collect();
    text += "a40: x\n";
    assert!(refusal(&[("config.yaml", &text)], &[]).contains("the expanded size exceeds the limit"));
    let ring = refusal(&[("config.yaml", "a: ${b}\nb: {c: 'x${d}'}\nd: ${b.c}\n")], &[]);
    assert!(ring.contains("interpolation cycle: b.c → d → b.c"), "{ring}");
}

#[test]
fn expanding_overrides_are_refused() {
    let deep = format!("a={}", "[".repeat(8_000));
    let long = format!("a={}", "x".repeat(1 << 20));
    let keys = format!("{}a=1", "a.".repeat(4_000));
    for text in [deep, long, keys] {
        assert!(Override::parse(&text).is_err());
    }
    let tree = ConfTree::from_files([("config.yaml", "a: 1\n")]);
    for text in
        ["a=range(0,1e12)", "a=range(0,1,1e-20)", "a=range(0,99999999999)", "a=range(nan)", "a=range(inf)"]
    {
        assert!(expand_sweep(&tree, &[text.to_owned()]).is_err(), "{text}");
    }
}

/// A small tree of built-in files with those of `dir` over them.
fn over_built_in(dir: &Path) -> ConfTree {
    let files = [
        ("config.yaml", "defaults: [{infer: default}, {model: small}]\n"),
        ("infer/default.yaml", "max_new_tokens: 64\n"),
        ("model/small.yaml", "name: small\n"),
    ];
    ConfTree::from_files(files).with_dir(dir).unwrap()
}

#[test]
fn unreadable_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    fs::create_dir_all(dir.path().join("infer/default.yaml")).unwrap();
    let tree = over_built_in(dir.path());
    let message = outcome(&tree, &[]).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml") && message.contains("directory"), "{message}");

    fs::remove_dir(dir.path().join("infer/default.yaml")).unwrap();
    write("infer/default.yaml", b"max_new_tokens: \xff\n");
    let message = outcome(&tree, &[]).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml") && message.contains("UTF-8"), "{message}");

    write("infer/default.yaml", &vec![b'['; 10 << 20]);
    let message = outcome(&tree, &[]).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml"), "{message}");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("infer/default.yaml");
    fs::create_dir(file.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let tree = over_built_in(dir.path());
    let message = outcome(&tree, &[]).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml: not a regular file"), "{message}");

    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert!(outcome(&tree, &[]).is_err());
}

#[cfg(unix)]
#[test]
fn file_names_that_are_not_utf8_are_ignored() {
    use std::os::unix::ffi::OsStrExt;

    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("model").join(std::ffi::OsStr::from_bytes(b"\xff.yaml"));
    fs::create_dir_all(odd.parent().unwrap()).unwrap();
    fs::write(odd, "name: x\n").unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("model/up")).unwrap();
    let tree = over_built_in(dir.path());
    assert!(tree.options("model").contains(&"small".to_owned()));
    outcome(&tree, &[]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn garbage_ends_in_time(
        primary in r"(defaults: |- |a: |g: |b|\$\{|\}|\[|\]|\n|  |_self_|&x |\*x|<<: |[a-c]|:|override |optional |@|/|\?\?\?|null){0,32}",
        option in r"(# @package |defaults: |- |x: |g: |\$\{|\}|\[|\]|\n|  |[a-c]|_global_|_here_|/g){0,16}",
        given in r"[+~]{0,2}(g|a|a\.b|g/h|g@p|hydra\.run\.dir)=?([\[\]{}':, 0-9a-e$_.\\(]|choice\(|int\(|\$\{){0,12}",
    ) {
        let files = [("config.yaml", primary.as_str()), ("g/a.yaml", &option), ("g/b.yaml", &option), ("g/h/b.yaml", &option)];
        let tree = ConfTree::from_files(files);
        let _ = outcome(&tree, &[&given]);
        let _ = expand_sweep(&tree, std::slice::from_ref(&given));
    }
}
