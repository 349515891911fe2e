//! Requests on the client's own connections, with the time of each chunk.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    body::BodyError,
    endpoint::Endpoint,
    http::{self, Connection, Head, HttpError},
    openai::{Data, error_text},
    sse::Events,
    tls::Tls,
};
use llmprof_base::{foreign, secret::Secret};
use llmprof_event::{Clock, HttpStep, RequestFailure, Served, ServerTimes, Stamp};

/// If the server does not end a response after announcing the end of the stream, the connection is dropped after this
/// time.
const AFTER_DONE: Duration = Duration::from_secs(1);
/// Maximum bytes of an error response that are read.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Maximum bytes of a response that is not a stream; the rest is dropped.
const MAX_DOCUMENT_BYTES: usize = 16 << 20;
/// After this many idle connections that were found closed, each request has a new connection.
const MAX_CLOSED: u32 = 3;
/// Maximum open connections that wait for a request.
const MAX_IDLE: usize = 4096;

pub struct Client {
    endpoint: Endpoint,
    tls: Tls,
    key: Option<Secret>,
    timeout: Duration,
    clock: Clock,
    idle: RefCell<Vec<Connection>>,
    /// The number of idle connections that the server had closed.
    closed: Cell<u32>,
}

/// The outcome of a request, and the message of its failure.
pub struct Exchange {
    pub served: Served,
    pub message: Option<String>,
    pub end: Stamp,
}

/// Chunks that arrived at the same time.
pub struct Arrived<'a> {
    /// The index of the last token, as far as it is known: each chunk counts as one unless the server reports more.
    pub last_token: u32,
    pub text: &'a str,
}

/// The content of a stream so far.
#[derive(Default)]
struct StreamContent {
    chunks: u32,
    done: bool,
    finished: bool,
    /// Chunks that were not passed on yet.
    arrived: u32,
    text: String,
    tokens: Option<u32>,
    failure: Option<(RequestFailure, String)>,
}

impl Client {
    pub fn new(endpoint: Endpoint, tls: Tls, key: Option<Secret>, timeout: Duration, clock: Clock) -> Client {
        Client { endpoint, tls, key, timeout, clock, idle: RefCell::default(), closed: Cell::new(0) }
    }

    /// Text of the server without the key, for a recording, a report or a log.
    pub fn without_key(&self, text: String) -> String {
        match &self.key {
            Some(key) => key.strip(text),
            None => text,
        }
    }

    fn key(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.0.as_str())
    }

    /// A small response: its status and text.
    pub async fn get(&self, path: &str, limit: usize, time: Duration) -> Result<(u16, String), HttpError> {
        let (status, body) = http::get(&self.endpoint, path, self.key(), &self.tls, limit, time).await?;
        Ok((status, self.without_key(String::from_utf8_lossy(&body).into_owned())))
    }

    /// Sends a request and passes on each chunk with text. `planned` is the planned time of sending.
    pub async fn stream(
        &self,
        path: &str,
        body: &[u8],
        planned: Stamp,
        each: &mut dyn FnMut(Stamp, Arrived<'_>),
    ) -> Exchange {
        let start = self.clock.now();
        let mut served = Served {
            late_ns: start.since(planned).as_nanos() as u64,
            connecting: None,
            send_ns: 0,
            head_ns: None,
            chunks: 0,
            together: 0,
            prompt_tokens: None,
            output_tokens: None,
            tokenized: false,
            cached_tokens: None,
            server: ServerTimes::default(),
            reconnected: false,
            failure: None,
        };
        let request = http::request("POST", &self.endpoint, path, self.key(), Some(body), true);
        let until = Instant::now() + self.timeout;
        let message = match self.exchange(&request, until, &mut served, each).await {
            Ok(None) => None,
            Ok(Some((failure, message))) => {
                served.failure = Some(failure);
                Some(message)
            }
            Err(error) => {
                served.failure = Some(failure_of(&error));
                Some(error.brief())
            }
        };
        let message = message.map(|text| foreign::line(&self.without_key(text), 300));
        Exchange { served, message, end: self.clock.now() }
    }

    async fn exchange(
        &self,
        request: &[u8],
        until: Instant,
        served: &mut Served,
        each: &mut dyn FnMut(Stamp, Arrived<'_>),
    ) -> Result<Option<(RequestFailure, String)>, HttpError> {
        let idle = self.idle.borrow_mut().pop();
        let is_reused = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.open(until, served).await?,
        };
        let (mut head, arrived) = match self.ask(&mut connection, request, until, served).await {
            // The server had closed the idle connection. The delay counts as the client's, and is reported.
            Err(HttpError::Closed(_) | HttpError::Io { .. }) if is_reused => {
                served.reconnected = true;
                self.closed.set(self.closed.get() + 1);
                self.idle.borrow_mut().clear();
                connection = self.open(until, served).await?;
                self.ask(&mut connection, request, until, served).await?
            }
            other => other?,
        };
        if head.status != 200 {
            return self.refused(connection, head, until).await.map(Some);
        }
        let heard = self.listen(&mut connection, (&mut head, arrived), until, served, each).await?;
        // A server that closes connections cannot reuse them.
        if head.reusable
            && self.closed.get() < MAX_CLOSED
            && head.body.is_done()
            && self.idle.borrow().len() < MAX_IDLE
        {
            self.idle.borrow_mut().push(connection);
        }
        Ok(heard)
    }

    async fn open(&self, until: Instant, served: &mut Served) -> Result<Connection, HttpError> {
        let (connection, connecting) = Connection::open(&self.endpoint, &self.tls, until).await?;
        served.connecting = Some(connecting);
        Ok(connection)
    }

    async fn ask(
        &self,
        connection: &mut Connection,
        request: &[u8],
        until: Instant,
        served: &mut Served,
    ) -> Result<(Head, Stamp), HttpError> {
        let begin = self.clock.now();
        connection.send(request, until).await?;
        let sent = self.clock.now();
        served.send_ns = sent.since(begin).as_nanos() as u64;
        let head = connection.head(until).await?;
        let arrived = self.arrived(connection, sent);
        served.head_ns = Some(arrived.since(sent).as_nanos() as u64);
        Ok((head, arrived))
    }

    /// The arrival time of the last read: not before `earliest`, whatever the wall clock shows.
    fn arrived(&self, connection: &Connection, earliest: Stamp) -> Stamp {
        // In this order: an interruption between the two makes the arrival late, never too early.
        let ago = connection.arrived_ago();
        (self.clock.now() - ago).max(earliest)
    }

    async fn refused(
        &self,
        mut connection: Connection,
        mut head: Head,
        until: Instant,
    ) -> Result<(RequestFailure, String), HttpError> {
        if (300..400).contains(&head.status) {
            let to = head.location.unwrap_or_default();
            return Ok((RequestFailure::Redirect(head.status), format!("HTTP {} to {to}", head.status)));
        }
        let body = connection.read_all(&mut head.body, MAX_MESSAGE_BYTES, until).await.unwrap_or_default();
        let text = match serde_json::from_slice::<serde_json::Value>(&body) {
            Ok(json) => error_text(json.get("error").unwrap_or(&json)),
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        };
        let retry = head.retry_after.map(|after| format!(" (retry after {after})")).unwrap_or_default();
        Ok((RequestFailure::Status(head.status), format!("HTTP {}{retry}: {text}", head.status)))
    }

    async fn listen(
        &self,
        connection: &mut Connection,
        (head, mut t): (&mut Head, Stamp),
        until: Instant,
        served: &mut Served,
        each: &mut dyn FnMut(Stamp, Arrived<'_>),
    ) -> Result<Option<(RequestFailure, String)>, HttpError> {
        let (mut events, mut heard, mut part) = (Events::default(), StreamContent::default(), Vec::new());
        let mut document = Vec::new();
        let mut limit = until;
        let ended = loop {
            part.clear();
            match connection.read_body(&mut head.body, &mut part, limit).await {
                Ok(true) => {
                    t = self.arrived(connection, t);
                    match head.is_stream {
                        true => events.feed(&part, &mut |data| heard.data(data, served)),
                        false if document.len() < MAX_DOCUMENT_BYTES => document.extend_from_slice(&part),
                        false => {}
                    }
                    heard.hand_on(t, served, each);
                    if heard.done && limit == until {
                        limit = until.min(Instant::now() + AFTER_DONE);
                    }
                }
                Ok(false) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        events.finish(&mut |data| heard.data(data, served));
        if !head.is_stream && ended.is_ok() {
            // The response of a server that does not stream.
            heard.data(&document, served);
        }
        heard.hand_on(t, served, each);
        served.chunks = heard.chunks;
        if let Some(failure) = heard.failure {
            return Ok(Some(failure));
        }
        match ended {
            // Errors after the announced end do not matter.
            Err(_) if heard.done => Ok(None),
            Err(error) => Err(error),
            Ok(()) if heard.chunks == 0 => {
                Ok(Some((RequestFailure::Empty, "the answer has no text".to_owned())))
            }
            // Without an end of the stream, a finish reason or a usage counts as the end.
            Ok(()) if !heard.done && !heard.finished && !head.reusable => {
                Err(HttpError::Closed(HttpStep::Body))
            }
            Ok(()) => Ok(None),
        }
    }
}

impl StreamContent {
    /// Several chunks of one read share one time.
    fn hand_on(&mut self, t: Stamp, served: &mut Served, each: &mut dyn FnMut(Stamp, Arrived<'_>)) {
        let arrived = std::mem::take(&mut self.arrived);
        if arrived == 0 {
            return;
        }
        served.together += arrived - 1;
        let tokens = self.tokens.take().unwrap_or(0).max(self.chunks);
        each(t, Arrived { last_token: tokens - 1, text: &self.text });
        self.text.clear();
    }

    fn data(&mut self, data: &[u8], served: &mut Served) {
        if self.done || self.failure.is_some() {
            return;
        }
        let chunk = match Data::read(data) {
            Data::Done => {
                self.done = true;
                return;
            }
            Data::Garbage => {
                // It is cut to a line after the key is removed from it: a part of the key would not be recognised.
                let text = String::from_utf8_lossy(&data[..data.len().min(MAX_MESSAGE_BYTES)]).into_owned();
                self.failure = Some((RequestFailure::Garbage, format!("not JSON: {text}")));
                return;
            }
            Data::Chunk(chunk) => chunk,
        };
        if let Some(error) = chunk.error {
            self.failure = Some((RequestFailure::ServerError, error));
            return;
        }
        if let Some(usage) = chunk.usage {
            served.prompt_tokens = Some(usage.prompt_tokens);
            served.output_tokens = Some(usage.completion_tokens);
            served.cached_tokens = usage.cached_tokens;
        }
        served.server = chunk.server.unwrap_or(served.server);
        self.finished |= chunk.is_finished || chunk.usage.is_some();
        if chunk.has_content {
            self.chunks += 1;
            self.arrived += 1;
            self.text.push_str(&chunk.text);
            self.tokens = chunk.usage.map(|usage| usage.completion_tokens);
        }
    }
}

fn failure_of(error: &HttpError) -> RequestFailure {
    match error {
        HttpError::Timeout(step) => RequestFailure::Timeout(*step),
        HttpError::Io { step, .. } => RequestFailure::Broken(*step),
        HttpError::Closed(step) => RequestFailure::Closed(*step),
        HttpError::NotHttp(_) | HttpError::Body(BodyError::BrokenChunk) => RequestFailure::NotHttp,
        HttpError::Body(BodyError::Incomplete) => RequestFailure::Closed(HttpStep::Body),
    }
}
