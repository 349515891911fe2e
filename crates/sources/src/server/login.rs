//! The authorisation of a request.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};

/// The authorisation of a request. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    Bearer(String),
    Basic { user: String, password: String },
}

impl Login {
    /// A token, which must be one line.
    pub fn bearer(token: &str) -> Option<Login> {
        let token = token.trim();
        (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()))
            .then(|| Login::Bearer(token.to_owned()))
    }

    /// The value of the header.
    pub fn header(&self) -> String {
        match self {
            Login::Bearer(token) => format!("Bearer {token}"),
            Login::Basic { user, password } => {
                format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
            }
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}
