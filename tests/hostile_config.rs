//! Configuration that means harm, or was left by an accident: a clear error, and soon.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use llmprof::config::{Composition, ConfTree, ConfigError, Override, Surroundings, compose, expand_sweep};
use proptest::prelude::*;

const SOON: Duration = Duration::from_secs(1);

/// The error of composing `files` and its words; it must come soon.
fn refusal(files: &[(&str, &str)], overrides: &[&str]) -> String {
    let tree = ConfTree::of_files(files.iter().copied());
    soon(|| outcome(&tree, overrides)).expect_err("it was accepted").to_string()
}

fn outcome(tree: &ConfTree, overrides: &[&str]) -> Result<(), ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|text| text.to_string()).collect();
    let composition = Composition::new(tree, &overrides, &Surroundings::here())?;
    composition.resolved_job()?;
    composition.resolved_hydra("run.dir").map(|_| ())
}

fn soon<T>(work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    done
}

#[test]
fn files_that_grow() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for n in 1..20 {
        let nine = vec![format!("*a{}", n - 1); 9].join(", ");
        bomb += &format!("a{n}: &a{n} [{nine}]\n");
    }
    let nesting = "[".repeat(10 << 20);
    let table = [
        (bomb.as_str(), "far more than a configuration holds"),
        (nesting.as_str(), "at most 65536 are read"),
        (&nesting[..60_000], "bad YAML"),
        ("a: 1\na: 2\n", "stands here twice"),
        ("a:\n\tb: 1\n", "line 2"),
        ("a: \u{0}\n", "bad YAML"),
    ];
    for (text, wanted) in table {
        let message = refusal(&[("config.yaml", text)], &[]);
        assert!(message.contains(wanted), "{message}");
        assert!(message.contains("config.yaml"), "{message}");
    }
}

#[test]
fn lists_that_name_each_other() {
    let doubling: Vec<(String, String)> = (0..30)
        .map(|n| (format!("c{n}.yaml"), format!("defaults: [c{}, c{}]\n", n + 1, n + 1)))
        .chain([("config.yaml".into(), "defaults: [c0]\n".into()), ("c30.yaml".into(), "x: 1\n".into())])
        .collect();
    let doubling: Vec<(&str, &str)> =
        doubling.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let table: &[(&[(&str, &str)], &str)] = &[
        (&[("config.yaml", "defaults: [config]\n")], "config → config names itself"),
        (
            &[
                ("config.yaml", "defaults: [a]\n"),
                ("a.yaml", "defaults: [b]\n"),
                ("b.yaml", "defaults: [a]\n"),
            ],
            "config → a → b → a names itself",
        ),
        (
            &[("config.yaml", "defaults: [{g: a}, {g: b}]\n"), ("g/a.yaml", ""), ("g/b.yaml", "")],
            "the group \"g\" is chosen already",
        ),
        (&doubling, "more than 2000 files"),
    ];
    for (files, wanted) in table {
        let message = refusal(files, &[]);
        assert!(message.contains(wanted), "{message}");
    }
    let files = [("config.yaml", "defaults: [{g: a}]\n"), ("g/a.yaml", ""), ("g/b.yaml", "")];
    let twice = ["g=a".to_owned(), "g=b".to_owned()];
    let composition = Composition::new(&ConfTree::of_files(files), &twice, &Surroundings::here()).unwrap();
    assert_eq!(composition.choices["g"].as_deref(), Some("b"), "the last word counts, as in Hydra");
}

#[test]
fn references_that_grow() {
    let mut text: String = (0..40).map(|n| format!("a{n}: '${{a{}}}${{a{}}}'\n", n + 1, n + 1)).collect();
    text += "a40: x\n";
    assert!(refusal(&[("config.yaml", &text)], &[]).contains("far more than a configuration holds"));
    let ring = refusal(&[("config.yaml", "a: ${b}\nb: {c: 'x${d}'}\nd: ${b.c}\n")], &[]);
    assert!(ring.contains("interpolation cycle: b.c → d → b.c"), "{ring}");
}

#[test]
fn overrides_that_grow() {
    let deep = format!("a={}", "[".repeat(8_000));
    let long = format!("a={}", "x".repeat(1 << 20));
    let keys = format!("{}a=1", "a.".repeat(4_000));
    for text in [deep, long, keys] {
        assert!(soon(|| Override::parse(&text)).is_err());
    }
    let tree = ConfTree::of_files([("config.yaml", "a: 1\n")]);
    for text in
        ["a=range(0,1e12)", "a=range(0,1,1e-20)", "a=range(0,99999999999)", "a=range(nan)", "a=range(inf)"]
    {
        assert!(soon(|| expand_sweep(&tree, &[text.to_owned()])).is_err(), "{text}");
    }
}

#[test]
fn numbers_that_are_none() {
    for text in ["runtime.sim.itl_ms=nan", "runtime.sim.speed=inf", "runtime.seed=1e400"] {
        let error = compose(&ConfTree::built_in(), &[text.to_owned()]).unwrap_err().to_string();
        assert!(error.contains(text.split('=').next().unwrap()), "{error}");
    }
}

#[test]
fn things_that_are_not_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    fs::create_dir_all(dir.path().join("infer/default.yaml")).unwrap();
    let tree = ConfTree::over_built_in(dir.path()).unwrap();
    let message = soon(|| outcome(&tree, &[])).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml") && message.contains("directory"), "{message}");

    fs::remove_dir(dir.path().join("infer/default.yaml")).unwrap();
    write("infer/default.yaml", b"max_new_tokens: \xff\n");
    let message = soon(|| outcome(&tree, &[])).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml") && message.contains("UTF-8"), "{message}");

    write("infer/default.yaml", &vec![b'['; 10 << 20]);
    let message = soon(|| outcome(&tree, &[])).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml"), "{message}");
}

#[cfg(unix)]
#[test]
fn pipes_and_devices() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("infer/default.yaml");
    fs::create_dir(file.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let tree = ConfTree::over_built_in(dir.path()).unwrap();
    let message = soon(|| outcome(&tree, &[])).unwrap_err().to_string();
    assert!(message.contains("infer/default.yaml: it is no regular file"), "{message}");

    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    assert!(soon(|| outcome(&tree, &[])).is_err());
}

#[cfg(unix)]
#[test]
fn names_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;

    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("model").join(std::ffi::OsStr::from_bytes(b"\xff.yaml"));
    fs::create_dir_all(odd.parent().unwrap()).unwrap();
    fs::write(odd, "name: x\n").unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("model/up")).unwrap();
    let tree = ConfTree::over_built_in(dir.path()).unwrap();
    assert!(soon(|| tree.options("model")).contains(&"mistral_7b".to_owned()));
    soon(|| outcome(&tree, &[])).unwrap();
    assert!(soon(|| ConfTree::find(None, Path::new("/nowhere"))).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn garbage_ends_soon(
        primary in r"(defaults: |- |a: |g: |b|\$\{|\}|\[|\]|\n|  |_self_|&x |\*x|<<: |[a-c]|:|override |optional |@|/|\?\?\?|null){0,32}",
        option in r"(# @package |defaults: |- |x: |g: |\$\{|\}|\[|\]|\n|  |[a-c]|_global_|_here_|/g){0,16}",
        given in r"[+~]{0,2}(g|a|a\.b|g/h|g@p|hydra\.run\.dir)=?([\[\]{}':, 0-9a-e$_.\\(]|choice\(|int\(|\$\{){0,12}",
    ) {
        let files = [("config.yaml", primary.as_str()), ("g/a.yaml", &option), ("g/b.yaml", &option), ("g/h/b.yaml", &option)];
        let tree = ConfTree::of_files(files);
        let _ = soon(|| outcome(&tree, &[&given]));
        let _ = soon(|| expand_sweep(&tree, std::slice::from_ref(&given)));
    }
}
