//! Compares this composition with that of Hydra, value by value.
//!
//! Hydra runs in a virtual environment under the target directory, which is created at the first run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hydra_config::{ComposeContext, Composition, ConfTree, ConfigError, Override, expand_sweep};
use serde_json::{Value as Json, json};
use serde_yaml_ng::Value;

mod cases;

use cases::{CASES, Case, EXCEPTIONS, OWN, SWEEPS};

/// The interpreter of an environment with `hydra-core`, or why it is not available.
fn python_with_hydra() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hydra-oracle");
    let python = target.join("bin/python");
    let imports = |python: &Path| {
        let script = "import hydra; assert hydra.__version__.startswith('1.3')";
        Command::new(python).args(["-c", script]).output().is_ok_and(|output| output.status.success())
    };
    if imports(&python) {
        return Ok(python);
    }
    let run = |command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no message").to_owned())
        }
        Err(error) => Err(error.to_string()),
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&target))
        .map_err(|e| format!("cannot create a Python environment: {e}"))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "hydra-core==1.3.*"]))
        .map_err(|e| format!("cannot install hydra-core: {e}"))?;
    match imports(&python) {
        true => Ok(python),
        false => Err("hydra-core is installed but cannot be imported".into()),
    }
}

/// Hydra's results of all cases, from one process.
fn run_hydra(python: &Path, requests: &Json) -> Vec<Json> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hydra_oracle.py");
    let mut child = Command::new(python)
        .arg(script)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .env_remove("LLMPROF_NOT_SET")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(requests.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A value with the types that JSON does not have, as the script writes it.
fn tagged(value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => json!(flag),
        Value::Number(number) if number.is_f64() => {
            let value = number.as_f64().unwrap();
            let composed = Composition::new(
                &ConfTree::from_files([("config.yaml", "a: 0\nb: x${a}\n")]),
                &[format!("a={}", float_override(value))],
                &context(),
            );
            // The composition prints floats inside text as Python does.
            let text = composed.unwrap().resolved_job().unwrap()["b"].as_str().unwrap()[1..].to_owned();
            json!({ "float": text })
        }
        Value::Number(number) => json!({ "int": number.to_string() }),
        Value::String(text) => json!(text),
        Value::Sequence(items) => json!({ "list": items.iter().map(tagged).collect::<Vec<_>>() }),
        Value::Mapping(entries) => {
            let entries: Vec<Json> =
                entries.iter().map(|(key, value)| json!([key.as_str().unwrap(), tagged(value)])).collect();
            json!({ "map": entries })
        }
        Value::Tagged(_) => panic!("a tag"),
    }
}

fn float_override(value: f64) -> String {
    match value {
        f64::INFINITY => "inf".into(),
        f64::NEG_INFINITY => "-inf".into(),
        value if value.is_nan() => "nan".into(),
        value => format!("{value:e}"),
    }
}

fn context() -> ComposeContext {
    let cwd = Path::new(env!("CARGO_TARGET_TMPDIR")).canonicalize().unwrap();
    ComposeContext {
        now: "2024-02-03T04:05:06[UTC]".parse().unwrap(),
        cwd,
        job_name: "llmprof-tui".into(),
        job: None,
    }
}

fn texts(overrides: &[&str]) -> Vec<String> {
    overrides.iter().map(|text| text.to_string()).collect()
}

fn ours(tree: &ConfTree, overrides: &[&str]) -> Result<Json, ConfigError> {
    let composition = Composition::new(tree, &texts(overrides), &context())?;
    // As in the script: without the parts of Hydra's own configuration.
    let choices =
        composition.choices.iter().filter(|(group, _)| !group.starts_with("hydra/")).map(|(key, option)| {
            (Value::from(key.as_str()), option.as_deref().map_or(Value::Null, Value::from))
        });
    let overrides = composition.job_overrides().into_iter().map(Value::from).collect();
    Ok(json!({
        "job": tagged(&composition.resolved_job()?),
        "unresolved": tagged(&composition.job()),
        "choices": tagged(&Value::Mapping(choices.collect())),
        "run_dir": tagged(&composition.resolved_hydra("run.dir")?),
        "job_name": tagged(&composition.resolved_hydra("job.name")?),
        "override_dirname": tagged(&composition.resolved_hydra("job.override_dirname")?),
        "task_overrides": tagged(&Value::Sequence(overrides)),
    }))
}

fn our_runs(tree: &ConfTree, overrides: &[&str]) -> Result<Json, ConfigError> {
    let words = |run: Vec<Override>| run.into_iter().map(|given| given.text).collect::<Vec<_>>();
    let runs = expand_sweep(tree, &texts(overrides))?;
    Ok(json!({ "runs": runs.into_iter().map(words).collect::<Vec<_>>() }))
}

/// Sorts the choices, whose order has no meaning.
fn sorted_choices(mut answer: Json) -> Json {
    if let Some(entries) = answer.pointer_mut("/choices/map").and_then(Json::as_array_mut) {
        entries.sort_by_key(|entry| entry[0].as_str().map(str::to_owned));
    }
    if let Some(answer) = answer.as_object_mut() {
        answer.remove("seconds");
    }
    answer
}

fn tree_of(case: &Case) -> ConfTree {
    ConfTree::from_files(case.files.iter().copied())
}

#[test]
#[ignore = "installs hydra-core from PyPI; .ci/run runs it"]
fn compositions_equal_those_of_hydra() {
    let python = python_with_hydra().unwrap_or_else(|why| panic!("Hydra is not available: {why}"));
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf").canonicalize().unwrap();
    let own_tree = ConfTree::default().with_dir(&conf).unwrap();
    let mut requests = Vec::new();
    let mut results = Vec::new();
    for overrides in OWN {
        requests.push(json!({ "kind": "compose", "conf": conf, "overrides": overrides }));
        results.push((format!("conf/ {overrides:?}"), ours(&own_tree, overrides)));
    }
    for case in CASES {
        let files: serde_json::Map<_, _> =
            case.files.iter().map(|(path, text)| (path.to_string(), json!(text))).collect();
        requests.push(json!({ "kind": "compose", "files": files, "overrides": case.overrides }));
        results.push((case.name.to_owned(), ours(&tree_of(case), case.overrides)));
    }
    for (name, overrides) in SWEEPS {
        requests.push(json!({ "kind": "sweep", "conf": conf, "overrides": overrides }));
        results.push((name.to_string(), our_runs(&own_tree, overrides)));
    }
    assert!(requests.len() >= 60, "{} cases", requests.len());

    let theirs = run_hydra(&python, &Json::Array(requests));
    let mut differences = Vec::new();
    let mut used = Vec::new();
    let (mut equal, mut refused_by_both) = (0, 0);
    for ((name, ours), theirs) in results.into_iter().zip(theirs) {
        let refused = theirs.get("error").cloned();
        let agree = match (&ours, &refused) {
            (Err(_), Some(_)) => true,
            (Ok(ours), None) => sorted_choices(ours.clone()) == sorted_choices(theirs.clone()),
            _ => false,
        };
        match (&ours, &refused) {
            (Err(ours), Some(theirs)) => {
                refused_by_both += 1;
                println!("{name}\n  ours:   {ours}\n  theirs: {theirs}");
            }
            _ => equal += usize::from(agree),
        }
        let exception = EXCEPTIONS.iter().find(|exception| exception.case == name);
        match exception {
            Some(exception) if agree => {
                differences.push(format!("{name}: no longer an exception ({})", exception.why))
            }
            Some(exception) => used.push(exception.case),
            None if agree => {}
            None => {
                let ours = ours.map_or_else(
                    |error| format!("refused: {error}"),
                    |ours| sorted_choices(ours).to_string(),
                );
                differences.push(format!("{name}\n  ours:   {ours}\n  theirs: {}", sorted_choices(theirs)));
            }
        }
    }
    let unused: Vec<_> = EXCEPTIONS.iter().map(|e| e.case).filter(|case| !used.contains(case)).collect();
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    println!("{equal} equal, {refused_by_both} refused by both, {} exceptions", EXCEPTIONS.len());
    // The comparison is meaningless if Hydra refuses almost everything.
    assert!(equal >= 100, "only {equal} cases were accepted by both");
    assert!(unused.is_empty(), "exceptions without a case: {unused:?}");
}
