//! Requests to the hub: headers, redirects, time limits, and the meaning of a failed request.

use std::io;
use std::ops::Range;
use std::path::Path;

use hf_hub::api::sync::ApiRepo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use ureq::Body;
use ureq::http::{HeaderMap, HeaderName, Response, StatusCode, Uri, header};
use ureq::tls::{PemItem, TlsConfig, parse_pem};

use super::{Hub, RepoId};
use crate::assets::error::AssetError;
use llmprof_base::read::{self, MAX_DOCUMENT};

const MAX_REDIRECTS: usize = 10;

const NOT_IN_A_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

const RUN_AGAIN: &str = "run the same command again: downloaded bytes are kept";
const CHECK_NETWORK: &str = "check the network and HF_ENDPOINT";
const CHECK_ENDPOINT: &str = "check that HF_ENDPOINT is the address of a hub";

/// Why a request has no usable response.
pub(super) enum RequestError {
    Status {
        status: StatusCode,
        /// Whether the hub reports that the repository itself does not exist.
        repository_missing: bool,
    },
    Transport(ureq::Error),
    /// The body is not the JSON that a hub sends.
    Malformed(serde_json::Error),
    /// An invalid address, e.g. the target of a redirect.
    BadAddress,
}

/// The object of a request.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    Revision(&'a str),
    File(&'a str),
}

impl From<ureq::Error> for RequestError {
    fn from(error: ureq::Error) -> RequestError {
        RequestError::Transport(error)
    }
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> RequestError {
        RequestError::Transport(error.into())
    }
}

/// `path` as part of an address, with its slashes.
pub(super) fn percent_encode(path: &str) -> String {
    utf8_percent_encode(path, NOT_IN_A_PATH).to_string()
}

/// TLS that trusts the certificates in the file `path`, for networks with their own certificate authority.
pub(super) fn tls_with_roots(path: &Path) -> Result<TlsConfig, AssetError> {
    let pem = read::bytes(path, MAX_DOCUMENT).map_err(AssetError::io("read the certificates in", path))?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let message =
            format!("{} has no PEM certificates; set SSL_CERT_FILE to a file that does", path.display());
        return Err(AssetError::Usage(message));
    }
    Ok(TlsConfig::builder().root_certs(certificates.into()).build())
}

impl Hub {
    /// Requests `address`, or a range of its bytes, and follows redirects. The token is sent to the hub only.
    ///
    /// `ureq` could follow redirects too, but it also sends the token to other ports of the same host.
    pub(super) fn get(
        &self,
        repository: &ApiRepo,
        address: &str,
        range: Option<Range<u64>>,
    ) -> Result<Response<Body>, RequestError> {
        let mut uri: Uri = address.parse().map_err(|_| RequestError::BadAddress)?;
        for _ in 0..=MAX_REDIRECTS {
            // The request that `hf-hub` prepares has the token and the user agent.
            let mut request = repository.info_request().uri(uri.clone());
            if origin(&uri) != origin(&self.uri)
                && let Some(headers) = request.headers_mut()
            {
                headers.remove(header::AUTHORIZATION);
            }
            if let Some(range) = &range {
                request = request.header(header::RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            let response = request
                .config()
                .tls_config(self.tls.clone())
                .accept_encoding("identity")
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .timeout_resolve(Some(self.time_limit))
                .timeout_connect(Some(self.time_limit))
                .timeout_recv_response(Some(self.time_limit))
                .timeout_per_read(Some(self.time_limit))
                .build()
                .call()?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            let location = header_text(response.headers(), &header::LOCATION);
            let Some(location) = location.filter(|_| status.is_redirection()) else {
                let code = response.headers().get("X-Error-Code");
                let repository_missing = code.is_some_and(|code| code == "RepoNotFound");
                return Err(RequestError::Status { status, repository_missing });
            };
            uri = redirect_target(&uri, location).ok_or(RequestError::BadAddress)?;
        }
        Err(ureq::Error::TooManyRedirects.into())
    }

    /// The JSON at `address`, and the query of the next page if there is one.
    pub(super) fn get_json<T: DeserializeOwned>(
        &self,
        repository: &ApiRepo,
        address: &str,
    ) -> Result<(T, Option<String>), RequestError> {
        let mut response = self.get(repository, address, None)?;
        let next_page = header_text(response.headers(), &header::LINK).and_then(next_page);
        let text = response.body_mut().read_to_string()?;
        Ok((serde_json::from_str(&text).map_err(RequestError::Malformed)?, next_page))
    }

    /// `error` with the repository, the cause and the remedy, and never with the token.
    pub(super) fn describe(&self, repo: &RepoId, target: Target<'_>, error: &RequestError) -> AssetError {
        let endpoint = without_credentials(&self.endpoint);
        let (why, remedy) = error.cause_and_remedy(&endpoint, repo, target);
        // A server may send the token back.
        let redact = |text: String| match &self.token {
            Some(token) => text.replace(token, "***"),
            None => text,
        };
        let (repo, why, remedy) = (repo.to_string(), redact(why), redact(remedy));
        match target {
            Target::Revision(_) => AssetError::Hub { repo, why, remedy },
            Target::File(file) => AssetError::HubFile { repo, file: file.into(), why, remedy },
        }
    }
}

impl RequestError {
    /// Whether another attempt can succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            RequestError::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            RequestError::Transport(error) => !matches!(error, ureq::Error::TooManyRedirects),
            RequestError::Malformed(_) | RequestError::BadAddress => false,
        }
    }

    fn cause_and_remedy(&self, endpoint: &str, repo: &RepoId, target: Target<'_>) -> (String, String) {
        let page = format!("{endpoint}/{repo}");
        match self {
            RequestError::Status { status, repository_missing } => match (*status, target) {
                (StatusCode::UNAUTHORIZED, _) => (
                    "the hub answers 401: the repository does not exist or needs a token".into(),
                    format!("check the name, or set HF_TOKEN to a token that can read {page}"),
                ),
                (StatusCode::FORBIDDEN, _) => (
                    "the hub answers 403: this token cannot read the repository".into(),
                    format!("accept the terms at {page}, or use another HF_TOKEN"),
                ),
                (StatusCode::NOT_FOUND, _) if *repository_missing => {
                    ("the hub has no such repository".into(), format!("check the name at {endpoint}"))
                }
                (StatusCode::NOT_FOUND, Target::Revision(revision)) => (
                    format!("the hub has no such repository, or no revision {revision:?} of it"),
                    format!("check both at {page}"),
                ),
                (StatusCode::NOT_FOUND, Target::File(file)) => (
                    format!("the hub answers 404 for {file}"),
                    format!("choose another revision; see {page}"),
                ),
                (StatusCode::TOO_MANY_REQUESTS, _) => {
                    ("the hub answers 429: too many requests".into(), "wait a minute, or set HF_TOKEN".into())
                }
                (status, _) => (format!("the hub answers {status}"), RUN_AGAIN.into()),
            },
            RequestError::Transport(error) => match error {
                ureq::Error::Timeout(_) => {
                    (format!("{endpoint} does not respond"), format!("{CHECK_NETWORK}, then {RUN_AGAIN}"))
                }
                ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => unreachable_hub(endpoint),
                ureq::Error::Io(e) if is_connect_error(e.kind()) => unreachable_hub(endpoint),
                // An error of TLS arrives as invalid data.
                ureq::Error::Io(e) if e.kind() == io::ErrorKind::InvalidData => (
                    format!("TLS with {endpoint} failed: {e}"),
                    "check HF_ENDPOINT; if your network has its own certificate authority, set SSL_CERT_FILE"
                        .into(),
                ),
                ureq::Error::TooManyRedirects => {
                    (format!("{endpoint} redirects too often"), CHECK_ENDPOINT.into())
                }
                ureq::Error::Protocol(_) => {
                    (format!("{endpoint} does not speak HTTP/1.1"), CHECK_ENDPOINT.into())
                }
                ureq::Error::ConnectProxyFailed(_) | ureq::Error::InvalidProxyUrl => {
                    ("the proxy refuses the connection".into(), "check HTTPS_PROXY and NO_PROXY".into())
                }
                // The text of other errors can contain a signed address.
                _ => ("the connection broke".into(), format!("check the network, then {RUN_AGAIN}")),
            },
            RequestError::Malformed(e) => {
                (format!("{endpoint} sends an unknown format: {e}"), CHECK_ENDPOINT.into())
            }
            RequestError::BadAddress => {
                (format!("{endpoint} refers to an invalid address"), CHECK_ENDPOINT.into())
            }
        }
    }
}

fn unreachable_hub(endpoint: &str) -> (String, String) {
    (
        format!("{endpoint} cannot be reached"),
        format!("{CHECK_NETWORK}; HF_HUB_OFFLINE=1 uses the cached files"),
    )
}

fn is_connect_error(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable,
    };
    matches!(kind, AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable)
}

fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Scheme, host and port: the token stays within one of these.
fn origin(uri: &Uri) -> (Option<&str>, Option<&str>, u16) {
    let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    (uri.scheme_str(), uri.host(), uri.port_u16().unwrap_or(default_port))
}

/// The address of `location` in a response from `uri`.
fn redirect_target(uri: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let address = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        location.to_owned()
    };
    address.parse().ok().filter(|uri: &Uri| uri.host().is_some())
}

/// The query of the next page in a `Link` header. The rest of the address is known, and the token must go nowhere else.
fn next_page(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let (address, _) = next.trim().strip_prefix('<')?.split_once('>')?;
    address.split_once('?').map(|(_, query)| query.to_owned())
}

/// An address can contain a password before its host.
fn without_credentials(endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            let host = host.rsplit('@').next().unwrap_or(host);
            let slash = if path.is_empty() { "" } else { "/" };
            format!("{scheme}://{host}{slash}{path}")
        }
        None => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_omit_credentials() {
        for (given, shown) in [
            ("https://user:secret@hub.example/x", "https://hub.example/x"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("hub", "hub"),
        ] {
            assert_eq!(without_credentials(given), shown);
        }
    }

    #[test]
    fn redirects_resolve_to_absolute_addresses() {
        let from: Uri = "https://hub.example:8443/a/b?c=1".parse().unwrap();
        for (location, expected) in [
            ("/x?y=1", Some("https://hub.example:8443/x?y=1")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("http://cdn.example/x", Some("http://cdn.example/x")),
            ("x y", None),
        ] {
            assert_eq!(redirect_target(&from, location).map(|uri| uri.to_string()).as_deref(), expected);
        }
    }

    #[test]
    fn origins_include_scheme_and_port() {
        let same = |a: &str, b: &str| origin(&a.parse().unwrap()) == origin(&b.parse().unwrap());
        assert!(same("https://hub.example/a", "https://hub.example:443/b"));
        assert!(!same("https://hub.example/a", "http://hub.example/a"));
        assert!(!same("http://127.0.0.1:1/a", "http://127.0.0.1:2/a"));
        assert!(!same("https://hub.example/a", "https://cdn.hub.example/a"));
    }

    #[test]
    fn the_next_page_keeps_its_query() {
        let link = r#"<https://hub.example/api/models/a/b/tree/c?recursive=true&cursor=x%3D>; rel="next""#;
        assert_eq!(next_page(link).as_deref(), Some("recursive=true&cursor=x%3D"));
        assert_eq!(next_page(r#"<https://hub.example/?a=1>; rel="prev""#), None);
    }
}
