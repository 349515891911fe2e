//! Sweeps end to end: order, table, failures, resuming, cool-down, and the screen.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant, SystemTime},
};

use crate::common::terminal::Terminal;
use crate::common::{
    KilledOnDrop, ProgramOutput, SIM_TIMES, column, ended, ended_with_output, events, eventually, finished,
    limited, output, program, rows, run, said, signal,
};
use llmprof::event::Outcome;
use serde_json::Value;

/// A simulated run without waiting.
const QUICK: [&str; 9] = [
    "run",
    "-m",
    "runtime=sim",
    "runtime.sim.speed=0",
    SIM_TIMES[0],
    SIM_TIMES[1],
    "runtime.requests=3",
    "infer=short",
    "hardware.cooldown_s=0",
];

/// Jobs of about a second each.
const SLOW: [&str; 8] = [
    "run",
    "-m",
    "runtime=sim",
    SIM_TIMES[0],
    SIM_TIMES[1],
    "runtime.requests=15",
    "infer=short",
    "hardware.cooldown_s=0.1",
];

fn quick(dir: &Path, more: &[&str]) -> ProgramOutput {
    run(dir, &[&QUICK[..], more].concat())
}

/// The directory of the one sweep below `dir`.
fn sweep_dir(dir: &Path) -> PathBuf {
    eventually("a sweep's directory", || {
        let found = fs::read_dir(dir.join("runs/baseline/multirun")).ok()?.flatten().next()?.path();
        found.join("sweep.json").exists().then_some(found)
    })
}

#[test]
fn jobs_run_in_hydras_order_and_end_in_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let said = quick(dir.path(), &["model=qwen3_0_6b,smollm2_135m", "runtime.batch_size=2,1"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let lines: Vec<Vec<&str>> = said.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        ["job", "model", "runtime.batch_size", "TTFT", "p50", "TPOT", "p50", "tok/s", "outcome"]
    );
    let wanted = [("qwen3_0_6b", "2"), ("qwen3_0_6b", "1"), ("smollm2_135m", "2"), ("smollm2_135m", "1")];
    for (at, (model, batch)) in wanted.into_iter().enumerate() {
        let line = &lines[at + 1];
        assert_eq!(line[..3], [(at + 1).to_string().as_str(), model, batch], "{}", said.out);
        assert_eq!(line.last(), Some(&"completed"));
        let label = format!("job {}/4  model={model} runtime.batch_size={batch}", at + 1);
        assert!(said.err.contains(&label), "{}", said.err);
    }
    let sweep = sweep_dir(dir.path());
    let rows = rows(&sweep);
    assert_eq!(column(&rows, "model"), wanted.map(|(model, _)| model));
    assert_eq!(column(&rows, "outcome"), ["completed"; 4]);
    for (at, (model, batch)) in wanted.into_iter().enumerate() {
        let job = sweep.join(at.to_string());
        assert_eq!(finished(&job).outcome, Outcome::Completed);
        let kept = |name: &str| fs::read_to_string(job.join(name)).unwrap();
        for name in ["config.yaml", ".hydra/config.yaml", "metrics.json", "report.md"] {
            assert!(!kept(name).is_empty(), "{name}");
        }
        assert!(kept("overrides.yaml").contains(&format!("- runtime.batch_size={batch}\n")));
        let hydra = kept(".hydra/hydra.yaml");
        for text in [format!("num: {at}\n"), "mode: MULTIRUN".into(), format!("model: {model}\n")] {
            assert!(hydra.contains(&text), "{text:?} is not in\n{hydra}");
        }
        let metrics: Value = serde_json::from_str(&kept("metrics.json")).unwrap();
        let tpot: f64 = rows[at]["tpot_p50_ms"].as_str().unwrap().parse().unwrap();
        assert_eq!(metrics["metrics"]["tpot_ms"]["p50"].as_f64(), Some(tpot));
    }
    let multirun = fs::read_to_string(sweep.join("multirun.yaml")).unwrap();
    for text in ["mode: MULTIRUN", "- runtime.batch_size=2,1", "subdir: ${hydra:job.num}"] {
        assert!(multirun.contains(text), "{text:?} is not in\n{multirun}");
    }
}

#[test]
fn json_has_the_same_as_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let said = quick(dir.path(), &["--json", "--quiet", "runtime.requests=1,3"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let value: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(value["complete"], true);
    let jobs = value["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2);
    assert_eq!(jobs[0]["swept"], serde_json::json!({"runtime.requests": "1"}));
    assert_eq!(jobs[0]["ttft_ms"]["p50"], Value::Null, "one sample has no median");
    assert!(jobs[1]["ttft_ms"]["p50"].is_f64());
    let rows = rows(&sweep_dir(dir.path()));
    assert_eq!(column(&rows, "ttft_p50_ms")[0], "", "not there is empty");
    assert!(dir.path().join(jobs[1]["run_dir"].as_str().unwrap()).join("events.ndjson").exists());
}

#[test]
fn directories_are_where_hydra_sweep_says() {
    let dir = tempfile::tempdir().unwrap();
    let said = quick(
        dir.path(),
        &[
            "runtime.seed=1,2",
            "hydra.sweep.dir=swept/${experiment}",
            "hydra.sweep.subdir=${hydra:job.num}/${hydra:job.override_dirname}",
            "hydra.job.config.override_dirname.exclude_keys=[runtime,infer,runtime.sim.speed,runtime.sim.prefill_tok_s,runtime.sim.itl_ms,hardware.cooldown_s]",
        ],
    );
    assert_eq!(said.code, 0, "{}", said.err);
    for job in ["0/runtime.requests=3,runtime.seed=1", "1/runtime.requests=3,runtime.seed=2"] {
        let job = dir.path().join("swept/baseline").join(job);
        assert!(job.join("events.ndjson").exists(), "{}", job.display());
    }
    // A second sweep does not write over the first.
    quick(dir.path(), &["runtime.seed=1,2", "hydra.sweep.dir=swept/${experiment}"]);
    assert!(dir.path().join("swept/baseline-2/1/metrics.json").exists());
}

#[test]
fn mistakes_are_reported_before_anything_starts() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("elsewhere")).unwrap();
    let cases: [(&[&str], &[&str]); 13] = [
        (&["run", "runtime=sim", "hydra.run.dir=."], &["hydra.run.dir: . is not", "runs/mine"]),
        (&["run", "-m", "runtime=sim", "hydra.sweep.dir=."], &["hydra.sweep.dir: . is not", "runs/mine"]),
        (&["run", "runtime=sim", "runtime.seed=1,2"], &["runtime.seed=1,2", "-m", "--multirun"]),
        (&["runtime=sim", "runtime.seed=1,2"], &["-m"]),
        (&["run", "-m", "runtime=sim", "runtime.requests=3,many"], &["job 2", "runtime.requests", "many"]),
        (&["run", "-m", "runtime=sim", "model=smollm2_135m,smolm"], &["job 2", "smolm", "smollm2_135m"]),
        (&["run", "-m", "dataset.prompt_tokens=9,9000"], &["job 2", "dataset.prompt_tokens"]),
        (
            &["run", "-m", "runtime=sim", "hydra.sweep.subdir=x", "runtime.seed=1,2"],
            &["job 2", "hydra.sweep.subdir"],
        ),
        (&["run", "-m", "runtime=sim", "hydra.sweep.subdir=../x"], &["hydra.sweep.subdir", "../x"]),
        (
            &["run", "-m", "hydra.sweep.dir=${model.name}", "model=qwen3_0_6b,smollm2_135m"],
            &["hydra.sweep.dir", "hydra.sweep.subdir"],
        ),
        (
            &["run", "--resume", "elsewhere", "runtime.seed=1"],
            &["--resume", "only hydra/launcher and hydra.launcher"],
        ),
        (&["run", "--resume", "elsewhere"], &["elsewhere", "not a sweep"]),
        (&["run", "--resume", "nowhere"], &["nowhere", "no such directory"]),
    ];
    for (args, words) in cases {
        let said = run(dir.path(), args);
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{args:?}: {}", said.err);
        for word in words {
            assert!(said.err.contains(word), "{args:?} does not report {word:?}: {}", said.err);
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["elsewhere"]);
}

#[test]
fn a_failed_job_is_a_row_and_runs_again() {
    let dir = tempfile::tempdir().unwrap();
    let said = quick(dir.path(), &["runtime.requests=100", "runtime.sim.scenario=fail,steady"]);
    assert_eq!(said.code, 1, "{}", said.err);
    let sweep = sweep_dir(dir.path());
    let before = rows(&sweep);
    assert_eq!(column(&before, "outcome"), ["failed", "completed"]);
    let reason = before[0]["reason"].as_str().unwrap();
    assert!(!reason.is_empty() && said.out.contains(&format!("failed: {reason}")), "{}", said.out);
    assert!(
        said.err.contains("1 of 2 jobs completed") && said.err.contains("--resume runs/"),
        "{}",
        said.err
    );
    let completed = fs::read(sweep.join("1/events.ndjson")).unwrap();

    let again = run(dir.path(), &["run", "--resume", sweep.to_str().unwrap()]);
    assert_eq!(again.code, 1, "{}", again.err);
    assert!(again.err.contains("job 1/2 runs again") && again.err.contains("0-failed"), "{}", again.err);
    assert_eq!(finished(&sweep.join("0-failed")).outcome, Outcome::Failed);
    assert_eq!(finished(&sweep.join("0")).outcome, Outcome::Failed);
    assert_eq!(fs::read(sweep.join("1/events.ndjson")).unwrap(), completed);
    assert_eq!(column(&rows(&sweep), "outcome"), ["failed", "completed"]);
}

#[test]
fn a_model_that_does_not_fit_does_not_end_the_sweep() {
    let dir = tempfile::tempdir().unwrap();
    let args = [&QUICK[..], &["model=qwen2_5_72b", "model.dtype=f32", "runtime=candle,sim"]].concat();
    // In kilobytes: less than 291 GB on any machine.
    let said = limited(dir.path(), "-v 100000000", &args);
    assert_eq!(said.code, 1, "{}", said.err);
    let rows = rows(&sweep_dir(dir.path()));
    assert_eq!(column(&rows, "outcome"), ["failed", "completed"]);
    assert!(rows[0]["reason"].as_str().unwrap().contains("needs 29"), "{rows:?}");
    assert_eq!(rows[0]["decode_tok_s"], "");
}

#[test]
fn a_job_that_changed_since_is_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let option = dir.path().join("mine/infer/mine.yaml");
    fs::create_dir_all(option.parent().unwrap()).unwrap();
    fs::write(&option, "max_new_tokens: 16\n").unwrap();
    let said = quick(
        dir.path(),
        &["--conf-dir", "mine", "infer=mine", "runtime.requests=100", "runtime.sim.scenario=steady,fail"],
    );
    assert_eq!(said.code, 1, "{}", said.err);
    let sweep = sweep_dir(dir.path());
    fs::write(&option, "max_new_tokens: 17\n").unwrap();
    let again = run(dir.path(), &["run", "--resume", sweep.to_str().unwrap()]);
    assert_eq!(again.code, 2, "{}", again.err);
    assert!(again.err.contains("job 2") && again.err.contains("changed"), "{}", again.err);
    assert!(!sweep.join("1-failed").exists());
}

#[test]
fn a_killed_sweep_is_resumed_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    // It stays in the cool-down after its first job. The resumed sweep has no cool-down before its only remaining job.
    let child = program(dir.path())
        .args(QUICK)
        .args(["runtime.seed=1,2", "hardware.cooldown_s=600"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = KilledOnDrop(child.unwrap());
    let sweep = sweep_dir(dir.path());
    eventually("the row of the first job", || rows_if_any(&sweep).into_iter().next());
    let resume = ["run", "--resume", sweep.to_str().unwrap()];
    let busy = run(dir.path(), &resume);
    assert_eq!(busy.code, 1, "{}", busy.err);
    assert!(busy.err.contains("another process"), "{}", busy.err);
    signal(child.0.id(), "KILL");
    ended(&mut child.0);

    assert_eq!(column(&rows(&sweep), "runtime.seed"), ["1"], "the table is there after a kill");
    let first = fs::read(sweep.join("0/events.ndjson")).unwrap();
    let said = run(dir.path(), &resume);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(fs::read(sweep.join("0/events.ndjson")).unwrap(), first, "a completed job does not run again");
    let rows = rows(&sweep);
    assert_eq!(column(&rows, "runtime.seed"), ["1", "2"]);
    assert_eq!(column(&rows, "outcome"), ["completed"; 2]);
    for job in ["0", "1"] {
        assert_eq!(finished(&sweep.join(job)).outcome, Outcome::Completed);
    }
}

#[test]
fn a_job_that_was_killed_runs_again_and_its_recording_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    // The second job does not end by itself.
    let child = program(dir.path())
        .args(SLOW)
        .arg("runtime.requests=15,100000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = KilledOnDrop(child.unwrap());
    let sweep = sweep_dir(dir.path());
    let second = sweep.join("1");
    let until_recorded = || {
        eventually("something of the second job", || {
            let has_content = fs::metadata(second.join("events.ndjson")).ok()?.len() > 0;
            (has_content && events(&second).len() > 20).then_some(())
        })
    };
    until_recorded();
    signal(child.0.id(), "KILL");
    ended(&mut child.0);
    assert_eq!(column(&rows(&sweep), "runtime.requests"), ["15"]);

    let again = program(dir.path())
        .args(["run", "--resume", sweep.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut again = KilledOnDrop(again.unwrap());
    let aside = sweep.join("1-interrupted");
    eventually("the earlier recording set aside", || aside.exists().then_some(()));
    until_recorded();
    signal(again.0.id(), "INT");
    let said = said(ended_with_output(&mut again.0));
    assert_eq!(said.code, 130, "{}", said.err);
    assert!(said.err.contains("job 2/2 runs again") && said.err.contains("1-interrupted"), "{}", said.err);
    assert!(events(&aside).len() > 20, "the recording is not lost");
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed", "interrupted"]);
}

#[test]
fn an_interrupted_sweep_prints_how_to_resume() {
    let dir = tempfile::tempdir().unwrap();
    let child = program(dir.path())
        .args(SLOW)
        .arg("runtime.requests=15,100000,15")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = KilledOnDrop(child.unwrap());
    let sweep = sweep_dir(dir.path());
    eventually("the second job", || sweep.join("1/events.ndjson").exists().then_some(()));
    signal(child.0.id(), "INT");
    let said = said(ended_with_output(&mut child.0));
    assert_eq!(said.code, 130, "{}", said.err);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[1].ends_with("completed"), "{}", said.out);
    assert!(lines[2].ends_with("interrupted: SIGINT"), "{}", said.out);
    assert!(lines[3].ends_with("not run"), "{}", said.out);
    let dir = sweep.strip_prefix(dir.path()).unwrap().display();
    assert!(said.err.contains(&format!("llmprof-tui run --resume {dir}")), "{}", said.err);
    assert_eq!(finished(&sweep.join("1")).outcome, Outcome::Interrupted);
    assert_eq!(column(&rows(&sweep), "outcome"), ["completed", "interrupted"]);
}

#[test]
fn the_cooldown_lasts_until_the_gpu_is_cool() {
    let dir = tempfile::tempdir().unwrap();
    // Sixty requests leave the simulated GPU near 49 °C; idle, it falls towards 38 °C.
    let said =
        quick(dir.path(), &["runtime.requests=60", "runtime.seed=1,2", "hardware.cooldown_until_c=41"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(!said.err.contains("hardware.cooldown_max_s"), "{}", said.err);
    assert_eq!(column(&rows(&sweep_dir(dir.path())), "outcome"), ["completed"; 2]);
}

#[test]
fn the_cooldown_is_printed_and_can_be_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let printed = dir.path().join("stderr");
    // The simulated GPU never gets that cool.
    let child = program(dir.path())
        .args(QUICK)
        .args(["runtime.seed=1,2", "hardware.cooldown_until_c=20", "hardware.cooldown_max_s=600"])
        .stdout(Stdio::null())
        .stderr(fs::File::create(&printed).unwrap())
        .spawn();
    let mut child = KilledOnDrop(child.unwrap());
    eventually("the line of the cool-down", || {
        let text = fs::read_to_string(&printed).ok()?;
        let mut lines = text.lines().filter(|line| line.contains("job 2/2  runtime.seed=2  cool-down "));
        lines.any(|line| line.contains("°C to below 20 °C, at most ")).then_some(())
    });
    signal(child.0.id(), "INT");
    assert_eq!(ended(&mut child.0).code(), Some(130));
    assert_eq!(column(&rows(&sweep_dir(dir.path())), "outcome"), ["completed"]);
}

#[test]
fn a_gpu_that_stays_warm_is_used_after_the_maximum() {
    let dir = tempfile::tempdir().unwrap();
    let said = quick(
        dir.path(),
        &["runtime.seed=1,2", "hardware.cooldown_until_c=20", "hardware.cooldown_max_s=0.3"],
    );
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(
        said.err.contains("after 0.3 s (hardware.cooldown_max_s): starting the next job"),
        "{}",
        said.err
    );
}

#[test]
fn a_missing_temperature_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let said = quick(
        dir.path(),
        &["telemetry=none", "runtime.seed=1,2,3", "hardware.cooldown_until_c=20", "hardware.cooldown_s=0.4"],
    );
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(said.err.matches("the temperature cannot be read").count(), 1, "{}", said.err);
    assert!(said.err.contains("telemetry.probe=none") && said.err.contains("cooldown_s=0.4"), "{}", said.err);
    assert!(begun.elapsed() > Duration::from_millis(800), "two cool-downs: {:?}", begun.elapsed());
}

#[test]
fn the_screen_shows_a_sweep_and_its_keys_move_it() {
    let endless = [
        "-m",
        "runtime=sim",
        "runtime.requests=100000",
        "infer=long",
        "hardware.cooldown_s=600",
        "runtime.seed=1,2,3",
    ];
    let terminal = Terminal::start(&endless);
    let runs = |job: &str| {
        terminal.until(job, |screen| {
            let text = screen.contents();
            text.contains(job) && !text.contains("next job")
        });
    };
    terminal.see("job 1/3  runtime.seed=1");
    terminal.see("decode, mean");
    terminal.press("r", "not available in a sweep");
    terminal.press("e", "next job 2/3");
    terminal.see("cool-down");
    // During the cool-down, the same key ends it.
    terminal.send("e");
    runs(" job 2/3  runtime.seed=2");
    terminal.press("6", "outcome");
    terminal.until("a table of the jobs", |screen| {
        let text = screen.contents();
        ["interrupted", "running", "waiting"].iter().all(|word| text.contains(word))
    });
    // A completed job is opened; q and Esc return to the table.
    for leave in ["q", "\x1b"] {
        terminal.press("k", "job 1/3");
        terminal.press("\r", "interrupted");
        terminal.see("q sweep");
        terminal.press(leave, "waiting");
    }
    terminal.press("\x1b[B\r", "press 1 to see it");
    terminal.press("e", "next job 3/3");
    terminal.send("e");
    runs(" job 3/3  runtime.seed=3");
    terminal.press("q", "have not ended: 1 of 3");
    terminal.send("q");
    assert_eq!(terminal.exit_code(), 0, "{}", terminal.text());
    terminal.assert_restored();
    let sweep = sweep_dir(terminal.path());
    let text = terminal.text().replace('\n', "");
    assert!(text.contains("0 of 3 jobs completed") && text.contains("llmprof-tui --resume runs/"), "{text}");
    assert_eq!(
        column(&rows(&sweep), "reason"),
        ["ended by the user", "ended by the user", "quit by the user"]
    );

    let again = Terminal::start(&["--resume", sweep.to_str().unwrap()]);
    again.see("job 1/3  runtime.seed=1");
    again.see("0-interrupted");
    again.send("qq");
    assert_eq!(again.exit_code(), 0, "{}", again.text());
    assert_eq!(finished(&sweep.join("0-interrupted")).cause.as_deref(), Some("ended by the user"));
    assert_eq!(column(&rows(&sweep), "outcome"), ["interrupted"; 3]);
}

/// The start and end of a run's events, by the machine's clock.
fn wall_times(job: &Path) -> (SystemTime, SystemTime) {
    let time = |name: &str| fs::metadata(job.join(name)).unwrap().modified().unwrap();
    (time(".hydra/config.yaml"), time("metrics.json"))
}

#[test]
fn several_jobs_run_at_once_on_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        [&SLOW[..], &["hydra/launcher=local", "hydra.launcher.n_jobs=2", "runtime.seed=1,2,3,4"]].concat();
    let said = run(dir.path(), &args);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("warning: jobs at once on one machine share its CPU"), "{}", said.err);
    let sweep = sweep_dir(dir.path());
    let rows = rows(&sweep);
    assert_eq!(column(&rows, "outcome"), ["completed"; 4]);
    assert!(column(&rows, "on").iter().all(|on| on == "process 1" || on == "process 2"), "{rows:?}");
    let times: Vec<_> = (0..4).map(|job| wall_times(&sweep.join(job.to_string()))).collect();
    // Never more than two at once. Short jobs may not overlap at all; those of the next test do not end before two of
    // them run.
    let at_once =
        |moment: SystemTime| times.iter().filter(|(from, to)| *from <= moment && moment < *to).count();
    assert!(times.iter().all(|(from, _)| at_once(*from) <= 2), "{times:?}");
}

#[test]
fn jobs_of_this_machine_end_with_the_sweep_and_are_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let long =
        ["hydra/launcher=local", "hydra.launcher.n_jobs=2", "runtime.seed=1,2,3", "runtime.requests=100000"];
    for (signal_name, code) in [("INT", Some(130)), ("KILL", None)] {
        let root = dir.path().join(signal_name);
        fs::create_dir(&root).unwrap();
        let child = program(&root)
            .args([&SLOW[..], &long].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = KilledOnDrop(child.unwrap());
        let sweep = sweep_dir(&root);
        eventually("two running jobs", || {
            let runs =
                |job: &str| fs::metadata(sweep.join(job).join("events.ndjson")).is_ok_and(|f| f.len() > 0);
            (runs("0") && runs("1")).then_some(())
        });
        signal(child.0.id(), signal_name);
        assert_eq!(ended(&mut child.0).code(), code);
        for job in ["0", "1"] {
            let ended = || sweep.join(job).join("metrics.json").exists().then_some(());
            eventually("the end of the job's recording", ended);
            assert_eq!(finished(&sweep.join(job)).outcome, Outcome::Interrupted, "{signal_name}");
        }
        assert!(!sweep.join("2").exists());
    }
    let sweep = sweep_dir(&dir.path().join("INT"));
    assert_eq!(column(&rows(&sweep), "outcome"), ["interrupted"; 2]);
}

#[test]
fn a_job_of_this_machine_that_fails_has_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "hydra/launcher=local",
        "hydra.launcher.n_jobs=2",
        "runtime.sim.scenario=steady",
        "runtime.seed=1,2",
    ];
    let child = program(dir.path())
        .args([&SLOW[..], &args, &["runtime.requests=100000"]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = KilledOnDrop(child.unwrap());
    let sweep = sweep_dir(dir.path());
    let pid = eventually("the process of the first job", || {
        let of_job = |entry: fs::DirEntry| {
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
            let name = sweep.file_name().unwrap().to_str().unwrap();
            let cwd = fs::read_link(entry.path().join("cwd")).ok()?;
            let is_it = String::from_utf8_lossy(&command).contains(name)
                && cwd == dir.path().canonicalize().unwrap()
                && words.windows(2).any(|pair| pair == [b"--job" as &[u8], b"0"]);
            is_it.then(|| entry.file_name().to_str()?.parse::<u32>().ok()).flatten()
        };
        let recorded = fs::metadata(sweep.join("0/events.ndjson")).is_ok_and(|file| file.len() > 0);
        recorded.then(|| fs::read_dir("/proc").unwrap().flatten().find_map(of_job)).flatten()
    });
    signal(pid, "KILL");
    eventually("its row", || rows_if_any(&sweep).into_iter().next());
    assert_eq!(column(&rows(&sweep), "outcome"), ["failed"]);
    assert!(column(&rows(&sweep), "reason")[0].starts_with("signal: 9 (SIGKILL)"), "{:?}", rows(&sweep));
    signal(child.0.id(), "INT");
    assert_eq!(ended(&mut child.0).code(), Some(130));
}

fn rows_if_any(sweep: &Path) -> Vec<Value> {
    if sweep.join("sweep.csv").exists() { rows(sweep) } else { Vec::new() }
}

#[test]
#[cfg(target_os = "linux")]
fn each_gpu_has_one_job() {
    let (dir, library) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-DCOUNT=3", "-DBOARD=7", "-o"])
        .arg(library.path().join("libnvidia-ml.so.1"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_nvml/fake_nvml.c"))
        .status();
    assert!(built.expect("a C compiler").success());
    let on_gpus = |more: &[&str]| {
        let args = [&QUICK[..], &["hydra/launcher=local", "runtime.seed=1,2,3,4"], more].concat();
        let mut command = program(dir.path());
        command.args(args).env("LD_LIBRARY_PATH", library.path()).env_remove("CUDA_VISIBLE_DEVICES");
        said(output(&mut command))
    };
    let none = on_gpus(&["hydra.launcher.gpus=[0,5]"]);
    assert!(
        none.code == 2 && none.err.contains("there is no GPU 5; the GPUs of this machine are 0, 1, 2"),
        "{}",
        none.err
    );
    fs::remove_dir_all(dir.path().join("runs")).unwrap();
    let said = on_gpus(&["hydra.launcher.gpus=[2,0]"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains("warning: GPUs 2 and 0 are on one board"), "{}", said.err);
    let sweep = sweep_dir(dir.path());
    for (job, row) in rows(&sweep).iter().enumerate() {
        let kept = fs::read(sweep.join(job.to_string()).join("env.json")).unwrap();
        let kept: Value = serde_json::from_slice(&kept).unwrap();
        let on = row["on"].as_str().unwrap();
        let wanted = match on {
            "GPU 2" => "GPU-odd2",
            "GPU 0" => "GPU-odd0",
            other => panic!("{other}"),
        };
        let visible = format!("[\"CUDA_VISIBLE_DEVICES\",\"{wanted}\"]");
        assert!(kept["variables"].to_string().contains(&visible), "{on}: {}", kept["variables"]);
    }
}
