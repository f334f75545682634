//! Recording: a program on a fresh file system over a virtual disk whose every request goes to a trace.
use crate::fs::{Kind, Mount};
use crate::recorder::Recorder;
use crate::trace::TraceWriter;
use crate::vdisk::VirtualDisk;
use crate::{Fail, run, sys};
use ccfs_device::Device;
use ccfs_disks::{MemoryDevice, Params, Timed};
use sha2::Digest;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where a recorded program finds the way to set marks: the name of a socket.
pub const MARK_ENV: &str = "CCFS_CRASH_MARK";
/// The root of the recorded file system.
const ROOT_ENV: &str = "CCFS_CRASH_ROOT";
/// Begins the texts of this crate's own marks.
pub const OWN: &str = "ccfs-crash ";
/// Longest time for the setup.
const SETUP_MAX: Duration = Duration::from_secs(3600);

/// What to record.
pub struct Config {
    pub fs: Kind,
    /// Of the virtual disk, bytes.
    pub size: u64,
    /// Shell commands that run in the root before the recording that counts.
    pub setup: Option<String>,
    pub output: PathBuf,
    pub command: Vec<OsString>,
    /// Longest time for the command.
    pub limit: Option<Duration>,
    /// Whether what the command prints goes to stderr: stdout is for the result.
    pub aside: bool,
    /// How long to go on recording after the command, before everything is synced.
    pub linger: Duration,
    /// The disk's timing; memory's if none.
    pub timing: Option<Params>,
    /// The program `ccfs`, for its mkfs.
    pub ccfs: PathBuf,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The command's exit code; 128 and more: a signal.
    pub code: i32,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub seconds: f64,
}

/// Records. The caller has made [`sys::private_mounts`] and [`sys::catch_signals`].
pub fn record(config: &Config) -> Result<Recorded, Fail> {
    if let Some(why) = config.fs.missing() {
        return Err(Fail::new(why));
    }
    let output = std::path::absolute(&config.output)
        .map_err(|e| Fail::new(format!("{}: {e}", config.output.display())))?;
    let cannot = |e: std::io::Error| Fail::new(format!("cannot write {}: {e}", output.display()));
    let trace = Arc::new(TraceWriter::create(&output).map_err(cannot)?);
    let scratch = scratch()?;
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(config.size));
    let medium = match &config.timing {
        Some(params) => Arc::new(Timed::new(memory, params.clone())),
        None => memory,
    };
    let device: Arc<dyn Device> = Arc::new(Recorder::new(medium, trace.clone()));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH);
    trace.mark(&format!(
        "{OWN}fs={} size={} clock={}",
        config.fs.name(),
        config.size,
        clock.unwrap_or_default().as_nanos()
    ));
    {
        let disk = VirtualDisk::attach(device.clone(), scratch.path())?;
        config.fs.make(disk.path(), &config.ccfs)?;
    }
    let mount = Mount::new(config.fs, device.clone(), scratch.path())?;
    if let Some(setup) = &config.setup {
        let ended = run::shell(setup, &mount.root, &[], scratch.path(), SETUP_MAX)?;
        if !ended.ok() {
            let how = match ended.code {
                Some(code) => format!("exit code {code}"),
                None => "ended by a signal".to_string(),
            };
            return Err(Fail::new(format!(
                "the setup failed ({how}): {}",
                ended.text.trim()
            )));
        }
    }
    mount.sync()?;
    let cannot_flush = |e: std::io::Error| Fail::new(format!("cannot flush: {e}"));
    device.flush().map_err(cannot_flush)?;
    trace.mark(&format!("{OWN}start"));
    let before = device.counters();
    let begun = Instant::now();
    let code = run_command(config, &mount.root, scratch.path(), &trace)?;
    trace.mark(&format!("{OWN}end code={code}"));
    let ended = Instant::now();
    while ended.elapsed() < config.linger {
        sys::interrupted()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    mount.sync()?;
    device.flush().map_err(cannot_flush)?;
    trace.mark(&format!("{OWN}synced"));
    trace.close().map_err(cannot)?;
    let after = device.counters();
    Ok(Recorded {
        code,
        writes: after.writes - before.writes,
        written_bytes: after.written_bytes - before.written_bytes,
        flushes: after.flushes - before.flushes,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// A directory for mount points, sockets and outputs.
pub fn scratch() -> Result<tempfile::TempDir, Fail> {
    tempfile::Builder::new()
        .prefix("ccfs-crash-")
        .tempdir()
        .map_err(|e| Fail::new(format!("cannot make a temporary directory: {e}")))
}

fn run_command(
    config: &Config,
    root: &Path,
    scratch: &Path,
    trace: &Arc<TraceWriter>,
) -> Result<i32, Fail> {
    let socket = scratch.join("mark");
    serve_marks(&socket, trace.clone())?;
    let Some((program, args)) = config.command.split_first() else {
        return Err(Fail::new("no command to record"));
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(root)
        .env(MARK_ENV, &socket)
        .env(
            ROOT_ENV,
            root.canonicalize().unwrap_or_else(|_| root.into()),
        )
        .env("CCFS", &config.ccfs);
    if config.aside {
        command.stdout(std::io::stderr());
    }
    let mut child = sys::tie(&mut command, false)
        .spawn()
        .map_err(|e| Fail::new(format!("cannot run {}: {e}", program.display())))?;
    let ended = run::wait(&mut child, config.limit);
    let status = match ended {
        Ok(Some(status)) => status,
        ended => {
            sys::terminate(child.id());
            let _ = run::wait(&mut child, Some(Duration::from_secs(2)));
            let _ = child.kill();
            let _ = child.wait();
            let late = || Fail::new(format!("{} did not end in time", program.display()));
            return Err(ended.err().unwrap_or_else(late));
        }
    };
    use std::os::unix::process::ExitStatusExt;
    Ok(status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Takes marks from programs, each answered when it is in the trace. The thread lives as long as the process.
fn serve_marks(socket: &Path, trace: Arc<TraceWriter>) -> Result<(), Fail> {
    let listener = UnixListener::bind(socket)
        .map_err(|e| Fail::new(format!("cannot listen on {}: {e}", socket.display())))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut text = String::new();
            if BufReader::new(&stream).read_line(&mut text).is_ok() {
                trace.mark(text.trim_end_matches('\n'));
                let _ = (&stream).write_all(b"ok\n");
            }
        }
    });
    Ok(())
}

/// `ccfs crash mark --file`: the mark tells which contents the file has now.
pub fn mark_file(path: &Path) -> Result<(), Fail> {
    let cannot = |e: std::io::Error| Fail::new(format!("cannot read {}: {e}", path.display()));
    let contents = std::fs::read(path).map_err(cannot)?;
    let whole = path.canonicalize().map_err(cannot)?;
    let root = std::env::var_os(ROOT_ENV).unwrap_or_default();
    let Ok(inside) = whole.strip_prefix(&root) else {
        return Err(Fail::new(format!(
            "{} is not on the file system that is recorded",
            path.display()
        )));
    };
    mark(&version_mark(&inside.display().to_string(), &contents))
}

/// How a mark names a file and its contents: `file SHA256 PATH`.
pub fn version_mark(path: &str, contents: &[u8]) -> String {
    format!("file {} {path}", version(contents))
}

/// SHA-256 of contents, as hexadecimal digits.
pub fn version(contents: &[u8]) -> String {
    let digest = sha2::Sha256::digest(contents);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// `ccfs crash mark`: sets a mark in the trace of the recorder that runs this process.
pub fn mark(text: &str) -> Result<(), Fail> {
    let Some(socket) = std::env::var_os(MARK_ENV) else {
        return Err(Fail::new(
            "not run by `ccfs crash record`: there is no trace to mark",
        ));
    };
    if text.contains('\n') || text.starts_with(OWN) {
        return Err(Fail::new(format!(
            "a mark is one line that does not begin with `{OWN}`"
        )));
    }
    let fail = |e: std::io::Error| Fail::new(format!("the recorder does not answer: {e}"));
    let mut stream = UnixStream::connect(socket).map_err(fail)?;
    stream.write_all(text.as_bytes()).map_err(fail)?;
    stream.write_all(b"\n").map_err(fail)?;
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .map_err(fail)?;
    if answer == "ok\n" {
        Ok(())
    } else {
        Err(Fail::new("the recorder does not answer"))
    }
}
