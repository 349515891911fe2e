//! Checks of CUDA: the version that the driver supports, the kernels of this program, and the libraries with their
//! paths.

use std::path::{Path, PathBuf};

use super::{Context, Finding, Machine, inventory::Gpu, parse};
use llmprof_base::tools::libraries::{self, CUBLAS, CUDA, CUPTI, LibrarySpec};
use llmprof_engine::cuda::dotted;
use llmprof_event::Device;

pub(super) fn driver(context: &Context, _: &[Gpu]) -> Finding {
    let Some((major, minor)) = context.inventory.cuda() else {
        return Finding::skip("the driver does not report its CUDA version");
    };
    let text = format!("the driver supports CUDA up to {major}.{minor}");
    match context.machine.build.cuda {
        built if built > major => {
            Finding::fail(format!("{text}, the kernels of this program were compiled with CUDA {built}"))
                .remedy(format!("update the driver, or compile them with CUDA {major}: just release-kernels"))
        }
        _ => Finding::pass(text),
    }
}

pub(super) fn build(context: &Context) -> Finding {
    let Ok(gpus) = context.inventory.gpus() else {
        return Finding::skip("there is no GPU: models run on the CPU");
    };
    let lowest = context.machine.build.lowest;
    let too_old = gpus.iter().find_map(|gpu| Some((gpu, gpu.capability().filter(|found| *found < lowest)?)));
    if let Some((gpu, found)) = too_old {
        return Finding::warn(format!(
            "GPU {} ({}) has compute capability {}, the built-in kernels need {} or later: models run on the CPU, the \
             GPU is monitored",
            gpu.info.index,
            gpu.info.name,
            dotted(found),
            dotted(lowest)
        ))
        .remedy("use another GPU (hardware.device_index), or runtime.device=cpu");
    }
    if context.machine.build.is_stale {
        return Finding::warn(
            "the built-in CUDA kernels are older than their sources: models run on the CPU",
        )
        .remedy("compile them and build again: just kernels");
    }
    let libcuda = LibraryPaths::new(context).best(CUDA);
    match (context.machine.build.auto)() {
        Device::Cpu if libcuda.is_none() => {
            Finding::warn("libcuda.so.1 not found: models run on the CPU, the GPU is monitored")
                .remedy(without_libcuda(context))
        }
        Device::Cpu if gpus.iter().any(|gpu| gpu.info.mig == Some(true)) => {
            Finding::warn("the GPU is in MIG mode and CUDA shows no slice of it: models run on the CPU").remedy(
                "select a slice (CUDA_VISIBLE_DEVICES=MIG-…, as nvidia-smi -L lists it), or create one: sudo nvidia-smi mig -lgip \
                 lists the sizes, sudo nvidia-smi mig -cgi ID -C creates one",
            )
        }
        Device::Cpu => {
            let visible = context.machine.variables.get("CUDA_VISIBLE_DEVICES");
            let visible =
                visible.map_or_else(String::new, |value| format!(" (CUDA_VISIBLE_DEVICES={value})"));
            Finding::warn(format!("CUDA shows no GPU{visible}: models run on the CPU")).remedy(
                "unset CUDA_VISIBLE_DEVICES; in a container, allow the `compute` capability \
                 (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
            )
        }
        device => {
            let by = libcuda.map_or_else(String::new, |library| format!(" ({library})"));
            Finding::pass(format!("models run on {device}{by}"))
        }
    }
}

fn without_libcuda(context: &Context) -> &'static str {
    match context.machine.is_wsl() {
        true => "update the NVIDIA driver on Windows, then run wsl --update: it is in /usr/lib/wsl/lib",
        false => {
            "install the driver's CUDA library (Debian: libcuda1); in a container, allow the `compute` capability \
             (NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        }
    }
}

pub(super) fn cublas(context: &Context, _: &[Gpu]) -> Finding {
    match LibraryPaths::new(context).best(CUBLAS) {
        Some(library) => Finding::pass(library.to_string()),
        None => Finding::warn(
            "libcublas 12 or 13 not found: prefill uses the built-in GEMM kernels, which are slower",
        )
        .remedy("install CUDA 12 or 13, or the PyPI package nvidia-cublas"),
    }
}

pub(super) fn cupti(context: &Context, _: &[Gpu]) -> Finding {
    match LibraryPaths::new(context).best(CUPTI) {
        Some(library) => Finding::pass(library.to_string()),
        None => Finding::warn("libcupti 12 or 13 not found: kernels cannot be recorded live")
            .remedy("install CUDA's extras/CUPTI or the PyPI package nvidia-cuda-cupti"),
    }
}

/// A library file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Library {
    name: String,
    directory: PathBuf,
}

/// `libcublas.so.13 in /usr/local/cuda/lib64`.
impl std::fmt::Display for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.name, self.directory.display())
    }
}

/// Files that the loader finds, and further directories that this program searches.
struct LibraryPaths<'a> {
    machine: &'a Machine,
    loadable: Vec<PathBuf>,
    directories: Vec<PathBuf>,
}

impl LibraryPaths<'_> {
    fn new(context: &Context) -> LibraryPaths<'_> {
        let machine = &*context.machine;
        let mut loadable = Vec::new();
        for directory in machine.folders("LD_LIBRARY_PATH") {
            loadable.extend(machine.names_in(&directory).into_iter().map(|name| directory.join(name)));
        }
        let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| machine.has(path));
        if let Some(Ok(cache)) =
            ldconfig.map(|path| machine.output(Path::new(path), &["-p"], context.deadline))
        {
            loadable.extend(parse::loader_cache(&cache).into_iter().map(|(_, path)| path));
        }
        LibraryPaths { machine, loadable, directories: libraries::directories(machine) }
    }

    /// The file that the program loads.
    fn best(&self, wanted: LibrarySpec) -> Option<Library> {
        let in_directory = |directory: &Path, name: String| Library { name, directory: directory.to_owned() };
        let loadable = || {
            wanted.names().find_map(|name| {
                let file = self.loadable.iter().find(|file| file.file_name().is_some_and(|n| *n == *name))?;
                Some(in_directory(file.parent()?, name))
            })
        };
        let elsewhere = || {
            wanted.names().find_map(|name| {
                let directory = self.directories.iter().find(|dir| self.machine.has(dir.join(&name)))?;
                Some(in_directory(directory, name))
            })
        };
        loadable().or_else(elsewhere)
    }
}
