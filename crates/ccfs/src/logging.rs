//! Where messages go: stderr in the foreground; a file, or the system log (/dev/log, which journald serves too), for the
//! daemon, or the kernel's log where there is none. Until the mount is ready the daemon's messages go to the user's
//! terminal as well. The last ones of a mount are kept for `status`, wherever they go.
//!
//! Messages of the target `life` are told unless somebody wants less: mounts, unmounts, recoveries. They are for the log,
//! not for who waits at a terminal for the mount.
use crate::named::{self, For};
use ccfs_fuse::show::Messages;
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// What RUST_LOG's syntax says in `CCFS_LOG`; without it, warnings and errors, and of a mount its life.
const VARIABLE: &str = "CCFS_LOG";
const LIFE: &str = "life";
const OF_COMMANDS: &str = "warn";
const OF_MOUNTS: &str = "warn,life=info";

/// The socket of the system log, where it is not the usual one (containers, tests).
const SOCKET_VARIABLE: &str = "CCFS_LOG_SOCKET";
const SOCKET: &str = "/dev/log";
/// The same for the kernel's log.
const KERNEL_VARIABLE: &str = "CCFS_LOG_KMSG";
const KERNEL: &str = "/dev/kmsg";
/// The kernel refuses longer lines, bytes.
const KERNEL_LINE_MAX: usize = 960;

/// True while somebody at a terminal waits for the mount.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Where the last message of the daemon went that was for the system log: the number of a [`Way`].
static WAY: AtomicU8 = AtomicU8::new(Way::System as u8);
static KEPT: LazyLock<Arc<Messages>> = LazyLock::new(Arc::default);

/// Ways of a message for the system log, in the order in which they are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    System,
    Kernel,
    Nowhere,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::System => "the system log",
            Way::Kernel => "the kernel's log",
            Way::Nowhere => "nowhere else",
        }
    }
}

#[derive(Clone)]
enum Sink {
    Terminal,
    File(Arc<Mutex<File>>),
    System,
}

/// Messages of a mount in the foreground, to stderr.
pub fn to_terminal() {
    KEPT.go_to("stderr");
    install(Sink::Terminal, OF_MOUNTS);
}

/// Warnings and errors of a command that opens a volume in process, to stderr.
pub fn of_command() {
    install(Sink::Terminal, OF_COMMANDS);
}

/// The last messages of a mount.
pub fn kept() -> Arc<Messages> {
    KEPT.clone()
}

/// Messages of the daemon: to `file`, else to the system log.
///
/// Errors: `file` cannot be opened for appending, is a pipe or the like, or others can lead to another file.
pub fn of_daemon(file: Option<&Path>) -> io::Result<()> {
    let sink = match file {
        Some(path) => {
            let file = named::open(path, For::Appending)?;
            KEPT.go_to(&path.display().to_string());
            Sink::File(Arc::new(Mutex::new(file)))
        }
        None => {
            go(probe());
            Sink::System
        }
    };
    WATCHED.store(true, Ordering::Relaxed);
    install(sink, OF_MOUNTS);
    Ok(())
}

/// The mount is about to be ready: says where messages go, where that is not the usual place.
pub fn say_where() {
    let socket = or_usual(SOCKET_VARIABLE, SOCKET);
    match WAY.load(Ordering::Relaxed) {
        n if n == Way::Kernel as u8 => tracing::warn!(
            "there is no system log at {}: messages go to the kernel's log (dmesg), and `ccfs status` shows the last ones",
            socket.display()
        ),
        n if n == Way::Nowhere as u8 => tracing::warn!(
            "there is no system log at {}, nor the kernel's: only `ccfs status` shows the last messages; the option log=FILE keeps all",
            socket.display()
        ),
        _ => {}
    }
}

/// Which way a message would go now.
fn probe() -> Way {
    let socket = UnixDatagram::unbound().and_then(|s| s.connect(or_usual(SOCKET_VARIABLE, SOCKET)));
    match (socket, open_kernel_log()) {
        (Ok(()), _) => Way::System,
        (_, Ok(_)) => Way::Kernel,
        _ => Way::Nowhere,
    }
}

fn go(way: Way) {
    WAY.store(way as u8, Ordering::Relaxed);
    KEPT.go_to(way.name());
}

fn or_usual(variable: &str, usual: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| usual.into(), Into::into)
}

fn open_kernel_log() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .append(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    options.open(or_usual(KERNEL_VARIABLE, KERNEL))
}

/// What of it has a name: the sockets and files that messages may go to.
pub fn ways() -> [PathBuf; 2] {
    [
        or_usual(SOCKET_VARIABLE, SOCKET),
        or_usual(KERNEL_VARIABLE, KERNEL),
    ]
}

/// Nobody looks at stderr any more.
pub fn detached() {
    WATCHED.store(false, Ordering::Relaxed);
}

fn install(sink: Sink, usual: &str) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual));
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
            for_log: false,
            text: Vec::new(),
        }
    }
    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line {
            sink: self.0.clone(),
            level: *meta.level(),
            for_log: meta.target() == LIFE,
            text: Vec::new(),
        }
    }
}

/// Collects one message and sends it when it is complete.
struct Line {
    sink: Sink,
    level: Level,
    /// Not for who waits for the mount.
    for_log: bool,
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
        let text = String::from_utf8_lossy(&self.text);
        if let Cow::Owned(plain) = ccfs_device::without_numbers(&text) {
            self.text = plain.into_bytes();
        }
        // A message that cannot be delivered is dropped: there is nobody to tell.
        match &self.sink {
            Sink::Terminal => self.to_stderr(),
            Sink::File(file) => {
                if let Ok(mut file) = file.lock() {
                    let _ = file.write_all(&self.text);
                }
            }
            Sink::System => go(self.to_system_log()),
        }
        KEPT.keep(self.level_name(), self.plain().trim_end());
        if WATCHED.load(Ordering::Relaxed) && !self.for_log {
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

    /// The text alone: lines of a file begin with time and level.
    fn plain(&self) -> Cow<'_, str> {
        let text = String::from_utf8_lossy(&self.text);
        match self.sink {
            Sink::File(_) => match text.split_once(&format!("{} ", self.level)) {
                Some((_, rest)) => rest.to_string().into(),
                None => text,
            },
            _ => text,
        }
    }

    fn level_name(&self) -> &'static str {
        match self.level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        }
    }

    /// RFC 3164 as syslog(3) sends it: facility daemon. The socket is looked up each time: who serves it may begin anew.
    /// Where there is none, the kernel's log takes the same form.
    fn to_system_log(&self) -> Way {
        let severity = match self.level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let mut message =
            format!("<{}>ccfs[{}]: ", 3 * 8 + severity, std::process::id()).into_bytes();
        message.extend_from_slice(self.text.trim_ascii_end());
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(&message, or_usual(SOCKET_VARIABLE, SOCKET))
        });
        match sent {
            Ok(_) => return Way::System,
            // It is there, and does not keep up.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Way::System,
            Err(_) => {}
        }
        message.truncate(KERNEL_LINE_MAX);
        message
            .iter_mut()
            .filter(|b| **b == b'\n')
            .for_each(|b| *b = b' ');
        message.push(b'\n');
        // One write is one record.
        match open_kernel_log().and_then(|mut log| log.write(&message)) {
            Ok(_) => Way::Kernel,
            Err(_) => Way::Nowhere,
        }
    }
}
