//! What a hub's refusals mean, in words that name the repository and the remedy, and never the token.

use std::env;

use hf_hub::HFError;

use super::{RepoId, Trouble};
use crate::assets::error::AssetError;

pub(super) fn explain(endpoint: &str, repo: &RepoId, file: Option<&str>, trouble: Trouble) -> AssetError {
    let endpoint = without_credentials(endpoint);
    let (why, remedy) = match trouble {
        Trouble::Silence => (
            format!("{endpoint} does not answer"),
            "check the network and HF_ENDPOINT, and run the same command again: what is there is kept".into(),
        ),
        Trouble::BadName(why) => (
            format!("the hub lists it under a name that {why}"),
            "this repository is not to be trusted".into(),
        ),
        Trouble::Hub(error) => words(&endpoint, repo, error),
    };
    let (why, remedy) = (redacted(&why), redacted(&remedy));
    match file {
        None => AssetError::Hub { repo: repo.to_string(), why, remedy },
        Some(file) => AssetError::HubFile { repo: repo.to_string(), file: file.into(), why, remedy },
    }
}

fn words(endpoint: &str, repo: &RepoId, error: HFError) -> (String, String) {
    let page = format!("{endpoint}/{repo}");
    match error {
        HFError::AuthRequired { .. } => (
            "the hub answers 401: there is no such repository, or it needs a token".into(),
            format!("check the name, or set HF_TOKEN to one that may read {page}"),
        ),
        HFError::Forbidden { .. } => (
            "the hub answers 403: this token may not read it".into(),
            format!("accept the terms at {page}, or use another HF_TOKEN"),
        ),
        HFError::RepoNotFound { .. } => {
            ("the hub has no such repository".into(), format!("check the name at {endpoint}"))
        }
        HFError::RevisionNotFound { revision, .. } => (
            format!("the hub has no such repository, or no revision {revision:?} of it"),
            format!("check both at {page}"),
        ),
        HFError::EntryNotFound { path, .. } => {
            (format!("the hub answers 404 for {path}"), format!("choose another revision; see {page}"))
        }
        HFError::RateLimited { .. } => {
            ("the hub answers 429: too many requests".into(), "wait a little, or set HF_TOKEN".into())
        }
        HFError::Http { context } => (
            format!("the hub answers {}", context.status),
            "run the same command again: what is there is kept".into(),
        ),
        // The source's own words hold the whole address, which may be signed.
        HFError::Request { source, .. } if source.is_timeout() => {
            (format!("{endpoint} does not answer"), "check the network and HF_ENDPOINT".into())
        }
        HFError::Request { source, .. } if source.is_connect() => (
            format!("{endpoint} cannot be reached"),
            "check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what is there".into(),
        ),
        HFError::Request { source, .. } if source.is_decode() => (
            format!("{endpoint} answers in a form this program does not know"),
            "check that HF_ENDPOINT is a hub".into(),
        ),
        HFError::Request { .. } => {
            ("the connection broke".into(), "run the same command again: what is there is kept".into())
        }
        HFError::MalformedResponse { what, .. } => {
            (format!("the hub's answer lacks something: {what}"), "check that HF_ENDPOINT is a hub".into())
        }
        HFError::Json(e) => (
            format!("{endpoint} answers in a form this program does not know: {e}"),
            "check HF_ENDPOINT".into(),
        ),
        other => (other.to_string(), "run the same command again: what is there is kept".into()),
    }
}

/// An address may hold a password before its host.
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

/// A server may send the token back in its own words.
fn redacted(text: &str) -> String {
    match env::var("HF_TOKEN") {
        Ok(token) if !token.is_empty() => text.replace(&token, "***"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_left_out() {
        for (given, shown) in [
            ("https://user:secret@hub.example/x", "https://hub.example/x"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("hub", "hub"),
        ] {
            assert_eq!(without_credentials(given), shown);
        }
    }
}
