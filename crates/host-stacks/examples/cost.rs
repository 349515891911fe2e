//! What the sampler costs: microseconds per sample and the share of one CPU at 50 Hz.

use std::error::Error;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use host_stacks::Sampler;

const PROGRAM: &str = "
import sys, threading, time
count, busy = int(sys.argv[1]), sys.argv[2] == 'busy'
def work():
    while busy:
        sum(i * i for i in range(1000))
    threading.Event().wait()
def deep(n):
    return deep(n - 1) if n else work()
for _ in range(count - 1):
    threading.Thread(target=deep, args=(12,), daemon=True).start()
deep(12)
";

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn measure(threads: usize, kind: &str) -> Result<(), Box<dyn Error>> {
    let program = Program(Command::new("python3").args(["-c", PROGRAM, &threads.to_string(), kind]).spawn()?);
    sleep(Duration::from_millis(1500));
    let start = Instant::now();
    let mut sampler = Sampler::new(program.0.id())?;
    let attach = start.elapsed();
    let (start, cpu) = (Instant::now(), cpu_ns());
    let (mut times, mut frames) = (Vec::new(), 0);
    while start.elapsed() < Duration::from_secs(4) {
        sleep(Duration::from_millis(20));
        let before = Instant::now();
        frames += sampler.sample()?.iter().map(|thread| thread.frames.len()).sum::<usize>();
        times.push(before.elapsed());
    }
    let share = 100.0 * (cpu_ns() - cpu) as f64 / start.elapsed().as_nanos() as f64;
    times.sort();
    let (median, last) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!(
        "{threads:>3} threads, {kind:<7}: {:>6} µs per sample (median), {:>6} µs (p99), {share:>5.2} % of a CPU at 50 Hz, {:>5} frames, attach {:>5} µs",
        median.as_micros(),
        last.as_micros(),
        frames / times.len(),
        attach.as_micros(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    for threads in [1, 8, 64] {
        for kind in ["blocked", "busy"] {
            measure(threads, kind)?;
        }
    }
    Ok(())
}
