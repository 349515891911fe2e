//! Finds the Python to run, and writes the worker's file.

use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The worker's file, which is part of this program.
const WORKER: &str = include_str!("worker.py");

/// A Python, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    pub path: PathBuf,
    pub source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Given,
    /// `VIRTUAL_ENV`
    VirtualEnvironment,
    /// `CONDA_PREFIX`
    Conda,
    /// `.venv` of the working directory.
    Directory,
    /// `python3` of `PATH`.
    Path,
}

impl Interpreter {
    /// The interpreter that is configured, else that of the active environment.
    pub fn find(given: Option<&str>) -> Interpreter {
        Self::find_with(given, |name| env::var_os(name), &|path| path.is_file())
    }

    fn find_with(
        given: Option<&str>,
        variable: impl Fn(&str) -> Option<OsString>,
        exists: &dyn Fn(&Path) -> bool,
    ) -> Interpreter {
        if let Some(given) = given {
            return Interpreter { path: given.into(), source: Source::Given };
        }
        let of = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let places = [
            (of("VIRTUAL_ENV"), Source::VirtualEnvironment),
            (of("CONDA_PREFIX"), Source::Conda),
            (Some(PathBuf::from(".venv")), Source::Directory),
        ];
        for (place, source) in places {
            let python = place.map(|place| place.join("bin/python"));
            if let Some(path) = python.filter(|path| exists(path)) {
                // A program is searched for in PATH if it has no directory.
                let path = if path.is_absolute() { path } else { Path::new("./").join(path) };
                return Interpreter { path, source };
            }
        }
        Interpreter { path: "python3".into(), source: Source::Path }
    }
}

/// The command of the worker. Its file is written to the user's data, as programs of others read it.
pub fn command(python: &Interpreter, data: &Path) -> io::Result<Vec<OsString>> {
    Ok(vec![python.path.clone().into(), "-u".into(), worker_file(data)?.into()])
}

fn worker_file(dir: &Path) -> io::Result<PathBuf> {
    let path = dir.join("llmprof_worker.py");
    if fs::read(&path).is_ok_and(|there| there == WORKER.as_bytes()) {
        return Ok(path);
    }
    fs::create_dir_all(dir)?;
    let mut partial = tempfile::Builder::new().prefix(".worker").tempfile_in(dir)?;
    io::Write::write_all(&mut partial, WORKER.as_bytes())?;
    partial.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
    partial.persist(&path)?;
    Ok(path)
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
            (None, &[], &[".venv/bin/python"], "./.venv/bin/python"),
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
    fn the_file_is_written_once_and_replaced_when_it_differs() {
        let dir = tempfile::tempdir().unwrap();
        let python = Interpreter { path: "python3".into(), source: Source::Path };
        let words = command(&python, dir.path()).unwrap();
        let path = dir.path().join("llmprof_worker.py");
        assert_eq!(words[2], path);
        fs::write(&path, "other").unwrap();
        command(&python, dir.path()).unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), WORKER);
    }
}
