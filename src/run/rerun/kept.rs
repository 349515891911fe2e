//! What is kept of a run under a tool besides its report: the command, the environment, versions, logs, the exit.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    Outcome, Tool,
    child::Ended,
    command::{ToolCommand, quoted},
    written,
};
use crate::{config::yaml_text, tools::nsight::Installed};

/// Where one pass keeps its things.
#[derive(Debug, Clone)]
pub struct Files {
    pub conf_dir: PathBuf,
    /// The directory of the run that the tool looks at.
    pub run_dir: PathBuf,
    /// Without its extension, which the tool adds.
    pub report: PathBuf,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
}

impl Files {
    /// In `dir`; `pass` tells several from each other, and is empty for the only one.
    pub fn of(dir: &Path, pass: &str) -> Files {
        let named = |name: &str| if pass.is_empty() { name.to_owned() } else { format!("{pass}-{name}") };
        Files {
            conf_dir: dir.join(named("conf")),
            run_dir: dir.join(named("child")),
            report: dir.join(if pass.is_empty() { "report" } else { pass }),
            stdout: dir.join(named("stdout.log")),
            stderr: dir.join(named("stderr.log")),
        }
    }

    /// The reports that are there: one, or several with numbers (`report.1.nsys-rep`), in order.
    pub fn reports(&self, extension: &str) -> Vec<PathBuf> {
        let folder = self.report.parent().unwrap_or(Path::new("."));
        let name =
            self.report.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let place = |path: &Path| {
            let file = path.file_name()?.to_str()?;
            let middle = file.strip_prefix(name.as_str())?.strip_suffix(extension)?;
            match middle.trim_matches('.') {
                "" => Some(0),
                number => number.parse::<u32>().ok(),
            }
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: Vec<(u32, PathBuf)> = entries.filter_map(|path| Some((place(&path)?, path))).collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }
}

/// One command as it was given, and how it ended.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    #[serde(skip)]
    tool: Option<Tool>,
    #[serde(skip)]
    file: String,
    /// As a shell takes it.
    line: String,
    version: Option<String>,
    program: String,
    working_directory: Option<PathBuf>,
    command: ToolCommand,
    stdout: PathBuf,
    stderr: PathBuf,
    /// `None` while it runs.
    exit: Option<String>,
    seconds: Option<f64>,
}

impl Record {
    pub fn new(tool: Tool, installed: &Installed, command: &ToolCommand, files: &Files) -> Record {
        let pass =
            files.report.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Record {
            tool: Some(tool),
            file: match (tool, pass.as_str()) {
                (Tool::Nsys, _) => "cmd.txt".to_owned(),
                (Tool::Ncu, "report") => "command.yaml".to_owned(),
                (Tool::Ncu, pass) => format!("{pass}-command.yaml"),
            },
            line: command.line(),
            version: installed.version().map(|version| format!("{tool} {version}")),
            program: format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
            working_directory: std::env::current_dir().ok(),
            command: command.clone(),
            stdout: files.stdout.clone(),
            stderr: files.stderr.clone(),
            exit: None,
            seconds: None,
        }
    }

    pub fn ended(&mut self, ended: &Ended) {
        self.exit = Some(ended.ending.words());
        self.seconds = Some((ended.took.as_secs_f64() * 1e3).round() / 1e3);
    }

    pub fn write(&self, dir: &Path) -> Outcome<()> {
        let text = match self.tool {
            Some(Tool::Nsys) => self.text(),
            _ => yaml_text(self),
        };
        written(&dir.join(&self.file), &text)
    }

    /// A script that does the same again, with what is known of it in comments.
    fn text(&self) -> String {
        let mut text = String::from("#!/bin/sh\n");
        let mut note = |words: String| text += &format!("# {words}\n");
        note(format!(
            "{} for {}",
            self.version.as_deref().unwrap_or("a version that is not told"),
            self.program
        ));
        if let Some(exit) = &self.exit {
            note(format!("{exit} after {} s", self.seconds.unwrap_or_default()));
        }
        note(format!("stdout in {}, stderr in {}", self.stdout.display(), self.stderr.display()));
        if let Some(folder) = &self.working_directory {
            let folder = quoted(&folder.display().to_string());
            text += &format!("cd {folder}\n");
        }
        text + &self.line + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_found_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path(), "");
        assert!(files.reports("nsys-rep").is_empty());
        for name in
            ["report.10.nsys-rep", "report.2.nsys-rep", "report.qdstrm", "report.txt", "other.nsys-rep"]
        {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let names = |extension| {
            let found = files.reports(extension);
            found
                .iter()
                .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("nsys-rep"), ["report.2.nsys-rep", "report.10.nsys-rep"]);
        assert_eq!(names("qdstrm"), ["report.qdstrm"]);
        let pass = Files::of(dir.path(), "01");
        assert_eq!(pass.report, dir.path().join("01"));
        assert_eq!(pass.run_dir, dir.path().join("01-child"));
    }
}
