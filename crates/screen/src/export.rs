//! The screen as files: a picture, its text, and the data behind it.

use std::{
    fmt,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};
use serde::Serialize;
use thiserror::Error;
use unicode_width::UnicodeWidthStr;

use super::{
    frame::Frame,
    svg::{Paper, svg},
    ui::{Overlay, UiState},
    view::View,
};
use llmprof_base::dir::Dir;
use llmprof_config::ThemeName;

/// The directory of exports, in a run's directory or in the current one.
const EXPORTS: &str = "exports";

/// One screen in three formats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub svg: String,
    pub text: String,
    pub csv: String,
}

impl Contents {
    /// The screen at this size, without overlay and message.
    pub fn new(view: &View<'_>, size: Rect) -> Contents {
        let ui = UiState { overlay: Overlay::None, message: None, ..view.ui.clone() };
        let view = View { ui: &ui, ..*view };
        let area = Rect::new(0, 0, size.width, size.height);
        let mut buffer = Buffer::empty(area);
        Frame(view).render(area, &mut buffer);
        let paper = if ui.theme == ThemeName::Light { Paper::LIGHT } else { Paper::DARK };
        Contents {
            svg: svg(&buffer, paper),
            text: text(&buffer),
            csv: (view.ui.pane.spec().table)(&view).csv(),
        }
    }
}

/// The files of an export.
#[derive(Debug)]
pub struct Exported {
    pub dir: PathBuf,
    /// The name of all three files, without extension.
    pub name: String,
    /// Why the files are not in the run's directory.
    pub instead: Option<ExportError>,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exported { dir, name, instead } = self;
        write!(f, "wrote {name}.svg, .txt and .csv to {}", dir.display())?;
        match instead {
            Some(error) => write!(f, "; {}", error.problem()),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Error)]
#[error("{}; {}", self.problem(), self.remedy())]
pub struct ExportError {
    path: PathBuf,
    source: io::Error,
}

impl ExportError {
    fn problem(&self) -> String {
        let reason = match self.source.kind() {
            ErrorKind::StorageFull => "the disk is full".to_owned(),
            ErrorKind::QuotaExceeded => "the disk quota is exceeded".to_owned(),
            ErrorKind::ReadOnlyFilesystem => "the file system is read-only".to_owned(),
            ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => self.source.to_string(),
        };
        format!("cannot write {}: {reason}", self.path.display())
    }

    fn remedy(&self) -> &'static str {
        match self.source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space and press x again",
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "start the program in a writable directory"
            }
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                "a file or a link has the name of the directory: move it"
            }
            _ => "start the program in another directory",
        }
    }
}

/// Writes the screen at this size to `exports/` in the directory of its run. If there is none, or it is not writable,
/// to `exports/` in the current directory. All three files are written, or none.
pub fn export(view: &View<'_>, size: Rect, run: Option<&Path>) -> Result<Exported, ExportError> {
    let contents = Contents::new(view, size);
    let pane = view.ui.pane.title().to_lowercase();
    let name = match view.state.run {
        Some(_) => format!("{pane}-{:.3}s", view.state.now.secs()),
        None => pane,
    };
    let here = Path::new("");
    match write(&contents, run.unwrap_or(here), &name) {
        // If both fail, the error is that of the run's directory.
        Err(error) if run.is_some() => match write(&contents, here, &name) {
            Ok(exported) => Ok(Exported { instead: Some(error), ..exported }),
            Err(_) => Err(error),
        },
        written => written,
    }
}

/// Writes all three files to `exports/` in `parent`.
fn write(contents: &Contents, parent: &Path, name: &str) -> Result<Exported, ExportError> {
    let path = parent.join(EXPORTS);
    let failed = |path: PathBuf| move |source| ExportError { path, source };
    let dir = Dir::open(parent).and_then(|parent| parent.subdir(Path::new(EXPORTS)));
    let dir = dir.map_err(failed(path.clone()))?;
    let files = [("svg", &contents.svg), ("txt", &contents.text), ("csv", &contents.csv)];
    let file = |name: &str, extension: &str| format!("{name}.{extension}");
    let is_taken = |name: &str| files.iter().any(|(extension, _)| dir.has(file(name, extension)));
    let (mut free, mut n) = (name.to_owned(), 1);
    while is_taken(&free) {
        n += 1;
        free = format!("{name}-{n}");
    }
    for (i, (extension, content)) in files.iter().enumerate() {
        let name = file(&free, extension);
        if let Err(source) = dir.write(&name, content) {
            files[..i].iter().for_each(|(extension, _)| drop(dir.remove(file(&free, extension))));
            return Err(failed(path.join(name))(source));
        }
    }
    Ok(Exported { dir: path, name: free, instead: None })
}

/// The serialised name of a value, for a cell.
pub(crate) fn key_of(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

/// The screen line by line, without trailing blanks.
fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut out = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A wide character covers the next cell.
            x += (symbol.width() as u16).max(1);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ratatui::style::Style;

    use super::*;

    fn contents() -> Contents {
        Contents { svg: "<svg/>".into(), text: "a\n".into(), csv: "a\n".into() }
    }

    #[test]
    fn no_export_overwrites_another() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> =
            (0..3).map(|_| write(&contents(), dir.path(), "gpu-1.000s").unwrap().name).collect();
        assert_eq!(names, ["gpu-1.000s", "gpu-1.000s-2", "gpu-1.000s-3"]);
        assert_eq!(fs::read_dir(dir.path().join(EXPORTS)).unwrap().count(), 9);
    }

    #[test]
    fn errors_name_the_path_and_a_remedy_and_leave_no_partial_export() {
        let dir = tempfile::tempdir().unwrap();
        let exports = dir.path().join(EXPORTS);
        write(&contents(), dir.path(), &"n".repeat(300)).unwrap_err();
        assert_eq!(fs::read_dir(&exports).unwrap().count(), 0);

        fs::remove_dir(&exports).unwrap();
        fs::write(&exports, "a file").unwrap();
        let text = write(&contents(), dir.path(), "gpu").unwrap_err().to_string();
        assert!(text.contains(&*exports.to_string_lossy()) && text.ends_with("move it"), "{text}");

        let gone = write(&contents(), &dir.path().join("gone"), "gpu").unwrap_err().to_string();
        assert!(gone.contains("gone/exports"), "a deleted run directory is not created again: {gone}");
    }

    #[test]
    fn a_linked_directory_gets_no_export() {
        let (run, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), run.path().join(EXPORTS)).unwrap();
        let text = write(&contents(), run.path(), "gpu").unwrap_err().to_string();
        assert!(text.contains("is a link or a file") && text.ends_with("move it"), "{text}");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn remedies_follow_the_reason() {
        for (kind, remedy) in [
            (ErrorKind::StorageFull, "free some space"),
            (ErrorKind::ReadOnlyFilesystem, "writable directory"),
            (ErrorKind::PermissionDenied, "writable directory"),
            (ErrorKind::Other, "another directory"),
        ] {
            let text = ExportError { path: "runs/x/exports".into(), source: kind.into() }.to_string();
            assert!(text.starts_with("cannot write runs/x/exports: ") && text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_wide_character_takes_two_cells() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 2));
        buffer.set_string(0, 0, "日本x", Style::new());
        assert_eq!(text(&buffer), "日本x\n\n");
    }
}
