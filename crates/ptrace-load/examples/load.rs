//! Loads a library into a process: `cargo run -p ptrace-load --example load -- PID LIBRARY FUNCTION ARGUMENT`.

use std::error::Error;
use std::ffi::CString;
use std::{env, fs};

use ptrace_load::{Options, load};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [pid, library, function, argument] = &arguments[..] else {
        return Err("usage: load PID LIBRARY FUNCTION ARGUMENT".into());
    };
    let function = CString::new(function.as_str())?;
    let library = fs::read(library)?;
    match load(pid.parse()?, &library, &function, argument.as_bytes(), &Options::default()) {
        Ok(loaded) => println!("{loaded:?}"),
        Err(refusal) => return Err(refusal.to_string().into()),
    }
    Ok(())
}
