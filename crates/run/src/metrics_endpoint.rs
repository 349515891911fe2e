//! The metrics of a run for Prometheus, at an address of this machine.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Maximum age of a page.
const FRESH: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// Time limit for a request and its answer.
const CLIENT: Duration = Duration::from_secs(1);
const MAX_REQUEST_BYTES: usize = 8192;

/// Serves a page, which the consumer of events renders once per second.
pub struct MetricsEndpoint {
    page: Arc<Mutex<String>>,
    stop: Arc<AtomicBool>,
    made: Option<Instant>,
    thread: Option<JoinHandle<()>>,
    pub address: SocketAddr,
}

impl MetricsEndpoint {
    pub fn start(address: SocketAddr) -> io::Result<MetricsEndpoint> {
        MetricsEndpoint::serve(TcpListener::bind(address)?)
    }

    fn serve(listener: TcpListener) -> io::Result<MetricsEndpoint> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (page, stop) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (served, stopped) = (Arc::clone(&page), Arc::clone(&stop));
        let thread = thread::Builder::new().name("llmprof-endpoint".to_owned()).spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) => {
                        let page = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
                        let _ = answer(client, &page, || stopped.load(Ordering::Relaxed));
                    }
                    Err(_) => thread::sleep(POLL),
                }
            }
        })?;
        Ok(MetricsEndpoint { page, stop, made: None, thread: Some(thread), address })
    }

    /// Renders the page again if it is too old.
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
        // The next run may use the same address.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers one request within its time limit; abandoned if the run ends.
fn answer(mut client: TcpStream, page: &str, is_ended: impl Fn() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT;
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(POLL))?;
    client.set_write_timeout(Some(POLL))?;
    // A client that sends a byte at a time gets no more time than any other.
    let goes_on = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    };
    let is_over = || is_ended() || Instant::now() >= deadline;
    let is_complete = |request: &[u8]| {
        request.len() >= MAX_REQUEST_BYTES || request.windows(4).any(|end| end == b"\r\n\r\n")
    };
    let mut request = Vec::new();
    let mut bytes = [0; MAX_REQUEST_BYTES];
    // The time limit is checked after a read or a write, not before: this thread may be late, not the client.
    loop {
        match client.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(n) => request.extend_from_slice(&bytes[..n]),
            Err(error) => goes_on(error)?,
        }
        if is_complete(&request) {
            break;
        }
        if is_over() {
            return Ok(());
        }
    }
    let (status, body) = match request.starts_with(b"GET /metrics") {
        true => ("200 OK", page),
        false => ("404 Not Found", "The metrics are at /metrics.\n"),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut rest = answer.as_bytes();
    loop {
        match client.write(rest) {
            Ok(0) => return Ok(()),
            Ok(n) => rest = &rest[n..],
            Err(error) => goes_on(error)?,
        }
        if rest.is_empty() || is_over() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint that takes longer is assumed to hang.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn slow_clients_get_no_more_time_than_others() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        // All are connected, and the last two have sent their requests, before the first is served.
        let address = listener.local_addr().unwrap();
        let [mut slow, mut silent, mut client] = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        silent.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut endpoint = MetricsEndpoint::serve(listener).unwrap();
        endpoint.update(|| "# a page\n".repeat(1 << 20));
        // One byte at intervals, for as long as the endpoint reads.
        let slow = thread::spawn(move || {
            let begun = Instant::now();
            while slow.write_all(b"G").is_ok() {
                assert!(begun.elapsed() < PATIENCE, "it was listened to for a minute");
                thread::sleep(Duration::from_millis(100));
            }
        });
        // The second client sends a request and reads nothing. The last is answered nevertheless, and the end does not
        // wait for the others.
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.contains("404"), "{text}");
        drop(endpoint);
        slow.join().unwrap();
    }

    /// A thread that is late still answers a request that has arrived.
    #[test]
    fn a_received_request_is_answered_after_its_time_limit() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(server.peek(&mut [0]).unwrap() > 0, "it has arrived");
        answer(server, "# a page\n", || true).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK") && text.ends_with("# a page\n"), "{text}");
    }
}
