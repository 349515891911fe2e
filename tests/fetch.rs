//! `fetch` and `third-party` against a hub on loopback and a git repository on disk.

mod test_hub;

use std::{
    fs,
    path::{Path, PathBuf},
    process,
};

use assert_cmd::Command;
use tempfile::TempDir;
use test_hub::{COMMIT, Fault, TestHub, git_blob, sha256};

/// The program in an environment of its own: an empty home, the hub, and nothing of the machine's.
fn llmprof(home: &Path, hub: &TestHub) -> Command {
    let mut command = Command::cargo_bin("llmprof-tui").unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("HOME", home).env("HF_HOME", home.join("hf"));
    command.env("HF_ENDPOINT", &hub.address).current_dir(home);
    command
}

fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn snapshot(home: &Path) -> PathBuf {
    home.join("hf/hub/models--org--tiny/snapshots").join(COMMIT)
}

fn weights() -> Vec<u8> {
    (0..200_000u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect()
}

fn stderr(output: &process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn hub_with(large: Fault) -> TestHub {
    let hub = TestHub::start();
    hub.put("config.json", br#"{"model_type":"llama"}"#, false, Fault::None);
    hub.put("empty.txt", b"", false, Fault::None);
    hub.put("model.safetensors", &weights(), true, large);
    hub.put("pytorch_model.bin", b"the same in another form", true, Fault::None);
    hub
}

/// Fetches once; what failed is told in words.
fn failure(hub: &TestHub, code: i32) -> String {
    let home = home();
    let output = llmprof(home.path(), hub).args(["fetch", "org/tiny"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(!snapshot(home.path()).join("model.safetensors").exists(), "a bad file was kept");
    text
}

#[test]
fn a_model_is_fetched_once() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["commit"], COMMIT);
    let names: Vec<_> =
        told["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["config.json", "empty.txt", "model.safetensors"]);
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
    let blobs = home.path().join("hf/hub/models--org--tiny/blobs");
    assert!(blobs.join(sha256(&weights())).exists(), "large files lie under their SHA-256");
    assert!(stderr(&output).contains("model.safetensors"), "plain lines where there is no terminal");

    let before = hub.requests().len();
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("(3 were there)"));
    assert!(hub.requests()[before..].iter().all(|r| !r.contains("/resolve/")), "nothing is fetched twice");

    let output =
        llmprof(home.path(), &hub).env("HF_HUB_OFFLINE", "1").args(["fetch", "org/tiny"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn blobs_of_other_revisions_are_used() {
    let (home, hub) = (home(), hub_with(Fault::None));
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    fs::remove_dir_all(snapshot(home.path())).unwrap();
    let before = hub.requests().len();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert!(hub.requests()[before..].iter().all(|r| !r.contains("/resolve/")), "nothing is fetched twice");
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_broken_connection_is_continued() {
    let (home, hub) = (home(), hub_with(Fault::BreaksAfter(300_000)));
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny", "-q"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
    let ranges: Vec<_> = hub.requests().into_iter().filter(|r| r.contains("range=")).collect();
    assert!(ranges.iter().any(|r| r.contains("range=bytes=300000-799999")), "{ranges:?}");
    assert_eq!(output.stderr, b"", "-q says nothing");
}

#[test]
fn the_next_command_continues_too() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let blobs = home.path().join("hf/hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let pointer = format!(
        "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 800000\n",
        sha256(&weights())
    );
    let partial = blobs.join(format!("{}.incomplete", git_blob(pointer.as_bytes())));
    fs::write(&partial, &weights()[..700_000]).unwrap();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert!(hub.requests().iter().any(|r| r.contains("range=bytes=700000-799999")));
    assert!(!partial.exists());

    // What was there was not what it should be: it is fetched anew.
    fs::remove_file(blobs.join(sha256(&weights()))).unwrap();
    fs::write(&partial, vec![7; 700_000]).unwrap();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_hub_without_ranges_is_asked_again() {
    let (home, hub) = (home(), hub_with(Fault::KnowsNoRange));
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn wrong_sizes_and_hashes_are_named() {
    for (sent, wanted) in [
        (weights()[..799_000].to_vec(), "it has 799000 bytes, and the hub lists 800000"),
        ([weights(), vec![0]].concat(), "it has 800001 bytes, and the hub lists 800000"),
        (vec![0; 800_000], "another hash than the hub lists"),
    ] {
        let text = failure(&hub_with(Fault::Sends(sent)), 1);
        assert!(text.contains("org/tiny, model.safetensors: ") && text.contains(wanted), "{text}");
    }
}

#[test]
fn refusals_are_named_with_a_remedy() {
    let text = failure(&hub_with(Fault::Status(404)), 1);
    assert!(text.contains("the hub answers 404 for model.safetensors"), "{text}");

    let hub = TestHub::start();
    hub.refuse(401, "Invalid username or password");
    let text = failure(&hub, 1);
    assert!(text.contains("org/tiny: the hub answers 401") && text.contains("set HF_TOKEN"), "{text}");
    hub.refuse(404, "");
    assert!(failure(&hub, 1).contains("no such repository, or no revision \"main\""));
    hub.refuse(200, "<html>a login page</html>");
    assert!(failure(&hub, 1).contains("check that HF_ENDPOINT is a hub"));
}

#[test]
fn an_unreachable_hub_is_named() {
    let home = home();
    let mut command = llmprof(home.path(), &TestHub::start());
    let output = command
        .env("HF_ENDPOINT", "http://user:secret@127.0.0.1:1")
        .args(["fetch", "org/tiny"])
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("http://127.0.0.1:1 cannot be reached") && !text.contains("secret"), "{text}");
}

#[test]
fn a_redirect_is_followed_without_the_token() {
    let (home, cdn) = (home(), hub_with(Fault::None));
    let hub = hub_with(Fault::RedirectsTo(cdn.address.replace("127.0.0.1", "localhost")));
    let output =
        llmprof(home.path(), &hub).env("HF_TOKEN", "hf_secret").args(["fetch", "org/tiny"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(hub.requests().iter().all(|r| r.contains("authorization=Bearer hf_secret")));
    assert!(cdn.requests().iter().any(|r| r.contains("GET /cdn/model.safetensors")));
    assert!(cdn.requests().iter().all(|r| !r.contains("hf_secret")), "the token went elsewhere");
}

#[test]
fn the_token_is_never_shown() {
    let (home, hub) = (home(), TestHub::start());
    for status in [401, 403, 400, 418] {
        hub.refuse(status, r#"{"error":"bad token hf_secret"}"#);
        let mut command = llmprof(home.path(), &hub);
        let output = command
            .env("HF_TOKEN", "hf_secret")
            .env("RUST_LOG", "trace")
            .args(["fetch", "org/tiny"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let all = format!("{}{}", stderr(&output), String::from_utf8_lossy(&output.stdout));
        assert!(!all.contains("hf_secret"), "{all}");
    }
}

#[test]
fn offline_says_so() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let output =
        llmprof(home.path(), &hub).env("HF_HUB_OFFLINE", "1").args(["fetch", "org/tiny"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("HF_HUB_OFFLINE is set") && text.contains("unset HF_HUB_OFFLINE"), "{text}");
    assert!(hub.requests().is_empty());
}

#[test]
fn bad_words_are_usage() {
    let (home, hub) = (home(), hub_with(Fault::None));
    for (args, wanted) in [
        (vec!["fetch", "qwen2_5_0_5"], "did you mean qwen2_5_0_5b"),
        (vec!["fetch", "org/../x"], "bad hub repository"),
        (vec!["fetch", "org/tiny", "--revision", "../../x"], "bad revision"),
        (vec!["third-party", "status"], "no manifest at "),
    ] {
        let output = llmprof(home.path(), &hub).args(&args).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(wanted), "{args:?}: {text}");
    }
}

#[test]
fn names_that_climb_are_refused() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.put("../../../evil.json", b"{}", false, Fault::None);
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("climbs out"), "{}", stderr(&output));
}

#[test]
fn sources_are_pinned_and_watched() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.put("modeling_tiny.py", b"class Tiny: ...\n", false, Fault::None);
    hub.put("sub/ops.py", b"def op(): ...\n", false, Fault::None);
    hub.put("LICENSE", b"MIT\n", false, Fault::None);
    llmprof(home.path(), &hub).args(["fetch", "org/tiny", "--source-only"]).assert().success();
    let dir = home.path().join("third_party/hf/org/tiny");
    assert_eq!(fs::read_to_string(dir.join("sub/ops.py")).unwrap(), "def op(): ...\n");
    assert!(dir.join("LICENSE").exists() && dir.join("config.json").exists());
    assert!(!dir.join("model.safetensors").exists());
    let pins = fs::read_to_string(home.path().join("third_party/third_party.yaml")).unwrap();
    assert!(pins.contains("org/tiny") && pins.contains(COMMIT), "{pins}");

    let status = |code: i32, word: &str| {
        let output = llmprof(home.path(), &hub).args(["third-party", "status"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.starts_with(word), "{text}");
    };
    status(0, "in place");
    let edited = dir.join("modeling_tiny.py");
    assert!(fs::metadata(&edited).unwrap().permissions().readonly());
    fs::remove_file(&edited).unwrap();
    fs::write(&edited, "edited").unwrap();
    status(1, "changed");
    llmprof(home.path(), &hub).args(["third-party", "update"]).assert().success();
    status(0, "in place");
    fs::remove_dir_all(&dir).unwrap();
    status(0, "absent");
}

#[test]
fn git_sources_are_pinned_and_watched() {
    let (home, hub) = (home(), TestHub::start());
    let upstream = home.path().join("upstream");
    let git = |args: &[&str]| {
        let mut command = process::Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-C"]).arg(&upstream).args(args);
        let done = command.output().expect("git is there");
        assert!(done.status.success(), "{args:?}: {}", stderr(&done));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    fs::create_dir_all(upstream.join("src/llama")).unwrap();
    fs::create_dir_all(upstream.join("docs")).unwrap();
    fs::write(upstream.join("src/llama/m.py"), "one").unwrap();
    fs::write(upstream.join("docs/big.md"), "unwanted").unwrap();
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "-A"]);
    git(&["commit", "-qm", "one"]);
    git(&["tag", "v1"]);
    let first = git(&["rev-parse", "HEAD"]);
    fs::write(upstream.join("src/llama/m.py"), "two").unwrap();
    git(&["commit", "-qam", "two"]);
    let second = git(&["rev-parse", "HEAD"]);

    fs::create_dir_all(home.path().join("third_party")).unwrap();
    let manifest = home.path().join("third_party/third_party.yaml");
    let url = format!("file://{}", upstream.display());
    let pin = format!("github:\n- {{ name: up, url: '{url}', revision: v1, paths: [src/llama] }}\n");
    fs::write(&manifest, pin).unwrap();
    let run = |args: &[&str], code: i32| {
        let output = llmprof(home.path(), &hub).arg("third-party").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(run(&["status"], 0).starts_with("absent"));
    assert!(run(&["update", "up", "--dry-run"], 0).contains("sparse-checkout set -- src/llama"));
    assert!(!home.path().join("third_party/github").exists(), "a dry run does nothing");
    assert!(run(&["update"], 0).contains(&first));
    let checkout = home.path().join("third_party/github/up");
    assert_eq!(fs::read_to_string(checkout.join("src/llama/m.py")).unwrap(), "one");
    assert!(!checkout.join("docs").exists(), "only what is wanted of it");
    assert!(fs::read_to_string(&manifest).unwrap().contains(&first));
    assert!(run(&["status"], 0).starts_with("in place"));
    fs::write(checkout.join("src/llama/m.py"), "edited").unwrap();
    assert!(run(&["status", "up"], 1).starts_with("changed"));
    fs::write(checkout.join("src/llama/m.py"), "one").unwrap();
    assert!(run(&["update", "--latest"], 0).contains(&second));
    assert_eq!(fs::read_to_string(checkout.join("src/llama/m.py")).unwrap(), "two");
    run(&["update", "nothing"], 2);
}
