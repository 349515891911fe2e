//! Extraction of archives (zip, tar, tar.gz): all entries or none, and never outside of the target directory.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::error::AssetError;
use super::paths;
use crate::base::gz;

/// Maximum length of a link target in an archive.
const MAX_LINK: u64 = 4096;

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link(String),
}

/// Extracts `archive` to the directory `into`, which must not exist yet.
///
/// All entries are checked before the first one is written. An entry outside of `into` is an error. The directory is
/// created only if all entries are extracted.
pub(super) fn extract(archive: &Path, into: &Path) -> Result<(), AssetError> {
    check(archive)?;
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    let partial = into.with_file_name(format!(".{name}.partial-{}", std::process::id()));
    if let Some(parent) = partial.parent() {
        fs::create_dir_all(parent).map_err(AssetError::io("create", parent))?;
    }
    fs::create_dir(&partial).map_err(AssetError::io("create", &partial))?;
    let mut checker = Checker::new(archive);
    let result = for_each_entry(archive, &mut |entry, kind, content| {
        let Some(path) = checker.check(entry, &kind)? else { return Ok(()) };
        write(&partial.join(path), &kind, content)
    })
    .and_then(|()| fs::rename(&partial, into).map_err(AssetError::io("create", into)));
    if result.is_err() {
        // If this fails, a hidden directory remains. The first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    result
}

/// Checks all entries of `archive` without writing anything.
pub(super) fn check(archive: &Path) -> Result<(), AssetError> {
    let mut checker = Checker::new(archive);
    for_each_entry(archive, &mut |entry, kind, _| checker.check(entry, &kind).map(drop))
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Zip,
    Tar,
    TarGz,
}

impl Format {
    fn from_name(name: &str) -> Option<Format> {
        let name = name.to_ascii_lowercase();
        match () {
            () if name.ends_with(".zip") => Some(Format::Zip),
            () if name.ends_with(".tar") => Some(Format::Tar),
            () if name.ends_with(".tar.gz") || name.ends_with(".tgz") => Some(Format::TarGz),
            () => None,
        }
    }
}

/// Checks entries in order.
struct Checker<'a> {
    archive: &'a Path,
    /// The paths so far, and whether each is a directory.
    is_dir: HashMap<PathBuf, bool>,
}

impl<'a> Checker<'a> {
    fn new(archive: &'a Path) -> Checker<'a> {
        Checker { archive, is_dir: HashMap::new() }
    }

    /// The path of `entry` relative to the root; `None` for the root itself.
    fn check(&mut self, entry: &str, kind: &Kind) -> Result<Option<PathBuf>, AssetError> {
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
        // A path below a link would be written to the target of the link.
        if path.ancestors().skip(1).any(|parent| self.is_dir.get(parent) == Some(&false)) {
            return Err(refuse("is below an entry that is not a directory".into()));
        }
        let is_dir = *kind == Kind::Directory;
        match self.is_dir.insert(path.clone(), is_dir) {
            Some(was_dir) if !(was_dir && is_dir) => Err(refuse("is a duplicate".into())),
            _ => {
                for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
                    self.is_dir.entry(parent.to_owned()).or_insert(true);
                }
                Ok(Some(path))
            }
        }
    }
}

type Visit<'v> = dyn FnMut(&str, Kind, &mut dyn Read) -> Result<(), AssetError> + 'v;

fn for_each_entry(archive: &Path, visit: &mut Visit<'_>) -> Result<(), AssetError> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = File::open(archive).map_err(AssetError::io("read", archive))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        return Err(bad(archive, "is a directory, not an archive"));
    }
    let file = BufReader::new(file);
    match Format::from_name(&name) {
        Some(Format::Zip) => for_each_in_zip(archive, file, visit),
        Some(Format::Tar) => for_each_in_tar(archive, file, visit),
        Some(Format::TarGz) => for_each_in_tar(archive, gz::decompressed(file), visit),
        None => Err(bad(archive, "is not a .zip, .tar, .tar.gz or .tgz file")),
    }
}

fn bad(archive: &Path, why: impl ToString) -> AssetError {
    AssetError::BadArchive { archive: archive.to_owned(), why: why.to_string() }
}

fn for_each_in_zip(archive: &Path, file: BufReader<File>, visit: &mut Visit<'_>) -> Result<(), AssetError> {
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

fn for_each_in_tar(archive: &Path, stream: impl Read, visit: &mut Visit<'_>) -> Result<(), AssetError> {
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
                let target = entry.link_name_bytes().ok_or_else(|| refuse("is a link without a target"))?;
                Kind::Link(String::from_utf8_lossy(&target).into_owned())
            }
            EntryType::XGlobalHeader => continue,
            EntryType::Link => return Err(refuse("is a hard link, which is not supported")),
            _ => return Err(refuse("is a device or a pipe")),
        };
        visit(&name, kind, &mut entry)?;
    }
    Ok(())
}

fn write(path: &Path, kind: &Kind, content: &mut dyn Read) -> Result<(), AssetError> {
    if *kind == Kind::Directory {
        return fs::create_dir_all(path).map_err(AssetError::io("create", path));
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(AssetError::io("create", parent))?;
    }
    match kind {
        Kind::Link(target) => create_link(target, path).map_err(AssetError::io("create", path)),
        _ => {
            // `create_new` does not follow an existing link.
            let opened = OpenOptions::new().write(true).create_new(true).open(path);
            let mut file = opened.map_err(AssetError::io("create", path))?;
            io::copy(content, &mut file).map(drop).map_err(AssetError::io("write", path))
        }
    }
}

#[cfg(unix)]
fn create_link(target: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(not(unix))]
fn create_link(_: &str, _: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "links in archives are supported on Unix only"))
}

#[cfg(test)]
mod tests;
