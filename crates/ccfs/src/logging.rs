//! Where messages go: stderr in the foreground; a file, or the system log (/dev/log, which journald serves too), for the
//! daemon. Until the mount is ready the daemon's messages go to the user's terminal as well.
use crate::options::open_file;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// What RUST_LOG's syntax says in `CCFS_LOG`; without it, warnings and errors.
const VARIABLE: &str = "CCFS_LOG";

/// The socket of the system log, where it is not the usual one (containers, tests).
const SOCKET_VARIABLE: &str = "CCFS_LOG_SOCKET";
const SOCKET: &str = "/dev/log";

/// True while somebody at a terminal waits for the mount.
static WATCHED: AtomicBool = AtomicBool::new(false);

#[derive(Clone)]
enum Sink {
    Terminal,
    File(Arc<Mutex<File>>),
    System,
}

/// Messages to stderr.
pub fn to_terminal() {
    install(Sink::Terminal);
}

/// Messages of the daemon: to `file`, else to the system log.
///
/// Errors: `file` cannot be opened for appending, or is a pipe or the like.
pub fn of_daemon(file: Option<&Path>) -> io::Result<()> {
    let sink = match file {
        Some(path) => {
            let file = open_file(path, OpenOptions::new().create(true).append(true))?;
            Sink::File(Arc::new(Mutex::new(file)))
        }
        None => Sink::System,
    };
    WATCHED.store(true, Ordering::Relaxed);
    install(sink);
    Ok(())
}

/// Nobody looks at stderr any more.
pub fn detached() {
    WATCHED.store(false, Ordering::Relaxed);
}

fn install(sink: Sink) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new("warn"));
    let format = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(false);
    let started = match &sink {
        Sink::File(_) => format.with_writer(Maker(sink)).try_init(),
        // The system log and a terminal know the time.
        _ => format
            .without_time()
            .with_level(false)
            .with_writer(Maker(sink))
            .try_init(),
    };
    // Only a second call fails, and then messages have their place already.
    let _ = started;
    // A bug must leave a trace also where stderr is gone.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("internal error: {info}");
        usual(info);
    }));
}

struct Maker(Sink);

impl<'a> MakeWriter<'a> for Maker {
    type Writer = Line;
    fn make_writer(&'a self) -> Line {
        Line {
            sink: self.0.clone(),
            level: Level::INFO,
            text: Vec::new(),
        }
    }
    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line {
            sink: self.0.clone(),
            level: *meta.level(),
            text: Vec::new(),
        }
    }
}

/// Collects one message and sends it when it is complete.
struct Line {
    sink: Sink,
    level: Level,
    text: Vec<u8>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.text.is_empty() {
            return;
        }
        // A message that cannot be delivered is dropped: there is nobody to tell.
        match &self.sink {
            Sink::Terminal => self.to_stderr(),
            Sink::File(file) => {
                if let Ok(mut file) = file.lock() {
                    let _ = file.write_all(&self.text);
                }
            }
            Sink::System => self.to_system_log(),
        }
        if WATCHED.load(Ordering::Relaxed) {
            self.to_stderr();
        }
    }
}

impl Line {
    fn to_stderr(&self) {
        let mut message = b"ccfs: ".to_vec();
        message.extend_from_slice(&self.text);
        let _ = io::stderr().write_all(&message);
    }

    /// RFC 3164 as syslog(3) sends it: facility daemon.
    fn to_system_log(&self) {
        let severity = match self.level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let mut message =
            format!("<{}>ccfs[{}]: ", 3 * 8 + severity, std::process::id()).into_bytes();
        message.extend_from_slice(self.text.trim_ascii_end());
        if let Ok(socket) = UnixDatagram::unbound()
            && socket.set_nonblocking(true).is_ok()
        {
            let path = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.into());
            let _ = socket.send_to(&message, path);
        }
    }
}
