//! `ccfs metrics`: the status in Prometheus's text format, once or for whoever asks over a socket.
use crate::cli::MetricsArgs;
use crate::named;
use crate::stream;
use ccfs_command::{Context, Failure, Outcome, output, say};
use ccfs_fuse::show::prometheus;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest head of a request, bytes.
const HEAD_MAX: usize = 8192;
/// Until a request has to be there, and its answer taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests that are served at the same time.
const AT_ONCE_MAX: usize = 16;

/// Where to listen: nowhere but on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Parses the value of `--listen`.
pub fn parse_listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err("give the socket's path behind unix:".into())
        } else {
            Ok(Listen::Unix(path.into()))
        };
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Listen::Tcp(address)),
        Ok(address) => Err(format!(
            "{} can be reached from outside; give a loopback address (127.0.0.1:PORT, [::1]:PORT) or unix:PATH",
            address.ip()
        )),
        Err(_) => Err("give unix:PATH, 127.0.0.1:PORT or [::1]:PORT".into()),
    }
}

pub fn run(args: &MetricsArgs) -> Outcome<()> {
    let text = metrics(&args.dir)?;
    match &args.listen {
        None => output::give(text.as_bytes()),
        Some(Listen::Tcp(address)) => {
            let listener = TcpListener::bind(address)
                .or_fail(1, format_args!("cannot listen on {address}"))?;
            let address = listener.local_addr().or_fail(1, "cannot listen")?;
            say!("listening on http://{address}/metrics");
            serve(&args.dir, || {
                let (socket, _) = listener.accept()?;
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(socket)
            })
        }
        Some(Listen::Unix(path)) => {
            let listener = bind(path)?;
            say!("listening on unix:{}", path.display());
            serve(&args.dir, || {
                let (socket, _) = listener.accept()?;
                socket.set_read_timeout(Some(PATIENCE))?;
                socket.set_write_timeout(Some(PATIENCE))?;
                Ok(socket)
            })
        }
    }
}

fn metrics(dir: &Path) -> Outcome<String> {
    // Opened anew each time: a descriptor that stays would keep the volume from being unmounted.
    let at = stream::open(dir)?;
    let text = ccfs_client::status_json(&at).map_err(|e| stream::explain(dir, e))?;
    let status: Value = serde_json::from_str(&text).or_fail(1, "the daemon's answer is no JSON")?;
    Ok(prometheus::text(&status))
}

/// A socket that a killed one left is replaced; one that somebody serves is not.
fn bind(path: &Path) -> Outcome<UnixListener> {
    let what = format!("cannot listen on {}", path.display());
    let place = named::place(path).or_fail(1, &what)?;
    // Nobody leads it elsewhere meanwhile.
    let path = place.path(path);
    match UnixListener::bind(&path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
        other => return other.or_fail(1, what),
    }
    if !place.is_socket() {
        return Err(Failure::new(
            1,
            format!("{what}: something else has this name"),
        ));
    }
    if UnixStream::connect(&path).is_ok() {
        return Err(Failure::new(1, format!("{what}: it is in use")));
    }
    place.remove().or_fail(1, &what)?;
    UnixListener::bind(&path).or_fail(1, what)
}

fn serve<S: Read + Write + Send + 'static>(
    dir: &Path,
    accept: impl Fn() -> io::Result<S>,
) -> Outcome<()> {
    let busy = Arc::new(AtomicUsize::new(0));
    loop {
        let socket = match accept() {
            Ok(socket) => socket,
            // A client that gave up, or no descriptors for a moment.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        if busy.fetch_add(1, Ordering::AcqRel) >= AT_ONCE_MAX {
            busy.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (dir, busy) = (dir.to_path_buf(), busy.clone());
        std::thread::spawn(move || {
            // A client that went away is its own business.
            let _ = answer(socket, &dir);
            busy.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// One request of HTTP/1.x, one answer, and the end of the connection.
fn answer(mut socket: impl Read + Write, dir: &Path) -> io::Result<()> {
    let head = read_head(&mut socket)?;
    let mut words = head.split(|b| *b == b' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let target = target.split(|b| *b == b'?').next();
    let (status, body) = match (method, target) {
        (Some(b"GET"), Some(b"/metrics" | b"/")) => match metrics(dir) {
            Ok(text) => ("200 OK", text),
            Err(failure) => ("503 Service Unavailable", format!("{}\n", failure.text)),
        },
        (Some(b"GET"), _) => ("404 Not Found", "only /metrics is here\n".to_string()),
        _ => ("405 Method Not Allowed", "only GET is known\n".to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes())?;
    socket.write_all(body.as_bytes())?;
    socket.flush()
}

/// The request's first lines, up to the empty one.
fn read_head(socket: &mut impl Read) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let (mut head, mut part) = (Vec::new(), [0; 512]);
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = socket.read(&mut part)?;
        head.extend_from_slice(&part[..n]);
        if n == 0 || head.len() > HEAD_MAX || Instant::now() > end {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_this_machine_is_listened_on() {
        for good in ["127.0.0.1:9100", "127.8.9.1:0", "[::1]:9100"] {
            assert!(matches!(parse_listen(good), Ok(Listen::Tcp(_))), "{good}");
        }
        assert_eq!(
            parse_listen("unix:/run/m"),
            Ok(Listen::Unix("/run/m".into()))
        );
        for bad in [
            "0.0.0.0:9100",
            "[::]:9100",
            "192.168.1.1:9100",
            "[::ffff:127.0.0.1]:9100",
            "localhost:9100",
            "127.0.0.1",
            ":9100",
            "unix:",
            "",
        ] {
            assert!(parse_listen(bad).is_err(), "{bad}");
        }
    }
}
