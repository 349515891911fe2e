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

/// How old a page may be.
const FRESH: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// A request and its answer.
const CLIENT: Duration = Duration::from_secs(1);
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
                        let _ = answer(client, &page, || stopped.load(Ordering::Relaxed));
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

/// One request within its time; given up where the run ends.
fn answer(mut client: TcpStream, page: &str, is_ended: impl Fn() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT;
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(POLL))?;
    client.set_write_timeout(Some(POLL))?;
    // A client that takes a byte at a time is given no more time than any other.
    let goes_on = |error: io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    };
    let is_over = || is_ended() || Instant::now() >= deadline;
    let mut request = Vec::new();
    let mut bytes = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST_BYTES {
        if is_over() {
            return Ok(());
        }
        match client.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(n) => request.extend_from_slice(&bytes[..n]),
            Err(error) => goes_on(error)?,
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
    while !rest.is_empty() && !is_over() {
        match client.write(rest) {
            Ok(0) => return Ok(()),
            Ok(n) => rest = &rest[n..],
            Err(error) => goes_on(error)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_clients_get_no_more_time_than_others() {
        let mut endpoint = MetricsEndpoint::start(([127, 0, 0, 1], 0).into()).unwrap();
        endpoint.update(|| "# a page\n".repeat(1 << 20));
        // One byte now and then, for as long as it is listened to.
        let address = endpoint.address;
        let slow = thread::spawn(move || {
            let mut client = TcpStream::connect(address).unwrap();
            let mut sent = 0;
            while client.write_all(b"G").is_ok() && sent < 600 {
                sent += 1;
                thread::sleep(Duration::from_millis(100));
            }
            sent
        });
        // One that asks and reads nothing.
        let mut silent = TcpStream::connect(address).unwrap();
        silent.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        // The next one is answered all the same, and the end does not wait for the others.
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.contains("404"), "{text}");
        drop(endpoint);
        assert!(slow.join().unwrap() < 600, "it was listened to for a minute");
    }
}
