//! Sweeps on a real Slurm: `apt-get install slurm-wlm munge`, and root to start its daemons. Each test has its own
//! cluster with two nodes, which tests/slurm/start.sh starts.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::terminal::Terminal;
use crate::common::{ProgramOutput, SIM_TIMES, column, eventually, finished, program, rows, said, signal};
use llmprof::event::Outcome;
use serde_json::Value;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/slurm/start.sh");

/// A Slurm that ends with the test.
struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::with_arrays_of(1001)
    }

    fn with_arrays_of(max_array_size: usize) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        let port = eventually("three free ports", || {
            let first = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
            (first < 65_000 && (first..first + 3).all(free)).then_some(first)
        });
        let mut start = Command::new(SCRIPT);
        start.arg(dir.path()).arg(port.to_string()).env("MAX_ARRAY_SIZE", max_array_size.to_string());
        let started = start.stdin(Stdio::null()).output().expect("bash");
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        Cluster { dir }
    }

    fn conf(&self) -> String {
        self.dir.path().join("slurm.conf").display().to_string()
    }

    fn script(&self, args: &[&str]) {
        let (verb, rest) = args.split_first().unwrap();
        let status = Command::new(SCRIPT).arg(verb).arg(self.dir.path()).args(rest).status().unwrap();
        assert!(status.success(), "{args:?}");
    }

    /// The output of one of Slurm's own commands.
    fn ask(&self, command: &str, args: &[&str]) -> String {
        let asked = Command::new(command).args(args).env("SLURM_CONF", self.conf()).output().unwrap();
        String::from_utf8(asked.stdout).unwrap()
    }

    /// The process id of the program that runs a task of an array.
    fn pid(&self, id: &str) -> u32 {
        eventually("the process of a job", || {
            let listed = self.ask("scontrol", &["listpids", &self.job_id(id)?, &self.node(id)?]);
            let parent = |row: &str| {
                let mut words = row.split_whitespace();
                let pid: u32 = words.next()?.parse().ok()?;
                let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
                command.contains("--job-of").then_some(pid)
            };
            listed.lines().find_map(parent).or_else(|| self.pid_in_proc(id))
        })
    }

    /// Like `pid`, if Slurm cannot list processes.
    fn pid_in_proc(&self, id: &str) -> Option<u32> {
        let (array, task) = id.split_once('_')?;
        let wanted = [format!("SLURM_ARRAY_JOB_ID={array}"), format!("SLURM_ARRAY_TASK_ID={task}")];
        let conf = format!("SLURM_CONF={}", self.conf());
        fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let variables = fs::read(entry.path().join("environ")).ok()?;
            let variables = String::from_utf8_lossy(&variables).into_owned();
            let has = |text: &String| variables.split('\0').any(|variable| variable == text);
            let is_it = String::from_utf8_lossy(&command).contains("--job-of");
            (is_it && wanted.iter().all(has) && has(&conf)).then_some(pid)
        })
    }

    fn field(&self, id: &str, name: &str) -> Option<String> {
        let shown = self.ask("scontrol", &["--oneliner", "show", "job", id]);
        let value =
            shown.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned));
        value.filter(|value| !value.is_empty())
    }

    fn job_id(&self, id: &str) -> Option<String> {
        self.field(id, "JobId")
    }

    fn node(&self, id: &str) -> Option<String> {
        self.field(id, "NodeList")
    }

    fn program(&self, dir: &Path, args: &[&str]) -> Command {
        let mut command = program(dir);
        command.args(args).env("SLURM_CONF", self.conf()).stdin(Stdio::null());
        command
    }

    fn run(&self, dir: &Path, args: &[&str]) -> ProgramOutput {
        said(self.program(dir, args).output().unwrap())
    }

    fn spawn(&self, dir: &Path, args: &[&str]) -> Child {
        self.program(dir, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.ask("scancel", &["--user=root"]);
        self.script(&["--stop"]);
    }
}

/// Jobs without waiting times.
const QUICK: [&str; 8] = [
    "run",
    "-m",
    "hydra/launcher=slurm",
    "runtime=sim",
    "runtime.sim.speed=0",
    SIM_TIMES[0],
    SIM_TIMES[1],
    "infer=short",
];

/// Jobs of about `requests` / 16 seconds each.
const SLOW: [&str; 7] =
    ["run", "-m", "hydra/launcher=slurm", "runtime=sim", SIM_TIMES[0], SIM_TIMES[1], "infer=short"];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

fn sweep_dir(dir: &Path) -> PathBuf {
    eventually("a sweep's directory", || {
        let found = fs::read_dir(dir.join("runs/baseline/multirun")).ok()?.flatten().next()?.path();
        found.join("sweep.json").exists().then_some(found)
    })
}

fn arrays(sweep: &Path) -> Vec<Value> {
    let text = fs::read(sweep.join("slurm.json")).unwrap_or_default();
    let stored: Value = serde_json::from_slice(&text).unwrap_or_default();
    stored["arrays"].as_array().cloned().unwrap_or_default()
}

/// The id of the first array of a sweep.
fn array(sweep: &Path) -> u64 {
    eventually("a submitted array", || arrays(sweep).first()?["id"].as_u64())
}

/// Like [`eventually`], with a longer limit for Slurm.
#[track_caller]
fn in_time<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(thing) = found() {
            return thing;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[track_caller]
fn ended(child: Child) -> ProgramOutput {
    said(child.wait_with_output().unwrap())
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn a_sweep_is_an_array_on_both_nodes() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let said = cluster
        .run(dir.path(), &with(&QUICK, &["runtime.requests=2,3,4", "hydra.launcher.comment=two words"]));
    assert_eq!(said.code, 0, "{}", said.err);
    let sweep = sweep_dir(dir.path());
    let (id, rows) = (array(&sweep), rows(&sweep));
    assert_eq!(column(&rows, "outcome"), ["completed"; 3]);
    assert_eq!(column(&rows, "id"), [0, 1, 2].map(|task| format!("{id}_{task}")));
    for (task, row) in rows.iter().enumerate() {
        // Slurm reports the same.
        let task = format!("{id}_{task}");
        assert_eq!(cluster.field(&task, "JobState").as_deref(), Some("COMPLETED"));
        assert_eq!(cluster.node(&task).as_deref(), row["on"].as_str());
    }
    let nodes = column(&rows, "on");
    assert!(nodes.contains(&"n1".to_owned()) && nodes.contains(&"n2".to_owned()), "{nodes:?}");
    assert!(said.out.contains(&format!("{id}_0")) && said.out.contains(" n1 "), "{}", said.out);
    assert_eq!(finished(&sweep.join("2")).outcome, Outcome::Completed);
    let comment =
        cluster.ask("squeue", &["--noheader", "--states=all", &format!("--jobs={id}"), "--format=%k"]);
    assert_eq!(comment.lines().next(), Some("two words"));
    // The reports of a sweep work as for any other.
    let again = cluster.run(dir.path(), &["run", "--resume", sweep.to_str().unwrap(), "--json", "--quiet"]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert_eq!(serde_json::from_str::<Value>(&again.out).unwrap()["complete"], true);
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn every_end_has_its_reason() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let long =
        with(&SLOW, &["runtime.requests=2000", "runtime.seed=0,1,2,3,4,5", "hydra.launcher.files_wait_s=1"]);
    // The fifth job writes no directory, and the sixth cannot start.
    let setup = "hydra.launcher.setup=['[ $SLURM_ARRAY_TASK_ID != 4 ] || exit 0','[ $SLURM_ARRAY_TASK_ID != 5 ] || exit 7']";
    let child = cluster.spawn(dir.path(), &with(&long, &[setup]));
    let sweep = sweep_dir(dir.path());
    let id = array(&sweep);
    let task = |number: u32| format!("{id}_{number}");
    let runs = |number: u32| {
        let recorded = sweep.join(number.to_string()).join("events.ndjson");
        in_time("a running job", || fs::metadata(&recorded).ok().filter(|file| file.len() > 0));
    };
    runs(0);
    signal(cluster.pid(&task(0)), "KILL");
    runs(1);
    cluster.ask("scancel", &[&task(1)]);
    runs(2);
    let update = format!("jobid={}", cluster.job_id(&task(2)).unwrap());
    cluster.ask("scontrol", &["update", &update, "EndTime=now"]);
    runs(3);
    // The node of the fourth job fails: its daemon and its processes are killed.
    let node = cluster.node(&task(3)).unwrap();
    let pid = cluster.pid(&task(3));
    let spool = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent: u32 = spool.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    cluster.script(&["--stop", &format!("slurmd-{node}")]);
    signal(parent, "KILL");
    signal(pid, "KILL");
    let said = ended(child);
    assert_eq!(said.code, 1, "{}", said.err);
    let rows = rows(&sweep);
    let reasons = column(&rows, "reason");
    let wanted = [
        "ended by SIGKILL on n",
        "CANCELLED: by scancel, from outside of this program",
        "TIMEOUT: the limit of 60 min was reached; raise hydra.launcher.timeout_min",
        "NODE_FAIL: n",
        "Slurm reports that the job completed, but its directory has no end after 1 s",
        "exit code 7 on n",
    ];
    for (reason, wanted) in reasons.iter().zip(wanted) {
        assert!(reason.starts_with(wanted), "{reason:?} instead of {wanted:?}\n{}", said.err);
    }
    assert_eq!(column(&rows, "outcome"), ["failed"; 6]);
    // The job that was asked to end has completed its recording.
    assert_eq!(finished(&sweep.join("1")).outcome, Outcome::Interrupted);
    assert!(
        said.err.contains("0 of 6 jobs completed; to run the others: llmprof-tui run --resume"),
        "{}",
        said.err
    );
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn following_continues_after_a_controller_outage() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let messages = dir.path().join("messages");
    let mut following = cluster.program(dir.path(), &with(&SLOW, &["runtime.requests=100,101,102"]));
    following.stdout(Stdio::null()).stderr(fs::File::create(&messages).unwrap());
    let mut following = following.spawn().unwrap();
    let sweep = sweep_dir(dir.path());
    array(&sweep);
    in_time("a running job", || sweep.join("0/events.ndjson").exists().then_some(()));
    cluster.script(&["--stop", "ctld"]);
    let says = |words: &str| fs::read_to_string(&messages).unwrap().contains(words).then_some(());
    in_time("words on the controller", || says("Slurm's controller does not answer"));
    cluster.script(&["--controller"]);
    in_time("its return", || says("the jobs are visible again"));
    assert_eq!(following.wait().unwrap().code(), Some(0), "{:?}", fs::read_to_string(&messages));
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed"; 3]);
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn a_killed_program_finds_its_jobs_again() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let mut child = cluster.spawn(dir.path(), &with(&SLOW, &["runtime.requests=60,61,62,63"]));
    let sweep = sweep_dir(dir.path());
    let id = array(&sweep);
    in_time("a running job", || sweep.join("0/events.ndjson").exists().then_some(()));
    signal(child.id(), "KILL");
    child.wait().unwrap();
    let resume = ["run", "--resume", sweep.to_str().unwrap()];
    let said = cluster.run(dir.path(), &resume);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("found in Slurm again: "), "{}", said.err);
    assert_eq!(arrays(&sweep).len(), 1, "nothing was submitted twice");
    assert_eq!(column(&rows(&sweep), "id"), [0, 1, 2, 3].map(|task| format!("{id}_{task}")));
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed"; 4]);
    // Killed while submitting: the id is unknown, the script is known.
    let text = fs::read_to_string(sweep.join("slurm.json")).unwrap();
    fs::write(sweep.join("slurm.json"), text.replace(&format!("\"id\": {id}"), "\"id\": null")).unwrap();
    fs::rename(sweep.join("3"), sweep.join("3-away")).unwrap();
    let again = cluster.run(dir.path(), &with(&resume, &["hydra.launcher.files_wait_s=1"]));
    assert!(again.err.contains("found in Slurm again: 1 job\n"), "{}", again.err);
    assert_eq!(arrays(&sweep)[0]["id"].as_u64(), Some(id), "found by its script");
    // Its directory is gone, so only this job is submitted again.
    let last = cluster
        .run(dir.path(), &with(&resume, &["hydra.launcher.timeout_min=7", "hydra.launcher.files_wait_s=0"]));
    if last.code != 0 {
        // Slurm still lists it as completed.
        assert!(last.err.contains("its directory has no end"), "{}", last.err);
    }
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn only_missing_jobs_are_submitted_again() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let setup = "hydra.launcher.setup=['[ $SLURM_ARRAY_TASK_ID != 1 ] || exit 7']";
    let said = cluster.run(dir.path(), &with(&QUICK, &["runtime.requests=2,3,4", setup]));
    assert_eq!(said.code, 1, "{}", said.err);
    let sweep = sweep_dir(dir.path());
    let resume = ["run", "--resume", sweep.to_str().unwrap()];
    let asked = cluster.run(dir.path(), &resume);
    assert!(
        asked.code == 2 && asked.err.contains("|| exit 7\n"),
        "its setup is code of the sweep: {}",
        asked.err
    );
    let resume = [&resume[..], &["--yes"]].concat();
    let refused = cluster.run(dir.path(), &with(&resume, &["runtime.requests=5"]));
    assert!(refused.code == 2 && refused.err.contains("only hydra/launcher"), "{}", refused.err);
    let said = cluster
        .run(dir.path(), &with(&resume, &["hydra.launcher.setup=null", "hydra.launcher.timeout_min=7"]));
    assert_eq!(said.code, 0, "{}", said.err);
    let submitted: Vec<Value> = arrays(&sweep).iter().map(|array| array["jobs"].clone()).collect();
    assert_eq!(submitted, [serde_json::json!([0, 1, 2]), serde_json::json!([1])]);
    let second = arrays(&sweep)[1]["id"].as_u64().unwrap();
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed"; 3]);
    assert_eq!(cluster.field(&format!("{second}_0"), "TimeLimit").as_deref(), Some("00:07:00"));
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn arrays_larger_than_allowed_are_split() {
    let (cluster, dir) = (Cluster::with_arrays_of(2), tempfile::tempdir().unwrap());
    let said = cluster.run(
        dir.path(),
        &with(&QUICK, &["runtime.requests=2,3,4,5,6", "hydra.launcher.array_parallelism=1"]),
    );
    assert_eq!(said.code, 0, "{}", said.err);
    let sweep = sweep_dir(dir.path());
    let sizes: Vec<usize> =
        arrays(&sweep).iter().map(|array| array["jobs"].as_array().unwrap().len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed"; 5]);
    // One job at a time, over all arrays.
    let mut times: Vec<(String, String)> = Vec::new();
    for array in arrays(&sweep) {
        for task in 0..array["jobs"].as_array().unwrap().len() {
            let task = format!("{}_{task}", array["id"]);
            times
                .push((cluster.field(&task, "StartTime").unwrap(), cluster.field(&task, "EndTime").unwrap()));
        }
    }
    times.sort();
    assert!(times.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{times:?}");
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn jobs_that_are_not_accepted_yet_are_submitted_later() {
    use std::os::unix::fs::PermissionsExt;
    let (cluster, dir, tools) =
        (Cluster::start(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Limits of users need a database. This sbatch has a limit of two jobs, and Slurm's original message.
    let sbatch = tools.path().join("sbatch");
    let limited = "#!/bin/bash\n\
        last=$(sed -n 's/^#SBATCH --array=\"0-\\([0-9]*\\)%.*/\\1/p' \"${@: -1}\")\n\
        if [ $((last + 1 + $(squeue --noheader --array | wc -l))) -gt 2 ]; then\n\
            echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2\n\
            echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user'\\''s size and/or time limits)' >&2\n\
            exit 1\n\
        fi\n\
        exec /usr/bin/sbatch \"$@\"\n";
    fs::write(&sbatch, limited).unwrap();
    fs::set_permissions(&sbatch, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
    let mut command = cluster.program(dir.path(), &with(&QUICK, &["runtime.requests=2,3,4,5,6"]));
    let said = said(command.env("PATH", path).output().unwrap());
    assert_eq!(said.code, 0, "{}", said.err);
    let sweep = sweep_dir(dir.path());
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed"; 5]);
    assert!(arrays(&sweep).len() >= 3, "{:?}", arrays(&sweep));
    assert!(said.err.contains("submitted to Slurm: "), "{}", said.err);
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn refusals_have_a_message() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let said =
        cluster.run(dir.path(), &with(&QUICK, &["runtime.requests=2,3", "hydra.launcher.partition=nix"]));
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("sbatch refuses the jobs: invalid partition specified: nix"), "{}", said.err);
    assert!(said.err.contains("--resume"), "{}", said.err);
    // A job that can never start is reported while it waits.
    let never =
        with(&QUICK, &["runtime.requests=2,3", "hydra.launcher.exclude=n1", "hydra.launcher.nodes=2"]);
    let said = cluster.run(dir.path(), &never);
    assert!(said.code == 2 && said.err.contains("sbatch refuses the jobs"), "{}", said.err);
    cluster.script(&["--stop", "ctld"]);
    let said = cluster.run(dir.path(), &with(&QUICK, &["runtime.requests=2,3"]));
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("Slurm's controller does not answer"), "{}", said.err);
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn jobs_continue_without_the_program_until_they_are_cancelled() {
    let (cluster, dir) = (Cluster::start(), tempfile::tempdir().unwrap());
    let child = cluster.spawn(dir.path(), &with(&SLOW, &["runtime.requests=2000", "runtime.seed=0,1,2"]));
    let sweep = sweep_dir(dir.path());
    let id = array(&sweep);
    in_time("a running job", || sweep.join("0/events.ndjson").exists().then_some(()));
    signal(child.id(), "INT");
    let said = ended(child);
    assert_eq!(said.code, 130, "{}", said.err);
    assert!(said.err.contains("3 jobs continue in Slurm") && said.err.contains("--cancel"), "{}", said.err);
    assert!(cluster.ask("squeue", &["--noheader"]).lines().count() >= 2, "they go on");
    let cancelled = cluster.run(dir.path(), &["run", "--resume", sweep.to_str().unwrap(), "--cancel"]);
    assert_eq!(cluster.ask("squeue", &["--noheader"]), "", "{}", cancelled.err);
    assert_eq!(column(&rows(&sweep), "reason"), ["cancelled on request"; 3]);
    assert_eq!(column(&rows(&sweep), "outcome"), ["interrupted"; 3]);
    assert_eq!(finished(&sweep.join("0")).outcome, Outcome::Interrupted, "its recording is complete");
    assert_eq!(arrays(&sweep).len(), 1, "{id}");
}

#[test]
#[ignore = "needs Slurm and root; .ci/run installs it"]
fn the_screen_follows_the_jobs() {
    let cluster = Cluster::start();
    let args = with(&SLOW[1..], &["runtime.requests=2000", "runtime.seed=0,1,2"]);
    let conf = cluster.conf();
    let env = [("SLURM_CONF", conf.as_str())];
    let terminal = Terminal::start_in(tempfile::tempdir().unwrap(), &args, &env, (120, 40));
    terminal.see("sweep of 3 jobs");
    terminal.see("2 running");
    terminal.see("pending: no free resources");
    terminal.see(" n2 ");
    // Up to the first job, and into it.
    terminal.send("kkk");
    terminal.press("\r", "decode tok/s");
    terminal.press("b", "sweep of 3 jobs");
    terminal.press("r", "not available in this sweep");
    terminal.press("C", "Cancel the 3 jobs that have not ended (2 running)?");
    terminal.press("n", "1 pending");
    terminal.press("C", "y cancels");
    terminal.send("y");
    terminal.see("3 interrupted");
    terminal.see("the sweep has finished");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 0, "{}", terminal.text());
    terminal.assert_restored();
    let text = terminal.text();
    assert!(text.contains("cancelled on request") && text.contains("0 of 3 jobs completed"), "{text}");
}

#[test]
fn without_slurm_its_commands_are_named() {
    let (dir, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let args = with(&QUICK, &["runtime.requests=2,3"]);
    let said = said(program(dir.path()).args(args).env("PATH", empty.path()).output().unwrap());
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("is not in PATH; start this on a login node of the cluster"), "{}", said.err);
}
