//! The kernel's process connector: a netlink socket on which the kernel reports each fork, exec, new session and exit.
//!
//! An event is in the socket before its child runs, or before the system call that it reports returns. So whoever empties the
//! socket after it got a request knows of everything that led to that request. Needs CAP_NET_ADMIN, the first network and process
//! id namespaces, and CONFIG_PROC_EVENTS.
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recvfrom, send,
    socket_with, sockopt,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The connector's group and id of process events.
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const NLMSG_DONE: u16 = 3;
/// Bytes of `struct nlmsghdr`, `struct cn_msg`, and of `struct proc_event` before its variants.
const NLMSG_LEN: usize = 16;
const CN_MSG_LEN: usize = 20;
const EVENT_LEN: usize = 16;
const PROC_EVENT_NONE: u32 = 0;
const PROC_EVENT_FORK: u32 = 1;
const PROC_EVENT_EXEC: u32 = 2;
const PROC_EVENT_SID: u32 = 0x80;
const PROC_EVENT_EXIT: u32 = 0x8000_0000;
/// Room in the socket, bytes: some ten thousand events.
const ROOM: usize = 16 << 20;
/// How long the kernel's answer to LISTEN may take.
const ANSWER: Duration = Duration::from_secs(2);

/// What happened to a process or thread. Numbers are those of the first process id namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// `child` (of `process`; itself, unless it is a thread) started. `parent`: the thread that started a process; for threads the
    /// kernel names the process's parent instead of the thread that did it.
    Fork {
        parent: u32,
        child: u32,
        process: u32,
        /// When, nanoseconds of the monotonic clock.
        ns: u64,
    },
    /// A thread of the process called exec; it goes by the process's number from now on.
    Exec {
        process: u32,
        /// When, nanoseconds of the monotonic clock.
        ns: u64,
    },
    /// The process called setsid.
    Session { process: u32 },
    /// The thread ended. Its number may already be another thread's: this is reported after its parent could see it.
    Exit { tid: u32 },
}

/// Where events come from.
pub(super) trait Source: Send {
    /// Appends all events up to now. True: some were lost before those that will come next.
    fn drain(&mut self, out: &mut Vec<Event>) -> io::Result<bool>;
    /// What becomes readable when there are events.
    fn descriptor(&self) -> Option<OwnedFd>;
}

/// The socket.
#[derive(Debug)]
pub(super) struct Connector {
    socket: OwnedFd,
    buf: Vec<u8>,
    numbers: Numbers,
}

/// The kernel numbers what it reports on each processor. Where it has no memory for a message nothing else tells that it is missing.
#[derive(Debug, Default)]
struct Numbers {
    /// Processor -> number of its last message.
    last: HashMap<u32, u32>,
    /// Numbers went back: on this kernel they say nothing.
    useless: bool,
}

impl Numbers {
    /// True: messages are missing before this one.
    fn skips(&mut self, datagram: &[u8]) -> bool {
        let Some((cpu, number)) = number(datagram) else {
            return false;
        };
        let Some(last) = self.last.insert(cpu, number) else {
            return false;
        };
        let step = number.wrapping_sub(last) as i32;
        self.useless |= step <= 0;
        step > 1 && !self.useless
    }
}

impl Connector {
    /// Starts listening. Errors say what is missing.
    pub fn open() -> io::Result<Connector> {
        Connector::with_room(ROOM)
    }

    fn with_room(room: usize) -> io::Result<Connector> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::CONNECTOR);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        // Without the right to more, the system's limit holds; an overrun is noticed.
        if sockopt::set_socket_recv_buffer_size_force(&socket, room).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, room);
        }
        bind(&socket, &SocketAddrNetlink::new(0, CN_IDX_PROC))?;
        let mut this = Connector {
            socket,
            buf: vec![0; 4096],
            numbers: Numbers::default(),
        };
        this.listen()?;
        Ok(this)
    }

    fn listen(&mut self) -> io::Result<()> {
        send(&self.socket, &listen_message(), SendFlags::empty())?;
        // Only the answer says that events will come: elsewhere than in the first namespaces the kernel is silent.
        let socket = self.socket.try_clone()?;
        let errno = wait_until(&socket, Instant::now() + ANSWER, || {
            let len = self.receive()?;
            Ok(len.and_then(|len| answer(&self.buf[..len])))
        })?;
        match errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    /// One datagram of the kernel's. `None`: there is none now, or it is somebody else's.
    fn receive(&mut self) -> rustix::io::Result<Option<usize>> {
        match recvfrom(&self.socket, &mut self.buf[..], RecvFlags::DONTWAIT) {
            Ok((len, _, from)) => {
                let kernel = from
                    .and_then(|a| SocketAddrNetlink::try_from(a).ok())
                    .is_some_and(|a| a.pid() == 0);
                Ok(Some(if kernel { len } else { 0 }))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Connector {
    /// Appends all events up to now. Tells whether some found no room, and whether some are missing for whatever reason.
    fn take(&mut self, out: &mut Vec<Event>) -> io::Result<(bool, bool)> {
        let (mut overrun, mut missing) = (false, false);
        loop {
            match self.receive() {
                Ok(Some(len)) => {
                    missing |= self.numbers.skips(&self.buf[..len]);
                    out.extend(decode(&self.buf[..len]));
                }
                Ok(None) => break,
                // Reported before the events that did find room, which are older.
                Err(Errno::NOBUFS) => overrun = true,
                Err(e) => return Err(e.into()),
            }
        }
        if overrun {
            // What is missing then is told already.
            self.numbers.last.clear();
        }
        Ok((overrun, missing))
    }
}

impl Source for Connector {
    fn drain(&mut self, out: &mut Vec<Event>) -> io::Result<bool> {
        let (overrun, missing) = self.take(out)?;
        Ok(overrun || missing)
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.socket.try_clone().ok()
    }
}

/// What `look` finds; it is called whenever the descriptor is readable. Error: TimedOut, that moment has come, however much there was to
/// read until then.
fn wait_until<T>(
    descriptor: impl AsFd,
    until: Instant,
    mut look: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<T> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = rustix::time::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut readable = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut readable, Some(&timeout)) {
            Ok(1..) if !left.is_zero() => {
                if let Some(found) = look()? {
                    return Ok(found);
                }
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => {
                let words = "the kernel does not answer";
                return Err(io::Error::new(io::ErrorKind::TimedOut, words));
            }
        }
    }
}

/// LISTEN, in a `cn_msg` in a netlink message.
fn listen_message() -> Vec<u8> {
    let mut message = Vec::with_capacity(40);
    let len = (NLMSG_LEN + CN_MSG_LEN + 4) as u32;
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(&NLMSG_DONE.to_ne_bytes());
    // Flags, sequence number, port: the kernel fills in what matters.
    message.extend_from_slice(&[0; 10]);
    for word in [CN_IDX_PROC, CN_VAL_PROC, 0, 0] {
        message.extend_from_slice(&word.to_ne_bytes());
    }
    message.extend_from_slice(&4u16.to_ne_bytes());
    message.extend_from_slice(&0u16.to_ne_bytes());
    message.extend_from_slice(&PROC_CN_MCAST_LISTEN.to_ne_bytes());
    message
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The `struct proc_event` of a datagram.
fn event(datagram: &[u8]) -> Option<&[u8]> {
    let body = datagram.get(NLMSG_LEN..word(datagram, 0)? as usize)?;
    if (word(body, 0)?, word(body, 4)?) != (CN_IDX_PROC, CN_VAL_PROC) {
        return None;
    }
    body.get(CN_MSG_LEN..)
}

/// (processor, number) of a message. Before Linux 6.6 an answer to somebody's LISTEN is of no processor, and not numbered.
fn number(datagram: &[u8]) -> Option<(u32, u32)> {
    let cpu = word(event(datagram)?, 4)?;
    let number = word(datagram, NLMSG_LEN + 8)?;
    (cpu != u32::MAX).then_some((cpu, number))
}

/// The kernel's answer to LISTEN: 0 or an error number.
fn answer(datagram: &[u8]) -> Option<u32> {
    let event = event(datagram)?;
    (word(event, 0)? == PROC_EVENT_NONE)
        .then(|| word(event, EVENT_LEN))
        .flatten()
}

/// An event that matters here.
fn decode(datagram: &[u8]) -> Option<Event> {
    let event = event(datagram)?;
    let field = |index: usize| word(event, EVENT_LEN + 4 * index);
    let ns = u64::from_ne_bytes(event.get(8..16)?.try_into().ok()?);
    match word(event, 0)? {
        PROC_EVENT_FORK => Some(Event::Fork {
            parent: field(0)?,
            child: field(2)?,
            process: field(3)?,
            ns,
        }),
        PROC_EVENT_EXEC => Some(Event::Exec {
            process: field(1)?,
            ns,
        }),
        PROC_EVENT_SID => Some(Event::Session { process: field(1)? }),
        PROC_EVENT_EXIT => Some(Event::Exit { tid: field(0)? }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<_> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        digits
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    /// Recorded from Linux 6.18 (little endian).
    const RECORDED: [(&str, Option<Event>); 5] = [
        (
            "4c00000003000000000000000000000001000000010000000000000001000000280000000000000001000000ebbc6b1cca0000\
             00000000000000000000000000000000000000000000000000",
            None,
        ),
        (
            "4c000000030000000200000000000000010000000100000002000000000000002800000001000000 01000000e3a9991cca0000\
             000653000006530000f2650000f26500000000000000000000",
            Some(Event::Fork {
                parent: 0x5306,
                child: 0x65f2,
                process: 0x65f2,
                ns: 0xca_1c99_a9e3,
            }),
        ),
        (
            "4c00000003000000030000000000000001000000010000000300000000000000280000000200000001000000057ba41cca0000\
             00f2650000f265000000000000000000000000000000000000",
            Some(Event::Exec {
                process: 0x65f2,
                ns: 0xca_1ca4_7b05,
            }),
        ),
        (
            "4c00000003000000040000000000000001000000010000000400000000000000280000000000008001000000cda0b81cca0000\
             00f2650000f265000000000000110000000653000006530000",
            Some(Event::Exit { tid: 0x65f2 }),
        ),
        (
            "4c00000003000000040000000000000001000000010000000400000000000000280000008000000001000000cda0b81cca0000\
             00f3650000f265000000000000110000000653000006530000",
            Some(Event::Session { process: 0x65f2 }),
        ),
    ];

    #[test]
    fn recorded_events_are_understood() {
        if cfg!(target_endian = "big") {
            println!("skipped: recorded on a little-endian machine");
            return;
        }
        for (hex, expected) in RECORDED {
            let datagram = bytes(hex);
            assert_eq!(decode(&datagram), expected, "{hex}");
            for cut in 0..datagram.len() {
                let _ = decode(&datagram[..cut]);
                let _ = answer(&datagram[..cut]);
            }
            for flipped in 0..datagram.len() * 8 {
                let mut bad = datagram.clone();
                bad[flipped / 8] ^= 1 << (flipped % 8);
                let _ = decode(&bad);
            }
        }
        assert_eq!(answer(&bytes(RECORDED[0].0)), Some(0));
        assert_eq!(answer(&bytes(RECORDED[1].0)), None);
        assert_eq!(listen_message().len(), NLMSG_LEN + CN_MSG_LEN + 4);
    }

    /// A message of a processor with a number.
    fn numbered(cpu: u32, number: u32) -> Vec<u8> {
        let mut datagram = bytes(RECORDED[1].0);
        datagram[NLMSG_LEN + 8..NLMSG_LEN + 12].copy_from_slice(&number.to_ne_bytes());
        let at = NLMSG_LEN + CN_MSG_LEN + 4;
        datagram[at..at + 4].copy_from_slice(&cpu.to_ne_bytes());
        datagram
    }

    #[test]
    fn a_missing_number_is_a_loss() {
        if cfg!(target_endian = "big") {
            println!("skipped: recorded on a little-endian machine");
            return;
        }
        let mut numbers = Numbers::default();
        let mut skips = |cpu, number| numbers.skips(&numbered(cpu, number));
        let some = [(0, 3), (1, 9), (0, 4), (1, 10), (0, 6), (0, 7), (1, 12)];
        let missing = some.map(|(cpu, number)| skips(cpu, number));
        assert_eq!(missing, [false, false, false, false, true, false, true]);
        assert!(!skips(2, u32::MAX) && !skips(2, 0), "they begin anew");
        assert!(
            !skips(u32::MAX, 5) && !skips(u32::MAX, 5),
            "answers of older kernels"
        );
        let answer = RECORDED[0].0.replace("01000000ebbc", "07000000ebbc");
        let three = [bytes(&answer), numbered(7, 1), numbered(7, 3)];
        assert_eq!(three.map(|d| numbers.skips(&d)), [false, false, true]);
        // A kernel that does not number them so.
        let mut skips = |cpu, number| numbers.skips(&numbered(cpu, number));
        assert!(!skips(0, 5) && !skips(0, 20) && !skips(1, 40));
    }

    /// In a process id namespace of its own the kernel never answers, and tells of all other processes.
    #[test]
    fn events_do_not_put_off_the_end_of_a_wait() {
        let (always_readable, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"an event").unwrap();
        let mut looks = 0;
        let begun = Instant::now();
        let found: io::Result<u32> =
            wait_until(&always_readable, begun + Duration::from_millis(50), || {
                looks += 1;
                assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
                Ok(None)
            });
        assert_eq!(found.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(looks > 0);
        let nothing = rustix::pipe::pipe().unwrap().0;
        let found: io::Result<u32> = wait_until(&nothing, Instant::now(), || unreachable!());
        assert_eq!(found.unwrap_err().kind(), io::ErrorKind::TimedOut);
        let until = Instant::now() + Duration::from_secs(60);
        assert_eq!(
            wait_until(&always_readable, until, || Ok(Some(3))).unwrap(),
            3
        );
    }

    /// The live socket: a child process is reported with its parent, before it can do anything.
    #[test]
    fn a_child_is_reported() {
        let mut connector = match Connector::open() {
            Ok(connector) => connector,
            Err(e) => return println!("skipped: no process connector: {e}"),
        };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut events = Vec::new();
        let lost = connector.drain(&mut events).unwrap();
        let started = |e: &Event| matches!(*e, Event::Fork { child: tid, process, .. } if tid == child.id() && process == tid);
        assert!(lost || events.iter().any(started), "{events:?}");
        child.wait().unwrap();
    }

    /// The live socket: what the kernel numbers as this expects is no false alarm, on whatever processors it happens.
    #[test]
    fn nothing_is_missing() {
        let mut connector = match Connector::open() {
            Ok(connector) => connector,
            Err(e) => return println!("skipped: no process connector: {e}"),
        };
        let mut events = Vec::new();
        let children = || {
            for _ in 0..200 {
                let mut child = std::process::Command::new("true").spawn().unwrap();
                child.wait().unwrap();
            }
        };
        std::thread::scope(|s| {
            (0..3).for_each(|_| drop(s.spawn(children)));
            for _ in 0..200 {
                // Others may start so many that the socket overruns.
                let (overrun, missing) = connector.take(&mut events).unwrap();
                assert!(overrun || !missing);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        let (overrun, missing) = connector.take(&mut events).unwrap();
        assert!(overrun || !missing);
        assert!(!events.is_empty());
        if connector.numbers.useless {
            println!("skipped: this kernel does not number its messages by processor");
        }
    }

    /// The live socket, with room for a few events only: that some were lost is told once, and those that come later are there.
    #[test]
    fn an_overrun_is_told() {
        let mut connector = match Connector::with_room(1) {
            Ok(connector) => connector,
            Err(e) => return println!("skipped: no process connector: {e}"),
        };
        let start = std::time::Instant::now();
        let run = || {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            child.wait().unwrap();
        };
        let mut events = Vec::new();
        loop {
            (0..10).for_each(|_| run());
            if connector.drain(&mut events).unwrap() {
                break;
            }
            if start.elapsed().as_secs() > 60 {
                return println!("skipped: the socket holds all");
            }
        }
        // Others may start programs meanwhile, too.
        while connector.drain(&mut events).unwrap() {
            assert!(start.elapsed().as_secs() < 120, "it goes on being told");
        }
        loop {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let lost = connector.drain(&mut events).unwrap();
            let started =
                |e: &Event| matches!(*e, Event::Fork { child: tid, .. } if tid == child.id());
            let told = events.iter().any(started);
            child.wait().unwrap();
            if told {
                break;
            }
            assert!(lost && start.elapsed().as_secs() < 120, "{events:?}");
        }
    }
}
