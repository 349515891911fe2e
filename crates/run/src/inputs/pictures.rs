//! The images of requests: those of a dataset, or synthetic pages.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{DatasetError, InputsError};
use llmprof_base::{noise, png::Picture};
use llmprof_config::ImagesConfig;
use llmprof_workload::text::prompts::Sample;

/// The number of different synthetic pages; requests use them in turn.
const PAGES: u32 = 8;

/// The images of a run, and the question about them.
#[derive(Debug, Clone)]
pub struct Pictures {
    pub question: String,
    pub source: PictureSource,
}

#[derive(Debug, Clone)]
pub enum PictureSource {
    /// For each request its files.
    Files(Vec<Vec<PathBuf>>),
    /// Drawn at the start of the run.
    Pages { per_request: u32, width: u32, height: u32, seed: u64 },
}

impl Pictures {
    /// The images of `images`; `samples` names those of a dataset in the order of the requests.
    pub fn open(
        images: &ImagesConfig,
        samples: Option<&[Sample]>,
        seed: u64,
    ) -> Result<Pictures, InputsError> {
        let question = images.prompt.clone();
        let per_request = images.per_request;
        let Some(dir) = &images.dir else {
            let (width, height) = (images.width, images.height);
            return Ok(Pictures {
                question,
                source: PictureSource::Pages { per_request, width, height, seed },
            });
        };
        let files = match samples {
            Some(samples) => named(Path::new(dir), samples)?,
            None => all_of(Path::new(dir))?,
        };
        let files = files.chunks(per_request as usize).map(<[PathBuf]>::to_vec).collect();
        Ok(Pictures { question, source: PictureSource::Files(files) })
    }

    /// The number of requests with files; `None` for synthetic pages.
    pub fn requests(&self) -> Option<u32> {
        match &self.source {
            PictureSource::Files(files) => Some(files.len() as u32),
            PictureSource::Pages { .. } => None,
        }
    }

    /// The files, request by request. Synthetic pages are drawn into `dir`.
    pub fn files(&self, dir: &Path) -> io::Result<Vec<Vec<PathBuf>>> {
        let PictureSource::Pages { per_request, width, height, seed } = &self.source else {
            let PictureSource::Files(files) = &self.source else { return Ok(Vec::new()) };
            return Ok(files.clone());
        };
        fs::create_dir_all(dir)?;
        let mut all = Vec::new();
        for request in 0..PAGES {
            let mut of_request = Vec::new();
            for picture in 0..*per_request {
                let number = request * per_request + picture;
                let path = dir.join(format!("page-{number:03}.png"));
                fs::write(&path, page(*width, *height, noise::bits(*seed, u64::from(number))).png())?;
                of_request.push(path);
            }
            all.push(of_request);
        }
        Ok(all)
    }
}

/// The files that samples name, which must be in the directory.
fn named(dir: &Path, samples: &[Sample]) -> Result<Vec<PathBuf>, DatasetError> {
    let mut files = Vec::with_capacity(samples.len());
    for (sample, number) in samples.iter().zip(1..) {
        let name = sample.name.as_deref().map(Path::new);
        let name =
            name.filter(|name| name.components().all(|part| matches!(part, std::path::Component::Normal(_))));
        let name = name.ok_or(DatasetError::NoPicture { number })?;
        let file = dir.join(name);
        if !file.is_file() {
            return Err(DatasetError::MissingPicture { file: file.display().to_string() });
        }
        files.push(file);
    }
    Ok(files)
}

/// All images of a directory, by name.
fn all_of(dir: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let unreadable = |cause| DatasetError::UnreadablePictures { dir: dir.display().to_string(), cause };
    let is_picture = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        ["png", "jpg", "jpeg", "webp", "bmp"].contains(&extension.to_ascii_lowercase().as_str())
    };
    let entries = fs::read_dir(dir).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_picture).collect();
    files.sort();
    match files.is_empty() {
        true => Err(DatasetError::NoPictures { dir: dir.display().to_string() }),
        false => Ok(files),
    }
}

/// A page like that of a document: a title, paragraphs of words, a table and a figure. Words are bars, because the work
/// of an encoder depends only on the size of a page.
fn page(width: u32, height: u32, seed: u64) -> Picture {
    const PAPER: [u8; 3] = [250, 250, 247];
    const INK: [u8; 3] = [40, 40, 45];
    const GREY: [u8; 3] = [150, 150, 155];
    let mut page = Picture::filled(width, height, PAPER);
    let unit = (height / 88).max(2);
    let (margin, right) = (width / 12, width - width / 12);
    let mut draws = 0;
    let mut draw = |below: u32| {
        draws += 1;
        noise::bits(seed, draws) as u32 % below.max(1)
    };
    page.fill(margin, 3 * unit, (right - margin) / 2 + draw((right - margin) / 3), 2 * unit, INK);
    let mut y = 8 * unit;
    while y + 2 * unit < height.saturating_sub(4 * unit) {
        match draw(9) {
            0 if y + 16 * unit < height => {
                let columns = 3 + draw(3);
                let cell = (right - margin) / columns;
                for row in 0..6 {
                    for column in 0..columns {
                        let corner = (margin + column * cell, y + row * 2 * unit);
                        page.outline(corner, (cell, 2 * unit), (unit / 8).max(1), GREY);
                        page.fill(corner.0 + unit, corner.1 + unit / 2, draw(cell / 2) + unit, unit, INK);
                    }
                }
                y += 14 * unit;
            }
            1 if y + 20 * unit < height => {
                page.outline((margin, y), (right - margin, 18 * unit), (unit / 8).max(1), GREY);
                for bar in 0..8 {
                    let tall = unit + draw(14 * unit);
                    page.fill(
                        margin + unit + bar * (right - margin) / 9,
                        y + 17 * unit - tall,
                        unit * 2,
                        tall,
                        GREY,
                    );
                }
                y += 20 * unit;
            }
            _ => {
                for _ in 0..2 + draw(5) {
                    let mut x = margin;
                    while x + 2 * unit < right {
                        let word = unit + draw(6 * unit);
                        page.fill(x, y, word.min(right - x), unit, INK);
                        x += word + unit / 2 + 1;
                    }
                    y += 2 * unit;
                }
                y += unit;
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_pages_are_the_same_for_the_same_seed() {
        for (width, height) in [(1240, 1754), (1, 1), (3, 500), (640, 2)] {
            assert_eq!(page(width, height, 1).png(), page(width, height, 1).png());
        }
        assert_ne!(page(620, 877, 1).png(), page(620, 877, 2).png());
    }

    #[test]
    fn names_do_not_leave_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.png"), "").unwrap();
        let of = |name: Option<&str>| {
            let sample = Sample { name: name.map(str::to_owned), text: String::new() };
            named(dir.path(), &[sample]).map_err(|e| e.to_string())
        };
        assert_eq!(of(Some("a.png")).unwrap(), [dir.path().join("a.png")]);
        for name in [Some("../a.png"), Some("/etc/passwd"), None] {
            assert!(of(name).unwrap_err().contains("sample 1 does not name an image"), "{name:?}");
        }
        assert!(of(Some("b.png")).unwrap_err().contains("b.png does not exist"));
        assert_eq!(all_of(dir.path()).unwrap().len(), 1);
    }
}
