//! Nsight Systems and Nsight Compute: where they are installed, and whether they would do.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{
    System,
    process::ToolTrouble,
    version::{self, Version},
};

/// Asking more of them for their version takes too long.
const MOST_ASKED: usize = 4;

/// A tool and where installers put it; the loader's PATH comes first.
pub struct Tool {
    pub name: &'static str,
    pub title: &'static str,
    places: &'static [&'static str],
    pub needed_for: &'static str,
}

impl Tool {
    /// Where it was looked for, in words.
    pub fn looked_at(&self) -> String {
        let mut folders: Vec<&str> = vec!["the PATH"];
        for place in self.places {
            let fixed = place.split('*').next().unwrap_or(place);
            let folder = fixed.trim_end_matches('/');
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
    places: &[
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
    places: &[
        "/opt/nvidia/nsight-compute/*/ncu",
        "/usr/local/cuda*/bin/ncu",
        "/usr/local/cuda*/nsight-compute-*/ncu",
        "/usr/lib/nsight-compute/ncu",
        "/opt/cuda/bin/ncu",
    ],
    needed_for: "counters of kernels",
};

/// How everyone may read counters.
pub const COUNTERS_FOR_ALL: &str = "put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into \
     /etc/modprobe.d/nvidia-profiling.conf, run `sudo update-initramfs -u` and reboot; or run as root, in a container \
     with `--cap-add=SYS_ADMIN`";

/// The first release that came with a CUDA: with an older one nothing of a kernel is recorded.
const FIRST_FOR_CUDA: [(u32, Version); 2] = [(13, Version(2025, 3, 0)), (12, Version(2022, 4, 0))];

/// What is installed of a tool, as found.
pub fn installed(system: &System, tool: &Tool, until: Instant) -> Vec<Installed> {
    candidates(system, tool)
        .into_iter()
        .take(MOST_ASKED)
        .map(|(path, on_path)| Installed::ask(system, tool, path, on_path, until))
        .collect()
}

/// The one that would do, and of several the newest. The order of finding decides between equals.
pub fn best_first(installed: &mut [Installed], first_for: Option<(u32, Version)>) {
    installed.sort_by_key(|one| std::cmp::Reverse((one.trouble(first_for).is_none(), one.version())));
}

/// The first release for the CUDA of a driver.
pub fn first_for_cuda((major, _): (u32, u32)) -> Option<(u32, Version)> {
    FIRST_FOR_CUDA.into_iter().find(|(cuda, _)| *cuda <= major)
}

/// Where the tool lies, each file once: what the PATH gives, then the others, the newest first.
fn candidates(system: &System, tool: &Tool) -> Vec<(PathBuf, bool)> {
    let on_path = system.folders("PATH").into_iter().map(|folder| (folder.join(tool.name), true));
    let mut elsewhere: Vec<(PathBuf, bool)> =
        tool.places.iter().flat_map(|pattern| system.matching(pattern)).map(|path| (path, false)).collect();
    let named = |path: &Path| path.iter().filter_map(|part| version::folder_version(part.to_str()?)).max();
    elsewhere.sort_by_key(|(path, _)| std::cmp::Reverse(named(path)));
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for (path, on_path) in on_path.chain(elsewhere) {
        let real = system.real(&path);
        // Only the first on the PATH is ever started by its name.
        let hidden = on_path && found.iter().any(|(_, on_path)| *on_path);
        if fs::metadata(system.at(&path)).is_ok_and(|file| file.is_file()) && !seen.contains(&real) && !hidden
        {
            seen.push(real);
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

/// What makes a report of what nsys has captured.
enum Importer {
    Works,
    /// Not where nsys looks for it; another may lie elsewhere.
    Missing {
        wanted: PathBuf,
        elsewhere: Option<PathBuf>,
    },
    /// There, but it does not start.
    Broken {
        path: PathBuf,
        why: String,
    },
    /// Not to be told from the outside, or not needed.
    Unknown,
}

/// Why something would not do, and what to do about it.
pub struct Trouble {
    pub what: String,
    pub remedy: String,
}

impl Installed {
    fn ask(system: &System, tool: &Tool, path: PathBuf, on_path: bool, until: Instant) -> Installed {
        let version = match system.said(&path, &["--version"], until) {
            Ok(text) => version::tool_version(&text).ok_or_else(|| "it does not tell its version".to_owned()),
            Err(trouble) => Err(trouble.to_string()),
        };
        let importer =
            if tool.name == NSYS.name { Importer::of(system, &path, until) } else { Importer::Unknown };
        Installed { path, on_path, version, importer }
    }

    pub fn version(&self) -> Option<Version> {
        self.version.clone().ok()
    }

    /// Version and place.
    pub fn words(&self) -> String {
        match &self.version {
            Ok(version) => format!("{version} at {}", self.path.display()),
            Err(_) => self.path.display().to_string(),
        }
    }

    /// Why it would not do. `first_for` is the CUDA of the driver, and the first release for it.
    pub fn trouble(&self, first_for: Option<(u32, Version)>) -> Option<Trouble> {
        let version = match &self.version {
            Err(what) => {
                let remedy =
                    "run it by hand; an installation that lacks its parts has to be made anew".to_owned();
                return Some(Trouble { what: what.clone(), remedy });
            }
            Ok(version) => *version,
        };
        if let Some(trouble) = self.importer.trouble() {
            return Some(trouble);
        }
        let (cuda, first) = first_for.filter(|(_, first)| version < *first)?;
        Some(Trouble {
            what: format!("older than CUDA {cuda}, which this driver runs: it records no kernels"),
            remedy: format!("install {}.{} or newer", first.0, first.1),
        })
    }
}

const IMPORTER: &str = "QdstrmImporter";

/// An importer where installers put it, whichever nsys it belongs to: it makes a report of a `.qdstrm`.
pub fn importer(system: &System) -> Option<PathBuf> {
    of_nsight_systems(system)
        .or_else(|| found_importer(system, &["/opt/nvidia/nsight-compute/*/host/linux-desktop-*"]))
}

fn of_nsight_systems(system: &System) -> Option<PathBuf> {
    let homes = [
        "/usr/lib/nsight-systems/host-*",
        "/opt/nvidia/nsight-systems/*/host-*",
        "/usr/local/cuda*/nsight-systems-*/host-*",
    ];
    found_importer(system, &homes)
}

fn found_importer(system: &System, folders: &[&str]) -> Option<PathBuf> {
    folders.iter().find_map(|folder| system.matching(&format!("{folder}/{IMPORTER}")).pop())
}

impl Importer {
    /// nsys starts its importer from a folder beside its own `target-linux-…`: `host-linux-…`, or `linux-desktop-…` where
    /// it came inside of Nsight Compute.
    fn of(system: &System, path: &Path, until: Instant) -> Importer {
        let real = system.real(path);
        let own = real.parent().and_then(|own| Some((own.parent()?, own.file_name()?.to_str()?)));
        let Some((install, kind)) =
            own.and_then(|(install, own)| Some((install, own.strip_prefix("target-")?)))
        else {
            return Importer::Unknown;
        };
        let there = |pattern: &str| system.matching(&format!("{pattern}/{IMPORTER}")).pop();
        let beside = |folder: &str| there(&format!("{}/{folder}", install.display()));
        if let Some(path) = beside("host-*").or_else(|| beside("linux-desktop-*")) {
            return match why_not_started(system, &path, until) {
                Some(why) => Importer::Broken { path, why },
                None => Importer::Works,
            };
        }
        let elsewhere = of_nsight_systems(system);
        Importer::Missing { wanted: install.join(format!("host-{kind}")), elsewhere }
    }

    fn trouble(&self) -> Option<Trouble> {
        let no_report = "so it leaves a .qdstrm and no report";
        match self {
            Importer::Works | Importer::Unknown => None,
            Importer::Broken { path, why } => Some(Trouble {
                what: format!("its importer {} does not start ({why}), {no_report}", path.display()),
                remedy: match version::library_not_loaded(why) {
                    Some("libdw.so.1") => {
                        "install libdw.so.1 (Debian and Ubuntu: apt install libdw1; Fedora: elfutils-libs)"
                            .to_owned()
                    }
                    Some(library) => format!("install the package that has {library}"),
                    None => "run it by hand to see what it lacks".to_owned(),
                },
            }),
            Importer::Missing { wanted, elsewhere } => Some(Trouble {
                what: format!("its importer is missing ({}), {no_report}", wanted.join(IMPORTER).display()),
                remedy: match elsewhere.as_deref().and_then(Path::parent) {
                    Some(there) => format!("sudo ln -s {} {}", there.display(), wanted.display()),
                    None => format!(
                        "install {} itself (https://developer.nvidia.com/nsight-systems): what comes inside of other programs is a part of it",
                        NSYS.title
                    ),
                },
            }),
        }
    }
}

/// What keeps a program from starting at all; what it says once it has started is its own affair.
fn why_not_started(system: &System, path: &Path, until: Instant) -> Option<String> {
    match system.said(path, &["--version"], until) {
        Err(ToolTrouble::NotStarted(why)) => Some(why),
        Err(ToolTrouble::Failed { said, .. }) if version::library_not_loaded(&said).is_some() => {
            // Without the path in front, which stands beside it.
            said.split_once(": ").map(|(_, why)| why.to_owned())
        }
        _ => None,
    }
}
