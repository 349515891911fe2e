//! The `config` command and `--cfg`, as run from a shell.

use assert_cmd::Command;

fn llmprof(arguments: &[&str]) -> (String, String, i32) {
    let dir = tempfile::tempdir().unwrap();
    let output =
        Command::cargo_bin("llmprof-tui").unwrap().current_dir(dir.path()).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn the_configuration_is_printed() {
    let table: &[(&[&str], &[&str], &[&str])] = &[
        (&["config"], &["experiment: baseline\n", "model:\n  name: smollm2_135m\n"], &["hydra"]),
        (
            &["config", "model=qwen2_5_7b", "--package", "model.arch"],
            &["hidden_size: 3584\n"],
            &["model:", "dtype"],
        ),
        (&["config", "--package", "runtime.sim.jitter"], &["0.02\n"], &[":"]),
        (&["config", "experiment=${model.name}"], &["experiment: smollm2_135m\n"], &["${"]),
        (&["config", "experiment=${model.name}", "--no-resolve"], &["experiment: ${model.name}\n"], &[]),
        (&["config", "experiment=${nope}", "--no-resolve"], &["experiment: ${nope}\n"], &[]),
        (&["config", "dataset.name=???", "--no-resolve", "--package", "dataset.name"], &["???"], &[]),
        (&["config", "experiment=${oc.env:NOT_SET_ANYWHERE}", "--info", "defaults"], &["_global_"], &[]),
        (
            &["config", "--json", "+model.arch.x=[inf, -inf, nan]", "--package", "model.arch.x"],
            &["[\n  \"inf\",\n  \"-inf\",\n  \"nan\"\n]\n"],
            &[],
        ),
        (
            &["config", "--json", "--package", "telemetry"],
            &[
                "{\n  \"alerts\": [],\n  \"dcgm\": null,\n  \"probe\": \"auto\",\n  \"scenario\": null,\n  \"server\": null\n}\n",
            ],
            &[],
        ),
        (
            &["config", "--info", "defaults", "infer=long"],
            &[
                "CONFIG",
                "infer/long",
                "the override \"infer=long\"",
                "config (_self_)",
                "_global_",
                "conf/config.yaml",
            ],
            &[],
        ),
        (&["config", "--info", "searchpath"], &["the files built into the program\n"], &[]),
        (
            &["config", "--info", "searchpath", "--json"],
            &["[\n  \"the files built into the program\"\n]\n"],
            &[],
        ),
        (&["--cfg", "job", "infer=long"], &["max_new_tokens: 512\n"], &["hydra"]),
        (&["run", "--cfg", "job", "infer=long"], &["max_new_tokens: 512\n"], &["hydra"]),
        (
            &["run", "--cfg", "hydra"],
            &["run:\n  dir: runs/${experiment}/", "choices:\n", "model: smollm2_135m\n"],
            &[],
        ),
    ];
    for (arguments, wanted, unwanted) in table {
        let (out, err, code) = llmprof(arguments);
        assert_eq!((err.as_str(), code), ("", 0), "{arguments:?}");
        for wanted in *wanted {
            assert!(out.contains(wanted), "{arguments:?}: wanted {wanted:?} in\n{out}");
        }
        for unwanted in *unwanted {
            assert!(!out.contains(unwanted), "{arguments:?}: {unwanted:?} in\n{out}");
        }
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let table: &[(&[&str], &str)] = &[
        (
            &["config", "--package", "model.arhc"],
            "there is no \"model.arhc\" in the configuration; did you mean model.arch?",
        ),
        (&["config", "runtime.batchsize=2"], "did you mean runtime.batch_size?"),
        (&["config", "model=a,b"], "--multirun"),
        (&["config", "--info", "nope"], "defaults, searchpath"),
        (&["--cfg", "nope"], "job"),
        (&["config", "--conf-dir", "/nowhere"], "no configuration directory at /nowhere"),
    ];
    for (arguments, wanted) in table {
        let (out, err, code) = llmprof(arguments);
        assert_eq!((out.as_str(), code), ("", 2), "{arguments:?}");
        assert!(err.contains(wanted), "{arguments:?}: {err}");
    }
}
