//! The Python lines that launch the work of a followed process.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kernels of about one second, by the frames that launched them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchLines {
    pub pid: u32,
    /// The frames that are named here for the first time, numbered on from those before.
    pub frames: Vec<LaunchFrame>,
    /// The stacks that are named here for the first time.
    pub stacks: Vec<LaunchStack>,
    pub rows: Vec<LaunchRow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchStack {
    /// Its number in this process, from 1.
    pub stack: u32,
    /// The numbers of its frames, innermost first.
    pub frames: Vec<u32>,
    /// The index of the innermost frame of the program's own code, if there is one.
    pub own: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LaunchFrame {
    /// The path within its package, library or checkout, and the directory before that.
    pub file: String,
    pub dir: String,
    /// 0 if unknown.
    pub line: u32,
    pub function: String,
}

impl fmt::Display for LaunchFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {}", self.file, self.line, self.function)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRow {
    /// 0: launched outside of Python, or before launches were recorded.
    pub stack: u32,
    pub kernel: String,
    pub launches: u32,
    pub ns: u64,
}
