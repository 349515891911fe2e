//! What is on the screen as files: a picture, its text, and the data behind it.

mod data;
mod table;

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use ratatui::{buffer::Buffer, layout::Rect, widgets::Widget};
use thiserror::Error;
use unicode_width::UnicodeWidthStr;

pub use self::table::Table;
use super::{
    frame::Frame,
    svg::{Paper, svg},
    ui::{Overlay, UiState},
    view::View,
};
use crate::config::ThemeName;

/// Below a run's directory, or below the current one.
const EXPORTS: &str = "exports";

/// One screen in three forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub svg: String,
    pub text: String,
    pub csv: String,
}

impl Contents {
    /// The screen at this size. What lies over the pane is left out.
    pub fn of(view: &View<'_>, size: Rect) -> Contents {
        let ui = UiState { overlay: Overlay::None, message: None, ..view.ui.clone() };
        let view = View { ui: &ui, ..*view };
        let area = Rect::new(0, 0, size.width, size.height);
        let mut buffer = Buffer::empty(area);
        Frame(view).render(area, &mut buffer);
        let paper = if ui.theme == ThemeName::Light { Paper::LIGHT } else { Paper::DARK };
        Contents { svg: svg(&buffer, paper), text: text(&buffer), csv: data::of_pane(&view).csv() }
    }
}

/// Where an export is.
#[derive(Debug)]
pub struct Exported {
    pub dir: PathBuf,
    /// Of all three files, without their endings.
    pub name: String,
    /// Why it is not where it belongs.
    pub instead: Option<ExportError>,
}

impl Exported {
    pub fn words(&self) -> String {
        let Exported { dir, name, instead } = self;
        let words = format!("wrote {name}.svg, .txt and .csv to {}", dir.display());
        match instead {
            Some(why) => format!("{words}, as {}", why.what()),
            None => words,
        }
    }
}

#[derive(Debug, Error)]
#[error("{}; {}", self.what(), self.remedy())]
pub struct ExportError {
    path: PathBuf,
    source: io::Error,
}

impl ExportError {
    fn what(&self) -> String {
        let why = match self.source.kind() {
            ErrorKind::StorageFull => "the disk is full".to_owned(),
            ErrorKind::QuotaExceeded => "your share of the disk is full".to_owned(),
            ErrorKind::ReadOnlyFilesystem => "the disk is read-only".to_owned(),
            ErrorKind::PermissionDenied => "it is not allowed".to_owned(),
            _ => self.source.to_string(),
        };
        format!("{} can't be written: {why}", self.path.display())
    }

    fn remedy(&self) -> &'static str {
        match self.source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room and press x",
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "start the program in a directory that can be written to"
            }
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                "a file is where the directory should be: move it"
            }
            _ => "start the program in another directory",
        }
    }
}

/// Writes the screen at this size to `exports/` in the directory of the run it is of. Where there is none, or it can't
/// be written, to `exports/` in the current directory. All three files are written, or none.
pub fn export(view: &View<'_>, size: Rect, run: Option<&Path>) -> Result<Exported, ExportError> {
    let contents = Contents::of(view, size);
    let pane = view.ui.pane.title().to_lowercase();
    let name = match view.state.run {
        Some(_) => format!("{pane}-{:.3}s", view.state.now.secs()),
        None => pane,
    };
    let Some(run) = run else {
        let dir = PathBuf::from(EXPORTS);
        let name = write(&contents, &dir, &name)?;
        return Ok(Exported { dir, name, instead: None });
    };
    let dir = run.join(EXPORTS);
    match write(&contents, &dir, &name) {
        Ok(name) => Ok(Exported { dir, name, instead: None }),
        Err(why) => {
            let here = PathBuf::from(EXPORTS);
            // Told of the run's directory if both fail: that is where it belongs.
            match write(&contents, &here, &name) {
                Ok(name) => Ok(Exported { dir: here, name, instead: Some(why) }),
                Err(_) => Err(why),
            }
        }
    }
}

/// Gives the name that was free.
fn write(contents: &Contents, dir: &Path, name: &str) -> Result<String, ExportError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ExportError { path, source }
    };
    match fs::create_dir(dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists && dir.is_dir() => {}
        made => made.map_err(failed(dir))?,
    }
    let files = [("svg", &contents.svg), ("txt", &contents.text), ("csv", &contents.csv)];
    for n in 1.. {
        let name = if n == 1 { name.to_owned() } else { format!("{name}-{n}") };
        let path = |ending: &str| dir.join(format!("{name}.{ending}"));
        if files.iter().any(|(ending, _)| path(ending).exists()) {
            continue;
        }
        for (at, (ending, content)) in files.iter().enumerate() {
            let path_of_file = path(ending);
            let written = File::create(&path_of_file).and_then(|mut file| file.write_all(content.as_bytes()));
            if let Err(source) = written {
                files[..=at].iter().for_each(|(ending, _)| drop(fs::remove_file(path(ending))));
                return Err(failed(&path_of_file)(source));
            }
        }
        return Ok(name);
    }
    unreachable!("there are always more numbers")
}

/// The screen line by line, without blanks at the ends.
fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut out = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A wide character covers the cell behind it.
            x += (symbol.width() as u16).max(1);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use ratatui::style::Style;

    use super::*;

    fn contents() -> Contents {
        Contents { svg: "<svg/>".into(), text: "a\n".into(), csv: "a\n".into() }
    }

    #[test]
    fn no_export_takes_the_place_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let exports = dir.path().join(EXPORTS);
        let names: Vec<String> =
            (0..3).map(|_| write(&contents(), &exports, "gpu-1.000s").unwrap()).collect();
        assert_eq!(names, ["gpu-1.000s", "gpu-1.000s-2", "gpu-1.000s-3"]);
        assert_eq!(fs::read_dir(&exports).unwrap().count(), 9);
    }

    #[test]
    fn what_is_in_the_way_is_named_with_its_remedy_and_nothing_is_left_half() {
        let dir = tempfile::tempdir().unwrap();
        let exports = dir.path().join(EXPORTS);
        fs::write(&exports, "a file").unwrap();
        let words = write(&contents(), &exports, "gpu").unwrap_err().to_string();
        assert!(words.contains(&*exports.to_string_lossy()) && words.ends_with("move it"), "{words}");

        let gone = write(&contents(), &dir.path().join("gone/exports"), "gpu").unwrap_err().to_string();
        assert!(gone.contains("gone/exports"), "a run's directory is not made anew: {gone}");

        let exports = dir.path().join("other");
        write(&contents(), &exports, &"n".repeat(300)).unwrap_err();
        assert_eq!(fs::read_dir(&exports).unwrap().count(), 0);
    }

    #[test]
    fn remedies_follow_the_reason() {
        for (kind, remedy) in [
            (ErrorKind::StorageFull, "make room"),
            (ErrorKind::ReadOnlyFilesystem, "can be written to"),
            (ErrorKind::PermissionDenied, "can be written to"),
            (ErrorKind::Other, "another directory"),
        ] {
            let words = ExportError { path: "runs/x/exports".into(), source: kind.into() }.to_string();
            assert!(
                words.starts_with("runs/x/exports can't be written") && words.contains(remedy),
                "{words}"
            );
        }
    }

    #[test]
    fn wide_characters_take_their_two_cells() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 2));
        buffer.set_string(0, 0, "日本x", Style::new());
        assert_eq!(text(&buffer), "日本x\n\n");
    }
}
