//! A small hub on loopback, with the faults a test asks for.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with a file.
#[derive(Clone, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// The connection breaks after so many bytes, each time.
    BreaksAfter(usize),
    /// These bytes come instead.
    Sends(Vec<u8>),
    Status(u16),
    /// The file is elsewhere.
    RedirectsTo(String),
    /// Ranges are not understood: all of it comes always, and the first answer breaks off.
    KnowsNoRange,
}

#[derive(Clone)]
struct Served {
    content: Vec<u8>,
    large: bool,
    fault: Fault,
    asked: usize,
}

#[derive(Default)]
struct Shelf {
    files: HashMap<String, Served>,
    /// Answer for the repository itself, if it is not there.
    refusal: Option<(u16, String)>,
    requests: Vec<String>,
}

/// Serves the model `org/tiny` until the test ends.
pub struct TestHub {
    pub address: String,
    shelf: Arc<Mutex<Shelf>>,
}

impl TestHub {
    pub fn start() -> TestHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        let own = Arc::clone(&shelf);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shelf = Arc::clone(&own);
                thread::spawn(move || answer(stream, &shelf));
            }
        });
        TestHub { address, shelf }
    }

    pub fn put(&self, path: &str, content: &[u8], large: bool, fault: Fault) {
        let served = Served { content: content.to_vec(), large, fault, asked: 0 };
        self.shelf.lock().unwrap().files.insert(path.to_owned(), served);
    }

    pub fn refuse(&self, status: u16, body: &str) {
        self.shelf.lock().unwrap().refusal = Some((status, body.to_owned()));
    }

    /// The first line of each request, and those headers that matter.
    pub fn requests(&self) -> Vec<String> {
        self.shelf.lock().unwrap().requests.clone()
    }
}

fn answer(stream: TcpStream, shelf: &Mutex<Shelf>) {
    let mut reader = BufReader::new(&stream);
    let mut first = String::new();
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return;
    }
    let (mut range, mut noted) = (None, first.trim().to_owned());
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        let (name, value) = line.trim().split_once(": ").unwrap_or_default();
        match name.to_lowercase().as_str() {
            "range" => {
                range = value.strip_prefix("bytes=").and_then(|v| v.split('-').next()?.parse::<usize>().ok());
                noted += &format!(" range={value}");
            }
            "authorization" => noted += &format!(" authorization={value}"),
            _ => {}
        }
    }
    shelf.lock().unwrap().requests.push(noted);
    let mut words = first.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = path.split('?').next().unwrap_or(path);
    let out = &stream;
    if let Some((status, body)) = shelf.lock().unwrap().refusal.clone() {
        return send(out, method, status, &[], body.as_bytes());
    }
    if path == "/api/models/org/tiny/revision/main" {
        let body = format!(r#"{{"id":"org/tiny","sha":"{COMMIT}"}}"#);
        return send(out, method, 200, &[], body.as_bytes());
    }
    if path == format!("/api/models/org/tiny/tree/{COMMIT}") {
        let body = listing(&shelf.lock().unwrap().files);
        return send(out, method, 200, &[], body.as_bytes());
    }
    let prefix = format!("/org/tiny/resolve/{COMMIT}/");
    let Some(name) = path.strip_prefix(&prefix).or_else(|| path.strip_prefix("/cdn/")) else {
        return send(out, method, 404, &[], b"no such thing");
    };
    let served = {
        let mut shelf = shelf.lock().unwrap();
        shelf.files.get_mut(name).map(|served| {
            served.asked += usize::from(method == "GET");
            served.clone()
        })
    };
    let Some(served) = served else { return send(out, method, 404, &[], b"no such file") };
    let whole = match &served.fault {
        Fault::Sends(bytes) => bytes.clone(),
        _ => served.content.clone(),
    };
    match &served.fault {
        Fault::Status(status) => return send(out, method, *status, &[], b"refused"),
        Fault::RedirectsTo(place) => {
            return send(out, method, 302, &[("Location", &format!("{place}/cdn/{name}"))], b"");
        }
        Fault::KnowsNoRange => range = None,
        _ => {}
    }
    let start = range.unwrap_or(0);
    if start > 0 && start >= whole.len() {
        return send(out, method, 416, &[], b"");
    }
    let body = &whole[start..];
    let status = if range.is_some() { 206 } else { 200 };
    let cut = match served.fault {
        Fault::BreaksAfter(n) => n.min(body.len()),
        Fault::KnowsNoRange if served.asked == 1 => body.len() / 2,
        _ => body.len(),
    };
    send_cut(out, method, status, &[("X-Repo-Commit", COMMIT), ("ETag", "\"x\"")], body, cut);
}

fn listing(files: &HashMap<String, Served>) -> String {
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
    format!("[{}]", files.iter().map(entry).collect::<Vec<_>>().join(","))
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

/// A client that has gone is of no concern to a server.
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
