//! The address of a server: the parts of its URL.

use std::fmt;

use percent_encoding::percent_decode_str;
use thiserror::Error;
use url::Url;

use super::login::Login;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// The prefix of every path, without a trailing slash.
    pub base: String,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    #[error("{0} is not a URL: write http://HOST:PORT")]
    NotAUrl(String),
    #[error("{0} is not an http or https URL")]
    Scheme(String),
    #[error(
        "the URL has a user or a password in it: name a variable with the key in runtime.server.key_env instead"
    )]
    Credentials,
}

impl Endpoint {
    /// Reads a URL. `/v1` at its end is dropped: clients differ in whether it belongs to the address.
    pub fn read(text: &str) -> Result<Endpoint, EndpointError> {
        match Endpoint::with_login(text)? {
            (_, Some(_)) => Err(EndpointError::Credentials),
            (endpoint, None) => Ok(endpoint),
        }
    }

    /// Reads a URL that may contain a user and a password: they are not part of the endpoint, so that it can be shown.
    pub fn with_login(text: &str) -> Result<(Endpoint, Option<Login>), EndpointError> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        // Invalid text is not repeated if it may contain a password.
        let shown = || if text.contains('@') { "the address".to_owned() } else { text.to_owned() };
        let url = Url::parse(&with_scheme).map_err(|_| EndpointError::NotAUrl(shown()))?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(EndpointError::Scheme(shown())),
        };
        let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let has_login = !url.username().is_empty() || url.password().is_some();
        let login = has_login.then(|| Login::Basic {
            user: decoded(url.username()),
            password: decoded(url.password().unwrap_or_default()),
        });
        let host = url.host_str().ok_or_else(|| EndpointError::NotAUrl(shown()))?;
        let path = url.path().trim_end_matches('/');
        let endpoint = Endpoint {
            tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 }),
            base: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        };
        Ok((endpoint, login))
    }

    /// Whether both have the same protocol, host and port.
    pub fn is_same_machine(&self, other: &Endpoint) -> bool {
        (self.tls, &self.host, self.port) == (other.tls, &other.host, other.port)
    }

    /// The `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, shown) in [
            ("localhost:8000", "http://localhost:8000"),
            ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
            ("https://example.com/api/v1", "https://example.com/api"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            assert_eq!(Endpoint::read(text).unwrap().to_string(), shown);
        }
        assert_eq!(Endpoint::read("http://u:p@host"), Err(EndpointError::Credentials));
        assert!(matches!(Endpoint::read("ftp://host"), Err(EndpointError::Scheme(_))));
        let (endpoint, login) = Endpoint::with_login("https://me:s%40cret@host:9090/prom/").unwrap();
        assert_eq!(endpoint.to_string(), "https://host:9090/prom");
        assert!(
            matches!(login, Some(Login::Basic { user, password }) if user == "me" && password == "s@cret")
        );
        let wrong = Endpoint::with_login("http://me:secret@[").unwrap_err().to_string();
        assert!(!wrong.contains("secret"), "{wrong}");
        assert!(Endpoint::read("http://").is_err());
    }
}
