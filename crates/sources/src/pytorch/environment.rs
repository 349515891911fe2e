//! Finds the Python interpreter, and writes the worker's file.

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use llmprof_base::user_data::keep_file;

/// The worker's file, which is embedded in this program.
const WORKER: &str = include_str!("worker.py");

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    pub path: PathBuf,
}

impl Interpreter {
    /// The configured interpreter, else that of the active environment.
    pub fn find(given: Option<&str>) -> Interpreter {
        Self::find_with(given, |name| env::var_os(name), &|path| path.is_file())
    }

    /// Like [`find`](Self::find), with these variables and files.
    pub fn find_with(
        given: Option<&str>,
        variable: impl Fn(&str) -> Option<OsString>,
        exists: &dyn Fn(&Path) -> bool,
    ) -> Interpreter {
        if let Some(given) = given {
            return Interpreter { path: given.into() };
        }
        let of = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // Not a `.venv` of the working directory, which may be untrusted.
        let places = [of("VIRTUAL_ENV"), of("CONDA_PREFIX")];
        let mut pythons = places.into_iter().flatten().map(|place| place.join("bin/python"));
        Interpreter { path: pythons.find(|path| exists(path)).unwrap_or_else(|| "python3".into()) }
    }
}

/// The command of the worker. Its file is written to the user's data directory, where other programs can read it.
pub fn command(python: &Interpreter, data: &Path) -> io::Result<Vec<OsString>> {
    let file = keep_file(data, "llmprof_worker.py", WORKER.as_bytes(), 0o600)?;
    Ok(vec![python.path.clone().into(), "-u".into(), file.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_environment_comes_before_the_system() {
        for (given, variables, files, expected) in [
            (Some("/opt/python"), &["VIRTUAL_ENV"][..], &["/venv/bin/python"][..], "/opt/python"),
            (
                None,
                &["VIRTUAL_ENV", "CONDA_PREFIX"],
                &["/venv/bin/python", "/conda/bin/python"],
                "/venv/bin/python",
            ),
            (None, &["VIRTUAL_ENV", "CONDA_PREFIX"], &["/conda/bin/python"], "/conda/bin/python"),
            (None, &[], &[".venv/bin/python"], "python3"),
            (None, &["VIRTUAL_ENV"], &[], "python3"),
        ] {
            let variable = |name: &str| {
                let value = if name == "VIRTUAL_ENV" { "/venv" } else { "/conda" };
                variables.contains(&name).then(|| value.into())
            };
            let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
            assert_eq!(Interpreter::find_with(given, variable, &exists).path, Path::new(expected));
        }
    }

    #[test]
    fn the_command_has_the_workers_file() {
        let dir = tempfile::tempdir().unwrap();
        let python = Interpreter { path: "python3".into() };
        let words = command(&python, dir.path()).unwrap();
        assert_eq!(words[2], dir.path().join("llmprof_worker.py"));
        assert_eq!(std::fs::read_to_string(&words[2]).unwrap(), WORKER);
    }
}
