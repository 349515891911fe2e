//! A server of known timing: the client's measurements minus that timing are the overhead of the client.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};

use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::LocalSet,
    time::{Instant, sleep_until},
};

const MAX_REQUEST_BYTES: usize = 4 << 20;

/// The times at which the chunks of a response are sent, from the end of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    pub ttft: Duration,
    pub itl: Duration,
    pub tokens_per_chunk: u32,
}

/// Runs on its own thread until it is dropped.
pub struct KnownServer {
    pub address: SocketAddr,
    /// The number of chunks sent.
    pub chunks: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KnownServer {
    pub fn start(timing: Timing) -> io::Result<KnownServer> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let chunks = Arc::new(AtomicU64::new(0));
        let sent = Arc::clone(&chunks);
        let thread = thread::Builder::new().name("llmprof-server".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = accept(listener, timing, sent) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(KnownServer { address, chunks, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for KnownServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, timing: Timing, sent: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let sent = Arc::clone(&sent);
        tokio::task::spawn_local(async move {
            let _ = serve(stream, timing, &sent).await;
        });
    }
}

#[derive(Deserialize)]
struct RequestBody {
    #[serde(default)]
    max_tokens: u32,
    #[serde(default)]
    messages: Option<serde::de::IgnoredAny>,
}

/// Serves the requests of one connection.
async fn serve(mut stream: TcpStream, timing: Timing, sent: &AtomicU64) -> io::Result<()> {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let (head, length, path) = loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&buffer) {
                Ok(httparse::Status::Complete(head)) => {
                    let length =
                        request.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
                    let length = length
                        .and_then(|h| std::str::from_utf8(h.value).ok()?.trim().parse().ok())
                        .unwrap_or(0usize);
                    break (head, length.min(MAX_REQUEST_BYTES), request.path.unwrap_or_default().to_owned());
                }
                Ok(httparse::Status::Partial) if buffer.len() < MAX_REQUEST_BYTES => {}
                _ => return Ok(()),
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        while buffer.len() < head + length {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let asked = Instant::now();
        let body: Vec<u8> = buffer.drain(..head + length).skip(head).collect();
        if path.ends_with("/v1/models") {
            let list = r#"{"object":"list","data":[{"id":"known","object":"model","owned_by":"llmprof"}]}"#;
            answer(&mut stream, "200 OK", list).await?;
        } else if let Ok(request) = serde_json::from_slice::<RequestBody>(&body) {
            stream_answer(&mut stream, &request, asked, timing, sent).await?;
        } else {
            answer(&mut stream, "404 Not Found", r#"{"error":{"message":"there is nothing here"}}"#).await?;
        }
    }
}

async fn answer(stream: &mut TcpStream, status: &str, body: &str) -> io::Result<()> {
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await
}

/// An event as a chunk of a response.
fn event(data: &str) -> String {
    let text = format!("data: {data}\n\n");
    format!("{:x}\r\n{text}\r\n", text.len())
}

async fn stream_answer(
    stream: &mut TcpStream,
    request: &RequestBody,
    asked: Instant,
    timing: Timing,
    sent: &AtomicU64,
) -> io::Result<()> {
    let tokens = request.max_tokens.max(1);
    let words = "word ".repeat(timing.tokens_per_chunk.max(1) as usize);
    let content = match request.messages {
        Some(_) => event(&format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{words}"}}}}]}}"#)),
        None => event(&format!(r#"{{"choices":[{{"index":0,"text":"{words}"}}]}}"#)),
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for n in 0..tokens.div_ceil(timing.tokens_per_chunk.max(1)) {
        sleep_until(asked + timing.ttft + timing.itl * n).await;
        stream.write_all(content.as_bytes()).await?;
        sent.fetch_add(1, Ordering::Relaxed);
    }
    let usage = event(&format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":16,"completion_tokens":{tokens},"total_tokens":{}}}}}"#,
        tokens + 16
    ));
    stream.write_all(format!("{usage}{}0\r\n\r\n", event("[DONE]")).as_bytes()).await
}
