//! Finds installations of Nsight Systems and Nsight Compute, and checks whether they work.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    System,
    process::ToolError,
    version::{self, Version},
};

/// Limit on installations, because each is asked for its version.
const MAX_INSTALLATIONS: usize = 4;

/// A tool and the paths that installers use. The PATH is searched first.
pub struct Tool {
    pub name: &'static str,
    pub title: &'static str,
    paths: &'static [&'static str],
    pub needed_for: &'static str,
}

impl Tool {
    /// The directories that are searched, as a list.
    pub fn searched(&self) -> String {
        let mut folders: Vec<&str> = vec!["the PATH"];
        for path in self.paths {
            let folder = path.split('*').next().unwrap_or(path).trim_end_matches('/');
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders.join(", ")
    }

    pub fn url(&self) -> String {
        format!("https://developer.nvidia.com/{}", self.title.to_lowercase().replace(' ', "-"))
    }
}

pub const NSYS: Tool = Tool {
    name: "nsys",
    title: "Nsight Systems",
    paths: &[
        "/opt/nvidia/nsight-systems/*/bin/nsys",
        "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
        "/usr/local/cuda*/bin/nsys",
        "/usr/local/cuda*/nsight-systems-*/bin/nsys",
        "/usr/lib/nsight-systems/target-linux-*/nsys",
        "/usr/lib/*/nsight-systems/target-linux-*/nsys",
        "/opt/cuda/bin/nsys",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "/usr/local/cuda*/nsight-compute-*/host/target-linux-*/nsys",
    ],
    needed_for: "kernels on a timeline",
};

pub const NCU: Tool = Tool {
    name: "ncu",
    title: "Nsight Compute",
    paths: &[
        "/opt/nvidia/nsight-compute/*/ncu",
        "/usr/local/cuda*/bin/ncu",
        "/usr/local/cuda*/nsight-compute-*/ncu",
        "/usr/lib/nsight-compute/ncu",
        "/opt/cuda/bin/ncu",
    ],
    needed_for: "counters of kernels",
};

/// Remedy for counters that are restricted to administrators.
pub const COUNTERS_FOR_ALL: &str = "put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into \
     /etc/modprobe.d/nvidia-profiling.conf, run `sudo update-initramfs -u` and reboot; or run as root, in a container \
     with `--cap-add=SYS_ADMIN`";

/// The first release for each CUDA version: older ones record no kernels.
const FIRST_FOR_CUDA: [(u32, Version); 2] = [(13, Version(2025, 3, 0)), (12, Version(2022, 4, 0))];

/// The installations of a tool, in the order in which they were found.
pub fn installed(system: &System, tool: &Tool, until: Instant) -> Vec<Installed> {
    candidates(system, tool)
        .into_iter()
        .take(MAX_INSTALLATIONS)
        .map(|(path, on_path)| Installed::ask(system, tool, path, on_path, until))
        .collect()
}

/// Sorts working installations first, and newer ones before older ones.
pub fn sort_best_first(installed: &mut [Installed], first_for: Option<(u32, Version)>) {
    installed.sort_by_key(|one| std::cmp::Reverse((one.problem(first_for).is_none(), one.version())));
}

/// The newest CUDA version of [`FIRST_FOR_CUDA`] that is at most `major`, and the first release for it.
pub fn first_for_cuda((major, _): (u32, u32)) -> Option<(u32, Version)> {
    FIRST_FOR_CUDA.into_iter().find(|(cuda, _)| *cuda <= major)
}

/// The files of a tool, each only once: that on the PATH, then the others, newest first.
fn candidates(system: &System, tool: &Tool) -> Vec<(PathBuf, bool)> {
    let on_path = system.folders("PATH").into_iter().map(|folder| (folder.join(tool.name), true));
    let mut elsewhere: Vec<(PathBuf, bool)> =
        tool.paths.iter().flat_map(|pattern| system.matching(pattern)).map(|path| (path, false)).collect();
    let named = |path: &Path| path.iter().filter_map(|part| version::folder_version(part.to_str()?)).max();
    elsewhere.sort_by_key(|(path, _)| std::cmp::Reverse(named(path)));
    let mut known: Vec<PathBuf> = Vec::new();
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for (path, on_path) in on_path.chain(elsewhere) {
        let real = system.real(&path);
        // A shell starts only the first on the PATH.
        let hidden = on_path && found.iter().any(|(_, on_path)| *on_path);
        if fs::metadata(system.at(&path)).is_ok_and(|file| file.is_file())
            && !known.contains(&real)
            && !hidden
        {
            known.push(real);
            found.push((path, on_path));
        }
    }
    found
}

/// One installation of a tool.
pub struct Installed {
    pub path: PathBuf,
    pub on_path: bool,
    version: Result<Version, String>,
    importer: Importer,
}

/// QdstrmImporter, which converts what nsys captured into a report.
enum Importer {
    Works,
    /// Missing where nsys expects it; another installation may have one.
    Missing {
        wanted: PathBuf,
        elsewhere: Option<PathBuf>,
    },
    /// The importer does not start.
    Broken {
        path: PathBuf,
        why: String,
    },
    /// Not needed, or the layout is unknown.
    Unknown,
}

/// Why an installation does not work, and what to do about it.
pub struct Problem {
    pub what: String,
    pub remedy: String,
}

impl Installed {
    fn ask(system: &System, tool: &Tool, path: PathBuf, on_path: bool, until: Instant) -> Installed {
        let version = match system.output(&path, &["--version"], until) {
            Ok(text) => version::tool_version(&text).ok_or_else(|| "it prints no version".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let importer =
            if tool.name == NSYS.name { Importer::check(system, &path, until) } else { Importer::Unknown };
        Installed { path, on_path, version, importer }
    }

    pub fn version(&self) -> Option<Version> {
        self.version.clone().ok()
    }

    /// The reason why it does not work. `first_for` is the driver's CUDA version and the first release for it.
    pub fn problem(&self, first_for: Option<(u32, Version)>) -> Option<Problem> {
        let version = match &self.version {
            Err(what) => {
                let remedy = "run it by hand; reinstall it if parts of it are missing".to_owned();
                return Some(Problem { what: what.clone(), remedy });
            }
            Ok(version) => *version,
        };
        if let Some(problem) = self.importer.problem() {
            return Some(problem);
        }
        let (cuda, first) = first_for.filter(|(_, first)| version < *first)?;
        Some(Problem {
            what: format!("older than CUDA {cuda}, which this driver runs: it records no kernels"),
            remedy: format!("install {}.{} or newer", first.0, first.1),
        })
    }
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Ok(version) => write!(f, "{version} at {}", self.path.display()),
            Err(_) => write!(f, "{}", self.path.display()),
        }
    }
}

const IMPORTER: &str = "QdstrmImporter";

/// The importer of any installation, which converts a `.qdstrm` into a report.
pub fn importer(system: &System) -> Option<PathBuf> {
    nsight_systems_importer(system)
        .or_else(|| find_importer(system, &["/opt/nvidia/nsight-compute/*/host/linux-desktop-*"]))
}

fn nsight_systems_importer(system: &System) -> Option<PathBuf> {
    let homes = [
        "/usr/lib/nsight-systems/host-*",
        "/opt/nvidia/nsight-systems/*/host-*",
        "/usr/local/cuda*/nsight-systems-*/host-*",
    ];
    find_importer(system, &homes)
}

fn find_importer(system: &System, folders: &[&str]) -> Option<PathBuf> {
    folders.iter().find_map(|folder| system.matching(&format!("{folder}/{IMPORTER}")).pop())
}

impl Importer {
    /// nsys starts its importer from a directory next to its own `target-linux-…`: `host-linux-…`, or `linux-desktop-…`
    /// in Nsight Compute's copy.
    fn check(system: &System, path: &Path, until: Instant) -> Importer {
        let real = system.real(path);
        let own = real.parent().and_then(|own| Some((own.parent()?, own.file_name()?.to_str()?)));
        let Some((install, kind)) =
            own.and_then(|(install, own)| Some((install, own.strip_prefix("target-")?)))
        else {
            return Importer::Unknown;
        };
        let next_to = |folder: &str| find_importer(system, &[&format!("{}/{folder}", install.display())]);
        if let Some(path) = next_to("host-*").or_else(|| next_to("linux-desktop-*")) {
            return match start_error(system, &path, until) {
                Some(why) => Importer::Broken { path, why },
                None => Importer::Works,
            };
        }
        let elsewhere = nsight_systems_importer(system);
        Importer::Missing { wanted: install.join(format!("host-{kind}")), elsewhere }
    }

    fn problem(&self) -> Option<Problem> {
        let no_report = "so it leaves a .qdstrm and no report";
        match self {
            Importer::Works | Importer::Unknown => None,
            Importer::Broken { path, why } => Some(Problem {
                what: format!("its importer {} does not start ({why}), {no_report}", path.display()),
                remedy: match version::library_not_loaded(why) {
                    Some("libdw.so.1") => {
                        "install libdw.so.1 (Debian and Ubuntu: apt install libdw1; Fedora: elfutils-libs)"
                            .to_owned()
                    }
                    Some(library) => format!("install the package that has {library}"),
                    None => "run it by hand to see what is missing".to_owned(),
                },
            }),
            Importer::Missing { wanted, elsewhere } => Some(Problem {
                what: format!("its importer is missing ({}), {no_report}", wanted.join(IMPORTER).display()),
                remedy: match elsewhere.as_deref().and_then(Path::parent) {
                    Some(there) => format!("sudo ln -s {} {}", there.display(), wanted.display()),
                    None => format!(
                        "install {} itself ({}): other programs bring only a part of it",
                        NSYS.title,
                        NSYS.url()
                    ),
                },
            }),
        }
    }
}

/// Why a program does not start at all. An error after its start does not count.
fn start_error(system: &System, path: &Path, until: Instant) -> Option<String> {
    match system.output(path, &["--version"], until) {
        Err(ToolError::NotStarted(why)) => Some(why),
        Err(ToolError::Failed { message, .. }) if version::library_not_loaded(&message).is_some() => {
            // The caller adds the path of the program.
            message.split_once(": ").map(|(_, why)| why.to_owned())
        }
        _ => None,
    }
}
