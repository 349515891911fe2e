//! Checks of Nsight Systems and Nsight Compute: which ones are there, and whether they would do.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use super::{Finding, Look, Machine, parse, tool::ToolTrouble};
use parse::Version;

/// Asking more of them for their version takes too long.
const MOST_ASKED: usize = 4;

/// A tool and where installers put it; the loader's PATH comes first.
struct Tool {
    name: &'static str,
    title: &'static str,
    places: &'static [&'static str],
    needed_for: &'static str,
}

const NSYS: Tool = Tool {
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

const NCU: Tool = Tool {
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

/// The first release that came with a CUDA: with an older one nothing of a kernel is recorded.
const FIRST_FOR_CUDA: [(u32, Version); 2] = [(13, Version(2025, 3, 0)), (12, Version(2022, 4, 0))];

pub(super) fn nsys(look: &Look) -> Finding {
    examined(look, &NSYS)
}

pub(super) fn ncu(look: &Look) -> Finding {
    examined(look, &NCU)
}

fn examined(look: &Look, tool: &Tool) -> Finding {
    let mut installed: Vec<Installed> = candidates(&look.machine, tool)
        .into_iter()
        .take(MOST_ASKED)
        .map(|(path, on_path)| Installed::ask(&look.machine, tool, path, on_path, look.until))
        .collect();
    // The one that would do, and of several the newest. The order of finding decides between equals.
    let first_for = look.cards.cuda().and_then(first_for_cuda);
    installed.sort_by_key(|one| std::cmp::Reverse((one.trouble(first_for).is_none(), one.version())));
    let Some(best) = installed.first() else { return missing(look, tool) };
    let mut words = best.words();
    if let Some(other) = installed.iter().find(|one| one.on_path && !best.on_path) {
        words += &format!("; the PATH has {}", other.words());
    } else if !best.on_path {
        words += ", not on the PATH";
    }
    match best.trouble(first_for) {
        None => Finding::pass(words),
        Some(Trouble { what, remedy }) => Finding::warn(format!("{words}: {what}")).remedy(remedy),
    }
}

fn missing(look: &Look, tool: &Tool) -> Finding {
    let words = format!("not found on the PATH, under /opt/nvidia or /usr/local/cuda ({})", tool.needed_for);
    match look.cards.found() {
        Err(_) => Finding::skip(format!("no GPU here, and {} is not installed", tool.title)),
        Ok(_) => Finding::warn(words).remedy(format!(
            "install {} (https://developer.nvidia.com/{}), or put the folder of {} on the PATH",
            tool.title,
            tool.title.to_lowercase().replace(' ', "-"),
            tool.name
        )),
    }
}

fn first_for_cuda((major, _): (u32, u32)) -> Option<(u32, Version)> {
    FIRST_FOR_CUDA.into_iter().find(|(cuda, _)| *cuda <= major)
}

/// Where the tool lies, each file once: what the PATH gives, then the others, the newest first.
fn candidates(machine: &Machine, tool: &Tool) -> Vec<(PathBuf, bool)> {
    let on_path = machine.folders("PATH").into_iter().map(|folder| (folder.join(tool.name), true));
    let mut elsewhere: Vec<(PathBuf, bool)> =
        tool.places.iter().flat_map(|pattern| machine.matching(pattern)).map(|path| (path, false)).collect();
    let named = |path: &Path| path.iter().filter_map(|part| parse::folder_version(part.to_str()?)).max();
    elsewhere.sort_by_key(|(path, _)| std::cmp::Reverse(named(path)));
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for (path, on_path) in on_path.chain(elsewhere) {
        let real = machine.real(&path);
        // Only the first on the PATH is ever started by its name.
        let hidden = on_path && found.iter().any(|(_, on_path)| *on_path);
        if fs::metadata(machine.at(&path)).is_ok_and(|file| file.is_file())
            && !seen.contains(&real)
            && !hidden
        {
            seen.push(real);
            found.push((path, on_path));
        }
    }
    found
}

/// One installation of a tool.
struct Installed {
    path: PathBuf,
    on_path: bool,
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

struct Trouble {
    what: String,
    remedy: String,
}

impl Installed {
    fn ask(machine: &Machine, tool: &Tool, path: PathBuf, on_path: bool, until: Instant) -> Installed {
        let version = match machine.said(&path, &["--version"], until) {
            Ok(text) => parse::tool_version(&text).ok_or_else(|| "it does not tell its version".to_owned()),
            Err(trouble) => Err(trouble.to_string()),
        };
        let importer =
            if tool.name == NSYS.name { Importer::of(machine, &path, until) } else { Importer::Unknown };
        Installed { path, on_path, version, importer }
    }

    fn version(&self) -> Option<Version> {
        self.version.clone().ok()
    }

    fn words(&self) -> String {
        match &self.version {
            Ok(version) => format!("{version} at {}", self.path.display()),
            Err(_) => self.path.display().to_string(),
        }
    }

    /// Why it would not do. `first_for` is the CUDA of the driver, and the first release for it.
    fn trouble(&self, first_for: Option<(u32, Version)>) -> Option<Trouble> {
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

impl Importer {
    /// nsys starts its importer from a folder beside its own `target-linux-…`: `host-linux-…`, or `linux-desktop-…` where
    /// it came inside of Nsight Compute.
    fn of(machine: &Machine, path: &Path, until: Instant) -> Importer {
        let real = machine.real(path);
        let own = real.parent().and_then(|own| Some((own.parent()?, own.file_name()?.to_str()?)));
        let Some((install, kind)) =
            own.and_then(|(install, own)| Some((install, own.strip_prefix("target-")?)))
        else {
            return Importer::Unknown;
        };
        let there = |pattern: &str| machine.matching(&format!("{pattern}/{IMPORTER}")).pop();
        let beside = |folder: &str| there(&format!("{}/{folder}", install.display()));
        if let Some(path) = beside("host-*").or_else(|| beside("linux-desktop-*")) {
            return match why_not_started(machine, &path, until) {
                Some(why) => Importer::Broken { path, why },
                None => Importer::Works,
            };
        }
        let elsewhere =
            there("/usr/lib/nsight-systems/host-*").or_else(|| there("/opt/nvidia/nsight-systems/*/host-*"));
        Importer::Missing { wanted: install.join(format!("host-{kind}")), elsewhere }
    }

    fn trouble(&self) -> Option<Trouble> {
        let no_report = "so it leaves a .qdstrm and no report";
        match self {
            Importer::Works | Importer::Unknown => None,
            Importer::Broken { path, why } => Some(Trouble {
                what: format!("its importer {} does not start ({why}), {no_report}", path.display()),
                remedy: match parse::library_not_loaded(why) {
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
fn why_not_started(machine: &Machine, path: &Path, until: Instant) -> Option<String> {
    match machine.said(path, &["--version"], until) {
        Err(ToolTrouble::NotStarted(why)) => Some(why),
        Err(ToolTrouble::Failed { said, .. }) if parse::library_not_loaded(&said).is_some() => {
            // Without the path in front, which stands beside it.
            said.split_once(": ").map(|(_, why)| why.to_owned())
        }
        _ => None,
    }
}
