//! The commit and the compiler that the program was built with. The program sets them when it starts, so that a new
//! commit does not rebuild the libraries.

use std::sync::OnceLock;

/// A commit and the version of a compiler; "unknown" if the program did not set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    pub commit: &'static str,
    pub rustc: &'static str,
}

static BUILD: OnceLock<Build> = OnceLock::new();

impl Build {
    /// Sets the build of this process, once.
    pub fn set(self) {
        let _ = BUILD.set(self);
    }

    pub fn get() -> Build {
        BUILD.get().copied().unwrap_or(Build { commit: "unknown", rustc: "unknown" })
    }
}
