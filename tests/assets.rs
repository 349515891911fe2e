//! `bootstrap` and `dataset` on directories the tests make, and the manifests that come with the project.

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

/// A project with manifests, and storage beside it.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { dir };
        place.write("project/models/bootstrap.yaml", MODELS);
        place.write("project/datasets/docs/bootstrap.yaml", DATASET);
        place
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

    /// Runs; gives what was said on stdout, or on stderr where the exit code is 2.
    fn says(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        format!("{out}{err}")
    }
}

#[test]
fn models_are_linked_once() {
    let place = Place::new();
    place.store_model();
    let link = place.path("project/models/tiny");
    let text = place.says(0, &["bootstrap", "models", "--dry-run"]);
    assert!(text.contains("would link") && text.contains("absent"), "{text}");
    assert!(!link.exists(), "a dry run does nothing");
    assert!(place.says(0, &["bootstrap", "models"]).contains("linked        ./models/tiny -> "));
    assert_eq!(fs::read_to_string(link.join("model.safetensors")).unwrap(), "weights");
    assert!(place.says(0, &["bootstrap", "models"]).contains("unchanged"));
}

#[test]
fn a_link_is_replaced_only_when_told() {
    let place = Place::new();
    place.store_model();
    let link = place.path("project/models/tiny");
    symlink("/nowhere", &link).unwrap();
    let text = place.says(1, &["bootstrap", "models"]);
    assert!(text.contains("points to /nowhere") && text.contains("--yes"), "{text}");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("/nowhere"));
    assert!(place.says(0, &["bootstrap", "models", "--dry-run"]).contains("would replace"));
    assert!(place.says(0, &["bootstrap", "models", "--yes"]).contains("replaced"));
    assert!(link.join("config.json").exists());

    fs::remove_file(&link).unwrap();
    fs::create_dir(&link).unwrap();
    let text = place.says(1, &["bootstrap", "models", "--yes"]);
    assert!(text.contains("is there and is no link"), "{text}");
}

#[test]
fn what_is_absent_or_incomplete_is_named() {
    let place = Place::new();
    let text = place.says(1, &["bootstrap", "models"]);
    assert!(text.contains("llmprof-tui fetch org/tiny"), "{text}");
    place.says(1, &["bootstrap", "models", "other"]);
    place.store_model();
    fs::remove_file(place.path("hub/models--org--tiny/blobs/1")).unwrap();
    let text = place.says(1, &["bootstrap", "models"]);
    assert!(text.contains("incomplete") && text.contains("lacks *.safetensors"), "{text}");
    assert!(!place.path("project/models/tiny").exists());
    let told: serde_json::Value =
        serde_json::from_slice(&place.run(&["bootstrap", "models", "--json"]).stdout).unwrap();
    assert_eq!(told["items"][0]["state"], "incomplete");
}

#[test]
fn nothing_leads_out_of_the_base() {
    let place = Place::new();
    place.write("elsewhere/config.json", "{}");
    fs::create_dir_all(place.path("hub")).unwrap();
    symlink(place.path("elsewhere"), place.path("hub/tiny")).unwrap();
    let text = place.says(1, &["bootstrap", "models", "tiny"]);
    assert!(text.contains("leads out of"), "{text}");
    for path in ["../elsewhere", "/etc", "a/../../b"] {
        let manifest =
            format!("base: {{ env: [], default: ~/hub }}\nmodels: [{{ name: x, path: {path} }}]\n");
        place.write("project/models/bootstrap.yaml", &manifest);
        assert!(place.says(2, &["bootstrap", "models"]).contains("bad path"), "{path}");
    }
}

#[test]
fn archives_are_extracted_once() {
    let place = Place::new();
    place.store_dataset(&[("a.png", "A"), ("deep/b.png", "B")]);
    let text = place.says(0, &["bootstrap", "datasets", "--dry-run"]);
    assert!(text.contains("would extract") && text.contains("would link"), "{text}");
    assert!(!place.path("datasets/docs/images").exists());
    assert!(place.says(0, &["bootstrap", "datasets"]).contains("extracted"));
    assert_eq!(
        fs::read_to_string(place.path("project/datasets/docs/source-data/images/deep/b.png")).unwrap(),
        "B"
    );
    let text = place.says(0, &["bootstrap", "datasets"]);
    assert!(text.contains("unchanged") && !text.contains("extracted"), "{text}");
}

#[test]
fn an_archive_that_climbs_is_refused() {
    let place = Place::new();
    place.store_dataset(&[("a.png", "A"), ("../../evil", "x")]);
    for args in [&["bootstrap", "datasets"][..], &["bootstrap", "datasets", "--dry-run"]] {
        let text = place.says(1, args);
        assert!(text.contains("images.zip") && text.contains("\"../../evil\""), "{text}");
    }
    assert_eq!(fs::read_dir(place.path("datasets/docs")).unwrap().count(), 1);
    assert!(!place.path("evil").exists() && !place.path("datasets/evil").exists());
    assert!(!place.path("project/datasets/docs/source-data").exists());
}

#[test]
fn variables_come_before_the_default() {
    let place = Place::new();
    place.store_model();
    fs::rename(place.path("hub"), place.path("storage")).unwrap();
    let mut command = Command::cargo_bin("llmprof-tui").unwrap();
    command.env_clear().env("HOME", place.path("none")).env("MODELS_ROOT", place.path("storage"));
    command.args(["bootstrap", "models", "--root"]).arg(place.path("project")).assert().success();
}

#[test]
fn bad_manifests_are_named() {
    let place = Place::new();
    let text = place.says(2, &["bootstrap", "models", "tinny"]);
    assert!(text.contains("unknown model \"tinny\"; did you mean tiny?"), "{text}");
    let table = [
        ("models: [", "bootstrap.yaml, line "),
        ("base: { env: [], default: x }\nmodels:\n- { name: a, pth: b }\n", "line 3, key models[0].pth"),
        ("base: { env: [], default: x }\nmodels:\n- { name: ../a, path: b }\n", "bad model name \"../a\""),
        ("base: { env: [], default: x }\nmodels:\n- { name: a }\n", "neither hub nor path"),
    ];
    for (text, wanted) in table {
        place.write("project/models/bootstrap.yaml", text);
        let told = place.says(2, &["bootstrap", "models"]);
        assert!(told.contains(wanted), "{text:?}: {told}");
    }
    fs::remove_file(place.path("project/models/bootstrap.yaml")).unwrap();
    assert!(place.says(2, &["bootstrap"]).contains("no manifest at ./models/bootstrap.yaml"));
    fs::create_dir(place.path("project/models/bootstrap.yaml")).unwrap();
    assert!(place.says(1, &["bootstrap"]).contains("this is a directory"));
}

#[test]
fn a_directory_that_may_not_be_written_is_named() {
    let place = Place::new();
    place.store_model();
    let models = place.path("project/models");
    fs::set_permissions(&models, fs::Permissions::from_mode(0o555)).unwrap();
    // Whoever may write everywhere cannot see this fail.
    if File::create(models.join("probe")).is_ok() {
        return;
    }
    let text = place.says(1, &["bootstrap", "models"]);
    assert!(text.contains("models/tiny") && text.contains("allow this user to write there"), "{text}");
}

#[test]
fn variants_are_sampled_and_tell_their_origin() {
    let place = Place::new();
    let lines: String = (0..50).map(|i| format!("{{\"text\":\"line {i}\"}}\n\n")).collect();
    place.write("datasets/docs/a.jsonl", &lines);
    place.write("datasets/docs/sub/b.txt", "a whole\ndocument");
    place.write("datasets/docs/images/a.png", "A");
    let text = place.says(1, &["dataset", "prepare", "docs", "--variant", "s"]);
    assert!(text.contains("llmprof-tui bootstrap datasets docs"), "{text}");
    place.says(0, &["bootstrap", "datasets"]);

    let prepare = |variant: &str, extra: &[&str]| {
        let mut args = vec!["dataset", "prepare", "docs", "--variant", variant];
        args.extend(extra);
        place.says(0, &args);
        fs::read_to_string(place.path(&format!("project/datasets/docs/{variant}/data/samples.jsonl")))
            .unwrap()
    };
    let ten = prepare("subset-10", &["--num-samples", "10", "--seed", "7"]);
    assert_eq!(ten.lines().count(), 10);
    assert_eq!(ten, prepare("again", &["--num-samples", "10", "--seed", "7"]));
    assert_ne!(ten, prepare("else", &["--num-samples", "10", "--seed", "8"]));
    let all = prepare("all", &["--num-samples", "99"]);
    assert_eq!(all.lines().count(), 51);
    assert!(all.contains(r#"{"source":"sub/b.txt","text":"a whole\ndocument"}"#), "{all}");
    place.write("list.txt", "# one\nsub/b.txt\n");
    assert_eq!(prepare("one", &["--subset-filelist", "../list.txt"]).lines().count(), 1);

    let metadata = fs::read_to_string(place.path("project/datasets/docs/subset-10/metadata.yaml")).unwrap();
    assert!(metadata.contains("parent: source-data") && metadata.contains("samples: 10"), "{metadata}");
    assert!(metadata.contains("Random sample of 10 out of 51 examples, seed 7"), "{metadata}");
    let list = place.says(0, &["dataset", "list"]);
    assert!(list.contains("docs") && list.contains("subset-10"), "{list}");
    let told: serde_json::Value =
        serde_json::from_slice(&place.run(&["dataset", "list", "--json"]).stdout).unwrap();
    assert_eq!(told["datasets"][0]["variants"].as_array().unwrap().len(), 5);

    let again = ["dataset", "prepare", "docs", "--variant", "all"];
    assert!(place.says(1, &again).contains("--force"));
    place.says(0, &[&again[..], &["--force"]].concat());
}

#[test]
fn bad_wishes_are_named() {
    let place = Place::new();
    place.write("datasets/docs/a.jsonl", "{\"text\": 1}\nnot json\n");
    place.write("datasets/docs/images/a.png", "A");
    place.says(0, &["bootstrap", "datasets"]);
    place.write("list.txt", "b.jsonl\n");
    for (code, args, wanted) in [
        (2, &["doc", "--variant", "s"][..], "did you mean docs?"),
        (2, &["docs", "--variant", "../s"], "bad variant"),
        (2, &["docs", "--variant", "source-data"], "never written to"),
        (2, &["docs", "--variant", "s", "--num-samples", "0"], "0 is not in 1.."),
        (
            2,
            &["docs", "--variant", "s", "--subset-filelist", "../list.txt"],
            "line 1: \"b.jsonl\" is not in the dataset",
        ),
        (1, &["docs", "--variant", "s"], "a.jsonl, line 2: no JSON"),
    ] {
        let text = place.says(code, &[&["dataset", "prepare"], args].concat());
        assert!(text.contains(wanted), "{args:?}: {text}");
    }
    let left: Vec<_> = fs::read_dir(place.path("project/datasets/docs")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "nothing half made stays behind: {left:?}");
}

#[test]
fn every_command_has_examples() {
    let place = Place::new();
    for command in ["bootstrap", "fetch", "third-party", "dataset"] {
        assert!(place.says(0, &[command, "--help"]).contains("Examples:"), "{command}");
    }
}

#[test]
fn the_project_s_own_manifests_are_good() {
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
        let ends_well = match args[0] {
            // What is checked out here is the developer's own.
            "third-party" => output.status.code() != Some(2),
            _ => output.status.success(),
        };
        assert!(ends_well, "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
