//! A foreign directory does not act for its owner: configurations and sweeps cannot name programs, and a sweep asks
//! before it runs.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
};

use crate::common::terminal::Terminal;
use crate::common::{eventually, program, run, said, tiny_model};
use tempfile::TempDir;

/// Overrides that would make a shell create a file.
fn shell(dir: &Path) -> String {
    format!("[sh, -c, 'touch {}']", dir.join("mark").display())
}

fn sweep_dir(dir: &Path) -> PathBuf {
    eventually("a sweep's directory", || {
        let found = fs::read_dir(dir.join("runs/baseline/multirun")).ok()?.flatten().next()?.path();
        found.join("sweep.json").exists().then_some(found)
    })
}

/// A sweep with two jobs that have not run.
fn waiting_sweep(overrides: &[&str]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    let fixed = ["run", "-m", "--quiet", "runtime.requests=1", "infer=short", "runtime.seed=1,2"];
    let model = format!("model.config_json={}", dir.path().join("tiny.json").display());
    let shape = [&model, "dataset.prompt_tokens=8", "hardware.cooldown_s=0"];
    run(dir.path(), &[&fixed[..], &shape, overrides].concat());
    let sweep = sweep_dir(dir.path());
    for job in ["0", "1"] {
        fs::remove_dir_all(sweep.join(job)).unwrap();
    }
    (dir, sweep)
}

const TOOLS: [&str; 3] =
    ["runtime.device=cpu", "profiling=nsys", "profiling.nsys.extra=['--gpu-metrics-devices=none']"];
const SIMULATED: [&str; 2] = ["runtime=sim", "runtime.sim.speed=0"];

#[test]
fn a_sweep_that_starts_tools_shows_them_and_asks() {
    let (dir, sweep) = waiting_sweep(&TOOLS);
    let table = fs::read(sweep.join("sweep.csv")).unwrap();
    let resume = ["run", "--resume", sweep.to_str().unwrap()];
    let said = run(dir.path(), &resume);
    assert_eq!((said.code, said.out.as_str()), (2, ""), "{}", said.err);
    for words in [
        "nsys profile --gpu-metrics-devices=none -t cuda,nvtx",
        "job 1/2: ",
        "job 2/2: ",
        "runtime.seed=2",
        "not a terminal: pass --yes",
    ] {
        assert!(said.err.contains(words), "{words}: {}", said.err);
    }
    assert!(!sweep.join("0").exists(), "nothing runs without consent");
    assert_eq!(fs::read(sweep.join("sweep.csv")).unwrap(), table, "nothing is written without consent");

    let said = run(dir.path(), &[&resume[..], &["--yes"]].concat());
    assert!(sweep.join("0/events.ndjson").exists(), "{}", said.err);
    assert!(!said.err.contains("pass --yes"), "{}", said.err);
}

#[test]
fn the_answer_is_read_from_the_terminal() {
    let (_dir, sweep) = waiting_sweep(&TOOLS);
    let terminal = Terminal::start(&["run", "--resume", sweep.to_str().unwrap()]);
    terminal.see("Resume it? [y/N]");
    terminal.send("n\r");
    assert_eq!(terminal.exit_code(), 1, "{}", terminal.text());
    assert!(terminal.text().contains("not resumed"), "{}", terminal.text());
    assert!(!sweep.join("0").exists());

    // The screen opens after the answer.
    let terminal = Terminal::start(&["--resume", sweep.to_str().unwrap()]);
    terminal.see("Resume it? [y/N]");
    terminal.send("y\r");
    eventually("the first job", || sweep.join("0/events.ndjson").exists().then_some(()));
    terminal.see("job ");
    terminal.send("qq");
    terminal.exit_code();
}

#[test]
#[ignore = "needs root, who alone can give files away; .ci/run runs it"]
fn a_sweep_of_another_user_asks() {
    let (dir, sweep) = waiting_sweep(&SIMULATED);
    chown(&sweep, Some(12345), None).unwrap();
    let resume = ["run", "--resume", sweep.to_str().unwrap()];
    let said = run(dir.path(), &resume);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("another user (uid 12345)"), "{}", said.err);
    assert!(!sweep.join("0").exists());
    chown(&sweep, Some(rustix::process::geteuid().as_raw()), None).unwrap();
    chown(sweep.join("sweep.json"), Some(12345), None).unwrap();
    assert_eq!(run(dir.path(), &resume).code, 2, "the file counts too");
    let said = run(dir.path(), &[&resume[..], &["--yes"]].concat());
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn a_sweep_of_this_user_without_tools_is_resumed_at_once() {
    let (dir, sweep) = waiting_sweep(&SIMULATED);
    let said = run(dir.path(), &["run", "--resume", sweep.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}", said.err);
}

#[test]
fn a_sweep_adds_no_arguments_to_a_command_line() {
    let (dir, sweep) = waiting_sweep(&TOOLS);
    let path = sweep.join("sweep.json");
    let mut stored: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for job in stored["jobs"].as_array_mut().unwrap() {
        let words = format!("profiling.nsys.extra={}", shell(dir.path()));
        job["overrides"].as_array_mut().unwrap().push(words.into());
    }
    fs::write(&path, stored.to_string()).unwrap();
    let said = run(dir.path(), &["run", "--resume", sweep.to_str().unwrap(), "--yes"]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("profiling.nsys.extra: got \"sh\""), "{}", said.err);
    assert!(!dir.path().join("mark").exists());
}

#[test]
fn a_configuration_adds_no_arguments_to_a_command_line() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    fs::create_dir_all(dir.path().join("conf/mine")).unwrap();
    let config = |settings: &str| {
        let text = format!("defaults: [/profiling/nsys@profiling, _self_]\n{settings}\n");
        fs::write(dir.path().join("conf/mine/x.yaml"), format!("# @package _global_\n{text}")).unwrap();
    };
    for (settings, got) in [
        (
            format!("profiling: {{nsys: {{extra: {}}}}}", shell(dir.path())),
            "profiling.nsys.extra: got \"sh\"",
        ),
        ("profiling: {nsys: {extra: ['--output=/tmp/x']}}".into(), "got \"--output=/tmp/x\""),
        ("profiling: {nsys: {trace: ['cuda', '-e']}}".into(), "profiling.nsys.trace: got \"-e\""),
        (format!("profiling: {{ncu: {{extra: {}}}}}", shell(dir.path())), "profiling.ncu.extra: got \"sh\""),
        ("profiling: {ncu: {extra: ['--section-folder=.']}}".into(), "got \"--section-folder=.\""),
        ("profiling: {ncu: {metrics: ['--log-file=x']}}".into(), "profiling.ncu.metrics: got"),
        ("profiling: {ncu: {set: '--export'}}".into(), "profiling.ncu.set: got"),
    ] {
        config(&settings);
        let said = run(dir.path(), &["run", "+mine=x", "model.config_json=tiny.json"]);
        assert_eq!(said.code, 2, "{settings}: {}", said.err);
        assert!(said.err.contains(got), "{settings}: {}", said.err);
    }
    assert!(!dir.path().join("mark").exists() && !dir.path().join("runs").exists());
}

#[test]
fn files_of_the_working_directory_are_no_settings_of_a_tool() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| {});
    fs::write(dir.path().join("config.ini"), "").unwrap();
    // As nsys does, it reads config.ini. It runs the program and writes no report.
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo NVIDIA Nsight Systems version 2099.1.1 && exit\n\
         [ -e config.ini ] && touch {}\n\
         while [ \"$1\" != -f ]; do shift; done; shift 2; exec \"$@\"\n",
        dir.path().join("mark").display()
    );
    crate::common::script(&dir.path().join("bin/nsys"), &script);
    let path = format!("{}:{}", dir.path().join("bin").display(), std::env::var("PATH").unwrap());
    let mut run = program(dir.path());
    run.args([
        "run",
        "profiling=nsys",
        "runtime.device=cpu",
        "model.config_json=tiny.json",
        "hydra.run.dir=r",
    ]);
    run.args(["dataset.prompt_tokens=8", "infer.max_new_tokens=6"]).env("PATH", path);
    let said = said(run.output().unwrap());
    assert!(said.err.contains("nsys"), "{}", said.err);
    assert!(dir.path().join("r/nsys/child/metrics.json").exists(), "relative paths are found: {}", said.err);
    assert!(!dir.path().join("mark").exists(), "the tool read config.ini");
}

/// A clone from another user whose `conf/` starts a program that creates a file.
fn foreign_clone() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    fs::create_dir_all(dir.path().join("conf/runtime")).unwrap();
    let server = format!("server:\n  command: touch {}\n  ready_s: 1\n", mark.display());
    let text = format!("defaults: [vllm, _self_]\n{server}");
    fs::write(dir.path().join("conf/runtime/theirs.yaml"), text).unwrap();
    let config = include_str!("../conf/config.yaml").replace("runtime: candle", "runtime: theirs");
    assert!(config.contains("theirs"));
    fs::write(dir.path().join("conf/config.yaml"), config).unwrap();
    (dir, mark)
}

#[test]
fn a_foreign_configuration_starts_nothing() {
    let (dir, mark) = foreign_clone();
    for args in [&["run"][..], &["run", "-m", "runtime.seed=1,2"], &["knee", "slo.ttft_p99_ms=1"]] {
        let said = run(dir.path(), args);
        assert_eq!(said.code, 2, "{args:?}: {}", said.err);
        for words in ["runtime.server.command=\"touch", "theirs.yaml, line 3", "--conf-dir conf"] {
            assert!(said.err.contains(words), "{args:?}, {words}: {}", said.err);
        }
        assert!(!mark.exists() && !dir.path().join("runs").exists(), "{args:?}");
    }
    // Overrides typed by the user are the user's own.
    run(dir.path(), &["run", "runtime.server.command=true"]);
    assert!(!mark.exists());
    run(dir.path(), &["run", "--conf-dir", "conf"]);
    assert!(mark.exists());
}

/// The user names the server, and `conf/` the variable or the file whose content it would get.
#[test]
fn a_foreign_configuration_does_not_choose_what_a_server_gets() {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join("conf").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("runtime/theirs.yaml", "defaults: [openai, _self_]\nserver:\n  key_env: A_SECRET\n");
    write("dataset/theirs.yaml", "defaults: [prompts, _self_]\nprompts:\n  file: /etc/hostname\n");
    let url = ["run", "runtime.server.url=http://127.0.0.1:9", "runtime.server.ready_s=0.2"];
    let cases: [(&[&str], &str, &str); 2] = [
        (&["runtime=theirs"], "runtime.server.key_env=\"A_SECRET\"", "runtime.server.key_env=null"),
        (
            &["runtime=openai", "dataset=theirs"],
            "dataset.prompts.file=\"/etc/hostname\"",
            "dataset.prompts.file=mine.txt",
        ),
    ];
    for (theirs, shown, own) in cases {
        let args = [&url[..], theirs].concat();
        let asked = run(dir.path(), &args);
        assert_eq!(asked.code, 2, "{theirs:?}: {}", asked.err);
        for words in [shown, "theirs.yaml, line 3", "--conf-dir conf"] {
            assert!(asked.err.contains(words), "{theirs:?}, {words}: {}", asked.err);
        }
        // The user's own value, and the user's own choice of the directory.
        for more in [&[own][..], &["--conf-dir", "conf"]] {
            let allowed = run(dir.path(), &[&args[..], more].concat());
            assert!(!allowed.err.contains("to allow its settings"), "{more:?}: {}", allowed.err);
        }
    }
}

/// A Python environment inside a clone is used only on request.
#[test]
fn a_foreign_virtual_environment_is_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    crate::common::script(&dir.path().join(".venv/bin/python"), &format!("touch {}", mark.display()));
    run(dir.path(), &["doctor"]);
    run(dir.path(), &["run", "runtime=pytorch", "model=smollm2_135m", "runtime.requests=1"]);
    assert!(!mark.exists());
    run(dir.path(), &["run", "runtime=pytorch", "runtime.pytorch.python=.venv/bin/python"]);
    assert!(mark.exists(), "the user has named it");
}

#[test]
fn a_foreign_configuration_is_asked_about_once() {
    let (dir, mark) = foreign_clone();
    let home = tempfile::tempdir().unwrap();
    let env = [("HOME", home.path().to_str().unwrap()), ("XDG_DATA_HOME", "")];
    let there = ["run", "--working-dir", dir.path().to_str().unwrap()];
    for (answer, is_started) in [("n\r", false), ("y\r", true)] {
        let terminal = Terminal::start_in(tempfile::tempdir().unwrap(), &there, &env, (120, 40));
        terminal.see("from now on? [y/N]");
        terminal.send(answer);
        terminal.exit_code();
        assert_eq!(mark.exists(), is_started, "{}", terminal.text());
    }
    let again = |name: &str| {
        let mut command = program(dir.path());
        command.arg("run").envs(env);
        fs::remove_file(&mark).unwrap();
        command.output().unwrap();
        assert_eq!(mark.exists(), name == "the same", "{name}");
        fs::write(&mark, "").unwrap();
    };
    again("the same");
    let file = dir.path().join("conf/runtime/theirs.yaml");
    let changed = fs::read_to_string(&file).unwrap().replace("touch", "touch -a");
    fs::write(&file, changed).unwrap();
    again("another command");
}
