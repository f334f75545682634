//! One writer: who has a volume is written in it, where the store has no lock of its own.
//!
//! The first two sectors of the volume are ext4's for a boot loader, and empty on a volume that none starts from. While somebody may write, the
//! second holds his *claim*: a random number for this use of the volume (the *session*), and who it is. The first holds a count that rises
//! every [`BEAT`], and the session that it is of. At rest both are zero again. The idea is ext4's multiple mount protection (Linux,
//! Documentation/filesystems/ext4, "Multiple Mount Protection").
//!
//! * Who finds a claim whose count rises is told who has the volume.
//! * Who finds one whose count has stood still for [`STALE`] takes the volume over.
//! * With `take over` nobody waits for that; the owner finds the new claim at his next beat, and writes no more.
//! * Whoever has written his claim waits for [`CONFIRM`], and looks whether it is still his. Two who came at once both wrote, and only the
//!   last one goes on. Where there was an owner he waits longer than that one's lease.
//! * An owner whose last look is older than [`LEASE`] (his host slept, he was stopped, the store did not answer) writes nothing until he has
//!   looked again.
//! * A claim is written once, so a beat that comes late never takes the place of somebody else's claim. Where the store's unit is larger than
//!   a sector, both are written together: there a beat that took longer than [`CONFIRM_SLOW`] is the owner's last.
//!
//! This keeps from mistakes. It is no fencing: what the owner had already sent arrives, whenever that is.
use crate::clock;
use crate::session::{Answer, Owner, Refusal, Request, Session, Taken, ask};
use ccfs_device::{AlignedBuf, SECTOR};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes at the beginning of the volume that are the owner's.
pub const PLACE: u64 = 2 * SECTOR;
/// Between two beats.
pub const BEAT: Duration = Duration::from_millis(1500);
/// A count that has stood still for so long is nobody's: longer than what is in doubt keeps a beat back (`SETTLE`), and than a slow network needs.
pub const STALE: Duration = Duration::from_secs(12);
/// Nothing is written later than this after the beginning of the last look that found the claim in order.
const LEASE: Duration = Duration::from_secs(3);
/// Between a claim and the look at it.
const CONFIRM: Duration = Duration::from_millis(500);
/// The same after a look and a claim that took longer than half of that, and wherever there was an owner: longer than his lease.
pub const CONFIRM_SLOW: Duration = Duration::from_secs(5);
/// Between two looks at another's count.
const LOOK: Duration = Duration::from_millis(250);
/// How often a claim is written anew over one of an owner that lives.
const TRIES: u32 = 5;

const CLAIM: &[u8; 8] = b"CCFSOWNR";
const COUNT: &[u8; 8] = b"CCFSBEAT";
/// Of both. The last two bytes of the first sector stay zero, where a partition table has its mark.
const SUM_AT: usize = 60;
const HOST_AT: usize = 64;
const HOST_MAX: usize = 255;
const HALF: usize = SECTOR as usize;

/// A sector.
pub type Half = [u8; HALF];

/// Who has the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of this use of the volume.
    pub session: [u8; 16],
    /// Who.
    pub owner: Owner,
}

/// What the two sectors hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No claim.
    Nobody,
    /// Somebody, and his count: `None`, it has not begun, or is of another session.
    Somebody(Claim, Option<u64>),
    /// Something else: a boot loader, or a torn or foreign claim.
    Other,
}

fn sealed(mut half: Half) -> Half {
    let sum = crc32c::crc32c(&half);
    half[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    half
}

/// With this magic, and whole.
fn opened(half: &[u8], magic: &[u8; 8]) -> bool {
    let Ok(mut half) = Half::try_from(half) else {
        return false;
    };
    let sum = number(&half, SUM_AT) as u32;
    half[SUM_AT..SUM_AT + 4].fill(0);
    half[..8] == *magic && sum == crc32c::crc32c(&half)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let eight = &bytes[at..at + 8];
    eight.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

fn session(bytes: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&bytes[16..32]);
    out
}

impl Claim {
    /// The second sector (docs/format.md, "The owner's claim"). Numbers are little-endian.
    fn bytes(&self) -> Half {
        let mut out = [0; HALF];
        let host = self.owner.host.as_bytes();
        let len = host.len().min(HOST_MAX);
        out[..8].copy_from_slice(CLAIM);
        out[16..32].copy_from_slice(&self.session);
        out[32..40].copy_from_slice(&self.owner.since.to_le_bytes());
        out[40..44].copy_from_slice(&self.owner.pid.to_le_bytes());
        out[44] = len as u8;
        out[HOST_AT..HOST_AT + len].copy_from_slice(&host[..len]);
        sealed(out)
    }

    fn parse(half: &[u8]) -> Claim {
        let host = &half[HOST_AT..HOST_AT + usize::from(half[44])];
        Claim {
            session: session(half),
            owner: Owner {
                host: String::from_utf8_lossy(host).into_owned(),
                pid: number(half, 40) as u32,
                since: number(half, 32),
            },
        }
    }

    /// The first sector.
    fn beat(&self, count: u64) -> Half {
        let mut out = [0; HALF];
        out[..8].copy_from_slice(COUNT);
        out[8..16].copy_from_slice(&count.to_le_bytes());
        out[16..32].copy_from_slice(&self.session);
        sealed(out)
    }
}

impl Found {
    /// What the first [`PLACE`] bytes of a volume hold.
    pub fn parse(bytes: &[u8]) -> Found {
        let (first, second) = bytes.split_at(HALF.min(bytes.len()));
        let is_beat = opened(first, COUNT);
        if first.iter().any(|b| *b != 0) && !is_beat {
            return Found::Other;
        }
        // A beat without a claim came late.
        if second.iter().all(|b| *b == 0) {
            return Found::Nobody;
        }
        if !opened(second, CLAIM) {
            return Found::Other;
        }
        let claim = Claim::parse(second);
        let is_of_it = is_beat && session(first) == claim.session;
        let count = is_of_it.then(|| number(first, 8));
        Found::Somebody(claim, count)
    }
}

/// A way to the two sectors: through a session that nobody else uses yet, or through the device.
pub trait Sectors {
    /// The store's unit, bytes.
    fn min_io(&self) -> u64;
    /// Carries out a request of the owner's.
    fn ask(&self, request: Request) -> Answer;

    /// Both of them, and what the store's unit has behind them.
    fn read(&self) -> Result<AlignedBuf, Refusal> {
        let len = PLACE.next_multiple_of(self.min_io().max(SECTOR)) as usize;
        match self.ask(Request::Read { offset: 0, len })? {
            Some(data) if data.len() == len => Ok(data),
            _ => Err(Refusal::Lost(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// What is there.
    fn look(&self) -> Result<Found, Refusal> {
        Ok(Found::parse(&self.read()?[..PLACE as usize]))
    }

    /// Writes the first or second sector, or both; what is `None` stays.
    fn put(&self, first: Option<Half>, second: Option<Half>) -> Result<(), Refusal>;

    /// They are durable.
    fn settle(&self) -> Result<(), Refusal> {
        self.ask(Request::Flush).map(|_| ())
    }

    /// A beat writes the claim as well.
    fn are_one(&self) -> bool {
        self.min_io() > SECTOR
    }
}

/// [`Sectors::put`], where nobody else changes the same unit.
pub fn put(
    sectors: &dyn Sectors,
    first: Option<Half>,
    second: Option<Half>,
) -> Result<(), Refusal> {
    let halves = [(first, 0), (second, HALF)].into_iter();
    let mut halves = halves.filter_map(|(half, at)| Some((half?, at)));
    let write = |offset, data: AlignedBuf| {
        let data = data.into();
        sectors.ask(Request::Write { offset, data }).map(|_| ())
    };
    if !sectors.are_one() {
        return halves.try_for_each(|(half, at)| write(at as u64, AlignedBuf::from_bytes(&half)));
    }
    let mut whole = sectors.read()?;
    halves.for_each(|(half, at)| whole[at..at + HALF].copy_from_slice(&half));
    write(0, whole)
}

/// The sectors through a bare session.
pub struct Bare<'a> {
    /// Not used by anybody else.
    pub session: &'a dyn Session,
    /// For each request.
    pub patience: Duration,
}

impl Sectors for Bare<'_> {
    fn min_io(&self) -> u64 {
        self.session.geometry().min_io
    }

    fn ask(&self, request: Request) -> Answer {
        ask(self.session, request, self.patience)
    }

    fn put(&self, first: Option<Half>, second: Option<Half>) -> Result<(), Refusal> {
        put(self, first, second)
    }
}

/// Takes the volume. `overwrite`: what is in the claim's place, and is none, does not count.
pub fn take(
    sectors: &dyn Sectors,
    owner: &Owner,
    take_over: bool,
    overwrite: bool,
) -> Result<Holding, Taken> {
    let mut session = [0; 16];
    rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
        .map_err(io::Error::from)?;
    let claim = Claim {
        session,
        owner: owner.clone(),
    };
    for _ in 0..TRIES {
        let mut begun = clock::elapsed();
        let found = sectors.look()?;
        let other = match &found {
            Found::Other if !take_over && !overwrite => {
                return Err(Taken::By(
                    "its first two sectors (bytes 0 to 1023), where the owner is noted, hold something else".into(),
                ));
            }
            Found::Somebody(other, _) => Some(other.clone()),
            _ => None,
        };
        if let (Some(other), false) = (&other, take_over) {
            if watch(sectors, &found)? {
                return Err(Taken::By(other.owner.to_string()));
            }
            // The look above is long ago.
            begun = clock::elapsed();
            if sectors.look()? != found {
                continue;
            }
        }
        sectors.put(Some(claim.beat(1)), Some(claim.bytes()))?;
        sectors.settle()?;
        let slow = other.is_some() || clock::elapsed() - begun > CONFIRM / 2;
        std::thread::sleep(if slow { CONFIRM_SLOW } else { CONFIRM });
        let (still, seen) = quick_look(sectors)?;
        match still {
            Found::Somebody(still, _) if still.session == session => {
                if let Some(other) = other {
                    tracing::warn!("taken over from {}", other.owner);
                }
                return Ok(Holding::new(claim, seen));
            }
            Found::Somebody(theirs, _) if !take_over => {
                return Err(Taken::By(theirs.owner.to_string()));
            }
            _ => {}
        }
    }
    Err(Taken::By(
        "another host, which goes on writing that it has the volume".into(),
    ))
}

/// A look that did not take long, and when it began.
fn quick_look(sectors: &dyn Sectors) -> Result<(Found, Duration), Refusal> {
    for _ in 0..TRIES {
        let begun = clock::elapsed();
        let found = sectors.look()?;
        if clock::elapsed() - begun < LEASE / 2 {
            return Ok((found, begun));
        }
    }
    Err(Refusal::Lost(io::Error::new(
        io::ErrorKind::TimedOut,
        "the store answers too slowly to be kept from other hosts",
    )))
}

/// Looks for [`STALE`] whether anything becomes of a claim: its owner lives, or has just left.
fn watch(sectors: &dyn Sectors, found: &Found) -> Result<bool, Refusal> {
    let begun = clock::elapsed();
    while clock::elapsed() - begun < STALE {
        std::thread::sleep(LOOK);
        match sectors.look()? {
            Found::Nobody => return Ok(false),
            now if now != *found => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

/// Whether somebody may be writing to what is only read: who, if his count rises.
pub fn writer(sectors: &dyn Sectors) -> Result<Option<Owner>, Refusal> {
    let found = sectors.look()?;
    match &found {
        Found::Somebody(claim, _) => Ok(watch(sectors, &found)?.then(|| claim.owner.clone())),
        _ => Ok(None),
    }
}

/// Whether the first [`PLACE`] bytes of a volume hold a claim.
pub fn is_claim(bytes: &[u8]) -> bool {
    matches!(Found::parse(bytes), Found::Somebody(..))
}

/// What an owner knows of his claim.
pub struct Holding {
    claim: Claim,
    count: AtomicU64,
    /// [`clock::elapsed`] at the beginning of the last look that found it in order, ms.
    seen: AtomicU64,
}

impl Holding {
    fn new(claim: Claim, seen: Duration) -> Holding {
        Holding {
            claim,
            count: AtomicU64::new(1),
            seen: AtomicU64::new(seen.as_millis() as u64),
        }
    }

    /// Whether what is found is this owner's; else who has it now.
    pub fn is_mine(&self, found: &Found) -> Result<(), String> {
        match found {
            Found::Somebody(claim, _) if claim.session == self.claim.session => Ok(()),
            Found::Somebody(claim, _) => Err(format!(
                "{} has taken the volume over; nothing more is written from here",
                claim.owner
            )),
            Found::Nobody => Err(
                "somebody has taken the owner's claim away (a take-over that has ended?); nothing more is written from here"
                    .into(),
            ),
            Found::Other => Err("somebody has overwritten the owner's claim; nothing more is written from here".into()),
        }
    }

    /// The first sector with the next count.
    pub fn next(&self) -> Half {
        self.claim
            .beat(self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Looks, and writes the next count. `Err`: why nothing more may be written.
    pub fn beat(&self, sectors: &dyn Sectors) -> Result<(), String> {
        let fail = |e: Refusal| format!("the owner's claim cannot be kept up: {e}");
        // Where both are written together, what is known of the claim must be fresh. A look that was slow (a connection that broke) is no reason
        // to give up: it is repeated.
        let (found, begun) = match sectors.are_one() {
            true => quick_look(sectors).map_err(fail)?,
            false => {
                let begun = clock::elapsed();
                (sectors.look().map_err(fail)?, begun)
            }
        };
        self.is_mine(&found)?;
        self.saw(begun);
        sectors.put(Some(self.next()), None).map_err(fail)?;
        match sectors.are_one() && clock::elapsed() - begun > CONFIRM_SLOW {
            true => Err("a heartbeat took too long: another host may have had the volume; nothing more is written from here".into()),
            false => Ok(()),
        }
    }

    /// A look that began then found the claim in order.
    pub fn saw(&self, begun: Duration) {
        self.seen
            .fetch_max(begun.as_millis() as u64, Ordering::AcqRel);
    }

    /// See the head of this file, `LEASE`.
    pub fn may_write(&self) -> bool {
        let now = clock::elapsed().as_millis() as u64;
        now.saturating_sub(self.seen.load(Ordering::Acquire)) < LEASE.as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            session: *b"0123456789abcdef",
            owner: Owner {
                host: "höst.example".into(),
                pid: 4711,
                since: 1_795_860_300,
            },
        }
    }

    #[test]
    fn claims_are_read_as_they_were_written() {
        let bytes = [claim().beat(7), claim().bytes()].concat();
        let whole = Found::Somebody(claim(), Some(7));
        assert_eq!(Found::parse(&bytes), whole);
        assert_eq!(Found::parse(&[0; 1024]), Found::Nobody);
        assert_eq!(bytes[510..512], [0, 0]);
        // A beat that came late, without a claim and with another's.
        let late = [claim().beat(7), [0; HALF]].concat();
        assert_eq!(Found::parse(&late), Found::Nobody);
        let other = Claim {
            session: [9; 16],
            ..claim()
        };
        let mixed = [claim().beat(7), other.bytes()].concat();
        assert_eq!(Found::parse(&mixed), Found::Somebody(other, None));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Found::parse(&bad), Found::Other, "bit {bit}");
        }
        let long = Claim {
            owner: Owner {
                host: "x".repeat(400),
                ..claim().owner
            },
            ..claim()
        };
        let bytes = [[0; HALF], long.bytes()].concat();
        let Found::Somebody(read, None) = Found::parse(&bytes) else {
            panic!("a long name");
        };
        assert_eq!(read.owner.host.len(), HOST_MAX);
    }
}
