//! `fetch` and `third-party` with a hub on the loopback interface and a git repository on disk.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process,
};

use crate::test_hub::{COMMIT, Fault, TestHub, git_blob, sha256};
use assert_cmd::Command;
use tempfile::TempDir;

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
fn sources_with_the_same_content_are_downloaded_once() {
    let (home, hub) = (home(), hub_with(Fault::None));
    for name in ["a/__init__.py", "b/__init__.py", "ops.py", "same.py"] {
        let content: &[u8] = if name.contains("init") { b"" } else { b"def op(): ...\n" };
        hub.put(name, content, false, Fault::None);
    }
    llmprof(home.path(), &hub).args(["fetch", "org/tiny", "--source-only"]).assert().success();
    let dir = home.path().join("third_party/hf/org/tiny");
    for name in ["ops.py", "same.py"] {
        assert_eq!(fs::read_to_string(dir.join(name)).unwrap(), "def op(): ...\n");
        assert!(fs::metadata(dir.join(name)).unwrap().permissions().readonly());
    }
    assert!(dir.join("a/__init__.py").exists() && dir.join("b/__init__.py").exists());
    let downloads = hub.requests().iter().filter(|r| r.contains("/ops.py") || r.contains("/same.py")).count();
    assert_eq!(downloads, 1);
    assert!(llmprof(home.path(), &hub).args(["third-party", "status"]).output().unwrap().status.success());
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

#[test]
fn the_next_page_is_requested_only_from_the_hub() {
    let (home, hub, other) = (home(), hub_with(Fault::None), TestHub::start());
    hub.list_in_pages(2);
    hub.continue_listings_at(&other.address);
    let mut command = llmprof(home.path(), &hub);
    let output = command.env("HF_TOKEN", "hf_secret").args(["fetch", "org/tiny"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(hub.requests().iter().filter(|r| r.contains("/tree/")).count(), 2);
    assert_eq!(other.requests(), Vec::<String>::new(), "a page was requested from another server");
}

#[test]
fn an_endless_listing_is_refused() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.list_in_pages(0);
    let output = llmprof(home.path(), &hub).args(["fetch", "org/tiny"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the list of its files does not end (page 1)"), "{}", stderr(&output));
}

/// Waits until `condition` holds.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    crate::common::eventually(what, || condition().then_some(()));
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
    // Not SIGINT, which is ignored if the tests run in the background of a shell.
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

/// A git repository with two commits, the first tagged v1.
struct Upstream {
    url: String,
    commits: [String; 2],
}

impl Upstream {
    fn new(dir: &Path) -> Upstream {
        let git = |args: &[&str]| {
            let mut command = process::Command::new("git");
            command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-C"]).arg(dir).args(args);
            let output = command.output().expect("git is installed");
            assert!(output.status.success(), "{args:?}: {}", stderr(&output));
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        fs::create_dir_all(dir.join("src/llama")).unwrap();
        fs::create_dir_all(dir.join("docs")).unwrap();
        fs::write(dir.join("src/llama/m.py"), "one").unwrap();
        fs::write(dir.join("docs/big.md"), "unwanted").unwrap();
        git(&["init", "-q", "-b", "main"]);
        git(&["add", "-A"]);
        git(&["commit", "-qm", "one"]);
        git(&["tag", "v1"]);
        let first = git(&["rev-parse", "HEAD"]);
        fs::write(dir.join("src/llama/m.py"), "two").unwrap();
        git(&["commit", "-qam", "two"]);
        let second = git(&["rev-parse", "HEAD"]);
        Upstream { url: format!("file://{}", dir.display()), commits: [first, second] }
    }
}

/// A project with a pin of a git repository on disk.
struct PinnedProject {
    home: TempDir,
    hub: TestHub,
    upstream: Upstream,
}

impl PinnedProject {
    fn new() -> PinnedProject {
        let (home, hub) = (home(), TestHub::start());
        let upstream = Upstream::new(&home.path().join("upstream"));
        let project = PinnedProject { home, hub, upstream };
        project.pin("revision: v1, paths: [src/llama]");
        project
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    fn manifest(&self) -> PathBuf {
        self.path("third_party/third_party.yaml")
    }

    fn checkout(&self) -> PathBuf {
        self.path("third_party/github/up")
    }

    /// Pins the repository with these settings.
    fn pin(&self, settings: &str) {
        fs::create_dir_all(self.path("third_party")).unwrap();
        let url =
            if settings.contains("url:") { String::new() } else { format!("url: '{}', ", self.upstream.url) };
        fs::write(self.manifest(), format!("github:\n- {{ name: up, {url}{settings} }}\n")).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = llmprof(self.home.path(), &self.hub);
        command.arg("third-party").args(args);
        command
    }

    /// Its stdout and stderr.
    #[track_caller]
    fn run(&self, args: &[&str], code: i32) -> String {
        let output = self.command(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output)
    }

    /// A program that leaves a file when it is started.
    fn trap(&self) -> PathBuf {
        let path = self.path("trap.sh");
        crate::common::script(&path, &format!("touch {}\nexit 1", self.path("mark").display()));
        path
    }

    #[track_caller]
    fn assert_nothing_was_started(&self) {
        assert!(!self.path("mark").exists(), "a foreign program was started");
    }
}

#[test]
fn git_sources_are_pinned_and_edits_detected() {
    let project = PinnedProject::new();
    let [first, second] = &project.upstream.commits;
    let checkout = project.checkout();
    let run = |args: &[&str], code: i32| project.run(args, code);
    assert!(run(&["status"], 0).starts_with("absent"));
    assert!(run(&["update", "up", "--dry-run"], 0).contains("sparse-checkout set -- src/llama"));
    assert!(!project.path("third_party/github").exists(), "a dry run changes nothing");
    assert!(run(&["update"], 0).contains(first));
    assert_eq!(fs::read_to_string(checkout.join("src/llama/m.py")).unwrap(), "one");
    assert!(!checkout.join("docs").exists(), "only the selected paths");
    assert!(fs::read_to_string(project.manifest()).unwrap().contains(first));
    assert!(run(&["status"], 0).starts_with("in place"));
    fs::write(checkout.join("src/llama/m.py"), "edited").unwrap();
    assert!(run(&["status", "up"], 1).starts_with("changed"));
    fs::write(checkout.join("src/llama/m.py"), "one").unwrap();
    assert!(run(&["update", "--latest"], 0).contains(second));
    assert_eq!(fs::read_to_string(checkout.join("src/llama/m.py")).unwrap(), "two");
    run(&["update", "nothing"], 2);
}

#[test]
fn pins_name_no_options_and_no_programs() {
    let project = PinnedProject::new();
    let trap = project.trap();
    let trap = trap.display();
    let [first, _] = &project.upstream.commits;
    for (settings, expected) in [
        (format!("revision: v1, commit: '--upload-pack={trap}'"), "bad commit"),
        (format!("revision: v1, commit: {}", &first[..12]), "bad commit"),
        (format!("revision: '--upload-pack={trap}'"), "bad revision"),
        ("revision: '+refs/heads/*:refs/heads/*'".into(), "bad revision"),
        (format!("revision: v1, track: '--upload-pack={trap}'"), "bad track"),
        (format!("revision: v1, paths: ['--upload-pack={trap}']"), "bad path"),
        (format!("url: 'ext::{trap}', revision: v1"), "bad url"),
        ("url: 'ssh://-oProxyCommand=x/y', revision: v1".into(), "bad url"),
    ] {
        project.pin(&settings);
        for args in [&["update"][..], &["update", "--latest"], &["update", "--dry-run"], &["status"]] {
            let text = project.run(args, 2);
            assert!(text.contains(expected), "{settings}, {args:?}: {text}");
        }
    }
    project.pin("revision: v1");
    let option = format!("--upload-pack={trap}");
    project.run(&["update", "up", &format!("--revision={option}")], 2);
    project.assert_nothing_was_started();
    assert!(!project.checkout().exists());
}

#[test]
fn a_checkout_that_came_with_the_tree_starts_nothing() {
    let project = PinnedProject::new();
    project.run(&["update"], 0);
    let git_dir = project.checkout().join(".git");
    let trap = project.trap();
    // Hooks are never run.
    fs::create_dir_all(git_dir.join("hooks")).unwrap();
    for hook in ["post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"] {
        fs::copy(&trap, git_dir.join("hooks").join(hook)).unwrap();
    }
    project.run(&["update", "--latest"], 0);
    assert!(project.run(&["status"], 0).starts_with("in place"));
    project.assert_nothing_was_started();
    // Settings that name programs are refused.
    let config = fs::read_to_string(git_dir.join("config")).unwrap();
    for (section, key) in [
        ("core", "fsmonitor"),
        ("core", "sshCommand"),
        ("core", "alternateRefsCommand"),
        ("filter \"x\"", "smudge"),
        ("remote \"origin\"", "uploadpack"),
        ("include", "path"),
        ("core", "worktree"),
    ] {
        let more = format!("\n[{section}]\n\t{key} = {}\n", trap.display());
        for (name, text) in [("config", format!("{config}{more}")), ("config.worktree", more)] {
            let before = fs::read(git_dir.join(name)).ok();
            fs::write(git_dir.join(name), text).unwrap();
            let status = project.run(&["status"], 1);
            assert!(
                status.starts_with("unknown") && status.contains(&format!(".git/{name} sets ")),
                "{status}"
            );
            assert!(
                project.run(&["update"], 1).contains("remove it, then run llmprof-tui third-party update")
            );
            before
                .map_or_else(
                    || fs::remove_file(git_dir.join(name)),
                    |text| fs::write(git_dir.join(name), text),
                )
                .unwrap();
        }
    }
    project.assert_nothing_was_started();
    // A repository elsewhere is neither used nor written to.
    fs::rename(&git_dir, project.path("elsewhere")).unwrap();
    fs::write(&git_dir, format!("gitdir: {}\n", project.path("elsewhere").display())).unwrap();
    assert!(project.run(&["update"], 1).contains("it has no .git directory"));
    fs::remove_dir_all(project.checkout()).unwrap();
    fs::create_dir(project.path("victim")).unwrap();
    symlink(project.path("victim"), project.checkout()).unwrap();
    assert!(project.run(&["update"], 1).contains("third_party/github/up is a link"));
    assert_eq!(fs::read_dir(project.path("victim")).unwrap().count(), 0);
}

#[test]
fn the_environment_of_other_git_commands_is_ignored() {
    let project = PinnedProject::new();
    let trap = project.trap();
    for args in [&["update"][..], &["status"]] {
        let mut command = project.command(args);
        command.env("GIT_DIR", project.path("upstream/.git")).env("GIT_WORK_TREE", project.path("upstream"));
        command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_KEY_0", "core.fsmonitor");
        command.env("GIT_CONFIG_VALUE_0", &trap).env("GIT_SSH_COMMAND", &trap);
        command.assert().success();
    }
    assert_eq!(fs::read_to_string(project.path("upstream/src/llama/m.py")).unwrap(), "two");
    assert_eq!(fs::read_to_string(project.checkout().join("src/llama/m.py")).unwrap(), "one");
    project.assert_nothing_was_started();
}

#[test]
fn sources_are_not_written_through_links() {
    let (home, hub) = (home(), hub_with(Fault::None));
    hub.put("sub/ops.py", b"def op(): ...\n", false, Fault::None);
    let victim = home.path().join("victim");
    fs::create_dir(&victim).unwrap();
    let dir = home.path().join("third_party/hf/org/tiny");
    for link in [dir.clone(), dir.join("sub")] {
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&victim, &link).unwrap();
        let output =
            llmprof(home.path(), &hub).args(["fetch", "org/tiny", "--source-only"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(" is a link"), "{}", stderr(&output));
        fs::remove_file(&link).unwrap();
    }
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    // Neither the file of an earlier download nor the list of hashes.
    let file = victim.join("kept");
    fs::write(&file, "kept").unwrap();
    let partial = dir.join(format!(".{}.incomplete", git_blob(b"def op(): ...\n")));
    symlink(&file, &partial).unwrap();
    symlink(&file, dir.join(".pin.json")).unwrap();
    let fetch = || llmprof(home.path(), &hub).args(["fetch", "org/tiny", "--source-only"]).output().unwrap();
    assert_eq!(fetch().status.code(), Some(1));
    fs::remove_file(&partial).unwrap();
    assert!(fetch().status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    assert!(!dir.join(".pin.json").is_symlink());
    // A foreign list of hashes removes nothing elsewhere.
    fs::remove_dir_all(dir.join("sub")).unwrap();
    symlink(&victim, dir.join("sub")).unwrap();
    fs::write(dir.join(".pin.json"), r#"{"revision":"x","files":{"sub/kept":"0"}}"#).unwrap();
    assert_eq!(fetch().status.code(), Some(1));
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}
