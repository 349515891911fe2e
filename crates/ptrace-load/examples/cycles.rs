//! Prints how long loads stop a thread, in a busy C program and in CPython: `cargo run -p ptrace-load --example cycles -- 500`.

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use ptrace_load::{Options, load};

const LIBRARY: &str = "int start(const char *text) { return text[0]; }";
const BUSY: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static void *work(void *argument) {
    for (unsigned seed = 1;; seed = seed * 1103515245 + 12345) {
        char *block = malloc(16 + seed % 5000);
        memset(block, 1, 16);
        free(block);
        for (volatile int i = 0; i < 2000; i++);
    }
    return argument;
}
int main(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, work, 0);
    work(0);
}
"#;
const PYTHON: &str = "
import threading, time, json
def work():
    while True: json.loads(json.dumps(list(range(200))))
threading.Thread(target=work, daemon=True).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
work()
";

fn main() -> Result<(), Box<dyn Error>> {
    let count = env::args().nth(1).map_or(Ok(100), |count| count.parse())?;
    let directory = tempfile::tempdir()?;
    let library = compile(directory.path(), "library", LIBRARY, &["-shared", "-fPIC"])?;
    let library = fs::read(library)?;
    let busy = compile(directory.path(), "busy", BUSY, &["-pthread"])?;
    for (name, program, arguments) in [
        ("C, asleep", "sleep", &["10000"][..]),
        ("C, 4 busy threads", busy.as_str(), &[][..]),
        ("CPython, 2 busy threads, 1 waits", "python3", &["-c", PYTHON][..]),
        (
            "CPython, busy",
            "python3",
            &["-c", "import json\nwhile True: json.loads(json.dumps(list(range(200))))"],
        ),
        ("CPython, asleep", "python3", &["-c", "import time; time.sleep(10000)"]),
    ] {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        thread::sleep(Duration::from_millis(500));
        let measured = measure(&mut child, &library, count);
        child.kill()?;
        child.wait()?;
        println!("{name}: {}", measured?);
    }
    Ok(())
}

fn measure(child: &mut Child, library: &[u8], count: usize) -> Result<String, Box<dyn Error>> {
    let (mut stops, mut tries, mut failures) = (Vec::new(), 0, Vec::new());
    for index in 0..count {
        if let Some(status) = child.try_wait()? {
            return Err(format!("the program ended after {index} loads: {status}").into());
        }
        match load(child.id(), library, c"start", b"x", &Options::default()) {
            Ok(loaded) => {
                assert_eq!(loaded.result, i32::from(b'x'));
                stops.push(loaded.stopped.longest);
                tries += loaded.tries;
            }
            Err(refusal) => failures.push(refusal.to_string()),
        }
    }
    stops.sort();
    let at =
        |share: f64| stops.get(((stops.len() as f64 * share) as usize).min(stops.len().saturating_sub(1)));
    let us = |share| at(share).map_or(0, |stop| stop.as_micros());
    let failed =
        failures.last().map(|text| format!(", {} failed: {text}", failures.len())).unwrap_or_default();
    Ok(format!(
        "n={} stop p50 {} us, p99 {} us, max {} us, {:.2} stops per load{failed}",
        stops.len(),
        us(0.5),
        us(0.99),
        us(1.0),
        f64::from(tries) / stops.len().max(1) as f64
    ))
}

fn compile(directory: &Path, name: &str, source: &str, options: &[&str]) -> Result<String, Box<dyn Error>> {
    let (input, output) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&input, source)?;
    let status = Command::new("cc").args(["-O1", "-o"]).arg(&output).arg(&input).args(options).status()?;
    if !status.success() {
        return Err(format!("cc {name}: {status}").into());
    }
    Ok(output.to_str().ok_or("a path that is not UTF-8")?.to_owned())
}
