//! Errors of the connection to Prometheus, each with a remedy.

use std::fmt;

use thiserror::Error;

use super::{answer::AnswerError, labels::Matcher, metrics::HEARTBEATS};
use crate::server::{FetchError, HttpError, Untrusted};
use llmprof_base::foreign;
use llmprof_event::HttpStep;

#[derive(Debug, Error)]
pub enum FleetError {
    #[error("{0}")]
    Usage(String),
    #[error("{url}: {cause}; {}", remedy(.cause, *.with_ca_file))]
    Fetch {
        url: String,
        cause: FetchError,
        /// Whether the user has named certificates to trust.
        with_ca_file: bool,
    },
    #[error(
        "{url} redirects to {to}, which is not followed; pass the address it redirects to, if you trust it"
    )]
    Redirect { url: String, to: String },
    #[error(
        "{url} requires authentication (HTTP {status}): pass --bearer-token-file FILE, or a user and a password in \
         the address (https://USER:PASSWORD@HOST)"
    )]
    Login { url: String, status: u16 },
    #[error(
        "{url} answers HTTP {status} to a query: is it the address of Prometheus itself, with its route prefix (--web.route-prefix)? {said}"
    )]
    Status { url: String, status: u16, said: String },
    #[error("{url} cannot answer now (HTTP {status}): {said}; the next refresh tries again")]
    Unavailable { url: String, status: u16, said: String },
    #[error(
        "{url} answers with a web page, not with Prometheus' API: pass the address of Prometheus itself, not of Grafana or a login page"
    )]
    WebPage { url: String },
    #[error("{url} refuses the query ({kind}): {text}; Prometheus 2.26 or later is required")]
    Refused { url: String, kind: String, text: String },
    #[error("{url}: the answer is not from Prometheus: {cause}")]
    Answer { url: String, cause: AnswerError },
    #[error("{url} has no GPU metric{}: looked for {} and their relatives of NVIDIA's DCGM exporter, and llmprof_gpu_… of llmprof-tui run --metrics; {}", Selected(.matchers), HEARTBEATS[..3].join(", "), empty_remedy(.matchers))]
    Empty { url: String, matchers: Vec<Matcher> },
    #[error("no series has the label {label:?} (--node-label): there are {there}")]
    NoNodeLabel { label: String, there: String },
}

/// The selection of series.
struct Selected<'a>(&'a [Matcher]);

impl fmt::Display for Selected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let matchers: Vec<String> = self.0.iter().map(Matcher::to_string).collect();
        if matchers.is_empty() { Ok(()) } else { write!(f, " with {}", matchers.join(", ")) }
    }
}

fn empty_remedy(matchers: &[Matcher]) -> &'static str {
    match matchers.is_empty() {
        true => "check that the exporters are among its targets (Status, Targets)",
        false => "check --match",
    }
}

fn remedy(cause: &FetchError, with_ca_file: bool) -> &'static str {
    if let FetchError::Http(http) = cause
        && let Some(untrusted) = http.untrusted()
    {
        return match untrusted {
            Untrusted::Expired => "renew it on the server, or check the date of this machine",
            Untrusted::NotYetValid => "check the dates of both machines",
            Untrusted::OtherName(_) => "pass the address with a name that the certificate is for",
            Untrusted::UnknownAuthority | Untrusted::Other(_) if with_ca_file => {
                "none of the certificates in --ca-file has signed it, nor is it one of them"
            }
            Untrusted::UnknownAuthority | Untrusted::Other(_) => {
                "--ca-file names a file with the certificate to trust, or with that of its authority (PEM)"
            }
        };
    }
    match cause {
        FetchError::TooLarge(_) => "select some GPUs with --match",
        FetchError::Gzip(_) => "check whether a proxy changes the answers",
        FetchError::Http(HttpError::Timeout(_)) => {
            "the server is slow or unreachable: raise --timeout, or select fewer GPUs with --match"
        }
        FetchError::Http(HttpError::Io { step: HttpStep::Resolve, .. }) => "check the name of the host",
        FetchError::Http(HttpError::Io { step: HttpStep::Connect, .. }) => {
            "check that Prometheus is running on that host, and the port (default: 9090)"
        }
        FetchError::Http(HttpError::Io { step: HttpStep::Tls, .. }) => "check whether the server uses https",
        FetchError::Http(HttpError::NotHttp(_)) => {
            "check whether the server uses https, or is another service"
        }
        FetchError::Http(
            HttpError::Closed(HttpStep::Head)
            | HttpError::Io { step: HttpStep::Send | HttpStep::Head | HttpStep::Body, .. },
        ) => "the next refresh tries again; check whether the server uses https",
        FetchError::Http(_) => "the next refresh tries again",
    }
}

/// A server's message on one line.
pub fn server_message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(600)]);
    foreign::line(text.trim(), 200)
}
