//! Reports that only their profiler can read: finds it and runs it to convert them.

use std::{
    ffi::OsStr,
    io::BufReader,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{error::KernelsError, ncu, nsys};
use llmprof_base::{
    shell::quoted,
    tools::{
        System,
        nsight::{self, Installed, NCU, NSYS, Tool},
        process,
    },
};
use llmprof_event::kernels::KernelTable;

/// Converting a long recording takes minutes.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// For reading a tool's version.
const VERSION_TIME_LIMIT: Duration = Duration::from_secs(10);

/// A report that only its profiler can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// `.nsys-rep`.
    Nsys,
    /// `.qdstrm`: written by nsys when its importer is missing.
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

    /// The command that converts the report.
    fn command(self, path: &Path) -> String {
        let file = quoted(&path.display().to_string());
        match self {
            Report::Nsys => format!("nsys export --type sqlite {file}"),
            Report::Qdstrm => format!("QdstrmImporter -i {file}"),
            Report::Ncu => format!("ncu --import {file} --page raw --csv > kernels.csv"),
        }
    }
}

/// The tables of a report, converted by its profiler.
pub fn convert(path: &Path, report: Report, system: &System) -> Result<Vec<KernelTable>, KernelsError> {
    let error = |what: String, remedy: String| KernelsError::Tool {
        file: path.display().to_string(),
        tool: report.tool().title,
        what,
        remedy,
    };
    let by_hand = format!("run `{}` where it is installed, and pass its output", report.command(path));
    let found = found(report.tool(), system);
    // nsys is required even after an import, to export its result.
    let Some(tool) = found else {
        let tool = report.tool();
        let what = format!("it is not installed (searched {})", tool.searched());
        return Err(error(what, format!("install it ({}), or {by_hand}", tool.url())));
    };
    match report {
        Report::Ncu => {
            printed_by_ncu(path, &tool, system).map_err(|e| e.unwrap_or_else(|what| error(what, by_hand)))
        }
        Report::Nsys | Report::Qdstrm => {
            let folder = tempfile::tempdir().map_err(KernelsError::read("a temporary directory"))?;
            let imported = match report {
                Report::Qdstrm => match imported(path, folder.path(), system) {
                    Ok(imported) => imported,
                    Err((what, remedy)) => return Err(error(what, remedy.unwrap_or(by_hand))),
                },
                _ => absolute(path),
            };
            let exported = exported(&imported, folder.path(), &tool, system).map_err(|what| {
                // A missing part of the installation explains more than the error message.
                let missing = tool.problem(None);
                let remedy =
                    missing.map_or(by_hand, |missing| format!("{}: {}", missing.what, missing.remedy));
                error(what, remedy)
            })?;
            let tables = nsys::read_database(&exported);
            tables.map_err(|e| e.of_file(&path.display().to_string()))
        }
    }
}

/// The absolute path: tools run in another working directory, and a relative path may begin with a dash.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The best installation.
fn found(tool: &Tool, system: &System) -> Option<Installed> {
    let mut installed = nsight::installed(system, tool, Instant::now() + VERSION_TIME_LIMIT);
    nsight::sort_best_first(&mut installed, None);
    installed.into_iter().next()
}

/// Imports a capture of nsys as a report; on failure the reason, and a remedy if there is a specific one.
fn imported(path: &Path, folder: &Path, system: &System) -> Result<PathBuf, (String, Option<String>)> {
    let Some(importer) = nsight::importer(system) else {
        let what = "its importer (QdstrmImporter), which converts a capture to a report, is not installed";
        let remedy = format!(
            "install {} itself ({}): the copies bundled with other programs lack it",
            NSYS.title,
            NSYS.url()
        );
        return Err((what.to_owned(), Some(remedy)));
    };
    let made = absolute(&folder.join("imported.nsys-rep"));
    let input = absolute(path);
    let (input, output) = (input.to_string_lossy(), made.to_string_lossy());
    let args = ["-i", &input, "-o", &output];
    match system.output(&importer, &args, Instant::now() + TIME_LIMIT) {
        Ok(_) if made.exists() => Ok(made),
        Ok(output) => Err((format!("{} wrote no report: {}", importer.display(), last_line(&output)), None)),
        Err(e) => Err((format!("{}: {e}", importer.display()), None)),
    }
}

/// Exports a report as SQLite.
fn exported(path: &Path, folder: &Path, nsys: &Installed, system: &System) -> Result<PathBuf, String> {
    let made = absolute(&folder.join("exported.sqlite"));
    let (input, output) = (path.to_string_lossy(), made.to_string_lossy());
    let args = ["export", "--type", "sqlite", "--force-overwrite", "true", "--output", &output, &input];
    match system.output(&nsys.path, &args, Instant::now() + TIME_LIMIT) {
        Ok(_) if made.exists() => Ok(made),
        Ok(output) => Err(format!("{} exported nothing: {}", nsys.path.display(), last_line(&output))),
        Err(e) => Err(format!("{}: {e}", nsys.path.display())),
    }
}

fn last_line(output: &str) -> &str {
    output.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no output")
}

/// The raw page, read while ncu prints it; on failure an error of the file, or the reason why ncu failed.
fn printed_by_ncu(
    path: &Path,
    tool: &Installed,
    system: &System,
) -> Result<Vec<KernelTable>, Result<KernelsError, String>> {
    let file = path.display().to_string();
    let input = absolute(path);
    let mut args = vec![OsStr::new("--import"), input.as_os_str()];
    args.extend(["--page", "raw", "--csv", "--print-units", "base"].map(OsStr::new));
    let read = |stdout| ncu::read_raw(&file, BufReader::with_capacity(1 << 18, stdout));
    let program = system.at(&tool.path);
    let (read, trouble) = process::stream(&program, &args, Instant::now() + TIME_LIMIT, &system.stop, read)
        .map_err(|trouble| Err(format!("{}: {trouble}", tool.path.display())))?;
    match (read, trouble) {
        (Ok(table), None) => Ok(vec![table]),
        (Ok(mut table), Some(trouble)) => {
            table.notes.push(format!("ncu did not finish: {trouble}"));
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

    /// Another process writes the file: a file that this process has open for writing cannot be executed.
    fn script(root: &Path, path: &str, lines: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let write = "printf '#!/bin/sh\n%s\n' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        assert!(
            Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(lines).status().unwrap().success()
        );
    }

    #[test]
    fn a_missing_profiler_is_named_with_the_searched_paths_and_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        for (report, words) in [
            (
                Report::Nsys,
                ["Nsight Systems", "/opt/nvidia/nsight-systems", "nsys export --type sqlite x.rep"],
            ),
            (Report::Qdstrm, ["Nsight Systems", "the PATH", "QdstrmImporter -i x.rep"]),
            (Report::Ncu, ["Nsight Compute", "/usr/local/cuda", "ncu --import x.rep --page raw --csv"]),
        ] {
            let e = convert(Path::new("x.rep"), report, &bare(root.path())).unwrap_err().to_string();
            for word in words {
                assert!(e.contains(word), "{word}: {e}");
            }
        }
    }

    #[test]
    fn a_missing_importer_is_named() {
        let root = tempfile::tempdir().unwrap();
        script(
            root.path(),
            "opt/nvidia/nsight-systems/2025.3.1/bin/nsys",
            "echo NVIDIA Nsight Systems version 2025.3.1",
        );
        let e = convert(Path::new("x.qdstrm"), Report::Qdstrm, &bare(root.path())).unwrap_err().to_string();
        assert!(e.contains("QdstrmImporter") && e.contains("install Nsight Systems itself"), "{e}");
        let e = convert(Path::new("x.nsys-rep"), Report::Nsys, &bare(root.path())).unwrap_err().to_string();
        assert!(e.contains("exported nothing") && e.contains("2025.3.1"), "{e}");
    }

    #[test]
    fn ncu_is_read_while_it_prints() {
        let root = tempfile::tempdir().unwrap();
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/h200_ncu_raw.csv");
        let version = "case $1 in --version) echo Version 2025.3.1.0; exit;; esac";
        script(root.path(), "opt/nvidia/nsight-compute/2025.3.1/ncu", &format!("{version}\ncat {fixture}"));
        let tables = convert(Path::new("x.ncu-rep"), Report::Ncu, &bare(root.path())).unwrap();
        assert_eq!(tables[0].calls(), 60);
        script(
            root.path(),
            "opt/nvidia/nsight-compute/2025.3.1/ncu",
            &format!("{version}\necho '==ERROR== Failed to load' >&2; exit 1"),
        );
        let e = convert(Path::new("x.ncu-rep"), Report::Ncu, &bare(root.path())).unwrap_err().to_string();
        assert!(e.contains("x.ncu-rep") && e.contains("Failed to load"), "{e}");
    }
}
