//! Waits until a server answers, and finds out which one it is.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use super::{client::Client, load::LoadPlan, tls::Untrusted};
use crate::event::{Event, EventTx, Level, Preparing, Ready, ServerFound};

const RETRY: Duration = Duration::from_millis(250);
const ANSWER: Duration = Duration::from_secs(5);
/// A server may know any number of models.
const MAX_LIST_BYTES: usize = 1 << 20;

#[derive(Debug, Error)]
pub enum NotReady {
    #[error(
        "{url} is not ready: {cause}. Start the server, or correct runtime.server.url; runtime.server.ready_s is how long to wait"
    )]
    NoAnswer { url: String, cause: String },
    #[error(
        "{url} refuses the key (HTTP {status}): put one into the variable that runtime.server.key_env names"
    )]
    Key { url: String, status: u16 },
    #[error("{url} has no model {model}; it has {there}")]
    NoModel { url: String, model: String, there: String },
    #[error("{url} lists no model: name one in runtime.server.model")]
    Unnamed { url: String },
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

/// Waits for `/v1/models`; a server that does not list models is taken at its word if a model is named.
pub async fn wait(client: &Client, plan: &LoadPlan, tx: &EventTx) -> Result<ServerFound, NotReady> {
    let (begin, url) = (Instant::now(), plan.endpoint.to_string());
    let models = loop {
        let waited = begin.elapsed();
        tx.send(Event::Preparing(Preparing {
            step: format!("waiting for {url}"),
            done: waited.as_secs(),
            total: plan.ready.as_secs(),
        }));
        let cause = match client.get("/v1/models", MAX_LIST_BYTES, ANSWER).await {
            Ok((200, text)) => break serde_json::from_str::<Models>(&text).ok(),
            Ok((status @ (401 | 403), _)) => return Err(NotReady::Key { url, status }),
            Ok((404 | 405, _)) => break None,
            Ok((status, _)) => format!("HTTP {status}"),
            Err(error) if error.untrusted() == Some(&Untrusted::UnknownAuthority) => {
                format!("{error}; runtime.server.ca_file names a file with the certificate to trust (PEM)")
            }
            Err(error) => error.to_string(),
        };
        if waited >= plan.ready {
            return Err(NotReady::NoAnswer { url, cause });
        }
        sleep(RETRY).await;
    };
    let listed: Vec<Model> = models.map(|models| models.data).unwrap_or_default();
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
    Ok(ServerFound { url, kind: plan.kind.clone(), model: Some(model), metrics: None })
}
