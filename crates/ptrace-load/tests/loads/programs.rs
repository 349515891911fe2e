//! Programs that the tests start, and the library that they load.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{fs, thread};

use ptrace_load::{Loaded, Options, Refusal};
use tempfile::TempDir;

/// Compiles `tests/programs/NAME.c`, once per name and options.
pub fn compile(name: &str, options: &[&str]) -> PathBuf {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| tempfile::tempdir().unwrap());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    // Each caller has a file of its own: tests run in parallel.
    let file = tempfile::Builder::new().prefix(name).tempfile_in(directory.path()).unwrap();
    let (_, output) = file.keep().unwrap();
    fs::remove_file(&output).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-pthread", "-o"]).arg(&output).arg(source).args(options);
    assert!(compiler.status().expect("cc is needed").success(), "{compiler:?}");
    output
}

pub fn library() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| fs::read(compile("library", &["-shared", "-fPIC"])).unwrap())
}

/// Patience for machines with a high load.
pub fn options() -> Options {
    let patience = Duration::from_secs(60);
    Options { search: patience, borrow: patience, call: patience }
}

pub fn load(pid: u32, function: &str, argument: &str) -> Result<Loaded, Refusal> {
    let function = std::ffi::CString::new(function).unwrap();
    ptrace_load::load(pid, library(), &function, argument.as_bytes(), &options())
}

/// A program that has printed its first line. It is killed if the test fails.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub first: String,
}

impl Program {
    pub fn start(program: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self::spawn(Command::new(program.as_ref()).args(arguments))
    }

    pub fn python(script: &str) -> Self {
        Self::spawn(Command::new("python3").args(["-c", script]))
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, input, output, first: String::new() };
        program.first = program.line();
        program
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process that `unshare -f` has started.
    pub fn only_child(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the program ended: {:?}", self.child.try_wait());
        line.trim().to_owned()
    }

    pub fn send(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Ends the input and waits for the end of the program.
    pub fn end(mut self) -> ExitStatus {
        self.input = None;
        self.child.wait().unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if thread::panicking() {
            self.kill();
        }
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Prints the measured times of several loads.
pub fn report(name: &str, loads: &[Loaded]) {
    let mut stops: Vec<_> = loads.iter().map(|loaded| loaded.stopped.longest).collect();
    stops.sort();
    let tries: u32 = loads.iter().map(|loaded| loaded.tries).sum();
    let (middle, last) = (stops.get(stops.len() / 2), stops.last());
    println!("{name}: {} loads, {tries} stops, median {middle:?}, longest {last:?}", loads.len());
}
