//! Completion of paths.

use std::path::Path;

use llmprof_config::Candidate;

/// The files and directories that start with `partial`, sorted. Hidden ones only if `partial` starts with a dot.
pub(super) fn beginning_with(partial: &str, cwd: &Path) -> Vec<Candidate> {
    let (above, begun) = partial.rfind('/').map_or(("", partial), |slash| partial.split_at(slash + 1));
    let Ok(entries) = cwd.join(above).read_dir() else { return Vec::new() };
    let mut found: Vec<Candidate> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let wanted = name.starts_with(begun) && (begun.starts_with('.') || !name.starts_with('.'));
            // The output has one candidate per line.
            let printable = !name.contains(|c: char| c.is_control());
            (wanted && printable).then(|| match entry.path().is_dir() {
                true => Candidate::partial(format!("{above}{name}/"), ""),
                false => Candidate::complete(format!("{above}{name}"), ""),
            })
        })
        .collect();
    found.sort_by(|a, b| a.text.cmp(&b.text));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        for name in ["sa.gguf", "sub/in side", ".hidden", "a\nb"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let table: &[(&str, &[(&str, bool)])] = &[
            ("", &[("sa.gguf", true), ("sub/", false)]),
            ("su", &[("sub/", false)]),
            ("sub/", &[("sub/in side", true)]),
            ("./s", &[("./sa.gguf", true), ("./sub/", false)]),
            (".h", &[(".hidden", true)]),
            ("no/such/", &[]),
        ];
        for (partial, wanted) in table {
            let found = beginning_with(partial, dir.path());
            let found: Vec<_> = found.iter().map(|one| (one.text.as_str(), one.complete)).collect();
            assert_eq!(found, *wanted, "{partial}");
        }
    }
}
