//! `ccfs ls`, `cat`, `cp`, `put`, `get`, `rm`, `mkdir`, `tree`: a volume in process, without a mount and without root.
mod copy;
mod place;
mod show;

pub use copy::{cp, get, put};
pub use show::{ls, tree};

use crate::cli::{CatArgs, MkdirArgs, RmArgs};
use crate::{logging, mounts};
use ccfs_command::{Context, Failure, Outcome, output, warn};
use ccfs_offline::{Access, Error, Offline};
use place::Place;
use std::io::Write;
use std::path::Path;

const CODE: u8 = 1;

/// Opens an image; if it is in use the text says by whom.
fn open(image: &Path, access: Access) -> Outcome<Offline> {
    let shown = image.display();
    // Without a mount table nobody is known to use it; the lock tells.
    let mounted = mounts::of_target(&mounts::absolute(image).unwrap_or(image.into()));
    if let Some(mount) = mounted.unwrap_or_default().first() {
        return Err(Failure::new(
            CODE,
            format!(
                "{shown} is in use: mounted on {0}; work with the files there, or unmount it first: umount {0}",
                mount.dir.display()
            ),
        ));
    }
    logging::of_command();
    Offline::open(image, access).map_err(|e| match e {
        Error::Open(e) => crate::target::cannot_open(image, &e, CODE),
        e => Failure::new(CODE, format!("{shown}: {e}")),
    })
}

/// What went wrong with a file of an image.
fn explain(image: &Path, e: &Error) -> String {
    format!("{}: {e}", image.display())
}

fn close(image: &Path, volume: Offline) -> Outcome<()> {
    volume.close().or_fail(
        CODE,
        format_args!(
            "{} could not be brought to rest; `ccfs fsck -p` does that",
            image.display()
        ),
    )
}

/// Some of several things went wrong, and that was told.
fn silent_failure() -> Failure {
    Failure::new(CODE, "")
}

/// Carries out `each` for all places, image by image in their order; failures are told and the rest goes on.
fn for_all(
    places: &[Place],
    access: Access,
    command: &str,
    each: &mut dyn FnMut(&Offline, &Place) -> Result<(), String>,
) -> Outcome<()> {
    let mut failed = false;
    let mut opened: Option<(&Path, Offline)> = None;
    for place in places {
        let volume = match opened.take() {
            Some((image, volume)) if image == place.image => volume,
            other => {
                if let Some((image, volume)) = other {
                    close(image, volume)?;
                }
                open(&place.image, access)?
            }
        };
        if let Err(text) = each(&volume, place) {
            warn!("{command}: {text}");
            failed = true;
        }
        opened = Some((&place.image, volume));
    }
    if let Some((image, volume)) = opened {
        close(image, volume)?;
    }
    if failed {
        Err(silent_failure())
    } else {
        Ok(())
    }
}

/// Standard output, which remembers that it could not be written: that is not the volume's error.
struct Out<'a> {
    stdout: std::io::StdoutLock<'a>,
    lost: bool,
}

impl Out<'_> {
    fn noting<T>(&mut self, done: std::io::Result<T>) -> std::io::Result<T> {
        done.inspect_err(|e| {
            if e.kind() != std::io::ErrorKind::Interrupted {
                self.lost = true;
                output::lost(e);
            }
        })
    }
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let done = self.stdout.write(bytes);
        self.noting(done)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        let done = self.stdout.flush();
        self.noting(done)
    }
}

pub fn cat(args: &CatArgs) -> Outcome<()> {
    let places = place::all(&args.places)?;
    let mut out = Out {
        stdout: std::io::stdout().lock(),
        lost: false,
    };
    let printed = for_all(&places, Access::ReadOnly, "ccfs cat", &mut |volume, p| {
        if out.lost {
            return Ok(());
        }
        match volume.read_to(&p.path, &mut out) {
            Err(e) if !out.lost => Err(explain(&p.image, &e)),
            _ => Ok(()),
        }
    });
    let _ = out.flush();
    printed
}

pub fn rm(args: &RmArgs) -> Outcome<()> {
    let places = place::all(&args.places)?;
    for_all(&places, Access::ReadWrite, "ccfs rm", &mut |volume, p| {
        let removed = if args.recursive {
            volume.remove_all(&p.path)
        } else {
            match volume.lstat(&p.path) {
                Ok(attr) if attr.is_dir() => {
                    return Err(format!(
                        "{}: {}: is a directory; -r removes it with all that is in it",
                        p.image.display(),
                        p.shown()
                    ));
                }
                _ => volume.remove(&p.path),
            }
        };
        match removed {
            Err(e) if args.force && e.errno() == libc::ENOENT => Ok(()),
            other => other.map_err(|e| explain(&p.image, &e)),
        }
    })
}

pub fn mkdir(args: &MkdirArgs) -> Outcome<()> {
    let places = place::all(&args.places)?;
    for_all(
        &places,
        Access::ReadWrite,
        "ccfs mkdir",
        &mut |volume, p| {
            let made = if args.parents {
                volume.mkdir_all(&p.path)
            } else {
                volume.mkdir(&p.path)
            };
            made.map_err(|e| explain(&p.image, &e))
        },
    )
}
