//! Queries Prometheus repeatedly on a separate thread: drawing never waits for it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::sleep,
};

use super::{
    client::{Client, Source},
    error::FleetError,
};
use llmprof_analysis::fleet::{Gpu, History, Snapshot};

/// A request to the thread.
#[derive(Debug)]
pub enum Ask {
    Refresh,
    History(Box<Gpu>),
}

/// An update from the thread.
#[derive(Debug)]
pub enum Update {
    /// Everything except since when GPUs are slow; the complete snapshot follows.
    Early(Box<Snapshot>),
    Snapshot(Box<Snapshot>),
    Failed(FleetError),
    History(Box<Gpu>, Result<Box<History>, FleetError>),
}

pub struct Watch {
    pub updates: UnboundedReceiver<Update>,
    refresh: UnboundedSender<()>,
    histories: UnboundedSender<Box<Gpu>>,
    stop: Arc<AtomicBool>,
}

const STOP_TICK: Duration = Duration::from_millis(100);

impl Watch {
    /// Queries at once, and then every `interval`.
    pub fn start(source: Source, interval: Duration) -> Result<Watch, FleetError> {
        // Two clients, so that a history does not wait for a slow refresh.
        let (client, historian) = (Client::new(source.clone())?, Client::new(source)?);
        let (tx, updates) = unbounded_channel();
        let (refresh, refreshes) = unbounded_channel();
        let (histories, asked) = unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async {
                tokio::select! {
                    () = refresh_loop(client, interval, refreshes, tx.clone()) => {}
                    () = history_loop(historian, asked, tx.clone()) => {}
                    () = async { while !stopped.load(Ordering::Relaxed) { sleep(STOP_TICK).await } } => {}
                }
            });
            // A name lookup in progress is not waited for.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("llmprof-fleet".to_owned()).spawn(work).map_err(no_thread)?;
        Ok(Watch { updates, refresh, histories, stop })
    }

    pub fn ask(&self, ask: Ask) {
        // Without the thread there is no one to ask.
        let _ = match ask {
            Ask::Refresh => self.refresh.send(()).is_ok(),
            Ask::History(gpu) => self.histories.send(gpu).is_ok(),
        };
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn no_thread(e: io::Error) -> FleetError {
    FleetError::Usage(format!("cannot start a thread: {e}; raise the limit on processes (ulimit -u)"))
}

async fn refresh_loop(
    mut client: Client,
    interval: Duration,
    mut refreshes: UnboundedReceiver<()>,
    tx: UnboundedSender<Update>,
) {
    loop {
        let early = |snapshot: &Snapshot| drop(tx.send(Update::Early(Box::new(snapshot.clone()))));
        let update = match client.refresh(early).await {
            Ok(snapshot) => Update::Snapshot(Box::new(snapshot)),
            Err(e) => Update::Failed(e),
        };
        if tx.send(update).is_err() {
            return;
        }
        // One refresh answers all requests that arrived during it.
        while refreshes.try_recv().is_ok() {}
        tokio::select! {
            () = sleep(interval) => {}
            asked = refreshes.recv() => if asked.is_none() { return },
        }
    }
}

async fn history_loop(client: Client, mut asked: UnboundedReceiver<Box<Gpu>>, tx: UnboundedSender<Update>) {
    while let Some(mut gpu) = asked.recv().await {
        // Only the last one is still wanted.
        while let Ok(later) = asked.try_recv() {
            gpu = later;
        }
        let history = client.history(&gpu).await.map(Box::new);
        if tx.send(Update::History(gpu, history)).is_err() {
            return;
        }
    }
}
