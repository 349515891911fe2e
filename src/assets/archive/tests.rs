//! Good archives come out whole; bad ones leave nothing behind.

use std::io::Write;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// An entry: a name, and text or a link's target.
type Entry<'a> = (&'a str, Result<&'a str, &'a str>);

fn tar_of(entries: &[Entry]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, what) in entries {
        let mut header = tar::Header::new_gnu();
        // The builder refuses bad names, so they are put into the header by hand.
        let bytes = name.as_bytes();
        header.as_gnu_mut().unwrap().name[..bytes.len()].copy_from_slice(bytes);
        header.set_mode(0o644);
        let body = match what {
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

fn zip_of(entries: &[Entry]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, what) in entries {
        match what {
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

/// The archive in a directory of its own, and where it would be extracted.
fn lay(name: &str, bytes: &[u8]) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join(name);
    fs::write(&archive, bytes).unwrap();
    let into = dir.path().join("images");
    (dir, archive, into)
}

fn all(entries: &[Entry]) -> Vec<(&'static str, Vec<u8>)> {
    let tar = tar_of(entries);
    vec![("a.tar.gz", gz(&tar)), ("a.tar", tar), ("a.zip", zip_of(entries))]
}

#[test]
fn good_archives_come_out_whole() {
    let entries =
        [("d/a.txt", Ok("alpha")), ("b.txt", Ok("")), ("d/link", Err("a.txt")), ("up/l", Err("../b.txt"))];
    for (name, bytes) in all(&entries) {
        let (_dir, archive, into) = lay(name, &bytes);
        assert_eq!(extract(&archive, &into).unwrap(), Extracted { files: 4, bytes: 5 }, "{name}");
        assert_eq!(fs::read_to_string(into.join("d/link")).unwrap(), "alpha");
        assert_eq!(fs::read_to_string(into.join("up/l")).unwrap(), "");
    }
}

#[test]
fn what_would_escape_is_refused_by_name_and_nothing_is_written() {
    let table: [(&[Entry], &str, &str); 7] = [
        (&[("ok", Ok("x")), ("../evil", Ok("x"))], "../evil", "climbs out"),
        (&[("a/../../evil", Ok("x"))], "a/../../evil", "climbs out"),
        (&[("/abs/evil", Ok("x"))], "/abs/evil", "absolute"),
        (&[("out", Err("../../etc"))], "out", "points outside"),
        (&[("out", Err("/etc/passwd"))], "out", "points outside"),
        (&[("out", Err("d")), ("out/evil", Ok("x"))], "out/evil", "no directory"),
        (&[("x", Ok("1")), ("x/y", Ok("2"))], "x/y", "no directory"),
    ];
    for (entries, named, why) in table {
        for (name, bytes) in all(entries) {
            let (dir, archive, into) = lay(name, &bytes);
            let message = extract(&archive, &into).unwrap_err().to_string();
            // The zip writer makes names relative by itself; what it wrote is then harmless.
            assert!(message.contains(&format!("{named:?}")) && message.contains(why), "{name}: {message}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}: something was written");
        }
    }
}

#[test]
fn a_link_through_a_link_does_not_climb() {
    // Counting names, `a/b/x/..` is two deep; through the link it would be above the root.
    for (name, bytes) in all(&[("a/b/x", Err("../..")), ("y", Err("a/b/x/.."))]) {
        let (_dir, archive, into) = lay(name, &bytes);
        assert!(extract(&archive, &into).unwrap_err().to_string().contains("points outside"), "{name}");
    }
}

#[test]
fn the_same_name_twice_and_hard_links_are_refused() {
    let (_dir, archive, into) = lay("a.tar", &tar_of(&[("x", Err("d")), ("x", Ok("through"))]));
    assert!(extract(&archive, &into).unwrap_err().to_string().contains("twice"));
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Link);
    header.set_size(0);
    tar.append_link(&mut header, "h", "/etc/passwd").unwrap();
    let (_dir, archive, into) = lay("a.tar", &tar.into_inner().unwrap());
    assert!(extract(&archive, &into).unwrap_err().to_string().contains("hard link"));
}

#[test]
fn torn_and_foreign_files_are_named() {
    let tar = tar_of(&[("a", Ok(&"x".repeat(5000)))]);
    let zipped = zip_of(&[("a", Ok("x"))]);
    for (name, bytes) in [
        ("a.tar", tar[..2000].to_vec()),
        ("a.tar.gz", gz(&tar)[..20].to_vec()),
        ("a.zip", zipped[..10].to_vec()),
        ("a.zip", b"<html>not found</html>".to_vec()),
        ("a.rar", b"Rar!".to_vec()),
    ] {
        let (dir, archive, into) = lay(name, &bytes);
        let message = extract(&archive, &into).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}: something was written");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the names say, only the directory itself appears beside the archive.
    #[test]
    fn entries_never_escape(
        entries in prop::collection::vec(("[ab./]{1,10}", prop::option::of("[ab./]{1,10}")), 1..6)
    ) {
        let entries: Vec<Entry> = entries
            .iter()
            .map(|(name, link)| (name.as_str(), link.as_deref().map_or(Ok("text"), Err)))
            .collect();
        let (dir, archive, into) = lay("a.tar", &tar_of(&entries));
        let done = extract(&archive, &into).is_ok();
        let mut beside: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        beside.sort();
        prop_assert_eq!(beside, if done { vec!["a.tar", "images"] } else { vec!["a.tar"] });
        if done {
            let root = into.canonicalize().unwrap();
            let mut open = vec![root.clone()];
            while let Some(at) = open.pop() {
                for entry in fs::read_dir(at).unwrap() {
                    let path = entry.unwrap().path();
                    if let Ok(real) = path.canonicalize() {
                        prop_assert!(real.starts_with(&root), "{path:?} leads to {real:?}");
                    }
                    if path.is_dir() && !path.is_symlink() {
                        open.push(path);
                    }
                }
            }
        }
    }
}
