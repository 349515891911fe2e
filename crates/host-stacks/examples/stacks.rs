//! Prints what each Python thread of a process does: `cargo run -p host-stacks --example stacks PID`.

use std::process::ExitCode;

use host_stacks::{Refusal, Sampler};

fn print(pid: u32) -> Result<(), Refusal> {
    for thread in Sampler::new(pid)?.sample()? {
        println!("{} {}: {}", thread.thread, thread.name, thread.state);
        thread.frames.iter().for_each(|frame| println!("    {frame}"));
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(pid) = std::env::args().nth(1).and_then(|word| word.parse().ok()) else {
        eprintln!("usage: stacks PID");
        return ExitCode::FAILURE;
    };
    match print(pid) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            eprintln!("{refusal}");
            ExitCode::FAILURE
        }
    }
}
