//! The account of a compared window.

use serde::{Deserialize, Serialize};

use super::Account;

/// The time of an owner per token or step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnerTime {
    pub owner: String,
    pub ns: f64,
}

/// An account as it is saved with a baseline: owners by the names that the screen has.
pub type OwnerTimes = Vec<OwnerTime>;

impl From<&Account> for OwnerTimes {
    fn from(account: &Account) -> OwnerTimes {
        account
            .entries
            .iter()
            .map(|entry| OwnerTime { owner: entry.owner.to_string(), ns: entry.ns })
            .collect()
    }
}
