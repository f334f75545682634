//! How stores are named.
//!
//! * `nbd://HOST[:PORT]/EXPORT`, `nbds://` (TLS), `nbd+unix:///EXPORT?socket=PATH`, `nbds+unix://`: the NBD project's URIs (doc/uri.md);
//! * `rbd:POOL/IMAGE[@SNAP][:id=USER][:conf=FILE]`: an image of a Ceph cluster.
//!
//! What opens a store is in its own files: ceph.conf and a keyring, a directory of TLS certificates. Names are seen by everybody who lists
//! processes or mounts.
use crate::device::{RemoteDevice, Settings};
use crate::mmp;
use crate::nbd::Nbd;
use crate::rbd::Rbd;
use crate::session::Store;
use ccfs_device::{Device, FileDevice, OpenError, OpenMode};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Longest name, bytes: it is shown as one name of a file.
const NAME_MOST: usize = 180;

const SCHEMES: [&str; 4] = ["nbd://", "nbds://", "nbd+unix://", "nbds+unix://"];
const RBD: &str = "rbd:";

/// Why a name is none. The text is meant for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct BadName(String);

/// True where a text begins as the name of a store does. A file of such a name is `./nbd:...`.
pub fn is_store(name: &OsStr) -> bool {
    let text = name.to_string_lossy();
    text.starts_with(RBD) || SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// The store of a name.
fn store(name: &OsStr) -> Result<Box<dyn Store>, BadName> {
    let bad = |why: &str| BadName(why.into());
    let text = name.to_str().ok_or_else(|| bad("it is not in UTF-8"))?;
    if text.len() > NAME_MOST {
        return Err(bad(&format!("longer than {NAME_MOST} bytes")));
    }
    if text.contains(char::is_whitespace) || text.contains(char::is_control) {
        return Err(bad("it has a space in it"));
    }
    match text.strip_prefix(RBD) {
        Some(image) => Ok(Box::new(Rbd::parse(text, image).map_err(|why| bad(&why))?)),
        None => {
            let uri = Nbd::new(text).map_err(|e| bad(&e.to_string()))?;
            Ok(Box::new(uri))
        }
    }
}

/// Opens what a name means: a store, an image file or a block device.
pub fn open(name: &Path, mode: OpenMode, settings: Settings) -> Result<Arc<dyn Device>, OpenError> {
    let device = open_bare(name, mode, settings)?;
    mmp::guarded(device, name, mode, settings.take_over)
}

/// As `open`, but nobody counts for a volume with the feature mmp ([`mmp::guarded`]). Of a file or a block device it starts no thread.
pub fn open_bare(
    name: &Path,
    mode: OpenMode,
    settings: Settings,
) -> Result<Arc<dyn Device>, OpenError> {
    if !is_store(name.as_os_str()) {
        return Ok(Arc::new(FileDevice::open(name, mode)?));
    }
    let store = store(name.as_os_str()).map_err(|why| OpenError::Io {
        path: name.into(),
        source: io::Error::other(why),
    })?;
    Ok(Arc::new(RemoteDevice::open(store, mode, settings)?))
}

/// Whether a process of this host has a store, as far as a look at it tells. Errors: it cannot be reached.
pub fn is_held_here(name: &OsStr) -> io::Result<bool> {
    let store = store(name).map_err(io::Error::other)?;
    let owner = crate::device::owner_of(&*store)?;
    Ok(owner.is_some_and(|owner| crate::device::is_here(&owner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_told_from_files() {
        for name in [
            "nbd://host/export",
            "nbds://host",
            "nbd+unix:///?socket=/run/x",
            "rbd:pool/image@snap",
        ] {
            assert!(is_store(OsStr::new(name)), "{name}");
        }
        for name in [
            "./nbd://x",
            "/dev/nbd0",
            "nbd:",
            "rbd",
            "/rbd:x/y",
            "NBD://x",
        ] {
            assert!(!is_store(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_name() {
        let why = |name: &str| store(OsStr::new(name)).err().map(|e| e.to_string());
        let long = format!("nbd://{}", "x".repeat(200));
        for (name, word) in [
            ("rbd:image", "POOL/IMAGE"),
            ("rbd:/image", "POOL/IMAGE"),
            ("rbd:pool/", "POOL/IMAGE"),
            ("rbd:pool/image@", "POOL/IMAGE"),
            ("rbd:pool/image:key=secret", "keyring"),
            ("rbd:pool/image:color=red", "color"),
            ("nbd://host/a b", "space"),
            (long.as_str(), "longer"),
        ] {
            let why = why(name).unwrap_or_else(|| panic!("{name} is taken"));
            assert!(why.contains(word), "{name}: {why}");
        }
        assert_eq!(why("rbd:pool/image@snap:id=me:conf=/etc/x.conf"), None);
    }
}
