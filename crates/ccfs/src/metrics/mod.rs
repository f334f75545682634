//! `ccfs metrics`: the status in Prometheus's text format, once or for whoever asks over a socket; there as a page for people, too.
mod page;

use crate::cli::MetricsArgs;
use crate::listen::Listen;
use crate::named;
use crate::volume;
use ccfs_command::{Context, Failure, Outcome, output, say};
use ccfs_fuse::show::prometheus;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest head of a request, bytes.
const HEAD_MAX: usize = 8192;
/// Until a request has to be there, and its answer taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests that are served at the same time.
const AT_ONCE_MAX: usize = 16;

pub fn run(args: &MetricsArgs) -> Outcome<()> {
    let text = metrics(&args.dir)?;
    match &args.listen {
        None => output::give(text.as_bytes()),
        Some(Listen::Tcp(address)) => {
            let listener = TcpListener::bind(address)
                .or_fail(1, format_args!("cannot listen on {address}"))?;
            let address = listener.local_addr().or_fail(1, "cannot listen")?;
            say!("listening on http://{address}/ and http://{address}/metrics");
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
    Ok(prometheus::text(&volume::status(dir)?))
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

/// What is answered to a request.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    fn text(status: &'static str, text: impl Into<String>) -> Answer {
        Answer {
            status,
            kind: "text/plain; version=0.0.4; charset=utf-8",
            body: text.into(),
        }
    }

    fn of<T>(asked: Outcome<T>, kind: &'static str, shown: impl FnOnce(T) -> String) -> Answer {
        match asked {
            Ok(found) => Answer {
                status: "200 OK",
                kind,
                body: shown(found),
            },
            Err(failure) => Answer::text("503 Service Unavailable", format!("{}\n", failure.text)),
        }
    }
}

/// One request of HTTP/1.x, one answer, and the end of the connection.
fn answer(mut socket: impl Read + Write, dir: &Path) -> io::Result<()> {
    let head = read_head(&mut socket)?;
    let Answer { status, kind, body } = answer_to(&head, dir);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nContent-Security-Policy: {}\r\n\
         X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        body.len(),
        page::POLICY,
    );
    socket.write_all(head.as_bytes())?;
    socket.write_all(body.as_bytes())?;
    socket.flush()
}

fn answer_to(head: &[u8], dir: &Path) -> Answer {
    let mut words = head.split(|b| *b == b' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    if method != Some(b"GET") {
        return Answer::text("405 Method Not Allowed", "only GET is known\n");
    }
    if path == b"/metrics" {
        let kind = Answer::text("", "").kind;
        return Answer::of(metrics(dir), kind, |text| text);
    }
    if !host(head).is_none_or(|host| page::is_this_machine(&host)) {
        return Answer::text(
            "403 Forbidden",
            "this page is for browsers of this machine\n",
        );
    }
    if path == b"/data.json" {
        let asked = volume::status(dir);
        return Answer::of(asked, "application/json", |status| {
            page::data(&status).to_string()
        });
    }
    match page::part(path) {
        Some((kind, text)) => Answer::of(Ok(text), kind, str::to_string),
        None => Answer::text("404 Not Found", "only / and /metrics are here\n"),
    }
}

/// The header `Host`.
fn host(head: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(head);
    text.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host")
            .then(|| value.trim().to_string())
    })
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
