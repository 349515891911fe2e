//! Time to compose the configuration, compared with Hydra on the same files in the same run.
//!
//! `cargo bench --bench compose`. Hydra is measured if the oracle test has created its environment
//! (`cargo test --test hydra -- --ignored`).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use llmprof::config::{built_in, compose, over_built_in};

/// The requirement: the configuration must not delay the start of a command noticeably.
const BAR: Duration = Duration::from_millis(5);

const ROUNDS: usize = 200;

fn main() {
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let overrides: Vec<String> =
        ["model=qwen2_5_7b", "model.dtype=bf16", "runtime=sim", "runtime.batch_size=4"]
            .map(str::to_owned)
            .into();
    let mut slowest = Duration::ZERO;
    for (name, given) in [("defaults", &[][..]), ("4 overrides", &overrides)] {
        let built_in = median(|| {
            compose(&built_in(), given).expect("the built-in configuration composes");
        });
        let on_disk = median(|| {
            let tree = over_built_in(&conf).expect("conf/ is there");
            compose(&tree, given).expect("conf/ composes");
        });
        println!("{name:<12} built in {:>8.3} ms   conf/ on disk {:>8.3} ms", ms(built_in), ms(on_disk));
        slowest = slowest.max(built_in).max(on_disk);
        match hydra_seconds(&conf, given) {
            Ok(seconds) => println!(
                "{:<12} Hydra    {:>8.3} ms   ({:.0} times as long)",
                "",
                seconds * 1e3,
                seconds / on_disk.as_secs_f64()
            ),
            Err(why) => println!("{:<12} Hydra was not asked: {why}", ""),
        }
    }
    println!("bar {} ms: {}", BAR.as_millis(), if slowest < BAR { "held" } else { "MISSED" });
    if slowest >= BAR {
        std::process::exit(1);
    }
}

/// The median time of a call, after a few warm-up calls.
fn median(mut call: impl FnMut()) -> Duration {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + 10 {
        let began = Instant::now();
        call();
        if round >= 10 {
            times.push(began.elapsed());
        }
    }
    times.sort();
    times[ROUNDS / 2]
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Hydra's median for the same composition, its interpreter and imports not counted.
fn hydra_seconds(conf: &Path, overrides: &[String]) -> Result<f64, String> {
    let python = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hydra-oracle/bin/python");
    let case = serde_json::json!({ "kind": "compose", "conf": conf, "overrides": overrides });
    let questions = serde_json::Value::Array(vec![case; 15]).to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hydra_oracle.py");
    let mut child = Command::new(&python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|_| "run `cargo test --test hydra -- --ignored` first".to_owned())?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    stdin.write_all(questions.as_bytes()).map_err(|error| error.to_string())?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let answers: Vec<serde_json::Value> =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let mut seconds: Vec<f64> = answers.iter().filter_map(|answer| answer["seconds"].as_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().ok_or_else(|| "Hydra refused".into())
}
