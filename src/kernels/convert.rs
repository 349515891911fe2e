//! Reports that only the tool that made them can read: it is found, and asked for a form that can be read.

use std::{
    ffi::OsStr,
    io::BufReader,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{error::KernelsError, ncu, nsys};
use crate::event::kernels::KernelTable;
use crate::tools::{
    System,
    nsight::{self, Installed, NCU, NSYS, Tool},
    process,
};

/// A report of a long recording takes minutes.
const LIMIT: Duration = Duration::from_secs(600);
/// For a tool's version.
const SOON: Duration = Duration::from_secs(10);

/// What only a tool can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// `.nsys-rep`.
    Nsys,
    /// `.qdstrm`: what nsys leaves when it finds no importer.
    Qdstrm,
    /// `.ncu-rep`.
    Ncu,
}

impl Report {
    fn tool(self) -> &'static Tool {
        match self {
            Report::Nsys | Report::Qdstrm => &NSYS,
            Report::Ncu => &NCU,
        }
    }

    /// How to do the same by hand, elsewhere.
    fn by_hand(self, path: &Path) -> String {
        let file = path.display();
        match self {
            Report::Nsys => format!("nsys export --type sqlite {file}"),
            Report::Qdstrm => format!("QdstrmImporter -i {file}"),
            Report::Ncu => format!("ncu --import {file} --page raw --csv > kernels.csv"),
        }
    }
}

/// The tables of a report.
pub fn through_tool(path: &Path, report: Report, system: &System) -> Result<Vec<KernelTable>, KernelsError> {
    let trouble = |what: String, remedy: String| KernelsError::Tool {
        file: path.display().to_string(),
        tool: report.tool().title,
        what,
        remedy,
    };
    let by_hand = format!("run `{}` where it is installed, and give what that makes", report.by_hand(path));
    let found = found(report.tool(), system);
    // nsys itself is not needed to import, but to export what was imported.
    let Some(tool) = found else {
        let tool = report.tool();
        let what = format!("it is not installed (searched {})", tool.searched());
        return Err(trouble(what, format!("install it ({}), or {by_hand}", tool.url())));
    };
    match report {
        Report::Ncu => {
            printed_by_ncu(path, &tool, system).map_err(|e| e.unwrap_or_else(|what| trouble(what, by_hand)))
        }
        Report::Nsys | Report::Qdstrm => {
            let folder = tempfile::tempdir().map_err(KernelsError::read("a folder for what nsys exports"))?;
            let imported = match report {
                Report::Qdstrm => match imported(path, folder.path(), system) {
                    Ok(imported) => imported,
                    Err((what, remedy)) => return Err(trouble(what, remedy.unwrap_or(by_hand))),
                },
                _ => path.to_owned(),
            };
            let exported = exported(&imported, folder.path(), &tool, system).map_err(|what| {
                // What the tool lacks explains more than how it failed.
                let lacks = tool.problem(None);
                let remedy = lacks.map_or(by_hand, |lacks| format!("{}: {}", lacks.what, lacks.remedy));
                trouble(what, remedy)
            })?;
            let tables = nsys::read_database(&exported);
            tables.map_err(|e| e.of_file(&path.display().to_string()))
        }
    }
}

/// The best installation.
fn found(tool: &Tool, system: &System) -> Option<Installed> {
    let mut installed = nsight::installed(system, tool, Instant::now() + SOON);
    nsight::sort_best_first(&mut installed, None);
    installed.into_iter().next()
}

/// Makes a report of what nsys captured; else what went wrong, and the remedy where it is a special one.
fn imported(path: &Path, folder: &Path, system: &System) -> Result<PathBuf, (String, Option<String>)> {
    let Some(importer) = nsight::importer(system) else {
        let what =
            "its importer (QdstrmImporter) is not installed, which makes a report of what was captured";
        let remedy = format!(
            "install {} itself ({}): what comes inside of other programs lacks it",
            NSYS.title,
            NSYS.url()
        );
        return Err((what.to_owned(), Some(remedy)));
    };
    let made = folder.join("imported.nsys-rep");
    let (input, output) = (path.to_string_lossy(), made.to_string_lossy());
    let args = ["-i", &input, "-o", &output];
    match system.output(&importer, &args, Instant::now() + LIMIT) {
        Ok(_) if made.exists() => Ok(made),
        Ok(said) => Err((format!("{} makes no report: {}", importer.display(), last_line(&said)), None)),
        Err(trouble) => Err((format!("{}: {trouble}", importer.display()), None)),
    }
}

/// The SQLite of a report.
fn exported(path: &Path, folder: &Path, nsys: &Installed, system: &System) -> Result<PathBuf, String> {
    let made = folder.join("exported.sqlite");
    let (input, output) = (path.to_string_lossy(), made.to_string_lossy());
    let args = ["export", "--type", "sqlite", "--force-overwrite", "true", "--output", &output, &input];
    match system.output(&nsys.path, &args, Instant::now() + LIMIT) {
        Ok(_) if made.exists() => Ok(made),
        Ok(said) => Err(format!("{} exports nothing: {}", nsys.path.display(), last_line(&said))),
        Err(trouble) => Err(format!("{}: {trouble}", nsys.path.display())),
    }
}

fn last_line(said: &str) -> &str {
    said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it says nothing")
}

/// The raw page, read as ncu prints it; else an error of the file, or what went wrong with the tool.
fn printed_by_ncu(
    path: &Path,
    tool: &Installed,
    system: &System,
) -> Result<Vec<KernelTable>, Result<KernelsError, String>> {
    let file = path.display().to_string();
    let args = ["--import", "", "--page", "raw", "--csv", "--print-units", "base"].map(OsStr::new);
    let mut args = args.to_vec();
    args[1] = path.as_os_str();
    let read = |stdout| ncu::read_raw(&file, BufReader::with_capacity(1 << 18, stdout));
    let program = system.at(&tool.path);
    let (read, trouble) = process::stream(&program, &args, Instant::now() + LIMIT, &system.stop, read)
        .map_err(|trouble| Err(format!("{}: {trouble}", tool.path.display())))?;
    match (read, trouble) {
        (Ok(table), None) => Ok(vec![table]),
        (Ok(mut table), Some(trouble)) => {
            table.notes.push(format!("ncu did not come to the end: {trouble}"));
            Ok(vec![table])
        }
        (Err(_), Some(trouble)) => Err(Err(format!("{}: {trouble}", tool.path.display()))),
        (Err(e), None) => Err(Ok(e)),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, fs, process::Command, sync::Arc};

    use super::*;

    fn bare(root: &Path) -> System {
        System { root: root.to_owned(), variables: HashMap::new(), stop: Arc::default() }
    }

    /// Another process writes it: one that this process had open could not be started by its other threads.
    fn script(root: &Path, path: &str, lines: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let write = "printf '#!/bin/sh\n%s\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        assert!(
            Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(lines).status().unwrap().success()
        );
    }

    #[test]
    fn without_the_tool_it_says_where_it_looked_and_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        for (report, words) in [
            (
                Report::Nsys,
                ["Nsight Systems", "/opt/nvidia/nsight-systems", "nsys export --type sqlite x.rep"],
            ),
            (Report::Qdstrm, ["Nsight Systems", "the PATH", "QdstrmImporter -i x.rep"]),
            (Report::Ncu, ["Nsight Compute", "/usr/local/cuda", "ncu --import x.rep --page raw --csv"]),
        ] {
            let e = through_tool(Path::new("x.rep"), report, &bare(root.path())).unwrap_err().to_string();
            for word in words {
                assert!(e.contains(word), "{word}: {e}");
            }
        }
    }

    #[test]
    fn an_importer_that_is_missing_is_named() {
        let root = tempfile::tempdir().unwrap();
        script(
            root.path(),
            "opt/nvidia/nsight-systems/2025.3.1/bin/nsys",
            "echo NVIDIA Nsight Systems version 2025.3.1",
        );
        let e =
            through_tool(Path::new("x.qdstrm"), Report::Qdstrm, &bare(root.path())).unwrap_err().to_string();
        assert!(e.contains("QdstrmImporter") && e.contains("install Nsight Systems itself"), "{e}");
        let e =
            through_tool(Path::new("x.nsys-rep"), Report::Nsys, &bare(root.path())).unwrap_err().to_string();
        assert!(e.contains("exports nothing") && e.contains("2025.3.1"), "{e}");
    }

    #[test]
    fn ncu_is_read_as_it_prints() {
        let root = tempfile::tempdir().unwrap();
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/h200_ncu_raw.csv");
        let version = "case $1 in --version) echo Version 2025.3.1.0; exit;; esac";
        script(root.path(), "opt/nvidia/nsight-compute/2025.3.1/ncu", &format!("{version}\ncat {fixture}"));
        let tables = through_tool(Path::new("x.ncu-rep"), Report::Ncu, &bare(root.path())).unwrap();
        assert_eq!(tables[0].calls(), 60);
        script(
            root.path(),
            "opt/nvidia/nsight-compute/2025.3.1/ncu",
            &format!("{version}\necho '==ERROR== Failed to load' >&2; exit 1"),
        );
        let e =
            through_tool(Path::new("x.ncu-rep"), Report::Ncu, &bare(root.path())).unwrap_err().to_string();
        assert!(e.contains("x.ncu-rep") && e.contains("Failed to load"), "{e}");
    }
}
