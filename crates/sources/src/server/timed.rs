//! A connection that knows when the kernel received the last read bytes, so that its times exclude the client's own
//! delay.

use std::{
    io::{self, IoSliceMut},
    os::fd::AsRawFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use nix::{
    cmsg_space,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
        time::TimeSpec,
    },
};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};

/// When the last bytes arrived, by the wall clock in ns; 0 if the kernel does not report it.
#[derive(Debug, Clone, Default)]
pub struct Arrival(Arc<AtomicU64>);

impl Arrival {
    /// The time since then. If the wall clock was set meanwhile, it is unknown.
    pub fn ago(&self) -> Duration {
        self.before(SystemTime::now())
    }

    fn before(&self, now: SystemTime) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            ns => now.duration_since(SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)).unwrap_or_default(),
        }
    }
}

pub struct TimedStream {
    tcp: TcpStream,
    arrival: Arrival,
    /// Room for the time stamp.
    control: Vec<u8>,
}

impl TimedStream {
    pub fn new(tcp: TcpStream) -> TimedStream {
        // Without it, times are those of the reads.
        let _ = setsockopt(&tcp, sockopt::ReceiveTimestampns, &true);
        TimedStream { tcp, arrival: Arrival::default(), control: cmsg_space!(TimeSpec) }
    }

    pub fn arrival(&self) -> Arrival {
        self.arrival.clone()
    }
}

/// Reads the available bytes. The time is missing at the end of a stream.
#[expect(clippy::ptr_arg, reason = "recvmsg sets its length")]
fn receive(tcp: &TcpStream, out: &mut [u8], control: &mut Vec<u8>) -> io::Result<(usize, Option<TimeSpec>)> {
    let mut parts = [IoSliceMut::new(out)];
    let message = recvmsg::<()>(tcp.as_raw_fd(), &mut parts, Some(control), MsgFlags::MSG_DONTWAIT)?;
    let stamp = message.cmsgs().ok().into_iter().flatten().find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(time) => Some(time),
        _ => None,
    });
    Ok((message.bytes, stamp))
}

impl AsyncRead for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let TimedStream { tcp, arrival, control } = self.get_mut();
        loop {
            ready!(tcp.poll_read_ready(cx))?;
            let out = buf.initialize_unfilled();
            let mut received = None;
            let result = tcp.try_io(Interest::READABLE, || {
                let (bytes, stamp) = receive(tcp, out, control)?;
                received = Some((bytes, stamp));
                // Fewer bytes than requested: the next read would find nothing, and is not tried.
                if 0 < bytes && bytes < out.len() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (received, result) {
                (Some((bytes, stamp)), _) => {
                    let ns =
                        stamp.map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64);
                    arrival.0.store(ns, Ordering::Relaxed);
                    buf.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                (None, Err(e)) if e.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(e)),
                (None, _) => {}
            }
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_was_read_late_arrived_when_it_was_sent() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut other, _) = listener.accept().await.unwrap();
        let mut stream = TimedStream::new(tcp);
        let mut bytes = [0; 16];
        let unix_ns = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
        // The kernel begins to stamp a moment after the first socket has requested it; until then it gives no times, or
        // those of reading.
        let (mut sent_ns, mut read_ns, mut arrived_ns) = (0, 0, u64::MAX);
        for _ in 0..1000 {
            other.write_all(b"early").await.unwrap();
            let sent = Instant::now();
            sent_ns = unix_ns();
            tokio::time::sleep(Duration::from_millis(20)).await;
            read_ns = unix_ns();
            let was_set =
                read_ns.saturating_sub(sent_ns).abs_diff(sent.elapsed().as_nanos() as u64) > 1_000_000;
            assert_eq!(stream.read(&mut bytes).await.unwrap(), 5);
            arrived_ns = stream.arrival().0.load(Ordering::Relaxed);
            // The wall clock of a machine may be set at any moment.
            if (1..read_ns).contains(&arrived_ns) && !was_set {
                break;
            }
        }
        assert!(arrived_ns <= sent_ns && sent_ns < read_ns, "{arrived_ns} {sent_ns} {read_ns}");
        let read = SystemTime::UNIX_EPOCH + Duration::from_nanos(read_ns);
        assert!(stream.arrival().before(read) >= Duration::from_nanos(read_ns - sent_ns));
        assert_eq!(stream.arrival().before(SystemTime::UNIX_EPOCH), Duration::ZERO, "the clock was set back");
        other.write_all(b"more").await.unwrap();
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 4);
        assert!(stream.arrival().0.load(Ordering::Relaxed) > 0);
        drop(other);
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 0);
    }
}
