//! One writer: who has a volume is written in it, where the store has no lock of its own.
//!
//! The second sector of the volume is ext4's for a boot loader, and empty on a volume that none starts from. While somebody may write, it holds
//! a *record*: a number for this use of the volume (the *session*), who it is, and a count that rises every [`BEAT`]. At rest the sector is
//! zero again. The idea is ext4's multiple mount protection (Linux, Documentation/filesystems/ext4, "Multiple Mount Protection").
//!
//! * Who finds a record whose count rises is told who has the volume.
//! * Who finds one whose count has stood still for [`STALE`] takes the volume over.
//! * With `take over` nobody waits for that; the owner finds the new record at his next beat, and writes no more.
//! * Whoever has written his record waits for [`CONFIRM`], and looks whether it is still his. Two who came at once both wrote, and only the
//!   last one goes on. Where there was an owner he waits longer than that one's lease.
//! * An owner whose last look is older than [`LEASE`] (his host slept, he was stopped, the store did not answer) writes nothing until he has
//!   looked again.
//!
//! This keeps from mistakes. It is no fencing: what the owner had already sent arrives, whenever that is.
use crate::clock;
use crate::session::{Answer, Owner, Refusal, Request, Session, Taken, ask};
use ccfs_device::{AlignedBuf, SECTOR};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where the record is, bytes from the beginning of the volume; a sector.
pub const PLACE: u64 = 512;
/// Between two beats.
pub const BEAT: Duration = Duration::from_millis(1500);
/// A count that has stood still for so long is nobody's.
pub const STALE: Duration = Duration::from_secs(5);
/// Nothing is written later than this after the beginning of the last look that found the record in order.
const LEASE: Duration = Duration::from_secs(3);
/// Between a record and the look at it.
const CONFIRM: Duration = Duration::from_millis(500);
/// The same after a look and a record that took longer than half of that, and wherever there was an owner: longer than his lease.
const CONFIRM_SLOW: Duration = Duration::from_millis(3500);
/// Between two looks at another's record.
const LOOK: Duration = Duration::from_millis(250);
/// How often a record is written anew over one of an owner that lives.
const TRIES: u32 = 5;

const MAGIC: &[u8; 8] = b"CCFSOWNR";
const SUM_AT: usize = 508;
const HOST_AT: usize = 64;
const HOST_MAX: usize = 255;

/// What the sector holds while somebody may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of this use of the volume.
    pub session: [u8; 16],
    /// Rises with every beat.
    pub count: u64,
    /// Who.
    pub owner: Owner,
}

/// What the sector holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeros: nobody.
    Nobody,
    /// Somebody.
    Record(Record),
    /// Neither: a boot loader, or a torn or foreign record.
    Other,
}

impl Record {
    /// The sector (docs/format.md, "The owner's record"). Numbers are little-endian.
    pub fn bytes(&self) -> [u8; SECTOR as usize] {
        let mut out = [0; SECTOR as usize];
        let host = self.owner.host.as_bytes();
        let len = host.len().min(HOST_MAX);
        out[..8].copy_from_slice(MAGIC);
        out[8..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..32].copy_from_slice(&self.session);
        out[32..40].copy_from_slice(&self.owner.since.to_le_bytes());
        out[40..44].copy_from_slice(&self.owner.pid.to_le_bytes());
        out[44] = len as u8;
        out[HOST_AT..HOST_AT + len].copy_from_slice(&host[..len]);
        let sum = crc32c::crc32c(&out[..SUM_AT]);
        out[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// What a sector holds.
    pub fn parse(bytes: &[u8]) -> Found {
        if bytes.iter().all(|b| *b == 0) {
            return Found::Nobody;
        }
        let number = |at: usize| {
            bytes[at..at + 8]
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b))
        };
        let sum = number(504) >> 32;
        if bytes.len() != SECTOR as usize
            || bytes[..8] != *MAGIC
            || sum != u64::from(crc32c::crc32c(&bytes[..SUM_AT]))
        {
            return Found::Other;
        }
        let mut session = [0; 16];
        session.copy_from_slice(&bytes[16..32]);
        let host = &bytes[HOST_AT..HOST_AT + usize::from(bytes[44])];
        Found::Record(Record {
            session,
            count: number(8),
            owner: Owner {
                host: String::from_utf8_lossy(host).into_owned(),
                pid: number(40) as u32,
                since: number(32),
            },
        })
    }
}

/// A way to the sector: through a session that nobody else uses yet, or through the device.
pub trait Sector {
    /// What is there.
    fn look(&self) -> io::Result<Found>;
    /// Writes it; `None`: zeros.
    fn put(&self, record: Option<&Record>) -> io::Result<()>;
    /// It is durable.
    fn settle(&self) -> io::Result<()>;
}

/// The sector through a bare session.
pub struct Bare<'a> {
    /// Not used by anybody else.
    pub session: &'a dyn Session,
    /// For each request.
    pub patience: Duration,
}

impl Bare<'_> {
    fn unit(&self) -> (u64, usize, usize) {
        let unit = self.session.geometry().min_io.max(SECTOR);
        let start = PLACE - PLACE % unit;
        (start, unit as usize, (PLACE - start) as usize)
    }

    fn read_unit(&self) -> Result<AlignedBuf, Refusal> {
        let (offset, len, _) = self.unit();
        let short = || Refusal::Lost(io::ErrorKind::UnexpectedEof.into());
        self.ask(Request::Read { offset, len })?.ok_or_else(short)
    }

    fn ask(&self, request: Request) -> Answer {
        ask(self.session, request, self.patience)
    }

    /// As [`Sector::look`], with the kind of error.
    pub fn find(&self) -> Result<Found, Refusal> {
        let (_, _, skip) = self.unit();
        let unit = self.read_unit()?;
        Ok(Record::parse(&unit[skip..skip + SECTOR as usize]))
    }
}

fn plain(refusal: Refusal) -> io::Error {
    match refusal {
        Refusal::Lost(e) | Refusal::Store(e) => e,
    }
}

impl Sector for Bare<'_> {
    fn look(&self) -> io::Result<Found> {
        self.find().map_err(plain)
    }

    fn put(&self, record: Option<&Record>) -> io::Result<()> {
        let (offset, len, skip) = self.unit();
        let mut data = match len == SECTOR as usize {
            true => AlignedBuf::zeroed(len),
            false => self.read_unit().map_err(plain)?,
        };
        let bytes = record.map_or([0; SECTOR as usize], Record::bytes);
        data[skip..skip + SECTOR as usize].copy_from_slice(&bytes);
        let data = Arc::new(data);
        self.ask(Request::Write { offset, data }).map_err(plain)?;
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        self.ask(Request::Flush).map_err(plain)?;
        Ok(())
    }
}

/// Takes the volume. Gives what has to be kept up by [`Holding::beat`].
pub fn take(sector: &dyn Sector, owner: &Owner, take_over: bool) -> Result<Record, Taken> {
    let mut session = [0; 16];
    rustix::rand::getrandom(&mut session, rustix::rand::GetRandomFlags::empty())
        .map_err(io::Error::from)?;
    let mut other = None;
    for _ in 0..TRIES {
        let begun = Instant::now();
        let found = match sector.look()? {
            Found::Other if !take_over => {
                return Err(Taken::By(
                    "its second sector (bytes 512 to 1023), where the owner is noted, holds something else".into(),
                ));
            }
            Found::Record(record) => Some(record),
            _ => None,
        };
        let is_alive = match &found {
            Some(record) if take_over => Some(record.clone()),
            Some(record) => {
                if let Some(alive) = watch(sector, record)? {
                    return Err(Taken::By(alive.owner.to_string()));
                }
                // The look above is long ago.
                other = Some(record.clone());
                match sector.look()? {
                    Found::Record(still) if still == *record => {}
                    _ => continue,
                }
                None
            }
            None => None,
        };
        let record = Record {
            session,
            count: 1,
            owner: owner.clone(),
        };
        let begun = if found.is_some() {
            Instant::now()
        } else {
            begun
        };
        sector.put(Some(&record))?;
        sector.settle()?;
        let slow = found.is_some() || begun.elapsed() > CONFIRM / 2;
        std::thread::sleep(if slow { CONFIRM_SLOW } else { CONFIRM });
        match sector.look()? {
            Found::Record(still) if still == record => {
                if let Some(other) = is_alive.or(other) {
                    tracing::warn!("taken over from {}", other.owner);
                }
                return Ok(record);
            }
            Found::Record(theirs) if !take_over => return Err(Taken::By(theirs.owner.to_string())),
            _ => {}
        }
    }
    Err(Taken::By(
        "another host, which goes on writing that it has the volume".into(),
    ))
}

/// Looks at a record for [`STALE`]: gives what has become of it where its owner lives.
fn watch(sector: &dyn Sector, record: &Record) -> io::Result<Option<Record>> {
    let begun = Instant::now();
    while begun.elapsed() < STALE {
        std::thread::sleep(LOOK);
        match sector.look()? {
            Found::Record(now) if now == *record => {}
            Found::Record(now) => return Ok(Some(now)),
            // Its owner has just left.
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// Whether somebody may be writing to what is only read: who, if his count rises.
pub fn writer(sector: &dyn Sector) -> io::Result<Option<Owner>> {
    match sector.look()? {
        Found::Record(record) => Ok(watch(sector, &record)?.map(|record| record.owner)),
        _ => Ok(None),
    }
}

/// What an owner knows of his record.
pub struct Holding {
    session: [u8; 16],
    owner: Owner,
    count: AtomicU64,
    /// [`clock::elapsed`] at the beginning of the last look that found it in order, ms.
    seen: AtomicU64,
}

impl Holding {
    /// Of a record that was just confirmed.
    pub fn new(record: Record) -> Holding {
        Holding {
            session: record.session,
            owner: record.owner,
            count: AtomicU64::new(record.count),
            seen: AtomicU64::new(clock::elapsed().as_millis() as u64),
        }
    }

    /// Whether what is found is this owner's; else who has it now.
    pub fn is_mine(&self, found: &Found) -> Result<(), String> {
        match found {
            Found::Record(record) if record.session == self.session => Ok(()),
            Found::Record(record) => Err(format!(
                "{} has taken the volume over; nothing more is written from here",
                record.owner
            )),
            Found::Nobody => Err(
                "somebody has taken the owner's record away (a take-over that has ended?); nothing more is written from here"
                    .into(),
            ),
            Found::Other => Err("somebody has overwritten the owner's record; nothing more is written from here".into()),
        }
    }

    /// Looks, and writes the next count. `Ok(Err)`: the volume is somebody else's.
    pub fn beat(&self, sector: &dyn Sector) -> io::Result<Result<(), String>> {
        let begun = clock::elapsed();
        if let Err(whose) = self.is_mine(&sector.look()?) {
            return Ok(Err(whose));
        }
        self.saw(begun);
        let record = Record {
            session: self.session,
            count: self.count.fetch_add(1, Ordering::Relaxed) + 1,
            owner: self.owner.clone(),
        };
        sector.put(Some(&record))?;
        Ok(Ok(()))
    }

    /// A look that began then found the record in order.
    pub fn saw(&self, begun: Duration) {
        let begun = begun.as_millis() as u64;
        self.seen.fetch_max(begun, Ordering::AcqRel);
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

    fn record() -> Record {
        Record {
            session: *b"0123456789abcdef",
            count: 7,
            owner: Owner {
                host: "höst.example".into(),
                pid: 4711,
                since: 1_795_860_300,
            },
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let bytes = record().bytes();
        assert_eq!(Record::parse(&bytes), Found::Record(record()));
        assert_eq!(Record::parse(&[0; 512]), Found::Nobody);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::parse(&bad), Found::Other, "bit {bit}");
        }
        let long = Record {
            owner: Owner {
                host: "x".repeat(400),
                ..record().owner
            },
            ..record()
        };
        let Found::Record(read) = Record::parse(&long.bytes()) else {
            panic!("a long name");
        };
        assert_eq!(read.owner.host.len(), HOST_MAX);
    }
}
