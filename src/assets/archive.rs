//! Archives (zip, tar, tar.gz) extracted whole or not at all, and never out of the directory they go to.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::error::AssetError;
use super::paths;

/// Longest text of a link within an archive.
const MAX_LINK: u64 = 4096;

/// What was extracted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extracted {
    pub files: u64,
    pub bytes: u64,
}

/// What one entry would become.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link(String),
}

/// Extracts `archive` to the directory `into`, which must not exist yet.
///
/// Every entry is looked at before the first is written; one that would leave `into` is refused by
/// name. The directory appears only when all of it is there.
pub fn extract(archive: &Path, into: &Path) -> Result<Extracted, AssetError> {
    check(archive)?;
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    let partial = into.with_file_name(format!(".{name}.partial-{}", std::process::id()));
    if let Some(parent) = partial.parent() {
        fs::create_dir_all(parent).map_err(AssetError::io("make", parent))?;
    }
    fs::create_dir(&partial).map_err(AssetError::io("make", &partial))?;
    let mut extracted = Extracted::default();
    let mut checker = Checker::new(archive);
    let done = each(archive, &mut |entry, kind, content| {
        let Some(path) = checker.admit(entry, &kind)? else { return Ok(()) };
        let path = partial.join(path);
        let bytes = write(&path, &kind, content)?;
        extracted.files += u64::from(kind != Kind::Directory);
        extracted.bytes += bytes;
        Ok(())
    })
    .and_then(|()| fs::rename(&partial, into).map_err(AssetError::io("make", into)));
    if done.is_err() {
        // What led here is told; a directory that stays behind is hidden and harmless.
        let _ = fs::remove_dir_all(&partial);
    }
    done.map(|()| extracted)
}

/// Looks at every entry of `archive` without writing anything.
pub fn check(archive: &Path) -> Result<(), AssetError> {
    let mut checker = Checker::new(archive);
    each(archive, &mut |entry, kind, _| checker.admit(entry, &kind).map(drop))
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Zip,
    Tar,
    TarGz,
}

impl Format {
    fn of(name: &str) -> Option<Format> {
        let name = name.to_ascii_lowercase();
        match () {
            () if name.ends_with(".zip") => Some(Format::Zip),
            () if name.ends_with(".tar") => Some(Format::Tar),
            () if name.ends_with(".tar.gz") || name.ends_with(".tgz") => Some(Format::TarGz),
            () => None,
        }
    }
}

/// Admits entries one after another, knowing those before.
struct Checker<'a> {
    archive: &'a Path,
    seen: HashMap<PathBuf, bool>,
}

impl<'a> Checker<'a> {
    fn new(archive: &'a Path) -> Checker<'a> {
        Checker { archive, seen: HashMap::new() }
    }

    /// The path of `entry` below the root; `None` for the root itself.
    fn admit(&mut self, entry: &str, kind: &Kind) -> Result<Option<PathBuf>, AssetError> {
        let refuse = |why: String| AssetError::BadEntry {
            archive: self.archive.to_owned(),
            entry: entry.to_owned(),
            why,
        };
        if *kind == Kind::Directory && matches!(entry, "." | "./" | "") {
            return Ok(None);
        }
        let path = paths::relative(entry).map_err(refuse)?;
        if let Kind::Link(target) = kind
            && !paths::link_stays(&path, target)
        {
            return Err(refuse(format!("is a link that points outside (to {target:?})")));
        }
        // A name below a file or a link would be written through it, wherever that points.
        if path.ancestors().skip(1).any(|above| self.seen.get(above) == Some(&false)) {
            return Err(refuse("lies below an entry that is no directory".into()));
        }
        let is_dir = *kind == Kind::Directory;
        match self.seen.insert(path.clone(), is_dir) {
            Some(was_dir) if !(was_dir && is_dir) => Err(refuse("stands there twice".into())),
            _ => {
                for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
                    self.seen.entry(above.to_owned()).or_insert(true);
                }
                Ok(Some(path))
            }
        }
    }
}

type Visit<'v> = dyn FnMut(&str, Kind, &mut dyn Read) -> Result<(), AssetError> + 'v;

fn each(archive: &Path, visit: &mut Visit<'_>) -> Result<(), AssetError> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = File::open(archive).map_err(AssetError::io("read", archive))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        return Err(bad(archive, "is a directory, not an archive"));
    }
    let file = BufReader::new(file);
    match Format::of(&name) {
        Some(Format::Zip) => each_of_zip(archive, file, visit),
        Some(Format::Tar) => each_of_tar(archive, file, visit),
        Some(Format::TarGz) => each_of_tar(archive, flate2::read::MultiGzDecoder::new(file), visit),
        None => Err(bad(archive, "is none of .zip, .tar, .tar.gz, .tgz")),
    }
}

fn bad(archive: &Path, why: impl ToString) -> AssetError {
    AssetError::BadArchive { archive: archive.to_owned(), why: why.to_string() }
}

fn each_of_zip(archive: &Path, file: BufReader<File>, visit: &mut Visit<'_>) -> Result<(), AssetError> {
    let mut zip = zip::ZipArchive::new(file).map_err(|e| bad(archive, e))?;
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).map_err(|e| bad(archive, e))?;
        let name = entry.name().map_err(|e| bad(archive, e))?.into_owned();
        let kind = if entry.is_dir() {
            Kind::Directory
        } else if entry.is_symlink() {
            let mut target = String::new();
            (&mut entry)
                .take(MAX_LINK + 1)
                .read_to_string(&mut target)
                .map_err(|e| bad(archive, format!("the link {name:?}: {e}")))?;
            Kind::Link(target)
        } else {
            Kind::File
        };
        visit(&name, kind, &mut entry)?;
    }
    Ok(())
}

fn each_of_tar(archive: &Path, stream: impl Read, visit: &mut Visit<'_>) -> Result<(), AssetError> {
    use tar::EntryType;
    let mut tar = tar::Archive::new(stream);
    for entry in tar.entries().map_err(|e| bad(archive, e))? {
        let mut entry = entry.map_err(|e| bad(archive, e))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let refuse = |why: &str| AssetError::BadEntry {
            archive: archive.to_owned(),
            entry: name.clone(),
            why: why.to_owned(),
        };
        let kind = match entry.header().entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| refuse("is a link to nothing"))?;
                Kind::Link(String::from_utf8_lossy(&target).into_owned())
            }
            EntryType::XGlobalHeader => continue,
            EntryType::Link => return Err(refuse("is a hard link, which this program does not make")),
            _ => return Err(refuse("is a device or a pipe")),
        };
        visit(&name, kind, &mut entry)?;
    }
    Ok(())
}

fn write(path: &Path, kind: &Kind, content: &mut dyn Read) -> Result<u64, AssetError> {
    if *kind == Kind::Directory {
        return fs::create_dir_all(path).map(|()| 0).map_err(AssetError::io("make", path));
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(AssetError::io("make", parent))?;
    }
    match kind {
        Kind::Link(target) => make_link(target, path).map(|()| 0).map_err(AssetError::io("make", path)),
        _ => {
            // `create_new` never follows a link that stands there.
            let opened = OpenOptions::new().write(true).create_new(true).open(path);
            let mut file = opened.map_err(AssetError::io("make", path))?;
            io::copy(content, &mut file).map_err(AssetError::io("write", path))
        }
    }
}

#[cfg(unix)]
fn make_link(target: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn make_link(_: &str, _: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "links within archives are made on Unix alone"))
}

#[cfg(test)]
mod tests;
