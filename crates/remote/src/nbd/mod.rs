//! NBD servers: qemu-nbd, nbdkit, cloud block services (the NBD project's doc/proto.md, doc/uri.md).
mod sys;

use crate::session::{Done, Geometry, Refusal, Request, Session, Store};
use ccfs_device::AlignedBuf;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::Handle;

/// For the server's goodbye.
const GOODBYE: Duration = Duration::from_secs(2);
/// What every server takes in one request, where it does not say, bytes (doc/proto.md, "Block size constraints").
const MOST: u64 = 32 << 20;
const LEAST: c_int = 0;
const LARGEST: c_int = 2;
/// Errors that mean the connection's end: the library's, and a server's that shuts down.
const ENDS: [i32; 2] = [libc::ENOTCONN, libc::ESHUTDOWN];

/// A server's export.
pub struct Nbd {
    name: String,
    uri: CString,
}

impl Nbd {
    /// `uri`: as it is named, and as libnbd takes it.
    pub fn new(uri: &str) -> io::Result<Nbd> {
        Ok(Nbd {
            name: uri.into(),
            uri: CString::new(uri)?,
        })
    }
}

impl Store for Nbd {
    fn connect(&self, wait: Duration, _patience: Duration) -> io::Result<Arc<dyn Session>> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let handle = Handle::new()?;
        let (told, hear) = sync_channel(1);
        let (of_thread, uri) = (shared.clone(), self.uri.clone());
        let thread = std::thread::Builder::new()
            .name("ccfs-nbd".into())
            .spawn(move || of_thread.serve(handle, &uri, wait, &told))?;
        let geometry = hear.recv().map_err(io::Error::other).and_then(|said| said);
        match geometry {
            Ok(geometry) => Ok(Arc::new(NbdSession {
                geometry,
                shared,
                thread: Mutex::new(Some(thread)),
            })),
            Err(e) => {
                let _ = thread.join();
                Err(e)
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "nbd"
    }
}

struct NbdSession {
    geometry: Geometry,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Session for NbdSession {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn start(&self, request: Request, done: Done) {
        let mut queue = self.shared.queue.lock();
        if queue.is_closed {
            drop(queue);
            return done(Err(lost()));
        }
        queue.asked.push_back((request, done));
        drop(queue);
        self.shared.wake();
    }

    fn close(&self, told: bool) {
        {
            let mut queue = self.shared.queue.lock();
            queue.end = match (queue.end, told) {
                (None | Some(End::Told), true) => Some(End::Told),
                _ => Some(End::Abrupt),
            };
        }
        self.shared.wake();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for NbdSession {
    fn drop(&mut self) {
        self.close(false);
    }
}

#[derive(Clone, Copy)]
enum End {
    Told,
    Abrupt,
}

#[derive(Default)]
struct Queue {
    asked: VecDeque<(Request, Done)>,
    end: Option<End>,
    is_closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: OwnedFd,
}

type Flying = HashMap<u64, Done>;

fn lost() -> Refusal {
    Refusal::Lost(io::ErrorKind::NotConnected.into())
}

impl Shared {
    fn wake(&self) {
        // Full means that it is going to be read.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The connection's whole life, in a thread of its own: nobody else uses the handle.
    fn serve(
        &self,
        mut handle: Handle,
        uri: &CString,
        patience: Duration,
        told: &SyncSender<io::Result<Geometry>>,
    ) {
        let mut flying = Flying::new();
        let connected = self.connect(&mut handle, uri, patience);
        // The library may end the connection by itself.
        linger(&handle, Some(Duration::ZERO));
        let known = connected.and_then(|()| geometry(&handle));
        let is_known = known.is_ok();
        let _ = told.send(known);
        let is_abrupt = match is_known {
            true => self.work(&mut handle, &mut flying),
            false => true,
        };
        if is_abrupt {
            linger(&handle, Some(Duration::ZERO));
        }
        drop(handle);
        let asked = {
            let mut queue = self.queue.lock();
            queue.is_closed = true;
            std::mem::take(&mut queue.asked)
        };
        for done in flying.into_values() {
            done(Err(lost()));
        }
        for (_, done) in asked {
            done(Err(lost()));
        }
    }

    fn connect(&self, handle: &mut Handle, uri: &CString, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        handle.connect(uri)?;
        while !handle.is_connected() {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_over = handle.is_over();
            if is_over || left.is_zero() || self.queue.lock().end.is_some() {
                let text = match is_over {
                    true => "the server ended the connection",
                    false => "the server does not answer",
                };
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            self.turn(handle, left)?;
        }
        Ok(())
    }

    /// Waits for the socket or for somebody who asks, and lets the library go on. Errors: the connection's end.
    fn turn(&self, handle: &mut Handle, most: Duration) -> io::Result<()> {
        let (mut readable, mut writable) = (false, false);
        {
            let (reads, writes) = handle.wants();
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, reads);
            flags.set(PollFlags::OUT, writes);
            let Some(socket) = handle.fd() else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let mut fds = [
                PollFd::from_borrowed_fd(socket, flags),
                PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
            ];
            let most = Timespec {
                tv_sec: most.as_secs() as i64,
                tv_nsec: most.subsec_nanos().into(),
            };
            match poll(&mut fds, Some(&most)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let came = fds[0].revents();
            let gone = PollFlags::HUP | PollFlags::ERR;
            if came.intersects(PollFlags::IN | gone) {
                readable = reads;
            }
            if came.intersects(PollFlags::OUT | gone) {
                writable = writes;
            }
            if !fds[1].revents().is_empty() {
                let mut number = [0; 8];
                let _ = rustix::io::read(&self.wake, &mut number);
            }
        }
        // One of them changes what is waited for.
        match (readable, writable) {
            (true, _) => handle.readable(),
            (_, true) => handle.writable(),
            _ => Ok(()),
        }
    }

    /// Until the connection ends. True: without a goodbye.
    fn work(&self, handle: &mut Handle, flying: &mut Flying) -> bool {
        /// Nothing happens of itself; the bound is for a wake-up that got lost.
        const IDLE: Duration = Duration::from_secs(30);
        let mut number = 0;
        let mut last_moment = None;
        loop {
            let (asked, end) = {
                let mut queue = self.queue.lock();
                (std::mem::take(&mut queue.asked), queue.end)
            };
            if let Some(End::Abrupt) = end {
                for (_, done) in asked {
                    done(Err(lost()));
                }
                return true;
            }
            for (request, done) in asked {
                number += 1;
                start(handle, flying, number, request, done);
            }
            finish(handle, flying);
            if handle.is_over() {
                return true;
            }
            let mut wait = IDLE;
            if let Some(End::Told) = end {
                if flying.is_empty() {
                    self.say_goodbye(handle);
                    return false;
                }
                // A server that answers no more is not waited for.
                let last = *last_moment.get_or_insert_with(|| Instant::now() + GOODBYE);
                wait = last.saturating_duration_since(Instant::now());
                if wait.is_zero() {
                    return true;
                }
            }
            if let Err(e) = self.turn(handle, wait) {
                tracing::debug!("NBD: {e}");
            }
            finish(handle, flying);
            if handle.is_over() {
                return true;
            }
        }
    }

    fn say_goodbye(&self, handle: &mut Handle) {
        linger(handle, None);
        handle.disconnect();
        let deadline = Instant::now() + GOODBYE;
        while !handle.is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.turn(handle, left).is_err() {
                return;
            }
        }
    }
}

/// What waits in the socket's buffer must not be sent after the connection's end, unless that is an orderly one.
fn linger(handle: &Handle, time: Option<Duration>) {
    if let Some(socket) = handle.fd() {
        let _ = rustix::net::sockopt::set_socket_linger(socket, time);
    }
}

fn start(handle: &mut Handle, flying: &mut Flying, number: u64, request: Request, done: Done) {
    let started = match request {
        Request::Read { offset, len } => handle.read(AlignedBuf::zeroed(len), offset, number),
        Request::Write { offset, data } => handle.write(data, offset, number),
        Request::Flush => handle.flush(number),
        Request::Discard { offset, len } => handle.trim(len, offset, number),
    };
    match started {
        Ok(()) => {
            flying.insert(number, done);
        }
        Err(e) if handle.is_over() => done(Err(Refusal::Lost(e))),
        Err(e) => done(Err(Refusal::Store(e))),
    }
}

/// Answers what has ended.
fn finish(handle: &mut Handle, flying: &mut Flying) {
    let ended = handle.ended();
    let is_over = !ended.is_empty() && handle.is_over();
    for one in ended {
        let Some(done) = flying.remove(&one.number) else {
            continue;
        };
        let e = io::Error::from_raw_os_error(one.error);
        match one.error {
            0 => done(Ok(one.data)),
            error if is_over || ENDS.contains(&error) => done(Err(Refusal::Lost(e))),
            _ => done(Err(Refusal::Store(e))),
        }
    }
}

fn geometry(handle: &Handle) -> io::Result<Geometry> {
    let least = handle.block_size(LEAST).max(1);
    let most = match handle.block_size(LARGEST) {
        0 => MOST,
        most => most.min(MOST),
    };
    Ok(Geometry {
        size: handle.size()?,
        min_io: least,
        max_io: most.max(least),
        read_only: handle.is_read_only(),
        has_cache: true,
        flushes: handle.can_flush(),
        discards: handle.can_trim(),
    })
}
