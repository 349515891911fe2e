//! Versions of tools, and the loader's messages.

use std::fmt;

/// A tool's version: year, release, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The version in the output of `nsys --version` or `ncu --version`: the numbers after the word "version".
pub fn tool_version(text: &str) -> Option<Version> {
    text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let index = words.iter().position(|word| word.eq_ignore_ascii_case("version"))?;
        numbers(words.get(index + 1)?)
    })
}

/// The version in the name of a directory, as in `nsight-systems-2023.4.4` or `2025.3.1`.
pub fn folder_version(name: &str) -> Option<Version> {
    numbers(name.rsplit('-').next()?)
}

/// `2025.3.1.90-253135822126v0` as 2025.3.1; a missing part is zero.
fn numbers(text: &str) -> Option<Version> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut parts = text[..end].split('.').map(str::parse);
    let first = parts.next()?.ok()?;
    let mut next = || parts.next().and_then(Result::ok).unwrap_or(0);
    Some(Version(first, next(), next()))
}

/// The library that the loader did not find, from its error message.
pub fn library_not_loaded(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("error while loading shared libraries: ")?;
    rest.split(':').next().map(str::trim).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        let ncu = "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025 NVIDIA Corporation\n\
                   Version 2025.3.1.0 (build 36398880) (public-release)\n";
        for (text, wanted) in [
            ("NVIDIA Nsight Systems version 2025.3.1.0\n", Some(Version(2025, 3, 1))),
            ("NVIDIA Nsight Systems version 2026.1.3.425-261338342291v0\n", Some(Version(2026, 1, 3))),
            ("NVIDIA Nsight Systems version 2020.5.1.85-5ee086b", Some(Version(2020, 5, 1))),
            ("NVIDIA Nsight Systems version 2025.2", Some(Version(2025, 2, 0))),
            (ncu, Some(Version(2025, 3, 1))),
            ("", None),
            ("version", None),
            ("bash: version: command not found", None),
        ] {
            assert_eq!(tool_version(text), wanted, "{text}");
        }
        assert_eq!(folder_version("nsight-systems-2023.4.4"), Some(Version(2023, 4, 4)));
        assert_eq!(folder_version("2025.3.1"), Some(Version(2025, 3, 1)));
        assert_eq!(folder_version("cuda-12.4"), Some(Version(12, 4, 0)));
        assert_eq!(folder_version("cuda"), None);
        assert_eq!(Version(2025, 3, 1).to_string(), "2025.3.1");
    }

    #[test]
    fn the_missing_library_is_found_in_the_message() {
        let message = "/opt/QdstrmImporter: error while loading shared libraries: libdw.so.1: cannot open shared object \
                    file: No such file or directory\n";
        assert_eq!(library_not_loaded(message), Some("libdw.so.1"));
        assert_eq!(library_not_loaded("usage: QdstrmImporter -i FILE"), None);
    }
}
