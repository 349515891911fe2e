//! Checks of CUDA: the version that the driver supports, what this build needs, and where the libraries are.

use std::path::{Path, PathBuf};

use super::{Context, Finding, Machine, inventory::Gpu, parse};
use crate::{engine::device::runs_on, event::Device};

/// The libraries that a build with CUDA loads at start.
const LIBRARIES: [&str; 4] = ["libcudart", "libcublas", "libcurand", "libnvrtc"];
const PACKAGES: &str =
    "CUDA 13 (or the PyPI packages nvidia-cuda-runtime, nvidia-cublas, nvidia-curand and nvidia-cuda-nvrtc)";

/// Directories in which toolkits and Python packages install libraries.
const LIBRARY_DIRS: [&str; 14] = [
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
    "/usr/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/lib/python3/*-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
    "/opt/conda/lib",
];

pub(super) fn driver(context: &Context, _: &[Gpu]) -> Finding {
    let Some((major, minor)) = context.inventory.cuda() else {
        return Finding::skip("the driver does not report its CUDA version");
    };
    let text = format!("the driver supports CUDA up to {major}.{minor}");
    match loaded_major(&context.machine) {
        Some(built) if built > major => Finding::fail(format!("{text}, this build needs CUDA {built}"))
            .remedy(format!("update the driver, or build against CUDA {major}")),
        _ => Finding::pass(text),
    }
}

pub(super) fn build(context: &Context) -> Finding {
    let dotted = |cap: u32| format!("{}.{}", cap / 10, cap % 10);
    let (built, gpus) = match (context.machine.build.capability, context.inventory.gpus()) {
        (None, Err(_)) => {
            return Finding::skip("this build has no CUDA, and there is no GPU: models run on the CPU");
        }
        (None, Ok(_)) => {
            return Finding::warn("this build has no CUDA: models run on the CPU, the GPU is only monitored")
                .remedy("cargo build --release --features cuda (docs/cuda.md)");
        }
        (Some(built), Err(_)) => {
            return Finding::skip(format!(
                "this build is for compute capability {}, and there is no GPU: models run on the CPU",
                dotted(built)
            ));
        }
        (Some(built), Ok(gpus)) => (built, gpus),
    };
    let unsupported =
        gpus.iter().find_map(|gpu| Some((gpu, gpu.capability().filter(|found| !runs_on(built, *found))?)));
    if let Some((gpu, found)) = unsupported {
        let text = format!(
            "this build is for compute capability {}, GPU {} ({}) has {}",
            dotted(built),
            gpu.info.index,
            gpu.info.name,
            dotted(found)
        );
        return Finding::fail(text).remedy(format!("build again with CUDA_COMPUTE_CAP={found}"));
    }
    match (context.machine.build.auto)() {
        Device::Cpu => {
            let visible = context.machine.variables.get("CUDA_VISIBLE_DEVICES");
            let visible =
                visible.map_or_else(String::new, |value| format!(" (CUDA_VISIBLE_DEVICES={value})"));
            Finding::warn(format!(
                "this build is for compute capability {}, but CUDA shows no GPU{visible}: models run on the CPU",
                dotted(built)
            ))
            .remedy(
                "unset CUDA_VISIBLE_DEVICES; in a container, allow the `compute` capability \
                 (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
            )
        }
        device => Finding::pass(format!("for compute capability {}; models run on {device}", dotted(built))),
    }
}

pub(super) fn runtime(context: &Context, _: &[Gpu]) -> Finding {
    let paths = LibraryPaths::of(context);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for stem in LIBRARIES {
        match paths.newest(stem) {
            Some(library) => found.push(library),
            None => missing.push(stem),
        }
    }
    let text = by_directory(&found);
    let needed = match context.machine.build.capability {
        Some(_) => "needed by this build",
        None => "needed by a build with CUDA, not by this one",
    };
    if !missing.is_empty() {
        let rest = if found.is_empty() { String::new() } else { format!("; found: {text}") };
        return Finding::warn(format!("not found: {} ({needed}){rest}", missing.join(", ")))
            .remedy(format!("install {PACKAGES}"));
    }
    let mut hidden: Vec<String> = found
        .iter()
        .filter(|library| !library.loadable)
        .map(|library| library.directory.display().to_string())
        .collect();
    hidden.sort();
    hidden.dedup();
    if hidden.is_empty() {
        return Finding::pass(text);
    }
    Finding::warn(format!("{text}; the loader does not search there ({needed})"))
        .remedy(format!("export LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}", hidden.join(":")))
}

pub(super) fn cupti(context: &Context, _: &[Gpu]) -> Finding {
    match LibraryPaths::of(context).newest("libcupti") {
        Some(library) if library.major < 12 => {
            Finding::warn(format!("{}: live kernel tracing needs 12 or 13", by_directory(&[library])))
                .remedy("install CUDA 12 or 13, or the PyPI package nvidia-cuda-cupti")
        }
        Some(library) => Finding::pass(by_directory(&[library])),
        None => Finding::warn("libcupti not found: kernels cannot be traced live").remedy(
            "install CUDA's extras/CUPTI or the PyPI package nvidia-cuda-cupti, and add its directory to LD_LIBRARY_PATH",
        ),
    }
}

/// A library file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Library {
    stem: String,
    major: u32,
    directory: PathBuf,
    /// Whether the loader finds it by its name.
    loadable: bool,
}

/// `libcudart.so.13, libcublas.so.13 in /usr/local/cuda/lib64`.
fn by_directory(libraries: &[Library]) -> String {
    let of_directory = |libraries: &[Library]| {
        let names: Vec<String> =
            libraries.iter().map(|library| format!("{}.so.{}", library.stem, library.major)).collect();
        format!("{} in {}", names.join(", "), libraries[0].directory.display())
    };
    let directories = libraries.chunk_by(|a, b| a.directory == b.directory);
    directories.map(of_directory).collect::<Vec<_>>().join("; ")
}

/// The major version of CUDA that this process has loaded.
fn loaded_major(machine: &Machine) -> Option<u32> {
    let maps = machine.read("/proc/self/maps")?;
    parse::mapped_files(&maps).iter().find_map(|file| major_of(file, "libcudart"))
}

fn major_of(file: &Path, stem: &str) -> Option<u32> {
    parse::library_major(file.file_name()?.to_str()?, stem)
}

/// Where libraries are: files that the loader finds, and directories that it may not search.
struct LibraryPaths<'a> {
    machine: &'a Machine,
    loadable: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl LibraryPaths<'_> {
    fn of(context: &Context) -> LibraryPaths<'_> {
        let machine = &*context.machine;
        let mut loadable =
            machine.read("/proc/self/maps").map(|maps| parse::mapped_files(&maps)).unwrap_or_default();
        for directory in machine.folders("LD_LIBRARY_PATH") {
            loadable.extend(machine.names_in(&directory).into_iter().map(|name| directory.join(name)));
        }
        let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| machine.has(path));
        if let Some(Ok(cache)) =
            ldconfig.map(|path| machine.output(Path::new(path), &["-p"], context.deadline))
        {
            loadable.extend(parse::loader_cache(&cache).into_iter().map(|(_, path)| path));
        }
        let mut directories: Vec<PathBuf> =
            LIBRARY_DIRS.iter().flat_map(|pattern| machine.matching(pattern)).collect();
        for home in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| machine.variable(name)) {
            directories.extend(["lib64", "lib", "extras/CUPTI/lib64"].map(|dir| Path::new(home).join(dir)));
        }
        for home in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| machine.variable(name)) {
            directories.push(Path::new(home).join("lib"));
            directories.extend(machine.matching(&format!("{home}/lib/python3*/site-packages/nvidia/*/lib")));
        }
        LibraryPaths { machine, loadable, directories }
    }

    /// The newest that the loader finds, else the newest anywhere.
    fn newest(&self, stem: &str) -> Option<Library> {
        let library = |file: &Path, loadable: bool| {
            let (major, directory) = (major_of(file, stem)?, file.parent()?.to_owned());
            Some(Library { stem: stem.to_owned(), major, directory, loadable })
        };
        let loadable = self.loadable.iter().filter_map(|file| library(file, true));
        loadable.max_by_key(|library| library.major).or_else(|| {
            let files = self.directories.iter().flat_map(|directory| {
                self.machine.names_in(directory).into_iter().map(move |name| directory.join(name))
            });
            files.filter_map(|file| library(&file, false)).max_by_key(|library| library.major)
        })
    }
}
