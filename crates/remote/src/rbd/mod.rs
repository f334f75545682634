//! Images of a Ceph cluster (docs.ceph.com, "Ceph Block Device").
//!
//! The cluster's library keeps the connections by itself: it sends again what was not answered, and the cluster carries out nothing twice. What
//! was answered is durable: the library's own cache is off. One writer is the image's exclusive lock; who breaks it has the old owner's
//! address put on the cluster's blocklist, so that his late writes are refused.
mod sys;

use crate::session::{Done, Fence, Geometry, Owner, Refusal, Request, Session, Store, Taken};
use parking_lot::Mutex;
use std::ffi::{CStr, CString};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use sys::{Image, Wanted};

/// Sectors of an image, bytes.
const MIN_IO: u64 = 512;
/// Objects have 4 MiB where nobody says otherwise.
const MAX_IO: u64 = 4 << 20;
/// Under it the image's owner is noted.
const NOTE: &CStr = c"ccfs.owner";
/// Between the owner and the lock that the note is of.
const NOTE_OF: &str = "; lock ";
/// What who was shut out of the cluster gets (EBLOCKLISTED).
const SHUT_OUT: i32 = libc::ESHUTDOWN;

/// An image.
#[derive(Clone)]
pub struct Rbd {
    name: String,
    pool: CString,
    image: CString,
    snap: Option<CString>,
    id: Option<CString>,
    conf: Option<CString>,
}

impl Rbd {
    /// `rest`: what of the name is behind `rbd:`.
    pub fn parse(name: &str, rest: &str) -> Result<Rbd, String> {
        const FORM: &str = "the form is rbd:POOL/IMAGE, with @SNAP where a snapshot is meant";
        let text = |text: &str| CString::new(text).map_err(|e| e.to_string());
        let mut parts = rest.split(':');
        let spec = parts.next().unwrap_or_default();
        let (pool, image) = spec.split_once('/').ok_or(FORM)?;
        let (image, snap) = match image.split_once('@') {
            Some((image, snap)) => (image, Some(snap)),
            None => (image, None),
        };
        if pool.is_empty() || image.is_empty() || snap == Some("") {
            return Err(FORM.into());
        }
        let mut this = Rbd {
            name: name.into(),
            pool: text(pool)?,
            image: text(image)?,
            snap: snap.map(text).transpose()?,
            id: None,
            conf: None,
        };
        for option in parts {
            match option.split_once('=') {
                Some(("id", id)) => this.id = Some(text(id)?),
                Some(("conf", conf)) => this.conf = Some(text(conf)?),
                Some(("key" | "keyfile" | "keyring", _)) => {
                    return Err(
                        "keys are not named here, where everybody can read them; ceph.conf names the keyring".into(),
                    );
                }
                _ => {
                    return Err(format!(
                        "unknown option \"{option}\"; there are id= and conf="
                    ));
                }
            }
        }
        Ok(this)
    }

    fn open(&self, wait: Duration, patience: Duration) -> io::Result<RbdSession> {
        let seconds = |time: Duration| CString::new(time.as_secs().max(1).to_string());
        let image = Image::open(&Wanted {
            pool: &self.pool,
            image: &self.image,
            snap: self.snap.as_deref(),
            id: self.id.as_deref(),
            conf: self.conf.as_deref(),
            options: &[
                // What was answered is durable, and what one host wrote the next one reads.
                (c"rbd_cache", c"false".into()),
                (c"rbd_blocklist_on_break_lock", c"true".into()),
                (c"rados_osd_op_timeout", seconds(patience)?),
                (c"rados_mon_op_timeout", seconds(patience)?),
                (c"client_mount_timeout", seconds(wait)?),
            ],
        })?;
        let geometry = Geometry {
            size: image.size()?,
            min_io: MIN_IO,
            max_io: MAX_IO,
            read_only: self.snap.is_some(),
            has_cache: false,
            flushes: true,
            discards: true,
        };
        let has_lock = image.has_lock()?;
        Ok(RbdSession {
            spec: format!(
                "{}/{}",
                self.pool.to_string_lossy(),
                self.image.to_string_lossy()
            ),
            geometry,
            image: Mutex::new(Some(Arc::new(image))),
            has_lock,
        })
    }
}

impl Store for Rbd {
    /// The library's own limits do not hold where no monitor is reached.
    fn connect(&self, wait: Duration, patience: Duration) -> io::Result<Arc<dyn Session>> {
        let (told, hear) = sync_channel(1);
        let this = self.clone();
        std::thread::Builder::new()
            .name("ccfs-rbd".into())
            .spawn(move || {
                let _ = told.send(this.open(wait, patience));
            })?;
        match hear.recv_timeout(wait + Duration::from_secs(1)) {
            Ok(opened) => Ok(Arc::new(opened?)),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the Ceph cluster does not answer",
            )),
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "rbd"
    }
}

struct RbdSession {
    spec: String,
    geometry: Geometry,
    image: Mutex<Option<Arc<Image>>>,
    has_lock: bool,
}

impl RbdSession {
    fn image(&self) -> io::Result<Arc<Image>> {
        let gone = || io::ErrorKind::NotConnected.into();
        self.image.lock().clone().ok_or_else(gone)
    }
}

impl Session for RbdSession {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn size(&self) -> u64 {
        let size = self.image().and_then(|image| image.size());
        size.unwrap_or(self.geometry.size)
    }

    fn start(&self, request: Request, done: Done) {
        let image = match self.image() {
            Ok(image) => image,
            Err(e) => return done(Err(Refusal::Lost(e))),
        };
        let spec = self.spec.clone();
        image.start(
            request,
            Box::new(move |answer| {
                done(answer.map_err(|refusal| match refusal {
                    Refusal::Store(e) if e.raw_os_error() == Some(SHUT_OUT) => {
                        Refusal::Store(io::Error::other(format!(
                            "the Ceph cluster has shut this host out of {spec}: another one has taken the volume over"
                        )))
                    }
                    refusal => refusal,
                }));
            }),
        );
    }

    fn close(&self, _told: bool) {
        // The last one who holds it closes it, and waits for what is under way.
        drop(self.image.lock().take());
    }

    fn mends_itself(&self) -> bool {
        true
    }

    fn lock(&self) -> Option<&dyn Fence> {
        Some(self)
    }
}

impl RbdSession {
    fn refuse_without_lock(&self) -> io::Result<()> {
        match self.has_lock {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "the image has no exclusive-lock, which keeps a second writer out: rbd feature enable {} exclusive-lock",
                self.spec
            ))),
        }
    }

    /// The owner of a lock in the words of his note; `None`: the image's note is of none, or of another lock.
    fn noted(image: &Image, lock: &CStr) -> Option<String> {
        let note = image.note(NOTE).ok()?;
        let (owner, of) = note.split_once(NOTE_OF)?;
        (of == lock.to_string_lossy()).then(|| owner.into())
    }

    /// The owner of a lock, for people.
    fn called(image: &Image, lock: &CStr) -> String {
        let other = || format!("another client of the cluster ({})", lock.to_string_lossy());
        Self::noted(image, lock).unwrap_or_else(other)
    }
}

impl Fence for RbdSession {
    fn take(&self, owner: &Owner, take_over: bool) -> Result<(), Taken> {
        self.refuse_without_lock()?;
        let image = self.image()?;
        let before = image.owners()?.into_iter().next();
        let other = before.as_deref().map(|lock| Self::called(&image, lock));
        match &before {
            Some(lock) if take_over => image.break_lock(lock)?,
            // Others may give the lock away when they are asked for it, and go on with it later: a virtual machine, the kernel's rbd.
            Some(lock) if Self::noted(&image, lock).is_none() => {
                return Err(Taken::By(other.unwrap_or_default()));
            }
            _ => {}
        }
        // Takes it from an owner, too, whom the cluster has not heard of for its own time-out, and shuts him out.
        image.lock().map_err(|e| match (e.raw_os_error(), &other) {
            (Some(libc::EBUSY | libc::EROFS | libc::EAGAIN), Some(other)) => {
                Taken::By(other.clone())
            }
            _ => Taken::Error(e),
        })?;
        if let Some(other) = other {
            tracing::warn!("taken over from {other}");
        }
        let own = image.owners()?.into_iter().next().unwrap_or_default();
        let note = format!("{owner}{NOTE_OF}{}", own.to_string_lossy());
        let note = CString::new(note).map_err(io::Error::from)?;
        image.set_note(NOTE, &note)?;
        Ok(())
    }

    fn give_back(&self) {
        let given = self.image().and_then(|image| {
            if image.has_it()? {
                // The note stays: it says of which lock it is.
                image.unlock()?;
            }
            Ok(())
        });
        if let Err(e) = given {
            tracing::debug!("{}: the lock stays: {e}", self.spec);
        }
    }

    fn owner(&self) -> Option<String> {
        let image = self.image().ok()?;
        let owners = image.owners().ok()?;
        let first = owners.first()?;
        Some(Self::called(&image, first))
    }
}
