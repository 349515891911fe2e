//! Waits until a server answers, and identifies it.

use std::{io, time::Duration};

use serde::Deserialize;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::{client::Client, http::HttpError, plan::LoadPlan, tls::Untrusted};
use llmprof_event::{Event, EventTx, HttpStep, Level, Preparing, Ready, ServerFound};

const RETRY: Duration = Duration::from_millis(250);
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum size of the list of models.
const MAX_LIST_BYTES: usize = 1 << 20;

#[derive(Debug, Error)]
pub enum NotReady {
    #[error(
        "{url} did not answer within {waited_s:.0} s: {cause}. Start the server, or correct runtime.server.url; \
         runtime.server.ready_s sets how long to wait"
    )]
    NoAnswer { url: String, cause: String, waited_s: f64 },
    #[error("{url}: the host {host} is not known ({cause}). Correct runtime.server.url")]
    UnknownHost { url: String, host: String, cause: String },
    #[error("{url}: this port does not speak TLS. Use http:// in runtime.server.url")]
    NotTls { url: String },
    #[error("{url}: {cause}. {}", remedy(.cause))]
    Untrusted { url: String, cause: Untrusted },
    #[error(
        "{url} answers, but not with HTTP: {cause}. If it speaks TLS, use https:// in runtime.server.url"
    )]
    NotHttp { url: String, cause: String },
    #[error(
        "HTTP {status} at {url}/v1/models: is this an OpenAI-compatible server? If it is, name its model in runtime.server.model"
    )]
    NotOpenAi { url: String, status: u16 },
    #[error(
        "{url} refuses the key (HTTP {status}): put one into the variable that runtime.server.key_env names"
    )]
    Key { url: String, status: u16 },
    #[error("{url} has no model {model}; it has {there}")]
    NoModel { url: String, model: String, there: String },
    #[error("{url} lists no model: name one in runtime.server.model")]
    Unnamed { url: String },
}

/// The consequence of a connection error for the wait.
enum Obstacle {
    /// It may pass.
    Passing(String),
    Final(NotReady),
}

impl Obstacle {
    fn from_error(error: HttpError, url: &str, host: &str) -> Obstacle {
        let url = url.to_owned();
        match error {
            HttpError::Io { step: HttpStep::Resolve, cause } => Obstacle::Final(NotReady::UnknownHost {
                url,
                host: host.to_owned(),
                cause: cause.to_string(),
            }),
            HttpError::Io { step: HttpStep::Tls, cause } if is_plain_text(&cause) => {
                Obstacle::Final(NotReady::NotTls { url })
            }
            HttpError::NotHttp(cause) => Obstacle::Final(NotReady::NotHttp { url, cause }),
            error => match error.untrusted().cloned() {
                Some(cause) => Obstacle::Final(NotReady::Untrusted { url, cause }),
                None => Obstacle::Passing(error.brief()),
            },
        }
    }
}

/// What to do about a certificate that is not accepted.
fn remedy(cause: &Untrusted) -> &'static str {
    match cause {
        Untrusted::UnknownAuthority => {
            "Name a file with the certificate to trust (PEM) in runtime.server.ca_file"
        }
        Untrusted::OtherName(_) => "Use a name that the certificate is for in runtime.server.url",
        Untrusted::Expired | Untrusted::NotYetValid => {
            "Renew it on the server, or correct the clock of this machine"
        }
        Untrusted::Other(_) => "Replace it on the server",
    }
}

/// The other side answered a TLS handshake with something else.
fn is_plain_text(cause: &io::Error) -> bool {
    let library = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(library, Some(rustls::Error::InvalidMessage(_)))
}

#[derive(Deserialize)]
struct Models {
    #[serde(default)]
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    owned_by: Option<String>,
}

/// Waits for `/v1/models`; a server that does not list models counts as ready if a model is named.
pub async fn wait(client: &Client, plan: &LoadPlan, tx: &EventTx) -> Result<ServerFound, NotReady> {
    let (begin, url) = (Instant::now(), plan.endpoint.to_string());
    let mut trouble: Option<String> = None;
    let models = loop {
        let waited = begin.elapsed();
        let left = plan.ready.saturating_sub(waited);
        let why = trouble
            .map(|why| format!(": {why}; gives up in {:.0} s", left.as_secs_f64().ceil()))
            .unwrap_or_default();
        tx.send(Event::Preparing(Preparing { step: format!("waiting for {url}{why}"), done: 0, total: 0 }));
        let cause = match client.get("/v1/models", MAX_LIST_BYTES, ANSWER).await {
            Ok((200, text)) => break serde_json::from_str::<Models>(&text).ok(),
            Ok((status @ (401 | 403), _)) => return Err(NotReady::Key { url, status }),
            Ok((404 | 405, _)) if plan.model.is_some() => break None,
            Ok((status @ (404 | 405), _)) => return Err(NotReady::NotOpenAi { url, status }),
            Ok((status, _)) => format!("HTTP {status}"),
            Err(error) => match Obstacle::from_error(error, &url, &plan.endpoint.host) {
                Obstacle::Passing(cause) => cause,
                Obstacle::Final(error) => return Err(error),
            },
        };
        if waited >= plan.ready {
            return Err(NotReady::NoAnswer { url, cause, waited_s: waited.as_secs_f64() });
        }
        trouble = Some(cause);
        sleep(RETRY).await;
    };
    let mut listed: Vec<Model> = models.map(|models| models.data).unwrap_or_default();
    for model in &mut listed {
        // The answer may have had the key with some of its characters escaped.
        model.id = client.without_key(std::mem::take(&mut model.id));
        model.owned_by = model.owned_by.take().map(|owner| client.without_key(owner));
    }
    let model = match (&plan.model, listed.first()) {
        (Some(wanted), None) => wanted.clone(),
        (Some(wanted), Some(_)) => {
            if !listed.iter().any(|model| model.id == *wanted) {
                let there: Vec<&str> = listed.iter().take(5).map(|model| model.id.as_str()).collect();
                return Err(NotReady::NoModel { url, model: wanted.clone(), there: there.join(", ") });
            }
            wanted.clone()
        }
        (None, Some(first)) => first.id.clone(),
        (None, None) => return Err(NotReady::Unnamed { url }),
    };
    let owner = listed.iter().find(|listed| listed.id == model).and_then(|listed| listed.owned_by.clone());
    let prepare_ms = begin.elapsed().as_micros() as f64 / 1e3;
    tx.send(Event::Ready(Ready { prepare_ms }));
    let by = owner.map(|owner| format!(", owned by {owner}")).unwrap_or_default();
    tx.notice(Level::Info, "server", format!("{url} answers with the model {model}{by}"));
    let load = plan.arrivals.offered();
    Ok(ServerFound { server: 0, url, kind: plan.kind.clone(), model: Some(model), metrics: None, load })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_obstacles_that_may_pass_are_waited_for() {
        let obstacle = |error| Obstacle::from_error(error, "https://box:8000", "box");
        let of_tls = |cause: Untrusted| {
            obstacle(HttpError::Io { step: HttpStep::Tls, cause: io::Error::other(cause) })
        };
        for (cause, words) in [
            (
                Untrusted::UnknownAuthority,
                "not of a known authority. Name a file with the certificate to trust (PEM) in runtime.server.ca_file",
            ),
            (
                Untrusted::OtherName(vec!["node1".into()]),
                "is for node1 only. Use a name that the certificate is for",
            ),
            (Untrusted::Expired, "has expired. Renew it on the server"),
        ] {
            let Obstacle::Final(error) = of_tls(cause) else { panic!("{words}: waited for") };
            let text = error.to_string();
            assert!(text.starts_with("https://box:8000: its certificate ") && text.contains(words), "{text}");
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for error in [
            HttpError::Io { step: HttpStep::Connect, cause: refused },
            HttpError::Timeout(HttpStep::Head),
            HttpError::Closed(HttpStep::Head),
        ] {
            let text = error.to_string();
            assert!(matches!(obstacle(error), Obstacle::Passing(_)), "{text}");
        }
    }
}
