//! Parsers of the output of tools and the kernel.

use std::path::PathBuf;

/// The driver's kernel module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelDriver {
    pub version: String,
    /// Whether it is the open-source module rather than the proprietary one.
    pub open: bool,
}

/// Parses `/proc/driver/nvidia/version`.
pub fn kernel_driver(text: &str) -> Option<KernelDriver> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() >= 2 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    let version = line.split_whitespace().find(is_version)?.to_owned();
    Some(KernelDriver { version, open: line.contains("Open Kernel Module") })
}

/// Whether `/proc/driver/nvidia/params` restricts performance counters to administrators; `None` if it has no such
/// entry. The module option and the published parameter have different names.
pub fn counters_for_admins_only(params: &str) -> Option<bool> {
    let value = params.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        ["RmProfilingAdminOnly", "NVreg_RestrictProfilingToAdminUsers", "RestrictProfilingToAdminUsers"]
            .contains(&key.trim())
            .then(|| value.trim())
    })?;
    value.parse::<u32>().ok().map(|value| value != 0)
}

/// The effective capabilities in `/proc/self/status`.
pub fn capabilities(status: &str) -> Option<u64> {
    let hex = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(hex.trim(), 16).ok()
}

/// Names and paths in the output of `ldconfig -p`.
pub fn loader_cache(text: &str) -> Vec<(String, PathBuf)> {
    let entry = |line: &str| {
        let (name, path) = line.trim().split_once(" => ")?;
        Some((name.split_whitespace().next()?.to_owned(), PathBuf::from(path.trim())))
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_modules() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \n\
                    GCC version:  gcc version 15.3.0 (GCC) \n";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Mar 16 11:24:05 UTC 2022\nGCC version:  gcc version 12.2.0 (GCC)\n";
        let old = "NVRM version: NVIDIA UNIX x86 Kernel Module  169.12  Thu Feb 14 17:53:07 PST 2008\n";
        for (text, version, is_open) in
            [(open, "580.159.04", true), (closed, "515.65.01", false), (old, "169.12", false)]
        {
            assert_eq!(
                kernel_driver(text),
                Some(KernelDriver { version: version.to_owned(), open: is_open }),
                "{text}"
            );
        }
        assert_eq!(kernel_driver("GCC version: 12.3.0"), None);
        assert_eq!(kernel_driver(""), None);
    }

    #[test]
    fn module_parameters() {
        let params = |line: &str| {
            format!("ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\n{line}\nTemporaryFilePath: \"\"\n")
        };
        for (line, wanted) in [
            ("RmProfilingAdminOnly: 1", Some(true)),
            ("RmProfilingAdminOnly: 0", Some(false)),
            ("NVreg_RestrictProfilingToAdminUsers: 1", Some(true)),
            ("RmProfilingAdminOnly: maybe", None),
            ("Mobile: 4294967295", None),
        ] {
            assert_eq!(counters_for_admins_only(&params(line)), wanted, "{line}");
        }
    }

    #[test]
    fn capabilities_of_a_process() {
        assert_eq!(capabilities("Name:\tsh\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(capabilities("Name:\tsh\n"), None);
    }

    #[test]
    fn libraries() {
        let cache = "2 libs found in cache `/etc/ld.so.cache'\n\
                     \tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13\n\
                     \tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6\n";
        assert_eq!(
            loader_cache(cache),
            [
                ("libcudart.so.13".to_owned(), PathBuf::from("/usr/local/cuda/lib64/libcudart.so.13")),
                ("libc.so.6".to_owned(), PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6")),
            ]
        );
    }
}
