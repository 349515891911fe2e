//! `bootstrap` and `dataset` on temporary directories, and the manifests of the repository.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Output,
};

use assert_cmd::Command;
use tempfile::TempDir;

const MODELS: &str = "\
base: { env: [HF_SNAPSHOTS_ROOT, MODELS_ROOT], default: ~/hub }
models:
  - { name: tiny, hub: org/tiny, required: [config.json, '*.safetensors'] }
  - { name: other, path: other, optional: true }
";

const DATASET: &str = "\
base: { env: [DATASETS_ROOT], default: ~/datasets }
path: docs
required: [images/a.png]
archives: [{ file: images.zip, into: images }]
";

/// A project with manifests, and storage next to it.
struct Workspace {
    dir: TempDir,
}

impl Workspace {
    fn new() -> Workspace {
        let dir = tempfile::tempdir().unwrap();
        let workspace = Workspace { dir };
        workspace.write("project/models/bootstrap.yaml", MODELS);
        workspace.write("project/datasets/docs/bootstrap.yaml", DATASET);
        workspace
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The model in the hub's cache layout.
    fn store_model(&self) {
        let folder = "hub/models--org--tiny";
        self.write(&format!("{folder}/refs/main"), &"a".repeat(40));
        self.write(&format!("{folder}/snapshots/{}/config.json", "a".repeat(40)), "{}");
        self.write(&format!("{folder}/blobs/1"), "weights");
        let link = self.path(&format!("{folder}/snapshots/{}/model.safetensors", "a".repeat(40)));
        symlink("../../blobs/1", link).unwrap();
    }

    fn store_dataset(&self, entries: &[(&str, &str)]) {
        fs::create_dir_all(self.path("datasets/docs")).unwrap();
        let file = File::create(self.path("datasets/docs/images.zip")).unwrap();
        let mut zip = zip::ZipWriter::new(file);
        for (name, text) in entries {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::cargo_bin("llmprof-tui").unwrap();
        command.env_clear().env("HOME", self.dir.path()).current_dir(self.path("project"));
        command.args(args).output().unwrap()
    }

    /// Runs the program, checks its exit code, and returns its stdout and stderr.
    fn output(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        format!("{out}{err}")
    }
}

#[test]
fn models_are_linked() {
    let workspace = Workspace::new();
    workspace.store_model();
    let link = workspace.path("project/models/tiny");
    let text = workspace.output(0, &["bootstrap", "models", "--dry-run"]);
    assert!(text.contains("would link") && text.contains("absent"), "{text}");
    assert!(!link.exists(), "a dry run changes nothing");
    assert!(workspace.output(0, &["bootstrap", "models"]).contains("linked        ./models/tiny -> "));
    assert_eq!(fs::read_to_string(link.join("model.safetensors")).unwrap(), "weights");
    assert!(workspace.output(0, &["bootstrap", "models"]).contains("unchanged"));
}

#[test]
fn links_are_replaced_only_with_yes() {
    let workspace = Workspace::new();
    workspace.store_model();
    let link = workspace.path("project/models/tiny");
    symlink("/nowhere", &link).unwrap();
    let text = workspace.output(1, &["bootstrap", "models"]);
    assert!(text.contains("points to /nowhere") && text.contains("--yes"), "{text}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/nowhere"));
    assert!(workspace.output(0, &["bootstrap", "models", "--dry-run"]).contains("would replace"));
    assert!(workspace.output(0, &["bootstrap", "models", "--yes"]).contains("replaced"));
    assert!(link.join("config.json").exists());

    fs::remove_file(&link).unwrap();
    fs::create_dir(&link).unwrap();
    let text = workspace.output(1, &["bootstrap", "models", "--yes"]);
    assert!(text.contains("exists and is not a link"), "{text}");
}

#[test]
fn absent_and_incomplete_models_are_reported() {
    let workspace = Workspace::new();
    let text = workspace.output(1, &["bootstrap", "models"]);
    assert!(text.contains("llmprof-tui fetch org/tiny"), "{text}");
    workspace.output(1, &["bootstrap", "models", "other"]);
    workspace.store_model();
    fs::remove_file(workspace.path("hub/models--org--tiny/blobs/1")).unwrap();
    let text = workspace.output(1, &["bootstrap", "models"]);
    assert!(text.contains("incomplete") && text.contains("lacks *.safetensors"), "{text}");
    assert!(!workspace.path("project/models/tiny").exists());
    let json: serde_json::Value =
        serde_json::from_slice(&workspace.run(&["bootstrap", "models", "--json"]).stdout).unwrap();
    assert_eq!(json["items"][0]["state"], "incomplete");
}

#[test]
fn targets_outside_of_the_base_are_refused() {
    let workspace = Workspace::new();
    workspace.write("elsewhere/config.json", "{}");
    fs::create_dir_all(workspace.path("hub")).unwrap();
    symlink(workspace.path("elsewhere"), workspace.path("hub/tiny")).unwrap();
    let text = workspace.output(1, &["bootstrap", "models", "tiny"]);
    assert!(text.contains("points outside of"), "{text}");
    for path in ["../elsewhere", "/etc", "a/../../b"] {
        let manifest =
            format!("base: {{ env: [], default: ~/hub }}\nmodels: [{{ name: x, path: {path} }}]\n");
        workspace.write("project/models/bootstrap.yaml", &manifest);
        assert!(workspace.output(2, &["bootstrap", "models"]).contains("bad path"), "{path}");
    }
}

#[test]
fn archives_are_extracted_if_needed() {
    let workspace = Workspace::new();
    workspace.store_dataset(&[("a.png", "A"), ("deep/b.png", "B")]);
    let text = workspace.output(0, &["bootstrap", "datasets", "--dry-run"]);
    assert!(text.contains("would extract") && text.contains("would link"), "{text}");
    assert!(!workspace.path("datasets/docs/images").exists());
    assert!(workspace.output(0, &["bootstrap", "datasets"]).contains("extracted"));
    assert_eq!(
        fs::read_to_string(workspace.path("project/datasets/docs/source-data/images/deep/b.png")).unwrap(),
        "B"
    );
    let text = workspace.output(0, &["bootstrap", "datasets"]);
    assert!(text.contains("unchanged") && !text.contains("extracted"), "{text}");
}

#[test]
fn archives_with_paths_outside_are_refused() {
    let workspace = Workspace::new();
    workspace.store_dataset(&[("a.png", "A"), ("../../evil", "x")]);
    for args in [&["bootstrap", "datasets"][..], &["bootstrap", "datasets", "--dry-run"]] {
        let text = workspace.output(1, args);
        assert!(text.contains("images.zip") && text.contains("\"../../evil\""), "{text}");
    }
    assert_eq!(fs::read_dir(workspace.path("datasets/docs")).unwrap().count(), 1);
    assert!(!workspace.path("evil").exists() && !workspace.path("datasets/evil").exists());
    assert!(!workspace.path("project/datasets/docs/source-data").exists());
}

#[test]
fn variables_take_precedence_over_the_default() {
    let workspace = Workspace::new();
    workspace.store_model();
    fs::rename(workspace.path("hub"), workspace.path("storage")).unwrap();
    let mut command = Command::cargo_bin("llmprof-tui").unwrap();
    command.env_clear().env("HOME", workspace.path("none")).env("MODELS_ROOT", workspace.path("storage"));
    command.args(["bootstrap", "models", "--root"]).arg(workspace.path("project")).assert().success();
}

#[test]
fn invalid_manifests_are_reported() {
    let workspace = Workspace::new();
    let text = workspace.output(2, &["bootstrap", "models", "tinny"]);
    assert!(text.contains("unknown model \"tinny\"; did you mean tiny?"), "{text}");
    let table = [
        ("models: [", "bootstrap.yaml, line "),
        ("base: { env: [], default: x }\nmodels:\n- { name: a, pth: b }\n", "line 3, key models[0].pth"),
        ("base: { env: [], default: x }\nmodels:\n- { name: ../a, path: b }\n", "bad model name \"../a\""),
        ("base: { env: [], default: x }\nmodels:\n- { name: a }\n", "neither hub nor path"),
    ];
    for (text, expected) in table {
        workspace.write("project/models/bootstrap.yaml", text);
        let output = workspace.output(2, &["bootstrap", "models"]);
        assert!(output.contains(expected), "{text:?}: {output}");
    }
    fs::remove_file(workspace.path("project/models/bootstrap.yaml")).unwrap();
    assert!(workspace.output(2, &["bootstrap"]).contains("no manifest at ./models/bootstrap.yaml"));
    fs::create_dir(workspace.path("project/models/bootstrap.yaml")).unwrap();
    assert!(workspace.output(1, &["bootstrap"]).contains("it is a directory, not a file"));
}

#[test]
fn a_read_only_directory_is_reported() {
    let workspace = Workspace::new();
    workspace.store_model();
    let models = workspace.path("project/models");
    fs::set_permissions(&models, fs::Permissions::from_mode(0o555)).unwrap();
    // A superuser can write to any directory.
    if File::create(models.join("probe")).is_ok() {
        return;
    }
    let text = workspace.output(1, &["bootstrap", "models"]);
    assert!(text.contains("models/tiny") && text.contains("give this user access"), "{text}");
}

#[test]
fn variants_are_sampled_with_their_provenance() {
    let workspace = Workspace::new();
    let lines: String = (0..50).map(|i| format!("{{\"text\":\"line {i}\"}}\n\n")).collect();
    workspace.write("datasets/docs/a.jsonl", &lines);
    workspace.write("datasets/docs/sub/b.txt", "a whole\ndocument");
    workspace.write("datasets/docs/images/a.png", "A");
    let text = workspace.output(1, &["dataset", "prepare", "docs", "--variant", "s"]);
    assert!(text.contains("llmprof-tui bootstrap datasets docs"), "{text}");
    workspace.output(0, &["bootstrap", "datasets"]);

    let prepare = |variant: &str, extra: &[&str]| {
        let mut args = vec!["dataset", "prepare", "docs", "--variant", variant];
        args.extend(extra);
        workspace.output(0, &args);
        fs::read_to_string(workspace.path(&format!("project/datasets/docs/{variant}/data/samples.jsonl")))
            .unwrap()
    };
    let ten = prepare("subset-10", &["--num-samples", "10", "--seed", "7"]);
    assert_eq!(ten.lines().count(), 10);
    assert_eq!(ten, prepare("again", &["--num-samples", "10", "--seed", "7"]));
    assert_ne!(ten, prepare("else", &["--num-samples", "10", "--seed", "8"]));
    let all = prepare("all", &["--num-samples", "99"]);
    assert_eq!(all.lines().count(), 51);
    assert!(all.contains(r#"{"source":"sub/b.txt","text":"a whole\ndocument"}"#), "{all}");
    workspace.write("list.txt", "# one\nsub/b.txt\n");
    assert_eq!(prepare("one", &["--subset-filelist", "../list.txt"]).lines().count(), 1);

    let metadata =
        fs::read_to_string(workspace.path("project/datasets/docs/subset-10/metadata.yaml")).unwrap();
    assert!(metadata.contains("parent: source-data") && metadata.contains("samples: 10"), "{metadata}");
    assert!(metadata.contains("Random sample of 10 out of 51 examples, seed 7"), "{metadata}");
    let list = workspace.output(0, &["dataset", "list"]);
    assert!(list.contains("docs") && list.contains("subset-10"), "{list}");
    let json: serde_json::Value =
        serde_json::from_slice(&workspace.run(&["dataset", "list", "--json"]).stdout).unwrap();
    assert_eq!(json["datasets"][0]["variants"].as_array().unwrap().len(), 5);

    let again = ["dataset", "prepare", "docs", "--variant", "all"];
    assert!(workspace.output(1, &again).contains("--force"));
    workspace.output(0, &[&again[..], &["--force"]].concat());
}

#[test]
fn invalid_requests_are_reported() {
    let workspace = Workspace::new();
    workspace.write("datasets/docs/a.jsonl", "{\"text\": 1}\nnot json\n");
    workspace.write("datasets/docs/images/a.png", "A");
    workspace.output(0, &["bootstrap", "datasets"]);
    workspace.write("list.txt", "b.jsonl\n");
    for (code, args, expected) in [
        (2, &["doc", "--variant", "s"][..], "did you mean docs?"),
        (2, &["docs", "--variant", "../s"], "bad variant"),
        (2, &["docs", "--variant", "source-data"], "never written to"),
        (2, &["docs", "--variant", "s", "--num-samples", "0"], "0 is not in 1.."),
        (
            2,
            &["docs", "--variant", "s", "--subset-filelist", "../list.txt"],
            "line 1: \"b.jsonl\" is not in the dataset",
        ),
        (1, &["docs", "--variant", "s"], "a.jsonl, line 2: invalid JSON"),
    ] {
        let text = workspace.output(code, &[&["dataset", "prepare"], args].concat());
        assert!(text.contains(expected), "{args:?}: {text}");
    }
    let left: Vec<_> = fs::read_dir(workspace.path("project/datasets/docs")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "no partial directory remains: {left:?}");
}

#[test]
fn every_command_has_examples() {
    let workspace = Workspace::new();
    for command in ["bootstrap", "fetch", "third-party", "dataset"] {
        assert!(workspace.output(0, &[command, "--help"]).contains("Examples:"), "{command}");
    }
}

#[test]
fn the_manifests_of_the_repository_are_valid() {
    let root = env!("CARGO_MANIFEST_DIR");
    let home = tempfile::tempdir().unwrap();
    for args in [&["bootstrap", "--dry-run"][..], &["dataset", "list"], &["third-party", "status"]] {
        let mut command = Command::cargo_bin("llmprof-tui").unwrap();
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home.path());
        command.args(args).args(["--root", root]);
        let output = command.output().unwrap();
        let expected = match args[0] {
            // The checkouts depend on the developer.
            "third-party" => output.status.code() != Some(2),
            _ => output.status.success(),
        };
        assert!(expected, "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
