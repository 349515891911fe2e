//! Checks of CUDA: what the driver runs, what this build needs, and where its libraries are.

use std::path::{Path, PathBuf};

use super::{Finding, Look, Machine, parse};
use crate::{engine::device::runs_on, event::Device};

/// What a build with CUDA loads when it starts.
const LIBRARIES: [&str; 4] = ["libcudart", "libcublas", "libcurand", "libnvrtc"];
const PACKAGES: &str =
    "CUDA 13 (or the PyPI packages nvidia-cuda-runtime, nvidia-cublas, nvidia-curand and nvidia-cuda-nvrtc)";

/// Folders in which toolkits and Python packages keep libraries.
const FOLDERS: [&str; 14] = [
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

pub(super) fn driver(look: &Look) -> Finding {
    if let Err(none) = look.cards.found() {
        return none;
    }
    let Some((major, minor)) = look.cards.cuda() else {
        return Finding::skip("the driver does not tell its CUDA");
    };
    let words = format!("the driver runs CUDA up to {major}.{minor}");
    match loaded_major(&look.machine) {
        Some(built) if built > major => {
            Finding::fail(format!("{words}, this build is made with CUDA {built}"))
                .remedy(format!("update the driver, or build against CUDA {major}"))
        }
        _ => Finding::pass(words),
    }
}

pub(super) fn build(look: &Look) -> Finding {
    let dotted = |cap: u32| format!("{}.{}", cap / 10, cap % 10);
    let (built, cards) = match (look.machine.build.capability, look.cards.found()) {
        (None, Err(_)) => {
            return Finding::skip("this build has no CUDA, and there is no GPU: models run on the CPU");
        }
        (None, Ok(_)) => {
            return Finding::warn("this build has no CUDA: models run on the CPU, the GPU is only looked at")
                .remedy("cargo build --release --features cuda (README, On an NVIDIA GPU)");
        }
        (Some(built), Err(_)) => {
            return Finding::skip(format!(
                "this build is for compute capability {}, and there is no GPU: models run on the CPU",
                dotted(built)
            ));
        }
        (Some(built), Ok(cards)) => (built, cards),
    };
    let number = |cap: &String| cap.replace('.', "").parse::<u32>().ok();
    let unfit = cards.iter().find_map(|card| {
        let found = card.info.compute_capability.as_ref().and_then(number)?;
        (!runs_on(built, found)).then_some((card, found))
    });
    if let Some((card, found)) = unfit {
        let words = format!(
            "this build is for compute capability {}, GPU {} ({}) has {}",
            dotted(built),
            card.info.index,
            card.info.name,
            dotted(found)
        );
        return Finding::fail(words).remedy(format!("build again with CUDA_COMPUTE_CAP={found}"));
    }
    match (look.machine.build.auto)() {
        Device::Cpu => Finding::warn(format!(
            "this build is for compute capability {}, but CUDA shows no GPU{}: models run on the CPU",
            dotted(built),
            look.machine.variables.get("CUDA_VISIBLE_DEVICES").map_or_else(String::new, |value| format!(" (CUDA_VISIBLE_DEVICES={value})"))
        ))
        .remedy("unset CUDA_VISIBLE_DEVICES; in a container, give it the `compute` capability (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"),
        device => Finding::pass(format!("for compute capability {}, which fits; models run on {device}", dotted(built))),
    }
}

pub(super) fn runtime(look: &Look) -> Finding {
    if let Err(none) = look.cards.found() {
        return none;
    }
    let places = Places::of(look);
    let found: Vec<(&str, Option<Library>)> =
        LIBRARIES.iter().map(|stem| (*stem, places.newest(stem))).collect();
    let missing: Vec<&str> =
        found.iter().filter(|(_, library)| library.is_none()).map(|(stem, _)| *stem).collect();
    let there: Vec<Library> = found.into_iter().filter_map(|(_, library)| library).collect();
    let words = by_folder(&there);
    let whose = match look.machine.build.capability {
        Some(_) => "this build needs them",
        None => "a build with CUDA needs them, this one does not",
    };
    if !missing.is_empty() {
        let rest = if there.is_empty() { String::new() } else { format!("; there: {words}") };
        return Finding::warn(format!("not found: {} ({whose}){rest}", missing.join(", ")))
            .remedy(format!("install {PACKAGES}"));
    }
    let mut hidden: Vec<String> = there
        .iter()
        .filter(|library| !library.loadable)
        .map(|library| library.folder.display().to_string())
        .collect();
    hidden.sort();
    hidden.dedup();
    if hidden.is_empty() {
        return Finding::pass(words);
    }
    Finding::warn(format!("{words}; the loader does not look there ({whose})"))
        .remedy(format!("export LD_LIBRARY_PATH={}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}", hidden.join(":")))
}

pub(super) fn cupti(look: &Look) -> Finding {
    if let Err(none) = look.cards.found() {
        return none;
    }
    match Places::of(look).newest("libcupti") {
        Some(library) if library.major < 12 => {
            Finding::warn(format!("{}: 12 or 13 is needed to trace kernels live", by_folder(&[library])))
                .remedy("install CUDA 12 or 13, or the PyPI package nvidia-cuda-cupti")
        }
        Some(library) => Finding::pass(by_folder(&[library])),
        None => Finding::warn("libcupti is not found: kernels cannot be traced live")
            .remedy("install CUDA's extras/CUPTI, or the PyPI package nvidia-cuda-cupti, and put its folder on LD_LIBRARY_PATH"),
    }
}

/// A library file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Library {
    stem: String,
    major: u32,
    folder: PathBuf,
    /// The loader finds it by its name.
    loadable: bool,
}

/// `libcudart.so.13, libcublas.so.13 in /usr/local/cuda/lib64`.
fn by_folder(libraries: &[Library]) -> String {
    let mut folders: Vec<&Path> = libraries.iter().map(|library| library.folder.as_path()).collect();
    folders.dedup();
    let in_folder = |folder: &&Path| {
        let names: Vec<String> = libraries
            .iter()
            .filter(|library| library.folder == **folder)
            .map(|library| format!("{}.so.{}", library.stem, library.major))
            .collect();
        format!("{} in {}", names.join(", "), folder.display())
    };
    folders.iter().map(in_folder).collect::<Vec<_>>().join("; ")
}

/// The CUDA that this process has loaded.
fn loaded_major(machine: &Machine) -> Option<u32> {
    let maps = machine.read("/proc/self/maps")?;
    parse::mapped_files(&maps).iter().find_map(|file| major_of(file, "libcudart"))
}

fn major_of(file: &Path, stem: &str) -> Option<u32> {
    parse::library_major(file.file_name()?.to_str()?, stem)
}

/// Where libraries lie: files that the loader knows, and folders that it may not look into.
struct Places<'a> {
    machine: &'a Machine,
    known: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Places<'_> {
    fn of(look: &Look) -> Places<'_> {
        let machine = &*look.machine;
        let mut known =
            machine.read("/proc/self/maps").map(|maps| parse::mapped_files(&maps)).unwrap_or_default();
        for folder in machine.folders("LD_LIBRARY_PATH") {
            known.extend(machine.names_in(&folder).into_iter().map(|name| folder.join(name)));
        }
        let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| machine.has(path));
        if let Some(Ok(cache)) = ldconfig.map(|path| machine.said(Path::new(path), &["-p"], look.until)) {
            known.extend(parse::known_to_loader(&cache).into_iter().map(|(_, path)| path));
        }
        let mut folders: Vec<PathBuf> =
            FOLDERS.iter().flat_map(|pattern| machine.matching(pattern)).collect();
        for home in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| machine.variable(name)) {
            folders.extend(["lib64", "lib", "extras/CUPTI/lib64"].map(|folder| Path::new(home).join(folder)));
        }
        for home in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| machine.variable(name)) {
            folders.push(Path::new(home).join("lib"));
            folders.extend(machine.matching(&format!("{home}/lib/python3*/site-packages/nvidia/*/lib")));
        }
        Places { machine, known, folders }
    }

    /// The newest that the loader finds, else the newest anywhere.
    fn newest(&self, stem: &str) -> Option<Library> {
        let library = |file: &Path, loadable: bool| {
            let (major, folder) = (major_of(file, stem)?, file.parent()?.to_owned());
            Some(Library { stem: stem.to_owned(), major, folder, loadable })
        };
        let known = self.known.iter().filter_map(|file| library(file, true));
        known.max_by_key(|library| library.major).or_else(|| {
            let files = self.folders.iter().flat_map(|folder| {
                self.machine.names_in(folder).into_iter().map(move |name| folder.join(name))
            });
            files.filter_map(|file| library(&file, false)).max_by_key(|library| library.major)
        })
    }
}
