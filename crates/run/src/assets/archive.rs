//! Extraction of archives (zip, tar, tar.gz): all entries or none, never outside of the target directory, never more than the
//! limits.

mod limits;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::error::AssetError;
use super::paths;
pub use limits::Limits;
use limits::{Headers, Total};
use llmprof_base::{gz, read};

/// Maximum length of a link target in an archive.
const MAX_LINK: u64 = 4096;

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link(String),
}

/// An entry as the archive describes it.
struct Entry {
    name: String,
    kind: Kind,
    /// The size of the content, in bytes. Longer content is an error when it is written.
    size: u64,
}

/// Extracts `archive` to the directory `into`, which must not exist yet.
///
/// All entries are checked before the first one is written. An entry outside of `into` is an error. The directory is
/// created only if all entries are extracted.
pub(super) fn extract(archive: &Path, into: &Path, limits: Limits) -> Result<(), AssetError> {
    check(archive, limits)?;
    let name = into.file_name().unwrap_or_default().to_string_lossy();
    let partial = into.with_file_name(format!(".{name}.partial-{}", std::process::id()));
    if let Some(parent) = partial.parent() {
        fs::create_dir_all(parent).map_err(AssetError::io("create", parent))?;
    }
    fs::create_dir(&partial).map_err(AssetError::io("create", &partial))?;
    let mut checker = Checker::new(archive, limits);
    let result = for_each_entry(archive, &mut |entry, content| {
        let Some(path) = checker.check(entry)? else { return Ok(()) };
        match write(&partial.join(path), entry, content)? > entry.size {
            true => Err(checker.refusal(entry, "is longer than its entry in the archive states".into())),
            false => Ok(()),
        }
    })
    .and_then(|()| fs::rename(&partial, into).map_err(AssetError::io("create", into)));
    if result.is_err() {
        // If this fails, a hidden directory remains. The first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    result
}

/// Checks all entries of `archive` without writing anything.
pub(super) fn check(archive: &Path, limits: Limits) -> Result<(), AssetError> {
    let mut checker = Checker::new(archive, limits);
    for_each_entry(archive, &mut |entry, _| checker.check(entry).map(drop))
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
    total: Total,
}

impl<'a> Checker<'a> {
    fn new(archive: &'a Path, limits: Limits) -> Checker<'a> {
        let size = fs::metadata(archive).map_or(0, |metadata| metadata.len());
        Checker { archive, is_dir: HashMap::new(), total: Total::new(limits, size) }
    }

    fn refusal(&self, entry: &Entry, why: String) -> AssetError {
        AssetError::BadEntry { archive: self.archive.to_owned(), entry: entry.name.clone(), why }
    }

    /// The path of `entry` relative to the root; `None` for the root itself.
    fn check(&mut self, entry: &Entry) -> Result<Option<PathBuf>, AssetError> {
        self.total.add(entry.size).map_err(|excess| bad(self.archive, excess))?;
        let refuse = |why: String| self.refusal(entry, why);
        if entry.kind == Kind::Directory && matches!(entry.name.as_str(), "." | "./" | "") {
            return Ok(None);
        }
        let path = paths::relative(&entry.name).map_err(refuse)?;
        if let Kind::Link(target) = &entry.kind
            && !paths::link_stays(&path, target)
        {
            return Err(refuse(format!("is a link that points outside (to {target:?})")));
        }
        // A path below a link would be written to the target of the link.
        if path.ancestors().skip(1).any(|parent| self.is_dir.get(parent) == Some(&false)) {
            return Err(refuse("is below an entry that is not a directory".into()));
        }
        let is_dir = entry.kind == Kind::Directory;
        match self.is_dir.insert(path.clone(), is_dir) {
            Some(was_dir) if !(was_dir && is_dir) => Err(self.refusal(entry, "is a duplicate".into())),
            _ => {
                for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
                    self.is_dir.entry(parent.to_owned()).or_insert(true);
                }
                Ok(Some(path))
            }
        }
    }
}

type Visit<'v> = dyn FnMut(&Entry, &mut dyn Read) -> Result<(), AssetError> + 'v;

fn for_each_entry(archive: &Path, visit: &mut Visit<'_>) -> Result<(), AssetError> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = read::open(archive).map_err(|e| match e.kind() {
        io::ErrorKind::IsADirectory => bad(archive, "is a directory, not an archive"),
        _ => AssetError::io("read", archive)(e),
    })?;
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
        visit(&Entry { name, kind, size: entry.size() }, &mut entry)?;
    }
    Ok(())
}

fn for_each_in_tar(archive: &Path, stream: impl Read, visit: &mut Visit<'_>) -> Result<(), AssetError> {
    use tar::EntryType;
    let (stream, meter) = Headers::new(stream);
    let mut tar = tar::Archive::new(stream);
    let mut entries = tar.entries().map_err(|e| bad(archive, e))?;
    loop {
        meter.headers_follow();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(|e| bad(archive, e))?;
        meter.content_follows();
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
        visit(&Entry { name, kind, size: entry.size() }, &mut entry)?;
        io::copy(&mut entry, &mut io::sink()).map_err(|e| bad(archive, e))?;
    }
    Ok(())
}

/// Writes an entry. Returns the bytes of its content, at most one more than the stated size.
fn write(path: &Path, entry: &Entry, content: &mut dyn Read) -> Result<u64, AssetError> {
    if entry.kind == Kind::Directory {
        return fs::create_dir_all(path).map(|()| 0).map_err(AssetError::io("create", path));
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(AssetError::io("create", parent))?;
    }
    match &entry.kind {
        Kind::Link(target) => create_link(target, path).map(|()| 0).map_err(AssetError::io("create", path)),
        _ => {
            // `create_new` does not follow an existing link.
            let opened = OpenOptions::new().write(true).create_new(true).open(path);
            let mut file = opened.map_err(AssetError::io("create", path))?;
            let mut content = content.take(entry.size.saturating_add(1));
            io::copy(&mut content, &mut file).map_err(AssetError::io("write", path))
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
