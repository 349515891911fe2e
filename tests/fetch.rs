//! `fetch` and `third-party` with a hub on the loopback interface and a git repository on disk.

mod test_hub;

use std::{
    fs,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

use assert_cmd::Command;
use tempfile::TempDir;
use test_hub::{COMMIT, Fault, TestHub, git_blob, sha256};

/// The program with an empty home directory, this hub, and no other environment.
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

/// The object id of the LFS pointer to the weights.
fn weights_pointer() -> String {
    let sha256 = sha256(&weights());
    git_blob(
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize 800000\n").as_bytes(),
    )
}

fn stderr(output: &process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn hub_with(large: Fault) -> TestHub {
    let hub = TestHub::start();
    hub.put("config.json", br#"{"model_type":"llama"}"#, false, Fault::None);
    hub.put("empty.txt", b"", false, Fault::None);
    hub.put("model.safetensors", &weights(), true, large);
    hub.put("pytorch_model.bin", b"the same weights in another format", true, Fault::None);
    hub
}

/// The error of a fetch that fails.
fn failure(hub: &TestHub, code: i32) -> String {
    let home = home();
    let output = llmprof(home.path(), hub).args(["fetch", "org/tiny"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(!snapshot(home.path()).join("model.safetensors").exists(), "the cache has a bad file");
    text
}

#[test]
fn a_model_is_downloaded_once() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["commit"], COMMIT);
    let names: Vec<_> =
        json["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["config.json", "empty.txt", "model.safetensors"]);
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
    let blobs = home.path().join("hf/hub/models--org--tiny/blobs");
    assert!(blobs.join(sha256(&weights())).exists(), "the name of a large file is its SHA-256");
    assert!(stderr(&output).contains("model.safetensors"), "plain lines without a terminal");

    let before = hub.requests().len();
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("(3 cached)"));
    assert!(hub.requests()[before..].iter().all(|r| !r.contains("/resolve/")), "no file is downloaded twice");

    let output =
        llmprof(home.path(), &hub).env("HF_HUB_OFFLINE", "1").args(["fetch", "org/tiny"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn files_with_the_same_content_are_downloaded_once() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.put("copy.safetensors", &weights(), true, Fault::None);
    hub.put("empty.json", b"", false, Fault::None);
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    for name in ["model.safetensors", "copy.safetensors"] {
        assert_eq!(fs::read(snapshot(home.path()).join(name)).unwrap(), weights());
    }
    assert!(snapshot(home.path()).join("empty.json").exists());
    assert_eq!(hub.requests().iter().filter(|r| r.contains(".safetensors")).count(), 1);
}

#[test]
fn blobs_of_other_revisions_are_reused() {
    let (home, hub) = (home(), hub_with(Fault::None));
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    fs::remove_dir_all(snapshot(home.path())).unwrap();
    let before = hub.requests().len();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert!(hub.requests()[before..].iter().all(|r| !r.contains("/resolve/")), "no file is downloaded twice");
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_broken_download_is_resumed() {
    let (home, hub) = (home(), hub_with(Fault::BreaksAfter(300_000)));
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny", "-q"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
    let ranges: Vec<_> = hub.requests().into_iter().filter(|r| r.contains("range=")).collect();
    assert!(ranges.iter().any(|r| r.contains("range=bytes=300000-799999")), "{ranges:?}");
    assert_eq!(output.stderr, b"", "-q prints nothing");
}

#[test]
fn the_next_command_resumes() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let blobs = home.path().join("hf/hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let partial = blobs.join(format!("{}.incomplete", weights_pointer()));
    fs::write(&partial, &weights()[..700_000]).unwrap();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert!(hub.requests().iter().any(|r| r.contains("range=bytes=700000-799999")));
    assert!(!partial.exists());

    // A partial file with the wrong content is discarded.
    fs::remove_file(blobs.join(sha256(&weights()))).unwrap();
    fs::write(&partial, vec![7; 700_000]).unwrap();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn a_hub_without_ranges_restarts_the_download() {
    let (home, hub) = (home(), hub_with(Fault::IgnoresRanges));
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn wrong_sizes_and_hashes_are_reported() {
    for (sent, expected) in [
        (weights()[..799_000].to_vec(), "it has 799000 bytes, and the hub lists 800000"),
        ([weights(), vec![0]].concat(), "it has 800001 bytes, and the hub lists 800000"),
        (vec![0; 800_000], "its hash differs from the one the hub lists"),
    ] {
        let text = failure(&hub_with(Fault::Sends(sent)), 1);
        assert!(text.contains("org/tiny, model.safetensors: ") && text.contains(expected), "{text}");
    }
}

#[test]
fn a_range_outside_the_file_is_reported() {
    let (home, hub) = (home(), hub_with(Fault::Sends(weights()[..700_000].to_vec())));
    let blobs = home.path().join("hf/hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.incomplete", weights_pointer())), &weights()[..750_000]).unwrap();
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("it has 750000 bytes, and the hub lists 800000"), "{}", stderr(&output));
}

#[test]
fn refusals_are_reported_with_a_remedy() {
    let text = failure(&hub_with(Fault::Status(404)), 1);
    assert!(text.contains("the hub answers 404 for model.safetensors"), "{text}");
    for (status, expected) in [(429, "429: too many requests; wait"), (503, "503 Service Unavailable; run")] {
        let hub = hub_with(Fault::Status(status));
        let text = failure(&hub, 1);
        assert!(text.contains(&format!("model.safetensors: the hub answers {expected}")), "{text}");
        let attempts = hub.requests().iter().filter(|r| r.contains("/model.safetensors")).count();
        assert_eq!(attempts, 4, "transient errors are retried");
    }

    let hub = TestHub::start();
    hub.refuse(401, "Invalid username or password");
    let text = failure(&hub, 1);
    assert!(text.contains("org/tiny: the hub answers 401") && text.contains("set HF_TOKEN"), "{text}");
    hub.refuse(403, "");
    assert!(failure(&hub, 1).contains("org/tiny: the hub answers 403"));
    hub.refuse(404, "");
    assert!(failure(&hub, 1).contains("no such repository, or no revision \"main\""));
    hub.refuse(200, "<html>a login page</html>");
    assert!(failure(&hub, 1).contains("check that HF_ENDPOINT is the address of a hub"));
}

#[test]
fn an_unreachable_hub_is_reported() {
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
fn a_redirect_to_another_server_has_no_token() {
    for host in ["127.0.0.1", "localhost"] {
        let (home, cdn) = (home(), hub_with(Fault::None));
        let hub = hub_with(Fault::RedirectsTo(cdn.address.replace("127.0.0.1", host)));
        let mut command = llmprof(home.path(), &hub);
        let output = command.env("HF_TOKEN", "hf_secret").args(["fetch", "org/tiny"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(hub.requests().iter().all(|r| r.contains("authorization=Bearer hf_secret")));
        assert!(cdn.requests().iter().any(|r| r.contains("GET /cdn/model.safetensors")));
        assert!(
            cdn.requests().iter().all(|r| !r.contains("hf_secret")),
            "the token was sent to another server"
        );
    }
}

#[test]
fn a_redirect_within_the_hub_keeps_the_token() {
    let (home, hub) = (home(), hub_with(Fault::RedirectsTo(String::new())));
    fs::create_dir_all(home.path().join("hf")).unwrap();
    fs::write(home.path().join("hf/token"), "hf_from_file\n").unwrap();
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert!(hub.requests().iter().any(|r| r.contains("GET /cdn/model.safetensors")));
    assert!(hub.requests().iter().all(|r| r.contains("authorization=Bearer hf_from_file")));
}

#[test]
fn the_cache_directory_can_be_selected() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let mut command = llmprof(home.path(), &hub);
    command.env("HF_HUB_CACHE", home.path().join("cache")).args(["fetch", "org/tiny"]).assert().success();
    assert!(home.path().join("cache/models--org--tiny/snapshots").join(COMMIT).exists());
    assert!(!home.path().join("hf").exists());
}

#[test]
fn a_listing_in_pages_is_complete() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.put("chat template.jinja", b"{{ x }}", false, Fault::None);
    hub.list_in_pages(2);
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    let mut names: Vec<_> =
        fs::read_dir(snapshot(home.path())).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["chat template.jinja", "config.json", "empty.txt", "model.safetensors"]);
    assert_eq!(hub.requests().iter().filter(|r| r.contains("/tree/")).count(), 3);
}

/// Waits until `condition` holds.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_interrupted_fetch_is_resumed() {
    let (home, hub) = (home(), hub_with(Fault::StallsAfter(300_000)));
    let second = [weights(), vec![1]].concat();
    hub.put("second.safetensors", &second, true, Fault::StallsAfter(200_000));
    let fetch = || {
        let mut command = process::Command::new(assert_cmd::cargo::cargo_bin("llmprof-tui"));
        command.env_clear().env("HF_HOME", home.path().join("hf")).env("HF_ENDPOINT", &hub.address);
        command.args(["fetch", "org/tiny"]).current_dir(home.path());
        command.stdout(process::Stdio::null()).stderr(process::Stdio::piped());
        command.spawn().unwrap()
    };
    let partial_sizes = || {
        let entries = fs::read_dir(home.path().join("hf/hub/models--org--tiny/blobs"));
        let mut sizes: Vec<u64> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "incomplete"))
            .map(|entry| entry.metadata().map_or(0, |m| m.len()))
            .collect();
        sizes.sort();
        sizes
    };
    let mut first = fetch();
    wait_until("both files are downloaded at the same time", || partial_sizes() == [200_000, 300_000]);

    let refused = fetch().wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("another process is downloading this file"), "{}", stderr(&refused));

    let pid = rustix::process::Pid::from_child(&first);
    // Not SIGINT, which is ignored where the tests run in the background of a shell.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_until("a signal ends the fetch", || first.try_wait().unwrap().is_some());
    assert_eq!(partial_sizes(), [200_000, 300_000], "the partial files stay");

    hub.put("model.safetensors", &weights(), true, Fault::None);
    hub.put("second.safetensors", &second, true, Fault::None);
    llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).assert().success();
    assert!(hub.requests().iter().any(|r| r.contains("range=bytes=300000-799999")));
    assert!(hub.requests().iter().any(|r| r.contains("range=bytes=200000-800000")));
    assert_eq!(fs::read(snapshot(home.path()).join("model.safetensors")).unwrap(), weights());
}

#[test]
fn an_error_cancels_the_other_downloads() {
    let (home, hub) = (home(), hub_with(Fault::Status(403)));
    hub.put("slow.safetensors", &[weights(), vec![1]].concat(), true, Fault::BreaksAfter(1000));
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("org/tiny, model.safetensors: the hub answers 403"), "{text}");
}

#[test]
fn the_token_is_never_printed() {
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
fn offline_is_reported() {
    let (home, hub) = (home(), hub_with(Fault::None));
    let output =
        llmprof(home.path(), &hub).env("HF_HUB_OFFLINE", "1").args(["fetch", "org/tiny"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("HF_HUB_OFFLINE is set") && text.contains("unset HF_HUB_OFFLINE"), "{text}");
    assert!(hub.requests().is_empty());
}

#[test]
fn bad_arguments_are_usage_errors() {
    let (home, hub) = (home(), hub_with(Fault::None));
    for (args, expected) in [
        (vec!["fetch", "qwen2_5_0_5"], "did you mean qwen2_5_0_5b"),
        (vec!["fetch", "org/../x"], "bad hub repository"),
        (vec!["fetch", "org/tiny", "--revision", "../../x"], "bad revision"),
        (vec!["third-party", "status"], "no manifest at "),
    ] {
        let output = llmprof(home.path(), &hub).args(&args).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn file_names_outside_the_repository_are_refused() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.put("../../../evil.json", b"{}", false, Fault::None);
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("contains \"..\""), "{}", stderr(&output));
}

#[test]
fn sources_are_pinned_and_edits_detected() {
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
fn git_sources_are_pinned_and_edits_detected() {
    let (home, hub) = (home(), TestHub::start());
    let upstream = home.path().join("upstream");
    let git = |args: &[&str]| {
        let mut command = process::Command::new("git");
        command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-C"]).arg(&upstream).args(args);
        let output = command.output().expect("git is installed");
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
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
    assert!(!home.path().join("third_party/github").exists(), "a dry run changes nothing");
    assert!(run(&["update"], 0).contains(&first));
    let checkout = home.path().join("third_party/github/up");
    assert_eq!(fs::read_to_string(checkout.join("src/llama/m.py")).unwrap(), "one");
    assert!(!checkout.join("docs").exists(), "only the selected paths");
    assert!(fs::read_to_string(&manifest).unwrap().contains(&first));
    assert!(run(&["status"], 0).starts_with("in place"));
    fs::write(checkout.join("src/llama/m.py"), "edited").unwrap();
    assert!(run(&["status", "up"], 1).starts_with("changed"));
    fs::write(checkout.join("src/llama/m.py"), "one").unwrap();
    assert!(run(&["update", "--latest"], 0).contains(&second));
    assert_eq!(fs::read_to_string(checkout.join("src/llama/m.py")).unwrap(), "two");
    run(&["update", "nothing"], 2);
}
