//! Prints how many waiting threads of idle CPython processes could not be borrowed: `cargo run -p ptrace-load --example survey -- 20`.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const IDLE: [(&str, &str); 8] = [
    ("time.sleep", "import time; time.sleep(1000)"),
    (
        "time.sleep after imports",
        "import json, ssl, ctypes, sqlite3, decimal, asyncio, time; time.sleep(1000)",
    ),
    ("select", "import select, os; r, w = os.pipe(); select.select([r], [], [])"),
    ("read of a pipe", "import os; r, w = os.pipe(); os.read(r, 1)"),
    ("lock", "import threading; l = threading.Lock(); l.acquire(); l.acquire()"),
    ("subprocess", "import subprocess; subprocess.run(['sleep', '5'])"),
    (
        "threads",
        "import threading, time, queue
for i in range(4): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
for i in range(4): threading.Thread(target=queue.Queue().get, daemon=True).start()
time.sleep(1000)",
    ),
    (
        "thread pool after work",
        "from concurrent.futures import ThreadPoolExecutor; import json, time
pool = ThreadPoolExecutor(8)
list(pool.map(lambda i: json.dumps(list(range(i))), range(1000)))
time.sleep(1000)",
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let count = env::args().nth(1).map_or(Ok(10), |count| count.parse())?;
    let (mut total, mut refused) = (0, 0);
    for (name, script) in IDLE {
        let mut children = Vec::new();
        for _ in 0..count {
            children.push(
                Command::new("python3")
                    .args(["-c", script])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()?,
            );
        }
        thread::sleep(Duration::from_secs(2));
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for child in &mut children {
            let survey = ptrace_load::survey(child.id());
            child.kill()?;
            child.wait()?;
            for (_, busy) in survey? {
                total += 1;
                refused += usize::from(busy.is_some());
                *found.entry(busy.map_or("safe".into(), |busy| busy.to_string())).or_default() += 1;
            }
        }
        println!("{name}: {found:?}");
    }
    println!("{refused} of {total} waiting threads refused");
    Ok(())
}
