//! A session's thread: it carries entries out, sleeps as deep as it can afford, and ends with the program.
use super::session::{Role, Session};
use super::{Direct, Displaces};
use crate::sys;
use ccfs_client::direct::ring::{ASLEEP, DOZES};
use ccfs_client::direct::sync::Instant;
use ccfs_engine::{Promise, Wait};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long it looks for more before it dozes. It gives its processor to whoever wants it meanwhile.
const LOOKS: Duration = Duration::from_micros(50);
/// The same, where more comes within half of that as a rule: to wake a processor that sleeps takes a virtual machine 50 us and more, for which the program
/// waits.
const LOOKS_MAX: Duration = Duration::from_micros(400);
/// How long a posted entry may lie while it dozes, and how often it dozes before it sleeps.
const DOZE: Duration = Duration::from_micros(500);
// Where a scheduler decides when a doze is over, one is as good as many.
const DOZES_MAX: u32 = if cfg!(feature = "shuttle") { 1 } else { 40 };
/// How often it looks whether the program lives, while that posts.
const LOOK: Duration = Duration::from_millis(100);
/// And while it sleeps.
const SLEEP: Duration = Duration::from_secs(1);

/// Starts it. Error: there can be no thread.
pub fn start(direct: Arc<Direct>, session: Arc<Session>) -> io::Result<()> {
    // The caller may be a queue's thread.
    sys::leave_idle_class();
    std::thread::Builder::new()
        .name("fuse-direct".into())
        .spawn(move || {
            sys::use_all_processors();
            // Programs that wait for it would take its processor when it wakes them, to post what it has to carry out then.
            sys::go_first();
            serve(&direct, &session);
            direct.remove(&session);
            session.note_ended();
        })?;
    Ok(())
}

/// How long it takes until there is more.
struct Pause {
    mean: Duration,
    begun: Instant,
}

impl Pause {
    fn new() -> Pause {
        Pause {
            mean: LOOKS_MAX,
            begun: Instant::now(),
        }
    }

    fn begins(&mut self) {
        self.begun = Instant::now();
    }

    fn ends(&mut self) {
        // One long one is no reason to doubt for long.
        let pause = self.begun.elapsed().min(4 * LOOKS_MAX);
        self.mean = self.mean * 7 / 8 + pause / 8;
    }

    /// How long it is worth to look.
    fn looks(&self) -> Duration {
        match self.mean < LOOKS_MAX / 2 {
            true => LOOKS_MAX,
            false => LOOKS,
        }
    }
}

pub fn serve(direct: &Arc<Direct>, session: &Arc<Session>) {
    while direct.allowed.by_hand && !session.is_ending() {
        std::thread::sleep(DOZE);
    }
    let (mut dozed, mut looked, mut claimed) = (0, Instant::now(), Instant::now());
    let (mut head, mut pause) = (session.head(), Pause::new());
    loop {
        // Others may go on posting with its memory.
        let due = dozed > 0 || looked.elapsed() >= LOOK;
        if due {
            looked = Instant::now();
        }
        let ending = session.is_ending() || due && session.is_abandoned();
        if claimed.elapsed() >= SLEEP {
            claimed = Instant::now();
            // There may be room again, or nobody else who posts.
            direct.renew_promise(session, Promise::default());
            if session.role() != Role::Posts {
                // Who works has the right to post, not who is only there.
                let displaces = match session.head() == head {
                    true => Displaces::Ended,
                    false => Displaces::Idle,
                };
                direct.claim(session, displaces);
            }
            head = session.head();
        }
        session.say_processor();
        if session.is_pending() {
            dozed = 0;
            pause.ends();
            // Errors are the entries', but for a volume that is gone; the session is over then.
            let _ = direct.carry_out(session, Wait::Allowed);
            pause.begins();
        }
        // What comes later than that end is not waited for: a program can go on for ever.
        if ending || session.is_over() {
            session.say_ended(libc::ENOTCONN);
            return;
        }
        // Who rests is not looked after.
        let looks = if dozed == 0 { pause.looks() } else { LOOKS };
        let begun = Instant::now();
        while !session.is_pending() && begun.elapsed() < looks {
            std::thread::yield_now();
        }
        if session.is_pending() {
            continue;
        }
        if dozed < DOZES_MAX {
            dozed += 1;
            session.sleep(DOZES, DOZE);
        } else {
            session.sleep(ASLEEP, SLEEP);
        }
    }
}
