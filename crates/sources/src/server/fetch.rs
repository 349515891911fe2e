//! One document of a server outside of a load test: a status and a complete body, or an error if it is too large.

use std::{io, time::Duration};

use thiserror::Error;
use tokio::time::Instant;

use super::{
    endpoint::Endpoint,
    http::{Connection, HttpError, authorized_request},
    login::Login,
    tls::Tls,
};
use llmprof_base::gz;

#[derive(Debug, Error)]
pub enum FetchError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the answer is larger than {} MB", .0 / 1_000_000)]
    TooLarge(usize),
    #[error("the answer cannot be decompressed: {0}")]
    Gzip(io::Error),
}

/// A decompressed response.
#[derive(Debug)]
pub struct Fetched {
    pub status: u16,
    /// The target of a redirect, which is not followed.
    pub location: Option<String>,
    pub body: Vec<u8>,
}

/// Requests `path` once. A body of more than `limit` bytes is an error.
pub async fn fetch(
    endpoint: &Endpoint,
    path: &str,
    login: Option<&Login>,
    tls: &Tls,
    limit: usize,
    time: Duration,
) -> Result<Fetched, FetchError> {
    let until = Instant::now() + time;
    let (mut connection, _) = Connection::open(endpoint, tls, until).await?;
    let authorization = login.map(Login::header);
    let request = authorized_request("GET", endpoint, path, authorization.as_deref(), None, false);
    connection.send(&request, until).await?;
    let mut head = connection.head(until).await?;
    let mut body = Vec::new();
    while connection.read_body(&mut head.body, &mut body, until).await? {
        if body.len() > limit {
            return Err(FetchError::TooLarge(limit));
        }
    }
    if body.starts_with(&gz::SIGNATURE) {
        body = decompressed(&body, limit)?;
    }
    Ok(Fetched { status: head.status, location: head.location, body })
}

fn decompressed(body: &[u8], limit: usize) -> Result<Vec<u8>, FetchError> {
    use io::Read;
    let mut out = Vec::new();
    gz::decompressed(body).take(limit as u64 + 1).read_to_end(&mut out).map_err(FetchError::Gzip)?;
    if out.len() > limit { Err(FetchError::TooLarge(limit)) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_too_large_is_refused() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = Endpoint::read(&listener.local_addr().unwrap().to_string()).unwrap();
        let serve = async {
            for body in ["x".repeat(1000), "x".repeat(1001)] {
                let (mut client, _) = listener.accept().await.unwrap();
                let _ = client.read(&mut [0; 1024]).await.unwrap();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                client.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let ask = async {
            let tls = Tls::new(&[]).unwrap();
            let get = || fetch(&endpoint, "/", None, &tls, 1000, Duration::from_secs(60));
            assert_eq!(get().await.unwrap().body.len(), 1000);
            assert!(matches!(get().await, Err(FetchError::TooLarge(1000))));
        };
        tokio::join!(serve, ask);
    }

    #[test]
    fn logins_are_headers_and_never_shown() {
        let basic = Login::Basic { user: "Aladdin".into(), password: "open sesame".into() };
        // The example of RFC 7617.
        assert_eq!(basic.header(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(format!("{basic:?}"), "Login(…)");
        assert_eq!(Login::bearer(" abc.def\n").unwrap().header(), "Bearer abc.def");
        assert_eq!(Login::bearer("a\r\nX: 1"), None);
        assert_eq!(Login::bearer("\n"), None);
    }
}
