//! The command line: what it prints to which stream, and its exit codes.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
};

use crate::common::{
    PROGRAM, SIM_TIMES, events, finished, limited, program, run, run_dirs, said, signal, tiny_model,
};
use llmprof::event::{Event, Level, Outcome};
use serde_json::Value;

const QUICK: [&str; 7] = [
    "run",
    "runtime=sim",
    "runtime.sim.speed=0",
    SIM_TIMES[0],
    SIM_TIMES[1],
    "runtime.requests=3",
    "infer=short",
];

/// Invalid usage: exit code 2, a message only on stderr, and no run started.
#[track_caller]
fn assert_refused(dir: &Path, args: &[&str], expected: &[&str]) {
    let output = run(dir, args);
    assert_eq!(output.code, 2, "{args:?}: {}", output.err);
    assert_eq!(output.out, "", "{args:?}");
    assert!(!output.err.contains('\x1b'), "{args:?}: {:?}", output.err);
    assert!(!output.err.contains("panicked"), "{args:?}: {}", output.err);
    for word in expected {
        assert!(output.err.contains(word), "{args:?}: no {word:?} in {}", output.err);
    }
    assert!(!dir.join("runs").exists(), "{args:?} started a run");
}

#[test]
fn help_lists_commands_and_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let help = run(dir.path(), &["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    for word in
        ["run", "replay", "demo", "config", "Exit codes: 0 ok, 1", "2 bad usage", "130/143", "--model"]
    {
        assert!(help.out.contains(word), "{word}");
    }
    for command in ["run", "replay", "demo", "config"] {
        assert_eq!(run(dir.path(), &[command, "--help"]).code, 0, "{command}");
    }
    let short = format!("llmprof-tui {}\n", env!("CARGO_PKG_VERSION"));
    let version = run(dir.path(), &["-V"]);
    assert_eq!((version.code, &version.out), (0, &short));
    let version = run(dir.path(), &["--version"]);
    assert!(version.out.starts_with(&short), "{}", version.out);
    for word in ["commit ", "rustc ", "kernels compiled with CUDA", "8.0", "12.0", "PTX"] {
        assert!(version.out.contains(word), "{word}: {}", version.out);
    }
}

#[test]
fn mistakes_are_named_with_suggestions() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &[&str]); 16] = [
        (&["--model", "qwen"], &["\"qwen\"", "qwen2_5_7b"]),
        (&["run", "model=smollm"], &["\"smollm\"", "smollm2_135m"]),
        (&["run", "modle=smollm2_135m"], &["\"modle\"", "model"]),
        (&["run", "runtime.reqests=3"], &["runtime.reqests", "runtime.requests"]),
        (&["config", "bogus.key=1"], &["\"bogus.key\""]),
        (&["run", "runtime.requests=many"], &["runtime.requests", "\"many\""]),
        (&["run", "model.dtype=f99"], &["model.dtype", "f99", "bf16"]),
        (&["run", "runtime=sim", "runtime.sim.scenario=sunny"], &["\"sunny\"", "steady"]),
        (&["run", "dataset.prompt_tokens=9000"], &["8192", "dataset.prompt_tokens"]),
        (&["rnu"], &["\"rnu\"", "Did you mean run?"]),
        (&["runtime=sim", "run"], &["\"run\" is a command", ": llmprof-tui run runtime=sim\n"]),
        (&["--model", "smollm2_135m", "a=b c", "cost"], &["llmprof-tui cost model=smollm2_135m 'a=b c'"]),
        (&["replya", "x"], &["\"replya\"", "Did you mean replay?"]),
        (&["--modle", "x"], &["--modle", "--model"]),
        (&["replay", "x", "--at", "soon"], &["soon", "\"end\""]),
        (&["run", "--conf-dir", "nowhere"], &["nowhere"]),
    ];
    for (args, expected) in cases {
        assert_refused(dir.path(), args, expected);
    }
}

#[test]
fn a_screen_without_a_terminal_points_to_run() {
    let dir = tempfile::tempdir().unwrap();
    assert_refused(dir.path(), &["runtime=sim"], &["not a terminal", "llmprof-tui run"]);
    assert_refused(dir.path(), &["demo"], &["not a terminal"]);
    assert_refused(dir.path(), &["watch"], &["not a terminal", "llmprof-tui watch --for SECONDS"]);
}

#[test]
fn an_invalid_shape_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused =
        |expected: &[&str]| assert_refused(dir.path(), &["run", "model.config_json=tiny.json"], expected);
    refused(&["tiny.json"]);
    for garbage in ["", "{", "[]", "\u{0}"] {
        fs::write(dir.path().join("tiny.json"), garbage).unwrap();
        refused(&["tiny.json"]);
    }
    for (key, value) in [
        ("num_attention_heads", 5),
        ("num_key_value_heads", 3),
        ("hidden_size", 0),
        ("num_hidden_layers", 0),
        ("vocab_size", 0),
    ] {
        tiny_model(dir.path(), |shape| shape[key] = value.into());
        refused(&["tiny.json", key]);
    }
    tiny_model(dir.path(), |shape| drop(shape.as_object_mut().unwrap().remove("hidden_size")));
    refused(&["hidden_size"]);
}

#[test]
fn a_model_too_large_for_the_machine_is_refused_before_it_is_created() {
    let dir = tempfile::tempdir().unwrap();
    // In kilobytes: less than 30.5 GB on any machine.
    let output = limited(
        dir.path(),
        "-v 20000000",
        &["--model", "qwen2_5_7b", "model.dtype=f32", "runtime.device=cpu"],
    );
    assert_eq!((output.code, output.out.as_str()), (1, ""));
    assert!(output.err.contains("needs 30.5 GB as f32"), "{}", output.err);
    assert!(!dir.path().join("runs").exists());
}

#[test]
fn a_run_prints_its_result_and_keeps_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &QUICK);
    assert_eq!(output.code, 0, "{}", output.err);
    for word in ["TTFT", "TPOT", "ITL", "tok/s", "simulated", "recorded in runs/baseline/smollm2_135m/"] {
        assert!(output.out.contains(word), "{word}: {}", output.out);
    }
    let run = &run_dirs(dir.path())[0];
    assert_eq!(finished(run).outcome, Outcome::Completed);
    assert_complete(run);
}

#[track_caller]
fn assert_complete(run: &Path) {
    for name in ["metrics.json", "report.md", "env.json", "config.yaml", "overrides.yaml", "llmprof.log"] {
        assert!(fs::metadata(run.join(name)).is_ok_and(|m| m.len() > 0), "{name}");
    }
    let nvml = fs::read_to_string(run.join("nvml.csv")).unwrap();
    let seed =
        "ts,gpu_util_pct,mem_util_pct,sm_clock_MHz,mem_clock_MHz,power_W,temp_C,mem_used_MiB,mem_total_MiB,";
    assert!(nvml.starts_with(seed), "{nvml}");
    assert!(nvml.lines().count() > 1);
}

/// The documented keys of `run --json`.
const DOCUMENTED: [&str; 19] = [
    "schema",
    "run_dir",
    "outcome",
    "model",
    "device",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "prefill_tok_s",
    "decode_tok_s",
    "output_tok_s",
    "energy_j_per_token",
    "mfu",
    "mbu",
    "verdict",
    "causes",
    "advice",
    "trust",
];
/// The other keys.
const OTHER_KEYS: [&str; 23] = [
    "account",
    "bill",
    "vision",
    "program",
    "ranks",
    "cause",
    "kernel_reports",
    "perturbed",
    "dtype",
    "engine",
    "experts",
    "simulated",
    "requests",
    "device_prefill_ms",
    "device_step_ms",
    "device_share",
    "energy_prefill_j_per_token",
    "energy_decode_j_per_token",
    "kernel_recording",
    "speculation",
    "gpu_idle",
    "limit",
    "server",
];

#[test]
fn json_is_one_object_with_known_keys_and_null_for_unknown_values() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &[&QUICK[..], &["--json"]].concat());
    assert_eq!(output.code, 0, "{}", output.err);
    let value: Value = serde_json::from_str(&output.out).unwrap();
    let mut wanted = [&DOCUMENTED[..], &OTHER_KEYS].concat();
    wanted.sort_unstable();
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, wanted);
    for name in ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"] {
        let latency = value[name].as_object().unwrap();
        assert_eq!(latency.len(), 5);
        for key in ["n", "mean", "p50"] {
            assert!(latency[key].is_number(), "{name}.{key}");
        }
        assert!(latency["p99"].is_null(), "{name}: p99 of {}", latency["n"]);
    }
    assert!(value["cause"].is_null());
    for share in ["mfu", "mbu"] {
        assert!(value[share].is_number(), "{share}: what the simulated card can do is known");
    }
    let unseen = run(dir.path(), &[&QUICK[..], &["--json", "telemetry=none"]].concat());
    let unseen: Value = serde_json::from_str(&unseen.out).unwrap();
    for unknown in
        ["mfu", "mbu", "energy_j_per_token", "energy_decode_j_per_token", "verdict", "causes", "advice"]
    {
        assert!(unseen[unknown].is_null(), "{unknown}");
    }
    assert!(value["energy_j_per_token"].is_number(), "a simulated card counts its energy");
    let long = run(dir.path(), &[&QUICK[..], &["--json", "dataset.prompt_tokens=8000"]].concat());
    let long: Value = serde_json::from_str(&long.out).unwrap();
    let [whole, decode] =
        ["energy_j_per_token", "energy_decode_j_per_token"].map(|key| long[key].as_f64().unwrap());
    assert!(whole > 2.0 * decode, "most of the energy is that of the prefills: {whole} {decode}");
    let [output, decode] = ["output_tok_s", "decode_tok_s"].map(|key| long[key].as_f64().unwrap());
    assert!(output < decode / 2.0, "prefills take most of the time: {output} {decode}");
    assert_eq!(
        value["trust"]["doubts"].as_array().unwrap().len() as u64 + value["trust"]["score"].as_u64().unwrap(),
        5
    );
    assert_eq!(value["outcome"], "completed");
    assert!(dir.path().join(value["run_dir"].as_str().unwrap()).is_dir());
}

#[test]
fn a_failed_run_exits_1_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["run", "--json", "runtime=sim", "runtime.sim.speed=0", "runtime.sim.scenario=fail"];
    let output = run(dir.path(), &args);
    assert_eq!(output.code, 1);
    assert!(output.err.contains("the engine fails here"), "{}", output.err);
    let value: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(value["outcome"], "failed");
    assert_complete(&run_dirs(dir.path())[0]);
}

#[test]
fn a_panic_exits_1_with_the_run_closed() {
    let scenario = ["runtime.sim.scenario=panic", "runtime.sim.speed=50"];
    let mut cases = vec![("none", &scenario[..], "the engine panics here")];
    if llmprof::process::crash::FAULT_INJECTION {
        let requested = |fault| (fault, &["infer=long"][..], "requested by LLMPROF_FAULT");
        cases.extend(["panic:engine", "panic:consumer"].map(requested));
    }
    for (fault, args, message) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut run = program(dir.path());
        run.args(["run", "runtime=sim"]).args(args).env("LLMPROF_FAULT", fault);
        let output = said(run.output().unwrap());
        assert_eq!(output.code, 1, "{fault}: {}", output.err);
        assert!(output.err.contains(message), "{fault}: {}", output.err);
        let end = finished(&run_dirs(dir.path())[0]);
        assert_eq!(end.outcome, Outcome::Interrupted, "{fault}");
        assert!(end.cause.is_some_and(|c| c.contains(message)), "{fault}");
    }
}

#[test]
fn a_run_that_cannot_be_recorded_continues_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let output = run(dir.path(), &[&QUICK[..], &["--json", "hydra.run.dir=file/run"]].concat());
    assert_eq!(output.code, 1);
    assert!(output.err.contains("the run was not recorded: file/run"), "{}", output.err);
    let value: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&value["outcome"], &value["run_dir"]), (&"completed".into(), &Value::Null));
}

#[test]
fn a_full_disk_loses_lines_but_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"trap '' XFSZ; ulimit -f 8; exec "$0" "$@""#, PROGRAM]).args(QUICK);
    let output = said(limited.args(["runtime.requests=100"]).current_dir(dir.path()).output().unwrap());
    assert_eq!(output.code, 1, "{}", output.err);
    assert!(output.err.contains("lines of the recording were lost"), "{}", output.err);
    assert!(output.out.contains("ITL"), "{}", output.out);
    // The recording can be read.
    assert!(events(&run_dirs(dir.path())[0]).len() > 10);
}

#[test]
fn a_closed_stdout_or_stderr_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let quiet = [&QUICK[..], &["--quiet"]].concat();
    for args in [&["config"][..], &quiet, &["--help"]] {
        let mut child = program(dir.path());
        let mut child = child.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = said(child.wait_with_output().unwrap());
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{args:?}");
    }
    let mut child = program(dir.path());
    // Long enough for progress to be printed.
    let args = [
        "run",
        "runtime=sim",
        "runtime.sim.itl_ms=3.8",
        "infer=long",
        "runtime.requests=5",
        "runtime.sim.speed=4",
        "experiment=deaf",
    ];
    let mut child = child.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let output = said(child.wait_with_output().unwrap());
    assert_eq!(output.code, 0);
    assert!(output.out.contains("ITL"), "{}", output.out);
    // A full disk behind stdout is an error, unlike a closed pipe.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = program(dir.path()).arg("config").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "));
}

#[test]
fn a_run_of_another_program_needs_one() {
    let dir = tempfile::tempdir().unwrap();
    let said = run(dir.path(), &["run", "runtime=program"]);
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(
        said.err.contains("llmprof-tui exec -- COMMAND") && !dir.path().join("runs").exists(),
        "{}",
        said.err
    );
}

#[test]
fn an_interrupted_run_prints_progress_and_its_result() {
    for (name, code, cause) in [("INT", 130, "SIGINT"), ("TERM", 143, "SIGTERM"), ("HUP", 129, "SIGHUP")] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = program(dir.path());
        child.args([
            "run",
            "--json",
            "runtime=sim",
            "runtime.requests=200",
            "runtime.warmup=0",
            "infer=long",
        ]);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        // The first lines may report the preparation.
        while !line.contains("tok/s") {
            line.clear();
            assert!(err.read_line(&mut line).unwrap() > 0, "no progress");
        }
        assert!(line.contains("request ") && line.contains("tok/s") && !line.contains('\x1b'), "{line:?}");
        signal(child.id(), name);
        let mut rest = String::new();
        err.read_to_string(&mut rest).unwrap();
        let output = said(child.wait_with_output().unwrap());
        assert_eq!(output.code, code, "{rest}");
        assert!(rest.contains(&format!("interrupted: {cause}")), "{rest}");
        let value: Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!(value["outcome"], "interrupted");
        assert!(value["itl_ms"]["n"].as_u64().is_some_and(|n| n > 0));
        let run = &run_dirs(dir.path())[0];
        assert_complete(run);
        assert!(finished(run).cause.is_some_and(|c| c.contains(cause)));
    }
}

#[test]
fn the_resolved_configuration_composes_back_to_itself() {
    let dir = tempfile::tempdir().unwrap();
    let overrides = ["runtime=sim", "model=qwen3_0_6b", "infer.max_new_tokens=7", "hydra.run.dir=runs/x"];
    let printed = run(dir.path(), &[&["config"], &overrides[..]].concat());
    assert_eq!((printed.code, printed.err.as_str()), (0, ""));
    assert!(printed.out.contains("max_new_tokens: 7"), "{}", printed.out);
    fs::create_dir(dir.path().join("resolved")).unwrap();
    fs::write(dir.path().join("resolved/config.yaml"), &printed.out).unwrap();
    let again = run(dir.path(), &["config", "--conf-dir", "resolved"]);
    assert_eq!((again.code, again.out), (0, printed.out), "{}", again.err);
    let json = run(dir.path(), &[&["config", "--json"], &overrides[..]].concat());
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["infer"]["max_new_tokens"], 7);
}

#[test]
fn local_configuration_overrides_the_built_in_one() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = |args: &[&str]| {
        let output = run(dir.path(), &[&["config", "--json"], args].concat());
        assert_eq!(output.code, 0, "{}", output.err);
        serde_json::from_str::<Value>(&output.out).unwrap()["infer"]["max_new_tokens"].clone()
    };
    assert_eq!(tokens(&[]), 64, "an empty directory: built in");
    for (conf, n) in [("conf", 5), ("elsewhere", 6)] {
        fs::create_dir_all(dir.path().join(conf).join("infer")).unwrap();
        fs::write(dir.path().join(conf).join("infer/default.yaml"), format!("max_new_tokens: {n}\n"))
            .unwrap();
    }
    assert_eq!(tokens(&[]), 5);
    assert_eq!(tokens(&["--conf-dir", "elsewhere"]), 6);
    assert_eq!(tokens(&["infer=short"]), 16, "what is not at hand is still built in");
}

#[test]
fn the_engine_draws_the_same_tokens_twice() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), |_| ());
    let ids = |seed: &str| {
        let args = ["run", "--json", "model.config_json=tiny.json", "runtime.requests=2"];
        let more = ["infer.max_new_tokens=8", "dataset.prompt_tokens=8", seed];
        let output = run(dir.path(), &[&args[..], &more].concat());
        assert_eq!(output.code, 0, "{}", output.err);
        let value: Value = serde_json::from_str(&output.out).unwrap();
        assert_eq!((&value["outcome"], &value["itl_ms"]["n"]), (&"completed".into(), &14.into()));
        let run = dir.path().join(value["run_dir"].as_str().unwrap());
        let ids = events(&run).into_iter().filter_map(|e| match e.event {
            Event::Token(token) => Some((token.request, token.index, token.id)),
            _ => None,
        });
        ids.collect::<Vec<_>>()
    };
    let first = ids("runtime.seed=0");
    assert_eq!(first.len(), 3 * 8, "warm-up and two requests");
    assert_eq!(first, ids("runtime.seed=0"));
    assert_ne!(first, ids("runtime.seed=1"));
}

#[test]
fn a_profiling_option_without_effect_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    for (option, why) in [("nsys", "a simulated run has nothing"), ("ncu", "a simulated run has nothing")] {
        let mut args = QUICK.to_vec();
        let option = format!("profiling={option}");
        args.push(&option);
        assert_refused(dir.path(), &args, &["would do nothing", why, "profiling=minimal"]);
    }
    let mut args = QUICK.to_vec();
    args.extend(["profiling=full", "hydra.run.dir=runs/full"]);
    let output = run(dir.path(), &args);
    assert_eq!(output.code, 0, "{}", output.err);
    let expected =
        "this run samples the GPU and the host; a simulated run has nothing for nsys and ncu to profile";
    assert!(output.err.contains(&format!("note: {expected}")), "{}", output.err);
    let recorded = events(&dir.path().join("runs/full"))
        .into_iter()
        .any(|envelope| matches!(envelope.event, Event::Notice(notice) if notice.text.starts_with(expected)));
    assert!(recorded, "the recording has it too");
}

#[test]
fn a_metrics_address_that_other_machines_reach_causes_a_warning() {
    for (address, is_reachable) in [("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
        let dir = tempfile::tempdir().unwrap();
        let output = run(dir.path(), &[&QUICK[..], &["--metrics", address]].concat());
        assert_eq!(output.code, 0, "{address}: {}", output.err);
        let warned = events(&run_dirs(dir.path())[0]).into_iter().any(|envelope| match envelope.event {
            // The warning has the port that was found.
            Event::Notice(notice) if notice.level == Level::Warn => {
                let bound = notice.text.strip_suffix(" can be reached from other machines");
                bound.is_some_and(|bound| bound.starts_with("0.0.0.0:") && !bound.ends_with(":0"))
            }
            _ => false,
        });
        assert_eq!(warned, is_reachable, "{address}");
    }
}

#[test]
fn cost_needs_no_gpu_and_no_weights() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["cost", "--model", "qwen2_5_7b", "--gpu", "NVIDIA H200", "model.dtype=bf16"];
    let output = run(dir.path(), &args);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written unasked");
    assert!(!output.err.contains("static_compute"), "{}", output.err);
    let output = run(dir.path(), &[&args[..], &["-o", "."]].concat());
    assert_eq!(output.code, 0, "{}", output.err);
    for expected in ["7,615,616,512 parameters", "lm_head", "Lower bounds: TTFT", "at most"] {
        assert!(output.out.contains(expected), "{expected}: {}", output.out);
    }
    assert!(output.err.contains("static_compute.json"), "{}", output.err);
    let kept: Value =
        serde_json::from_str(&fs::read_to_string(dir.path().join("static_compute.json")).unwrap()).unwrap();
    assert_eq!(kept["parameters"], 7_615_616_512u64);
    assert!(
        fs::read_to_string(dir.path().join("static_compute.md")).unwrap().starts_with("# Cost of qwen2_5_7b")
    );

    let empty = tempfile::tempdir().unwrap();
    let args = ["cost", "--model", "llama3_1_8b", "--gpu", "rtx_4090", "--weight-bits", "4.5", "--json"];
    let output = run(empty.path(), &args);
    let object: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&object["gpu"], &object["fits"]), (&Value::from("rtx_4090"), &Value::from(true)));
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0, "with --json nothing is written");

    let args = ["cost", "--model", "deepseek_ocr", "--images", "1240x1754,640x480", "--json"];
    let object: Value = serde_json::from_str(&run(empty.path(), &args).out).unwrap();
    let encoded = &object["vision"]["encoded"];
    assert_eq!((&encoded["views"], &encoded["tokens"]), (&Value::from(8), &Value::from(903 + 273)));
    assert_eq!(encoded["tokens_of_images"], serde_json::json!([903, 273]));

    for (args, expected) in [
        (&["cost", "--gpu", "voodoo2"][..], &["voodoo2", "h100"][..]),
        (&["cost", "--gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"], &["a part of a GPU"]),
        (&["cost", "--weight-bits", "900"], &["0.5 to 64"]),
        (&["cost", "--images", "640x480"], &["smollm2_135m has no vision encoder"]),
        (&["cost", "--model", "got_ocr2", "--images", "640"], &["width x height", "1240x1754"]),
        (&["cost", "--model", "got_ocr2", "--images", "640x480,0x9"], &["0x9"]),
        (&["cost", "--model", "got_ocr2", "--images", "1x201"], &["200 times"]),
        (&["cost", "model.config_json=nowhere.json"], &["nowhere.json"]),
        (&["cost", "hardware.peaks.flops=-1"], &["hardware.peaks.flops"]),
    ] {
        assert_refused(empty.path(), args, expected);
    }
}

#[test]
fn synthetic_weights_can_be_quantised() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        run(dir.path(), &["cost", "--model", "qwen2_5_7b", "--gpu", "h100", "model.dtype=q4_k_m", "--json"]);
    let object: Value = serde_json::from_str(&output.out).unwrap_or_else(|e| panic!("{e}: {}", output.err));
    // The published file has 4,683,073,536 bytes, with its header.
    let bytes = object["weight_bytes"].as_u64().unwrap() as f64;
    assert!((bytes / 4_683_073_536.0 - 1.0).abs() < 0.02, "{bytes}");
    let quick = ["profiling=none", "dataset.prompt_tokens=4", "infer.max_new_tokens=2", "runtime.requests=1"];
    let quick = [&["run", "--json", "runtime.device=cpu", "output.record=false"], &quick[..]].concat();
    let output = run(dir.path(), &[&quick[..], &["model.dtype=q4_k_m"]].concat());
    let object: Value = serde_json::from_str(&output.out).unwrap_or_else(|e| panic!("{e}: {}", output.err));
    assert_eq!((&object["dtype"], &object["outcome"]), (&Value::from("q4_k_m"), &Value::from("completed")));
    let stock = [&quick[..], &["model.dtype=q4_k_m", "runtime=candle_stock"]].concat();
    assert_refused(dir.path(), &stock, &["q4_k_m", "runtime=candle"]);
    fs::write(dir.path().join("x.gguf"), "GGUF").unwrap();
    let with_file = [&quick[..], &["model.dtype=q8_0", "model.weights=x.gguf"]].concat();
    assert_refused(dir.path(), &with_file, &["x.gguf", "model.dtype=auto"]);
}

#[test]
fn cost_supports_models_that_the_engine_does_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let config = serde_json::json!({
        "model_type": "gpt_oss", "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": true, "sliding_window": 128,
        "max_position_embeddings": 131_072,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let file = "model.config_json=config.json";
    let output = run(dir.path(), &["cost", file, "--gpu", "h100", "model.dtype=bf16"]);
    assert_eq!(output.code, 0, "{}", output.err);
    for expected in
        ["20,914,757,184 parameters", "13.8 GB of weights", "mxfp4 stores the matrices of the MLP"]
    {
        assert!(output.out.contains(expected), "{expected}: {}", output.out);
    }
    // The cost of weights that the engine cannot run is estimated too.
    let output = run(dir.path(), &["cost", "model=local", "model.weights=.", "model.dtype=bf16"]);
    assert!(output.out.contains("20,914,757,184 parameters"), "{}", output.err);
    let other = config.to_string().replace("gpt_oss", "granitemoe");
    fs::write(dir.path().join("config.json"), other).unwrap();
    assert_refused(dir.path(), &["run", file], &["cannot run", "granitemoe", "gpt_oss", "llmprof-tui cost"]);
}

#[test]
fn a_simulated_run_keeps_its_roofline() {
    let dir = tempfile::tempdir().unwrap();
    let more = ["--json", "profiling.cupti.enable=true", "model=qwen2_5_7b", "model.dtype=bf16"];
    let output = run(dir.path(), &[&QUICK[..], &more].concat());
    assert_eq!(output.code, 0, "{}", output.err);
    let object: Value = serde_json::from_str(&output.out).unwrap();
    for key in ["mfu", "mbu"] {
        assert!(
            object[key].as_f64().is_some_and(|share| share > 0.05 && share < 1.0),
            "{key}: {}",
            object[key]
        );
    }
    let run_dir = Path::new(object["run_dir"].as_str().unwrap());
    let run_dir = dir.path().join(run_dir);
    assert!(fs::read_to_string(run_dir.join("roofline.svg")).unwrap().contains("decode gate_up"));
    let report = fs::read_to_string(run_dir.join("report.md")).unwrap();
    assert!(report.contains("| decode gate_up |") && report.contains("(roofline.svg)"), "{report}");
}

#[test]
fn unknown_names_are_answered_with_the_valid_ones() {
    let dir = tempfile::tempdir().unwrap();
    assert_refused(dir.path(), &["cost", "--gpu", "rtx_4900"], &["did you mean rtx_4090", "hardware.peaks"]);
    assert_refused(
        dir.path(),
        &["run", "runtime.load.concurrency=4"],
        &["unknown key \"runtime.load.concurrency\"", "runtime=openai, vllm"],
    );
}

#[test]
fn the_help_of_commands_for_servers_names_urls() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(dir.path(), &["--help"]).out.contains("Monitor GPUs and servers (watch URL…)"));
    for command in ["watch", "knee"] {
        let help = run(dir.path(), &[command, "--help"]).out;
        assert!(help.contains(&format!("llmprof-tui {command} http://localhost:8000")), "{help}");
    }
}

#[test]
fn commands_for_developers_have_a_separate_heading() {
    let dir = tempfile::tempdir().unwrap();
    let help = run(dir.path(), &["--help"]).out;
    let (commands, after) = help.split_once("For developers of llmprof-tui:").unwrap();
    for name in ["bootstrap", "third-party", "dataset"] {
        assert!(!commands.contains(&format!("  {name} ")) && after.contains(&format!("  {name} ")), "{help}");
    }
    assert!(commands.contains("  fetch "), "{help}");
}

/// Published only in MXFP4: it fits on a GPU with 24 GB.
#[test]
fn the_cost_of_gpt_oss_is_that_of_the_published_files() {
    let dir = tempfile::tempdir().unwrap();
    let cost = |more: &[&str]| {
        let args = [&["cost", "--json", "--gpu", "rtx_4090"], more].concat();
        serde_json::from_str::<Value>(&run(dir.path(), &args).out).unwrap()
    };
    // By hand: the experts in 32 + 1 half bytes for each 32 weights, all else in bf16. The sums are `total_size` of the
    // files on the hub.
    for (model, layers, experts, parameters, published) in [
        ("gpt_oss_20b", 24, 32, 20_914_757_184_u64, 13_761_264_768_u64),
        ("gpt_oss_120b", 36, 128, 116_829_156_672, 65_248_815_744),
    ] {
        let of_experts: u64 = layers * experts * 3 * 2880 * 2880;
        assert_eq!(of_experts / 32 * 17 + 2 * (parameters - of_experts), published, "{model}");
        let found = cost(&["--model", model]);
        assert_eq!(found["memory"]["weight_bytes"], published, "{model}: {found}");
        assert_eq!(found["fits"], model == "gpt_oss_20b", "{model}: {found}");
    }
    let said = run(dir.path(), &["cost", "--model", "gpt_oss_20b", "--gpu", "rtx_4090"]).out;
    assert!(said.contains("13.8 GB of weights") && !said.contains("Does not fit"), "{said}");
    // Other types are not those of the files.
    let bf16 = cost(&["--model", "gpt_oss_20b", "model.dtype=bf16"]);
    assert_eq!((&bf16["memory"]["weight_bytes"], &bf16["fits"]), (&41_829_514_368_u64.into(), &false.into()));
}
