//! Valid archives are extracted completely; invalid ones leave no files.

use std::io::Write;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// An entry: a name, and its text or the target of a link.
type Described<'a> = (&'a str, Result<&'a str, &'a str>);

fn tar_of(entries: &[Described]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        // The builder refuses invalid names, so the header is written directly.
        let bytes = name.as_bytes();
        header.as_gnu_mut().unwrap().name[..bytes.len()].copy_from_slice(bytes);
        header.set_mode(0o644);
        let body = match content {
            Ok(text) => text.as_bytes(),
            Err(target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
                &[]
            }
        };
        header.set_size(body.len() as u64);
        header.set_cksum();
        tar.append(&header, body).unwrap();
    }
    tar.into_inner().unwrap()
}

fn zip_of(entries: &[Described]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, content) in entries {
        match content {
            Ok(text) => {
                zip.start_file(*name, options).unwrap();
                zip.write_all(text.as_bytes()).unwrap();
            }
            Err(target) => zip.add_symlink(*name, *target, options).unwrap(),
        }
    }
    zip.finish().unwrap().into_inner()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Writes an archive to a new directory; its path and the target directory.
fn write_archive(name: &str, bytes: &[u8]) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join(name);
    fs::write(&archive, bytes).unwrap();
    let into = dir.path().join("images");
    (dir, archive, into)
}

fn all_formats(entries: &[Described]) -> Vec<(&'static str, Vec<u8>)> {
    let tar = tar_of(entries);
    vec![("a.tar.gz", gz(&tar)), ("a.tar", tar), ("a.zip", zip_of(entries))]
}

#[test]
fn valid_archives_are_extracted_completely() {
    let entries =
        [("d/a.txt", Ok("alpha")), ("b.txt", Ok("")), ("d/link", Err("a.txt")), ("up/l", Err("../b.txt"))];
    for (name, bytes) in all_formats(&entries) {
        let (_dir, archive, into) = write_archive(name, &bytes);
        extract(&archive, &into, Limits::DEFAULT).unwrap();
        for (path, text) in [("d/a.txt", "alpha"), ("b.txt", ""), ("d/link", "alpha"), ("up/l", "")] {
            assert_eq!(fs::read_to_string(into.join(path)).unwrap(), text, "{name}, {path}");
        }
        assert_eq!(fs::read_dir(&into).unwrap().count(), 3, "{name}");
    }
}

#[test]
fn entries_outside_of_the_target_are_refused_and_nothing_is_written() {
    let table: [(&[Described], &str, &str); 7] = [
        (&[("ok", Ok("x")), ("../evil", Ok("x"))], "../evil", "contains \"..\""),
        (&[("a/../../evil", Ok("x"))], "a/../../evil", "contains \"..\""),
        (&[("/abs/evil", Ok("x"))], "/abs/evil", "absolute"),
        (&[("out", Err("../../etc"))], "out", "points outside"),
        (&[("out", Err("/etc/passwd"))], "out", "points outside"),
        (&[("out", Err("d")), ("out/evil", Ok("x"))], "out/evil", "not a directory"),
        (&[("x", Ok("1")), ("x/y", Ok("2"))], "x/y", "not a directory"),
    ];
    for (entries, named, why) in table {
        for (name, bytes) in all_formats(entries) {
            let (dir, archive, into) = write_archive(name, &bytes);
            let message = extract(&archive, &into, Limits::DEFAULT).unwrap_err().to_string();

            assert!(message.contains(&format!("{named:?}")) && message.contains(why), "{name}: {message}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}: something was written");
        }
    }
}

#[test]
fn links_through_links_are_refused() {
    // The path `a/b/x/..` is inside of the target by its components, but outside through the link `x`.
    for (name, bytes) in all_formats(&[("a/b/x", Err("../..")), ("y", Err("a/b/x/.."))]) {
        let (_dir, archive, into) = write_archive(name, &bytes);
        assert!(
            extract(&archive, &into, Limits::DEFAULT).unwrap_err().to_string().contains("points outside"),
            "{name}"
        );
    }
}

#[test]
fn duplicates_and_hard_links_are_refused() {
    let (_dir, archive, into) = write_archive("a.tar", &tar_of(&[("x", Err("d")), ("x", Ok("through"))]));
    assert!(extract(&archive, &into, Limits::DEFAULT).unwrap_err().to_string().contains("is a duplicate"));
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Link);
    header.set_size(0);
    tar.append_link(&mut header, "h", "/etc/passwd").unwrap();
    let (_dir, archive, into) = write_archive("a.tar", &tar.into_inner().unwrap());
    assert!(extract(&archive, &into, Limits::DEFAULT).unwrap_err().to_string().contains("hard link"));
}

#[test]
fn errors_name_truncated_and_unknown_files() {
    let tar = tar_of(&[("a", Ok(&"x".repeat(5000)))]);
    let zipped = zip_of(&[("a", Ok("x"))]);
    for (name, bytes) in [
        ("a.tar", tar[..2000].to_vec()),
        ("a.tar.gz", gz(&tar)[..20].to_vec()),
        ("a.zip", zipped[..10].to_vec()),
        ("a.zip", b"<html>not found</html>".to_vec()),
        ("a.rar", b"Rar!".to_vec()),
    ] {
        let (dir, archive, into) = write_archive(name, &bytes);
        let message = extract(&archive, &into, Limits::DEFAULT).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}: something was written");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Only the target directory is created next to the archive, for any names.
    #[test]
    fn entries_never_escape(
        entries in prop::collection::vec(("[ab./]{1,10}", prop::option::of("[ab./]{1,10}")), 1..6)
    ) {
        let entries: Vec<Described> = entries
            .iter()
            .map(|(name, link)| (name.as_str(), link.as_deref().map_or(Ok("text"), Err)))
            .collect();
        let (dir, archive, into) = write_archive("a.tar", &tar_of(&entries));
        let extracted = extract(&archive, &into, Limits::DEFAULT).is_ok();
        let mut created: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        created.sort();
        prop_assert_eq!(created, if extracted { vec!["a.tar", "images"] } else { vec!["a.tar"] });
        if extracted {
            let root = into.canonicalize().unwrap();
            let mut pending = vec![root.clone()];
            while let Some(dir) = pending.pop() {
                for entry in fs::read_dir(dir).unwrap() {
                    let path = entry.unwrap().path();
                    if let Ok(real) = path.canonicalize() {
                        prop_assert!(real.starts_with(&root), "{path:?} points to {real:?}");
                    }
                    if path.is_dir() && !path.is_symlink() {
                        pending.push(path);
                    }
                }
            }
        }
    }
}

/// A GNU sparse file of `size` bytes without data.
fn sparse(size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_path("hole").unwrap();
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.sparse[0].offset = *b"\x80\0\0\0\0\0\0\0\0\0\0\0";
    gnu.sparse[0].offset[4..].copy_from_slice(&size.to_be_bytes());
    gnu.sparse[0].numbytes = *b"000000000000";
    gnu.realsize = gnu.sparse[0].offset;
    header.set_cksum();
    let mut tar = tar::Builder::new(Vec::new());
    tar.append(&header, &[][..]).unwrap();
    tar.into_inner().unwrap()
}

#[test]
fn archives_beyond_the_limits_leave_no_files() {
    let limits = Limits { any_ratio_bytes: 500_000, ..Limits::DEFAULT };
    let zeros = "0".repeat(1_000_000);
    let text = [("a.txt", Ok(zeros.as_str()))];
    let table = [
        ("a.tar", sparse(2_000_000_000_000), "more than 200 times as large as the archive (1.54 kB)"),
        ("a.tar.gz", gz(&tar_of(&text)), "more than 200 times as large as the archive"),
        ("a.zip", zip_of(&text), "more than 200 times as large as the archive"),
    ];
    for (name, bytes, message) in table {
        let (dir, archive, into) = write_archive(name, &bytes);
        for result in [check(&archive, limits), extract(&archive, &into, limits)] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("pass --no-archive-limits"), "{error}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}");
        if name != "a.tar" {
            extract(&archive, &into, Limits::NONE).unwrap();
            assert_eq!(fs::metadata(into.join("a.txt")).unwrap().len(), zeros.len() as u64);
        }
    }
}

#[test]
fn every_limit_has_a_message() {
    let total = |limits: Limits| Total::new(limits, 10);
    let few = Limits { entries: 2, ..Limits::NONE };
    let mut counted = total(few);
    assert_eq!((counted.add(u64::MAX), counted.add(1)), (Ok(()), Ok(())));
    assert_eq!(
        counted.add(0).unwrap_err().to_string(),
        "it has more than 2 entries; if that is intended, pass --no-archive-limits"
    );
    let small = Limits { bytes: 5_000_000, ..Limits::NONE };
    let error = total(small).add(5_000_001).unwrap_err().to_string();
    assert!(error.starts_with("its content is larger than 5.00 MB;"), "{error}");
}

#[test]
fn long_headers_are_refused_before_they_fill_the_memory() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_path("././@LongLink").unwrap();
    let name = vec![b'a'; 20_000_000];
    header.set_size(name.len() as u64);
    header.set_cksum();
    let mut tar = tar::Builder::new(Vec::new());
    tar.append(&header, name.as_slice()).unwrap();
    let (_dir, archive, _) = write_archive("a.tar.gz", &gz(&tar.into_inner().unwrap()));
    let error = check(&archive, Limits::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("the headers of one entry are larger than 16.0 MB"), "{error}");
}
