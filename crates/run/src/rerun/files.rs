//! The files of a run under a tool: the report, the logs, and the command with its environment, version and exit
//! status.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{RerunError, child::ToolResult, command::ToolCommand, write_file};
use llmprof_base::tools::{nsight::Installed, process::WORKING_DIR};
use llmprof_config::yaml_text;
use llmprof_event::Tool;

/// The paths of one pass.
#[derive(Debug, Clone)]
pub struct PassFiles {
    pub conf_dir: PathBuf,
    /// The directory of the child's recording.
    pub run_dir: PathBuf,
    /// Without the extension, which the tool adds.
    pub report: PathBuf,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
    /// The executed command.
    pub command: PathBuf,
}

impl PassFiles {
    /// In `dir`. `pass` is the prefix of one of several passes; it is empty for a single one.
    pub fn new(dir: &Path, tool: Tool, pass: &str) -> PassFiles {
        let path = |name: &str| match pass.is_empty() {
            true => dir.join(name),
            false => dir.join(format!("{pass}-{name}")),
        };
        PassFiles {
            conf_dir: path("conf"),
            run_dir: path("child"),
            report: dir.join(if pass.is_empty() { "report" } else { pass }),
            stdout: path("stdout.log"),
            stderr: path("stderr.log"),
            command: path(match tool {
                Tool::Nsys => "cmd.txt",
                Tool::Ncu => "command.yaml",
            }),
        }
    }

    /// The existing reports: one, or several with numbers (`report.1.nsys-rep`), in order.
    pub fn reports(&self, extension: &str) -> Vec<PathBuf> {
        let folder = self.report.parent().unwrap_or(Path::new("."));
        let name =
            self.report.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = |path: &Path| {
            let file = path.file_name()?.to_str()?;
            let middle = file.strip_prefix(name.as_str())?.strip_suffix(extension)?;
            match middle.trim_matches('.') {
                "" => Some(0),
                number => number.parse::<u32>().ok(),
            }
        };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut found: Vec<(u32, PathBuf)> =
            entries.filter_map(|path| Some((number(&path)?, path))).collect();
        found.sort();
        found.into_iter().map(|(_, path)| path).collect()
    }
}

/// An executed command, and its exit status.
#[derive(Debug, Clone, Serialize)]
pub struct CommandRecord {
    #[serde(skip)]
    tool: Tool,
    #[serde(skip)]
    file: PathBuf,
    /// As a shell command.
    line: String,
    version: Option<String>,
    program: String,
    working_directory: &'static str,
    command: ToolCommand,
    stdout: PathBuf,
    stderr: PathBuf,
    /// `None` while it runs.
    exit: Option<String>,
    seconds: Option<f64>,
}

impl CommandRecord {
    pub fn new(tool: Tool, installed: &Installed, command: &ToolCommand, files: &PassFiles) -> CommandRecord {
        CommandRecord {
            tool,
            file: files.command.clone(),
            line: command.line(),
            version: installed.version().map(|version| format!("{tool} {version}")),
            program: format!("llmprof-tui {}", env!("CARGO_PKG_VERSION")),
            working_directory: WORKING_DIR,
            command: command.clone(),
            stdout: files.stdout.clone(),
            stderr: files.stderr.clone(),
            exit: None,
            seconds: None,
        }
    }

    pub fn set_result(&mut self, result: &ToolResult) {
        self.exit = Some(result.exit.to_string());
        self.seconds = Some((result.elapsed.as_secs_f64() * 1e3).round() / 1e3);
    }

    pub fn write(&self) -> Result<(), RerunError> {
        let text = match self.tool {
            Tool::Nsys => self.script(),
            Tool::Ncu => yaml_text(self),
        };
        write_file(&self.file, &text)
    }

    /// A script that repeats the command, with its version and result in comments.
    fn script(&self) -> String {
        // A comment ends with its line; the rest would be a command.
        let comment = |text: String| format!("# {}\n", text.replace(char::is_control, " "));
        let version = self.version.as_deref().unwrap_or("unknown version");
        let mut text = "#!/bin/sh\n".to_owned() + &comment(format!("{version} for {}", self.program));
        if let Some(exit) = &self.exit {
            text += &comment(format!("{exit} after {} s", self.seconds.unwrap_or_default()));
        }
        text += &comment(format!("stdout in {}, stderr in {}", self.stdout.display(), self.stderr.display()));
        text + "cd " + self.working_directory + "\n" + &self.line + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_command() {
        let file = |name: &str| PathBuf::from(format!("/runs/a\ntouch x\n/{name}"));
        let record = CommandRecord {
            tool: Tool::Nsys,
            file: file("cmd.txt"),
            line: "nsys profile".to_owned(),
            version: None,
            program: "llmprof-tui".to_owned(),
            working_directory: WORKING_DIR,
            command: ToolCommand { program: "nsys".to_owned(), args: Vec::new(), environment: [].into() },
            stdout: file("stdout.log"),
            stderr: file("stderr.log"),
            exit: Some("not started: /runs/a\ntouch x".to_owned()),
            seconds: None,
        };
        let script = record.script();
        let commands: Vec<&str> = script.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(commands, ["cd /", "nsys profile"], "{script}");
    }

    #[test]
    fn reports_are_found_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let files = PassFiles::new(dir.path(), Tool::Nsys, "");
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
        let pass = PassFiles::new(dir.path(), Tool::Ncu, "01");
        assert_eq!(pass.report, dir.path().join("01"));
        assert_eq!(pass.run_dir, dir.path().join("01-child"));
        assert_eq!(pass.command, dir.path().join("01-command.yaml"));
    }
}
