//! Processes of other programs that are followed.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessJoined {
    pub pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Its arguments on one line.
    pub command: String,
    /// Which of several workers it is, if it reports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<String>,
    /// How many workers there are, if it reports that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub world: Option<u32>,
}

/// A process has ended, or no longer answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLeft {
    pub pid: u32,
}
