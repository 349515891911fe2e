//! CUDA's libraries, wherever toolkits, Python packages and drivers install them.

use std::path::{Path, PathBuf};

use super::System;

/// Directories that the loader may not search.
const DIRECTORIES: [&str; 19] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/*/lib",
    "/usr/local/cuda*/extras/CUPTI/lib64",
    "/opt/cuda/lib64",
    "/opt/cuda/extras/CUPTI/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/lib/python3/*-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/*-packages/torch/lib",
    "/opt/conda/lib",
    "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
    "/opt/*venv*/lib/python3*/site-packages/nvidia/*/lib",
];

/// A library by the start of its name and the major versions that this program can use, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LibrarySpec {
    pub stem: &'static str,
    pub majors: &'static [u32],
}

pub const CUBLAS: LibrarySpec = LibrarySpec { stem: "libcublas", majors: &[13, 12] };
pub const CUPTI: LibrarySpec = LibrarySpec { stem: "libcupti", majors: &[13, 12] };
/// Part of the driver.
pub const CUDA: LibrarySpec = LibrarySpec { stem: "libcuda", majors: &[1] };

impl LibrarySpec {
    /// `libcublas.so.13`, `libcublas.so.12`.
    pub fn names(self) -> impl Iterator<Item = String> {
        self.majors.iter().map(move |major| format!("{}.so.{major}", self.stem))
    }

    /// What to load, in order: names, which the loader finds on its own path, then files elsewhere.
    pub fn candidates(self, system: &System) -> Vec<PathBuf> {
        let directories = directories(system);
        let files = self.names().flat_map(|name| {
            let files: Vec<PathBuf> = directories.iter().map(|directory| directory.join(&name)).collect();
            files.into_iter().filter(|file| system.has(file))
        });
        self.names().map(PathBuf::from).chain(files).collect()
    }
}

/// The directories that exist on this system, those of the environment's toolkit and Python first.
pub fn directories(system: &System) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for home in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| system.variable(name)) {
        found.extend(["lib64", "lib", "extras/CUPTI/lib64"].map(|dir| Path::new(home).join(dir)));
    }
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| system.variable(name));
    for prefix in environments.map(PathBuf::from).chain(python(system)) {
        found.push(prefix.join("lib"));
        found.extend(of_python(system, &prefix));
    }
    if let Some(home) = system.variable("HOME") {
        found.extend(of_python(system, &Path::new(home).join(".local")));
    }
    found.extend(DIRECTORIES.iter().flat_map(|pattern| system.matching(pattern)));
    let mut seen = std::collections::HashSet::new();
    found.retain(|directory| system.has(directory) && seen.insert(directory.clone()));
    found
}

/// NVIDIA's packages in a Python installation, and the libraries that PyTorch contains.
fn of_python(system: &System, prefix: &Path) -> Vec<PathBuf> {
    let Some(prefix) = prefix.to_str().filter(|prefix| !prefix.contains('*')) else { return Vec::new() };
    ["nvidia/*/lib", "torch/lib"]
        .iter()
        .flat_map(|part| system.matching(&format!("{prefix}/lib/python3*/site-packages/{part}")))
        .collect()
}

/// The prefix of the first `python3` in the PATH.
fn python(system: &System) -> Option<PathBuf> {
    let bin = system.folders("PATH").into_iter().find(|folder| system.has(folder.join("python3")))?;
    Some(bin.parent()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A system with these files and variables.
    fn system(files: &[&str], variables: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let system =
            System { root: root.path().to_owned(), variables: variables.collect(), ..System::here() };
        (root, system)
    }

    #[test]
    fn names_come_first_then_files_by_version_and_place() {
        let (_root, system) = system(
            &[
                "/usr/local/cuda-12.4/lib64/libcublas.so.12",
                "/usr/local/cuda-13.0/lib64/libcublas.so.13",
                "/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublas.so.13",
                "/venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12",
                "/usr/lib64/libcublas.so.11",
                "/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
            ],
            &[("VIRTUAL_ENV", "/venv")],
        );
        let found: Vec<String> =
            CUBLAS.candidates(&system).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            found,
            [
                "libcublas.so.13",
                "libcublas.so.12",
                "/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublas.so.13",
                "/usr/local/cuda-13.0/lib64/libcublas.so.13",
                "/venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12",
                "/usr/local/cuda-12.4/lib64/libcublas.so.12",
            ]
        );
    }

    #[test]
    fn the_python_of_the_path_torch_and_wsl_are_searched_and_the_working_directory_is_not() {
        let (_root, system) = system(
            &[
                "/opt/app/bin/python3",
                "/opt/app/lib/python3.11/site-packages/torch/lib/libcupti.so.12",
                "/usr/lib/wsl/lib/libcuda.so.1",
                "/home/me/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13",
            ],
            &[("PATH", "/nowhere:/opt/app/bin:.:relative"), ("HOME", "/home/me")],
        );
        let files = |wanted: LibrarySpec| -> Vec<String> {
            let all = wanted.candidates(&system).into_iter().skip(wanted.majors.len());
            all.map(|path| path.display().to_string()).collect()
        };
        assert_eq!(files(CUDA), ["/usr/lib/wsl/lib/libcuda.so.1"]);
        assert_eq!(
            files(CUPTI),
            [
                "/home/me/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13",
                "/opt/app/lib/python3.11/site-packages/torch/lib/libcupti.so.12",
            ]
        );
        assert!(directories(&system).iter().all(|directory| directory.is_absolute()));
    }
}
