//! A server's own metrics, read without adding load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{task::LocalSet, time::sleep};

use super::{
    plan::MetricsAt,
    scrape::{NoMetrics, Scraper},
    tls::Tls,
};
use llmprof_event::{Event, EventTx, Level, ServerFound, ServerKind, ServerSilent};

const LOOK: Duration = Duration::from_secs(1);
const STOP_TICK: Duration = Duration::from_millis(50);

/// Reads the metrics at `pages`, each of one server, until `stop` is set; waits for servers that do not answer yet.
pub fn watch(pages: Vec<MetricsAt>, tx: EventTx, stop: Arc<AtomicBool>) {
    until_stopped(&stop, |tls| async move {
        let all: Vec<_> = pages
            .into_iter()
            .zip(0..)
            .map(|(at, server)| tokio::task::spawn_local(read(at, server, tls.clone(), tx.clone())))
            .collect();
        for server in all {
            let _ = server.await;
        }
    });
}

/// Runs an endless task on this thread until `stop` is set.
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

async fn read(at: MetricsAt, server: u32, tls: Tls, tx: EventTx) {
    let mut last: Option<NoMetrics> = None;
    loop {
        let absent = match Scraper::at(&at, &ServerKind::OpenAi, None, &tls).await {
            Ok(scraper) => return follow(&at, scraper.numbered(server), server, tx).await,
            Err(absent) => absent,
        };
        if last.as_ref() != Some(&absent) {
            report_absent(&at, server, &absent, &tx);
            last = Some(absent);
        }
        sleep(LOOK).await;
    }
}

async fn follow(at: &MetricsAt, scraper: Scraper, server: u32, tx: EventTx) {
    tx.send(Event::ServerFound(Box::new(ServerFound {
        server,
        url: at.endpoint.to_string(),
        kind: scraper.kind(),
        model: None,
        metrics: Some(scraper.url()),
        load: None,
    })));
    tx.notice(
        Level::Info,
        "server",
        format!("the metrics of a {} server are read from {}", scraper.kind(), scraper.url()),
    );
    scraper.run(tx).await;
}

fn report_absent(at: &MetricsAt, server: u32, absent: &NoMetrics, tx: &EventTx) {
    let text = match absent {
        NoMetrics::Unknown => {
            format!(
                "{} has no metrics that this program reads yet; it is retried once per second",
                at.endpoint
            )
        }
        NoMetrics::Silent(why) => {
            format!("{} does not answer: {why}; it is retried once per second", at.endpoint)
        }
    };
    tx.notice(Level::Warn, "server", text);
    let why = match absent {
        NoMetrics::Unknown => "no metrics that this program reads".to_owned(),
        NoMetrics::Silent(why) => why.clone(),
    };
    let url = Some(at.endpoint.to_string());
    tx.send(Event::ServerSilent(ServerSilent { server, url, answers: *absent == NoMetrics::Unknown, why }));
}
