//! Reads a server's own metrics once a second.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{
    client::Key,
    endpoint::Endpoint,
    exposition::Exposition,
    http,
    load::LoadPlan,
    metrics::{self, AtTheEnd, Reading},
    tls::Tls,
};
use crate::event::{Event, EventTx, Level, ServerFound, ServerKind, ServerSilent};

const INTERVAL: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
const MAX_PAGE_BYTES: usize = 8 << 20;

/// A page of metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsAt {
    pub endpoint: Endpoint,
    /// `None`: where its kind of server has them.
    pub path: Option<String>,
}

/// What is at `path` now, or why nothing is.
pub async fn page(
    endpoint: &Endpoint,
    path: &str,
    key: Option<&Key>,
    tls: &Tls,
) -> Result<Exposition, String> {
    let key = key.map(|key| key.0.as_str());
    match http::get(endpoint, path, key, tls, MAX_PAGE_BYTES, ANSWER).await {
        Ok((200, body)) => Ok(Exposition::read(&String::from_utf8_lossy(&body))),
        Ok((status, _)) => Err(format!("HTTP {status} at {path}")),
        Err(error) => Err(error.brief()),
    }
}

pub struct Scraper {
    endpoint: Endpoint,
    path: String,
    key: Option<Key>,
    tls: Tls,
    kind: ServerKind,
    last: Option<(Instant, Reading)>,
}

impl Scraper {
    /// Finds the page, and by it the kind of server; reports both.
    pub async fn find(plan: &LoadPlan, tls: &Tls, found: &ServerFound, tx: &EventTx) -> Option<Scraper> {
        let found_at = match &plan.metrics {
            // The key is for the server alone, not for another machine that has its metrics.
            Some(at) => {
                let key = plan.key.clone().filter(|_| at.endpoint.is_same_machine(&plan.endpoint));
                Scraper::at(at, &plan.kind, key, tls).await
            }
            None => None,
        };
        let kind = found_at.as_ref().map_or(found.kind.clone(), |scraper| scraper.kind.clone());
        let metrics = found_at.as_ref().map(Scraper::url);
        tx.send(Event::ServerFound(Box::new(ServerFound {
            kind,
            metrics: metrics.clone(),
            ..found.clone()
        })));
        match (&metrics, &plan.metrics) {
            (Some(url), _) => tx.notice(Level::Info, "server", format!("its metrics are read from {url}")),
            (None, Some(at)) => {
                let text = format!(
                    "{} has no metrics that are known here: queue, batch and cache are not seen",
                    at.endpoint
                );
                tx.notice(Level::Warn, "server", text);
            }
            (None, None) => {}
        }
        found_at
    }

    /// The first page that has metrics of a known server.
    pub async fn at(at: &MetricsAt, kind: &ServerKind, key: Option<Key>, tls: &Tls) -> Option<Scraper> {
        let given = at.path.clone().into_iter();
        let usual =
            metrics::paths_of(kind).iter().map(|path| (*path).to_owned()).filter(|_| at.path.is_none());
        for path in given.chain(usual) {
            let mut scraper = Scraper {
                endpoint: at.endpoint.clone(),
                path,
                key: key.clone(),
                tls: tls.clone(),
                kind: kind.clone(),
                last: None,
            };
            if let Ok(page) = scraper.page().await
                && let Some(kind) = metrics::kind_of(&page)
            {
                scraper.kind = kind;
                return Some(scraper);
            }
        }
        None
    }

    pub fn kind(&self) -> ServerKind {
        self.kind.clone()
    }

    pub fn url(&self) -> String {
        format!("{}{}", self.endpoint, self.path)
    }

    async fn page(&self) -> Result<Exposition, String> {
        page(&self.endpoint, &self.path, self.key.as_ref(), &self.tls).await
    }

    /// Reports until it is dropped.
    pub async fn run(mut self, tx: EventTx) {
        let mut due = Instant::now();
        let mut silent: Option<String> = None;
        let (first, mut counter) = (Instant::now(), AtTheEnd::default());
        loop {
            let begin = Instant::now();
            let page = self.page().await;
            let why = page.as_ref().err().cloned();
            if let Ok(page) = page {
                let reading = Reading::of(&self.kind, &page);
                let scrape_ms = begin.elapsed().as_secs_f64() * 1e3;
                let (running, tokens) = reading.generated();
                let at_the_end = counter.rate((begin - first).as_secs_f64(), running, tokens);
                if let Some((at, last)) = &self.last {
                    let mut sample = reading.since(last, (begin - *at).as_secs_f64(), scrape_ms);
                    if self.kind == ServerKind::LlamaCpp {
                        sample.output_tok_s = at_the_end;
                    }
                    tx.send(Event::ServerSample(Box::new(sample)));
                }
                self.last = Some((begin, reading));
            }
            if why != silent {
                let text = match &why {
                    None => "its metrics can be read again".to_owned(),
                    Some(why) => format!("its metrics cannot be read: {why}"),
                };
                tx.notice(Level::Warn, "server", text);
                if let Some(why) = &why {
                    tx.send(Event::ServerSilent(ServerSilent { why: why.clone() }));
                }
                silent = why;
            }
            due = (due + INTERVAL).max(Instant::now());
            sleep_until(due).await;
        }
    }
}
