//! A server's own metrics without load of ours.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::LocalSet, time::sleep};

use super::{
    endpoint::Endpoint,
    scrape::{MetricsAt, Scraper},
    tls::Tls,
};
use crate::event::{Event, EventTx, Level, ServerFound, ServerKind};

const LOOK: Duration = Duration::from_secs(1);
const STOP_TICK: Duration = Duration::from_millis(50);

/// Reads the metrics at `at` until `stop` is set; waits for a server that is not there yet.
pub fn watch(at: MetricsAt, tx: EventTx, stop: Arc<AtomicBool>) {
    until_stopped(&stop, |tls| read(at, tls, tx));
}

/// Runs what never ends by itself on this thread until `stop` is set.
pub fn until_stopped<F: Future<Output = ()>>(stop: &AtomicBool, work: impl FnOnce(Tls) -> F) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let Ok(tls) = Tls::new(&[]) else { return };
    LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            () = work(tls) => {}
            () = async { while !stop.load(Ordering::Relaxed) { sleep(STOP_TICK).await } } => {}
        }
    });
}

async fn read(at: MetricsAt, tls: Tls, tx: EventTx) {
    let mut was_absent = false;
    loop {
        if let Some(scraper) = Scraper::at(&at, &ServerKind::OpenAi, None, &tls).await {
            tx.send(Event::ServerFound(Box::new(ServerFound {
                url: at.endpoint.to_string(),
                kind: scraper.kind(),
                model: None,
                metrics: Some(scraper.url()),
            })));
            tx.notice(
                Level::Info,
                "server",
                format!("the metrics of a {} server are read from {}", scraper.kind(), scraper.url()),
            );
            return scraper.run(tx).await;
        }
        if !std::mem::replace(&mut was_absent, true) {
            let text =
                format!("{} has no metrics that are known here yet; asked again once a second", at.endpoint);
            tx.notice(Level::Warn, "server", text);
        }
        sleep(LOOK).await;
    }
}

impl MetricsAt {
    /// The metrics at a URL: its path where it has one, else where servers have them.
    pub fn read(url: &str) -> Result<MetricsAt, super::EndpointError> {
        let at = Endpoint::read(url)?;
        let path = Some(at.base.clone()).filter(|path| !path.is_empty());
        Ok(MetricsAt { endpoint: Endpoint { base: String::new(), ..at }, path })
    }
}
