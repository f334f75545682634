//! `IMAGE[:PATH]` on the command line.
use super::CODE;
use crate::tags;
use ccfs_command::{Failure, Outcome};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file in an image.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub image: PathBuf,
    /// As from the volume's root; empty for the root itself.
    pub path: PathBuf,
}

impl Place {
    /// The image's name may hold colons: it ends at the first colon before which there is a file, else at the first one. A label may hold
    /// some as well: it ends at the first one before which there is a device.
    pub fn parse(text: &OsStr) -> Outcome<Place> {
        if ccfs_remote::is_store(text) {
            return Ok(in_store(text));
        }
        if !tags::is_tag(text) {
            return Self::parse_host(text);
        }
        let mut first = None;
        for mut place in cuts(text) {
            match tags::device(&place.image, CODE) {
                Ok(device) => {
                    place.image = device;
                    return Ok(place);
                }
                Err(e) => first = first.or(Some(e)),
            }
        }
        Err(first.unwrap_or_else(|| names_no_image(text)))
    }

    /// A text that names no device by a tag.
    pub fn parse_host(text: &OsStr) -> Outcome<Place> {
        Self::parse_with(text, |path| {
            std::fs::metadata(path).is_ok_and(|m| !m.is_dir())
        })
    }

    fn parse_with(text: &OsStr, is_image: impl Fn(&Path) -> bool) -> Outcome<Place> {
        let found = cuts(text).find(|p| is_image(&p.image));
        let place = found.or_else(|| cuts(text).next());
        let is_named = |p: &Place| !p.image.as_os_str().is_empty();
        place.filter(is_named).ok_or_else(|| names_no_image(text))
    }

    /// The path for messages.
    pub fn shown(&self) -> String {
        match self.path.as_os_str().as_bytes() {
            b"" => "/".to_string(),
            path => ccfs_offline::show_name(path),
        }
    }
}

/// What the text can mean: the image ends at each colon in turn, then at the end.
fn cuts(text: &OsStr) -> impl Iterator<Item = Place> + '_ {
    let bytes = text.as_bytes();
    let ends = (0..=bytes.len()).filter(|&at| bytes.get(at).is_none_or(|b| *b == b':'));
    ends.map(|at| Place {
        image: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
        path: PathBuf::from(OsStr::from_bytes(bytes.get(at + 1..).unwrap_or(&[]))),
    })
}

/// A store's name may hold colons: the path is what follows the first `:/` behind its scheme.
fn in_store(text: &OsStr) -> Place {
    let bytes = text.as_bytes();
    let scheme = bytes.windows(3).position(|three| three == b"://");
    let from = scheme.map_or(0, |at| at + 3);
    let rest = &bytes[from..];
    let end = rest.windows(2).position(|two| two == b":/");
    let (image, path) = match end {
        Some(end) => (&bytes[..from + end], &rest[end + 1..]),
        None => (bytes, &[][..]),
    };
    Place {
        image: PathBuf::from(OsStr::from_bytes(image)),
        path: PathBuf::from(OsStr::from_bytes(path)),
    }
}

fn names_no_image(text: &OsStr) -> Failure {
    let text = text.to_string_lossy();
    Failure::new(2, format!("\"{text}\" names no image; write IMAGE:PATH"))
}

pub fn all(texts: &[OsString]) -> Outcome<Vec<Place>> {
    texts.iter().map(|t| Place::parse(t)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_ends_at_a_colon() {
        let files = ["a.img", "b:c.img", "/dev/x:0"];
        let parse = |text: &str| {
            let place = Place::parse_with(OsStr::new(text), |p| {
                files.iter().any(|f| Path::new(f) == p)
            });
            place.map(|p| {
                (
                    p.image.to_str().unwrap().to_string(),
                    p.path.to_str().unwrap().to_string(),
                )
            })
        };
        for (text, image, path) in [
            ("a.img", "a.img", ""),
            ("a.img:", "a.img", ""),
            ("a.img:/x:y", "a.img", "/x:y"),
            ("b:c.img:d", "b:c.img", "d"),
            ("/dev/x:0", "/dev/x:0", ""),
            ("none.img:p:q", "none.img", "p:q"),
            ("none.img", "none.img", ""),
        ] {
            assert_eq!(parse(text).unwrap(), (image.into(), path.into()), "{text}");
        }
        assert!(parse(":x").is_err() && parse("").is_err());
    }

    #[test]
    fn paths_in_stores() {
        for (text, image, path) in [
            ("nbd://host:1/x:/etc/hosts", "nbd://host:1/x", "/etc/hosts"),
            ("nbd://[::1]:1/x", "nbd://[::1]:1/x", ""),
            (
                "nbd+unix:///?socket=/run/s:/a:/b",
                "nbd+unix:///?socket=/run/s",
                "/a:/b",
            ),
            ("rbd:pool/image@s:id=me:/", "rbd:pool/image@s:id=me", "/"),
        ] {
            let place = Place::parse(OsStr::new(text)).unwrap();
            let found = (place.image.to_str(), place.path.to_str());
            assert_eq!(found, (Some(image), Some(path)));
        }
    }
}
