//! Where a server is: the parts of its URL.

use std::fmt;

use thiserror::Error;
use url::Url;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Before every path, without a slash at its end.
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
    /// Reads a URL. `/v1` at its end is left out: clients differ in whether it belongs to the address.
    pub fn read(text: &str) -> Result<Endpoint, EndpointError> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&with_scheme).map_err(|_| EndpointError::NotAUrl(text.to_owned()))?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(EndpointError::Scheme(text.to_owned())),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EndpointError::Credentials);
        }
        let host = url.host_str().ok_or_else(|| EndpointError::NotAUrl(text.to_owned()))?;
        let path = url.path().trim_end_matches('/');
        Ok(Endpoint {
            tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 }),
            base: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
        })
    }

    /// The same protocol, host and port.
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
        assert!(Endpoint::read("http://").is_err());
    }
}
