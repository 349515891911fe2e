//! HTTP/1.1 for a measuring client: a connection is an object, each phase ends at a known moment, nothing is pooled,
//! retried or redirected implicitly, and everything that a server can send is bounded.

use std::{
    future::{Future, poll_fn},
    io,
    ops::Range,
    pin::Pin,
    task::Poll,
    time::Duration,
};

use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until, timeout_at},
};
use tokio_rustls::TlsConnector;

use super::{
    body::{Body, BodyError},
    endpoint::Endpoint,
    timed::{Arrival, TimedStream},
    tls::{self, Tls, Untrusted},
};
use llmprof_event::{Connecting, HttpStep};

const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
const READ_BYTES: usize = 8 << 10;

#[derive(Debug, Error)]
pub enum HttpError {
    #[error("{0} timed out")]
    Timeout(HttpStep),
    #[error("{step} failed: {cause}")]
    Io { step: HttpStep, cause: io::Error },
    #[error("the server closed the connection while {0}")]
    Closed(HttpStep),
    #[error("the answer is not HTTP: {0}")]
    NotHttp(String),
    #[error(transparent)]
    Body(#[from] BodyError),
}

impl HttpError {
    fn io(step: HttpStep, cause: io::Error) -> HttpError {
        HttpError::Io { step, cause }
    }

    /// A short message if the step is known from elsewhere: "connection refused".
    pub fn brief(&self) -> String {
        match self {
            HttpError::Io { step: HttpStep::Connect, cause }
                if cause.kind() == io::ErrorKind::ConnectionRefused =>
            {
                "connection refused".to_owned()
            }
            error => error.to_string(),
        }
    }

    /// The problem with the certificate of the server, if that is the error.
    pub fn untrusted(&self) -> Option<&Untrusted> {
        match self {
            HttpError::Io { cause, .. } => cause.get_ref()?.downcast_ref(),
            _ => None,
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The head of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    /// Whether the body is a stream of events; otherwise it is a document.
    pub is_stream: bool,
    pub location: Option<String>,
    pub retry_after: Option<String>,
    pub body: Body,
    /// Whether the connection can be reused after the body.
    pub reusable: bool,
}

pub struct Connection {
    stream: Box<dyn Stream>,
    arrival: Arrival,
    /// One timer for all reads: creating one per read takes more time than reading.
    timer: Pin<Box<Sleep>>,
    buffer: Vec<u8>,
    /// The part of the buffer that was read from the stream and not used yet.
    unused: Range<usize>,
}

impl Connection {
    pub async fn open(
        endpoint: &Endpoint,
        tls: &Tls,
        until: Instant,
    ) -> Result<(Connection, Connecting), HttpError> {
        let begin = Instant::now();
        let during = |step| move |_| HttpError::Timeout(step);
        let addresses = timeout_at(until, tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port)))
            .await
            .map_err(during(HttpStep::Resolve))?
            .map_err(|e| HttpError::io(HttpStep::Resolve, e))?;
        let resolved = Instant::now();
        let mut failure = io::Error::other("the name has no address");
        let mut tcp = None;
        for address in addresses.take(8) {
            match timeout_at(until, TcpStream::connect(address)).await.map_err(during(HttpStep::Connect))? {
                Ok(stream) => {
                    tcp = Some(stream);
                    break;
                }
                Err(e) => failure = e,
            }
        }
        let tcp = tcp.ok_or_else(|| HttpError::io(HttpStep::Connect, failure))?;
        let _ = tcp.set_nodelay(true);
        let connected = Instant::now();
        let tcp = TimedStream::new(tcp);
        let arrival = tcp.arrival();
        let stream: Box<dyn Stream> = match endpoint.tls {
            false => Box::new(tcp),
            true => {
                let name = ServerName::try_from(endpoint.host.clone())
                    .map_err(|e| HttpError::io(HttpStep::Tls, io::Error::other(e)))?;
                let connect = TlsConnector::from(tls.config()).connect(name, tcp);
                let stream = timeout_at(until, connect).await.map_err(during(HttpStep::Tls))?;
                Box::new(stream.map_err(|e| HttpError::io(HttpStep::Tls, tls::in_words(e)))?)
            }
        };
        let ns = |from: Instant, to: Instant| (to - from).as_nanos() as u64;
        let connecting = Connecting {
            resolve_ns: ns(begin, resolved),
            tcp_ns: ns(resolved, connected),
            tls_ns: if endpoint.tls { ns(connected, Instant::now()) } else { 0 },
        };
        let timer = Box::pin(sleep_until(until));
        Ok((Connection { stream, arrival, timer, buffer: vec![0; READ_BYTES], unused: 0..0 }, connecting))
    }

    pub async fn send(&mut self, request: &[u8], until: Instant) -> Result<(), HttpError> {
        let write = async {
            self.stream.write_all(request).await?;
            self.stream.flush().await
        };
        let sent = timeout_at(until, write).await.map_err(|_| HttpError::Timeout(HttpStep::Send))?;
        sent.map_err(|e| HttpError::io(HttpStep::Send, e))
    }

    /// The time since the arrival of the last read.
    pub fn arrived_ago(&self) -> Duration {
        self.arrival.ago()
    }

    /// Reads to the end of the headers. Interim responses (1xx) are skipped.
    pub async fn head(&mut self, until: Instant) -> Result<Head, HttpError> {
        loop {
            if let Some((head, used)) = parse_head(&self.buffer[self.unused.clone()])? {
                self.unused.start += used;
                if !(100..200).contains(&head.status) {
                    return Ok(head);
                }
                continue;
            }
            if self.unused.len() > MAX_HEAD_BYTES {
                return Err(HttpError::NotHttp("its headers are longer than 64 KiB".to_owned()));
            }
            if !self.fill(HttpStep::Head, until).await? {
                return Err(HttpError::Closed(HttpStep::Head));
            }
        }
    }

    /// The next part of the body, appended to `out`. False at its end.
    pub async fn read_body(
        &mut self,
        body: &mut Body,
        out: &mut Vec<u8>,
        until: Instant,
    ) -> Result<bool, HttpError> {
        loop {
            if !self.unused.is_empty() {
                let before = out.len();
                self.unused.start += body.decode(&self.buffer[self.unused.clone()], out)?;
                if out.len() > before {
                    return Ok(true);
                }
            }
            if body.is_done() {
                return Ok(false);
            }
            if !self.fill(HttpStep::Body, until).await? {
                body.closed()?;
                return Ok(false);
            }
        }
    }

    /// The whole body, at most `limit` bytes.
    pub async fn read_all(
        &mut self,
        body: &mut Body,
        limit: usize,
        until: Instant,
    ) -> Result<Vec<u8>, HttpError> {
        let mut out = Vec::new();
        while self.read_body(body, &mut out, until).await? {
            if out.len() > limit {
                out.truncate(limit);
                break;
            }
        }
        Ok(out)
    }

    /// Reads more. False at the end of the stream.
    async fn fill(&mut self, step: HttpStep, until: Instant) -> Result<bool, HttpError> {
        // If a server always has more to send, the timer would never be polled.
        if Instant::now() >= until {
            return Err(HttpError::Timeout(step));
        }
        self.buffer.copy_within(self.unused.clone(), 0);
        self.unused = 0..self.unused.len();
        if self.buffer.len() < self.unused.end + READ_BYTES / 2 {
            self.buffer.resize(self.unused.end + READ_BYTES, 0);
        }
        if self.timer.deadline() != until {
            self.timer.as_mut().reset(until);
        }
        let mut room = ReadBuf::new(&mut self.buffer[self.unused.end..]);
        let read = poll_fn(|cx| match Pin::new(&mut self.stream).poll_read(cx, &mut room) {
            Poll::Pending => self.timer.as_mut().poll(cx).map(|()| None),
            ready => ready.map(Some),
        });
        let read = read.await.ok_or(HttpError::Timeout(step))?;
        match read.map(|()| room.filled().len()) {
            Ok(0) => Ok(false),
            Ok(read) => {
                self.unused.end += read;
                Ok(true)
            }
            // Servers end TLS without close_notify; the framing shows whether the data are complete.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(HttpError::io(step, e)),
        }
    }
}

/// `None` while headers are incomplete, else the head and its length.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let used = match response.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(HttpError::NotHttp(e.to_string())),
    };
    let value = |name: &str| {
        let found = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value).trim().to_owned())
    };
    let status = response.code.unwrap_or(0);
    let chunked = value("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().ends_with("chunked"));
    let length = value("content-length").map(|v| v.parse::<u64>());
    let body = match (status, chunked, length) {
        (100..200 | 204 | 304, _, _) => Body::length(0),
        (_, true, _) => Body::chunked(),
        (_, false, Some(Ok(length))) => Body::length(length),
        (_, false, Some(Err(_))) => return Err(HttpError::NotHttp("its length is not a number".to_owned())),
        (_, false, None) => Body::until_close(),
    };
    let closes = value("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
    let reusable = !closes && response.version == Some(1) && body.has_end();
    let is_stream = value("content-type").is_none_or(|kind| !kind.starts_with("application/json"));
    let location = value("location");
    let retry_after = value("retry-after");
    Ok(Some((Head { status, is_stream, location, retry_after, body, reusable }, used)))
}

/// A single request without a stream, for small responses: the status and at most `limit` bytes.
pub async fn get(
    endpoint: &Endpoint,
    path: &str,
    key: Option<&str>,
    tls: &Tls,
    limit: usize,
    time: Duration,
) -> Result<(u16, Vec<u8>), HttpError> {
    let until = Instant::now() + time;
    let (mut connection, _) = Connection::open(endpoint, tls, until).await?;
    connection.send(&request("GET", endpoint, path, key, None, false), until).await?;
    let mut head = connection.head(until).await?;
    let body = connection.read_all(&mut head.body, limit, until).await?;
    Ok((head.status, body))
}

/// A complete request as bytes, with a key if the server requires one.
pub fn request(
    method: &str,
    endpoint: &Endpoint,
    path: &str,
    key: Option<&str>,
    body: Option<&[u8]>,
    keep: bool,
) -> Vec<u8> {
    let authorization = key.map(|key| format!("Bearer {key}"));
    authorized_request(method, endpoint, path, authorization.as_deref(), body, keep)
}

/// A complete request as bytes; `authorization` is the value of that header.
pub fn authorized_request(
    method: &str,
    endpoint: &Endpoint,
    path: &str,
    authorization: Option<&str>,
    body: Option<&[u8]>,
    keep: bool,
) -> Vec<u8> {
    let mut head = format!(
        "{method} {}{path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: llmprof-tui/{}\r\nAccept: */*\r\nConnection: {}\r\n",
        endpoint.base,
        endpoint.authority(),
        env!("CARGO_PKG_VERSION"),
        if keep { "keep-alive" } else { "close" },
    );
    if let Some(authorization) = authorization {
        head.push_str(&format!("Authorization: {authorization}\r\n"));
    }
    if let Some(body) = body {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(body.unwrap_or_default());
    bytes
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Data that are always ready do not defeat the deadline.
    #[tokio::test]
    async fn endless_interim_answers_reach_the_time_limit() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let many = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(4096);
            while stream.write_all(&many).await.is_ok() {}
        });
        let tls = Tls::new(&[]).unwrap();
        let endpoint = Endpoint::read(&url).unwrap();
        let got = get(&endpoint, "/", None, &tls, 1 << 20, Duration::from_millis(300)).await;
        assert!(matches!(got, Err(HttpError::Timeout(_))), "{got:?}");
    }

    #[test]
    fn heads_are_read_or_refused() {
        let read = |text: &str| parse_head(text.as_bytes()).unwrap();
        assert!(read("HTTP/1.1 200 OK\r\nContent-").is_none());
        let (head, used) =
            read("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5")
                .unwrap();
        assert_eq!((head.status, head.is_stream, head.reusable, used), (200, true, true, 80));
        let (head, _) = read("HTTP/1.0 503 Busy\r\nRetry-After: 2\r\n\r\n").unwrap();
        assert_eq!((head.status, head.reusable, head.retry_after.as_deref()), (503, false, Some("2")));
        assert!(parse_head(b"SSH-2.0-OpenSSH_9\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n").is_err());
    }
}
