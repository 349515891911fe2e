//! A small hub on the loopback interface, with faults on request.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    ops::Range,
    sync::{Arc, Mutex},
    thread,
};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the hub fails to serve a file.
#[derive(Clone, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// Every response ends after this many bytes.
    BreaksAfter(usize),
    /// Every response stops after this many bytes and leaves the connection open.
    StallsAfter(usize),
    /// Sends these bytes in place of the file.
    Sends(Vec<u8>),
    Status(u16),
    /// Redirects to `/cdn/` at this address, which can be empty for the hub itself.
    RedirectsTo(String),
    /// Always sends the file from its start. The first response ends early.
    IgnoresRanges,
}

#[derive(Clone)]
struct Served {
    content: Vec<u8>,
    large: bool,
    fault: Fault,
    request_count: usize,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Served>,
    /// The response to every request, in place of the repository.
    refusal: Option<(u16, String)>,
    /// Lists this many files on a page.
    page_size: Option<usize>,
    /// The server in the address of the next page.
    next_page_at: Option<String>,
    requests: Vec<String>,
}

/// A server of the model `org/tiny` that runs until the test ends.
pub struct TestHub {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl TestHub {
    pub fn start() -> TestHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let own = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&own);
                thread::spawn(move || answer(stream, &state));
            }
        });
        TestHub { address, state }
    }

    pub fn put(&self, path: &str, content: &[u8], large: bool, fault: Fault) {
        let served = Served { content: content.to_vec(), large, fault, request_count: 0 };
        self.state.lock().unwrap().files.insert(path.to_owned(), served);
    }

    pub fn refuse(&self, status: u16, body: &str) {
        self.state.lock().unwrap().refusal = Some((status, body.to_owned()));
    }

    pub fn list_in_pages(&self, page_size: usize) {
        self.state.lock().unwrap().page_size = Some(page_size);
    }

    pub fn continue_listings_at(&self, address: &str) {
        self.state.lock().unwrap().next_page_at = Some(address.to_owned());
    }

    /// The first line of each request, with its range and authorization.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }
}

fn answer(stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(&stream);
    let mut first = String::new();
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    let (mut range, mut summary) = (None, first.trim().to_owned());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.trim().split_once(": ").unwrap_or_default();
        match name.to_lowercase().as_str() {
            "range" => {
                range = value.strip_prefix("bytes=").and_then(|v| v.split('-').next()?.parse::<usize>().ok());
                summary += &format!(" range={value}");
            }
            "authorization" => summary += &format!(" authorization={value}"),
            _ => {}
        }
    }
    state.lock().unwrap().requests.push(summary);
    let mut words = first.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let target = target.replace("%20", " ");
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let out = &stream;
    if let Some((status, body)) = state.lock().unwrap().refusal.clone() {
        return send(out, method, status, &[], body.as_bytes());
    }
    if path == "/api/models/org/tiny/revision/main" {
        let body = format!(r#"{{"id":"org/tiny","sha":"{COMMIT}"}}"#);
        return send(out, method, 200, &[], body.as_bytes());
    }
    if path == format!("/api/models/org/tiny/tree/{COMMIT}") {
        let state = state.lock().unwrap();
        let (page_size, start) = (state.page_size.unwrap_or(usize::MAX), query.split_once("start="));
        let start: usize = start.map_or(0, |(_, start)| start.parse().unwrap());
        let end = start.saturating_add(page_size).min(state.files.len());
        let body = listing(&state.files, start..end);
        let server = state.next_page_at.as_deref().unwrap_or("http://elsewhere.example");
        let link = format!("<{server}{path}?recursive=true&start={end}>; rel=\"next\"");
        let headers = [("Link", &link[..])];
        let headers = if end < state.files.len() { &headers[..] } else { &[] };
        return send(out, method, 200, headers, body.as_bytes());
    }
    let prefix = format!("/org/tiny/resolve/{COMMIT}/");
    let Some(name) = path.strip_prefix(&prefix).or_else(|| path.strip_prefix("/cdn/")) else {
        return send(out, method, 404, &[], b"no such thing");
    };
    let served = {
        let mut state = state.lock().unwrap();
        state.files.get_mut(name).map(|served| {
            served.request_count += usize::from(method == "GET");
            served.clone()
        })
    };
    let Some(served) = served else { return send(out, method, 404, &[], b"no such file") };
    let content = match &served.fault {
        Fault::Sends(bytes) => bytes.clone(),
        _ => served.content.clone(),
    };
    match &served.fault {
        Fault::Status(status) => return send(out, method, *status, &[], b"refused"),
        Fault::RedirectsTo(address) if !path.starts_with("/cdn/") => {
            return send(out, method, 302, &[("Location", &format!("{address}/cdn/{name}"))], b"");
        }
        Fault::IgnoresRanges => range = None,
        _ => {}
    }
    let start = range.unwrap_or(0);
    if start > 0 && start >= content.len() {
        return send(out, method, 416, &[], b"");
    }
    let body = &content[start..];
    let status = if range.is_some() { 206 } else { 200 };
    let cut = match served.fault {
        Fault::BreaksAfter(n) | Fault::StallsAfter(n) => n.min(body.len()),
        Fault::IgnoresRanges if served.request_count == 1 => body.len() / 2,
        _ => body.len(),
    };
    send_cut(out, method, status, &[("X-Repo-Commit", COMMIT), ("ETag", "\"x\"")], body, cut);
    if matches!(served.fault, Fault::StallsAfter(_)) {
        // Ends when the client closes the connection.
        let _ = reader.read_line(&mut String::new());
    }
}

fn listing(files: &HashMap<String, Served>, page: Range<usize>) -> String {
    let entry = |(path, served): (&String, &Served)| {
        let size = served.content.len();
        let sha256 = sha256(&served.content);
        match served.large {
            false => format!(
                r#"{{"type":"file","oid":"{}","size":{size},"path":"{path}"}}"#,
                git_blob(&served.content)
            ),
            true => {
                let pointer =
                    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n");
                format!(
                    r#"{{"type":"file","oid":"{}","size":{size},"path":"{path}","lfs":{{"oid":"{sha256}","size":{size},"pointerSize":{}}}}}"#,
                    git_blob(pointer.as_bytes()),
                    pointer.len()
                )
            }
        }
    };
    let mut entries: Vec<String> = files.iter().map(entry).collect();
    entries.sort();
    format!("[{}]", entries[page].join(","))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn sha256(content: &[u8]) -> String {
    use sha2::Digest;
    hex(&sha2::Sha256::digest(content))
}

pub fn git_blob(content: &[u8]) -> String {
    use sha1::Digest;
    let mut text = format!("blob {}\0", content.len()).into_bytes();
    text.extend_from_slice(content);
    hex(&sha1::Sha1::digest(&text))
}

fn send(out: &TcpStream, method: &str, status: u16, headers: &[(&str, &str)], body: &[u8]) {
    send_cut(out, method, status, headers, body, body.len());
}

/// Sends the first `cut` bytes of `body`. The client can close the connection before that.
fn send_cut(
    mut out: &TcpStream,
    method: &str,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
    cut: usize,
) {
    let mut head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let _ = out.write_all(format!("{head}\r\n").as_bytes());
    if method != "HEAD" {
        let _ = out.write_all(&body[..cut]);
    }
    let _ = out.flush();
}
