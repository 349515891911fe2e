//! Runs on a remote host: over a real sshd on loopback, and with misbehaving remote programs.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::common::terminal::Terminal;
use crate::common::{PATIENCE, PROGRAM, ProgramOutput, eventually, program, said, signal};
use llmprof::{event::SCHEMA, remote::Frame};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A run of about four seconds.
const SHORT: [&str; 4] = ["runtime=sim", "runtime.requests=30", "runtime.sim.itl_ms=2", "runtime.warmup=0"];
/// Longer than any test.
const ENDLESS: [&str; 3] = ["runtime=sim", "runtime.requests=100000", "runtime.sim.itl_ms=3.8"];

/// An sshd of this user on loopback. It ends with the test.
struct Sshd {
    dir: TempDir,
}

impl Sshd {
    fn start() -> Sshd {
        let dir = tempfile::tempdir().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/remote/start-sshd.sh");
        let out = Command::new(script).arg(dir.path()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Sshd { dir }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn ssh(&self) -> String {
        self.dir.path().join("ssh").display().to_string()
    }

    /// The local program, in `dir`, with this sshd as the host "box".
    fn program(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = program(dir);
        command.env("LLMPROF_SSH", self.ssh()).args(args).args([
            "--host",
            "box",
            "--remote-program",
            PROGRAM,
        ]);
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, dir: &Path, args: &[&str]) -> ProgramOutput {
        said(self.program(dir, args).output().unwrap())
    }

    fn pid(&self) -> u32 {
        fs::read_to_string(self.dir.path().join("pid")).unwrap().trim().parse().unwrap()
    }

    /// The processes of its connections.
    fn sessions(&self) -> Vec<u32> {
        children(self.pid())
    }

    /// The only run directory on the remote host.
    fn run_there(&self) -> PathBuf {
        eventually("a run there", || crate::common::run_dirs(&self.home()).into_iter().next())
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        for id in names(&self.home()) {
            // A run left by a failed test.
            worker(&id).into_iter().for_each(|pid| signal(pid, "KILL"));
        }
        for pid in self.sessions() {
            signal(pid, "KILL");
        }
        signal(self.pid(), "KILL");
    }
}

fn children(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The process of the run with this name.
fn worker(id: &str) -> Option<u32> {
    let is_it = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"remote-work"[..])
            && words.get(2).is_some_and(|place| place.ends_with(id.as_bytes()))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it)
}

/// The names of the runs that were started on the remote host.
fn names(home: &Path) -> Vec<String> {
    let entries = fs::read_dir(home.join(".local/share/llmprof/remote")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The files of a run by their paths, except the one that names the origin of a copy.
fn digests(dir: &Path) -> BTreeMap<PathBuf, String> {
    fn walk(dir: &Path, below: &Path, found: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(dir.join(below)).unwrap().flatten() {
            let path = below.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => walk(dir, &path, found),
                false if path == Path::new("remote.json") => {}
                false => {
                    let digest = Sha256::digest(fs::read(dir.join(&path)).unwrap());
                    found.insert(path, digest.iter().map(|byte| format!("{byte:02x}")).collect());
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(dir, Path::new(""), &mut found);
    found
}

#[track_caller]
fn assert_copied(here: &Path, there: &Path) {
    let (here, there) = (digests(here), digests(there));
    assert!(here.len() > 15, "{here:?}");
    let differ: Vec<&PathBuf> =
        there.keys().chain(here.keys()).filter(|path| here.get(*path) != there.get(*path)).collect();
    assert!(differ.is_empty(), "{differ:?}");
}

fn only_run(dir: &Path) -> PathBuf {
    let runs = crate::common::run_dirs(dir);
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].clone()
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn a_remote_run_is_copied_byte_for_byte() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let hostile = "model.name='a; touch evil; $(touch evil) `touch evil` \"x\"'";
    let args = [&["run", "--json", hostile][..], &SHORT].concat();
    let ran = sshd.run(here.path(), &args);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let result: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(result["outcome"], "completed", "{result}");
    let (copy, original) = (only_run(here.path()), sshd.run_there());
    assert!(here.path().join(result["run_dir"].as_str().unwrap()).exists());
    assert_copied(&copy, &original);
    assert!(!sshd.home().join("evil").exists() && !here.path().join("evil").exists());
    let started = &crate::common::events(&copy)[0];
    assert!(serde_json::to_string(started).unwrap().contains("touch evil"), "{started:?}");
    // The reports made from the copy equal those made on the remote host.
    let reported = crate::common::run(here.path(), &["report", &copy.display().to_string()]);
    assert_eq!(reported.code, 0, "{}", reported.err);
    assert_copied(&copy, &original);
    // No process remains.
    eventually("the end of its process", || {
        let listed = sshd.run(here.path(), &["--reconnect", "list"]);
        (listed.out.contains("completed") && !listed.out.contains("in progress")).then_some(())
    });
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn a_lost_connection_loses_and_repeats_nothing() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let args = ["run", "runtime=sim", "runtime.requests=90", "runtime.sim.itl_ms=2", "runtime.warmup=0"];
    let quick = ["--ssh-option", "ServerAliveInterval=1", "--ssh-option", "ServerAliveCountMax=2"];
    let mut command = sshd.program(here.path(), &[&args[..], &quick].concat());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let copy = eventually("a copy of the run", || crate::common::run_dirs(here.path()).into_iter().next());
    let size = || fs::metadata(copy.join("events.ndjson")).map_or(0, |about| about.len());
    let grown = |than: u64| eventually("more events", || (size() > than).then(size));
    let first = grown(2_000);
    // The connection is cut.
    sshd.sessions().into_iter().for_each(|pid| signal(pid, "KILL"));
    let second = grown(first + 2_000);
    // The connection is open and silent.
    let hung: Vec<u32> =
        sshd.sessions().into_iter().flat_map(|pid| [children(pid), vec![pid]].concat()).collect();
    hung.iter().for_each(|pid| signal(*pid, "STOP"));
    grown(second + 4_000);
    hung.iter().for_each(|pid| signal(*pid, "KILL"));
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    assert_eq!(err.matches("connected to box again").count(), 2, "{err}");
    let original = sshd.run_there();
    assert_copied(&copy, &original);
    let lines = |dir: &Path| fs::read_to_string(dir.join("events.ndjson")).unwrap().lines().count();
    assert_eq!(lines(&copy), lines(&original));
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn a_remote_run_continues_without_a_connection_and_is_found_again() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let mut command = sshd.program(here.path(), &[&["run"][..], &ENDLESS].concat());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let copy = eventually("a copy of the run", || crate::common::run_dirs(here.path()).into_iter().next());
    eventually("events", || {
        fs::metadata(copy.join("events.ndjson")).ok().filter(|about| about.len() > 3_000)
    });
    // The terminal is closed.
    signal(child.id(), "HUP");
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    let id = names(&sshd.home()).remove(0);
    assert!(err.contains(&format!("the run {id} is in progress on box")), "{err}");
    assert!(err.contains(&format!("--reconnect {id}")) && err.contains(&format!("--end {id}")), "{err}");
    assert_eq!(out.status.code(), Some(129), "{err}");
    let kept = fs::metadata(copy.join("events.ndjson")).unwrap().len();
    let listed = sshd.run(here.path(), &["--reconnect", "list"]);
    assert!(listed.out.contains(&id) && listed.out.contains("in progress"), "{}", listed.out);
    let original = sshd.run_there();
    let grown = || fs::metadata(original.join("events.ndjson")).ok().filter(|about| about.len() > 2 * kept);
    eventually("the run to go on", grown);

    let ended = sshd.run(here.path(), &["--end", &id]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(crate::common::finished(&copy).cause.as_deref(), Some("cancelled by the user"));
    assert_eq!(only_run(here.path()), copy, "the copy goes on where it was");
    assert_copied(&copy, &original);

    // A run that has ended can be fetched again, also to another machine.
    let elsewhere = tempfile::tempdir().unwrap();
    let again = sshd.run(elsewhere.path(), &["--reconnect", &id]);
    assert_copied(&only_run(elsewhere.path()), &original);
    assert!(again.out.contains("recorded in "), "{} {}", again.out, again.err);
    let none = sshd.run(elsewhere.path(), &["--reconnect"]);
    assert!(none.code == 2 && none.err.contains("no run is in progress on the remote host"), "{}", none.err);
    let unknown = sshd.run(elsewhere.path(), &["--reconnect", "zzzzzz"]);
    assert!(unknown.code == 2 && unknown.err.contains("there is no run zzzzzz"), "{}", unknown.err);
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn the_screen_shows_it_and_its_keys_reach_it() {
    let sshd = Sshd::start();
    let args = [&["--host", "box", "--remote-program", PROGRAM][..], &ENDLESS].concat();
    let terminal =
        Terminal::start_in(tempfile::tempdir().unwrap(), &args, &[("LLMPROF_SSH", &sshd.ssh())], (120, 40));
    terminal.see("over ssh to box");
    terminal.see(" behind");
    terminal.see("decode, mean");
    terminal.send("p");
    terminal.see("● paused");
    terminal.send("p");
    terminal.see("● decode");
    terminal.send("s");
    terminal.see("snapshot name");
    terminal.send("\r");
    terminal.see("snapshot snap-1 saved");
    terminal.send("n");
    terminal.see("this run is simulated: there is nothing for nsys to profile");
    // Cut: the screen reports it and reconnects; H reconnects immediately.
    sshd.sessions().into_iter().for_each(|pid| signal(pid, "KILL"));
    terminal.see("the run continues");
    terminal.send("H");
    terminal.see("connected to box again");
    // Invalid overrides are refused by the machine of the run.
    terminal.send("e");
    terminal.see("overrides, as on");
    terminal.send(" nonsense=1\r");
    terminal.see("unknown key \"nonsense\"");
    // Another run replaces this one.
    let known = crate::common::run_dirs(terminal.path());
    terminal.send("r");
    terminal.see("End this run and start it again");
    terminal.send("y");
    let next = eventually("the next run", || {
        crate::common::run_dirs(terminal.path()).into_iter().find(|run| !known.contains(run))
    });
    eventually("the files of the run before", || known[0].join("report.html").exists().then_some(()));
    eventually("its events", || {
        fs::metadata(next.join("events.ndjson")).ok().filter(|about| about.len() > 3_000)
    });
    terminal.send("q");
    terminal.see("leave it running");
    terminal.send("c");
    assert_eq!(terminal.exit_code(), 0);
    assert_eq!(crate::common::finished(&next).cause.as_deref(), Some("quit by the user"));
    let there = crate::common::run_dirs(&sshd.home());
    for copy in [&known[0], &next] {
        let original = there.iter().find(|dir| dir.file_name() == copy.file_name()).unwrap();
        assert_copied(copy, original);
    }
    assert!(digests(&known[0]).keys().any(|path| path.to_string_lossy().contains("snap-1")));
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn a_remote_program_is_followed_and_a_command_answers() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let mut command = program(here.path());
    command.env("LLMPROF_SSH", sshd.ssh()).args(["--host", "box", "--remote-program", PROGRAM]);
    command.args([
        "exec",
        "--headless",
        "--",
        "sh",
        "-c",
        "echo \"out $0\"; printf '\\033[2Jerr\\n' >&2; exit 7",
        "$HOME;'x'",
    ]);
    let ran = said(command.stdin(Stdio::null()).output().unwrap());
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(
        ran.out.contains("out $HOME;'x'\n") && ran.err.contains("err") && !ran.err.contains('\x1b'),
        "{} {}",
        ran.out,
        ran.err
    );
    let checked = sshd.run(here.path(), &["doctor", "--json"]);
    assert!(
        serde_json::from_str::<serde_json::Value>(&checked.out).unwrap()["checks"].is_array(),
        "{}",
        checked.out
    );
    let printed = sshd.run(here.path(), &["run", "--cfg", "job", "model=qwen3_0_6b"]);
    assert!(printed.out.contains("qwen3_0_6b"), "{}", printed.err);
    let wrong = sshd.run(here.path(), &["run", "runtime.requests=none"]);
    assert!(wrong.code == 2 && wrong.err.contains("runtime.requests"), "{}", wrong.err);
    let nowhere = sshd.run(here.path(), &["run", "--remote-dir", "no/such/dir"]);
    assert!(
        nowhere.code == 2 && nowhere.err.contains("no/such/dir is not a directory on the remote host"),
        "{}",
        nowhere.err
    );
}

/// The result is that of a local `watch`: the readings, or why there are none.
#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn remote_gpus_are_monitored() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let seen = sshd.run(here.path(), &["watch", "--for", "2", "--json", "telemetry=sim"]);
    assert_eq!(seen.code, 0, "{}", seen.err);
    let found: serde_json::Value = serde_json::from_str(&seen.out).unwrap();
    assert!(seen.out.contains("verdict"), "{found}");
    let text = sshd.run(here.path(), &["watch", "--for", "1", "telemetry=sim"]);
    assert!(text.code == 0 && !text.out.contains("TTFT"), "{} {}", text.out, text.err);
    let args = ["watch", "--host", "box", "--remote-program", PROGRAM, "telemetry=sim"];
    let terminal =
        Terminal::start_in(tempfile::tempdir().unwrap(), &args, &[("LLMPROF_SSH", &sshd.ssh())], (120, 40));
    terminal.see("over ssh to box");
    terminal.see("SM clock");
    terminal.send("q");
    terminal.see("leave it running");
    terminal.send("c");
    assert_eq!(terminal.exit_code(), 0);
}

const SWEEP: [&str; 7] = [
    "-m",
    "runtime=sim",
    "runtime.requests=5",
    "runtime.sim.itl_ms=1",
    "runtime.warmup=0",
    "runtime.batch_size=1,2",
    "hydra.sweep.dir=sweep",
];

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn the_jobs_of_a_remote_sweep_run_one_after_another() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let ran = sshd.run(here.path(), &[&["run", "--json"][..], &SWEEP].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let jobs = found["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2, "{found}");
    assert_eq!(crate::common::run_dirs(&sshd.home()).len(), 2);
    for (job, found) in jobs.iter().enumerate() {
        let copy = here.path().join(format!("sweep/{job}"));
        let origin = fs::read(copy.join("remote.json")).unwrap();
        let origin: serde_json::Value = serde_json::from_slice(&origin).unwrap();
        assert_copied(&copy, Path::new(origin["dir"].as_str().unwrap()));
        assert_eq!((&found["outcome"], &found["on"]), (&"completed".into(), &"box".into()), "{found}");
    }
    let compared = crate::common::run(here.path(), &["compare", "sweep/0", "sweep/1"]);
    assert!(compared.code != 2, "{}", compared.err);
    // It is resumed on the same machine, or not at all.
    fs::remove_dir_all(here.path().join("sweep/1")).unwrap();
    let forgotten = crate::common::run(here.path(), &["run", "--resume", "sweep"]);
    assert!(forgotten.code == 2 && forgotten.err.contains("pass --host box"), "{}", forgotten.err);
    let resumed = sshd.run(here.path(), &["run", "--resume", "sweep"]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert_eq!(crate::common::run_dirs(&sshd.home()).len(), 3);
    assert!(here.path().join("sweep/1/report.md").exists());
    // Weights are on the remote host: it refuses what it does not have, and the next job follows.
    let missing =
        ["run", "-m", "model.weights=/only/there", "runtime.batch_size=1,2", "hydra.sweep.dir=missing"];
    let refused = sshd.run(here.path(), &missing);
    assert_eq!(refused.code, 1, "{}", refused.err);
    assert_eq!(refused.out.matches("cannot read /only/there").count(), 2, "{} {}", refused.out, refused.err);
    let slurm = [
        "run",
        "-m",
        "hydra/launcher=slurm",
        "runtime=sim",
        "runtime.batch_size=1,2",
        "hydra.sweep.dir=slurm",
    ];
    let slurm = sshd.run(here.path(), &slurm);
    assert!(slurm.code == 2 && slurm.err.contains("one after another on box"), "{}", slurm.err);
    assert!(!here.path().join("slurm").exists());
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn a_remote_sweep_has_the_screen_and_ends_with_it() {
    let sshd = Sshd::start();
    let long =
        ["-m", "runtime=sim", "runtime.requests=100000", "runtime.sim.itl_ms=3.8", "hydra.sweep.dir=sweep"];
    let args =
        [&["--host", "box", "--remote-program", PROGRAM][..], &long, &["runtime.batch_size=1,2"]].concat();
    let terminal =
        Terminal::start_in(tempfile::tempdir().unwrap(), &args, &[("LLMPROF_SSH", &sshd.ssh())], (120, 40));
    terminal.see("running");
    let copy = terminal.path().join("sweep/0");
    eventually("events", || {
        fs::metadata(copy.join("events.ndjson")).ok().filter(|about| about.len() > 3_000)
    });
    terminal.press("\r", "decode, mean");
    terminal.press("b", "running");
    terminal.press("q", "have not ended: 2 of 2");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 0, "{}", terminal.text());
    terminal.see("--host box --resume sweep");
    assert_eq!(crate::common::finished(&copy).outcome, llmprof::event::Outcome::Interrupted);
    assert_copied(&copy, &sshd.run_there());
    let listed = sshd.run(terminal.path(), &["--reconnect", "list"]);
    assert!(!listed.out.contains("in progress"), "{}", listed.out);
}

/// A key with a passphrase: ssh asks for it before the screen opens.
#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn ssh_asks_on_the_terminal() {
    let sshd = Sshd::start();
    let key = sshd.dir.path().join("user_key");
    let locked = Command::new("ssh-keygen")
        .args(["-q", "-p", "-P", "", "-N", "s3cret", "-f"])
        .arg(&key)
        .output()
        .unwrap();
    assert!(locked.status.success(), "{}", String::from_utf8_lossy(&locked.stderr));
    let args = [&["--host", "box", "--remote-program", PROGRAM][..], &ENDLESS].concat();
    let (ssh, dir) = (sshd.ssh(), tempfile::tempdir().unwrap());
    let terminal = Terminal::start_in(dir, &args, &[("LLMPROF_SSH", &ssh), ("SSH_AUTH_SOCK", "")], (120, 40));
    terminal.see("Enter passphrase for key");
    terminal.send("s3cret\r");
    terminal.see("decode, mean");
    assert!(!terminal.text().contains("s3cret"));
    // ssh cannot ask on this screen.
    sshd.sessions().into_iter().for_each(|pid| signal(pid, "KILL"));
    terminal.see("ssh needs a password or the confirmation of a key");
    terminal.send("q");
    terminal.see("leave it running");
    terminal.send("\r");
    let id = names(&sshd.home()).remove(0);
    terminal.see(&format!("--reconnect {id}"));
    terminal.exit_code();
    // A sweep would have to ask for each job, and nobody is there to answer.
    let here = tempfile::tempdir().unwrap();
    let sweep = sshd.run(here.path(), &[&["run"][..], &SWEEP].concat());
    assert!(sweep.code == 1 && sweep.err.contains("ssh-copy-id"), "{}", sweep.err);
    assert!(!here.path().join("sweep").exists());
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn a_killed_remote_process_is_reported() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let mut command = sshd.program(here.path(), &[&["run"][..], &ENDLESS].concat());
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("a copy of the run", || crate::common::run_dirs(here.path()).into_iter().next());
    let id = names(&sshd.home()).remove(0);
    let pid = worker(&id).expect("the process of the run");
    signal(pid, "KILL");
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.contains("the process of the run on box is gone: it was killed"), "{err}");
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn failures_of_ssh_have_a_remedy() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(sshd.dir.path().join("ssh_config")).unwrap();
    let with = |change: &dyn Fn(&str) -> String| {
        let path = here.path().join("ssh_config");
        fs::write(&path, change(&config)).unwrap();
        let ssh = format!("ssh -F {}", path.display());
        let mut command = program(here.path());
        command.env("LLMPROF_SSH", ssh).args(["run", "--host", "box", "runtime=sim"]).stdin(Stdio::null());
        said(command.output().unwrap())
    };
    let other_key = here.path().join("other_key");
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&other_key).status();
    assert!(made.unwrap().success());
    let user_key = sshd.dir.path().join("user_key").display().to_string();
    let known = sshd.dir.path().join("known_hosts").display().to_string();
    for (said, words) in [
        (
            with(&|text| text.replace(&user_key, &other_key.display().to_string())),
            "Permission denied (publickey)",
        ),
        (with(&|text| text.replace(&known, "/dev/null")), "Host key verification failed"),
        (
            with(&|text| text.replace("HostName 127.0.0.1", "HostName no-such-host.invalid")),
            "Could not resolve hostname",
        ),
        (with(&|text| text.replace("Port", "Port 1 #")), "Connection refused"),
        (with(&str::to_owned), "box has no llmprof-tui in PATH or in ~/.local/bin"),
    ] {
        assert_eq!((said.code, said.err.lines().count()), (1, 1), "{words}: {}", said.err);
        assert!(said.err.contains(words) && said.err.contains("; "), "{words}: {}", said.err);
    }
    let mut command = program(here.path());
    command.env("LLMPROF_SSH", "/no/such/ssh").args(["run", "--host", "box"]).stdin(Stdio::null());
    let missing = said(command.output().unwrap());
    assert!(missing.code == 1 && missing.err.contains("install OpenSSH's client"), "{}", missing.err);
}

#[test]
#[ignore = "needs sshd; .ci/run installs openssh-server and runs it"]
fn the_program_is_copied_to_the_host_on_request() {
    let sshd = Sshd::start();
    let here = tempfile::tempdir().unwrap();
    let install = |more: &[&str]| {
        let mut command = program(here.path());
        command
            .env("LLMPROF_SSH", sshd.ssh())
            .args(["--host", "box", "--install"])
            .args(more)
            .stdin(Stdio::null());
        said(command.output().unwrap())
    };
    let asked = install(&[]);
    assert!(asked.code == 2 && asked.err.contains("pass --yes"), "{}", asked.err);
    let copied = install(&["--yes"]);
    assert_eq!(copied.code, 0, "{}", copied.err);
    let there = sshd.home().join(".local/bin/llmprof-tui");
    assert_eq!(fs::read(&there).unwrap(), fs::read(PROGRAM).unwrap());
    let mut command = program(here.path());
    command
        .env("LLMPROF_SSH", sshd.ssh())
        .args(["run", "--host", "box", "--quiet"])
        .args(SHORT)
        .stdin(Stdio::null());
    let ran = said(command.output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_copied(&only_run(here.path()), &sshd.run_there());
}

/// A fake remote end: an ssh that runs its last argument locally, and a program that prints `output` and continues to
/// read.
fn far_end(dir: &Path, output: &[u8]) -> (PathBuf, PathBuf) {
    let script = |name: &str, lines: &str| {
        let path = dir.join(name);
        crate::common::script(&path, lines);
        path
    };
    fs::File::create(dir.join("output")).unwrap().write_all(output).unwrap();
    let ssh = script("ssh", "for last; do :; done\neval \"$last\"");
    let program =
        script("program", &format!("cat '{}'\ntimeout 5 cat >/dev/null", dir.join("output").display()));
    (ssh, program)
}

fn hello(schema: u32, version: &str) -> String {
    format!(
        "{{\"hello\":{{\"protocol\":1,\"schema\":{schema},\"version\":\"{version}\",\"host\":\"x\",\"os\":\"linux\",\"arch\":\"x86_64\"}}}}\n"
    )
}

fn against(output: &[u8]) -> (ProgramOutput, TempDir) {
    let (far, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ssh, there) = far_end(far.path(), output);
    let mut command = program(here.path());
    command
        .env("LLMPROF_SSH", ssh)
        .args(["run", "--host", "box", "--remote-program"])
        .arg(there)
        .stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, ended) = (child.id(), Arc::new(AtomicBool::new(false)));
    let is_over = Arc::clone(&ended);
    // A program that waits for ever is ended, and fails the test.
    let limit = thread::spawn(move || {
        let until = Instant::now() + 2 * PATIENCE;
        while Instant::now() < until && !is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        if !is_over.load(Ordering::Relaxed) {
            signal(pid, "KILL");
        }
    });
    let out = child.wait_with_output().unwrap();
    ended.store(true, Ordering::Relaxed);
    limit.join().unwrap();
    (said(out), here)
}

#[test]
fn incompatible_ends_are_refused() {
    let (newer, _) = against(hello(SCHEMA + 1, "9.9.9").as_bytes());
    assert_eq!(newer.code, 1);
    for words in ["9.9.9 on box", env!("CARGO_PKG_VERSION"), "--install"] {
        assert!(newer.err.contains(words), "{words}: {}", newer.err);
    }
    let refusal = "{\"refused\":{\"reason\":\"no\",\"usage\":true}}\n";
    let (differs, _) = against((hello(SCHEMA, "9.9.9") + refusal).as_bytes());
    assert!(differs.err.contains("warning: llmprof-tui is 9.9.9 on box"), "{}", differs.err);
    assert!(differs.code == 2 && differs.err.contains("error: no"), "{}", differs.err);
    let (older, _) = against(b"");
    assert!(older.code == 1 && older.err.contains("ssh ended"), "{}", older.err);
    let (other, _) = against(b"This account is not available.\n");
    assert!(
        other.err.contains("did not answer as llmprof-tui does: This account is not available."),
        "{}",
        other.err
    );
}

/// The only effect of a hostile remote end is an error message.
#[test]
fn a_hostile_remote_end_is_contained() {
    let begin = hello(SCHEMA, env!("CARGO_PKG_VERSION")) + "{\"joined\":{\"id\":\"aaaaaa\"}}\n";
    let began = "{\"news\":{\"next\":1,\"news\":{\"began\":{\"run\":0,\"dir\":\"/../../../tmp/\\u001b[2Jx/../y\",\"overrides\":[],\"for_tools\":false}}}}\n";
    let done = "{\"news\":{\"next\":2,\"news\":{\"done\":{\"run\":0,\"ended\":{\"finished\":{\"outcome\":\"completed\"},\"loss\":\"\\u001b]0;evil\\u0007\",\"tool_failures\":[],\"exit_code\":null}}}}}\n";
    let events = |at: u64, text: &str| {
        format!("{{\"events\":{{\"run\":0,\"at\":{at},\"len\":{}}}}}\n{text}", text.len())
    };
    let file = |path: &str| {
        format!(
            "{{\"file\":{{\"path\":\"{path}\",\"bytes\":1,\"total_bytes\":1}}}}\n{{\"chunk\":{{\"len\":1}}}}\nx"
        )
    };
    let begins: String = (0..400).map(|run| began.replace("\"run\":0", &format!("\"run\":{run}"))).collect();
    let cases: Vec<(&str, String, &str)> = vec![
        ("runs without end", begin.clone() + &begins, "more runs than were requested"),
        ("ends without end", begin.clone() + began + &done.repeat(40), "a run that ended too many times"),
        (
            "an escape sequence",
            begin.clone() + "{\"refused\":{\"reason\":\"\\u001b[2Jx\",\"usage\":false}}\n",
            "\\u001b[2Jx",
        ),
        (
            "a name that is a path",
            hello(SCHEMA, "1") + "{\"joined\":{\"id\":\"../../x\"}}\n",
            "the name of the run is not valid",
        ),
        ("an endless line", begin.clone() + &"x".repeat(2 << 20), ""),
        ("garbage", begin.clone() + "\u{1b}[31mgarbage\n", ""),
        (
            "a payload that is too large",
            begin.clone() + "{\"events\":{\"run\":0,\"at\":0,\"len\":99999999}}\n",
            "",
        ),
        ("events from elsewhere", begin.clone() + began + &events(7, "x"), "the local copy has 0 bytes"),
        ("events that are none", begin.clone() + began + &events(0, "nonsense\n"), "not a recording"),
        ("files that nobody asked for", begin.clone() + began + &file("x"), "not requested"),
        (
            "files outside",
            begin.clone()
                + began
                + done
                + &"{\"pong\":{\"n\":0,\"age_ms\":1e300}}\n".repeat(200)
                + &file("../../evil"),
            "",
        ),
    ];
    for (what, output, words) in cases {
        let (ended, here) = against(output.as_bytes());
        assert_ne!(ended.code, 0, "{what}: {}", ended.err);
        assert!(ended.err.contains(words), "{what}: {}", ended.err);
        assert!(!ended.err.contains('\x1b') && !ended.out.contains('\x1b'), "{what}: {:?}", ended.err);
        assert!(!here.path().parent().unwrap().join("evil").exists(), "{what}");
        let outside: Vec<PathBuf> =
            fs::read_dir(here.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(outside.iter().all(|path| path.ends_with("runs")), "{what}: {outside:?}");
    }
}

#[test]
fn a_frame_has_one_form() {
    let frame = Frame::Events { run: 1, at: 2, len: 3 };
    assert_eq!(serde_json::to_string(&frame).unwrap(), r#"{"events":{"run":1,"at":2,"len":3}}"#);
}
