//! Reads a server's own metrics once per second.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    endpoint::Endpoint,
    exposition::Exposition,
    http,
    metrics::{self, AtTheEnd, Reading},
    plan::{LoadPlan, MetricsAt},
    tls::Tls,
};
use llmprof_base::secret::Secret;
use llmprof_event::{Event, EventTx, Level, ServerFound, ServerKind, ServerSilent};

const INTERVAL: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
const MAX_PAGE_BYTES: usize = 8 << 20;

/// The page at `path`, or why there is none.
pub async fn page(
    endpoint: &Endpoint,
    path: &str,
    key: Option<&Secret>,
    tls: &Tls,
) -> Result<Exposition, NoPage> {
    let key = key.map(|key| key.0.as_str());
    match http::get(endpoint, path, key, tls, MAX_PAGE_BYTES, ANSWER).await {
        Ok((200, body)) => Ok(Exposition::read(&String::from_utf8_lossy(&body))),
        Ok((status, _)) => Err(NoPage::Status(status, path.to_owned())),
        Err(error) => Err(NoPage::Unanswered(error.brief())),
    }
}

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPage {
    Status(u16, String),
    Unanswered(String),
}

impl fmt::Display for NoPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPage::Status(status, path) => write!(f, "HTTP {status} at {path}"),
            NoPage::Unanswered(why) => f.write_str(why),
        }
    }
}

pub struct Scraper {
    endpoint: Endpoint,
    path: String,
    key: Option<Secret>,
    tls: Tls,
    kind: ServerKind,
    last: Option<(Instant, Reading)>,
    /// The index of the server.
    server: u32,
}

/// Why a server's metrics are not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoMetrics {
    /// It answers, but none of its pages has known metrics.
    Unknown,
    /// It does not answer.
    Silent(String),
}

impl Scraper {
    /// Finds the page, and from it the kind of server; reports both.
    pub async fn find(plan: &LoadPlan, tls: &Tls, found: &ServerFound, tx: &EventTx) -> Option<Scraper> {
        let found_at = match &plan.metrics {
            // The key is only for the server, not for another machine that has its metrics.
            Some(at) => {
                let key = plan.key.clone().filter(|_| at.endpoint.is_same_machine(&plan.endpoint));
                Scraper::at(at, &plan.kind, key, tls).await.ok()
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
                    "{} has no metrics that this program reads: queue, batch and cache are not shown",
                    at.endpoint
                );
                tx.notice(Level::Warn, "server", text);
            }
            (None, None) => {}
        }
        found_at
    }

    /// The first page that has metrics of a known server.
    pub async fn at(
        at: &MetricsAt,
        kind: &ServerKind,
        key: Option<Secret>,
        tls: &Tls,
    ) -> Result<Scraper, NoMetrics> {
        let mut absent = NoMetrics::Unknown;
        let given = at.path.clone().into_iter();
        let usual =
            metrics::paths_of(kind).iter().map(|path| (*path).to_owned()).filter(|_| at.path.is_none());
        for path in given.chain(usual) {
            let scraper = Scraper {
                endpoint: at.endpoint.clone(),
                path,
                key: key.clone(),
                tls: tls.clone(),
                kind: kind.clone(),
                last: None,
                server: 0,
            };
            match scraper.page().await.map(|page| metrics::kind_of(&page)) {
                Ok(Some(kind)) => return Ok(Scraper { kind, ..scraper }),
                Ok(None) | Err(NoPage::Status(..)) => {}
                Err(NoPage::Unanswered(why)) => absent = NoMetrics::Silent(why),
            }
        }
        Err(absent)
    }

    /// The same as one of several servers.
    pub fn numbered(self, server: u32) -> Scraper {
        Scraper { server, ..self }
    }

    pub fn kind(&self) -> ServerKind {
        self.kind.clone()
    }

    pub fn url(&self) -> String {
        format!("{}{}", self.endpoint, self.path)
    }

    async fn page(&self) -> Result<Exposition, NoPage> {
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
            let why = page.as_ref().err().map(ToString::to_string);
            if let Ok(page) = page {
                let reading = Reading::from_page(&self.kind, &page);
                let scrape_ms = begin.elapsed().as_secs_f64() * 1e3;
                let (running, tokens) = reading.generated();
                let at_the_end = counter.rate((begin - first).as_secs_f64(), running, tokens);
                if let Some((at, last)) = &self.last {
                    let mut sample = reading.since(last, (begin - *at).as_secs_f64(), scrape_ms);
                    if self.kind == ServerKind::LlamaCpp {
                        sample.output_tok_s = at_the_end;
                    }
                    sample.server = self.server;
                    tx.send(Event::ServerSample(Box::new(sample)));
                }
                self.last = Some((begin, reading));
            }
            if why != silent {
                let text = match &why {
                    None => format!("the metrics of {} can be read again", self.endpoint),
                    Some(why) => format!("the metrics of {} cannot be read: {why}", self.endpoint),
                };
                tx.notice(if why.is_some() { Level::Warn } else { Level::Info }, "server", text);
                if let Some(why) = why.clone() {
                    tx.send(Event::ServerSilent(ServerSilent {
                        server: self.server,
                        url: None,
                        answers: false,
                        why,
                    }));
                }
                silent = why;
            }
            due = (due + INTERVAL).max(Instant::now());
            sleep_until(due).await;
        }
    }
}
