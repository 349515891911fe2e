//! The metrics of a run for Prometheus, at an address of this machine.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How old a page may be.
const FRESH: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// A client that says nothing is not waited for.
const CLIENT: Duration = Duration::from_millis(500);
const MAX_REQUEST_BYTES: usize = 8192;

/// The page that is served, made by the consumer of events once a second.
pub struct MetricsEndpoint {
    page: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    made: Option<Instant>,
    thread: Option<JoinHandle<()>>,
    pub address: SocketAddr,
}

impl MetricsEndpoint {
    pub fn start(address: SocketAddr) -> io::Result<MetricsEndpoint> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (page, stop) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (served, stopped) = (Arc::clone(&page), Arc::clone(&stop));
        let thread = thread::Builder::new().name("llmprof-endpoint".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) => {
                        let page = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        let _ = answer(client, &page);
                    }
                    Err(_) => thread::sleep(POLL),
                }
            }
        })?;
        Ok(MetricsEndpoint { page, stop, made: None, thread: Some(thread), address })
    }

    /// Makes the page again where it is old.
    pub fn update(&mut self, make: impl FnOnce() -> String) {
        if self.made.is_none_or(|made| made.elapsed() >= FRESH) {
            self.made = Some(Instant::now());
            *self.page.lock().unwrap_or_else(PoisonError::into_inner) = make();
        }
    }
}

impl Drop for MetricsEndpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The next run may want the same address.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut client: TcpStream, page: &str) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(CLIENT))?;
    client.set_write_timeout(Some(CLIENT))?;
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST_BYTES {
        match client.read(&mut bytes)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&bytes[..n]),
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics") {
        true => ("200 OK", page),
        false => ("404 Not Found", "The metrics are at /metrics.\n"),
    };
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
